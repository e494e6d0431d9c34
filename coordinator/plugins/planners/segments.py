"""Ambry's arithmetic of segments: ranges with cost and benefit; rates, pauses and periods.

Pure functions on numbers, used by the planner in `log_segment.py`.
"""

import math
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from common.model.tablet import TabletId
from common.primitives import digest

# ------------------------------------------------------------------------------------------- Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRange:
    """An inclusive range of adjacent segments, with the cost and benefit of its compaction."""

    first: int
    last: int
    benefit: int
    """Segments that the compaction frees."""
    cost: int
    """Live bytes to copy."""
    ratio: float
    """Copied bytes per freed segment, with the requested weight."""


def live_bytes_of(valid_shares: Iterable[float], segment_bytes: int) -> list[int]:
    """Return the live bytes of full segments with these live fractions (0 to 1)."""
    return [int(share * segment_bytes) for share in valid_shares]


def usable_bytes(segment_bytes: int, header_bytes: int = 0, largest_record_bytes: int = 0) -> int:
    """Return how many bytes of a segment are certainly filled; a record does not cross its end."""
    return segment_bytes - header_bytes - largest_record_bytes


def segments_needed(live_bytes: int, usable: int) -> int:
    """Return how many segments are needed for the live bytes."""
    return -(-live_bytes // usable)


FACTOR_MAX = 100_000
"""Largest factor that `divisors_near` looks for."""


def divisors_near(segment_bytes: int, capacity: int, count: int = 4) -> list[int]:
    """Return segment sizes that divide a capacity, ascending: at most `count` each way.

    Args:
        segment_bytes: The size to be near to.
        capacity: Size of the whole log. It is not a segment of itself.
        count: Maximum number of smaller and of larger sizes.
    """
    divisors, left, factor = {1}, capacity, 2
    while factor <= min(left, FACTOR_MAX):
        if left % factor:
            factor += 1
        else:
            left //= factor
            divisors |= {size * factor for size in divisors}
    divisors |= {size * left for size in divisors}
    sizes = sorted(divisors - {capacity})
    at = bisect(sizes, segment_bytes)
    return sizes[max(0, at - count) : at + count]


def best_range(
    live_bytes: Sequence[int],
    usable: int,
    *,
    min_reclaim: int = 1,
    floor_bytes: int = 0,
    used: Sequence[int] | None = None,
) -> SegmentRange | None:
    """Return the range with the lowest cost per benefit; None if no range frees enough.

    Ties are resolved by the greater benefit, then by the older range.

    Args:
        live_bytes: Live bytes of each segment, oldest first.
        usable: Bytes that fit into a segment (`usable_bytes`).
        min_reclaim: Minimum number of segments that a range must free.
        floor_bytes: Minimum cost of a segment for the ratio (Ambry's weight on benefit), so that
            nearly empty segments do not win by low cost alone. 0: no minimum.
        used: Number of segments that each entry occupies; None: one each.
    """
    candidates = ranges(live_bytes, usable, floor_bytes=floor_bytes, used=used)
    worth = (candidate for candidate in candidates if candidate.benefit >= min_reclaim)
    return min(worth, key=by_ratio, default=None)


def by_ratio(candidate: SegmentRange) -> tuple[float, int, int]:
    """Return the sort key of ranges: lowest ratio, then greatest benefit, then oldest."""
    return candidate.ratio, -candidate.benefit, candidate.first


def ranges(
    live_bytes: Sequence[int],
    usable: int,
    *,
    floor_bytes: int = 0,
    used: Sequence[int] | None = None,
    fits: Callable[[int, int], bool] = lambda first, last: True,
) -> Iterator[SegmentRange]:
    """Yield all ranges that free at least one segment; see `best_range`.

    Args:
        live_bytes: Live bytes of each segment, oldest first.
        usable: Bytes that fit into a segment.
        floor_bytes: Minimum cost of a segment for the ratio.
        used: Number of segments that each entry occupies; None: one each.
        fits: Returns whether a job may have the entries from first to last. If not, longer ranges
            are not tried.
    """
    for first in range(len(live_bytes)):
        cost, weighted, occupied = 0, 0, 0
        for last in range(first, len(live_bytes)):
            if not fits(first, last):
                break
            cost += live_bytes[last]
            weighted += max(live_bytes[last], floor_bytes)
            occupied += 1 if used is None else used[last]
            benefit = occupied - segments_needed(cost, usable)
            if benefit > 0:
                yield SegmentRange(
                    first=first, last=last, benefit=benefit, cost=cost, ratio=weighted / benefit
                )


def middle_range(
    live_bytes: Sequence[int],
    segment_bytes: int,
    usable: int,
    *,
    live_share: float = 0.3,
    floor_bytes: int = 0,
    used: Sequence[int] | None = None,
) -> SegmentRange | None:
    """Return the range from the first to the last segment with few live bytes, or None.

    Args:
        live_bytes: Live bytes of each segment, oldest first.
        segment_bytes: Size of a segment.
        usable: Bytes that fit into a segment.
        live_share: Live fraction up to which a segment counts as nearly empty.
        floor_bytes: Minimum cost of a segment for the ratio, which is only reported.
        used: Number of segments that each entry occupies; None: one each.
    """
    counts = [1] * len(live_bytes) if used is None else used
    empty = [
        at for at, live in enumerate(live_bytes) if live <= live_share * segment_bytes * counts[at]
    ]
    if len(empty) < 2:
        return None
    first, last = empty[0], empty[-1]
    inside = slice(first, last + 1)
    cost = sum(live_bytes[inside])
    benefit = sum(counts[inside]) - segments_needed(cost, usable)
    if benefit <= 1:
        return None
    weighted = sum(max(live, floor_bytes) for live in live_bytes[inside])
    return SegmentRange(
        first=first, last=last, benefit=benefit, cost=cost, ratio=weighted / benefit
    )


# ------------------------------------------------------------------------------- Pauses and periods


SLEEP_MAX_MS = 10_000


def throttle_sleep_ms(observed_rate: float, desired_rate: float) -> int:
    """Return how long a copy that is too fast sleeps, in ms; both rates have the same unit."""
    if observed_rate <= desired_rate:
        return 0
    return min(SLEEP_MAX_MS, int((observed_rate / desired_rate - 1) * 1000))


def next_wait_ms(wait_ms: int, not_compacted: int, stores: int) -> int:
    """Return the wait until the next round: down to half if few stores were compacted.

    Args:
        wait_ms: Base wait between two rounds.
        not_compacted: Number of stores without work in the last round.
        stores: Number of all stores.
    """
    return wait_ms - wait_ms // 2 * not_compacted // stores if stores else wait_ms


def period_start_s(now_s: float, every_s: float, tablet: TabletId) -> float:
    """Return the start of a tablet's current period; periods of tablets are staggered."""
    stagger = int(digest([tablet.table, tablet.end]), 16) / 16**16 * every_s
    return math.floor((now_s - stagger) / every_s) * every_s + stagger
