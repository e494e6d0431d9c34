"""The merge of a large job on the driver: divide keys into ranges, merge in tasks, join.

A merge uses about two cores. With more cores, keys are divided into ranges, one task each. Their
parts are joined as bytes, together with the row groups that are copied. Otherwise one task writes
the outputs itself. If statistics of an input turn out to be wrong, the merge is repeated without
them.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from common.errors import MemoryShortError, NotStitchableError, VerificationError
from common.expressions import NotNativeError
from common.model.outcome import RowCounts
from common.parquet.location import open_location
from common.parquet.row_batches import rows_at
from common.rows.conform import conform
from common.rows.key_encoding import encode_keys
from common.rows.merge import sum_counts
from common.rows.row_facts import RowFacts
from common.rows.rules import join_dropped
from compactor.rewrite.attempt_folder import ProgressMark, allowance_of
from compactor.rewrite.file_io import delete_file, opened_input, table_location
from compactor.rewrite.kernel.normalized_keys import MergeRange, RowGroup, UnsupportedRowsError
from compactor.rewrite.kernel.reader import (
    join_facts,
    key_ends,
    key_layout,
)
from compactor.rewrite.kernel.winners import known_to_polars
from compactor.rewrite.memory_budget import (
    MERGE_CORES,
    MemoryBudget,
    estimate_bytes,
    whole_bytes_max,
)
from compactor.rewrite.merge.io import groups_of_run
from compactor.rewrite.merge.ranges import (
    RUN_BYTES_MIN,
    CopiedRun,
    bundles_of,
    copied_runs,
    ends_of_copied_runs,
    footers_as_row_groups,
    key_points,
    largest_row_groups,
    overlap_bytes_max,
    part_of_copied_run,
    parts_of_ranges,
    split_row_groups,
    tile_ranges,
)
from compactor.rewrite.merge.tasks import (
    MergeInput,
    MergeInputs,
    RangeOutcome,
    RangeResult,
    TooLarge,
    Unsupported,
    WrongStatistics,
    merge_in_memory,
    merge_range,
    merge_run,
    merge_whole_job,
    restrict_plan,
    throttled_reader,
)
from compactor.rewrite.outputs import (
    TaskResult,
    WrittenFile,
    open_output_writer,
    output_footer,
    purge_after,
)
from compactor.rewrite.parquet_bytes.relocation import StitchedFooter, StitchPiece
from compactor.rewrite.parquet_bytes.stitch import stitch
from compactor.rewrite.plan.inputs import OutputSettings, RowGroupSize, worth_copying
from compactor.rewrite.plan.rewrite_plan import Inputs, RewritePlan

# --------------------------------------------------------------------------------------- Multi pass
# Row groups that overlap too much for one task are merged into longer runs first.
#
# This is the driver's part: levels of runs are merged until a task can hold the overlapping rows.
# Merging is associative, so any number of levels gives the same rows.


HELD_BYTES_MAX = 352 * 1024**2
"""Largest decoded size of row groups that a task may hold at once."""
BUNDLE_BYTES = 256 * 1024**2
"""Decoded size of row groups that are merged into one run."""
SHORT_RUNS_MAX = 32
"""Largest number of runs of small files, each sorted in one step, that one task can merge well."""
FAN_IN_MAX = 64
"""Largest number of runs that are merged into one longer run."""
BLOCK_BYTES_MIN, BLOCK_BYTES_MAX = 2 * 1024**2, 16 * 1024**2
"""Size of a run's blocks: small, because one or two per run are held, but each read takes time."""
BLOCKS_HELD = 4
"""Blocks of each run that fit into the memory budget."""

TaskOutcome = RangeResult | TaskResult | WrongStatistics | Unsupported | TooLarge
Task = Callable[[], TaskOutcome]
RunTasks = Callable[[Sequence[Task]], list[TaskOutcome]]
_Result = TypeVar("_Result", RangeResult, TaskResult)


