"""A whole job by the way `stitch`, without Spark: planned, copied, verified."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import NotStitchableError, VerificationError
from common.model.table import Table
from common.wire import Assignment
from compactor.rewrite.attempt import stitch_plan, stitch_whole
from compactor.rewrite.plan.rewrite_plan import make_plan
from compactor.rewrite.verify import verify
from tests.support.tables_on_disk import (
    KEYED,
    assignment_over,
    bag_table,
    inspected,
    keyed_table,
    settings,
    write_file,
)

ROWS = 3000
PATHS = ["0.parquet", "1.parquet", "2.parquet"]


def job(table: Table, folder: Path, **options: str) -> Assignment:
    for number, path in enumerate(PATHS):
        rows = {
            "k": range((2 - number) * ROWS, (3 - number) * ROWS),
            "name": ["a"] * ROWS,
            "v": [number] * ROWS,
            "dead": [None] * ROWS,
            "at": [number * 1_000_000] * ROWS,
            "x": [0.5] * ROWS,
        }
        columns = pa.table(rows, schema=KEYED)
        write_file(folder, path, columns, **{"compression": "zstd"} | options)
    return assignment_over(table, PATHS)


def keyed(folder: Path) -> Table:
    return keyed_table(folder, settings=settings(row_group_bytes=1 << 16))


def test_facts_of_a_stitch_are_those_of_a_full_read(tmp_path: Path) -> None:
    for table in (keyed(tmp_path), bag_table(tmp_path, settings=settings(row_group_bytes=1 << 16))):
        assignment = job(table, tmp_path)
        plan = make_plan(assignment)
        stitching = stitch_plan(plan, assignment)
        assert stitching is not None
        assert stitching.paths == tuple(PATHS[::-1] if table.key else PATHS)
        result = stitch_whole(stitching, plan)
        ((size_bytes, facts),) = verify(plan, result, lambda: False)
        (found,) = inspected(table, [plan.output.paths[0]])
        assert (size_bytes, facts.rows, facts.clean) == (found.size_bytes, 3 * ROWS, found.clean)
        assert (facts.key_min, facts.key_max) == (found.key_min, found.key_max)
        assert (facts.version_min, facts.version_max) == (found.version_min, found.version_max)
        assert (facts.time_min_s, facts.time_max_s) == (found.time_min_s, found.time_max_s)
        (tmp_path / plan.output.paths[0]).unlink()


def test_an_output_that_was_changed_after_it_was_read_back(tmp_path: Path) -> None:
    assignment = job(keyed(tmp_path), tmp_path)
    plan = make_plan(assignment)
    stitching = stitch_plan(plan, assignment)
    assert stitching is not None
    result = stitch_whole(stitching, plan)
    output = tmp_path / plan.output.paths[0]
    other = pq.read_table(output).slice(1)
    output.unlink()
    pq.write_table(other, output)
    with pytest.raises(VerificationError):
        verify(plan, result, lambda: False)


def test_columns_that_readers_would_see_otherwise(tmp_path: Path) -> None:
    assignment = job(keyed(tmp_path), tmp_path)
    plan = make_plan(assignment)
    stitching = stitch_plan(plan, assignment)
    assert stitching is not None
    narrower = replace(plan, rules=replace(plan.rules, schema=plan.rules.schema.remove(0)))
    with pytest.raises(NotStitchableError, match="has columns"):
        stitch_whole(stitching, narrower)
    assert not (tmp_path / plan.output.paths[0]).exists()


def test_inputs_of_another_codec_are_read(tmp_path: Path) -> None:
    assignment = job(keyed(tmp_path), tmp_path, compression="snappy")
    assert stitch_plan(make_plan(assignment), assignment) is None
