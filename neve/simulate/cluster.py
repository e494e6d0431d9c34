"""The simulated cluster: compactors with slots, shared volumes, and scaling.

A job first takes the overhead of its cluster and then moves its input bytes. All jobs of a group on
a volume have the same speed: the limit of a slot, or an equal share of the volume's limit. Each
group therefore has one clock per volume, which counts the bytes that a job would have moved since
the beginning. A job ends when the clock reaches the job's goal. This implements exact processor
sharing with only a heap.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf

from common.model.job import Job
from coordinator.core.autoscaling import (
    AutoscalerRules,
    CompactorLoad,
    Decision,
    GroupLoad,
    Memory,
    RewriteRate,
    StartingCompactor,
    decide,
)
from neve.simulate.specification import GroupRule
from neve.simulate.tablet import SimulatedTablet

DONE_BYTES = 0.5
"""A job with fewer bytes left has ended, because clocks are floating-point numbers."""


# ------------------------------------------------------------------------------------- Moving bytes


@dataclass(slots=True, eq=False)
class SimulatedAttempt:
    """A running job on a slot."""

    job: Job
    tablet: SimulatedTablet
    compactor: "SimulatedCompactor"
    begun_s: float
    lane: "Lane | None" = None
    """Where it moves bytes; None before it starts to."""
    goal: float = 0.0
    """The clock of its lane at the job's end: all bytes are moved, or the attempt dies."""
    dies_after: float = 1.0
    """Fraction of its bytes after which it dies; 1: it does not die."""
    gone: bool = False
    """Whether it died early; its scheduled events are then void."""

    def moved_share(self, now_s: float) -> float:
        """Return the fraction of bytes that it has moved, 0 to 1."""
        if self.lane is None or not self.job.input_bytes:
            return 0.0
        left = self.goal - self.lane.clock_at(now_s)
        return min(1.0, max(0.0, self.dies_after - left / self.job.input_bytes))


@dataclass(slots=True, eq=False)
class Lane:
    """Jobs of one group on one volume, ordered by their end."""

    slot_bytes_s: float
    volume: "Volume"
    clock: float = 0.0
    """Bytes that a job would have moved since the beginning."""
    seen_s: float = 0.0
    rate: float = 0.0
    turn: int = 0
    """Incremented when the rate changes or a job enters; earlier scheduled ends are then void."""
    _ends: list[tuple[float, int, SimulatedAttempt]] = field(default_factory=list)
    _entered: int = 0

    def clock_at(self, now_s: float) -> float:
        """Return the clock at a given time."""
        return self.clock + self.rate * (now_s - self.seen_s)

    def advance(self, now_s: float) -> None:
        """Advance the clock at the current rate."""
        self.clock = self.clock_at(now_s)
        self.seen_s = now_s

    def enter(self, attempt: SimulatedAttempt, now_s: float) -> None:
        """Add a job, which starts to move its bytes."""
        self.advance(now_s)
        self._entered += 1
        attempt.lane = self
        attempt.goal = self.clock + attempt.job.input_bytes * attempt.dies_after
        heappush(self._ends, (attempt.goal, self._entered, attempt))

    def leave(self, attempt: SimulatedAttempt) -> None:
        """Remove a dead job."""
        self._ends = [end for end in self._ends if end[2] is not attempt]
        heapify(self._ends)

    def pop_ended(self, now_s: float) -> list[SimulatedAttempt]:
        """Remove and return the jobs that have moved all their bytes."""
        self.advance(now_s)
        ended: list[SimulatedAttempt] = []
        # For a large clock, the floating-point resolution may exceed half a byte.
        reached = self.clock + max(DONE_BYTES, self.clock * 1e-12)
        while self._ends and self._ends[0][0] <= reached:
            ended.append(heappop(self._ends)[2])
        return ended

    def next_end_s(self) -> float | None:
        """Return when the next job ends at the current rate; None if there is no job."""
        if not self._ends:
            return None
        return self.seen_s + max(0.0, self._ends[0][0] - self.clock) / self.rate


@dataclass(slots=True, eq=False)
class Volume:
    """Storage that tables share, with a byte rate limit."""

    limit_bytes_s: float = inf
    moving: int = 0
    """Number of jobs that are moving bytes."""
    lanes: list[Lane] = field(default_factory=list)

    def set_rates(self, now_s: float, most: float = inf) -> list[Lane]:
        """Assign each job its share of the limit; return the lanes whose rate has changed.

        Args:
            now_s: The time now.
            most: Maximum bytes per second of a job, regardless of the volume's limit.
        """
        part = min(most, self.limit_bytes_s / self.moving if self.moving else inf)
        changed: list[Lane] = []
        for lane in self.lanes:
            rate = min(lane.slot_bytes_s, part)
            if rate != lane.rate:
                lane.advance(now_s)
                lane.rate = rate
                changed.append(lane)
        return changed


# --------------------------------------------------------------------------------------- Compactors


@dataclass(slots=True, eq=False)
class SimulatedCompactor:
    """A running compactor."""

    name: str
    slots: int
    busy: int = 0
    draining: bool = False


