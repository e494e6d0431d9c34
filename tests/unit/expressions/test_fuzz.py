"""Whatever is sent: an expression or a `RequestError`, after little work."""

from __future__ import annotations

import sys
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.errors import RequestError
from common.expressions import parse_assignments, parse_predicate
from tests.unit.expressions.cases import PREDICATES, SCHEMA, Accepted
from tests.unit.expressions.hostile import PREDICATES as HOSTILE
from tests.unit.expressions.hostile import WORDS
from tests.unit.expressions.wide import WIDE

pytestmark = pytest.mark.property

# What one character costs at most: some twenty functions for each level of a short operand.
CALLS_PER_CHARACTER_MAX = 400
CALLS_FREE = 50_000


def outcome(text: str) -> str | None:
    """Return the SQL, or None if the text was refused."""
    sql = None
    for parse in (
        lambda: parse_predicate(text, SCHEMA).sql,
        lambda: parse_assignments(text, SCHEMA, frozenset({"id"}))[0].expression.sql,
    ):
        with suppress(RequestError):
            sql = parse()
    return sql


def calls_of(text: str) -> int:
    """Return how many functions of Python one text costs: work, whatever the machine."""
    count = 0

    def on_call(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(on_call)
    try:
        outcome(text)
    finally:
        sys.setprofile(before)
    return count


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
@example("name = '\ud800'")
def test_any_text_is_parsed_or_refused(text: str) -> None:
    outcome(text)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=60), st.sampled_from(["", " "]))
def test_any_words_of_the_language_are_parsed_or_refused(words: list[str], between: str) -> None:
    outcome(between.join(words))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PREDICATES), st.data())
def test_a_mutated_expression_is_parsed_or_refused(case: Accepted, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(case.text)))
    end = data.draw(st.integers(begin, len(case.text)))
    word = data.draw(st.sampled_from(WORDS))
    sql = outcome(f"{case.text[:begin]}{word}{case.text[end:]}")

    assert sql is None or sql.isascii()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4), st.booleans())
def test_work_is_bounded_by_the_length(words: list[str], spaced: bool) -> None:
    part = (" " if spaced else "").join(words) + " "
    text = (part * 10_000)[:9_990]

    assert calls_of(text) < CALLS_FREE + CALLS_PER_CHARACTER_MAX * len(text)


def test_work_is_bounded_where_it_is_hardest() -> None:
    for text in (*WIDE, *(text for text, _, _ in HOSTILE)):
        assert calls_of(text) < CALLS_FREE + CALLS_PER_CHARACTER_MAX * len(text), text[:40]
