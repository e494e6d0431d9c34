"""Values as Spark's expressions understand them, and back: the way for those that are read.

Other columns never cross. Spark's own types are fewer: unsigned numbers become wider
ones, moments microseconds (of finer ones the rest is cut off), and of what expressions
cannot look into, only whether it is null.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_type

_MICROS = pa.timestamp("us", "UTC")
_Test = Callable[[pa.DataType], bool]
_SPARK_TYPES: tuple[tuple[_Test, pa.DataType, str], ...] = (
    (is_type.is_null, pa.null(), "void"),
    (is_type.is_boolean, pa.bool_(), "boolean"),
    (is_type.is_int8, pa.int8(), "tinyint"),
    (is_type.is_int16, pa.int16(), "smallint"),
    (is_type.is_int32, pa.int32(), "int"),
    (is_type.is_int64, pa.int64(), "bigint"),
    (is_type.is_uint8, pa.int16(), "smallint"),
    (is_type.is_uint16, pa.int32(), "int"),
    (is_type.is_uint32, pa.int64(), "bigint"),
    (is_type.is_uint64, pa.decimal128(20, 0), "decimal(20,0)"),
    (is_type.is_float32, pa.float32(), "float"),
    (is_type.is_float64, pa.float64(), "double"),
    (is_type.is_string, pa.string(), "string"),
    (is_type.is_binary, pa.binary(), "binary"),
    (is_type.is_fixed_size_binary, pa.binary(), "binary"),
    (is_type.is_date, pa.date32(), "date"),
    (is_type.is_timestamp, _MICROS, "timestamp"),
)


def spark_type(arrow: pa.DataType) -> str:
    """Return Spark's name of the type in which a column is asked about."""
    if is_type.is_struct(arrow):
        fields = (f"{_quoted(field.name)}: {spark_type(field.type)}" for field in arrow)
        return f"struct<{', '.join(fields)}>"
    if is_type.is_decimal128(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    return next((name for belongs, _, name in _SPARK_TYPES if belongs(arrow)), "boolean")


def to_spark(array: pa.Array) -> pa.Array:
    """Return values as Spark is asked about them.

    Raises:
        pa.ArrowInvalid: A moment is too far away to be counted in microseconds.
    """
    arrow = array.type
    if is_type.is_struct(arrow):
        return _struct(array)
    if is_type.is_decimal128(arrow):
        return array
    if is_type.is_timestamp(arrow):
        return _micros(array)
    wanted = next((found for belongs, found, _ in _SPARK_TYPES if belongs(arrow)), None)
    if wanted is None:
        seen = pa.repeat(pa.scalar(value=True), len(array))
        return pc.if_else(array.is_valid(), seen, pa.scalar(None, pa.bool_()))
    return array.cast(wanted)


def from_spark(array: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Return values that Spark worked out for a column.

    Raises:
        pa.ArrowInvalid: A value does not fit into the column's type.
    """
    if not is_type.is_timestamp(arrow):
        return array.cast(arrow)
    # By way of plain numbers: a zone must not shift anything.
    micros = array.cast(pa.int64()).cast(pa.timestamp("us"))
    return micros.cast(pa.timestamp(arrow.unit)).cast(pa.int64()).cast(arrow)


def _struct(array: pa.StructArray) -> pa.Array:
    parts = [to_spark(array.field(at)) for at in range(array.type.num_fields)]
    fields = [
        pa.field(field.name, part.type) for field, part in zip(array.type, parts, strict=True)
    ]
    if not fields:
        return array
    return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())


def _micros(array: pa.Array) -> pa.Array:
    plain = array.cast(pa.int64())
    if array.type.unit == "ns":
        # Down, also before the epoch: a moment is in the microsecond that it is in.
        whole = pc.divide(plain, 1000)
        above = pc.greater(pc.multiply(whole, 1000), plain)
        plain = pc.subtract(whole, above.cast(pa.int64()))
        return plain.cast(_MICROS)
    naive = plain.cast(pa.timestamp(array.type.unit)).cast(pa.timestamp("us"))
    return naive.cast(pa.int64()).cast(_MICROS)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
