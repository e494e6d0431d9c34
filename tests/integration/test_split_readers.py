"""Readers that split files find every row of what each way of rewriting writes."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from common.model.request import Request, TransformKind, TransformSpec
from common.model.table import Table
from common.parquet.location import open_location
from common.parquet.write import write_table
from common.rows.rules import RowRules
from compactor.core import RewriteResult
from compactor.rewrite.attempt import rewrite
from compactor.rewrite.merge.driver import merge_large_job
from compactor.rewrite.outputs import TaskResult
from compactor.rewrite.plan.rewrite_plan import make_plan
from tests.support.layouts import layout_of_file
from tests.support.misordered import largest_first, last_first, write_misordered
from tests.support.readers import check_counts, spark_count
from tests.support.sample_tables import lineitem, three_texts
from tests.support.spark_session import local_session
from tests.support.tables_on_disk import (
    assignment_over,
    bag_table,
    keyed_table,
    settings,
    write_file,
)

pytestmark = pytest.mark.integration

ROWS = 100_000
GROUP_BYTES = 8 * 1024**2
PLAIN: dict[str, Any] = {"tombstone_column": None, "time_column": None}


def texts_table(folder: Path, **more: Any) -> Table:
    """Return a table of three texts, with key `id`."""
    given = {"key": ("id",), "settings": settings(row_group_bytes=GROUP_BYTES), **PLAIN}
    return keyed_table(folder, three_texts(range(1)).schema, **given | more)


def texts_bag(folder: Path, **more: Any) -> Table:
    given = {"settings": settings(row_group_bytes=GROUP_BYTES), **PLAIN}
    return bag_table(folder, three_texts(range(1)).schema, **given | more)


def interleaved(folder: Path) -> list[str]:
    """Write two files whose keys lie between each other's."""
    paths = ["even.parquet", "odd.parquet"]
    for at, path in enumerate(paths):
        write_file(folder, path, three_texts(range(at, 2 * ROWS, 2)), compression="zstd")
    return paths


def run(table: Table, paths: Sequence[str], **more: Any) -> RewriteResult:
    assignment = assignment_over(table, paths, **more)
    return rewrite(local_session(), assignment, lambda _: None, lambda: False)


def outputs(folder: Path, result: RewriteResult | TaskResult) -> list[Path]:
    made = result.outputs if isinstance(result, RewriteResult) else result.files
    return [folder / file.path for file in made]


def check(paths: Sequence[Path], rows: int) -> None:
    """Hold outputs of several row groups against every reader."""
    assert max(len(layout_of_file(path).groups) for path in paths) > 1
    check_counts(paths, rows)


def test_two_interleaved_files_are_merged(tmp_path: Path) -> None:
    result = run(texts_table(tmp_path), interleaved(tmp_path))
    assert result.kernel == "merge"
    check(outputs(tmp_path, result), 2 * ROWS)


def test_engines_that_split_files_read_merged_lineitem(tmp_path: Path) -> None:
    parts = [lineitem(range(at, at + 40_000)) for at in (0, 20_000)]
    for at, rows in enumerate(parts):
        write_file(tmp_path, f"{at}.parquet", rows, compression="snappy")
    key = ("l_orderkey", "l_linenumber")
    given = {"key": key, "settings": settings(row_group_bytes=GROUP_BYTES), **PLAIN}
    result = run(keyed_table(tmp_path, parts[0].schema, **given), ["0.parquet", "1.parquet"])
    check(outputs(tmp_path, result), 4 * 60_000)


def test_append_only_rows_are_read_and_written(tmp_path: Path) -> None:
    table = texts_bag(tmp_path, settings=settings(row_group_bytes=GROUP_BYTES, codec="snappy"))
    result = run(table, interleaved(tmp_path))
    assert result.kernel == "bag"
    check(outputs(tmp_path, result), 2 * ROWS)


def test_a_transform_is_applied(tmp_path: Path) -> None:
    spec = TransformSpec(kind=TransformKind.SET, text="flag = true")
    request = Request(id="request-1", table="table-1", transform=spec)
    result = run(texts_table(tmp_path), interleaved(tmp_path), request=request)
    assert result.kernel == "merge"
    check(outputs(tmp_path, result), 2 * ROWS)


def test_ranges_are_merged_by_tasks_and_joined_with_copies(tmp_path: Path) -> None:
    """Row groups of the first file that meet none of the second are copied, misordered as it is."""
    table = texts_table(tmp_path / "table")
    first, second = three_texts(range(ROWS)), three_texts(range(ROWS // 2, ROWS), version=2)
    for path, rows in (("0.parquet", first), ("1.parquet", second)):
        write_misordered(tmp_path / "table" / path, rows, row_group_size=ROWS // 8)
    (tmp_path / "progress").mkdir()
    plan = make_plan(assignment_over(table, ["0.parquet", "1.parquet"]), str(tmp_path / "progress"))
    tasks: list[int] = []

    def run_tasks(calls: Sequence[Any]) -> list[Any]:
        tasks.append(len(calls))
        return [call() for call in pickle.loads(pickle.dumps(list(calls)))]

    result = merge_large_job(plan, run_tasks, cores=8)
    assert sum(tasks) > 1
    check(outputs(tmp_path / "table", result), ROWS)


@pytest.mark.parametrize("order", [largest_first, last_first])
def test_misordered_row_groups_are_put_in_order_when_they_are_copied(
    tmp_path: Path, order: Any
) -> None:
    rows = three_texts(range(ROWS))
    for at, path in enumerate(("0.parquet", "1.parquet")):
        part = rows.slice(at * ROWS // 2, ROWS // 2)
        write_misordered(tmp_path / path, part, order=order, row_group_size=ROWS // 8)
    missed = [str(tmp_path / "0.parquet")]
    assert spark_count(missed, 1 << 20) < ROWS // 2, "else it is no test of anything"

    result = run(texts_bag(tmp_path), ["0.parquet", "1.parquet"])

    assert result.kernel == "stitch"
    (output,) = outputs(tmp_path, result)
    check([output], ROWS)
    wanted = sorted(rows["a"].to_pylist())
    assert sorted(pq.read_table(output)["a"].to_pylist()) == wanted


def test_rows_that_are_appended(tmp_path: Path) -> None:
    table = texts_table(tmp_path)
    rows, rules = three_texts(range(ROWS)), RowRules.of(table)
    location = open_location(tmp_path.as_uri())
    write_table(location, "_neve/append/0.parquet", rows, rules, table.settings)
    check([tmp_path / "_neve/append/0.parquet"], ROWS)
