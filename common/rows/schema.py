"""Schemas: union by column name, and allowed changes of a table's schema. Pure.

Columns are matched by name. A column that a file lacks is null there. Types widen only if no value
changes: integers to wider ones, float to double, decimals to more digits, times and timestamps to
a finer unit, structs by field. Every other difference is an error that names both sides.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa
from pyarrow import types as is_type

from common.errors import RequestError
from common.model.key_values import key_type_of
from common.model.table import Column, Table
from neve.api.column_types import read_type, simple_types

# -------------------------------------------------------------------------------------------- Types
# Column types: the normal form of each type that Parquet can store, and types as text.
#
# Files have large, view and dictionary types with the same values. Types are compared only in
# normal form.


_Test = Callable[[pa.DataType], bool]


def normal_type(arrow: pa.DataType) -> pa.DataType:
    """Return the normal form of all types that Parquet stores alike.

    Large and view types become plain ones, dictionaries their values, extensions their
    storage, dates days; fixed-size lists become lists; Parquet keeps times and timestamps in
    seconds as milliseconds.

    Raises:
        RequestError: Parquet cannot store the type.
    """
    if is_type.is_dictionary(arrow) or is_type.is_run_end_encoded(arrow):
        return normal_type(arrow.value_type)
    if isinstance(arrow, pa.BaseExtensionType):
        return normal_type(arrow.storage_type)
    for belongs, normal in _NORMAL:
        if belongs(arrow):
            return normal(arrow)
    if any(belongs(arrow) for belongs in _KEPT):
        return arrow
    message = f"column type {arrow} cannot be stored in Parquet"
    raise RequestError(message)


def normal_field(field: pa.Field) -> pa.Field:
    """Return the field with its normal type and without metadata."""
    return pa.field(field.name, normal_type(field.type), field.nullable)


def _normal_decimal(arrow: pa.DataType) -> pa.DataType:
    wide = arrow.precision > 38
    return (pa.decimal256 if wide else pa.decimal128)(arrow.precision, arrow.scale)


def _normal_list(arrow: pa.DataType) -> pa.DataType:
    element = arrow.value_field
    return pa.list_(pa.field("element", normal_type(element.type), element.nullable))


def _normal_map(arrow: pa.DataType) -> pa.DataType:
    item = pa.field("value", normal_type(arrow.item_type), arrow.item_field.nullable)
    return pa.map_(normal_type(arrow.key_type), item)


def _is_list(arrow: pa.DataType) -> bool:
    plain = (
        is_type.is_list(arrow) or is_type.is_large_list(arrow) or is_type.is_fixed_size_list(arrow)
    )
    return bool(plain or is_type.is_list_view(arrow) or is_type.is_large_list_view(arrow))


def leaf_count(arrow: pa.DataType) -> int:
    """Return the number of leaf columns of a type in a Parquet file."""
    if not is_type.is_nested(arrow):
        return 1
    return sum(leaf_count(arrow.field(at).type) for at in range(arrow.num_fields))


def _is_timestamp_in_seconds(arrow: pa.DataType) -> bool:
    return bool(is_type.is_timestamp(arrow) and arrow.unit == "s")


_Rule = tuple[_Test, Callable[[pa.DataType], pa.DataType]]
_NORMAL: tuple[_Rule, ...] = (
    (is_type.is_large_string, lambda _: pa.string()),
    (is_type.is_string_view, lambda _: pa.string()),
    (is_type.is_large_binary, lambda _: pa.binary()),
    (is_type.is_binary_view, lambda _: pa.binary()),
    (is_type.is_date, lambda _: pa.date32()),
    (is_type.is_time32, lambda _: pa.time32("ms")),
    (_is_timestamp_in_seconds, lambda arrow: pa.timestamp("ms", arrow.tz)),
    (is_type.is_decimal, _normal_decimal),
    (_is_list, _normal_list),
    (is_type.is_map, _normal_map),
    (is_type.is_struct, lambda arrow: pa.struct([normal_field(field) for field in arrow])),
)
_KEPT: tuple[_Test, ...] = (
    is_type.is_boolean,
    is_type.is_integer,
    is_type.is_floating,
    is_type.is_string,
    is_type.is_binary,
    is_type.is_fixed_size_binary,
    is_type.is_timestamp,
    is_type.is_time,
    is_type.is_duration,
    is_type.is_null,
)


# ---- Types as text, in the form of `neve.api.column_types`


_PLAIN_NAME = re.compile(r"\w+")
CHARS_MAX = 64 * 1024
SHOWN_CHARS = 200
_NAMES = {arrow: name for name, arrow in simple_types(pa).items()}


def type_to_text(arrow: pa.DataType) -> str:
    """Return the text form of a type after normalising it."""
    arrow = normal_type(arrow)
    if arrow in _NAMES:
        return _NAMES[arrow]
    if is_type.is_decimal(arrow):
        return f"decimal({arrow.precision}, {arrow.scale})"
    if is_type.is_fixed_size_binary(arrow):
        return f"binary[{arrow.byte_width}]"
    if is_type.is_timestamp(arrow):
        return f"timestamp[{arrow.unit}, {arrow.tz}]" if arrow.tz else f"timestamp[{arrow.unit}]"
    if is_type.is_time(arrow) or is_type.is_duration(arrow):
        return f"{'time' if is_type.is_time(arrow) else 'duration'}[{arrow.unit}]"
    if is_type.is_list(arrow):
        return f"list<{_element_text(arrow.value_field)}>"
    if is_type.is_map(arrow):
        return f"map<{type_to_text(arrow.key_type)}, {_element_text(arrow.item_field)}>"
    fields = (f"{_name_text(field.name)}: {_element_text(field)}" for field in arrow)
    return f"struct<{', '.join(fields)}>"


def _element_text(field: pa.Field) -> str:
    return type_to_text(field.type) + ("" if field.nullable else " not null")


def _name_text(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)


@lru_cache(1000)
def _read_type(text: str) -> pa.DataType:
    return read_type(text, pa)


def type_from_text(text: str) -> pa.DataType:
    """Return the type of a text form.

    Raises:
        RequestError: The text is not a type.
    """
    if len(text) > CHARS_MAX:
        raise RequestError(
            f"column type {text[:SHOWN_CHARS]!r}… has {len(text)} characters, more than the"
            f" limit of {CHARS_MAX}"
        )
    try:
        arrow = _read_type(text)
    except (IndexError, ValueError, KeyError, OverflowError, pa.ArrowInvalid) as error:
        shown = text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"
        message = (
            f"column type {shown!r} is unknown; write for example int64, string, decimal(10, 2)"
        )
        raise RequestError(message) from error
    return arrow


# ------------------------------------------------------------------------------------------- Schema


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
            earlier = united.get(field.name)
            if earlier is None:
                united[field.name] = field if count == 0 else field.with_nullable(nullable=True)
                origin[field.name] = source
                continue
            arrow = widened(earlier.type, field.type)
            if arrow is None:
                raise _mismatch(
                    field.name, (origin[field.name], earlier.type), (source, field.type)
                )
            if arrow != earlier.type:
                origin[field.name] = source
            united[field.name] = pa.field(field.name, arrow, earlier.nullable or field.nullable)
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


def _loosen_missing(united: dict[str, pa.Field], names: set[str]) -> None:
    for name in united.keys() - names:
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


# ------------------------------------------------------------------------------------ Reader limits
# Columns that an engine cannot read from Parquet files, or reads incorrectly.
#
# The limits were found by tests with the engines themselves (`docs/reference/files.md`).


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
        earlier = first.setdefault(column.name.lower(), column.name)
        if earlier != column.name:
            yield f"columns {earlier} and {column.name} differ only in case; rename one"


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
