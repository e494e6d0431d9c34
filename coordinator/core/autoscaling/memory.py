"""State kept between decisions, and the effect of starts that succeed or fail.

A round of failed starts causes a pause; each further round doubles it. The first heartbeat of a new
compactor ends the series. If compactors die soon after their start, a heartbeat is not enough: one
compactor has to run for the length of the longest pause.
"""

from dataclasses import dataclass, replace

from common.backoff import Backoff
from coordinator.core.autoscaling.demand import AutoscalerRules, GroupLoad


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


def not_ahead(memory: Memory, rules: AutoscalerRules, now_s: float) -> Memory:
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
        retry_s=min(memory.retry_s, now_s + rules.start_backoff_max_s),
    )


def after_starts(
    load: GroupLoad,
    memory: Memory,
    give_up: tuple[str, ...],
    rules: AutoscalerRules,
    now_s: float,
) -> Memory:
    """Return the state after starts that succeeded, failed or timed out."""
    memory = _after_heartbeats(load, memory, rules, now_s)
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
        backoff = Backoff(base_s=rules.start_backoff_s, max_s=rules.start_backoff_max_s)
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


def _after_heartbeats(
    load: GroupLoad, memory: Memory, rules: AutoscalerRules, now_s: float
) -> Memory:
    """Return the state after new compactors have sent a heartbeat, or have run long enough."""
    appeared = not {compactor.name for compactor in load.running} <= memory.running
    if appeared and memory.appeared_s is None:
        memory = replace(memory, appeared_s=now_s)
    succeeded = (appeared and not memory.crashing) or has_lasted(
        memory.appeared_s, rules.start_backoff_max_s, now_s
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
