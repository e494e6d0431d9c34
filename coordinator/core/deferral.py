"""Tablets to be planned again: when a queue has room, or at a certain time."""

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from itertools import islice

from common.model.tablet import TabletId

STALE_ENTRIES_MAX = 64
"""Cancelled timers that are not worth a rebuild of the heap."""
_TABLE_PREFIX = "table:"


def place_of_table(table: str) -> str:
    """Return where tablets of a paused table wait; no group has such a name."""
    return _TABLE_PREFIX + table


def table_of_place(place: str) -> str | None:
    """Return the table whose tablets wait at a place, or None if it is a group."""
    return place.removeprefix(_TABLE_PREFIX) if place.startswith(_TABLE_PREFIX) else None


class Deferrals:
    """Tablets whose jobs were shed or are held back, by what they wait for, oldest first.

    Always true: a tablet waits at one place at most; a place holds at most `count_max`,
    and forgets its oldest beyond that. A place is a group, or `place_of_table` of a
    table that hands nothing out.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.full_since_s: dict[str, float] = {}
        """Group whose queue has shed jobs and not been half empty since → when it first did."""
        # Oldest first; a plain dict finds its first slowly once many before it have gone.
        self._places: dict[str, OrderedDict[TabletId, float]] = {}
        self._place_of: dict[TabletId, str] = {}

    def __len__(self) -> int:
        return len(self._place_of)

    def since_s(self, tablet: TabletId) -> float | None:
        """Return since when a tablet has waited, or None."""
        place = self._place_of.get(tablet)
        return None if place is None else self._places[place][tablet]

    def place_of(self, tablet: TabletId) -> str | None:
        """Return what a tablet waits for, or None."""
        return self._place_of.get(tablet)

    def of_table(self, table: str) -> list[TabletId]:
        """Return the tablets of a table that wait anywhere."""
        return [tablet for tablet in self._place_of if tablet.table == table]

    def count(self, place: str) -> int:
        """Return how many tablets wait at a place."""
        return len(self._places.get(place, ()))

    def places(self) -> list[str]:
        """Return everything that tablets wait for, by name."""
        return sorted(self._places)

    def defer(self, tablet: TabletId, place: str, now_s: float) -> TabletId | None:
        """Let a tablet wait at a place; one that waits already keeps its age.

        Returns:
            The tablet that had to be forgotten for it, if any.
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
        """Let a tablet wait no longer."""
        place = self._place_of.pop(tablet, None)
        if place is not None:
            tablets = self._places[place]
            del tablets[tablet]
            if not tablets:
                del self._places[place]

    def pop(self, place: str, count: int, before_s: float | None = None) -> list[TabletId]:
        """Take the tablets out that came first.

        Args:
            place: Where they wait.
            count: At most so many.
            before_s: Only those that have waited since then or longer; None: all.
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
    """Tablets to be planned again at a time, at most one time each, the earliest kept."""

    def __init__(self) -> None:
        self._times: dict[TabletId, float] = {}
        self._heap: list[tuple[float, TabletId]] = []

    def set(self, tablet: TabletId, at_s: float) -> None:
        """Plan a tablet again at a time; an earlier time that was set before stays."""
        if at_s < self._times.get(tablet, float("inf")):
            self._times[tablet] = at_s
            heappush(self._heap, (at_s, tablet))
        if len(self._heap) > 2 * len(self._times) + STALE_ENTRIES_MAX:
            self._heap = [(time_s, each) for each, time_s in self._times.items()]
            heapify(self._heap)

    def discard(self, tablet: TabletId) -> None:
        """Forget a tablet."""
        self._times.pop(tablet, None)

    def due(self, now_s: float, count: int) -> list[TabletId]:
        """Take out the tablets whose time has come, at most `count`."""
        chosen: list[TabletId] = []
        while self._heap and self._heap[0][0] <= now_s and len(chosen) < count:
            at_s, tablet = heappop(self._heap)
            if self._times.get(tablet) == at_s:
                del self._times[tablet]
                chosen.append(tablet)
        return chosen
