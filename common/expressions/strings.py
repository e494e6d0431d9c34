r"""String literals: reading the user's, writing ours.

A quote inside is `''` or `\'`. Escapes are those of Spark that cannot be mistaken; `\%`
and `\_` stay as they are, for LIKE. A raw string `r'\d+'` has no escapes. What is written
is ASCII alone, so that nobody who reads the SQL is misled by its letters. Dollars are
written by number: Spark puts variables, even of the environment, in place of `${…}`
before it looks for quotes.
"""

import re

from common.expressions.source import Source, Span

VARIABLE = "${"

_PLAIN = re.compile(r"[^'\\]+")
_RAW = re.compile(r"[rR]'([^']*)'")
_UNICODE = re.compile(r"\\u([0-9a-fA-F]{4})")
_ESCAPES = {
    "\\": "\\", "'": "'", '"': '"', "n": "\n", "t": "\t", "r": "\r", "%": "\\%", "_": "\\_",
}  # fmt: skip


def read_string(source: Source, at: int) -> tuple[str, int]:
    """Return the value of the literal that begins at `at`, and the place behind it.

    Raises:
        RequestError: It does not end, or holds an escape that is not known.
    """
    text = source.text
    if text[at] in "rR":
        found = _RAW.match(text, at)
        if found is None:
            raise _open(source, at)
        return found[1], found.end()
    parts: list[str] = []
    here = at + 1
    while here < len(text):
        if text.startswith("''", here):
            parts.append("'")
            here += 2
        elif text[here] == "'":
            return "".join(parts), here + 1
        elif text[here] == "\\":
            part, here = _escape(source, here)
            parts.append(part)
        elif plain := _PLAIN.match(text, here):
            parts.append(plain.group())
            here = plain.end()
    raise _open(source, at)


def _escape(source: Source, at: int) -> tuple[str, int]:
    letter = source.text[at + 1 : at + 2]
    if letter in _ESCAPES:
        return _ESCAPES[letter], at + 2
    if found := _UNICODE.match(source.text, at):
        code = int(found[1], 16)
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code), found.end()
    fact = f"the escape \\{letter} is not known"
    expected = r"expected \\, \', \n, \t, \r, \%, \_ or \u0041, or a raw string r'…'"
    raise source.refusal(Span(at, at + 2), fact, expected)


def _open(source: Source, at: int) -> Exception:
    expected = r"expected a closing quote (inside, write '' or \' for a quote)"
    return source.refusal(Span(at, at + 1), "the string does not end", expected)


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
