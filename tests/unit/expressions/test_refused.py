"""What is refused, where, and why."""

from __future__ import annotations

import re

import pytest

from common.errors import RequestError
from common.expressions import parse_assignments, parse_predicate
from common.model.table import Column
from tests.unit.expressions import hostile
from tests.unit.expressions.cases import SCHEMA

FORBIDDEN = frozenset({"id", "ts"})
WITH_MUST = (*SCHEMA, Column("must", "string", nullable=False))


def shortened(value: object) -> str | None:
    return repr(value)[:40] if isinstance(value, str) else None


def place(message: str) -> int:
    found = re.search(r"refused at line (\d+), column (\d+): ", message)
    assert found is not None, message
    assert found[1] == "1"
    return int(found[2])


@pytest.mark.parametrize(("text", "column", "reason"), hostile.PREDICATES, ids=shortened)
def test_a_predicate_is_refused_at_its_place(text: str, column: int, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refusal:
        parse_predicate(text, (*SCHEMA, Column("${env:HOME}", "string")))

    assert place(str(refusal.value)) == column
    assert len(str(refusal.value)) < 800


@pytest.mark.parametrize(("text", "column", "reason"), hostile.ASSIGNMENTS, ids=shortened)
def test_an_assignment_is_refused_at_its_place(text: str, column: int, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refusal:
        parse_assignments(text, WITH_MUST, FORBIDDEN)

    assert place(str(refusal.value)) == column


def test_the_message_shows_the_line_and_points() -> None:
    with pytest.raises(RequestError) as refusal:
        parse_predicate("flag and\n  amuont > 5\nand flag", SCHEMA)

    assert str(refusal.value) == (
        "expression refused at line 2, column 3: there is no column amuont; "
        "expected a column of the table's schema; did you mean amount?\n"
        "      amuont > 5\n"
        "      ^^^^^^"
    )


def test_a_long_line_is_shown_in_part() -> None:
    with pytest.raises(RequestError) as refusal:
        parse_predicate(f"{'flag and ' * 100}nope{' and flag' * 100}", SCHEMA)

    _, line, caret = str(refusal.value).split("\n")
    assert line.startswith("    … ")
    assert line.endswith(" …")
    assert line[caret.index("^") :].startswith("nope")
    assert caret.count("^") == 4


def test_an_age_off_reads_the_time_column_alone() -> None:
    only = frozenset({"ts"})

    assert parse_predicate("ts < now() - interval 1 day", SCHEMA, only).columns == ("ts",)
    with pytest.raises(RequestError, match="column 31: column id may not be read here; expected"):
        parse_predicate("ts < '2024-01-01' and 1 + 1 < id", SCHEMA, only)
