"""The live rows of each file of a tablet, counted from few columns.

Only keys, versions, tombstones and times are read. For a table with a key, keys are divided into
ranges with bounded numbers of rows, one task each, so that memory does not grow with the tablet.
For any other table, only the times of files that may hold expired rows are read.

A row is live if a reader sees it, or if no rewrite could drop it now. The latter applies to a
tombstone or an expired row whose version was not reached one retention ago, and to the newest row
that such a tombstone hides. Of rows with equal key and version one counts, whichever a merge would
choose.

For a table with a key further results cost nearly nothing: how many rows are hidden by newer ones,
and keys that divide the tablet into parts of similar size. If columns are named, they are read in
a few evenly distributed ranges, and each update there is compared with the row that it hides.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import InputError, RequestError
from common.model.file import DataFile
from common.model.outcome import FileStatistics, TabletStatistics
from common.parquet.location import Location
from common.rows.conform import Flags, Int64s, conform
from common.rows.key_encoding import filled
from common.rows.merge import SortedRows, in_range, sorted_rows, take_rows
from common.rows.rules import RowRules, dead_rows, may_expire, unsettled_rows
from common.rows.schema import arrow_schema
from common.spi.deltas import delta_sets
from compactor.rewrite.attempt_folder import ProgressMark, allowance_of
from compactor.rewrite.file_io import (
    folder_fill,
    leaf_columns,
    opened_input,
    stored_bytes,
    table_location,
)
from compactor.rewrite.kernel.normalized_keys import MergeRange
from compactor.rewrite.memory_budget import IN_MEMORY_SHARE, ROWS_MAX
from compactor.rewrite.merge.driver import SAMPLED_GROUPS, sample_keys
from compactor.rewrite.merge.ranges import (
    KeyPoints,
    key_points,
    key_quantiles,
    largest_row_groups,
    tile_ranges,
)
from compactor.rewrite.merge.tasks import MergeInput
from compactor.rewrite.plan.rewrite_plan import RewritePlan

RANGE_ROWS_MAX = 1_000_000
"""Largest number of rows of a range, according to statistics."""
ROW_BYTES, KEY_COPIES = 128, 4
"""Memory of a row during a sort, in addition to this number of copies of its key."""
KEY_PARTS = 16
"""Number of parts of similar size into which the returned keys divide a tablet."""
QUANTILE_BYTES_MAX = 64
"""Longest returned key; longer keys are truncated."""
COMPARED_RANGES_MAX = 8
COMPARED_ROWS_MAX = 200_000
"""Largest number of rows of a range whose columns are compared; large tablets are sampled."""
BUNDLES_MAX = 16
"""Tasks that read the times of files."""


@dataclass(frozen=True, slots=True)
class LiveCount:
    """Live rows of files by number, and the bytes that were read."""

    rows: dict[int, int]
    read_bytes: int
    hidden_rows: int = 0
    """Rows hidden by a newer row of their key."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Updates in some key ranges, compared with the rows that they hide."""

    updates: int = 0
    """Pairs of consecutive rows of one key, neither of them a tombstone."""
    changed: dict[str, int] = field(default_factory=dict)
    """Column → updates that change it."""
    rows: dict[int, int] = field(default_factory=dict)
    """Rows by number of their file."""
    merged: dict[int, int] = field(default_factory=dict)
    """Those of them with an older row of their key."""
    merged_columns: dict[str, dict[int, int]] = field(default_factory=dict)
    """Column → those of `merged` that change it, or put or delete the whole row."""
    read_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """The live rows of a tablet's files."""

    files: tuple[FileStatistics, ...]
    read_bytes: int
    tablet: TabletStatistics | None = None
    """For a table with a key. The caller sets its version and time."""


RunTasks = Callable[[Sequence[Callable[[], object]]], Sequence[Any]]


