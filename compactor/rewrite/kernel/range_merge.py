"""Merges one key range in consecutive steps of bounded size.

Row groups are decoded in the order of their least keys. All rows below the least key of the
undecoded row groups can be merged. They are merged in steps of a limited number of rows, cut
between keys, two steps at a time. Steps are independent. The memory holds only row groups that
overlap.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from common.errors import InputError
from common.model.key_values import KeyType
from common.model.outcome import DroppedRows, RowCounts
from common.rows.conform import Flags, Int64s, Words, ordered_double_bits
from common.rows.key_encoding import encode_column, encode_keys
from common.rows.merge import Tally, sortable_series, sum_counts
from common.rows.row_facts import row_hash
from common.rows.rules import (
    DropRule,
    dead_rows,
    droppable_rows,
    dropped_together,
    join_dropped,
    unsettled_rows,
)
from compactor.rewrite.attempt_folder import ProgressMark
from compactor.rewrite.kernel.normalized_keys import (
    KeyWords,
    MergeRange,
    RowGroup,
    bound_words,
    repeats,
    rows_before,
    take_words,
    whole_words,
)
from compactor.rewrite.kernel.winners import (
    ROWS_MAX,
    DecodedRows,
    RowLayout,
    RowSlice,
    Winners,
    column_of,
    order_of,
    portions,
    step_cuts,
    winners,
)
from compactor.rewrite.memory_budget import MemoryInUse, ordered_map

# --------------------------------------------------------------------------------- Rows of one step


_WHOLE = (KeyType.BOOL, KeyType.INT, KeyType.DATE, KeyType.TIME, KeyType.TIMESTAMP)


class Step:
    """The rows of one step: a frame of its own, or some rows of a frame."""

    def __init__(
        self,
        layout: RowLayout,
        frame: pl.DataFrame,
        rest: pa.Table | None,
        levels: list[KeyWords],
        numbers: Int64s | None = None,
    ) -> None:
        """Create a step.

        Args:
            layout: Layout of the table.
            frame: Columns that Polars supports.
            rest: The other columns.
            levels: The words of the keys of the step's rows.
            numbers: Numbers of these rows in `frame`; None: all of them.
        """
        self._layout, self._frame, self._rest = layout, frame, rest
        self._levels, self._numbers = levels, numbers
        self._ranks: Words | None = None
        self._tombstones = self._flags(layout.rules.tombstone_column)

    @classmethod
    def joined(cls, layout: RowLayout, slices: Sequence[RowSlice]) -> "Step":
        """Return a step of slices."""
        frames = [slice_.held.frame.slice(slice_.start, slice_.rows) for slice_ in slices]
        # One chunk: a gather from many chunks costs several times as much as the copy.
        frame = pl.concat(frames, rechunk=True) if layout.fast else pl.DataFrame()
        rests = [
            slice_.held.rest.slice(slice_.start, slice_.rows)
            for slice_ in slices
            if slice_.held.rest is not None
        ]
        return cls(layout, frame, pa.concat_tables(rests) if rests else None, join_words(slices))

    def winners(self) -> Int64s:
        """Return the winning rows, by key."""
        return self._settled(winners(self._levels, self._versions(), self._tombstones))

    def with_deleted(self, chosen: Int64s, drop: DropRule) -> Int64s:
        """Return winners, each unsettled delete followed by the newest other row of its key."""
        rules = self._layout.rules
        if self._tombstones is None or not drop.keeps_deleted:
            return chosen
        assert rules.version_column is not None
        keeps = self._tombstones[chosen]
        deletes = self.table(chosen[keeps], [rules.version_column])
        keeps[keeps] = unsettled_rows(deletes, rules, drop.settled)
        others = np.flatnonzero(~self._tombstones)
        if not keeps.any() or not len(others):
            return chosen
        both = np.concatenate([chosen, self._newest_of(others)])
        levels = take_words(self._levels, both)
        order = order_of(levels, len(both))  # A winner comes before the other row of its key.
        kept = np.concatenate([keeps, np.zeros(len(both) - len(chosen), np.bool_)])[order]
        follows = repeats(take_words(levels, order), len(both)) & np.roll(kept, 1)
        stays: Int64s = both[order[follows | (order < len(chosen))]]
        return stays

    def _newest_of(self, rows: Int64s) -> Int64s:
        """Return the winners of some rows, by key."""
        result = winners(take_words(self._levels, rows), self._versions()[rows], None)
        return self._settled(Winners(rows[result.row], rows[result.tied], result.group))

    def without_dead(
        self, chosen: Int64s, now_s: float, drop: DropRule
    ) -> tuple[Int64s, int, int, DroppedRows | None]:
        """Return the winners that stay, and the numbers of dropped tombstones and expired rows."""
        rules = self._layout.rules
        tombstones = np.zeros(len(chosen), np.bool_)
        if self._tombstones is not None:
            tombstones = self._tombstones[chosen]
        dead = tombstones
        if rules.expiry_ns(now_s) is not None and rules.time_column is not None:
            names = [rules.time_column, *filter(None, [rules.tombstone_column])]
            _, expired = dead_rows(self.table(chosen, names), rules, now_s)
            dead = tombstones | expired
        numbers = np.flatnonzero(dead)
        if len(numbers) == 0:
            return chosen, 0, 0, None
        if (dropped := self._dropped_together(chosen[numbers], drop)) is not None:
            gone = np.ones(len(numbers), np.bool_)
        else:
            assert rules.version_column is not None
            names = list(dict.fromkeys([*rules.key, rules.version_column]))
            small = self.table(chosen[numbers], names)
            gone, dropped = droppable_rows(small, np.ones(len(numbers), np.bool_), rules, drop)
        buried = int((gone & tombstones[numbers]).sum())
        keep = np.ones(len(chosen), np.bool_)
        keep[numbers[gone]] = False
        return chosen[keep], buried, int(gone.sum()) - buried, dropped

    def _dropped_together(self, rows: Int64s, drop: DropRule) -> DroppedRows | None:
        """Return the keys and versions of dead rows, by key, if all of them may be dropped."""
        rules = self._layout.rules
        assert rules.version_column is not None

        @cache
        def key_at(place: int) -> bytes:
            row = self.table(rows[place : place + 1], rules.key)
            (key,) = encode_keys(row, rules.key, rules.key_types).to_pylist()
            return bytes(key)

        newest = rows[[np.argmax(self._versions()[rows])]]
        version = self.table(newest, [rules.version_column]).column(0)
        (highest,) = encode_column(version, rules.version_type).to_pylist()
        return dropped_together(key_at, len(rows), highest, drop)

    def table(self, chosen: Int64s, names: Sequence[str] | None = None) -> pa.Table:
        """Return rows as Arrow, in the table's schema or some columns of it."""
        schema = self._layout.schema
        wanted = schema if names is None else pa.schema([schema.field(name) for name in names])
        fast_columns = frozenset(self._layout.fast)
        fast = [name for name in wanted.names if name in fast_columns]
        slow = [name for name in wanted.names if name not in fast_columns]
        columns = {}
        if fast:
            frame = self._frame.select(fast)[self._at(chosen)]
            columns = dict(zip(fast, frame.to_arrow().columns, strict=True))
        if slow:
            assert self._rest is not None
            rest = self._rest.select(slow).take(pa.array(chosen))
            columns |= dict(zip(slow, rest.columns, strict=True))
        arrays = [columns[field.name].cast(field.type) for field in wanted]
        return pa.table(arrays, schema=wanted)

    def held(self, chosen: Int64s) -> DecodedRows:
        """Return rows, in this order, in the form for further merging."""
        return DecodedRows(
            self._frame[self._at(chosen)] if self._layout.fast else self._frame,
            self._rest.take(pa.array(chosen)) if self._rest is not None else None,
            take_words(self._levels, chosen),
            len(chosen),
            0,
        )

    def _at(self, chosen: Int64s) -> Int64s:
        """Return the numbers of some of its rows in the frame."""
        return chosen if self._numbers is None else self._numbers[chosen]

    def _column(self, name: str) -> pl.Series:
        column = column_of(self._frame, self._rest, name)
        return column if self._numbers is None else column.gather(self._numbers)

    def _flags(self, name: str | None) -> Flags | None:
        """Return a column of bools with false for null; None: all false."""
        if name is None:
            return None
        column = self._column(name).fill_null(value=False)
        return column.to_numpy() if column.any() else None

    def _versions(self) -> Words:
        """Return numbers that sort like the versions, null first."""
        if self._ranks is None:
            self._ranks = self._ranked_versions()
        return self._ranks

    def _ranked_versions(self) -> Words:
        rules = self._layout.rules
        assert rules.version_column is not None
        column, kind = self._column(rules.version_column).rechunk(), rules.version_type
        if column.null_count() == 0 and kind in _WHOLE:
            return whole_words(column)
        if column.null_count() == 0 and kind is KeyType.FLOAT:
            return ordered_double_bits(column.to_arrow())
        series = sortable_series(pa.chunked_array([column.to_arrow()]), kind)
        return series.rank("dense").fill_null(0).cast(pl.UInt64).to_numpy()

    def _settled(self, result: Winners) -> Int64s:
        """Return the winners, with the row of the greatest hash in place of tied rows."""
        if len(result.tied):
            self._settle(result)
        return result.row

    def _settle(self, result: Winners) -> None:
        """Replace tied rows by the row with the greatest hash."""
        unlike = self._unlike(result)
        tied, group = result.tied[unlike], result.group[unlike]
        if len(tied) == 0:
            return
        hashes = row_hash(self.table(tied))
        order = np.lexsort((hashes, group))
        last = np.append(group[order][1:] != group[order][:-1], True)
        result.row[group[order[last]]] = tied[order[last]]

    def _unlike(self, result: Winners) -> Flags:
        """Return which of the tied rows are in a group that differs in some column."""
        if self._rest is not None:
            return np.ones(len(result.tied), np.bool_)
        order = np.argsort(result.group, kind="stable")
        group = result.group[order]
        frame = self._frame[self._at(result.tied[order])]
        differs = frame.select(
            pl.any_horizontal(pl.all().ne_missing(pl.all().shift(1))).alias("differs")
        )
        flags = differs.to_series().to_numpy() & np.append(False, group[1:] == group[:-1])
        wanted = np.zeros(int(group[-1]) + 1, np.bool_)
        wanted[group[flags]] = True
        return wanted[result.group]


