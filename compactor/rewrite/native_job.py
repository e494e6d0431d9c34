"""A large job as native tasks: looked at, cut into ranges, merged, joined. The driver's part."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from common.errors import VerificationError
from common.model.outcome import RowCounts
from common.parquet.location import open_location
from common.rows.conform import conform
from common.rows.encode import encode_keys
from common.rows.facts import RowFacts
from common.rows.rules import join_dropped
from compactor.rewrite.files import opened_input, table_location
from compactor.rewrite.kernel.bounds import Group, Range, groups_of
from compactor.rewrite.kernel.parts import join_facts
from compactor.rewrite.kernel.words import LongKeyError
from compactor.rewrite.merging import sum_counts
from compactor.rewrite.native import (
    Ended,
    LongKeys,
    PartResult,
    Source,
    WrongStatistics,
    merge_range,
)
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.ranges import bundles_of, held_bytes, parts_of, points_of, ranges_of, widest
from compactor.rewrite.stitch.pieces import Footing, Piece
from compactor.rewrite.stitch.stitching import stitch
from compactor.rewrite.tasks import TaskResult
from compactor.rewrite.writer import WrittenFile, footer_of, purge_after, writing

HELD_BYTES_MAX = 320 * 1024**2
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
    """Merge once; return the inputs whose statistics are wrong, if some are."""
    sources = [Source(plan.location, path) for path in plan.inputs]
    groups = _groups(plan, sources, distrusted)
    earlier = RowCounts()
    level = 0
    while held_bytes(groups) > HELD_BYTES_MAX and (tasks := _runs(groups, own=level > 0)):
        names = [f"run-{turn}-{level}-{at}.parquet" for at in range(len(tasks))]
        calls = [
            partial(merge_range, plan, sources, work, name, spill=True)
            for work, name in zip(tasks, names, strict=True)
        ]
        ended = _parts_of(run_tasks(calls))
        assert not isinstance(ended, set), "a run was read with statistics"
        for part in ended:
            gone = part.counts.superseded
            earlier = sum_counts(earlier, RowCounts(rows_in=gone, superseded=gone))
        folder = Path(plan.progress_folder)
        if level:
            for source in sources:
                (folder / source.path).unlink(missing_ok=True)
        kept = [name for name in names if (folder / name).exists()]
        sources = [Source(folder.as_uri(), name, own=True) for name in kept]
        groups = _groups(plan, sources, frozenset())
        level += 1
    points = points_of(groups, _samples(plan, sources, widest(groups, SAMPLED_GROUPS)))
    total_bytes = sum(group.size_bytes for group in groups)
    ranges = ranges_of(groups, points, max(cores, -(-total_bytes // RANGE_BYTES)), plan.cuts)
    names = [f"part-{turn}-{at}.parquet" for at in range(len(ranges))]
    calls = [
        partial(merge_range, plan, sources, work, name)
        for work, name in zip(ranges, names, strict=True)
    ]
    ended = _parts_of(run_tasks(calls))
    if isinstance(ended, set):
        for name in names:
            Path(plan.progress_folder, name).unlink(missing_ok=True)
        return ended
    return _joined(plan, ended, names, parts_of(ranges, plan.cuts), earlier)


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


def _runs(groups: Sequence[Group], *, own: bool) -> list[Range]:
    """Return what is merged into longer runs, run by run; empty: nothing would be gained."""
    if own:
        numbers = sorted({group.input for group in groups})
        if len(numbers) <= FAN_IN_MAX:
            return []
        chunks = [numbers[at : at + FAN_IN_MAX] for at in range(0, len(numbers), FAN_IN_MAX)]
        return [
            Range(groups=tuple(group for group in groups if group.input in chunk))
            for chunk in map(frozenset, chunks)
        ]
    bundles = bundles_of(groups, BUNDLE_BYTES)
    return [Range(groups=tuple(map(_unbounded, bundle))) for bundle in bundles]


def _unbounded(group: Group) -> Group:
    """Return a row group of which nothing is believed: all of a bundle is held at once."""
    return Group(
        input=group.input,
        number=group.number,
        start=group.start,
        rows=group.rows,
        size_bytes=group.size_bytes,
        low=None,
        high=None,
    )


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


def _parts_of(ended: Sequence[Ended]) -> list[PartResult] | set[int]:
    """Return the results of tasks, or the inputs whose statistics are wrong.

    Raises:
        LongKeyError: Keys are too long for words.
    """
    if any(isinstance(each, LongKeys) for each in ended):
        raise LongKeyError("a key is longer than words can hold")
    wrong = {each.input for each in ended if isinstance(each, WrongStatistics)}
    return wrong or [each for each in ended if isinstance(each, PartResult)]


def _joined(
    plan: RewritePlan,
    results: Sequence[PartResult],
    names: Sequence[str],
    parts: Sequence[int],
    earlier: RowCounts,
) -> TaskResult:
    """Stitch the files of ranges into the outputs."""
    counts, dropped = earlier, join_dropped(result.dropped for result in results)
    for result in results:
        counts = sum_counts(counts, result.counts)
    purge, files, facts = purge_after(plan, dropped), [], []
    folder, location = (
        open_location(Path(plan.progress_folder).as_uri()),
        table_location(plan.location),
    )
    known = [part for part, result in zip(parts, results, strict=True) if result.counts.rows_out]
    written = [plan.outputs[part] for part in dict.fromkeys(known)]
    for part in dict.fromkeys(known):
        chosen = [
            (name, result)
            for name, at, result in zip(names, parts, results, strict=True)
            if at == part and result.counts.rows_out
        ]
        path = plan.outputs[part]
        metadata = footer_of(plan, purge, written if path == written[-1] else None)
        footing = Footing(metadata=metadata, schema=plan.schema)
        pieces = [Piece(name, location=folder) for name, _ in chosen]
        made = stitch(location, pieces, path, footing=footing)
        found = join_facts([_facts(result) for _, result in chosen], f"output {path}")
        if made.rows != found.rows:
            raise VerificationError(f"output {path} has {made.rows} rows, wanted {found.rows}")
        files.append(WrittenFile(part, path, made.rows))
        facts.append(found)
    if not files:
        with writing(plan) as writer:
            writer.finish(dropped)
    return TaskResult(counts=counts, dropped=dropped, files=tuple(files), facts=tuple(facts))


def _facts(result: PartResult) -> RowFacts:
    assert result.facts is not None
    return result.facts
