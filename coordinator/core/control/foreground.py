"""How long readers wait, by table: a mean that forgets. What controllers hear of it is one number.

    latency of a table = Σ wait / Σ reads, both decayed to 1/e in `DECAY_S`
    signal             = the latency of the table whose readers wait longest

One report moves a table no further than `REPORT_READS_MAX` reads of `LATENCY_MAX_S` would, and a
table counts only while its readers are heard. So a reader that reports too often, or nonsense,
can at most lower rewrites to their floor (`guard`), and is forgotten soon.
"""

from dataclasses import dataclass
from math import exp, isfinite

from common.bounded_map import BoundedMap

DECAY_S = 10.0
LATENCY_MAX_S = 60.0
"""A longer wait counts as that."""
REPORT_READS_MAX = 1_000
READS_MIN = 3.0
"""Fewer reads lately say nothing."""
TABLES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class _Waits:
    """Decayed sums of a table."""

    at_s: float
    reads: float = 0.0
    wait_s: float = 0.0

    def at(self, now_s: float) -> "_Waits":
        kept = exp(-max(0.0, now_s - self.at_s) / DECAY_S)
        return _Waits(max(now_s, self.at_s), self.reads * kept, self.wait_s * kept)


class ReaderLatencies:
    """The waits of readers by table. Bounded: the table heard of longest ago leaves first."""

    def __init__(self) -> None:
        self._tables: BoundedMap[str, _Waits] = BoundedMap(TABLES_MAX)

    def note(self, table: str, latency_s: float, reads: int, now_s: float) -> None:
        """Readers of a table waited so long, on average; what is no latency is ignored."""
        if not (isfinite(latency_s) and latency_s >= 0 and reads > 0):
            return
        before = (self._tables.get(table) or _Waits(now_s)).at(now_s)
        count, wait_s = min(reads, REPORT_READS_MAX), min(latency_s, LATENCY_MAX_S)
        after = _Waits(before.at_s, before.reads + count, before.wait_s + count * wait_s)
        self._tables.put(table, after)

    def forget(self, table: str) -> None:
        """A table is gone."""
        self._tables.pop(table)

    def by_table(self, now_s: float) -> dict[str, float]:
        """Return the latency of each table whose readers are heard."""
        waits = {table: each.at(now_s) for table, each in self._tables}
        return {
            table: each.wait_s / each.reads
            for table, each in waits.items()
            if each.reads >= READS_MIN
        }

    def signal(self, now_s: float) -> tuple[str, float] | None:
        """Return the table whose readers wait longest, and how long; None: nobody is heard."""
        waits = self.by_table(now_s)
        return max(waits.items(), key=lambda each: (each[1], each[0]), default=None)
