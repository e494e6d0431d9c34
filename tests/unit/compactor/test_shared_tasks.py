"""Small jobs share tasks: one after the other in a task, as many tasks as cores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import AttemptCancelledError, EngineDiedError
from compactor.rewrite import spark_tasks
from compactor.rewrite.attempt_folder import Allowance
from compactor.rewrite.spark_tasks import SharedTasks, TaskCall
from tests.support.patience import PATIENCE_S

TASKS_MAX = 2


class Task:
    """A task whose jobs end when they are let go on."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        self.jobs: list[str] = []
        self.is_over = False

    def run(self, job: TaskCall) -> bytes:
        name = str(job[1]())
        self.jobs.append(name)
        self._spark.began.release()
        assert self._spark.go_on.acquire(timeout=PATIENCE_S)
        if self.jobs[-1] == "dies":
            raise EngineDiedError("the task has died")
        return name.encode()

    def kill(self) -> None:
        self.jobs[-1] = "dies"
        self._spark.go_on.release()

    def close(self) -> None:
        self._spark.closed.append(self)


class Spark:
    """Opens tasks when it is let do so."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.closed: list[Task] = []
        self.began, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.may_open = threading.Event()
        self.may_open.set()
        self.error: Exception | None = None

    def open(self, _context: Any) -> Task:
        assert self.may_open.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.tasks.append(Task(self))
        return self.tasks[-1]

    @property
    def jobs(self) -> list[list[str]]:
        return [task.jobs for task in self.tasks]


class Attempts:
    """Threads of attempts that want jobs done."""

    def __init__(self, folder: Path) -> None:
        self.spark = Spark()
        self.shared = SharedTasks(self.spark.open)
        self._folder = folder
        self._threads = ThreadPoolExecutor(16)

    def ask(self, name: str) -> Future[bytes]:
        (self._folder / name).mkdir()
        Allowance.create(str(self._folder / name), None)
        plan: Any = SimpleNamespace(folder=str(self._folder / name))
        job: TaskCall = plan, lambda: name
        return self._threads.submit(self.shared.run, None, job, lambda: TASKS_MAX, f"of {name}")

    def ask_running(self, name: str) -> Future[bytes]:
        """Ask for a job and wait until it has begun."""
        asked = self.ask(name)
        assert self.spark.began.acquire(timeout=PATIENCE_S)
        return asked

    def ask_waiting(self, name: str) -> Future[bytes]:
        """Ask for a job and wait until it waits."""
        waiting = len(self.shared._waiting) + 1
        asked = self.ask(name)
        wait_until(lambda: len(self.shared._waiting) == waiting)
        return asked

    def cancel(self, name: str) -> None:
        Allowance(str(self._folder / name)).stop()


def wait_until(is_true: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE_S * 1000)):
        if is_true():
            return
        threading.Event().wait(0.001)
    raise TimeoutError


@pytest.fixture
def attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempts]:
    monkeypatch.setattr(spark_tasks, "SHARED_TASK_S", PATIENCE_S)
    monkeypatch.setattr(spark_tasks, "CANCEL_CHECK_S", 0.01)
    made = Attempts(tmp_path)
    yield made
    made.shared.end_tasks()


def result(asked: Future[bytes]) -> str:
    return asked.result(PATIENCE_S).decode()


def test_each_core_gets_a_task_and_further_jobs_wait(attempts: Attempts) -> None:
    asked = [attempts.ask_running("a"), attempts.ask_running("b")]
    asked += [attempts.ask_waiting("c"), attempts.ask_waiting("d")]
    assert attempts.spark.jobs == [["a"], ["b"]]
    attempts.spark.go_on.release(4)
    assert [result(job) for job in asked] == ["a", "b", "c", "d"]
    assert sorted(name for jobs in attempts.spark.jobs for name in jobs) == ["a", "b", "c", "d"]
    assert len(attempts.spark.tasks) == TASKS_MAX


def test_a_job_goes_to_the_task_that_waits(attempts: Attempts) -> None:
    for name in ("a", "b", "c"):
        attempts.spark.go_on.release()
        assert result(attempts.ask(name)) == name
        wait_until(lambda: attempts.shared._idle == 1)
    assert attempts.spark.jobs == [["a", "b", "c"]]


def test_a_task_ends_if_no_job_comes(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_tasks, "SHARED_TASK_S", 0.1)
    attempts.spark.go_on.release(2)
    assert result(attempts.ask("a")) == "a"
    wait_until(lambda: attempts.shared._open == 0)
    assert result(attempts.ask("b")) == "b"
    assert attempts.spark.jobs == [["a"], ["b"]]


def test_a_task_that_has_ended_while_it_waited_fails_no_job(attempts: Attempts) -> None:
    attempts.spark.go_on.release(2)
    assert result(attempts.ask("a")) == "a"
    wait_until(lambda: attempts.shared._idle == 1)
    attempts.spark.tasks[0].is_over = True
    assert result(attempts.ask("b")) == "b"
    assert attempts.spark.jobs == [["a"], ["b"]]


def test_only_attempts_whose_jobs_run_count_as_running(attempts: Attempts) -> None:
    asked = [attempts.ask_running("a"), attempts.ask_running("dies"), attempts.ask_waiting("c")]
    assert attempts.shared.running == {"of a", "of dies"}
    attempts.spark.go_on.release(3)
    assert isinstance(asked[1].exception(PATIENCE_S), EngineDiedError)
    assert [result(asked[0]), result(asked[2])] == ["a", "c"]
    wait_until(lambda: not attempts.shared.running)


def test_a_task_that_waits_ends_if_other_tasks_need_its_core(attempts: Attempts) -> None:
    attempts.spark.go_on.release()
    assert result(attempts.ask("a")) == "a"
    wait_until(lambda: attempts.shared._idle == 1)
    attempts.shared.end_tasks()
    wait_until(lambda: attempts.shared._open == 0)
    assert attempts.spark.closed == attempts.spark.tasks


def test_no_task_waits_for_a_job_while_another_spark_job_runs(attempts: Attempts) -> None:
    with attempts.shared.giving_way():
        attempts.spark.go_on.release()
        assert result(attempts.ask("a")) == "a"
        wait_until(lambda: attempts.shared._open == 0)
    attempts.spark.go_on.release()
    assert result(attempts.ask("b")) == "b"
    wait_until(lambda: attempts.shared._idle == 1)


def test_a_task_ends_after_its_job_if_other_tasks_need_its_core(attempts: Attempts) -> None:
    """Jobs that wait get another one, after Spark could give the core to the other tasks."""
    first = attempts.ask_running("a"), attempts.ask_running("b")
    waiting = attempts.ask_waiting("c")
    attempts.shared.end_tasks()
    attempts.spark.go_on.release(3)
    assert [result(job) for job in (*first, waiting)] == ["a", "b", "c"]
    assert sorted(attempts.spark.jobs[:2]) == [["a"], ["b"]]
    assert ["c"] in attempts.spark.jobs


def test_a_task_that_dies_fails_its_job_only(attempts: Attempts) -> None:
    dying, waiting = attempts.ask_running("dies"), attempts.ask_running("b")
    later = attempts.ask_waiting("c")
    attempts.spark.go_on.release()
    with pytest.raises(EngineDiedError, match="the task has died"):
        dying.result(PATIENCE_S)
    attempts.spark.go_on.release(2)
    assert [result(waiting), result(later)] == ["b", "c"]
    assert sorted(job for jobs in attempts.spark.jobs for job in jobs) == ["b", "c", "dies"]


def test_a_task_that_does_not_start_fails_the_job_that_waits_longest(attempts: Attempts) -> None:
    attempts.spark.may_open.clear()
    attempts.spark.error = EngineDiedError("no executor")
    asked = attempts.ask_waiting("a"), attempts.ask_waiting("b")
    attempts.spark.may_open.set()
    for job in asked:
        with pytest.raises(EngineDiedError, match="no executor"):
            job.result(PATIENCE_S)
    wait_until(lambda: attempts.shared._open == 0)


def test_a_task_that_no_job_waits_for_may_fail_to_start(attempts: Attempts) -> None:
    running = attempts.ask_running("a")
    attempts.spark.may_open.clear()
    taken = attempts.ask_waiting("b")
    attempts.spark.go_on.release(2)
    assert [result(running), result(taken)] == ["a", "b"]
    attempts.spark.error = EngineDiedError("no executor")
    attempts.spark.may_open.set()
    wait_until(lambda: attempts.shared._open == 1)
    attempts.spark.error = None
    attempts.spark.go_on.release()
    assert result(attempts.ask("c")) == "c"


def test_a_cancelled_job_does_not_wait_for_a_task(attempts: Attempts) -> None:
    running = attempts.ask_running("a"), attempts.ask_running("b")
    cancelled, other = attempts.ask_waiting("c"), attempts.ask_waiting("d")
    attempts.cancel("c")
    with pytest.raises(AttemptCancelledError):
        cancelled.result(PATIENCE_S)
    attempts.cancel("a")
    attempts.spark.go_on.release(3)
    assert [result(job) for job in (*running, other)] == ["a", "b", "d"]


def test_a_cancelled_job_that_does_not_stop_is_killed(attempts: Attempts) -> None:
    hangs = attempts.ask_running("hangs")
    attempts.cancel("hangs")
    assert isinstance(hangs.exception(PATIENCE_S), EngineDiedError)
    attempts.spark.go_on.release()
    assert result(attempts.ask("next")) == "next"
    assert attempts.spark.jobs == [["dies"], ["next"]]


def test_a_job_that_cannot_be_counted_does_not_run_later(attempts: Attempts) -> None:
    running = attempts.ask_running("a")

    def no_answer() -> int:
        raise EngineDiedError("the JVM is gone")

    plan: Any = SimpleNamespace(folder="")
    with pytest.raises(EngineDiedError, match="the JVM is gone"):
        attempts.shared.run(None, (plan, lambda: "b"), no_answer)
    attempts.spark.go_on.release(2)
    assert [result(running), result(attempts.ask("c"))] == ["a", "c"]
    assert attempts.spark.jobs == [["a", "c"]]
