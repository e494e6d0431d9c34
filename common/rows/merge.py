"""Sorting, merging and reading rows under the row rules, without a Python object per row.

Rows are ordered by key, with the winning row first: the higher version, then tombstones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import RequestError
from common.model.key_values import KeyType
from common.model.keys import PLUS_INFINITY
from common.model.outcome import DroppedRows, RowCounts
from common.model.request import KeyRange
from common.rows.conform import (
    BATCH_ROWS,
    Flags,
    Int64s,
    batches,
    conform,
    ordered_double_bits,
    validity,
)
from common.rows.key_encoding import encode_column, encode_keys
from common.rows.row_facts import row_hash, rows_digest
from common.rows.rules import (
    DropRule,
    RowRules,
    dead_rows,
    droppable_rows,
    join_dropped,
    tombstone_rows,
    unsettled_rows,
)
from common.rows.schema import arrow_schema

if TYPE_CHECKING:
    import polars as pl

# -------------------------------------------------------------------------------- The order of rows


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Row numbers in order, with flags for the start of a key and of a (key, version, tombstone).

    The arrays have equal lengths; the start of a key is also the start of a rank.
    """

    row: Int64s
    new_key: Flags
    new_rank: Flags


def sorted_rows(table: pa.Table, rules: RowRules) -> SortedRows:
    """Return the order of the rows of a keyed table with the rules' types."""
    assert rules.key, "rows of a table without a key have no order"
    import polars as pl  # Here, and below: only processes that sort rows load it.

    assert rules.version_column is not None
    key_names = [f"key{at}" for at in range(len(rules.key))]
    columns = {
        label: sortable_series(table.column(name), kind)
        for label, name, kind in zip(key_names, rules.key, rules.key_types, strict=True)
    }
    columns["version"] = sortable_series(table.column(rules.version_column), rules.version_type)
    columns["tombstone"] = _tombstones(table, rules)
    ranks = list(columns)
    better_first = [False] * len(key_names) + [True, True]
    frame = (
        pl.DataFrame(columns)
        .with_row_index("row")
        .sort(ranks, descending=better_first, nulls_last=better_first)
    )
    return SortedRows(
        row=frame["row"].to_numpy().astype(np.int64),
        new_key=_begins(frame, key_names),
        new_rank=_begins(frame, ranks),
    )


def sortable_series(column: pa.ChunkedArray, key_type: KeyType) -> "pl.Series":
    """Return a column as a series that sorts like its encoded values, nulls first."""
    match key_type:
        case KeyType.FLOAT:
            chunks = [
                pa.array(ordered_double_bits(array), mask=~validity(array))
                for array in batches(column)
            ]
            return _series(pa.chunked_array(chunks, pa.uint64()))
        case KeyType.STRING:
            return _series(column.cast(pa.large_string()))
        case KeyType.BINARY:
            return _series(column.cast(pa.large_binary()))
        case KeyType.DATE:
            return _series(column.cast(pa.date32()).cast(pa.int32()))
        case KeyType.TIMESTAMP:
            return _series(column.cast(pa.int64()))
        case KeyType.DECIMAL | KeyType.TIME:
            return _series(pa.chunked_array([encode_column(column, key_type)]))
        case KeyType.BOOL | KeyType.INT:
            return _series(column)


def _series(column: pa.ChunkedArray) -> "pl.Series":
    import polars as pl

    series = pl.from_arrow(column)
    assert isinstance(series, pl.Series)
    return series


def _tombstones(table: pa.Table, rules: RowRules) -> "pl.Series":
    import polars as pl

    if rules.tombstone_column is None:
        return pl.repeat(value=False, n=table.num_rows, dtype=pl.Boolean, eager=True)
    return _series(table.column(rules.tombstone_column)).fill_null(value=False)


