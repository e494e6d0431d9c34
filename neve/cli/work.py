"""`neve status`, `jobs`, `queue`, `explain`, `plan`, `history`, quarantine, and byte limits."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.padding import Padding

from common.clock import SystemClock
from common.errors import RequestError
from common.units import format_bytes, format_count, format_duration, parse_duration_s
from neve import api
from neve.cli.compactors import (
    render_compactors,
    render_groups,
    render_scaling,
)
from neve.cli.doctor import try_cluster
from neve.cli.render import (
    RIGHT,
    WHOLE,
    facts,
    grid,
    lines,
    quarantine_texts,
    reasons,
    shortened,
    time_text,
)
from neve.cli.session import (
    Every,
    Name,
    OptionalTablet,
    Panel,
    Session,
    Watch,
    json_document,
    name_values,
    verb,
)
from neve.cli.tablet_keys import KnownTables, TabletKeys
from neve.client.errors import UnavailableError

# ---------------------------------------------------------------------------------- Work for people


TRIGGERS_SHOWN = 5
"""Number of tables whose last trigger `neve status` shows; `--json` has more."""
QUIET_MIN_S = 5.0
"""Shorter silences are normal, because heartbeats arrive every few seconds."""


def render_status(found: api.Status) -> RenderableType:
    """Render the state of the whole service."""
    return lines(
        facts(
            [
                ("coordinator", f"up for {format_duration(max(found.now_s - found.started_s, 0))}"),
                ("tables", found.tables),
                ("tablets", _tablets_text(found)),
                ("committed", f"{format_count(found.committed, 'job')}"),
                ("failed", f"{format_count(found.failed, 'job')}"),
                ("released", f"{found.released:,} reservations"),
                ("quarantined", f"{format_count(found.quarantined, 'tablet')}"),
                *(("quarantine", text) for text in quarantine_texts(found)),
                *(("error", error) for error in found.errors),
                *(("note", warning) for warning in found.warnings),
                *(("store", store_warning) for store_warning in found.store_warnings),
                *(
                    ("trigger", _trigger_text(trigger))
                    for trigger in found.triggers[:TRIGGERS_SHOWN]
                ),
            ]
        ),
        "",
        render_groups(found.groups),
        *render_scaling(found.groups),
        "",
        render_compactors(found.compactors),
    )


def _tablets_text(found: api.Status) -> str:
    """Return the number of known tablets, and whether the first scan may add more."""
    if not found.tables_unscanned:
        return f"{found.tablets_known:,}"
    return (
        f"{found.tablets_known:,} so far: the first scan since the start is running, "
        f"{found.tables_unscanned:,} of {format_count(found.tables, 'table')} left"
    )


def render_jobs(found: Sequence[api.Job], now_s: float, keys: TabletKeys) -> RenderableType:
    """Render a list of running jobs.

    Args:
        found: The jobs.
        now_s: The current time on this machine.
        keys: Keys of tablets.
    """
    return grid(
        [
            ("ATTEMPT", WHOLE),
            ("TABLE", ""),
            ("TABLET", ""),
            ("KIND", ""),
            ("FILES", RIGHT),
            ("SIZE", RIGHT),
            ("COMPACTOR", ""),
            ("SINCE", RIGHT),
            ("STATE", ""),
        ],
        [
            (
                job.attempt,
                shortened(job.table),
                shortened(keys(job.table, job.tablet)),
                job.kind,
                job.inputs,
                format_bytes(job.input_bytes),
                job.compactor,
                format_duration(max(now_s - job.since_s, 0)),
                _job_state(job),
            )
            for job in found
        ],
    )


def render_queue(found: Sequence[api.PlannedJob], keys: TabletKeys) -> RenderableType:
    """Render a list of queued jobs. `keys` maps tablets to their keys."""
    return grid(
        [
            ("PLACE", RIGHT),
            ("TABLE", ""),
            ("TABLET", ""),
            ("GROUP", ""),
            ("PRIORITY", RIGHT),
            ("FILES", RIGHT),
            ("SIZE", RIGHT),
            ("AGE", RIGHT),
            ("REASON", ""),
        ],
        [
            (
                job.place,
                shortened(job.table),
                shortened(keys(job.table, job.tablet)),
                shortened(job.group),
                job.priority,
                len(job.files),
                format_bytes(job.input_bytes),
                None if job.age_s is None else format_duration(job.age_s),
                job.reason,
            )
            for job in found
        ],
    )


def render_activity(found: Sequence[api.TableActivity]) -> RenderableType:
    """Render the queued and running jobs of each table."""
    return grid(
        [
            ("TABLE", ""),
            ("QUEUED", RIGHT),
            ("SIZE", RIGHT),
            ("OLDEST", RIGHT),
            ("RUNNING", RIGHT),
            ("SIZE", RIGHT),
            ("COMPACTORS", RIGHT),
        ],
        [
            (
                shortened(table.table),
                table.queued,
                format_bytes(table.queued_bytes),
                format_duration(table.oldest_s) if table.queued else None,
                table.running,
                format_bytes(table.running_bytes),
                table.compactors,
            )
            for table in found
        ],
    )


def render_plan(found: api.Plan, keys: TabletKeys, *, verbose: bool = False) -> RenderableType:
    """Render a plan: its jobs, and the reasons for files that are left out.

    Args:
        found: The plan.
        keys: Maps tablets to their keys.
        verbose: Whether to list every file that is left out, not only equal reasons once.
    """
    planned = grid(
        [
            ("JOB", RIGHT),
            ("TABLET", ""),
            ("KIND", WHOLE),
            ("ACTION", WHOLE),
            ("GROUP", ""),
            ("PRIORITY", RIGHT),
            ("FILES", RIGHT),
            ("SIZE", RIGHT),
            ("REASON", ""),
        ],
        [
            (
                place,
                shortened(keys(each.table, each.tablet), _NARROW),
                each.kind,
                each.action,
                shortened(each.group, _NARROW),
                each.priority,
                len(each.files),
                format_bytes(each.input_bytes),
                "; ".join([each.reason, *_outputs_text(each)]),
            )
            for place, each in enumerate(found.jobs)
        ],
    )
    parts: list[RenderableType | str] = [planned]
    if found.intervals:
        parts += ["", _intervals(found.intervals, keys)]
    if found.left:
        parts += ["", reasons(found.left, verbose=verbose)]
    return lines(*parts)


def _intervals(found: Sequence[api.Interval], keys: TabletKeys) -> RenderableType:
    """Render the planner's state of each time interval."""
    return grid(
        [
            ("INTERVAL FROM (UTC)", WHOLE),
            ("TABLET", ""),
            ("STATE", WHOLE),
            ("FILES", RIGHT),
            ("SIZE", RIGHT),
            ("WHY", ""),
        ],
        [
            (
                time_text(interval.start_s),
                shortened(keys(interval.table, interval.tablet), _NARROW),
                interval.state,
                interval.files,
                format_bytes(interval.size_bytes),
                interval.reason,
            )
            for interval in found
        ],
    )


