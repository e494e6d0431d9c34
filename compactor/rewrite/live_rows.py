"""What is live of each file of a tablet, counted from the columns that tell it.

Keys, versions, tombstones and times are read, nothing else. Of a table with a key, keys are cut
into ranges of bounded numbers of rows, one task each, so that memory does not grow with the tablet.
Of any other table only the times of files are read that may hold expired rows.

A row is live if a reader sees it, or if no rewrite could leave it out yet: a tombstone, or an
expired row, whose version was not reached one retention ago, and the row that such a tombstone
hides. Of rows with equal key and version one counts, whichever a merge would choose.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import InputError, RequestError
from common.model.file import DataFile
from common.model.outcome import FileStatistics
from common.parquet.location import Location
from common.rows.arrays import Flags, Int64s
from common.rows.conform import conform
from common.rows.dead_rows import dead_rows, may_expire
from common.rows.key_encoding import encode_column
from common.rows.merge import in_range, sorted_rows
from common.rows.partitions import filled
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema
from compactor.rewrite.attempt_folder import ProgressMark
from compactor.rewrite.file_io import (
    folder_fill,
    leaf_columns,
    opened_input,
    stored_bytes,
    table_location,
)
from compactor.rewrite.kernel.normalized_keys import MergeRange
from compactor.rewrite.merge.driver import SAMPLED_GROUPS, sample_keys
from compactor.rewrite.merge.ranges import key_points, largest_row_groups, tile_ranges
from compactor.rewrite.merge.tasks import MergeInput
from compactor.rewrite.plan.memory_budget import IN_MEMORY_SHARE, ROWS_MAX
from compactor.rewrite.plan.rewrite_plan import RewritePlan
from compactor.rewrite.throttle import allowance_of

RANGE_ROWS_MAX = 1_000_000
"""Rows of a range at most, as far as statistics tell."""
ROW_BYTES, KEY_COPIES = 128, 4
"""What a row takes while it is sorted, beside so many copies of its key."""
BUNDLES_MAX = 16
"""Tasks that read the times of files."""


@dataclass(frozen=True, slots=True)
class LiveCount:
    """Live rows of files by number, and what has been read for it."""

    rows: dict[int, int]
    read_bytes: int


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """What is live of the files of a tablet."""

    files: tuple[FileStatistics, ...]
    read_bytes: int


RunTasks = Callable[[Sequence[Callable[[], object]]], Sequence[Any]]


def count_live(plan: RewritePlan, files: Sequence[DataFile], run: RunTasks) -> LiveFiles:
    """Return what is live of each file.

    Args:
        plan: Whose inputs are the files, in this order.
        files: All files of a tablet.
        run: Runs tasks; returns what they have returned.

    Raises:
        InputError: A file is missing or unreadable.
    """
    rules = _narrow_rules(plan.rules.row_rules)
    total: dict[int, int] = {}
    read_bytes = 0
    if rules.key:
        paths = plan.inputs.paths
        small = replace(plan, inputs=plan.inputs.only(()))
        calls = [
            partial(_live_of_range, small, paths, work, f"range-{number}")
            for number, work in enumerate(_ranges(plan, files))
        ]
        counts = dict.fromkeys(range(len(files)), 0)
    else:
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
    total.update(counts)
    for found in run(calls) if calls else ():
        read_bytes += found.read_bytes
        for at, rows in found.rows.items():
            total[at] = total.get(at, 0) + rows
    return LiveFiles(
        tuple(_statistics_of(file, total.get(at, 0)) for at, file in enumerate(files)), read_bytes
    )


def _statistics_of(file: DataFile, live_rows: int) -> FileStatistics:
    """Return the file's size times the share of its live rows: nobody knows sizes of rows."""
    live_bytes = file.size_bytes * live_rows // file.rows if file.rows else 0
    return FileStatistics(path=file.path, size_bytes=file.size_bytes, live_bytes=live_bytes)


def _narrow_rules(rules: RowRules) -> RowRules:
    """Return the rules for the columns alone that are read."""
    ttl = rules.ttl_s is not None
    narrow = replace(rules, time_column=rules.time_column if ttl else None, partition_by=())
    names = narrow.merge_columns
    schema = tuple(column for column in rules.schema if column.name in names)
    partition_by = tuple(name for name in rules.partition_by if name in names)
    return replace(narrow, schema=schema, partition_by=partition_by)