def _begins(frame: "pl.DataFrame", columns: list[str]) -> Flags:
    """Return which rows differ from the row before in any of the columns."""
    import polars as pl

    if frame.height == 0:
        return np.zeros(0, np.bool_)
    changed = frame.select(
        pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in columns)
    )
    flags: Flags = changed.to_series().to_numpy().copy()
    flags[0] = True
    return flags


# ---- Merging
#
# Used for merge on read, by the gateway's appends, and by kernels for rows that they do not
# stream. Tests compare it with a simple reference implementation.


_INT32_MAX = 2**31 - 1
_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The rows that stay, by key, and the counts of the others; the counts balance."""

    table: pa.Table
    counts: RowCounts
    dropped: DroppedRows | None = None


def merge_tables(
    tables: Sequence[pa.Table],
    rules: RowRules,
    now_s: float,
    drop: DropRule | None = None,
) -> MergeResult:
    """Merge rows of one table: the winner of each key, by key; dead rows stay unless dropped.

    A delete may be followed by the row that it keeps (`DropRule.keeps_deleted`). Without a key all
    rows stay in the given order, except expired rows.

    Args:
        tables: Rows with any of the table's columns, in any order, of types that widen.
        rules: Rules of the table.
        now_s: The job's `now`, for expiry.
        drop: Which dead rows may be dropped, and which deleted rows stay; None: none.

    Raises:
        RequestError: A table does not have the columns of the rules' schema.
    """
    rows = concat_rows(tables, rules)
    if not rules.key:
        return _merge_bag(rows, rules, now_s)
    ordered = sorted_rows(rows, rules)
    winners = _winners(rows, ordered)
    best = take_rows(rows, winners)
    tombstones, expired = dead_rows(best, rules, now_s)
    gone, dropped = droppable_rows(best, tombstones | expired, rules, drop)
    kept = best if not gone.any() else best.filter(pa.array(~gone))
    if drop is not None and drop.keeps_deleted and tombstones.any():
        keeps = tombstones & unsettled_rows(best, rules, drop.settled)
        stays = _with_deleted(rows, ordered, winners, keeps, rules)
        kept = take_rows(rows, stays[~np.isin(stays, winners[gone])])
    counts = RowCounts(
        rows_in=rows.num_rows,
        rows_out=kept.num_rows,
        superseded=rows.num_rows - kept.num_rows - int(gone.sum()),
        tombstones_dropped=int((gone & tombstones).sum()),
        expired_dropped=int((gone & ~tombstones).sum()),
    )
    return MergeResult(table=kept, counts=counts, dropped=dropped)


def concat_rows(tables: Sequence[pa.Table], rules: RowRules) -> pa.Table:
    """Return all rows as one table with the rules' schema, in the given order."""
    schema = arrow_schema(rules.schema)
    conformed = [conform(table, schema) for table in tables]
    return pa.concat_tables(conformed) if conformed else schema.empty_table()


def _merge_bag(rows: pa.Table, rules: RowRules, now_s: float) -> MergeResult:
    _, expired = dead_rows(rows, rules, now_s)
    kept = rows.filter(pa.array(~expired)) if expired.any() else rows
    counts = RowCounts(
        rows_in=rows.num_rows, rows_out=kept.num_rows, expired_dropped=int(expired.sum())
    )
    return MergeResult(table=kept, counts=counts)


def _with_deleted(
    rows: pa.Table, ordered: SortedRows, winners: Int64s, keeps: Flags, rules: RowRules
) -> Int64s:
    """Return the winners, some of them followed by the newest row of their key with data.

    Args:
        rows: All rows.
        ordered: Their order.
        winners: Numbers of the winners, by key.
        keeps: Which of the winners are deletes that keep such a row.
        rules: Rules of the table.
    """
    others = np.flatnonzero(~tombstone_rows(rows, rules)[ordered.row])
    if not keeps.any() or not len(others):
        return winners
    key, rank = (np.cumsum(flags)[others] - 1 for flags in (ordered.new_key, ordered.new_rank))
    begins_key, begins_rank = (np.diff(numbers, prepend=-1) > 0 for numbers in (key, rank))
    newest = _winners(rows, SortedRows(ordered.row[others], begins_key, begins_rank))
    of_key = key[begins_key]
    wanted = keeps[of_key]
    return np.insert(winners, of_key[wanted] + 1, newest[wanted])