@dataclass(frozen=True, slots=True)
class TaskPool:
    """Runs tasks."""

    run: RunTasks
    """Runs each task once, and returns the outcomes."""
    cores: int
    """Number of tasks that run concurrently."""
    """So many run at a time."""


def merge_into_longer_runs(
    plan: RewritePlan,
    tasks: TaskPool,
    sources: dict[int, MergeInput],
    groups: list[RowGroup],
    turn: int,
) -> tuple[dict[int, MergeInput], list[RowGroup], RowCounts]:
    """Merge row groups into longer runs until a task can hold the overlapping rows.

    Args:
        plan: Plan of the job.
        tasks: Runs the merges.
        sources: All files whose row groups are merged, by number.
        groups: The row groups.
        turn: Number of earlier tries of the job.

    Returns:
        The remaining files and row groups, and the counts of rows that were dropped.

    Raises:
        MemoryShortError: The rows cannot fit, however they are divided.
        UnsupportedRowsError: The kernel does not support the rows.
    """
    superseded, level, folder = RowCounts(), 0, Path(plan.folder)
    held_max = min(HELD_BYTES_MAX, plan.memory.held_bytes)
    footers = footers_as_row_groups(groups, len(plan.rules.schema))
    held = overlap_bytes_max([*groups, *footers])
    while held > held_max:
        works = (
            _merges_of_runs(plan.memory, groups)
            if level
            else _first_runs(plan.memory, plan.inputs.small.keys(), groups, tasks.cores)
        )
        if not works:
            break
        names = [f"run-{turn}-{level}-{at}" for at in range(len(works))]
        block_bytes = _block_bytes(held_max, len(works))
        calls = [
            partial(merge_run, *restrict_plan(plan, sources, work.groups), work, name, block_bytes)
            for work, name in zip(works, names, strict=True)
        ]
        ended = _required(results_of(tasks.run(calls), RangeResult))
        for part in ended:
            gone = part.counts.superseded
            # A transform affects rows only when a run is made of the table's files.
            counts = replace(part.counts, rows_in=gone, rows_out=0)
            superseded = sum_counts(superseded, counts)
        if level:
            for source in sources.values():
                (folder / source.path).unlink(missing_ok=True)
        runs = [MergeInput(name, part.blocks) for name, part in zip(names, ended, strict=True)]
        sources = dict(enumerate(runs))
        groups = [
            group
            for number, part in enumerate(ended)
            for group in groups_of_run(number, part.blocks)
        ]
        level, held = level + 1, overlap_bytes_max(groups)
    _require_fit(plan.memory, held)
    return sources, groups, superseded


def _block_bytes(held_max: int, runs: int) -> int:
    """Return the block size for runs that are merged together next."""
    fitting = held_max // (BLOCKS_HELD * max(1, runs))
    return min(max(fitting, BLOCK_BYTES_MIN), BLOCK_BYTES_MAX)


def _require_fit(memory: MemoryBudget, held: int) -> None:
    """Refuse rows that cannot fit, however they are divided.

    Raises:
        MemoryShortError: A task would need more than its limit.
    """
    if (wanted := estimate_bytes(held, memory)) > memory.task_bytes:
        raise MemoryShortError(
            f"{held >> 20} MB of rows overlap, for which a task needs"
            f" {wanted >> 20} MB; {memory.text}"
        )


