"""What a footer says of the keys in a row group, and encoded keys as words.

Statistics are of single columns: together they bound the key from both sides, never
exactly. What is missing, or may be wrong for our order (NaN, nulls), bounds nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
from compactor.rewrite.kernel.words import SIGN_BIT, TEXT_WORDS, levels_per_column

_NANOS = {"s": 10**6, "ms": 10**6, "us": 10**3, "ns": 1}
"""Of a tick as Polars holds it: it has no seconds."""
TEXT_BYTES = 16
LONG_ROW_BYTES = 4096
"""A row group of longer rows counts half as much again: its pages are as large as its columns, so
that it is there two and a half times while it is decoded."""
UNKNOWN_KEY_BYTES = 32
"""Of the words of a key of which nothing is known."""
_ALL = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One row group of one input; bounds are encoded keys, None where not known."""

    input: int
    """Number of the input."""
    number: int
    start: int
    """Number of its first row in the file."""
    rows: int
    size_bytes: int
    """Decoded, with the words of its keys."""
    low: bytes | None
    """No key of it is less."""
    high: bytes | None
    """No key of it is greater."""
    skip: int = 0
    """Rows of the stored row group that come before these; more than 0 in later pieces of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What one task merges: keys in `(start, end]` of these row groups."""

    groups: tuple[Group, ...]
    start: bytes | None = None
    end: bytes | None = None


def groups_of(
    at: int, metadata: pq.FileMetaData, schema: pa.Schema, key: Sequence[str], trusted: bool = True
) -> list[Group]:
    """Return the row groups of an input.

    Args:
        at: Number of the input.
        metadata: Its footer.
        schema: Its columns, as Arrow reads them.
        key: The key columns.
        trusted: Whether statistics are looked at.
    """
    leaves = {metadata.schema.column(n).path: n for n in range(metadata.num_columns)}
    places = [leaves.get(name) for name in key] if trusted else []
    row_bytes, more_bytes = _widths(schema)
    found, start = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        low, high = _bounds(group, places, [schema.field(name).type for name in key[: len(places)]])
        if group.num_rows:
            found.append(
                Group(
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
    return found


def _held_bytes(group: pq.RowGroupMetaData, row_bytes: int, more_bytes: int) -> int:
    """Return what a row group takes that is held.

    Args:
        group: The row group.
        row_bytes: What the values of a row that are no texts take.
        more_bytes: What a row takes beside its values.
    """
    # Dictionaries are undone, so values may take more than they are stored in.
    rows: int = group.num_rows
    size_bytes: int = max(group.total_byte_size, row_bytes * rows) + more_bytes * rows
    return size_bytes * 3 // 2 if size_bytes > LONG_ROW_BYTES * rows else size_bytes


def key_bytes(low: bytes | None, high: bytes | None) -> int:
    """Return what the words of a key take, about: of a value a word, of a text one in eight."""
    if low is None or high is None:
        return UNKNOWN_KEY_BYTES
    return max(len(low), len(high)) // 8 * 8


def _widths(schema: pa.Schema) -> tuple[int, int]:
    """Return what values of fixed size take in a decoded row, and the views of its texts."""
    texts = sum(is_text(field.type) for field in schema)
    fixed = sum(getattr(field.type, "byte_width", 0) for field in schema if _is_fixed(field.type))
    return fixed, TEXT_BYTES * texts


def _is_fixed(arrow: pa.DataType) -> bool:
    return bool(is_type.is_primitive(arrow) and not is_type.is_boolean(arrow))


def _bounds(
    group: pq.RowGroupMetaData, places: Sequence[int | None], arrows: Sequence[pa.DataType]
) -> tuple[bytes | None, bytes | None]:
    """Return bounds of the whole key: of as many columns as have them."""
    lows: list[bytes] = []
    highs: list[bytes] = []
    low_known = high_known = True
    for place, arrow in zip(places, arrows, strict=True):
        ends = _ends(group.column(place), arrow) if place is not None else (None, None)
        low_known, high_known = (
            low_known and ends[0] is not None,
            high_known and ends[1] is not None,
        )
        if low_known and ends[0] is not None:
            lows.append(ends[0])
        if high_known and ends[1] is not None:
            highs.append(ends[1])
    low = b"".join(lows) if lows else None
    # A key that goes on after `highs` is greater than they are, so all columns must be known.
    high = b"".join(highs) if highs and high_known else None
    if low is not None and high is not None and low > high:
        return None, None
    return low, high


def _ends(column: pq.ColumnChunkMetaData, arrow: pa.DataType) -> tuple[bytes | None, bytes | None]:
    """Return the encoded least and greatest value of a column; None: not known."""
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
        high = None  # NaN is greater than all, and no statistics tell of it.
    return low, high


def _encoded(stats: Any, arrow: pa.DataType, end: str) -> bytes | None:
    """Return one end of the statistics as an encoded value; None: not to be trusted."""
    raw = getattr(stats, f"{end}_raw")
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
    if is_text(arrow) and isinstance(raw, bytes) and stats.physical_type == "BYTE_ARRAY":
        return encode_value(raw, KeyType.BINARY)
    return None


def is_text(arrow: pa.DataType) -> bool:
    """Return whether values of a type are texts or bytes of any length."""
    large = is_type.is_large_string(arrow) or is_type.is_large_binary(arrow)
    return bool(large or is_type.is_string(arrow) or is_type.is_binary(arrow))


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
        ValueError: It is no key of these types.
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
