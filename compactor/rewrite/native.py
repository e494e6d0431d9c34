"""The native merge as tasks: a whole small job, or one range of keys of a large one.

A range is written into a file of the attempt's own folder, on this machine's disk; the
driver joins these files as they are. Where row groups that overlap are more than a task
can hold, they are first merged into longer runs with small row groups, in that folder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from common.errors import RewriteError, VerificationError
from common.model.keys import KeyType
from common.model.outcome import DroppedRows, RowCounts
from common.parquet.location import open_location
from common.rows.facts import RowFacts
from compactor.rewrite.allowance import allowance_of
from compactor.rewrite.apart import Copy
from compactor.rewrite.files import folder_fill, opened_input, table_location
from compactor.rewrite.kernel.bounds import Group, Range, groups_of
from compactor.rewrite.kernel.parts import (
    DeadRowsError,
    facts_layout,
    facts_of,
    join_facts,
    read_back,
)
from compactor.rewrite.kernel.reading import Layout, Reader
from compactor.rewrite.kernel.steps import Dues, RangeMerge, StatisticsError
from compactor.rewrite.kernel.words import LongKeyError
from compactor.rewrite.marks import Mark
from compactor.rewrite.merging import Tally
from compactor.rewrite.output_settings import OutputSettings
from compactor.rewrite.paying import PayingReader
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.questions import Answers
from compactor.rewrite.row_groups import RowGroups
from compactor.rewrite.tasks import TaskResult, rewrite_in_memory
from compactor.rewrite.writer import writing

SPILL_GROUP_BYTES = 2 * 1024**2
_SPILL = OutputSettings("none", None, SPILL_GROUP_BYTES)


@dataclass(frozen=True, slots=True)
class Source:
    """A file whose rows are merged."""

    location: str
    path: str
    own: bool = False
    """Written by this very attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """What a task that merged one range tells the driver."""

    counts: RowCounts
    dropped: DroppedRows | None
    facts: RowFacts | None
    """Of the rows in its file, read back; None: runs are not."""


@dataclass(frozen=True, slots=True)
class WrongStatistics:
    """A task has met rows that the statistics of these inputs rule out."""

    input: int


@dataclass(frozen=True, slots=True)
class LongKeys:
    """A task has met keys that words cannot hold."""


Ended = PartResult | WrongStatistics | LongKeys


def is_native(plan: RewritePlan) -> bool:
    """Return whether the kernel knows tables and jobs like this one."""
    rules = plan.rules
    if not rules.key or plan.transform is not None:
        return False
    assert rules.version_column is not None
    named = [plan.schema.field(name).type for name in (*rules.key, rules.version_column)]
    return not any(pa.types.is_decimal256(arrow) or pa.types.is_null(arrow) for arrow in named)


def has_long_bounds(plan: RewritePlan) -> bool:
    """Return whether cuts may be finer than words tell apart."""
    text = {KeyType.STRING, KeyType.BINARY} & set(plan.rules.key_types)
    return bool(text) and any(len(cut) > 64 for cut in plan.cuts)


def rewrite_natively(plan: RewritePlan, answers: Answers | None = None) -> TaskResult:
    """Merge all inputs of a small job and write its outputs.

    Args:
        plan: What to do.
        answers: None; the kernel knows no transforms.
    """
    sources = [Source(plan.location, path) for path in plan.inputs]
    try:
        return _whole(plan, sources)
    except LongKeyError:
        return rewrite_in_memory(plan, answers)


def _whole(plan: RewritePlan, sources: Sequence[Source]) -> TaskResult:
    tally = Tally()
    layout = Layout(plan.schema, plan.rules)
    groups = [group for at, source in enumerate(sources) for group in _groups(at, source, plan)]
    readers = {at: _reader(plan, source, layout) for at, source in enumerate(sources)}
    work = Range(groups=tuple(groups))
    merge = RangeMerge(layout, readers, work, _dues(plan, tally, "write"))
    with writing(plan) as writer:
        for table in merge.tables():
            writer.write(table, tally.dropped)
        files = writer.finish(tally.dropped)
    location = table_location(plan.location)
    facts = tuple(read_back(location, file.path, plan.rules, plan.schema) for file in files)
    return TaskResult(counts=tally.counts, dropped=tally.dropped, files=files, facts=facts)


