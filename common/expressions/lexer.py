"""Text to tokens: size limits, positions in a text, string literals, and the tokens themselves.

Every refusal points at a position of the text. Characters that begin no token are refused here:
comments, `;`, variables, `[`. The work is linear in the text, and the text is bounded.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from itertools import islice

from common.errors import RequestError

# ------------------------------------------------------------------- How large an expression may be


TEXT_CHARS_MAX = 10_000
TOKENS_MAX = 5_000
DEPTH_MAX = 32
"""Levels of the tree. A level costs about ten frames of Python's stack."""
LIST_MAX = 1_000
"""Members of an IN list, arguments of a variadic function, branches of a CASE."""
ASSIGNMENTS_MAX = 100
PATTERN_CHARS_MAX = 200
PATTERN_WAYS_MAX = 1_000
"""Largest number of combinations of the choices in a regular expression."""
PATTERN_REPEATS_MAX = 2
"""Unbounded repetitions of a pattern; each adds a power of the value's length to the cost."""
REPLACEMENT_CHARS_MAX = 100
DIGITS_MAX = 38
"""Digits of a number, as in Spark's widest decimal."""
INTERVAL_MAX = 1_000_000
SHOWN_CHARS = 100
"""Length of the part of a long line that a message shows."""
SUGGEST_COLUMNS_MAX = 1_000
SUGGEST_CHARS_MAX = 64


