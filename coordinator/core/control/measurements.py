"""What the loop of control measures: rates of work, waits of readers, bytes of each class.

Waits of readers are a mean by table that forgets. What controllers hear of it is one number.

    latency of a table = Σ wait / Σ reads, both decayed to 1/e in `DECAY_S`
    signal             = the latency of the table whose readers wait longest

One report moves a table no further than `REPORT_READS_MAX` reads of `LATENCY_MAX_S` would, and a
table counts only while its readers are heard. So a reader that reports too often, or nonsense,
can at most lower rewrites to their floor (`guard`), and is forgotten soon.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp, isfinite

from common.bounded_map import BoundedMap
from common.spi.controller import ShareClass

# ---------------------------------------------------------------- How fast work arrives and is done


RATE_DECAY_S = 60.0
"""Work done longer ago counts less and less: after this time, 1/e."""
ARRIVAL_DECAY_S = 600.0
"""The same of work that arrives: a burst is a matter of the backlog, not of the rate."""
ARRIVAL_MIN_S = 300.0
"""Arrivals of a shorter time are divided by this one: the first burst is no rate."""
BUSY_MIN_S = 1.0
"""Less of it says nothing of a slot's rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What the cluster shows at a look."""

    backlog_bytes: float
    table_backlogs: Mapping[str, float] = field(default_factory=dict)
    """By the name of the table."""
    done_bytes: float = 0.0
    """Input bytes that were rewritten since the start, those of running attempts included."""
    group_slots: Mapping[str, int] = field(default_factory=dict)
    """Group → slots of its living compactors."""
    busy_slots: int = 0
    queued_jobs: int = 0
    deepest_files: int = 0
    """Files that overlap in the tablet that has the most of those with work."""
    garbage_fraction: float = 0.0
    """Garbage of all stored bytes, 0 to 1, as far as it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRates:
    """How fast work arrives and is done: decayed sums."""

    seen_s: float | None = None
    backlog_bytes: float = 0.0
    done_bytes: float = 0.0
    arriving_s: float = 0.0
    busy_slot_s: float = 0.0
    rewritten_bytes: float = 0.0
    arrived_bytes: float = 0.0

    def seen(self, facts: ClusterFacts, now_s: float) -> "WorkRates":
        """Return the rates after a look; while a backlog is not known, nothing arrives."""
        known = isfinite(facts.backlog_bytes)
        backlog = facts.backlog_bytes if known else self.backlog_bytes
        if self.seen_s is None:
            return replace(self, seen_s=now_s, backlog_bytes=backlog, done_bytes=facts.done_bytes)
        passed_s = max(0.0, now_s - self.seen_s)
        kept = exp(-passed_s / RATE_DECAY_S)
        arrivals_kept = exp(-passed_s / ARRIVAL_DECAY_S)
        # Progress is told by fractions and may go back with a lost attempt.
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
        """Input bytes that a busy slot rewrites per second; None: not known."""
        if self.busy_slot_s < BUSY_MIN_S or not self.rewritten_bytes:
            return None
        return self.rewritten_bytes / self.busy_slot_s

    @property
    def arrival_bytes_s(self) -> float | None:
        """Bytes per second by which work arrives; None: not known."""
        if self.arriving_s < BUSY_MIN_S:
            return None
        return self.arrived_bytes / max(self.arriving_s, ARRIVAL_MIN_S)


# ---------------------------------------------------------------------------- How long readers wait


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


# ----------------------------------------------------------------------- What each class was handed


USED_WINDOW_S = 60.0
USED_STEP_S = 1.0


class ClassUsage:
    """Bytes by class. Bounded by the window: one entry a second."""

    def __init__(self) -> None:
        self.total_bytes: Counter[ShareClass] = Counter(dict.fromkeys(ShareClass, 0))
        """Since the coordinator was started."""
        self._steps: deque[tuple[float, Counter[ShareClass]]] = deque()
        self._window: Counter[ShareClass] = Counter()

    def note(self, share_class: ShareClass, size_bytes: int, now_s: float) -> None:
        """A job of so many bytes was handed out."""
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
    """Return each amount as a part of all; all are 0 if there is nothing."""
    total = sum(amounts.values())
    return {each: amount / total if total else 0.0 for each, amount in amounts.items()}
