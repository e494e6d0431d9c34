"""Measurements of the control loop: rates of work, read latencies, bytes by class.

Read latency is a decaying average per table. Controllers get a single number.

    latency of a table = Σ wait / Σ reads, both decayed to 1/e in `DECAY_S`
    signal             = the latency of the table with the highest latency

The weight of a report is limited to `REPORT_READS_MAX` reads of `LATENCY_MAX_S`, and a table counts
only while its readers send reports. A reader that reports too often or sends wrong values can
therefore at most lower rewrites to their floor (`guard`), and its effect decays soon.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp, isfinite

from common.bounded_map import BoundedMap
from common.spi.controller import ShareClass

# ------------------------------------------------------------------------------------ Rates of work


RATE_DECAY_S = 60.0
"""Time in which the weight of completed work decays to 1/e."""
ARRIVAL_DECAY_S = 600.0
"""Time in which the weight of arrived work decays to 1/e; long, so that bursts are smoothed."""
ARRIVAL_MIN_S = 300.0
"""Minimum divisor of the arrival rate, so that the first burst does not count as a rate."""
BUSY_MIN_S = 1.0
"""Busy slot time, in seconds, below which the rate of a slot is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Facts about the cluster at one look."""

    backlog_bytes: float
    table_backlogs: Mapping[str, float] = field(default_factory=dict)
    """Table name → backlog in bytes."""
    done_bytes: float = 0.0
    """Input bytes rewritten since the start, including those of running attempts."""
    group_slots: Mapping[str, int] = field(default_factory=dict)
    """Group → slots of its living compactors."""
    busy_slots: int = 0
    queued_jobs: int = 0
    deepest_files: int = 0
    """Maximum number of overlapping files among the tablets with work."""
    garbage_fraction: float = 0.0
    """Known garbage as a fraction of all stored bytes, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRates:
    """Decayed sums of arrived and completed work."""

    seen_s: float | None = None
    backlog_bytes: float = 0.0
    done_bytes: float = 0.0
    arriving_s: float = 0.0
    busy_slot_s: float = 0.0
    rewritten_bytes: float = 0.0
    arrived_bytes: float = 0.0

    def seen(self, facts: ClusterFacts, now_s: float) -> "WorkRates":
        """Return the rates after a look; an unknown backlog counts as no arrivals."""
        known = isfinite(facts.backlog_bytes)
        backlog = facts.backlog_bytes if known else self.backlog_bytes
        if self.seen_s is None:
            return replace(self, seen_s=now_s, backlog_bytes=backlog, done_bytes=facts.done_bytes)
        passed_s = max(0.0, now_s - self.seen_s)
        kept = exp(-passed_s / RATE_DECAY_S)
        arrivals_kept = exp(-passed_s / ARRIVAL_DECAY_S)
        # Progress is reported as a fraction and drops when an attempt is lost.
        done = max(0.0, facts.done_bytes - self.done_bytes)
        arrived = max(0.0, backlog - self.backlog_bytes + done) if known else 0.0
        return WorkRates(
            seen_s=now_s,
            backlog_bytes=backlog,
            done_bytes=facts.done_bytes,
            arriving_s=self.arriving_s * arrivals_kept + passed_s,
            busy_slot_s=self.busy_slot_s * kept + facts.busy_slots * passed_s,
            rewritten_bytes=self.rewritten_bytes * kept + done,
            arrived_bytes=self.arrived_bytes * arrivals_kept + arrived,
        )

    @property
    def slot_bytes_s(self) -> float | None:
        """Input bytes that a busy slot rewrites per second; None if unknown."""
        if self.busy_slot_s < BUSY_MIN_S or not self.rewritten_bytes:
            return None
        return self.rewritten_bytes / self.busy_slot_s

    @property
    def arrival_bytes_s(self) -> float | None:
        """Arrival rate of work, in bytes per second; None if unknown."""
        if self.arriving_s < BUSY_MIN_S:
            return None
        return self.arrived_bytes / max(self.arriving_s, ARRIVAL_MIN_S)


