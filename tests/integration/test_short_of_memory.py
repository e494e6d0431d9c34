"""Jobs that run out of memory in real Spark tasks: ended, told apart, and done with less."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import CompactionError, MemoryShortError
from common.model.table import Table
from compactor.core import RewriteResult
from compactor.rewrite.memory import BEGUN
from compactor.spark.driver_protocol import DriverSettings, EngineKind
from compactor.spark.engine import SparkEngine
from neve.local.machine import find_java
from tests.support.patience import SERVICE_S
from tests.support.tables_on_disk import assignment_over, keyed_table, settings

pytestmark = [pytest.mark.slow]

MB = 1024**2
LIMIT_BYTES = 350 * MB
"""Well between what the job needs as usual (430 MB) and halved (260 MB)."""
ROWS = 80_000
RUNS = 6
WIDTH = 48
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), *((f"c{n}", "f8") for n in range(WIDTH))])


@pytest.fixture(scope="module")
def monkeypatch_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """Use the machine's Java or the wheel's, and a folder of our own for attempts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(find_java(os.environ).home))
        folder = str(tmp_path_factory.mktemp("attempts"))
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield patch


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Six runs of 30 MB decoded over one key range, each a single row group."""
    folder = tmp_path_factory.mktemp("table")
    chance = np.random.default_rng(1)
    for run in range(RUNS):
        columns = {"k": np.arange(ROWS), "v": np.full(ROWS, run)}
        columns |= {f"c{n}": chance.random(ROWS) for n in range(WIDTH)}
        pq.write_table(pa.table(columns, schema=SCHEMA), folder / f"{run}.parquet")
    return keyed_table(
        folder,
        SCHEMA,
        key=("k",),
        tombstone_column=None,
        time_column=None,
        settings=settings(row_group_bytes=8 * MB),
    )


def attempt(table: Table, name: str, halvings: int) -> Any:
    paths = [f"{run}.parquet" for run in range(RUNS)]
    return replace(assignment_over(table, paths, attempt=name), halvings=halvings)


def written(table: Table) -> list[Path]:
    return sorted(Path(table.location.removeprefix("file://")).rglob("_neve/**/*.parquet"))


@pytest.fixture(scope="module")
def ends(table: Table, monkeypatch_module: pytest.MonkeyPatch) -> list[Any]:
    """How three attempts ended, one after the other: as large as usual, killed, halved."""

    async def story() -> list[Any]:
        engine = SparkEngine(
            DriverSettings(
                name="c1",
                engine=EngineKind.LOCAL,
                task_limit_bytes=LIMIT_BYTES,
                start_timeout_s=SERVICE_S,
            )
        )
        await engine.start()
        try:
            ended = [await _end_of(engine, attempt(table, "large", 0)), written(table)]
            killing = asyncio.create_task(_kill_workers(_begun()))
            ended += [await _end_of(engine, attempt(table, "killed", 4)), written(table)]
            killing.cancel()
            ended += [await _end_of(engine, attempt(table, "halved", 4)), written(table)]
        finally:
            await engine.stop()
        return ended

    return asyncio.run(story())


async def _end_of(engine: SparkEngine, assignment: Any) -> RewriteResult | CompactionError:
    try:
        return await engine.run(assignment, lambda _: None)
    except CompactionError as error:
        return error


def _begun() -> set[Path]:
    """Return the notes of all tasks that have begun, of attempts that are not cleared away."""
    return set(Path(tempfile.gettempdir()).glob(f"neve-attempt-*/{BEGUN}*"))


async def _kill_workers(before: set[Path]) -> None:
    """Kill the process of each task as soon as it has begun, until the attempt is over.

    One is not enough: a short task may have ended by then, and nobody misses an idle process.
    """
    while True:
        for note in _begun() - before:
            with suppress(OSError, ValueError):  # Not written to its end yet, or gone.
                worker, _ = map(int, note.read_text().split())
                os.kill(worker, signal.SIGKILL)
                before.add(note)
        await asyncio.sleep(0.001)


def test_a_task_that_outgrows_its_bound_is_ended_and_leaves_nothing(ends: list[Any]) -> None:
    error, left = ends[0], ends[1]
    assert isinstance(error, MemoryShortError), error
    assert re.search(r"a task grew to (3[5-9]|4\d)\d MB", str(error)), error
    assert "a task may have 768 MB: raise compactor.task_memory" in str(error)
    assert left == []


def test_a_killed_worker_counts_as_short_of_memory(ends: list[Any]) -> None:
    error, left = ends[2], ends[3]
    assert isinstance(error, MemoryShortError), error
    assert "killed, most likely because the machine ran out of memory" in str(error)
    assert "divided by 16" in str(error)
    assert left == []


def test_the_same_job_with_less_at_a_time_is_done(ends: list[Any]) -> None:
    result, files = ends[4], ends[5]
    assert isinstance(result, RewriteResult), result
    assert (result.counts.rows_in, result.counts.rows_out) == (RUNS * ROWS, ROWS)
    assert [path.name for path in files] == [Path(result.outputs[0].path).name]
