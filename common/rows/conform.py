"""Rows of a file in the columns and types of their table."""

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import types as is_type

from common.errors import RequestError
from common.rows.arrays import null_array, storage_values
from common.rows.schema import require_readable
from common.rows.types import type_to_text


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
        present = array.filter(array.is_valid())
        yield from ((arrow.field(at), present.field(at)) for at in range(arrow.num_fields))
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


def _holds_view(arrow: pa.DataType) -> bool:
    if is_type.is_list_view(arrow) or is_type.is_large_list_view(arrow):
        return True
    if not is_type.is_nested(arrow) or is_type.is_run_end_encoded(arrow):
        return False
    return any(_holds_view(arrow.field(at).type) for at in range(arrow.num_fields))
