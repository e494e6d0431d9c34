"""Key columns as words: unsigned 64-bit numbers, column after column, that sort like the keys.

A word that is the same for all rows is kept as one plain number. Per key column:

    null mark            0 for null, else 1
    int, date, time      the value, sign bit flipped (uint64: as it is)
    timestamp            the same, in the unit of the column
    bool, float          0 or 1; the bits that `common.model.keys` encodes
    decimal              the four words of its encoding
    string, binary       eight words of bytes, filled up with zeros, then the length

So words hold the whole key. Longer texts than that have none.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from common.model.key_values import KeyType
from common.rows.arrays import Bytes, Flags, Int64s, Words, ordered_double_bits, text_bytes
from common.rows.key_encoding import encode_column

TEXT_WORDS = 8
TEXT_BYTES_MAX = 8 * TEXT_WORDS
SIGN_BIT = 1 << 63
Level = Words | int
"""One word of every row, or the one number that all rows have."""

_SIGN = np.uint64(SIGN_BIT)
_KEPT_BYTES = np.array(
    [0, *(((1 << 8 * kept) - 1) << (64 - 8 * kept) for kept in range(1, 9))], np.uint64
)
_DECIMAL_BYTES = 33


class LongKeyError(Exception):
    """A text of a key is longer than words can hold; the general way knows it."""


def levels_per_column(kind: KeyType) -> int:
    """Return how many words a key column of a family has."""
    if kind in (KeyType.STRING, KeyType.BINARY):
        return 1 + TEXT_WORDS + 1
    return 5 if kind is KeyType.DECIMAL else 2


def key_levels(columns: Sequence[pl.Series], kinds: Sequence[KeyType]) -> list[Level]:
    """Return the words of the keys of some rows.

    Args:
        columns: The key columns in the types of the table.
        kinds: Their families.

    Raises:
        LongKeyError: A text is too long.
    """
    return [
        level
        for column, kind in zip(columns, kinds, strict=True)
        for level in column_levels(column, kind)
    ]


def column_levels(column: pl.Series, kind: KeyType) -> list[Level]:
    """Return the words of one column; see `key_levels`."""
    column = column.rechunk()
    mark: Level = 1
    if column.null_count():
        mark = _constant(column.is_not_null().to_numpy().astype(np.uint64))
    if len(column) == 0:
        return [mark, *[0] * (levels_per_column(kind) - 1)]
    values = [_constant(level) for level in _values(column, kind)]
    if column.null_count():
        # What stands under a null is left to chance.
        present = column.is_not_null().to_numpy()
        values = [_constant(np.where(present, level, np.uint64(0))) for level in values]
    return [mark, *values]


def _values(column: pl.Series, kind: KeyType) -> list[Level]:
    match kind:
        case KeyType.STRING | KeyType.BINARY:
            return text_levels(*text_bytes(column.to_arrow()))
        case KeyType.FLOAT:
            return [ordered_double_bits(column.to_arrow())]
        case KeyType.DECIMAL:
            return _decimal_levels(column)
        case _:
            return [whole_words(column)]


def whole_words(column: pl.Series) -> Words:
    """Return bools, integers, dates, times and timestamps as words; nulls as anything."""
    physical = column.to_physical() if column.dtype.is_temporal() else column
    if physical.null_count():
        physical = physical.fill_null(0 if physical.dtype != pl.Boolean else False)
    if physical.dtype == pl.UInt64:
        return physical.to_numpy()
    if physical.dtype == pl.Boolean:
        return physical.to_numpy().astype(np.uint64)
    flipped: Words = physical.cast(pl.Int64).to_numpy().view(np.uint64) ^ _SIGN
    return flipped


def _decimal_levels(column: pl.Series) -> list[Level]:
    encoded = encode_column(column.to_arrow().fill_null(0), KeyType.DECIMAL)
    run, _ = text_bytes(encoded)
    payload = run.reshape(-1, _DECIMAL_BYTES)[:, 1:]
    words = np.ascontiguousarray(payload).view(">u8").astype(np.uint64)
    return [np.ascontiguousarray(words[:, at]) for at in range(words.shape[1])]


def text_levels(run: Bytes, offsets: Int64s) -> list[Level]:
    """Return texts as words, eight bytes each, and their lengths.

    Args:
        run: The bytes of all texts.
        offsets: Where each begins, and where the last one ends.

    Raises:
        LongKeyError: One is longer than `TEXT_BYTES_MAX`.
    """
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=0))
    if longest > TEXT_BYTES_MAX:
        raise LongKeyError(f"a text of the key has {longest} bytes")
    padded = np.zeros(len(run) + 8, np.uint8)
    padded[: len(run)] = run
    if int(lengths.min(initial=longest)) == longest:
        return _even_levels(padded, len(lengths), longest)
    # A word begins at every byte: a view of overlapping words, read where texts begin.
    loads = np.ndarray((len(run) + 1,), ">u8", padded.data, strides=(1,))
    levels: list[Level] = []
    for start in range(0, TEXT_BYTES_MAX, 8):
        if start >= longest:
            levels.append(0)
            continue
        words = loads[np.minimum(offsets[:-1] + start, len(run))].astype(np.uint64)
        left = lengths - start
        if int(left.min()) < 8:
            words &= _KEPT_BYTES[np.clip(left, 0, 8)]
        levels.append(words)
    return [*levels, lengths.astype(np.uint64)]


def _even_levels(padded: Bytes, rows: int, length: int) -> list[Level]:
    """Return texts of one length as words: they lie at even distances."""
    levels: list[Level] = [0] * TEXT_WORDS
    for at, start in enumerate(range(0, length, 8)):
        there = np.ndarray((rows,), ">u8", padded.data, start, strides=(length,))
        words = there.astype(np.uint64)
        if length - start < 8:
            words &= _KEPT_BYTES[length - start]
        levels[at] = words
    return [*levels, length]


def _constant(level: Level) -> Level:
    if isinstance(level, int):
        return level
    first = level[0]
    return int(first) if level[-1] == first and bool((level == first).all()) else level


def is_sorted(levels: Sequence[Level], rows: int, *, strictly: bool = False) -> bool:
    """Return whether rows ascend by their words; strictly: without equal neighbours."""
    equal: Flags | None = None
    for level in levels:
        if isinstance(level, int):
            continue
        before, after = level[:-1], level[1:]
        falls = before > after
        if equal is not None:
            falls &= equal
        if falls.any():
            return False
        same = before == after
        equal = same if equal is None else equal & same
        if not equal.any():
            return True
    return rows < 2 or not strictly


def taken(levels: Sequence[Level], places: Int64s) -> list[Level]:
    """Return the words of some rows."""
    return [level if isinstance(level, int) else level[places] for level in levels]


def rank(levels: Sequence[Level], rows: int, bound: Sequence[int], *, after: bool) -> int:
    """Return how many of the rows come before a bound.

    Args:
        levels: Of rows that ascend.
        rows: Their number.
        bound: Words of a key, or the first words of one: that comes before all such keys.
        after: Whether a row that is equal counts, too.
    """
    low, high = 0, rows
    if rows == 0:
        return 0
    for level, word in zip(levels, bound, strict=False):
        if isinstance(level, int):
            if level != word:
                return high if level < word else low
            continue
        if level[high - 1] < word:
            return high
        if level[low] > word:
            return low
        wanted = np.uint64(word)
        low, high = (
            low + int(level[low:high].searchsorted(wanted, "left")),
            low + int(level[low:high].searchsorted(wanted, "right")),
        )
        if low == high:
            return low
    return high if after and len(bound) == len(levels) else low


def at(levels: Sequence[Level], place: int) -> tuple[int, ...]:
    """Return the words of one row."""
    return tuple(level if isinstance(level, int) else int(level[place]) for level in levels)


def as_column(values: pa.Array) -> pl.Series:
    """Return Arrow values as a series."""
    series = pl.from_arrow(values)
    assert isinstance(series, pl.Series)
    return series
