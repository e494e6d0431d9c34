"""The allowance of an attempt: many processes move together what the grant covers."""

from __future__ import annotations

import math
import multiprocessing
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from common import runtime
from common.errors import AttemptCancelledError
from common.primitives import BUDGET_BURST_S
from common.runtime import SystemClock
from compactor.rewrite.attempt_folder import (
    SYNC_BYTES_MIN,
    Allowance,
    allowance_of,
)
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.unit

MB = 1024**2


def moving(folder: str, steps: int, step_bytes: int) -> None:
    """Be a task: pay step by step, through a door of its own."""
    allowance = Allowance(folder)
    for _ in range(steps):
        allowance.pay(step_bytes)


def pay_until_stopped(allowance: Allowance) -> None:
    with suppress(AttemptCancelledError):
        allowance.pay(10 * MB)


def took_s(work: Callable[[], None]) -> float:
    clock = SystemClock()
    begun_s = clock.now_s()
    work()
    return clock.now_s() - begun_s


def test_without_a_grant_everything_passes_and_is_counted(tmp_path: Path) -> None:
    allowance = Allowance.create(str(tmp_path), None)
    for _ in range(1000):
        allowance.pay(10 * MB)
    usage = allowance.usage()
    assert (usage.moved_bytes, usage.waited_s) == (10_000 * MB, 0.0)


def test_a_step_of_the_wall_clock_pays_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Allowance.create(str(tmp_path), 1024)
    task = threading.Thread(target=pay_until_stopped, args=(before,))
    task.start()
    while not before.usage().waited_s:
        task.join(0.01)
    monkeypatch.setattr(runtime.time, "time", lambda: 2e10)
    later = Allowance(str(tmp_path))
    assert later.usage().moved_bytes < 10 * MB
    later.stop()
    task.join()


def test_where_there_is_no_attempt_nothing_is_counted(tmp_path: Path) -> None:
    for folder in ("", str(tmp_path)):
        allowance = allowance_of(folder)
        allowance.pay(10 * MB)
        allowance.synced(SYNC_BYTES_MIN, 1.0)
        allowance.settle()
        assert allowance.usage().moved_bytes == 0


def test_processes_with_unequal_work_share_one_grant(tmp_path: Path) -> None:
    """Never more than the grant covers, and none of it lost to the task that ends first."""
    folder = str(tmp_path)
    fork = multiprocessing.get_context("fork")
    tasks = [fork.Process(target=moving, args=(folder, steps, MB)) for steps in (2, 5, 13)]

    def all_of_them() -> None:
        Allowance.create(folder, 20 * MB)
        for task in tasks:
            task.start()
        for task in tasks:
            task.join()

    elapsed_s = took_s(all_of_them)

    usage = Allowance(folder).usage()
    assert [task.exitcode for task in tasks] == [0, 0, 0]
    assert usage.moved_bytes == 20 * MB
    # It began empty: a second's worth of steps takes a second at least.
    assert elapsed_s >= 1.0
    assert usage.waited_s > 0.0, "a slow machine waits less"


def test_a_debt_of_bytes_is_settled_by_waiting(tmp_path: Path) -> None:
    def write() -> None:
        allowance = Allowance.create(str(tmp_path), 10 * MB)
        allowance.pay(3 * MB)
        allowance.settle()

    assert took_s(write) >= 0.3


def test_no_more_is_saved_up_than_a_second_s_worth(tmp_path: Path) -> None:
    allowance = Allowance.create(str(tmp_path), 1000 * MB)
    threading.Event().wait(BUDGET_BURST_S * 1.5)
    allowance.grant(1 * MB)  # What was saved up shrinks with it.
    assert took_s(lambda: allowance.pay(int(1.5 * MB))) >= 0.45


def test_another_grant_ends_a_wait_that_would_be_long(tmp_path: Path) -> None:
    allowance = Allowance.create(str(tmp_path), 1.0)
    waiting = threading.Thread(target=allowance.pay, args=(100 * MB,), daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    Allowance(str(tmp_path)).grant(None)
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert allowance.usage().moved_bytes == 100 * MB


def test_a_cancelled_attempt_waits_no_longer(tmp_path: Path) -> None:
    allowance, ended = Allowance.create(str(tmp_path), 1.0), []

    def pay() -> None:
        try:
            allowance.pay(100 * MB)
        except AttemptCancelledError as error:
            ended.append(str(error))

    waiting = threading.Thread(target=pay, daemon=True)
    waiting.start()
    Allowance(str(tmp_path)).stop()
    waiting.join(PATIENCE_S)
    assert ended == ["cancelled while it moved bytes"]
    with pytest.raises(AttemptCancelledError):
        allowance.pay(1 * MB)


def test_payers_go_on_in_order_of_arrival(tmp_path: Path) -> None:
    # Half a second lies between two payments: a thread may wake up late.
    allowance, order = Allowance.create(str(tmp_path), MB), list[int]()

    def pay(number: int) -> None:
        Allowance(str(tmp_path)).pay(MB // 2)
        order.append(number)

    threads = [threading.Thread(target=pay, args=(number,)) for number in range(4)]
    for asked, thread in enumerate(threads, start=1):
        thread.start()
        while asked_bytes(allowance) < asked * MB // 2:
            threading.Event().wait(0.001)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]


def asked_bytes(allowance: Allowance) -> float:
    """Return what was asked for in all, covered or not."""
    with allowance._locked() as state:
        return state.asked


def test_a_task_that_is_killed_in_the_middle_leaves_the_door_open(tmp_path: Path) -> None:
    folder = str(tmp_path)
    allowance = Allowance.create(folder, 1.0)
    task = multiprocessing.get_context("fork").Process(target=moving, args=(folder, 1, MB))
    task.start()
    while asked_bytes(allowance) < MB:
        threading.Event().wait(0.001)
    task.kill()
    task.join()
    allowance.grant(math.inf)
    assert took_s(lambda: allowance.pay(MB)) < 10


def test_small_writes_say_nothing_of_the_storage(tmp_path: Path) -> None:
    allowance = Allowance.create(str(tmp_path), None)
    allowance.synced(SYNC_BYTES_MIN - 1, 1.0)
    allowance.synced(SYNC_BYTES_MIN, 0.5)
    usage = allowance.usage()
    assert (usage.synced_bytes, usage.sync_s) == (SYNC_BYTES_MIN, 0.5)
