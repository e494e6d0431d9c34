"""Column types: the normal form of each type that Parquet can store, and types as text.

Files have large, view and dictionary types with the same values. Types are compared only in normal
form.
"""

import json
import re
from collections.abc import Callable

import pyarrow as pa
from pyarrow import types as is_type

from common.errors import RequestError
from neve.api.column_types import read_type, simple_types

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
        arrow = read_type(text, pa)
    except (IndexError, ValueError, KeyError, OverflowError, pa.ArrowInvalid) as error:
        shown = text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"
        message = (
            f"column type {shown!r} is unknown; write for example int64, string, decimal(10, 2)"
        )
        raise RequestError(message) from error
    return arrow
