"""Row groups that overlap too much for one task are merged into longer runs first.

The driver's part: a level of runs after another, until a task can hold what overlaps.
Merging is associative, so any number of levels gives the same rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from common.errors import MemoryShortError
from common.model.outcome import RowCounts
from compactor.rewrite.kernel.bounds import Group, Range
from compactor.rewrite.kernel.words import LongKeyError
from compactor.rewrite.memory import estimate_bytes, pieces_of_groups
from compactor.rewrite.merging import sum_counts
from compactor.rewrite.native import LongKeys, PartResult, Source, WrongStatistics, merge_run
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.ranges import bundles_of, footers_of, held_bytes
from compactor.rewrite.runs import groups_of_run
from compactor.rewrite.tasks import TaskResult
from compactor.rewrite.telling import told_of

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

Ended = PartResult | TaskResult | WrongStatistics | LongKeys
Call = Callable[[], Ended]
RunTasks = Callable[[Sequence[Call]], list[Ended]]
_Result = TypeVar("_Result", PartResult, TaskResult)


@dataclass(frozen=True, slots=True)
class Tasks:
    """How tasks are run."""

    run: RunTasks
    """Runs each once, and returns how they ended."""
    cores: int
    """So many run at a time."""


def longer_runs(
    plan: RewritePlan, tasks: Tasks, sources: dict[int, Source], groups: list[Group], turn: int
) -> tuple[dict[int, Source], list[Group], RowCounts]:
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
    earlier, level, folder = RowCounts(), 0, Path(plan.progress_folder)
    held_max, held = min(HELD_BYTES_MAX, plan.memory.held_bytes), _with_footers(plan, groups)
    while held > held_max and (works := _works(plan, groups, tasks.cores, own=level > 0)):
        names = [f"run-{turn}-{level}-{at}" for at in range(len(works))]
        block_bytes = _block_bytes(held_max, len(works))
        calls = [
            partial(merge_run, *told_of(plan, sources, work.groups), work, name, block_bytes)
            for work, name in zip(works, names, strict=True)
        ]
        ended = results_of(tasks.run(calls), PartResult)
        assert not isinstance(ended, set), "a run was read with statistics"
        for part in ended:
            gone = part.counts.superseded
            earlier = sum_counts(earlier, RowCounts(rows_in=gone, superseded=gone))
        if level:
            for source in sources.values():
                (folder / source.path).unlink(missing_ok=True)
        runs = [Source(name, part.blocks) for name, part in zip(names, ended, strict=True)]
        sources = dict(enumerate(runs))
        groups = [
            group
            for number, part in enumerate(ended)
            for group in groups_of_run(number, part.blocks)
        ]
        level, held = level + 1, held_bytes(groups)
    _require_fit(plan, held)
    return sources, groups, earlier


def _with_footers(plan: RewritePlan, groups: Sequence[Group]) -> int:
    """Return what a merge of row groups holds at one place at most, with footers of their files."""
    return held_bytes([*groups, *footers_of(groups, len(plan.schema))])


def _block_bytes(held_max: int, runs: int) -> int:
    """Return the size of the blocks of so many runs, which are merged together next."""
    fitting = held_max // (BLOCKS_HELD * max(1, runs))
    return min(max(fitting, BLOCK_BYTES_MIN), BLOCK_BYTES_MAX)


def _require_fit(plan: RewritePlan, held: int) -> None:
    """Refuse to try what cannot fit, however it is cut.

    Raises:
        MemoryShortError: A task would need more than it may have.
    """
    if (wanted := estimate_bytes(held, plan.memory)) > plan.memory.task_bytes:
        raise MemoryShortError(
            f"{held >> 20} MB of rows overlap at one place, for which a task would take"
            f" {wanted >> 20} MB; {plan.memory.text}"
        )


def _works(plan: RewritePlan, groups: Sequence[Group], cores: int, *, own: bool) -> list[Range]:
    """Return what is merged into longer runs, run by run; empty: nothing would be gained."""
    if own:
        numbers = sorted({group.input for group in groups})
        largest = max(group.size_bytes for group in groups)
        # Of each run two blocks are held: one that ends, and one that begins.
        fan_in = max(2, min(FAN_IN_MAX, plan.memory.held_bytes // (2 * max(1, largest))))
        if len(numbers) <= fan_in:
            return []
        chunks = [numbers[at : at + fan_in] for at in range(0, len(numbers), fan_in)]
        return [
            Range(groups=tuple(group for group in groups if group.input in chunk))
            for chunk in map(frozenset, chunks)
        ]
    bundle_max = _bundle_bytes(plan, groups)
    # Nothing is believed of row groups that are all held at once.
    unknown = [replace(group, low=None, high=None) for group in groups]
    pieces = pieces_of_groups(unknown, bundle_max)
    total, largest = sum(each.size_bytes for each in pieces), max(e.size_bytes for e in pieces)
    count = -(-total // max(1, bundle_max) // cores) * cores  # No core waits for the last of them.
    bundle = min(bundle_max, total // max(1, count) + largest)
    return [Range(groups=each) for each in bundles_of(pieces, bundle)]


def _bundle_bytes(plan: RewritePlan, groups: Sequence[Group]) -> int:
    """Return how many decoded bytes are merged into one run of the first level.

    Small files become many short runs, each sorted in one step: less work than to merge
    hundreds of files, as long as few enough runs are left for one task to merge.
    """
    short, total = plan.memory.at_once_bytes, sum(group.size_bytes for group in groups)
    if total <= SHORT_RUNS_MAX * short and all(group.input in plan.small for group in groups):
        return short
    return min(BUNDLE_BYTES, plan.memory.held_bytes * 3 // 4)


def results_of(ended: Sequence[Ended], kind: type[_Result]) -> list[_Result] | set[int]:
    """Return the results of tasks, or the inputs that are not what they were said to be.

    Raises:
        LongKeyError: Keys are too long for words.
    """
    if any(isinstance(each, LongKeys) for each in ended):
        raise LongKeyError("a key is longer than words can hold")
    wrong = {each.input for each in ended if isinstance(each, WrongStatistics)}
    return wrong or [each for each in ended if isinstance(each, kind)]
