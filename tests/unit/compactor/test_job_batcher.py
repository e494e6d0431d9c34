"""Small jobs go alone while there are free cores, together when they had to wait."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from compactor.rewrite.spark_tasks import BATCH_JOBS_MAX, JobBatcher
from tests.support.patience import PATIENCE_S

MOST = 2


class Engine:
    """Does what it is given when it is let go on; doubles numbers."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []
        self.began = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)

    def together(self, items: Sequence[int]) -> list[int]:
        self.given.append(list(items))
        self.began.release()
        assert self.go_on.acquire(timeout=PATIENCE_S)
        if -1 in items:
            raise ValueError("the engine has failed")
        return [2 * item for item in items]


class Place:
    """Threads that want something done."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.engine = Engine()
        self.sharing: JobBatcher[int, int] = JobBatcher()
        self._threads = threads

    def ask(self, item: int) -> Future[int]:
        return self._threads.submit(self.sharing.run, item, self.engine.together, MOST)

    def ask_busy(self) -> list[Future[int]]:
        """Ask for as much as can be done at a time; wait until all of it has begun."""
        asked = [self.ask(item) for item in range(MOST)]
        for _ in asked:
            assert self.engine.began.acquire(timeout=PATIENCE_S)
        return asked

    def ask_waiting(self, items: Sequence[int]) -> list[Future[int]]:
        """Ask for more, each after the one before waits."""
        asked = []
        for count, item in enumerate(items, 1):
            asked.append(self.ask(item))
            while len(self.sharing._waiting) < count:
                threading.Event().wait(0.001)
        return asked


@pytest.fixture
def place() -> Place:
    return Place(ThreadPoolExecutor(64))


def results(asked: Sequence[Future[int]]) -> list[int]:
    return [each.result(PATIENCE_S) for each in asked]


def test_a_task_that_finds_a_free_core_starts_at_once_and_alone(place: Place) -> None:
    asked = place.ask_busy()
    assert sorted(place.engine.given) == [[0], [1]]
    place.engine.go_on.release(MOST)
    assert results(asked) == [0, 2]


def test_tasks_that_had_to_wait_run_as_one_job(place: Place) -> None:
    asked = place.ask_busy() + place.ask_waiting([5, 6, 7])
    assert len(place.engine.given) == MOST
    place.engine.go_on.release(MOST + 1)
    assert results(asked) == [0, 2, 10, 12, 14]
    assert place.engine.given[MOST:] == [[5, 6, 7]]


def test_no_more_than_so_many_go_together(place: Place) -> None:
    asked = place.ask_busy() + place.ask_waiting(range(10, 10 + BATCH_JOBS_MAX + 3))
    place.engine.go_on.release(MOST + 2)
    assert len(results(asked)) == MOST + BATCH_JOBS_MAX + 3
    assert sorted(map(len, place.engine.given)) == [1, 1, 3, BATCH_JOBS_MAX]


def test_a_failure_of_the_engine_is_everybodys_who_was_in_it(place: Place) -> None:
    asked = place.ask_busy() + place.ask_waiting([-1, 8])
    place.engine.go_on.release(MOST + 1)
    assert results(asked[:MOST]) == [0, 2]
    for each in asked[MOST:]:
        with pytest.raises(ValueError, match="the engine has failed"):
            each.result(PATIENCE_S)
    again = place.ask(9)
    place.engine.go_on.release()
    assert again.result(PATIENCE_S) == 18
