"""Policies: which chunks of a timeline may be compacted, to what extent, and in which order.

These are rules of Apache Druid's compaction, in addition to those of `chunks.py`: skipped
intervals, full or minor compaction, fragmentation, slots. Pure functions.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from common.errors import ConfigError

Interval = tuple[float, float]
"""Start (inclusive) and end (exclusive)."""

# ---------------------------------------------------------------------------------------- Intervals


def read_intervals(name: str, written: str) -> list[Interval]:
    """Parse intervals such as `2024-05-01/2024-05-08`, separated by blanks.

    Args:
        name: Name of the option, for error messages.
        written: Dates or times in UTC; the end is exclusive.

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
    """Return the interval to skip because new data still arrives; None if there is none.

    Args:
        latest: End of the newest segment.
        offset: Minimum length of the interval, back from `latest`; 0: skip nothing.
        granularity: Length of a chunk; the interval starts at the start of a chunk.
        origin: Start of any chunk.
    """
    if offset <= 0:
        return None
    start = (latest - offset - origin) // granularity * granularity + origin
    return (start, latest)


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Return sorted intervals; overlapping and adjacent intervals are merged."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def search_intervals(timeline: Interval, skipped: Iterable[Interval]) -> list[Interval]:
    """Return the parts of a timeline outside the skipped intervals."""
    begin, finish = timeline
    found: list[Interval] = []
    for start, end in merge_intervals(skipped):
        if begin < min(start, finish):
            found.append((begin, min(start, finish)))
        begin = max(begin, end)
    return [*found, (begin, finish)] if begin < finish else found


def overlapped(start: float, end: float, intervals: Sequence[Interval]) -> Interval | None:
    """Return the last interval that overlaps a range, or None.

    Args:
        start: Start of the range.
        end: End of the range.
        intervals: Merged intervals; see `merge_intervals`.
    """
    at = bisect_left(intervals, (end,))
    return intervals[at - 1] if at and intervals[at - 1][1] > start else None


# --------------------------------------------------------------------- Full, minor or no compaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Thresholds for the compaction of a chunk; names and defaults are Druid's."""

    min_count: int = 100
    """Minimum number of uncompacted files."""
    min_bytes: int = 10 * 1024**2
    """Minimum bytes of the uncompacted files."""
    max_avg: int = 2 * 1024**3
    """Maximum mean size of an uncompacted file, in bytes."""
    pct_bytes: float = 0.0
    """If uncompacted files hold a lower percentage of all bytes, only they are compacted; 0: off.
    """
    pct_rows: float = 0.0
    """If uncompacted files hold a lower percentage of all rows, only they are compacted; 0: off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Totals of some files of a chunk."""

    count: int = 0
    bytes: int = 0
    rows: int = 0


FULL, MINOR, NONE = "FULL", "MINOR", "NONE"


def eligibility(uncompacted: Extent | None, compacted: Extent, thresholds: Thresholds) -> str:
    """Return whether a chunk is compacted fully, partly or not at all, and why.

    Args:
        uncompacted: Files that no compaction has written; None if unknown.
        compacted: All other files.
        thresholds: The thresholds.

    Returns:
        `FULL`; `MINOR:bytes` or `MINOR:rows`: only uncompacted files, with the low share;
        `NONE:count`, `NONE:bytes` or `NONE:avg`: no compaction, with the threshold that is not met.
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
    """Return the fragmentation of uncompacted files: higher for more and smaller files.

    Args:
        count: Number of files.
        size_bytes: Total size of the files.
        min_count: Weight of small sizes; see `Thresholds`.
        max_avg: See `Thresholds`.
    """
    if count < 1:
        return 0.0
    return count + min_count * max_avg / max(1, size_bytes // count)


# -------------------------------------------------------------------------------------------- Slots


def compaction_slots(workers: int, ratio: float, cap: int) -> int:
    """Return the number of workers that may compact concurrently, at least 1.

    Args:
        workers: Number of workers of the cluster.
        ratio: Fraction of the workers.
        cap: Upper limit.
    """
    return max(1, min(int(workers * ratio), cap))


# -------------------------------------------------------------------------------------------- Order


def fixed_place(start: float, end: float, order: Sequence[Interval]) -> int | None:
    """Return the index of a range in a fixed order; None if no interval contains the range."""
    places = (at for at, each in enumerate(order) if each[0] <= start and end <= each[1])
    return next(places, None)
