"""The queue's rules, one at a time."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace

import pytest

from common.errors import ConfigError
from common.model.job import Job
from common.model.tablet import TabletId
from coordinator.core.queue import (
    Accepted,
    JobQueue,
    JobQueues,
    Rejected,
    weight_bytes,
)
from tests.support.planning import TABLET, job

ROOM = 1024**3


def names(jobs: object) -> list[str]:
    return [each.id for each in jobs]  # type: ignore[attr-defined]  # an iterable of jobs


@pytest.mark.parametrize(
    ("queued", "offered", "kept", "evicted"),
    [
        pytest.param([5, 3], 4, [5, 4, 3], [], id="below N: add"),
        pytest.param([5, 3, 1], 0, [5, 3, 1], None, id="full, lower than the lowest: ignore"),
        pytest.param([5, 3, 1], 1, [5, 3, 1], None, id="full, as low as the lowest: ignore"),
        pytest.param([5, 3, 1], 2, [5, 3, 2], [1], id="full, higher: the lowest leaves"),
        pytest.param([5, 3, 1], 9, [9, 5, 3], [1], id="full, highest: the lowest leaves"),
    ],
)
def test_only_the_best_are_kept(
    queued: list[int], offered: int, kept: list[int], evicted: list[int] | None
) -> None:
    queue = JobQueue(ROOM, 3)
    for priority in queued:
        queue.offer(job(f"old{priority}", priority), now_s=0)

    admission = queue.offer(job("new", offered), now_s=0)

    assert [each.priority for each in queue] == kept
    if evicted is None:
        assert isinstance(admission, Rejected)
        assert admission.code == "full"
    else:
        assert isinstance(admission, Accepted)
        assert [each.priority for each in admission.evicted] == evicted


def test_ties_leave_by_number_of_files_then_by_age() -> None:
    queue = JobQueue(ROOM, 10)
    for name, files in (("few", 2), ("older", 3), ("younger", 3)):
        queue.offer(job(name, 7, files=files), now_s=0)
    assert [taken.id for _ in range(3) if (taken := queue.take())] == ["older", "younger", "few"]
    assert queue.take() is None
    assert queue.evict() is None


def test_jobs_are_listed_in_the_order_in_which_they_start() -> None:
    queue = JobQueue(ROOM, 10)
    for name, priority, files in (("low", 1, 9), ("few", 7, 2), ("many", 7, 3), ("high", 8, 1)):
        queue.offer(job(name, priority, files=files), now_s=0)
    listed = [entry.job.id for entry in queue.in_order_of_start()]
    assert listed == ["high", "many", "few", "low"]
    assert [taken.id for _ in range(4) if (taken := queue.take())] == listed


def test_older_jobs_rise_one_point_per_step() -> None:
    queue = JobQueue(ROOM, 10, ageing_s=10)
    queue.offer(job("first", 5), now_s=0)
    queue.offer(job("same step", 6), now_s=9)
    queue.offer(job("next step", 6, files=3), now_s=19)
    queue.offer(job("third step", 6), now_s=20)
    assert names(queue) == ["same step", "next step", "first", "third step"]


def test_the_bound_in_bytes_is_strict_and_evicts_as_many_as_it_takes() -> None:
    small = [job(f"small{number}", number) for number in range(4)]
    large = job("large", 2, inputs=("x" * 1500,))
    queue = JobQueue(sum(map(weight_bytes, small)), 100)
    for each in small:
        assert queue.offer(each, now_s=0) == Accepted()

    # Three small ones make room enough, but only two rank below it.
    refused = queue.offer(large, now_s=0)
    assert isinstance(refused, Rejected)
    assert len(queue) == 4

    admission = queue.offer(replace(large, priority=9), now_s=0)
    assert isinstance(admission, Accepted)
    assert names(admission.evicted) == ["small0", "small1", "small2"]
    assert queue.size_bytes <= queue.bytes_max


def test_a_job_larger_than_the_bound_is_refused_even_by_an_empty_queue() -> None:
    queue = JobQueue(2000, 100)
    refused = queue.offer(job("huge", 99, inputs=("x" * 2000,)), now_s=0)
    assert isinstance(refused, Rejected)
    assert refused.code == "too_large"
    assert refused.reason == (
        "queue default: the job needs 2.7 KiB of memory, the limit is 2.0 KiB"
    )


def test_a_job_offered_again_keeps_its_age_and_takes_its_new_form() -> None:
    queue = JobQueue(ROOM, 10)
    queue.offer(job("a", 5), now_s=0)
    queue.offer(job("b", 5), now_s=0)
    queue.offer(job("a", 5, reason="for another reason"), now_s=500)
    assert names(queue) == ["a", "b"]
    assert queue.oldest_age_s(now_s=500) == 500
    assert (held := queue.get("a")) is not None
    assert held.reason == "for another reason"

    queue.offer(job("b", 6), now_s=500)
    assert names(queue) == ["b", "a"]
    queue.check()


def test_replacing_keeps_what_is_unchanged() -> None:
    queue = JobQueue(ROOM, 10)
    for name in ("stays", "goes"):
        queue.offer(job(name, 5), now_s=0)
    done = queue.replace(TABLET, [job("new", 5), job("stays", 5)], now_s=100)
    assert (names(done.kept), names(done.removed), names(done.accepted)) == (
        ["stays"],
        ["goes"],
        ["new"],
    )
    assert names(queue) == ["stays", "new"]
    assert queue.oldest_age_s(now_s=100) == 100


def test_replacing_tells_what_was_shed() -> None:
    other = TabletId("t2", b"a")
    queue = JobQueue(ROOM, 2)
    queue.offer(job("low", 1, tablet=other), now_s=0)
    queue.offer(job("high", 9, tablet=other), now_s=0)
    done = queue.replace(TABLET, [job("mid", 5), job("lowest", 0)], now_s=0)
    assert names(done.accepted) == ["mid"]
    assert names(done.evicted) == ["low"]
    assert [(each.id, why.code) for each, why in done.rejected] == [("lowest", "full")]


def test_the_best_that_suits_is_taken() -> None:
    queue = JobQueue(ROOM, 10)
    for priority in range(5):
        queue.offer(job(f"p{priority}", priority), now_s=0)
    assert "p2" in queue
    taken = queue.take(lambda each: each.priority < 3)
    assert taken is not None
    assert taken.id == "p2"
    assert queue.take(lambda _: False) is None
    assert len(queue) == 4


@pytest.mark.parametrize(("bytes_max", "count_max"), [(0, 1), (1, 0), (-5, 5)])
def test_bounds_must_let_something_in(bytes_max: int, count_max: int) -> None:
    with pytest.raises(ConfigError, match="expected at least 1"):
        JobQueue(bytes_max, count_max)


def test_a_job_that_is_not_queued_is_not_removed() -> None:
    queue = JobQueue(bytes_max=10_000, count_max=3)
    assert queue.remove("j1") is None
    assert queue.counts.removed == 0


def test_a_job_weighs_about_what_it_takes() -> None:
    """The estimate is what bounds the coordinator's memory: within a third of the truth."""

    def made(number: int) -> Job:
        inputs = tuple(f"data/day=2026-01-01/part-{number}-{index}.parquet" for index in range(8))
        tablet = TabletId("t1", number.to_bytes(8, "big"))
        reason = f"ratio 3: 8 files of {number} MiB, the largest 1.5 MiB"
        return job(f"job-{number:016d}", number, inputs=inputs, tablet=tablet, reason=reason)

    queue = JobQueue(ROOM, 100_000)
    gc.collect()
    tracemalloc.start()
    for number in range(5_000):
        queue.offer(made(number), now_s=0)
    gc.collect()
    truth_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.75 < queue.size_bytes / truth_bytes < 1.33


