"""Decaying read and write rates of tablets, in the coordinator's memory. Pure.

Written rows are the rows of files that users added; the scanner sees them when it plans a tablet.
Scans come from the gateway and from reports of other readers. The rates start at zero with the
coordinator and need about a minute to become accurate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from common.bounded_map import BoundedMap
from common.model.tablet import TabletId
from common.spi.planner import COLD, Heat

WINDOW_S = 60.0
"""Time in which the weight of an event decays to 1/e."""


@dataclass(slots=True)
class _Counts:
    seen_s: float
    scans: float = 0.0
    rows: float = 0.0
    added_s: float = 0.0
    """Store time of the newest counted add."""

    def decay(self, now_s: float) -> None:
        """Decay the counts up to now."""
        kept = exp(-max(0.0, now_s - self.seen_s) / WINDOW_S)
        self.scans, self.rows, self.seen_s = self.scans * kept, self.rows * kept, now_s


class TabletHeat:
    """The rates of tablets. Bounded: the tablet that was inactive for longest is evicted."""

    def __init__(self, tablets_max: int) -> None:
        """Create an empty registry."""
        self._counts: BoundedMap[TabletId, _Counts] = BoundedMap(tablets_max)

    def note_adds(self, tablet: TabletId, adds: Sequence[tuple[float, int]], now_s: float) -> None:
        """Count written rows; adds that were counted before are ignored.

        Args:
            tablet: The tablet with the adds.
            adds: Store time and row count of each add.
            now_s: The current time.
        """
        known = self._counts.get(tablet)
        counted_s = 0.0 if known is None else known.added_s
        rows = sum(rows for at_s, rows in adds if at_s > counted_s)
        if not rows:
            return
        counts = self._now(tablet, now_s)
        counts.rows += rows
        counts.added_s = max(at_s for at_s, _ in adds)

    def note_scans(self, tablet: TabletId, scans: int, now_s: float) -> None:
        """Count scans of a tablet."""
        self._now(tablet, now_s).scans += scans

    def of(self, tablet: TabletId, now_s: float) -> Heat:
        """Return the current rates of a tablet."""
        known = self._counts.get(tablet)
        if known is None:
            return COLD
        kept = exp(-max(0.0, now_s - known.seen_s) / WINDOW_S) / WINDOW_S
        return Heat(scans_s=known.scans * kept, rows_s=known.rows * kept)

    def forget(self, tablet: TabletId) -> None:
        """Remove a tablet that no longer exists."""
        self._counts.pop(tablet)

    def _now(self, tablet: TabletId, now_s: float) -> _Counts:
        counts = self._counts.get(tablet) or _Counts(seen_s=now_s)
        counts.decay(now_s)
        self._counts.put(tablet, counts)
        return counts
