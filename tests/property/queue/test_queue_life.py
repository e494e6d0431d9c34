"""Long random lives of the queue beside a model so simple that it cannot be wrong."""

from __future__ import annotations

import random
import time

import pytest

from common.model.job import Job
from common.model.tablet import TabletId
from coordinator.core.queue import (
    Accepted,
    JobQueue,
    Rejected,
    weight_bytes,
)
from coordinator.core.queue_index import BUCKET_MAX, FairShare, RankedMap
from tests.support.fast_and_slow import first_fast
from tests.support.planning import job

STEPS = 1_500
TABLETS = [TabletId(f"t{number % 5}", bytes([number])) for number in range(40)]
AGEING_S = 10


class Model:
    """A list that is sorted at every question."""

    def __init__(self, bytes_max: int, count_max: int) -> None:
        self.bytes_max, self.count_max = bytes_max, count_max
        self.held: dict[str, tuple[tuple[int, int, int], Job]] = {}
        self.since: dict[str, tuple[float, int]] = {}
        self.arrivals = 0

    def order(self) -> list[Job]:
        return [each for _, each in sorted(self.held.values(), key=lambda pair: pair[0])][::-1]

    def fits(self, jobs: list[Job]) -> bool:
        return len(jobs) <= self.count_max and sum(map(weight_bytes, jobs)) <= self.bytes_max

    def offer(self, new: Job, now_s: float) -> tuple[bool, list[str]]:
        """Return whether it is in, and who left for it, lowest first."""
        if new.id not in self.held:
            self.arrivals += 1
            self.since[new.id] = (now_s, self.arrivals)
        offered_s, arrival = self.since[new.id]
        key = (new.priority - int(offered_s // AGEING_S), len(new.inputs), -arrival)
        stays_put = new.id in self.held and self.held[new.id][0] == key
        self.held[new.id] = (key, new)
        left: list[str] = []
        while not self.fits(self.order()):
            lowest = self.order()[-1]
            if lowest.id == new.id and not stays_put:
                for name in left:
                    self.held[name] = self.gone[name]
                del self.held[new.id]
                return False, []
            self.gone = getattr(self, "gone", {}) | {lowest.id: self.held.pop(lowest.id)}
            left.append(lowest.id)
        return True, left


def draw_job(chance: random.Random) -> Job:
    number = chance.randrange(400)
    return job(
        f"j{number}",
        chance.randrange(12) * 1000 + chance.choice([0, 0, 5000]),
        files=chance.randint(1, 6),
        tablet=TABLETS[number % len(TABLETS)],
        reason="r" * chance.choice([5, 5, 5, 900]),
    )


@pytest.mark.parametrize("seed", first_fast(5, range(40), slow=10))
def test_a_long_life_beside_the_model(seed: int) -> None:
    chance = random.Random(seed)
    count_max = chance.choice([1, 3, 20, 150, 400])
    bytes_max = chance.choice([1_000, 20_000, 300_000, 10**9])
    queue = JobQueue(bytes_max, count_max, ageing_s=AGEING_S)
    model = Model(bytes_max, count_max)
    now_s = 0.0
    for _ in range(STEPS):
        now_s += chance.choice([0, 0, 1, 30])
        STEP[chance.choices(range(len(STEP)), WEIGHTS)[0]](queue, model, chance, now_s)
        queue.check()
        assert len(queue) == len(model.held)
        best = next(iter(queue), None)
        assert best == (model.order()[0] if model.held else None), best
    assert list(queue) == model.order()


def offer(queue: JobQueue, model: Model, chance: random.Random, now_s: float) -> None:
    new = draw_job(chance)
    known = new.id in model.held
    inside, left = model.offer(new, now_s)
    match queue.offer(new, now_s):
        case Accepted(evicted):
            assert inside
            assert [each.id for each in evicted] == left
        case Rejected():
            assert not inside
            assert known or new.id not in queue


def take(queue: JobQueue, model: Model, _: random.Random, __: float) -> None:
    expected = model.order()[0] if model.held else None
    assert queue.take() == expected
    if expected is not None:
        del model.held[expected.id]


def evict(queue: JobQueue, model: Model, _: random.Random, __: float) -> None:
    expected = model.order()[-1] if model.held else None
    assert queue.evict() == expected
    if expected is not None:
        del model.held[expected.id]


def remove(queue: JobQueue, model: Model, chance: random.Random, _: float) -> None:
    name = f"j{chance.randrange(400)}"
    expected = model.held.pop(name, (None, None))[1]
    assert queue.remove(name) == expected


def remove_tablet(queue: JobQueue, model: Model, chance: random.Random, _: float) -> None:
    tablet = chance.choice(TABLETS)
    expected = {name for name, (_, each) in model.held.items() if each.tablet == tablet}
    assert {each.id for each in queue.jobs_of(tablet)} == expected
    assert {each.id for each in queue.remove_tablet(tablet)} == expected
    for name in expected:
        del model.held[name]


STEP = [offer, take, evict, remove, remove_tablet]
WEIGHTS = [60, 12, 4, 15, 2]


@pytest.mark.parametrize("seed", first_fast(3, range(20), slow=6))
def test_sharing_changes_who_goes_next_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    queue = JobQueue(10**9, 300, shares=FairShare({"t1": 3.0, "t2": 0.5}))
    for step in range(STEPS):
        match chance.randrange(10):
            case 0 | 1 | 2:
                queue.take(chance.choice([None, lambda each: len(each.inputs) > 2]))
            case 3:
                queue.remove(f"j{chance.randrange(400)}")
            case 4:
                queue.evict()
            case _:
                queue.offer(draw_job(chance), now_s=float(step))
        queue.check()
    held = len(queue)
    assert sum(queue.take() is not None for _ in range(held + 1)) == held


@pytest.mark.parametrize("seed", first_fast(3, range(20), slow=6))
@pytest.mark.parametrize("bucket_max", [4, 30, BUCKET_MAX])
def test_ranks_beside_a_sorted_list(
    seed: int, bucket_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.core.queue_index.BUCKET_MAX", bucket_max)
    chance = random.Random(seed)
    ranked: RankedMap[int] = RankedMap()
    held: list[int] = []
    for _ in range(STEPS):
        match chance.randrange(7):
            case 0 if held:
                assert ranked.highest() == held[-1]
                ranked.remove(held.pop())
            case 1 if held:
                assert ranked.lowest() == held[0]
                ranked.remove(held.pop(0))
            case 2 if held:
                ranked.remove(held.pop(chance.randrange(len(held))))
            case _:
                rank = chance.randrange(-500, 500)
                if rank not in held:
                    ranked.push(rank, rank)
                    held = sorted([*held, rank])
        ranked.check()
        assert len(ranked) == len(held)
    assert list(ranked.highest_first()) == held[::-1]
    assert list(ranked.lowest_first()) == held
    for rank in held:
        ranked.remove(rank)
    assert ranked.highest() is ranked.lowest() is None


def test_removal_by_id_is_fast_in_a_queue_of_a_hundred_thousand() -> None:
    """Against a scan this is a factor of thousands; the bound here is for slow machines."""
    chance = random.Random(1)
    queue = JobQueue(10**12, 10**6)
    names = [f"j{number}" for number in range(100_000)]
    for name in names:
        queue.offer(job(name, chance.randrange(1000), inputs=("a",)), now_s=0)
    chance.shuffle(names)
    begun_s = time.perf_counter()
    for name in names[:50_000]:
        assert queue.remove(name) is not None
    assert time.perf_counter() - begun_s < 5
    queue.check()
