"""Rows of a file in the columns and types of their table."""

import pyarrow as pa
from pyarrow import types as is_type

from common.errors import RequestError
from common.rows.arrays import stored
from common.rows.schema import require_readable
from common.rows.type_text import type_to_text


def conform(table: pa.Table, schema: pa.Schema, source: str = "table") -> pa.Table:
    """Return the table with exactly the schema's columns, widened; missing ones are null.

    Args:
        table: Rows of a file.
        schema: Of the table, with normal types.
        source: The file's path, for messages.

    Raises:
        RequestError: A column does not widen, is not known, or is missing but not nullable.
    """
    if table.schema.equals(schema):
        return table
    require_readable(source, table.schema, schema)
    if unknown := sorted(set(table.column_names) - set(schema.names)):
        message = f"{source} has the columns {', '.join(unknown)}, which the table does not know"
        raise RequestError(message)
    columns = [_column(table, field, source) for field in schema]
    return pa.table(columns, schema=schema)


def _column(table: pa.Table, field: pa.Field, source: str) -> pa.ChunkedArray:
    at = table.schema.get_field_index(field.name)
    if at < 0:
        if not field.nullable:
            message = f"{source} lacks the column {field.name}, which must not be null"
            raise RequestError(message)
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    return widen(table.column(at), field, source)


def widen(column: pa.ChunkedArray, field: pa.Field, source: str) -> pa.ChunkedArray:
    """Return a column in a type that holds all its values.

    Raises:
        RequestError: A value does not fit after all (a timestamp far away, in ns).
    """
    if column.type == field.type:
        return column
    try:
        if _holds_view(column.type):
            # Arrow's cast of list views loses elements, so these go value by value.
            chunks = [pa.array(chunk.to_pylist(), field.type) for chunk in column.chunks]
            return pa.chunked_array(chunks, field.type)
        plain = [stored(chunk).cast(field.type) for chunk in column.chunks]
        return pa.chunked_array(plain, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        message = (
            f"column {field.name} of {source} cannot be read as {type_to_text(field.type)}, "
            f"which the table has: {error}"
        )
        raise RequestError(message) from error


def _holds_view(arrow: pa.DataType) -> bool:
    if is_type.is_list_view(arrow) or is_type.is_large_list_view(arrow):
        return True
    if not is_type.is_nested(arrow) or is_type.is_run_end_encoded(arrow):
        return False
    return any(_holds_view(arrow.field(at).type) for at in range(arrow.num_fields))
