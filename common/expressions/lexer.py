"""Text to tokens. What no token begins with is refused here: comments, `;`, variables, `[`."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from common.expressions.bounds import TEXT_CHARS_MAX, TOKENS_MAX
from common.expressions.source import Source, Span
from common.expressions.strings import read_string


class TokenKind(StrEnum):
    """What a token is."""

    NAME = "name"
    QUOTED = "quoted name"
    NUMBER = "number"
    STRING = "string"
    SYMBOL = "symbol"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """One token; `value` is a name without its quotes, a string without its escapes."""

    kind: TokenKind
    value: str
    span: Span

    def is_word(self, *words: str) -> bool:
        """Is this one of these keywords, in any case?"""
        return self.kind is TokenKind.NAME and self.value.lower() in words

    def is_symbol(self, *symbols: str) -> bool:
        """Is this one of these symbols?"""
        return self.kind is TokenKind.SYMBOL and self.value in symbols


_SPACE = re.compile(r"[ \t\r\n]+")
_STRING_START = re.compile(r"[rR]?'")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED = re.compile(r"`((?:[^`]|``)+)`")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_AFTER_NUMBER = re.compile(r"[\w.]")
_REFUSED = re.compile(r"--|/\*|\*/|::|&&")
_SYMBOL = re.compile(r"<=>|<=|>=|<>|!=|==|\|\||[=<>+\-*/%(),.]")
_SAME = {"!=": "<>", "==": "="}
_INSTEAD = {
    "--": "comments are not allowed; expected a space between two minus signs",
    "/*": "comments and hints are not allowed",
    "*/": "comments and hints are not allowed",
    "::": "expected cast(… as type)",
    "&&": "expected and",
    ";": "expected one expression, without a semicolon",
    '"': "expected 'text' for a string or `name` for a column",
    "'": "expected a closing quote (in a string, write '' or \\' for a quote)",
    "`": "expected a name and a closing backtick",
    "!": "expected not, or <>",
    "[": "expected a column, a literal or a listed function; elements cannot be reached",
}
_EXPECTED = "expected a column, a literal, an operator or a listed function"
_INVISIBLE = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}


def tokens_of(source: Source) -> tuple[Token, ...]:
    """Return the tokens of a text; the last one is `END`.

    Raises:
        RequestError: It is too long, or holds what no token begins with.
    """
    length = len(source.text)
    if length > TEXT_CHARS_MAX:
        fact = f"the expression has {length} characters"
        place = Span(TEXT_CHARS_MAX, TEXT_CHARS_MAX + 1)
        raise source.refusal(place, fact, f"expected at most {TEXT_CHARS_MAX}")
    _refuse_invisible(source)
    tokens: list[Token] = []
    for token in _scan(source):
        if len(tokens) == TOKENS_MAX:
            fact = f"the expression has more than {TOKENS_MAX} words and symbols"
            raise source.refusal(token.span, fact, "expected a shorter one")
        tokens.append(token)
    return (*tokens, Token(TokenKind.END, "", Span(length, length)))


def _refuse_invisible(source: Source) -> None:
    for at, letter in enumerate(source.text):
        if letter not in "\t\n\r" and unicodedata.category(letter) in _INVISIBLE:
            fact = f"the character U+{ord(letter):04X} cannot be seen"
            expected = f"expected visible text (in a string, \\u{ord(letter) & 0xFFFF:04x})"
            raise source.refusal(Span(at, at + 1), fact, expected)


def _scan(source: Source) -> Iterator[Token]:
    text, at = source.text, 0
    while at < len(text):
        if space := _SPACE.match(text, at):
            at = space.end()
            continue
        token = _token(source, at)
        yield token
        at = token.span.end


def _token(source: Source, at: int) -> Token:
    text = source.text
    if _STRING_START.match(text, at):
        value, end = read_string(source, at)
        return Token(TokenKind.STRING, value, Span(at, end))
    if found := _NAME.match(text, at):
        return Token(TokenKind.NAME, found.group(), Span(*found.span()))
    if found := _QUOTED.match(text, at):
        return Token(TokenKind.QUOTED, found[1].replace("``", "`"), Span(*found.span()))
    if found := _NUMBER.match(text, at):
        return _number(source, found)
    if found := _REFUSED.match(text, at):
        raise _unexpected(source, found.group(), Span(*found.span()))
    if found := _SYMBOL.match(text, at):
        symbol = found.group()
        return Token(TokenKind.SYMBOL, _SAME.get(symbol, symbol), Span(*found.span()))
    raise _unexpected(source, text[at], Span(at, at + 1))


def _number(source: Source, found: re.Match[str]) -> Token:
    if after := _AFTER_NUMBER.match(source.text, found.end()):
        span = Span(found.start(), after.end())
        fact = f"{source.of(span)} is not a number"
        raise source.refusal(span, fact, "expected digits such as 12, 1.5 or 2e3, without a suffix")
    return Token(TokenKind.NUMBER, found.group(), Span(*found.span()))


def _unexpected(source: Source, found: str, span: Span) -> Exception:
    code = "" if found.isascii() else f" (U+{ord(found[0]):04X})"
    return source.refusal(span, f"unexpected '{found}'{code}", _INSTEAD.get(found, _EXPECTED))
