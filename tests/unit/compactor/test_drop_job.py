"""A whole job whose rows have all expired: dropped without a read, or read if in doubt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.model.file import DataFile
from common.model.key_values import KeyType
from common.model.keys import encode_key, encode_value
from common.model.table import Table
from common.wire import Assignment, OutsideFile
from compactor.rewrite.attempt import drop_whole
from compactor.rewrite.general_merge import rewrite_bag, rewrite_in_memory
from compactor.rewrite.plan.rewrite_plan import make_plan
from compactor.rewrite.verify import verify
from tests.support.tables_on_disk import (
    KEYED,
    assignment_over,
    bag_table,
    keyed_table,
    settings,
    write_file,
)

NOW_S = 1_000_000.0
TTL_S = 1000.0
OLD_US = int(NOW_S - TTL_S - 10) * 1_000_000
YOUNG_US = int(NOW_S - TTL_S + 10) * 1_000_000
PATHS = ["0.parquet", "1.parquet"]


def tables(folder: Path) -> tuple[Table, Table]:
    return tuple(make(folder, settings=settings(ttl_s=TTL_S)) for make in (bag_table, keyed_table))  # type: ignore[return-value]  # two


def job(table: Table, folder: Path, times: list[int | None], **more: Any) -> Assignment:
    for number, path in enumerate(PATHS):
        count = len(times)
        rows = {
            "k": range(number * count, (number + 1) * count),
            "name": ["a"] * count,
            "v": [number] * count,
            "dead": [None] * count,
            "at": times,
            "x": [0.5] * count,
        }
        write_file(folder, path, pa.table(rows, schema=KEYED), row_group_size=2)
    settled = _version(9) if table.key else None
    return assignment_over(table, PATHS, now_s=NOW_S, **{"settled": settled} | more)


def _version(version: int) -> bytes:
    return encode_value(version, KeyType.INT)


def test_expired_files_are_dropped_as_if_they_were_read(tmp_path: Path) -> None:
    for table in tables(tmp_path):
        assignment = job(table, tmp_path, [OLD_US] * 5)
        plan = make_plan(assignment)
        result = drop_whole(plan, assignment)
        marker = tmp_path / plan.output.paths[0]
        dropped = pq.read_schema(marker)
        marker.unlink()
        read = (rewrite_in_memory if table.key else rewrite_bag)(plan)
        assert result is not None
        assert dropped.equals(pq.read_schema(marker), check_metadata=True)
        marker.unlink()
        assert result.counts == read.counts
        assert (result.counts.rows_in, result.counts.expired_dropped) == (10, 10)
        assert verify(plan, result, lambda: False) == ()
        if table.key:
            assert result.dropped is not None
            assert read.dropped is not None
            assert result.dropped.version_max == read.dropped.version_max
            assert all(result.dropped.meets(*span) for span in read.dropped.spans)


@pytest.mark.parametrize(
    "times", [[OLD_US, YOUNG_US], [OLD_US, OLD_US, None], [OLD_US + 9_500_000] * 2]
)
def test_rows_are_read_where_one_may_have_to_stay(tmp_path: Path, times: list[int | None]) -> None:
    for table in tables(tmp_path):
        assignment = job(table, tmp_path, times)
        assert drop_whole(make_plan(assignment), assignment) is None


def test_rows_are_read_where_footers_tell_no_nulls(tmp_path: Path) -> None:
    table, _ = tables(tmp_path)
    assignment = job(table, tmp_path, [OLD_US] * 2)
    rows = pa.table(
        {name: [None] * 2 for name in KEYED.names} | {"k": [1, 2], "at": [OLD_US] * 2}, schema=KEYED
    )
    write_file(tmp_path, PATHS[0], rows, write_statistics=False)
    first = replace(assignment.inputs[0], size_bytes=(tmp_path / PATHS[0]).stat().st_size, rows=2)
    unsure = replace(assignment, inputs=(first, *assignment.inputs[1:]))
    assert first.time_max_s == OLD_US / 1e6
    assert drop_whole(make_plan(unsure), unsure) is None


def test_a_table_without_ttl_drops_nothing(tmp_path: Path) -> None:
    table = bag_table(tmp_path)
    assignment = job(table, tmp_path, [OLD_US] * 2)
    assert drop_whole(make_plan(assignment), assignment) is None


def test_expired_rows_stay_while_they_hide_older_ones(tmp_path: Path) -> None:
    _, table = tables(tmp_path)
    inside = _outside(0, 99, version=0)
    for given in (
        {"settled": None},
        {"settled": _version(0)},
        {"outside": (inside,)},
        {"outside": (replace(inside, key_min=None, key_max=None, version_min=None),)},
    ):
        assignment = job(table, tmp_path, [OLD_US] * 3, **given)
        assert drop_whole(make_plan(assignment), assignment) is None, given
    newer = _outside(0, 99, version=7)
    beside = _outside(50, 99, version=0)
    assignment = job(table, tmp_path, [OLD_US] * 3, outside=(newer, beside))
    assert drop_whole(make_plan(assignment), assignment) is not None


def _outside(low: int, high: int, version: int) -> OutsideFile:
    types = (KeyType.INT, KeyType.STRING)
    return OutsideFile(
        path="o",
        key_min=encode_key((low, "a"), types),
        key_max=encode_key((high, "a"), types),
        version_min=_version(version),
    )


def test_a_file_without_known_bounds_is_read(tmp_path: Path) -> None:
    for table in tables(tmp_path):
        assignment = job(table, tmp_path, [OLD_US] * 3)
        fields = ("time_max_s", "key_max", "version_max") if table.key else ("time_max_s",)
        for name in fields:
            unsure: list[DataFile] = [
                replace(file, **{name: None})  # type: ignore[arg-type]  # by name
                for file in assignment.inputs
            ]
            given = replace(assignment, inputs=tuple(unsure))
            assert drop_whole(make_plan(given), given) is None, name
