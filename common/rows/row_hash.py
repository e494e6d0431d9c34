"""The canonical hash of a row: one definition, for ties between rows and for verification.

It depends on names and values only. The order of columns, row groups, dictionaries, string types
and the width of numbers do not change it. A column that is null or missing adds nothing.
docs/design/0002-row-encoding.md defines it for third parties. All arithmetic is modulo 2^64:

    mix(x)       x ^= x >> 30; x *= BF58476D1CE4E5B9; x ^= x >> 27;
                 x *= 94D049BB133111EB; x ^= x >> 31          (the finalizer of SplitMix64)
    fold(n, w)   mix(n + sum over j of mix(mix(w[j]) + (j + 1) * 9E3779B97F4A7C15))
    text(b)      fold(number of bytes, the bytes as little-endian words, the last filled with 00)
    value        bool, integer, date, time: fold(1, [two's complement])
                 float: fold(1, [bits of the double, one zero, NaN = 7ff8000000000000])
                 timestamp, duration: fold(2, [seconds, nanoseconds])
                 decimal: fold(4, [the value in units of 10^-38, lowest word first])
                 string, binary: text(bytes)
                 list: fold(count, [value or NULL of each]); a map is a list of structs key, value
                 struct: row of its fields
    row          mix(sum over columns that are not null of mix(value + text(name)))
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_type

from common.rows.arrays import (
    Int64s,
    Words,
    batches,
    decimal_words,
    double_bits,
    instants,
    integers,
    range_positions,
    text_bytes,
    validity,
)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_FIRST, _MIX_SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0x6E756C6C6E756C6C)
_TEXT_STEP_BYTES = 1 << 22


def row_hash(table: pa.Table, schema: pa.Schema | None = None) -> Words:
    """Return the canonical hash of every row.

    Args:
        table: Rows of any width, with or without all columns.
        schema: The table's schema; columns outside of it are ignored. Default: all count.
    """
    names = set(table.column_names if schema is None else schema.names)
    total = np.zeros(table.num_rows, np.uint64)
    for name in table.column_names:
        if name not in names:
            continue
        start = 0
        for array in batches(table.column(name)):
            total[start : start + len(array)] += _named(name, array)
            start += len(array)
    return _mix(total)


def rows_digest(hashes: Words) -> int:
    """Return one number for a multiset of rows, independent of their order."""
    return int(hashes.sum(dtype=np.uint64))


def _named(name: str, array: pa.Array) -> Words:
    """Return a column's contribution to its rows: 0 where it is null."""
    if is_type.is_null(array.type):
        return np.zeros(len(array), np.uint64)
    raw = np.frombuffer(name.encode(), np.uint8)
    salt = _texts(raw, np.array([0, len(raw)], np.int64))
    return np.where(validity(array), _mix(_values(array) + salt), np.uint64(0))


def _values(array: pa.Array) -> Words:
    arrow = array.type
    if is_type.is_floating(arrow):
        return _fold_columns(double_bits(array))
    if is_type.is_timestamp(arrow) or is_type.is_duration(arrow):
        seconds, nanos = instants(array)
        return _fold_columns(seconds.view(np.uint64), nanos.view(np.uint64))
    if is_type.is_decimal(arrow):
        return _fold_columns(*decimal_words(array).T)
    if is_type.is_nested(arrow):
        return _nested(array)
    if is_type.is_integer(arrow) or is_type.is_boolean(arrow) or is_type.is_temporal(arrow):
        return _fold_columns(integers(array))
    return _texts(*text_bytes(array))


def _nested(array: pa.Array) -> Words:
    arrow = array.type
    if is_type.is_struct(arrow):
        total = np.zeros(len(array), np.uint64)
        for at, field in enumerate(arrow):
            total += _whole(field.name, array.field(at))
        return _mix(total)
    if is_type.is_map(arrow):
        entries = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
        return _lists(array.offsets, entries)
    if not is_type.is_list(arrow) and not is_type.is_large_list(arrow):
        return _other_lists(array)
    return _lists(array.offsets, array.values)


def _other_lists(array: pa.Array) -> Words:
    # Not by a cast to list, because Arrow's cast loses the last element of some views.
    counts = pc.fill_null(pc.list_value_length(array).cast(pa.int64()), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(counts)])
    return _lists(offsets, array.flatten())


def _whole(name: str, column: pa.Array) -> Words:
    parts = [_named(name, array) for array in batches(column)]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def _lists(offsets: pa.Array, elements: pa.Array) -> Words:
    bounds = np.asarray(offsets.cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)
    elements = elements.slice(bounds[0], bounds[-1] - bounds[0])
    words = np.full(len(elements), _NULL)
    start = 0
    for array in batches(elements):
        if not is_type.is_null(array.type):
            words[start : start + len(array)] = np.where(validity(array), _values(array), _NULL)
        start += len(array)
    counts = np.diff(bounds)
    return _fold_runs(words, counts, counts)


def _texts(run: "np.typing.NDArray[np.uint8]", offsets: Int64s) -> Words:
    """Hash byte strings, in steps of bounded memory."""
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for start, stop in _steps(offsets):
        low, high = offsets[start], offsets[stop]
        sizes = np.diff(offsets[start : stop + 1])
        counts = (sizes + 7) // 8
        padded = np.zeros(int(counts.sum()) * 8, np.uint8)
        padded[range_positions((np.cumsum(counts) - counts) * 8, sizes)] = run[low:high]
        hashes[start:stop] = _fold_runs(padded.view("<u8"), counts, sizes)
    return hashes


def _steps(offsets: Int64s) -> Iterable[tuple[int, int]]:
    start, rows = 0, len(offsets) - 1
    while start < rows:
        limit = offsets[start] + _TEXT_STEP_BYTES
        stop = max(start + 1, int(np.searchsorted(offsets, limit, side="right")) - 1)
        yield start, stop
        start = stop


def _fold_runs(words: Words, counts: Int64s, sizes: Int64s) -> Words:
    """Fold `counts[i]` consecutive words for each row i."""
    places = range_positions(np.ones(len(counts), np.int64), counts).view(np.uint64)
    sums = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(_mix(_mix(words) + places * _GOLDEN), out=sums[1:])
    ends = np.cumsum(counts)
    return _mix(sizes.view(np.uint64) + sums[ends] - sums[ends - counts])


def _fold_columns(*columns: Words) -> Words:
    """Fold the same number of words for every row."""
    total = np.full(len(columns[0]), np.uint64(len(columns)))
    place = np.uint64(0)
    for words in columns:
        with np.errstate(over="ignore"):
            place = place + _GOLDEN
        total += _mix(_mix(words) + place)
    return _mix(total)


def _mix(words: Words) -> Words:
    mixed = words ^ (words >> np.uint64(30))
    mixed *= _MIX_FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX_SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed
