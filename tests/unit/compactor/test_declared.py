"""What outputs declare in their footers: the order of rows, and Bloom filters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.wire import Assignment
from compactor.rewrite.attempt import stitch_plan, stitch_whole
from compactor.rewrite.merge.tasks import merge_small_job
from compactor.rewrite.plan.inputs import (
    has_blooms,
    leaf_indexes,
    sorting_columns,
)
from compactor.rewrite.plan.rewrite_plan import make_plan
from tests.support.tables_on_disk import assignment_over, bag_table, keyed_table, settings

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("part", pa.float64()),
        ("v", pa.int64()),
        ("dead", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("x", pa.int64()),
        ("deep", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
    ]
)
ROWS = 20_000
PRESENT, ABSENT = 2 * 7, 2 * 7 + 1
WITH_BLOOMS = settings(bloom_columns=("x", "k"), row_group_bytes=1 << 18)


def rows(first: int, count: int = ROWS, version: int = 1) -> pa.Table:
    numbers = range(first, first + count)
    columns = {
        "k": [f"key-{number:08d}" for number in numbers],
        "part": [0.5] * count,
        "v": [version] * count,
        "dead": [None] * count,
        "at": [0] * count,
        "x": [2 * number for number in numbers],  # Even ones: odd ones lie between bounds.
        "deep": [{"a": 1, "b": ["x", "y"]}] * count,
    }
    return pa.table(columns, SCHEMA)


def job(folder: Path, *files: pa.Table, bag: bool = False) -> Assignment:
    table = bag_table(folder, SCHEMA) if bag else keyed_table(folder, SCHEMA, key=("k",))
    names = [f"{number}.parquet" for number in range(len(files))]
    for name, each in zip(names, files, strict=True):
        pq.write_table(each, folder / name, compression="zstd")
    return assignment_over(replace(table, settings=WITH_BLOOMS), names)


def excluded(path: Path, column: str, value: int | str) -> set[bool]:
    """Return whether a reader may leave row groups out, by their Bloom filters alone."""
    probe = f"SELECT bloom_filter_excludes FROM parquet_bloom_probe('{path}', '{column}', $1)"
    return {row[0] for row in duckdb.connect().execute(probe, [value]).fetchall()}


def test_places_of_columns_beside_nested_ones() -> None:
    schema = pa.schema([SCHEMA.field("deep"), *SCHEMA][:-1])
    assert leaf_indexes(schema) == {"k": 2, "part": 3, "v": 4, "dead": 5, "at": 6, "x": 7}


@pytest.mark.parametrize(
    ("key", "wanted"),
    [((), None), (("k",), [0]), (("v", "k"), [2, 0]), (("k", "part", "v"), [0]), (("part",), None)],
)
def test_the_order_of_keys_is_declared_up_to_the_first_float(
    key: tuple[str, ...], wanted: list[int] | None
) -> None:
    found = sorting_columns(SCHEMA, key)
    assert (found and [each.column_index for each in found]) == wanted
    assert all(each.nulls_first and not each.descending for each in found or ())


def test_a_merge_declares_its_order_and_writes_the_filters(tmp_path: Path) -> None:
    plan = make_plan(job(tmp_path, rows(0), rows(ROWS // 2, version=2)))
    merge_small_job(plan)
    output = tmp_path / plan.output.paths[0]
    metadata = pq.read_metadata(output)
    assert metadata.num_row_groups > 1
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    assert {group.sorting_columns for group in groups} == {
        (pq.SortingColumn(0, descending=False, nulls_first=True),)
    }
    assert has_blooms(metadata, SCHEMA, ("x", "k"))
    assert not has_blooms(metadata, SCHEMA, ("v",))
    assert excluded(output, "x", PRESENT) == {True, False}
    assert excluded(output, "x", ABSENT) == {True}
    assert excluded(output, "k", "key-00000003") == {True, False}
    assert excluded(output, "v", 77) == {False}


@pytest.mark.parametrize("bag", [False, True])
def test_files_without_the_filters_are_read_and_those_with_them_copied(
    tmp_path: Path, *, bag: bool
) -> None:
    first = job(tmp_path, rows(0), rows(ROWS), bag=bag)
    assert stitch_plan(make_plan(first), first) is None
    made = make_plan(first)
    for name, part in (("0.parquet", rows(0)), ("1.parquet", rows(ROWS))):
        options = {name: {"ndv": ROWS, "fpp": 0.01} for name in ("x", "k")}
        pq.write_table(part, tmp_path / name, compression="zstd", bloom_filter_options=options)
    second = assignment_over(first.table, ["0.parquet", "1.parquet"])
    made = make_plan(second)
    stitching = stitch_plan(made, second)
    assert stitching is not None
    stitch_whole(stitching, made)
    output = tmp_path / made.output.paths[0]
    assert has_blooms(pq.read_metadata(output), SCHEMA, ("x", "k"))
    assert excluded(output, "x", ABSENT) == {True}
