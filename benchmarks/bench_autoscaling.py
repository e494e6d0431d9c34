"""What does scaling cost, and how long does work wait? The policy beside two common rules.

    python -m benchmarks.bench_autoscaling [--day-hours 24] [words of scenarios…]

Simulated on a virtual clock, so the figures depend on no machine. Each rule sees the same arrivals:

    neve         `coordinator.core.autoscaling`, default rules
    neve, 120 s  the same with a drain target of 120 s in the place of 300 s
    depth / N    KEDA and its HPA: ceil(jobs / N) every 15 s, at most doubling (or 4 more);
                 a lower count only if it was enough for 300 s
    ongoing      Ray Serve: ceil(mean jobs of 30 s / slots), from zero at once, upwards after 30 s,
                 downwards after 600 s, without steps

Jobs of `depth` and `ongoing` are the queued and the running ones. Both rules remove the newest
compactor first and let its jobs end. A compactor counts from its start until it is gone.

Each cell: compactor-seconds · seconds from the first arrival until the last job was done · time
that 95 % of the jobs waited at most · compactors started and drained.
"""

import argparse
from collections import deque
from collections.abc import Callable
from math import ceil
from statistics import mean

from coordinator.core.autoscaling import AutoscalerRules, GroupLoad
from tests.support.sim_autoscaling import (
    SLOTS,
    Change,
    GroupWorld,
    Outcome,
    PolicyScaler,
    Scaler,
    Scenario,
    scenarios,
)

SYNC_S = 15
STABLE_S = 300
HPA_STEP = 4
LOOK_BACK_S, UPSCALE_S, DOWNSCALE_S = 30, 30, 600


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--day-hours", type=int, default=24)
    wanted = parser.parse_args()
    print(f"| scenario | {' | '.join(RULES)} |")
    print(f"|---|{'---|' * len(RULES)}")
    for scenario in scenarios(3600 * wanted.day_hours):
        if all(word in scenario.name for word in wanted.words):
            cells = [_cell(scenario, GroupWorld(scenario, make()).run()) for make in RULES.values()]
            print(f"| {scenario.name} | {' | '.join(cells)} |", flush=True)


def _cell(scenario: Scenario, outcome: Outcome) -> str:
    """Return compactor-seconds, time until the last job was done, p95 of waits, changes."""
    late = "" if outcome.jobs_done == len(scenario.arrivals) else " (not all)"
    done_s = outcome.done_s - scenario.arrivals[0].at_s
    wait = f"{outcome.wait_p95_s:,.0f} s"
    return f"{outcome.compactor_s:,} · {done_s:,} s{late} · {wait} · {outcome.changes:,}"


class DepthScaler:
    """A count of jobs by a constant, as KEDA gives it to a horizontal pod autoscaler."""

    def __init__(self, jobs_each: int) -> None:
        self._jobs_each = jobs_each
        self._wanted: deque[tuple[int, int]] = deque()

    def look(self, load: GroupLoad, now_s: int) -> Change:
        """Return what to change, every 15 s."""
        if now_s % SYNC_S:
            return Change()
        wanted = _bounded(load, ceil(_jobs(load) / self._jobs_each))
        self._wanted.append((now_s, wanted))
        while self._wanted[0][0] <= now_s - STABLE_S:
            self._wanted.popleft()
        count = _count(load)
        most = max(each for _, each in self._wanted)
        if wanted > count:
            return Change(start=min(wanted - count, max(HPA_STEP, count)))
        return _fewer(load, count - most)


class OngoingScaler:
    """A target of ongoing requests, as replicas of Ray Serve have it."""

    def __init__(self) -> None:
        self._jobs: deque[int] = deque(maxlen=LOOK_BACK_S)
        self._above_s = self._below_s = 0

    def look(self, load: GroupLoad, now_s: int) -> Change:
        """Return what to change, every second."""
        self._jobs.append(_jobs(load))
        count = _count(load)
        wanted = _bounded(load, ceil(mean(self._jobs) / SLOTS))
        if not count:
            return Change(start=min(1, wanted))
        self._above_s = self._above_s + 1 if wanted > count else 0
        self._below_s = self._below_s + 1 if wanted < count else 0
        if self._above_s > UPSCALE_S:
            self._above_s = 0
            return Change(start=wanted - count)
        if self._below_s > DOWNSCALE_S:
            self._below_s = 0
            return _fewer(load, count - wanted)
        return Change()


RULES: dict[str, Callable[[], Scaler]] = {
    "neve": PolicyScaler,
    "neve, 120 s": lambda: PolicyScaler(AutoscalerRules(drain_target_s=120.0)),
    "depth / 5": lambda: DepthScaler(5),
    "depth / 20": lambda: DepthScaler(20),
    "ongoing": OngoingScaler,
}


def _jobs(load: GroupLoad) -> int:
    return load.queued_jobs + load.running_jobs


def _count(load: GroupLoad) -> int:
    return len(load.serving) + len(load.starting)


def _bounded(load: GroupLoad, count: int) -> int:
    return min(max(count, load.count_min), load.count_max)


def _fewer(load: GroupLoad, surplus: int) -> Change:
    names = sorted(each.name for each in (*load.serving, *load.starting))
    return Change(drain=tuple(reversed(names[len(names) - surplus :] if surplus > 0 else [])))


if __name__ == "__main__":
    main()
