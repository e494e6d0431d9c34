"""Tokens to a tree, by recursive descent, without ever going back: linear in the tokens.

The levels are Spark's own, loosest first: or · and · not · one predicate (`is null`,
`in`, `between`, `like`, `rlike`) · one comparison · `+ - ||` · `* / % div` · sign.
"""

from collections.abc import Callable

from common.expressions.bounds import DEPTH_MAX, LIST_MAX
from common.expressions.nodes import Apply, Literal, LiteralKind, Node
from common.expressions.primary import PrimaryGrammar
from common.expressions.source import Span

_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "<=>")


class Grammar(PrimaryGrammar):
    """Reads expressions from left to right."""

    def expression(self) -> Node:
        """Read one whole expression."""
        self.enter()
        node = self._chain("OR", lambda: self._chain("AND", self._negation))
        self.leave()
        return node

    def _chain(self, word: str, read: Callable[[], Node]) -> Node:
        """Read `a OR b OR c` as one node, so that long chains are not deep."""
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

    def _apply(self, op: str, *args: Node, begin: Span | None = None) -> Apply:
        if len(args) > LIST_MAX + 1:
            fact = f"{op.lower()} has more than {LIST_MAX} members"
            raise self.source.refusal(args[-1].span, fact, "expected fewer")
        depth = 1 + max(arg.depth for arg in args)
        span = (begin or args[0].span).to(self.last.span)
        if depth > DEPTH_MAX:
            raise self.too_deep(span)
        return Apply(op, args, span, depth)
