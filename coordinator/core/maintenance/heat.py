"""How often tablets are read and written: rates that decay, in the coordinator's memory. Pure.

Written rows are those of files that users added, as the scanner sees them when it plans a tablet.
Scans are those of the gateway, and what other readers report. What is known begins with the
coordinator; a rate needs about a minute to be right.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from common.bounded_map import BoundedMap
from common.model.tablet import TabletId
from common.spi.planner import COLD, Heat

WINDOW_S = 60.0
"""What happened so long ago counts for 1/e."""


@dataclass(slots=True)
class _Counts:
    seen_s: float
    scans: float = 0.0
    rows: float = 0.0
    added_s: float = 0.0
    """The store's time of the newest add that is counted."""

    def decay(self, now_s: float) -> None:
        """Let what is counted fade until now."""
        kept = exp(-max(0.0, now_s - self.seen_s) / WINDOW_S)
        self.scans, self.rows, self.seen_s = self.scans * kept, self.rows * kept, now_s


class TabletHeat:
    """The rates of tablets. Bounded: the tablet that was neither read nor written longest goes."""

    def __init__(self, tablets_max: int) -> None:
        """Know of no tablet."""
        self._counts: BoundedMap[TabletId, _Counts] = BoundedMap(tablets_max)

    def note_adds(self, tablet: TabletId, adds: Sequence[tuple[float, int]], now_s: float) -> None:
        """Count rows that were written; adds that are counted already change nothing.

        Args:
            tablet: Where.
            adds: When, by the store's clock, and how many rows.
            now_s: The time now.
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
        """Return the rates of a tablet now."""
        known = self._counts.get(tablet)
        if known is None:
            return COLD
        kept = exp(-max(0.0, now_s - known.seen_s) / WINDOW_S) / WINDOW_S
        return Heat(scans_s=known.scans * kept, rows_s=known.rows * kept)

    def forget(self, tablet: TabletId) -> None:
        """Forget a tablet that is gone."""
        self._counts.pop(tablet)

    def _now(self, tablet: TabletId, now_s: float) -> _Counts:
        counts = self._counts.get(tablet) or _Counts(seen_s=now_s)
        counts.decay(now_s)
        self._counts.put(tablet, counts)
        return counts
