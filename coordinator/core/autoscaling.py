"""When compactors are started and drained: one decision per snapshot of a group.

Growth follows persistent demand, in steps. A compactor is drained when the group could have worked
without it for long enough, one at a time. Between growth and shrinking lies a band in which nothing
happens, so that a constant load leads to a constant count.

A fresh `Memory` is always safe: the policy only waits as long as after a start.
"""

from dataclasses import dataclass, replace
from math import ceil, exp, inf

from common.primitives import Backoff
from common.settings import AutoscalerSettings
from common.units import format_bytes, format_count

# ------------------------------------------------------------------------------------------- Demand
# The work of a compaction group, and how many compactors it needs. Stateless.
#
#     cost        ceil(input bytes of queued, running and deferred jobs / (rate · drain target))
#     depth       ceil(jobs / (slots · jobs per slot)), while the rate is unknown
#     divisible   ceil(jobs / slots): a job cannot be divided, so more compactors would be idle
#     demand      min(cost or depth, divisible), and at least 1 while there is any work
#
# A tablet that was deferred by a full queue counts as one job of the queue's mean cost. Unplanned
# tablets ask for one compactor in total: most of them turn out to need nothing.


KEPT_SLOT_SHARE = 0.9
"""A compactor is drained only if all jobs fit into this fraction of the others' slots."""
FREE_MAX = 2
"""Free slots, in compactors, that are tolerated while jobs wait.

One compactor may be unable to work; two mean that something else blocks the jobs.
"""
FREE_SHARE_MAX = 1 / 3
"""The same as a fraction of all slots, because short jobs leave slots free between them."""
JOBS_PER_SLOT = 4
"""Target number of jobs per slot while their duration is unknown."""
GROW_STEP = 4
"""Compactors per growth step; a group that already has more doubles."""
START_BACKOFF_S, START_BACKOFF_MAX_S = 10.0, 120.0
"""Pause after failed starts; it doubles up to the maximum."""
RATE_MIN_BYTES_S = 1.0
"""A lower rate is a stall and does not predict the next job."""

# ------------------------------------------------------------------------------------ What is given


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
        planned_bytes = self.queued_bytes + self.running_bytes
        jobs, size_bytes = self.queued_jobs, self.queued_bytes
        if not jobs:
            jobs, size_bytes = self.running_jobs, self.running_bytes
        return planned_bytes + (self.deferred_tablets * size_bytes / jobs if jobs else 0.0)

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


def demand(load: GroupLoad, rules: AutoscalerSettings, capacity: int) -> Demand:
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


def _needed(load: GroupLoad, rules: AutoscalerSettings, capacity: int) -> tuple[float, str]:
    """Return the compactors needed to finish in time, as a fraction, and the reason."""
    if load.slots_wanted is not None:
        slots = format_count(load.slots_wanted, "slot")
        return load.slots_wanted / load.slots, f"the controller wants {slots} (`neve control`)"
    jobs, size = format_count(load.open_jobs, "job"), load.open_bytes
    rate = load.rate_bytes_s
    if rate is None or rate < RATE_MIN_BYTES_S:
        many = f"{JOBS_PER_SLOT} for each of {format_count(load.slots, 'slot')}"
        rule = f"{jobs} at an unknown rate, {many} of a compactor"
        return load.open_jobs / (load.slots * JOBS_PER_SLOT), rule
    would_s = size / rate / max(1, capacity)
    many = format_count(capacity, "compactor") if capacity else "the first compactor"
    cost = f"{jobs} of {format_bytes(size)} would take {would_s:,.0f} s with {many}"
    return size / rate / rules.drain_target_s, f"{cost}, target {rules.drain_target_s:,.0f} s"


def _no_work(load: GroupLoad) -> str:
    waiting = load.queued_jobs + load.deferred_tablets if load.paused else 0
    return f"{format_count(waiting, 'job')} held by the pause" if waiting else "no work"


