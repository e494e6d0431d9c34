"""Schemas: uniting them by column name, and how a table's schema may change. Pure.

Columns meet by name. A column that a file lacks is null there. Types widen where no value
changes: integers to wider ones, float to double, decimals to more digits, times and timestamps to
a finer unit, structs by field. Everything else is an error that names both sides.
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
        RequestError: A type is not known, or a name comes twice.
    """
    fields = [
        pa.field(column.name, type_from_text(column.type), column.nullable) for column in columns
    ]
    return _checked(pa.schema(fields), "table schema")


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns of an Arrow schema, in its order, with normal types."""
    return tuple(Column(field.name, type_to_text(field.type), field.nullable) for field in schema)


def unite_schemas(sources: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """Return the one schema that all rows of all sources fit into.

    Args:
        sources: Names for messages (a file's path, `table schema`) with their schemas.
            Columns keep the order in which they are first met.

    Raises:
        RequestError: Two sources have a column of types that do not widen to one.
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
    """Refuse a schema with a column that does not widen to the table's type of it.

    Columns that the table does not know are no reason; see `unite_schemas` for those.

    Raises:
        RequestError: Names the source, the column and both types.
    """
    for field in into:
        if schema.get_field_index(field.name) < 0:
            continue
        found = schema.field(field.name).type
        wanted = normal_type(field.type)
        if widened(wanted, normal_type(found)) != wanted:
            raise _mismatch(field.name, (source, found), ("the table", field.type))


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
    # More digits than Spark knows: only where a file has brought them already.
    known = is_type.is_decimal256(first) or is_type.is_decimal256(second)
    return pa.decimal256(precision, scale) if known and precision <= 76 else None


def _wider_bytes(_first: pa.DataType, _second: pa.DataType) -> pa.DataType:
    return pa.binary()


def _finer_time(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    return max(first, second, key=lambda arrow: _UNITS.index(arrow.unit))


def _finer_timestamp(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if (first.tz is None) != (second.tz is None):
        return None
    # A zone says only how an instant is shown.
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
# Only what loses nothing is allowed: new columns, which older rows lack and so are null there,
# and wider types, to which older values are turned when they are read. Each change counts the
# schema's id up, and marks the columns it touched with it. So a file's own schema is told by the
# first column that it lacks or has in an older form.


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
