"""Ambry's arithmetic of segments: ranges, what they cost and free; rates, pauses and periods.

Values only, on plain numbers. `log_segment.py` is the planner that goes by it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from common.digests import digest
from common.model.tablet import TabletId

# ------------------------------------------------------------------------------------------- Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRange:
    """A range of neighbours, both ends in it, and what it costs and brings to compact it."""

    first: int
    last: int
    benefit: int
    """Segments that are free afterwards."""
    cost: int
    """Live bytes that are copied."""
    ratio: float
    """Bytes copied per segment freed, with the weight that was asked for."""


def live_bytes_of(valid_shares: Iterable[float], segment_bytes: int) -> list[int]:
    """Return the live bytes of full segments of which so much is live (0 to 1)."""
    return [int(share * segment_bytes) for share in valid_shares]


def usable_bytes(segment_bytes: int, header_bytes: int = 0, largest_record_bytes: int = 0) -> int:
    """Return how much of a segment is sure to be filled: a record does not cross its end."""
    return segment_bytes - header_bytes - largest_record_bytes


def segments_needed(live_bytes: int, usable: int) -> int:
    """Return how many segments hold so many live bytes."""
    return -(-live_bytes // usable)


def best_range(
    live_bytes: Sequence[int],
    usable: int,
    *,
    min_reclaim: int = 1,
    floor_bytes: int = 0,
    used: Sequence[int] | None = None,
) -> SegmentRange | None:
    """Return the range with the least cost per benefit, or None: none frees enough.

    Of equal ratios the greater benefit wins, then the older range.

    Args:
        live_bytes: Of each segment, oldest first.
        usable: Bytes that fit into a segment (`usable_bytes`).
        min_reclaim: Segments that a range must free at least.
        floor_bytes: Cost of a segment at least, as far as the ratio goes (Ambry's weight on
            benefit): almost empty segments do not win by small cost alone. 0: no floor.
        used: Segments that each entry occupies; None: one.
    """
    found = ranges(live_bytes, usable, floor_bytes=floor_bytes, used=used)
    worth = (each for each in found if each.benefit >= min_reclaim)
    return min(worth, key=by_ratio, default=None)


def by_ratio(found: SegmentRange) -> tuple[float, int, int]:
    """Return the order of ranges: least ratio, then greatest benefit, then the older one."""
    return found.ratio, -found.benefit, found.first


def ranges(
    live_bytes: Sequence[int],
    usable: int,
    *,
    floor_bytes: int = 0,
    used: Sequence[int] | None = None,
    fits: Callable[[int, int], bool] = lambda first, last: True,
) -> Iterator[SegmentRange]:
    """Yield all ranges that free a segment; arguments as of `best_range`.

    Args:
        live_bytes: Of each segment, oldest first.
        usable: Bytes that fit into a segment.
        floor_bytes: Cost of a segment at least, for the ratio.
        used: Segments that each entry occupies; None: one.
        fits: Whether a job may have the entries from the first to the last; one that may not
            may have none that is longer.
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
    """Return the range from the first to the last segment of which little is live, or None.

    Args:
        live_bytes: Of each segment, oldest first.
        segment_bytes: Of each segment.
        usable: Bytes that fit into a segment.
        live_share: Share of a segment up to which it is little.
        floor_bytes: Cost of a segment at least, for the ratio, which is reported alone.
        used: Segments that each entry occupies; None: one.
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
    """Return how long a copy sleeps that was faster than it should be; rates in one unit."""
    if observed_rate <= desired_rate:
        return 0
    return min(SLEEP_MAX_MS, int((observed_rate / desired_rate - 1) * 1000))


def next_wait_ms(wait_ms: int, not_compacted: int, stores: int) -> int:
    """Return the wait until the next round: up to half as long where few stores were compacted.

    Args:
        wait_ms: Between two rounds.
        not_compacted: Stores in which the last round found nothing to do.
        stores: All.
    """
    return wait_ms - wait_ms // 2 * not_compacted // stores if stores else wait_ms


def period_start_s(now_s: float, every_s: float, tablet: TabletId) -> float:
    """Return when the present period of a tablet began; tablets' periods begin all over it."""
    stagger = int(digest([tablet.table, tablet.end]), 16) / 16**16 * every_s
    return math.floor((now_s - stagger) / every_s) * every_s + stagger
