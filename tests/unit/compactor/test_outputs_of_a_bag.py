"""A job of an append-only table with several outputs: each gets the same number of rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from common.errors import RewriteError
from common.wire import Assignment
from compactor.rewrite.general_merge import rewrite_bag
from compactor.rewrite.plan.rewrite_plan import make_plan
from compactor.rewrite.stitch_job import stitch_plan
from compactor.rewrite.verify import verify
from tests.support.tables_on_disk import (
    KEYED,
    assignment_over,
    bag_table,
    read_output,
    settings,
    write_file,
)

NOW_S = 1_000_000.0


def job(folder: Path, outputs: int, *, ttl_s: float | None = None, old: int = 0) -> Assignment:
    for path, start in (("0.parquet", 0), ("1.parquet", 70)):
        rows = range(start, start + (70 if start == 0 else 33))
        times = [0 if row < old else int(NOW_S) * 1_000_000 for row in rows]
        columns = {name: [None] * len(rows) for name in KEYED.names} | {"k": rows, "at": times}
        write_file(folder, path, pa.table(columns, schema=KEYED))
    table = bag_table(folder, settings=settings(ttl_s=ttl_s))
    made = assignment_over(table, ["0.parquet", "1.parquet"], now_s=NOW_S, outputs_max=outputs)
    return replace(made, job=replace(made.job, outputs_expected=outputs))


@pytest.mark.parametrize(("outputs", "rows"), [(1, [103]), (2, [52, 51]), (4, [26, 26, 26, 25])])
def test_rows_are_divided_evenly(tmp_path: Path, outputs: int, rows: list[int]) -> None:
    assignment = job(tmp_path, outputs)
    plan = make_plan(assignment)
    if outputs > 1:
        assert stitch_plan(plan, assignment) is None
    result = rewrite_bag(plan)
    assert [facts.rows for _, facts in verify(plan, result, lambda: False)] == rows
    read = pa.concat_tables(read_output(assignment.table, file.path) for file in result.files)
    assert read["k"].to_pylist() == list(range(103))


def test_what_has_expired_leaves_later_outputs_out(tmp_path: Path) -> None:
    plan = make_plan(job(tmp_path, 4, ttl_s=1000.0, old=70))
    result = rewrite_bag(plan)
    verify(plan, result, lambda: False)
    assert [file.rows for file in result.files] == [26, 7]


def test_no_more_outputs_than_are_reserved(tmp_path: Path) -> None:
    assignment = job(tmp_path, 2)
    more = replace(assignment, job=replace(assignment.job, outputs_expected=3))
    with pytest.raises(RewriteError, match="cuts 3 outputs, but 2 are reserved"):
        make_plan(more)
