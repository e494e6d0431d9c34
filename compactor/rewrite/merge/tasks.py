"""The tasks of a merge: one range, one run, or a whole job.

A task gets only the part of the plan that it uses: for 66,000 small inputs, the rest would take
45 MB. A range is written to a file in the attempt's folder, which the driver joins unchanged. A
later task reads a run again. A task for a whole job writes the outputs itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from common.errors import RewriteError
from common.expressions import NotNativeError
from common.model.key_values import KeyType
from common.model.outcome import DroppedRows, RowCounts
from common.parquet.location import Location, open_location, storage_error
from common.rows.conform import Flags, Int64s
from common.rows.key_encoding import encode_column
from common.rows.merge import Tally, sum_counts
from common.rows.row_facts import RowFacts
from compactor.rewrite.attempt_folder import (
    NewValues,
    ProgressMark,
    StoredValues,
    allowance_of,
    joined_values,
)
from compactor.rewrite.file_io import folder_fill, table_location
from compactor.rewrite.general_merge import rewrite_in_memory
from compactor.rewrite.kernel.normalized_keys import (
    MergeRange,
    RowGroup,
    UnsupportedRowsError,
    as_column,
)
from compactor.rewrite.kernel.range_merge import (
    MemoryMerge,
    MergeContext,
    RangeMerge,
    RowGroupReader,
    StatisticsError,
    TooManyRowsError,
)
from compactor.rewrite.kernel.reader import RowGroupChange, read_back
from compactor.rewrite.kernel.winners import ROWS_MAX, DecodedRows, RowLayout, column_of
from compactor.rewrite.memory_budget import MemoryBudget, MemoryInUse, ordered_map, whole_bytes_max
from compactor.rewrite.merge.io import (
    BATCH_FILES_MAX,
    AsyncWriter,
    BatchedReader,
    Prefetcher,
    RunBlock,
    RunReader,
    RunWriter,
    ThrottledReader,
    reading_order,
)
from compactor.rewrite.outputs import RowGroupWriter, TaskResult, WrittenFile, open_output_writer
from compactor.rewrite.plan.rewrite_plan import RewritePlan, Rules, TransformPlan
from compactor.rewrite.transform import chosen_rows, computed_values

_Source = TypeVar("_Source")


def restrict_plan(
    plan: RewritePlan, sources: Mapping[int, _Source], groups: Iterable[RowGroup]
) -> tuple[RewritePlan, dict[int, _Source]]:
    """Return plan and sources for a task that reads some row groups.

    Args:
        plan: Plan of the job, with its small inputs.
        sources: All files whose row groups are merged, by number.
        groups: Row groups of the task.
    """
    numbers = sorted({group.input for group in groups})
    restricted = replace(plan, inputs=plan.inputs.only(numbers))
    return restricted, {number: sources[number] for number in numbers}


# ---------------------------------------------------------------------------------- Ranges and runs


@dataclass(frozen=True, slots=True)
class MergeInput:
    """A file whose rows are merged."""

    path: str
    """Path relative to the table's location, or to the attempt's folder."""
    blocks: tuple[RunBlock, ...] | None = None
    """Blocks of a run of this attempt; None: it is one of the table's files."""


MergeInputs = Mapping[int, MergeInput]
"""Files by number; a task has only those that it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeResult:
    """The result of a task that merged one range."""

    counts: RowCounts
    dropped: DroppedRows | None
    facts: RowFacts | None
    """Facts of the rows in its file, read back; None for a run, which is not read back."""
    blocks: tuple[RunBlock, ...] = ()
    """Blocks of a run."""


@dataclass(frozen=True, slots=True)
class WrongStatistics:
    """A task has found rows outside of the statistics of these inputs."""

    input: int


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A task has found rows that the kernel does not support."""

    native: bool = True
    """False: only Spark can evaluate a transform's expressions for them."""


RangeOutcome = RangeResult | WrongStatistics | Unsupported


