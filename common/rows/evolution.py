"""How a table's schema changes, and which of its schemas a file has. Pure.

Only what loses nothing is allowed: new columns, which older rows lack and so are null
there, and wider types, to which older values are turned when they are read. Each change
counts the schema's id up, and marks the columns it touched with it. So a file's own
schema is told by the first column that it lacks or has in an older form.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from common.errors import RequestError
from common.model.key_values import key_type_of
from common.model.table import Column, Table
from common.rows.schema import widened
from common.rows.type_text import type_from_text, type_to_text
from common.rows.types import normal_type

COLUMNS_MAX = 10_000


def changed_schema(table: Table, added: Sequence[Column], wider: Sequence[Column]) -> Table:
    """Return a table with new and widened columns; unchanged if it has them all already.

    Args:
        table: As it is.
        added: Columns to add at the end; one that is there in this form is passed by.
        wider: Columns that are there, with their new types.

    Raises:
        RequestError: A name, type or change is not allowed; says which, and what is.
    """
    next_id = table.schema_id + 1
    columns = {column.name: column for column in table.schema}
    for column in added:
        known, wanted = columns.get(column.name), _new(column, next_id)
        if known is None:
            columns[column.name] = wanted
        elif known.type != wanted.type:
            raise RequestError(
                f"table {table.name!r} has a column {column.name!r} of type {known.type} already; "
                f"to make it {wanted.type}, widen it"
            )
    for column in wider:
        columns[column.name] = _widened(table, columns.get(column.name), column, next_id)
    if len(columns) > COLUMNS_MAX:
        raise RequestError(f"{len(columns)} columns are too many, at most {COLUMNS_MAX} are wanted")
    schema = tuple(columns.values())
    return table if schema == table.schema else replace(table, schema=schema, schema_id=next_id)


def schema_id_of(table: Table, schema: pa.Schema) -> int:
    """Return the id of the newest schema of a table that a file's schema has in full.

    Args:
        table: As it is now.
        schema: Of the file; columns by which the table is partitioned may be missing.
    """
    older = [
        column.since - 1
        for column in table.schema
        if column.name not in table.partition_by and not _has(schema, column)
    ]
    return max(0, min(older, default=table.schema_id))


def _has(schema: pa.Schema, column: Column) -> bool:
    place = schema.get_field_index(column.name)
    return place >= 0 and bool(normal_type(schema.field(place).type) == _normal(column.type))


def _new(column: Column, since: int) -> Column:
    if not column.name:
        raise RequestError("a column to add has no name")
    if not column.nullable:
        raise RequestError(
            f"column {column.name!r} cannot be added as not null: rows that are there lack it"
        )
    return Column(column.name, type_to_text(_normal(column.type)), nullable=True, since=since)


def _widened(table: Table, known: Column | None, wanted: Column, since: int) -> Column:
    if known is None:
        names = ", ".join(column.name for column in table.schema)
        raise RequestError(f"table {table.name!r} has no column {wanted.name!r}; it has {names}")
    before, after = _normal(known.type), _normal(wanted.type)
    if before == after:
        return known
    if widened(before, after) != after:
        raise RequestError(
            f"column {wanted.name!r} is {known.type} and cannot become {type_to_text(after)}: "
            "a wider type must hold every value of the old one as it is"
        )
    ordered = {*table.key, table.version_column, table.time_column, *table.partition_by}
    if wanted.name in ordered and key_type_of(known.type) != key_type_of(type_to_text(after)):
        raise RequestError(
            f"column {wanted.name!r} orders rows as {known.type}; {type_to_text(after)} is of "
            "another family, whose order is another"
        )
    return replace(known, type=type_to_text(after), since=since)


def _normal(text: str) -> pa.DataType:
    return normal_type(type_from_text(text))
