"""The value types of expressions, and the results of parsing.

An `Expression` is SQL that is safe to run, with the session settings that it requires.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import pyarrow as pa
from pyarrow import types as is_type

from common.expressions.grammar import CAST_TYPES, Node
from common.rows.schema import type_from_text, type_to_text

# -------------------------------------------------------------------------------------------- Types


class ValueKind(StrEnum):
    """A family of types that can be compared with each other; messages show the value."""

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


NUMBERS = (ValueKind.INTEGER, ValueKind.DECIMAL, ValueKind.FLOATING)
"""In Spark's widening order, narrowest first."""
TIMES = (ValueKind.DATE, ValueKind.TIMESTAMP)
INTERVALS = (ValueKind.DAYS, ValueKind.TIME)
SCALARS = (ValueKind.BOOLEAN, *NUMBERS, ValueKind.STRING, ValueKind.BINARY, *TIMES)

CAST_KINDS = {
    "BOOLEAN": ValueKind.BOOLEAN,
    "TINYINT": ValueKind.INTEGER,
    "SMALLINT": ValueKind.INTEGER,
    "INT": ValueKind.INTEGER,
    "BIGINT": ValueKind.INTEGER,
    "DECIMAL": ValueKind.DECIMAL,
    "FLOAT": ValueKind.FLOATING,
    "DOUBLE": ValueKind.FLOATING,
    "STRING": ValueKind.STRING,
    "DATE": ValueKind.DATE,
    "TIMESTAMP": ValueKind.TIMESTAMP,
}
assert CAST_KINDS.keys() == CAST_TYPES, "every type that can be named has a kind"


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a value.

    Attributes:
        kind: Its family.
        fields: Of a struct; empty otherwise.
    """

    kind: ValueKind
    fields: tuple[tuple[str, "ValueType"], ...] = ()


_KINDS = (
    (is_type.is_null, ValueKind.NULL),
    (is_type.is_boolean, ValueKind.BOOLEAN),
    (is_type.is_uint64, ValueKind.DECIMAL),
    (is_type.is_integer, ValueKind.INTEGER),
    (is_type.is_float16, ValueKind.OTHER),
    (is_type.is_floating, ValueKind.FLOATING),
    (is_type.is_decimal128, ValueKind.DECIMAL),
    (is_type.is_string, ValueKind.STRING),
    (is_type.is_binary, ValueKind.BINARY),
    (is_type.is_fixed_size_binary, ValueKind.BINARY),
    (is_type.is_date, ValueKind.DATE),
    (is_type.is_timestamp, ValueKind.TIMESTAMP),
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
    """Return the type of a column from its text form."""
    return _value_type(type_from_text(text))


def _value_type(arrow: pa.DataType) -> ValueType:
    if is_type.is_struct(arrow):
        fields = tuple((field.name, _value_type(field.type)) for field in arrow)
        return ValueType(ValueKind.STRUCT, fields)
    return ValueType(next((kind for belongs, kind in _KINDS if belongs(arrow)), ValueKind.OTHER))


def spark_type(text: str) -> str | None:
    """Return Spark's name of a column's type, or None if expressions cannot produce its values."""
    arrow = type_from_text(text)
    if is_type.is_timestamp(arrow):
        return "TIMESTAMP"
    if is_type.is_decimal128(arrow):
        return f"DECIMAL({arrow.precision},{arrow.scale})"
    return _SPARK_NAMES.get(type_to_text(arrow))


def coarse_unit(text: str) -> str | None:
    """Return the finest unit of a timestamp column, if Spark's is finer."""
    arrow = type_from_text(text)
    units = {"s": "SECOND", "ms": "MILLISECOND"}
    return units.get(arrow.unit) if is_type.is_timestamp(arrow) else None


def common_kind(kinds: Iterable[ValueKind]) -> ValueKind | None:
    """Return the kind that all values convert to without a change, or None."""
    common = ValueKind.NULL
    for kind in kinds:
        if common in (ValueKind.NULL, kind):
            common = kind
        elif kind is ValueKind.NULL:
            continue
        elif family := next((f for f in (NUMBERS, TIMES) if kind in f and common in f), None):
            common = max(common, kind, key=family.index)
        else:
            return None
    return common if common in (ValueKind.NULL, *SCALARS) else None


# ----------------------------------------------------------------------------- What parsing returns


NOW_PLACEHOLDER = ":now"
"""Placeholder in the SQL for the fixed moment of an attempt."""

# The SQL is generated, so only these three forms can contain the placeholder's letters.
_NOW_OR_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|`(?:[^`]|``)*`|:now\b")

SPARK_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "spark.sql.ansi.enabled": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
        "spark.sql.parser.escapedStringLiterals": "false",
        "spark.sql.parser.quotedRegexColumnNames": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.timestampType": "TIMESTAMP_LTZ",
        "spark.sql.variable.substitute": "false",
    }
)
"""Session settings for the documented behaviour of expressions.

ANSI: an overflow, a division by zero and an invalid cast fail the job instead of returning
null.
"""


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression over the columns of one table.

    Attributes:
        sql: Spark SQL, generated from the checked tree; a predicate's is never null.
        columns: The top-level columns it reads, sorted by name.
        text: The user's text, for messages; never run.
        node: The checked tree.
    """

    sql: str
    columns: tuple[str, ...]
    text: str
    node: Node = field(repr=False, compare=False)

    def at(self, now_us: int) -> str:
        """Return the SQL with a fixed value of `now()`.

        Args:
            now_us: Microseconds since the epoch; one value for all tasks of an attempt.
        """
        fixed = f"timestamp_micros({int(now_us)})"
        return _NOW_OR_QUOTED.sub(
            lambda match: fixed if match.group() == NOW_PLACEHOLDER else match.group(), self.sql
        )


@dataclass(frozen=True, slots=True)
class ColumnAssignment:
    """A column and its new value; the SQL has the column's type, or fails."""

    column: str
    expression: Expression
