"""A compaction group on a virtual clock: arrivals come, compactors start, work, die and drain.

Whatever decides how many compactors there are is a `Scaler`; the policy of the product is one, and
`benchmarks/bench_autoscaling.py` has others. One step is a second. Chance comes from a seed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Protocol

from coordinator.core.autoscaling import (
    AutoscalerRules,
    CompactorLoad,
    Decision,
    FailedStart,
    GroupLoad,
    Memory,
    StartingCompactor,
    decide,
)

MIB = 1024**2
GIB = 1024**3
SLOTS = 4
SLOT_BYTES_S = 16 * MIB
JOB_START_S = 2
"""What each job takes beside its bytes."""
MEASURED_S = 30
"""Busy slot-seconds after which the rate of the group counts as known."""

# --------------------------------------------------------------------------------------- What comes


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that comes at a time."""

    at_s: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What comes, and what goes wrong."""

    name: str
    arrivals: tuple[Arrival, ...]
    horizon_s: int
    """By then everything must be done, and the group back at its minimum."""
    count_min: int = 0
    count_max: int = 20
    start_s: int = 30
    """From a start to the first heartbeat."""
    starts_fail: range = range(0)
    """Starts in this time fail, `fails_after_s` later."""
    fails_after_s: int = 20
    starts_hang: range = range(0)
    """Starts in this time are never heard of."""
    crashes: range = range(0)
    """Compactors that come up in this time die after `crashes_after_s`, which is known."""
    crashes_after_s: int = 5
    life_s: int = 0
    """How long a compactor lives on average; 0: none dies."""
    running_max: int = 10_000
    """Jobs under way at a time, whoever is idle."""
    queue_max: int = 10_000
    """Jobs that the queue holds; the tablets of others are deferred."""
    seed: int = 1


# ------------------------------------------------------------------------------------- Who decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a scaler wants done now."""

    start: int = 0
    drain: tuple[str, ...] = ()
    give_up: tuple[str, ...] = ()


class Scaler(Protocol):
    """Decides once a second how many compactors there are."""

    def look(self, load: GroupLoad, now_s: int) -> Change:
        """Return what to change."""
        ...


class PolicyScaler:
    """The product's policy, with every decision kept."""

    def __init__(self, rules: AutoscalerRules | None = None) -> None:
        self.rules = rules or AutoscalerRules()
        self.memory = Memory()
        self.decisions: list[Decision] = []

    def look(self, load: GroupLoad, now_s: int) -> Change:
        decision, self.memory = decide(load, self.memory, self.rules, now_s)
        self.decisions.append(decision)
        return Change(start=decision.start, drain=decision.drain, give_up=decision.give_up)


# ------------------------------------------------------------------------------------ What is there


@dataclass(slots=True)
class _Job:
    size_bytes: int
    arrived_s: int
    left_s: float = 0.0

    @property
    def work_s(self) -> float:
        return JOB_START_S + self.size_bytes / SLOT_BYTES_S

    @property
    def left_bytes(self) -> int:
        return round(self.size_bytes * self.left_s / self.work_s)


@dataclass(slots=True)
class _Compactor:
    name: str
    dies_s: float
    crashes: bool
    jobs: list[_Job] = field(default_factory=list)
    draining: bool = False


@dataclass(slots=True)
class _Start:
    name: str
    since_s: int
    ready_s: float
    fails_s: float


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    compactor_s: int = 0
    """Seconds of compactors that were starting, serving or draining."""
    done_s: int = 0
    """When the last job was done."""
    jobs_done: int = 0
    waits_s: list[int] = field(default_factory=list)
    """Of each job, from its arrival to its first start."""
    starts: int = 0
    drains: int = 0
    reversals: int = 0
    """Starts after a drain, and drains after a start."""
    counts: list[int] = field(default_factory=list)
    """Compactors that were serving or starting, each second."""

    @property
    def changes(self) -> int:
        return self.starts + self.drains

    @property
    def wait_p95_s(self) -> float:
        return quantiles([*self.waits_s, *self.waits_s], n=20, method="inclusive")[-1]


