"""A job of an append-only table that cuts at times: each row is in the output of its time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import RewriteError, VerificationError
from common.model.job import time_outputs_max
from common.wire import Assignment
from compactor.rewrite.attempt import stitch_plan
from compactor.rewrite.general_merge import rewrite_bag
from compactor.rewrite.outputs import rows_of_files
from compactor.rewrite.plan.rewrite_plan import RewritePlan, make_plan
from compactor.rewrite.verify import verify
from tests.support.fast_and_slow import first_fast
from tests.support.tables_on_disk import (
    KEYED,
    assignment_over,
    bag_table,
    keyed_table,
    read_output,
    settings,
    write_file,
)

NOW_S = 1_000_000.0
MICROS = 1_000_000


def write(
    folder: Path, path: str, times_s: Sequence[float | None], schema: pa.Schema = KEYED
) -> None:
    """Write rows with these times; `k` numbers them within the file."""
    columns: dict[str, Any] = {name: [None] * len(times_s) for name in schema.names}
    columns["k"] = range(len(times_s))
    if schema is KEYED:
        stamps = [None if at is None else round(at * MICROS) for at in times_s]
        columns["at"] = pa.array(stamps, pa.int64()).cast(schema.field("at").type)
    else:
        columns["at"] = pa.array(times_s, schema.field("at").type)
    write_file(folder, path, pa.table(columns, schema=schema), row_group_size=7)


def job(folder: Path, cuts_at_s: tuple[float, ...], rows_max: int = 0, **more: Any) -> Assignment:
    schema = more.pop("schema", KEYED)
    table = bag_table(folder, schema, settings=settings(ttl_s=more.pop("ttl_s", None)))
    paths = sorted(path.name for path in folder.glob("*.parquet"))
    rows = sum(pq.read_metadata(folder / path).num_rows for path in paths)
    outputs = more.pop("outputs", time_outputs_max(len(cuts_at_s), rows, rows_max))
    made = assignment_over(table, paths, now_s=NOW_S, outputs_max=outputs)
    cut = replace(made.job, outputs_expected=outputs, cuts_at_s=cuts_at_s, output_rows_max=rows_max)
    return replace(made, job=cut)


def run(plan: RewritePlan, assignment: Assignment) -> list[list[float | None]]:
    """Run a job; return the times of each output in seconds, in the order of its outputs."""
    result = rewrite_bag(plan)
    verify(plan, result, lambda: False)
    return [
        [None if at is None else at.timestamp() for at in rows["at"].to_pylist()]
        for rows in (read_output(assignment.table, file.path) for file in result.files)
    ]


def test_a_row_is_in_the_output_that_begins_at_its_time_or_before(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [5, 99.999999, 100, 250, None, 100.000001])
    write(tmp_path, "b.parquet", [199.999999, 200, 100, 1])
    assignment = job(tmp_path, (100.0, 200.0))
    plan = make_plan(assignment)
    assert stitch_plan(plan, assignment) is None
    assert run(plan, assignment) == [
        [5, 99.999999, 1],
        [100, 100.000001, 199.999999, 100],
        [250, 200],
        [None],
    ]


def test_a_part_without_rows_has_no_file(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [5, 350])
    assignment = job(tmp_path, (100.0, 200.0, 300.0))
    plan = make_plan(assignment)
    result = rewrite_bag(plan)
    assert [file.part for file in result.files] == [0, 3]
    assert [facts.time_min_s for _, facts in verify(plan, result, lambda: False)] == [5.0, 350.0]


@pytest.mark.parametrize(
    ("rows_max", "sizes"), [(0, [10, 25, 1]), (10, [10, 9, 9, 7, 1]), (12, [10, 9, 9, 7, 1])]
)
def test_a_part_with_many_rows_has_several_files_of_about_one_size(
    tmp_path: Path, rows_max: int, sizes: list[int]
) -> None:
    write(tmp_path, "a.parquet", [*range(10), *range(100, 115)])
    write(tmp_path, "b.parquet", [None, *range(100, 110)])
    assignment = job(tmp_path, (100.0,), rows_max)
    found = run(make_plan(assignment), assignment)
    assert sorted(map(len, found)) == sorted(sizes)


def test_times_may_be_dates_or_numbers(tmp_path: Path) -> None:
    def schema(arrow: pa.DataType) -> pa.Schema:
        return KEYED.set(KEYED.get_field_index("at"), pa.field("at", arrow))

    cases: tuple[tuple[pa.DataType, Sequence[float | None], float], ...] = (
        (pa.date32(), [1, 2, 3, None], 2 * 86_400.0),
        (pa.int64(), [1, 2, 3, None], 2.0),
        (pa.float64(), [1.5, 2.0, 2.5, float("nan"), float("inf")], 2.0),
    )
    for arrow, times, cut in cases:
        folder = tmp_path / str(arrow)
        folder.mkdir()
        write(folder, "a.parquet", times, schema(arrow))
        assignment = job(folder, (cut,), schema=schema(arrow))
        plan = make_plan(assignment)
        result = rewrite_bag(plan)
        found = verify(plan, result, lambda: False)
        assert [file.part for file in result.files] == [0, 1, 2], arrow
        assert [facts.rows for _, facts in found] == [1, 2, len(times) - 3], arrow


def test_a_file_without_the_time_column_has_no_times(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [1, 150])
    lacking = KEYED.remove(KEYED.get_field_index("at"))
    write_file(tmp_path, "b.parquet", pa.table({n: [None] * 4 for n in lacking.names}, lacking))
    assignment = job(tmp_path, (100.0,), rows_max=3)
    plan = make_plan(assignment)
    assert rows_of_files(plan) == (1, 1, 2)
    assert run(plan, assignment) == [[None] * 2, [1], [150], [None] * 2]


def test_expired_rows_are_in_no_output(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [NOW_S - 5000, NOW_S - 10, NOW_S - 500])
    assignment = job(tmp_path, (NOW_S - 100,), ttl_s=1000.0)
    assert run(make_plan(assignment), assignment) == [[NOW_S - 500], [NOW_S - 10]]


def test_where_all_rows_have_expired_one_empty_file_tells_a_rebuild(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [NOW_S - 5000])
    plan = make_plan(job(tmp_path, (NOW_S - 100,), ttl_s=1000.0))
    result = rewrite_bag(plan)
    assert result.files == ()
    told = pq.read_metadata(tmp_path / plan.output.paths[0]).metadata
    assert plan.output.paths[0].encode() in told[b"neve.outputs"]


def test_the_last_file_tells_all_of_them(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [1, 2, 150, 250])
    plan = make_plan(job(tmp_path, (100.0, 200.0), rows_max=1))
    files = rewrite_bag(plan).files
    told = [pq.read_metadata(tmp_path / file.path).metadata.get(b"neve.outputs") for file in files]
    assert [each is not None for each in told] == [False, False, False, True]
    assert all(file.path.encode() in (told[-1] or b"") for file in files)


def test_a_table_with_a_key_or_without_times_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [1])
    made = job(tmp_path, (100.0,))
    keyed = replace(made, table=keyed_table(tmp_path))
    with pytest.raises(RewriteError, match="cuts outputs at times, but table events has a key"):
        make_plan(keyed)
    untimed = replace(made, table=replace(made.table, time_column=None))
    with pytest.raises(RewriteError, match="table events has no time column"):
        make_plan(untimed)


def test_no_more_files_than_are_reserved(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [1, 150, 250])
    plan = make_plan(job(tmp_path, (100.0, 200.0), outputs=2))
    with pytest.raises(RewriteError, match="more than the 2 reserved outputs"):
        rewrite_bag(plan)
    assert [path.name for path in tmp_path.rglob("*.parquet")] == ["a.parquet"]


def test_open_outputs_hold_a_bounded_number_of_rows(tmp_path: Path) -> None:
    """What is over the bound is written as a row group, though it is a small one."""
    write(tmp_path, "a.parquet", [*range(40), *range(100, 140)])
    plan = make_plan(job(tmp_path, (100.0,)))

    def row_groups(held_bytes: int) -> list[int]:
        little = replace(plan.memory, group_bytes=0, held_bytes=held_bytes, step_bytes=1000)
        files = rewrite_bag(replace(plan, memory=little)).files
        found = [pq.read_metadata(tmp_path / file.path).num_row_groups for file in files]
        for file in files:
            (tmp_path / file.path).unlink()
        return found

    assert row_groups(10**9) == [1, 1]
    assert min(row_groups(0)) > 1


def test_an_output_with_a_row_of_another_time_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [1, 150, None])
    plan = make_plan(job(tmp_path, (100.0,)))
    result = rewrite_bag(plan)
    for cut in (0.5, 200.0):
        other = replace(plan, output=replace(plan.output, cuts_at_s=(cut,)))
        with pytest.raises(VerificationError, match=r"has times from .* outside its part"):
            verify(other, result, lambda: False)


@pytest.mark.parametrize("seed", first_fast(4, range(40), slow=10))
def test_all_rows_are_there_once(tmp_path: Path, seed: int) -> None:
    """Whatever order rows come in, and however little may be held."""
    chance = random.Random(seed)
    for number in range(chance.randint(1, 4)):
        times = [
            None if chance.random() < 0.1 else float(chance.randrange(0, 1000))
            for _ in range(chance.randrange(0, 60))
        ]
        write(tmp_path, f"{number}.parquet", times)
    cuts = tuple(sorted(float(at) for at in chance.sample(range(-10, 1010), chance.randint(1, 9))))
    rows_max = chance.choice([0, 1, 5, 20])
    assignment = job(tmp_path, cuts, rows_max)
    plan = make_plan(assignment)
    little = replace(plan.memory, group_bytes=chance.choice([1, 10**9]), held_bytes=0)
    plan = replace(plan, memory=little)
    found = run(plan, assignment)
    assert sum(map(len, found)) == plan.inputs.rows
    assert all(0 < len(times) <= (rows_max or plan.inputs.rows) for times in found)
    for times in found:
        parts = {None if at is None else sum(cut <= at for cut in cuts) for at in times}
        assert len(parts) == 1
