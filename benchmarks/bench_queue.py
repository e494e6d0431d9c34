"""How fast is the queue, and is its structure the right one?

    python -m benchmarks.bench_queue [--jobs N] [--rounds R]

Structures run in turns within each round, so that noise of the machine hits all; of
each, the best round counts. Goals are those of the design for 100,000 queued jobs.
"""

import argparse
import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.queue_alternatives import STRUCTURES, WELL_KEPT, TwoEnded
from common.model.job import Job, Kind
from common.model.tablet import TabletId
from coordinator.core.queue import JobQueue
from coordinator.core.queue_index import FairShare, rank_of

PAIRS_MIN = REMOVALS_MIN = 150_000
RATIO_MIN = 0.8
TABLES = 20
BATCH, BATCHES = 1_000, 40


def measured(work: Callable[[], None], operations: int) -> float:
    """Return operations per second of processor time."""
    begun_s = time.process_time()
    work()
    return operations / (time.process_time() - begun_s)


def structure_round(make: Callable[[], TwoEnded], jobs: int, seed: int) -> list[float]:
    """Return pairs of push and pop, evictions after a push, and removals, per second."""
    chance = random.Random(seed)
    ranks = [rank_of(chance.randrange(300), chance.randint(2, 10), at) for at in range(3 * jobs)]
    held = filled(make, ranks[:jobs])
    gc.collect()

    def pairs() -> None:
        for rank in ranks[jobs : 2 * jobs]:
            held.push(rank, rank)
            held.pop_highest()

    def evictions() -> None:
        for rank in ranks[2 * jobs :]:
            held.push(rank, rank)
            held.pop_lowest()

    rates = [measured(pairs, jobs), measured(evictions, jobs)]
    fresh = filled(make, ranks[:jobs])
    shuffled = chance.sample(ranks[:jobs], jobs)

    def removals() -> None:
        for rank in shuffled:
            fresh.remove(rank)

    return [*rates, measured(removals, jobs)]


def filled(make: Callable[[], TwoEnded], ranks: Sequence[int]) -> TwoEnded:
    structure = make()
    for rank in ranks:
        structure.push(rank, rank)
    return structure


def made_jobs(jobs: int, seed: int, first: int = 0) -> list[Job]:
    chance = random.Random(seed)
    tables = [f"t{number:015d}" for number in range(TABLES)]
    return [
        Job(
            id=f"job-{number:016x}",
            tablet=TabletId(tables[number % TABLES], number.to_bytes(9, "big")),
            table_name="events",
            kind=Kind.SYSTEM,
            inputs=tuple(f"in/{number:08x}-{index:04x}.parquet" for index in range(files)),
            input_bytes=files * 1_000_000,
            group="default",
            priority=chance.randrange(300),
            reason=f"ratio 3: {files} files of 12.0 MiB, the largest 3.1 MiB",
        )
        for number in range(first, first + jobs)
        for files in [chance.randint(2, 10)]
    ]


def queue_round(shares: FairShare | None, jobs: Sequence[Job]) -> list[float]:
    """Return pairs of offer and take, refusals when full, and removals by id, per second.

    What is offered has just been made, a batch at a time, as planners make it; what is
    taken was made long ago.
    """
    queue = JobQueue(10**12, 10**6, shares=shares)
    for job in jobs:
        queue.offer(job, now_s=0)
    gc.collect()
    taken: list[Job | None] = []
    pairs = [_offer_and_take(queue, batch, taken) for batch in batches(len(jobs), BATCHES)]
    queue.count_max = len(queue)
    refusals = [_offer_late(queue, batch) for batch in batches(2 * len(jobs), BATCHES // 4)]
    ids = random.Random(1).sample([job.id for job in queue], len(queue))

    def removals() -> None:
        for own in ids:
            queue.remove(own)

    return [mean(pairs), mean(refusals), measured(removals, len(ids))]


def batches(first: int, count: int) -> Iterator[list[Job]]:
    for number in range(count):
        yield made_jobs(BATCH, seed=number, first=first + number * BATCH)


def _offer_and_take(queue: JobQueue, jobs: Sequence[Job], taken: list[Job | None]) -> float:
    def pairs() -> None:
        for job in jobs:
            queue.offer(job, now_s=0)
            taken.append(queue.take())

    return measured(pairs, len(jobs))


def _offer_late(queue: JobQueue, jobs: Sequence[Job]) -> float:
    def refusals() -> None:
        for job in jobs:
            queue.offer(job, now_s=10**7)

    return measured(refusals, len(jobs))


def mean(rates: Sequence[float]) -> float:
    """Return the harmonic mean: operations of all batches over the time of all."""
    return len(rates) / sum(1 / rate for rate in rates)


def best(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [max(column) for column in zip(*rounds, strict=True)]


def compare_structures(jobs: int, rounds: int) -> float:
    """Print the table; return ours against the best that is well kept, pairs of push and pop."""
    runs: dict[str, list[list[float]]] = {name: [] for name in STRUCTURES}
    for seed in range(rounds):
        for name, make in STRUCTURES.items():
            runs[name].append(structure_round(make, jobs, seed))
    rates = {name: best(each) for name, each in runs.items()}
    print(f"\nStructures alone, {jobs:,} entries; thousands per second (ours / it)\n")
    print(f"{'':28}{'push + pop highest':>22}{'push + pop lowest':>22}{'remove':>22}")
    for name, row in rates.items():
        cells = [
            f"{rate / 1000:,.0f} ({ours / rate:.2f})"
            for rate, ours in zip(row, rates["ours"], strict=True)
        ]
        print(f"{name:28}" + "".join(f"{cell:>22}" for cell in cells))
    return rates["ours"][0] / max(rates[name][0] for name in WELL_KEPT)


def measure_queue(jobs: int, rounds: int) -> dict[str, list[float]]:
    """Print the table of the whole queue and return its rates."""
    made = made_jobs(jobs, 1)
    ways: dict[str, Callable[[], FairShare | None]] = {
        "by rank alone": lambda: None,
        f"{TABLES} tables share": FairShare,
    }
    runs: dict[str, list[list[float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, share in ways.items():
            runs[name].append(queue_round(share(), made))
    rates = {name: best(each) for name, each in runs.items()}
    print(f"\nThe queue, {jobs:,} jobs; thousands per second\n")
    print(f"{'':28}{'offer + take':>22}{'refused when full':>22}{'remove by id':>22}")
    for name, row in rates.items():
        print(f"{name:28}" + "".join(f"{rate / 1000:>22,.0f}" for rate in row))
    return rates


def verdict(what: str, value: float, goal: float) -> None:
    print(f"{'reached' if value >= goal else 'MISSED ':8} {what}: {value:,.2f}, goal {goal:,.2f}")


def main() -> None:
    options = argparse.ArgumentParser(description="measure the job queue")
    options.add_argument("--jobs", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    ratio = compare_structures(given.jobs, given.rounds)
    pairs, _, removals = measure_queue(given.jobs, given.rounds)["by rank alone"]
    print()
    verdict("pairs of offer and take per second", pairs, PAIRS_MIN)
    verdict("removals by id per second", removals, REMOVALS_MIN)
    verdict("ours / best well-kept alternative, push + pop highest", ratio, RATIO_MIN)


if __name__ == "__main__":
    main()
