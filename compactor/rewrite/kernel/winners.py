"""The winning rows of one step: rows of any runs in, row numbers by key out.

Rows are sorted by key, version and tombstone. The bits of several words that differ between rows
are packed into one number per row, which sorts like the words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from pyarrow import types as is_type

from common.rows.conform import Flags, Int64s, Words
from common.rows.rules import RowRules
from compactor.rewrite.kernel.normalized_keys import (
    KeyWords,
    as_column,
    is_sorted,
    key_levels,
    take_words,
    words_of_row,
)

# -------------------------------------------------------------------------------------- Packed bits


WORD_BITS = 64
BLOCK_ROWS = 1 << 14
"""Rows that are packed at once, few enough for a core's cache."""
GAP_BITS = 1
"""Constant bits that are packed with their neighbours, because skipping them costs more."""


@dataclass(frozen=True, slots=True)
class BitField:
    """Some bits of every row: `bits` bits above `shift`, after subtraction of `low`."""

    words: Words
    bits: int
    shift: int = 0
    low: int = 0


def bits_of(pieces: Sequence[BitField]) -> int:
    """Return the total number of bits of pieces."""
    return sum(piece.bits for piece in pieces)


def bit_fields_of(level: Words) -> list[BitField]:
    """Return a word in pieces, highest first, without bits that all rows share."""
    varying = int(np.bitwise_or.reduce(level)) & ~int(np.bitwise_and.reduce(level))
    low = int(level.min())
    spread_bits = (int(level.max()) - low).bit_length()
    runs = list(_runs_of_ones(varying))
    if sum(bits for _, bits in runs) >= spread_bits:
        return [BitField(level, spread_bits, low=low)] if spread_bits else []
    return [BitField(level, bits, shift=start) for start, bits in reversed(runs)]


def _runs_of_ones(mask: int) -> Iterator[tuple[int, int]]:
    """Yield position and length of runs of ones in a number, lowest first."""
    start = 0
    while mask >> start:
        if not mask >> start & 1:
            start += 1
            continue
        bits = 1
        while mask >> (start + bits) & ((2 << GAP_BITS) - 1):
            bits += 1
        yield start, bits
        start += bits


def leading_bits(pieces: Sequence[BitField], room: int) -> list[BitField]:
    """Return the first bits of pieces that fit into `room`."""
    first: list[BitField] = []
    for piece in pieces:
        if piece.bits > room:
            if room:
                shift = piece.shift + piece.bits - room
                first.append(BitField(piece.words, room, shift, piece.low))
            break
        first.append(piece)
        room -= piece.bits
    return first


def pack_rows(pieces: Sequence[BitField], row_bits: int, rows: int) -> Words:
    """Return the pieces of each row, packed together with its number."""
    packed = np.zeros(rows, np.uint64)
    scratch = np.empty(min(rows, BLOCK_ROWS), np.uint64)
    numbers = np.arange(min(rows, BLOCK_ROWS), dtype=np.uint64)
    for start in range(0, rows, BLOCK_ROWS):
        block = packed[start : start + BLOCK_ROWS]
        some = scratch[: len(block)]
        for piece in pieces:
            words = piece.words[start : start + BLOCK_ROWS]
            if piece.low:
                words = np.subtract(words, np.uint64(piece.low), out=some)
            if piece.shift:
                words = np.right_shift(words, np.uint64(piece.shift), out=some)
            words = np.bitwise_and(words, np.uint64((1 << piece.bits) - 1), out=some)
            block <<= np.uint64(piece.bits)
            block |= words
        block <<= np.uint64(row_bits)
        block |= np.add(numbers[: len(block)], np.uint64(start), out=some)
    return packed


RUNS_MAX = 16
"""Largest number of ascending runs that are merged instead of sorted."""
SMALL_SORT_ROWS = 1 << 10
"""Numbers below which Polars takes longer to accept them than to sort them."""


def sorted_words(words: Words) -> Words:
    """Return numbers in ascending order; they may be sorted in place.

    Rows come as runs, so the numbers are a few ascending runs. NumPy's stable sort merges these.
    Otherwise Polars sorts: NumPy's own sort takes three times as long where the processor is slow
    at compressing vectors into memory, as AMD's Zen 4 is.
    """
    if len(words) < SMALL_SORT_ROWS or np.count_nonzero(words[1:] < words[:-1]) < RUNS_MAX:
        words.sort(kind="stable")
        return words
    return pl.Series(words).sort(multithreaded=False).to_numpy(writable=True)


# ------------------------------------------------------------------------------------------ Winners


