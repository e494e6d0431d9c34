"""The tree that the grammar makes: words and places, not yet looked up or typed."""

from dataclasses import dataclass
from enum import StrEnum

from common.expressions.source import Span


class LiteralKind(StrEnum):
    """What was written."""

    NUMBER = "number"
    STRING = "string"
    BOOLEAN = "boolean"
    NULL = "null"
    DATE = "date"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant; a number's sign belongs to its value."""

    kind: LiteralKind
    value: str
    span: Span
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Interval:
    """A constant span of time, `count` units long."""

    count: int
    unit: str
    span: Span
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Name:
    """A column, or a field of a struct column; one span for each part."""

    parts: tuple[str, ...]
    spans: tuple[Span, ...]
    depth: int = 1

    @property
    def span(self) -> Span:
        """Where all of it stands."""
        return self.spans[0].to(self.spans[-1])


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator and its operands; `op` is upper case, negated ones begin with `NOT `."""

    op: str
    args: tuple["Node", ...]
    span: Span
    depth: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function by the name that was written, in lower case."""

    name: str
    args: tuple["Node", ...]
    span: Span
    depth: int


@dataclass(frozen=True, slots=True)
class Case:
    """`CASE [operand] WHEN … THEN … [ELSE …] END`; at least one branch."""

    operand: "Node | None"
    branches: tuple[tuple["Node", "Node"], ...]
    otherwise: "Node | None"
    span: Span
    depth: int


@dataclass(frozen=True, slots=True)
class Cast:
    """A cast; a safe one gives null where the other fails. `target` is a Spark type."""

    value: "Node"
    target: str
    safe: bool
    span: Span
    depth: int


Node = Literal | Interval | Name | Apply | Call | Case | Cast


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes right below one."""
    match node:
        case Apply() | Call():
            return node.args
        case Cast():
            return (node.value,)
        case Case():
            branches = (part for branch in node.branches for part in branch)
            optional = (part for part in (node.operand, node.otherwise) if part is not None)
            return (*branches, *optional)
        case _:
            return ()