_NARROW = 20
"""Maximum length of a name in a list with many columns."""


def _outputs_text(job: api.PlannedJob) -> list[str]:
    """Return what is special about a planned job's outputs, and what the job waits for."""
    said: list[str] = []
    if job.cuts_at_s:
        first, last = time_text(job.cuts_at_s[0]), time_text(job.cuts_at_s[-1])
        times = f"at {first}" if len(job.cuts_at_s) == 1 else f"{len(job.cuts_at_s)} times"
        between = "" if len(job.cuts_at_s) == 1 else f" from {first} to {last}"
        said.append(f"outputs are split {times}{between} UTC")
    elif job.outputs > 1:
        said.append(f"makes up to {format_count(job.outputs, 'file')}")
    if job.output_rows_max:
        said.append(f"outputs have at most {format_count(job.output_rows_max, 'row')}")
    if job.tags:
        said.append("tags " + ", ".join(f"{name}={value}" for name, value in job.tags.items()))
    if job.after:
        said.append("after " + ", ".join(f"job {place}" for place in job.after))
    return said


def render_explanations(
    found: Sequence[api.Explanation], keys: TabletKeys, *, verbose: bool = False
) -> RenderableType:
    """Render the state of tablets with reasons, one paragraph per tablet.

    Each paragraph begins with the keys of the tablet and the id that other commands accept.
    """
    parts: list[RenderableType | str] = []
    for explanation in found:
        where = shortened(keys(explanation.table, explanation.tablet))
        parts += [f"{explanation.table}, tablet {where} (id {explanation.tablet})"]
        parts += [f"  {sentence}" for sentence in explanation.sentences]
        if explanation.left:
            parts.append(Padding(reasons(explanation.left, verbose=verbose), (0, 0, 0, 2)))
    return lines(*(parts or ["none"]))