# ----------------------------------------------------------------------------------- Read latencies


DECAY_S = 10.0
LATENCY_MAX_S = 60.0
"""Upper bound of a reported latency; longer ones are cut to it."""
REPORT_READS_MAX = 1_000
READS_MIN = 3.0
"""Decayed number of reads below which a table has no latency."""
TABLES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class _Waits:
    """Decayed reads and waits of a table."""

    at_s: float
    reads: float = 0.0
    wait_s: float = 0.0

    def at(self, now_s: float) -> "_Waits":
        kept = exp(-max(0.0, now_s - self.at_s) / DECAY_S)
        return _Waits(max(now_s, self.at_s), self.reads * kept, self.wait_s * kept)


class ReaderLatencies:
    """Read latencies by table. Bounded: the table with the oldest report is evicted first."""

    def __init__(self) -> None:
        self._tables: BoundedMap[str, _Waits] = BoundedMap(TABLES_MAX)

    def note(self, table: str, latency_s: float, reads: int, now_s: float) -> None:
        """Add a report of the average latency of a table's reads; invalid values are ignored."""
        if not (isfinite(latency_s) and latency_s >= 0 and reads > 0):
            return
        before = (self._tables.get(table) or _Waits(now_s)).at(now_s)
        count, wait_s = min(reads, REPORT_READS_MAX), min(latency_s, LATENCY_MAX_S)
        after = _Waits(before.at_s, before.reads + count, before.wait_s + count * wait_s)
        self._tables.put(table, after)

    def forget(self, table: str) -> None:
        """Remove a dropped table."""
        self._tables.pop(table)

    def by_table(self, now_s: float) -> dict[str, float]:
        """Return the latency of each table with enough recent reads."""
        waits = {table: each.at(now_s) for table, each in self._tables}
        return {
            table: each.wait_s / each.reads
            for table, each in waits.items()
            if each.reads >= READS_MIN
        }

    def signal(self, now_s: float) -> tuple[str, float] | None:
        """Return the table with the highest latency, and the latency; None without reports."""
        waits = self.by_table(now_s)
        return max(waits.items(), key=lambda each: (each[1], each[0]), default=None)


# ----------------------------------------------------------------------- Bytes assigned by class


USED_WINDOW_S = 60.0
USED_STEP_S = 1.0


class ClassUsage:
    """Assigned bytes by class. Bounded by the window, with one entry per second."""

    def __init__(self) -> None:
        self.total_bytes: Counter[ShareClass] = Counter(dict.fromkeys(ShareClass, 0))
        """Bytes since the start of the coordinator."""
        self._steps: deque[tuple[float, Counter[ShareClass]]] = deque()
        self._window: Counter[ShareClass] = Counter()

    def note(self, share_class: ShareClass, size_bytes: int, now_s: float) -> None:
        """Count the bytes of an assigned job."""
        self._expire(now_s)
        if not self._steps or now_s - self._steps[-1][0] >= USED_STEP_S:
            self._steps.append((now_s, Counter()))
        self._steps[-1][1][share_class] += size_bytes
        self._window[share_class] += size_bytes
        self.total_bytes[share_class] += size_bytes

    def last_minute(self, now_s: float) -> Mapping[ShareClass, int]:
        """Return the bytes of each class in the last minute."""
        self._expire(now_s)
        return {class_: self._window[class_] for class_ in ShareClass}

    def _expire(self, now_s: float) -> None:
        while self._steps and now_s - self._steps[0][0] >= USED_WINDOW_S:
            self._window.subtract(self._steps.popleft()[1])


def fractions(amounts: Mapping[ShareClass, float]) -> dict[ShareClass, float]:
    """Return each amount as a fraction of the total; all are 0 if the total is 0."""
    total = sum(amounts.values())
    return {each: amount / total if total else 0.0 for each, amount in amounts.items()}
