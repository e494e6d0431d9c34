"""Who does the work in a simulation: compactors with slots, volumes that they share, scaling.

A job first takes the overhead of its cluster and then moves its input bytes. All jobs of a group on
a volume move alike fast: as fast as a slot can, or an equal part of what the volume gives. So each
group has one clock per volume. It counts the bytes that a job would have moved since the beginning,
and a job ends when the clock has come to its own end. That is exact processor sharing for the price
of a heap.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf

from common.model.job import Job
from coordinator.core.autoscaling.demand import (
    AutoscalerRules,
    CompactorLoad,
    GroupLoad,
    StartingCompactor,
)
from coordinator.core.autoscaling.memory import Memory
from coordinator.core.autoscaling.policy import Decision, decide
from coordinator.core.autoscaling.rate import RewriteRate
from neve.simulate.specification import GroupRule
from neve.simulate.tablet import SimulatedTablet

DONE_BYTES = 0.5
"""A job with fewer bytes left has ended: clocks are floating numbers."""


# ------------------------------------------------------------------------------------- Moving bytes


@dataclass(slots=True, eq=False)
class SimulatedAttempt:
    """A job under way on a slot."""

    job: Job
    tablet: SimulatedTablet
    compactor: "SimulatedCompactor"
    begun_s: float
    lane: "Lane | None" = None
    """Where it moves bytes; None: it has not begun to."""
    goal: float = 0.0
    """What its lane's clock shows when all its bytes are moved, or when it dies."""
    dies_after: float = 1.0
    """Share of its bytes after which it dies; 1: it does not."""
    gone: bool = False
    """Whether it has died before its time: what was foreseen of it is void."""

    def moved_share(self, now_s: float) -> float:
        """Return which part of its bytes it has moved, 0 to 1."""
        if self.lane is None or not self.job.input_bytes:
            return 0.0
        left = self.goal - self.lane.clock_at(now_s)
        return min(1.0, max(0.0, self.dies_after - left / self.job.input_bytes))


@dataclass(slots=True, eq=False)
class Lane:
    """Jobs of one group on one volume, the next one to end first."""

    slot_bytes_s: float
    volume: "Volume"
    clock: float = 0.0
    """Bytes that a job which was always there would have moved."""
    seen_s: float = 0.0
    rate: float = 0.0
    turn: int = 0
    """Raised whenever the rate changes or a job comes: ends that were foreseen before are void."""
    _ends: list[tuple[float, int, SimulatedAttempt]] = field(default_factory=list)
    _entered: int = 0

    def clock_at(self, now_s: float) -> float:
        """Return what the clock shows."""
        return self.clock + self.rate * (now_s - self.seen_s)

    def advance(self, now_s: float) -> None:
        """Let time pass at the present rate."""
        self.clock = self.clock_at(now_s)
        self.seen_s = now_s

    def enter(self, attempt: SimulatedAttempt, now_s: float) -> None:
        """Let a job begin to move its bytes."""
        self.advance(now_s)
        self._entered += 1
        attempt.lane = self
        attempt.goal = self.clock + attempt.job.input_bytes * attempt.dies_after
        heappush(self._ends, (attempt.goal, self._entered, attempt))

    def leave(self, attempt: SimulatedAttempt) -> None:
        """Take a job out that has died."""
        self._ends = [end for end in self._ends if end[2] is not attempt]
        heapify(self._ends)

    def pop_ended(self, now_s: float) -> list[SimulatedAttempt]:
        """Take out the jobs that have moved all their bytes."""
        self.advance(now_s)
        ended: list[SimulatedAttempt] = []
        # After a long time one step of the clock may be more than half a byte.
        reached = self.clock + max(DONE_BYTES, self.clock * 1e-12)
        while self._ends and self._ends[0][0] <= reached:
            ended.append(heappop(self._ends)[2])
        return ended

    def next_end_s(self) -> float | None:
        """Return when the next job ends at the present rate; None: there is none."""
        if not self._ends:
            return None
        return self.seen_s + max(0.0, self._ends[0][0] - self.clock) / self.rate


@dataclass(slots=True, eq=False)
class Volume:
    """Storage that tables share."""

    limit_bytes_s: float = inf
    moving: int = 0
    """Jobs that move bytes now."""
    lanes: list[Lane] = field(default_factory=list)

    def set_rates(self, now_s: float, most: float = inf) -> list[Lane]:
        """Give each job its part of the limit; return the lanes whose rate has changed.

        Args:
            now_s: The time now.
            most: Bytes per second that no job may move more than, whatever the volume gives.
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
    """A compactor that answers."""

    name: str
    slots: int
    busy: int = 0
    draining: bool = False


class SimulatedGroup:
    """The compactors of a group. Always true: none runs more jobs than it has slots."""

    def __init__(self, rule: GroupRule, rules: AutoscalerRules) -> None:
        """Begin with the least number of compactors, which are there at once."""
        self.rule, self.name = rule, rule.group.name
        self.lanes: dict[str, Lane] = {}
        """By the name of the volume."""
        self.compactors: dict[str, SimulatedCompactor] = {}
        self.starting: dict[str, float] = {}
        """Compactor → since when."""
        self.committed_bytes = 0
        self.running: dict[SimulatedAttempt, None] = {}
        self.compactor_s = 0.0
        """Seconds of compactors so far, started ones included."""
        self.busy_s = 0.0
        """Seconds of slots with a job so far."""
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
        """Compactors that are there or starting."""
        return len(self.compactors) + len(self.starting)

    def note_time(self, now_s: float) -> None:
        """Count the time that compactors and slots have been there; called before they change."""
        passed_s = now_s - self._seen_s
        if passed_s > 0:
            self.compactor_s += self.count * passed_s
            self.busy_s += len(self.running) * passed_s
            self._seen_s = now_s

    def free_slot(self) -> SimulatedCompactor | None:
        """Return a compactor with a free slot, the one that has waited longest; None: all busy."""
        while self._free:
            compactor = self._free[0]
            if not compactor.draining and compactor.name in self.compactors:
                return compactor
            self._free.popleft()
        return None

    def begin(self, attempt: SimulatedAttempt, now_s: float) -> None:
        """Let a job run on the compactor that `free_slot` has returned."""
        self.note_time(now_s)
        compactor = self._free.popleft()
        assert compactor is attempt.compactor
        compactor.busy += 1
        assert compactor.busy <= compactor.slots, compactor
        self.running[attempt] = None

    def end(self, attempt: SimulatedAttempt, now_s: float) -> None:
        """Let a job commit, and give its slot back."""
        self.committed_bytes += attempt.job.input_bytes
        self.give_back(attempt, now_s)

    def give_back(self, attempt: SimulatedAttempt, now_s: float) -> None:
        """Give the slot of a job back; a draining compactor leaves with its last one."""
        self.note_time(now_s)
        del self.running[attempt]
        compactor = attempt.compactor
        compactor.busy -= 1
        if not compactor.draining:
            self._free.append(compactor)
        elif not compactor.busy:
            del self.compactors[compactor.name]

    def lose(self, number: int, now_s: float) -> tuple[list[SimulatedAttempt], str]:
        """Lose a compactor; return what it runs, which ends, and who starts in its place.

        Args:
            number: Of the compactor, among those that are there.
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
        """Let a compactor that was started come up, unless it was drained meanwhile."""
        self.note_time(now_s)
        if self.starting.pop(name, None) is not None:
            self._appear(name)

    def scale(self, waiting: GroupLoad, now_s: float) -> list[str]:
        """Have the policy decide; return the names of compactors that start now.

        Args:
            waiting: What the queue knows of the group; the compactors are filled in here.
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
