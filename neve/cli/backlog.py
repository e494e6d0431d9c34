"""`neve backlog`: bytes still to rewrite, per table or tablet of a service, or for a file."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from common.errors import RequestError
from common.units import format_bytes, format_count
from neve import api
from neve.cli.render import RIGHT, grid, lines, shortened, time_text
from neve.cli.session import Every, Panel, Session, Watch, json_document, name_values, verb
from neve.cli.tablet_keys import KnownTables, TabletKeys

# ----------------------------------------------------------------------------------------- The verb


_Strategy = Annotated[
    str | None,
    typer.Option(
        help=(
            "With --files: `size-tiered` (default), `leveled`, `time-window`, `date-tiered`, "
            "`ratio`, or the name of a plug-in."
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
    With --watch and --json, each sample is one line.
    """
    measures = strategy is not None or mode is not None or bool(settings) or tablet is not None
    wanted = _Wanted(name, watch=watch, every_s=every, past=past, tablets=tablets, count=count)
    wanted.check(files, measures=measures)
    if files is None:
        _of_service(session, wanted)
        return
    # Imported here so that verbs of the client start without loading the trackers.
    from neve.offline_backlog import backlog_offline

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
        if self.tablets and (self.name is None or files is not None or self.past):
            raise RequestError(
                "--tablets needs the name of a table and excludes --files and --history"
            )
        if files is not None and (self.watch or self.past):
            raise RequestError("--watch and --history need a running service and exclude --files")
        if files is not None and self.name is not None:
            raise RequestError("give either the name of a table or --files")
        if files is None and measures:
            raise RequestError(
                "--strategy, --mode, --set and --tablet need --files; for a table, its "
                "planner determines how the backlog is measured"
            )


def _of_service(session: Session, wanted: _Wanted) -> None:
    client, name = session.client, wanted.name
    if wanted.past:
        points = client.backlog_history(name)
        session.show(points, lambda: render_history(points))
    elif wanted.tablets and name is not None:
        keys = KnownTables(client.tables)
        session.show_or_watch(
            lambda: client.owed_tablets(name, wanted.count),
            lambda found: render_owed_tablets(found, name, keys),
            watch=wanted.watch,
            every_s=wanted.every_s,
        )
    else:
        session.show_or_watch(
            lambda: client.backlog(name),
            render_backlog,
            watch=wanted.watch,
            every_s=wanted.every_s,
        )


# ------------------------------------------------------------------------------ Backlogs for people


def render_backlog(found: Sequence[api.Backlog]) -> RenderableType:
    """Render the backlogs of tables with their sum."""
    if not found:
        return "no table has a backlog"
    columns = [("TABLE", ""), ("BACKLOG", RIGHT), ("TABLETS", RIGHT)]
    columns += [("REQUESTED", RIGHT), ("MEASURED BY", "")]
    lined = [
        (
            each.table or f"({format_count(each.tables, 'more table')})",
            format_bytes(each.size_bytes),
            each.tablets,
            format_bytes(each.requested_bytes) if each.requested_bytes else None,
            each.problem or each.strategy or "queued jobs of requests",
        )
        for each in found
    ]
    total = format_bytes(sum(each.size_bytes for each in found))
    requested = sum(each.requested_bytes for each in found)
    more = f"; requests add {format_bytes(requested)}" if requested else ""
    return lines(grid(columns, lined), "", f"{total} in total{_by_group(found)}{more}")


def _by_group(found: Sequence[api.Backlog]) -> str:
    """Return the backlog per group if there is more than one group."""
    sums: Counter[str] = Counter()
    for each in found:
        sums.update(each.groups)
    if len(sums) < 2:
        return ""
    return ": " + ", ".join(f"{format_bytes(sums[name])} in group {name}" for name in sorted(sums))


def render_owed_tablets(
    found: Sequence[api.OwedTablet], table: str, keys: TabletKeys
) -> RenderableType:
    """Render the tablets of a table with the largest backlog. `keys` maps tablets to their keys."""
    if not found:
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
            for tablet in found
        ],
    )


HISTORY_ROWS_MAX = 20
BAR_WIDTH = 40


def render_history(points: Sequence[api.BacklogPoint]) -> RenderableType:
    """Render the history of the backlog as a bar for each of at most 20 points in time."""
    if not points:
        return "no samples yet: the coordinator takes a sample every ten seconds"
    step = -(-len(points) // HISTORY_ROWS_MAX)
    shown = points[::-1][::step][::-1]
    most = max(point.size_bytes for point in shown)
    columns = [("TIME (UTC)", ""), ("BACKLOG", RIGHT), ("", "")]
    return grid(
        columns,
        [
            (
                time_text(point.at_s),
                format_bytes(point.size_bytes),
                "█" * round(BAR_WIDTH * point.size_bytes / most) if most else "",
            )
            for point in shown
        ],
    )
