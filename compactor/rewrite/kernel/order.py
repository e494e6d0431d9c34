"""Which rows of one step win: rows of any runs in, row numbers by key out.

Key, version, tombstone and row number are packed into one unsigned 64-bit number per
row and these are sorted; the last one of each key wins. Where a key has more bits than
fit, its first ones are sorted, and rows that these do not tell apart are compared by
all words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.rows.arrays import Flags, Int64s, Words
from compactor.rewrite.kernel.words import Level

WORD_BITS = 64
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


@dataclass(frozen=True, slots=True)
class _Field:
    """Some bits of every row."""

    bits: int
    values: Words


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
    key = [_squeezed(level) for level in levels if not isinstance(level, int)]
    key = [each for each in key if each.bits]
    rank = _ranked(versions, tombstones, WORD_BITS - 2 * row_bits)
    key_bits = sum(each.bits for each in key)
    numbers = np.arange(rows, dtype=np.uint64)
    if key_bits + rank.bits + row_bits <= WORD_BITS:
        packed = _packed([*key, rank], rows)
        packed = (packed << np.uint64(row_bits)) | numbers
        packed.sort()
        return _last_of_each(packed, rank.bits, row_bits)
    order = _order(key, key_bits, row_bits, rows)
    begins = _begins(key, order)
    groups = np.cumsum(begins, dtype=np.uint64) - _ONE
    # Rows are by key already: this finds the best one of each.
    combined = (groups << np.uint64(rank.bits)) | rank.values[order]
    combined = (combined << np.uint64(row_bits)) | order.astype(np.uint64)
    combined.sort()
    return _last_of_each(combined, rank.bits, row_bits)


def _last_of_each(packed: Words, rank_bits: int, row_bits: int) -> Winners:
    """Return the last row of each key out of sorted (key, rank, row)."""
    none = np.zeros(0, np.int64)
    if len(packed) == 0:
        return Winners(none, none, none)
    ranked = packed >> np.uint64(row_bits)
    keys = ranked >> np.uint64(rank_bits)
    last = np.empty(len(packed), np.bool_)
    last[-1] = True
    np.not_equal(keys[1:], keys[:-1], out=last[:-1])
    ends = np.flatnonzero(last)
    mask = np.uint64((1 << row_bits) - 1)
    row = (packed & mask).view(np.int64)
    chosen = row[ends]
    level = np.zeros(len(packed), np.bool_)
    np.equal(ranked[1:], ranked[:-1], out=level[1:])
    if not level[ends].any():
        return Winners(chosen, none, none)
    # From the end of each key backwards, as long as rows are level with the last one.
    group = np.searchsorted(ends, np.arange(len(packed)))
    same = ranked == ranked[ends][group]
    several = np.bincount(group[same], minlength=len(ends)) > 1
    tied = np.flatnonzero(same & several[group])
    return Winners(chosen, row[tied], group[tied])


def _squeezed(level: Words) -> _Field:
    """Return a word without the bits that are the same in all rows, in the same order."""
    varying = int(np.bitwise_or.reduce(level ^ level[0]))
    offset = level - level.min()
    spread_bits = int(offset.max()).bit_length()
    if varying.bit_count() >= spread_bits:
        return _Field(spread_bits, offset)
    squeezed, taken_bits = np.zeros(len(level), np.uint64), 0
    for start, bits in _runs_of_ones(varying):
        piece = (level >> np.uint64(start)) & np.uint64((1 << bits) - 1)
        squeezed |= piece << np.uint64(taken_bits)
        taken_bits += bits
    return _Field(taken_bits, squeezed)


def _runs_of_ones(mask: int) -> list[tuple[int, int]]:
    """Return where runs of ones begin in a number, and how long they are; lowest first."""
    runs, start = [], 0
    while mask >> start:
        if not mask >> start & 1:
            start += 1
            continue
        bits = 1
        while mask >> (start + bits) & 1:
            bits += 1
        runs.append((start, bits))
        start += bits
    return runs


def _ranked(versions: Words, tombstones: Flags | None, bits_max: int) -> _Field:
    """Return (version, tombstone) in as few bits as need be."""
    offset = versions - versions.min() if len(versions) else versions
    bits = int(offset.max(initial=0)).bit_length()
    if bits + 1 > min(bits_max, WORD_BITS // 2):
        distinct, offset = np.unique(versions, return_inverse=True)
        offset, bits = offset.astype(np.uint64), (len(distinct) - 1).bit_length()
    if tombstones is None:
        return _Field(bits, offset)
    return _Field(bits + 1, (offset << _ONE) | tombstones.astype(np.uint64))


def _packed(fields: Sequence[_Field], rows: int) -> Words:
    packed = np.zeros(rows, np.uint64)
    for each in fields:
        packed = (packed << np.uint64(each.bits)) | each.values
    return packed


def _order(key: Sequence[_Field], key_bits: int, row_bits: int, rows: int) -> Int64s:
    """Return row numbers by key, where a key has more bits than one number can hold."""
    room = WORD_BITS - row_bits
    prefix, used, cut = np.zeros(rows, np.uint64), 0, False
    for each in key:
        bits = min(each.bits, room - used)
        if bits:
            values = each.values >> np.uint64(each.bits - bits)
            prefix = (prefix << np.uint64(bits)) | values
        used += bits
        cut = cut or bits < each.bits
    packed = (prefix << np.uint64(row_bits)) | np.arange(rows, dtype=np.uint64)
    packed.sort()
    order = (packed & np.uint64((1 << row_bits) - 1)).view(np.int64)
    if not cut:
        return order
    alike = packed >> np.uint64(row_bits)
    return _refined(key, order, alike)


def _refined(key: Sequence[_Field], order: Int64s, alike: Words) -> Int64s:
    """Sort those rows anew whose first bits are alike and whose keys are not."""
    same_prefix = alike[1:] == alike[:-1]
    differs = np.zeros(len(same_prefix), np.bool_)
    places = np.flatnonzero(same_prefix)
    first, second = order[places], order[places + 1]
    for each in key:
        differs[places] |= each.values[first] != each.values[second]
    if not differs.any():
        return order
    group = np.concatenate([[0], np.cumsum(~same_prefix)])
    wanted = np.zeros(int(group[-1]) + 1, np.bool_)
    wanted[group[1:][differs]] = True
    mixed = np.flatnonzero(wanted[group])
    rows = order[mixed]
    by_key = np.lexsort([*(each.values[rows] for each in reversed(key)), group[mixed]])
    order = order.copy()
    order[mixed] = rows[by_key]
    return order


def _begins(key: Sequence[_Field], order: Int64s) -> Flags:
    """Return where a key differs from the one before."""
    begins = np.zeros(len(order), np.bool_)
    begins[:1] = True
    for each in key:
        values = each.values[order]
        begins[1:] |= values[1:] != values[:-1]
    return begins
