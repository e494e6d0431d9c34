"""A compaction keeps the columns that only folders tell: outputs hold them for good."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import InputError
from common.model.request import Request, TransformKind, TransformSpec
from common.model.table import Table
from common.model.tablet import Bounds
from common.rows.key_encoding import partition_of_path
from compactor.rewrite.general_merge import read_for_sort, rewrite_bag, rewrite_in_memory
from compactor.rewrite.plan.rewrite_plan import make_plan
from compactor.rewrite.transform import read_expression_inputs
from compactor.rewrite.verify import verify
from coordinator.core.assignment import output_prefix
from tests.support.assignments import an_assignment
from tests.support.tables_on_disk import bag_table, inspected, keyed_table, read_output, write_file

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("day", pa.int32())])
BARE = pa.schema([("id", pa.int64()), ("v", pa.int64())])
NONE = {"tombstone_column": None, "time_column": None, "partition_by": ("day",)}
PATHS = ("day=7/a.parquet", "day=7/b.parquet", "day=07/c.parquet")


def keyed(folder: Path) -> Table:
    return keyed_table(folder, SCHEMA, key=("day", "id"), **NONE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_file(tmp_path, PATHS[0], pa.table({"id": [1, 2], "v": [1, 1]}, BARE))
    write_file(tmp_path, PATHS[1], pa.table({"id": [2, 3], "v": [2, 1]}, BARE))
    whole = pa.table({"id": [3, 4], "v": [2, 1], "day": [7, None]}, SCHEMA)
    write_file(tmp_path, PATHS[2], whole)
    return tmp_path


def bounds_of(table: Table) -> Bounds:
    partition = partition_of_path(table, PATHS[0])
    return Bounds(None, partition.end, partition.text)


def test_a_keyed_table_keeps_its_partition_column(folder: Path) -> None:
    table = keyed(folder)
    files = inspected(table, PATHS)
    plan = make_plan(an_assignment(files, table=table, bounds=bounds_of(table)))
    result = rewrite_in_memory(plan)
    assert verify(plan, result, lambda: False)[0][1].rows == 4
    found = pq.ParquetFile(folder / plan.output.paths[0]).read().sort_by("id").to_pylist()
    assert [(row["day"], row["id"], row["v"]) for row in found] == [
        (7, 1, 1),
        (7, 2, 2),
        (7, 3, 2),
        (7, 4, 1),
    ]
    assert len({file.key_min for file in files}) == 3
    sorted_rows = pa.Table.from_batches(list(read_for_sort(plan, range(3))))
    assert sorted_rows.num_rows == 6


def test_an_append_only_table_keeps_its_partition_column(folder: Path) -> None:
    table = bag_table(folder, SCHEMA, **NONE)
    plan = make_plan(an_assignment(inspected(table, PATHS), table=table, bounds=bounds_of(table)))
    verify(plan, rewrite_bag(plan), lambda: False)
    found = read_output(table, plan.output.paths[0])
    assert found["day"].to_pylist() == [7] * 6
    assert sorted(found["id"].to_pylist()) == [1, 2, 2, 3, 3, 4]


def test_a_transform_is_asked_about_what_folders_say(folder: Path) -> None:
    table = bag_table(folder, SCHEMA, **NONE)
    transform = TransformSpec(kind=TransformKind.DELETE_WHERE, text="day = 7")
    request = Request(id="r", table=table.id, transform=transform)
    files = inspected(table, PATHS[:2])
    assignment = an_assignment(files, table=table, bounds=bounds_of(table), request=request)
    plan = make_plan(assignment, str(folder))
    asked = pa.Table.from_batches(list(read_expression_inputs(plan, range(2)))).to_pylist()
    assert [row["day"] for row in asked if row["neve_row"] >= 0] == [7, 7]


def test_an_input_whose_folder_does_not_fit_is_named(folder: Path) -> None:
    table = bag_table(folder, SCHEMA, **NONE)
    plan = make_plan(an_assignment(inspected(table, PATHS), table=table, bounds=bounds_of(table)))
    (folder / "day=soon").mkdir()
    (folder / PATHS[0]).rename(folder / "day=soon/a.parquet")
    with pytest.raises(InputError, match="'soon' cannot be read as int"):
        rewrite_bag(replace(plan, inputs=replace(plan.inputs, paths=("day=soon/a.parquet",))))


def test_outputs_lie_in_folders_that_say_the_same(folder: Path) -> None:
    job = an_assignment(table=keyed(folder), bounds=bounds_of(keyed(folder))).job
    prefix = output_prefix(replace(job, partition="day=7"), "att-1", None)
    assert prefix == f"_neve/{job.tablet.text[:48]}/day=7/{job.id}-att-1"
    assert output_prefix(job, "att-1", None) == f"_neve/{job.tablet.text[:48]}/{job.id}-att-1"
