"""A large job as native tasks: looked at, cut into ranges, merged, joined. The driver's part.

A merge keeps about two cores busy. Where there are more, keys are cut into ranges, one task
each, and their parts are joined; where there are not, one task writes the outputs itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from common.errors import MemoryShortError, NotStitchableError
from common.model.outcome import RowCounts
from common.parquet.location import open_location
from compactor.rewrite.apart import RUN_BYTES_MIN, copies_of
from compactor.rewrite.cutting import cut_ranges
from compactor.rewrite.files import delete_file, table_location
from compactor.rewrite.footers import Asked, read_footers
from compactor.rewrite.joining import Seam, copyable_inputs, joined, part_of, pieces_of
from compactor.rewrite.kernel.bounds import Group, Range
from compactor.rewrite.kernel.lanes import LANE_CORES
from compactor.rewrite.kernel.words import LongKeyError
from compactor.rewrite.memory import estimate_bytes, pieces_of_groups
from compactor.rewrite.merging import sum_counts
from compactor.rewrite.native import (
    LongKeys,
    PartResult,
    Source,
    WrongStatistics,
    check_copy,
    merge_range,
)
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.ranges import bundles_of, held_bytes, parts_of
from compactor.rewrite.stitch.pieces import Piece
from compactor.rewrite.tasks import TaskResult
from compactor.rewrite.whole import merge_whole

HELD_BYTES_MAX = 352 * 1024**2
"""Decoded row groups that a task may hold at once."""
BUNDLE_BYTES = 128 * 1024**2
"""Decoded row groups that are merged into one run."""
FAN_IN_MAX = 64
"""Runs that are merged into one longer run."""

Ended = PartResult | TaskResult | WrongStatistics | LongKeys
Call = Callable[[], Ended]
RunTasks = Callable[[Sequence[Call]], list[Ended]]


def merge_natively(plan: RewritePlan, run_tasks: RunTasks, cores: int) -> TaskResult:
    """Merge a keyed job in tasks and write its outputs.

    Args:
        plan: What to do. Its folder of progress has room for runs and parts.
        run_tasks: Runs tasks, each once, and returns how they ended.
        cores: How many run at a time.

    Raises:
        LongKeyError: Keys are too long for words; nothing is written.
        RewriteError: It failed.
    """
    distrusted: set[int] = set()
    for turn in range(len(plan.inputs) + 1):
        result = _tried(plan, run_tasks, cores, frozenset(distrusted), turn)
        if isinstance(result, TaskResult):
            return result
        distrusted |= result
    raise AssertionError("every input was distrusted, and yet one was believed")


def _tried(
    plan: RewritePlan, run_tasks: RunTasks, cores: int, distrusted: frozenset[int], turn: int
) -> TaskResult | set[int]:
    """Merge once; return the inputs that are not what they were said to be, if some are."""
    inputs = [Source(plan.location, path) for path in plan.inputs]
    groups = [_believed(group, distrusted) for group in plan.groups]
    plan = replace(plan, groups=())  # Tasks are told of those that they read.
    copies = copies_of(groups, copyable_inputs(plan, groups) - distrusted, plan.cuts, RUN_BYTES_MIN)
    copied = {id(group) for copy in copies for group in copy.groups}
    merged = [group for group in groups if id(group) not in copied]
    sources, merged, earlier = _longer_runs(plan, run_tasks, inputs, merged, turn)
    lanes = max(1, cores // LANE_CORES)
    ranges = [] if lanes == 1 and not copies else cut_ranges(plan, sources, merged, copies, lanes)
    if not copies and len(ranges) <= 1:
        return _whole(run_tasks, partial(merge_whole, plan, sources, merged), earlier)
    names = [f"part-{turn}-{at}.parquet" for at in range(len(ranges))]
    merges = [
        partial(merge_range, plan, sources, work, name)
        for work, name in zip(ranges, names, strict=True)
    ]
    checks = [partial(check_copy, plan, inputs, copy) for copy in copies]
    ended = _results(run_tasks([*merges, *checks]), PartResult)
    if isinstance(ended, set):
        for name in names:
            Path(plan.progress_folder, name).unlink(missing_ok=True)
        return ended
    folder = open_location(Path(plan.progress_folder).as_uri())
    seams = [
        Seam(work.start or b"", part, (Piece(name, location=folder),))
        for work, name, part in zip(ranges, names, parts_of(ranges, plan.cuts), strict=True)
    ]
    seams += [
        Seam(copy.groups[0].low or b"", part_of(copy, plan.cuts), pieces_of(copy, plan.inputs))
        for copy in copies
    ]
    try:
        return joined(plan, list(zip(seams, ended, strict=True)), earlier)
    except NotStitchableError:
        if not copies:
            raise
        for path in plan.outputs:
            delete_file(table_location(plan.location), path)
        return {group.input for copy in copies for group in copy.groups}


def _whole(run_tasks: RunTasks, merge: Call, earlier: RowCounts) -> TaskResult | set[int]:
    """Merge in one task, which writes the outputs."""
    ended = _results(run_tasks([merge]), TaskResult)
    if isinstance(ended, set):
        return ended
    (result,) = ended
    return replace(result, counts=sum_counts(result.counts, earlier))


def _longer_runs(
    plan: RewritePlan,
    run_tasks: RunTasks,
    sources: list[Source],
    groups: list[Group],
    turn: int,
) -> tuple[list[Source], list[Group], RowCounts]:
    """Merge row groups into longer runs until a task can hold what overlaps.

    Returns:
        What is to be merged now, and what became of the rows that are gone already.
    """
    earlier, level, folder = RowCounts(), 0, Path(plan.progress_folder)
    held_max = min(HELD_BYTES_MAX, plan.memory.held_bytes)
    while held_bytes(groups) > held_max and (tasks := _runs(plan, groups, own=level > 0)):
        names = [f"run-{turn}-{level}-{at}.parquet" for at in range(len(tasks))]
        calls = [
            partial(merge_range, plan, sources, work, name, spill=True)
            for work, name in zip(tasks, names, strict=True)
        ]
        ended = _results(run_tasks(calls), PartResult)
        assert not isinstance(ended, set), "a run was read with statistics"
        for part in ended:
            gone = part.counts.superseded
            earlier = sum_counts(earlier, RowCounts(rows_in=gone, superseded=gone))
        if level:
            for source in sources:
                (folder / source.path).unlink(missing_ok=True)
        kept = [name for name in names if (folder / name).exists()]
        sources = [Source(folder.as_uri(), name, own=True) for name in kept]
        footers = read_footers(open_location(folder.as_uri()), kept, Asked(plan.rules.key))
        groups = [group for footer in footers for group in footer.groups]
        level += 1
    _require_fit(plan, groups)
    return sources, groups, earlier


def _require_fit(plan: RewritePlan, groups: Sequence[Group]) -> None:
    """Refuse to try what cannot fit, however it is cut.

    Raises:
        MemoryShortError: A task would need more than it may have.
    """
    held = held_bytes(groups)
    if (wanted := estimate_bytes(held, plan.memory)) > plan.memory.task_bytes:
        raise MemoryShortError(
            f"{held >> 20} MB of rows overlap at one place, for which a task would take"
            f" {wanted >> 20} MB; {plan.memory.text}"
        )


def _believed(group: Group, distrusted: frozenset[int]) -> Group:
    """Return a row group without what its file says of its keys, if that was wrong once."""
    return replace(group, low=None, high=None) if group.input in distrusted else group


def _runs(plan: RewritePlan, groups: Sequence[Group], *, own: bool) -> list[Range]:
    """Return what is merged into longer runs, run by run; empty: nothing would be gained."""
    bundle = min(BUNDLE_BYTES, plan.memory.held_bytes // 2)
    if own:
        numbers = sorted({group.input for group in groups})
        largest = max(group.size_bytes for group in groups)
        # Of each run two row groups are held: one that ends, and one that begins.
        fan_in = max(2, min(FAN_IN_MAX, plan.memory.held_bytes // (2 * max(1, largest))))
        if len(numbers) <= fan_in:
            return []
        chunks = [numbers[at : at + fan_in] for at in range(0, len(numbers), fan_in)]
        return [
            Range(groups=tuple(group for group in groups if group.input in chunk))
            for chunk in map(frozenset, chunks)
        ]
    # Nothing is believed of row groups that are all held at once.
    unknown = [replace(group, low=None, high=None) for group in groups]
    pieces = pieces_of_groups(unknown, bundle)
    return [Range(groups=each) for each in bundles_of(pieces, bundle)]


_Result = TypeVar("_Result", PartResult, TaskResult)


def _results(ended: Sequence[Ended], kind: type[_Result]) -> list[_Result] | set[int]:
    """Return the results of tasks, or the inputs that are not what they were said to be.

    Raises:
        LongKeyError: Keys are too long for words.
    """
    if any(isinstance(each, LongKeys) for each in ended):
        raise LongKeyError("a key is longer than words can hold")
    wrong = {each.input for each in ended if isinstance(each, WrongStatistics)}
    return wrong or [each for each in ended if isinstance(each, kind)]
