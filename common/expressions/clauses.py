"""Predicates, lists of assignments and transforms of requests, checked against a schema."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from common.errors import RequestError
from common.expressions.grammar import (
    Apply,
    Case,
    Cast,
    ColumnName,
    FunctionCall,
    Interval,
    Literal,
    LiteralKind,
    Node,
    Parser,
    children,
)
from common.expressions.lexer import (
    ASSIGNMENTS_MAX,
    REPLACEMENT_CHARS_MAX,
    VARIABLE,
    SourceText,
    TextSpan,
    quoted_name,
    quoted_text,
    suggestion,
)
from common.expressions.operators import (
    CAST_KINDS,
    NOW_PLACEHOLDER,
    NUMBERS,
    TIMES,
    Args,
    ColumnAssignment,
    Expression,
    TypedSql,
    ValueKind,
    apply_operator,
    as_kind,
    coarse_unit,
    common_kind,
    describe,
    literal_sql,
    require_kind,
    spark_type,
    to_common_kind,
    type_of_column,
    typed_sql,
)
from common.model.request import KeyRange, TransformKind, TransformSpec
from common.model.table import Column, Table

# ---------------------------------------------------------------------------------------- Functions
# The functions that may be called. Only those in the table at the end exist.


# --------------------------------- Functions whose arguments or result do not fit into the table


_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
_ROUND_DIGITS_MAX = 18


def _need_count(
    source: SourceText, node: FunctionCall, args: Args, least: int, most: int | None
) -> None:
    if len(args) < least or (most is not None and len(args) > most):
        counts = str(least) if least == most else f"{least} to {most or 'many'}"
        fact = f"{node.name} has {len(args)} arguments"
        raise source.refusal(node.span, fact, f"expected {counts}")


def _coalesce(source: SourceText, node: FunctionCall, args: Args) -> TypedSql:
    _need_count(source, node, args, 1, None)
    kind, parts = to_common_kind(source, args, nulls=True)
    return typed_sql(f"coalesce({', '.join(part.sql for part in parts)})", kind, node)


def _concat(source: SourceText, node: FunctionCall, args: Args) -> TypedSql:
    _need_count(source, node, args, 1, None)
    for arg in args:
        require_kind(source, arg, ValueKind.STRING)
    return typed_sql(f"concat({', '.join(arg.sql for arg in args)})", ValueKind.STRING, node)


def _nullif(source: SourceText, node: FunctionCall, args: Args) -> TypedSql:
    _need_count(source, node, args, 2, 2)
    _, (first, second) = to_common_kind(source, args)
    return typed_sql(f"nullif({first.sql}, {second.sql})", first.kind, node)


def _now(source: SourceText, node: FunctionCall, args: Args) -> TypedSql:
    _need_count(source, node, args, 0, 0)
    return typed_sql(NOW_PLACEHOLDER, ValueKind.TIMESTAMP, node)


def _date_trunc(source: SourceText, node: FunctionCall, args: Args) -> TypedSql:
    _need_count(source, node, args, 2, 2)
    unit, moment = args
    if (unit.text_literal or "").lower() not in _UNITS:
        expected = f"expected one of {', '.join(map(repr, _UNITS))}"
        raise source.refusal(unit.span, f"{source.of(unit.span)} is no unit", expected)
    require_kind(source, moment, ValueKind.TIMESTAMP, ValueKind.DATE)
    instant = as_kind(source, moment, ValueKind.TIMESTAMP)
    sql = f"date_trunc('{(unit.text_literal or '').upper()}', {instant.sql})"
    return typed_sql(sql, ValueKind.TIMESTAMP, node)


def _round(source: SourceText, node: FunctionCall, args: Args) -> TypedSql:
    _need_count(source, node, args, 1, 2)
    require_kind(source, args[0], *NUMBERS)
    digits = "0" if len(args) == 1 else _digits(source, args[1].node)
    return typed_sql(f"round({args[0].sql}, {digits})", args[0].kind, node)


def _digits(source: SourceText, node: Node) -> str:
    number = isinstance(node, Literal) and node.kind is LiteralKind.NUMBER
    text = node.value if isinstance(node, Literal) and number else ""
    if not text.isdigit() or len(text) > 2 or int(text) > _ROUND_DIGITS_MAX:
        fact = f"{source.of(node.span)} is no number of digits"
        raise source.refusal(node.span, fact, f"expected 0 to {_ROUND_DIGITS_MAX}")
    return str(int(text))


def _to_whole(source: SourceText, node: FunctionCall, args: Args) -> TypedSql:
    _need_count(source, node, args, 1, 1)
    require_kind(source, args[0], *NUMBERS)
    kind = ValueKind.DECIMAL if args[0].kind is ValueKind.DECIMAL else ValueKind.INTEGER
    name = "ceil" if node.name == "ceiling" else node.name
    return typed_sql(f"{name}({args[0].sql})", kind, node)


def _replace(source: SourceText, node: FunctionCall, args: Args) -> TypedSql:
    _need_count(source, node, args, 3, 3)
    require_kind(source, args[0], ValueKind.STRING)
    for arg in args[1:]:
        _require_short(source, arg)
    if not args[1].text_literal:
        raise source.refusal(args[1].span, "nothing is searched for", "expected some text")
    if _grows(node) and _grows_below(node.args[0]):
        fact = "replace lengthens what another replace has lengthened"
        raise source.refusal(node.span, fact, "expected one of them to keep the length")
    return typed_sql(f"replace({', '.join(arg.sql for arg in args)})", ValueKind.STRING, node)


def _require_short(source: SourceText, arg: TypedSql) -> None:
    text = arg.text_literal
    if text is None or len(text) > REPLACEMENT_CHARS_MAX:
        expected = f"expected a string literal of at most {REPLACEMENT_CHARS_MAX} characters"
        raise source.refusal(arg.span, f"{source.of(arg.span)} cannot be used in replace", expected)


def _grows(node: Node) -> bool:
    """Return whether a call can produce a value longer than its argument."""
    if not (isinstance(node, FunctionCall) and node.name == "replace" and len(node.args) == 3):
        return False
    _, search, replacement = node.args
    literals = isinstance(search, Literal) and isinstance(replacement, Literal)
    return not (literals and _size(replacement) <= _size(search))


def _size(node: Node) -> int:
    return len(node.value.encode()) if isinstance(node, Literal) else 0


def _grows_below(node: Node) -> bool:
    return _grows(node) or any(_grows_below(child) for child in children(node))


SHAPES: dict[str, Callable[[SourceText, FunctionCall, Args], TypedSql]] = {
    "ceil": _to_whole,
    "ceiling": _to_whole,
    "coalesce": _coalesce,
    "concat": _concat,
    "date_trunc": _date_trunc,
    "floor": _to_whole,
    "now": _now,
    "nullif": _nullif,
    "replace": _replace,
    "round": _round,
}


# ---- The table of functions
#
# Each is deterministic, depends only on its arguments, and returns a value whose length is at most
# a constant multiple of theirs.


_TEXT, _NUMBER = (ValueKind.STRING,), NUMBERS
_WHOLE = (ValueKind.INTEGER,)
_DAY = (ValueKind.DATE, ValueKind.TIMESTAMP)
_MOMENT = (ValueKind.TIMESTAMP, ValueKind.DATE)
"""The argument becomes the first of the two kinds."""


@dataclass(frozen=True, slots=True)
class Function:
    """The parameters and the result of a function.

    Attributes:
        params: The allowed kinds of each argument.
        result: The kind of the result; None: that of the first argument.
        optional: Number of optional arguments at the end.
        small: Number of arguments at the end that Spark requires as INT; wider ones are cast.
    """

    params: tuple[tuple[ValueKind, ...], ...]
    result: ValueKind | None
    optional: int = 0
    small: int = 0


FUNCTIONS: dict[str, Function] = {
    **dict.fromkeys(
        ("upper", "lower", "trim", "ltrim", "rtrim"), Function((_TEXT,), ValueKind.STRING)
    ),
    "length": Function((_TEXT,), ValueKind.INTEGER),
    "substring": Function((_TEXT, _WHOLE, _WHOLE), ValueKind.STRING, optional=1, small=2),
    "abs": Function((_NUMBER,), None),
    **dict.fromkeys(
        ("year", "quarter", "month", "day", "dayofweek", "dayofyear", "weekofyear"),
        Function((_DAY,), ValueKind.INTEGER),
    ),
    **dict.fromkeys(("hour", "minute", "second"), Function((_MOMENT,), ValueKind.INTEGER)),
    **dict.fromkeys(("date_add", "date_sub"), Function((_DAY, _WHOLE), ValueKind.DATE, small=1)),
    "add_months": Function((_DAY, _WHOLE), ValueKind.DATE, small=1),
    "datediff": Function((_DAY, _DAY), ValueKind.INTEGER),
    "timestamp_seconds": Function((_NUMBER,), ValueKind.TIMESTAMP),
    "timestamp_millis": Function((_WHOLE,), ValueKind.TIMESTAMP),
    "timestamp_micros": Function((_WHOLE,), ValueKind.TIMESTAMP),
    "unix_seconds": Function((_MOMENT,), ValueKind.INTEGER),
    "unix_millis": Function((_MOMENT,), ValueKind.INTEGER),
}

NAMES = frozenset({*FUNCTIONS, *SHAPES})
# Known to users of Spark, but their results depend on when, where or by which user they are run.
_UNFIXED = re.compile(
    r"current_\w+|rand\w*|uuid|shuffle|localtimestamp|unix_timestamp|input_file_\w+|"
    r"monotonically_increasing_id|spark_partition_id|user|session_user"
)


def call_function(source: SourceText, node: FunctionCall, args: Args) -> TypedSql:
    """Return a call with checked arguments.

    Raises:
        RequestError: There is no such function, or the arguments do not fit.
    """
    if shape := SHAPES.get(node.name):
        return shape(source, node, args)
    function = FUNCTIONS.get(node.name)
    if function is None:
        raise _unknown(source, node)
    most = len(function.params)
    if not most - function.optional <= len(args) <= most:
        counts = f"{most - function.optional} or {most}" if function.optional else str(most)
        fact = f"{node.name} has {len(args)} arguments"
        raise source.refusal(node.span, fact, f"expected {counts}")
    pairs = zip(args, function.params, strict=False)
    written = [_argument(source, arg, kinds).sql for arg, kinds in pairs]
    for at in range(most - function.small, len(args)):
        written[at] = f"CAST({written[at]} AS INT)"
    return typed_sql(f"{node.name}({', '.join(written)})", function.result or args[0].kind, node)


def _argument(source: SourceText, part: TypedSql, kinds: tuple[ValueKind, ...]) -> TypedSql:
    if kinds[0] in TIMES and part.text_literal is not None:
        return as_kind(source, part, kinds[0])
    require_kind(source, part, *kinds)
    return as_kind(source, part, kinds[0]) if kinds[0] in TIMES else part


def _unknown(source: SourceText, node: FunctionCall) -> Exception:
    if _UNFIXED.fullmatch(node.name):
        expected = "expected now(), which is one moment for the whole job, or a fixed value"
        return source.refusal(node.span, f"{node.name} gives no fixed result", expected)
    expected = f"expected a listed function{suggestion(node.name, NAMES)}"
    return source.refusal(node.span, f"there is no function {node.name}", expected)


# ------------------------------------------------------------------------------------------ Clauses


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
            castable = ", ".join(sorted(_CASTABLE[kind] - {ValueKind.NULL}))
            raise self._source.refusal(value.span, fact, f"expected one of {castable}")
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
    return Expression(f"coalesce({result.sql}, FALSE)", tuple(sorted(checker.read)), text, node)


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
    return tuple(_assignment(source, schema, assignment, forbidden) for assignment in parsed)


@dataclass(frozen=True, slots=True)
class _Parsed:
    column: str
    span: TextSpan
    node: Node


def _require_once(source: SourceText, parsed: Sequence[_Parsed]) -> None:
    seen: set[str] = set()
    for assignment in parsed:
        if assignment.column in seen:
            fact = f"column {source.of(assignment.span)} is set twice"
            raise source.refusal(assignment.span, fact, "expected each column once")
        seen.add(assignment.column)


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
    read = tuple(sorted(checker.read))
    return ColumnAssignment(column.name, Expression(sql, read, written, parsed.node))


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


# -------------------------------------------------------------------------------- Request transform
# The transform of a request, parsed from its stored text and checked against a table.
#
# The gateway parses it at submission, to refuse it early. A rewrite parses it again, to run it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """A transform that fits its table: a predicate, assignments, or a plug-in's name."""

    kind: TransformKind
    description: str
    """For messages: `delete where x > 1`."""
    predicate: Expression | None = None
    assignments: tuple[ColumnAssignment, ...] = ()
    plugin: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The predicate, or the assignments' expressions in order."""
        if self.predicate is not None:
            return (self.predicate,)
        return tuple(assignment.expression for assignment in self.assignments)

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the expressions read."""
        return frozenset(name for expression in self.expressions for name in expression.columns)


def parse_transform(
    spec: TransformSpec,
    table: Table,
    key_range: KeyRange,
    columns: Sequence[Column] | None = None,
) -> Transform | None:
    """Return the transform of a request, or None if it has none.

    Args:
        spec: As stored. `text` is the part after `delete where` or `set`.
        table: Table of the rows.
        key_range: The rows that the request covers.
        columns: Columns of the rows, if they are wider than the table's.

    Raises:
        RequestError: It does not fit the table; names the reason.
    """
    if spec.kind is TransformKind.NONE:
        return None
    if not table.key and key_range != KeyRange():
        raise RequestError(
            f"table {table.name} has no key: a transform applies to all its rows, expected no range"
        )
    schema = table.schema if columns is None else columns
    match spec.kind:
        case TransformKind.DELETE_WHERE:
            return _deletion(spec, table, schema)
        case TransformKind.SET:
            description = f"set {spec.text}"
            assignments = parse_assignments(spec.text, schema, protected_columns(table))
            return Transform(kind=spec.kind, description=description, assignments=assignments)
        case TransformKind.PLUGIN:
            if not spec.name:
                raise RequestError("a transform by a plug-in lacks the plug-in's name")
            description = f"transform {spec.name}"
            return Transform(
                kind=spec.kind,
                description=description,
                plugin=spec.name,
                options=dict(spec.options),
            )


def protected_columns(table: Table) -> frozenset[str]:
    """Return the columns that no transform may change: they identify and place the row."""
    named = (table.version_column, table.tombstone_column, table.time_column)
    return frozenset({*table.key, *table.partition_by, *filter(None, named)})


def _deletion(spec: TransformSpec, table: Table, schema: Sequence[Column]) -> Transform:
    if table.key and table.tombstone_column is None:
        raise RequestError(
            f"table {table.name} has no tombstone column: without one, older versions "
            f"of deleted rows would reappear; expected a table with `tombstone_column`"
        )
    return Transform(
        kind=spec.kind,
        description=f"delete where {spec.text}",
        predicate=parse_predicate(spec.text, schema),
    )
