"""Overview: one sentence, what needs the reader with its cure, and the service now."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from common.units import format_count
from neve import api
from neve.console.frame import Series, Variables, View, href, page, plot
from neve.console.pages.control import last_hour, times_of

SHOWN_MAX = 20
"""Things of one kind that are listed; the others are counted."""


@dataclass(frozen=True, slots=True)
class Need:
    """Something that needs the reader."""

    kind: str
    """One or two words."""
    text: str
    cure: str = ""
    """What helps, with the command if there is one."""
    href: str = ""
    """Address of the thing; empty: it has none."""
    link: str = ""
    """Text of the link: the name of the thing."""
    is_grave: bool = True
    """Whether work stands still because of it."""


def needs(
    status: api.Status | None, tables: Sequence[api.Table], silences: Iterable[str] = ()
) -> list[Need]:
    """Return what needs the reader, the gravest first.

    Args:
        status: Status of the service; None: the caller may not see it, or it is silent.
        tables: The tables that the caller may see.
        silences: Parts of the service that do not answer.
    """
    listed = [Need("silent", text, "see the runbook: `neve doctor`") for text in silences]
    if status is not None:
        listed += _of_status(status)
    listed += _of_tables(tables)
    return sorted(listed, key=lambda need: not need.is_grave)


def _of_status(status: api.Status) -> Iterator[Need]:
    yield from (Need("error", text) for text in status.errors)
    for quarantine in status.quarantines[:SHOWN_MAX]:
        table, tablet = quarantine.table, quarantine.tablet
        yield Need(
            "quarantined",
            quarantine.reason,
            f"find the cause, then lift the quarantine: {quarantine.lift_command}",
            href("/console/tables/{table}/tablets/{tablet}", table=table, tablet=tablet),
            f"{table}, tablet {tablet}",
        )
    if (more := status.quarantined - min(len(status.quarantines), SHOWN_MAX)) > 0:
        text = f"{format_count(more, 'more tablet is', 'more tablets are')} quarantined"
        yield Need("quarantined", text, "neve status lists a hundred of them")
    yield from (Need("store", text) for text in status.store_warnings)
    for group in status.groups:
        yield from _of_group(group)
    for compactor in status.compactors:
        name, fails = f"compactor {compactor.compactor}", bool(compactor.start_problem)
        cure = f"neve logs compactor-{compactor.compactor}" if fails else "upgrade it"
        for text in compactor.problems:
            yield Need("compactor", text, cure, "/console/compactors", name, is_grave=fails)
    listed = [
        *(text for group in status.groups for text in group.problems),
        *(text for compactor in status.compactors for text in compactor.problems),
    ]
    others = (text for text in status.warnings if text not in listed)
    yield from (Need("warning", text, is_grave=False) for text in others)


def _of_group(group: api.Group) -> Iterator[Need]:
    queue = href("/console/queues", {"group": group.group})
    kind = "queue full" if group.overloaded else "no compactor"
    for text in group.problems:
        stands_still = group.overloaded or group.queued > 0
        yield Need(kind, text, "", queue, f"group {group.group}", is_grave=stands_still)
    if group.paused:
        yield Need(
            "paused",
            "no job of the group starts",
            f"neve queue resume --group {group.group}",
            queue,
            f"group {group.group}",
            is_grave=False,
        )
    if group.scaling is not None and group.scaling.blocked:
        yield Need(
            "cannot grow",
            group.scaling.blocked,
            group.scaling.missing,
            "/console/compactors",
            f"group {group.group}",
        )


STATES = {
    "paused": ("paused", "no new job starts", "resume it when the reason is gone"),
    "filling": ("read-only", "a recovery or an import fills it", "it opens when that has ended"),
    "going": ("read-only", "it is being dropped", "its name is free when its files are deleted"),
}
"""State of a table → kind, what it means, and what helps."""


def _of_tables(tables: Sequence[api.Table]) -> Iterator[Need]:
    for state, (kind, text, cure) in STATES.items():
        concerned = [table for table in tables if table.state == state]
        for table in concerned[:SHOWN_MAX]:
            address = href("/console/tables/{table}", table=table.name)
            yield Need(kind, text, cure, address, table.name, is_grave=False)
        if (more := len(concerned) - SHOWN_MAX) > 0:
            address = href("/console/tables", {"state": state})
            text = f"{format_count(more, 'more table')} in this state"
            yield Need(kind, text, "", address, "the list", is_grave=False)
    for table in tables:
        if table.incomplete:
            yield Need(
                "incomplete",
                "its recovery did not find all files; no manifest is published",
                f"look for the files, then: neve table resume {table.name}",
                href("/console/tables/{table}", table=table.name),
                table.name,
            )


def headline(
    listed: Sequence[Need],
    status: api.Status | None,
    tables: Sequence[api.Table],
    activity: Sequence[api.TableActivity],
    backlog: Sequence[api.Backlog],
) -> str:
    """Return the state of the service, as far as the caller may see it, in one sentence."""
    grave = sum(need.is_grave for need in listed)
    if grave:
        return f"{format_count(grave, 'thing needs', 'things need')} you"
    if not tables:
        return "There is no table yet"
    if status is not None and status.tables_unscanned:
        return f"The first scan has {format_count(status.tables_unscanned, 'table')} left"
    busy = {line.table for line in activity} | {line.table for line in backlog if line.size_bytes}
    if not busy:
        return "The table is at rest" if len(tables) == 1 else f"All {len(tables):,} tables at rest"
    queued, running = sum(a.queued for a in activity), sum(a.running for a in activity)
    return (
        f"{format_count(len(busy), 'table has', 'tables have')} work:"
        f" {format_count(queued, 'job')} queued, {running:,} running"
    )


MEASURES = (
    "backlog_bytes",
    "rewritten_bytes_s",
    "queued_jobs",
    "running_jobs",
    "compactors",
    "compactors_desired",
)
POINTS = 180
"""Points of a plot of the last hour: one every twenty seconds."""


def plots(series: api.Series) -> list[Markup]:
    """Return plots of the last hour, as far as the caller may see it."""
    times_s = times_of(series)

    def lines(**measures: str) -> list[Series]:
        values = series.total.values
        return [Series(label, values[name]) for label, name in measures.items() if name in values]

    return [
        plot("backlog", "Backlog", times_s, lines(backlog="backlog_bytes"), "bytes"),
        plot("rate", "Rewritten", times_s, lines(rewritten="rewritten_bytes_s"), "bytes/s"),
        plot("jobs", "Jobs", times_s, lines(queued="queued_jobs", running="running_jobs")),
        plot(
            "compactors",
            "Compactors",
            times_s,
            lines(alive="compactors", wanted="compactors_desired"),
        ),
    ]


@page("/console", "overview.html", of="GET /v1/tables", title="Overview", nav="Overview")
async def overview(view: View) -> Variables:
    """Return what the overview shows to this caller."""
    status = await view.maybe("GET /v1/status")
    listed = await view.maybe("GET /v1/tables")
    activity = (await view.maybe("GET /v1/activity") or {}).get("tables", ())
    backlog = (await view.maybe("GET /v1/backlog") or {}).get("backlog", ())
    series = await last_hour(view, MEASURES, points=POINTS)
    tables = [] if listed is None else listed["tables"]
    silences, view.silences = view.silences, []  # They are in the list, so not above it as well.
    wanting = needs(status, tables, silences)
    return {
        "needs": wanting,
        "grave": any(need.is_grave for need in wanting),
        "headline": headline(wanting, status, tables, activity, backlog),
        "status": status,
        "is_silent": bool(silences),
        "plots": [] if series is None else plots(series),
        "tables": tables,
        "busiest": sorted(activity, key=lambda line: line.queued_bytes, reverse=True)[:8],
        "backlog_bytes": sum(line.size_bytes for line in backlog),
        "queued": sum(line.queued for line in activity),
        "running": sum(line.running for line in activity),
    }