def render_story(found: api.Story, keys: TabletKeys) -> RenderableType:
    """Render the history of a tablet, one event per row. `keys` maps tablets to their keys."""
    where = shortened(keys(found.table, found.tablet))
    return lines(
        f"{found.table}, tablet {where} (id {found.tablet})",
        grid(
            [("TIME (UTC)", WHOLE), ("KIND", ""), ("WHAT HAPPENED", "")],
            [
                (
                    time_text(entry.at_s),
                    entry.kind,
                    entry.sentence,
                )
                for entry in found.entries
            ],
        ),
    )


def _trigger_text(found: api.TableTrigger) -> str:
    counts = [
        f"{count:,} {verdict}"
        for verdict, count in (
            ("accepted", found.accepted),
            ("held", found.held),
            ("refused", found.refused),
            ("failed", found.failed),
        )
        if count
    ]
    tablets = f"tablets: {', '.join(counts)}" if counts else "no planner was asked"
    asked = f"{found.table}: {found.trigger} at {time_text(found.triggered_at_s)}, {tablets}"
    return f"{asked} ({found.refusal})" if found.refusal else asked


def render_history(found: Sequence[api.Finished], table: str, keys: TabletKeys) -> RenderableType:
    """Render a list of finished attempts.

    Args:
        found: The attempts.
        table: The table that they belong to.
        keys: Keys of tablets.
    """
    return grid(
        [
            ("ENDED (UTC)", WHOLE),
            ("TABLET", ""),
            ("END", ""),
            ("FILES", RIGHT),
            ("SIZE", ""),
            ("ROWS", ""),
            ("TOOK", RIGHT),
            ("WHY", ""),
        ],
        [
            (
                time_text(finished.ended_s),
                shortened(keys(table, finished.tablet)),
                finished.end,
                f"{len(finished.inputs)} → {len(finished.outputs)}",
                f"{format_bytes(finished.bytes_in)} → {format_bytes(finished.bytes_out)}",
                f"{finished.rows_in:,} → {finished.rows_out:,}",
                format_duration(max(finished.ended_s - finished.started_s, 0)),
                finished.cause or finished.reason,
            )
            for finished in found
        ],
    )


def _job_state(job: api.Job) -> str:
    parts = [f"{job.state} {job.fraction:.0%}" if job.state else "assigned"]
    if job.throttled and job.granted_bytes_s is not None:
        parts.append(f"throttled to {format_bytes(job.granted_bytes_s)}/s")
    if job.quiet_s >= QUIET_MIN_S:
        parts.append(f"no progress for {format_duration(job.quiet_s)}")
    return ", ".join(parts)


def render_offline_plan(planned: Mapping[str, Any], *, verbose: bool = False) -> RenderableType:
    """Render a plan that was made without a service."""
    columns = [("GROUP", ""), ("KIND", ""), ("PRIORITY", RIGHT), ("FILES", ""), ("REASON", "")]
    jobs_planned = [
        (each["group"], each["kind"], each["priority"], " ".join(each["files"]), each["reason"])
        for each in planned["jobs"]
    ]
    left = reasons(planned["left"], verbose=verbose)
    return (
        lines(grid(columns, jobs_planned), "", left)
        if planned["left"]
        else grid(columns, jobs_planned)
    )


# ------------------------------------------------- neve limits, neve group limit, neve volume limit


Wish = Annotated[
    str,
    typer.Argument(
        metavar="LIMIT",
        help=(
            "Bytes per second, such as `50MB`; `none`; or `default` for the limit in the settings."
        ),
        show_default=False,
    ),
]


@verb("limits", Panel.CONTROL, "neve limits")
def limits(session: Session) -> None:
    """List the limits of groups and volumes with the bytes per second in use."""
    found = session.client.limits()
    session.show(found, lambda: render_limits(found))


@verb("group limit", Panel.CONTROL, "neve group limit default 50MB")
def limit_group(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")],
    limit: Wish,
) -> None:
    """Limit the bytes per second of all rewrites of a group, reads and writes together."""
    _change_limit(
        session, f"group {name}", limit, lambda wish: session.client.limit_group(name, wish)
    )


@verb("volume limit", Panel.CONTROL, "neve volume limit default none")
def limit_volume(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="VOLUME", help="Name of the volume.")],
    limit: Wish,
) -> None:
    """Limit the bytes per second of all rewrites on a volume, reads and writes together."""
    _change_limit(
        session, f"volume {name}", limit, lambda wish: session.client.limit_volume(name, wish)
    )