# ------------------------------------------------------------------------------------------- Memory
# State kept between decisions, and the effect of starts that succeed or fail.
#
# A round of failed starts causes a pause; each further round doubles it. The first heartbeat of a
# new compactor ends the series. If compactors die soon after their start, a heartbeat is not
# enough: one compactor has to run for the length of the longest pause.


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """State of one group that is kept between decisions."""

    seen_s: float | None = None
    """Time of the last decision."""
    short_since_s: float | None = None
    """Since when the group has had fewer compactors than it needs."""
    idle_since_s: float | None = None
    """Since when there has been no work at all."""
    grown_s: float | None = None
    shrunk_s: float | None = None
    count: int = 0
    """Compactors that the group had after the last decision, including those that died since."""
    spare_s: float = 0.0
    """Time in which the group could have worked with one compactor less, minus the other time."""
    running: frozenset[str] = frozenset()
    """Compactors that sent heartbeats at the last decision."""
    given_up: frozenset[str] = frozenset()
    """Compactors that were given up and still exist."""
    failed_starts: int = 0
    """Failed starts since the last successful one."""
    failed_rounds: int = 0
    """The same, but all failures during one pause count once."""
    crashing: bool = False
    """Whether compactors die soon after their start; a heartbeat then proves nothing."""
    appeared_s: float | None = None
    """Time of the first heartbeat since the last failed start."""
    retry_s: float = 0.0
    """Earliest time of the next start."""
    cause: str = ""
    """Cause of the last failed start."""


def not_ahead(memory: Memory, now_s: float) -> Memory:
    """Return the state with future times removed: a clock may have gone back."""

    def past(time_s: float | None) -> float | None:
        return None if time_s is None else min(time_s, now_s)

    return replace(
        memory,
        seen_s=past(memory.seen_s),
        short_since_s=past(memory.short_since_s),
        idle_since_s=past(memory.idle_since_s),
        appeared_s=past(memory.appeared_s),
        grown_s=past(memory.grown_s),
        shrunk_s=past(memory.shrunk_s),
        retry_s=min(memory.retry_s, now_s + START_BACKOFF_MAX_S),
    )


def after_starts(
    load: GroupLoad,
    memory: Memory,
    give_up: tuple[str, ...],
    rules: AutoscalerSettings,
    now_s: float,
) -> Memory:
    """Return the state after starts that succeeded, failed or timed out."""
    memory = _after_heartbeats(load, memory, now_s)
    failed = {start.name: start.cause for start in load.failed if start.name not in memory.given_up}
    late = load.with_obstacle(f"no heartbeat within {rules.start_timeout_s:,.0f} s")
    failed |= dict.fromkeys(give_up, late)
    still = memory.given_up & {compactor.name for compactor in load.starting}
    memory = replace(memory, given_up=still | frozenset(give_up))
    if not failed:
        return memory
    rounds, retry_s = memory.failed_rounds, memory.retry_s
    if now_s >= retry_s:  # A start during the pause belongs to the round that caused the pause.
        rounds += 1
        backoff = Backoff(base_s=START_BACKOFF_S, max_s=START_BACKOFF_MAX_S)
        retry_s = now_s + backoff.wait_s(rounds)
    return replace(
        memory,
        failed_starts=memory.failed_starts + len(failed),
        failed_rounds=rounds,
        crashing=memory.crashing or not memory.running.isdisjoint(failed),
        appeared_s=None,
        cause=list(failed.values())[-1],
        retry_s=retry_s,
    )


def _after_heartbeats(load: GroupLoad, memory: Memory, now_s: float) -> Memory:
    """Return the state after new compactors have sent a heartbeat, or have run long enough."""
    appeared = not {compactor.name for compactor in load.running} <= memory.running
    if appeared and memory.appeared_s is None:
        memory = replace(memory, appeared_s=now_s)
    succeeded = (appeared and not memory.crashing) or has_lasted(
        memory.appeared_s, START_BACKOFF_MAX_S, now_s
    )
    if not (succeeded and memory.failed_starts):
        return memory
    return replace(memory, failed_starts=0, failed_rounds=0, crashing=False, cause="", retry_s=0.0)


