"""Columns that an engine cannot read from Parquet files, or reads wrongly. Pure.

What is here is tried with the engines themselves (`docs/reference/files.md`).
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyarrow import types as is_type

from common.model.table import Column
from common.rows.types import type_from_text

SPARK, DUCKDB, POLARS, PYARROW, PANDAS = READERS = (
    "spark",
    "duckdb",
    "polars",
    "pyarrow",
    "pandas",
)
"""Names that the setting `readers` of a table may have."""
DIGITS_MAX = 38


def unreadable_columns(columns: Iterable[Column], reader: str) -> list[str]:
    """Return why a reader cannot read a table with these columns, a reason per column.

    Args:
        columns: Of the table.
        reader: One of `READERS`.
    """
    columns = list(columns)
    reasons = []
    for column in columns:
        why = next((each for each in _reasons(type_from_text(column.type), reader)), None)
        if why is not None:
            reasons.append(f"column {column.name} is {column.type}: {why}")
    return [*reasons, *(_case_reasons(columns) if reader == SPARK else ())]


def _case_reasons(columns: Iterable[Column]) -> Iterator[str]:
    first: dict[str, str] = {}
    for column in columns:
        known = first.setdefault(column.name.lower(), column.name)
        if known != column.name:
            yield f"columns {known} and {column.name} differ in case only; rename one"


def _reasons(arrow: pa.DataType, reader: str) -> Iterator[str]:
    for leaf in _leaves(arrow):
        if is_type.is_decimal(leaf) and leaf.precision > DIGITS_MAX:
            if reader in (SPARK, POLARS, DUCKDB):
                yield f"decimals of more than {DIGITS_MAX} digits are refused or rounded"
        elif reader != SPARK:
            continue
        elif is_type.is_timestamp(leaf) and leaf.unit == "ns":
            yield "write moments in microseconds"
        elif is_type.is_time(leaf):
            yield "times of day are refused; write whole numbers"
        elif is_type.is_float16(leaf):
            yield "floats of half precision are refused; write float"


def _leaves(arrow: pa.DataType) -> Iterator[pa.DataType]:
    if not arrow.num_fields:
        yield arrow
    for number in range(arrow.num_fields):
        yield from _leaves(arrow.field(number).type)
