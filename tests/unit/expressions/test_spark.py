"""Spark reads the SQL as it was meant: row by row the same answer as Python."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest

from common.expressions import SPARK_SETTINGS, parse_assignments, parse_predicate
from tests.support.spark_session import local_session
from tests.unit.expressions.cases import (
    ASSIGNMENTS,
    DDL,
    LOUD,
    NOW_US,
    PREDICATES,
    ROWS,
    SCHEMA,
)
from tests.unit.expressions.wide import WIDE

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def frame() -> Any:
    """Return `ROWS` in a session with the settings that expressions ask for."""
    spark = local_session().newSession()
    for name, value in SPARK_SETTINGS.items():
        spark.conf.set(name, value)
    return spark.createDataFrame([astuple(row) for row in ROWS], DDL).coalesce(1).cache()


def test_predicates_choose_the_rows_that_python_chooses(frame: Any) -> None:
    sqls = [parse_predicate(case.text, SCHEMA).at(NOW_US) for case in PREDICATES]
    found = frame.selectExpr(*(f"{sql} AS c{at}" for at, sql in enumerate(sqls))).collect()

    for row, answers in zip(ROWS, found, strict=True):
        wrong = [
            (case.text, answer)
            for case, answer in zip(PREDICATES, answers, strict=True)
            if answer is not bool(case.expected(row))
        ]
        assert not wrong, f"row {row.id}"


def test_assignments_make_the_values_that_python_makes(frame: Any) -> None:
    parsed = [parse_assignments(case.text, SCHEMA, frozenset())[0] for case in ASSIGNMENTS]
    chosen = frame.selectExpr(
        *(f"{one.expression.at(NOW_US)} AS c{at}" for at, one in enumerate(parsed))
    )

    for at, one in enumerate(parsed):
        assert chosen.schema[at].dataType == frame.schema[one.column].dataType, one.column
    for row, values in zip(ROWS, chosen.collect(), strict=True):
        for case, value in zip(ASSIGNMENTS, values, strict=True):
            expected = case.expected(row)
            if hasattr(value, "hour"):
                value = value.astimezone(expected.tzinfo)
            assert value == expected, (case.text, row.id)


def test_spark_puts_no_variable_into_a_string(frame: Any) -> None:
    session = frame.sparkSession.newSession()
    session.conf.set("spark.sql.variable.substitute", "true")
    (assignment,) = parse_assignments("name = '${env:PATH} ${spark.app.name}'", SCHEMA, frozenset())
    sql = assignment.expression.sql

    assert session.sql("select '${spark.app.name}'").first()[0] != "${spark.app.name}"
    assert session.sql(f"select {sql}").first()[0] == "${env:PATH} ${spark.app.name}"


@pytest.mark.parametrize("text", LOUD)
def test_what_does_not_fit_fails_and_is_not_made_null(frame: Any, text: str) -> None:
    (assignment,) = parse_assignments(text, SCHEMA, frozenset())

    with pytest.raises(
        Exception, match=r"CAST_|OVERFLOW|DIVIDE|USER_RAISED|may not be null|OUT_OF"
    ):
        frame.selectExpr(assignment.expression.at(NOW_US)).collect()


@pytest.mark.parametrize("text", WIDE, ids=lambda text: text[:30])
def test_what_is_just_within_the_bounds_runs(frame: Any, text: str) -> None:
    expression = parse_predicate(text, SCHEMA)

    assert frame.where(expression.at(NOW_US)).count() <= len(ROWS)
