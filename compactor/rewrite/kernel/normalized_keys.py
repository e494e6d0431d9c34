"""Keys as normalized words: unsigned 64-bit numbers, column by column, that sort like the keys.

Rows of inputs, encoded keys and statistics of row groups are all converted to such words, so that
they can be compared. `RowGroup` holds the footer's bounds on the keys of a row group, `MergeRange`
the work of one task.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as is_type

from common.errors import RequestError
from common.model.key_values import KeyType
from common.model.keys import (
    decode_key,
    encode_key,
    encode_value,
)
from common.rows.conform import Bytes, Flags, Int64s, Words, ordered_double_bits, text_bytes
from common.rows.key_encoding import encode_column

if TYPE_CHECKING:
    import polars as pl  # Functions load it: tasks without a merge do without it.

TEXT_WORDS = 8
TEXT_BYTES_MAX = 8 * TEXT_WORDS
SIGN_BIT = 1 << 63
KeyWords = Words | int
"""One word of every row, or the single number that all rows share."""

_SIGN = np.uint64(SIGN_BIT)
_KEPT_BYTES = np.array(
    [0, *(((1 << 8 * kept) - 1) << (64 - 8 * kept) for kept in range(1, 9))], np.uint64
)
_DECIMAL_BYTES = 33


class UnsupportedRowsError(Exception):
    """Rows that the kernel does not support; the general way does."""


class LongKeyError(UnsupportedRowsError):
    """A text of a key is longer than the kernel's limit."""


def levels_per_column(kind: KeyType) -> int:
    """Return how many words a key column of a family has."""
    if kind in (KeyType.STRING, KeyType.BINARY):
        return 1 + TEXT_WORDS + 1
    return 5 if kind is KeyType.DECIMAL else 2


def key_levels(columns: "Sequence[pl.Series]", kinds: Sequence[KeyType]) -> list[KeyWords]:
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


def column_levels(column: "pl.Series", kind: KeyType) -> list[KeyWords]:
    """Return the words of one column; see `key_levels`."""
    column = column.rechunk()
    mark: KeyWords = 1
    if column.null_count():
        mark = _constant(column.is_not_null().to_numpy().astype(np.uint64))
    if len(column) == 0:
        return [mark, *[0] * (levels_per_column(kind) - 1)]
    values = [_constant(level) for level in _values(column, kind)]
    if column.null_count():
        # Values under a null are undefined.
        present = column.is_not_null().to_numpy()
        values = [_constant(np.where(present, level, np.uint64(0))) for level in values]
    return [mark, *values]


def _values(column: "pl.Series", kind: KeyType) -> list[KeyWords]:
    match kind:
        case KeyType.STRING | KeyType.BINARY:
            levels = _levels_of_views(column)
            return text_levels(*text_bytes(column.to_arrow())) if levels is None else levels
        case KeyType.FLOAT:
            return [ordered_double_bits(column.to_arrow())]
        case KeyType.DECIMAL:
            return _decimal_levels(column)
        case _:
            return [whole_words(column)]


def whole_words(column: "pl.Series") -> Words:
    """Return bools, integers, dates, times and timestamps as words; nulls are undefined."""
    import polars as pl

    physical = column.to_physical() if column.dtype.is_temporal() else column
    if physical.null_count():
        physical = physical.fill_null(0 if physical.dtype != pl.Boolean else False)
    if physical.dtype == pl.UInt64:
        return physical.to_numpy()
    if physical.dtype == pl.Boolean:
        return physical.to_numpy().astype(np.uint64)
    flipped: Words = physical.cast(pl.Int64).to_numpy().view(np.uint64) ^ _SIGN
    return flipped


def _decimal_levels(column: "pl.Series") -> list[KeyWords]:
    encoded = encode_column(column.to_arrow().fill_null(0), KeyType.DECIMAL)
    run, _ = text_bytes(encoded)
    payload = run.reshape(-1, _DECIMAL_BYTES)[:, 1:]
    words = np.ascontiguousarray(payload).view(">u8").astype(np.uint64)
    return [np.ascontiguousarray(words[:, at]) for at in range(words.shape[1])]


def text_levels(run: Bytes, offsets: Int64s) -> list[KeyWords]:
    """Return texts as words of eight bytes each, and their lengths.

    Args:
        run: The bytes of all texts.
        offsets: Start of each text, and the end of the last.

    Raises:
        LongKeyError: A text is longer than `TEXT_BYTES_MAX`.
    """
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=0))
    if longest > TEXT_BYTES_MAX:
        raise LongKeyError(
            f"a text of {longest} bytes in the key is longer than {TEXT_BYTES_MAX} bytes"
        )
    padded = np.zeros(len(run) + 8, np.uint8)
    padded[: len(run)] = run
    if int(lengths.min(initial=longest)) == longest:
        return _even_levels(padded, len(lengths), longest)
    # A word begins at every byte: a view of overlapping words, read at the starts of texts.
    loads = np.ndarray((len(run) + 1,), ">u8", padded.data, strides=(1,))
    levels: list[KeyWords] = []
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