def count_live(
    plan: RewritePlan, files: Sequence[DataFile], run: RunTasks, columns: Sequence[str] = ()
) -> LiveFiles:
    """Return the live rows of each file.

    Args:
        plan: A plan with the files as inputs, in this order.
        files: All files of a tablet.
        run: Runs tasks; returns their results.
        columns: Columns that are compared between rows of a key; empty: none.

    Raises:
        InputError: A file is missing or unreadable.
    """
    if plan.rules.row_rules.key:
        return _count_keyed(plan, files, run, columns)
    rules = _narrow_rules(plan.rules.row_rules)
    doubtful = [
        at
        for at, file in enumerate(files)
        if may_expire([file], rules, plan.rules.schema, plan.rules.now_s)
    ]
    calls = [
        partial(_live_of_times, plan, doubtful[at::BUNDLES_MAX], f"times-{at}")
        for at in range(min(BUNDLES_MAX, len(doubtful)))
    ]
    counts = {at: file.rows for at, file in enumerate(files) if at not in set(doubtful)}
    return _live_files(files, counts, run(calls) if calls else ())


def _count_keyed(
    plan: RewritePlan, files: Sequence[DataFile], run: RunTasks, columns: Sequence[str]
) -> LiveFiles:
    paths = plan.inputs.paths
    small = replace(plan, inputs=plan.inputs.only(()))
    row_points, byte_points = _points(plan)
    calls: list[Callable[[], object]] = [
        partial(_live_of_range, small, paths, work, f"range-{number}")
        for number, work in enumerate(_ranges(plan, files, row_points))
    ]
    compared = _compared_ranges(plan, files, row_points) if columns else []
    calls += [
        partial(_compare_range, small, paths, work, tuple(columns), f"columns-{number}")
        for number, work in enumerate(compared)
    ]
    results = list(run(calls)) if calls else []
    counts, comparisons = (
        results[: len(results) - len(compared)],
        results[len(results) - len(compared) :],
    )
    live = _live_files(files, dict.fromkeys(range(len(files)), 0), counts)
    statistics = TabletStatistics(
        tablet_version=0,
        measured_at_s=0.0,
        rows=sum(file.rows for file in files),
        updated_rows=sum(count.hidden_rows for count in counts),
        key_quantiles=_key_quantiles(byte_points),
    )
    if comparisons:
        statistics = _with_comparison(statistics, files, comparisons)
    read_bytes = live.read_bytes + sum(comparison.read_bytes for comparison in comparisons)
    return replace(live, read_bytes=read_bytes, tablet=statistics)


def _live_files(
    files: Sequence[DataFile], known: Mapping[int, int], counts: Iterable[LiveCount]
) -> LiveFiles:
    total, read_bytes = dict(known), 0
    for count in counts:
        read_bytes += count.read_bytes
        for at, rows in count.rows.items():
            total[at] = total.get(at, 0) + rows
    return LiveFiles(
        tuple(_statistics_of(file, total.get(at, 0)) for at, file in enumerate(files)), read_bytes
    )


def _key_quantiles(points: KeyPoints) -> tuple[bytes, ...]:
    short = (key[:QUANTILE_BYTES_MAX] for key in key_quantiles(points, KEY_PARTS))
    return tuple(dict.fromkeys(short))


def _with_comparison(
    statistics: TabletStatistics, files: Sequence[DataFile], comparisons: Sequence[Comparison]
) -> TabletStatistics:
    """Return statistics with the shares of updates that change columns and that merge."""
    updates = sum(comparison.updates for comparison in comparisons)
    names = sorted({name for comparison in comparisons for name in comparison.changed})
    deltas = {file.path for delta_set in delta_sets(files) for file in delta_set.deltas}
    numbers = {at for at, file in enumerate(files) if file.path in deltas}

    def in_deltas(counts: Iterable[Mapping[int, int]]) -> int:
        return sum(count for each in counts for at, count in each.items() if at in numbers)

    rows = in_deltas(comparison.rows for comparison in comparisons)
    merged = in_deltas(comparison.merged for comparison in comparisons)
    by_column = {
        name: in_deltas(comparison.merged_columns.get(name, {}) for comparison in comparisons)
        for name in names
    }
    return replace(
        statistics,
        compared_rows=updates,
        changed_shares=tuple(
            (name, sum(comparison.changed.get(name, 0) for comparison in comparisons) / updates)
            for name in names
            if updates
        ),
        merged_share=merged / rows if rows else None,
        merged_shares=tuple(
            (name, count / (count + rows - merged))
            for name, count in by_column.items()
            if count + rows - merged
        ),
    )


