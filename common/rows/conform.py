"""Rows of a file in the columns and types of their table."""

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_type

from common.errors import RequestError
from common.model.key_values import DECIMAL_SCALE, NANOS
from common.rows.schema import require_readable, type_to_text

# ------------------------------------------------------------------------------------------- Arrays
# Arrow arrays as numpy: the values of each family in its widest form.
#
# The functions read buffers without a Python object per value. Values under a null are undefined;
# callers mask them with `validity`.


Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_Number = TypeVar("_Number", bound=np.generic)

BATCH_ROWS = 1 << 16
"""Rows that are processed at once, which bounds the size of temporary arrays."""
TICKS_PER_S = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": NANOS}
"""Ticks per second, by the unit of a timestamp, a time or a duration."""
_SIGN_BIT, _ALL_BITS = np.uint64(1 << 63), np.uint64((1 << 64) - 1)
_NAN_BITS = np.uint64(0x7FF8 << 48)


def null_array(count: int, arrow: pa.DataType) -> pa.Array:
    """Return an array of nulls, also for a struct with fields that must not be null.

    `pa.nulls` puts nulls into such fields as well, which Parquet files cannot hold.
    """
    if not is_type.is_nested(arrow):
        return pa.nulls(count, arrow)
    return pa.array([None], arrow).take(pa.repeat(pa.scalar(0), count))


