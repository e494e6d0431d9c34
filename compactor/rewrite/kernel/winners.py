"""The winning rows of one step: rows of any runs in, row numbers by key out.

Rows are sorted by key, version and tombstone. The bits of several words that differ between rows
are packed into one number per row, which sorts like the words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from common.rows.arrays import Flags, Int64s, Words
from compactor.rewrite.kernel.normalized_keys import KeyWords

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
        packed = pack_rows([*key, rank], row_bits, rows)
        packed.sort()
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
    packed = pack_rows(first, row_bits, rows)
    packed.sort()
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
    starts = np.flatnonzero(begins)
    ranks = rank.words.take(order)
    best = np.maximum.reduceat((ranks << np.uint64(row_bits)) | order.view(np.uint64), starts)
    row = (best & np.uint64((1 << row_bits) - 1)).view(np.int64)
    lengths = np.diff(starts, append=len(order))
    same = ranks == np.repeat(best >> np.uint64(row_bits), lengths)
    if np.count_nonzero(same) == len(row):
        none = np.zeros(0, np.int64)
        return Winners(row, none, none)
    return _with_tied(row, order, same, np.repeat(np.arange(len(row)), lengths))


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
