"""`neve compactor …` and `neve group …`: compactors, compaction groups and their scaling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.console import RenderableType

from common.errors import RequestError
from common.units import (
    CHARS_MAX,
    format_bytes,
    format_count,
    format_duration,
    parse_duration_s,
    whole_number,
)
from neve import api
from neve.cli.render import RIGHT, WHOLE, facts, grid, lines, shortened, time_text
from neve.cli.session import Panel, Session, verb

COMPACTOR = Annotated[str, typer.Argument(metavar="COMPACTOR", help="Name of the compactor.")]
GROUP = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
AUTO = "auto"


# --------------------------------------------------------------------------------------- For people


def render_groups(groups: Sequence[api.Group]) -> RenderableType:
    """Render a list of compaction groups."""
    return grid(
        [
            ("GROUP", ""),
            ("QUEUED", RIGHT),
            ("BYTES", RIGHT),
            ("OLDEST", RIGHT),
            ("RUNNING", RIGHT),
            ("COMPACTORS", RIGHT),
            ("SHED", RIGHT),
            ("STATE", ""),
        ],
        [
            (
                group.group,
                group.queued,
                format_bytes(group.queued_cost_bytes),
                format_duration(group.oldest_age_s) if group.queued else None,
                group.running,
                _count_text(group),
                group.rejected + group.evicted,
                _group_state(group),
            )
            for group in groups
        ],
    )


def render_scaling(groups: Sequence[api.Group]) -> Sequence[RenderableType | str]:
    """Return a sentence for each group that is being scaled, or cannot be scaled."""
    texts = []
    for group in groups:
        scaling = group.scaling
        if scaling is None:
            continue
        reason = scaling.blocked
        if not reason and (scaling.starting or scaling.draining):
            reason = scaling.reason
        # The reason for compactors that are starting already names what is missing.
        missing = scaling.missing if scaling.missing not in reason else ""
        texts += [f"group {group.group}: {sentence}" for sentence in (reason, missing) if sentence]
    return texts


def render_group(group: api.Group) -> RenderableType:
    """Render one group with its scaling and the latest changes."""
    scaling = group.scaling
    if scaling is None:
        return lines(render_groups([group]), "", "no compactors are started for this group")
    changes = [
        (
            time_text(decision.at_s),
            decision.desired,
            " ".join(decision.started),
            " ".join(decision.drained),
            " ".join(decision.given_up),
            decision.reason,
        )
        for decision in reversed(scaling.decisions)
    ]
    columns = [
        ("TIME (UTC)", WHOLE),
        ("DESIRED", RIGHT),
        ("STARTED", ""),
        ("DRAINED", ""),
        ("GIVEN UP", ""),
        ("WHY", ""),
    ]
    return lines(
        render_groups([group]),
        "",
        facts(
            [
                ("desired", scaling.desired),
                ("bounds", _bounds_text(scaling)),
                ("starting", scaling.starting),
                ("draining", scaling.draining),
                ("failed starts", scaling.starts_failed),
                ("why", scaling.reason),
                *([("blocked", scaling.blocked)] if scaling.blocked else []),
                *([("missing", scaling.missing)] if scaling.missing else []),
            ]
        ),
        "",
        grid(columns, changes),
    )


def render_compactors(compactors: Sequence[api.Compactor]) -> RenderableType:
    """Render a list of compactors."""
    return grid(
        [
            ("COMPACTOR", ""),
            ("GROUP", ""),
            ("NODE", ""),
            ("BUSY", RIGHT),
            ("HEARD", RIGHT),
            ("STATE", ""),
        ],
        [
            (
                shortened(compactor.compactor),
                shortened(compactor.group),
                shortened(compactor.node),
                f"{compactor.busy}/{compactor.slots}",
                f"{format_duration(compactor.heard_ago_s)} ago",
                _compactor_state(compactor),
            )
            for compactor in compactors
        ],
    )


def task_memory_texts(compactors: Sequence[api.Compactor]) -> list[str]:
    """Return the memory of tasks with its reason, one line for compactors that have the same."""
    groups: dict[str, set[str]] = {}
    for compactor in compactors:
        if compactor.task_memory:
            groups.setdefault(compactor.task_memory, set()).add(compactor.group)
    several = len(groups) > 1
    return [
        f"{', '.join(sorted(names))}: {text}" if several else text for text, names in groups.items()
    ]


def _bounds_text(scaling: api.GroupScaling) -> str:
    if scaling.set_to is not None:
        return f"{scaling.set_to}, set by `neve compactor scale`"
    if scaling.least == scaling.most:
        return f"{scaling.least}, from the settings"
    return f"{scaling.least} to {scaling.most}, from the settings"


def _count_text(group: api.Group) -> str:
    """Return the number of compactors: `2`, or `2 → 5` while the group is being scaled."""
    scaling = group.scaling
    if scaling is None or scaling.desired == group.compactors:
        return str(group.compactors)
    return f"{group.compactors} → {scaling.desired}"


def _group_state(group: api.Group) -> str:
    if group.paused:
        return "paused"
    scaling = group.scaling
    if scaling is not None and scaling.starting:
        return f"{scaling.starting} starting"
    if not group.compactors:
        can_grow = scaling is not None and scaling.most > 0
        return "no compactor needed" if can_grow and not group.queued else "no compactor"
    if group.overloaded:
        return "overloaded"
    return "working" if group.running else "idle"


def _compactor_state(compactor: api.Compactor) -> str:
    if compactor.draining:
        return "draining"
    if compactor.backing_off_s > 0:
        return f"backing off for {format_duration(compactor.backing_off_s)}"
    if not compactor.ready:
        problem = compactor.start_problem
        return f"Spark cannot start: {problem}" if problem else "starting Spark"
    return "working" if compactor.busy else "idle"


# -------------------------------------------------------------------------------------------- Verbs


@verb("compactor list", Panel.CONTROL, "neve compactor list")
def compactors(session: Session) -> None:
    """List the compactors."""
    session.show(session.client.compactors(), render_compactors)


@verb("compactor drain", Panel.CONTROL, "neve compactor drain default-1")
def drain(session: Session, name: COMPACTOR) -> None:
    """Let a compactor finish its jobs and end. It takes no new jobs.

    If the group needs another compactor, one is started. `neve compactor scale` sets how many.
    """
    session.client.drain(name)
    session.show({"draining": name}, f"{name} is draining")


@verb("compactor stop", Panel.CONTROL, "neve compactor stop default-1 --wait 30s")
def stop(
    session: Session,
    name: COMPACTOR,
    *,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=(
                "Maximum time to wait for its jobs, such as `30s`. Default: "
                "compactor.drain_timeout_s."
            ),
        ),
    ] = None,
) -> None:
    """End a compactor soon. Jobs that do not finish in time move to other compactors.

    If the group needs another compactor, one is started.
    """
    wait_max_s = None if wait is None else parse_duration_s(wait, "--wait")
    session.client.stop_compactor(name, wait_max_s)
    session.show({"stopping": name, "wait_max_s": wait_max_s}, f"{name} is stopping")


@verb("compactor scale", Panel.CONTROL, "neve compactor scale default 4")
def scale(
    session: Session,
    group: GROUP,
    count: Annotated[
        str,
        typer.Argument(
            metavar="N", help="Number of compactors; `auto` follows the amount of work."
        ),
    ],
) -> None:
    """Set the number of compactors of a group. It stays until the next `scale`, or until `auto`."""
    target = None if count == AUTO else _count(count)
    session.client.scale_group(group, target)
    count = (
        "as many compactors as its work needs"
        if target is None
        else format_count(target, "compactor")
    )
    session.show({"scaled": group, "compactors": target}, f"group {group} gets {count}")


def _count(text: str) -> int:
    if (count := whole_number(text)) is None:
        beginning = text[:CHARS_MAX]
        raise RequestError(
            f"{beginning!r} is not a number of compactors, expected 0, 1, 2 … or auto"
        )
    return count


@verb("group list", Panel.CONTROL, "neve group list")
def groups(session: Session) -> None:
    """List the compaction groups with their queues, their compactors and current scaling."""
    session.show(
        session.client.groups(),
        lambda listed: lines(render_groups(listed), *render_scaling(listed)),
    )


@verb("group show", Panel.CONTROL, "neve group show default")
def show_group(session: Session, group: GROUP) -> None:
    """Show the scaling of a group: the current target, its reason and recent changes."""
    matching = [entry for entry in session.client.groups() if entry.group == group]
    if not matching:
        raise RequestError(f"there is no group {group!r}; `neve group list` lists the groups")
    session.show(matching[0], render_group)


@verb("group pause", Panel.CONTROL, "neve group pause default")
def pause_group(session: Session, name: GROUP) -> None:
    """Pause a group: no new job starts; running jobs continue."""
    session.client.pause_group(name)
    session.show({"paused": name}, f"group {name} is paused")


@verb("group resume", Panel.CONTROL, "neve group resume default")
def resume_group(session: Session, name: GROUP) -> None:
    """Resume a paused group."""
    session.client.resume_group(name)
    session.show({"resumed": name}, f"group {name} is resumed")


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
    session.show(session.client.limits(), render_limits)


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


def render_limits(limits: list[api.Limit]) -> RenderableType:
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
            for limit in limits
        ],
    )


def _change_limit(
    session: Session, what: str, limit: str, call: Callable[[int | str | None], None]
) -> None:
    wish = {"none": 0, "default": None}.get(limit, limit)
    call(wish)
    texts = {"none": "not limited", "default": "limited by the settings"}
    text = f"{what} is {texts.get(limit, f'limited to {limit}/s')}"
    session.show({"limited": what, "limit": wish}, text)


def _rate_text(bytes_s: float | None) -> str:
    return "none" if bytes_s is None else f"{format_bytes(bytes_s)}/s"
