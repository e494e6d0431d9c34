"""`neve trigger`, `neve ops`: ask the planners now, and list possible operations."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType

from common.units import format_bytes, format_count, format_duration
from neve import api
from neve.cli.render import RIGHT, grid, lines, shortened
from neve.cli.session import Name, OptionalTablet, Panel, Session, verb
from neve.cli.tablet_keys import KnownTables, TabletKeys


@verb("trigger", Panel.CONTROL, "neve trigger users")
def trigger(session: Session, name: Name) -> None:
    """Ask the planner of a table now and show its decision for each tablet.

    The planner may find nothing to do and gives its reason. `neve compact` forces a run.
    """
    found = session.client.trigger(name)
    session.show(found, lambda: render_trigger(found, KnownTables(session.client.tables)))


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
    found = session.client.maintenance(name, tablet)
    session.show(found, lambda: render_ops(found, KnownTables(session.client.tables), every=every))


def render_trigger(found: api.Trigger, keys: TabletKeys) -> RenderableType:
    """Render a planner's decision for each tablet. `keys` maps tablets to their keys."""
    answers = grid(
        [("TABLET", ""), ("PLANNER", ""), ("JOBS", RIGHT), ("FILES", RIGHT), ("WHY", "")],
        [
            (
                shortened(keys(found.table, tablet.tablet)),
                tablet.verdict,
                tablet.jobs,
                tablet.files,
                tablet.reason,
            )
            for tablet in found.tablets
        ],
    )
    if not found.left:
        return answers
    more = format_count(found.left, "more tablet is", "more tablets are")
    left = f"{more} being planned; `neve status` counts the results"
    return lines(answers, "", left)


def render_ops(found: api.TableMaintenance, keys: TabletKeys, *, every: bool) -> RenderableType:
    """Render a list of operations, and how much the tablets are read and written.

    Args:
        found: The operations.
        keys: Keys of tablets.
        every: Whether to include kinds with nothing to do.
    """
    shown = [operation for operation in found.operations if every or operation.state in _WITH_WORK]
    parts: list[RenderableType | str] = [_listing(found.table, shown, keys)]
    busy = [rate for rate in found.rates if rate.scans_s >= 0.005 or rate.rows_s >= 0.5]
    if busy:
        rows = [
            (
                shortened(keys(found.table, rates.tablet)),
                f"{rates.scans_s:.2f}",
                f"{rates.rows_s:,.0f}",
            )
            for rates in busy
        ]
        parts += ["", grid([("TABLET", ""), ("SCANS/S", RIGHT), ("ROWS/S", RIGHT)], rows)]
    if found.more:
        parts += ["", "the table has more tablets; name one to see its operations"]
    return lines(*parts)


_WITH_WORK = ("runnable", "running", "waiting")


def _listing(
    table: str, shown: Sequence[api.MaintenanceOperation], keys: TabletKeys
) -> RenderableType:
    return grid(
        [
            ("TABLET", ""),
            ("KIND", ""),
            ("STATE", ""),
            ("RANK", RIGHT),
            ("SCORE", RIGHT),
            ("GAIN", ""),
            ("COST", RIGHT),
            ("MEMORY", RIGHT),
            ("CPU", RIGHT),
            ("WHY", ""),
        ],
        [
            (
                shortened(keys(table, operation.tablet)),
                operation.kind,
                operation.state,
                operation.rank,
                f"{operation.adjusted:.3g}" if operation.score else None,
                f"{operation.gain:.3g} {operation.gain_unit}" if operation.gain else None,
                format_bytes(operation.cost_bytes) if operation.cost_bytes else None,
                None if operation.memory_bytes is None else format_bytes(operation.memory_bytes),
                None if operation.cpu_s is None else format_duration(operation.cpu_s),
                operation.why,
            )
            for operation in shown
        ],
    )