def _even_levels(padded: Bytes, rows: int, length: int) -> list[KeyWords]:
    """Return texts of equal length as words; they are at equal distances."""
    levels: list[KeyWords] = [0] * TEXT_WORDS
    for at, start in enumerate(range(0, length, 8)):
        there = np.ndarray((rows,), ">u8", padded.data, start, strides=(length,))
        words = there.astype(np.uint64)
        if length - start < 8:
            words &= _KEPT_BYTES[length - start]
        levels[at] = words
    return [*levels, length]


_INLINE_BYTES = 12
"""Longest text that is in its view."""
_VIEW_BYTES, _VIEW_TEXT = 16, 4
"""Size of a view, and where its text begins if that is short."""
_BUFFER_ROWS_MIN = 64
"""Average rows per buffer below which texts are joined first."""


def _levels_of_views(column: "pl.Series") -> list[KeyWords] | None:
    """Return texts of one length as words, from the pages that hold them, without a copy.

    Args:
        column: The texts, in one chunk.

    Returns:
        The words; None: the texts have several lengths or nulls, or are in many buffers.
    """
    import polars as pl

    array = column.to_arrow(compat_level=pl.CompatLevel.newest())
    is_view = is_type.is_string_view(array.type) or is_type.is_binary_view(array.type)
    if not is_view or array.null_count:
        return None
    rows, (_, views, *buffers) = len(array), array.buffers()
    # Length, first bytes, number of the buffer, and position in it.
    lengths, _, numbers, places = (
        np.frombuffer(views, np.uint32).reshape(-1, 4)[array.offset :][:rows].T
    )
    length = int(lengths[0])
    if length > TEXT_BYTES_MAX or not (lengths == length).all():
        return None
    words = [np.empty(rows, np.uint64) for _ in range(0, length, 8)]
    if length <= _INLINE_BYTES:
        first = array.offset * _VIEW_BYTES + _VIEW_TEXT
        _load_words(words, length, views, first, _VIEW_BYTES)
    else:
        ends = [*(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), rows]
        if len(ends) * _BUFFER_ROWS_MIN > max(rows, _BUFFER_ROWS_MIN):
            return None
        for begin, end in itertools.pairwise([0, *ends]):
            part, own = [word[begin:end] for word in words], places[begin:end].astype(np.int64)
            stride = int(own[1] - own[0]) if end - begin > 1 else 1
            even = stride > 0 and bool((own[1:] - own[:-1] == stride).all())
            buffer = buffers[int(numbers[begin])]
            _load_words(part, length, buffer, int(own[0]) if even else own, stride)
    return [*words, *[0] * (TEXT_WORDS - len(words)), length]


def _load_words(
    words: Sequence[Words], length: int, buffer: pa.Buffer, first: int | Int64s, stride: int
) -> None:
    """Store the words of texts of one length.

    Args:
        words: Where to store the first word of each text, the second, and so on.
        length: Length of the texts.
        buffer: Bytes that hold them.
        first: Position of the first text if all are at equal distances; or positions of all.
        stride: That distance.
    """
    for at, word in enumerate(words):
        # A last word ends with its text, because nothing may follow. A short one is in its view.
        missing = max(0, 8 * (at + 1) - length) if length >= 8 else 0
        start = 8 * at - missing
        if isinstance(first, int):
            word[:] = np.ndarray((len(word),), ">u8", buffer, first + start, (stride,))
        else:
            word[:] = np.ndarray((buffer.size - 7,), ">u8", buffer, strides=(1,))[first + start]
        if missing:
            word <<= np.uint64(8 * missing)
        elif length < 8:
            word &= _KEPT_BYTES[length]


def _constant(level: KeyWords) -> KeyWords:
    if isinstance(level, int):
        return level
    first = level[0]
    return int(first) if level[-1] == first and bool((level == first).all()) else level


def is_sorted(levels: Sequence[KeyWords], rows: int, *, strictly: bool = False) -> bool:
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


def repeats(levels: Sequence[KeyWords], rows: int) -> Flags:
    """Return which of some ascending rows have the key of the row before."""
    same = np.ones(rows, np.bool_)
    same[:1] = False
    for level in levels:
        if not isinstance(level, int):
            same[1:] &= level[1:] == level[:-1]
    return same


def take_words(levels: Sequence[KeyWords], places: Int64s) -> list[KeyWords]:
    """Return the words of some rows."""
    return [level if isinstance(level, int) else level[places] for level in levels]


