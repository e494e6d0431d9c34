"""Tokens to a tree, by recursive descent without backtracking: linear in the tokens.

The tree holds words and positions, without look-up or types.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from common.expressions.lexer import (
    DEPTH_MAX,
    INTERVAL_MAX,
    LIST_MAX,
    SourceText,
    TextSpan,
    Token,
    TokenKind,
    tokens_of,
)

# ----------------------------------------------------------------------------------------- The tree


class LiteralKind(StrEnum):
    """The kind of a literal."""

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
    span: TextSpan
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Interval:
    """A constant span of time, `count` units long."""

    count: int
    unit: str
    span: TextSpan
    depth: int = 1


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A column, or a field of a struct column; one span for each part."""

    parts: tuple[str, ...]
    spans: tuple[TextSpan, ...]
    depth: int = 1

    @property
    def span(self) -> TextSpan:
        """The position of the whole name."""
        return self.spans[0].to(self.spans[-1])


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator and its operands; `op` is upper case, negated ones begin with `NOT `."""

    op: str
    args: tuple["Node", ...]
    span: TextSpan
    depth: int


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function call; `name` is in lower case."""

    name: str
    args: tuple["Node", ...]
    span: TextSpan
    depth: int


@dataclass(frozen=True, slots=True)
class Case:
    """`CASE [operand] WHEN … THEN … [ELSE …] END`; at least one branch."""

    operand: "Node | None"
    branches: tuple[tuple["Node", "Node"], ...]
    otherwise: "Node | None"
    span: TextSpan
    depth: int


@dataclass(frozen=True, slots=True)
class Cast:
    """A cast; a safe one returns null where the other fails. `target` is a Spark type."""

    value: "Node"
    target: str
    safe: bool
    span: TextSpan
    depth: int


Node = Literal | Interval | ColumnName | Apply | FunctionCall | Case | Cast


def children(node: Node) -> tuple[Node, ...]:
    """Return the direct children of a node."""
    match node:
        case Apply() | FunctionCall():
            return node.args
        case Cast():
            return (node.value,)
        case Case():
            branches = (part for branch in node.branches for part in branch)
            optional = (part for part in (node.operand, node.otherwise) if part is not None)
            return (*branches, *optional)
        case _:
            return ()


# --------------------------------------------------------------------------------------- The parser


RESERVED = frozenset(
    word
    for line in (
        "all and any as between case cast distinct div else end escape except exists false from",
        "group having in intersect interval into is join lateral like limit not null or order",
        "over rlike select set some table then true try_cast union update using values when",
        "where window with",
    )
    for word in line.split()
)
_VALUE = "expected a column, a literal or a listed function"
CAST_TYPES = frozenset(
    word
    for line in (
        "BOOLEAN TINYINT SMALLINT INT BIGINT DECIMAL FLOAT DOUBLE",
        "STRING DATE TIMESTAMP",
    )
    for word in line.split()
)
"""Names of the types that a cast may have."""
_UNITS = ("second", "minute", "hour", "day", "week", "month", "year")
_CONSTANTS = {
    "true": LiteralKind.BOOLEAN, "false": LiteralKind.BOOLEAN, "null": LiteralKind.NULL,
}  # fmt: skip
_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "<=>")


