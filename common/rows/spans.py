"""Where dropped keys lie: ranges that hold all of them and, if possible, nobody else's keys.

A commit is refused if a file that came meanwhile may hold an older row of a dropped key.
One range from the first such key to the last would meet every file between them, so a
range ends wherever a file begins or ends that is no input. Ranges are few and their ends
short, however many keys there are and however long: neighbours are joined and ends
rounded outwards, which can only refuse a commit that might have been allowed.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import pairwise

Span = tuple[bytes, bytes]

SPANS_MAX = 256
KEY_BYTES_MAX = 256
"""Of an end of a range. 256 ranges of such ends are as large as a few pages of a file."""
_GAP_BYTES = 8
"""Bytes behind a common beginning that tell how far two keys are apart."""


def spans_of(
    key_at: Callable[[int], bytes], count: int, marks: Iterable[bytes]
) -> tuple[Span, ...]:
    """Return the ranges of some keys.

    Args:
        key_at: Returns a key by its number; keys ascend.
        count: How many there are, at least one.
        marks: Where files begin or end that hold none of them.
    """
    ends = {bisect_right(range(count), mark, key=key_at) for mark in set(marks)}
    cuts = [0, *sorted(end for end in ends if 0 < end < count), count]
    return bounded((key_at(first), key_at(end - 1)) for first, end in pairwise(cuts))


def bounded(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return ranges that cover these: apart, few, and short; the closest neighbours are joined."""
    joined: list[Span] = []
    for low, high in sorted((_rounded_down(low), _rounded_up(high)) for low, high in spans):
        if joined and low <= joined[-1][1]:
            low, last = joined.pop()
            high = max(high, last)
        joined.append((low, high))
    if len(joined) <= SPANS_MAX:
        return tuple(joined)
    gaps = sorted(range(1, len(joined)), key=lambda at: _gap(joined[at - 1][1], joined[at][0]))
    kept = [0, *sorted(gaps[-(SPANS_MAX - 1) :]), len(joined)]
    return tuple((joined[first][0], joined[end - 1][1]) for first, end in pairwise(kept))


def _gap(low: bytes, high: bytes) -> tuple[int, int]:
    """Return how far apart two keys are: the sooner they differ, and the more, the further."""
    pairs = enumerate(zip(low, high, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), len(low))
    return -same, _number(high[same:]) - _number(low[same:])


def _number(key: bytes) -> int:
    return int.from_bytes(key[:_GAP_BYTES].ljust(_GAP_BYTES, b"\x00"), "big")


def _rounded_down(key: bytes) -> bytes:
    return key[:KEY_BYTES_MAX]


def _rounded_up(key: bytes) -> bytes:
    if len(key) <= KEY_BYTES_MAX:
        return key
    short = key[:KEY_BYTES_MAX].rstrip(b"\xff")
    return short[:-1] + bytes([short[-1] + 1]) if short else key