def merge_range(
    plan: RewritePlan, sources: MergeInputs, work: MergeRange, name: str
) -> RangeOutcome:
    """Merge one range into a file in the attempt's folder; without rows there is no file.

    Args:
        plan: Plan of the job.
        sources: All files whose row groups are merged, by number.
        work: The range.
        name: Name of the file in the folder.

    Raises:
        RewriteError: It failed.
    """
    tally, path = Tally(), Path(plan.folder, name)
    try:
        with _create_file(path) as sink, AsyncWriter() as encoder:
            rows = RowGroupWriter(
                sink, plan.rules.schema, plan.output.settings, plan.rules.row_rules.key
            )
            for table in merged_tables(plan, sources, work, merge_context(plan, tally, name)):
                encoder.submit(rows.write, table)
            encoder.wait()
            rows.close({})
    except StatisticsError as error:
        return WrongStatistics(error.input)
    except UnsupportedRowsError:
        return Unsupported()
    except NotNativeError:
        return Unsupported(native=False)
    facts = _read_back(plan, open_location(path.parent.as_uri()), name)
    if facts.rows != tally.counts.rows_out:
        raise RewriteError(f"{path} has {facts.rows} rows, expected {tally.counts.rows_out}")
    if not rows.rows:
        path.unlink()
    return RangeResult(counts=tally.counts, dropped=tally.dropped, facts=facts)


def merge_run(
    plan: RewritePlan, sources: MergeInputs, work: MergeRange, name: str, block_bytes: int
) -> RangeOutcome:
    """Merge row groups into a run, dead rows kept; see `merge_range`.

    Args:
        plan: Plan of the job.
        sources: All files whose row groups are merged, by number.
        work: The row groups, with any keys.
        name: Name of the run in the folder.
        block_bytes: Decoded size of its blocks.
    """
    tally, path = Tally(), Path(plan.folder, name)
    context = merge_context(plan, tally, name, keep_dead=True)
    context = replace(context, at_once=_fits_at_once(work.groups, plan.memory))
    try:
        with _create_file(path) as sink, AsyncWriter() as encoder:
            rows = RunWriter(sink, RowLayout(plan.rules.schema, plan.rules.row_rules), block_bytes)
            for table in merged_tables(plan, sources, work, context):
                encoder.submit(rows.write, table)
            encoder.wait()
            blocks = rows.close()
    except UnsupportedRowsError:
        return Unsupported()
    except NotNativeError:
        return Unsupported(native=False)
    return RangeResult(counts=tally.counts, dropped=None, facts=None, blocks=blocks)


def _fits_at_once(groups: Sequence[RowGroup], memory: MemoryBudget) -> bool:
    """Return whether row groups, all held before the merge, can be merged in one step."""
    unknown = all(group.low is None and group.high is None for group in groups)
    rows, size_bytes = sum(each.rows for each in groups), sum(each.size_bytes for each in groups)
    return unknown and rows <= ROWS_MAX and size_bytes <= memory.at_once_bytes


@contextmanager
def _create_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file in the attempt's own folder."""
    try:
        with path.open("xb") as sink:
            yield sink
    except OSError as error:
        raise storage_error(RewriteError, f"{path} cannot be written: {error}", error) from error


def merged_tables(
    plan: RewritePlan, sources: MergeInputs, work: MergeRange, context: MergeContext
) -> Iterator[pa.Table]:
    """Yield the rows that stay of a range, by key, decoded ahead; see `RangeMerge.tables`.

    Args:
        plan: Plan of the job.
        sources: All files whose row groups are merged, by number.
        work: The range.
        context: Context of the merge.
    """
    layout, change = RowLayout(plan.rules.schema, plan.rules.row_rules), change_of(plan)
    readers = _Readers(plan, sources, layout, change)
    batched = None
    paths = {number: each.path for number, each in sources.items() if each.blocks is None}
    if plan.inputs.small and paths:
        location, paid = open_location(plan.location), allowance_of(plan.folder)
        by_key = not context.at_once
        small = plan.inputs.small
        batched = BatchedReader(location, paths, layout, small, paid, change=change, by_key=by_key)
    with Prefetcher(readers, reading_order(work.groups), context.room, batched) as prefetcher:
        numbers = {group.input for group in work.groups}
        yield from RangeMerge(layout, dict.fromkeys(numbers, prefetcher), work, context).tables()


def merge_context(
    plan: RewritePlan, tally: Tally, name: str, *, keep_dead: bool = False
) -> MergeContext:
    """Return the context of a merge.

    Args:
        plan: Plan of the job.
        tally: Counts the outcome of the rows.
        name: Distinguishes the task from others of the job.
        keep_dead: Whether dead rows must stay.
    """
    return MergeContext(
        now_s=plan.rules.now_s,
        drop=plan.rules.drop.of_a_part if keep_dead else plan.rules.drop,
        tally=tally,
        mark=ProgressMark(plan.folder, name),
        step_bytes=plan.memory.step_bytes,
        full_bytes=plan.memory.held_bytes // 2,
        room=MemoryInUse(plan.memory.held_bytes),
        deletes=plan.rules.transform is not None and plan.rules.transform.deletes,
    )


class _Readers(dict[int, RowGroupReader]):
    """Readers of files by number, each opened at its first use."""

    def __init__(
        self,
        plan: RewritePlan,
        sources: MergeInputs,
        layout: RowLayout,
        change: RowGroupChange | None,
    ) -> None:
        super().__init__()
        self._change = change
        self._plan, self._sources, self._layout = plan, sources, layout
        self._location = open_location(plan.location)

    def __missing__(self, at: int) -> RowGroupReader:
        source = self._sources[at]
        if source.blocks is not None:
            path = Path(self._plan.folder, source.path)
            self[at] = RunReader(path, self._layout, source.blocks)
            return self[at]
        # Rows of a run were changed when it was written.
        self[at] = throttled_reader(
            self._plan, self._location, source.path, self._layout, change=self._change
        )
        return self[at]


def throttled_reader(
    plan: RewritePlan,
    location: Location,
    path: str,
    layout: RowLayout,
    *,
    change: RowGroupChange | None = None,
    copied: bool = False,
) -> ThrottledReader:
    """Return a reader of one of the table's files, paid for from the attempt's allowance."""
    fill = folder_fill(plan.rules.row_rules, plan.rules.schema, path)
    paid = allowance_of(plan.folder)
    return ThrottledReader(paid, location, path, layout, fill, change=change, copied=copied)


# --------------------------------------------------------------------------------------- Whole jobs


def merge_small_job(plan: RewritePlan) -> TaskResult | Unsupported:
    """Merge all inputs of a small job, which may be held at once, and write its outputs."""
    # So the footers' bounds on keys are not needed.
    groups = [replace(group, low=None, high=None) for group in plan.inputs.row_groups]
    try:
        return _write_merged(plan, dict(enumerate(map(MergeInput, plan.inputs.paths))), groups)
    except UnsupportedRowsError:
        # Spark's values are needed for a transform.
        return Unsupported() if plan.rules.transform is not None else rewrite_in_memory(plan)
    except NotNativeError:
        return Unsupported(native=False)


def merge_whole_job(
    plan: RewritePlan, sources: MergeInputs, groups: Sequence[RowGroup]
) -> TaskResult | WrongStatistics | Unsupported:
    """Merge a job and write its outputs, including row groups that overlap no others.

    Args:
        plan: Plan of the job.
        sources: All files whose row groups are merged, by number.
        groups: All row groups.

    Returns:
        The result, or why no output is left.

    Raises:
        RewriteError: It failed; no output is left.
    """
    try:
        return _write_merged(plan, sources, groups)
    except StatisticsError as error:
        return WrongStatistics(error.input)
    except UnsupportedRowsError:
        return Unsupported()
    except NotNativeError:
        return Unsupported(native=False)


@dataclass(frozen=True, slots=True)
class TooLarge:
    """Rows turned out to be too many for a merge in memory; nothing is written."""


def merge_in_memory(
    plan: RewritePlan, sources: MergeInputs, groups: Sequence[RowGroup]
) -> TaskResult | Unsupported | TooLarge:
    """Merge a job of small files, all of whose rows are decoded first, and write its outputs.

    Args:
        plan: Plan of the job.
        sources: All files whose row groups are merged, by number.
        groups: All row groups; the plan's small inputs have them.
    """
    tally, layout = Tally(), RowLayout(plan.rules.schema, plan.rules.row_rules)
    context = merge_context(plan, tally, "write")
    try:
        merge = MemoryMerge(layout, _decode_all(plan, sources, groups, layout, tally), context)
    except TooManyRowsError:
        return TooLarge()
    except UnsupportedRowsError:
        return Unsupported()
    for group in groups:
        context.mark.add(group.size_bytes, group.rows)
    return _write_tables(plan, tally, merge.tables())