def join_words(slices: Sequence[RowSlice]) -> list[KeyWords]:
    """Return the words of all rows of slices."""
    parts = [slice_.held.levels for slice_ in slices]
    return _words_of(parts, [slice(slice_.start, slice_.stop) for slice_ in slices])


def _words_of(
    parts: Sequence[Sequence[KeyWords]], rows: Sequence[slice | Int64s]
) -> list[KeyWords]:
    """Return the words of some rows of each part."""
    return [_word_of(level, rows) for level in zip(*parts, strict=True)]


def _word_of(parts: Sequence[KeyWords], rows: Sequence[slice | Int64s]) -> KeyWords:
    """Return one word of some rows of each part."""
    first = parts[0]
    if isinstance(first, int) and all(isinstance(word, int) and word == first for word in parts):
        return first
    return np.concatenate(
        [_rows_of(word, chosen) for word, chosen in zip(parts, rows, strict=True)]
    )


def _rows_of(word: KeyWords, rows: slice | Int64s) -> Words:
    """Return one word of some rows."""
    if not isinstance(word, int):
        return word[rows]
    count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
    return np.full(count, word, np.uint64)


# ----------------------------------------------------------------------------------------- One step


@dataclass(frozen=True, slots=True)
class MergedStep:
    """The result of a step."""

    counts: RowCounts
    dropped: DroppedRows | None = None
    table: pa.Table | None = None
    """The rows that stay, by key; None: there are none."""


