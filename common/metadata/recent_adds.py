"""The versions that recent adds have reached: an upper bound on the watermark.

The highest version in a tablet may come from a single row with a wrong clock. If a tombstone of
that version were dropped, the watermark would rise above the versions of all other writers, and the
tablet would refuse their files. So each add records the lowest of its files' highest versions for
the table's retention time. No dead row above the smallest recorded version is dropped. Adds within
half a retention share an entry, which keeps the record small.
"""

import math
from collections.abc import Iterable

Notes = tuple[tuple[float, bytes], ...]
"""(expiry time, lowest version that adds have reached since), ascending in both."""

NOTES_PER_RETENTION = 2


def with_add(notes: Notes, now_s: float, reached: Iterable[bytes], retention_s: float) -> Notes:
    """Return the notes after files were added.

    Args:
        notes: Notes of the record.
        now_s: The store's time.
        reached: The highest version of each file.
        retention_s: Retention of the table.
    """
    lowest = min(reached, default=None)
    until_s = float(math.floor(now_s + retention_s))
    if lowest is None or until_s <= now_s:
        return _alive(notes, now_s)
    # A note that expires earlier and is not lower has no effect.
    kept = [note for note in _alive(notes, now_s) if note[1] < lowest]
    if kept and _slot(kept[-1][0], retention_s) == _slot(until_s, retention_s):
        lowest = kept.pop()[1]
    return (*kept, (until_s, lowest))


def union(one: Notes, other: Notes) -> Notes:
    """Return the notes of two tablets after their merge."""
    return tuple(sorted({*one, *other}))


def bound(notes: Notes, now_s: float) -> bytes | None:
    """Return the version above which no dead row may be dropped; None: no such bound."""
    return min((version for _, version in _alive(notes, now_s)), default=None)


def _alive(notes: Notes, now_s: float) -> Notes:
    return tuple(note for note in notes if note[0] > now_s)


def _slot(until_s: float, retention_s: float) -> int:
    return int(until_s * NOTES_PER_RETENTION // retention_s)
