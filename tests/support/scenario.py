"""The scenario of Accumulo's design for compactions outside of its tablet servers, in numbers.

    F1 … F200 ─► SYSTEM F171 … F200 → F201, while a request waits
    the request selects F1 … F170, F201 ─► five USER jobs → F401 … F405 ─► F406
    meanwhile F301 … F340 come ─► SYSTEM F321 … F340 → F341 ─► SYSTEM F301 … F320, F341 → F342
    in the end SYSTEM may have all that is there: F406, F342 → F407

File Fn holds key n, so a file is known by its first and last key wherever it was written.
"""

from __future__ import annotations

from tests.support.scripted import Script, Span

Names = frozenset[str]


def numbered(first: int, last: int) -> Names:
    """Return F<first> … F<last>."""
    return frozenset(f"F{number}" for number in range(first, last + 1))


SPANS: dict[str, Span] = {
    **{f"F{number}": (number, number) for number in (*range(1, 201), *range(301, 341))},
    "F201": (171, 200),
    "F341": (321, 340),
    "F342": (301, 340),
    "F401": (1, 35),
    "F402": (36, 70),
    "F403": (71, 105),
    "F404": (106, 140),
    "F405": (141, 200),
    "F406": (1, 200),
    "F407": (1, 340),
}
NAMES = {span: name for name, span in SPANS.items()}
"""No two files have the same keys."""

OLD_SYSTEM = numbered(171, 200)
HELD_BACK = numbered(161, 170) | {"F201"}
"""What SYSTEM would merge next, if no request waited."""
SELECTED = numbered(1, 170) | {"F201"}
FIVE = (
    numbered(1, 35),
    numbered(36, 70),
    numbered(71, 105),
    numbered(106, 140),
    numbered(141, 170) | {"F201"},
)
RESULTS = numbered(401, 405)
NEW = numbered(301, 340)
NEW_SYSTEM = numbered(321, 340)
NEXT_SYSTEM = numbered(301, 320) | {"F341"}
LAST_SYSTEM = frozenset({"F406", "F342"})


def spans(names: Names) -> tuple[Span, ...]:
    """Return the spans of some files, ascending."""
    return tuple(sorted(SPANS[name] for name in names))


def merged(names: Names) -> Span:
    """Return the span of some files together."""
    found = spans(names)
    return found[0][0], max(last for _, last in found)


FIFTH_WITHOUT_SYSTEM = numbered(141, 200)
"""The last of the five, if the system job that should have made F201 has died."""

SCRIPT: Script = {
    "SYSTEM": tuple(map(spans, (OLD_SYSTEM, HELD_BACK, NEW_SYSTEM, NEXT_SYSTEM, LAST_SYSTEM))),
    "USER": tuple(map(spans, (*FIVE, FIFTH_WITHOUT_SYSTEM, RESULTS))),
}
INPUTS_MAX = 60
"""The table's `max_files`: so many has the largest job at most."""