def batches(column: pa.ChunkedArray | pa.Array) -> Iterator[pa.Array]:
    """Yield a column in arrays of at most `BATCH_ROWS` rows, dictionaries decoded."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    for chunk in chunks:
        for start in range(0, len(chunk), BATCH_ROWS):
            yield storage_values(chunk.slice(start, BATCH_ROWS))


def storage_values(array: pa.Array) -> pa.Array:
    """Return the values of an extension, dictionary or run-end encoded array."""
    if isinstance(array, pa.ExtensionArray):
        return storage_values(array.storage)
    if is_type.is_dictionary(array.type):
        return storage_values(array.dictionary_decode())
    if is_type.is_run_end_encoded(array.type):
        return storage_values(pc.run_end_decode(array))
    return array


def validity(array: pa.Array) -> Flags:
    """Return which values are not null."""
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.bool_)
    return numbers(array.is_valid().cast(pa.uint8()), np.uint8).astype(np.bool_)


def integers(array: pa.Array) -> Words:
    """Return bools, integers, dates (days) and times (ns) as 64-bit two's complement."""
    arrow = array.type
    if is_type.is_date64(arrow):
        return (numbers(array, np.int64) // 86_400_000).view(np.uint64)
    if is_type.is_date32(arrow):
        return numbers(array, np.int32).astype(np.int64).view(np.uint64)
    if is_type.is_time(arrow):
        whole = array.cast(pa.int32() if is_type.is_time32(arrow) else pa.int64()).cast(pa.int64())
        return (numbers(whole, np.int64) * (NANOS // TICKS_PER_S[arrow.unit])).view(np.uint64)
    if is_type.is_uint64(arrow):
        return numbers(array, np.uint64)
    return numbers(array.cast(pa.int64()), np.int64).view(np.uint64)


def double_bits(array: pa.Array) -> Words:
    """Return the bits of floats as doubles, with a single zero and a single NaN."""
    values = numbers(array.cast(pa.float64()), np.float64) + 0.0  # turns -0.0 into 0.0
    bits = values.view(np.uint64)
    return np.where(np.isnan(values), _NAN_BITS, bits)


def ordered_double_bits(array: pa.Array) -> Words:
    """Return the bits of floats in a form that sorts like the values, NaN last."""
    bits = double_bits(array)
    ordered = np.where(bits & _SIGN_BIT, ~bits, bits | _SIGN_BIT)
    return np.where(bits == _NAN_BITS, _ALL_BITS, ordered)


def instants(array: pa.Array) -> tuple[Int64s, Int64s]:
    """Return timestamps or durations as whole seconds and remaining nanoseconds."""
    per_second = TICKS_PER_S[array.type.unit]
    seconds, rest = np.divmod(numbers(array, np.int64), np.int64(per_second))
    return seconds, rest * (NANOS // per_second)


def decimal_words(array: pa.Array) -> Words:
    """Return decimals in units of 10^-38: four words each, lowest word first.

    Raises:
        RequestError: A decimal has more than 38 digits before or after the point.
    """
    try:
        wide = array.cast(pa.decimal256(2 * DECIMAL_SCALE, DECIMAL_SCALE))
    except pa.ArrowInvalid as error:
        message = f"{array.type} has a value with more than 38 digits on one side of the point"
        raise RequestError(message) from error
    start = wide.offset * 4
    words = np.frombuffer(wide.buffers()[1], dtype=np.uint64, count=start + 4 * len(wide))
    return words[start:].reshape(-1, 4)


def text_bytes(array: pa.Array) -> tuple[Bytes, Int64s]:
    """Return strings or binaries as one run of bytes and its n + 1 offsets; nulls are empty."""
    if is_type.is_string_view(array.type):
        array = array.cast(pa.large_string())
    wide = array.cast(pa.large_binary())
    if wide.null_count:
        wide = wide.fill_null(b"")
    offsets = np.frombuffer(wide.buffers()[1], dtype=np.int64)[wide.offset :][: len(wide) + 1]
    if len(offsets) == 0 or wide.buffers()[2] is None:
        return np.zeros(0, np.uint8), np.zeros(len(wide) + 1, np.int64)
    run = np.frombuffer(wide.buffers()[2], dtype=np.uint8)[offsets[0] : offsets[-1]]
    return run, offsets - offsets[0]


def big_endian(words: Words) -> Bytes:
    """Return one row of eight bytes per word, most significant byte first."""
    return words.astype(">u8").view(np.uint8).reshape(-1, 8)


def range_positions(starts: Int64s, lengths: Int64s) -> Int64s:
    """Return, row by row, the positions `starts[i] … starts[i] + lengths[i] - 1`."""
    before = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    return np.repeat(starts - before, lengths) + np.arange(total, dtype=np.int64)


def numbers(array: pa.Array, kind: type[_Number]) -> npt.NDArray[_Number]:
    """Return the values buffer of an array that stores its values as this type."""
    raw = array.buffers()[1]
    if raw is None or len(array) == 0:
        return np.zeros(len(array), dtype=kind)
    return np.frombuffer(raw, dtype=kind, count=array.offset + len(array))[array.offset :]


# ------------------------------------------------------------------------------------------ Conform


def conform(table: pa.Table, schema: pa.Schema, source: str = "table") -> pa.Table:
    """Return the table with exactly the schema's columns, widened; missing columns are null.

    Args:
        table: Rows of a file.
        schema: Schema of the table, with normal types.
        source: The file's path, for messages.

    Raises:
        RequestError: A column does not widen, is unknown, or is missing but not nullable.
    """
    if table.schema.equals(schema):
        return table
    require_readable(source, table.schema, schema)
    if unknown := sorted(set(table.column_names) - set(schema.names)):
        message = f"{source} has the columns {', '.join(unknown)}, which the table does not have"
        raise RequestError(message)
    columns = [_column(table, field, source) for field in schema]
    return pa.table(columns, schema=schema)


def refuse_nulls(table: pa.Table, source: str) -> None:
    """Refuse nulls where the schema of new rows allows none.

    A key may be null if its column may: null is an ordinary key, and the first one. Rows that are
    already in a table are not checked.

    Args:
        table: Unchecked rows with the schema of their table.
        source: The file's path, for messages.

    Raises:
        RequestError: Names the column.
    """
    for field, column in zip(table.schema, table.columns, strict=True):
        if not requires_values(field):
            continue
        for chunk in column.chunks:
            if (null_path := _null_place(chunk, field)) is not None:
                message = f"column {null_path} of {source} holds nulls, but must not be null"
                raise RequestError(message)


def requires_values(field: pa.Field) -> bool:
    """Return whether a column, or a nested field, must not be null."""
    if not field.nullable:
        return True
    if is_type.is_map(field.type):  # Keys of maps are never null.
        return requires_values(field.type.item_field)
    return any(requires_values(inner_field) for inner_field in _inner_fields(field.type))


def _inner_fields(arrow: pa.DataType) -> list[pa.Field]:
    if not is_type.is_nested(arrow) or is_type.is_run_end_encoded(arrow):
        return []
    return [arrow.field(at) for at in range(arrow.num_fields)]


def _null_place(array: pa.Array, field: pa.Field) -> str | None:
    """Return the path of a null that is not allowed, as `column.field`; None: there is none."""
    if not field.nullable and array.null_count:
        return str(field.name)
    for inner, values in _inside(array):
        if requires_values(inner) and (inner_path := _null_place(values, inner)) is not None:
            return f"{field.name}.{inner_path}"
    return None


def _inside(array: pa.Array) -> Iterator[tuple[pa.Field, pa.Array]]:
    """Yield the fields of a nested array with their values, without values under a null."""
    arrow = array.type
    if is_type.is_struct(arrow):
        values = array.filter(array.is_valid())
        yield from ((arrow.field(at), values.field(at)) for at in range(arrow.num_fields))
    elif is_type.is_map(arrow):
        yield arrow.item_field, array.filter(array.is_valid()).items
    elif is_type.is_list(arrow) or is_type.is_large_list(arrow):
        yield arrow.value_field, array.flatten()


def _column(table: pa.Table, field: pa.Field, source: str) -> pa.ChunkedArray:
    at = table.schema.get_field_index(field.name)
    if at < 0:
        if not field.nullable:
            message = f"{source} lacks the column {field.name}, which must not be null"
            raise RequestError(message)
        return pa.chunked_array([null_array(table.num_rows, field.type)])
    return widen(table.column(at), field, source)


def widen(column: pa.ChunkedArray, field: pa.Field, source: str) -> pa.ChunkedArray:
    """Return a column converted to a type that holds all its values.

    Raises:
        RequestError: A value does not fit after all (a distant timestamp in ns).
    """
    if column.type == field.type:
        return column
    try:
        if _holds_view(column.type):
            # Arrow's cast of list views loses elements, so they are converted value by value.
            chunks = [pa.array(chunk.to_pylist(), field.type) for chunk in column.chunks]
            return pa.chunked_array(chunks, field.type)
        plain = [storage_values(chunk).cast(field.type) for chunk in column.chunks]
        return pa.chunked_array(plain, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        message = (
            f"column {field.name} of {source} cannot be converted to {type_to_text(field.type)}, "
            f"the type in the table: {error}"
        )
        raise RequestError(message) from error


def widen_as_logged(table: pa.Table, schema: pa.Schema, source: str) -> pa.Table:
    """Return rows with values of another kind, where the log of their table has widened a column.

    Integers become doubles or decimals, and dates become timestamps without a zone, also in nested
    columns. `conform` refuses these, because no log declares such a change of a native table; it
    does all other conversions.

    Args:
        table: Rows of a file.
        schema: Schema of the table, with normal types.
        source: The file's path, for messages.

    Raises:
        RequestError: A value does not fit.
    """
    for at, name in enumerate(table.column_names):
        column, index = table.column(at), schema.get_field_index(name)
        arrow = column.type if index < 0 else _logged_kind(column.type, schema.field(index).type)
        if arrow != column.type:
            field = table.schema.field(at).with_type(arrow)
            wide = widen(column, field, source)
            if not wide.cast(column.type).equals(column):
                message = f"column {name} of {source} has values that {arrow} does not hold"
                raise RequestError(message)
            table = table.set_column(at, field, wide)
    return table


def _logged_kind(stored: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Return the type of stored values, with those of another kind as they are wanted."""
    if is_type.is_struct(stored) and is_type.is_struct(wanted):
        fields = {field.name: field for field in wanted}
        return pa.struct(
            [
                field.with_type(_logged_kind(field.type, fields[field.name].type))
                if field.name in fields
                else field
                for field in stored
            ]
        )
    if is_type.is_list(stored) and is_type.is_list(wanted):
        element = stored.value_field
        return pa.list_(element.with_type(_logged_kind(element.type, wanted.value_type)))
    if is_type.is_map(stored) and is_type.is_map(wanted):
        key = stored.key_field.with_type(_logged_kind(stored.key_type, wanted.key_type))
        item = stored.item_field.with_type(_logged_kind(stored.item_type, wanted.item_type))
        return pa.map_(key, item)
    is_small = is_type.is_signed_integer(stored) and stored.bit_width <= 32
    is_wider = (
        (is_small and is_type.is_float64(wanted))
        or (is_type.is_signed_integer(stored) and is_type.is_decimal(wanted))
        or (is_type.is_date(stored) and is_type.is_timestamp(wanted) and wanted.tz is None)
    )
    return wanted if is_wider else stored


def _holds_view(arrow: pa.DataType) -> bool:
    if is_type.is_list_view(arrow) or is_type.is_large_list_view(arrow):
        return True
    if not is_type.is_nested(arrow) or is_type.is_run_end_encoded(arrow):
        return False
    return any(_holds_view(arrow.field(at).type) for at in range(arrow.num_fields))


# --------------------------------------------------------------------------- Columns by identifier
# Columns of tables whose files identify them by numbers. A renamed column keeps its number; a new
# one with an old name has another.


FIELD_ID = b"PARQUET:field_id"
"""Metadata of a field: its identifier, as Arrow reads and writes it."""
ONLY_VALUE = b"neve.only_value"
"""Metadata of a field that a file lacks: the text of its value in every row."""


def field_id(field: pa.Field) -> int | None:
    """Return the identifier of a field, or None."""
    text = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


def stored_names(stored: pa.Schema, schema: pa.Schema) -> dict[str, str]:
    """Return the columns of a file that its table has: name in the file → name in the table.

    Args:
        stored: Columns of the file, with identifiers; some may be missing in the file.
        schema: Columns of the table, with identifiers.
    """
    numbered = _by_id(stored)
    pairs = ((numbered.get(field_id(field)), field) for field in schema)
    return {
        own.name: field.name
        for own, field in pairs
        if own is not None and ONLY_VALUE not in own.metadata
    }


def is_stored_alike(stored: pa.Schema, schema: pa.Schema) -> bool:
    """Return whether columns that file and table have differ in top-level names and order only.

    Types may be narrower in the file. Arguments as for `stored_names`.
    """
    numbered = _by_id(stored)
    pairs = ((numbered.get(field_id(field)), field) for field in schema)
    return all(
        own is None or (ONLY_VALUE not in own.metadata and _is_alike(own, field))
        for own, field in pairs
    )


def project(table: pa.Table, stored: pa.Schema, schema: pa.Schema, source: str) -> pa.Table:
    """Return rows of a file with the columns of its table, found by identifiers and widened.

    Args:
        table: Rows with the names of `stored_names`, which are those of the table.
        stored: Columns of the file, with identifiers.
        schema: Columns of the table, with identifiers and normal types.
        source: The file's path, for messages.

    Raises:
        RequestError: A column does not widen, or is missing but not nullable.
    """
    numbered, columns = _by_id(stored), []
    for field in schema:
        own = numbered.get(field_id(field))
        if own is None:
            if not field.nullable:
                message = f"{source} lacks the column {field.name}, which must not be null"
                raise RequestError(message)
            columns.append(pa.chunked_array([null_array(table.num_rows, field.type)]))
        elif ONLY_VALUE in own.metadata:
            value = pa.scalar(own.metadata[ONLY_VALUE].decode()).cast(field.type)
            columns.append(pa.chunked_array([pa.repeat(value, table.num_rows)]))
        elif _is_alike(own, field):
            named = pa.schema([own.with_name(field.name)])
            require_readable(source, named, pa.schema([field]))
            columns.append(widen(table.column(field.name), field, source))
        else:
            chunks = table.column(field.name).chunks
            rebuilt = [_rebuilt(chunk, own, field, source) for chunk in chunks]
            columns.append(pa.chunked_array(rebuilt, field.type))
    return pa.table(columns, schema=schema)


def _by_id(schema: pa.Schema | pa.DataType) -> dict[int | None, pa.Field]:
    """Return the fields of a schema or struct that have identifiers."""
    return {number: field for field in schema if (number := field_id(field)) is not None}


def _is_alike(own: pa.Field, field: pa.Field) -> bool:
    """Return whether two fields have the same fields inside, names and identifiers included."""
    ours, theirs = _inner_fields(own.type), _inner_fields(field.type)
    is_named = is_type.is_struct(field.type)
    return len(ours) == len(theirs) and all(
        field_id(one) == field_id(other)
        and (not is_named or one.name == other.name)
        and _is_alike(one, other)
        for one, other in zip(ours, theirs, strict=True)
    )


def _rebuilt(array: pa.Array, own: pa.Field, field: pa.Field, source: str) -> pa.Array:
    """Return nested values with the fields of the table, found by identifiers."""
    arrow = field.type
    if not is_type.is_nested(arrow):
        require_readable(source, pa.schema([own.with_name(field.name)]), pa.schema([field]))
        return widen(pa.chunked_array([array]), field, source).combine_chunks()
    array = pa.concat_arrays([array])  # A slice would have offsets of its own.
    mask = array.is_null() if array.null_count else None
    if is_type.is_struct(arrow):
        numbered = _by_id(own.type)
        children = []
        for inner in arrow:
            child = numbered.get(field_id(inner))
            if child is None:
                children.append(null_array(len(array), inner.type))
            else:
                at = own.type.get_field_index(child.name)
                children.append(_rebuilt(array.field(at), child, inner, source))
        return pa.StructArray.from_arrays(children, fields=list(arrow), mask=mask)
    if is_type.is_map(arrow):
        keys = _rebuilt(array.keys, own.type.key_field, arrow.key_field, source)
        items = _rebuilt(array.items, own.type.item_field, arrow.item_field, source)
        return pa.MapArray.from_arrays(array.offsets, keys, items, arrow, mask=mask)
    values = _rebuilt(array.values, own.type.value_field, arrow.value_field, source)
    offsets = array.offsets.cast(pa.int32())
    return pa.ListArray.from_arrays(offsets, values, type=arrow, mask=mask)
