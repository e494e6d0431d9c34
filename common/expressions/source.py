"""A text and places in it: how every refusal shows where it looks.

expression refused at line 1, column 1: there is no column `amuont`; did you mean `amount`?
    amuont > 5
    ^^^^^^
"""

from dataclasses import dataclass

from common.errors import RequestError
from common.expressions.bounds import SHOWN_CHARS


@dataclass(frozen=True, slots=True)
class Span:
    """Characters from `start` up to, not including, `end`."""

    start: int
    end: int

    def to(self, other: "Span") -> "Span":
        """Return the span from here to the end of another."""
        return Span(self.start, other.end)


@dataclass(frozen=True, slots=True)
class Source:
    """What the user wrote."""

    text: str

    def refusal(self, span: Span, fact: str, expected: str) -> RequestError:
        """Return the error that says what is wrong at `span`.

        Args:
            span: Where; may be empty, as at the end of the text.
            fact: What is there.
            expected: What could stand there instead.
        """
        before = self.text[: span.start]
        line = before.count("\n") + 1
        column = span.start - (before.rfind("\n") + 1) + 1
        shown, caret = self._line(span, column)
        place = f"expression refused at line {line}, column {column}"
        return RequestError(f"{place}: {fact}; {expected}\n    {shown}\n    {caret}")

    def of(self, span: Span) -> str:
        """Return the text of a span, fit for a message."""
        return visible(self.text[span.start : min(span.end, span.start + SHOWN_CHARS)])

    def _line(self, span: Span, column: int) -> tuple[str, str]:
        """Return the line of a span, cut round it, and the carets beneath it."""
        begin = span.start - column + 1
        end = self.text.find("\n", begin)
        end = len(self.text) if end < 0 else end
        left = max(begin, span.start - SHOWN_CHARS // 2)
        right = min(end, left + SHOWN_CHARS)
        head, tail = "… " if left > begin else "", " …" if right < end else ""
        shown = f"{head}{visible(self.text[left:right])}{tail}".rstrip()
        width = max(1, min(span.end, right) - span.start)
        return shown, " " * (len(head) + span.start - left) + "^" * width


def visible(text: str) -> str:
    """Return the text with a mark in place of everything that cannot be seen."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
