"""Which chunks of a timeline may be compacted, how far, and in which order.

Rules of Apache Druid's compaction, beside those of the notes in `chunks.py`: intervals that are
skipped, full or minor compaction, fragmentation, slots. Pure functions.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from common.errors import ConfigError

Interval = tuple[float, float]
"""From a time to before another."""

# ---------------------------------------------------------------------------------------- Intervals


def read_intervals(name: str, written: str) -> list[Interval]:
    """Return intervals that are written `2024-05-01/2024-05-08`, several with blanks between them.

    Args:
        name: Of what it is a value, for messages.
        written: Dates or times in UTC; the second is the first one after the interval.

    Raises:
        ConfigError: Names the interval and what is expected.
    """
    found: list[Interval] = []
    for text in written.split():
        try:
            start, end = (
                (each if each.tzinfo else each.replace(tzinfo=UTC)).timestamp()
                for each in map(datetime.fromisoformat, text.split("/"))
            )
        except ValueError:
            start, end = 0.0, 0.0
        if start >= end:
            raise ConfigError(
                f"{name} has {text!r}, expected two dates or times, the later "
                "one last: 2024-05-01/2024-05-08"
            )
        found.append((start, end))
    return found


def skip_interval(
    latest: float, offset: float, granularity: float, origin: float = 0.0
) -> Interval | None:
    """Return what is skipped because new data still arrive there; None: nothing.

    Args:
        latest: End of the latest segment.
        offset: How far it reaches back from there; 0: nothing is skipped.
        granularity: Length of a chunk; the interval begins with one.
        origin: Start of any chunk.
    """
    if offset <= 0:
        return None
    start = (latest - offset - origin) // granularity * granularity + origin
    return (start, latest)


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Return intervals in order, those that overlap or touch as one."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def search_intervals(timeline: Interval, skipped: Iterable[Interval]) -> list[Interval]:
    """Return what is left of a timeline without the intervals that are skipped."""
    begin, finish = timeline
    found: list[Interval] = []
    for start, end in merge_intervals(skipped):
        if begin < min(start, finish):
            found.append((begin, min(start, finish)))
        begin = max(begin, end)
    return [*found, (begin, finish)] if begin < finish else found


def overlapped(start: float, end: float, intervals: Sequence[Interval]) -> Interval | None:
    """Return the last interval that shares a time with a range, or None.

    Args:
        start: Of the range.
        end: Of the range.
        intervals: As `merge_intervals` returns them.
    """
    at = bisect_left(intervals, (end,))
    return intervals[at - 1] if at and intervals[at - 1][1] > start else None


# --------------------------------------------------------------------- Full, minor or no compaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """From when on a chunk is compacted; names and defaults are Druid's."""

    min_count: int = 100
    """Files that are not compacted yet."""
    min_bytes: int = 10 * 1024**2
    """Their bytes."""
    max_avg: int = 2 * 1024**3
    """Bytes of one of them, on average."""
    pct_bytes: float = 0.0
    """Their share of all bytes in percent, below which they alone are compacted; 0: off."""
    pct_rows: float = 0.0
    """Their share of all rows in percent, below which they alone are compacted; 0: off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Some files of a chunk together."""

    count: int = 0
    bytes: int = 0
    rows: int = 0


FULL, MINOR, NONE = "FULL", "MINOR", "NONE"


def eligibility(uncompacted: Extent | None, compacted: Extent, thresholds: Thresholds) -> str:
    """Return whether a chunk is compacted, and why not or not wholly.

    Args:
        uncompacted: Files that no compaction has made; None: nobody knows.
        compacted: The others.
        thresholds: See there.

    Returns:
        `FULL`; `MINOR:bytes` or `MINOR:rows`: only what is not compacted, and which share is
        small; `NONE:count`, `NONE:bytes` or `NONE:avg`: not, and which threshold is not met.
    """
    if uncompacted is None:
        return FULL
    if uncompacted.count < max(1, thresholds.min_count):
        return f"{NONE}:count"
    if uncompacted.bytes < thresholds.min_bytes:
        return f"{NONE}:bytes"
    if uncompacted.bytes // uncompacted.count > thresholds.max_avg:
        return f"{NONE}:avg"
    if _percent(uncompacted.bytes, compacted.bytes) < thresholds.pct_bytes:
        return f"{MINOR}:bytes"
    if _percent(uncompacted.rows, compacted.rows) < thresholds.pct_rows:
        return f"{MINOR}:rows"
    return FULL


def _percent(part: int, rest: int) -> float:
    return 100 * part / (part + rest) if part + rest else 100.0


def fragmentation_index(count: int, size_bytes: int, min_count: int, max_avg: int) -> float:
    """Return how fragmented files are that are not compacted yet: more and smaller ones first.

    Args:
        count: How many there are.
        size_bytes: Of all of them.
        min_count: Weight of smallness; see `Thresholds`.
        max_avg: See `Thresholds`.
    """
    if count < 1:
        return 0.0
    return count + min_count * max_avg / max(1, size_bytes // count)


# -------------------------------------------------------------------------------------------- Slots


def compaction_slots(workers: int, ratio: float, cap: int) -> int:
    """Return how many of all workers compact at a time, at least 1.

    Args:
        workers: Of the cluster.
        ratio: Share of them.
        cap: At most so many.
    """
    return max(1, min(int(workers * ratio), cap))


# -------------------------------------------------------------------------------------------- Order


def fixed_place(start: float, end: float, order: Sequence[Interval]) -> int | None:
    """Return the place of a range in a fixed order, None: it is not in there."""
    places = (at for at, each in enumerate(order) if each[0] <= start and end <= each[1])
    return next(places, None)
