"""Tablets to be replanned when a queue has room, or at a certain time."""

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from itertools import islice

from common.model.tablet import TabletId

STALE_ENTRIES_MAX = 64
"""Cancelled timers that are tolerated before the heap is rebuilt."""
_TABLE_PREFIX = "table:"


def place_of_table(table: str) -> str:
    """Return the wait queue for tablets of a paused table; no group has such a name."""
    return _TABLE_PREFIX + table


def table_of_place(place: str) -> str | None:
    """Return the table of a wait queue, or None if the wait queue belongs to a group."""
    return place.removeprefix(_TABLE_PREFIX) if place.startswith(_TABLE_PREFIX) else None


class Deferrals:
    """Tablets whose jobs were shed or are held back, in one wait queue per cause, oldest first.

    A wait queue is named after a group, or by `place_of_table` after a table whose jobs are not
    assigned. Invariant: a tablet is in at most one wait queue; a wait queue holds at most
    `count_max` tablets and drops its oldest beyond that.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.full_since_s: dict[str, float] = {}
        """Group → when its queue first shed a job, until the queue is half empty again."""
        # Oldest first. OrderedDict, because a dict finds its first key slowly after many removals.
        self._places: dict[str, OrderedDict[TabletId, float]] = {}
        self._place_of: dict[TabletId, str] = {}

    def __len__(self) -> int:
        return len(self._place_of)

    def since_s(self, tablet: TabletId) -> float | None:
        """Return when a tablet began to wait, or None if it does not wait."""
        place = self._place_of.get(tablet)
        return None if place is None else self._places[place][tablet]

    def place_of(self, tablet: TabletId) -> str | None:
        """Return the wait queue of a tablet, or None."""
        return self._place_of.get(tablet)

    def of_table(self, table: str) -> list[TabletId]:
        """Return the tablets of a table in any wait queue."""
        return [tablet for tablet in self._place_of if tablet.table == table]

    def count(self, place: str) -> int:
        """Return the number of tablets in a wait queue."""
        return len(self._places.get(place, ()))

    def places(self) -> list[str]:
        """Return the names of all wait queues, sorted."""
        return sorted(self._places)

    def defer(self, tablet: TabletId, place: str, now_s: float) -> TabletId | None:
        """Put a tablet into a wait queue; a tablet that already waits keeps its start time.

        Returns:
            The tablet that was dropped to make room, if any.
        """
        since_s = self.since_s(tablet)
        self.discard(tablet)
        tablets = self._places.setdefault(place, OrderedDict())
        tablets[tablet] = now_s if since_s is None else since_s
        self._place_of[tablet] = place
        if len(tablets) <= self._count_max:
            return None
        forgotten = next(iter(tablets))
        self.discard(forgotten)
        return forgotten

    def discard(self, tablet: TabletId) -> None:
        """Remove a tablet from its wait queue."""
        place = self._place_of.pop(tablet, None)
        if place is not None:
            tablets = self._places[place]
            del tablets[tablet]
            if not tablets:
                del self._places[place]

    def pop(self, place: str, count: int, before_s: float | None = None) -> list[TabletId]:
        """Remove and return the first tablets of a wait queue.

        Args:
            place: The wait queue.
            count: Maximum number of tablets.
            before_s: Only tablets that began to wait at or before this time; None means all.
        """
        chosen = [
            tablet
            for tablet, since_s in islice(self._places.get(place, {}).items(), count)
            if before_s is None or since_s <= before_s
        ]
        for tablet in chosen:
            self.discard(tablet)
        return chosen


class ReplanTimers:
    """Times at which tablets are to be replanned: one per tablet, the earliest."""

    def __init__(self) -> None:
        self._times: dict[TabletId, float] = {}
        self._heap: list[tuple[float, TabletId]] = []

    def set(self, tablet: TabletId, at_s: float) -> None:
        """Schedule the replanning of a tablet; an earlier time that is already set stays."""
        if at_s < self._times.get(tablet, float("inf")):
            self._times[tablet] = at_s
            heappush(self._heap, (at_s, tablet))
        if len(self._heap) > 2 * len(self._times) + STALE_ENTRIES_MAX:
            self._heap = [(time_s, each) for each, time_s in self._times.items()]
            heapify(self._heap)

    def discard(self, tablet: TabletId) -> None:
        """Cancel the timer of a tablet."""
        self._times.pop(tablet, None)

    def due(self, now_s: float, count: int) -> list[TabletId]:
        """Remove and return the tablets that are due, at most `count`."""
        chosen: list[TabletId] = []
        while self._heap and self._heap[0][0] <= now_s and len(chosen) < count:
            at_s, tablet = heappop(self._heap)
            if self._times.get(tablet) == at_s:
                del self._times[tablet]
                chosen.append(tablet)
        return chosen
