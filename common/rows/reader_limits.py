"""Columns that an engine cannot read from Parquet files, or reads wrongly. Pure.

What is here is tried with the engines themselves (`docs/reference/files.md`).
"""

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

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
        why = next((reason for reason in _reasons(type_from_text(column.type), reader)), None)
        if why is not None:
            reasons.append(f"column {column.name} is {column.type}: {why}")
    return [*reasons, *(_case_reasons(columns) if reader == SPARK else ())]


def has_nanoseconds(arrow: pa.DataType) -> bool:
    """Return whether a type holds moments in nanoseconds, at any depth."""
    return any(is_type.is_timestamp(leaf) and leaf.unit == "ns" for leaf in _leaves(arrow))


def rewriting_in_microseconds(
    files: Sequence[str], table_columns: Iterable[Column], ordered: Collection[str]
) -> str:
    """Return how files with moments in nanoseconds are rewritten in microseconds.

    The lines are tried with the engines (`tests/integration/test_read_helpers.py`).

    Args:
        files: Names by which engines open them.
        table_columns: Of the table that would hold them.
        ordered: Columns of its key, and its version column.
    """
    columns = {
        table_column.name: type_from_text(table_column.type) for table_column in table_columns
    }
    fine = [name for name, arrow in columns.items() if has_nanoseconds(arrow)]
    path, count = files[0], f"{len(files)} files" if len(files) > 1 else "1 file"
    lines = _rewritten(path)
    offer = (
        f"to keep microseconds, rewrite {count} with nanoseconds (columns {', '.join(fine)}) before"
        f" the import, as for {path} in Python with pyarrow, which cuts values off: `{lines}`"
    )
    if all(is_type.is_timestamp(columns[name]) for name in fine):
        copied = _copied(path, fine, columns)
        offer += f", or into a new folder with DuckDB, which rounds: `{copied}`"
    if within := sorted(set(fine) & set(ordered)):
        offer += (
            f"; {', '.join(within)} orders rows by key or version: rows that differ only below a "
            "microsecond become equal, so look for such rows first"
        )
    return offer


def _rewritten(path: str) -> str:
    """Return Python's lines that replace a file; until it is whole, its copy is hidden."""
    scheme, _, key = path.rpartition("://")
    hidden = posixpath.join(posixpath.dirname(key), "." + posixpath.basename(key))
    store = f"fs.FileSystem.from_uri('{scheme}://{key.partition('/')[0]}')[0]"
    return (
        f"import pyarrow.parquet as pq; from pyarrow import fs; p, q = {key!r}, {hidden!r}; "
        f"store = {store if scheme else 'fs.LocalFileSystem()'}; "
        "pq.write_table(pq.read_table(p, filesystem=store, partitioning=None), q, "
        "filesystem=store, coerce_timestamps='us', allow_truncated_timestamps=True); "
        "store.move(q, p)"
    )


def _copied(path: str, fine: Iterable[str], columns: Mapping[str, pa.DataType]) -> str:
    """Return DuckDB's statement that copies a file with columns in microseconds."""
    casts = []
    for name in fine:
        quoted = '"' + name.replace('"', '""') + '"'
        kind = "TIMESTAMP" if columns[name].tz is None else "TIMESTAMPTZ"
        casts.append(f"{quoted}::{kind} AS {quoted}")
    source, name = path.replace("'", "''"), posixpath.basename(path).replace("'", "''")
    return (
        f"COPY (SELECT * REPLACE ({', '.join(casts)}) FROM read_parquet('{source}', "
        f"hive_partitioning = false)) TO 'NEW_FOLDER/{name}' (FORMAT parquet)"
    )


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