def rows_before(levels: Sequence[KeyWords], rows: int, bound: Sequence[int], *, after: bool) -> int:
    """Return how many of the rows precede a bound.

    Args:
        levels: Words of ascending rows.
        rows: Number of rows.
        bound: Words of a key, or its first words, which precede all such keys.
        after: Whether an equal row counts as well.
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


def words_of_row(levels: Sequence[KeyWords], place: int) -> tuple[int, ...]:
    """Return the words of one row."""
    return tuple(level if isinstance(level, int) else int(level[place]) for level in levels)


def as_column(values: pa.Array) -> "pl.Series":
    """Return Arrow values as a series."""
    import polars as pl

    series = pl.from_arrow(values)
    assert isinstance(series, pl.Series)
    return series


# ---------------------------------------------------------------------- Row groups and their bounds


_NANOS = {"s": 10**6, "ms": 10**6, "us": 10**3, "ns": 1}
"""Nanoseconds per tick as Polars stores it, which has no seconds."""
TEXT_BYTES = 16
LONG_ROW_BYTES = 4096
"""A row group of longer rows counts 1.5 times: its pages are as large as its columns, so it is in
memory two and a half times while it is decoded."""
UNKNOWN_KEY_BYTES = 32
"""Size of the words of an unknown key."""
_ALL = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """One row group of one input; bounds are encoded keys, None if unknown."""

    input: int
    """Number of the input."""
    number: int
    start: int
    """Number of its first row in the file."""
    rows: int
    size_bytes: int
    """Decoded size, with the words of its keys."""
    low: bytes | None
    """A lower bound on its keys."""
    high: bytes | None
    """An upper bound on its keys."""
    skip: int = 0
    """Rows of the stored row group before these; above 0 in later pieces of a row group."""
    affected: bool = False
    """Whether the job's transform may change a row of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRange:
    """The work of one task: keys in `(start, end]` of these row groups."""

    groups: tuple[RowGroup, ...]
    start: bytes | None = None
    end: bytes | None = None


def row_groups_of(
    at: int, metadata: pq.FileMetaData, schema: pa.Schema, key: Sequence[str], trusted: bool = True
) -> list[RowGroup]:
    """Return the row groups of an input.

    Args:
        at: Number of the input.
        metadata: Its footer.
        schema: Its columns, as Arrow reads them.
        key: The key columns.
        trusted: Whether statistics are used.
    """
    stored = metadata.schema
    leaves = {stored.column(n).path: n for n in range(metadata.num_columns)} if trusted else {}
    places = [leaves.get(name) for name in key] if trusted else []
    arrows = [schema.field(name).type for name in key[: len(places)]]
    row_bytes, more_bytes = _widths(schema)
    row_groups, start = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        low, high = _bounds(group, places, arrows)
        if group.num_rows:
            row_groups.append(
                RowGroup(
                    input=at,
                    number=number,
                    start=start,
                    rows=group.num_rows,
                    size_bytes=_held_bytes(group, row_bytes, more_bytes + key_bytes(low, high)),
                    low=low,
                    high=high,
                )
            )
        start += group.num_rows
    return row_groups


def _held_bytes(group: pq.RowGroupMetaData, row_bytes: int, more_bytes: int) -> int:
    """Return the memory of a row group while it is held.

    Args:
        group: The row group.
        row_bytes: Size of the values of a row other than texts.
        more_bytes: Size of a row in addition to its values.
    """
    # Dictionaries are decoded, so values may take more than their stored size.
    rows: int = group.num_rows
    size_bytes: int = max(group.total_byte_size, row_bytes * rows) + more_bytes * rows
    return size_bytes * 3 // 2 if size_bytes > LONG_ROW_BYTES * rows else size_bytes


def key_bytes(low: bytes | None, high: bytes | None) -> int:
    """Return the approximate size of a key's words: one per value, one per eight bytes of text."""
    if low is None or high is None:
        return UNKNOWN_KEY_BYTES
    return max(len(low), len(high)) // 8 * 8


def _widths(schema: pa.Schema) -> tuple[int, int]:
    """Return the size of fixed-width values in a decoded row, and of the views of its texts."""
    fixed = texts = 0
    for arrow in schema.types:
        if is_text(arrow):
            texts += 1
        elif is_type.is_primitive(arrow) and not is_type.is_boolean(arrow):
            fixed += arrow.byte_width
    return fixed, TEXT_BYTES * texts