def has_lasted(since_s: float | None, length_s: float, now_s: float) -> bool:
    """Return whether a condition has held for a time; None means it does not hold."""
    return since_s is not None and now_s - since_s >= length_s


def is_past(last_s: float | None, pause_s: float, now_s: float) -> bool:
    """Return whether a pause since `last_s` is over; None means there was none."""
    return last_s is None or now_s - last_s >= pause_s


# ------------------------------------------------------------------------------------------- Policy


LATE_FACTOR = 2.0
"""A job that waited for this many drain targets shows that the estimate is wrong."""
GAP_MAX_S = 5.0
"""Maximum time counted for a gap between two snapshots, because its state is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do with the compactors of a group now, and why."""

    group: str
    desired: int
    """Target number of compactors, within the group's bounds."""
    current: int
    """Compactors that serve or are starting."""
    start: int = 0
    """Number to start now."""
    drain: tuple[str, ...] = ()
    """Compactors to drain now; at most one."""
    give_up: tuple[str, ...] = ()
    """Compactors to kill because they have been starting for too long."""
    reason: str
    """One sentence with the numbers that led to the decision."""
    blocked: str = ""
    """Why the group cannot grow to its demand; empty if it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """Values that this decision derives from a snapshot."""

    load: GroupLoad
    starting: tuple[StartingCompactor, ...]
    capacity: int
    """Compactors that serve or are starting."""
    need: Demand
    asked: int
    """Number that the work asks for."""
    wanted: int
    """The same without compactors that would be idle, before the group's bounds apply."""
    desired: int
    lost: int
    """Compactors that died or failed to start, and would have work."""
    late: bool
    """Whether the oldest job has waited long enough to need one more compactor."""


def decide(
    load: GroupLoad, memory: Memory, rules: AutoscalerSettings, now_s: float
) -> tuple[Decision, Memory]:
    """Return what to do with a group's compactors, and the state to keep.

    Args:
        load: A new snapshot of the group.
        memory: State returned by the last decision; `Memory()` for the first.
        rules: Rules of the group.
        now_s: The current time. If it decreases, delays stay within the rules' own times.
    """
    give_up = tuple(
        compactor.name
        for compactor in load.starting
        if compactor.name not in memory.given_up
        and now_s - compactor.since_s >= rules.start_timeout_s
    )
    memory = after_starts(load, not_ahead(memory, now_s), give_up, rules, now_s)
    view = _view(load, memory, rules)
    memory = _after_look(view, memory, rules, now_s)
    blocked = _blocked(view, memory, rules, now_s)
    start = _starts(view, memory, rules, now_s)
    drain = () if start else _drains(view, memory, rules, now_s)
    if start:
        memory = replace(memory, grown_s=now_s, spare_s=0.0)
    if drain:
        memory = replace(memory, shrunk_s=now_s)
    decision = Decision(
        group=load.group,
        desired=view.desired,
        current=view.capacity,
        start=start,
        drain=drain,
        give_up=give_up,
        reason=_reason(view, rules, now_s),
        blocked=blocked,
    )
    running = frozenset(compactor.name for compactor in load.running)
    count = view.capacity + max(view.lost, start) - len(drain)
    return decision, replace(memory, seen_s=now_s, running=running, count=count)


# ---------------------------------------------------------------------------------- Snapshot


