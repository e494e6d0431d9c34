"""Whether a predicate can be true for a row of a file, given bounds of its columns.

A part that is not understood can be true and false. A file is skipped only if the predicate is
false or null for every row within its bounds. A literal becomes the range of stored values that
Spark considers equal to it. So the order is Spark's: numbers by value with NaN above all of them,
texts by their bytes, moments by their microsecond.
"""

import math
import struct
from calendar import monthrange
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache

import pyarrow as pa

from common.errors import RequestError
from common.expressions.grammar import (
    Apply,
    ColumnName,
    FunctionCall,
    Interval,
    Literal,
    LiteralKind,
    Node,
    Parser,
)
from common.expressions.lexer import DIGITS_MAX, SourceText
from common.expressions.operators import DATE_ALONE, moment_of
from common.model.key_values import EPOCH, KeyType, key_type_of
from common.model.keys import encode_value
from common.rows.schema import type_from_text

NULL = b"\x00"
_LEAST, ABOVE_ALL = b"\x01", b"\x03"
"""At or before every value, and after every value."""
_BEHIND = b"\xff"
"""After every key that begins with a value: the byte after a value is at most 02."""
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_INT_DIGITS = 20
"""Digits of Spark's decimals that hold every 64-bit integer, signed or unsigned."""
_MICRO, _DAY = timedelta(microseconds=1), timedelta(days=1)
_MICRO_NANOS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBounds:
    """The least and the greatest value of a column, encoded; both may be rounded outwards.

    They may be keys that begin with the column: the rest of the key is ignored.
    """

    type: str
    """Type of the column in its table."""
    least: bytes
    greatest: bytes
    nulls: bool = False
    """Whether there may be nulls, which the bounds do not include."""

    @property
    def kind(self) -> KeyType:
        """The family of the column's type."""
        return key_type_of(self.type)


@dataclass(frozen=True, slots=True)
class _Between:
    """The range of stored values that equal a literal: from `low`, inclusive, to `high`, exclusive.

    It is empty if the bounds are equal. If it is not exact, values in it may be equal, less or
    greater.
    """

    low: bytes
    high: bytes
    exact: bool = True

    @classmethod
    def of(cls, value: object, kind: KeyType) -> "_Between":
        """Return the range of one value."""
        low = encode_value(value, kind)
        return cls(low, low + _BEHIND)


@dataclass(frozen=True, slots=True)
class _Possible:
    """The possible results of a predicate; neither: it is null for every row."""

    true: bool
    false: bool


_ANYTHING = _Possible(true=True, false=True)


def may_be_true(text: str, bounds: Mapping[str, ColumnBounds], now_us: int | None = None) -> bool:
    """Return whether a predicate can be true for a row within the bounds.

    Args:
        text: The user's text, which was checked against the table.
        bounds: Bounds by column; other columns have none.
        now_us: The value of `now()`, in microseconds since the epoch; None: not known.
    """
    try:
        return _possible(folded(_parsed(text), now_us), bounds).true
    except RequestError:
        return True


def folded(node: Node, now_us: int | None) -> Node:
    """Return a tree in which `now()` and times moved by an interval are literals.

    Args:
        node: The tree.
        now_us: The value of `now()`, in microseconds since the epoch; None: not known.
    """
    if isinstance(node, FunctionCall) and node.name == "now" and now_us is not None:
        return _moment_literal(EPOCH + now_us * _MICRO, node)
    if not isinstance(node, Apply):
        return node
    args = tuple(folded(arg, now_us) for arg in node.args)
    if any(one is not other for one, other in zip(args, node.args, strict=True)):
        node = replace(node, args=args)
    if node.op not in {"+", "-"}:
        return node
    left, right = args
    if node.op == "+" and isinstance(left, Interval):
        left, right = right, left
    if not isinstance(left, Literal) or not isinstance(right, Interval):
        return node
    try:
        return _moved(left, right, 1 if node.op == "+" else -1)
    except (ValueError, OverflowError):
        return node


def _moved(moment: Literal, interval: Interval, sign: int) -> Node:
    """Return a day or a moment, moved by an interval as Spark moves it in UTC."""
    if moment.kind not in {LiteralKind.DATE, LiteralKind.TIMESTAMP}:
        raise ValueError(moment.kind)
    begin, count = moment_of(moment.value), sign * interval.count
    if interval.unit in {"month", "year"}:
        months = begin.year * 12 + begin.month - 1 + count * (12 if interval.unit == "year" else 1)
        year, month = divmod(months, 12)
        last = monthrange(year, month + 1)[1]
        end = begin.replace(year=year, month=month + 1, day=min(begin.day, last))
    else:
        end = begin + count * timedelta(**{f"{interval.unit}s": 1})
    days = interval.unit in {"day", "week", "month", "year"}
    if days and moment.kind is LiteralKind.DATE:
        return Literal(LiteralKind.DATE, end.date().isoformat(), moment.span)
    return _moment_literal(end, moment)


