"""When compactors are started and drained: one decision per snapshot of a group.

Growth follows persistent demand, in steps. A compactor is drained when the group could have worked
without it for long enough, one at a time. Between growth and shrinking lies a band in which nothing
happens, so that a constant load leads to a constant count.

A fresh `Memory` is always safe: the policy only waits as long as after a start.
"""

from dataclasses import dataclass, replace
from math import ceil

from common.units import format_count
from coordinator.core.autoscaling.demand import (
    AutoscalerRules,
    Demand,
    GroupLoad,
    StartingCompactor,
    demand,
    fits_without_one,
    useful_compactors,
)
from coordinator.core.autoscaling.memory import (
    Memory,
    after_starts,
    has_lasted,
    is_past,
    not_ahead,
)

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
    load: GroupLoad, memory: Memory, rules: AutoscalerRules, now_s: float
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
    memory = after_starts(load, not_ahead(memory, rules, now_s), give_up, rules, now_s)
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


def _view(load: GroupLoad, memory: Memory, rules: AutoscalerRules) -> _View:
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


def _after_look(view: _View, memory: Memory, rules: AutoscalerRules, now_s: float) -> Memory:
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


def _starts(view: _View, memory: Memory, rules: AutoscalerRules, now_s: float) -> int:
    """Return the number of compactors to start now."""
    missing = view.desired - view.capacity
    if missing <= 0 or view.load.paused or now_s < memory.retry_s:
        return 0
    if memory.failed_starts:  # One start shows whether starts succeed again.
        return 0 if view.starting else 1
    below = max(0, view.load.count_min - view.capacity)
    if not _may_grow(view, memory, rules, now_s):
        return below
    return max(below, min(missing, max(rules.grow_step, view.capacity)))


def _may_grow(view: _View, memory: Memory, rules: AutoscalerRules, now_s: float) -> bool:
    if not has_lasted(memory.short_since_s, rules.grow_after_s, now_s):
        return False
    # If the job is still late, the next snapshot shows it; another compactor takes longer to help.
    pause_s = rules.drain_target_s if view.late else rules.grow_interval_s
    return is_past(memory.grown_s, pause_s, now_s)


def _drains(view: _View, memory: Memory, rules: AutoscalerRules, now_s: float) -> tuple[str, ...]:
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
    least = min(view.load.serving, key=lambda each: (each.busy, each.name), default=None)
    if least is None or (least.busy and view.starting and view.capacity <= view.load.count_max):
        return ()
    return (least.name,)


# ---------------------------------------------------------------------------------- Messages


def _blocked(view: _View, memory: Memory, rules: AutoscalerRules, now_s: float) -> str:
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


def _reason(view: _View, rules: AutoscalerRules, now_s: float) -> str:
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
