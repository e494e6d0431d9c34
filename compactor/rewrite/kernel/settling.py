"""One step of a range settled: its rows in, those that stay out, with counts of the others.

A step knows nothing of other steps, so that several may be settled at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from common.errors import InputError
from common.model.outcome import DroppedRows, RowCounts
from common.rows.rules import DropRule
from compactor.rewrite.kernel.layout import Layout
from compactor.rewrite.kernel.order import ROWS_MAX
from compactor.rewrite.kernel.slices import Slice, portions
from compactor.rewrite.kernel.step import Step


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of the rows of a step."""

    counts: RowCounts
    dropped: DroppedRows | None = None
    table: pa.Table | None = None
    """The rows that stay, by key; None: there are none."""


def settled_of(
    layout: Layout, slices: Sequence[Slice], now_s: float, drop: DropRule | None
) -> Settled:
    """Settle a step.

    Args:
        layout: Of the table.
        slices: All rows of some keys.
        now_s: The job's `now`.
        drop: Which dead rows may go; None: none may.

    Raises:
        InputError: Too many rows of a few keys do not supersede each other.
    """
    rows_in = sum(each.rows for each in slices)
    step = Step(layout, _fitting(layout, slices, rows_in))
    chosen, dropped = step.winners(), None
    superseded, tombstones, expired = rows_in - len(chosen), 0, 0
    if drop is not None and drop.settled is not None:
        chosen, tombstones, expired, dropped = step.without_dead(chosen, now_s, drop)
    counts = RowCounts(
        rows_in=rows_in,
        rows_out=len(chosen),
        superseded=superseded,
        tombstones_dropped=tombstones,
        expired_dropped=expired,
    )
    return Settled(counts, dropped, step.table(chosen) if len(chosen) else None)


def _fitting(layout: Layout, slices: Sequence[Slice], rows: int) -> Sequence[Slice]:
    """Return rows that a step can number, merged before where there are more."""
    while rows > ROWS_MAX:  # So many rows of one key, or of a few.
        slices = [_condensed(layout, part) for part in portions(slices, ROWS_MAX // 2)]
        fewer = sum(each.rows for each in slices)
        if fewer > rows * 3 // 4:
            raise InputError(f"{rows} rows lie between two keys, and do not supersede each other")
        rows = fewer
    return slices


def _condensed(layout: Layout, slices: Sequence[Slice]) -> Slice:
    """Return the winners of some rows as rows that are merged on."""
    step = Step(layout, slices)
    chosen = step.winners()
    return Slice(step.held(chosen), 0, len(chosen))
