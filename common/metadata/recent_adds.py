"""Where the adds of the last retention stood: what the watermark must not pass.

A tablet's highest version may be one row's of a broken clock. Were a tombstone of that
version dropped, the watermark would rise above all that everybody else writes, and the
tablet would take nothing more. So each add notes, in the record, the lowest of its files'
highest versions, for as long as the table's retention; no dead row above the smallest of
them is dropped. Adds of half a retention share a note, which keeps the record small.
"""

import math
from collections.abc import Iterable

Notes = tuple[tuple[float, bytes], ...]
"""(until when it counts, lowest version that adds have reached meanwhile), ascending in both."""

NOTES_PER_RETENTION = 2


def with_add(notes: Notes, now_s: float, reached: Iterable[bytes], retention_s: float) -> Notes:
    """Return the notes after files were added.

    Args:
        notes: As the record has them.
        now_s: The store's time.
        reached: The highest version of each file.
        retention_s: The table's.
    """
    lowest = min(reached, default=None)
    until_s = float(math.floor(now_s + retention_s))
    if lowest is None or until_s <= now_s:
        return _alive(notes, now_s)
    # A note that ends sooner and is no lower says nothing any more.
    kept = [note for note in _alive(notes, now_s) if note[1] < lowest]
    if kept and _slot(kept[-1][0], retention_s) == _slot(until_s, retention_s):
        lowest = kept.pop()[1]
    return (*kept, (until_s, lowest))


def union(one: Notes, other: Notes) -> Notes:
    """Return the notes of two tablets that become one."""
    return tuple(sorted({*one, *other}))


def bound(notes: Notes, now_s: float) -> bytes | None:
    """Return the version above which no dead row may be dropped; None: there is no such."""
    return min((version for _, version in _alive(notes, now_s)), default=None)


def _alive(notes: Notes, now_s: float) -> Notes:
    return tuple(note for note in notes if note[0] > now_s)


def _slot(until_s: float, retention_s: float) -> int:
    return int(until_s * NOTES_PER_RETENTION // retention_s)
