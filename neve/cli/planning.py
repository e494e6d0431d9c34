"""`neve queue`, `neve plan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from common.errors import RequestError
from common.units import format_bytes, format_count, format_duration
from neve import api
from neve.cli.render import (
    RIGHT,
    WHOLE,
    TabletKeys,
    facts,
    grid,
    lines,
    queue_place,
    reasons,
    shortened,
    time_text,
)
from neve.cli.session import (
    Count,
    Every,
    Name,
    OptionalTablet,
    Panel,
    Session,
    Verbose,
    Watch,
    json_document,
    name_values,
    verb,
)


def render_queue(queued: Sequence[api.PlannedJob], keys: TabletKeys) -> RenderableType:
    """Render a list of queued jobs. `keys` maps tablets to their keys."""
    return grid(
        [
            ("JOB", WHOLE),
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
                job.id,
                queue_place(job),
                shortened(job.table),
                shortened(keys(job.table, job.tablet)),
                shortened(job.group),
                job.priority,
                len(job.files),
                format_bytes(job.input_bytes),
                None if job.age_s is None else format_duration(job.age_s),
                job.reason,
            )
            for job in queued
        ],
    )


def render_plan(plan: api.Plan, keys: TabletKeys, *, verbose: bool = False) -> RenderableType:
    """Render a plan: its jobs, and why files are left out; `verbose` lists every such file."""
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
                number,
                shortened(keys(job.table, job.tablet), _NARROW),
                job.kind,
                job.action,
                shortened(job.group, _NARROW),
                job.priority,
                len(job.files),
                format_bytes(job.input_bytes),
                "; ".join([job.reason, *_outputs_text(job)]),
            )
            for number, job in enumerate(plan.jobs)
        ],
    )
    parts: list[RenderableType | str] = [planned]
    if plan.intervals:
        parts += ["", _intervals(plan.intervals, keys)]
    if (more := plan.interval_count - len(plan.intervals)) > 0:
        parts.append(f"… and {format_count(more, 'more interval')}")
    if (more := plan.job_count - len(plan.jobs)) > 0:
        size, count = format_bytes(plan.input_bytes), f"{plan.job_count:,} jobs of"
        parts.append(f"… and {format_count(more, 'more job')}: {count} {size} in all")
    if plan.left:
        parts += ["", reasons(plan.left, plan.left_reasons, verbose=verbose)]
    shown = len(plan.left) if verbose else sum(plan.left_reasons.values())
    if (more := plan.left_count - shown) > 0:
        parts.append(f"… and {format_count(more, 'more file')} that no job takes")
    if plan.waits:
        parts += ["", *plan.waits]
    if plan.correction.jobs:
        parts += ["", plan.correction.sentence]
    return lines(*parts)


def _intervals(intervals: Sequence[api.Interval], keys: TabletKeys) -> RenderableType:
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
            for interval in intervals
        ],
    )


_NARROW = 20
"""Maximum length of a name in a list with many columns."""


def _outputs_text(job: api.PlannedJob) -> list[str]:
    """Return what is special about a planned job's outputs, and what the job waits for."""
    texts: list[str] = []
    if job.cuts_at_s:
        first, last = time_text(job.cuts_at_s[0]), time_text(job.cuts_at_s[-1])
        times = f"at {first}" if len(job.cuts_at_s) == 1 else f"{len(job.cuts_at_s)} times"
        between = "" if len(job.cuts_at_s) == 1 else f" from {first} to {last}"
        texts.append(f"outputs are split {times}{between} UTC")
    elif job.outputs > 1:
        texts.append(f"makes up to {format_count(job.outputs, 'file')}")
    if job.output_rows_max:
        texts.append(f"outputs have at most {format_count(job.output_rows_max, 'row')}")
    if job.tags:
        texts.append("tags " + ", ".join(f"{name}={value}" for name, value in job.tags.items()))
    if job.expected_s:
        size, time = format_bytes(job.expected_bytes), format_duration(job.expected_s)
        texts.append(f"expected to write {size} in {time}")
    if job.after:
        texts.append("after " + ", ".join(f"job {number}" for number in job.after))
    return texts


def render_offline_plan(planned: Mapping[str, Any], *, verbose: bool = False) -> RenderableType:
    """Render a plan that was made without a service."""
    columns = [("GROUP", ""), ("KIND", ""), ("PRIORITY", RIGHT), ("FILES", ""), ("REASON", "")]
    jobs_planned = [
        (job["group"], job["kind"], job["priority"], " ".join(job["files"]), job["reason"])
        for job in planned["jobs"]
    ]
    left = reasons(planned["left"], verbose=verbose)
    return (
        lines(grid(columns, jobs_planned), "", left)
        if planned["left"]
        else grid(columns, jobs_planned)
    )


