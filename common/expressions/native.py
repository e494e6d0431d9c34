"""Expressions worked out by Polars, where the result is Spark's for every row.

`native_predicate` and `native_value` compile a checked tree, or return None: then Spark evaluates
it. Some results depend on the values: an overflow, a division by zero, a moment beyond Spark's
range. For these `NotNativeError` is raised, and Spark decides what happens.

A comparison with a literal becomes a comparison with whole numbers: the first stored value that is
not less than the literal, and the first that is greater. So decimals, days and moments of any unit
are compared exactly. Polars orders floats as Spark does, with NaN equal to itself and above all
others, and texts by their bytes. Logic with null is that of SQL in both.
"""

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from typing import Any

import polars as pl

from common.errors import RequestError
from common.expressions.file_pruning import folded
from common.expressions.grammar import (
    Apply,
    Case,
    Cast,
    ColumnName,
    FunctionCall,
    Literal,
    LiteralKind,
    Node,
)
from common.expressions.lexer import DIGITS_MAX
from common.expressions.operators import DATE_ALONE, NotNativeError, moment_of
from common.model.key_values import EPOCH

Evaluation = Callable[[pl.DataFrame], pl.Series]
"""Takes rows with at least the columns that are read; returns one value for each."""

_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<=", "<=>": "<=>"}
_SIGNED = (pl.Int8, pl.Int16, pl.Int32, pl.Int64)
_WIDER = {pl.UInt8: pl.Int16, pl.UInt16: pl.Int32, pl.UInt32: pl.Int64}
"""The types in which Spark receives unsigned numbers."""
_FLOATS = (pl.Float32, pl.Float64)
_KEPT_TYPES = (pl.Int32, pl.Int64, pl.Float64, pl.String)
"""Types that a common type with literals of their kind does not change."""
_CASTS = {"SMALLINT": pl.Int16, "INT": pl.Int32, "BIGINT": pl.Int64, "DOUBLE": pl.Float64}
_DAY_US = 86_400_000_000
_MICROS_MAX = (1 << 63) - 1
_MILLIS_MAX = _MICROS_MAX // 1000
_DIGITS = 10**38
_LIMITS: Mapping[Any, tuple[int, int]] = {
    pl.Int8: (-(1 << 7), (1 << 7) - 1),
    pl.Int16: (-(1 << 15), (1 << 15) - 1),
    pl.Int32: (-(1 << 31), (1 << 31) - 1),
    pl.Int64: (-(1 << 63), (1 << 63) - 1),
    pl.UInt8: (0, (1 << 8) - 1),
    pl.UInt16: (0, (1 << 16) - 1),
    pl.UInt32: (0, (1 << 32) - 1),
    pl.UInt64: (0, (1 << 64) - 1),
    pl.Int128: (1 - _DIGITS, _DIGITS - 1),
}
_LIKE_SIGN = re.compile(r"(?s)\\[%_\\]|[^\\]")
_WHOLE_DIGITS = 20
"""Digits of Spark's decimals that hold every 64-bit integer."""
_FLOAT_MEMBERS_MAX = 10
"""For longer lists Spark uses a hash set, and zeros of both signs may not be equal there."""
_EXACT_DIGITS = 15


class _RefusedError(Exception):
    """A form that only Spark evaluates."""


@dataclass(frozen=True, slots=True)
class _Value:
    """A part that is no literal."""

    dtype: pl.DataType
    of: Evaluation


def native_predicate(
    node: Node, columns: Mapping[str, pl.DataType], now_us: int
) -> Evaluation | None:
    """Return the evaluation of a predicate; None: Spark has to evaluate it.

    Args:
        node: The checked tree.
        columns: Types of the columns that may be read.
        now_us: The value of `now()`, in microseconds since the epoch.
    """
    try:
        return _Compiler(columns, now_us).predicate(node)
    except (_RefusedError, RequestError, ValueError, OverflowError):
        return None


def native_value(
    node: Node, target: pl.DataType, columns: Mapping[str, pl.DataType], now_us: int
) -> Evaluation | None:
    """Return the evaluation of a column's new value; None: Spark has to evaluate it.

    Args:
        node: The checked tree.
        target: Type of the column.
        columns: Types of the columns that may be read.
        now_us: The value of `now()`, in microseconds since the epoch.
    """
    try:
        return _Compiler(columns, now_us).assigned(node, target)
    except (_RefusedError, RequestError, ValueError, OverflowError):
        return None


