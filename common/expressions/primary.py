"""The innermost level of the grammar: literals, columns, brackets, calls, CASE, casts."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from common.expressions.bounds import DEPTH_MAX, INTERVAL_MAX, LIST_MAX
from common.expressions.lexer import TokenKind
from common.expressions.nodes import Call, Case, Cast, Interval, Literal, LiteralKind, Name, Node
from common.expressions.reader import TokenReader
from common.expressions.source import Span
from common.expressions.types import CAST_KINDS

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
_UNITS = ("second", "minute", "hour", "day", "week", "month", "year")
_CONSTANTS = {
    "true": LiteralKind.BOOLEAN, "false": LiteralKind.BOOLEAN, "null": LiteralKind.NULL,
}  # fmt: skip


class PrimaryGrammar(TokenReader, ABC):
    """Reads what operators stand between."""

    @abstractmethod
    def expression(self) -> Node:
        """Read one whole expression."""

    def primary(self) -> Node:
        """Read one operand."""
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

    def name(self) -> Name:
        """Read a column, with the fields that lead into it."""
        parts = [self.name_part()]
        while self.take_symbol("."):
            parts.append(self.name_part())
            if len(parts) > DEPTH_MAX:
                raise self.too_deep(self.last.span)
        values, spans = zip(*parts, strict=True)
        if self.here.is_symbol("("):
            raise self.unexpected("expected an operator; only listed functions can be called")
        return Name(values, spans)

    def name_part(self) -> tuple[str, Span]:
        """Read one name."""
        token = self.here
        word = token.kind is TokenKind.NAME and token.value.lower() not in RESERVED
        if not (word or token.kind is TokenKind.QUOTED):
            quoted = " (a word of the language in `backticks`)" if token.value.isalpha() else ""
            raise self.unexpected(f"expected a name{quoted}")
        return self.take().value, token.span

    def listed(self, read: Callable[[], Node]) -> list[Node]:
        """Read members up to the closing bracket; the opening one is taken."""
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

    def _call(self) -> Call:
        token = self.take()
        if token.value.lower() in RESERVED:
            raise self.source.refusal(token.span, f"unexpected '{token.value}'", _VALUE)
        self.need_symbol("(")
        args = [] if self.take_symbol(")") else self.listed(self.expression)
        if self.here.is_word("over", "filter", "within"):
            raise self.unexpected("expected an operator; windows and aggregates are not allowed")
        depth = 1 + max((arg.depth for arg in args), default=0)
        return Call(token.value.lower(), tuple(args), token.span.to(self.last.span), depth)

    def _case(self, begin: Span) -> Case:
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
        if token.kind is not TokenKind.NAME or name not in CAST_KINDS:
            known = ", ".join(sorted(CAST_KINDS)).lower()
            raise self.unexpected(f"expected one of the types {known}")
        self.take()
        if name != "DECIMAL":
            return name
        self.need_symbol("(")
        precision = self._whole(38)
        self.need_symbol(",")
        scale = self._whole(precision)
        self.need_symbol(")")
        return f"DECIMAL({precision},{scale})"

    def _interval(self, begin: Span) -> Interval:
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
