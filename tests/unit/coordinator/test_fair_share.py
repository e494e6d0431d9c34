"""Turns of tables at `take`."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from common.model.job import CLASS_WIDTH, FAIR_BAND, Job
from common.model.tablet import TabletId
from coordinator.core.queue import JobQueue
from coordinator.core.queue_index import FairShare
from tests.support.planning import job

GIB = 1024**3


def queue_of(weights: dict[str, float] | None = None, *, band: int | None = FAIR_BAND) -> JobQueue:
    return JobQueue(GIB, 10_000, shares=FairShare(weights, band=band))


def fill(queue: JobQueue, table: str, count: int, priority: int = 50, **facts: int) -> None:
    for number in range(count):
        tablet = TabletId(table, number.to_bytes(4, "big"))
        queue.offer(job(f"{table}-{priority}-{number}", priority, tablet=tablet, **facts), now_s=0)


def takes(queue: JobQueue, count: int) -> list[str]:
    return [taken.tablet.table for _ in range(count) if (taken := queue.take())]


@pytest.mark.parametrize("band", [0, FAIR_BAND, 19])
def test_rank_decides_first_whatever_the_table(band: int) -> None:
    queue = queue_of({"pb": 1000.0}, band=band)
    fill(queue, "pb", 3, priority=7)
    fill(queue, "pa", 3, priority=27)
    listed = [entry.job.tablet.table for entry in queue.in_order_of_start()]
    assert listed == takes(queue, 6) == ["pa"] * 3 + ["pb"] * 3


@pytest.mark.parametrize(
    ("band", "points", "order"),
    [(0, 27, "abab"), (0, 26, "aabb"), (1, 26, "abab"), (1, 25, "aabb"), (20, 7, "abab")],
)
def test_tables_take_turns_within_the_band(band: int, points: int, order: str) -> None:
    queue = queue_of(band=band)
    fill(queue, "a", 2, priority=27)
    fill(queue, "b", 2, priority=points)
    assert takes(queue, 4) == list(order)


def test_a_table_below_the_band_saves_up_no_turns() -> None:
    queue = queue_of()
    fill(queue, "a", 30, priority=50)
    fill(queue, "b", 50, priority=20)
    assert takes(queue, 30) == ["a"] * 30
    fill(queue, "a", 31, priority=20)
    assert Counter(takes(queue, 20))["a"] == pytest.approx(10, abs=1)


def test_a_job_of_low_rank_gains_points_until_it_is_in_the_band() -> None:
    queue = JobQueue(GIB, 1_000, ageing_s=10, shares=FairShare({"old": 0.001}))
    fill(queue, "old", 1, priority=5)
    order: list[str] = []
    for step in range(50):
        new = job(f"n{step}", 15, tablet=TabletId("new", b"%d" % step))
        queue.offer(new, now_s=10.0 * step)
        order += takes(queue, 1)
    assert order.index("old") == 9


def test_a_flood_of_one_table_does_not_keep_an_equal_job_of_another_waiting() -> None:
    queue = queue_of()
    fill(queue, "flood", 1_000, priority=90)
    fill(queue, "quiet", 3, priority=90)
    assert takes(queue, 6) == ["flood", "quiet"] * 3


def test_with_strict_shares_tables_take_turns_whatever_their_ranks() -> None:
    queue = queue_of(band=None)
    fill(queue, "flood", 1_000, priority=90)
    fill(queue, "quiet", 3, priority=10)
    assert takes(queue, 6) == ["flood", "quiet"] * 3


def test_without_fair_shares_the_higher_priority_always_goes_first() -> None:
    queue = JobQueue(GIB, 10_000)
    fill(queue, "flood", 5, priority=90)
    fill(queue, "quiet", 1, priority=10)
    assert takes(queue, 6) == ["flood"] * 5 + ["quiet"]


@pytest.mark.parametrize(("weight", "share"), [(1.0, 50), (3.0, 75), (0.25, 20)])
def test_turns_are_by_weight(weight: float, share: int) -> None:
    queue = queue_of({"a": weight})
    fill(queue, "a", 200)
    fill(queue, "b", 200)
    assert Counter(takes(queue, 100))["a"] == pytest.approx(share, abs=2)


def test_turns_are_by_bytes_not_by_jobs() -> None:
    queue = queue_of()
    fill(queue, "large", 100, input_bytes=GIB)
    fill(queue, "small", 2000, input_bytes=GIB // 10)
    taken = Counter(takes(queue, 550))
    assert taken["small"] == pytest.approx(10 * taken["large"], rel=0.1)


def test_a_higher_priority_class_always_goes_first() -> None:
    queue = queue_of()
    fill(queue, "a", 3, priority=2 * CLASS_WIDTH)
    fill(queue, "b", 3, priority=CLASS_WIDTH)
    fill(queue, "c", 3, priority=0)
    assert takes(queue, 9) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


def test_a_job_that_waited_long_enough_overtakes_a_higher_class() -> None:
    queue = JobQueue(GIB, 100, ageing_s=1, shares=FairShare())
    queue.offer(job("patient", 0, tablet=TabletId("a", b"x")), now_s=0)
    later_s = CLASS_WIDTH + 10.0
    queue.offer(job("asked for", CLASS_WIDTH, tablet=TabletId("b", b"x")), now_s=later_s)
    assert takes(queue, 2) == ["a", "b"]


def test_an_absent_table_saves_up_no_turns_and_loses_no_debt() -> None:
    queue = queue_of()
    fill(queue, "a", 50)
    assert takes(queue, 30) == ["a"] * 30
    fill(queue, "b", 50)
    # b starts level with a: it has not saved up thirty turns.
    assert Counter(takes(queue, 20)) == {"a": 10, "b": 10}

    queue = queue_of()
    fill(queue, "busy", 2, input_bytes=GIB)
    fill(queue, "other", 10)
    assert takes(queue, 3) == ["busy", "other", "other"]
    queue.remove("busy-50-1")
    fill(queue, "busy", 1, priority=51)
    # To leave and come back does not make the gigabyte undone.
    assert takes(queue, 3) == ["other"] * 3


def test_equal_turns_go_to_the_better_job() -> None:
    queue = queue_of(band=None)
    fill(queue, "a", 1, priority=10)
    fill(queue, "b", 1, priority=30)
    fill(queue, "c", 1, priority=20)
    assert takes(queue, 3) == ["b", "c", "a"]


def test_weights_change_and_are_forgotten() -> None:
    shares = FairShare({"a": 9.0})
    queue = JobQueue(GIB, 1_000, shares=shares)
    shares.forget("a")
    fill(queue, "a", 100)
    fill(queue, "b", 100)
    assert Counter(takes(queue, 20)) == {"a": 10, "b": 10}
    shares.set_weight("b", 4.0)
    assert Counter(takes(queue, 50))["b"] == pytest.approx(40, abs=2)


def test_many_tables_come_and_go_and_leave_nothing_behind() -> None:
    shares = FairShare()
    queue = JobQueue(GIB, 10_000, shares=shares)
    for number in range(2_000):
        fill(queue, f"t{number}", 1)
        if number % 2:
            queue.take()
            queue.take()
    queue.check()
    kept = [len(lanes.debts) + lanes.announced for lanes in shares._classes.values()]
    assert max(kept) < 300


def test_a_job_may_leave_from_the_middle_and_come_back_with_its_rank() -> None:
    queue = queue_of()
    fill(queue, "a", 4)
    fill(queue, "b", 1)
    for number in (1, 2, 3):
        queue.remove(f"a-50-{number}")
        queue.check()
    fill(queue, "a", 4)
    assert takes(queue, 9) == ["a", "b", "a", "a", "a"]


def test_only_so_many_debts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.core.queue_index.DEBTS_MAX", 10)
    shares = FairShare(band=None)
    queue = JobQueue(GIB, 10_000, shares=shares)
    fill(queue, "always there", 200, priority=1)
    for number in range(100):
        fill(queue, f"t{number}", 1, priority=99, input_bytes=GIB + number)
        while queue.jobs_of(TabletId(f"t{number}", bytes(4))):
            queue.take()
        queue.check()
    assert max(len(lanes.debts) for lanes in shares._classes.values()) <= 10


def test_ever_better_jobs_of_one_table_leave_no_heap_of_turns() -> None:
    shares = FairShare()
    queue = JobQueue(GIB, 10_000, shares=shares)
    for priority in range(500):
        fill(queue, "a", 1, priority=priority)
        queue.check()
    assert max(lanes.announced for lanes in shares._classes.values()) < 100


@pytest.mark.parametrize("seed", range(10))
def test_turns_are_those_of_all_while_somebody_without_jobs_is_shut(seed: int) -> None:
    chance = random.Random(seed)
    queues = [
        JobQueue(10**9, 10**6, ageing_s=10, shares=FairShare({"t1": 3.0, "t2": 0.5}))
        for _ in range(2)
    ]
    for number in range(600):
        if chance.random() < 0.6:
            table = TabletId(f"t{chance.randrange(5)}", b"%d" % number)
            rank_class = chance.choice([0, 0, 10_000, 20_000]) + chance.randrange(200)
            new = job(f"j{number}", rank_class, tablet=table, input_bytes=chance.randrange(10**8))
            for queue in queues:
                queue.offer(new, now_s=1000.0 * number)
        else:
            plain, other = queues
            assert other.take(saturated={"t9"}) == plain.take()


def test_a_table_that_is_shut_has_no_turn() -> None:
    for shares in (FairShare(), None):
        queue = JobQueue(10**9, 100, shares=shares)
        for number in range(3):
            queue.offer(job(f"a{number}", 9, tablet=TabletId("a", b"%d" % number)), now_s=0)
        for number in range(2):
            queue.offer(job(f"b{number}", 2 - number, tablet=TabletId("b", b"")), now_s=0)

        def names(*taken: Job | None) -> list[str]:
            return [each.id for each in taken if each is not None]

        assert names(queue.take(lambda each: each.id != "b0", saturated={"a"})) == ["b1"]
        assert names(queue.take(saturated={"a"}), queue.take(saturated={"a"})) == ["b0"]
        assert names(queue.take(saturated={"b"})) == ["a0"]
