"""Key columns of a table as encoded keys, without a Python object per row.

Each row gets the same bytes as from `common.model.keys.encode_key`, which documents the format.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_type

from common.errors import RequestError
from common.model.key_values import (
    NANOS,
    KeyType,
    key_type_of,
    plain_value,
    value_from_text,
    value_to_json,
)
from common.model.keys import encode_key
from common.model.table import Table
from common.rows.conform import (
    BATCH_ROWS,
    TICKS_PER_S,
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
    widen,
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


# --------------------------------------------------------------------------------------- Partitions
# Partitions of a table as text, as keys, and as the columns that files may leave out.
#
# A partition is written as in a Hive path, `month=1/day=2`. The end of its tablet is the encoded
# values, so different spellings of the path lead to the same tablet. Values are percent-encoded
# where a path could not hold them, and null is `NULL`, as Hive, Spark and Arrow write them.
#
# A file may omit the partition columns, because its folders give the values. A null in an existing
# partition column also stands for the folder's value, in every part of the file.


NULL = "__HIVE_DEFAULT_PARTITION__"
FOLDER_BYTES_MAX = 255
"""Longest folder name that file systems accept."""
_WHOLE = re.compile(r"[+-]?[0-9]+")

Fill = Mapping[str, pa.Scalar]
"""Values by column for rows of a file that omits them; empty: nothing is filled in."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One combination of values: the end of the tablet, and its text."""

    end: bytes
    text: str

    @property
    def folder(self) -> str:
        """Folder for files of the partition, with a trailing slash; empty: no separate folder.

        Readers that support Hive paths find the columns there, whatever wrote the file.
        """
        return partition_folder(self.text)


def partition_folder(text: str | None) -> str:
    """Return the folders of a partition's text, with a trailing slash.

    Empty for a table without partitions, and for values too long for a folder name. Outputs
    contain their partition columns, so they do not depend on the folder.
    """
    if not text or any(len(part.encode()) > FOLDER_BYTES_MAX for part in text.split("/")):
        return ""
    return f"{text}/"


def partition_types(table: Table) -> tuple[KeyType, ...]:
    """Return the families of the partition columns, in order."""
    return tuple(map(key_type_of, table.partition_types))


def partition_of(table: Table, values: Sequence[object]) -> Partition:
    """Return the partition with these plain values.

    Args:
        table: Table of the partition.
        values: One per partition column.
    """
    types = partition_types(table)
    values = [plain_value(value, kind) for value, kind in zip(values, types, strict=True)]
    texts = [
        NULL if value is None else quote(_text(value_to_json(value, kind)), safe=" ")
        for value, kind in zip(values, types, strict=True)
    ]
    text = "/".join(
        f"{name}={written}" for name, written in zip(table.partition_by, texts, strict=True)
    )
    return Partition(encode_key(values, types), text)


def folders_of(path: str) -> dict[str, str | None]:
    """Return the values in the folders of a path, by column, in path order; null is None.

    Raises:
        RequestError: A column is named twice.
    """
    values: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, written = part.partition("=")
        if not equals or not name:
            continue
        name = unquote(name)
        if name in values:
            raise RequestError(f"file {path} is in two folders of {name}, expected one")
        text = unquote(written)
        values[name] = None if text == NULL else text
    return values


def partition_of_path(table: Table, path: str) -> Partition:
    """Return the partition given by a file's folders.

    Raises:
        RequestError: The folders do not name every partition column.
    """
    folders = folders_of(path)
    values = []
    for name, kind in zip(table.partition_by, partition_types(table), strict=True):
        if name not in folders:
            form = "/".join(f"{column}=…" for column in table.partition_by)
            raise RequestError(
                f"file {path} is in no partition: its folders do not name {name}, "
                f"expected a path such as {form}/file.parquet"
            )
        values.append(value_of_folder(folders[name], kind))
    return partition_of(table, values)


def partition_values(table: Table, text: str) -> dict[str, object]:
    """Return the plain values in a partition's text, by column."""
    folders = folders_of(f"{text}/")
    return {
        name: value_of_folder(folders[name], kind)
        for name, kind in zip(table.partition_by, partition_types(table), strict=True)
    }


def value_of_folder(text: str | None, kind: KeyType) -> object:
    """Return the plain value of a folder's text.

    Raises:
        RequestError: The text is not a value of this family.
    """
    if text is None:
        return None
    if kind is KeyType.INT and not _WHOLE.fullmatch(text):  # `int` accepts more than that.
        raise RequestError(f"key value {text!r} cannot be read as int: expected a whole number")
    return value_from_text(text, kind)


def fill_of_path(partition_by: Sequence[str], schema: pa.Schema, path: str) -> Fill:
    """Return the values of the partition columns given by a file's folders.

    Args:
        partition_by: Partition columns of the table.
        schema: Schema with these columns in normal types, which the values get.
        path: Path of the file, relative to its table's location.

    Raises:
        RequestError: A value does not fit its column.
    """
    if not partition_by or "=" not in path:
        return {}
    texts = folders_of(path)
    fill: dict[str, pa.Scalar] = {}
    for name in partition_by:
        if name in texts:
            arrow = schema.field(name).type
            plain = value_of_folder(texts[name], key_type_of(type_to_text(arrow)))
            fill[name] = _scalar(plain, arrow, path)
    return fill


def filled(rows: pa.Table, fill: Fill) -> pa.Table:
    """Return rows with their missing partition columns added, and nulls in them filled.

    Args:
        rows: Rows of one file, as they were read.
        fill: Values from its folders.

    Raises:
        RequestError: A column of the file does not widen to the table's type.
    """
    for name, value in fill.items():
        at = rows.schema.get_field_index(name)
        if at < 0:
            rows = rows.append_column(name, _constant(value, rows.num_rows))
            continue
        column = rows.column(at)
        if not value.is_valid or not column.null_count:
            continue
        if pa.types.is_null(column.type):
            complete = _constant(value, rows.num_rows)
        else:
            field = pa.field(name, value.type)
            complete = pc.fill_null(widen(column, field, "the file"), value)
        rows = rows.set_column(at, name, complete)
    return rows


def _constant(value: pa.Scalar, rows: int) -> pa.Array:
    return pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, value.type)


def _scalar(plain: object, arrow: pa.DataType, path: str) -> pa.Scalar:
    try:
        if isinstance(plain, int) and (pa.types.is_timestamp(arrow) or pa.types.is_time(arrow)):
            units, rest = divmod(plain * TICKS_PER_S[arrow.unit], NANOS)
            if rest:
                raise RequestError(f"file {path}: its folder has a higher precision than {arrow}")
            return pa.scalar(units, arrow)
        return pa.scalar(plain, arrow)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise RequestError(
            f"file {path}: folder value {plain!r} is not a {arrow}: {error}"
        ) from error


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