ROWS_MAX = 1 << 21
"""Largest number of rows for which group, rank and number fit into one word."""
_ONE = np.uint64(1)


@dataclass(frozen=True, slots=True)
class Winners:
    """The winning rows, by key.

    `row` holds their numbers. If several rows of a key tie in version and tombstone, `tied` has
    all of them, and `group` their index in `row`.
    """

    row: Int64s
    tied: Int64s
    group: Int64s


def winners(levels: Sequence[KeyWords], versions: Words, tombstones: Flags | None) -> Winners:
    """Return the winners of some rows.

    Args:
        levels: The words of their keys.
        versions: Numbers that sort like the versions.
        tombstones: Which of them are tombstones; None: none.
    """
    rows = len(versions)
    assert 0 < rows <= ROWS_MAX, rows
    row_bits = max(1, (rows - 1).bit_length())
    words = [level for level in levels if not isinstance(level, int)]
    key = [piece for level in words for piece in bit_fields_of(level)]
    rank = _ranked(versions, tombstones, WORD_BITS - row_bits)
    if bits_of(key) + rank.bits + row_bits <= WORD_BITS:
        packed = sorted_words(pack_rows([*key, rank], row_bits, rows))
        return _last_of_each(packed, rank.bits, row_bits)
    order, begins = _by_key(words, key, row_bits, rows)
    return _best_of_each(order, begins, rank, row_bits)


def order_of(levels: Sequence[KeyWords], rows: int) -> Int64s:
    """Return the order of rows by their words; equal rows keep their order."""
    words = [level for level in levels if not isinstance(level, int)]
    if rows < 2 or not words:
        return np.arange(rows, dtype=np.int64)
    key = [piece for level in words for piece in bit_fields_of(level)]
    return _by_key(words, key, (rows - 1).bit_length(), rows)[0]


def _by_key(
    words: Sequence[Words], key: Sequence[BitField], row_bits: int, rows: int
) -> tuple[Int64s, Flags]:
    """Return the order of rows by key, and which of them begin a new key."""
    first = leading_bits(key, WORD_BITS - row_bits)
    packed = sorted_words(pack_rows(first, row_bits, rows))
    order = (packed & np.uint64((1 << row_bits) - 1)).view(np.int64)
    packed >>= np.uint64(row_bits)
    begins = np.ones(rows, np.bool_)
    np.not_equal(packed[1:], packed[:-1], out=begins[1:])
    if bits_of(first) < bits_of(key):
        # Words before the cut one are completely in `first`.
        cut = next(at for at, level in enumerate(words) if level is first[-1].words)
        order = _sort_ties(words, words[cut:], order, begins)
    return order, begins


def _last_of_each(packed: Words, rank_bits: int, row_bits: int) -> Winners:
    """Return the last row of each key from sorted (key, rank, row)."""
    keys = packed >> np.uint64(row_bits + rank_bits)
    last = np.ones(len(packed), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=last[:-1])
    ends = np.flatnonzero(last)
    best = packed[ends]
    row = (best & np.uint64((1 << row_bits) - 1)).view(np.int64)
    ranked = best >> np.uint64(row_bits)
    before = packed[ends - 1] >> np.uint64(row_bits)
    if not (ranked[1:] == before[1:]).any() and (ends[0] == 0 or ranked[0] != before[0]):
        none = np.zeros(0, np.int64)
        return Winners(row, none, none)
    group = np.searchsorted(ends, np.arange(len(packed)))
    same = (packed >> np.uint64(row_bits)) == ranked[group]
    numbers = (packed & np.uint64((1 << row_bits) - 1)).view(np.int64)
    return _with_tied(row, numbers, same, group)


def _best_of_each(order: Int64s, begins: Flags, rank: BitField, row_bits: int) -> Winners:
    """Return the row with the greatest rank of each key; rows are already by key."""
    ranks = rank.words.take(order)
    ranked = ranks << np.uint64(row_bits)
    ranked |= order.view(np.uint64)
    best = np.maximum.reduceat(ranked, np.flatnonzero(begins))
    row = (best & np.uint64((1 << row_bits) - 1)).view(np.int64)
    group = np.cumsum(begins, dtype=np.int64)
    group -= 1
    same = ranks == (best >> np.uint64(row_bits)).take(group)
    if np.count_nonzero(same) == len(row):
        none = np.zeros(0, np.int64)
        return Winners(row, none, none)
    return _with_tied(row, order, same, group)


def _with_tied(row: Int64s, numbers: Int64s, same: Flags, group: Int64s) -> Winners:
    """Return winners with the rows that tie with them, if there are any.

    Args:
        row: The winners.
        numbers: All rows, by key.
        same: Which of these have the rank of their key's winner.
        group: The index in `row` of each.
    """
    several = np.bincount(group[same], minlength=len(row)) > 1
    tied = np.flatnonzero(same & several[group])
    return Winners(row, numbers[tied], group[tied])


def _ranked(versions: Words, tombstones: Flags | None, bits_max: int) -> BitField:
    """Return (version, tombstone) in as few bits as possible."""
    offset = versions - versions.min() if len(versions) else versions
    bits = int(offset.max(initial=0)).bit_length()
    if bits + 1 > bits_max:
        distinct, offset = np.unique(versions, return_inverse=True)
        offset, bits = offset.astype(np.uint64), (len(distinct) - 1).bit_length()
    if tombstones is None:
        return BitField(offset, bits)
    offset <<= _ONE
    offset |= tombstones
    return BitField(offset, bits + 1)


def _sort_ties(
    words: Sequence[Words], unsure: Sequence[Words], order: Int64s, begins: Flags
) -> Int64s:
    """Sort rows again whose first bits are equal but whose keys differ.

    Args:
        words: Words of the keys.
        unsure: Words that the first bits do not determine completely.
        order: Rows by their first bits.
        begins: Where first bits differ from those before; afterwards, where keys do.
    """
    differs = np.zeros(len(order) - 1, np.bool_)
    for level in unsure:
        values = level.take(order)
        differs |= values[1:] != values[:-1]
    if not (differs & ~begins[1:]).any():
        begins[1:] |= differs
        return order
    group = np.cumsum(begins) - 1
    wanted = np.zeros(int(group[-1]) + 1, np.bool_)
    wanted[group[1:][differs & ~begins[1:]]] = True
    begins[1:] |= differs
    mixed = np.flatnonzero(wanted[group])
    rows, groups = order[mixed], group[mixed]
    rows = rows[np.lexsort([*(level[rows] for level in reversed(words)), groups])]
    order[mixed] = rows
    changes = groups[1:] != groups[:-1]
    for level in words:
        changes |= level[rows[1:]] != level[rows[:-1]]
    begins[mixed[1:]] = changes
    return order


# ------------------------------------------------------------------------------------- Decoded rows
# Rows of a row group in the kernel: columns, words of their keys, and slices of both.
#
# `RowLayout` defines which columns are held and how. `RowSlice` is a part of a row group that a
# step merges. Slices are cut between keys, or anywhere.


_KNOWN = (
    is_type.is_boolean,
    is_type.is_integer,
    is_type.is_float32,
    is_type.is_float64,
    is_type.is_string,
    is_type.is_binary,
    is_type.is_date32,
    is_type.is_decimal128,
)
_UNITS = ("ms", "us", "ns")


def known_to_polars(arrow: pa.DataType) -> bool:
    """Return whether Polars preserves every value of a type."""
    if is_type.is_timestamp(arrow):
        return arrow.unit in _UNITS
    return any(belongs(arrow) for belongs in _KNOWN)


def polars_types(schema: pa.Schema) -> pl.Schema:
    """Return the types of the columns that Polars supports."""
    fields = [field for field in schema if known_to_polars(field.type)]
    # Arrow loads pandas (0.3 s) for `empty_table`, and not for arrays of nulls.
    empty = [pa.nulls(0, field.type) for field in fields]
    frame = pl.from_arrow(pa.table(empty, schema=pa.schema(fields)))
    assert isinstance(frame, pl.DataFrame)
    return frame.schema


@dataclass(slots=True)
class DecodedRows:
    """The rows of a row group, by key, and how many of them are finished."""

    frame: pl.DataFrame
    """Columns that Polars supports."""
    rest: pa.Table | None
    """The other columns."""
    levels: list[KeyWords]
    rows: int
    size_bytes: int
    done: int = 0
    affected: Flags | None = None
    """Which of them a transform has changed or deleted; None: none."""


