"""A hand on the tokens: look, take, need, refuse. Knows nothing of what they mean."""

from common.expressions.bounds import DEPTH_MAX
from common.expressions.lexer import Token, TokenKind, tokens_of
from common.expressions.source import Source, Span


class TokenReader:
    """Stands before one token of a text, and never moves back.

    `_level` is how many levels of the grammar are open; it bounds Python's stack.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._tokens = tokens_of(source)
        self._at = 0
        self._level = 0

    @property
    def here(self) -> Token:
        """The token that comes next."""
        return self._tokens[self._at]

    @property
    def ahead(self) -> Token:
        """The token behind `here`."""
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    @property
    def last(self) -> Token:
        """The token that was taken last."""
        return self._tokens[max(self._at - 1, 0)]

    def take(self) -> Token:
        """Take whatever comes next; the end stays where it is."""
        token = self.here
        if token.kind is not TokenKind.END:
            self._at += 1
        return token

    def take_word(self, *words: str) -> str | None:
        """Take one of these keywords, if it comes next."""
        return self.take().value.lower() if self.here.is_word(*words) else None

    def take_symbol(self, *symbols: str) -> str | None:
        """Take one of these symbols, if it comes next."""
        return self.take().value if self.here.is_symbol(*symbols) else None

    def need_word(self, word: str) -> None:
        """Take this keyword, or refuse."""
        if self.take_word(word) is None:
            raise self.unexpected(f"expected {word}")

    def need_symbol(self, symbol: str) -> None:
        """Take this symbol, or refuse."""
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
        """Refuse what is left over."""
        if self.here.kind is not TokenKind.END:
            raise self.unexpected(expected)

    def too_deep(self, span: Span) -> Exception:
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
