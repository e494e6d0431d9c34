"""Spark reads the SQL as it was meant: row by row the same answer as Python."""

from __future__ import annotations

from dataclasses import astuple
from decimal import Decimal
from itertools import combinations_with_replacement, product
from typing import Any

import pyarrow as pa
import pytest

from common.expressions import SPARK_SETTINGS, parse_assignments, parse_predicate
from common.expressions.file_pruning import ColumnBounds, may_be_true
from common.model.key_values import key_type_of
from common.model.keys import encode_value
from common.model.table import Column
from common.rows.schema import type_from_text
from compactor.rewrite.transform import spark_type, to_spark
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

MICRO = 1000
NOON_NS = 1_743_508_800 * 10**9
PRUNED: dict[str, tuple[list[Any], list[str]]] = {
    "int64": (
        [-(2**63), -1, 0, 1, 2, 2**53, 2**53 + 1, 2**63 - 1],
        ["1", "0.5", "9007199254740993", "9007199254740993e0", "18446744073709551616", "-0.00"],
    ),
    "uint64": ([0, 2, 2**63, 2**64 - 1], ["2", "1.5", "18446744073709551615", "2e0"]),
    "decimal(10, 2)": (
        [Decimal("-1.50"), Decimal("0.00"), Decimal("1.25"), Decimal("1.26")],
        ["1.25", "1.2500", "1.251", "1", "125e-2", "0.0000000000000000000000000000000001"],
    ),
    "decimal(38, 10)": (
        [Decimal("-1"), Decimal("0.0000000001"), Decimal("1.25")],
        ["1.25", "0.00000000005", "1.24999999999999999999"],
    ),
    "double": (
        [float("-inf"), -1.5, 0.0, 0.1, 2.0**53, float("inf"), float("nan")],
        ["0.1", "0.10000000000000000001", "1e300", "9007199254740993", "-0.0"],
    ),
    "float": (
        [float("-inf"), -1.5, 0.1, 0.5, 2.0**24, float("nan")],
        ["0.1", "0.5", "16777217", "16777217e0", "1e300", "0.1e0"],
    ),
    "bool": ([False, True], ["true", "false"]),
    "date": ([20178, 20179, 20180], ["'2025-04-01'", "timestamp '2025-04-01 12:00:00'"]),
    "timestamp[ns]": (
        [NOON_NS - 1, NOON_NS, NOON_NS + 999, NOON_NS + MICRO],
        ["'2025-04-01 12:00:00'", "'2025-04-01 12:00:00.000001'", "date '2025-04-01'"],
    ),
    "timestamp[ms, UTC]": (
        [NOON_NS - MICRO * MICRO, NOON_NS, NOON_NS + MICRO * MICRO],
        ["'2025-04-01 14:00:00+02:00'", "'2025-04-01 12:00:00.000999'"],
    ),
}
"""By type of column: values as keys have them, in their order, and literals beside them."""

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
def test_a_value_that_does_not_fit_fails_instead_of_becoming_null(frame: Any, text: str) -> None:
    (assignment,) = parse_assignments(text, SCHEMA, frozenset())

    with pytest.raises(
        Exception, match=r"CAST_|OVERFLOW|DIVIDE|USER_RAISED|may not be null|OUT_OF"
    ):
        frame.selectExpr(assignment.expression.at(NOW_US)).collect()


@pytest.mark.parametrize("text", WIDE, ids=lambda text: text[:30])
def test_expressions_at_the_bounds_run_in_spark(frame: Any, text: str) -> None:
    expression = parse_predicate(text, SCHEMA)

    assert frame.where(expression.at(NOW_US)).count() <= len(ROWS)


def predicates_of(literals: list[str]) -> list[str]:
    ops = ("=", "<>", "<", "<=", ">", ">=")
    texts = [f"c {op} {text}" for op, text in product(ops, literals)]
    texts += [f"c in ({one}, {other})" for one, other in product(literals, literals)]
    texts += [f"c between {one} and {other}" for one, other in product(literals, literals)]
    return [*texts, "c is null", *(f"not ({text})" for text in texts)]


@pytest.mark.parametrize("column", PRUNED)
def test_no_file_is_left_out_that_has_a_row_which_spark_means(column: str) -> None:
    plain, literals = PRUNED[column]
    arrow = type_from_text(column)
    values = [None, *plain]
    unit = {"ns": 1, "ms": MICRO * MICRO}.get(getattr(arrow, "unit", ""), 1)
    whole = [v // unit if v is not None and unit > 1 else v for v in values]
    stored = pa.int32() if arrow == pa.date32() else pa.int64()
    is_time = pa.types.is_temporal(arrow)
    array = pa.array(whole, stored).cast(arrow) if is_time else pa.array(whole, arrow)
    rows = [*enumerate(to_spark(array).to_pylist())]
    spark = local_session().newSession()
    for name, value in SPARK_SETTINGS.items():
        spark.conf.set(name, value)
    texts = predicates_of(literals)
    schema = [Column("c", column)]
    sqls = [parse_predicate(text, schema).at(NOW_US) for text in texts]
    frame = spark.createDataFrame(rows, f"n int, c {spark_type(arrow)}").orderBy("n")
    found = frame.selectExpr(*(f"{sql} AS a{at}" for at, sql in enumerate(sqls))).collect()

    kind = key_type_of(column)
    keys = [encode_value(value, kind) for value in values]
    left_out = 0
    for at, text in enumerate(texts):
        for low, high in combinations_with_replacement(range(len(values)), 2):
            known = ColumnBounds(type=column, least=keys[low], greatest=keys[high])
            meant = any(found[row][at] for row in range(low, high + 1))
            may_be = may_be_true(text, {"c": known})
            assert may_be or not meant, (text, values[low], values[high])
            left_out += not may_be
    assert left_out > len(texts), "and many files are left out"