def _view(load: GroupLoad, memory: Memory, rules: AutoscalerSettings) -> _View:
    starting = tuple(
        compactor for compactor in load.starting if compactor.name not in memory.given_up
    )
    capacity = len(load.serving) + len(starting)
    need = demand(load, rules, capacity)
    late = (
        load.oldest_age_s > LATE_FACTOR * rules.drain_target_s
        and not (load.paused or starting or load.idle)
        and need.wanted <= capacity < need.divisible
    )
    asked = capacity + 1 if late else need.wanted
    # The drain target starts now. Otherwise, a group whose compactors die one by one would always
    # appear almost done.
    lost = max(0, min(memory.count, need.divisible) - capacity)
    asked = max(asked, capacity + lost) if lost else asked
    # Starting compactors have not shown so far whether they find work.
    wanted = ceil(min(asked, max(useful_compactors(load), capacity if starting else 0)))
    return _View(
        load=load,
        starting=starting,
        capacity=capacity,
        need=need,
        asked=asked,
        wanted=wanted,
        desired=min(max(wanted, load.count_min), load.count_max),
        lost=lost,
        late=late,
    )


def _is_held_back(view: _View) -> bool:
    """Return whether jobs wait although slots are free: more compactors would be idle as well."""
    return view.asked > view.capacity >= view.wanted


def _is_spare(view: _View) -> bool:
    """Return whether the group could work with one compactor less at this moment."""
    if view.late or view.capacity <= view.load.count_min:
        return False
    return useful_compactors(view.load) < len(view.load.serving) or fits_without_one(
        view.load, view.capacity
    )


# ------------------------------------------------------------------------------ What is remembered


def _after_look(view: _View, memory: Memory, rules: AutoscalerSettings, now_s: float) -> Memory:
    """Return the state with updated times of shortage, spare capacity and idleness.

    Spare time is reduced second by second, not reset: otherwise one job per minute would keep
    twenty compactors.
    """

    def since(time_s: float | None, *, still: bool) -> float | None:
        return (now_s if time_s is None else time_s) if still else None

    passed_s = 0.0 if memory.seen_s is None else min(now_s - memory.seen_s, GAP_MAX_S)
    spare_s = memory.spare_s + (passed_s if _is_spare(view) else -passed_s)
    return replace(
        memory,
        short_since_s=since(memory.short_since_s, still=view.asked > view.capacity),
        idle_since_s=since(memory.idle_since_s, still=not view.need.wanted),
        spare_s=min(max(0.0, spare_s), rules.shrink_after_s),
    )


# --------------------------------------------------------------------------------- Start and drain


def _starts(view: _View, memory: Memory, rules: AutoscalerSettings, now_s: float) -> int:
    """Return the number of compactors to start now."""
    missing = view.desired - view.capacity
    if missing <= 0 or view.load.paused or now_s < memory.retry_s:
        return 0
    if memory.failed_starts:  # One start shows whether starts succeed again.
        return 0 if view.starting else 1
    below = max(0, view.load.count_min - view.capacity)
    if not _may_grow(view, memory, rules, now_s):
        return below
    return max(below, min(missing, max(GROW_STEP, view.capacity)))


def _may_grow(view: _View, memory: Memory, rules: AutoscalerSettings, now_s: float) -> bool:
    if not has_lasted(memory.short_since_s, rules.grow_after_s, now_s):
        return False
    # If the job is still late, the next snapshot shows it; another compactor takes longer to help.
    pause_s = rules.drain_target_s if view.late else rules.grow_interval_s
    return is_past(memory.grown_s, pause_s, now_s)


def _drains(
    view: _View, memory: Memory, rules: AutoscalerSettings, now_s: float
) -> tuple[str, ...]:
    """Return the compactor to drain now, if any."""
    if any(compactor.draining for compactor in view.load.running):
        return ()
    if view.capacity <= view.load.count_max:
        due = memory.spare_s >= rules.shrink_after_s and _is_spare(view)
        rested = is_past(memory.shrunk_s, rules.shrink_interval_s, now_s)
        if not (due and rested):
            return ()
        # Stopping and starting the last compactor for one job per minute saves nothing.
        if view.capacity == 1 and not has_lasted(memory.idle_since_s, rules.shrink_after_s, now_s):
            return ()
    return _least_busy(view)


def _least_busy(view: _View) -> tuple[str, ...]:
    """Return the compactor with the fewest jobs; a busy one only if none is starting."""
    least = min(
        view.load.serving, key=lambda compactor: (compactor.busy, compactor.name), default=None
    )
    if least is None or (least.busy and view.starting and view.capacity <= view.load.count_max):
        return ()
    return (least.name,)


