"""The work of a compaction group, and how many compactors it needs. Stateless.

    cost        ceil(input bytes of queued, running and deferred jobs / (rate · drain target))
    depth       ceil(jobs / (slots · jobs per slot)), while the rate is unknown
    divisible   ceil(jobs / slots): a job cannot be divided, so more compactors would be idle
    demand      min(cost or depth, divisible), and at least 1 while there is any work

A tablet that was deferred by a full queue counts as one job of the queue's mean cost. Unplanned
tablets ask for one compactor in total: most of them turn out to need nothing.
"""

from dataclasses import dataclass
from math import ceil, inf

from common.units import format_bytes, format_count

KEPT_SLOT_SHARE = 0.9
"""A compactor is drained only if all jobs fit into this fraction of the others' slots."""
FREE_MAX = 2
"""Free slots, in compactors, that are tolerated while jobs wait.

One compactor may be unable to work; two mean that something else blocks the jobs.
"""
FREE_SHARE_MAX = 1 / 3
"""The same as a fraction of all slots, because short jobs leave slots free between them."""
RATE_MIN_BYTES_S = 1.0
"""A lower rate is a stall and does not predict the next job."""

# ------------------------------------------------------------------------------------ What is given


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerRules:
    """How quickly compactors are started and drained. Durations in seconds."""

    drain_target_s: float = 300.0
    """Queued work should be done within this time."""
    jobs_per_slot: int = 4
    """Target number of jobs per slot while their duration is unknown."""
    grow_after_s: float = 5.0
    """Demand must persist this long before the first growth."""
    grow_interval_s: float = 10.0
    """Interval between two growth steps."""
    grow_step: int = 4
    """Compactors per growth step; a group that already has more doubles."""
    shrink_after_s: float = 120.0
    """One compactor is drained after the group could do without it for this long."""
    shrink_interval_s: float = 5.0
    """Interval between two drains."""
    start_timeout_s: float = 600.0
    """A compactor still starting after this counts as failed to start."""
    start_backoff_s: float = 10.0
    """Pause after failed starts; it doubles up to `start_backoff_max_s`."""
    start_backoff_max_s: float = 120.0

    def __post_init__(self) -> None:
        assert self.drain_target_s > 0, "the drain target must be positive"
        assert min(self.grow_step, self.jobs_per_slot) >= 1, "steps and intervals must be positive"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorLoad:
    """A compactor that sends heartbeats."""

    name: str
    slots: int
    busy: int
    """Slots with a job."""
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingCompactor:
    """A started compactor that has not sent a heartbeat so far."""

    name: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStart:
    """A start that failed since the last snapshot, or a compactor that died soon after it."""

    name: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoad:
    """A new snapshot of a compaction group; never updated from an earlier one."""

    group: str
    count_min: int
    count_max: int
    slots: int
    """Slots of one compactor of the group."""
    queued_jobs: int = 0
    queued_bytes: int = 0
    """Input bytes of the queued jobs."""
    running_jobs: int = 0
    running_bytes: int = 0
    """Input bytes of running jobs that are still to rewrite."""
    deferred_tablets: int = 0
    """Tablets whose jobs a full queue rejected; they are planned again."""
    unplanned_tablets: int = 0
    """Changed tablets that wait for planning."""
    oldest_age_s: float = 0.0
    """Age of the oldest queued job; 0 if the queue is empty."""
    rate_bytes_s: float | None = None
    """Input bytes that one busy compactor rewrites per second; None if unknown."""
    running: tuple[CompactorLoad, ...] = ()
    starting: tuple[StartingCompactor, ...] = ()
    failed: tuple[FailedStart, ...] = ()
    paused: bool = False
    """Whether an operator paused the group, so that no jobs are assigned."""
    slots_wanted: int | None = None
    """Slots that the controller wants the group to have; None: the rules decide."""
    obstacle: str = ""
    """What prevents compactors from starting; empty if nothing does, or if it is unknown."""

    def __post_init__(self) -> None:
        assert 0 <= self.count_min <= self.count_max, "the minimum must not exceed the maximum"
        assert self.slots >= 1, "a compactor needs at least one slot"

    @property
    def serving(self) -> tuple[CompactorLoad, ...]:
        """Return the compactors that take jobs."""
        return tuple(compactor for compactor in self.running if not compactor.draining)

    @property
    def idle(self) -> int:
        """Return the number of idle compactors that take jobs."""
        return sum(compactor.busy == 0 for compactor in self.serving)

    @property
    def free_slots(self) -> int:
        """Return the number of free slots."""
        return sum(max(0, compactor.slots - compactor.busy) for compactor in self.serving)

    @property
    def used_slots(self) -> int:
        """Return the number of busy slots of compactors that take jobs."""
        return sum(compactor.busy for compactor in self.serving)

    @property
    def open_jobs(self) -> int:
        """Return the number of jobs that need a slot of a compactor that is not draining."""
        draining = sum(compactor.busy for compactor in self.running if compactor.draining)
        waiting = 0 if self.paused else self.queued_jobs + self.deferred_tablets
        return waiting + max(0, self.running_jobs - draining)

    @property
    def open_bytes(self) -> float:
        """Return the input bytes of all known work; a deferred tablet counts as an average job."""
        if self.paused:
            return self.running_bytes
        known = self.queued_bytes + self.running_bytes
        jobs, size_bytes = self.queued_jobs, self.queued_bytes
        if not jobs:
            jobs, size_bytes = self.running_jobs, self.running_bytes
        return known + (self.deferred_tablets * size_bytes / jobs if jobs else 0.0)

    def with_obstacle(self, text: str) -> str:
        """Return a text about starts, followed by the obstacle if there is one."""
        return f"{text}: {self.obstacle}" if self.obstacle else text

    @property
    def is_unplanned(self) -> bool:
        """Return whether unplanned tablets may add work."""
        return self.unplanned_tablets > 0 and not self.paused