def _ranges(plan: RewritePlan, files: Sequence[DataFile]) -> list[MergeRange]:
    """Return ranges of keys, each with about as many rows as a task may sort."""
    groups = plan.inputs.row_groups
    ends = [end for file in files for end in (file.key_min, file.key_max) if end is not None]
    row_bytes = ROW_BYTES + KEY_COPIES * max(map(len, ends), default=0)
    free_bytes = plan.memory.in_memory_bytes * IN_MEMORY_SHARE
    rows_max = max(1, min(RANGE_ROWS_MAX, free_bytes // (2 * row_bytes)))
    sources = {at: MergeInput(path) for at, path in enumerate(plan.inputs.paths)}
    weighed = [replace(group, size_bytes=group.rows) for group in groups]
    sampled = sample_keys(plan, sources, largest_row_groups(weighed, SAMPLED_GROUPS))
    count = -(-sum(group.rows for group in groups) // rows_max)
    found = tile_ranges(groups, key_points(weighed, sampled), max(1, count))
    return [work for work in found if work.groups]


# -------------------------------------------------------------------------------------------- Tasks


def _live_of_range(
    plan: RewritePlan, paths: tuple[str, ...], work: MergeRange, name: str
) -> LiveCount:
    """Count the live rows of one range of keys, by file."""
    rules, mark = _narrow_rules(plan.rules.row_rules), ProgressMark(plan.folder, name)
    location, paid = table_location(plan.location), _Payment(plan)
    start = _later(work.start, plan.rules.start)
    end = _earlier(work.end, plan.rules.end)
    tables, sources = list[pa.Table](), list[Int64s]()
    for at in sorted({group.input for group in work.groups}):
        numbers = sorted({group.number for group in work.groups if group.input == at})
        for found in _read(location, paths[at], rules, paid, numbers):
            mark.add(found.nbytes, found.num_rows)
            rows = in_range(found, rules, start, end)
            if rows.num_rows:
                tables.append(rows)
                sources.append(np.full(rows.num_rows, at, np.int64))
    if not tables:
        return LiveCount({}, paid.bytes)
    rows = pa.concat_tables(tables)
    live = _live_rows(rows, rules, plan.rules.now_s, plan.rules.drop.settled)
    found_at, counts = np.unique(np.concatenate(sources)[live], return_counts=True)
    return LiveCount(dict(zip(found_at.tolist(), counts.tolist(), strict=True)), paid.bytes)


def _live_of_times(plan: RewritePlan, numbers: Sequence[int], name: str) -> LiveCount:
    """Count the rows that have not expired, by file."""
    rules, mark = _narrow_rules(plan.rules.row_rules), ProgressMark(plan.folder, name)
    location, paid = table_location(plan.location), _Payment(plan)
    counts = dict.fromkeys(numbers, 0)
    for at in numbers:
        for found in _read(location, plan.inputs.paths[at], rules, paid):
            mark.add(found.nbytes, found.num_rows)
            _, expired = dead_rows(found, rules, plan.rules.now_s)
            counts[at] += found.num_rows - int(expired.sum())
    return LiveCount(counts, paid.bytes)


class _Payment:
    """Pays for what is read, and counts it."""

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
    """Yield rows of a file, of the columns of the rules alone; None: of all row groups."""
    schema = arrow_schema(rules.schema)
    fill = folder_fill(rules, schema, path)
    with opened_input(location, path) as parquet:
        known = parquet.schema_arrow.names
        chosen = [name for name in known if name in schema.names] or known[:1]
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


def _live_rows(rows: pa.Table, rules: RowRules, now_s: float, settled: bytes | None) -> Int64s:
    """Return the numbers of the live rows, all rows of each of their keys being there."""
    ordered = sorted_rows(rows, rules)
    tombstones, expired = (flags[ordered.row] for flags in dead_rows(rows, rules, now_s))
    # A rank is rows of one key and version: the best of a key comes first, and wins.
    ranks = np.flatnonzero(ordered.new_rank)
    first = ordered.new_key[ranks]
    deleted = tombstones[ranks]
    dead = deleted | np.logical_and.reduceat(expired, ranks)
    kept = first & ~dead
    stays = np.flatnonzero(first & dead)
    stays = stays[_unsettled(rows, ordered.row[ranks[stays]], rules, settled)]
    kept[stays] = True
    # What a delete hides is valid as long as the delete does not count.
    hidden = stays[deleted[stays]] + 1
    hidden = hidden[hidden < len(ranks)]
    kept[hidden[~first[hidden] & ~dead[hidden]]] = True
    return ordered.row[ranks[kept]]


def _unsettled(rows: pa.Table, places: Int64s, rules: RowRules, settled: bytes | None) -> Flags:
    """Return which rows have versions that were not reached one retention ago."""
    if settled is None or not len(places):
        return np.ones(len(places), np.bool_)
    versions = rows.column(rules.version_column).take(pa.array(places))
    encoded = encode_column(versions, rules.version_type)
    young = pc.greater(encoded, pa.scalar(settled, pa.large_binary()))
    return np.asarray(young.to_numpy(zero_copy_only=False), np.bool_)