def _winners(rows: pa.Table, ordered: SortedRows) -> Int64s:
    """Return the row numbers of the winners, by key."""
    firsts = np.flatnonzero(ordered.new_key)
    winners = ordered.row[firsts]
    runs = np.cumsum(ordered.new_rank) - 1
    sizes = np.bincount(runs, minlength=0)
    tied_firsts = sizes[runs[firsts]] > 1
    if not tied_firsts.any():
        return winners
    # Only rows that tie with the first row of their key in version and tombstone are hashed.
    member = np.zeros(len(sizes), np.bool_)
    member[runs[firsts[tied_firsts]]] = True
    tied = np.flatnonzero(member[runs])
    winners[tied_firsts] = _greatest_hashes(rows, ordered.row[tied], runs[tied])
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
    """Take rows from a column; a column over 2 GiB does not fit Arrow's 32-bit offsets."""
    large = _LARGE.get(column.type)
    if large is None or column.nbytes <= _INT32_MAX:
        return column.take(chosen)
    wide = column.cast(large).take(chosen)
    steps = range(0, len(wide), BATCH_ROWS)
    pieces = [wide.slice(start, BATCH_ROWS).cast(column.type) for start in steps]
    return pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks], column.type)


# ------------------------------------------------------------------------------------ Merge on read


def scan_tables(
    tables: Sequence[pa.Table],
    rules: RowRules,
    now_s: float,
    *,
    columns: Sequence[str] | None = None,
    start: bytes | None = None,
    end: bytes | None = None,
    deleted: bool = False,
) -> pa.Table:
    """Return the visible rows, by key: not superseded, not tombstones, not expired.

    Args:
        tables: All rows of every file that may hold keys of the range, with all their
            columns (whole rows decide ties between rows).
        rules: Rules of the table.
        now_s: For expiry.
        columns: The columns to return, in this order; None: all.
        start: Encoded key after which the range begins; None: at the first key.
        end: Encoded last key of the range, inclusive; None: the last key of the table.
        deleted: Whether to return tombstones as well, each followed by the row that it keeps.

    Raises:
        RequestError: A column is unknown, or a table does not fit the rules' schema.
    """
    names = [column.name for column in rules.schema]
    if unknown := [name for name in columns or () if name not in names]:
        message = f"columns {', '.join(unknown)} are unknown, expected some of {', '.join(names)}"
        raise RequestError(message)
    rows = concat_rows([in_range(table, rules, start, end) for table in tables], rules)
    drop = DropRule(None, keeps_deleted=deleted)
    merged = merge_tables([rows], rules, now_s, drop).table
    seen = visible_rows(merged, rules, now_s, deleted=deleted)
    return seen if columns is None else seen.select(list(columns))


def count_visible(tables: Sequence[pa.Table], rules: RowRules, now_s: float) -> int | None:
    """Return the number of visible rows of a keyed table.

    Args:
        tables: All rows of every file that may hold keys of the range, with only the
            columns `rules.merge_columns`.
        rules: Rules of the table.
        now_s: For expiry.

    Returns:
        The number. None: whole rows are needed, because an expired row ties with one that has not
        expired.
    """
    names = rules.merge_columns
    schema = tuple(column for column in rules.schema if column.name in names)
    narrow = replace(rules, schema=schema, partition_by=(), time_column=None, ttl_s=None)
    if rules.ttl_s is not None:
        narrow = replace(narrow, time_column=rules.time_column, ttl_s=rules.ttl_s)
    rows = concat_rows(tables, narrow)
    if rows.num_rows == 0:
        return 0
    ordered = sorted_rows(rows, narrow)
    tombstones, expired = dead_rows(rows, narrow, now_s)
    ranks = np.flatnonzero(ordered.new_rank)
    gone = expired[ordered.row]
    any_expired, every = np.logical_or.reduceat(gone, ranks), np.logical_and.reduceat(gone, ranks)
    first_ranks = ordered.new_key[ranks]
    dead = tombstones[ordered.row][ranks] | every
    unsure = any_expired & ~dead
    if (unsure & first_ranks).any():
        return None
    return int((first_ranks & ~dead).sum())


