"""Row groups that overlap too much for one task are merged into longer runs first.

This is the driver's part: levels of runs are merged until a task can hold the overlapping rows.
Merging is associative, so any number of levels gives the same rows.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from common.errors import MemoryShortError
from common.model.outcome import RowCounts
from compactor.rewrite.kernel.normalized_keys import LongKeyError, MergeRange, RowGroup
from compactor.rewrite.merge.io import groups_of_run
from compactor.rewrite.merge.ranges import (
    bundles_of,
    footers_as_row_groups,
    overlap_bytes_max,
    split_row_groups,
)
from compactor.rewrite.merge.tasks import (
    LongKeys,
    MergeInput,
    RangeResult,
    WrongStatistics,
    merge_run,
    restrict_plan,
)
from compactor.rewrite.plan.memory_budget import MemoryBudget, estimate_bytes
from compactor.rewrite.plan.rewrite_plan import RewritePlan
from compactor.rewrite.tally import sum_counts
from compactor.rewrite.task_result import TaskResult

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

TaskOutcome = RangeResult | TaskResult | WrongStatistics | LongKeys
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
        LongKeyError: Keys are too long for the kernel.
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
        ended = results_of(tasks.run(calls), RangeResult)
        assert not isinstance(ended, set), "runs are read without statistics"
        for part in ended:
            gone = part.counts.superseded
            superseded = sum_counts(superseded, RowCounts(rows_in=gone, superseded=gone))
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
    return [MergeRange(groups=each) for each in bundles_of(pieces, bundle)]


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
        LongKeyError: Keys are too long for the kernel.
    """
    if any(isinstance(each, LongKeys) for each in ended):
        raise LongKeyError("a key is longer than the kernel supports")
    wrong = {each.input for each in ended if isinstance(each, WrongStatistics)}
    return wrong or [each for each in ended if isinstance(each, kind)]
