"""A large job as native tasks: looked at, cut into ranges, merged, joined. The driver's part."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from common.errors import MemoryShortError, NotStitchableError
from common.model.outcome import RowCounts
from common.parquet.location import open_location
from common.rows.conform import conform
from common.rows.encode import encode_keys
from compactor.rewrite.apart import RUN_BYTES_MIN, copies_of, ends_of
from compactor.rewrite.files import delete_file, opened_input, table_location
from compactor.rewrite.joining import Seam, copyable_inputs, joined, part_of, pieces_of
from compactor.rewrite.kernel.bounds import Group, Range, groups_of
from compactor.rewrite.kernel.words import LongKeyError
from compactor.rewrite.memory import estimate_bytes, pieces_of_groups
from compactor.rewrite.merging import sum_counts
from compactor.rewrite.native import (
    Ended,
    LongKeys,
    PartResult,
    Source,
    WrongStatistics,
    check_copy,
    merge_range,
)
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.ranges import bundles_of, held_bytes, parts_of, points_of, ranges_of, widest
from compactor.rewrite.stitch.pieces import Piece
from compactor.rewrite.tasks import TaskResult

HELD_BYTES_MAX = 352 * 1024**2
"""Decoded row groups that a task may hold at once."""
BUNDLE_BYTES = 128 * 1024**2
"""Decoded row groups that are merged into one run."""
FAN_IN_MAX = 64
"""Runs that are merged into one longer run."""
RANGE_BYTES = 512 * 1024**2
"""Decoded bytes of a range, about."""
SAMPLED_GROUPS, SAMPLED_KEYS = 6, 64

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
    groups = _groups(plan, inputs, distrusted)
    copies = copies_of(groups, copyable_inputs(plan, groups) - distrusted, plan.cuts, RUN_BYTES_MIN)
    copied = {id(group) for copy in copies for group in copy.groups}
    merged = [group for group in groups if id(group) not in copied]
    sources, merged, earlier = _longer_runs(plan, run_tasks, inputs, merged, turn)
    points = points_of(merged, _samples(plan, sources, widest(merged, SAMPLED_GROUPS)))
    count = max(cores, -(-sum(group.size_bytes for group in merged) // RANGE_BYTES))
    ends = [*plan.cuts, *ends_of(copies)]
    ranges = [work for work in ranges_of(merged, points, count, ends) if work.groups]
    names = [f"part-{turn}-{at}.parquet" for at in range(len(ranges))]
    merges = [
        partial(merge_range, plan, sources, work, name)
        for work, name in zip(ranges, names, strict=True)
    ]
    checks = [partial(check_copy, plan, inputs, copy) for copy in copies]
    ended = _results(run_tasks([*merges, *checks]))
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
        ended = _results(run_tasks(calls))
        assert not isinstance(ended, set), "a run was read with statistics"
        for part in ended:
            gone = part.counts.superseded
            earlier = sum_counts(earlier, RowCounts(rows_in=gone, superseded=gone))
        if level:
            for source in sources:
                (folder / source.path).unlink(missing_ok=True)
        kept = [name for name in names if (folder / name).exists()]
        sources = [Source(folder.as_uri(), name, own=True) for name in kept]
        groups = _groups(plan, sources, frozenset())
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


def _groups(
    plan: RewritePlan, sources: Sequence[Source], distrusted: frozenset[int]
) -> list[Group]:
    """Return the row groups of all files."""
    found: list[Group] = []
    for at, source in enumerate(sources):
        with opened_input(open_location(source.location), source.path) as parquet:
            found += groups_of(
                at,
                parquet.metadata,
                parquet.schema_arrow,
                plan.rules.key,
                trusted=at not in distrusted,
            )
    return found


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


def _samples(
    plan: RewritePlan, sources: Sequence[Source], groups: Sequence[Group]
) -> dict[tuple[int, int], list[bytes]]:
    """Return keys at even distances of some row groups."""
    rules, samples = plan.rules, {}
    schema = pa.schema([plan.schema.field(name) for name in rules.key])
    for group in groups:
        source = sources[group.input]
        with opened_input(open_location(source.location), source.path) as parquet:
            if any(name not in parquet.schema_arrow.names for name in rules.key):
                continue  # Its folders tell them.
            rows = parquet.read_row_group(group.number, list(rules.key))
        stride = max(1, rows.num_rows // SAMPLED_KEYS)
        picked = rows.take(pa.array(range(stride // 2, rows.num_rows, stride)))
        known = conform(picked, schema, f"file {source.path}")
        samples[group.input, group.number] = encode_keys(
            known, rules.key, rules.key_types
        ).to_pylist()
    return samples


def _results(ended: Sequence[Ended]) -> list[PartResult] | set[int]:
    """Return the results of tasks, or the inputs that are not what they were said to be.

    Raises:
        LongKeyError: Keys are too long for words.
    """
    if any(isinstance(each, LongKeys) for each in ended):
        raise LongKeyError("a key is longer than words can hold")
    wrong = {each.input for each in ended if isinstance(each, WrongStatistics)}
    return wrong or [each for each in ended if isinstance(each, PartResult)]
