"""Merging tables under the row rules, without a Python object per row.

Gives what `common.rows.reference` gives. Used for merge on read, by the gateway's
appends and by kernels for rows that they do not stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from common.model.outcome import DroppedRows, RowCounts
from common.rows.arrays import BATCH_ROWS, Int64s
from common.rows.conform import conform
from common.rows.dead import dead_rows, droppable
from common.rows.hash import row_hash
from common.rows.rules import DropRule, RowRules
from common.rows.schema import arrow_schema
from common.rows.sort import SortedRows, sorted_rows

_INT32_MAX = 2**31 - 1
_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The rows that stay, by key, and what became of the others; the counts balance."""

    table: pa.Table
    counts: RowCounts
    dropped: DroppedRows | None = None


def merge_tables(
    tables: Sequence[pa.Table],
    rules: RowRules,
    now_s: float,
    drop: DropRule | None = None,
) -> MergeResult:
    """Merge rows of one table: per key the winner, sorted by key; dead ones stay unless dropped.

    Without a key all rows stay in the order given, except expired ones.

    Args:
        tables: Rows with any of the table's columns, in any order and safe width.
        rules: Of the table.
        now_s: The job's `now`, for expiry.
        drop: Which dead rows may go; None: none may.

    Raises:
        RequestError: A table does not have the columns of the rules' schema.
    """
    rows = joined(tables, rules)
    if not rules.key:
        return _merge_bag(rows, rules, now_s)
    ordered = sorted_rows(rows, rules)
    winners = _winners(rows, ordered)
    best = take_rows(rows, winners)
    tombstones, expired = dead_rows(best, rules, now_s)
    gone, dropped = droppable(best, tombstones | expired, rules, drop)
    kept = best if not gone.any() else best.filter(pa.array(~gone))
    counts = RowCounts(
        rows_in=rows.num_rows,
        rows_out=kept.num_rows,
        superseded=rows.num_rows - best.num_rows,
        tombstones_dropped=int((gone & tombstones).sum()),
        expired_dropped=int((gone & ~tombstones).sum()),
    )
    return MergeResult(table=kept, counts=counts, dropped=dropped)


def joined(tables: Sequence[pa.Table], rules: RowRules) -> pa.Table:
    """Return all rows as one table of the rules' schema, in the order given."""
    schema = arrow_schema(rules.schema)
    known = [conform(table, schema) for table in tables]
    return pa.concat_tables(known) if known else schema.empty_table()


def _merge_bag(rows: pa.Table, rules: RowRules, now_s: float) -> MergeResult:
    _, expired = dead_rows(rows, rules, now_s)
    kept = rows.filter(pa.array(~expired)) if expired.any() else rows
    counts = RowCounts(
        rows_in=rows.num_rows, rows_out=kept.num_rows, expired_dropped=int(expired.sum())
    )
    return MergeResult(table=kept, counts=counts)


def _winners(rows: pa.Table, ordered: SortedRows) -> Int64s:
    """Return the row numbers of the winners, by key."""
    firsts = np.flatnonzero(ordered.new_key)
    winners = ordered.row[firsts]
    runs = np.cumsum(ordered.new_rank) - 1
    sizes = np.bincount(runs, minlength=0)
    tied_firsts = sizes[runs[firsts]] > 1
    if not tied_firsts.any():
        return winners
    # Only rows level with the first of their key in version and tombstone are hashed.
    member = np.zeros(len(sizes), np.bool_)
    member[runs[firsts[tied_firsts]]] = True
    places = np.flatnonzero(member[runs])
    winners[tied_firsts] = _greatest_hashes(rows, ordered.row[places], runs[places])
    return winners


def _greatest_hashes(rows: pa.Table, candidates: Int64s, run: Int64s) -> Int64s:
    hashes = row_hash(take_rows(rows, candidates))
    order = np.lexsort((hashes, run))
    lasts = np.append(np.flatnonzero(np.diff(run[order])), len(order) - 1)
    greatest: Int64s = candidates[order[lasts]]
    return greatest


def take_rows(rows: pa.Table, numbers: Int64s) -> pa.Table:
    """Return the rows with these numbers, in this order."""
    chosen = pa.array(numbers)
    columns = [_take(column, chosen) for column in rows.columns]
    return pa.table(columns, schema=rows.schema)


def _take(column: pa.ChunkedArray, chosen: pa.Array) -> pa.ChunkedArray:
    """Take from a column; one of more than 2 GiB does not fit Arrow's 32-bit offsets."""
    large = _LARGE.get(column.type)
    if large is None or column.nbytes <= _INT32_MAX:
        return column.take(chosen)
    wide = column.cast(large).take(chosen)
    steps = range(0, len(wide), BATCH_ROWS)
    pieces = [wide.slice(start, BATCH_ROWS).cast(column.type) for start in steps]
    return pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks], column.type)
