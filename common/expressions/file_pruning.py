"""Whether a predicate can be true for a row of a file, given bounds of its columns.

A part that is not understood can be true and false. A file is skipped only if the predicate is
false or null for every row within its bounds. A literal becomes the range of stored values that
Spark considers equal to it. So the order is Spark's: numbers by value with NaN above all of them,
texts by their bytes, moments by their microsecond.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache

import pyarrow as pa

from common.errors import RequestError
from common.expressions.grammar import (
    Apply,
    ColumnName,
    Literal,
    LiteralKind,
    Node,
    Parser,
)
from common.expressions.lexer import DIGITS_MAX, SourceText
from common.expressions.operators import DATE_ALONE, moment_of
from common.model.key_values import EPOCH, KeyType, key_type_of
from common.model.keys import encode_value
from common.rows.types import type_from_text

_NULL = b"\x00"
_LEAST, _ABOVE = b"\x01", b"\x03"
"""Not behind any value, and behind every value."""
_BEHIND = b"\xff"
"""Behind every key that begins with a value: what follows a value is 02 at most."""
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_INT_DIGITS = 20
"""Of Spark's decimals that hold every whole number, of 64 bits without a sign, too."""
_MICRO, _DAY = timedelta(microseconds=1), timedelta(days=1)
_MICRO_NANOS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBounds:
    """The least and the greatest value of a column, encoded; both may be wider than the truth.

    They may be keys of which the column is the first: what comes behind is of no account.
    """

    type: str
    """Of the column, as its table says."""
    least: bytes
    greatest: bytes
    nulls: bool = False
    """Whether there may be nulls besides, which the bounds do not count."""

    @property
    def kind(self) -> KeyType:
        """The family of the column's type."""
        return key_type_of(self.type)


@dataclass(frozen=True, slots=True)
class _Between:
    """Where values are stored that are equal to a literal: from `low` on, below `high`.

    Between equal bounds there is none. If it is not exact, some between them may be equal,
    less or greater: nobody knows which.
    """

    low: bytes
    high: bytes
    exact: bool = True

    @classmethod
    def of(cls, value: object, kind: KeyType) -> "_Between":
        """Return where one value is."""
        low = encode_value(value, kind)
        return cls(low, low + _BEHIND)


@dataclass(frozen=True, slots=True)
class _Possible:
    """Which of these a predicate can be; neither: it is null for every row."""

    true: bool
    false: bool


_ANYTHING = _Possible(true=True, false=True)


def may_be_true(text: str, bounds: Mapping[str, ColumnBounds]) -> bool:
    """Return whether a predicate can be true for a row within the bounds.

    Args:
        text: As the user wrote it; it has been checked against the table.
        bounds: By column; of others nothing is known.
    """
    try:
        return _possible(_parsed(text), bounds).true
    except RequestError:
        return True


@lru_cache(maxsize=64)
def _parsed(text: str) -> Node:
    return Parser(SourceText(text)).expression()


def _possible(node: Node, bounds: Mapping[str, ColumnBounds]) -> _Possible:
    if isinstance(node, ColumnName):
        known = _known(node, bounds)
        if known is None or known.kind is not KeyType.BOOL:
            return _ANYTHING
        return _compared("=", _TRUE, known)
    if not isinstance(node, Apply):
        return _ANYTHING
    op, args = node.op, node.args
    if op in {"AND", "OR"}:
        each = [_possible(arg, bounds) for arg in args]
        if op == "AND":
            return _Possible(all(one.true for one in each), any(one.false for one in each))
        return _Possible(any(one.true for one in each), all(one.false for one in each))
    if op == "NOT":
        return _not(_possible(args[0], bounds))
    if op.startswith("NOT "):
        return _not(_leaf(op.removeprefix("NOT "), args, bounds))
    return _leaf(op, args, bounds)


def _known(node: Node, bounds: Mapping[str, ColumnBounds]) -> ColumnBounds | None:
    """Return the bounds of what is a column that has some."""
    if isinstance(node, ColumnName) and len(node.parts) == 1:
        return bounds.get(node.parts[0])
    return None