def render_limits(found: list[api.Limit]) -> RenderableType:
    """Render a list of limits."""
    return grid(
        [
            ("KIND", ""),
            ("NAME", ""),
            ("LIMIT", RIGHT),
            ("NOW", RIGHT),
            ("GRANTED", RIGHT),
            ("JOBS", RIGHT),
            ("THROTTLED", RIGHT),
            ("MOVED", RIGHT),
            ("WAITED", RIGHT),
        ],
        [
            (
                limit.kind,
                limit.name,
                _rate_text(limit.limit_bytes_s) + (" (default)" if limit.is_default else ""),
                _rate_text(limit.rate_bytes_s),
                _rate_text(limit.granted_bytes_s if limit.attempts else 0),
                limit.attempts,
                limit.throttled,
                format_bytes(limit.moved_bytes),
                format_duration(limit.waited_s),
            )
            for limit in found
        ],
    )


def _change_limit(
    session: Session, what: str, limit: str, call: Callable[[int | str | None], None]
) -> None:
    wish = {"none": 0, "default": None}.get(limit, limit)
    call(wish)
    said = {"none": "not limited", "default": "limited by the settings"}
    text = f"{what} is {said.get(limit, f'limited to {limit}/s')}"
    session.show({"limited": what, "limit": wish}, text)


def _rate_text(bytes_s: float | None) -> str:
    return "none" if bytes_s is None else f"{format_bytes(bytes_s)}/s"


# -------------------------------------------------------------------------------------------- Verbs


