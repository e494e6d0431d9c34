"""Tasks in processes of their own take no more memory than was worked out for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.memory_shapes import KEY, TOMBSTONE, VERSION, make
from common.model.table import Table
from common.rows.schema import columns_of
from compactor.rewrite.memory_budget import memory_budget, task_environ
from compactor.rewrite.merge.driver import merge_large_job
from compactor.rewrite.plan.rewrite_plan import RewritePlan, make_plan
from tests.support.peak_memory import peak_bytes
from tests.support.run_apart import run_apart
from tests.support.tables_on_disk import assignment_over, settings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc"),
]

MB = 1024**2
TASK_BYTES = 490 * MB
DATA_BYTES = 200 * MB


def outcome_and_peak(call: Callable[[], Any]) -> tuple[Any, int]:
    return call(), peak_bytes()


def a_plan(folder: Path, shape: str) -> RewritePlan:
    (folder / "progress").mkdir()
    paths = make(shape, folder / "table", DATA_BYTES)
    table = Table(
        id="table-1",
        name="hard",
        location=(folder / "table").as_uri(),
        schema=columns_of(pq.read_schema(folder / "table" / paths[0])),
        key=(KEY,),
        version_column=VERSION,
        tombstone_column=TOMBSTONE,
        settings=settings(row_group_bytes=16 * MB),
    )
    plan = make_plan(assignment_over(table, paths), str(folder / "progress"))
    return replace(plan, memory=memory_budget(TASK_BYTES, 0, 16 * MB))


@pytest.mark.parametrize("shape", ["wide", pytest.param("one-group", marks=pytest.mark.long)])
def test_a_task_stays_within_what_it_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    for name, value in {"POLARS_MAX_THREADS": "2", **task_environ(TASK_BYTES)}.items():
        monkeypatch.setenv(name, value)
    peaks: list[int] = []

    def run_tasks(calls: Sequence[Callable[[], Any]]) -> list[Any]:
        ended = []
        for call in calls:
            (outcome, peak), _ = run_apart(partial(outcome_and_peak, call))
            ended.append(outcome)
            peaks.append(peak)
        return ended

    plan = a_plan(tmp_path, shape)
    result = merge_large_job(plan, run_tasks, 2)
    assert result.counts.rows_in == plan.inputs.rows
    assert len(peaks) > 1, "nothing was cut"
    assert max(peaks) < TASK_BYTES, [peak // MB for peak in peaks]