def render_shadow_plan(compared: api.ShadowPlan) -> RenderableType:
    """Render the comparison of a planner with a shadow planner."""
    if not compared.since_s:
        return "the comparison has not begun: no tablet was planned so far"
    columns = [("PLANNER", WHOLE), ("JOBS", RIGHT), ("READ", RIGHT), ("WRITTEN", RIGHT)]
    columns += [("FILES LEFT", RIGHT), ("OVERLAPPING", RIGHT), ("PROBLEM", "")]
    sides = ((compared.first, "runs"), (compared.shadow, "shadow"))
    figures = [
        (
            f"{side.planner} ({role})",
            side.jobs,
            format_bytes(side.read_bytes),
            format_bytes(side.written_bytes),
            side.files_left,
            side.overlapping_files,
            side.problem,
        )
        for side, role in sides
    ]
    tablets = format_count(compared.tablets, "tablet")
    waiting = f", {compared.waiting} of them not planned so far" if compared.waiting else ""
    partial = "; the table has more, which are not compared" if compared.partial else ""
    summary = (
        f"since {time_text(compared.since_s)} UTC: {tablets}{waiting}{partial}; "
        f"{format_count(compared.begin_files, 'file')} at the beginning, {compared.added_files} "
        f"added; the table has {format_count(compared.files, 'file')} now"
    )
    return lines(grid(columns, figures), "", summary)


@verb("queue", Panel.SEE, "neve queue --group default")
def queue(
    session: Session,
    group: Annotated[str | None, typer.Option(help="Name of a compaction group.")] = None,
    count: Count = 100,
) -> None:
    """List the waiting jobs of each group, in the order in which they start."""
    session.show(
        session.client.queue(group, count), lambda queued: render_queue(queued, session.keys)
    )


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
        list[str] | None,
        typer.Option(
            "--set",
            help="Plan with another setting, `name=value`; may be repeated. None is stored.",
        ),
    ] = None,
    tablet: Annotated[
        str | None,
        typer.Option(help="Plan only this tablet."),
    ] = None,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Compare the table's planner with its shadow planner.")
    ] = False,
    count: Annotated[
        int, typer.Option(help="Maximum number of jobs, of intervals, and of files with --verbose.")
    ] = 100,
    verbose: Verbose = False,
) -> None:
    """Show which jobs would be planned now. Nothing is started or stored.

    --shadow shows the work of both planners since the setting `shadow_planner` was set. --files
    takes the output of `neve table files TABLE --json`, or a document with settings, groups and
    running jobs.
    """
    if (name is None) == (files is None):
        raise RequestError("give either the name of a table or --files")
    if shadow and files is not None:
        raise RequestError("--shadow needs a running service and excludes --files")
    if files is not None:
        _plan_offline(session, files, planner, settings or [], tablet, verbose=verbose)
        return
    if planner is not None:
        raise RequestError("--planner needs --files; for a table, use --set planner=NAME")
    if shadow and (settings or tablet is not None):
        raise RequestError("--shadow compares a whole table and excludes --set and --tablet")
    if shadow:
        session.show(session.client.shadow_plan(str(name)), render_shadow_plan)
        return
    session.show(
        session.client.plan(
            str(name),
            tablets=[] if tablet is None else [tablet],
            settings=name_values(settings or [], "setting"),
            count=count,
        ),
        lambda planned: render_plan(planned, session.keys, verbose=verbose),
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
    session.show(planned, lambda planned: render_offline_plan(planned, verbose=verbose))


# ------------------------------------------------------------------------------------------ Backlog
# `neve backlog`: bytes still to rewrite, per table or tablet of a service, or for a file.


_Strategy = Annotated[
    str | None,
    typer.Option(
        help=(
            "With --files: `size-tiered` (default), `leveled`, `time-window`, `date-tiered`, "
            "`ratio`, `unified`, or the name of a plug-in."
        )
    ),
]
_Mode = Annotated[
    str | None,
    typer.Option(
        help=(
            "With --files: `interesting` (default) counts the tiers that are due for a merge, "
            "`seed` counts all files."
        )
    ),
]
_Settings = Annotated[
    list[str] | None, typer.Option("--set", help="With --files: `name=value`; may be repeated.")
]


@verb("backlog", Panel.SEE, "neve backlog --files files.json --strategy leveled")
def backlog(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(help="Name of the table; default: all.", metavar="[TABLE]")
    ] = None,
    *,
    files: Annotated[
        Path | None, typer.Option(help="JSON file of a tablet to measure without a service.")
    ] = None,
    strategy: _Strategy = None,
    mode: _Mode = None,
    settings: _Settings = None,
    tablet: Annotated[
        str | None, typer.Option(help="With --files: measure only the files of this tablet.")
    ] = None,
    watch: Watch = False,
    every: Every = 2.0,
    past: Annotated[
        bool, typer.Option("--history", help="Show the last hour; --json has every ten seconds.")
    ] = False,
    tablets: Annotated[
        bool, typer.Option("--tablets", help="Show the tablets of TABLE with the largest backlog.")
    ] = False,
    count: Annotated[
        int, typer.Option(help="With --tablets: maximum number of tablets.", min=1)
    ] = 20,
) -> None:
    """Show how many bytes remain to be rewritten before planners have no more work.

    --files takes the output of `neve table files TABLE --json`, or the document of `neve plan`.
    With --watch and --json, each sample is one line. --tablets --history records the largest
    tablets from its first call until an hour after its last one.
    """
    measures = strategy is not None or mode is not None or bool(settings) or tablet is not None
    options = _Wanted(name, watch=watch, every_s=every, past=past, tablets=tablets, count=count)
    options.check(files, measures=measures)
    if files is None:
        _of_service(session, options)
        return
    # Imported here so that verbs of the client start without loading the trackers.
    from neve.offline import backlog_offline

    overrides = name_values(settings or [], "setting")
    measured = backlog_offline(json_document(files), strategy, mode, overrides, tablet)
    session.show(measured, format_bytes(round(measured["backlog"])))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The parts of a service's backlog to show."""

    name: str | None
    watch: bool
    every_s: float
    past: bool
    tablets: bool
    count: int

    def check(self, files: Path | None, *, measures: bool) -> None:
        """Reject options that exclude each other."""
        if self.watch and self.past:
            raise RequestError("give either --watch or --history")
        if self.tablets and (self.name is None or files is not None):
            raise RequestError("--tablets needs the name of a table and excludes --files")
        if files is not None and (self.watch or self.past):
            raise RequestError("--watch and --history need a running service and exclude --files")
        if files is not None and self.name is not None:
            raise RequestError("give either the name of a table or --files")
        if files is None and measures:
            raise RequestError(
                "--strategy, --mode, --set and --tablet need --files; for a table, its "
                "planner determines how the backlog is measured"
            )