Count = Annotated[int, typer.Option(help="Maximum number of entries.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="List every file that is left out with its reason.")
]


def render_live_bytes(
    found: Sequence[api.LiveBytes], table: str, keys: TabletKeys
) -> RenderableType:
    """Render the live bytes of tablets.

    Args:
        found: Live bytes per tablet.
        table: The table that they belong to.
        keys: Keys of its tablets.
    """
    return grid(
        [
            ("TABLET", ""),
            ("FILES", RIGHT),
            ("COUNTED", RIGHT),
            ("SIZE", RIGHT),
            ("LIVE", RIGHT),
            ("UPDATED", RIGHT),
            ("CHANGED", ""),
            ("READ", RIGHT),
            ("TOOK", RIGHT),
            ("SINCE", ""),
        ],
        [
            (
                shortened(keys(table, live.tablet)),
                live.files,
                "waits" if live.waiting else live.measured_files,
                format_bytes(live.size_bytes),
                f"{format_bytes(live.live_bytes)} of {format_bytes(live.measured_bytes)}",
                None if live.updated_share is None else f"{live.updated_share:.1%}",
                ", ".join(f"{name} {share:.0%}" for name, share in live.changed_shares.items()),
                None if live.read_bytes is None else format_bytes(live.read_bytes),
                None if live.elapsed_s is None else f"{live.elapsed_s:.1f} s",
                None if live.since_s is None else time_text(live.since_s),
            )
            for live in found
        ],
    )


def _keys(session: Session) -> TabletKeys:
    return KnownTables(session.client.tables)


@verb("status", Panel.SEE, "neve status")
def status(session: Session) -> None:
    """Show the state of the whole service."""
    try:
        found = session.client.status()
    except UnavailableError as error:
        # With a cluster address in the environment, explain why no service could be started there.
        wrong = [
            attempt_try.found
            for attempt_try in try_cluster()
            if attempt_try.refused or attempt_try.odd
        ]
        if not wrong:
            raise
        raise UnavailableError("; ".join((str(error), *wrong))) from error
    for fault in session.stack_faults:
        session.say(f"warning: {fault}")
    session.show(found, lambda: render_status(found))


@verb("jobs", Panel.SEE, "neve jobs")
def jobs(session: Session) -> None:
    """List the running jobs."""
    found = session.client.jobs()
    session.show(found, lambda: render_jobs(found, SystemClock().now_s(), _keys(session)))


@verb("queue", Panel.SEE, "neve queue --group default")
def queue(
    session: Session,
    group: Annotated[str | None, typer.Option(help="Name of a compaction group.")] = None,
    count: Count = 100,
) -> None:
    """List the waiting jobs, highest priority first."""
    found = session.client.queue(group, count)
    session.show(found, lambda: render_queue(found, _keys(session)))


@verb("activity", Panel.SEE, "neve activity --watch")
def activity(session: Session, *, watch: Watch = False, every: Every = 5.0) -> None:
    """List the tables with queued or running jobs, most bytes first."""
    session.show_or_watch(session.client.activity, render_activity, watch=watch, every_s=every)


@verb("explain", Panel.SEE, "neve explain users")
def explain(
    session: Session,
    name: Name,
    tablet: OptionalTablet = None,
    *,
    history: Annotated[
        bool, typer.Option("--history", help="Show the tablet's past events.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Explain for each tablet of a table why jobs run, wait or are not needed.

    --history shows the events of one tablet since the coordinator started.
    """
    if history:
        if tablet is None:
            raise RequestError(
                f"--history needs a tablet: `neve explain {name} TABLET --history`; `neve "
                f"table tablets {name}` lists the tablets"
            )
        story = session.client.story(name, tablet)
        session.show(story, lambda: render_story(story, _keys(session)))
        return
    found = session.client.explain(name, tablet)
    session.show(found, lambda: render_explanations(found, _keys(session), verbose=verbose))


@verb("plan", Panel.SEE, "neve plan users")
def plan(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(help="Name of the table.", metavar="[TABLE]")
    ] = None,
    *,
    files: Annotated[Path | None, typer.Option(help="JSON file to plan without a service.")] = None,
    planner: Annotated[str | None, typer.Option(help="With --files: the planner.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="With --files: `name=value`; may be repeated.")
    ] = None,
    tablet: Annotated[
        str | None,
        typer.Option(help="With --files: plan only the files of this tablet."),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Show which jobs would be planned now. Nothing is started.

    --files takes the output of `neve table files TABLE --json`, or a document with settings, groups
    and running jobs.
    """
    if (name is None) == (files is None):
        raise RequestError("give either the name of a table or --files")
    if files is not None:
        _plan_offline(session, files, planner, settings or [], tablet, verbose=verbose)
        return
    if planner is not None or settings or tablet is not None:
        raise RequestError(
            "--planner, --set and --tablet need --files; a table has its own settings"
        )
    found = session.client.plan(str(name))
    session.show(found, lambda: render_plan(found, _keys(session), verbose=verbose))


@verb("history", Panel.SEE, "neve history users --count 5")
def history(session: Session, name: Name, count: Count = 20) -> None:
    """List the newest finished attempts of a table."""
    found = session.client.history(name, count)
    session.show(found, lambda: render_history(found, name, _keys(session)))


@verb("analyze", Panel.CONTROL, "neve analyze users --wait")
def analyze(
    session: Session,
    name: Name,
    tablet: OptionalTablet = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until everything is counted.")] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", help="Maximum time to wait, such as 30s or 10m.")
    ] = "1h",
) -> None:
    """Count the live bytes of files: rows that a reader sees or that a rewrite must keep.

    Compactors read only the necessary columns, after all other jobs. Nothing is rewritten.
    """
    timeout_s = parse_duration_s(timeout, "--timeout") if wait else None
    found = session.client.analyze(name, tablet, timeout_s=timeout_s)
    session.show(found, lambda: render_live_bytes(found, name, _keys(session)))


@verb("lift-quarantine", Panel.CONTROL, "neve lift-quarantine users")
def lift_quarantine(
    session: Session,
    name: Name,
    tablet: OptionalTablet = None,
) -> None:
    """Release tablets from quarantine so that they are planned again; `neve explain` lists them."""
    session.client.lift_quarantine(name, tablet)
    where = f"tablet {tablet} of {name}" if tablet is not None else f"every tablet of {name}"
    session.show({"lifted": name, "tablet": tablet}, f"{where} is planned again")


@verb("lower-watermark", Panel.CONTROL, "neve lower-watermark users last")
def lower_watermark(
    session: Session,
    name: Name,
    tablet: Annotated[
        str,
        typer.Argument(help="Id of the tablet; `neve table tablets` shows it.", metavar="TABLET"),
    ],
    to: Annotated[
        str | None,
        typer.Option(help="Newest version that stays refused. Default: no version is refused."),
    ] = None,
) -> None:
    """Lower the watermark of a tablet so that it accepts older rows again."""
    found = session.client.lower_watermark(name, tablet, to)
    session.show(
        found, f"watermark: {found.before or 'none'} → {found.after or 'none'}; {found.may_rise}"
    )


def _plan_offline(
    session: Session,
    files: Path,
    planner: str | None,
    settings: list[str],
    tablet: str | None,
    *,
    verbose: bool,
) -> None:
    # Imported here so that verbs of the client start without loading the planners.
    from neve.offline import plan_offline

    planned = plan_offline(json_document(files), planner, name_values(settings, "setting"), tablet)
    session.show(planned, lambda: render_offline_plan(planned, verbose=verbose))