# ---------------------------------------------------------------------------------- Messages


def _blocked(view: _View, memory: Memory, rules: AutoscalerSettings, now_s: float) -> str:
    load = view.load
    if load.paused:
        return "the group is paused"
    if memory.failed_starts and view.desired > view.capacity:
        starts = format_count(memory.failed_starts, "start")
        wait_s = memory.retry_s - now_s
        tried = "another one is starting" if view.starting else "one is being tried now"
        following = f"the next try is in {wait_s:,.0f} s" if wait_s > 0 else tried
        return f"{starts} failed, {following}: {memory.cause}"
    if _is_held_back(view) and has_lasted(memory.short_since_s, rules.grow_after_s, now_s):
        free = format_count(load.free_slots, "slot")
        jobs = format_count(load.queued_jobs, "job")
        return f"{free} free while {jobs} wait: limits or pauses block the jobs"
    if view.wanted > load.count_max <= view.capacity:
        most = format_count(load.count_max, "compactor")
        return f"at the maximum of {most}, the work needs {view.wanted:,}"
    return ""


def _reason(view: _View, rules: AutoscalerSettings, now_s: float) -> str:
    load, reason = view.load, view.need.reason
    if view.late:
        target = f"target {rules.drain_target_s:,.0f} s"
        reason = f"the oldest job has waited {load.oldest_age_s:,.0f} s, {target}"
    if view.wanted < load.count_min:
        reason += f"; the minimum is {format_count(load.count_min, 'compactor')}"
    if view.wanted > load.count_max:
        reason += f"; the maximum is {format_count(load.count_max, 'compactor')}"
    if view.capacity > view.desired:
        reason += f"; {load.idle:,} of {format_count(view.capacity, 'compactor')} idle"
    if view.starting:
        longest_s = max(0.0, now_s - min(compactor.since_s for compactor in view.starting))
        starting = f"; {len(view.starting):,} starting, for up to {longest_s:,.0f} s"
        reason += load.with_obstacle(starting)
    return reason


# --------------------------------------------------------------------------------------------- Rate
# Measured rewrite rate of a compactor of a group. Pure.
#
#     rate = slots · input bytes committed / slot-seconds that were busy
#
# Both sums decay equally, so older work counts less: after `DECAY_S`, 1/e of it. Bytes count when a
# job commits, slot-seconds as they pass. The rate of a group whose first long job still runs is
# therefore unknown.


DECAY_S = 600.0
BUSY_MIN_S = 1.0
"""Less busy time gives no reliable rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRate:
    """Recent work of a group."""

    seen_s: float | None = None
    committed_bytes: int = 0
    """The group's counter at the last update."""
    done_bytes: float = 0.0
    busy_s: float = 0.0

    def seen(self, committed_bytes: int, busy_slots: int, now_s: float) -> "RewriteRate":
        """Return the updated rate.

        Args:
            committed_bytes: Input bytes of all commits so far; a lower number restarts the count.
            busy_slots: Slots with a job now.
            now_s: The current time.
        """
        if self.seen_s is None:
            return replace(self, seen_s=now_s, committed_bytes=committed_bytes)
        passed_s = max(0.0, now_s - self.seen_s)
        kept = exp(-passed_s / DECAY_S)
        new_bytes = max(0, committed_bytes - self.committed_bytes)
        return RewriteRate(
            seen_s=now_s,
            committed_bytes=committed_bytes,
            done_bytes=self.done_bytes * kept + new_bytes,
            busy_s=self.busy_s * kept + busy_slots * passed_s,
        )

    def bytes_s(self, slots: int) -> float | None:
        """Return what a fully busy compactor rewrites per second; None if unknown."""
        if not self.done_bytes or self.busy_s < BUSY_MIN_S:
            return None
        return slots * self.done_bytes / self.busy_s
