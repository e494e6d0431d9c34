"""Can a predicate be true for a row of a file, as far as bounds of its columns tell?

What is not understood can be true, and false: a file is left out only if the predicate is
false or null for every row that its bounds allow. Bounds and literals are compared as keys
are stored, so that the order is Spark's: numbers by value, texts by their bytes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from common.errors import RequestError
from common.expressions.grammar import Grammar
from common.expressions.literals import DATE_ALONE
from common.expressions.nodes import Apply, Literal, LiteralKind, Name, Node
from common.expressions.source import Source
from common.model.key_text import value_from_text
from common.model.keys import KeyType, encode_value

_NULL = b"\x00"
_BEHIND = b"\xff"
"""Behind every key that begins with a value: what follows a value is 02 at most."""
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBounds:
    """The least and the greatest value of a column, encoded; both may be wider than the truth.

    They may be keys of which the column is the first: what comes behind is of no account.
    """

    kind: KeyType
    least: bytes
    greatest: bytes


@dataclass(frozen=True, slots=True)
class _Possible:
    """Which of these a predicate can be; neither: it is null for every row."""

    true: bool
    false: bool


_ANYTHING = _Possible(true=True, false=True)


def may_be_true(text: str, bounds: Mapping[str, ColumnBounds]) -> bool:
    """Return whether a predicate can be true for a row within the bounds.

    Args:
        text: As the user wrote it; it has been checked against the table.
        bounds: By column; of others nothing is known.
    """
    try:
        return _possible(_parsed(text), bounds).true
    except RequestError:
        return True


@lru_cache(maxsize=64)
def _parsed(text: str) -> Node:
    return Grammar(Source(text)).expression()


def _possible(node: Node, bounds: Mapping[str, ColumnBounds]) -> _Possible:
    if not isinstance(node, Apply):
        return _ANYTHING
    op, args = node.op, node.args
    if op in {"AND", "OR"}:
        each = [_possible(arg, bounds) for arg in args]
        if op == "AND":
            return _Possible(all(one.true for one in each), any(one.false for one in each))
        return _Possible(any(one.true for one in each), all(one.false for one in each))
    if op == "NOT":
        return _not(_possible(args[0], bounds))
    if op.startswith("NOT "):
        return _not(_leaf(op.removeprefix("NOT "), args, bounds))
    return _leaf(op, args, bounds)


def _leaf(op: str, args: tuple[Node, ...], bounds: Mapping[str, ColumnBounds]) -> _Possible:
    """Return what a comparison of a column with literals can be."""
    if len(args) == 2 and op in _FLIPPED and isinstance(args[0], Literal):
        op, args = _FLIPPED[op], (args[1], args[0])
    column, literals = args[0], args[1:]
    if not isinstance(column, Name) or len(column.parts) != 1 or column.parts[0] not in bounds:
        return _ANYTHING
    known = bounds[column.parts[0]]
    if op in {"IS NULL", "IS NOT NULL"}:
        null = _Possible(known.least[:1] <= _NULL, known.greatest[:1] != _NULL)
        return null if op == "IS NULL" else _not(null)
    values = [_encoded(literal, known.kind) for literal in literals]
    if None in values:
        return _ANYTHING
    found = [value for value in values if value is not None]
    if op == "BETWEEN":
        low, high = _compared(">=", found[0], known), _compared("<=", found[1], known)
        return _Possible(low.true and high.true, low.false or high.false)
    if op == "IN":
        each = [_compared("=", value, known) for value in found]
        return _Possible(any(one.true for one in each), all(one.false for one in each))
    return _compared(op, found[0], known)


def _compared(op: str, value: bytes, known: ColumnBounds) -> _Possible:
    below, above = known.least < value, known.greatest >= value + _BEHIND
    equal = known.least < value + _BEHIND and known.greatest >= value
    match op:
        case "=":
            return _Possible(equal, below or above)
        case "<>":
            return _Possible(below or above, equal)
        case "<":
            return _Possible(below, equal or above)
        case "<=":
            return _Possible(below or equal, above)
        case ">":
            return _Possible(above, below or equal)
        case ">=":
            return _Possible(above or equal, below)
        case _:
            return _ANYTHING


def _not(possible: _Possible) -> _Possible:
    return _Possible(possible.false, possible.true)


def _encoded(node: Node, kind: KeyType) -> bytes | None:
    """Return a literal as a value of the column is stored, or None if that is not certain."""
    if not isinstance(node, Literal):
        return None
    text, written = node.value, node.kind
    fits = {
        KeyType.INT: written is LiteralKind.NUMBER and bool(_WHOLE.fullmatch(text)),
        KeyType.STRING: written is LiteralKind.STRING,
        KeyType.DATE: written in {LiteralKind.STRING, LiteralKind.DATE}
        and bool(DATE_ALONE.fullmatch(text)),
    }
    if not fits.get(kind, False):
        return None
    return encode_value(value_from_text(text, kind), kind)
