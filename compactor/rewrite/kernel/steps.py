"""One range of keys merged, a step of bounded size after the other.

Row groups are decoded in the order of their least keys. All rows below the least key of
those not decoded yet can be settled; they are, in steps of so many rows, cut between
keys, two of them at a time. What is held is what overlaps at one place of the range.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import pyarrow as pa

from common.rows.rules import DropRule, join_dropped
from compactor.rewrite.kernel.bounds import Group, Range, bound_words
from compactor.rewrite.kernel.lanes import Room, in_order
from compactor.rewrite.kernel.layout import Held, Layout
from compactor.rewrite.kernel.settling import Settled, settled_of
from compactor.rewrite.kernel.slices import Slice, cuts_of
from compactor.rewrite.kernel.words import rank
from compactor.rewrite.marks import Mark
from compactor.rewrite.merging import Tally, sum_counts

STEP_BYTES = 24 * 1024**2
STEP_ROWS_MIN, STEP_ROWS_MAX = 1 << 10, 1 << 18
SMALL_STEP_BYTES = 2 * 1024**2
LOOK_SHARE = 8
FULL_BYTES = 192 * 1024**2
"""So much being held, small steps are taken before more is decoded."""
SLACK = 1.3
"""A step may have that many times the rows that it should, before it is cut."""


class StatisticsError(Exception):
    """A row group has keys outside of what its file says of it; `input` is its number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"statistics of input {number} are wrong")
        self.input = number


class Reads(Protocol):
    """Whoever decodes the row groups of one input."""

    def read(self, group: Group) -> Held:
        """Return the rows of a row group."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Dues:
    """What a merge owes to its job: the rules of dropping, and word of how it goes."""

    now_s: float
    """The job's `now`."""
    drop: DropRule | None
    """Which dead rows may go; None: none may."""
    tally: Tally
    """Counts what becomes of the rows."""
    mark: Mark
    """Tells how far the range is."""
    step_bytes: int = STEP_BYTES
    """Decoded rows that are merged at a time, at most."""
    full_bytes: int = FULL_BYTES
    """So much being held, small steps are taken."""
    room: Room
    """Shared with whoever decodes ahead."""
    at_once: bool = False
    """Whether all rows are settled in one step; row groups need not be by key then."""


class RangeMerge:
    """Merges one range; `tables` yields the rows that stay, by key."""

    def __init__(
        self, layout: Layout, readers: Mapping[int, Reads], work: Range, dues: Dues
    ) -> None:
        """Read nothing yet.

        Args:
            layout: Of the table.
            readers: Of all inputs, by number.
            work: The range.
            dues: Owed to the job.
        """
        self._layout = layout
        self._readers = readers
        self._now_s, self._drop = dues.now_s, dues.drop
        self._tally, self._mark = dues.tally, dues.mark
        self._step_bytes = min(dues.step_bytes, STEP_BYTES)
        self._full_bytes = min(dues.full_bytes, FULL_BYTES)
        self._at_once = dues.at_once
        self._start = None if work.start is None else self._words(work.start)
        self._end = None if work.end is None else self._words(work.end)
        # Those of which nothing is known come first: any key may be in them.
        self._waiting = sorted(work.groups, key=lambda group: group.low or b"", reverse=True)
        self._held: list[Held] = []
        self._room = dues.room
        self._row_bytes = 1.0

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows that stay.

        Raises:
            InputError: An input cannot be read.
            StatisticsError: The statistics of an input are wrong.
            LongKeyError: A key is too long for words.
        """
        for settled in in_order("merge", self._calls()):
            self._tally.counts = sum_counts(self._tally.counts, settled.counts)
            self._tally.dropped = join_dropped((self._tally.dropped, settled.dropped))
            if settled.table is not None:
                yield settled.table

    def _calls(self) -> Iterator[Callable[[], Settled]]:
        """Yield calls that settle a step each, decoding what they need before."""
        while self._waiting or self._held:
            limit = self._load()
            ready = [
                Slice(held, held.done, held.rows if limit is None else self._below(held, limit))
                for held in self._held
            ]
            for step in self._steps([each for each in ready if each.rows]):
                yield partial(settled_of, self._layout, step, self._now_s, self._drop)
            for each in ready:
                each.held.done = each.stop
            self._held = [held for held in self._held if held.done < held.rows]
            self._room.held_bytes = self._held_bytes

    @property
    def _held_bytes(self) -> int:
        return sum(each.size_bytes for each in self._held)

    def _words(self, key: bytes) -> list[int]:
        return bound_words(key, self._layout.kinds, self._layout.key_arrows)

    @property
    def _step_rows(self) -> int:
        fitting = int(self._step_bytes / self._row_bytes)
        return min(max(fitting, self._step_rows_min), STEP_ROWS_MAX)

    @property
    def _step_rows_min(self) -> int:
        """Return the rows of a small step: few bytes, also where rows are long."""
        return max(1, min(STEP_ROWS_MIN, int(SMALL_STEP_BYTES / self._row_bytes)))

    def _below(self, held: Held, limit: Sequence[int]) -> int:
        return max(held.done, rank(held.levels, held.rows, limit, after=False))

    def _load(self) -> Sequence[int] | None:
        """Decode row groups until a step can be settled; return what it must be below."""
        held = sum(each.rows - each.done for each in self._held)
        look_at = self._step_rows
        while self._waiting:
            full = self._held_bytes > self._full_bytes
            low = self._waiting[-1].low
            if low and (full or held >= look_at):
                limit = self._words(low)
                ready = sum(self._below(each, limit) - each.done for each in self._held)
                if ready >= (self._step_rows_min if full else self._step_rows):
                    return limit
                # With many files, a look at all of them after each one would be dear.
                look_at = held + held // LOOK_SHARE
            held += self._hold(self._waiting.pop())
        return None

    def _hold(self, group: Group) -> int:
        """Decode a row group; return how many rows of it are in the range."""
        held = self._readers[group.input].read(group)
        self._check_statistics(group, held)
        begin, end = 0, held.rows
        if self._start is not None:
            begin = rank(held.levels, held.rows, self._start, after=True)
        if self._end is not None:
            end = rank(held.levels, held.rows, self._end, after=True)
        self._row_bytes = max(self._row_bytes, held.size_bytes / max(1, held.rows))
        held.done, held.rows = begin, end
        self._mark.add(group.size_bytes * (end - begin) // max(1, group.rows), end - begin)
        if begin >= end:
            return 0
        self._held.append(held)
        return end - begin

    def _check_statistics(self, group: Group, held: Held) -> None:
        if held.rows == 0:
            return
        below = group.low is not None and rank(held.levels, 1, self._words(group.low), after=False)
        inside = held.rows
        if group.high is not None:
            inside = rank(held.levels, held.rows, self._words(group.high), after=True)
        if below or inside < held.rows:
            raise StatisticsError(group.input)

    def _steps(self, slices: Sequence[Slice]) -> Iterator[list[Slice]]:
        """Cut rows into steps between keys."""
        total, wanted = sum(each.rows for each in slices), self._step_rows
        if total > SLACK * wanted and not self._at_once:
            for cut in cuts_of(slices, wanted, total):
                step = []
                for each in slices:
                    stop = rank(each.held.levels, each.stop, cut, after=True)
                    if stop > each.start:
                        step.append(Slice(each.held, each.start, stop))
                        each.start = stop
                if step:
                    yield step
            slices = [each for each in slices if each.rows]
        if slices:
            yield list(slices)