class GroupWorld:
    """Always true: each job that came is deferred, queued, running on one compactor, or done."""

    def __init__(self, scenario: Scenario, scaler: Scaler) -> None:
        self.scenario, self.scaler = scenario, scaler
        self.outcome = Outcome()
        self.now_s = 0
        self._chance = random.Random(scenario.seed)
        self._coming = deque(sorted(scenario.arrivals, key=lambda each: each.at_s))
        self._queue: deque[_Job] = deque()
        self._deferred: deque[_Job] = deque()
        self._compactors: dict[str, _Compactor] = {}
        self._starts: dict[str, _Start] = {}
        self._failed: list[FailedStart] = []
        self._names = 0
        self._busy_slot_s = 0
        self._moved_bytes = 0.0
        self._direction = 0

    def run(self) -> Outcome:
        """Live until all work is done and the group is at its minimum, or the time is over."""
        while not self._is_over() and self.now_s < self.scenario.horizon_s:
            self.step()
        assert not self._is_over() or self.check() == len(self.scenario.arrivals)
        return self.outcome

    def step(self) -> None:
        """Let one second pass."""
        self.now_s += 1
        self._arrive()
        self._settle_starts()
        self._die()
        self._work()
        self._take()
        self._apply(self.scaler.look(self.load(), self.now_s))
        self.outcome.compactor_s += len(self._compactors) + len(self._starts)
        self.outcome.counts.append(len(self._serving()) + len(self._starts))

    def load(self) -> GroupLoad:
        """Return the snapshot."""
        running = [job for compactor in self._compactors.values() for job in compactor.jobs]
        oldest_s = min((job.arrived_s for job in self._queue), default=self.now_s)
        failed, self._failed = tuple(self._failed), []
        known = self._busy_slot_s >= MEASURED_S
        return GroupLoad(
            group="g",
            count_min=self.scenario.count_min,
            count_max=self.scenario.count_max,
            slots=SLOTS,
            queued_jobs=len(self._queue),
            queued_bytes=sum(job.size_bytes for job in self._queue),
            running_jobs=len(running),
            running_bytes=sum(job.left_bytes for job in running),
            deferred_tablets=len(self._deferred),
            oldest_age_s=self.now_s - oldest_s,
            rate_bytes_s=self._moved_bytes / self._busy_slot_s * SLOTS if known else None,
            running=tuple(
                CompactorLoad(
                    name=compactor.name,
                    slots=SLOTS,
                    busy=len(compactor.jobs),
                    draining=compactor.draining,
                )
                for compactor in self._compactors.values()
            ),
            starting=tuple(
                StartingCompactor(name=start.name, since_s=start.since_s)
                for start in self._starts.values()
            ),
            failed=failed,
        )

    def check(self) -> int:
        """Return how many jobs there are and were, each counted once."""
        running = sum(len(compactor.jobs) for compactor in self._compactors.values())
        waiting = len(self._queue) + len(self._deferred)
        return len(self._coming) + waiting + running + self.outcome.jobs_done

    def _is_over(self) -> bool:
        there = len(self._compactors) + len(self._starts)
        done = self.outcome.jobs_done == len(self.scenario.arrivals)
        return done and there == self.scenario.count_min and self.now_s > 0

    def _serving(self) -> list[_Compactor]:
        return [compactor for compactor in self._compactors.values() if not compactor.draining]

    def _arrive(self) -> None:
        while self._coming and self._coming[0].at_s <= self.now_s:
            self._offer(_Job(self._coming.popleft().size_bytes, self.now_s))
        if len(self._queue) < self.scenario.queue_max / 2:
            again, self._deferred = self._deferred, deque()
            for job in again:
                self._offer(job)

    def _offer(self, job: _Job) -> None:
        full = len(self._queue) >= self.scenario.queue_max
        (self._deferred if full else self._queue).append(job)

    def _settle_starts(self) -> None:
        for start in list(self._starts.values()):
            if self.now_s >= start.fails_s:
                del self._starts[start.name]
                self._failed.append(FailedStart(name=start.name, cause="no node has room"))
            elif self.now_s >= start.ready_s:
                del self._starts[start.name]
                life_s = self.scenario.life_s
                lives_s = self._chance.expovariate(1 / life_s) if life_s else float("inf")
                if crashes := self.now_s in self.scenario.crashes:
                    lives_s = self.scenario.crashes_after_s
                dies_s = self.now_s + lives_s
                self._compactors[start.name] = _Compactor(start.name, dies_s, crashes)

    def _die(self) -> None:
        for compactor in list(self._compactors.values()):
            if self.now_s >= compactor.dies_s:
                del self._compactors[compactor.name]
                self._queue.extendleft(reversed(compactor.jobs))
                if compactor.crashes:
                    self._failed.append(FailedStart(name=compactor.name, cause="died after 5 s"))

    def _work(self) -> None:
        for compactor in list(self._compactors.values()):
            for job in compactor.jobs:
                self._busy_slot_s += 1
                self._moved_bytes += job.size_bytes / job.work_s
                job.left_s -= 1
            done = [job for job in compactor.jobs if job.left_s <= 0]
            if done:
                compactor.jobs = [job for job in compactor.jobs if job.left_s > 0]
                self.outcome.jobs_done += len(done)
                self.outcome.done_s = self.now_s
            if compactor.draining and not compactor.jobs:
                del self._compactors[compactor.name]

    def _take(self) -> None:
        running = sum(len(each.jobs) for each in self._compactors.values())
        free = [each for each in self._serving() if len(each.jobs) < SLOTS]
        while free and self._queue and running < self.scenario.running_max:
            taker = min(free, key=lambda each: len(each.jobs))
            job = self._queue.popleft()
            if not job.left_s:
                self.outcome.waits_s.append(self.now_s - job.arrived_s)
            job.left_s = job.work_s
            taker.jobs.append(job)
            running += 1
            if len(taker.jobs) == SLOTS:
                free.remove(taker)

    def _apply(self, change: Change) -> None:
        for name in change.give_up:
            self._starts.pop(name, None)
        for name in change.drain:
            if name in self._starts:
                del self._starts[name]
            else:
                self._compactors[name].draining = True
        for _ in range(change.start):
            self._start()
        self.outcome.starts += change.start
        self.outcome.drains += len(change.drain)
        direction = (change.start > 0) - (len(change.drain) > 0)
        if direction:
            self.outcome.reversals += self._direction == -direction
            self._direction = direction

    def _start(self) -> None:
        self._names += 1
        fails = self.now_s in self.scenario.starts_fail
        hangs = fails or self.now_s in self.scenario.starts_hang
        never = float("inf")
        name = f"c{self._names:04d}"
        self._starts[name] = _Start(
            name,
            self.now_s,
            never if hangs else self.now_s + self.scenario.start_s,
            self.now_s + self.scenario.fails_after_s if fails else never,
        )


