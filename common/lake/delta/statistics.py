"""Statistics of a Delta file, from the footer of its Parquet file.

They are bounds: readers skip a file whose bounds exclude what they look for. So a bound may be
wider than the values, never narrower. Long texts are cut, and moments are rounded to milliseconds,
as Delta writers do. A column without reliable statistics has no bounds.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as is_type

INDEXED_COLUMNS = 32
"""Default of the table property `delta.dataSkippingNumIndexedCols`."""
TEXT_CHARS_MAX = 32
EXACT_DIGITS = 15
"""A decimal with more digits would be rounded by readers that take a number for a double."""
_LAST_CHARACTER = "\U0010ffff"
_TICKS_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf column of a Parquet file that may have statistics."""

    number: int
    names: tuple[str, ...]
    """Names from the top-level column down."""
    arrow: pa.DataType


def file_statistics(footer: pq.FileMetaData, properties: Mapping[str, str]) -> str:
    """Return the statistics of a file as JSON text, as an `add` action has them.

    Args:
        footer: The footer of the file, without deleted rows.
        properties: Properties of the table, which choose the columns.
    """
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    leaves = list(_leaves(footer.schema.to_arrow_schema(), (), 0))
    for leaf in _indexed(leaves, properties):
        low, high, count = _column_statistics(footer, leaf)
        for tree, value in ((lows, low), (highs, high), (nulls, count)):
            if value is not None:
                _put(tree, leaf.names, value)
    statistics = {"numRecords": footer.num_rows, "minValues": lows, "maxValues": highs}
    return json.dumps({**statistics, "nullCount": nulls}, separators=(",", ":"))


def _leaves(schema: Any, names: tuple[str, ...], number: int) -> Iterator[_Leaf]:
    """Yield the leaves of a schema or struct; lists and maps have no statistics."""
    for field in schema:
        inner = (*names, field.name)
        if is_type.is_struct(field.type):
            yield from _leaves(field.type, inner, number)
        elif not is_type.is_nested(field.type):
            yield _Leaf(number, inner, field.type)
        number += _leaf_count(field.type)


def _leaf_count(arrow: pa.DataType) -> int:
    if not is_type.is_nested(arrow):
        return 1
    return sum(_leaf_count(arrow.field(at).type) for at in range(arrow.num_fields))


def _indexed(leaves: list[_Leaf], properties: Mapping[str, str]) -> list[_Leaf]:
    """Return the leaves for which the table wants statistics."""
    chosen = properties.get("delta.dataSkippingStatsColumns", "")
    if chosen:
        names = {name.strip().replace("`", "") for name in chosen.split(",")}
        return [
            leaf
            for leaf in leaves
            if any(".".join(leaf.names[:end]) in names for end in range(1, len(leaf.names) + 1))
        ]
    text = properties.get("delta.dataSkippingNumIndexedCols", "")
    count = int(text) if text.lstrip("-").isdecimal() else INDEXED_COLUMNS
    return leaves if count < 0 else leaves[:count]


def _column_statistics(
    footer: pq.FileMetaData, leaf: _Leaf
) -> tuple[object | None, object | None, int | None]:
    """Return the least and greatest value of a column, and its number of nulls; None: unknown."""
    lows, highs, nulls = list[Any](), list[Any](), 0
    counted = bounded = True
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        statistics = group.column(leaf.number).statistics
        if not group.num_rows:
            continue
        if statistics is None or not statistics.has_null_count:
            counted = False
        else:
            nulls += statistics.null_count
            if statistics.null_count == group.num_rows:
                continue
        if statistics is None or not statistics.has_min_max:
            bounded = False
            continue
        try:
            lows.append(_value(statistics, leaf.arrow, is_low=True))
            highs.append(_value(statistics, leaf.arrow, is_low=False))
        except (ArithmeticError, TypeError, ValueError):
            bounded = False
    known = bounded and bool(lows) and None not in (*lows, *highs)
    low = _low_bound(min(lows), leaf.arrow) if known else None
    # Statistics of a footer ignore NaN, and to most engines it is above all numbers.
    known = known and not is_type.is_floating(leaf.arrow)
    high = _high_bound(max(highs), leaf.arrow) if known else None
    return low, high, nulls if counted else None


def _value(statistics: Any, arrow: pa.DataType, *, is_low: bool) -> Any:
    """Return a bound in a form that compares; None: the type has none, or it is not finite."""
    if is_type.is_integer(arrow) or is_type.is_timestamp(arrow):
        return statistics.min_raw if is_low else statistics.max_raw
    value = statistics.min if is_low else statistics.max
    if is_type.is_floating(arrow):
        return value if math.isfinite(value) else None
    if is_type.is_string(arrow) or is_type.is_large_string(arrow) or is_type.is_string_view(arrow):
        return value if isinstance(value, str) else value.decode()
    if is_type.is_decimal(arrow):
        return value if len(value.normalize().as_tuple().digits) <= EXACT_DIGITS else None
    return value if is_type.is_date32(arrow) else None


def _low_bound(value: Any, arrow: pa.DataType) -> object | None:
    if isinstance(value, str):
        return value[:TEXT_CHARS_MAX]
    if is_type.is_timestamp(arrow):
        return _moment(value // _TICKS_PER_MS[arrow.unit], arrow)
    return _json_value(value)


def _high_bound(value: Any, arrow: pa.DataType) -> object | None:
    if isinstance(value, str):
        end = TEXT_CHARS_MAX
        while value[end : end + 1] == _LAST_CHARACTER:
            end += 1
        return value if len(value) <= end else value[:end] + _LAST_CHARACTER
    if is_type.is_timestamp(arrow):
        return _moment(-(-value // _TICKS_PER_MS[arrow.unit]), arrow)
    return _json_value(value)


def _json_value(value: Any) -> object:
    """Return a bound that needs no rounding as a value of JSON."""
    if isinstance(value, Decimal):
        return float(value)
    return value.isoformat() if isinstance(value, date) else value


def _moment(since_ms: int, arrow: pa.DataType) -> str | None:
    """Return a moment as ISO text; None: its year has more than four digits."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=since_ms)
    except OverflowError:
        return None
    text = moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text if arrow.tz is None else f"{text}Z"


def _put(tree: dict[str, Any], names: tuple[str, ...], value: object) -> None:
    for name in names[:-1]:
        tree = tree.setdefault(name, {})
    tree[names[-1]] = value
