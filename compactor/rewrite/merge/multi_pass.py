"""Row groups that overlap too much for one task are merged into longer runs first.

The driver's part: a level of runs after another, until a task can hold what overlaps.
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
"""Decoded row groups that a task may hold at once."""
BUNDLE_BYTES = 256 * 1024**2
"""Decoded row groups that are merged into one run."""
SHORT_RUNS_MAX = 32
"""Runs of small files that are sorted in one step each; of more, one task would hold too little."""
FAN_IN_MAX = 64
"""Runs that are merged into one longer run."""
BLOCK_BYTES_MIN, BLOCK_BYTES_MAX = 2 * 1024**2, 16 * 1024**2
"""Of a run: small, as one or two of each run are held; but reading each takes time."""
BLOCKS_HELD = 4
"""So many of each run would fit into what may be held."""

TaskOutcome = RangeResult | TaskResult | WrongStatistics | LongKeys
Task = Callable[[], TaskOutcome]
RunTasks = Callable[[Sequence[Task]], list[TaskOutcome]]
_Result = TypeVar("_Result", RangeResult, TaskResult)


@dataclass(frozen=True, slots=True)
class TaskPool:
    """How tasks are run."""

    run: RunTasks
    """Runs each once, and returns how they ended."""
    cores: int
    """So many run at a time."""


def merge_into_longer_runs(
    plan: RewritePlan,
    tasks: TaskPool,
    sources: dict[int, MergeInput],
    groups: list[RowGroup],
    turn: int,
) -> tuple[dict[int, MergeInput], list[RowGroup], RowCounts]:
    """Merge row groups into longer runs until a task can hold what overlaps.

    Args:
        plan: Of the job.
        tasks: Run the merges.
        sources: All files whose row groups are merged, by number.
        groups: The row groups.
        turn: How often the job was tried before.

    Returns:
        What is to be merged now, and what became of the rows that are gone already.

    Raises:
        MemoryShortError: It cannot fit, however it is cut.
        LongKeyError: Keys are too long for words.
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
        assert not isinstance(ended, set), "a run was read with statistics"
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
    """Return the size of the blocks of so many runs, which are merged together next."""
    fitting = held_max // (BLOCKS_HELD * max(1, runs))
    return min(max(fitting, BLOCK_BYTES_MIN), BLOCK_BYTES_MAX)


def _require_fit(memory: MemoryBudget, held: int) -> None:
    """Refuse to try what cannot fit, however it is cut.

    Raises:
        MemoryShortError: A task would need more than it may have.
    """
    if (wanted := estimate_bytes(held, memory)) > memory.task_bytes:
        raise MemoryShortError(
            f"{held >> 20} MB of rows overlap at one place, for which a task would take"
            f" {wanted >> 20} MB; {memory.text}"
        )


def _first_runs(
    memory: MemoryBudget, small: Collection[int], groups: Sequence[RowGroup], cores: int
) -> list[MergeRange]:
    """Return which row groups of the table's files are merged into which run.

    Args:
        memory: What a task may hold.
        small: Numbers of the inputs that are small; see `Inputs`.
        groups: The row groups.
        cores: How many tasks run at a time.
    """
    bundle_max = _bundle_bytes(memory, small, groups)
    # Nothing is believed of row groups that are all held at once.
    unknown = [replace(group, low=None, high=None) for group in groups]
    pieces = split_row_groups(unknown, bundle_max)
    total, largest = sum(piece.size_bytes for piece in pieces), max(e.size_bytes for e in pieces)
    count = -(-total // max(1, bundle_max) // cores) * cores  # No core waits for the last of them.
    bundle = min(bundle_max, total // max(1, count) + largest)
    return [MergeRange(groups=each) for each in bundles_of(pieces, bundle)]


def _merges_of_runs(memory: MemoryBudget, blocks: Sequence[RowGroup]) -> list[MergeRange]:
    """Return which runs are merged into which longer one; empty: nothing would be gained.

    Args:
        memory: What a task may hold.
        blocks: Of all runs, as row groups.
    """
    numbers = sorted({block.input for block in blocks})
    largest = max(block.size_bytes for block in blocks)
    # Of each run two blocks are held: one that ends, and one that begins.
    fan_in = max(2, min(FAN_IN_MAX, memory.held_bytes // (2 * max(1, largest))))
    if len(numbers) <= fan_in:
        return []
    chunks = [numbers[at : at + fan_in] for at in range(0, len(numbers), fan_in)]
    return [
        MergeRange(groups=tuple(block for block in blocks if block.input in chunk))
        for chunk in map(frozenset, chunks)
    ]


def _bundle_bytes(memory: MemoryBudget, small: Collection[int], groups: Sequence[RowGroup]) -> int:
    """Return how many decoded bytes are merged into one run of the first level.

    Small files become many short runs, each sorted in one step: less work than to merge
    hundreds of files, as long as few enough runs are left for one task to merge.
    """
    short, total = memory.at_once_bytes, sum(group.size_bytes for group in groups)
    if total <= SHORT_RUNS_MAX * short and all(group.input in small for group in groups):
        return short
    return min(BUNDLE_BYTES, memory.held_bytes * 3 // 4)


def results_of(ended: Sequence[TaskOutcome], kind: type[_Result]) -> list[_Result] | set[int]:
    """Return the results of tasks, or the inputs that are not what they were said to be.

    Raises:
        LongKeyError: Keys are too long for words.
    """
    if any(isinstance(each, LongKeys) for each in ended):
        raise LongKeyError("a key is longer than words can hold")
    wrong = {each.input for each in ended if isinstance(each, WrongStatistics)}
    return wrong or [each for each in ended if isinstance(each, kind)]
