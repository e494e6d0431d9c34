"""How many tablets a second are planned, and how much is rewritten in the long run?

    python -m benchmarks.bench_planning [--tablets N] [--rounds R]

Planning alone, without the store: tablets of ten files in which nothing qualifies, and
in which a job is found. Write amplification: so many files of 1,000 bytes come per
round, and everything that is planned is committed before the next.
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence

from common.model.file import DataFile
from common.model.group import Service
from common.model.job import Kind
from common.model.table import Table, TableSettings
from common.model.tablet import PLUS_INFINITY, Bounds, Tablet, TabletId
from common.spi.planner import PlanParameters
from coordinator.core.planning import plan_tablet
from coordinator.plugins.dispatchers import SimpleDispatcher
from coordinator.plugins.planners.ratio import RatioPlanner

FILES = 10
IDLE_MIN, BUSY_MIN = 60_000, 20_000
ACCUMULO = {1: 4.51, 2: 5.056, 3: 5.056, 5: 5.51, 9: 5.51, 10: 5.51, 15: 6.408, 20: 6.056}
"""Files per round → write amplification of Accumulo's planner over 1,000 rounds."""
AMPLIFICATION_ROUNDS = 1_000

TABLE = Table(id="t1", name="events", location="file:///events", schema=())
SERVICES = {"default": Service()}


def files_of(sizes: Sequence[int], tablet: int) -> dict[str, DataFile]:
    names = [f"in/{tablet:08x}-{number:04x}.parquet" for number in range(len(sizes))]
    return {
        name: DataFile(path=name, size_bytes=size, rows=size)
        for name, size in zip(names, sizes, strict=True)
    }


def tablets(count: int, *, busy: bool) -> list[Tablet]:
    chance = random.Random(1)
    made = []
    for number in range(count):
        growth = 1.1 if busy else 2.0
        sizes = [int(1e6 * growth**index * chance.uniform(1, 1.2)) for index in range(FILES)]
        chance.shuffle(sizes)
        tablet = TabletId("t1", number.to_bytes(8, "big"))
        bounds = Bounds(None, tablet.end)
        made.append(Tablet(id=tablet, bounds=bounds, files=files_of(sizes, number)))
    return made


def rate(work: Callable[[Tablet], object], given: Sequence[Tablet], rounds: int) -> float:
    """Return tablets per second of processor time, of the best round."""
    best_s = float("inf")
    for _ in range(rounds):
        begun_s = time.process_time()
        for tablet in given:
            work(tablet)
        best_s = min(best_s, time.process_time() - begun_s)
    return len(given) / best_s


def planner_alone(given: Sequence[Tablet], rounds: int) -> float:
    planner = RatioPlanner()
    asked = {
        tablet.id: PlanParameters(
            tablet=tablet.id,
            table_name="events",
            kind=Kind.SYSTEM,
            settings=TABLE.settings,
            files=tablet.files,
            candidates=tuple(tablet.files.values()),
        )
        for tablet in given
    }
    return rate(lambda tablet: planner.plan(asked[tablet.id]), given, rounds)


def whole(given: Sequence[Tablet], rounds: int) -> float:
    planners, dispatcher = {"ratio": RatioPlanner()}, SimpleDispatcher()
    return rate(
        lambda tablet: plan_tablet(tablet, TABLE, SERVICES, planners, 0.0, dispatcher=dispatcher),
        given,
        rounds,
    )


def amplification(arriving: int, settings: TableSettings) -> float:
    """Return bytes rewritten per byte added."""
    planner, tablet = RatioPlanner(), TabletId("t1", PLUS_INFINITY)
    files: dict[str, DataFile] = {}
    rewritten = 0

    def add(name: str, size: int) -> None:
        files[name] = DataFile(path=name, size_bytes=size, rows=1)

    for number in range(AMPLIFICATION_ROUNDS):
        for index in range(arriving):
            add(f"r{number:04}-{index:02}", 1000)
        while jobs := planner.plan(
            PlanParameters(
                tablet=tablet,
                table_name="events",
                kind=Kind.SYSTEM,
                settings=settings,
                files=files,
                candidates=tuple(files.values()),
            )
        ).jobs:
            for job in jobs:
                total = sum(files.pop(path).size_bytes for path in job.files)
                rewritten += total
                add(f"z{rewritten:012}", total)
    return rewritten / (AMPLIFICATION_ROUNDS * arriving * 1000)


def verdict(value: float, goal: float, *, more: bool = True) -> str:
    reached = value >= goal if more else value <= goal + 0.0005
    return f"{'reached' if reached else 'MISSED'} {goal:,}"


def main() -> None:
    options = argparse.ArgumentParser(description="measure planning")
    options.add_argument("--tablets", type=int, default=5_000)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    print(f"Tablets per second and core, {FILES} files each\n")
    print(f"{'':20}{'planner alone':>16}{'plan_tablet':>16}")
    for name, busy, goal in (("nothing to do", False, IDLE_MIN), ("one job", True, BUSY_MIN)):
        made = tablets(given.tablets, busy=busy)
        alone, all_of_it = planner_alone(made, given.rounds), whole(made, given.rounds)
        print(f"{name:20}{alone:>16,.0f}{all_of_it:>16,.0f}  {verdict(alone, goal)}")
    print("\nWrite amplification, ratio 3, max_files 10\n")
    print(f"{'files per round':>16}{'ours':>10}{'Accumulo':>10}")
    for arriving, theirs in ACCUMULO.items():
        ours = amplification(arriving, TABLE.settings)
        word = verdict(ours, theirs, more=False)
        print(f"{arriving:>16}{ours:>10.3f}{theirs:>10}  {word}")


if __name__ == "__main__":
    main()
