"""What a decision needs of those before it, and what follows from starts that succeed or fail.

A round of failed starts brings a pause, each further round one of twice the length. The first
heartbeat of a new compactor ends the row. It proves nothing if compactors die soon after it: then
one has to last for as long as the longest pause.
"""

from dataclasses import dataclass, replace

from common.backoff import Backoff
from coordinator.core.autoscaling.demand import AutoscalerRules, GroupLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is remembered of one group between two decisions."""

    seen_s: float | None = None
    """When the last decision was made."""
    short_since_s: float | None = None
    """Since when the group has had fewer compactors than it wants."""
    idle_since_s: float | None = None
    """Since when there has been no work at all."""
    grown_s: float | None = None
    shrunk_s: float | None = None
    count: int = 0
    """Compactors that the group had after the last decision, those that died since counted."""
    spare_s: float = 0.0
    """How long the group could have done without a compactor, less how long it could not."""
    running: frozenset[str] = frozenset()
    """Compactors that answered at the last decision."""
    given_up: frozenset[str] = frozenset()
    """Compactors that were given up and have not disappeared yet."""
    failed_starts: int = 0
    """Starts that failed since the last one that succeeded."""
    failed_rounds: int = 0
    """The same, failures during one pause counted once."""
    crashing: bool = False
    """Whether compactors die soon after they came up: a heartbeat proves nothing then."""
    appeared_s: float | None = None
    """When a compactor sent its first heartbeat, the first one since the last failed start."""
    retry_s: float = 0.0
    """No start before this time."""
    cause: str = ""
    """Of the last failed start."""


def not_ahead(memory: Memory, rules: AutoscalerRules, now_s: float) -> Memory:
    """Return the memory with no time that has not come yet: a clock may have gone back."""

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
    """Return the memory after the starts that succeeded, failed or took too long."""
    memory = _after_heartbeats(load, memory, rules, now_s)
    failed = {start.name: start.cause for start in load.failed if start.name not in memory.given_up}
    late = load.with_obstacle(f"no heartbeat within {rules.start_timeout_s:,.0f} s")
    failed |= dict.fromkeys(give_up, late)
    still = memory.given_up & {compactor.name for compactor in load.starting}
    memory = replace(memory, given_up=still | frozenset(give_up))
    if not failed:
        return memory
    rounds, retry_s = memory.failed_rounds, memory.retry_s
    if now_s >= retry_s:  # Otherwise they were started with the one that brought the pause.
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
    """Return the memory after new compactors sent a heartbeat, or have lasted since."""
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
    """Return whether something has been so for a time; None: it is not so."""
    return since_s is not None and now_s - since_s >= length_s


def is_past(last_s: float | None, pause_s: float, now_s: float) -> bool:
    """Return whether a pause since something is over; None: it never was."""
    return last_s is None or now_s - last_s >= pause_s
