"""A part of the tree that has passed: its SQL and its type. And how types meet."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.expressions.literals import DATE_ALONE, date_sql, timestamp_sql
from common.expressions.nodes import Literal, LiteralKind, Node
from common.expressions.source import Source, Span
from common.expressions.types import TIMES, Kind, ValueType, common_kind


@dataclass(frozen=True, slots=True)
class Checked:
    """SQL in brackets or otherwise closed, so that it can stand anywhere."""

    sql: str
    type: ValueType
    node: Node

    @property
    def kind(self) -> Kind:
        """The family of its type."""
        return self.type.kind

    @property
    def span(self) -> Span:
        """Where the user wrote it."""
        return self.node.span

    @property
    def text_literal(self) -> str | None:
        """The value of a string literal, or None if it is something else."""
        literal = isinstance(self.node, Literal) and self.node.kind is LiteralKind.STRING
        return self.node.value if isinstance(self.node, Literal) and literal else None


def checked(sql: str, kind: Kind, node: Node) -> Checked:
    """Return a checked part of a kind that needs no more words."""
    return Checked(sql, ValueType(kind), node)


def described(source: Source, part: Checked) -> str:
    """Return `name is string`, for messages."""
    is_null = part.kind is Kind.NULL
    return f"{source.of(part.span)} is {'the null literal' if is_null else part.kind}"


def as_kind(source: Source, part: Checked, kind: Kind) -> Checked:
    """Return a part as a kind that `common_kind` has found, or a time as another one."""
    text = part.text_literal
    if kind in TIMES and text is not None:
        write = date_sql if kind is Kind.DATE else timestamp_sql
        return checked(write(source, text, part.span), kind, part.node)
    if kind in TIMES and part.kind in TIMES and part.kind is not kind:
        return checked(f"CAST({part.sql} AS {kind.upper()})", kind, part.node)
    return part


def united(
    source: Source, parts: Sequence[Checked], *, nulls: bool = False
) -> tuple[Kind, list[Checked]]:
    """Return the one kind in which the parts compare, and the parts as that kind.

    A string literal beside a time is read as a time.

    Args:
        source: The text, for messages.
        parts: At least one.
        nulls: Whether the null literal may be among them.
    """
    if any(part.kind in TIMES for part in parts):
        parts = [_as_time(part) for part in parts]
    for part in parts:
        if part.kind is Kind.NULL and not nulls:
            fact = "a comparison with null is never true"
            raise source.refusal(part.span, fact, "expected is null, is not null or a value")
    for count in range(1, len(parts) + 1):
        if common_kind(part.kind for part in parts[:count]) is None:
            raise _unlike(source, parts[0], parts[count - 1])
    kind = common_kind(part.kind for part in parts)
    assert kind is not None, "every prefix has a common kind"
    return kind, [as_kind(source, part, kind) for part in parts]


def _as_time(part: Checked) -> Checked:
    if part.text_literal is None:
        return part
    kind = Kind.DATE if DATE_ALONE.fullmatch(part.text_literal) else Kind.TIMESTAMP
    return replace(part, type=ValueType(kind))


def _unlike(source: Source, first: Checked, other: Checked) -> Exception:
    if first is other:
        return source.refusal(first.span, described(source, first), "expected a scalar value")
    fact = f"{described(source, first)}, but {described(source, other)}"
    return source.refusal(
        other.span, fact, "expected values of one kind; cast(… as type) makes one"
    )