class RowLayout:
    """The columns of a table as the kernel holds them."""

    def __init__(self, schema: pa.Schema, rules: RowRules) -> None:
        self.schema = schema
        self.rules = rules
        self.kinds = rules.key_types
        self.key_arrows = [schema.field(name).type for name in rules.key]
        self.fast = [field.name for field in schema if known_to_polars(field.type)]
        self.slow = [field.name for field in schema if not known_to_polars(field.type)]
        self._dtypes = polars_types(schema)

    def dtype(self, name: str) -> pl.DataType:
        """Return the Polars type of a column that Polars supports."""
        return self._dtypes[name]

    def held(
        self,
        frame: pl.DataFrame,
        rest: pa.Table | None,
        *,
        by_key: bool,
        affected: Flags | None = None,
    ) -> DecodedRows:
        """Return rows with the words of their keys, sorted if requested and necessary."""
        columns = [column_of(frame, rest, name) for name in self.rules.key]
        levels, rows = key_levels(columns, self.kinds), len(columns[0])
        size_bytes = int(frame.estimated_size()) + (rest.nbytes if rest is not None else 0)
        size_bytes += sum(0 if isinstance(level, int) else level.nbytes for level in levels)
        held = DecodedRows(frame, rest, levels, rows, size_bytes, affected=affected)
        return _sorted_by_key(held) if by_key else held

    def held_apart(
        self, frame: pl.DataFrame, counts: Sequence[int], affected: Flags | None = None
    ) -> list[DecodedRows]:
        """Return the rows of many small row groups, each by key; see `held`.

        Args:
            frame: The concatenated rows.
            counts: Number of rows of each.
            affected: Which of the rows a transform has changed or deleted; None: none.
        """
        whole, result, at = self.held(frame, None, by_key=False), [], 0
        row_bytes = whole.size_bytes / max(1, whole.rows)
        for rows in counts:
            part = frame.slice(at, rows)
            levels = [
                level if isinstance(level, int) else level[at : at + rows] for level in whole.levels
            ]
            held = DecodedRows(part, None, levels, rows, int(rows * row_bytes))
            held.affected = None if affected is None else affected[at : at + rows]
            result.append(_sorted_by_key(held))
            at += rows
        return result


def _sorted_by_key(held: DecodedRows) -> DecodedRows:
    """Return rows in key order; unchanged if they already are."""
    if is_sorted(held.levels, held.rows):
        return held
    order = order_of(held.levels, held.rows)
    rest = held.rest.take(pa.array(order)) if held.rest is not None else None
    levels = take_words(held.levels, order)
    affected = None if held.affected is None else held.affected[order]
    return DecodedRows(
        held.frame[order], rest, levels, held.rows, held.size_bytes, affected=affected
    )


def column_of(frame: pl.DataFrame, rest: pa.Table | None, name: str) -> pl.Series:
    """Return a column of rows that are held in two parts."""
    if name in frame.columns:
        return frame.get_column(name)
    assert rest is not None
    return as_column(rest.column(name))


# ------------------------------------------------------------------------------------------- Slices


_SAMPLES = 16
"""Keys that are sampled for each step."""
_GOLDEN = 0.6180339887498949


@dataclass(slots=True)
class RowSlice:
    """Some rows of a row group, from `start` to `stop`."""

    held: DecodedRows
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


def portions(slices: Sequence[RowSlice], rows_max: int) -> Iterator[list[RowSlice]]:
    """Cut rows anywhere into portions of bounded size."""
    portion: list[RowSlice] = []
    room = rows_max
    for slice_ in slices:
        start = slice_.start
        while start < slice_.stop:
            stop = min(slice_.stop, start + room)
            portion.append(RowSlice(slice_.held, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                yield portion
                portion, room = [], rows_max
    if portion:
        yield portion


def step_cuts(slices: Sequence[RowSlice], wanted: int, total: int) -> list[tuple[int, ...]]:
    """Return keys that divide rows into steps of about the wanted size.

    Args:
        slices: Slices, each by key.
        wanted: Rows of a step.
        total: Total number of rows.
    """
    samples = sorted(
        words_of_row(slices[number].held.levels, slices[number].start + place)
        for number, place in _spread(slices, max(1, wanted // _SAMPLES), total)
    )
    steps = -(-total // wanted)
    places = (len(samples) * step // steps for step in range(1, steps))
    return list(dict.fromkeys(samples[place] for place in places))


def _spread(slices: Sequence[RowSlice], stride: int, total: int) -> Iterator[tuple[int, int]]:
    """Yield one row per `stride` rows: the number of its slice, and its position there.

    Positions within the strides vary evenly (multiples of the golden ratio). With many small
    slices, the middle of each stride would always be the middle of a slice: a few thousand rows
    about one key, and all others to the left and right of them.
    """
    starts = np.cumsum([0, *(slice_.rows for slice_ in slices)])
    stretches = np.arange(max(1, total // stride))
    rows = np.minimum(((stretches + stretches * _GOLDEN % 1) * stride).astype(np.int64), total - 1)
    numbers = np.searchsorted(starts, rows, "right") - 1
    yield from zip(numbers.tolist(), (rows - starts[numbers]).tolist(), strict=True)