# ---- A text and positions in it
#
# expression refused at line 1, column 1: there is no column `amuont`; did you mean `amount`?
#     amuont > 5
#     ^^^^^^


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Characters from `start` up to, not including, `end`."""

    start: int
    end: int

    def to(self, other: "TextSpan") -> "TextSpan":
        """Return the span from the start of this span to the end of another."""
        return TextSpan(self.start, other.end)


@dataclass(frozen=True, slots=True)
class SourceText:
    """The user's text."""

    text: str

    def refusal(self, span: TextSpan, fact: str, expected: str) -> RequestError:
        """Return an error that points at `span`.

        Args:
            span: Position; may be empty, as at the end of the text.
            fact: What is wrong there.
            expected: What is allowed there.
        """
        before = self.text[: span.start]
        line = before.count("\n") + 1
        column = span.start - (before.rfind("\n") + 1) + 1
        shown, caret = self._line(span, column)
        heading = f"expression refused at line {line}, column {column}"
        return RequestError(f"{heading}: {fact}; {expected}\n    {shown}\n    {caret}")

    def of(self, span: TextSpan) -> str:
        """Return the text of a span in printable form."""
        return printable(self.text[span.start : min(span.end, span.start + SHOWN_CHARS)])

    def _line(self, span: TextSpan, column: int) -> tuple[str, str]:
        """Return the line of a span, shortened around it, and the carets below it."""
        begin = span.start - column + 1
        end = self.text.find("\n", begin)
        end = len(self.text) if end < 0 else end
        left = max(begin, span.start - SHOWN_CHARS // 2)
        right = min(end, left + SHOWN_CHARS)
        head, tail = "… " if left > begin else "", " …" if right < end else ""
        shown = f"{head}{printable(self.text[left:right])}{tail}".rstrip()
        width = max(1, min(span.end, right) - span.start)
        return shown, " " * (len(head) + span.start - left) + "^" * width


def printable(text: str) -> str:
    """Return the text with a mark in place of every invisible character."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


# ---------------------------------------------------------------------------------- Did you mean …?


def suggestion(word: str, names: Iterable[str]) -> str:
    """Return `; did you mean amount?`, or an empty text if no name is similar."""
    if len(word) > SUGGEST_CHARS_MAX:
        return ""
    spellings: dict[str, str] = {}
    for name in islice(sorted(names), SUGGEST_COLUMNS_MAX):
        if len(name) <= SUGGEST_CHARS_MAX:
            spellings.setdefault(name.lower(), name)
    close = get_close_matches(word.lower(), spellings, n=1)
    return f"; did you mean {printable(spellings[close[0]])}?" if close else ""


# ---- String literals
#
# A quote inside is doubled, or follows a backslash. Only unambiguous escapes of Spark are
# supported. Escapes of `%` and `_` are kept for LIKE. A raw string has no escapes. The output is
# ASCII only, so that look-alike letters cannot mislead readers of the SQL. Dollar signs are written
# as numbers, because Spark replaces `${…}` by variables, including environment variables, before
# it looks for quotes.


VARIABLE = "${"

_PLAIN = re.compile(r"[^'\\]+")
_RAW = re.compile(r"[rR]'([^']*)'")
_UNICODE = re.compile(r"\\u([0-9a-fA-F]{4})")
_ESCAPES = {
    "\\": "\\", "'": "'", '"': '"', "n": "\n", "t": "\t", "r": "\r", "%": "\\%", "_": "\\_",
}  # fmt: skip


def read_string(source: SourceText, at: int) -> tuple[str, int]:
    """Return the value of the literal that begins at `at`, and the position after it.

    Raises:
        RequestError: It does not end, or has an unknown escape.
    """
    text = source.text
    if text[at] in "rR":
        raw = _RAW.match(text, at)
        if raw is None:
            raise _open(source, at)
        return raw[1], raw.end()
    parts: list[str] = []
    index = at + 1
    while index < len(text):
        if text.startswith("''", index):
            parts.append("'")
            index += 2
        elif text[index] == "'":
            return "".join(parts), index + 1
        elif text[index] == "\\":
            part, index = _escape(source, index)
            parts.append(part)
        elif plain := _PLAIN.match(text, index):
            parts.append(plain.group())
            index = plain.end()
    raise _open(source, at)


def _escape(source: SourceText, at: int) -> tuple[str, int]:
    letter = source.text[at + 1 : at + 2]
    if letter in _ESCAPES:
        return _ESCAPES[letter], at + 2
    if escape := _UNICODE.match(source.text, at):
        code = int(escape[1], 16)
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code), escape.end()
    fact = f"the escape \\{letter} is not known"
    expected = r"expected \\, \', \n, \t, \r, \%, \_ or \u0041, or a raw string r'…'"
    raise source.refusal(TextSpan(at, at + 2), fact, expected)


def _open(source: SourceText, at: int) -> Exception:
    expected = r"expected a closing quote (inside, write '' or \' for a quote)"
    return source.refusal(TextSpan(at, at + 1), "the string does not end", expected)


def quoted_text(value: str) -> str:
    """Return a value as a Spark SQL string literal of printable ASCII."""
    return f"'{''.join(map(_written, value))}'"


def _written(letter: str) -> str:
    if letter in "'\\":
        return f"\\{letter}"
    if letter != "$" and letter.isascii() and letter.isprintable():
        return letter
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def quoted_name(name: str) -> str:
    """Return a name as a Spark SQL identifier; one with a variable in it has no such form."""
    assert VARIABLE not in name, "the checker refuses such names"
    return f"`{name.replace('`', '``')}`"


# ------------------------------------------------------------------------------------------- Tokens


class TokenKind(StrEnum):
    """The kind of a token."""

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
    span: TextSpan

    def is_word(self, *words: str) -> bool:
        """Return whether this is one of these keywords, in any case."""
        return self.kind is TokenKind.NAME and self.value.lower() in words

    def is_symbol(self, *symbols: str) -> bool:
        """Return whether this is one of these symbols."""
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


def tokens_of(source: SourceText) -> tuple[Token, ...]:
    """Return the tokens of a text; the last one is `END`.

    Raises:
        RequestError: It is too long, or has a character that begins no token.
    """
    length = len(source.text)
    if length > TEXT_CHARS_MAX:
        fact = f"the expression has {length} characters"
        excess = TextSpan(TEXT_CHARS_MAX, TEXT_CHARS_MAX + 1)
        raise source.refusal(excess, fact, f"expected at most {TEXT_CHARS_MAX}")
    _refuse_invisible(source)
    tokens: list[Token] = []
    for token in _scan(source):
        if len(tokens) == TOKENS_MAX:
            fact = f"the expression has more than {TOKENS_MAX} words and symbols"
            raise source.refusal(token.span, fact, "expected a shorter one")
        tokens.append(token)
    return (*tokens, Token(TokenKind.END, "", TextSpan(length, length)))


def _refuse_invisible(source: SourceText) -> None:
    for at, letter in enumerate(source.text):
        if letter not in "\t\n\r" and unicodedata.category(letter) in _INVISIBLE:
            fact = f"the character U+{ord(letter):04X} cannot be seen"
            expected = f"expected visible text (in a string, \\u{ord(letter) & 0xFFFF:04x})"
            raise source.refusal(TextSpan(at, at + 1), fact, expected)


def _scan(source: SourceText) -> Iterator[Token]:
    text, at = source.text, 0
    while at < len(text):
        if space := _SPACE.match(text, at):
            at = space.end()
            continue
        token = _token(source, at)
        yield token
        at = token.span.end


def _token(source: SourceText, at: int) -> Token:
    text = source.text
    if _STRING_START.match(text, at):
        value, end = read_string(source, at)
        return Token(TokenKind.STRING, value, TextSpan(at, end))
    if match := _NAME.match(text, at):
        return Token(TokenKind.NAME, match.group(), TextSpan(*match.span()))
    if match := _QUOTED.match(text, at):
        return Token(TokenKind.QUOTED, match[1].replace("``", "`"), TextSpan(*match.span()))
    if match := _NUMBER.match(text, at):
        return _number(source, match)
    if match := _REFUSED.match(text, at):
        raise _unexpected(source, match.group(), TextSpan(*match.span()))
    if match := _SYMBOL.match(text, at):
        symbol = match.group()
        return Token(TokenKind.SYMBOL, _SAME.get(symbol, symbol), TextSpan(*match.span()))
    raise _unexpected(source, text[at], TextSpan(at, at + 1))


def _number(source: SourceText, match: re.Match[str]) -> Token:
    if after := _AFTER_NUMBER.match(source.text, match.end()):
        span = TextSpan(match.start(), after.end())
        fact = f"{source.of(span)} is not a number"
        raise source.refusal(span, fact, "expected digits such as 12, 1.5 or 2e3, without a suffix")
    return Token(TokenKind.NUMBER, match.group(), TextSpan(*match.span()))


def _unexpected(source: SourceText, symbol: str, span: TextSpan) -> Exception:
    code = "" if symbol.isascii() else f" (U+{ord(symbol[0]):04X})"
    return source.refusal(span, f"unexpected '{symbol}'{code}", _INSTEAD.get(symbol, _EXPECTED))