def _recorded(session: Session, name: str | None) -> list[api.BacklogPoint]:
    """Return the backlog of a table, or of all tables, over the last hour; gaps are left out."""
    series = session.client.series(
        measures=["backlog_bytes"], tables=[] if name is None else [name], count=0, groups=False
    )
    line = series.total if name is None else series.tables[0]
    return [
        api.BacklogPoint(at_s=series.start_s + number * series.step_s, size_bytes=round(size))
        for number, size in enumerate(line.values["backlog_bytes"])
        if size is not None
    ]


def _of_service(session: Session, options: _Wanted) -> None:
    client, name = session.client, options.name
    if options.past and options.tablets and name is not None:
        recorded, keys = client.tablet_backlog_history(name, options.count), session.keys
        session.show(recorded, lambda recorded: render_tablet_histories(recorded, name, keys))
    elif options.past:
        session.show(_recorded(session, name), render_history)
    elif options.tablets and name is not None:
        keys = session.keys
        session.show_or_watch(
            lambda: client.owed_tablets(name, options.count),
            lambda owed: render_owed_tablets(owed, name, keys),
            watch=options.watch,
            every_s=options.every_s,
        )
    else:
        session.show_or_watch(
            lambda: client.backlog(name),
            render_backlog,
            watch=options.watch,
            every_s=options.every_s,
        )


# ------------------------------------------------------------------------------ Backlogs for people


def render_backlog(backlogs: Sequence[api.Backlog]) -> RenderableType:
    """Render the backlogs of tables with their sum."""
    if not backlogs:
        return "no table has a backlog"
    columns = [("TABLE", ""), ("BACKLOG", RIGHT), ("TABLETS", RIGHT)]
    columns += [("REQUESTED", RIGHT), ("MEASURED BY", "")]
    lined = [
        (
            backlog.table or f"({format_count(backlog.tables, 'more table')})",
            format_bytes(backlog.size_bytes),
            backlog.tablets,
            format_bytes(backlog.requested_bytes) if backlog.requested_bytes else None,
            backlog.problem or backlog.strategy or "queued jobs of requests",
        )
        for backlog in backlogs
    ]
    total = format_bytes(sum(backlog.size_bytes for backlog in backlogs))
    requested = sum(backlog.requested_bytes for backlog in backlogs)
    more = f"; requests add {format_bytes(requested)}" if requested else ""
    return lines(grid(columns, lined), "", f"{total} in total{_by_group(backlogs)}{more}")


