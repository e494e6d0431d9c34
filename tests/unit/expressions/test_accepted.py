"""What is accepted, and the SQL that it becomes."""

from __future__ import annotations

import re

import pytest

from common.expressions import parse_assignments, parse_predicate
from common.expressions.clauses import NAMES
from common.model.table import Column
from tests.tidy.tree import ROOT
from tests.unit.expressions.cases import ASSIGNMENTS, PREDICATES, SCHEMA, Accepted
from tests.unit.expressions.wide import WIDE


@pytest.mark.parametrize("case", PREDICATES, ids=lambda case: case.text)
def test_a_predicate_becomes_sql_that_is_never_null(case: Accepted) -> None:
    expression = parse_predicate(case.text, SCHEMA)

    assert expression.sql == f"coalesce({case.sql}, FALSE)"
    assert expression.text == case.text
    assert expression.sql.isascii()


@pytest.mark.parametrize("case", ASSIGNMENTS, ids=lambda case: case.text)
def test_an_assignment_has_the_type_of_its_column(case: Accepted) -> None:
    (assignment,) = parse_assignments(case.text, SCHEMA, frozenset())

    assert assignment.expression.sql == case.sql
    assert case.text.endswith(assignment.expression.text)


def test_assignments_keep_their_order_and_say_what_they_read() -> None:
    price, name = parse_assignments("price = id + small, name = s.b.c || name", SCHEMA, {"id"})

    assert (price.column, price.expression.columns) == ("price", ("id", "small"))
    assert (name.column, name.expression.columns) == ("name", ("name", "s"))


def test_words_of_the_language_come_in_any_case() -> None:
    upper = parse_predicate("NOT flag IS NULL", SCHEMA)

    assert upper.sql == parse_predicate("not flag is null", SCHEMA).sql
    assert "upper(" in parse_predicate("UPPER(name) = 'X'", SCHEMA).sql


def test_now_is_fixed_outside_of_strings_and_names_alone() -> None:
    schema = (*SCHEMA, Column(":now", "string"))
    expression = parse_predicate("name = '\\':now' and `:now` = ':now' or ts < now()", schema)

    assert expression.at(5) != expression.sql
    assert expression.at(5) == expression.sql.replace("< :now", "< timestamp_micros(5)")
    quoted = parse_predicate("name = ':now'", schema)
    assert quoted.at(5) == quoted.sql


@pytest.mark.parametrize("text", WIDE, ids=lambda text: text[:30])
def test_expressions_at_the_bounds_are_accepted(text: str) -> None:
    assert parse_predicate(text, SCHEMA).sql


def test_the_page_lists_every_function() -> None:
    page = (ROOT / "docs" / "reference" / "expressions.md").read_text("utf-8")
    listed = page.partition("\nFunctions: ")[2].partition(" They are Spark's")[0]

    assert re.findall(r"`(\w+)`", listed) == sorted(NAMES)