class _Compiler:
    """Compiles trees over the columns of one table."""

    def __init__(self, columns: Mapping[str, pl.DataType], now_us: int) -> None:
        self._columns = columns
        self._now_us = now_us

    # ------------------------------------------------------------------------------- Predicates

    def predicate(self, node: Node) -> Evaluation:
        """Return the evaluation of a part that is true, false or null."""
        if isinstance(node, Literal) and node.kind is LiteralKind.BOOLEAN:
            flag = node.value == "true"
            return lambda rows: _repeated(flag, pl.Boolean(), rows.height)
        if isinstance(node, ColumnName):
            column = self._column(node)
            if column.dtype != pl.Boolean:
                raise _RefusedError
            return column.of
        if not isinstance(node, Apply):
            raise _RefusedError
        op, args = node.op, node.args
        if op in {"AND", "OR"}:
            parts = [self.predicate(arg) for arg in args]
            join = pl.Series.__and__ if op == "AND" else pl.Series.__or__
            return lambda rows: reduce(join, (part(rows) for part in parts))
        if op == "NOT" or op.startswith("NOT "):
            inner = self.predicate(args[0]) if op == "NOT" else self._test(op[4:], args)
            return lambda rows: ~inner(rows)
        return self._test(op, args)

    def _test(self, op: str, args: Sequence[Node]) -> Evaluation:
        """Return a comparison, a test for null or a membership."""
        args = [folded(arg, self._now_us) for arg in args]
        if op in {"IS NULL", "IS NOT NULL"}:
            return self._null_test(op, args[0])
        if op == "BETWEEN":
            low, high = self._test(">=", args[:2]), self._test("<=", [args[0], args[2]])
            return lambda rows: low(rows) & high(rows)
        if op == "IN":
            literals = [arg for arg in args[1:] if isinstance(arg, Literal)]
            return _membership(self._value(args[0]), literals)
        if op == "LIKE" and isinstance(args[1], Literal):
            return _likeness(self._text(args[0]), args[1].value)
        if op not in _FLIPPED:
            raise _RefusedError
        left, right = args
        if isinstance(left, Literal):
            op, left, right = _FLIPPED[op], right, left
        value = self._value(left)
        if isinstance(right, Literal):
            return _compared(op, value, _place(value.dtype, [right])[0])
        return _compared_values(op, value, self._value(right))

    def _null_test(self, op: str, node: Node) -> Evaluation:
        try:
            of = self._value(node).of
        except _RefusedError:
            of = self.predicate(node)
        if op == "IS NULL":
            return lambda rows: of(rows).is_null()
        return lambda rows: of(rows).is_not_null()

    # ----------------------------------------------------------------------------------- Values

    def _column(self, node: Node) -> _Value:
        if not isinstance(node, ColumnName) or len(node.parts) != 1:
            raise _RefusedError
        (name,) = node.parts
        if name not in self._columns:
            raise _RefusedError
        return _Value(self._columns[name], lambda rows: rows.get_column(name))

    def _value(self, node: Node) -> _Value:
        """Return a column, or what is computed from columns."""
        if isinstance(node, Cast) and not node.safe and node.target in _CASTS:
            return _cast(_number(self._value(node.value)), _CASTS[node.target]())
        if isinstance(node, FunctionCall):
            return self._call(node)
        if not isinstance(node, Apply):
            return self._column(node)
        if node.op == "SIGN +":
            return self._value(node.args[0])
        if node.op == "SIGN -":
            return _negated(_number(self._value(node.args[0])))
        if node.op == "||":
            return self._concatenation(node.args)
        if node.op not in {"+", "-", "*", "/"}:
            raise _RefusedError
        left, right = (self._operand(arg, node) for arg in node.args)
        return _arithmetic(node.op, left, right)

    def _concatenation(self, args: Sequence[Node]) -> _Value:
        parts = [self.assigned(arg, pl.String()) for arg in args]
        return _Value(pl.String(), lambda rows: _joined([part(rows) for part in parts]))

    def _text(self, node: Node) -> _Value:
        value = self._value(node)
        if value.dtype != pl.String:
            raise _RefusedError
        return value

    def _call(self, node: FunctionCall) -> _Value:
        """Return the value of a function."""
        args = node.args
        match node.name:
            case "coalesce":
                return self._first_value(args)
            case "concat":
                return self._concatenation(args)
            case "length":
                return _length(self._text(args[0]))
            case "upper" | "lower" as name:
                return _in_case(name, self._text(args[0]))
            case "substring":
                return _substring(self._text(args[0]), *map(_whole_number, args[1:]))
            case _:
                raise _RefusedError

    def _first_value(self, args: Sequence[Node]) -> _Value:
        """Return the first value that is not null, of a type that Spark keeps."""
        target = next(
            (self._value(arg).dtype for arg in args if not isinstance(arg, Literal)), None
        )
        if target not in _KEPT_TYPES:
            raise _RefusedError
        parts = [self._branch(arg, target) for arg in args]
        return _Value(target, lambda rows: reduce(pl.Series.fill_null, (of(rows) for of in parts)))

    def _operand(self, node: Node, parent: Apply) -> _Value:
        """Return an operand of arithmetic; a literal has the type that Spark gives it."""
        if not isinstance(node, Literal):
            return _number(self._value(node))
        if node.kind is not LiteralKind.NUMBER:
            raise _RefusedError
        others = [self._value(arg) for arg in parent.args if not isinstance(arg, Literal)]
        if any(other.dtype in _FLOATS for other in others) or "e" in node.value.lower():
            return _constant_value(_double(node.value), pl.Float64())
        if "." in node.value or not -(1 << 63) <= int(node.value) < 1 << 63:
            raise _RefusedError  # Decimals.
        short = -(1 << 31) <= int(node.value) < 1 << 31
        return _constant_value(int(node.value), pl.Int32() if short else pl.Int64())

    # -------------------------------------------------------------------------- Values of columns

    def assigned(self, node: Node, target: pl.DataType) -> Evaluation:
        """Return the evaluation of a value in the type of its column."""
        node = folded(node, self._now_us)
        if isinstance(node, Literal):
            value = _constant(node, target)
            return lambda rows: _repeated(value, target, rows.height)
        if isinstance(node, Case):
            return self._case(node, target)
        if isinstance(node, FunctionCall) and node.name == "coalesce":
            parts = [self._branch(arg, target) for arg in node.args]
            return lambda rows: reduce(pl.Series.fill_null, (part(rows) for part in parts))
        return _cast(self._value(node), target, exact=False).of

    def _case(self, node: Case, target: pl.DataType) -> Evaluation:
        tests, values = [], []
        for condition, result in node.branches:
            whole = condition
            if node.operand is not None:
                whole = Apply("=", (node.operand, condition), node.span, node.depth)
            tests.append(self.predicate(whole))
            values.append(self._branch(result, target))
        otherwise = _nulls(target)
        if node.otherwise is not None:
            otherwise = self._branch(node.otherwise, target)

        def chosen(rows: pl.DataFrame) -> pl.Series:
            result = otherwise(rows)
            for test, value in reversed(list(zip(tests, values, strict=True))):
                result = value(rows).zip_with(test(rows).fill_null(value=False), result)
            return result

        return chosen

    def _branch(self, node: Node, target: pl.DataType) -> Evaluation:
        """Return one of several values, which Spark first converts to a common type."""
        if isinstance(node, Literal):
            if node.kind is LiteralKind.NUMBER and len(node.value) > _EXACT_DIGITS:
                raise _RefusedError
            return self.assigned(node, target)
        value = self._value(node)
        if value.dtype != target and not (target == pl.Float64 and value.dtype in _SIGNED):
            raise _RefusedError
        return _cast(value, target, exact=False).of