def _statistics_of(file: DataFile, live_rows: int) -> FileStatistics:
    """Return the file's size times its share of live rows, because row sizes are unknown."""
    live_bytes = file.size_bytes * live_rows // file.rows if file.rows else 0
    return FileStatistics(path=file.path, size_bytes=file.size_bytes, live_bytes=live_bytes)


def _narrow_rules(rules: RowRules) -> RowRules:
    """Return the rules reduced to the columns that are read."""
    ttl = rules.ttl_s is not None
    narrow = replace(rules, time_column=rules.time_column if ttl else None, partition_by=())
    names = narrow.merge_columns
    schema = tuple(column for column in rules.schema if column.name in names)
    partition_by = tuple(name for name in rules.partition_by if name in names)
    return replace(narrow, schema=schema, partition_by=partition_by)


def _points(plan: RewritePlan) -> tuple[KeyPoints, KeyPoints]:
    """Return the distribution of the inputs' rows and bytes over keys."""
    groups = plan.inputs.row_groups
    sources = {at: MergeInput(path) for at, path in enumerate(plan.inputs.paths)}
    weighed = [replace(group, size_bytes=group.rows) for group in groups]
    sampled = sample_keys(plan, sources, largest_row_groups(weighed, SAMPLED_GROUPS))
    return key_points(weighed, sampled), key_points(groups, sampled)


def _ranges(plan: RewritePlan, files: Sequence[DataFile], points: KeyPoints) -> list[MergeRange]:
    """Return key ranges, each with about as many rows as a task may sort."""
    return _tiled(plan, points, _rows_max(plan, files, 0, RANGE_ROWS_MAX))