class SimulatedGroup:
    """The compactors of a group. Invariant: no compactor runs more jobs than it has slots."""

    def __init__(self, rule: GroupRule, rules: AutoscalerRules) -> None:
        """Start with the minimum number of compactors, which are ready immediately."""
        self.rule, self.name = rule, rule.group.name
        self.lanes: dict[str, Lane] = {}
        """Keyed by the name of the volume."""
        self.compactors: dict[str, SimulatedCompactor] = {}
        self.starting: dict[str, float] = {}
        """Compactor → time of its start."""
        self.committed_bytes = 0
        self.running: dict[SimulatedAttempt, None] = {}
        self.compactor_s = 0.0
        """Compactor-seconds so far, including starting compactors."""
        self.busy_s = 0.0
        """Slot-seconds with a job so far."""
        self._free: deque[SimulatedCompactor] = deque()
        self._rules = rules
        self._memory, self._rate = Memory(), RewriteRate()
        self._names = 0
        self._seen_s = 0.0
        for _ in range(rule.count_min):
            self._appear(self._new_name())

    @property
    def scales(self) -> bool:
        """Whether the number of compactors may change."""
        return self.rule.count_min < self.rule.count_max

    @property
    def count(self) -> int:
        """Number of running and starting compactors."""
        return len(self.compactors) + len(self.starting)

    def note_time(self, now_s: float) -> None:
        """Add the elapsed time to the totals; called before compactors or slots change."""
        passed_s = now_s - self._seen_s
        if passed_s > 0:
            self.compactor_s += self.count * passed_s
            self.busy_s += len(self.running) * passed_s
            self._seen_s = now_s

    def free_slot(self) -> SimulatedCompactor | None:
        """Return the compactor of the longest free slot; None if all are busy."""
        while self._free:
            compactor = self._free[0]
            if not compactor.draining and compactor.name in self.compactors:
                return compactor
            self._free.popleft()
        return None

    def begin(self, attempt: SimulatedAttempt, now_s: float) -> None:
        """Start a job on the compactor that `free_slot` returned."""
        self.note_time(now_s)
        compactor = self._free.popleft()
        assert compactor is attempt.compactor
        compactor.busy += 1
        assert compactor.busy <= compactor.slots, compactor
        self.running[attempt] = None

    def end(self, attempt: SimulatedAttempt, now_s: float) -> None:
        """Commit a job and free its slot."""
        self.committed_bytes += attempt.job.input_bytes
        self.give_back(attempt, now_s)

    def give_back(self, attempt: SimulatedAttempt, now_s: float) -> None:
        """Free the slot of a job; remove a draining compactor after its last job."""
        self.note_time(now_s)
        del self.running[attempt]
        compactor = attempt.compactor
        compactor.busy -= 1
        if not compactor.draining:
            self._free.append(compactor)
        elif not compactor.busy:
            del self.compactors[compactor.name]

    def lose(self, number: int, now_s: float) -> tuple[list[SimulatedAttempt], str]:
        """Lose a compactor; return the attempts that it ran, and the name of its successor.

        Args:
            number: Index of the compactor among the running ones.
            now_s: The time now.
        """
        self.note_time(now_s)
        lost = list(self.compactors.values())[number]
        dying = [each for each in self.running if each.compactor is lost]
        lost.draining = True
        for attempt in dying:
            self.give_back(attempt, now_s)
        self.compactors.pop(lost.name, None)
        successor = self._new_name()
        self.starting[successor] = now_s
        return dying, successor

    def ready(self, name: str, now_s: float) -> None:
        """Make a starting compactor available, unless its start was cancelled."""
        self.note_time(now_s)
        if self.starting.pop(name, None) is not None:
            self._appear(name)

    def scale(self, waiting: GroupLoad, now_s: float) -> list[str]:
        """Apply the autoscaler's policy; return the names of compactors that start now.

        Args:
            waiting: The group's load without its compactors, which are added here.
            now_s: The time now.
        """
        self.note_time(now_s)
        self._rate = self._rate.seen(self.committed_bytes, len(self.running), now_s)
        load = replace(
            waiting,
            running_jobs=len(self.running),
            running_bytes=sum(
                round(attempt.job.input_bytes * (1.0 - attempt.moved_share(now_s)))
                for attempt in self.running
            ),
            rate_bytes_s=self._rate.bytes_s(self.rule.slots),
            running=tuple(
                CompactorLoad(
                    name=compactor.name,
                    slots=compactor.slots,
                    busy=compactor.busy,
                    draining=compactor.draining,
                )
                for compactor in self.compactors.values()
            ),
            starting=tuple(
                StartingCompactor(name=name, since_s=since_s)
                for name, since_s in self.starting.items()
            ),
        )
        decision, self._memory = decide(load, self._memory, self._rules, now_s)
        return self._apply(decision, now_s)

    def _apply(self, decision: Decision, now_s: float) -> list[str]:
        for name in (*decision.give_up, *decision.drain):
            self.starting.pop(name, None)
            if (compactor := self.compactors.get(name)) is not None:
                compactor.draining = True
                if not compactor.busy:
                    del self.compactors[name]
        started = [self._new_name() for _ in range(decision.start)]
        self.starting.update(dict.fromkeys(started, now_s))
        return started

    def _new_name(self) -> str:
        self._names += 1
        return f"{self.name}-{self._names}"

    def _appear(self, name: str) -> None:
        compactor = SimulatedCompactor(name, self.rule.slots)
        self.compactors[name] = compactor
        self._free.extend([compactor] * self.rule.slots)