def merge_range(
    plan: RewritePlan, sources: Sequence[Source], work: Range, name: str, *, spill: bool = False
) -> Ended:
    """Merge one range into a file of the attempt's folder; without rows there is no file.

    Args:
        plan: Of the job.
        sources: All files whose row groups are merged, by number.
        work: The range.
        name: Of the file, in the folder of progress.
        spill: Keep dead rows, and write small row groups without a codec.

    Raises:
        RewriteError: It failed.
    """
    tally = Tally()
    layout = Layout(plan.schema, plan.rules)
    numbers = {group.input for group in work.groups}
    readers = {at: _reader(plan, sources[at], layout) for at in sorted(numbers)}
    merge = RangeMerge(layout, readers, work, _dues(plan, tally, name, keep_dead=spill))
    path = Path(plan.progress_folder, name)
    settings = _SPILL if spill else plan.writing
    try:
        with path.open("xb") as sink:
            rows = RowGroups(sink, plan.schema, settings, plan.rules.key)
            for table in merge.tables():
                rows.write(table)
            rows.close({})
    except StatisticsError as error:
        return WrongStatistics(error.input)
    except LongKeyError:
        return LongKeys()
    except OSError as error:
        raise RewriteError(f"{path} cannot be written: {error}") from error
    facts = None
    if not spill:
        here = open_location(path.parent.as_uri())
        facts = read_back(here, name, plan.rules, plan.schema)
        if facts.rows != tally.counts.rows_out:
            raise RewriteError(f"{path} has {facts.rows} rows, wanted {tally.counts.rows_out}")
    if not rows.rows:
        path.unlink()
    return PartResult(counts=tally.counts, dropped=tally.dropped, facts=facts)


def check_copy(plan: RewritePlan, sources: Sequence[Source], copy: Copy) -> Ended:
    """Make sure that row groups may be copied, by the columns that rows are judged by.

    Args:
        plan: Of the job.
        sources: All files, by number.
        copy: The row groups, by key.

    Returns:
        Facts and counts of their rows, or which input is not as it was said to be.
    """
    layout, readers = facts_layout(plan.rules, plan.schema), dict[int, Reader]()
    mark, facts = Mark(plan.progress_folder, f"copy-{copy.groups[0].input}"), list[RowFacts]()
    for group in copy.groups:
        source = sources[group.input]
        reader = readers.get(group.input) or _reader(plan, source, layout, whole=True)
        readers[group.input] = reader
        try:
            found = facts_of(reader, group, f"file {source.path}", plan.now_s)
        except (VerificationError, DeadRowsError, LongKeyError):
            return WrongStatistics(group.input)
        if not _inside(found, group):
            return WrongStatistics(group.input)
        facts.append(found)
        mark.add(group.size_bytes, group.rows)
    joined = join_facts(facts, "copied row groups")
    counts = RowCounts(rows_in=joined.rows, rows_out=joined.rows)
    return PartResult(counts=counts, dropped=None, facts=joined)


def _inside(found: RowFacts, group: Group) -> bool:
    """Return whether keys are where the footer has them."""
    first, last, low, high = found.key_min, found.key_max, group.low, group.high
    if first is None or last is None or low is None or high is None:
        return False
    return low <= first and last <= high


def _dues(plan: RewritePlan, tally: Tally, name: str, *, keep_dead: bool = False) -> Dues:
    return Dues(
        now_s=plan.now_s,
        drop=None if keep_dead else plan.drop,
        tally=tally,
        mark=Mark(plan.progress_folder, name),
        step_bytes=plan.memory.step_bytes,
        full_bytes=plan.memory.held_bytes // 2,
    )


def _reader(plan: RewritePlan, source: Source, layout: Layout, *, whole: bool = False) -> Reader:
    location = open_location(source.location)
    if source.own:
        return Reader(location, source.path, layout)
    fill = folder_fill(plan.rules, plan.schema, source.path)
    allowance = allowance_of(plan.progress_folder)
    return PayingReader(allowance, location, source.path, layout, fill, whole=whole)


def _groups(at: int, source: Source, plan: RewritePlan) -> list[Group]:
    with opened_input(open_location(source.location), source.path) as parquet:
        return groups_of(at, parquet.metadata, parquet.schema_arrow, plan.rules.key, trusted=False)