def _bounds(
    group: pq.RowGroupMetaData, places: Sequence[int | None], arrows: Sequence[pa.DataType]
) -> tuple[bytes | None, bytes | None]:
    """Return bounds of the whole key, from as many columns as have bounds."""
    lows: list[bytes] = []
    highs: list[bytes] = []
    low_known = high_known = True
    for place, arrow in zip(places, arrows, strict=True):
        ends = column_ends(group.column(place), arrow) if place is not None else (None, None)
        low_known, high_known = (
            low_known and ends[0] is not None,
            high_known and ends[1] is not None,
        )
        if low_known and ends[0] is not None:
            lows.append(ends[0])
        if high_known and ends[1] is not None:
            highs.append(ends[1])
    low = b"".join(lows) if lows else None
    # A key that continues after `highs` is greater, so all columns must be known.
    high = b"".join(highs) if highs and high_known else None
    if low is not None and high is not None and low > high:
        return None, None
    return low, high


def column_ends(
    column: pq.ColumnChunkMetaData, arrow: pa.DataType
) -> tuple[bytes | None, bytes | None]:
    """Return the encoded least and greatest value of a column; None: unknown."""
    stats = column.statistics
    if stats is None or not stats.has_min_max or not stats.has_null_count:
        return None, None
    try:
        low, high = (_encoded(stats, arrow, end) for end in ("min", "max"))
    except (RequestError, ValueError, OverflowError, TypeError, NotImplementedError):
        return None, None
    if stats.null_count:
        low = b"\x00"
    if is_type.is_floating(arrow):
        high = None  # NaN is the greatest value, and statistics do not include it.
    return low, high


def _encoded(stats: Any, arrow: pa.DataType, end: str) -> bytes | None:
    """Return one end of the statistics as an encoded value; None: it is unreliable."""
    raw = stats.min_raw if end == "min" else stats.max_raw
    if is_text(arrow):
        is_stored = isinstance(raw, bytes) and stats.physical_type == "BYTE_ARRAY"
        return encode_value(raw, KeyType.BINARY) if is_stored else None
    if is_type.is_timestamp(arrow) and stats.physical_type == "INT64":
        return encode_value(_nanos(stats, raw), KeyType.TIMESTAMP)
    if is_type.is_unsigned_integer(arrow) and isinstance(raw, int):
        return encode_value(
            raw % (1 << (64 if stats.physical_type == "INT64" else 32)), KeyType.INT
        )
    if is_type.is_signed_integer(arrow) and isinstance(raw, int):
        return encode_value(raw, KeyType.INT)
    if is_type.is_date32(arrow):
        return encode_value(raw, KeyType.DATE)
    if is_type.is_boolean(arrow):
        return encode_value(bool(raw), KeyType.BOOL)
    if is_type.is_floating(arrow) and not is_type.is_float16(arrow):
        return None if raw != raw else encode_value(float(raw), KeyType.FLOAT)
    return None


_TEXTS = frozenset(
    arrow.id for arrow in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
)


def is_text(arrow: pa.DataType) -> bool:
    """Return whether values of a type are texts or bytes of any length."""
    return arrow.id in _TEXTS


def _nanos(stats: Any, raw: int) -> int:
    unit = str(stats.logical_type)
    for name, factor in (("milli", 10**6), ("micro", 10**3), ("nano", 1)):
        if name in unit:
            return raw * factor
    raise ValueError(unit)


def bound_words(key: bytes, kinds: Sequence[KeyType], arrows: Sequence[pa.DataType]) -> list[int]:
    """Return an encoded key, or the beginning of one, as words.

    Timestamps are rounded down to the unit of the column.

    Args:
        key: The encoded key.
        kinds: The families of the key columns.
        arrows: Their types in the table.

    Raises:
        ValueError: It is not a key of these types.
    """
    words: list[int] = []
    for value, kind, arrow in zip(decode_key(key, kinds), kinds, arrows, strict=False):
        if value is None:
            words += [0] * levels_per_column(kind)
        else:
            words += [1, *_value_words(value, kind, arrow)]
    return words


def _value_words(value: Any, kind: KeyType, arrow: pa.DataType) -> list[int]:
    match kind:
        case KeyType.STRING | KeyType.BINARY:
            raw = value.encode() if isinstance(value, str) else value
            padded = raw[: 8 * TEXT_WORDS].ljust(8 * TEXT_WORDS, b"\0")
            words = [int.from_bytes(padded[n : n + 8], "big") for n in range(0, len(padded), 8)]
            return [*words, len(raw)]
        case KeyType.DECIMAL:
            payload = encode_key([value], [kind])[1:]
            return [int.from_bytes(payload[n : n + 8], "big") for n in range(0, 32, 8)]
        case KeyType.FLOAT:
            return [int.from_bytes(encode_key([value], [kind])[1:], "big")]
        case KeyType.BOOL:
            return [int(value)]
        case KeyType.TIMESTAMP:
            value //= _NANOS[arrow.unit]
        case _:
            pass  # Times are nanoseconds on both sides.
    if is_type.is_uint64(arrow):
        return [min(max(value, 0), _ALL)]
    return [min(max(value + SIGN_BIT, 0), _ALL)]
