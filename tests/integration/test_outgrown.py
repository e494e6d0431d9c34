"""Processes of tasks that outgrow their bound, or are killed: what is left, what is said."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from common.errors import EngineDiedError, MemoryShortError
from compactor.rewrite import memory, spark_tasks
from compactor.rewrite.memory import StartNote, bounded_memory, resident_bytes
from compactor.rewrite.memory_budget import TASK_BYTES, memory_budget, task_environ
from compactor.rewrite.plan.rewrite_plan import RewritePlan, make_plan
from tests.support.patience import PATIENCE_S
from tests.support.run_apart import run_apart
from tests.support.tables_on_disk import KEYED, assignment_over, keyed_table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc"),
]

MB = 1024**2
ROOM_BYTES = 150 * MB
"""How much larger than it begins a task may get here."""


def hold(more: list[pl.Series]) -> None:
    """Take more and more memory, slowly enough to be looked at."""
    for _ in range(64):
        more.append(pl.ones(MB, eager=True))
        time.sleep(memory.CHECK_INTERVAL_S / 4)


def hold_and_forget() -> None:
    hold([])


def hold_on() -> None:
    """Take memory, and do not end when told to: as native code does not."""
    held: list[pl.Series] = []
    while True:
        try:
            hold(held)
            time.sleep(PATIENCE_S)
        except MemoryShortError:
            continue


def bounded(plan: RewritePlan) -> RewritePlan:
    limit_bytes = resident_bytes() + ROOM_BYTES
    return replace(plan, memory=replace(plan.memory, limit_bytes=limit_bytes))


NUMBERS = ("stageId", "partitionId", "attemptNumber")
FIRST_TRY = SimpleNamespace(**{name: lambda: 0 for name in NUMBERS})
"""Spark's context of a task: stage 0, partition 0, first try."""


def outgrow(plan: RewritePlan, in_task: bool) -> Any:
    """Outgrow the bound, in a task or not; return how it ended."""
    spark_tasks.TaskContext = SimpleNamespace(get=lambda: FIRST_TRY if in_task else None)
    parcels = iter([pickle.dumps((bounded(plan), hold_and_forget))])
    return pickle.loads(next(spark_tasks._run_jobs(parcels)))


def never_end(plan: RewritePlan) -> None:
    memory.CLEAN_UP_CHECKS = 2
    StartNote(plan.memory, plan.folder, (0, 0)).leave()
    with bounded_memory(bounded(plan).memory, plan.folder):
        hold_on()


def be_killed(plan: RewritePlan) -> None:
    StartNote(plan.memory, plan.folder, (0, 0)).leave()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RewritePlan:
    for name, value in task_environ(TASK_BYTES).items():
        monkeypatch.setenv(name, value)
    pq.write_table(KEYED.empty_table(), tmp_path / "a.parquet")
    assignment = assignment_over(keyed_table(tmp_path), ["a.parquet"])
    progress = tmp_path / "progress"
    progress.mkdir()
    return replace(make_plan(assignment, str(progress)), memory=memory_budget(768 * MB, 0, MB))


def test_a_task_that_lacked_memory_ends_with_its_process(plan: RewritePlan) -> None:
    outcome, code = run_apart(partial(outgrow, plan, False))
    assert (code, outcome.error_class) == (0, "MemoryShortError")
    assert "a task grew to" in outcome.cause
    assert "raise compactor.task_memory" in outcome.cause
    outcome, code = run_apart(partial(outgrow, plan, True))
    assert outcome is None, "its process was killed before it could answer"
    assert code == -signal.SIGKILL
    for elsewhere in (False, True):
        if elsewhere:  # The second try is on another machine, without the first one's processes.
            (Path(plan.folder) / f"{memory.BEGUN}0-0").write_text(f"{1 << 30} {1 << 30}")
        error = StartNote(plan.memory, plan.folder, (0, 0)).error_of_second_try()
        assert isinstance(error, MemoryShortError)
        assert str(error).startswith("a task grew to")


def test_a_task_that_was_ended_by_force_says_why(plan: RewritePlan) -> None:
    said, code = run_apart(partial(never_end, plan))
    assert (said, code) == (None, -signal.SIGKILL)
    error = StartNote(plan.memory, plan.folder, (0, 0)).error_of_second_try()
    assert isinstance(error, MemoryShortError)
    assert "a task grew to" in str(error)


def test_a_task_that_was_killed_by_others_is_told_apart(plan: RewritePlan) -> None:
    said, code = run_apart(partial(be_killed, plan))
    assert (said, code) == (None, -signal.SIGKILL)
    error = StartNote(plan.memory, plan.folder, (0, 0)).error_of_second_try()
    assert isinstance(error, MemoryShortError)
    assert "most likely because the machine ran out of memory" in str(error)


def test_a_task_without_a_note_died_with_its_machine(plan: RewritePlan) -> None:
    assert isinstance(
        StartNote(plan.memory, plan.folder, (0, 1)).error_of_second_try(), EngineDiedError
    )