def _moment_literal(moment: datetime, node: Node) -> Literal:
    text = moment.replace(tzinfo=None).isoformat(" ")
    return Literal(LiteralKind.TIMESTAMP, text, node.span)


@lru_cache(maxsize=64)
def _parsed(text: str) -> Node:
    return Parser(SourceText(text)).expression()


def _possible(node: Node, bounds: Mapping[str, ColumnBounds]) -> _Possible:
    if isinstance(node, ColumnName):
        column = _column_bounds(node, bounds)
        if column is None or column.kind is not KeyType.BOOL:
            return _ANYTHING
        return _compared("=", _TRUE, column)
    if not isinstance(node, Apply):
        return _ANYTHING
    op, args = node.op, node.args
    if op in {"AND", "OR"}:
        possible = [_possible(arg, bounds) for arg in args]
        if op == "AND":
            return _Possible(
                all(result.true for result in possible), any(result.false for result in possible)
            )
        return _Possible(
            any(result.true for result in possible), all(result.false for result in possible)
        )
    if op == "NOT":
        return _not(_possible(args[0], bounds))
    if op.startswith("NOT "):
        return _not(_leaf(op.removeprefix("NOT "), args, bounds))
    return _leaf(op, args, bounds)


def _column_bounds(node: Node, bounds: Mapping[str, ColumnBounds]) -> ColumnBounds | None:
    """Return the bounds of a node that is a column; None: it has none."""
    if isinstance(node, ColumnName) and len(node.parts) == 1:
        return bounds.get(node.parts[0])
    return None


def _leaf(op: str, args: tuple[Node, ...], bounds: Mapping[str, ColumnBounds]) -> _Possible:
    """Return the possible results of a comparison of a column with literals."""
    if len(args) == 2 and op in _FLIPPED and isinstance(args[0], Literal):
        op, args = _FLIPPED[op], (args[1], args[0])
    column = _column_bounds(args[0], bounds)
    if column is None:
        return _ANYTHING
    if op in {"IS NULL", "IS NOT NULL"}:
        may_be_null = column.nulls or column.least[:1] <= NULL
        null = _Possible(true=may_be_null, false=column.greatest[:1] != NULL)
        return null if op == "IS NULL" else _not(null)
    ranges = _literal_ranges(args[1:], column)
    if not ranges:
        return _ANYTHING
    if op == "BETWEEN":
        low, high = _compared(">=", ranges[0], column), _compared("<=", ranges[1], column)
        return _Possible(low.true and high.true, low.false or high.false)
    if op == "IN":
        possible = [_compared("=", literal_range, column) for literal_range in ranges]
        return _Possible(
            any(result.true for result in possible), all(result.false for result in possible)
        )
    return _compared(op, ranges[0], column)


def _compared(op: str, literal_range: _Between, column: ColumnBounds) -> _Possible:
    if column.greatest[:1] == NULL:
        return _Possible(true=False, false=False)
    below = column.least < (literal_range.low if literal_range.exact else literal_range.high)
    above = column.greatest >= (literal_range.high if literal_range.exact else literal_range.low)
    within = column.least < literal_range.high and column.greatest >= literal_range.low
    equal = within and literal_range.low < literal_range.high
    match op:
        case "=":
            return _Possible(equal, below or above)
        case "<>":
            return _Possible(below or above, equal)
        case "<":
            return _Possible(below, equal or above)
        case "<=":
            return _Possible(below or equal, above)
        case ">":
            return _Possible(above, below or equal)
        case ">=":
            return _Possible(above or equal, below)
        case _:
            return _ANYTHING


def _not(possible: _Possible) -> _Possible:
    return _Possible(possible.false, possible.true)


def _literal_ranges(nodes: Sequence[Node], column: ColumnBounds) -> list[_Between] | None:
    """Return the ranges of values that equal literals; None if they are uncertain."""
    literals = [node for node in nodes if isinstance(node, Literal)]
    locate = _LOCATORS.get(column.kind)
    if locate is None or len(literals) < len(nodes):
        return None
    try:
        ranges = locate(literals, type_from_text(column.type))
    except (ValueError, OverflowError, InvalidOperation, RequestError):
        return None
    return None if ranges is None else [*ranges]


