"""The native merge as tasks: one range of keys each.

A range is written into a file of the attempt's own folder, on this machine's disk; the
driver joins these files as they are. Where row groups that overlap are more than a task
can hold, they are first merged into longer runs, in that folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from common.errors import RewriteError
from common.model.key_values import KeyType
from common.model.outcome import DroppedRows, RowCounts
from common.parquet.location import Location, open_location
from common.rows.row_facts import RowFacts
from compactor.rewrite.allowance import allowance_of
from compactor.rewrite.files import folder_fill
from compactor.rewrite.kernel.bounds import Group, Range
from compactor.rewrite.kernel.lanes import Room
from compactor.rewrite.kernel.layout import Layout
from compactor.rewrite.kernel.order import ROWS_MAX
from compactor.rewrite.kernel.parts import read_back
from compactor.rewrite.kernel.steps import Dues, RangeMerge, Reads, StatisticsError
from compactor.rewrite.kernel.words import LongKeyError
from compactor.rewrite.marks import Mark
from compactor.rewrite.memory import Budget
from compactor.rewrite.merging import Tally
from compactor.rewrite.paying import PayingReader
from compactor.rewrite.pipeline import Ahead, Behind, reading_order
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.row_groups import RowGroups
from compactor.rewrite.runs import Block, RunReader, RunWriter
from compactor.rewrite.together import Together


@dataclass(frozen=True, slots=True)
class Source:
    """A file whose rows are merged."""

    path: str
    """Relative to the table's location, or to the folder of progress."""
    blocks: tuple[Block, ...] | None = None
    """Of a run that this very attempt has written; None: it is one of the table's files."""


Sources = Mapping[int, Source]
"""Files by number; a task knows of those that it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """What a task that merged one range tells the driver."""

    counts: RowCounts
    dropped: DroppedRows | None
    facts: RowFacts | None
    """Of the rows in its file, read back; None: runs are not."""
    blocks: tuple[Block, ...] = ()
    """Of a run: where its rows are."""


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


def merge_range(plan: RewritePlan, sources: Sources, work: Range, name: str) -> Merged:
    """Merge one range into a file of the attempt's folder; without rows there is no file.

    Args:
        plan: Of the job.
        sources: All files whose row groups are merged, by number.
        work: The range.
        name: Of the file, in the folder of progress.

    Raises:
        RewriteError: It failed.
    """
    tally, path = Tally(), Path(plan.progress_folder, name)
    try:
        with _created(path) as sink, Behind() as behind:
            rows = RowGroups(sink, plan.schema, plan.writing, plan.rules.key)
            for table in merged_tables(plan, sources, work, dues_of(plan, tally, name)):
                behind.call(rows.write, table)
            behind.settle()
            rows.close({})
    except StatisticsError as error:
        return WrongStatistics(error.input)
    except LongKeyError:
        return LongKeys()
    facts = read_back(open_location(path.parent.as_uri()), name, plan.rules, plan.schema)
    if facts.rows != tally.counts.rows_out:
        raise RewriteError(f"{path} has {facts.rows} rows, wanted {tally.counts.rows_out}")
    if not rows.rows:
        path.unlink()
    return PartResult(counts=tally.counts, dropped=tally.dropped, facts=facts)


def merge_run(
    plan: RewritePlan, sources: Sources, work: Range, name: str, block_bytes: int
) -> Merged:
    """Merge row groups into a run, dead rows kept; see `merge_range`.

    Args:
        plan: Of the job.
        sources: All files whose row groups are merged, by number.
        work: The row groups, wherever their keys lie.
        name: Of the run, in the folder of progress.
        block_bytes: Decoded bytes of its blocks.
    """
    tally, path = Tally(), Path(plan.progress_folder, name)
    dues = dues_of(plan, tally, name, keep_dead=True)
    dues = replace(dues, at_once=_fits_at_once(work.groups, plan.memory))
    try:
        with _created(path) as sink, Behind() as behind:
            rows = RunWriter(sink, Layout(plan.schema, plan.rules), block_bytes)
            for table in merged_tables(plan, sources, work, dues):
                behind.call(rows.write, table)
            behind.settle()
            blocks = rows.close()
    except LongKeyError:
        return LongKeys()
    return PartResult(counts=tally.counts, dropped=None, facts=None, blocks=blocks)


def _fits_at_once(groups: Sequence[Group], memory: Budget) -> bool:
    """Return whether row groups, all held before any is settled, can be merged in one step."""
    unknown = all(group.low is None and group.high is None for group in groups)
    rows, size_bytes = sum(each.rows for each in groups), sum(each.size_bytes for each in groups)
    return unknown and rows <= ROWS_MAX and size_bytes <= memory.at_once_bytes


@contextmanager
def _created(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file in the attempt's own folder."""
    try:
        with path.open("xb") as sink:
            yield sink
    except OSError as error:
        raise RewriteError(f"{path} cannot be written: {error}") from error


def merged_tables(
    plan: RewritePlan, sources: Sources, work: Range, dues: Dues
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
    paths = {number: each.path for number, each in sources.items() if each.blocks is None}
    if plan.small and paths:
        location, paid = open_location(plan.location), allowance_of(plan.progress_folder)
        by_key = not dues.at_once
        together = Together(location, paths, layout, plan.small, paid, by_key=by_key)
    with Ahead(readers, reading_order(work.groups), dues.room, together) as ahead:
        numbers = {group.input for group in work.groups}
        yield from RangeMerge(layout, dict.fromkeys(numbers, ahead), work, dues).tables()


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


class _Readers(dict[int, Reads]):
    """Readers of files by number, each opened when it is first asked for."""

    def __init__(self, plan: RewritePlan, sources: Sources, layout: Layout) -> None:
        super().__init__()
        self._plan, self._sources, self._layout = plan, sources, layout
        self._location = open_location(plan.location)

    def __missing__(self, at: int) -> Reads:
        source = self._sources[at]
        if source.blocks is not None:
            path = Path(self._plan.progress_folder, source.path)
            self[at] = RunReader(path, self._layout, source.blocks)
            return self[at]
        self[at] = paying_reader(self._plan, self._location, source.path, self._layout)
        return self[at]


def paying_reader(
    plan: RewritePlan, location: Location, path: str, layout: Layout, *, copied: bool = False
) -> PayingReader:
    """Return a reader of one of the table's files, paid for from the attempt's allowance."""
    fill = folder_fill(plan.rules, plan.schema, path)
    paid = allowance_of(plan.progress_folder)
    return PayingReader(paid, location, path, layout, fill, copied=copied)
