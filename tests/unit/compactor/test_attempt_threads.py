"""Attempts of a driver process run in threads that stay, with their own job group each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from compactor.spark.child import AttemptThreads
from compactor.spark.driver_protocol import Done, Failed, Notice
from tests.support.patience import PATIENCE_S


class Context:
    """A Spark context that records the pool and the job groups that each thread sets."""

    def __init__(self) -> None:
        self.pools: dict[int, str] = {}
        self.groups: list[tuple[str, int]] = []
        self.cancelled = threading.Event()
        # A failed attempt of a stopped application would end this process.
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))

    def setLocalProperty(self, _name: str, value: str) -> None:  # noqa: N802 - Spark's name
        assert threading.get_ident() not in self.pools, "set once per thread"
        self.pools[threading.get_ident()] = value

    def setJobGroup(self, group: str, *_: str, **__: bool) -> None:  # noqa: N802 - Spark's name
        self.groups.append((group, threading.get_ident()))

    def cancelJobGroup(self, _group: str) -> None:  # noqa: N802 - Spark's name
        self.cancelled.set()


class Driver:
    """Attempts whose work is the payload, a function of `is_cancelled`."""

    def __init__(self) -> None:
        self.context = Context()
        self.notices: SimpleQueue[Notice] = SimpleQueue()
        spark = SimpleNamespace(sparkContext=self.context)
        self.attempts = AttemptThreads(spark, self._work, self.notices.put)

    def _work(
        self, _spark: Any, payload: Any, _report: Any, is_cancelled: Callable[[], bool], _: Any
    ) -> Any:
        return payload(is_cancelled)

    def ended(self) -> Notice:
        return self.notices.get(timeout=PATIENCE_S)


def test_attempts_one_after_the_other_use_one_thread() -> None:
    driver = Driver()
    for name in ("a", "b", "c"):
        driver.attempts.run(name, lambda _, name=name: name)
        assert driver.ended() == Done(name, name)
    assert list(driver.context.pools.values()) == ["slot-0"]
    assert [group for group, _ in driver.context.groups] == ["a", "b", "c"]
    assert {thread for _, thread in driver.context.groups} == driver.context.pools.keys()


def test_concurrent_attempts_have_threads_and_pools_of_their_own() -> None:
    driver, go_on = Driver(), threading.Event()

    def wait(_: object) -> bool:
        return go_on.wait(PATIENCE_S)

    for name in ("a", "b"):
        driver.attempts.run(name, wait)
    go_on.set()
    assert {driver.ended(), driver.ended()} == {Done("a", result=True), Done("b", result=True)}
    driver.attempts.run("c", wait)
    assert driver.ended() == Done("c", result=True)
    assert sorted(driver.context.pools.values()) == ["slot-0", "slot-1"]


def test_a_failed_and_a_cancelled_attempt_leave_their_thread_to_the_next_one() -> None:
    driver, begun = Driver(), threading.Event()

    def fail(_: object) -> None:
        raise TypeError("broken")

    def wait_for_the_cancellation(is_cancelled: Callable[[], bool]) -> None:
        begun.set()
        assert driver.context.cancelled.wait(PATIENCE_S)
        assert is_cancelled()

    driver.attempts.run("a", fail)
    assert isinstance(failed := driver.ended(), Failed)
    assert "TypeError: broken" in failed.cause
    driver.attempts.run("b", wait_for_the_cancellation)
    assert begun.wait(PATIENCE_S)
    driver.attempts.cancel("b")
    assert isinstance(cancelled := driver.ended(), Failed)
    assert cancelled.error_class == "AttemptCancelledError"
    driver.attempts.run("c", lambda _: 3)
    assert driver.ended() == Done("c", 3)
    assert list(driver.context.pools.values()) == ["slot-0"]
