"""Types as far as expressions tell them apart, and what Spark calls those of columns."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
from pyarrow import types as is_type

from common.rows.type_text import type_from_text, type_to_text


class Kind(StrEnum):
    """A family of types that compare with each other; the value is what messages say."""

    NULL = "null"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOATING = "floating point"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    DAYS = "interval of days or longer"
    TIME = "interval shorter than a day"
    STRUCT = "struct"
    OTHER = "of a type that expressions cannot use"


NUMBERS = (Kind.INTEGER, Kind.DECIMAL, Kind.FLOATING)
"""From the narrowest to the widest, as Spark widens them."""
TIMES = (Kind.DATE, Kind.TIMESTAMP)
INTERVALS = (Kind.DAYS, Kind.TIME)
SCALARS = (Kind.BOOLEAN, *NUMBERS, Kind.STRING, Kind.BINARY, *TIMES)

CAST_KINDS = {
    "BOOLEAN": Kind.BOOLEAN,
    "TINYINT": Kind.INTEGER,
    "SMALLINT": Kind.INTEGER,
    "INT": Kind.INTEGER,
    "BIGINT": Kind.INTEGER,
    "DECIMAL": Kind.DECIMAL,
    "FLOAT": Kind.FLOATING,
    "DOUBLE": Kind.FLOATING,
    "STRING": Kind.STRING,
    "DATE": Kind.DATE,
    "TIMESTAMP": Kind.TIMESTAMP,
}


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a value.

    Attributes:
        kind: Its family.
        fields: Of a struct; empty otherwise.
    """

    kind: Kind
    fields: tuple[tuple[str, "ValueType"], ...] = ()


_KINDS = (
    (is_type.is_null, Kind.NULL),
    (is_type.is_boolean, Kind.BOOLEAN),
    (is_type.is_uint64, Kind.DECIMAL),
    (is_type.is_integer, Kind.INTEGER),
    (is_type.is_float16, Kind.OTHER),
    (is_type.is_floating, Kind.FLOATING),
    (is_type.is_decimal128, Kind.DECIMAL),
    (is_type.is_string, Kind.STRING),
    (is_type.is_binary, Kind.BINARY),
    (is_type.is_fixed_size_binary, Kind.BINARY),
    (is_type.is_date, Kind.DATE),
    (is_type.is_timestamp, Kind.TIMESTAMP),
)
_SPARK_NAMES = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY",
    "date": "DATE",
}


def type_of_column(text: str) -> ValueType:
    """Return the type of a column by its text form."""
    return _value_type(type_from_text(text))


def _value_type(arrow: pa.DataType) -> ValueType:
    if is_type.is_struct(arrow):
        fields = tuple((field.name, _value_type(field.type)) for field in arrow)
        return ValueType(Kind.STRUCT, fields)
    return ValueType(next((kind for belongs, kind in _KINDS if belongs(arrow)), Kind.OTHER))


def spark_type(text: str) -> str | None:
    """Return Spark's name of a column's type, or None if expressions cannot make its values."""
    arrow = type_from_text(text)
    if is_type.is_timestamp(arrow):
        return "TIMESTAMP"
    if is_type.is_decimal128(arrow):
        return f"DECIMAL({arrow.precision},{arrow.scale})"
    return _SPARK_NAMES.get(type_to_text(arrow))


def coarse_unit(text: str) -> str | None:
    """Return the unit that a timestamp column cannot go below, if Spark's is finer."""
    arrow = type_from_text(text)
    units = {"s": "SECOND", "ms": "MILLISECOND"}
    return units.get(arrow.unit) if is_type.is_timestamp(arrow) else None


def common_kind(kinds: Iterable[Kind]) -> Kind | None:
    """Return the kind that all values can take without a change, or None."""
    common = Kind.NULL
    for kind in kinds:
        if common in (Kind.NULL, kind):
            common = kind
        elif kind is Kind.NULL:
            continue
        elif family := next((f for f in (NUMBERS, TIMES) if kind in f and common in f), None):
            common = max(common, kind, key=family.index)
        else:
            return None
    return common if common in (Kind.NULL, *SCALARS) else None