def _numbers(literals: Sequence[Literal], arrow: pa.DataType) -> list[_Between] | None:
    """Return ranges of integers or decimals, which Spark compares without rounding."""
    if any(
        literal.kind is not LiteralKind.NUMBER or "e" in literal.value.lower()
        for literal in literals
    ):
        return None  # If one is a double, all are compared as doubles.
    whole = pa.types.is_integer(arrow)
    if not whole and not pa.types.is_decimal128(arrow):
        return None
    digits = [_INT_DIGITS if whole else arrow.precision - arrow.scale]
    scales = [0 if whole else arrow.scale]
    for literal in literals:
        before, _, fraction = literal.value.lstrip("-").partition(".")
        digits.append(len(before.lstrip("0")))
        scales.append(len(fraction))
    if max(digits) + max(scales) > DIGITS_MAX:
        return None
    locate = _whole_place if whole else _decimal_place
    return [locate(Decimal(literal.value)) for literal in literals]


def _whole_place(number: Decimal) -> _Between:
    ceiling = math.ceil(number)
    if ceiling < -(2**63):
        return _Between(_LEAST, _LEAST)
    if ceiling >= 2**64:
        return _Between(ABOVE_ALL, ABOVE_ALL)
    if number == ceiling:
        return _Between.of(ceiling, KeyType.INT)
    above = encode_value(ceiling, KeyType.INT)
    return _Between(above, above)


def _decimal_place(number: Decimal) -> _Between:
    return _Between.of(number, KeyType.DECIMAL)


def _floats(literals: Sequence[Literal], arrow: pa.DataType) -> list[_Between] | None:
    if any(literal.kind is not LiteralKind.NUMBER for literal in literals):
        return None
    short = pa.types.is_float32(arrow)
    return [_float_place(literal.value, short=short) for literal in literals]


def _float_place(text: str, *, short: bool) -> _Between:
    """Return the range of a number; Spark may round a number that the column cannot hold."""
    number = float(text)
    if not math.isfinite(number):
        raise OverflowError(text)
    rounded = struct.unpack(">f", struct.pack(">f", number))[0] if short else number
    if Decimal(text) == Decimal(number) and rounded == number:
        return _Between.of(number, KeyType.FLOAT)
    # More than one neighbour on each side, in either type that Spark may compare in.
    slack = abs(number) * 2.0**-22 + 2.0**-148 if short else abs(number) * 2.0**-51 + 2.0**-1073
    low, high = (encode_value(number + by, KeyType.FLOAT) for by in (-slack, slack))
    return _Between(low, high + _BEHIND, exact=False)


def _texts(literals: Sequence[Literal], _arrow: pa.DataType) -> list[_Between] | None:
    if any(literal.kind is not LiteralKind.STRING for literal in literals):
        return None
    return [_Between.of(literal.value, KeyType.STRING) for literal in literals]


def _flags(literals: Sequence[Literal], _arrow: pa.DataType) -> list[_Between] | None:
    if any(literal.kind is not LiteralKind.BOOLEAN for literal in literals):
        return None
    return [_Between.of(literal.value == "true", KeyType.BOOL) for literal in literals]


_MOMENTS = {LiteralKind.STRING, LiteralKind.DATE, LiteralKind.TIMESTAMP}


def _days(literals: Sequence[Literal], _arrow: pa.DataType) -> list[_Between] | None:
    if any(literal.kind not in _MOMENTS for literal in literals):
        return None
    return [_day_place(literal.value) for literal in literals]


def _day_place(text: str) -> _Between:
    """Return the range of a moment among days: Spark uses the midnight at the start of a day."""
    if DATE_ALONE.fullmatch(text):
        return _Between.of(date.fromisoformat(text), KeyType.DATE)
    days, rest = divmod(moment_of(text) - EPOCH, _DAY)
    if not rest:
        return _Between.of(days, KeyType.DATE)
    next_day = encode_value(days + 1, KeyType.DATE)
    return _Between(next_day, next_day)


def _moments(literals: Sequence[Literal], _arrow: pa.DataType) -> list[_Between] | None:
    if any(literal.kind not in _MOMENTS for literal in literals):
        return None
    return [_moment_place(literal.value) for literal in literals]


def _moment_place(text: str) -> _Between:
    """Return the microsecond of a moment, the finest unit that Spark supports."""
    nanos = (moment_of(text) - EPOCH) // _MICRO * _MICRO_NANOS
    low, high = (encode_value(nanos + by, KeyType.TIMESTAMP) for by in (0, _MICRO_NANOS))
    return _Between(low, high)


_TRUE = _Between.of(bool(1), KeyType.BOOL)
_LOCATORS: Mapping[KeyType, Callable[[Sequence[Literal], pa.DataType], list[_Between] | None]] = {
    KeyType.INT: _numbers,
    KeyType.DECIMAL: _numbers,
    KeyType.FLOAT: _floats,
    KeyType.STRING: _texts,
    KeyType.BOOL: _flags,
    KeyType.DATE: _days,
    KeyType.TIMESTAMP: _moments,
}