def queues(count_max: int = 100) -> JobQueues:
    return JobQueues(lambda _: JobQueue(ROOM, count_max))


def test_a_plan_replaces_a_tablets_jobs_in_all_groups() -> None:
    groups = queues()
    groups.replace(TABLET, [job("a", group="small"), job("b", group="large")], now_s=0)
    other = TabletId("t2", b"x")
    groups.replace(other, [job("other", tablet=other, group="small")], now_s=0)

    done = groups.replace(TABLET, [job("c", group="huge")], now_s=1)

    assert names(done.removed) == ["b", "a"]
    assert names(groups.jobs_of(TABLET)) == ["c"]
    assert names(groups.replace(TABLET, [], now_s=2).removed) == ["c"]
    assert len(groups) == 1
    assert [group for group, _ in groups] == ["huge", "large", "small"]


def test_a_job_is_in_one_group_only_and_found_in_any() -> None:
    groups = queues()
    groups.replace(TABLET, [job("a", group="small")], now_s=0)
    groups.replace(TABLET, [job("a", group="large")], now_s=1)
    groups.check()
    assert len(groups) == 1
    assert groups.take("small") is None
    assert groups.take("nobody asked for this") is None
    assert (found := groups.get("a")) is not None
    assert found.group == "large"
    assert groups.remove_tablet(TABLET) == (found,)
    assert groups.remove_tablet(TABLET) == ()


def test_jobs_of_a_tablet_leave_as_they_came() -> None:
    queue = JobQueue(ROOM, 10)
    queue.replace(TABLET, [job("plain", 5), job("urgent", 100)], now_s=0)
    assert names(queue) == ["urgent", "plain"]
    assert names(queue.remove_tablet(TABLET)) == ["plain", "urgent"]
    assert len(queue) == 0


def test_everything_that_a_job_carries_weighs() -> None:
    plain = job("a")
    heavy = replace(plain, depends_on=("b" * 20,), cuts=(b"c" * 30,), output_tags=(("d", "e"),))
    assert weight_bytes(heavy) - weight_bytes(plain) == 20 + 30 + 2 + 64 + 3 * 64
    assert weight_bytes(replace(plain, cuts_at_s=(1.0, 2.0))) - weight_bytes(plain) == 2 * 32


def test_ageing_must_be_positive_and_may_be_off() -> None:
    with pytest.raises(ConfigError, match="ageing_s is 0, expected more than 0"):
        JobQueue(ROOM, 10, ageing_s=0)
    queue = JobQueue(ROOM, 10, ageing_s=float("inf"))
    queue.offer(job("old", 5), now_s=0)
    queue.offer(job("new", 6), now_s=10**9)
    assert names(queue) == ["new", "old"]
    assert names(queues().remove_tablet(TABLET)) == []


def test_all_jobs_of_a_tablet_go_from_all_groups() -> None:
    groups = queues()
    groups.replace(TABLET, [job("a", group="small"), job("b", group="large")], now_s=0)
    assert names(groups.remove_tablet(TABLET)) == ["b", "a"]
    assert len(groups) == 0
