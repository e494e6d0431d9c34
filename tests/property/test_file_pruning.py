"""No file is left out of a deletion that holds a row which is meant, whatever its columns are.

Rows are drawn, encoded as keys are, and a predicate is worked out for each by rules of its own:
exact fractions, three values of truth, NaN above all numbers, moments by the microsecond.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from common.expressions.file_pruning import ColumnBounds, may_be_true
from common.model.key_values import EPOCH, key_type_of
from common.model.keys import encode_key

NAN_RANK = (1, 0)
"""Behind every number."""
NANOS_PER = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
OPS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
Truth = bool | None


@dataclass(frozen=True)
class Column:
    """A type of column, with values as keys take them and literals as users write them."""

    type: str
    values: st.SearchStrategy[Any]
    literals: st.SearchStrategy[str]
    rank: Callable[[Any], Any]
    """Of a value in Spark's order."""
    literal_rank: Callable[[str], Any]


def short(number: float) -> float:
    """Return a number as a column of short floats has it."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def number_rank(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return NAN_RANK if math.isnan(value) else (0, value)
    return (0, Fraction(value))


def double_rank(text: str) -> Any:
    return (0, Fraction(float(text)))


def short_rank(text: str) -> Any:
    return (0, Fraction(short(float(text))))


def decimal_rank(text: str) -> Any:
    return (0, Fraction(text))


def moment_rank(text: str) -> int:
    text = text.partition("'")[2].rstrip("'")
    moment = datetime.fromisoformat(text)
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH
    return since // timedelta(microseconds=1)


def quoted_moments(kinds: tuple[str, ...]) -> st.SearchStrategy[str]:
    near = st.integers(-2, 2)
    micros = st.builds(lambda days, by: days * 86_400_000_000 + by, near, st.integers(-2, 2))
    zones = st.sampled_from(["", "Z", "+01:00"])

    def text(kind: str, since: int, zone: str) -> str:
        moment = EPOCH + timedelta(microseconds=since)
        if kind == "date":
            return f"date '{moment.date()}'"
        return f"{kind}'{moment.replace(tzinfo=None).isoformat(' ', 'microseconds')}{zone}'"

    return st.builds(text, st.sampled_from(kinds), micros, zones)


def moments(unit: str, zone: str = "") -> Column:
    nanos = st.builds(
        lambda days, by: days * 86_400 * 10**9 + by * NANOS_PER[unit],
        st.integers(-2, 2),
        st.integers(-2500, 2500),
    )
    literals = quoted_moments(("timestamp ", "date", ""))
    return Column(f"timestamp[{unit}{zone}]", nanos, literals, lambda ns: ns // 1000, moment_rank)


WHOLE = st.one_of(st.integers(-3, 3), st.sampled_from([-(2**63), 2**53, 2**53 + 1, 2**63 - 1]))
NUMBERS = st.one_of(
    st.integers(-4, 4).map(str),
    st.sampled_from(["0.5", "-0.5", "1.50", "2.999", "9007199254740993", "-9223372036854775809"]),
    st.sampled_from(["18446744073709551616", "0.1", "-0.00", "1.00000000000000000000001"]),
)
DOUBLES = st.one_of(NUMBERS, st.sampled_from(["1e0", "2.5e-1", "1e300", "-1e300", "16777217e0"]))
FLOATS = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.1, 0.5, 1e300, 2.0**53, 2.0**24]),
    st.integers(-3, 3).map(float),
)
COLUMNS = [
    Column("int32", st.integers(-3, 3), NUMBERS, number_rank, decimal_rank),
    Column("int64", WHOLE, NUMBERS, number_rank, decimal_rank),
    Column(
        "uint64",
        st.one_of(st.integers(0, 3), st.sampled_from([2**63, 2**64 - 1])),
        NUMBERS,
        number_rank,
        decimal_rank,
    ),
    Column(
        "decimal(10, 2)",
        st.integers(-300, 300).map(lambda n: Decimal(n) / 100),
        NUMBERS,
        number_rank,
        decimal_rank,
    ),
    Column("double", FLOATS, DOUBLES, number_rank, double_rank),
    Column(
        "float",
        FLOATS.filter(lambda x: abs(x) < 1e38 or not math.isfinite(x)).map(short),
        DOUBLES.filter(lambda text: abs(float(text)) < 1e38),
        number_rank,
        short_rank,
    ),
    Column(
        "float",
        FLOATS.filter(lambda x: abs(x) < 1e38 or not math.isfinite(x)).map(short),
        DOUBLES,
        number_rank,
        double_rank,
    ),
    Column(
        "bool",
        st.booleans(),
        st.sampled_from(["true", "false"]),
        bool,
        lambda text: text == "true",
    ),
    Column(
        "string",
        st.text("ab\x00é", max_size=3),
        st.text("abé", max_size=3).map(lambda text: f"'{text}'"),
        lambda text: text.encode(),
        lambda text: text.strip("'").encode(),
    ),
    Column(
        "date",
        st.integers(-2, 2),
        quoted_moments(("timestamp ", "date")),
        lambda days: days * 86_400_000_000,
        moment_rank,
    ),
    *(moments(unit) for unit in NANOS_PER),
    moments("us", ", UTC"),
]


@dataclass(frozen=True)
class Predicate:
    """A text, and what it is for a value."""

    text: str
    of: Callable[[Any], Truth]


def negated(truth: Truth) -> Truth:
    return None if truth is None else not truth


def both(one: Truth, other: Truth) -> Truth:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def leaves(column: Column) -> st.SearchStrategy[Predicate]:
    def compared(op: str, text: str) -> Predicate:
        rank = column.literal_rank(text)
        return Predicate(
            f"c {op} {text}",
            lambda v: None if v is None else OPS[op](column.rank(v), rank),
        )

    def flipped(op: str, text: str) -> Predicate:
        rank = column.literal_rank(text)
        return Predicate(
            f"{text} {op} c",
            lambda v: None if v is None else OPS[op](rank, column.rank(v)),
        )

    def within(low: str, high: str, no: str) -> Predicate:
        ends = column.literal_rank(low), column.literal_rank(high)

        def of(v: Any) -> Truth:
            if v is None:
                return None
            inside = ends[0] <= column.rank(v) <= ends[1]
            return inside is not bool(no)

        return Predicate(f"c {no}between {low} and {high}", of)

    def among(texts: list[str], no: str) -> Predicate:
        ranks = [column.literal_rank(text) for text in texts]
        return Predicate(
            f"c {no}in ({', '.join(texts)})",
            lambda v: None if v is None else (column.rank(v) in ranks) is not bool(no),
        )

    ops, nots = st.sampled_from([*OPS]), st.sampled_from(["", "not "])
    choices = [
        st.builds(compared, ops, column.literals),
        st.builds(flipped, ops, column.literals),
        st.builds(within, column.literals, column.literals, nots),
        st.builds(among, st.lists(column.literals, min_size=1, max_size=3), nots),
        st.just(Predicate("c is null", lambda v: v is None)),
        st.just(Predicate("c is not null", lambda v: v is not None)),
    ]
    if column.type == "bool":
        choices.append(st.just(Predicate("c", lambda v: v)))
    return st.one_of(choices)


def predicates(column: Column) -> st.SearchStrategy[Predicate]:
    def joined(one: Predicate, word: str, other: Predicate) -> Predicate:
        text = f"({one.text} {word} {other.text})"
        if word == "and":
            return Predicate(text, lambda v: both(one.of(v), other.of(v)))
        return Predicate(text, lambda v: negated(both(negated(one.of(v)), negated(other.of(v)))))

    def no(one: Predicate) -> Predicate:
        return Predicate(f"(not {one.text})", lambda v: negated(one.of(v)))

    return st.recursive(
        leaves(column),
        lambda below: st.one_of(
            st.builds(joined, below, st.sampled_from(["and", "or"]), below), st.builds(no, below)
        ),
        max_leaves=4,
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Column, list[Any], Predicate]:
    column = draw(st.sampled_from(COLUMNS))
    values = draw(st.lists(st.one_of(st.none(), column.values), min_size=1, max_size=5))
    return column, values, draw(predicates(column))


def bounds(column: Column, values: list[Any], *, counts_nulls: bool) -> ColumnBounds | None:
    """Return bounds as those of keys are made: of a second column behind, too."""
    kinds = (key_type_of(column.type), key_type_of("int32"))
    seen = [v for v in values if counts_nulls or v is not None]
    keys = sorted(encode_key([v, n], kinds) for n, v in enumerate(seen))
    if not keys:
        return None
    return ColumnBounds(type=column.type, least=keys[0], greatest=keys[-1], nulls=not counts_nulls)


@settings(max_examples=75)
@given(cases())
@example((COLUMNS[1], [2**53], Predicate("c in (9007199254740993, 1e0)", lambda v: v == 2**53)))
def test_a_file_with_a_row_that_is_meant_is_never_left_out(
    case: tuple[Column, list[Any], Predicate],
) -> None:
    column, values, predicate = case
    meant = any(predicate.of(v) is True for v in values)
    event(f"meant: {meant}")
    for counts_nulls in (True, False):
        known = bounds(column, values, counts_nulls=counts_nulls)
        if known is None:
            continue
        found = may_be_true(predicate.text, {"c": known})
        event(f"left out: {not found}")
        assert found or not meant, (column.type, values, predicate.text)


@settings(max_examples=75)
@given(st.sampled_from(COLUMNS).flatmap(lambda c: st.tuples(st.just(c), c.values, c.literals)))
def test_most_files_without_such_a_row_are_left_out(case: tuple[Column, Any, str]) -> None:
    """Bounds of one value are exact, so only what Spark rounds is in doubt."""
    column, value, text = case
    rank, wanted = column.rank(value), column.literal_rank(text)
    known = bounds(column, [value], counts_nulls=True)
    assert known is not None
    doubt = column.type == "float" or (column.type == "double" and "." in text)
    if rank != wanted and not doubt:
        assert not may_be_true(f"c = {text}", {"c": known}) or _too_many_digits(text)


def _too_many_digits(text: str) -> bool:
    return len(text.partition(".")[2]) > 18
