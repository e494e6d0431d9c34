"""Every way of rewriting pays for what it moves, keeps to its grant, and ends at once."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import AttemptCancelledError
from common.model.table import Table
from common.runtime import SystemClock
from common.wire import Assignment
from compactor.core import RewriteProgress, RewriteResult
from compactor.rewrite import attempt
from compactor.rewrite.attempt import rewrite
from compactor.rewrite.attempt_folder import Allowance
from tests.support.spark_session import local_session
from tests.support.tables_on_disk import (
    KEYED,
    assignment_over,
    bag_table,
    keyed_table,
    random_rows,
    settings,
    write_file,
)

pytestmark = pytest.mark.integration

NOW_S = 1_000_000
WAYS = {"whole": "merge", "ranges": "merge", "memory": "memory", "sql": "sql", "bag": "bag"}


def take(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way in ("memory", "sql"):
        monkeypatch.setattr(attempt, "kernel_supports", lambda _: False)
    if way in ("ranges", "sql"):
        monkeypatch.setattr(attempt, "IN_MEMORY_BYTES", 0)


def job(folder: Path, way: str, rows: int = 2000) -> Assignment:
    """Return a job over five files that is done in a way."""
    chance = random.Random(1)
    paths = [f"{number}.parquet" for number in range(5)]
    for path in paths:
        write_file(folder, path, pa.Table.from_pylist(random_rows(chance, rows), KEYED))
    table = bag_table(folder) if way == "bag" else keyed_table(folder)
    return assignment_over(table, paths, now_s=NOW_S)


def stitchable(folder: Path) -> Assignment:
    """Return a job whose row groups are copied as they are."""
    rows = pa.table({"s": ["é" * 50 + str(n) for n in range(4000)]})
    paths = [f"{number}.parquet" for number in range(3)]
    for path in paths:
        write_file(folder, path, rows, compression="zstd")
    small = settings(row_group_bytes=256 * 1024)
    table = bag_table(folder, rows.schema, settings=small, time_column=None)
    return assignment_over(table, paths, now_s=NOW_S)


def stored(table: Table, path: str) -> int:
    """Return the bytes of all column chunks of a file."""
    found = pq.read_metadata(Path(table.location.removeprefix("file://"), path))
    groups = [found.row_group(number) for number in range(found.num_row_groups)]
    return sum(
        group.column(leaf).total_compressed_size
        for group in groups
        for leaf in range(group.num_columns)
    )


def run(assignment: Assignment) -> tuple[RewriteResult, list[RewriteProgress]]:
    reports: list[RewriteProgress] = []
    result = rewrite(local_session(), assignment, reports.append, lambda: False)
    return result, reports


@pytest.mark.parametrize("way", WAYS)
def test_inputs_and_outputs_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    take(way, monkeypatch)
    assignment = job(tmp_path, way)
    result, (*_, last) = run(assignment)

    assert result.kernel == WAYS[way]
    read = sum(stored(assignment.table, file.path) for file in assignment.inputs)
    written = sum(file.size_bytes for file in result.outputs)
    if way == "ranges":  # Parts are copied without their footers; ranges may share row groups.
        written = sum(stored(assignment.table, file.path) for file in result.outputs)
        assert read + written <= last.moved_bytes <= 2 * read + written
    else:
        assert last.moved_bytes == read + written
    assert written <= last.written_bytes <= sum(file.size_bytes for file in result.outputs)
    assert last.waited_s == 0.0


def test_copied_bytes_count_as_read_and_written(tmp_path: Path) -> None:
    assignment = stitchable(tmp_path)
    result, (*_, last) = run(assignment)
    assert result.kernel == "stitch"
    written = sum(stored(assignment.table, file.path) for file in result.outputs)
    assert (last.moved_bytes, last.written_bytes) == (2 * written, written)


@pytest.mark.parametrize("way", [*WAYS, "stitch"])
def test_no_attempt_is_faster_than_its_grant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    take(way, monkeypatch)
    assignment = stitchable(tmp_path) if way == "stitch" else job(tmp_path, way)
    rate = sum(file.size_bytes for file in assignment.inputs) / 2
    clock = SystemClock()
    begun_s = clock.now_s()
    _, reports = run(replace(assignment, grant_bytes_s=rate))

    last, size_bytes = reports[-1], sum(file.size_bytes for file in assignment.inputs)
    # Nothing is saved up at the beginning, and nothing owed at the end.
    assert clock.now_s() - begun_s >= last.moved_bytes / rate >= 1.0
    assert last.waited_s > 0
    # What is read shows while it is read, not when rows are merged.
    steps = {report.bytes_done for report in reports if report.state == "rewriting"}
    assert len(steps - {0, size_bytes}) >= 2, sorted(steps)
    assert last.bytes_done == size_bytes


@pytest.mark.parametrize("way", [*WAYS, "stitch"])
def test_a_cancelled_attempt_does_not_wait_for_its_grant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    take(way, monkeypatch)
    assignment = stitchable(tmp_path) if way == "stitch" else job(tmp_path, way)
    valves: list[Allowance] = []

    def stop_once_it_waits(_: Any) -> None:
        if valves and valves[0].usage().waited_s > 0:
            valves[0].stop()

    with pytest.raises(AttemptCancelledError, match="cancelled while it moved bytes"):
        rewrite(
            local_session(),
            replace(assignment, grant_bytes_s=1.0),
            stop_once_it_waits,
            lambda: False,
            valves.append,
        )
    assert not list(tmp_path.glob("_neve/**/*.parquet"))


def test_a_grant_that_is_told_later_holds_from_then_on(tmp_path: Path) -> None:
    assignment = replace(job(tmp_path, "whole"), grant_bytes_s=1.0)
    reports: list[RewriteProgress] = []
    valves: list[Allowance] = []
    waits = threading.Event()

    def listen(progress: RewriteProgress) -> None:
        reports.append(progress)
        if valves and valves[0].usage().waited_s > 0 and not waits.is_set():
            waits.set()
            valves[0].grant(None)

    result = rewrite(local_session(), assignment, listen, lambda: False, valves.append)
    assert waits.is_set()
    assert result.outputs
    assert reports[-1].waited_s > 0