def _first_runs(
    memory: MemoryBudget, small: Collection[int], groups: Sequence[RowGroup], cores: int
) -> list[MergeRange]:
    """Return which row groups of the table's files are merged into which run.

    Args:
        memory: Memory budget of a task.
        small: Numbers of the small inputs; see `Inputs`.
        groups: The row groups.
        cores: Number of tasks that run concurrently.
    """
    bundle_max = _bundle_bytes(memory, small, groups)
    # Bounds are not needed for row groups that are all held at once.
    unknown = [replace(group, low=None, high=None) for group in groups]
    pieces = split_row_groups(unknown, bundle_max)
    total, largest = sum(piece.size_bytes for piece in pieces), max(e.size_bytes for e in pieces)
    count = -(-total // max(1, bundle_max) // cores) * cores  # All cores finish together.
    bundle = min(bundle_max, total // max(1, count) + largest)
    return [MergeRange(groups=bundled) for bundled in bundles_of(pieces, bundle)]


def _merges_of_runs(memory: MemoryBudget, blocks: Sequence[RowGroup]) -> list[MergeRange]:
    """Return which runs are merged into which longer one; empty: there is no gain.

    Args:
        memory: Memory budget of a task.
        blocks: Blocks of all runs, as row groups.
    """
    numbers = sorted({block.input for block in blocks})
    largest = max(block.size_bytes for block in blocks)
    # Two blocks of each run are held: one that ends, and one that begins.
    fan_in = max(2, min(FAN_IN_MAX, memory.held_bytes // (2 * max(1, largest))))
    if len(numbers) <= fan_in:
        return []
    chunks = [numbers[at : at + fan_in] for at in range(0, len(numbers), fan_in)]
    return [
        MergeRange(groups=tuple(block for block in blocks if block.input in chunk))
        for chunk in map(frozenset, chunks)
    ]


def _bundle_bytes(memory: MemoryBudget, small: Collection[int], groups: Sequence[RowGroup]) -> int:
    """Return the decoded size of a run of the first level.

    Small files become many short runs, each sorted in one step. That is cheaper than merging
    hundreds of files, as long as one task can merge the resulting runs.
    """
    short, total = memory.at_once_bytes, sum(group.size_bytes for group in groups)
    if total <= SHORT_RUNS_MAX * short and all(group.input in small for group in groups):
        return short
    return min(BUNDLE_BYTES, memory.held_bytes * 3 // 4)


def results_of(ended: Sequence[TaskOutcome], kind: type[_Result]) -> list[_Result] | set[int]:
    """Return the results of tasks, or the inputs with wrong statistics.

    Raises:
        UnsupportedRowsError: The kernel does not support the rows.
        NotNativeError: Only Spark can evaluate a transform's expressions.
    """
    for result in ended:
        if isinstance(result, Unsupported):
            text = "the kernel does not support some rows"
            raise UnsupportedRowsError(text) if result.native else NotNativeError(text)
    wrong = {result.input for result in ended if isinstance(result, WrongStatistics)}
    return wrong or [result for result in ended if isinstance(result, kind)]


def _required(ended: list[_Result] | set[int]) -> list[_Result]:
    """Return the results of tasks that use no statistics."""
    assert not isinstance(ended, set), "they are read without statistics"
    return ended


# ----------------------------------------------------------------------------------- Cutting ranges


RANGE_BYTES = 512 * 1024**2
"""Approximate decoded size of a range."""
REPEATED_MAX = 1.25
"""Largest ratio of decoded bytes to existing bytes: row groups at range ends are decoded twice."""
SAMPLED_GROUPS, SAMPLED_KEYS = 6, 64


def cut_ranges(
    plan: RewritePlan,
    sources: MergeInputs,
    groups: Sequence[RowGroup],
    copies: Sequence[CopiedRun],
    merges_at_a_time: int,
) -> list[MergeRange]:
    """Return the ranges to merge, each with the row groups that may be in it.

    Args:
        plan: Plan of the job.
        sources: All files, by number.
        groups: Row groups to merge.
        copies: Row groups to copy.
        merges_at_a_time: Number of concurrent merges.
    """
    total_bytes = sum(group.size_bytes for group in groups)
    count = max(merges_at_a_time, -(-total_bytes // RANGE_BYTES)) if merges_at_a_time > 1 else 1
    points = key_points(
        groups, sample_keys(plan, sources, largest_row_groups(groups, SAMPLED_GROUPS))
    )
    while True:
        found = tile_ranges(
            groups, points, count, [*plan.output.cuts, *ends_of_copied_runs(copies)]
        )
        ranges = [work for work in found if work.groups]
        decoded_bytes = sum(group.size_bytes for work in ranges for group in work.groups)
        if count == 1 or decoded_bytes <= REPEATED_MAX * total_bytes:
            return ranges
        count //= 2


def sample_keys(
    plan: RewritePlan, sources: MergeInputs, groups: Sequence[RowGroup]
) -> dict[tuple[int, int], list[bytes]]:
    """Return evenly distributed keys of some row groups."""
    rules, samples = plan.rules.row_rules, {}
    location = open_location(plan.location)
    schema = pa.schema([plan.rules.schema.field(name) for name in rules.key])
    for group in groups:
        source = sources[group.input]
        if source.blocks is not None:
            continue  # They are small, and their ends are sufficient.
        with opened_input(location, source.path) as parquet:
            if any(name not in parquet.schema_arrow.names for name in rules.key):
                continue  # Its folders give the key columns.
            stride = max(1, group.rows // SAMPLED_KEYS)
            numbers = range(stride // 2, group.rows, stride)
            picked = rows_at(parquet, group.number, rules.key, numbers)
        keys = conform(picked, schema, f"file {source.path}")
        samples[group.input, group.number] = encode_keys(
            keys, rules.key, rules.key_types
        ).to_pylist()
    return samples


# ----------------------------------------------------------------- Check of copied row groups (a
# task)


def check_copy(plan: RewritePlan, copy: CopiedRun) -> RangeOutcome:
    """Check that row groups are within the bounds of their footers.

    The keys of their files are known to ascend. So for consecutive row groups of a file, the
    first key and the last key are sufficient.

    Args:
        plan: Plan of the job, with the facts of these files.
        copy: The row groups, by key.

    Returns:
        Facts and counts of their rows, or the input with wrong statistics.
    """
    location = open_location(plan.location)
    layout = key_layout(plan.rules.row_rules, plan.rules.schema)
    mark = ProgressMark(plan.folder, f"copy-{copy.groups[0].input}")
    facts: list[RowFacts] = []
    for groups in copy.stretches():
        first, last = groups[0], groups[-1]
        reader = throttled_reader(
            plan, location, plan.inputs.paths[first.input], layout, copied=True
        )
        try:
            low, high = key_ends(reader, first, last)
        except UnsupportedRowsError:
            return WrongStatistics(first.input)
        if low < (first.low or b"") or high > (last.high or b""):
            return WrongStatistics(first.input)
        for group in groups:
            reader.pay(group)
            mark.add(group.size_bytes, group.rows)
        # The facts of the whole file bound those of its copied part.
        rows, of_file = sum(group.rows for group in groups), plan.inputs.clean[first.input]
        facts.append(replace(of_file, rows=rows, key_min=low, key_max=high))
    joined = join_facts(facts, "copied row groups")
    counts = RowCounts(rows_in=joined.rows, rows_out=joined.rows)
    return RangeResult(counts=counts, dropped=None, facts=joined)


# ------------------------------------------------------------------------------ Joining the outputs


@dataclass(frozen=True, slots=True)
class OutputSection:
    """Consecutive rows: their start, their output, and their file."""

    start: bytes
    part: int
    pieces: tuple[StitchPiece, ...]


def join_outputs(
    plan: RewritePlan, results: Sequence[tuple[OutputSection, RangeResult]], superseded: RowCounts
) -> TaskResult:
    """Stitch the outputs.

    Args:
        plan: Plan of the job.
        results: Results of merge and check tasks, in any order.
        superseded: Rows that were dropped when longer runs were made.

    Raises:
        NotStitchableError: Row groups of inputs cannot be copied; outputs may be left.
        VerificationError: A stitched output differs from what tasks have read.
        RewriteError: The outputs cannot be written.
    """
    counts, dropped = superseded, join_dropped(result.dropped for _, result in results)
    for _, result in results:
        counts = sum_counts(counts, result.counts)
    in_order = sorted(
        (each for each in results if each[1].counts.rows_out), key=lambda each: each[0].start
    )
    by_part = {
        part: list(sections) for part, sections in groupby(in_order, lambda each: each[0].part)
    }
    written = [plan.output.paths[part] for part in by_part]
    files, facts, location = [], [], table_location(plan.location)
    allowance = allowance_of(plan.folder)

    def pay(size_bytes: int) -> None:
        allowance.pay(written_bytes=size_bytes)

    for part, sections in by_part.items():
        path = plan.output.paths[part]
        outputs = written if path == written[-1] else None
        metadata = output_footer(plan.output, purge_after(plan.output, dropped), outputs)
        pieces = [piece for section, _ in sections for piece in section.pieces]
        footing = StitchedFooter(metadata=metadata, schema=plan.rules.schema)
        # Copied row groups were paid for when they were checked; parts are local.
        made = stitch(location, pieces, path, footing=footing, on_copied=pay)
        allowance.synced(made.synced_bytes, made.sync_s)
        joined = join_facts([_facts(result) for _, result in sections], f"output {path}")
        if made.rows != joined.rows:
            raise VerificationError(f"output {path} has {made.rows} rows, expected {joined.rows}")
        files.append(WrittenFile(part, path, made.rows))
        facts.append(joined)
    if not files:
        with open_output_writer(plan) as writer:
            writer.finish(dropped)
    return TaskResult(counts=counts, dropped=dropped, files=tuple(files), facts=tuple(facts))


def _facts(result: RangeResult) -> RowFacts:
    assert result.facts is not None
    return result.facts


def pieces_of_copied_run(copy: CopiedRun, paths: Sequence[str]) -> tuple[StitchPiece, ...]:
    """Return row groups as pieces of a stitch: neighbours of one file together."""
    return tuple(
        StitchPiece(paths[at], tuple(group.number for group in groups))
        for at, groups in groupby(copy.groups, lambda group: group.input)
    )


def copyable_inputs(
    inputs: Inputs, settings: OutputSettings, groups: Sequence[RowGroup]
) -> frozenset[int]:
    """Return the inputs whose row groups have the wanted schema, codec and size."""
    sizes: dict[int, list[RowGroupSize]] = {}
    for group in groups:
        sizes.setdefault(group.input, []).append(RowGroupSize(group.rows, group.size_bytes))
    candidates = inputs.clean.keys() & inputs.matching & sizes.keys()
    return frozenset(at for at in candidates if worth_copying(sizes[at], settings))


# ------------------------------------------------------------------------------------------ The job


def merge_large_job(plan: RewritePlan, run_tasks: RunTasks, cores: int) -> TaskResult:
    """Merge a keyed job in tasks and write its outputs.

    Args:
        plan: Plan of the job. Its folder has room for runs and parts.
        run_tasks: Runs tasks, each once, and returns their outcomes.
        cores: Number of tasks that run concurrently.

    Raises:
        UnsupportedRowsError: The kernel does not support the rows; nothing is written.
        RewriteError: It failed.
    """
    if _fits_memory(plan) and (whole := _merge_in_memory(plan, run_tasks)) is not None:
        return whole
    distrusted, tasks = set[int](), TaskPool(run_tasks, cores)
    for turn in range(len(plan.inputs.paths) + 1):
        result = _merge_once(plan, tasks, frozenset(distrusted), turn)
        if isinstance(result, TaskResult):
            return result
        distrusted |= result
    raise AssertionError("no input was left to distrust, but statistics were wrong again")


def _fits_memory(plan: RewritePlan) -> bool:
    """Return whether a job is merged in memory: many small files, which fit together.

    A few large row groups are merged in steps as fast.
    """
    groups, inputs = plan.inputs.row_groups, plan.inputs
    if len(groups) <= SHORT_RUNS_MAX or not open_location(plan.location).is_local:
        return False
    if not all(group.input in inputs.small for group in groups):
        return False
    if not all(map(known_to_polars, plan.rules.schema.types)):
        return False
    if copyable_inputs(inputs, plan.output.settings, groups):
        return False
    return sum(group.size_bytes for group in groups) <= whole_bytes_max(plan.memory)


def _merge_in_memory(plan: RewritePlan, run_tasks: RunTasks) -> TaskResult | None:
    """Merge in one task that holds all rows; return None if they turn out to be too large."""
    sources = dict(enumerate(map(MergeInput, plan.inputs.paths)))
    work = partial(
        merge_in_memory,
        *restrict_plan(plan, sources, plan.inputs.row_groups),
        plan.inputs.row_groups,
    )
    ended = run_tasks([work])
    if isinstance(ended[0], TooLarge):
        return None
    (result,) = _required(results_of(ended, TaskResult))
    return result


def _merge_once(
    plan: RewritePlan, tasks: TaskPool, distrusted: frozenset[int], turn: int
) -> TaskResult | set[int]:
    """Merge once; return the inputs with wrong statistics, if there are any."""
    inputs = dict(enumerate(map(MergeInput, plan.inputs.paths)))
    groups = [_without_distrusted_bounds(group, distrusted) for group in plan.inputs.row_groups]
    copyable = copyable_inputs(plan.inputs, plan.output.settings, groups) - distrusted
    copies = copied_runs(groups, copyable, plan.output.cuts, RUN_BYTES_MIN)
    # Tasks get only the row groups that they read.
    plan = replace(plan, inputs=replace(plan.inputs, row_groups=()))
    copied = {id(group) for copy in copies for group in copy.groups}
    merged = [group for group in groups if id(group) not in copied]
    sources, merged, superseded = merge_into_longer_runs(plan, tasks, inputs, merged, turn)
    merges_at_a_time = max(1, tasks.cores // MERGE_CORES)
    ranges: list[MergeRange] = []
    if copies or merges_at_a_time > 1:
        ranges = cut_ranges(plan, sources, merged, copies, merges_at_a_time)
    if not copies and len(ranges) <= 1:
        merge = partial(merge_whole_job, *restrict_plan(plan, sources, merged), merged)
        return _run_whole_job(tasks.run, merge, superseded)
    names = [f"part-{turn}-{at}.parquet" for at in range(len(ranges))]
    merges = [
        partial(merge_range, *restrict_plan(plan, sources, work.groups), work, name)
        for work, name in zip(ranges, names, strict=True)
    ]
    checks = [partial(check_copy, plan, copy) for copy in copies]
    ended = results_of(tasks.run([*merges, *checks]), RangeResult)
    if isinstance(ended, set):
        for name in names:
            Path(plan.folder, name).unlink(missing_ok=True)
        return ended
    folder = open_location(Path(plan.folder).as_uri())
    sections = [
        OutputSection(work.start or b"", part, (StitchPiece(name, location=folder),))
        for work, name, part in zip(
            ranges, names, parts_of_ranges(ranges, plan.output.cuts), strict=True
        )
    ]
    sections += [
        OutputSection(
            copy.groups[0].low or b"",
            part_of_copied_run(copy, plan.output.cuts),
            pieces_of_copied_run(copy, plan.inputs.paths),
        )
        for copy in copies
    ]
    try:
        return join_outputs(plan, list(zip(sections, ended, strict=True)), superseded)
    except NotStitchableError:
        if not copies:
            raise
        for path in plan.output.paths:
            delete_file(table_location(plan.location), path)
        return {group.input for copy in copies for group in copy.groups}


def _run_whole_job(
    run_tasks: RunTasks, merge: Task, superseded: RowCounts
) -> TaskResult | set[int]:
    """Merge in one task, which writes the outputs."""
    ended = results_of(run_tasks([merge]), TaskResult)
    if isinstance(ended, set):
        return ended
    (result,) = ended
    return replace(result, counts=sum_counts(result.counts, superseded))


def _without_distrusted_bounds(group: RowGroup, distrusted: frozenset[int]) -> RowGroup:
    """Return a row group without its file's bounds, if those were wrong before."""
    return replace(group, low=None, high=None) if group.input in distrusted else group
