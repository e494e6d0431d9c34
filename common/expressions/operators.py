"""Operators: which kinds they take, what they give, and how they are written."""

from collections.abc import Callable

from common.expressions.checked import Checked, as_kind, checked, described, united
from common.expressions.nodes import Apply, Literal
from common.expressions.patterns import require_like, require_regex
from common.expressions.source import Source
from common.expressions.types import INTERVALS, NUMBERS, TIMES, Kind

Args = tuple[Checked, ...]


def applied(source: Source, node: Apply, args: Args) -> Checked:
    """Return an operator on checked operands.

    Raises:
        RequestError: It does not take them.
    """
    op = node.op.removeprefix("NOT ") if node.op != "NOT" else node.op
    return _RULES[op](source, node, args)


def require(source: Source, part: Checked, *kinds: Kind) -> None:
    """Refuse a part of another kind."""
    if part.kind not in kinds:
        wanted = f"expected {' or '.join(kinds)}"
        raise source.refusal(part.span, described(source, part), wanted)


def _logic(source: Source, node: Apply, args: Args) -> Checked:
    for arg in args:
        require(source, arg, Kind.BOOLEAN)
    if node.op == "NOT":
        return checked(f"(NOT {args[0].sql})", Kind.BOOLEAN, node)
    return checked(f"({f' {node.op} '.join(arg.sql for arg in args)})", Kind.BOOLEAN, node)


def _null_test(source: Source, node: Apply, args: Args) -> Checked:
    if args[0].kind in (Kind.NULL, *INTERVALS):
        raise source.refusal(args[0].span, described(source, args[0]), "expected a column")
    return checked(f"({args[0].sql} {node.op})", Kind.BOOLEAN, node)


def _comparison(source: Source, node: Apply, args: Args) -> Checked:
    _, (left, right) = united(source, args)
    return checked(f"({left.sql} {node.op} {right.sql})", Kind.BOOLEAN, node)


def _between(source: Source, node: Apply, args: Args) -> Checked:
    _, (value, low, high) = united(source, args)
    sql = f"({value.sql} {node.op} {low.sql} AND {high.sql})"
    return checked(sql, Kind.BOOLEAN, node)


def _membership(source: Source, node: Apply, args: Args) -> Checked:
    for arg in args[1:]:
        if not isinstance(arg.node, Literal):
            raise source.refusal(arg.span, f"{source.of(arg.span)} is no literal", "expected one")
    _, (value, *members) = united(source, args)
    listed = ", ".join(member.sql for member in members)
    return checked(f"({value.sql} {node.op} ({listed}))", Kind.BOOLEAN, node)


def _pattern(source: Source, node: Apply, args: Args) -> Checked:
    value, pattern = args
    require(source, value, Kind.STRING)
    if pattern.text_literal is None:
        fact = f"the pattern {source.of(pattern.span)} is no string literal"
        raise source.refusal(pattern.span, fact, "expected one, so that its cost is known")
    test = require_like if node.op.endswith(" LIKE") or node.op == "LIKE" else require_regex
    test(source, pattern.text_literal, pattern.span)
    return checked(f"({value.sql} {node.op} {pattern.sql})", Kind.BOOLEAN, node)


def _sum(source: Source, node: Apply, args: Args) -> Checked:
    left, right = args
    if left.kind in INTERVALS and node.op == "+":
        left, right = right, left
    if right.kind in INTERVALS:
        return _moved(source, node, left, right)
    if left.kind in TIMES:
        fact = f"{described(source, left)}, but {described(source, right)}"
        expected = "expected interval '7' day, or date_add, date_sub, datediff"
        raise source.refusal(right.span, fact, expected)
    return _arithmetic(source, node, args)


def _moved(source: Source, node: Apply, moment: Checked, interval: Checked) -> Checked:
    require(source, moment, *TIMES)
    exact = moment.kind is Kind.DATE and interval.kind is Kind.DAYS
    kind = Kind.DATE if exact else Kind.TIMESTAMP
    sql = f"({as_kind(source, moment, kind).sql} {node.op} {interval.sql})"
    return checked(sql, kind, node)


def _arithmetic(source: Source, node: Apply, args: Args) -> Checked:
    for arg in args:
        require(source, arg, *NUMBERS)
    kind = max((arg.kind for arg in args), key=NUMBERS.index)
    if node.op == "/" and kind is Kind.INTEGER:
        kind = Kind.FLOATING
    return checked(f"({args[0].sql} {node.op} {args[1].sql})", kind, node)


def _whole_division(source: Source, node: Apply, args: Args) -> Checked:
    for arg in args:
        require(source, arg, Kind.INTEGER)
    return checked(f"({args[0].sql} DIV {args[1].sql})", Kind.INTEGER, node)


def _sign(source: Source, node: Apply, args: Args) -> Checked:
    require(source, args[0], *NUMBERS)
    sql = f"(- {args[0].sql})" if node.op.endswith("-") else args[0].sql
    return checked(sql, args[0].kind, node)


def _joined(source: Source, node: Apply, args: Args) -> Checked:
    for arg in args:
        require(source, arg, Kind.STRING)
    return checked(f"concat({', '.join(arg.sql for arg in args)})", Kind.STRING, node)


_RULES: dict[str, Callable[[Source, Apply, Args], Checked]] = {
    "AND": _logic,
    "OR": _logic,
    "NOT": _logic,
    "IS NULL": _null_test,
    "IS NOT NULL": _null_test,
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">=", "<=>"), _comparison),
    "BETWEEN": _between,
    "IN": _membership,
    "LIKE": _pattern,
    "RLIKE": _pattern,
    "+": _sum,
    "-": _sum,
    "*": _arithmetic,
    "/": _arithmetic,
    "%": _arithmetic,
    "DIV": _whole_division,
    "SIGN -": _sign,
    "SIGN +": _sign,
    "||": _joined,
}
