"""Key columns of a table as encoded keys, without a Python object per row.

Each row gets the same bytes as from `common.model.keys.encode_key`, which documents the format.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from pyarrow import types as is_type

from common.errors import RequestError
from common.model.key_values import KeyType, key_type_of
from common.rows.conform import (
    BATCH_ROWS,
    Bytes,
    Flags,
    Int64s,
    big_endian,
    decimal_words,
    instants,
    integers,
    ordered_double_bits,
    range_positions,
    storage_values,
    text_bytes,
    validity,
)
from common.rows.schema import type_to_text

_SIGN_BIT = np.uint64(1 << 63)
_Ragged = tuple[Bytes, Int64s]
"""The bytes of all rows, concatenated, and the length of each row."""


def encode_keys(
    table: pa.Table | pa.RecordBatch, columns: Sequence[str], types: Sequence[KeyType]
) -> pa.LargeBinaryArray:
    """Return the encoded key of every row.

    Args:
        table: Rows with the key columns, in any width of their families.
        columns: The key columns, in the order of the key.
        types: Families of the key columns.

    Raises:
        RequestError: A column is missing or of another family.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    for name in columns:
        if name not in table.column_names:
            message = f"table has no column {name}, expected it as part of the key {list(columns)}"
            raise RequestError(message)
    pieces = [
        _encode_batch([batch.column(at) for at in range(len(columns))], types)
        for batch in table.select(list(columns)).to_batches(max_chunksize=BATCH_ROWS)
    ]
    return pa.concat_arrays(pieces) if pieces else pa.array([], pa.large_binary())


def encode_column(column: pa.ChunkedArray | pa.Array, key_type: KeyType) -> pa.LargeBinaryArray:
    """Return every value of a column, encoded as by `encode_value`."""
    return encode_keys(pa.table({"value": column}), ["value"], [key_type])


def _encode_batch(arrays: Sequence[pa.Array], types: Sequence[KeyType]) -> pa.LargeBinaryArray:
    parts = [
        _encode_array(storage_values(array), kind)
        for array, kind in zip(arrays, types, strict=True)
    ]
    run, lengths = parts[0] if len(parts) == 1 else _joined(parts)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(run))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers)


def _joined(parts: Sequence[_Ragged]) -> _Ragged:
    lengths = np.stack([part[1] for part in parts]).sum(axis=0, dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    joined = np.empty(int(lengths.sum()), np.uint8)
    for run, part_lengths in parts:
        joined[range_positions(starts, part_lengths)] = run
        starts = starts + part_lengths
    return joined, lengths


def _encode_array(array: pa.Array, key_type: KeyType) -> _Ragged:
    if is_type.is_null(array.type):
        return np.zeros(len(array), np.uint8), np.ones(len(array), np.int64)
    array_type = key_type_of(type_to_text(array.type))
    if array_type is not key_type:
        message = (
            f"key column is {type_to_text(array.type)}, expected a type of the family {key_type}"
        )
        raise RequestError(message)
    valid = validity(array)
    if key_type in (KeyType.STRING, KeyType.BINARY):
        return _encode_text(array, valid)
    return _with_nulls(_FIXED[key_type](array), valid)


def _with_nulls(rows: Bytes, valid: Flags) -> _Ragged:
    """Shorten the rows of nulls to the single byte 00."""
    width = rows.shape[1]
    if valid.all():
        return rows.reshape(-1), np.full(len(rows), width, np.int64)
    rows[~valid, 0] = 0
    lengths = np.where(valid, width, 1)
    return rows[np.arange(width) < lengths[:, None]], lengths


def _marked(*payload: Bytes) -> Bytes:
    marker = np.ones((len(payload[0]), 1), np.uint8)
    return np.concatenate([marker, *payload], axis=1)


def _bools(array: pa.Array) -> Bytes:
    return _marked(integers(array).astype(np.uint8).reshape(-1, 1))


def _whole_numbers(array: pa.Array) -> Bytes:
    words = integers(array)
    if not is_type.is_uint64(array.type):
        return _marked(big_endian(words ^ _SIGN_BIT))
    large = words >= _SIGN_BIT
    rows = _marked(big_endian(np.where(large, words, words | _SIGN_BIT)))
    rows[large, 0] = 2
    return rows


def _floats(array: pa.Array) -> Bytes:
    return _marked(big_endian(ordered_double_bits(array)))


def _decimals(array: pa.Array) -> Bytes:
    words = decimal_words(array)[:, ::-1].copy()
    words[:, 0] ^= _SIGN_BIT
    return _marked(big_endian(words.reshape(-1)).reshape(-1, 32))


def _timestamps(array: pa.Array) -> Bytes:
    seconds, nanos = instants(array)
    return _marked(
        big_endian(seconds.view(np.uint64) ^ _SIGN_BIT), big_endian(nanos.view(np.uint64))[:, 4:]
    )


_FIXED: dict[KeyType, Callable[[pa.Array], Bytes]] = {
    KeyType.BOOL: _bools,
    KeyType.INT: _whole_numbers,
    KeyType.DATE: _whole_numbers,
    KeyType.TIME: _whole_numbers,
    KeyType.FLOAT: _floats,
    KeyType.DECIMAL: _decimals,
    KeyType.TIMESTAMP: _timestamps,
}


def _encode_text(array: pa.Array, valid: Flags) -> _Ragged:
    run, offsets = text_bytes(array)
    run, sizes = _escaped(run, offsets)
    lengths = np.where(valid, sizes + 3, 1)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    encoded = np.zeros(int(lengths.sum()), np.uint8)
    encoded[starts] = valid
    encoded[ends[valid] - 1] = 1  # The terminator's zero is already in the buffer.
    encoded[range_positions(starts + 1, sizes)] = run
    return encoded, lengths


def _escaped(run: Bytes, offsets: Int64s) -> _Ragged:
    """Replace every 00 by 00 ff."""
    zeros = run == 0
    if not zeros.any():
        return run, np.diff(offsets)
    copies = 1 + zeros.astype(np.int64)
    after = np.cumsum(copies)
    escaped = np.repeat(run, copies)
    escaped[after[zeros] - 1] = 0xFF
    bounds = np.concatenate([np.zeros(1, np.int64), after])[offsets]
    return escaped, np.diff(bounds)