def _decode_all(
    plan: RewritePlan,
    sources: MergeInputs,
    groups: Sequence[RowGroup],
    layout: RowLayout,
    tally: Tally,
) -> list[DecodedRows]:
    """Decode all row groups, many files at a time.

    Raises:
        TooManyRowsError: They have more bytes than footers say, and than the task may hold.
        UnsupportedRowsError: A key is too long, or only Spark can evaluate an expression.
    """
    location, change = open_location(plan.location), change_of(plan)
    paths = {number: source.path for number, source in sources.items()}
    batched = BatchedReader(
        location,
        paths,
        layout,
        plan.inputs.small,
        allowance_of(plan.folder),
        change=change,
        by_key=False,
    )
    # Without bounds, rows of several files stay together.
    unknown = [replace(group, low=None, high=None) for group in groups]
    readers = _Readers(plan, sources, layout, change)

    def decode(batch: Sequence[RowGroup]) -> list[DecodedRows]:
        read = batched.read(batch)
        if read is None:
            read = [readers[group.input].read(group) for group in batch]
        return [rows for rows in read if rows.rows]

    starts = range(0, len(unknown), BATCH_FILES_MAX)
    batches = [unknown[at : at + BATCH_FILES_MAX] for at in starts]
    parts, left_bytes, affected = list[DecodedRows](), whole_bytes_max(plan.memory), 0
    for decoded in ordered_map("decode", (partial(decode, batch) for batch in batches)):
        for rows in decoded:
            left_bytes -= rows.size_bytes
            affected += int(np.count_nonzero(rows.affected)) if rows.affected is not None else 0
            parts.append(rows)
        if left_bytes < 0:
            raise TooManyRowsError("decoded rows are larger than footers say")
    if affected:
        deletes = plan.rules.transform is not None and plan.rules.transform.deletes
        more = RowCounts(deleted=affected) if deletes else RowCounts(changed=affected)
        tally.counts = sum_counts(tally.counts, more)
    return parts


def _write_merged(
    plan: RewritePlan, sources: MergeInputs, groups: Sequence[RowGroup]
) -> TaskResult:
    tally, work = Tally(), MergeRange(groups=tuple(groups))
    context = merge_context(plan, tally, "write")
    return _write_tables(plan, tally, merged_tables(plan, sources, work, context))


def _write_tables(plan: RewritePlan, tally: Tally, tables: Iterable[pa.Table]) -> TaskResult:
    """Write merged rows, by key; read the outputs back."""
    location, facts = table_location(plan.location), list[RowFacts]()

    def read_files(files: Sequence[WrittenFile]) -> None:
        facts.extend(_read_back(plan, location, file.path) for file in files)

    with open_output_writer(plan) as writer, AsyncWriter() as encoder:
        for table in tables:
            encoder.submit(writer.write, table, tally.dropped)
        encoder.wait()
        files = writer.finish(tally.dropped, meanwhile=read_files)
    return TaskResult(counts=tally.counts, dropped=tally.dropped, files=files, facts=tuple(facts))


def _read_back(plan: RewritePlan, location: Location, path: str) -> RowFacts:
    rules = plan.rules
    return read_back(location, path, rules.row_rules, rules.schema, rules.drop)


# ----------------------------------------------------------------------- Transforms of decoded rows
# A transform applied to decoded row groups, before they are merged.
#
# Rows are changed as they are decoded, in whatever order and by whatever task. So a row group at
# the end of a range is changed by both of its tasks, from the same stored rows; each task counts
# the rows of its own range. The values of expressions are computed from the decoded columns. Those
# that only Spark computes, and those of a plug-in, are in the attempt's folder, by row number.


# ------------------------------------------------------------------------------- Values of rows


EVALUATED_SHARE_MIN = 0.75
"""Share of rows that a transform applies to, from which on it is evaluated for all rows first."""


class _Values(Protocol):
    """Where the values of a transform come from."""

    def of(
        self, frame: pl.DataFrame, meant: Flags, groups: Sequence[RowGroup]
    ) -> tuple[dict[str, NewValues], Flags | None]:
        """Return the new values by column, and which rows are deleted.

        Args:
            frame: Columns that Polars supports.
            meant: Which rows of the frame the transform applies to; at least one.
            groups: The row groups that the frame consists of.

        Raises:
            NotNativeError: Spark has to evaluate the expressions.
            RewriteError: Values are missing.
        """
        ...


