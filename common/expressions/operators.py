"""Literals and operators as typed SQL: operand kinds, result kind, and SQL text.

Numbers, dates and timestamps are validated to the last digit. Patterns have a known cost: LIKE, and
a restricted language of regular expressions.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType

import pyarrow as pa
from pyarrow import types as is_type

from common.expressions.grammar import CAST_TYPES, Apply, Literal, LiteralKind, Node
from common.expressions.lexer import (
    DIGITS_MAX,
    PATTERN_CHARS_MAX,
    PATTERN_REPEATS_MAX,
    PATTERN_WAYS_MAX,
    SourceText,
    TextSpan,
    quoted_text,
)
from common.rows.schema import type_from_text, type_to_text

# The value types of expressions, and the results of parsing.
#
# An `Expression` is SQL that is safe to run, with the session settings that it requires.


# -------------------------------------------------------------------------------------------- Types


class ValueKind(StrEnum):
    """A family of types that can be compared with each other; messages show the value."""

    NULL = "null"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOATING = "floating point"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    DAYS = "interval of days or longer"
    TIME = "interval shorter than a day"
    STRUCT = "struct"
    OTHER = "of a type that expressions cannot use"


NUMBERS = (ValueKind.INTEGER, ValueKind.DECIMAL, ValueKind.FLOATING)
"""In Spark's widening order, narrowest first."""
TIMES = (ValueKind.DATE, ValueKind.TIMESTAMP)
INTERVALS = (ValueKind.DAYS, ValueKind.TIME)
SCALARS = (ValueKind.BOOLEAN, *NUMBERS, ValueKind.STRING, ValueKind.BINARY, *TIMES)

CAST_KINDS = {
    "BOOLEAN": ValueKind.BOOLEAN,
    "TINYINT": ValueKind.INTEGER,
    "SMALLINT": ValueKind.INTEGER,
    "INT": ValueKind.INTEGER,
    "BIGINT": ValueKind.INTEGER,
    "DECIMAL": ValueKind.DECIMAL,
    "FLOAT": ValueKind.FLOATING,
    "DOUBLE": ValueKind.FLOATING,
    "STRING": ValueKind.STRING,
    "DATE": ValueKind.DATE,
    "TIMESTAMP": ValueKind.TIMESTAMP,
}
assert CAST_KINDS.keys() == CAST_TYPES, "every type that can be named has a kind"


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a value.

    Attributes:
        kind: Its family.
        fields: Of a struct; empty otherwise.
    """

    kind: ValueKind
    fields: tuple[tuple[str, "ValueType"], ...] = ()


_KINDS = (
    (is_type.is_null, ValueKind.NULL),
    (is_type.is_boolean, ValueKind.BOOLEAN),
    (is_type.is_uint64, ValueKind.DECIMAL),
    (is_type.is_integer, ValueKind.INTEGER),
    (is_type.is_float16, ValueKind.OTHER),
    (is_type.is_floating, ValueKind.FLOATING),
    (is_type.is_decimal128, ValueKind.DECIMAL),
    (is_type.is_string, ValueKind.STRING),
    (is_type.is_binary, ValueKind.BINARY),
    (is_type.is_fixed_size_binary, ValueKind.BINARY),
    (is_type.is_date, ValueKind.DATE),
    (is_type.is_timestamp, ValueKind.TIMESTAMP),
)
_SPARK_NAMES = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY",
    "date": "DATE",
}


def type_of_column(text: str) -> ValueType:
    """Return the type of a column from its text form."""
    return _value_type(type_from_text(text))


def _value_type(arrow: pa.DataType) -> ValueType:
    if is_type.is_struct(arrow):
        fields = tuple((field.name, _value_type(field.type)) for field in arrow)
        return ValueType(ValueKind.STRUCT, fields)
    return ValueType(next((kind for belongs, kind in _KINDS if belongs(arrow)), ValueKind.OTHER))


def spark_type(text: str) -> str | None:
    """Return Spark's name of a column's type, or None if expressions cannot produce its values."""
    arrow = type_from_text(text)
    if is_type.is_timestamp(arrow):
        return "TIMESTAMP"
    if is_type.is_decimal128(arrow):
        return f"DECIMAL({arrow.precision},{arrow.scale})"
    return _SPARK_NAMES.get(type_to_text(arrow))


def coarse_unit(text: str) -> str | None:
    """Return the finest unit of a timestamp column, if Spark's is finer."""
    arrow = type_from_text(text)
    units = {"s": "SECOND", "ms": "MILLISECOND"}
    return units.get(arrow.unit) if is_type.is_timestamp(arrow) else None


