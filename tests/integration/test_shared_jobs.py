"""Small rewrites of several attempts share tasks of real Spark, and nothing else."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from common.errors import InputError, MemoryShortError
from common.wire import Assignment
from compactor.core import RewriteResult
from compactor.rewrite import spark_tasks
from compactor.rewrite.attempt import rewrite
from compactor.rewrite.attempt_folder import Allowance
from compactor.rewrite.plan.rewrite_plan import make_plan
from tests.support.patience import PATIENCE_S
from tests.support.spark_session import local_session
from tests.support.tables_on_disk import KEYED, assignment_over, keyed_table, write_file

pytestmark = pytest.mark.integration

CORES, COUNT, ROWS, FILES = 2, 8, 1000, 3


def an_assignment_of(folder: Path, rows: int = ROWS) -> Assignment:
    """Return a job over a table of its own, all rows of which stay."""
    paths = [f"{number}.parquet" for number in range(FILES)]
    for number, path in enumerate(paths):
        keys = np.arange(number, rows * FILES, FILES)
        values = {"k": keys, "name": [""] * rows, "v": keys, "x": keys * 0.5}
        nulls = {name: pa.nulls(rows, KEYED.field(name).type) for name in ("dead", "at")}
        write_file(folder, path, pa.table(values | nulls, schema=KEYED))
    return assignment_over(keyed_table(folder), paths)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tasks that wait long enough on a busy machine, and end with the test."""
    monkeypatch.setattr(spark_tasks, "SHARED_TASK_S", 600.0)
    yield
    spark_tasks.SHARED_TASKS.end_tasks()


def spark_jobs() -> int:
    """Return how many Spark jobs there were for shared tasks."""
    tracker = local_session().sparkContext.statusTracker()
    return len(tracker.getJobIdsForGroup(spark_tasks.SHARED_JOB_GROUP))


def run_all(assignments: Sequence[Assignment]) -> list[RewriteResult | BaseException]:
    """Run rewrites at the same time, each as an attempt does: under a job group of its own."""
    spark = local_session()

    def run(number: int) -> RewriteResult | BaseException:
        spark.sparkContext.setJobGroup(f"own-{number}", "", interruptOnCancel=True)
        try:
            return rewrite(spark, assignments[number], lambda _: None, lambda: False)
        except Exception as error:  # told to the test
            return error

    with ThreadPoolExecutor(len(assignments)) as threads:
        return list(threads.map(run, range(len(assignments))))


def test_attempts_share_a_task_for_each_core_and_fail_alone(tmp_path: Path) -> None:
    assignments = [an_assignment_of(tmp_path / f"t{number}") for number in range(COUNT)]
    damaged = tmp_path / "t4" / "1.parquet"
    content = bytearray(damaged.read_bytes())
    content[4:40] = bytes(36)  # the first page's header
    damaged.write_bytes(content)
    before = spark_jobs()

    results = run_all(assignments)

    assert spark_jobs() - before <= CORES
    failed = [number for number, one in enumerate(results) if isinstance(one, BaseException)]
    assert failed == [4]
    assert isinstance(results[4], InputError)
    for result in results:
        if isinstance(result, RewriteResult):
            assert (result.counts.rows_in, result.counts.rows_out) == (ROWS * FILES, ROWS * FILES)


def test_a_long_path_of_the_temporary_folder_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    while spark_tasks.SHARED_TASKS._open:  # The test before may have left a task.
        spark_tasks.SHARED_TASKS.end_tasks()
        threading.Event().wait(0.01)
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    assignment, spark = an_assignment_of(tmp_path / "a"), local_session()
    plan = make_plan(assignment, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert spark_tasks.run_tasks(spark, plan, [partial(int, "7")]) == [7]


def test_a_killed_process_fails_its_job_only(tmp_path: Path) -> None:
    assignment = an_assignment_of(tmp_path / "a")
    plan, spark = make_plan(assignment, str(tmp_path)), local_session()
    with pytest.raises(MemoryShortError, match="the process of a task was killed"):
        spark_tasks.run_tasks(spark, plan, [partial(signal.raise_signal, signal.SIGKILL)])
    assert spark_tasks.run_tasks(spark, plan, [partial(int, "7")]) == [7]


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_process_that_holds_much_memory_ends_with_its_task(tmp_path: Path, tasks: int) -> None:
    plan, spark = make_plan(an_assignment_of(tmp_path / "a"), str(tmp_path)), local_session()

    def processes_after(held_bytes: int) -> list[int]:
        """Return the processes of tasks that hold some memory, after the tasks have ended."""
        hold = f"vars(__import__('builtins')).update(held=bytearray(b'x') * {held_bytes})"
        call = partial(eval, f"({hold}, __import__('os').getpid())[1]")
        made = spark_tasks.run_tasks(spark, plan, [call] * tasks)
        spark_tasks.SHARED_TASKS.end_tasks()
        while spark_tasks.SHARED_TASKS._open:
            threading.Event().wait(0.01)
        return made

    large, until_s = processes_after(spark_tasks.TASK_BYTES), time.monotonic() + PATIENCE_S
    while any(map(psutil.pid_exists, large)):
        assert time.monotonic() < until_s
        threading.Event().wait(0.01)
    assert all(map(psutil.pid_exists, processes_after(1)))


def test_a_large_job_goes_to_the_task_of_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[spark_tasks.SparkTask] = []
    run = spark_tasks.SparkTask.run
    monkeypatch.setattr(
        spark_tasks.SparkTask, "run", lambda task, job: (tasks.append(task), run(task, job))[1]
    )
    rows = 400_000
    small, large = an_assignment_of(tmp_path / "s"), an_assignment_of(tmp_path / "l", rows)
    for assignment, wanted in ((small, ROWS), (large, rows)):
        (result,) = run_all([assignment])
        assert isinstance(result, RewriteResult)
        assert (result.counts.rows_out, result.kernel) == (wanted * FILES, "merge")
    assert len(tasks) == 2
    assert len(set(map(id, tasks))) == 1


def test_a_cancelled_job_that_does_not_stop_loses_its_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_tasks, "CANCEL_CHECKS_MAX", 2)
    plan, spark = make_plan(an_assignment_of(tmp_path / "a"), str(tmp_path)), local_session()
    Allowance.create(str(tmp_path), None).stop()
    with pytest.raises(MemoryShortError, match="the process of a task was killed"):
        spark_tasks.run_tasks(spark, plan, [partial(time.sleep, PATIENCE_S)])
    assert spark_tasks.run_tasks(spark, plan, [partial(int, "7")]) == [7]


@pytest.mark.parametrize("changes", [{"halvings": 1}, {"grant_bytes_s": 1e9}])
def test_a_job_that_may_last_goes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    shared: list[object] = []
    monkeypatch.setattr(spark_tasks.SHARED_TASKS, "run", lambda *asked: shared.append(asked))
    assignment = replace(an_assignment_of(tmp_path), **changes)
    result = rewrite(local_session(), assignment, lambda _: None, lambda: False)
    assert result.counts.rows_out == ROWS * FILES
    assert shared == []


def test_executors_on_other_machines_do_not_share_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, before = local_session(), spark_jobs()
    assert spark_tasks.has_local_executors(spark.sparkContext)
    monkeypatch.setattr(spark_tasks, "has_local_executors", lambda _: False)
    (result,) = run_all([an_assignment_of(tmp_path)])
    assert isinstance(result, RewriteResult)
    assert spark_jobs() == before