class Parser:
    """Parses a tree from left to right; it stands before one token and never moves back.

    `_level` is the number of open levels of the grammar; it bounds Python's stack.
    """

    def __init__(self, source: SourceText) -> None:
        """Create a parser before the first token."""
        self.source = source
        self._tokens = tokens_of(source)
        self._at = 0
        self._level = 0

    @property
    def here(self) -> Token:
        """The next token."""
        return self._tokens[self._at]

    @property
    def ahead(self) -> Token:
        """The token after `here`."""
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    @property
    def last(self) -> Token:
        """The last consumed token."""
        return self._tokens[max(self._at - 1, 0)]

    def take(self) -> Token:
        """Consume the next token; the end token is not consumed."""
        token = self.here
        if token.kind is not TokenKind.END:
            self._at += 1
        return token

    def take_word(self, *words: str) -> str | None:
        """Consume one of these keywords, if it is next."""
        return self.take().value.lower() if self.here.is_word(*words) else None

    def take_symbol(self, *symbols: str) -> str | None:
        """Consume one of these symbols, if it is next."""
        return self.take().value if self.here.is_symbol(*symbols) else None

    def need_word(self, word: str) -> None:
        """Consume this keyword, or refuse."""
        if self.take_word(word) is None:
            raise self.unexpected(f"expected {word}")

    def need_symbol(self, symbol: str) -> None:
        """Consume this symbol, or refuse."""
        if self.take_symbol(symbol) is None:
            raise self.unexpected(f"expected {symbol}")

    def enter(self) -> None:
        """Open one level."""
        self._level += 1
        if self._level > DEPTH_MAX:
            raise self.too_deep(self.here.span)

    def leave(self) -> None:
        """Close one level."""
        self._level -= 1

    def end(self, expected: str) -> None:
        """Refuse remaining tokens."""
        if self.here.kind is not TokenKind.END:
            raise self.unexpected(expected)

    def too_deep(self, span: TextSpan) -> Exception:
        """Return the refusal of a tree with too many levels."""
        fact = f"the expression is nested more than {DEPTH_MAX} levels deep"
        return self.source.refusal(span, fact, "expected a flatter one")

    def unexpected(self, expected: str) -> Exception:
        """Return the refusal of the next token."""
        token = self.here
        if token.kind is TokenKind.END:
            return self.source.refusal(token.span, "the expression ends too early", expected)
        fact = f"unexpected '{self.source.of(token.span)}'"
        return self.source.refusal(token.span, fact, expected)

    # ---------------------------------------------------------------------- Operators by precedence
    #
    # The levels are Spark's own, loosest first: or · and · not · one predicate (`is null`, `in`,
    # `between`, `like`, `rlike`) · one comparison · `+ - ||` · `* / % div` · sign.

    def expression(self) -> Node:
        """Parse a complete expression."""
        self.enter()
        node = self._chain("OR", lambda: self._chain("AND", self._negation))
        self.leave()
        return node

    def _chain(self, word: str, read: Callable[[], Node]) -> Node:
        """Parse `a OR b OR c` as one node, so that long chains are not deep."""
        first = read()
        args = [first]
        while self.take_word(word.lower()):
            args.append(read())
        return first if len(args) == 1 else self._apply(word, *args)

    def _negation(self) -> Node:
        begin = self.here.span
        if not self.take_word("not"):
            return self._predicate()
        self.enter()
        inner = self._negation()
        self.leave()
        return self._apply("NOT", inner, begin=begin)

    def _predicate(self) -> Node:
        value = self._comparison()
        if self.take_word("is"):
            op = "IS NOT NULL" if self.take_word("not") else "IS NULL"
            self.need_word("null")
            return self._apply(op, value)
        negation = "NOT " if self.take_word("not") else ""
        for word, read in (("in", self._list), ("between", self._bounds)):
            if self.take_word(word):
                return self._apply(negation + word.upper(), value, *read())
        for word in ("like", "rlike"):
            if self.take_word(word):
                return self._apply(negation + word.upper(), value, self._sum())
        if negation:
            raise self.unexpected("expected in, between, like or rlike after not")
        return value

    def _bounds(self) -> list[Node]:
        low = self._sum()
        self.need_word("and")
        return [low, self._sum()]

    def _list(self) -> list[Node]:
        self.need_symbol("(")
        if self.here.is_word("select", "with"):
            raise self.unexpected("expected literals; a query inside is not allowed")
        return self.listed(self.expression)

    def _comparison(self) -> Node:
        left = self._sum()
        op = self.take_symbol(*_COMPARISONS)
        if op is None:
            return left
        node = self._apply(op, left, self._sum())
        if self.here.is_symbol(*_COMPARISONS):
            raise self.unexpected("expected and between two comparisons")
        return node

    def _sum(self) -> Node:
        left = self._product()
        while op := self.take_symbol("+", "-", "||"):
            args = [left, self._product()]
            # Joining is associative: a long chain is one node, and not deep.
            while op == "||" and self.take_symbol(op):
                args.append(self._product())
            left = self._apply(op, *args)
        return left

    def _product(self) -> Node:
        left = self._sign()
        while op := self.take_symbol("*", "/", "%") or self.take_word("div"):
            left = self._apply(op.upper(), left, self._sign())
        return left

    def _sign(self) -> Node:
        begin = self.here.span
        sign = self.take_symbol("-", "+")
        if sign is None:
            return self.primary()
        self.enter()
        inner = self._sign()
        self.leave()
        if isinstance(inner, Literal) and inner.kind is LiteralKind.NUMBER:
            if sign == "+":
                return inner
            value = inner.value[1:] if inner.value.startswith("-") else f"-{inner.value}"
            return Literal(inner.kind, value, begin.to(inner.span))
        return self._apply(f"SIGN {sign}", inner, begin=begin)

    def _apply(self, op: str, *args: Node, begin: TextSpan | None = None) -> Apply:
        if len(args) > LIST_MAX + 1:
            fact = f"{op.lower()} has more than {LIST_MAX} members"
            raise self.source.refusal(args[-1].span, fact, "expected fewer")
        depth = 1 + max(arg.depth for arg in args)
        span = (begin or args[0].span).to(self.last.span)
        if depth > DEPTH_MAX:
            raise self.too_deep(span)
        return Apply(op, args, span, depth)

    # ----------------------------------------------------------------- What operators stand between

    def primary(self) -> Node:
        """Parse one operand."""
        token = self.here
        match token.kind:
            case TokenKind.NUMBER:
                return Literal(LiteralKind.NUMBER, self.take().value, token.span)
            case TokenKind.STRING:
                return self._string()
            case TokenKind.NAME:
                return self._word()
            case TokenKind.QUOTED:
                return self.name()
            case _ if self.take_symbol("("):
                return self._bracket()
            case _:
                raise self.unexpected(_VALUE)

    def name(self) -> ColumnName:
        """Parse a column with its path of fields."""
        parts = [self.name_part()]
        while self.take_symbol("."):
            parts.append(self.name_part())
            if len(parts) > DEPTH_MAX:
                raise self.too_deep(self.last.span)
        values, spans = zip(*parts, strict=True)
        if self.here.is_symbol("("):
            raise self.unexpected("expected an operator; only listed functions can be called")
        return ColumnName(values, spans)

    def name_part(self) -> tuple[str, TextSpan]:
        """Parse one name."""
        token = self.here
        word = token.kind is TokenKind.NAME and token.value.lower() not in RESERVED
        if not (word or token.kind is TokenKind.QUOTED):
            quoted = " (a word of the language in `backticks`)" if token.value.isalpha() else ""
            raise self.unexpected(f"expected a name{quoted}")
        return self.take().value, token.span

    def listed(self, read: Callable[[], Node]) -> list[Node]:
        """Parse members up to the closing bracket, after the opening one was consumed."""
        members = [read()]
        while self.take_symbol(","):
            if len(members) == LIST_MAX:
                fact = f"the list has more than {LIST_MAX} members"
                raise self.source.refusal(self.here.span, fact, "expected fewer")
            members.append(read())
        if not self.take_symbol(")"):
            raise self.unexpected("expected , or )")
        return members

    def _bracket(self) -> Node:
        if self.here.is_word("select", "with", "values", "table", "from"):
            raise self.unexpected(f"{_VALUE}; a query inside is not allowed")
        inner = self.expression()
        self.need_symbol(")")
        return inner

    def _string(self) -> Literal:
        token = self.take()
        if self.here.kind is TokenKind.STRING:
            raise self.unexpected("expected an operator; join strings with ||")
        return Literal(LiteralKind.STRING, token.value, token.span)

    def _word(self) -> Node:
        token = self.here
        word = token.value.lower()
        if kind := _CONSTANTS.get(word):
            return Literal(kind, word, self.take().span)
        if self.ahead.kind is TokenKind.STRING and word in ("date", "timestamp"):
            self.take()
            text = self.take()
            return Literal(LiteralKind(word), text.value, token.span.to(text.span))
        if self.take_word("case"):
            return self._case(token.span)
        if self.take_word("interval"):
            return self._interval(token.span)
        if self.ahead.is_symbol("("):
            return self._cast() if word in ("cast", "try_cast") else self._call()
        if word in RESERVED:
            raise self.unexpected(_VALUE)
        return self.name()

    def _call(self) -> FunctionCall:
        token = self.take()
        if token.value.lower() in RESERVED:
            raise self.source.refusal(token.span, f"unexpected '{token.value}'", _VALUE)
        self.need_symbol("(")
        args = [] if self.take_symbol(")") else self.listed(self.expression)
        if self.here.is_word("over", "filter", "within"):
            raise self.unexpected("expected an operator; windows and aggregates are not allowed")
        depth = 1 + max((arg.depth for arg in args), default=0)
        return FunctionCall(token.value.lower(), tuple(args), token.span.to(self.last.span), depth)

    def _case(self, begin: TextSpan) -> Case:
        operand = None if self.here.is_word("when") else self.expression()
        branches: list[tuple[Node, Node]] = []
        while self.take_word("when"):
            condition = self.expression()
            self.need_word("then")
            branches.append((condition, self.expression()))
            if len(branches) > LIST_MAX:
                raise self.source.refusal(
                    begin, f"case has over {LIST_MAX} branches", "expected fewer"
                )
        if not branches:
            raise self.unexpected("expected when")
        otherwise = self.expression() if self.take_word("else") else None
        if not self.take_word("end"):
            raise self.unexpected("expected when, else or end")
        parts = [*(part for branch in branches for part in branch), operand, otherwise]
        depth = 1 + max(part.depth for part in parts if part is not None)
        return Case(operand, tuple(branches), otherwise, begin.to(self.last.span), depth)

    def _cast(self) -> Cast:
        word = self.take()
        self.need_symbol("(")
        value = self.expression()
        self.need_word("as")
        target = self._cast_type()
        self.need_symbol(")")
        safe = word.value.lower() == "try_cast"
        return Cast(value, target, safe, word.span.to(self.last.span), value.depth + 1)

    def _cast_type(self) -> str:
        token = self.here
        name = {"INTEGER": "INT"}.get(token.value.upper(), token.value.upper())
        if token.kind is not TokenKind.NAME or name not in CAST_TYPES:
            types = ", ".join(sorted(CAST_TYPES)).lower()
            raise self.unexpected(f"expected one of the types {types}")
        self.take()
        if name != "DECIMAL":
            return name
        self.need_symbol("(")
        precision = self._whole(38)
        self.need_symbol(",")
        scale = self._whole(precision)
        self.need_symbol(")")
        return f"DECIMAL({precision},{scale})"

    def _interval(self, begin: TextSpan) -> Interval:
        if self.here.kind is TokenKind.STRING:
            words = self.take().value.split()
            if words and not (words[0].isascii() and words[0].isdigit()):
                words = []
        else:
            words = [str(self._whole(INTERVAL_MAX))]
        if len(words) == 1 and self.here.kind is TokenKind.NAME:
            words.append(self.take().value)
        unit = words[1].lower().removesuffix("s") if len(words) == 2 else ""
        span = begin.to(self.last.span)
        if unit not in _UNITS or len(words[0]) > 7 or int(words[0]) > INTERVAL_MAX:
            expected = (
                f"expected a whole number up to {INTERVAL_MAX} and one of {', '.join(_UNITS)}"
            )
            raise self.source.refusal(span, f"{self.source.of(span)} is no interval", expected)
        return Interval(int(words[0]), unit, span)

    def _whole(self, at_most: int) -> int:
        token = self.here
        digits = token.kind is TokenKind.NUMBER and token.value.isdigit() and len(token.value) <= 7
        if not digits or int(token.value) > at_most:
            raise self.unexpected(f"expected a whole number up to {at_most}")
        return int(self.take().value)
