"""Small rewrites that wait for a core share one job of real Spark, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from common.errors import InputError
from common.wire import Assignment
from compactor.core import RewriteResult
from compactor.rewrite import spark_tasks
from compactor.rewrite.attempt import rewrite
from compactor.rewrite.spark_tasks import TaskCall
from tests.support.spark_session import local_session
from tests.support.tables_on_disk import KEYED, assignment_over, keyed_table, write_file

pytestmark = pytest.mark.integration

CORES, WAITING, ROWS, FILES = 2, 4, 1000, 3


def an_assignment_of(folder: Path) -> Assignment:
    """Return a job over a table of its own, all rows of which stay."""
    paths = [f"{number}.parquet" for number in range(FILES)]
    for number, path in enumerate(paths):
        keys = np.arange(number, ROWS * FILES, FILES)
        rows = {"k": keys, "name": [""] * ROWS, "v": keys, "x": keys * 0.5}
        nulls = {name: pa.nulls(ROWS, KEYED.field(name).type) for name in ("dead", "at")}
        write_file(folder, path, pa.table(rows | nulls, schema=KEYED))
    return assignment_over(keyed_table(folder), paths)


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rewrites each Spark job had; the first ones wait until all others do."""
    sizes: list[int] = []
    hand_out: Callable[[Any, Sequence[TaskCall]], Sequence[bytes]] = spark_tasks._run_spark_job

    def wait(context: Any, jobs: Sequence[TaskCall]) -> Sequence[bytes]:
        sizes.append(len(jobs))
        while len(sizes) <= CORES and len(spark_tasks._BATCHER._waiting) < WAITING:
            threading.Event().wait(0.01)
        return hand_out(context, jobs)

    monkeypatch.setattr(spark_tasks, "_run_spark_job", wait)
    return sizes


def run_all(assignments: Sequence[Assignment]) -> list[RewriteResult | BaseException]:
    """Run rewrites at the same time, each as an attempt does: under a job group of its own."""
    spark = local_session()

    def run(number: int) -> RewriteResult | BaseException:
        spark.sparkContext.setJobGroup(f"own-{number}", "", interruptOnCancel=True)
        try:
            return rewrite(spark, assignments[number], lambda _: None, lambda: False)
        except Exception as error:  # told to the test
            return error
        finally:
            assert spark.sparkContext.getLocalProperty(spark_tasks.JOB_GROUP) == f"own-{number}"

    with ThreadPoolExecutor(len(assignments)) as threads:
        return list(threads.map(run, range(len(assignments))))


def test_waiting_attempts_share_a_spark_job_and_fail_alone(
    tmp_path: Path, handed: list[int]
) -> None:
    count = CORES + WAITING
    assignments = [an_assignment_of(tmp_path / f"t{number}") for number in range(count)]
    damaged = tmp_path / "t4" / "1.parquet"
    content = bytearray(damaged.read_bytes())
    content[4:40] = bytes(36)  # the first page's header
    damaged.write_bytes(content)
    tracker = local_session().sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup(spark_tasks.SHARED_JOB_GROUP))

    found = run_all(assignments)

    assert sorted(handed) == [1] * CORES + [WAITING]
    assert len(tracker.getJobIdsForGroup(spark_tasks.SHARED_JOB_GROUP)) == before + 1
    failed = [number for number, each in enumerate(found) if isinstance(each, BaseException)]
    assert failed == [4]
    assert isinstance(found[4], InputError)
    for result in found:
        if isinstance(result, RewriteResult):
            assert (result.counts.rows_in, result.counts.rows_out) == (ROWS * FILES, ROWS * FILES)


@pytest.mark.parametrize("changes", [{"halvings": 1}, {"grant_bytes_s": 1e9}])
def test_a_job_that_may_last_goes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    shared: list[object] = []
    monkeypatch.setattr(spark_tasks._BATCHER, "run", lambda *asked: shared.append(asked))
    assignment = replace(an_assignment_of(tmp_path), **changes)
    result = rewrite(local_session(), assignment, lambda _: None, lambda: False)
    assert result.counts.rows_out == ROWS * FILES
    assert shared == []
