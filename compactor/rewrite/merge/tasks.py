"""The tasks of a merge: one range, one run, or a whole job.

A task gets only the part of the plan that it uses: for 66,000 small inputs, the rest would take
45 MB. A range is written to a file in the attempt's folder, which the driver joins unchanged. A
later task reads a run again. A task for a whole job writes the outputs itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeVar

import pyarrow as pa

from common.errors import RewriteError
from common.expressions.native import NotNativeError
from common.model.outcome import DroppedRows, RowCounts
from common.parquet.location import Location, open_location, storage_error
from common.rows.row_facts import RowFacts
from compactor.rewrite.attempt_folder import ProgressMark
from compactor.rewrite.file_io import folder_fill, table_location
from compactor.rewrite.general_merge import rewrite_in_memory
from compactor.rewrite.kernel.concurrency import MemoryInUse
from compactor.rewrite.kernel.normalized_keys import MergeRange, RowGroup, UnsupportedRowsError
from compactor.rewrite.kernel.range_merge import (
    MergeContext,
    RangeMerge,
    RowGroupReader,
    StatisticsError,
)
from compactor.rewrite.kernel.reader import RowGroupChange, read_back
from compactor.rewrite.kernel.winners import ROWS_MAX, RowLayout
from compactor.rewrite.memory_budget import MemoryBudget
from compactor.rewrite.merge.io import (
    AsyncWriter,
    BatchedReader,
    Prefetcher,
    RunBlock,
    RunReader,
    RunWriter,
    ThrottledReader,
    reading_order,
)
from compactor.rewrite.merge.transforms import change_of
from compactor.rewrite.outputs import RowGroupWriter, TaskResult, open_output_writer
from compactor.rewrite.plan.rewrite_plan import RewritePlan
from compactor.rewrite.tally import Tally
from compactor.rewrite.throttle import allowance_of

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


def _write_merged(
    plan: RewritePlan, sources: MergeInputs, groups: Sequence[RowGroup]
) -> TaskResult:
    tally, work = Tally(), MergeRange(groups=tuple(groups))
    with open_output_writer(plan) as writer, AsyncWriter() as encoder:
        for table in merged_tables(plan, sources, work, merge_context(plan, tally, "write")):
            encoder.submit(writer.write, table, tally.dropped)
        encoder.wait()
        files = writer.finish(tally.dropped)
    location = table_location(plan.location)
    facts = tuple(_read_back(plan, location, file.path) for file in files)
    return TaskResult(counts=tally.counts, dropped=tally.dropped, files=files, facts=facts)


def _read_back(plan: RewritePlan, location: Location, path: str) -> RowFacts:
    rules = plan.rules
    return read_back(location, path, rules.row_rules, rules.schema, rules.drop)
