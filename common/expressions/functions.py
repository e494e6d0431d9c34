"""The functions that may be called. Only those in the table at the end exist."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from common.expressions.grammar import (
    FunctionCall,
    Literal,
    LiteralKind,
    Node,
    children,
)
from common.expressions.lexer import REPLACEMENT_CHARS_MAX, SourceText, suggestion
from common.expressions.operators import (
    Args,
    TypedSql,
    as_kind,
    require_kind,
    to_common_kind,
    typed_sql,
)
from common.expressions.types import (
    NOW_PLACEHOLDER,
    NUMBERS,
    TIMES,
    ValueKind,
)

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