def common_kind(kinds: Iterable[ValueKind]) -> ValueKind | None:
    """Return the kind that all values convert to without a change, or None."""
    common = ValueKind.NULL
    for kind in kinds:
        if common in (ValueKind.NULL, kind):
            common = kind
        elif kind is ValueKind.NULL:
            continue
        elif family := next((f for f in (NUMBERS, TIMES) if kind in f and common in f), None):
            common = max(common, kind, key=family.index)
        else:
            return None
    return common if common in (ValueKind.NULL, *SCALARS) else None


# ----------------------------------------------------------------------------- What parsing returns


NOW_PLACEHOLDER = ":now"
"""Placeholder in the SQL for the fixed moment of an attempt."""

# The SQL is generated, so only these three forms can contain the placeholder's letters.
_NOW_OR_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|`(?:[^`]|``)*`|:now\b")

SPARK_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "spark.sql.ansi.enabled": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
        "spark.sql.parser.escapedStringLiterals": "false",
        "spark.sql.parser.quotedRegexColumnNames": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.timestampType": "TIMESTAMP_LTZ",
        "spark.sql.variable.substitute": "false",
    }
)
"""Session settings for the documented behaviour of expressions.

ANSI: an overflow, a division by zero and an invalid cast fail the job instead of returning
null.
"""


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression over the columns of one table.

    Attributes:
        sql: Spark SQL, generated from the checked tree; a predicate's is never null.
        columns: The top-level columns it reads, sorted by name.
        text: The user's text, for messages; never run.
        node: The checked tree.
    """

    sql: str
    columns: tuple[str, ...]
    text: str
    node: Node = field(repr=False, compare=False)

    def at(self, now_us: int) -> str:
        """Return the SQL with a fixed value of `now()`.

        Args:
            now_us: Microseconds since the epoch; one value for all tasks of an attempt.
        """
        fixed = f"timestamp_micros({int(now_us)})"
        return _NOW_OR_QUOTED.sub(
            lambda match: fixed if match.group() == NOW_PLACEHOLDER else match.group(), self.sql
        )


class NotNativeError(Exception):
    """A value for which Spark decides the result, or the error."""


@dataclass(frozen=True, slots=True)
class ColumnAssignment:
    """A column and its new value; the SQL has the column's type, or fails."""

    column: str
    expression: Expression


# ----------------------------------------------------------------------------------------- Literals


DATE_ALONE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)


def literal_sql(source: SourceText, literal: Literal) -> tuple[str, ValueKind]:
    """Return a literal as SQL, and its kind.

    Raises:
        RequestError: The number, day or timestamp does not exist.
    """
    match literal.kind:
        case LiteralKind.NUMBER:
            return _number_sql(source, literal)
        case LiteralKind.STRING:
            return quoted_text(literal.value), ValueKind.STRING
        case LiteralKind.BOOLEAN:
            return literal.value.upper(), ValueKind.BOOLEAN
        case LiteralKind.NULL:
            return "NULL", ValueKind.NULL
        case LiteralKind.DATE:
            return date_sql(source, literal.value, literal.span), ValueKind.DATE
        case LiteralKind.TIMESTAMP:
            return timestamp_sql(source, literal.value, literal.span), ValueKind.TIMESTAMP


def _number_sql(source: SourceText, literal: Literal) -> tuple[str, ValueKind]:
    text = literal.value
    closed = f"({text})" if text.startswith("-") else text
    if "e" in text.lower():
        # Longer numbers are not sensible, and float() is slow for them.
        if len(text) > 2 * DIGITS_MAX or not math.isfinite(float(text)):
            raise source.refusal(literal.span, "the number is too large", "expected a double")
        return closed, ValueKind.FLOATING
    whole, _, fraction = text.lstrip("-").partition(".")
    if len(whole.lstrip("0")) + len(fraction) > DIGITS_MAX:
        expected = f"expected at most {DIGITS_MAX}"
        raise source.refusal(literal.span, "the number has too many digits", expected)
    if not -(2**63) <= Decimal(text) < 2**63:
        # In a comparison with a whole number, Spark folds a literal beyond bigint to true or false
        # and ignores that the number may be null. It does not do so for a cast.
        digits = len(whole.lstrip("0")) + len(fraction)
        return f"CAST({text} AS DECIMAL({digits},{len(fraction)}))", ValueKind.DECIMAL
    return closed, ValueKind.DECIMAL if fraction else ValueKind.INTEGER


def date_sql(source: SourceText, text: str, span: TextSpan) -> str:
    """Return a day as SQL.

    Raises:
        RequestError: The text is not a day.
    """
    try:
        # The pattern comes first, because fromisoformat() also accepts weeks and other spellings.
        day = date.fromisoformat(text if DATE_ALONE.fullmatch(text) else "")
    except ValueError as error:
        raise source.refusal(span, "this is not a date", "expected '2024-12-31'") from error
    return f"DATE '{day.isoformat()}'"


def moment_of(text: str) -> datetime:
    """Return the moment of a text, in UTC.

    Raises:
        ValueError: The text is not a moment.
        OverflowError: It is out of range.
    """
    moment = datetime.fromisoformat(text if _TIMESTAMP.fullmatch(text) else "")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


def timestamp_sql(source: SourceText, text: str, span: TextSpan) -> str:
    """Return a moment as SQL; the default zone is UTC, the default time midnight.

    Raises:
        RequestError: The text is not a moment.
    """
    try:
        moment = moment_of(text)
    except (ValueError, OverflowError) as error:
        expected = "expected '2024-12-31 23:59:59.999999', followed by Z or +01:00 if not UTC"
        raise source.refusal(span, "this is not a timestamp", expected) from error
    return f"TIMESTAMP '{moment.replace(tzinfo=None).isoformat(' ')}Z'"


# ---------------------------------------------------------------------------------------- Typed SQL


@dataclass(frozen=True, slots=True)
class TypedSql:
    """SQL that is closed, for example by brackets, so that it can be used as any operand."""

    sql: str
    type: ValueType
    node: Node

    @property
    def kind(self) -> ValueKind:
        """The family of its type."""
        return self.type.kind

    @property
    def span(self) -> TextSpan:
        """Its position in the user's text."""
        return self.node.span

    @property
    def text_literal(self) -> str | None:
        """The value of a string literal, or None if it is something else."""
        literal = isinstance(self.node, Literal) and self.node.kind is LiteralKind.STRING
        return self.node.value if isinstance(self.node, Literal) and literal else None


def typed_sql(sql: str, kind: ValueKind, node: Node) -> TypedSql:
    """Return a checked part of a kind."""
    return TypedSql(sql, ValueType(kind), node)


def describe(source: SourceText, part: TypedSql) -> str:
    """Return `name is string`, for messages."""
    is_null = part.kind is ValueKind.NULL
    return f"{source.of(part.span)} is {'the null literal' if is_null else part.kind}"


def as_kind(source: SourceText, part: TypedSql, kind: ValueKind) -> TypedSql:
    """Return a part converted to a kind from `common_kind`, or a time to another kind of time."""
    text = part.text_literal
    if kind in TIMES and text is not None:
        write = date_sql if kind is ValueKind.DATE else timestamp_sql
        return typed_sql(write(source, text, part.span), kind, part.node)
    if kind in TIMES and part.kind in TIMES and part.kind is not kind:
        return typed_sql(f"CAST({part.sql} AS {kind.upper()})", kind, part.node)
    return part


def to_common_kind(
    source: SourceText, parts: Sequence[TypedSql], *, nulls: bool = False
) -> tuple[ValueKind, list[TypedSql]]:
    """Return the kind in which the parts are compared, and the parts converted to it.

    A string literal that is compared with a time is parsed as a time.

    Args:
        source: The text, for messages.
        parts: The parts, at least one.
        nulls: Whether the null literal may be among them.
    """
    if any(part.kind in TIMES for part in parts):
        parts = [_as_time(part) for part in parts]
    for part in parts:
        if part.kind is ValueKind.NULL and not nulls:
            fact = "a comparison with null is never true"
            raise source.refusal(part.span, fact, "expected is null, is not null or a value")
    for count in range(1, len(parts) + 1):
        if common_kind(part.kind for part in parts[:count]) is None:
            raise _unlike(source, parts[0], parts[count - 1])
    kind = common_kind(part.kind for part in parts)
    assert kind is not None, "every prefix has a common kind"
    return kind, [as_kind(source, part, kind) for part in parts]


def _as_time(part: TypedSql) -> TypedSql:
    if part.text_literal is None:
        return part
    kind = ValueKind.DATE if DATE_ALONE.fullmatch(part.text_literal) else ValueKind.TIMESTAMP
    return replace(part, type=ValueType(kind))


def _unlike(source: SourceText, first: TypedSql, other: TypedSql) -> Exception:
    if first is other:
        return source.refusal(first.span, describe(source, first), "expected a scalar value")
    fact = f"{describe(source, first)}, but {describe(source, other)}"
    return source.refusal(
        other.span, fact, "expected values of one kind; cast(… as type) makes one"
    )


# ---- Patterns whose cost is known
#
# Spark matches both by backtracking, so that `(a+)+b` takes time exponential in the value. A
# pattern is therefore refused unless its choices have few combinations. `?`, `{m,n}` and `|`
# multiply along a sequence. An unbounded repetition may contain no choice, and at most one other
# may follow it.
#
#     sequence    ways multiply, repetitions add
#     a|b         ways add, repetitions: the larger
#     x?  x{m,n}  ways: one for each count
#     x*  x+      one repetition; x must have no choice of its own


_COUNTED_MAX = 100
_GROUPS_MAX = 10
_ATOM = re.compile(
    r"\[\^?(?:[^\[\]\\^&]|\\[dDwWsStnr\\.\[\]^-])+\]"  # a class of characters
    r"|\\[dDwWsSbtnr]|\\[.\\^$|?*+()\[\]{}/-]"  # a class by name; a sign as itself
    r"|[^\\^$|?*+()\[\]{}]|[.^$]"
)
_COUNTS = re.compile(r"([?*+])\??|\{([0-9]{1,3})(?:(,)([0-9]{1,3})?)?\}\??")
_OPEN = re.compile(r"\((\?:)?(?!\?)")


def require_like(source: SourceText, pattern: str, span: TextSpan) -> None:
    """Refuse a LIKE pattern that is too long, too costly or malformed."""
    _require_short(source, pattern, span)
    bare = re.sub(r"\\[\\%_]", "", pattern)
    if "\\" in bare:
        expected = r"expected \%, \_ or \\ (in a string, \\\\)"
        raise source.refusal(span, "the pattern has a backslash before another sign", expected)
    if bare.count("%") > PATTERN_REPEATS_MAX + 1:
        expected = f"expected at most {PATTERN_REPEATS_MAX + 1}; join several patterns with and"
        raise source.refusal(span, "the pattern has too many %", expected)


def require_regex(source: SourceText, pattern: str, span: TextSpan) -> None:
    """Refuse a regular expression that is too long, too costly or not in the allowed language."""
    _require_short(source, pattern, span)
    try:
        cost = _RegexReader(pattern).whole()
        re.compile(pattern)  # Detects invalid ranges such as [z-a].
    except (ValueError, re.error) as error:
        expected = (
            r"expected letters, classes, groups, |, ?, *, + and {m,n}; signs after a \ (raw: r'\.')"
        )
        raise source.refusal(span, f"the pattern {error}", expected) from error
    if cost.ways > PATTERN_WAYS_MAX or cost.repeats > PATTERN_REPEATS_MAX:
        fact = "the pattern can match in too many ways"
        expected = f"expected at most {PATTERN_REPEATS_MAX} of * and +, and fewer choices"
        raise source.refusal(span, fact, expected)


def _require_short(source: SourceText, pattern: str, span: TextSpan) -> None:
    if len(pattern) > PATTERN_CHARS_MAX:
        fact = f"the pattern has {len(pattern)} characters"
        raise source.refusal(span, fact, f"expected at most {PATTERN_CHARS_MAX}")


@dataclass(frozen=True, slots=True)
class _Cost:
    """The number of ways in which a part can match, and its number of unbounded repetitions."""

    ways: int = 1
    repeats: int = 0

    def then(self, other: "_Cost") -> "_Cost":
        # Values above the bound stay there, so that numbers do not grow endlessly.
        return _Cost(
            min(self.ways * other.ways, PATTERN_WAYS_MAX + 1), self.repeats + other.repeats
        )

    def either(self, other: "_Cost") -> "_Cost":
        return _Cost(
            min(self.ways + other.ways, PATTERN_WAYS_MAX + 1), max(self.repeats, other.repeats)
        )


class _RegexReader:
    """Parses a pattern once, from left to right; `_at` is the index of the next character."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._groups = 0

    def whole(self) -> _Cost:
        """Return the cost of the pattern."""
        if self._pattern.startswith("(?i)"):
            self._at = 4
        cost = self._choice()
        if self._at < len(self._pattern):
            raise ValueError("closes a group that is not open")
        return cost

    def _choice(self) -> _Cost:
        cost = self._sequence()
        while self._pattern.startswith("|", self._at):
            self._at += 1
            cost = cost.either(self._sequence())
        return cost

    def _sequence(self) -> _Cost:
        cost = _Cost()
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            cost = cost.then(self._repeated(self._piece()))
        return cost

    def _piece(self) -> _Cost:
        if atom := _OPEN.match(self._pattern, self._at):
            self._groups += 1
            if self._groups > _GROUPS_MAX:
                raise ValueError(f"has more than {_GROUPS_MAX} groups")
            self._at = atom.end()
            cost = self._choice()
            if not self._pattern.startswith(")", self._at):
                raise ValueError("has a group that does not close")
            self._at += 1
            return cost
        atom = _ATOM.match(self._pattern, self._at)
        if atom is None:
            raise ValueError(
                f"has {self._pattern[self._at : self._at + 2]} that is not known there"
            )
        self._at = atom.end()
        return _Cost()

    def _repeated(self, cost: _Cost) -> _Cost:
        counts = _COUNTS.match(self._pattern, self._at)
        if counts is None:
            return cost
        self._at = counts.end()
        sign, low_text, comma, high_text = counts.groups()
        if sign == "?":
            return _Cost().either(cost)
        if sign or (comma and not high_text):
            return self._unbounded(cost, int(low_text or 0))
        low = int(low_text)
        return self._counted(cost, low, int(high_text) if comma else low)

    def _unbounded(self, cost: _Cost, low: int) -> _Cost:
        if cost != _Cost():
            raise ValueError("repeats without bound what has a choice or a repetition in it")
        if low > _COUNTED_MAX:
            raise ValueError(f"counts beyond {_COUNTED_MAX}")
        return _Cost(repeats=1)

    def _counted(self, cost: _Cost, low: int, high: int) -> _Cost:
        if not low <= high <= _COUNTED_MAX:
            raise ValueError(f"counts down, or beyond {_COUNTED_MAX}")
        if cost.repeats:
            raise ValueError("repeats what has a repetition in it")
        ways = min(sum(cost.ways**count for count in range(low, high + 1)), PATTERN_WAYS_MAX + 1)
        return _Cost(max(1, ways))


# ---------------------------------------------------------------------------------------- Operators


Args = tuple[TypedSql, ...]


def apply_operator(source: SourceText, node: Apply, args: Args) -> TypedSql:
    """Return an operator on checked operands.

    Raises:
        RequestError: The operands do not fit.
    """
    op = node.op.removeprefix("NOT ") if node.op != "NOT" else node.op
    return _RULES[op](source, node, args)


def require_kind(source: SourceText, part: TypedSql, *kinds: ValueKind) -> None:
    """Refuse a part of another kind."""
    if part.kind not in kinds:
        expected = f"expected {' or '.join(kinds)}"
        raise source.refusal(part.span, describe(source, part), expected)


def _logic(source: SourceText, node: Apply, args: Args) -> TypedSql:
    for arg in args:
        require_kind(source, arg, ValueKind.BOOLEAN)
    if node.op == "NOT":
        return typed_sql(f"(NOT {args[0].sql})", ValueKind.BOOLEAN, node)
    return typed_sql(f"({f' {node.op} '.join(arg.sql for arg in args)})", ValueKind.BOOLEAN, node)


def _null_test(source: SourceText, node: Apply, args: Args) -> TypedSql:
    if args[0].kind in (ValueKind.NULL, *INTERVALS):
        raise source.refusal(args[0].span, describe(source, args[0]), "expected a column")
    return typed_sql(f"({args[0].sql} {node.op})", ValueKind.BOOLEAN, node)


def _comparison(source: SourceText, node: Apply, args: Args) -> TypedSql:
    _, (left, right) = to_common_kind(source, args)
    return typed_sql(f"({left.sql} {node.op} {right.sql})", ValueKind.BOOLEAN, node)


def _between(source: SourceText, node: Apply, args: Args) -> TypedSql:
    _, (value, low, high) = to_common_kind(source, args)
    sql = f"({value.sql} {node.op} {low.sql} AND {high.sql})"
    return typed_sql(sql, ValueKind.BOOLEAN, node)


def _membership(source: SourceText, node: Apply, args: Args) -> TypedSql:
    for arg in args[1:]:
        if not isinstance(arg.node, Literal):
            raise source.refusal(arg.span, f"{source.of(arg.span)} is no literal", "expected one")
    _, (value, *members) = to_common_kind(source, args)
    listed = ", ".join(member.sql for member in members)
    return typed_sql(f"({value.sql} {node.op} ({listed}))", ValueKind.BOOLEAN, node)


def _pattern(source: SourceText, node: Apply, args: Args) -> TypedSql:
    value, pattern = args
    require_kind(source, value, ValueKind.STRING)
    if pattern.text_literal is None:
        fact = f"the pattern {source.of(pattern.span)} is no string literal"
        raise source.refusal(pattern.span, fact, "expected one, so that its cost is known")
    test = require_like if node.op.endswith(" LIKE") or node.op == "LIKE" else require_regex
    test(source, pattern.text_literal, pattern.span)
    return typed_sql(f"({value.sql} {node.op} {pattern.sql})", ValueKind.BOOLEAN, node)


def _sum(source: SourceText, node: Apply, args: Args) -> TypedSql:
    left, right = args
    if left.kind in INTERVALS and node.op == "+":
        left, right = right, left
    if right.kind in INTERVALS:
        return _moved(source, node, left, right)
    if left.kind in TIMES:
        fact = f"{describe(source, left)}, but {describe(source, right)}"
        expected = "expected interval '7' day, or date_add, date_sub, datediff"
        raise source.refusal(right.span, fact, expected)
    return _arithmetic(source, node, args)


def _moved(source: SourceText, node: Apply, moment: TypedSql, interval: TypedSql) -> TypedSql:
    require_kind(source, moment, *TIMES)
    exact = moment.kind is ValueKind.DATE and interval.kind is ValueKind.DAYS
    kind = ValueKind.DATE if exact else ValueKind.TIMESTAMP
    sql = f"({as_kind(source, moment, kind).sql} {node.op} {interval.sql})"
    return typed_sql(sql, kind, node)


def _arithmetic(source: SourceText, node: Apply, args: Args) -> TypedSql:
    for arg in args:
        require_kind(source, arg, *NUMBERS)
    kind = max((arg.kind for arg in args), key=NUMBERS.index)
    if node.op == "/" and kind is ValueKind.INTEGER:
        kind = ValueKind.FLOATING
    return typed_sql(f"({args[0].sql} {node.op} {args[1].sql})", kind, node)


def _whole_division(source: SourceText, node: Apply, args: Args) -> TypedSql:
    for arg in args:
        require_kind(source, arg, ValueKind.INTEGER)
    return typed_sql(f"({args[0].sql} DIV {args[1].sql})", ValueKind.INTEGER, node)


def _sign(source: SourceText, node: Apply, args: Args) -> TypedSql:
    require_kind(source, args[0], *NUMBERS)
    sql = f"(- {args[0].sql})" if node.op.endswith("-") else args[0].sql
    return typed_sql(sql, args[0].kind, node)


def _joined(source: SourceText, node: Apply, args: Args) -> TypedSql:
    for arg in args:
        require_kind(source, arg, ValueKind.STRING)
    return typed_sql(f"concat({', '.join(arg.sql for arg in args)})", ValueKind.STRING, node)


_RULES: dict[str, Callable[[SourceText, Apply, Args], TypedSql]] = {
    "AND": _logic,
    "OR": _logic,
    "NOT": _logic,
    "IS NULL": _null_test,
    "IS NOT NULL": _null_test,
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">=", "<=>"), _comparison),
    "BETWEEN": _between,
    "IN": _membership,
    "LIKE": _pattern,
    "RLIKE": _pattern,
    "+": _sum,
    "-": _sum,
    "*": _arithmetic,
    "/": _arithmetic,
    "%": _arithmetic,
    "DIV": _whole_division,
    "SIGN -": _sign,
    "SIGN +": _sign,
    "||": _joined,
}
