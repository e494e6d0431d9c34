"""The native merge as tasks: one range of keys each.

A range is written into a file of the attempt's own folder, on this machine's disk; the
driver joins these files as they are. Where row groups that overlap are more than a task
can hold, they are first merged into longer runs with small row groups, in that folder.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from common.errors import RewriteError, VerificationError
from common.model.keys import KeyType
from common.model.outcome import DroppedRows, RowCounts
from common.parquet.location import Location, open_location
from common.rows.facts import RowFacts
from compactor.rewrite.allowance import allowance_of
from compactor.rewrite.apart import Copy
from compactor.rewrite.files import folder_fill
from compactor.rewrite.kernel.bounds import Group, Range
from compactor.rewrite.kernel.lanes import Room
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
from compactor.rewrite.pipeline import Ahead, Behind, reading_order
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.row_groups import RowGroups
from compactor.rewrite.together import Together

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


Merged = PartResult | WrongStatistics | LongKeys


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


def merge_range(
    plan: RewritePlan, sources: Sequence[Source], work: Range, name: str, *, spill: bool = False
) -> Merged:
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
    path = Path(plan.progress_folder, name)
    settings = _SPILL if spill else plan.writing
    dues = dues_of(plan, tally, name, keep_dead=spill)
    try:
        with path.open("xb") as sink, Behind() as behind:
            rows = RowGroups(sink, plan.schema, settings, plan.rules.key)
            for table in merged_tables(plan, sources, work, dues):
                behind.call(rows.write, table)
            behind.settle()
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


def merged_tables(
    plan: RewritePlan, sources: Sequence[Source], work: Range, dues: Dues
) -> Iterator[pa.Table]:
    """Yield the rows that stay of a range, by key, decoded ahead; see `RangeMerge.tables`.

    Args:
        plan: Of the job.
        sources: All files whose row groups are merged, by number.
        work: The range.
        dues: Owed to the job.
    """
    layout = Layout(plan.schema, plan.rules)
    readers = _Readers(plan, sources, layout)
    together = None
    if plan.small and not any(source.own for source in sources):
        location, paid = open_location(plan.location), allowance_of(plan.progress_folder)
        together = Together(location, plan.inputs, layout, plan.small, paid)
    with Ahead(readers, reading_order(work.groups), dues.room, together) as ahead:
        numbers = {group.input for group in work.groups}
        yield from RangeMerge(layout, dict.fromkeys(numbers, ahead), work, dues).tables()


def check_copy(plan: RewritePlan, sources: Sequence[Source], copy: Copy) -> Merged:
    """Make sure that row groups may be copied, by the columns that rows are judged by.

    Args:
        plan: Of the job.
        sources: All files, by number.
        copy: The row groups, by key.

    Returns:
        Facts and counts of their rows, or which input is not as it was said to be.
    """
    readers = _Readers(plan, sources, facts_layout(plan.rules, plan.schema), whole=True)
    mark, facts = Mark(plan.progress_folder, f"copy-{copy.groups[0].input}"), list[RowFacts]()
    for group in copy.groups:
        source = f"file {sources[group.input].path}"
        try:
            found = facts_of(readers[group.input], group, source, plan.now_s)
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


def dues_of(plan: RewritePlan, tally: Tally, name: str, *, keep_dead: bool = False) -> Dues:
    """Return what a merge owes to its job.

    Args:
        plan: Of the job.
        tally: Counts what becomes of the rows.
        name: Tells the task from others of the job.
        keep_dead: Whether no dead row may go.
    """
    return Dues(
        now_s=plan.now_s,
        drop=None if keep_dead else plan.drop,
        tally=tally,
        mark=Mark(plan.progress_folder, name),
        step_bytes=plan.memory.step_bytes,
        full_bytes=plan.memory.held_bytes // 2,
        room=Room(plan.memory.held_bytes),
    )


class _Readers(dict[int, Reader]):
    """Readers of files by number, each opened when it is first asked for."""

    def __init__(
        self,
        plan: RewritePlan,
        sources: Sequence[Source],
        layout: Layout,
        *,
        whole: bool = False,
    ) -> None:
        super().__init__()
        self._plan, self._sources, self._layout, self._whole = plan, sources, layout, whole
        self._locations: dict[str, Location] = {}

    def __missing__(self, at: int) -> Reader:
        plan, source = self._plan, self._sources[at]
        location = self._locations.get(source.location) or open_location(source.location)
        self._locations[source.location] = location
        if source.own:
            self[at] = Reader(location, source.path, self._layout, checked=False)
        else:
            fill = folder_fill(plan.rules, plan.schema, source.path)
            paid = allowance_of(plan.progress_folder)
            self[at] = PayingReader(
                paid, location, source.path, self._layout, fill, whole=self._whole
            )
        return self[at]