def _by_group(backlogs: Sequence[api.Backlog]) -> str:
    """Return the backlog per group if there is more than one group."""
    sums: Counter[str] = Counter()
    for backlog in backlogs:
        sums.update(backlog.groups)
    if len(sums) < 2:
        return ""
    return ": " + ", ".join(f"{format_bytes(sums[name])} in group {name}" for name in sorted(sums))


def render_owed_tablets(
    owed: Sequence[api.OwedTablet], table: str, keys: TabletKeys
) -> RenderableType:
    """Render the tablets of a table with the largest backlog. `keys` maps tablets to their keys."""
    if not owed:
        return "no tablet has a backlog"
    columns = [("TABLET", ""), ("BACKLOG", RIGHT), ("GROUP", ""), ("MEASURED BY", "")]
    return grid(
        columns,
        [
            (
                shortened(keys(table, tablet.tablet)),
                format_bytes(tablet.size_bytes),
                tablet.group,
                tablet.problem or tablet.strategy,
            )
            for tablet in owed
        ],
    )


HISTORY_ROWS_MAX = 20
BAR_WIDTH = 40


def render_tablet_histories(
    recorded: Sequence[api.TabletBacklogHistory], table: str, keys: TabletKeys
) -> RenderableType:
    """Render the history of each recorded tablet. `keys` maps tablets to their keys."""
    if not recorded:
        return "no tablet has a backlog"
    return lines(*[
        part
        for tablet in recorded
        for part in (keys(table, tablet.tablet), render_history(tablet.history), "")
    ])  # fmt: skip


def render_history(points: Sequence[api.BacklogPoint]) -> RenderableType:
    """Render the history of the backlog as a bar for each of at most 20 points in time."""
    if not points:
        return "no samples yet: the coordinator takes a sample every few seconds"
    step = -(-len(points) // HISTORY_ROWS_MAX)
    chosen = points[::-1][::step][::-1]
    most = max(point.size_bytes for point in chosen)
    columns = [("TIME (UTC)", ""), ("BACKLOG", RIGHT), ("", "")]
    return grid(
        columns,
        [
            (
                time_text(point.at_s),
                format_bytes(point.size_bytes),
                "█" * round(BAR_WIDTH * point.size_bytes / most) if most else "",
            )
            for point in chosen
        ],
    )


# -------------------------------------------------------------------------------------- Maintenance
# `neve trigger`, `neve ops`: ask the planners now, and list possible operations.


@verb("trigger", Panel.CONTROL, "neve trigger users")
def trigger(session: Session, name: Name, tablet: OptionalTablet = None) -> None:
    """Ask the planner of a table, or of one tablet, now and show its decision for each tablet.

    The planner may find nothing to do and gives its reason. `neve compact` forces a run.
    """
    session.show(
        session.client.trigger(name, tablet),
        lambda triggered: render_trigger(triggered, session.keys),
    )


@verb("ops", Panel.SEE, "neve ops users")
def ops(
    session: Session,
    name: Name,
    tablet: OptionalTablet = None,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="Include kinds of operations with nothing to do.")
    ] = False,
) -> None:
    """List possible operations in the tablets of a table: gain, cost, memory, or why not now.

    One row per kind of operation with something to do; --all shows the other kinds as well.
    """
    maintenance = session.client.maintenance(name, tablet)
    session.show(
        maintenance,
        lambda maintenance: render_ops(maintenance, session.keys, every=every),
    )


@verb("maintain", Panel.CONTROL, "neve maintain sales vacuum --dry-run")
def maintain(
    session: Session,
    name: Name,
    operation: Annotated[
        str,
        typer.Argument(
            help="`checkpoint`, `log-cleanup` or `vacuum` (Delta), "
            "`expire-snapshots`, `orphan-files` or `manifests` (Iceberg).",
            metavar="OPERATION",
        ),
    ],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")
    ] = False,
    files: Annotated[
        int | None,
        typer.Option(help="Delete at most so many files. Default: `lake_maintenance_files`."),
    ] = None,
) -> None:
    """Run a maintenance operation of a lake table once, such as vacuum or expire-snapshots.

    The table setting `lake_maintenance` lets the service run operations by itself.
    """
    session.show(
        session.client.maintain(name, operation, dry_run=dry_run, files=files), render_lake_run
    )