# ------------------------------------------------------------------------------------------ Columns


def _repeated(value: object, dtype: pl.DataType, rows: int) -> pl.Series:
    if dtype.is_temporal() and value is not None:
        physical = pl.Int32() if dtype == pl.Date else pl.Int64()
        return pl.Series([value], dtype=physical).new_from_index(0, rows).cast(dtype)
    return pl.Series([value], dtype=dtype).new_from_index(0, rows)


def _constant_value(value: float, dtype: pl.DataType) -> _Value:
    return _Value(dtype, lambda rows: _repeated(value, dtype, rows.height))


def _nulls(dtype: pl.DataType) -> Evaluation:
    return lambda rows: _repeated(None, dtype, rows.height)


def _joined(parts: Sequence[pl.Series]) -> pl.Series:
    """Return texts joined row by row; null if one of them is null."""
    return pl.select(pl.concat_str(parts, ignore_nulls=False)).to_series()


def _length(text: _Value) -> _Value:
    of = text.of
    return _Value(pl.Int32(), lambda rows: of(rows).str.len_chars().cast(pl.Int32))


def _in_case(name: str, text: _Value) -> _Value:
    """Return a text in upper or lower case; Java and Polars know different versions of Unicode."""
    of = text.of

    def changed(rows: pl.DataFrame) -> pl.Series:
        values = of(rows)
        if (values.str.len_bytes() != values.str.len_chars()).any():
            raise NotNativeError("a text has other characters than those of ASCII")
        return values.str.to_uppercase() if name == "upper" else values.str.to_lowercase()

    return _Value(pl.String(), changed)


