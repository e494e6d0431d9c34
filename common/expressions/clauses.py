"""The two things that a user may send: a predicate, and a list of assignments."""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from common.expressions.bounds import ASSIGNMENTS_MAX
from common.expressions.check import Checker
from common.expressions.checked import Checked, as_kind, described
from common.expressions.grammar import Grammar
from common.expressions.nodes import Node
from common.expressions.source import Source, Span
from common.expressions.strings import quoted_text
from common.expressions.types import (
    NUMBERS,
    TIMES,
    Kind,
    coarse_unit,
    common_kind,
    spark_type,
    type_of_column,
)
from common.expressions.value import Assignment, Expression
from common.model.table import Column


def parse_predicate(
    text: str, schema: Sequence[Column], only: Set[str] | None = None
) -> Expression:
    """Return the predicate of `delete where` or of an age-off.

    Its SQL is true or false, never null: a row is meant only if the predicate is true.

    Args:
        text: What the user wrote behind `delete where`; not trusted.
        schema: The table's columns.
        only: The columns it may read; None: all. An age-off reads the time column alone.

    Raises:
        RequestError: It is not a predicate over these columns; says where and why.
    """
    source = Source(text)
    grammar = Grammar(source)
    node = grammar.expression()
    grammar.end("expected an operator, and or or, or the end")
    checker = Checker(source, schema)
    result = checker.check(node)
    if result.kind is not Kind.BOOLEAN:
        expected = "expected a predicate, such as a comparison"
        raise source.refusal(result.span, described(source, result), expected)
    for column, span in checker.read.items():
        if only is not None and column not in only:
            expected = f"expected only {', '.join(sorted(only))}"
            raise source.refusal(span, f"column {source.of(span)} may not be read here", expected)
    return Expression(f"coalesce({result.sql}, FALSE)", tuple(sorted(checker.read)), text)


def parse_assignments(
    text: str, schema: Sequence[Column], forbidden: Set[str]
) -> tuple[Assignment, ...]:
    """Return the assignments of `set`, in the order in which they were written.

    All of them see the row as it was before any. The SQL of each has its column's type.

    Args:
        text: What the user wrote behind `set`; not trusted.
        schema: The table's columns.
        forbidden: Columns that may not be set: key, version, tombstone, time, partition.

    Raises:
        RequestError: It is not a list of assignments to these columns; says where and why.
    """
    source = Source(text)
    grammar = Grammar(source)
    parsed: list[_Parsed] = []
    while True:
        name, span = grammar.name_part()
        if grammar.take_symbol("=") is None:
            raise grammar.unexpected("expected = and the column's new value")
        parsed.append(_Parsed(name, span, grammar.expression()))
        if grammar.take_symbol(",") is None:
            break
        if len(parsed) == ASSIGNMENTS_MAX:
            fact = f"there are more than {ASSIGNMENTS_MAX} assignments"
            raise source.refusal(grammar.here.span, fact, "expected fewer")
    grammar.end("expected an operator, a comma and another assignment, or the end")
    _require_once(source, parsed)
    return tuple(_assignment(source, schema, one, forbidden) for one in parsed)


@dataclass(frozen=True, slots=True)
class _Parsed:
    column: str
    span: Span
    node: Node


def _require_once(source: Source, parsed: Sequence[_Parsed]) -> None:
    seen: set[str] = set()
    for one in parsed:
        if one.column in seen:
            fact = f"column {source.of(one.span)} is set twice"
            raise source.refusal(one.span, fact, "expected each column once")
        seen.add(one.column)


def _assignment(
    source: Source, schema: Sequence[Column], parsed: _Parsed, forbidden: Set[str]
) -> Assignment:
    checker = Checker(source, schema)
    column = checker.column(parsed.column, parsed.span)
    if column.name in forbidden:
        fact = f"column {source.of(parsed.span)} may not be set"
        expected = "expected one that is not key, version, tombstone, time or partition"
        raise source.refusal(parsed.span, fact, expected)
    target = spark_type(column.type)
    if target is None:
        fact = f"column {source.of(parsed.span)} is {column.type}, which no expression makes"
        expected = "expected a column of a signed, floating, decimal, text, boolean or time type"
        raise source.refusal(parsed.span, fact, expected)
    value = _fitting(source, checker.check(parsed.node), column)
    sql = _as_column(f"CAST({value.sql} AS {target})", column, target)
    written = source.text[parsed.node.span.start : parsed.node.span.end]
    return Assignment(column.name, Expression(sql, tuple(sorted(checker.read)), written))


def _fitting(source: Source, value: Checked, column: Column) -> Checked:
    """Return a value that the column's type can take, or refuse it."""
    kind = type_of_column(column.type).kind
    if value.kind is Kind.NULL and not column.nullable:
        fact = f"column {column.name} may not be null"
        raise source.refusal(value.span, fact, "expected another value")
    if value.text_literal is not None and kind in TIMES:
        return as_kind(source, value, kind)
    # Digits are rounded to those of the column; a whole number is never made silently.
    rounds = kind in (Kind.DECIMAL, Kind.FLOATING) and value.kind in NUMBERS
    if not rounds and common_kind((kind, value.kind)) is not kind:
        raise _unfit(source, value, column)
    return value


def _unfit(source: Source, value: Checked, column: Column) -> Exception:
    fact = f"{described(source, value)}, but column {column.name} is {column.type}"
    return source.refusal(value.span, fact, "expected its type; cast(… as type) makes one")


def _as_column(sql: str, column: Column, target: str) -> str:
    """Return SQL that has what the column can keep, or fails."""
    if unit := coarse_unit(column.type):
        sql = f"date_trunc('{unit}', {sql})"
    if column.nullable:
        return sql
    complaint = quoted_text(f"column {column.name} may not be null")
    return f"coalesce({sql}, CAST(raise_error({complaint}) AS {target}))"