# --------------------------------------------------------------------------------------- Scenarios


def burst(at_s: int, jobs: int, size_bytes: int) -> tuple[Arrival, ...]:
    """Return jobs that come all at once."""
    return tuple(Arrival(at_s, size_bytes) for _ in range(jobs))


def stream(
    times: Iterable[tuple[int, float]], size_bytes: int, seed: int = 1
) -> tuple[Arrival, ...]:
    """Return jobs that come by chance.

    Args:
        times: Seconds, and how many compactors would be busy all of each.
        size_bytes: Mean of a job; they are of very different sizes.
        seed: Of the draw.
    """
    chance = random.Random(seed)
    work_s = (JOB_START_S + size_bytes / SLOT_BYTES_S) / SLOTS
    return tuple(
        Arrival(at_s, max(MIB, round(chance.expovariate(1 / size_bytes))))
        for at_s, compactors in times
        for _ in range(_poisson(chance, compactors / work_s))
    )


def _poisson(chance: random.Random, mean: float) -> int:
    count, left = 0, chance.expovariate(1.0)
    while left < mean:
        count += 1
        left += chance.expovariate(1.0)
    return count


def _peaks(day_s: int) -> list[tuple[int, float]]:
    """Return a day: next to nothing at night, a peak in the morning and one in the evening."""

    def busy(at_s: int) -> float:
        hour = 24 * at_s / day_s
        peaks = ((9.0, 1.5, 8.0), (19.0, 2.0, 5.0))
        return 0.1 + sum(high * 2.0 ** -(((hour - at) / wide) ** 2) for at, wide, high in peaks)

    return [(at_s, busy(at_s)) for at_s in range(1, day_s)]


def scenarios(day_s: int = 8 * 3600) -> Sequence[Scenario]:
    """Return what the policy must master.

    Args:
        day_s: Length of the day with two peaks.
    """
    large = burst(60, 400, GIB)
    small = tuple(job for at_s in range(60, 7200, 600) for job in burst(at_s, 40, 128 * MIB))
    medium = tuple(job for at_s in range(60, 7200, 1200) for job in burst(at_s, 60, 512 * MIB))
    trickle = tuple(Arrival(at_s, 256 * MIB) for at_s in range(60, 7200, 60))
    steady = stream([(at_s, 5.5) for at_s in range(1, 4 * 3600)], 512 * MIB)
    flood = tuple(Arrival(60 + number // 40, 64 * MIB) for number in range(3000))
    day = stream(_peaks(day_s), 256 * MIB)
    return (
        Scenario(name="burst", arrivals=large, horizon_s=5_000),
        Scenario(name="burst, slow starts", arrivals=large, start_s=300, horizon_s=6_000),
        Scenario(name="small bursts", arrivals=small, horizon_s=12_000),
        Scenario(name="medium bursts", arrivals=medium, horizon_s=12_000),
        Scenario(name="medium bursts, slow starts", arrivals=medium, start_s=300, horizon_s=12_000),
        Scenario(name="trickle", arrivals=trickle, horizon_s=12_000),
        Scenario(name="steady", arrivals=steady, horizon_s=24_000),
        Scenario(
            name="flood of one table",
            arrivals=flood,
            running_max=8,
            queue_max=1000,
            horizon_s=12_000,
        ),
        Scenario(name="one huge job", arrivals=burst(60, 1, 64 * GIB), horizon_s=12_000),
        Scenario(name="day with two peaks", arrivals=day, horizon_s=day_s + 7_200),
        Scenario(
            name="starts fail for 10 min",
            arrivals=large,
            starts_fail=range(60, 660),
            horizon_s=8_000,
        ),
        Scenario(
            name="compactors crash for 10 min",
            arrivals=large,
            crashes=range(60, 660),
            horizon_s=8_000,
        ),
        Scenario(name="compactors die", arrivals=large, life_s=300, horizon_s=12_000),
    )
