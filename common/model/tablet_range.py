"""Which keys tablets hold, as the half-open ranges that requests speak of. Pure.

Bounds exclude their start and include their end, ranges the other way round: the first
key behind another is that key and a zero byte. A tablet that is one partition has no
keys between bounds; its end stands for it.
"""

from common.model.request import KeyRange
from common.model.tablet import PLUS_INFINITY, Bounds


def first_key(bounds: Bounds) -> bytes | None:
    """Return the first bytes that a key of a tablet may have; None: from the beginning."""
    if bounds.partition is not None:
        return bounds.end
    return None if bounds.start is None else bounds.start + b"\x00"


def range_of(first: Bounds, last: Bounds | None = None) -> KeyRange:
    """Return the keys of a tablet, or of all from one to another: no other tablet meets them.

    Args:
        first: Of the first tablet.
        last: Of the last one; None: there is only one.
    """
    last = first if last is None else last
    whole = last.partition is None and last.end == PLUS_INFINITY
    return KeyRange(first_key(first), None if whole else last.end + b"\x00")


def covers(keys: KeyRange, bounds: Bounds) -> bool:
    """Return whether every key of a tablet is in a range."""
    first = first_key(bounds)
    begins = keys.start is None or (first is not None and first >= keys.start)
    return begins and (keys.until is None or bounds.end < keys.until)