def render_lake_run(run: api.LakeRun) -> RenderableType:
    """Render what an operation of a lake table has done, or would do."""
    deleted = f"{format_count(run.files, 'file')}, {format_bytes(run.size_bytes)}"
    more = f"; {run.more:,} more follow" if run.more else ""
    verb_text = "would be deleted" if run.state == api.LakeRunState.DRY_RUN else "deleted"
    if run.state == api.LakeRunState.WAITING:
        verb_text = "to delete"
    found = facts(
        [
            ("table", run.table),
            ("operation", run.operation),
            ("state", run.state),
            ("why", run.why or None),
            ("writes", run.created or None),
            (verb_text, f"{deleted}{more}" if run.files else None),
            *((why, f"{count:,}") for why, count in sorted(run.spared.items())),
        ]
    )
    return lines(found, *(["", *run.paths] if run.paths else []))


def render_trigger(trigger: api.Trigger, keys: TabletKeys) -> RenderableType:
    """Render a planner's decision for each tablet. `keys` maps tablets to their keys."""
    answers = grid(
        [("TABLET", ""), ("PLANNER", ""), ("JOBS", RIGHT), ("FILES", RIGHT), ("WHY", "")],
        [
            (
                shortened(keys(trigger.table, tablet.tablet)),
                tablet.verdict,
                tablet.jobs,
                tablet.files,
                tablet.reason,
            )
            for tablet in trigger.tablets
        ],
    )
    if not trigger.left:
        return answers
    more = format_count(trigger.left, "more tablet is", "more tablets are")
    left = f"{more} being planned; `neve status` counts the results"
    return lines(answers, "", left)


def render_ops(
    maintenance: api.TableMaintenance, keys: TabletKeys, *, every: bool
) -> RenderableType:
    """Render operations, with idle kinds if `every`; and how much tablets are read and written."""
    chosen = [
        operation for operation in maintenance.operations if every or operation.state in _WITH_WORK
    ]
    parts: list[RenderableType | str] = [_listing(maintenance.table, chosen, keys)]
    busy = [rate for rate in maintenance.rates if rate.scans_s >= 0.005 or rate.rows_s >= 0.5]
    if busy:
        rows = [
            (
                shortened(keys(maintenance.table, rates.tablet)),
                f"{rates.scans_s:.2f}",
                f"{rates.rows_s:,.0f}",
            )
            for rates in busy
        ]
        parts += ["", grid([("TABLET", ""), ("SCANS/S", RIGHT), ("ROWS/S", RIGHT)], rows)]
    if maintenance.decisions:
        parts += ["", _decisions(maintenance.decisions)]
    if maintenance.more:
        parts += ["", "the table has more tablets; name one to see its operations"]
    return lines(*parts)


def _decisions(decisions: Sequence[api.MaintenanceDecision]) -> RenderableType:
    """Render the last starts of operations of the coordinator."""
    return grid(
        [("STARTED", RIGHT), ("KIND", ""), ("STEP", ""), ("TOOK", RIGHT), ("WHY", "")],
        [
            (
                f"{format_duration(decision.ago_s)} ago",
                decision.kind,
                decision.step,
                "running" if decision.took_s is None else format_duration(decision.took_s),
                decision.why,
            )
            for decision in decisions
        ],
    )


_WITH_WORK = ("runnable", "running", "waiting")


def _listing(
    table: str, operations: Sequence[api.MaintenanceOperation], keys: TabletKeys
) -> RenderableType:
    return grid(
        [
            ("TABLET", ""),
            ("KIND", ""),
            ("STATE", ""),
            ("RANK", RIGHT),
            ("STEP", ""),
            ("SCORE", RIGHT),
            ("GAIN", ""),
            ("COST", RIGHT),
            ("MEMORY", RIGHT),
            ("CPU", RIGHT),
            ("WITHIN", RIGHT),
            ("WHY", ""),
        ],
        [
            (
                shortened(keys(table, operation.tablet)) if operation.tablet else "(table)",
                operation.kind,
                operation.state,
                operation.rank,
                operation.step or None,
                f"{operation.adjusted:.3g}" if operation.score else None,
                f"{operation.gain:.3g} {operation.gain_unit}" if operation.gain else None,
                format_bytes(operation.cost_bytes) if operation.cost_bytes else None,
                None if operation.memory_bytes is None else format_bytes(operation.memory_bytes),
                None if operation.cpu_s is None else format_duration(operation.cpu_s),
                None if operation.due_s is None else format_duration(operation.due_s),
                operation.why,
            )
            for operation in operations
        ],
    )