def merge_step(
    layout: RowLayout, slices: Sequence[RowSlice], now_s: float, drop: DropRule
) -> MergedStep:
    """Merge a step.

    Args:
        layout: Layout of the table.
        slices: All rows of some keys.
        now_s: The job's `now`.
        drop: Which dead rows may be dropped, and which deleted rows stay.

    Raises:
        InputError: Too many rows of a few keys do not supersede each other.
    """
    rows_in = sum(slice_.rows for slice_ in slices)
    step = Step.joined(layout, _fit_step(layout, slices, rows_in, drop))
    return _settled_step(step, rows_in, now_s, drop)


def _settled_step(step: Step, rows_in: int, now_s: float, drop: DropRule) -> MergedStep:
    """Return the result of a step that had `rows_in` rows at first."""
    chosen, dropped = step.winners(), None
    tombstones = expired = 0
    if drop.settled is not None:
        chosen, tombstones, expired, dropped = step.without_dead(chosen, now_s, drop)
    chosen = step.with_deleted(chosen, drop)
    counts = RowCounts(
        rows_in=rows_in,
        rows_out=len(chosen),
        superseded=rows_in - len(chosen) - tombstones - expired,
        tombstones_dropped=tombstones,
        expired_dropped=expired,
    )
    return MergedStep(counts, dropped, step.table(chosen) if len(chosen) else None)


