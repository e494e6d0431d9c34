"""Which rows of one step win: rows of any runs in, row numbers by key out.

Key, version, tombstone and row number are packed into one unsigned 64-bit number per
row and these are sorted; the last one of each key wins. Where that is too much for one
number, the first bits of the key and the row number are sorted; neighbours that these do
not tell apart are compared by all words, and the best of each key is its greatest
(version, tombstone, row).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.rows.arrays import Flags, Int64s, Words
from compactor.rewrite.kernel.packing import (
    WORD_BITS,
    Piece,
    bits_of,
    first_of,
    packed_of,
    pieces_of,
)
from compactor.rewrite.kernel.words import Level

ROWS_MAX = 1 << 21
"""More rows than that have no room for group, rank and number in one word."""
_ONE = np.uint64(1)


@dataclass(frozen=True, slots=True)
class Winners:
    """The rows that win, by key.

    `row` holds their numbers. Where several rows of a key are level in version and
    tombstone, `tied` has all of these, and `group` the place in `row` that they are for.
    """

    row: Int64s
    tied: Int64s
    group: Int64s


def winners(levels: Sequence[Level], versions: Words, tombstones: Flags | None) -> Winners:
    """Return the winners of some rows.

    Args:
        levels: The words of their keys.
        versions: Numbers that sort like the versions.
        tombstones: Which of them are tombstones; None: none is.
    """
    rows = len(versions)
    assert 0 < rows <= ROWS_MAX, rows
    row_bits = max(1, (rows - 1).bit_length())
    words = [level for level in levels if not isinstance(level, int)]
    key = [piece for level in words for piece in pieces_of(level)]
    rank = _ranked(versions, tombstones, WORD_BITS - row_bits)
    if bits_of(key) + rank.bits + row_bits <= WORD_BITS:
        packed = packed_of([*key, rank], row_bits, rows)
        packed.sort()
        return _last_of_each(packed, rank.bits, row_bits)
    order, begins = _by_key(words, key, row_bits, rows)
    return _best_of_each(order, begins, rank, row_bits)


def order_of(levels: Sequence[Level], rows: int) -> Int64s:
    """Return the order in which rows ascend by their words; equal ones keep theirs."""
    words = [level for level in levels if not isinstance(level, int)]
    if rows < 2 or not words:
        return np.arange(rows, dtype=np.int64)
    key = [piece for level in words for piece in pieces_of(level)]
    return _by_key(words, key, (rows - 1).bit_length(), rows)[0]


def _by_key(
    words: Sequence[Words], key: Sequence[Piece], row_bits: int, rows: int
) -> tuple[Int64s, Flags]:
    """Return the order of rows by key, and which of them, in it, begin another key."""
    first = first_of(key, WORD_BITS - row_bits)
    packed = packed_of(first, row_bits, rows)
    packed.sort()
    order = (packed & np.uint64((1 << row_bits) - 1)).view(np.int64)
    packed >>= np.uint64(row_bits)
    begins = np.ones(rows, np.bool_)
    np.not_equal(packed[1:], packed[:-1], out=begins[1:])
    if bits_of(first) < bits_of(key):
        # Words before the one that is cut are in `first` as a whole.
        cut = next(at for at, level in enumerate(words) if level is first[-1].words)
        order = _told_apart(words, words[cut:], order, begins)
    return order, begins


def _last_of_each(packed: Words, rank_bits: int, row_bits: int) -> Winners:
    """Return the last row of each key out of sorted (key, rank, row)."""
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


def _best_of_each(order: Int64s, begins: Flags, rank: Piece, row_bits: int) -> Winners:
    """Return the row of the greatest rank of each key; rows are by key already."""
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
    """Return winners with the rows that are level with them, where there are such.

    Args:
        row: The winners.
        numbers: All rows, by key.
        same: Which of these have the rank of their key's winner.
        group: The place in `row` that each is for.
    """
    several = np.bincount(group[same], minlength=len(row)) > 1
    tied = np.flatnonzero(same & several[group])
    return Winners(row, numbers[tied], group[tied])


def _ranked(versions: Words, tombstones: Flags | None, bits_max: int) -> Piece:
    """Return (version, tombstone) in as few bits as need be."""
    offset = versions - versions.min() if len(versions) else versions
    bits = int(offset.max(initial=0)).bit_length()
    if bits + 1 > bits_max:
        distinct, offset = np.unique(versions, return_inverse=True)
        offset, bits = offset.astype(np.uint64), (len(distinct) - 1).bit_length()
    if tombstones is None:
        return Piece(offset, bits)
    offset <<= _ONE
    offset |= tombstones
    return Piece(offset, bits + 1)


def _told_apart(
    words: Sequence[Words], unsure: Sequence[Words], order: Int64s, begins: Flags
) -> Int64s:
    """Sort rows anew whose first bits are alike and whose keys are not.

    Args:
        words: Of the keys.
        unsure: Those of which the first bits do not tell everything.
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