class _NativeValues:
    """Values that Polars computes."""

    def __init__(self, rules: Rules, transform: TransformPlan) -> None:
        evaluations = transform.evaluations(rules.schema)
        assert evaluations is not None, "the kernel evaluates the expressions"
        self._transform, self._evaluations = transform, evaluations

    def of(
        self, frame: pl.DataFrame, meant: Flags, groups: Sequence[RowGroup]
    ) -> tuple[dict[str, NewValues], Flags | None]:
        places = np.flatnonzero(meant)
        # At least one column, because a frame without columns has no rows.
        rows = frame.select(sorted(self._transform.transform.columns) or frame.columns[:1])
        computed, index = self._computed(rows, places)
        if self._transform.deletes:
            gone = np.zeros(len(meant), np.bool_)
            gone[places] = computed[0].fill_null(value=False).to_numpy()[index]
            return {}, gone
        names = [one.column for one in self._transform.transform.assignments]
        values = zip(names, computed, strict=True)
        return {name: NewValues(places, index, series) for name, series in values}, None

    def _computed(self, rows: pl.DataFrame, places: Int64s) -> tuple[list[pl.Series], Int64s]:
        """Return the values of the rows at some places, and where in the values these are."""
        transform, evaluations = self._transform, self._evaluations
        if len(places) >= EVALUATED_SHARE_MIN * rows.height:
            # All rows take less time than a copy of most. The others may fail, but do not count.
            with suppress(NotNativeError):
                return computed_values(transform, evaluations, rows), places
        return computed_values(transform, evaluations, rows[places]), np.arange(len(places))


class _StoredValues:
    """Values in files of the attempt's folder."""

    def __init__(self, plan: RewritePlan, transform: TransformPlan) -> None:
        self._folder, self._transform = plan.folder, transform
        self._inputs: dict[int, StoredValues] = {}

    def of(
        self, frame: pl.DataFrame, meant: Flags, groups: Sequence[RowGroup]
    ) -> tuple[dict[str, NewValues], Flags | None]:
        columns, begin = dict[str, list[NewValues]](), 0
        gone = np.zeros(len(meant), np.bool_) if self._transform.may_delete else None
        for group in groups:
            own, before = meant[begin : begin + group.rows], begin
            begin += group.rows
            if group.input not in self._transform.inputs:
                continue
            stored = self._of_input(group.input)
            numbers = stored.numbers(group.start, group.rows)
            rows = chosen_rows(numbers, own, f"number {group.input}")
            if not len(rows):
                continue
            numbers = numbers[rows]
            if gone is not None:
                gone[rows + before] = stored.deleted(numbers)
            if not self._transform.deletes:
                for name, values in stored.columns(numbers, rows + before).items():
                    columns.setdefault(name, []).append(values)
        return {name: joined_values(parts) for name, parts in columns.items()}, gone

    def _of_input(self, at: int) -> StoredValues:
        if at not in self._inputs:  # Two threads may open an input, which does no harm.
            self._inputs[at] = StoredValues(self._folder, at)
        return self._inputs[at]


# --------------------------------------------------------------------------------------- The change


def change_of(plan: RewritePlan) -> RowGroupChange | None:
    """Return the change of the table's files by the job's transform; None: there is none."""
    transform = plan.rules.transform
    if transform is None:
        return None
    if transform.native:
        return TransformChange(plan.rules, transform, _NativeValues(plan.rules, transform))
    return TransformChange(plan.rules, transform, _StoredValues(plan, transform))


_WHOLE_NUMBERS = (KeyType.INT, KeyType.DATE, KeyType.TIME, KeyType.TIMESTAMP)
"""Versions that Polars orders like Névé."""