def _leaf(op: str, args: tuple[Node, ...], bounds: Mapping[str, ColumnBounds]) -> _Possible:
    """Return what a comparison of a column with literals can be."""
    if len(args) == 2 and op in _FLIPPED and isinstance(args[0], Literal):
        op, args = _FLIPPED[op], (args[1], args[0])
    known = _known(args[0], bounds)
    if known is None:
        return _ANYTHING
    if op in {"IS NULL", "IS NOT NULL"}:
        some = known.nulls or known.least[:1] <= _NULL
        null = _Possible(true=some, false=known.greatest[:1] != _NULL)
        return null if op == "IS NULL" else _not(null)
    found = _places(args[1:], known)
    if not found:
        return _ANYTHING
    if op == "BETWEEN":
        low, high = _compared(">=", found[0], known), _compared("<=", found[1], known)
        return _Possible(low.true and high.true, low.false or high.false)
    if op == "IN":
        each = [_compared("=", place, known) for place in found]
        return _Possible(any(one.true for one in each), all(one.false for one in each))
    return _compared(op, found[0], known)


def _compared(op: str, place: _Between, known: ColumnBounds) -> _Possible:
    if known.greatest[:1] == _NULL:
        return _Possible(true=False, false=False)
    below = known.least < (place.low if place.exact else place.high)
    above = known.greatest >= (place.high if place.exact else place.low)
    within = known.least < place.high and known.greatest >= place.low
    equal = within and place.low < place.high
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


def _places(nodes: Sequence[Node], known: ColumnBounds) -> list[_Between] | None:
    """Return where values are that are equal to literals; None if that is not certain."""
    literals = [node for node in nodes if isinstance(node, Literal)]
    place = _PLACES.get(known.kind)
    if place is None or len(literals) < len(nodes):
        return None
    try:
        found = place(literals, type_from_text(known.type))
    except (ValueError, OverflowError, InvalidOperation, RequestError):
        return None
    return None if found is None else [*found]


def _numbers(literals: Sequence[Literal], arrow: pa.DataType) -> list[_Between] | None:
    """Return places among whole numbers or decimals, where Spark compares without rounding."""
    if any(
        literal.kind is not LiteralKind.NUMBER or "e" in literal.value.lower()
        for literal in literals
    ):
        return None  # Beside a double, all are doubles.
    whole = pa.types.is_integer(arrow)
    if not whole and not pa.types.is_decimal128(arrow):
        return None
    digits = [_INT_DIGITS if whole else arrow.precision - arrow.scale]
    scales = [0 if whole else arrow.scale]
    for literal in literals:
        before, _, behind = literal.value.lstrip("-").partition(".")
        digits.append(len(before.lstrip("0")))
        scales.append(len(behind))
    if max(digits) + max(scales) > DIGITS_MAX:
        return None
    place = _whole_place if whole else _decimal_place
    return [place(Decimal(literal.value)) for literal in literals]


def _whole_place(number: Decimal) -> _Between:
    ceiling = math.ceil(number)
    if ceiling < -(2**63):
        return _Between(_LEAST, _LEAST)
    if ceiling >= 2**64:
        return _Between(_ABOVE, _ABOVE)
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
    """Return where a number is; if it is none of the column's own, Spark may round it."""
    number = float(text)
    if not math.isfinite(number):
        raise OverflowError(text)
    rounded = struct.unpack(">f", struct.pack(">f", number))[0] if short else number
    if Decimal(text) == Decimal(number) and rounded == number:
        return _Between.of(number, KeyType.FLOAT)
    # More than a neighbour on each side, whichever of the two types Spark compares in.
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
    """Return where a moment is among days: Spark takes the midnight at which a day begins."""
    if DATE_ALONE.fullmatch(text):
        return _Between.of(date.fromisoformat(text), KeyType.DATE)
    days, rest = divmod(moment_of(text) - EPOCH, _DAY)
    if not rest:
        return _Between.of(days, KeyType.DATE)
    behind = encode_value(days + 1, KeyType.DATE)
    return _Between(behind, behind)


def _moments(literals: Sequence[Literal], _arrow: pa.DataType) -> list[_Between] | None:
    if any(literal.kind not in _MOMENTS for literal in literals):
        return None
    return [_moment_place(literal.value) for literal in literals]


def _moment_place(text: str) -> _Between:
    """Return the microsecond of a moment: Spark sees no finer ones, whatever the column's unit."""
    nanos = (moment_of(text) - EPOCH) // _MICRO * _MICRO_NANOS
    low, high = (encode_value(nanos + by, KeyType.TIMESTAMP) for by in (0, _MICRO_NANOS))
    return _Between(low, high)


_TRUE = _Between.of(bool(1), KeyType.BOOL)
_PLACES: Mapping[KeyType, Callable[[Sequence[Literal], pa.DataType], list[_Between] | None]] = {
    KeyType.INT: _numbers,
    KeyType.DECIMAL: _numbers,
    KeyType.FLOAT: _floats,
    KeyType.STRING: _texts,
    KeyType.BOOL: _flags,
    KeyType.DATE: _days,
    KeyType.TIMESTAMP: _moments,
}
