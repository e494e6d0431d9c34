"""A job of an append-only table with several outputs: each gets the same number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from common.errors import RewriteError, VerificationError
from common.model.request import Request, TransformKind, TransformSpec
from common.wire import Assignment
from compactor.rewrite import general_merge
from compactor.rewrite.attempt import stitch_plan
from compactor.rewrite.general_merge import (
    copy_bag_part,
    copy_whole_bag,
    join_bag_parts,
    rewrite_bag,
)
from compactor.rewrite.outputs import TaskResult
from compactor.rewrite.plan.rewrite_plan import RewritePlan, make_plan
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


def in_parts(plan: RewritePlan, *parts: Sequence[int]) -> TaskResult:
    copied = [copy_bag_part(plan, part, f"part-{at}.parquet") for at, part in enumerate(parts)]
    return join_bag_parts(plan, [part for part in copied if part is not None])


@pytest.mark.parametrize("text", ["", "k < 3 or k > 100", "k >= 0"])
def test_parts_have_the_rows_of_one_task(tmp_path: Path, text: str) -> None:
    """Rows expire, are deleted or stay; all rows of one part may go, or those of all parts."""
    (tmp_path / "folder").mkdir()
    assignment = job(tmp_path, 1, ttl_s=1000.0, old=70 if text.startswith("k < 3") else 5)
    if text:
        assignment = with_deletion(assignment, text)
    plan = make_plan(assignment, str(tmp_path / "folder"))
    whole = rewrite_bag(plan)
    wanted = [facts for _, facts in verify(plan, whole, lambda: False)]
    rows = [read_output(assignment.table, file.path) for file in whole.files]
    (tmp_path / plan.output.paths[0]).unlink()
    result = in_parts(plan, [0], [1])
    assert [facts for _, facts in verify(plan, result, lambda: False)] == wanted
    assert result.counts == whole.counts
    assert [read_output(assignment.table, file.path) for file in result.files] == rows
    assert (tmp_path / plan.output.paths[0]).exists(), "a rebuild learns that inputs are replaced"


def test_a_part_that_only_spark_can_evaluate(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    plan = make_plan(with_deletion(job(tmp_path, 1), "1 / k > 0"), str(tmp_path / "folder"))
    assert copy_bag_part(plan, [0], "part-0.parquet") is None
    assert copy_whole_bag(plan) is None
    assert not (tmp_path / plan.output.paths[0]).exists()


def test_a_part_that_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    plan = make_plan(job(tmp_path, 1), str(tmp_path / "folder"))
    monkeypatch.setattr(general_merge, "digest_of", lambda table: table.num_rows)
    rewritten = general_merge.filter_bag
    monkeypatch.setattr(general_merge, "filter_bag", lambda *args: rewritten(*args).slice(1))
    with pytest.raises(VerificationError, match="has other rows than the 70 written"):
        copy_bag_part(plan, [0], "part-0.parquet")


def with_deletion(assignment: Assignment, text: str) -> Assignment:
    spec = TransformSpec(kind=TransformKind.DELETE_WHERE, text=text)
    request = Request(id="request-1", table="table-1", transform=spec)
    held = replace(assignment.reservation, request=request.id)
    return replace(assignment, request=request, reservation=held)