def _fit_step(
    layout: RowLayout, slices: Sequence[RowSlice], rows: int, drop: DropRule
) -> Sequence[RowSlice]:
    """Return rows that a step can number; more rows are merged in portions first."""
    while rows > ROWS_MAX:  # Many rows of one key, or of a few keys.
        slices = [_merge_portion(layout, part, drop) for part in portions(slices, ROWS_MAX // 2)]
        fewer = sum(slice_.rows for slice_ in slices)
        if fewer > rows * 3 // 4:
            raise InputError(f"{rows} rows lie between two keys, and do not supersede each other")
        rows = fewer
    return slices


def _merge_portion(layout: RowLayout, slices: Sequence[RowSlice], drop: DropRule) -> RowSlice:
    """Return the rows of a portion that may stay, in the form for further merging."""
    step = Step.joined(layout, slices)
    chosen = step.with_deleted(step.winners(), drop.of_a_part)
    return RowSlice(step.held(chosen), 0, len(chosen))


# ----------------------------------------------------------------------------- All steps of a range


STEP_BYTES = 24 * 1024**2
STEP_ROWS_MIN, STEP_ROWS_MAX = 1 << 10, 1 << 18
SMALL_STEP_BYTES = 2 * 1024**2
RECHECK_SHARE = 8
FULL_BYTES = 192 * 1024**2
"""Held bytes above which small steps are merged before more is decoded."""
SLACK = 1.3
"""A step may have this many times the wanted rows before it is divided."""


class StatisticsError(Exception):
    """A row group has keys outside of its file's statistics; `input` is its number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"statistics of input {number} are wrong")
        self.input = number


SAMPLES = 256
"""Rows per step whose words decide where steps of a merge in memory end."""


class RowGroupReader(Protocol):
    """Decodes the row groups of one input."""

    def read(self, group: RowGroup) -> DecodedRows:
        """Return the rows of a row group."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeContext:
    """The context of a merge: the rules for dropping, and progress reports."""

    now_s: float
    """The job's `now`."""
    drop: DropRule
    """Which dead rows may be dropped, and which deleted rows stay."""
    tally: Tally
    """Counts the outcome of the rows."""
    mark: ProgressMark
    """Reports the progress of the range."""
    step_bytes: int = STEP_BYTES
    """Largest number of decoded bytes that are merged at a time."""
    full_bytes: int = FULL_BYTES
    """Held bytes above which small steps are merged."""
    room: MemoryInUse
    """Shared with the thread that decodes ahead."""
    at_once: bool = False
    """Whether all rows are merged in one step; row groups need not be by key then."""
    deletes: bool = False
    """Whether a transform deletes the rows that it affects."""


class RangeMerge:
    """Merges one range; `tables` yields the rows that stay, by key."""

    def __init__(
        self,
        layout: RowLayout,
        readers: Mapping[int, RowGroupReader],
        work: MergeRange,
        context: MergeContext,
    ) -> None:
        """Create a merge without reading.

        Args:
            layout: Layout of the table.
            readers: Readers of all inputs, by number.
            work: The range.
            context: Context of the job.
        """
        self._layout = layout
        self._readers = readers
        self._now_s, self._drop = context.now_s, context.drop
        self._tally, self._mark = context.tally, context.mark
        self._step_bytes = min(context.step_bytes, STEP_BYTES)
        self._full_bytes = min(context.full_bytes, FULL_BYTES)
        self._at_once, self._deletes = context.at_once, context.deletes
        self._start = None if work.start is None else self._words(work.start)
        self._end = None if work.end is None else self._words(work.end)
        # Row groups with unknown bounds come first, because they may have any key.
        self._waiting = sorted(work.groups, key=lambda group: group.low or b"", reverse=True)
        self._held: list[DecodedRows] = []
        self._room = context.room
        self._row_bytes = 1.0

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows that stay.

        Raises:
            InputError: An input cannot be read.
            StatisticsError: The statistics of an input are wrong.
            UnsupportedRowsError: A key is too long, or only Spark can evaluate an expression.
        """
        for settled in ordered_map("merge", self._calls()):
            self._tally.counts = sum_counts(self._tally.counts, settled.counts)
            self._tally.dropped = join_dropped((self._tally.dropped, settled.dropped))
            if settled.table is not None:
                yield settled.table

    def _calls(self) -> Iterator[Callable[[], MergedStep]]:
        """Yield calls that merge one step each, after decoding the rows that they need."""
        while self._waiting or self._held:
            limit = self._load()
            ready = [
                RowSlice(held, held.done, held.rows if limit is None else self._below(held, limit))
                for held in self._held
            ]
            for step in self._steps([each for each in ready if each.rows]):
                yield partial(merge_step, self._layout, step, self._now_s, self._drop)
            for each in ready:
                each.held.done = each.stop
            self._held = [held for held in self._held if held.done < held.rows]
            self._room.held_bytes = self._held_bytes

    @property
    def _held_bytes(self) -> int:
        return sum(rows.size_bytes for rows in self._held)

    def _words(self, key: bytes) -> list[int]:
        return bound_words(key, self._layout.kinds, self._layout.key_arrows)

    @property
    def _step_rows(self) -> int:
        fitting = int(self._step_bytes / self._row_bytes)
        return min(max(fitting, self._step_rows_min), STEP_ROWS_MAX)

    @property
    def _step_rows_min(self) -> int:
        """Return the rows of a small step: few bytes, even if rows are long."""
        return max(1, min(STEP_ROWS_MIN, int(SMALL_STEP_BYTES / self._row_bytes)))

    def _below(self, held: DecodedRows, limit: Sequence[int]) -> int:
        return max(held.done, rows_before(held.levels, held.rows, limit, after=False))

    def _load(self) -> Sequence[int] | None:
        """Decode row groups until a step can be merged; return the exclusive limit of its keys."""
        held = sum(rows.rows - rows.done for rows in self._held)
        look_at = self._step_rows
        while self._waiting:
            full = self._held_bytes > self._full_bytes
            low = self._waiting[-1].low
            if low and (full or held >= look_at):
                limit = self._words(low)
                ready = sum(self._below(rows, limit) - rows.done for rows in self._held)
                if ready >= (self._step_rows_min if full else self._step_rows):
                    return limit
                # With many files, checking all of them after each one would be expensive.
                look_at = held + held // RECHECK_SHARE
            held += self._hold(self._waiting.pop())
        return None

    def _hold(self, group: RowGroup) -> int:
        """Decode a row group; return how many of its rows are in the range."""
        held = self._readers[group.input].read(group)
        self._check_statistics(group, held)
        begin, end = 0, held.rows
        if self._start is not None:
            begin = rows_before(held.levels, held.rows, self._start, after=True)
        if self._end is not None:
            end = rows_before(held.levels, held.rows, self._end, after=True)
        self._row_bytes = max(self._row_bytes, held.size_bytes / max(1, held.rows))
        if held.affected is not None:
            self._count_affected(int(np.count_nonzero(held.affected[begin:end])))
        held.done, held.rows = begin, end
        self._mark.add(group.size_bytes * (end - begin) // max(1, group.rows), end - begin)
        if begin >= end:
            return 0
        self._held.append(held)
        return end - begin

    def _count_affected(self, rows: int) -> None:
        """Count rows of the range; another range counts the other rows of the row group."""
        more = RowCounts(deleted=rows) if self._deletes else RowCounts(changed=rows)
        self._tally.counts = sum_counts(self._tally.counts, more)

    def _check_statistics(self, group: RowGroup, held: DecodedRows) -> None:
        if held.rows == 0:
            return
        below = group.low is not None and rows_before(
            held.levels, 1, self._words(group.low), after=False
        )
        inside = held.rows
        if group.high is not None:
            inside = rows_before(held.levels, held.rows, self._words(group.high), after=True)
        if below or inside < held.rows:
            raise StatisticsError(group.input)

    def _steps(self, slices: Sequence[RowSlice]) -> Iterator[list[RowSlice]]:
        """Divide rows into steps between keys."""
        total, wanted = sum(slice_.rows for slice_ in slices), self._step_rows
        if total > SLACK * wanted and not self._at_once:
            for cut in step_cuts(slices, wanted, total):
                step = []
                for slice_ in slices:
                    stop = rows_before(slice_.held.levels, slice_.stop, cut, after=True)
                    if stop > slice_.start:
                        step.append(RowSlice(slice_.held, slice_.start, stop))
                        slice_.start = stop
                if step:
                    yield step
            slices = [slice_ for slice_ in slices if slice_.rows]
        if slices:
            yield list(slices)


# ------------------------------------------------------------------------------ Merging in memory


class TooManyRowsError(Exception):
    """A merge in memory would need steps that are too large, or too much memory."""


class MemoryMerge:
    """Merges rows that are all in memory, in any order; `tables` yields those that stay, by key.

    Only words are sorted. Columns are copied once into one chunk, and winners are gathered from
    there, so the number of inputs has no influence.
    """

    def __init__(
        self, layout: RowLayout, parts: Sequence[DecodedRows], context: MergeContext
    ) -> None:
        """Join the columns of the parts, which are released.

        Args:
            layout: Layout of the table, all columns supported by Polars.
            parts: The rows, at least one.
            context: Context of the job.

        Raises:
            TooManyRowsError: Too many rows have the same first word.
        """
        assert not layout.slow, layout.slow
        self._layout, self._context = layout, context
        self._words = [part.levels for part in parts]
        self._starts = np.cumsum([0, *(part.rows for part in parts)])
        rows = int(self._starts[-1])
        row_bytes = max(1.0, sum(part.size_bytes for part in parts) / max(1, rows))
        step_rows = max(STEP_ROWS_MIN, min(STEP_ROWS_MAX, int(context.step_bytes / row_bytes)))
        self._steps = _steps_by_word(parts, rows, step_rows)
        if max((sum(map(len, step)) for step in self._steps), default=0) > ROWS_MAX:
            raise TooManyRowsError(f"{rows} rows have few different keys")
        columns = {
            name: pl.concat([part.frame.get_column(name) for part in parts]) for name in layout.fast
        }
        for part in parts:
            part.frame = part.frame.clear()
        # Two columns at a time, so that only these are there twice.
        joins = [partial(_joined_column, columns, name) for name in layout.fast]
        self._frame = pl.DataFrame(list(ordered_map("join", joins)))

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows that stay, by key."""
        tally = self._context.tally
        calls = (partial(self._merge, step) for step in self._steps)
        for settled in ordered_map("merge", calls):
            tally.counts = sum_counts(tally.counts, settled.counts)
            tally.dropped = join_dropped((tally.dropped, settled.dropped))
            if settled.table is not None:
                yield settled.table

    def _merge(self, step: Sequence[Int64s]) -> MergedStep:
        levels = _words_of(self._words, step)
        starts = self._starts[:-1]
        numbers = np.concatenate([rows + start for rows, start in zip(step, starts, strict=True)])
        merged = Step(self._layout, self._frame, None, levels, numbers)
        return _settled_step(merged, len(numbers), self._context.now_s, self._context.drop)


def _joined_column(columns: dict[str, pl.Series], name: str) -> pl.Series:
    """Take a column out of the others; return it in one chunk."""
    return columns.pop(name).rechunk()


def _steps_by_word(
    parts: Sequence[DecodedRows], rows: int, step_rows: int
) -> list[tuple[Int64s, ...]]:
    """Return the rows of each part in steps, by the first word that differs; none is empty.

    Args:
        parts: The rows.
        rows: Their number.
        step_rows: Wanted rows of a step.
    """
    word = _first_different([part.levels for part in parts])
    words = [(part.levels[word], part.rows) for part in parts]
    ends = _ends_of_steps(words, -(-rows // step_rows), max(1, step_rows // SAMPLES))
    calls = [partial(_rows_of_steps, level, count, ends) for level, count in words]
    steps = zip(*ordered_map("steps", calls), strict=True)
    return [step for step in steps if any(map(len, step))]


def _first_different(parts: Sequence[Sequence[KeyWords]]) -> int:
    """Return the number of the first word in which rows differ; 0: they do not differ."""
    for number, level in enumerate(zip(*parts, strict=True)):
        if any(not isinstance(word, int) or word != level[0] for word in level):
            return number
    return 0


def _ends_of_steps(words: Sequence[tuple[KeyWords, int]], count: int, stride: int) -> Words:
    """Return the last words of all steps but the last one, from a sample of the rows.

    Args:
        words: A word of the rows of each part, and their number.
        count: Wanted number of steps.
        stride: Rows per sampled row.
    """
    samples, before = [np.zeros(0, np.uint64)], 0
    for word, rows in words:
        samples.append(_rows_of(word, slice(0, rows))[-before % stride :: stride])
        before += rows
    sample = np.sort(np.concatenate(samples))
    return np.unique(sample[np.arange(1, count) * len(sample) // count])


def _rows_of_steps(word: KeyWords, rows: int, ends: Words) -> list[Int64s]:
    """Return the numbers of the rows of a part in each step."""
    steps = np.searchsorted(ends, _rows_of(word, slice(0, rows))).astype(
        np.uint16 if len(ends) < 1 << 16 else np.uint32
    )
    order = np.argsort(steps, kind="stable")
    stops = np.cumsum(np.bincount(steps, minlength=len(ends) + 1))[:-1]
    return np.split(order, stops)