class TransformChange:
    """Deletions or new values by a transform; threads may share it."""

    def __init__(self, rules: Rules, transform: TransformPlan, values: _Values) -> None:
        """Prepare the change.

        Args:
            rules: Rules of the job.
            transform: Its transform.
            values: Values of the transform.
        """
        self._rules, self._transform, self._values = rules, transform, values
        needed = transform.matched_by(rules.row_rules)
        self._matched_by = [field for field in rules.schema if field.name in needed]

    def apply(
        self, frame: pl.DataFrame, rest: pa.Table | None, groups: Sequence[RowGroup]
    ) -> tuple[pl.DataFrame, pa.Table | None, Flags | None]:
        """Return rows after the change; see `RowGroupChange`."""
        affected = meant = self._matched(frame, rest, groups)
        if not meant.any():
            return frame, rest, meant
        values, gone = self._values.of(frame, meant, groups)
        if values:
            frame, rest = _with_values(frame, rest, values)
        if gone is not None:
            frame, rest = self._with_deletions(frame, rest, gone)
            affected = gone
        # The rows of a plug-in were counted when its values were stored.
        return frame, rest, affected if self._transform.asks_spark else None

    def _matched(
        self, frame: pl.DataFrame, rest: pa.Table | None, groups: Sequence[RowGroup]
    ) -> Flags:
        """Return the rows that the transform applies to."""
        inputs = self._transform.inputs
        flags = np.concatenate([np.full(group.rows, group.input in inputs) for group in groups])
        if not flags.any() or not self._matched_by:
            return flags
        columns = {
            field.name: column_of(frame, rest, field.name).to_arrow().cast(field.type)
            for field in self._matched_by
        }
        return flags & self._transform.matched_rows(pa.table(columns), self._rules.row_rules)

    def _with_deletions(
        self, frame: pl.DataFrame, rest: pa.Table | None, gone: Flags
    ) -> tuple[pl.DataFrame, pa.Table | None]:
        """Return rows with some of them as tombstones; see `transform.with_deletions`."""
        if not gone.any():
            return frame, rest
        flags, tombstone = pl.Series(gone), self._rules.row_rules.tombstone_column
        assert tombstone is not None, "a keyed table with deletions has tombstones"
        if self._drops_all(frame):
            return frame.with_columns(pl.col(tombstone) | flags), rest
        emptied = [
            field.name
            for field in self._rules.schema
            if field.nullable and field.name not in self._transform.protected
        ]
        frame = frame.with_columns(
            *(
                pl.when(~flags).then(pl.col(name)).alias(name)
                for name in emptied
                if name in frame.columns
            ),
            pl.col(tombstone) | flags,
        )
        if rest is not None:
            own = pa.array(np.arange(rest.num_rows), mask=gone)
            columns = [
                column.take(own) if name in emptied else column
                for name, column in zip(rest.column_names, rest.columns, strict=True)
            ]
            rest = pa.table(columns, schema=rest.schema)
        return frame, rest

    def _drops_all(self, frame: pl.DataFrame) -> bool:
        """Return whether the merge certainly drops all tombstones of rows, with their values."""
        drop, rules = self._rules.drop, self._rules.row_rules
        name = rules.version_column
        if drop.settled is None or drop.outside or rules.version_type not in _WHOLE_NUMBERS:
            return False
        if name is None or name not in frame.columns:
            return False
        versions = frame.get_column(name)
        newest = versions.arg_max()
        if newest is None:
            return True  # Null is the lowest version.
        version = versions.gather([newest]).to_arrow().cast(self._rules.schema.field(name).type)
        (highest,) = encode_column(version, rules.version_type).to_pylist()
        return bool(highest <= drop.settled)


def _with_values(
    frame: pl.DataFrame, rest: pa.Table | None, values: Mapping[str, NewValues]
) -> tuple[pl.DataFrame, pa.Table | None]:
    """Return rows with new values in some of them."""
    rows = frame.height if frame.width or rest is None else rest.num_rows
    columns = []
    for name, new in values.items():
        if name in frame.columns:
            old = frame.get_column(name)
            series = _series(new.values).cast(old.dtype).alias(name)
            if isinstance(new.values, pl.Series) and len(new.places) == rows:
                columns.append(series)
            elif len(series) == rows and np.array_equal(new.index, new.places):
                flags = np.zeros(rows, np.bool_)
                flags[new.places] = True
                columns.append(series.zip_with(pl.Series(flags), old))
            else:
                source = np.arange(rows)
                source[new.places] = rows + new.index
                columns.append(pl.concat([old, series]).gather(source))
        else:
            assert rest is not None, name
            assert isinstance(new.values, pa.ChunkedArray), "stored values"
            at = rest.schema.get_field_index(name)
            source = np.arange(rows)
            source[new.places] = rows + new.index
            joined = pa.chunked_array([*rest.column(at).chunks, *new.values.chunks])
            rest = rest.set_column(at, rest.schema.field(at), joined.take(pa.array(source)))
    return frame.with_columns(columns), rest


def _series(values: pa.ChunkedArray | pl.Series) -> pl.Series:
    return values if isinstance(values, pl.Series) else as_column(values)
