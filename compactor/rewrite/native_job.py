"""A large job as native tasks: looked at, cut into ranges, merged, joined. The driver's part.

A merge keeps about two cores busy. Where there are more, keys are cut into ranges, one task
each, and their parts are joined; where there are not, one task writes the outputs itself.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from common.errors import NotStitchableError
from common.model.outcome import RowCounts
from common.parquet.location import open_location
from compactor.rewrite.apart import RUN_BYTES_MIN, copies_of
from compactor.rewrite.copied import check_copy
from compactor.rewrite.cutting import cut_ranges
from compactor.rewrite.files import delete_file, table_location
from compactor.rewrite.joining import Seam, copyable_inputs, joined, part_of, pieces_of
from compactor.rewrite.kernel.bounds import Group
from compactor.rewrite.kernel.lanes import LANE_CORES
from compactor.rewrite.longer_runs import Call, RunTasks, Tasks, longer_runs, results_of
from compactor.rewrite.merging import sum_counts
from compactor.rewrite.native import PartResult, Source, merge_range
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.ranges import parts_of
from compactor.rewrite.stitch.pieces import Piece
from compactor.rewrite.tasks import TaskResult
from compactor.rewrite.telling import told_of
from compactor.rewrite.whole import merge_whole


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
    distrusted, tasks = set[int](), Tasks(run_tasks, cores)
    for turn in range(len(plan.inputs) + 1):
        result = _tried(plan, tasks, frozenset(distrusted), turn)
        if isinstance(result, TaskResult):
            return result
        distrusted |= result
    raise AssertionError("every input was distrusted, and yet one was believed")


def _tried(
    plan: RewritePlan, tasks: Tasks, distrusted: frozenset[int], turn: int
) -> TaskResult | set[int]:
    """Merge once; return the inputs that are not what they were said to be, if some are."""
    inputs = dict(enumerate(map(Source, plan.inputs)))
    groups = [_believed(group, distrusted) for group in plan.groups]
    plan = replace(plan, groups=())  # Tasks are told of those that they read.
    copies = copies_of(groups, copyable_inputs(plan, groups) - distrusted, plan.cuts, RUN_BYTES_MIN)
    copied = {id(group) for copy in copies for group in copy.groups}
    merged = [group for group in groups if id(group) not in copied]
    sources, merged, earlier = longer_runs(plan, tasks, inputs, merged, turn)
    lanes = max(1, tasks.cores // LANE_CORES)
    ranges = [] if lanes == 1 and not copies else cut_ranges(plan, sources, merged, copies, lanes)
    if not copies and len(ranges) <= 1:
        merge = partial(merge_whole, *told_of(plan, sources, merged), merged)
        return _whole(tasks.run, merge, earlier)
    names = [f"part-{turn}-{at}.parquet" for at in range(len(ranges))]
    merges = [
        partial(merge_range, *told_of(plan, sources, work.groups), work, name)
        for work, name in zip(ranges, names, strict=True)
    ]
    checks = [partial(check_copy, plan, copy) for copy in copies]
    ended = results_of(tasks.run([*merges, *checks]), PartResult)
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
    ended = results_of(run_tasks([merge]), TaskResult)
    if isinstance(ended, set):
        return ended
    (result,) = ended
    return replace(result, counts=sum_counts(result.counts, earlier))


def _believed(group: Group, distrusted: frozenset[int]) -> Group:
    """Return a row group without what its file says of its keys, if that was wrong once."""
    return replace(group, low=None, high=None) if group.input in distrusted else group
