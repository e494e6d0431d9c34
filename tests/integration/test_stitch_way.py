"""Whole jobs that are stitched: which ones, and that nothing of them is read into rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import AttemptCancelledError
from common.model.key_values import KeyType
from common.model.keys import encode_value
from common.model.request import OutputSpec, Request
from common.model.table import Table
from common.parquet.location import open_location
from compactor.core import RewriteResult
from compactor.rewrite import attempt
from compactor.rewrite.attempt import rewrite
from compactor.rewrite.attempt_folder import Allowance
from tests.support.layouts import read_file_layout
from tests.support.readers import check_counts
from tests.support.spark_session import local_session
from tests.support.tables_on_disk import (
    KEYED,
    assignment_over,
    bag_table,
    inspected,
    keyed_table,
    read_output,
    settings,
    write_file,
)

pytestmark = pytest.mark.integration
NOW_S = 1_000_000
GROUP_BYTES = 64 * 1024
ROWS = 4000


def run(table: Table, paths: Sequence[str], **more: Any) -> RewriteResult:
    assignment = assignment_over(table, paths, now_s=NOW_S, **more)
    return rewrite(local_session(), assignment, lambda _: None, lambda: False)


def rows_from(first: int, **columns: Any) -> pa.Table:
    """Return rows of ascending keys, none of them dead, at most 100 s old."""
    plain = {
        "k": range(first, first + ROWS),
        "name": ["é"] * ROWS,
        "v": [n % 7 for n in range(ROWS)],
        "dead": [None] * ROWS,
        "at": [(NOW_S - n % 100) * 1_000_000 for n in range(ROWS)],
        "x": [n / 3 for n in range(ROWS)],
    }
    return pa.table(plain | columns, schema=KEYED)


def fill(folder: Path, tables: Sequence[pa.Table], **options: Any) -> list[str]:
    given = {"row_group_size": ROWS // 2, "compression": "zstd"} | options
    paths = [f"{number}.parquet" for number in range(len(tables))]
    for path, table in zip(paths, tables, strict=True):
        write_file(folder, path, table, **given)
    return paths


def small_groups(**more: Any) -> Any:
    return settings(row_group_bytes=GROUP_BYTES, **more)


def check(folder: Path, table: Table, result: RewriteResult, wanted: pa.Table) -> None:
    """Hold an output against the rows that went in, by our readers and by Spark."""
    (made,) = result.outputs
    assert read_output(table, made.path).equals(wanted)
    (again,) = inspected(table, [made.path])
    assert replace(made, added_at_s=1000.0, job=None) == again
    frame = local_session().read.parquet(str(folder / made.path))
    seen = frame.selectExpr("count(*) n", "sum(k) k", "sum(x) x", "max(at) at").collect()[0]
    assert (seen["n"], seen["k"]) == (wanted.num_rows, sum(wanted["k"].to_pylist()))
    check_counts([folder / made.path], wanted.num_rows)
    assert frame.where("k = 4001").count() == 1
    footer = pq.read_metadata(folder / made.path)
    known = footer.metadata
    assert json.loads(known[b"neve.outputs"]) == [made.path]
    assert known[b"neve.attempt"] == b"attempt-1"
    assert footer.created_by.startswith("neve version ")


@pytest.fixture(params=["here", "large", "many columns"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have a job be stitched by the driver, or by a task, as if it were so large."""
    if request.param != "here":
        bound = "STITCH_HERE_BYTES" if request.param == "large" else "STITCH_HERE_FOOTER_BYTES"
        monkeypatch.setattr(attempt, bound, 1000)
    return str(request.param)