def visible_rows(
    merged: pa.Table, rules: RowRules, now_s: float, *, deleted: bool = False
) -> pa.Table:
    """Return the rows of a merged table that readers see; deleted: with tombstones."""
    tombstones, expired = dead_rows(merged, rules, now_s)
    dead = expired if deleted else tombstones | expired
    return merged.filter(pa.array(~dead)) if dead.any() else merged


def in_range(table: pa.Table, rules: RowRules, start: bytes | None, end: bytes | None) -> pa.Table:
    """Return the rows with a key in `(start, end]`; without a key, all rows."""
    if not rules.key or (start is None and end in (None, PLUS_INFINITY)):
        return table
    keys = encode_keys(table, rules.key, rules.key_types)
    inside = pc.is_valid(keys)
    if start is not None:
        inside = pc.and_(inside, pc.greater(keys, pa.scalar(start, pa.large_binary())))
    if end is not None:
        inside = pc.and_(inside, pc.less_equal(keys, pa.scalar(end, pa.large_binary())))
    return table.filter(inside)


def inside(keys: pa.LargeBinaryArray, key_range: KeyRange) -> pa.BooleanArray:
    """Return which encoded keys lie in a range, as `KeyRange.holds` for one; null for a null."""
    flags = pc.is_valid(keys)
    if key_range.start is not None:
        start = pa.scalar(key_range.start, pa.large_binary())
        flags = pc.and_(flags, pc.greater_equal(keys, start))
    if key_range.until is not None:
        until = pa.scalar(key_range.until, pa.large_binary())
        flags = pc.and_(flags, pc.less(keys, until))
    return flags


# ----------------------------------------------------------------------------- Counts of many steps
# Counts the outcome of a job's rows, and compares rows: digests, order of keys.


DIGEST_MODULUS = 1 << 64
_COUNTS = fields(RowCounts)


@dataclass(slots=True)
class Tally:
    """The outcome of the rows so far."""

    counts: RowCounts = field(default_factory=RowCounts)
    dropped: DroppedRows | None = None
    digest: int = 0
    """Sum of the row hashes of the expected output; append-only tables only."""

    def add(self, result: MergeResult) -> None:
        """Add one step, whose input rows were not counted before."""
        self.counts = sum_counts(self.counts, result.counts)
        self.dropped = join_dropped((self.dropped, result.dropped))

    def deleted(self, rows: int) -> None:
        """Count rows that a transform has removed, which are in no other count."""
        gone = RowCounts(rows_in=rows, transform_dropped=rows)
        self.counts = sum_counts(self.counts, gone)


def sum_counts(one: RowCounts, other: RowCounts) -> RowCounts:
    """Return the sum of two counts."""
    names = (field.name for field in _COUNTS)
    return RowCounts(**{name: getattr(one, name) + getattr(other, name) for name in names})


def digest_of(table: pa.Table) -> int:
    """Return the sum of the row hashes of a table, modulo 2^64."""
    return rows_digest(row_hash(table)) if table.num_rows else 0


def keys_ascend(keys: pa.LargeBinaryArray, *, strictly: bool = False) -> bool:
    """Return whether encoded keys ascend; strictly: without duplicates."""
    if len(keys) < 2:
        return True
    compare = pc.less if strictly else pc.less_equal
    return bool(pc.all(compare(keys[:-1], keys[1:])).as_py())
