"""Schemas: union by column name, and allowed changes of a table's schema. Pure.

Columns are matched by name. A column that a file lacks is null there. Types widen only if no value
changes: integers to wider ones, float to double, decimals to more digits, times and timestamps to
a finer unit, structs by field. Every other difference is an error that names both sides.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
from pyarrow import types as is_type

from common.errors import RequestError
from common.model.key_values import key_type_of
from common.model.table import Column, Table
from common.rows.types import normal_field, normal_type, type_from_text, type_to_text

_UNITS = ("s", "ms", "us", "ns")


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """Return the Arrow schema of a table's columns.

    Raises:
        RequestError: A type is unknown, or a name is duplicate.
    """
    fields = [
        pa.field(column.name, type_from_text(column.type), column.nullable) for column in columns
    ]
    return _checked(pa.schema(fields), "table schema")


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns of an Arrow schema, in its order, with normal types."""
    return tuple(Column(field.name, type_to_text(field.type), field.nullable) for field in schema)


def unite_schemas(sources: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """Return a schema that the rows of all sources fit into.

    Args:
        sources: Names for messages (a file's path, `table schema`) with their schemas.
            Columns keep the order of their first occurrence.

    Raises:
        RequestError: Two sources have a column with incompatible types.
    """
    united: dict[str, pa.Field] = {}
    origin: dict[str, str] = {}
    for count, (source, schema) in enumerate(sources):
        for field in map(normal_field, _checked(schema, source)):
            known = united.get(field.name)
            if known is None:
                united[field.name] = field if count == 0 else field.with_nullable(nullable=True)
                origin[field.name] = source
                continue
            arrow = widened(known.type, field.type)
            if arrow is None:
                raise _mismatch(field.name, (origin[field.name], known.type), (source, field.type))
            if arrow != known.type:
                origin[field.name] = source
            united[field.name] = pa.field(field.name, arrow, known.nullable or field.nullable)
        _loosen_missing(united, set(schema.names))
    return pa.schema(list(united.values()))


def require_readable(source: str, schema: pa.Schema, into: pa.Schema) -> None:
    """Refuse a schema with a column that does not widen to the table's type.

    Columns that the table lacks are accepted; `unite_schemas` handles those.

    Raises:
        RequestError: Names the source, the column and both types.
    """
    for field in into:
        if schema.get_field_index(field.name) < 0:
            continue
        column_type = schema.field(field.name).type
        wanted = normal_type(field.type)
        if widened(wanted, normal_type(column_type)) != wanted:
            raise _mismatch(field.name, (source, column_type), ("the table", field.type))


def _checked(schema: pa.Schema, source: str) -> pa.Schema:
    names = schema.names
    if len(set(names)) != len(names):
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        message = f"{source} has the columns {', '.join(twice)} more than once, expected each once"
        raise RequestError(message)
    return schema


def _loosen_missing(united: dict[str, pa.Field], present: set[str]) -> None:
    for name in united.keys() - present:
        united[name] = united[name].with_nullable(nullable=True)


def _mismatch(
    column: str, first: tuple[str, pa.DataType], second: tuple[str, pa.DataType]
) -> RequestError:
    (first_name, first_type), (second_name, second_type) = first, second
    message = (
        f"column {column} is {type_to_text(first_type)} in {first_name}, but "
        f"{type_to_text(second_type)} in {second_name}; neither can be widened to the other"
    )
    return RequestError(message)


def widened(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return the smallest type that holds every value of both normal types, or None."""
    if first == second or is_type.is_null(second):
        return first
    if is_type.is_null(first):
        return second
    for belongs, widen in _WIDENING:
        if belongs(first) and belongs(second):
            return widen(first, second)
    return None


def _wider_integer(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if is_type.is_signed_integer(first) == is_type.is_signed_integer(second):
        return max(first, second, key=lambda arrow: arrow.bit_width)
    signed, unsigned = (first, second) if is_type.is_signed_integer(first) else (second, first)
    bits = max(signed.bit_width, 2 * unsigned.bit_width)
    return getattr(pa, f"int{bits}")() if bits <= 64 else None


def _wider_float(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    return max(first, second, key=lambda arrow: arrow.bit_width)


def _wider_decimal(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    scale = max(first.scale, second.scale)
    precision = scale + max(first.precision - first.scale, second.precision - second.scale)
    if precision <= 38:
        return pa.decimal128(precision, scale)
    # More digits than Spark supports: only if a file already has them.
    is_wide = is_type.is_decimal256(first) or is_type.is_decimal256(second)
    return pa.decimal256(precision, scale) if is_wide and precision <= 76 else None


def _wider_bytes(_first: pa.DataType, _second: pa.DataType) -> pa.DataType:
    return pa.binary()


def _finer_time(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    return max(first, second, key=lambda arrow: _UNITS.index(arrow.unit))


def _finer_timestamp(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if (first.tz is None) != (second.tz is None):
        return None
    # A zone affects only how an instant is displayed.
    zone = first.tz if first.tz == second.tz else "UTC"
    return pa.timestamp(_finer_time(first, second).unit, tz=zone)


def _wider_list(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    element = _wider_field(first.value_field, second.value_field)
    return None if element is None else pa.list_(element)


def _wider_map(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    key, item = (
        widened(first.key_type, second.key_type),
        _wider_field(first.item_field, second.item_field),
    )
    return None if key is None or item is None else pa.map_(key, item)


def _wider_field(first: pa.Field, second: pa.Field) -> pa.Field | None:
    arrow = widened(first.type, second.type)
    return None if arrow is None else pa.field(first.name, arrow, first.nullable or second.nullable)


def _wider_struct(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    others = {field.name: field for field in second}
    fields = []
    for field in first:
        other = others.pop(field.name, None)
        wide = field.with_nullable(nullable=True) if other is None else _wider_field(field, other)
        if wide is None:
            return None
        fields.append(wide)
    return pa.struct(fields + [field.with_nullable(nullable=True) for field in others.values()])


def _is_bytes(arrow: pa.DataType) -> bool:
    return bool(is_type.is_binary(arrow) or is_type.is_fixed_size_binary(arrow))


_WIDENING = (
    (is_type.is_integer, _wider_integer),
    (is_type.is_floating, _wider_float),
    (is_type.is_decimal, _wider_decimal),
    (_is_bytes, _wider_bytes),
    (is_type.is_time, _finer_time),
    (is_type.is_timestamp, _finer_timestamp),
    (is_type.is_duration, _finer_time),
    (is_type.is_list, _wider_list),
    (is_type.is_map, _wider_map),
    (is_type.is_struct, _wider_struct),
)


# ---- How a table's schema changes
#
# Only lossless changes are allowed: new columns, which are null in older rows, and wider types, to
# which older values are converted when they are read. Each change increments the schema's id and
# stores the id in the columns that it touched. So the schema of a file is identified by the first
# column that the file lacks or has in an older form.


COLUMNS_MAX = 10_000


def changed_schema(table: Table, added: Sequence[Column], wider: Sequence[Column]) -> Table:
    """Return a table with new and widened columns; unchanged if it already has them all.

    Args:
        table: The table before the change.
        added: Columns to append; a column that exists in this form is skipped.
        wider: Existing columns with their new types.

    Raises:
        RequestError: A name, type or change is not allowed; names it and what is allowed.
    """
    next_id = table.schema_id + 1
    columns = {column.name: column for column in table.schema}
    for column in added:
        present, wanted = columns.get(column.name), _new(column, next_id)
        if present is None:
            columns[column.name] = wanted
        elif present.type != wanted.type:
            raise RequestError(
                f"table {table.name!r} already has a column {column.name!r} of type"
                f" {present.type}; to make it {wanted.type}, widen it"
            )
    for column in wider:
        columns[column.name] = _widened(table, columns.get(column.name), column, next_id)
    if len(columns) > COLUMNS_MAX:
        raise RequestError(f"{len(columns)} columns are more than the limit of {COLUMNS_MAX}")
    schema = tuple(columns.values())
    return table if schema == table.schema else replace(table, schema=schema, schema_id=next_id)


def schema_id_of(table: Table, schema: pa.Schema) -> int:
    """Return the id of the table's newest schema that a file's schema contains completely.

    Args:
        table: The current table.
        schema: Schema of the file; partition columns may be missing.
    """
    older = [
        column.since - 1
        for column in table.schema
        if column.name not in table.partition_by and not _has(schema, column)
    ]
    return max(0, min(older, default=table.schema_id))


def _has(schema: pa.Schema, column: Column) -> bool:
    index = schema.get_field_index(column.name)
    return index >= 0 and bool(normal_type(schema.field(index).type) == _normal(column.type))


def _new(column: Column, since: int) -> Column:
    if not column.name:
        raise RequestError("a column to add has no name")
    if not column.nullable:
        raise RequestError(
            f"column {column.name!r} cannot be added as not null: existing rows lack it"
        )
    return Column(column.name, type_to_text(_normal(column.type)), nullable=True, since=since)


def _widened(table: Table, present: Column | None, wanted: Column, since: int) -> Column:
    if present is None:
        names = ", ".join(column.name for column in table.schema)
        raise RequestError(f"table {table.name!r} has no column {wanted.name!r}; it has {names}")
    before, after = _normal(present.type), _normal(wanted.type)
    if before == after:
        return present
    if widened(before, after) != after:
        raise RequestError(
            f"column {wanted.name!r} is {present.type} and cannot become {type_to_text(after)}: "
            "a wider type must hold every value of the old type unchanged"
        )
    ordered = {*table.key, table.version_column, table.time_column, *table.partition_by}
    if wanted.name in ordered and key_type_of(present.type) != key_type_of(type_to_text(after)):
        raise RequestError(
            f"column {wanted.name!r} orders rows as {present.type}; {type_to_text(after)} is of "
            "another family, which has a different order"
        )
    return replace(present, type=type_to_text(after), since=since)


def _normal(text: str) -> pa.DataType:
    return normal_type(type_from_text(text))
