"""Rows on their way through Spark: every value in a type that Spark carries unchanged.

Spark would shift times between zones, refuse nanoseconds and unsigned numbers, and make
all NaN alike. So columns cross it as plain integers and bytes, and are put back behind.

    numbers, dates, times   integers of the same width, bit for bit
    strings, decimals       bytes
    nested values           as they are, where Spark knows what is in them
"""

import pyarrow as pa
from pyarrow import types as is_type

from common.errors import InputError

KEY = "key"
"""Name of the carried encoded key; columns are c0, c1, …"""
_INTEGERS = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}
_SPARK_NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.binary(): "binary",
}
_PLAIN_INSIDE = frozenset(
    {pa.bool_(), *_INTEGERS.values(), pa.float32(), pa.float64(), pa.string(), pa.binary()}
)
_NESTED_NAMES = {
    **_SPARK_NAMES,
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
}


def carried_schema(schema: pa.Schema) -> str:
    """Return the columns that cross Spark, as Spark writes a schema.

    Raises:
        InputError: A column's type cannot cross.
    """
    columns = [f"{KEY} binary"]
    columns += [f"c{at} {_spark_name(field)}" for at, field in enumerate(schema)]
    return ", ".join(columns)


def carried(table: pa.Table, keys: pa.LargeBinaryArray) -> pa.Table:
    """Return a table as it crosses Spark.

    Args:
        table: Rows with normal types.
        keys: The encoded key of each.
    """
    columns = [keys.cast(pa.binary())]
    columns += [_out(column.combine_chunks()) for column in table.columns]
    return pa.table(columns, names=[KEY, *(f"c{at}" for at in range(table.num_columns))])


def restored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return rows that have crossed, in the schema that they had."""
    columns = [_back(batch.column(f"c{at}"), field.type) for at, field in enumerate(schema)]
    return pa.table(columns, schema=schema)


def _spark_name(field: pa.Field) -> str:
    carrier = _carrier(field.type)
    if carrier is not None:
        return _SPARK_NAMES[carrier]
    name = _nested_name(field.type)
    if name is None:
        message = (
            f"column {field.name} of type {field.type} cannot be sorted on disk, "
            f"and the inputs are too large for memory"
        )
        raise InputError(message)
    return name


def _carrier(arrow: pa.DataType) -> pa.DataType | None:
    """Return the type in which a value crosses; None: nested, as it is."""
    if is_type.is_nested(arrow):
        return None
    if is_type.is_boolean(arrow):
        return arrow
    if is_type.is_null(arrow):
        return pa.int8()
    sized = is_type.is_decimal(arrow) or is_type.is_fixed_size_binary(arrow)
    if sized or is_type.is_string(arrow) or is_type.is_binary(arrow):
        return pa.binary()
    return _INTEGERS[arrow.bit_width // 8]


def _out(array: pa.Array) -> pa.Array:
    carrier = _carrier(array.type)
    if carrier is None or carrier == array.type:
        return array
    if is_type.is_null(array.type):
        return pa.nulls(len(array), carrier)
    if is_type.is_decimal(array.type):
        array = array.view(pa.binary(array.type.byte_width))
    if is_type.is_fixed_size_binary(array.type):
        return array.cast(carrier)
    return array.view(carrier)


def _back(array: pa.Array, arrow: pa.DataType) -> pa.Array:
    carrier = _carrier(arrow)
    if carrier is None:
        return array.cast(arrow)
    if is_type.is_null(arrow):
        return pa.nulls(len(array))
    if is_type.is_decimal(arrow):
        return array.cast(pa.binary(arrow.byte_width)).view(arrow)
    if is_type.is_fixed_size_binary(arrow):
        return array.cast(arrow)
    return array if carrier == arrow else array.view(arrow)


def _nested_name(arrow: pa.DataType) -> str | None:
    if is_type.is_list(arrow):
        inner = _nested_name(arrow.value_type)
        return inner and f"array<{inner}>"
    if is_type.is_map(arrow):
        key, item = _nested_name(arrow.key_type), _nested_name(arrow.item_type)
        return f"map<{key}, {item}>" if key and item else None
    if is_type.is_struct(arrow):
        parts = [(field.name, _nested_name(field.type)) for field in arrow]
        if not all(part for _, part in parts):
            return None
        quoted = (f"`{name.replace('`', '``')}`: {part}" for name, part in parts)
        return f"struct<{', '.join(quoted)}>"
    return _NESTED_NAMES[arrow] if arrow in _PLAIN_INSIDE else None
