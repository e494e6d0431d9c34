"""Columns that an engine cannot read from Parquet files, or reads incorrectly. Pure.

The limits were found by tests with the engines themselves (`docs/reference/files.md`).
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyarrow import types as is_type

from common.model.table import Column
from common.rows.schema import normal_type, type_from_text

SPARK, DUCKDB, POLARS, PYARROW, PANDAS = READERS = (
    "spark",
    "duckdb",
    "polars",
    "pyarrow",
    "pandas",
)
"""Allowed values of the table setting `readers`."""
DIGITS_MAX = 38


def unreadable_columns(columns: Iterable[Column], reader: str) -> list[str]:
    """Return why a reader cannot read a table with these columns, one reason per column.

    Args:
        columns: Columns of the table.
        reader: One of `READERS`.
    """
    columns = list(columns)
    reasons = []
    for column in columns:
        why = next((reason for reason in _reasons(type_from_text(column.type), reader)), None)
        if why is not None:
            reasons.append(f"column {column.name} is {column.type}: {why}")
    return [*reasons, *(_case_reasons(columns) if reader == SPARK else ())]


def has_nanoseconds(arrow: pa.DataType) -> bool:
    """Return whether a type has nanosecond timestamps or times at any depth."""
    return any(is_type.is_timestamp(leaf) and leaf.unit == "ns" for leaf in _leaves(arrow))


def in_microseconds(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose moments in nanoseconds have microseconds, at any depth."""
    return pa.schema([_field_in_microseconds(field) for field in schema])


def _field_in_microseconds(field: pa.Field) -> pa.Field:
    if not has_nanoseconds(field.type):
        return field
    return field.with_type(_type_in_microseconds(normal_type(field.type)))


def _type_in_microseconds(arrow: pa.DataType) -> pa.DataType:
    if is_type.is_timestamp(arrow) and arrow.unit == "ns":
        return pa.timestamp("us", arrow.tz)
    if is_type.is_list(arrow):
        return pa.list_(_field_in_microseconds(arrow.value_field))
    if is_type.is_map(arrow):
        item = _field_in_microseconds(arrow.item_field)
        return pa.map_(_type_in_microseconds(arrow.key_type), item)
    if is_type.is_struct(arrow):
        return pa.struct([_field_in_microseconds(field) for field in arrow])
    return arrow


def _case_reasons(columns: Iterable[Column]) -> Iterator[str]:
    first: dict[str, str] = {}
    for column in columns:
        known = first.setdefault(column.name.lower(), column.name)
        if known != column.name:
            yield f"columns {known} and {column.name} differ only in case; rename one"


def _reasons(arrow: pa.DataType, reader: str) -> Iterator[str]:
    for leaf in _leaves(arrow):
        if is_type.is_decimal(leaf) and leaf.precision > DIGITS_MAX:
            if reader in (SPARK, POLARS, DUCKDB):
                yield f"decimals of more than {DIGITS_MAX} digits are refused or rounded"
        elif reader != SPARK:
            continue
        elif is_type.is_timestamp(leaf) and leaf.unit == "ns":
            yield "write timestamps in microseconds"
        elif is_type.is_time(leaf):
            yield "times of day are refused; write whole numbers"
        elif is_type.is_float16(leaf):
            yield "half-precision floats are refused; write float"


def _leaves(arrow: pa.DataType) -> Iterator[pa.DataType]:
    if is_type.is_dictionary(arrow) or is_type.is_run_end_encoded(arrow):
        yield from _leaves(arrow.value_type)
        return
    if not arrow.num_fields:
        yield arrow
    for number in range(arrow.num_fields):
        yield from _leaves(arrow.field(number).type)
