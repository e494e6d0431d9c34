"""The order of starts compared with a model that sorts all jobs before each start."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from common.model.job import CLASS_WIDTH, Job
from common.model.tablet import TabletId
from common.spi.controller import DEFAULT_SHARES
from coordinator.core.queue import JobQueue
from coordinator.core.queue_index import JOB_COST_BYTES, FairShare
from tests.support.fast_and_slow import first_fast
from tests.support.planning import job

pytestmark = pytest.mark.unit

AGEING_S = 10
WEIGHTS = {"t0": 3.0, "t1": 0.25}
BANDS = (0, 1, 7, None)


class Model:
    """A list of jobs of one class. Each start looks at all of them."""

    def __init__(self, band: int | None) -> None:
        self.band = band
        self.held: dict[str, tuple[tuple[int, int, int], Job]] = {}
        self.clocks: dict[str, float] = {}
        self.clock = 0.0
        self.arrivals = 0

    def offer(self, new: Job, now_s: float) -> None:
        self.arrivals += 1
        table = new.tablet.table
        if table not in self.tables():
            self.clocks[table] = max(self.clock, self.clocks.get(table, 0.0))
        points = new.priority - int(now_s // AGEING_S)
        self.held[new.id] = ((points, len(new.inputs), -self.arrivals), new)

    def tables(self) -> set[str]:
        return {each.tablet.table for _, each in self.held.values()}

    def remove(self, name: str) -> None:
        self.held.pop(name, None)
        if not self.held:
            self.clocks.clear()

    def take(self) -> str | None:
        if not self.held:
            return None
        best = max(self.held.values(), key=lambda pair: pair[0])[0][0]
        near = [
            (key, each)
            for key, each in self.held.values()
            if self.band is None or key[0] >= best - self.band
        ]
        heads: dict[str, tuple[tuple[int, int, int], Job]] = {}
        for key, each in sorted(near, key=lambda pair: pair[0]):
            heads[each.tablet.table] = (key, each)
        key, chosen = min(
            heads.values(),
            key=lambda pair: (self.clocks[pair[1].tablet.table], tuple(-part for part in pair[0])),
        )
        table = chosen.tablet.table
        start = self.clocks[table] if self.band is None else max(self.clocks[table], self.clock)
        self.clock = max(self.clock, start)
        cost = chosen.cost_bytes + JOB_COST_BYTES
        self.clocks[table] = start + cost / WEIGHTS.get(table, 1.0)
        self.remove(chosen.id)
        return chosen.id


def draw(chance: random.Random, number: int, spread: int) -> Job:
    return job(
        f"j{number}",
        chance.randrange(spread),
        files=chance.randint(1, 3),
        tablet=TabletId(f"t{chance.randrange(6)}", b"%d" % number),
        input_bytes=chance.choice([0, 1, 10**6, 10**8]),
    )


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("seed", first_fast(4, range(40), slow=8))
def test_jobs_start_in_the_order_of_the_model(seed: int, band: int | None) -> None:
    chance = random.Random(seed)
    queue = JobQueue(10**12, 10**6, ageing_s=AGEING_S, shares=FairShare(WEIGHTS, band=band))
    model = Model(band)
    spread, now_s = chance.choice([1, 3, 12, 200]), 0.0
    for number in range(400):
        now_s += chance.choice([0, 0, 1, 30])
        match chance.randrange(10):
            case 0 | 1 | 2 | 3:
                taken = queue.take()
                assert (None if taken is None else taken.id) == model.take()
            case 4:
                name = f"j{chance.randrange(number + 1)}"
                queue.remove(name)
                model.remove(name)
            case _:
                new = draw(chance, number, spread)
                queue.offer(new, now_s)
                model.offer(new, now_s)
        queue.check()
    while queue:
        taken = queue.take()
        assert taken is not None
        assert taken.id == model.take()
    assert model.take() is None


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("seed", first_fast(2, range(20), slow=5))
def test_the_listing_is_the_order_of_starts(seed: int, band: int | None, shares: bool) -> None:
    chance = random.Random(seed)
    fair = FairShare(WEIGHTS, DEFAULT_SHARES if shares else None, band=band)
    queue = JobQueue(10**12, 10**6, ageing_s=1, shares=fair)
    for number in range(200):
        new = draw(chance, number, 12)
        lifted = chance.choice([0, 0, CLASS_WIDTH, 2 * CLASS_WIDTH, 3 * CLASS_WIDTH])
        queue.offer(replace(new, priority=new.priority + lifted), chance.choice([0, 50, 20_000]))
        if number % 7 == 6:
            queue.take()
    listed = [entry.job.id for entry in queue.in_order_of_start()]
    assert len(listed) == len(queue)
    queue.check()
    assert [taken.id for _ in listed if (taken := queue.take())] == listed


def steps_of(act: Any) -> int:
    """Return how many lines of Python run in the modules of the queue."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if "coordinator/core/queue" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return lines


def filled(jobs: int, tables: int) -> JobQueue:
    queue = JobQueue(10**12, 10**6, shares=FairShare())
    for number in range(jobs):
        tablet = TabletId(f"t{number % tables}", b"%d" % number)
        queue.offer(job(f"j{number}", number * 7919 % 97, tablet=tablet), now_s=0)
    return queue


@pytest.mark.parametrize("tables", [1, 10, 5_000])
def test_a_start_takes_as_many_steps_in_a_long_queue_as_in_a_short_one(tables: int) -> None:
    def cost(jobs: int) -> float:
        queue = filled(jobs, tables)

        def work() -> None:
            for number in range(300):
                taken = queue.take()
                assert taken is not None
                tablet = TabletId(f"t{number % tables}", b"n%d" % number)
                queue.offer(job(f"n{number}", number % 97, tablet=tablet), now_s=0)

        return steps_of(work) / 300

    short, long = cost(1_000), cost(30_000)
    assert long < 1.5 * short
