"""No text that a user can send takes more time than its length explains.

Four times the text may take four times as long; what is refused at once takes none. The
bound is far from both, for machines are busy; quadratic work would take sixteen times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from functools import partial

import pyarrow as pa
import pytest

from common.documents import FieldKind, FieldRule
from common.errors import CompactionError, RequestError
from common.expressions.clauses import parse_predicate
from common.model.key_values import KeyType, decimal_units
from common.model.keys import parse_key
from common.model.table import Column
from common.rows.schema import type_from_text
from common.units import parse_duration_s, parse_size_bytes
from neve.api.column_types import ALIASES, simple_types

COLUMNS = [Column("x", "int64")]
SIZE, TIMES, ROUNDS = 15_000, 4, 5
RATIO_MAX = 11.0
FREE_S = 0.25
"""What takes less is quick enough: quadratic work on such texts takes many seconds."""

PARSERS: dict[str, Callable[[str], object]] = {
    "type": type_from_text,
    "size": parse_size_bytes,
    "duration": parse_duration_s,
    "key of a text": lambda text: parse_key(text, [KeyType.STRING]),
    "key of numbers": lambda text: parse_key(text, [KeyType.INT, KeyType.INT]),
    "key of a decimal": lambda text: parse_key(text, [KeyType.DECIMAL]),
    "key of a timestamp": lambda text: parse_key(text, [KeyType.TIMESTAMP]),
    "key of a binary": lambda text: parse_key(text, [KeyType.BINARY]),
    "expression": lambda text: parse_predicate(text, COLUMNS),
    **{
        f"field: {kind}": partial(FieldRule(kind=kind, most=1).read, where="field")
        for kind in FieldKind
    },
}
PIECES = [
    " ", "\t\n", "0", "9", ".", "1.", "-", "(", "[", "[[1],", "<", "list<", "struct<a: ",
    '"', '"\\"', "\\", '\\"', ",", "1, ", "0x", "ab", "é", "x + ", "not ", "x = 1 and ", "'", "''",
    "/*", "--", "e", "1e9",
    "2026-01-01T", "{", "%", "+00:00",
]  # fmt: skip


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS.keys())
def test_work_grows_as_the_text_does(parse: Callable[[str], object]) -> None:
    for piece in PIECES:
        for before, after in (("", ""), ("int64", ""), ("", "1"), ("1", "x"), ('"', "")):
            short, long = (
                _least_s(parse, before + piece * (size // len(piece)) + after)
                for size in (SIZE, SIZE * TIMES)
            )
            assert long < max(short * RATIO_MAX, FREE_S), (before, piece, after)


def _least_s(parse: Callable[[str], object], text: str) -> float:
    least_s = float("inf")
    for _ in range(ROUNDS):
        begun_s = time.thread_time()  # However many others want the processor.
        with suppress(CompactionError):
            parse(text)
        least_s = min(least_s, time.thread_time() - begun_s)
        if least_s < FREE_S:
            break
    return least_s


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0E30000000", 0), ("1E30000000", None), ("1E-30000000", None), ("0." + "0" * 2000, 0)],
)
def test_a_few_characters_stand_for_no_billion_digits(text: str, expected: int | None) -> None:
    assert decimal_units(Decimal(text)) == expected


def test_zeros_behind_a_decimal_say_nothing() -> None:
    assert decimal_units(Decimal("1." + "0" * 500)) == decimal_units(Decimal(1))


@pytest.mark.parametrize("count", range(5))
def test_types_with_any_options_are_read_or_refused_in_words(count: int) -> None:
    values = ("10", "2", "us", "UTC", "-1", "99999999999999999999", "x", '"q"')
    for name in (*simple_types(pa), *ALIASES, "decimal", "timestamp", "time", "duration"):
        for value in values:
            for last in values:
                options = [value] * (count - 1) + [last] if count else []
                for form in (f"{name}({', '.join(options)})", f"{name}[{', '.join(options)}]"):
                    with suppress(RequestError):
                        type_from_text(form)


@pytest.mark.parametrize("text", ["list<" * 3000, "[" * 100_000, "9" * 5000, "1e400"])
@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS.keys())
def test_a_text_without_sense_is_refused_in_words(
    parse: Callable[[str], object], text: str
) -> None:
    with suppress(CompactionError):  # A key of a text may well be this; nothing else is raised.
        parse(text)
