"""The one form of every column type that Parquet can keep.

Files come with large, view and dictionary types that hold the same values; everything
that compares types does so after making them normal.
"""

from collections.abc import Callable

import pyarrow as pa
from pyarrow import types as is_type

from common.errors import RequestError

_Test = Callable[[pa.DataType], bool]


def normal_type(arrow: pa.DataType) -> pa.DataType:
    """Return the one type that stands for all that Parquet stores alike.

    Large and view types become plain ones, dictionaries their values, extensions their
    storage, dates days; fixed-size lists become lists.

    Raises:
        RequestError: Parquet has no such type.
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
    message = f"column type {arrow} cannot be kept in Parquet"
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


_Rule = tuple[_Test, Callable[[pa.DataType], pa.DataType]]
_NORMAL: tuple[_Rule, ...] = (
    (is_type.is_large_string, lambda _: pa.string()),
    (is_type.is_string_view, lambda _: pa.string()),
    (is_type.is_large_binary, lambda _: pa.binary()),
    (is_type.is_binary_view, lambda _: pa.binary()),
    (is_type.is_date, lambda _: pa.date32()),
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
