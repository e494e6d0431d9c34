"""How many jobs a second does the simulator do, on one core?

    python -m benchmarks.bench_simulate [--hours H] [--tablets N] [--profile]

Each line is one run of `neve simulate` without what it writes. A job is planned, queued, handed
out, done and committed by the code of the service; each commit and each arrival has its tablet
planned again. `planner` and `queue` are the parts of the time that are spent in code that the
service shares: planners with the checks of their plans, and queues.
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Mapping
from typing import Any

from neve.simulate.figures import Outcome
from neve.simulate.specification import read_specifications
from neve.simulate.world import World

GOAL_JOBS_S = 20_000
LOADS: Mapping[str, Mapping[str, Any]] = {
    "ratio, one file at a time": {"arrivals": {"every": "5m", "size_spread": 0.3}},
    "ratio, ten files at a time": {"arrivals": {"every": "50m", "files": 10}},
    "ratio, updates and deletes": {
        "arrivals": {"every": "5m", "updates": 0.4, "deletes": 0.05},
        "keys": 100_000,
        "key_skew": 0.8,
        "initial": "8MB",
    },
    "ratio 1.2, two files a job": {
        "arrivals": {"every": "5m"},
        "settings": {"ratio": 1.2, "max_files": 2},
    },
    "size-tiered": {"arrivals": {"every": "5m"}, "planner": "size-tiered"},
    "leveled": {"arrivals": {"every": "50m", "files": 4}, "planner": "leveled"},
    "bin-pack, no key": {
        "arrivals": {"every": "50m", "files": 50, "size": "32MB"},
        "planner": "bin-pack",
        "keyed": False,
    },
}


def specification(load: Mapping[str, Any], tablets: int, hours: float) -> Mapping[str, Any]:
    table = {"name": "events", "tablets": tablets, "row_bytes": 100, **load}
    table["arrivals"] = {"size": "1MB", **load["arrivals"]}
    group = {"name": "default", "slots": 100, "compactors": 2, "slot_bytes_s": "100MB"}
    return {
        "simulation": {"days": hours / 24, "sample": "1h" if hours >= 1 else "1m"},
        "table": [table],
        "cluster": {"group": [group]},
    }


def measured(document: Mapping[str, Any]) -> tuple[Outcome, float]:
    """Return what a run came to, and its processor time."""
    (each,) = read_specifications(document, lambda name: name)
    world = World(each)
    begun_s = time.process_time()
    outcome = world.run()
    taken_s = time.process_time() - begun_s
    world.check()
    return outcome, taken_s


def shares(document: Mapping[str, Any]) -> tuple[float, float]:
    """Return which parts of the time go to planners and to queues; under a profiler, so roughly."""
    profile = cProfile.Profile()
    (each,) = read_specifications(document, lambda name: name)
    world = World(each)
    profile.runcall(world.run)
    stats: dict[tuple[str, int, str], Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]  # undocumented

    def of(*functions: str) -> float:
        return sum(
            row[3]
            for (path, _, name), row in stats.items()
            if any(f"{path}:{name}".endswith(function) for function in functions)
        )

    total = of("world.py:run")
    planner = f"{each.tables[0].planner_name.replace('-', '_')}.py:plan"
    queues = of("job_queue.py:replace", "backfill.py:take") / 2 + of("backfill.py:take") / 2
    return of(planner, "planning.py:checked_jobs") / total, queues / total


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hours", type=float, default=6.0)
    parser.add_argument("--tablets", type=int, default=1000)
    parser.add_argument("--profile", action="store_true", help="where the time goes, too")
    given = parser.parse_args()
    heads = ("jobs", "files", "plans", "cpu s", "jobs/s", "events/s")
    print(f"{'':28}" + "".join(f"{head:>10}" for head in heads))
    for name, load in LOADS.items():
        document = specification(load, given.tablets, given.hours)
        outcome, taken_s = measured(document)
        jobs = sum(outcome.jobs.values())
        events = jobs + outcome.arrived_files
        verdict = "reached" if jobs / taken_s >= GOAL_JOBS_S else "below"
        line = (jobs, outcome.arrived_files, outcome.plans)
        print(
            f"{name:28}"
            + "".join(f"{each:>10,}" for each in line)
            + f"{taken_s:>10.2f}{jobs / taken_s:>10,.0f}{events / taken_s:>10,.0f}  {verdict}"
        )
        if given.profile:
            planner, queue = shares(document)
            print(f"{'':28}{planner:>10.0%} planner{queue:>10.0%} queue")


if __name__ == "__main__":
    main()