# ----------------------------------------------------------------------------------- What it takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How many compactors the work needs, regardless of the group's bounds."""

    wanted: int
    """Number needed to finish in time."""
    divisible: int
    """Number that can have a job at the same time."""
    reason: str


def demand(load: GroupLoad, rules: AutoscalerRules, capacity: int) -> Demand:
    """Return how many compactors the work of a group needs.

    Args:
        load: The snapshot.
        rules: Rules with the drain target.
        capacity: Compactors that serve or are starting; only used in the reason.
    """
    jobs = load.open_jobs
    if not jobs:
        if not load.is_unplanned:
            return Demand(wanted=0, divisible=0, reason=_no_work(load))
        unplanned = format_count(load.unplanned_tablets, "changed tablet")
        reason = f"{unplanned} to plan"
        return Demand(wanted=1, divisible=1, reason=reason)
    divisible = ceil(jobs / load.slots)
    needed, reason = _needed(load, rules, capacity)
    wanted = max(1, ceil(min(needed, divisible)))
    if needed > divisible:
        many = format_count(divisible, "compactor")
        reason += f"; jobs cannot be divided, {many} can run all of them at once"
    return Demand(wanted=wanted, divisible=divisible, reason=reason)


def fits_without_one(load: GroupLoad, capacity: int) -> bool:
    """Return whether all work fits into the slots of one compactor less, with a margin."""
    slots = (capacity - 1) * load.slots * KEPT_SLOT_SHARE
    return load.open_jobs <= slots and (capacity > 1 or not load.is_unplanned)


def useful_compactors(load: GroupLoad) -> float:
    """Return how many compactors can be useful, judged by the current use of slots.

    Unlimited while all slots are used. If jobs wait while slots are free, something else may block
    them, and more compactors would be idle as well.
    """
    if not load.free_slots:
        return inf
    used = load.used_slots / load.slots
    return ceil(max(used + FREE_MAX, used / (1 - FREE_SHARE_MAX)))


def _needed(load: GroupLoad, rules: AutoscalerRules, capacity: int) -> tuple[float, str]:
    """Return the compactors needed to finish in time, as a fraction, and the reason."""
    if load.slots_wanted is not None:
        slots = format_count(load.slots_wanted, "slot")
        return load.slots_wanted / load.slots, f"the controller wants {slots} (`neve control`)"
    jobs, size = format_count(load.open_jobs, "job"), load.open_bytes
    rate = load.rate_bytes_s
    if rate is None or rate < RATE_MIN_BYTES_S:
        many = f"{rules.jobs_per_slot} for each of {format_count(load.slots, 'slot')}"
        rule = f"{jobs} at an unknown rate, {many} of a compactor"
        return load.open_jobs / (load.slots * rules.jobs_per_slot), rule
    would_s = size / rate / max(1, capacity)
    many = format_count(capacity, "compactor") if capacity else "the first compactor"
    cost = f"{jobs} of {format_bytes(size)} would take {would_s:,.0f} s with {many}"
    return size / rate / rules.drain_target_s, f"{cost}, target {rules.drain_target_s:,.0f} s"


def _no_work(load: GroupLoad) -> str:
    waiting = load.queued_jobs + load.deferred_tablets if load.paused else 0
    return f"{format_count(waiting, 'job')} held by the pause" if waiting else "no work"