def test_an_append_only_table(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handed, run_tasks = list[Any](), attempt.run_tasks

    def hand(*args: Any) -> Any:
        handed.append(args)
        return run_tasks(*args)

    monkeypatch.setattr(attempt, "run_tasks", hand)
    tables = [rows_from(n * ROWS) for n in (2, 0, 1)]
    paths = fill(tmp_path, tables, write_page_index=True)
    table = bag_table(tmp_path, settings=small_groups(ttl_s=1000.0))
    result = run(table, paths)
    assert len(handed) == (where != "here")
    assert result.kernel == "stitch"
    assert (result.counts.rows_in, result.counts.rows_out) == (3 * ROWS, 3 * ROWS)
    check(tmp_path, table, result, pa.concat_tables(tables))


@pytest.mark.usefixtures("where")
def test_a_keyed_table_whose_inputs_follow_each_other(tmp_path: Path) -> None:
    tables = [rows_from(n * ROWS) for n in (2, 0, 1)]
    table = keyed_table(tmp_path, settings=small_groups())
    result = run(table, fill(tmp_path, tables), purge=b"\x01")
    assert result.kernel == "stitch"
    check(tmp_path, table, result, pa.concat_tables([tables[1], tables[2], tables[0]]))
    footer = pq.read_metadata(tmp_path / result.outputs[0].path).metadata
    assert footer[b"neve.purge"] == b"01"
    assert result.outputs[0].clean


def test_a_cancelled_attempt_copies_no_further(tmp_path: Path) -> None:
    paths = fill(tmp_path, [rows_from(n * ROWS) for n in range(2)])
    table, valves = bag_table(tmp_path, settings=small_groups()), list[Allowance]()

    def cancel(allowance: Allowance) -> None:
        valves.append(allowance)
        allowance.stop()

    assignment = assignment_over(table, paths, now_s=NOW_S)
    with pytest.raises(AttemptCancelledError, match="cancelled while it moved bytes"):
        rewrite(local_session(), assignment, lambda _: None, lambda: False, cancel)
    moved_bytes = valves[0].usage().moved_bytes  # Of the first step: it was copied, then paid.
    assert moved_bytes < 2 * sum((tmp_path / path).stat().st_size for path in paths)
    assert sorted(path.name for path in tmp_path.rglob("*.parquet")) == paths


def test_outputs_are_stitched_again(tmp_path: Path) -> None:
    tables = [rows_from(n * ROWS) for n in range(3)]
    paths = fill(tmp_path, tables)
    table = bag_table(tmp_path, settings=small_groups())
    first = run(table, paths[:2])
    (tmp_path / first.outputs[0].path).rename(tmp_path / "first.parquet")
    second = run(table, ["first.parquet", paths[2]])
    assert second.kernel == "stitch"
    check(tmp_path, table, second, pa.concat_tables(tables))


@pytest.mark.parametrize(
    ("tables", "more"),
    [
        ([rows_from(0), rows_from(ROWS - 1)], {}),  # one key in both
        ([rows_from(0), rows_from(ROWS, dead=[True] + [None] * (ROWS - 1))], {}),
        ([rows_from(0), rows_from(ROWS)], {"ttl_s": 99.5}),
        ([rows_from(0), rows_from(ROWS, at=[None] * ROWS)], {"ttl_s": 1000.0}),
        ([rows_from(0), rows_from(ROWS)], {"codec": "snappy"}),
        ([rows_from(0), rows_from(ROWS).drop_columns("x")], {}),
        ([rows_from(0), rows_from(ROWS).slice(0, ROWS // 2).take(list(range(1999, -1, -1)))], {}),
    ],
    ids=["meet", "tombstone", "expired", "no time", "codec", "columns", "unsorted"],
)
def test_jobs_whose_rows_must_be_read_are_not_stitched(
    tmp_path: Path, tables: list[pa.Table], more: Any
) -> None:
    table = keyed_table(tmp_path, settings=small_groups(**more))
    result = run(table, fill(tmp_path, tables))
    assert result.kernel != "stitch"
    assert len(result.outputs) == 1


def test_small_row_groups_are_written_anew(tmp_path: Path) -> None:
    paths = fill(tmp_path, [rows_from(n * ROWS) for n in range(2)], row_group_size=100)
    table = bag_table(tmp_path, settings=small_groups())
    result = run(table, paths)
    assert result.kernel != "stitch"
    assert pq.read_metadata(tmp_path / result.outputs[0].path).num_row_groups < 20


@pytest.mark.usefixtures("where")
def test_a_damaged_page_index_only_costs_the_short_way(tmp_path: Path) -> None:
    paths = fill(tmp_path, [rows_from(n * ROWS) for n in range(2)], write_page_index=True)
    table = bag_table(tmp_path, settings=small_groups())
    chunk = read_file_layout(open_location(table.location), paths[1]).groups[0].chunks[0]
    assert chunk.offset_index is not None
    with (tmp_path / paths[1]).open("r+b") as file:
        file.seek(chunk.offset_index.start)
        file.write(b"\xff" * chunk.offset_index.size)
    result = run(table, paths)
    assert result.kernel != "stitch"
    assert result.counts.rows_out == 2 * ROWS


def test_a_request_for_another_level_is_heard(tmp_path: Path) -> None:
    paths = fill(tmp_path, [rows_from(n * ROWS) for n in range(2)])
    table = bag_table(tmp_path, settings=small_groups())
    request = Request(id="r-1", table=table.id, output=OutputSpec(codec_level=9))
    assert run(table, paths, request=request).kernel != "stitch"


@pytest.mark.parametrize("make", [bag_table, keyed_table])
def test_files_whose_rows_have_all_expired_are_not_read(
    make: Callable[..., Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "run_tasks", None)  # Spark is not asked.
    old = rows_from(0, at=[(NOW_S - 5000) * 1_000_000] * ROWS)
    paths = fill(tmp_path, [old, old])
    table = make(tmp_path, settings=small_groups(ttl_s=1000.0))
    result = run(table, paths, settled=encode_value(9, KeyType.INT) if table.key else None)
    assert (result.kernel, result.outputs) == ("drop", ())
    assert (result.counts.rows_in, result.counts.expired_dropped) == (2 * ROWS, 2 * ROWS)
    assert (result.dropped is None) == (not table.key)
    (mark,) = (tmp_path / "_neve").rglob("*.parquet")
    footer = pq.read_metadata(mark)
    assert (footer.num_rows, footer.metadata[b"neve.inputs"]) == (0, json.dumps(paths).encode())
