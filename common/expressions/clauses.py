"""Predicates and lists of assignments, checked against a schema."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from common.expressions.functions import call_function
from common.expressions.grammar import (
    Apply,
    Case,
    Cast,
    ColumnName,
    FunctionCall,
    Interval,
    Literal,
    Node,
    Parser,
)
from common.expressions.lexer import (
    ASSIGNMENTS_MAX,
    VARIABLE,
    SourceText,
    TextSpan,
    quoted_name,
    quoted_text,
    suggestion,
)
from common.expressions.operators import (
    TypedSql,
    apply_operator,
    as_kind,
    describe,
    literal_sql,
    require_kind,
    to_common_kind,
    typed_sql,
)
from common.expressions.types import (
    CAST_KINDS,
    NUMBERS,
    TIMES,
    ColumnAssignment,
    Expression,
    ValueKind,
    coarse_unit,
    common_kind,
    spark_type,
    type_of_column,
)
from common.model.table import Column

# ---------------------------------------------------------------------------------- Names and types


class Checker:
    """Checks expressions of one text against one schema, and collects the columns they read."""

    def __init__(self, source: SourceText, schema: Sequence[Column]) -> None:
        self._source = source
        self._schema = {column.name: column for column in schema}
        self._read: dict[str, TextSpan] = {}

    @property
    def read(self) -> dict[str, TextSpan]:
        """The columns that are read, with the position of the first read."""
        return dict(self._read)

    def check(self, node: Node) -> TypedSql:
        """Return the node as SQL with its type.

        Raises:
            RequestError: A name is unknown, or types do not fit.
        """
        match node:
            case Literal():
                sql, kind = literal_sql(self._source, node)
                return typed_sql(sql, kind, node)
            case Interval():
                return _interval(node)
            case ColumnName():
                return self._name(node)
            case Apply():
                return apply_operator(self._source, node, self._all(node.args))
            case FunctionCall():
                return call_function(self._source, node, self._all(node.args))
            case Case():
                return self._case(node)
            case Cast():
                return self._cast(node)

    def column(self, name: str, span: TextSpan) -> Column:
        """Return a column of the table.

        Raises:
            RequestError: The table has no column of this name.
        """
        if name not in self._schema:
            raise self._unknown("column", name, span, self._schema)
        return self._schema[name]

    def _all(self, nodes: Sequence[Node]) -> tuple[TypedSql, ...]:
        return tuple(self.check(node) for node in nodes)

    def _name(self, node: ColumnName) -> TypedSql:
        column = self.column(node.parts[0], node.spans[0])
        self._read.setdefault(column.name, node.spans[0])
        kind = type_of_column(column.type)
        for name, span in zip(node.parts[1:], node.spans[1:], strict=True):
            if kind.kind is not ValueKind.STRUCT:
                fact = f"{self._source.of(node.spans[0].to(span))} looks into what is {kind.kind}"
                raise self._source.refusal(span, fact, "expected a struct column before the dot")
            fields = dict(kind.fields)
            if name not in fields:
                raise self._unknown("field", name, span, fields)
            kind = fields[name]
        if any(VARIABLE in name for name in node.parts):
            expected = f"expected a name without {VARIABLE}, where Spark would put a variable"
            raise self._source.refusal(
                node.span, f"{self._source.of(node.span)} is unsafe", expected
            )
        return TypedSql(".".join(map(quoted_name, node.parts)), kind, node)

    def _unknown(self, what: str, name: str, span: TextSpan, names: Iterable[str]) -> Exception:
        expected = f"expected a {what} of the table's schema{suggestion(name, names)}"
        return self._source.refusal(span, f"there is no {what} {self._source.of(span)}", expected)

    def _case(self, node: Case) -> TypedSql:
        conditions, results = zip(*node.branches, strict=True)
        whens = self._all(conditions)
        head = "CASE"
        if node.operand is None:
            for when in whens:
                require_kind(self._source, when, ValueKind.BOOLEAN)
        else:
            _, (operand, *whens_united) = to_common_kind(
                self._source, self._all((node.operand, *conditions))
            )
            head, whens = f"CASE {operand.sql}", tuple(whens_united)
        otherwise = () if node.otherwise is None else (node.otherwise,)
        kind, values = to_common_kind(self._source, self._all((*results, *otherwise)), nulls=True)
        branches = "".join(
            f" WHEN {when.sql} THEN {value.sql}" for when, value in zip(whens, values, strict=False)
        )
        tail = f" ELSE {values[-1].sql}" if otherwise else ""
        return typed_sql(f"{head}{branches}{tail} END", kind, node)

    def _cast(self, node: Cast) -> TypedSql:
        value = self.check(node.value)
        kind = CAST_KINDS[node.target.partition("(")[0]]
        if value.kind not in _CASTABLE[kind]:
            fact = f"{describe(self._source, value)}, which cannot be cast to {node.target.lower()}"
            wanted = ", ".join(sorted(_CASTABLE[kind] - {ValueKind.NULL}))
            raise self._source.refusal(value.span, fact, f"expected one of {wanted}")
        word = "try_cast" if node.safe else "CAST"
        return typed_sql(f"{word}({value.sql} AS {node.target})", kind, node)


def _interval(node: Interval) -> TypedSql:
    # Spark does not support weeks in intervals of its standard kind.
    weeks = node.unit == "week"
    count, unit = (7 * node.count, "day") if weeks else (node.count, node.unit)
    kind = ValueKind.DAYS if unit in ("day", "month", "year") else ValueKind.TIME
    return typed_sql(f"INTERVAL '{count}' {unit.upper()}", kind, node)


_NUMBERS_FROM = {ValueKind.NULL, ValueKind.BOOLEAN, ValueKind.STRING, *NUMBERS}
_TIMES_FROM = {ValueKind.NULL, ValueKind.STRING, *TIMES}
_CASTABLE: dict[ValueKind, set[ValueKind]] = {
    ValueKind.BOOLEAN: _NUMBERS_FROM,
    ValueKind.INTEGER: _NUMBERS_FROM,
    ValueKind.DECIMAL: _NUMBERS_FROM,
    ValueKind.FLOATING: _NUMBERS_FROM,
    ValueKind.STRING: {ValueKind.NULL, ValueKind.BOOLEAN, ValueKind.STRING, *NUMBERS, *TIMES},
    ValueKind.DATE: _TIMES_FROM,
    ValueKind.TIMESTAMP: _TIMES_FROM,
}
assert _CASTABLE.keys() == set(CAST_KINDS.values()), "every type that can be named has a row"


# ----------------------------------------------------------------------- Predicates and assignments


def parse_predicate(
    text: str, schema: Sequence[Column], only: Set[str] | None = None
) -> Expression:
    """Return the predicate of `delete where` or of an age-off.

    Its SQL is true or false, never null: only a true predicate selects a row.

    Args:
        text: The user's text after `delete where`; not trusted.
        schema: The table's columns.
        only: The columns it may read; None: all. An age-off reads only the time column.

    Raises:
        RequestError: It is not a predicate over these columns; names the position and the reason.
    """
    source = SourceText(text)
    parser = Parser(source)
    node = parser.expression()
    parser.end("expected an operator, and or or, or the end")
    checker = Checker(source, schema)
    result = checker.check(node)
    if result.kind is not ValueKind.BOOLEAN:
        expected = "expected a predicate, such as a comparison"
        raise source.refusal(result.span, describe(source, result), expected)
    for column, span in checker.read.items():
        if only is not None and column not in only:
            expected = f"expected only {', '.join(sorted(only))}"
            raise source.refusal(span, f"column {source.of(span)} may not be read here", expected)
    return Expression(f"coalesce({result.sql}, FALSE)", tuple(sorted(checker.read)), text)


def parse_assignments(
    text: str, schema: Sequence[Column], forbidden: Set[str]
) -> tuple[ColumnAssignment, ...]:
    """Return the assignments of `set`, in their written order.

    All of them read the row before any assignment. The SQL of each has its column's type.

    Args:
        text: The user's text after `set`; not trusted.
        schema: The table's columns.
        forbidden: Columns that may not be set: key, version, tombstone, time, partition.

    Raises:
        RequestError: It is not a list of assignments to these columns; names position and reason.
    """
    source = SourceText(text)
    parser = Parser(source)
    parsed: list[_Parsed] = []
    while True:
        name, span = parser.name_part()
        if parser.take_symbol("=") is None:
            raise parser.unexpected("expected = and the column's new value")
        parsed.append(_Parsed(name, span, parser.expression()))
        if parser.take_symbol(",") is None:
            break
        if len(parsed) == ASSIGNMENTS_MAX:
            fact = f"there are more than {ASSIGNMENTS_MAX} assignments"
            raise source.refusal(parser.here.span, fact, "expected fewer")
    parser.end("expected an operator, a comma and another assignment, or the end")
    _require_once(source, parsed)
    return tuple(_assignment(source, schema, one, forbidden) for one in parsed)


@dataclass(frozen=True, slots=True)
class _Parsed:
    column: str
    span: TextSpan
    node: Node


def _require_once(source: SourceText, parsed: Sequence[_Parsed]) -> None:
    seen: set[str] = set()
    for one in parsed:
        if one.column in seen:
            fact = f"column {source.of(one.span)} is set twice"
            raise source.refusal(one.span, fact, "expected each column once")
        seen.add(one.column)


def _assignment(
    source: SourceText, schema: Sequence[Column], parsed: _Parsed, forbidden: Set[str]
) -> ColumnAssignment:
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
    return ColumnAssignment(column.name, Expression(sql, tuple(sorted(checker.read)), written))


def _fitting(source: SourceText, value: TypedSql, column: Column) -> TypedSql:
    """Return a value that fits the column's type, or refuse it."""
    kind = type_of_column(column.type).kind
    if value.kind is ValueKind.NULL and not column.nullable:
        fact = f"column {column.name} may not be null"
        raise source.refusal(value.span, fact, "expected another value")
    if value.text_literal is not None and kind in TIMES:
        return as_kind(source, value, kind)
    # Digits are rounded to those of the column; a value never becomes a whole number silently.
    rounds = kind in (ValueKind.DECIMAL, ValueKind.FLOATING) and value.kind in NUMBERS
    if not rounds and common_kind((kind, value.kind)) is not kind:
        raise _unfit(source, value, column)
    return value


def _unfit(source: SourceText, value: TypedSql, column: Column) -> Exception:
    fact = f"{describe(source, value)}, but column {column.name} is {column.type}"
    return source.refusal(value.span, fact, "expected its type; cast(… as type) makes one")


def _as_column(sql: str, column: Column, target: str) -> str:
    """Return SQL that has what the column can keep, or fails."""
    if unit := coarse_unit(column.type):
        sql = f"date_trunc('{unit}', {sql})"
    if column.nullable:
        return sql
    complaint = quoted_text(f"column {column.name} may not be null")
    return f"coalesce({sql}, CAST(raise_error({complaint}) AS {target}))"
