"""Functions whose arguments or result do not fit into one line of a table."""

from collections.abc import Callable

from common.expressions.bounds import REPLACEMENT_CHARS_MAX
from common.expressions.checked import Checked, as_kind, checked, united
from common.expressions.nodes import Call, Literal, LiteralKind, Node, children
from common.expressions.operators import Args, require
from common.expressions.source import Source
from common.expressions.types import NUMBERS, Kind
from common.expressions.value import NOW

_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
_ROUND_DIGITS_MAX = 18


def _need_count(source: Source, node: Call, args: Args, least: int, most: int | None) -> None:
    if len(args) < least or (most is not None and len(args) > most):
        counts = str(least) if least == most else f"{least} to {most or 'many'}"
        fact = f"{node.name} has {len(args)} arguments"
        raise source.refusal(node.span, fact, f"expected {counts}")


def _coalesce(source: Source, node: Call, args: Args) -> Checked:
    _need_count(source, node, args, 1, None)
    kind, parts = united(source, args, nulls=True)
    return checked(f"coalesce({', '.join(part.sql for part in parts)})", kind, node)


def _concat(source: Source, node: Call, args: Args) -> Checked:
    _need_count(source, node, args, 1, None)
    for arg in args:
        require(source, arg, Kind.STRING)
    return checked(f"concat({', '.join(arg.sql for arg in args)})", Kind.STRING, node)


def _nullif(source: Source, node: Call, args: Args) -> Checked:
    _need_count(source, node, args, 2, 2)
    _, (first, second) = united(source, args)
    return checked(f"nullif({first.sql}, {second.sql})", first.kind, node)


def _now(source: Source, node: Call, args: Args) -> Checked:
    _need_count(source, node, args, 0, 0)
    return checked(NOW, Kind.TIMESTAMP, node)


def _date_trunc(source: Source, node: Call, args: Args) -> Checked:
    _need_count(source, node, args, 2, 2)
    unit, moment = args
    if (unit.text_literal or "").lower() not in _UNITS:
        expected = f"expected one of {', '.join(map(repr, _UNITS))}"
        raise source.refusal(unit.span, f"{source.of(unit.span)} is no unit", expected)
    require(source, moment, Kind.TIMESTAMP, Kind.DATE)
    instant = as_kind(source, moment, Kind.TIMESTAMP)
    sql = f"date_trunc('{(unit.text_literal or '').upper()}', {instant.sql})"
    return checked(sql, Kind.TIMESTAMP, node)


def _round(source: Source, node: Call, args: Args) -> Checked:
    _need_count(source, node, args, 1, 2)
    require(source, args[0], *NUMBERS)
    digits = "0" if len(args) == 1 else _digits(source, args[1].node)
    return checked(f"round({args[0].sql}, {digits})", args[0].kind, node)


def _digits(source: Source, node: Node) -> str:
    number = isinstance(node, Literal) and node.kind is LiteralKind.NUMBER
    text = node.value if isinstance(node, Literal) and number else ""
    if not text.isdigit() or len(text) > 2 or int(text) > _ROUND_DIGITS_MAX:
        fact = f"{source.of(node.span)} is no number of digits"
        raise source.refusal(node.span, fact, f"expected 0 to {_ROUND_DIGITS_MAX}")
    return str(int(text))


def _to_whole(source: Source, node: Call, args: Args) -> Checked:
    _need_count(source, node, args, 1, 1)
    require(source, args[0], *NUMBERS)
    kind = Kind.DECIMAL if args[0].kind is Kind.DECIMAL else Kind.INTEGER
    name = "ceil" if node.name == "ceiling" else node.name
    return checked(f"{name}({args[0].sql})", kind, node)


def _replace(source: Source, node: Call, args: Args) -> Checked:
    _need_count(source, node, args, 3, 3)
    require(source, args[0], Kind.STRING)
    for arg in args[1:]:
        _require_short(source, arg)
    if not args[1].text_literal:
        raise source.refusal(args[1].span, "nothing is searched for", "expected some text")
    if _grows(node) and _grows_below(node.args[0]):
        fact = "replace lengthens what another replace has lengthened"
        raise source.refusal(node.span, fact, "expected one of them to keep the length")
    return checked(f"replace({', '.join(arg.sql for arg in args)})", Kind.STRING, node)


def _require_short(source: Source, arg: Checked) -> None:
    text = arg.text_literal
    if text is None or len(text) > REPLACEMENT_CHARS_MAX:
        expected = f"expected a string literal of at most {REPLACEMENT_CHARS_MAX} characters"
        raise source.refusal(arg.span, f"{source.of(arg.span)} cannot be used in replace", expected)


def _grows(node: Node) -> bool:
    """Can this call make a value longer than its argument?"""
    if not (isinstance(node, Call) and node.name == "replace" and len(node.args) == 3):
        return False
    _, search, replacement = node.args
    literals = isinstance(search, Literal) and isinstance(replacement, Literal)
    return not (literals and _size(replacement) <= _size(search))


def _size(node: Node) -> int:
    return len(node.value.encode()) if isinstance(node, Literal) else 0


def _grows_below(node: Node) -> bool:
    return _grows(node) or any(_grows_below(child) for child in children(node))


SHAPES: dict[str, Callable[[Source, Call, Args], Checked]] = {
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