def _whole_number(node: Node) -> int:
    if isinstance(node, Literal) and node.kind is LiteralKind.NUMBER and node.value.isdecimal():
        return int(node.value)
    raise _RefusedError


def _substring(text: _Value, start: int, length: int | None = None) -> _Value:
    """Return a part of a text; both 0 and 1 are its beginning."""
    if max(start, length or 0) > _LIMITS[pl.Int32][1]:
        raise _RefusedError
    of, offset = text.of, max(0, start - 1)
    return _Value(pl.String(), lambda rows: of(rows).str.slice(offset, length))


def _likeness(text: _Value, pattern: str) -> Evaluation:
    """Return a test of texts by a pattern with `%`, `_` and escaped characters."""
    signs = _LIKE_SIGN.findall(pattern)
    if "".join(signs) != pattern:
        raise _RefusedError
    wild = {"%": "(?s:.*)", "_": "(?s:.)"}
    regex = "".join(wild.get(sign) or re.escape(sign[-1]) for sign in signs)
    of = text.of
    plain = "".join(sign[-1] for sign in signs if sign not in wild)
    shape = re.sub("x+", "x", "".join(sign if sign in wild else "x" for sign in signs))
    match shape:
        case "" | "x":
            return lambda rows: of(rows) == plain
        case "x%":
            return lambda rows: of(rows).str.starts_with(plain)
        case "%x":
            return lambda rows: of(rows).str.ends_with(plain)
        case "%x%":
            return lambda rows: of(rows).str.contains(plain, literal=True)
        case _:
            return lambda rows: of(rows).str.contains(rf"\A{regex}\z")


def _number(value: _Value) -> _Value:
    """Return a number in the type that Spark receives."""
    for unsigned, wider in _WIDER.items():
        if value.dtype == unsigned:
            return _cast(value, wider())
    if value.dtype not in _SIGNED and value.dtype not in _FLOATS:
        raise _RefusedError
    return value


def _limits(dtype: pl.DataType) -> tuple[int, int]:
    return _LIMITS[dtype.base_type()]


