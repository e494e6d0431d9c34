r"""Patterns whose cost is known: LIKE, and a small language of regular expressions.

Spark matches both by trying alternatives in turn, so that `(a+)+b` takes time exponential
in the value. A pattern is therefore refused unless the ways in which its choices combine
are few: `?`, `{m,n}` and `|` multiply along a sequence, and an unbounded repetition
may neither hold a choice nor be followed by more than one other.

    sequence    one after another: ways multiply, repetitions add
    a|b         ways add, repetitions: the larger
    x?  x{m,n}  ways: one for each count
    x*  x+      one repetition; x must have no choice of its own
"""

import re
from dataclasses import dataclass

from common.expressions.bounds import PATTERN_CHARS_MAX, PATTERN_REPEATS_MAX, PATTERN_WAYS_MAX
from common.expressions.source import Source, Span

_COUNTED_MAX = 100
_GROUPS_MAX = 10
_ATOM = re.compile(
    r"\[\^?(?:[^\[\]\\^&]|\\[dDwWsStnr\\.\[\]^-])+\]"  # a class of characters
    r"|\\[dDwWsSbtnr]|\\[.\\^$|?*+()\[\]{}/-]"  # a class by name; a sign as itself
    r"|[^\\^$|?*+()\[\]{}]|[.^$]"
)
_COUNTS = re.compile(r"([?*+])\??|\{([0-9]{1,3})(?:(,)([0-9]{1,3})?)?\}\??")
_OPEN = re.compile(r"\((\?:)?(?!\?)")


def require_like(source: Source, pattern: str, span: Span) -> None:
    """Refuse a LIKE pattern that is too long, too costly or not well formed."""
    _require_short(source, pattern, span)
    bare = re.sub(r"\\[\\%_]", "", pattern)
    if "\\" in bare:
        expected = r"expected \%, \_ or \\ (in a string, \\\\)"
        raise source.refusal(span, "the pattern has a backslash before another sign", expected)
    if bare.count("%") > PATTERN_REPEATS_MAX + 1:
        expected = f"expected at most {PATTERN_REPEATS_MAX + 1}; join several patterns with and"
        raise source.refusal(span, "the pattern has too many %", expected)


def require_regex(source: Source, pattern: str, span: Span) -> None:
    """Refuse a regular expression that is too long, too costly or not of our language."""
    _require_short(source, pattern, span)
    try:
        cost = _RegexReader(pattern).whole()
        re.compile(pattern)  # Finds ranges such as [z-a].
    except (ValueError, re.error) as error:
        expected = (
            r"expected letters, classes, groups, |, ?, *, + and {m,n}; signs after a \ (raw: r'\.')"
        )
        raise source.refusal(span, f"the pattern {error}", expected) from error
    if cost.ways > PATTERN_WAYS_MAX or cost.repeats > PATTERN_REPEATS_MAX:
        fact = "the pattern can match in too many ways"
        expected = f"expected at most {PATTERN_REPEATS_MAX} of * and +, and fewer choices"
        raise source.refusal(span, fact, expected)


def _require_short(source: Source, pattern: str, span: Span) -> None:
    if len(pattern) > PATTERN_CHARS_MAX:
        fact = f"the pattern has {len(pattern)} characters"
        raise source.refusal(span, fact, f"expected at most {PATTERN_CHARS_MAX}")


@dataclass(frozen=True, slots=True)
class _Cost:
    """In how many ways a part can match, and how many unbounded repetitions it holds."""

    ways: int = 1
    repeats: int = 0

    def then(self, other: "_Cost") -> "_Cost":
        # What is beyond the bound stays there; numbers do not grow without end.
        return _Cost(
            min(self.ways * other.ways, PATTERN_WAYS_MAX + 1), self.repeats + other.repeats
        )

    def either(self, other: "_Cost") -> "_Cost":
        return _Cost(
            min(self.ways + other.ways, PATTERN_WAYS_MAX + 1), max(self.repeats, other.repeats)
        )


class _RegexReader:
    """Reads a pattern once, from left to right; `_at` is the next character."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._groups = 0

    def whole(self) -> _Cost:
        """Return the cost of the pattern."""
        if self._pattern.startswith("(?i)"):
            self._at = 4
        cost = self._choice()
        if self._at < len(self._pattern):
            raise ValueError("closes a group that is not open")
        return cost

    def _choice(self) -> _Cost:
        cost = self._sequence()
        while self._pattern.startswith("|", self._at):
            self._at += 1
            cost = cost.either(self._sequence())
        return cost

    def _sequence(self) -> _Cost:
        cost = _Cost()
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            cost = cost.then(self._repeated(self._piece()))
        return cost

    def _piece(self) -> _Cost:
        if found := _OPEN.match(self._pattern, self._at):
            self._groups += 1
            if self._groups > _GROUPS_MAX:
                raise ValueError(f"has more than {_GROUPS_MAX} groups")
            self._at = found.end()
            cost = self._choice()
            if not self._pattern.startswith(")", self._at):
                raise ValueError("has a group that does not close")
            self._at += 1
            return cost
        found = _ATOM.match(self._pattern, self._at)
        if found is None:
            raise ValueError(
                f"has {self._pattern[self._at : self._at + 2]} that is not known there"
            )
        self._at = found.end()
        return _Cost()

    def _repeated(self, cost: _Cost) -> _Cost:
        found = _COUNTS.match(self._pattern, self._at)
        if found is None:
            return cost
        self._at = found.end()
        sign, low_text, comma, high_text = found.groups()
        if sign == "?":
            return _Cost().either(cost)
        if sign or (comma and not high_text):
            return self._unbounded(cost, int(low_text or 0))
        low = int(low_text)
        return self._counted(cost, low, int(high_text) if comma else low)

    def _unbounded(self, cost: _Cost, low: int) -> _Cost:
        if cost != _Cost():
            raise ValueError("repeats without bound what has a choice or a repetition in it")
        if low > _COUNTED_MAX:
            raise ValueError(f"counts beyond {_COUNTED_MAX}")
        return _Cost(repeats=1)

    def _counted(self, cost: _Cost, low: int, high: int) -> _Cost:
        if not low <= high <= _COUNTED_MAX:
            raise ValueError(f"counts down, or beyond {_COUNTED_MAX}")
        if cost.repeats:
            raise ValueError("repeats what has a repetition in it")
        ways = min(sum(cost.ways**count for count in range(low, high + 1)), PATTERN_WAYS_MAX + 1)
        return _Cost(max(1, ways))