def _compared_ranges(
    plan: RewritePlan, files: Sequence[DataFile], points: KeyPoints
) -> list[MergeRange]:
    """Return a few evenly distributed ranges whose complete rows fit into a task."""
    groups = plan.inputs.row_groups
    rows = sum(group.rows for group in groups)
    decoded = sum(group.size_bytes for group in groups) // max(1, rows)
    ranges = _tiled(plan, points, _rows_max(plan, files, 2 * decoded, COMPARED_ROWS_MAX))
    step = max(1, -(-len(ranges) // COMPARED_RANGES_MAX))
    return ranges[step // 2 :: step]


def _rows_max(plan: RewritePlan, files: Sequence[DataFile], row_bytes: int, rows_max: int) -> int:
    """Return how many rows of this size, without their key, a task may sort."""
    ends = [end for file in files for end in (file.key_min, file.key_max) if end is not None]
    row_bytes += ROW_BYTES + KEY_COPIES * max(map(len, ends), default=0)
    free_bytes = plan.memory.in_memory_bytes * IN_MEMORY_SHARE
    return int(max(1, min(rows_max, free_bytes // (2 * row_bytes))))


def _tiled(plan: RewritePlan, points: KeyPoints, rows_max: int) -> list[MergeRange]:
    groups = plan.inputs.row_groups
    count = -(-sum(group.rows for group in groups) // rows_max)
    return [work for work in tile_ranges(groups, points, max(1, count)) if work.groups]


# -------------------------------------------------------------------------------------------- Tasks


def _live_of_range(
    plan: RewritePlan, paths: tuple[str, ...], work: MergeRange, name: str
) -> LiveCount:
    """Count the live rows of one range of keys, by file."""
    rules = _narrow_rules(plan.rules.row_rules)
    range_rows = _rows_of_range(plan, paths, work, rules, name)
    if range_rows.rows is None:
        return LiveCount({}, range_rows.read_bytes)
    ordered = sorted_rows(range_rows.rows, rules)
    live = _live_rows(range_rows.rows, ordered, rules, plan.rules.now_s, plan.rules.drop.settled)
    counts = _by_file(range_rows.sources[live])
    return LiveCount(counts, range_rows.read_bytes, len(ordered.row) - int(ordered.new_key.sum()))


@dataclass(frozen=True, slots=True)
class _RangeRows:
    """The rows of one key range."""

    rows: pa.Table | None
    """None: there are no rows."""
    sources: Int64s
    """The file number of each row."""
    read_bytes: int


def _rows_of_range(
    plan: RewritePlan, paths: tuple[str, ...], work: MergeRange, rules: RowRules, name: str
) -> _RangeRows:
    mark = ProgressMark(plan.folder, name)
    location, paid = table_location(plan.location), _Payment(plan)
    start = _later(work.start, plan.rules.start)
    end = _earlier(work.end, plan.rules.end)
    tables, sources = list[pa.Table](), list[Int64s]()
    for at in sorted({group.input for group in work.groups}):
        numbers = sorted({group.number for group in work.groups if group.input == at})
        for table in _read(location, paths[at], rules, paid, numbers):
            mark.add(table.nbytes, table.num_rows)
            rows = in_range(table, rules, start, end)
            if rows.num_rows:
                tables.append(rows)
                sources.append(np.full(rows.num_rows, at, np.int64))
    if not tables:
        return _RangeRows(None, np.empty(0, np.int64), paid.bytes)
    return _RangeRows(pa.concat_tables(tables), np.concatenate(sources), paid.bytes)


def _by_file(sources: Int64s) -> dict[int, int]:
    """Return the number of rows of each file."""
    numbers, counts = np.unique(sources, return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def _compare_range(
    plan: RewritePlan,
    paths: tuple[str, ...],
    work: MergeRange,
    columns: tuple[str, ...],
    name: str,
) -> Comparison:
    """Compare the updates in one range of keys with the rows that they hide."""
    own = plan.rules.row_rules
    rules = _narrow_rules(own)
    names = {column.name for column in rules.schema}
    more = [each for each in own.schema if each.name in columns and each.name not in names]
    rules = replace(rules, schema=(*rules.schema, *more))
    range_rows = _rows_of_range(plan, paths, work, rules, name)
    if range_rows.rows is None:
        return Comparison(read_bytes=range_rows.read_bytes)
    ordered = sorted_rows(range_rows.rows, rules)
    ranks = np.flatnonzero(ordered.new_rank)
    newer = np.flatnonzero(~np.append(ordered.new_key[ranks][1:], True))
    new, old = ordered.row[ranks[newer]], ordered.row[ranks[newer + 1]]
    tombstones, _ = dead_rows(range_rows.rows, rules, plan.rules.now_s)
    both = ~(tombstones[new] | tombstones[old])
    changes = {
        each: flags
        for each in columns
        if each in range_rows.rows.column_names
        and (flags := _changed(range_rows.rows.column(each), new, old)) is not None
    }
    sources = range_rows.sources
    return Comparison(
        updates=int(both.sum()),
        changed={each: int(flags[both].sum()) for each, flags in changes.items()},
        rows=_by_file(sources),
        merged=_by_file(sources[new]),
        merged_columns={each: _by_file(sources[new[f | ~both]]) for each, f in changes.items()},
        read_bytes=range_rows.read_bytes,
    )


def _changed(column: pa.ChunkedArray, new: Int64s, old: Int64s) -> Flags | None:
    """Return which values differ between rows; None: this type is not compared."""
    after, before = column.take(pa.array(new)), column.take(pa.array(old))
    try:
        differs = pc.fill_null(pc.not_equal(after, before), False)
    except pa.ArrowNotImplementedError:
        return None
    gone = pc.xor(pc.is_null(after), pc.is_null(before))
    return np.asarray(pc.or_(differs, gone).to_numpy(), np.bool_)


def _live_of_times(plan: RewritePlan, numbers: Sequence[int], name: str) -> LiveCount:
    """Count the rows that have not expired, by file."""
    rules, mark = _narrow_rules(plan.rules.row_rules), ProgressMark(plan.folder, name)
    location, paid = table_location(plan.location), _Payment(plan)
    counts = dict.fromkeys(numbers, 0)
    for at in numbers:
        for table in _read(location, plan.inputs.paths[at], rules, paid):
            mark.add(table.nbytes, table.num_rows)
            _, expired = dead_rows(table, rules, plan.rules.now_s)
            counts[at] += table.num_rows - int(expired.sum())
    return LiveCount(counts, paid.bytes)


class _Payment:
    """Pays for the bytes that are read, and counts them."""

    def __init__(self, plan: RewritePlan) -> None:
        self._pay = allowance_of(plan.folder).pay
        self.bytes = 0

    def pay(self, size_bytes: int) -> None:
        self.bytes += size_bytes
        self._pay(size_bytes)


def _read(
    location: Location,
    path: str,
    rules: RowRules,
    paid: _Payment,
    groups: Iterable[int] | None = None,
) -> Iterator[pa.Table]:
    """Yield rows of a file with only the rules' columns; groups None: all row groups."""
    schema = arrow_schema(rules.schema)
    fill = folder_fill(rules, schema, path)
    with opened_input(location, path) as parquet:
        names = parquet.schema_arrow.names
        chosen = [name for name in names if name in schema.names] or names[:1]
        leaves = leaf_columns(parquet.metadata, chosen)
        numbers = range(parquet.num_row_groups) if groups is None else groups
        for number in numbers:
            paid.pay(stored_bytes(parquet.metadata, number, leaves))
            for batch in parquet.iter_batches(ROWS_MAX, [number], chosen, use_threads=False):
                try:
                    rows = filled(pa.Table.from_batches([batch]), fill)
                    named = [name for name in rows.column_names if name in schema.names]
                    yield conform(rows.select(named), schema, f"file {path}")
                except RequestError as error:
                    raise InputError(str(error)) from error


def _later(one: bytes | None, other: bytes | None) -> bytes | None:
    return max(filter(None, (one, other)), default=None)


def _earlier(one: bytes | None, other: bytes | None) -> bytes | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _live_rows(
    rows: pa.Table, ordered: SortedRows, rules: RowRules, now_s: float, settled: bytes | None
) -> Int64s:
    """Return the numbers of the live rows, given all rows of each of their keys."""
    tombstones, expired = (flags[ordered.row] for flags in dead_rows(rows, rules, now_s))
    # A rank is rows of one key and version; the best rank of a key comes first and wins.
    ranks = np.flatnonzero(ordered.new_rank)
    first = ordered.new_key[ranks]
    deleted = tombstones[ranks]
    dead = deleted | np.logical_and.reduceat(expired, ranks)
    kept = first & ~dead
    stays = np.flatnonzero(first & dead)
    versions = rows.select([rules.version_column])
    candidates = take_rows(versions, ordered.row[ranks[stays]])
    stays = stays[unsettled_rows(candidates, rules, settled)]
    kept[stays] = True
    # The newest row hidden by a delete stays valid while the delete is not settled.
    key, others = np.cumsum(first) - 1, np.flatnonzero(~deleted)
    newest = others[np.diff(key[others], prepend=-1) > 0]
    kept[newest[np.isin(key[newest], key[stays[deleted[stays]]])]] = True
    return ordered.row[ranks[kept]]