def _cast(value: _Value, target: pl.DataType, *, exact: bool = True) -> _Value:
    """Return a value in another type.

    Args:
        value: The value.
        target: The type.
        exact: Whether numbers must keep their value; a column may round them.
    """
    of, dtype = value.of, value.dtype
    if isinstance(dtype, pl.Datetime) and isinstance(target, pl.Datetime):
        if dtype.time_unit != target.time_unit:
            raise _RefusedError
        factor = 1000 if dtype.time_unit == "ns" else 1
        return _Value(target, lambda rows: (_ticks(of(rows)) // factor * factor).cast(target))
    if dtype == target:
        return value
    if dtype in _SIGNED and target in _SIGNED:
        low, high = _limits(target)
        if exact and _limits(dtype)[1] > high:
            raise _RefusedError
        return _Value(target, lambda rows: _within(of(rows), low, high).cast(target))
    if target == pl.Float64 and (dtype in _SIGNED or dtype == pl.Float32):
        return _Value(target, lambda rows: of(rows).cast(target))
    if target == pl.Float32 and not exact and (dtype in _SIGNED or dtype == pl.Float64):
        return _Value(target, lambda rows: of(rows).cast(target))
    raise _RefusedError


def _within(numbers: pl.Series, low: int, high: int) -> pl.Series:
    """Return numbers that are all in a range.

    Raises:
        NotNativeError: One is not.
    """
    ends = _ends(numbers)
    if ends and (ends[0] < low or ends[1] > high):
        raise NotNativeError(f"a number is not between {low} and {high}")
    return numbers


def _ends(numbers: pl.Series) -> list[int]:
    """Return the least and the greatest of whole numbers; empty: all are null."""
    ends: Any = [numbers.min(), numbers.max()]
    return ends if ends[0] is not None else []


def _ticks(times: pl.Series) -> pl.Series:
    """Return days or moments as whole numbers in the unit of their type.

    Raises:
        NotNativeError: A moment is too distant for microseconds.
    """
    ticks = times.to_physical()
    if isinstance(times.dtype, pl.Datetime) and times.dtype.time_unit == "ms":
        return _within(ticks, -_MILLIS_MAX, _MILLIS_MAX)
    return ticks


def _micros(times: pl.Series) -> pl.Series:
    """Return days or moments as the microseconds that Spark receives."""
    ticks = _ticks(times).cast(pl.Int64)
    if times.dtype == pl.Date:
        return ticks * _DAY_US
    assert isinstance(times.dtype, pl.Datetime)
    if times.dtype.time_unit == "ns":
        return ticks // 1000
    return ticks * 1000 if times.dtype.time_unit == "ms" else ticks


# --------------------------------------------------------------------------------------- Arithmetic


def _negated(value: _Value) -> _Value:
    of = value.of
    if value.dtype in _FLOATS:
        return _Value(value.dtype, lambda rows: -of(rows))
    low, high = _limits(value.dtype)
    return _Value(value.dtype, lambda rows: -_within(of(rows), low + 1, high))


def _arithmetic(op: str, left: _Value, right: _Value) -> _Value:
    """Return a sum, difference, product or quotient; an overflow is left to Spark."""
    if op == "/" or left.dtype in _FLOATS or right.dtype in _FLOATS:
        single = op != "/" and left.dtype == right.dtype == pl.Float32
        dtype: pl.DataType = pl.Float32() if single else pl.Float64()
        one, other = (_cast(value, dtype).of for value in (left, right))
        if op == "/":
            return _Value(dtype, lambda rows: _divided(one(rows), other(rows)))
        return _Value(dtype, lambda rows: _OPS[op](one(rows), other(rows)))
    dtype = max(left.dtype, right.dtype, key=lambda number_type: _limits(number_type)[1])
    one, other = (_cast(value, dtype).of for value in (left, right))
    return _Value(dtype, lambda rows: _whole(op, one(rows), other(rows)))


_OPS: Mapping[str, Callable[[pl.Series, pl.Series], pl.Series]] = {
    "+": pl.Series.__add__,
    "-": pl.Series.__sub__,
    "*": pl.Series.__mul__,
}


def _divided(one: pl.Series, other: pl.Series) -> pl.Series:
    if (other == 0).any():
        raise NotNativeError("a division by zero")
    return one / other


def _whole(op: str, one: pl.Series, other: pl.Series) -> pl.Series:
    """Return the result for whole numbers of one type, if no row can overflow."""
    low, high = _limits(one.dtype)
    corners = [{"+": a + b, "-": a - b, "*": a * b}[op] for a in _ends(one) for b in _ends(other)]
    if corners and (min(corners) < low or max(corners) > high):
        raise NotNativeError("a sum or product that may overflow")
    return _OPS[op](one, other)


# -------------------------------------------------------------------------------------- Comparisons


@dataclass(frozen=True, slots=True)
class _Place:
    """A literal among the stored values of a column.

    Whole numbers: the first value that is not less, and the first that is greater. Floats and
    texts: the literal itself.
    """

    low: int = 0
    above: int = 0
    plain: float | str | None = None


def _place(dtype: pl.DataType, literals: Sequence[Literal]) -> list[_Place]:
    """Return the positions of literals that are converted to one type with a column."""
    kinds = {literal.kind for literal in literals}
    if kinds == {LiteralKind.NUMBER}:
        return _number_places(dtype, [literal.value for literal in literals])
    if dtype == pl.String and kinds == {LiteralKind.STRING}:
        return [_Place(plain=literal.value) for literal in literals]
    if dtype == pl.Boolean and kinds == {LiteralKind.BOOLEAN}:
        flags = [int(literal.value == "true") for literal in literals]
        return [_Place(flag, flag + 1) for flag in flags]
    if kinds <= {LiteralKind.STRING, LiteralKind.DATE, LiteralKind.TIMESTAMP}:
        return [_moment_place(dtype, _micros_of(literal.value)) for literal in literals]
    raise _RefusedError


def _number_places(dtype: pl.DataType, texts: Sequence[str]) -> list[_Place]:
    doubles = any("e" in text.lower() for text in texts)
    if dtype in _FLOATS or (doubles and dtype in _SIGNED):
        return [_Place(plain=_double(text)) for text in texts]
    if doubles:
        raise _RefusedError
    scale = dtype.scale if isinstance(dtype, pl.Decimal) else 0
    if not isinstance(dtype, pl.Decimal) and not dtype.is_integer():
        raise _RefusedError
    before = [dtype.precision - scale if isinstance(dtype, pl.Decimal) else _WHOLE_DIGITS]
    after = [scale]
    for text in texts:
        whole, _, fraction = text.lstrip("-").partition(".")
        before.append(len(whole.lstrip("0")))
        after.append(len(fraction))
    if max(before) + max(after) > DIGITS_MAX:
        raise _RefusedError  # Spark rounds.
    return [_exact_place(Fraction(text) * 10**scale) for text in texts]


def _exact_place(number: Fraction) -> _Place:
    return _Place(math.ceil(number), math.floor(number) + 1)


def _moment_place(dtype: pl.DataType, micros: int) -> _Place:
    if dtype == pl.Date:
        return _exact_place(Fraction(micros, _DAY_US))
    if not isinstance(dtype, pl.Datetime):
        raise _RefusedError
    if dtype.time_unit == "ns":  # Values are rounded down to microseconds.
        return _Place(micros * 1000, (micros + 1) * 1000)
    return _exact_place(Fraction(micros, 1000 if dtype.time_unit == "ms" else 1))


def _micros_of(text: str) -> int:
    since = moment_of(text) - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _compared(op: str, value: _Value, place: _Place) -> Evaluation:
    of, stored = value.of, _stored(value.dtype, place)
    if place.plain is None:

        def test(rows: pl.DataFrame) -> pl.Series:
            return _against(op, stored(of(rows)), place)

    else:
        plain = place.plain

        def test(rows: pl.DataFrame) -> pl.Series:
            return _TESTS[op](stored(of(rows)), plain)

    if op == "<=>":
        return lambda rows: test(rows).fill_null(value=False)
    return test


def _stored(dtype: pl.DataType, place: _Place) -> Callable[[pl.Series], pl.Series]:
    """Return how values become what a place refers to."""
    if isinstance(place.plain, float):
        return lambda values: values.cast(pl.Float64)
    if place.plain is not None:
        return lambda values: values
    if dtype == pl.Boolean:
        return lambda values: values.cast(pl.UInt8)
    if dtype.is_temporal():
        return _ticks
    return pl.Series.to_physical


def _less(numbers: pl.Series, bound: int) -> pl.Series:
    low, high = _limits(numbers.dtype)
    if low < bound <= high:
        return numbers < bound
    return numbers != numbers if bound <= low else numbers == numbers


def _against(op: str, numbers: pl.Series, place: _Place) -> pl.Series:
    match op:
        case "<":
            return _less(numbers, place.low)
        case "<=":
            return _less(numbers, place.above)
        case ">":
            return ~_less(numbers, place.above)
        case ">=":
            return ~_less(numbers, place.low)
        case "<>":
            return ~_against("=", numbers, place)
        case _:
            return ~_less(numbers, place.low) & _less(numbers, place.above)


_TESTS: Mapping[str, Callable[[pl.Series, object], pl.Series]] = {
    "=": lambda values, other: values == other,
    "<=>": lambda values, other: values == other,
    "<>": lambda values, other: values != other,
    "<": lambda values, other: values < other,
    "<=": lambda values, other: values <= other,
    ">": lambda values, other: values > other,
    ">=": lambda values, other: values >= other,
}


def _membership(value: _Value, literals: Sequence[Literal]) -> Evaluation:
    places = _place(value.dtype, literals)
    if any(isinstance(place.plain, float) for place in places):
        if len(places) > _FLOAT_MEMBERS_MAX:
            raise _RefusedError
        tests = [_compared("=", value, place) for place in places]
        return lambda rows: reduce(pl.Series.__or__, (test(rows) for test in tests))
    of, stored = value.of, _stored(value.dtype, places[0])
    if places[0].plain is not None:
        texts = [place.plain for place in places]
        return lambda rows: of(rows).is_in(texts)

    def test(rows: pl.DataFrame) -> pl.Series:
        numbers = stored(of(rows))
        low, high = _limits(numbers.dtype)
        members = {n for place in places for n in range(place.low, place.above)}
        fitting = [n for n in sorted(members) if low <= n <= high]
        if not fitting:
            return numbers != numbers
        return numbers.is_in(pl.Series(fitting, dtype=numbers.dtype).implode())

    return test


def _compared_values(op: str, left: _Value, right: _Value) -> Evaluation:
    """Return a comparison of two values that Spark converts to one type."""
    one, other = _as_comparable(left, right), _as_comparable(right, left)
    if op == "<=>":
        return lambda rows: one(rows).eq_missing(other(rows))
    return lambda rows: _TESTS[op](one(rows), other(rows))


def _as_comparable(value: _Value, other: _Value) -> Evaluation:
    of = value.of
    if value.dtype.is_temporal() and other.dtype.is_temporal():
        return lambda rows: _micros(of(rows))
    if value.dtype == other.dtype and value.dtype in (pl.String, pl.UInt64):
        return of
    if value.dtype == other.dtype == pl.Boolean:
        return lambda rows: of(rows).cast(pl.UInt8)
    numbers = [_number(operand).dtype for operand in (value, other)]
    if numbers[0] == numbers[1]:
        return _number(value).of
    if any(dtype in _FLOATS for dtype in numbers):
        return _cast(_number(value), pl.Float64()).of
    return _cast(_number(value), pl.Int64()).of


# ---------------------------------------------------------------------------------------- Constants


def _double(text: str) -> float:
    """Return a number as Spark's double; only one with an exponent may be a negative zero."""
    number = float(text)
    if not math.isfinite(number):
        raise OverflowError(text)
    return number if "e" in text.lower() else number + 0.0


def _constant(literal: Literal, target: pl.DataType) -> object:
    """Return a literal as a value of a column; days and moments as whole numbers."""
    match literal.kind:
        case LiteralKind.NULL:
            return None
        case LiteralKind.NUMBER:
            return _constant_number(literal.value, target)
        case LiteralKind.BOOLEAN if target == pl.Boolean:
            return literal.value == "true"
        case LiteralKind.STRING if target == pl.String:
            return literal.value
        case LiteralKind.STRING | LiteralKind.DATE if target == pl.Date:
            if DATE_ALONE.fullmatch(literal.value):
                return _micros_of(literal.value) // _DAY_US
        case LiteralKind.STRING | LiteralKind.DATE | LiteralKind.TIMESTAMP:
            return _constant_moment(_micros_of(literal.value), target)
        case _:
            pass
    raise _RefusedError


def _constant_moment(micros: int, target: pl.DataType) -> int:
    if not isinstance(target, pl.Datetime):
        raise _RefusedError
    if target.time_unit == "ms":
        return micros // 1000
    ticks = micros * 1000 if target.time_unit == "ns" else micros
    if abs(ticks) > _MICROS_MAX:
        raise _RefusedError
    return ticks


def _constant_number(text: str, target: pl.DataType) -> object:
    if target in _SIGNED and "." not in text and "e" not in text.lower():
        low, high = _limits(target)
        if low <= int(text) <= high:
            return int(text)
    if target == pl.Float64:
        return _double(text)
    if target == pl.Float32:
        short = struct.unpack(">f", struct.pack(">f", _double(text)))[0]
        if short == _double(text) and Decimal(text) == Decimal(short):
            return _double(text)
    if isinstance(target, pl.Decimal) and "e" not in text.lower():
        scaled = Fraction(text) * 10**target.scale
        if scaled.denominator == 1 and abs(scaled) < 10 ** (target.precision or 0):
            return Decimal(text)
    raise _RefusedError
