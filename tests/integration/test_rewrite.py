"""Rewrites by real Spark, held against the row rules in plain Python."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import AttemptCancelledError, InputError, RewriteError, VerificationError
from common.model.keys import encode_key, encode_value
from common.model.table import Table
from common.model.tablet import PLUS_INFINITY, Bounds
from common.rows.row_facts import row_hash
from common.rows.rules import DropRule, RowRules
from common.wire import Assignment, OutsideFile
from compactor.core import RewriteProgress, RewriteResult
from compactor.rewrite import attempt, spark_tasks
from compactor.rewrite.attempt import rewrite
from tests.property.test_rows_merge import assert_within
from tests.support.assignments import an_assignment
from tests.support.row_reference import ReferenceMerge, reference_merge
from tests.support.spark_session import local_session
from tests.support.tables_on_disk import (
    KEYED,
    assignment_over,
    bag_table,
    inspected,
    keyed_table,
    random_rows,
    read_output,
    settings,
    write_file,
)

NOW_S = 1_000_000
KERNELS = {"whole": "merge", "ranges": "merge", "memory": "memory", "sql": "sql"}
WAYS = pytest.mark.parametrize("way", KERNELS)


def run(assignment: Assignment) -> RewriteResult:
    return rewrite(local_session(), assignment, lambda _: None, lambda: False)


def take(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have even small jobs cut into ranges, or go the general ways."""
    if way in ("memory", "sql"):
        monkeypatch.setattr(attempt, "kernel_supports", lambda _: False)
    if way in ("ranges", "sql"):
        monkeypatch.setattr(attempt, "IN_MEMORY_BYTES", 0)
        monkeypatch.setattr(spark_tasks, "READ_TASK_BYTES", 4000)


def fill(folder: Path, seed: int, files: int = 5, rows: int = 120) -> list[str]:
    chance = random.Random(seed)
    paths = [f"day={n}/{n}.parquet" for n in range(files)]
    for path in paths:
        write_file(folder, path, pa.Table.from_pylist(random_rows(chance, rows), KEYED))
    return paths


def hash_of(row: Any) -> int:
    return int(row_hash(pa.Table.from_pylist([dict(row)], KEYED))[0])


def plain(rows: Sequence[Any]) -> list[str]:
    """Return rows in a form that can be compared: NaN equals itself, -0 is 0."""
    return [repr({k: 0.0 if v == 0 and k == "x" else v for k, v in row.items()}) for row in rows]


def outputs(table: Table, result: RewriteResult) -> list[dict[str, object]]:
    parts = [read_output(table, file.path) for file in result.outputs]
    return pa.concat_tables(parts).to_pylist() if parts else []


def expected(table: Table, paths: Sequence[str], drop: DropRule | None = None) -> ReferenceMerge:
    rows = [row for path in paths for row in read_output(table, path).to_pylist()]
    return reference_merge(rows, RowRules.of(table), NOW_S, hash_of, drop)


def visible_outputs(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("_neve/**/*.parquet"))


@WAYS
@pytest.mark.parametrize("seed", range(3))
def test_a_keyed_merge_gives_what_the_rules_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, way: str
) -> None:
    take(way, monkeypatch)
    paths = fill(tmp_path, seed)
    table = keyed_table(tmp_path, settings=settings(ttl_s=100.0))
    result = run(assignment_over(table, paths, now_s=NOW_S))

    wanted = expected(table, paths)
    assert plain(outputs(table, result)) == plain(wanted.kept)
    assert result.counts == wanted.counts
    assert (result.dropped, result.kernel) == (None, KERNELS[way])
    (made,) = result.outputs
    (again,) = inspected(table, [made.path])
    assert replace(made, added_at_s=1000.0, job=None) == again


@WAYS
@pytest.mark.parametrize("seed", range(2))
def test_dead_rows_go_only_where_nothing_older_can_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, way: str
) -> None:
    take(way, monkeypatch)
    paths = fill(tmp_path, seed + 10)
    table = keyed_table(tmp_path, settings=settings(ttl_s=100.0))
    types = RowRules.of(table).key_types
    version = RowRules.of(table).version_type
    outside = (
        OutsideFile(
            path="late.parquet",
            key_min=encode_key([5], types),
            key_max=encode_key([20, "zz"], types),
            version_min=encode_value(3, version),
        ),
    )
    settled = encode_value(4, version)
    result = run(
        assignment_over(table, paths, now_s=NOW_S, outside=outside, settled=settled, purge=b"")
    )

    wanted = expected(table, paths, DropRule(settled, outside))
    assert plain(outputs(table, result)) == plain(wanted.kept)
    assert result.counts == wanted.counts
    assert result.counts.tombstones_dropped > 0
    assert result.counts.expired_dropped > 0
    assert_within(wanted.dropped, result.dropped)
    footer = pq.read_metadata(tmp_path / result.outputs[0].path).metadata
    assert wanted.dropped is not None
    assert footer[b"neve.purge"] == wanted.dropped.version_max.hex().encode()


@WAYS
def test_a_row_stays_with_its_delete_until_the_delete_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    take(way, monkeypatch)
    paths = fill(tmp_path, 20)
    table = keyed_table(tmp_path, settings=settings(ttl_s=100.0, keep_deleted_rows=True))
    settled = encode_value(2, RowRules.of(table).version_type)
    result = run(assignment_over(table, paths, now_s=NOW_S, settled=settled))

    wanted = expected(table, paths, DropRule(settled, keeps_deleted=True))
    less = expected(table, paths, DropRule(settled))
    assert plain(outputs(table, result)) == plain(wanted.kept)
    assert (result.counts, result.kernel) == (wanted.counts, KERNELS[way])
    assert result.counts.rows_out > less.counts.rows_out
    (made,) = result.outputs
    (found,) = inspected(table, [made.path])
    assert replace(made, added_at_s=1000.0, job=None) == found, "as a check of storage finds it"
    assert not made.clean
    again = run(assignment_over(table, [file.path for file in result.outputs], now_s=NOW_S))
    assert plain(outputs(table, again)) == plain(wanted.kept)


@WAYS
def test_schemas_unite_by_name_and_widen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    take(way, monkeypatch)
    narrow = {"k": pa.array([1, 2], pa.int32()), "v": [1, 1], "x": pa.array([1, 2], pa.int8())}
    wide = {
        "more": pa.array([b"1", None]),
        "x": pa.array([1 << 40, None], pa.int64()),
        "v": pa.array([2, 1], pa.int16()),
        "k": pa.array([2, 3], pa.int64()),
    }
    write_file(tmp_path, "a.parquet", pa.table(narrow))
    write_file(tmp_path, "b.parquet", pa.table(wide))
    schema = pa.table(wide).schema.set(2, pa.field("v", pa.int64()))
    table = keyed_table(tmp_path, schema, key=("k",), tombstone_column=None, time_column=None)
    files = inspected(table, ["a.parquet", "b.parquet"])
    # The job still has the schema of before: `more` is a column of one file only.
    older = replace(table, schema=table.schema[1:])
    files = [files[0], replace(files[1], schema_id=older.schema_id + 1)]
    result = run(an_assignment(files, table=older, now_s=NOW_S))
    rows = pq.read_table(tmp_path / result.outputs[0].path)
    assert rows.schema.names == ["x", "v", "k", "more"]
    assert rows.to_pylist() == [
        {"x": 1, "v": 1, "k": 1, "more": None},
        {"x": 1 << 40, "v": 2, "k": 2, "more": b"1"},
        {"x": None, "v": 1, "k": 3, "more": None},
    ]


@WAYS
def test_every_type_comes_through_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    take(way, monkeypatch)
    days = [0, -700_000, 20_000]
    values = {
        "u64": pa.array([0, 2**64 - 1, None], pa.uint64()),
        "u8": pa.array([255, None, 0], pa.uint8()),
        "half": pa.array([1.5, None, -0.0], pa.float32()).cast(pa.float16()),
        "f": pa.array([float("nan"), -0.0, None], pa.float32()),
        "day": pa.array(days, pa.date32()),
        "time": pa.array([1, None, 2], pa.time64("us")),
        "ns": pa.array([1, -1, None], pa.timestamp("ns")),
        "zone": pa.array([1, -(10**15), None], pa.timestamp("us", "Europe/Paris")),
        "span": pa.array([5, None, -5], pa.duration("ms")),
        "dec": pa.array(["1.50", "-99999999.99", None]).cast(pa.decimal128(20, 2)),
        "big": pa.array(["1.5", None, "-7"]).cast(pa.decimal256(50, 3)),
        "fixed": pa.array([b"abcd", None, b"\0\0\0\0"], pa.binary(4)),
        "text": pa.array(["", None, "\0é"]),
        "raw": pa.array([b"\xff", b"", None]),
        "list": pa.array([[1, None], [], None], pa.list_(pa.int64())),
        "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        "row": pa.array([{"a b": 1, "c": "x"}, None, {"a b": None, "c": None}]),
        "none": pa.nulls(3),
    }
    rows = pa.table({"k": [1, 2, 3], "v": [1, 1, 1], **values})
    write_file(tmp_path, "a.parquet", rows.slice(0, 2))
    write_file(tmp_path, "b.parquet", rows.slice(2))
    table = keyed_table(
        tmp_path,
        pq.read_schema(tmp_path / "a.parquet"),
        key=("k",),
        tombstone_column=None,
        time_column=None,
    )
    result = run(assignment_over(table, ["a.parquet", "b.parquet"], now_s=NOW_S))
    back = pq.read_table(tmp_path / result.outputs[0].path)
    assert row_hash(back).tolist() == row_hash(rows).tolist()
    assert plain(back.to_pylist()) == plain(rows.to_pylist())


def test_nothing_left_writes_no_output_but_leaves_word_of_it(tmp_path: Path) -> None:
    rows = [{"k": 1, "name": "a", "v": 2, "dead": True}, {"k": 1, "name": "a", "v": 1}]
    write_file(tmp_path, "a.parquet", pa.Table.from_pylist(rows, KEYED))
    table = keyed_table(tmp_path)
    settled = encode_value(9, RowRules.of(table).version_type)
    assignment = assignment_over(table, ["a.parquet"], settled=settled, request="request-1")
    result = run(assignment)

    assert result.outputs == ()
    assert (result.counts.superseded, result.counts.tombstones_dropped) == (1, 1)
    assert result.dropped is not None
    word = pq.read_metadata(tmp_path / assignment.reservation.output_path(0))
    assert word.num_rows == 0
    assert word.metadata[b"neve.attempt"] == b"attempt-1"
    assert word.metadata[b"neve.request"] == b"request-1"
    assert json.loads(word.metadata[b"neve.inputs"]) == ["a.parquet"]
    assert word.metadata[b"neve.purge"] == result.dropped.version_max.hex().encode()


@WAYS
def test_cuts_make_one_file_per_part_with_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    take(way, monkeypatch)
    paths = fill(tmp_path, 7)
    table = keyed_table(tmp_path, settings=settings(row_group_bytes=1000))
    types = RowRules.of(table).key_types
    cuts = tuple(encode_key([at], types) for at in (-5, 10, 30, 90))
    result = run(assignment_over(table, paths, now_s=NOW_S, cuts=cuts))

    assert plain(outputs(table, result)) == plain(expected(table, paths).kept)
    assert [file.path[-9] for file in result.outputs] == ["0", "1", "2", "3"]
    for before, after in zip(result.outputs, result.outputs[1:], strict=False):
        assert before.key_max is not None
        assert after.key_min is not None
        assert before.key_max <= cuts[int(before.path[-9])] < after.key_min


def test_an_append_only_table_keeps_its_rows_but_the_expired(tmp_path: Path) -> None:
    chance = random.Random(3)
    rows = random_rows(chance, 700)
    paths = [f"{n}.parquet" for n in range(7)]
    for n, path in enumerate(paths):
        part = rows[n * 100 : n * 100 + 100] + rows[:3]
        write_file(tmp_path, path, pa.Table.from_pylist(part, KEYED), row_group_size=30)
    table = bag_table(tmp_path, settings=settings(ttl_s=100.0, codec="snappy"))
    result = run(assignment_over(table, paths, now_s=NOW_S))

    wanted = expected(table, paths)
    assert Counter(plain(outputs(table, result))) == Counter(plain(wanted.kept))
    assert result.counts == wanted.counts
    assert result.counts.expired_dropped > 0
    (made,) = result.outputs
    assert (made.key_min, made.version_min, made.clean) == (None, None, False)
    group = pq.read_metadata(tmp_path / made.path).row_group(0)
    assert group.column(0).compression == "SNAPPY"


def test_outputs_carry_what_a_rebuild_needs(tmp_path: Path) -> None:
    paths = fill(tmp_path, 1, files=2)
    table = keyed_table(tmp_path)
    assignment = assignment_over(table, paths, request="request-7", purge=b"\x01\x02")
    result = run(assignment)
    footer = pq.read_metadata(tmp_path / result.outputs[0].path).metadata
    ours = {name: value for name, value in footer.items() if name.startswith(b"neve.")}
    assert ours == {
        b"neve.format": b"1",
        b"neve.table": b"table-1",
        b"neve.tablet": b"last",
        b"neve.job": assignment.job.id.encode(),
        b"neve.attempt": b"attempt-1",
        b"neve.inputs": json.dumps(sorted(paths)).encode(),
        b"neve.outputs": json.dumps([result.outputs[0].path]).encode(),
        b"neve.request": b"request-7",
        b"neve.purge": b"0102",
    }
    made = result.outputs[0]
    assert (made.job, made.request) == (assignment.job.id, "request-7")
    assert made.tombstones > 0
    assert made.tombstones_since_s == 1000.0


def test_each_part_of_a_rewrite_shows_in_its_steps(tmp_path: Path) -> None:
    """Where nothing shows, an attempt that works would look like one that stands still."""
    told: list[RewriteProgress] = []
    assignment = assignment_over(bag_table(tmp_path), fill(tmp_path, 1))
    rewrite(local_session(), assignment, told.append, lambda: False)
    rewriting = next(each.steps for each in told if each.state == "rewriting")
    assert rewriting >= len(assignment.inputs), "each footer that was read is a step"
    verifying = [each.steps for each in told if each.state == "verifying"]
    assert verifying[-1] > verifying[0], "so is each piece of an output that was read back"


def test_progress_is_told_until_the_end(tmp_path: Path) -> None:
    told: list[RewriteProgress] = []
    assignment = assignment_over(keyed_table(tmp_path), fill(tmp_path, 1))
    rewrite(local_session(), assignment, told.append, lambda: False)
    assert [told[0].state, told[-1].state] == ["rewriting", "verifying"]
    assert (told[-1].fraction, told[-1].rows_done) == (1.0, 600)
    assert told[-1].bytes_done == sum(file.size_bytes for file in assignment.inputs)


def test_a_cancelled_attempt_leaves_nothing(tmp_path: Path) -> None:
    asked: list[bool] = []

    def cancelled() -> bool:
        asked.append(True)
        return len(asked) > 1  # Once everything is written.

    assignment = assignment_over(keyed_table(tmp_path), fill(tmp_path, 1))
    with pytest.raises(AttemptCancelledError):
        rewrite(local_session(), assignment, lambda _: None, cancelled)
    assert visible_outputs(tmp_path) == []


class TestFailures:
    """Whatever goes wrong names its file, and leaves the inputs and no output."""

    def broken(
        self, folder: Path, error: type[Exception], assignment: Assignment, says: str
    ) -> None:
        before = {path: path.read_bytes() for path in folder.rglob("*.parquet")}
        with pytest.raises(error, match=says):
            run(assignment)
        assert {path: path.read_bytes() for path in folder.rglob("*.parquet")} == before

    def test_a_missing_input_fails_the_rewrite(self, tmp_path: Path) -> None:
        paths = fill(tmp_path, 1)
        assignment = assignment_over(keyed_table(tmp_path), paths)
        (tmp_path / paths[2]).unlink()
        self.broken(tmp_path, InputError, assignment, "day=2/2.parquet does not exist")

    @WAYS
    def test_an_input_with_damaged_pages(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
    ) -> None:
        take(way, monkeypatch)
        paths = fill(tmp_path, 1)
        assignment = assignment_over(keyed_table(tmp_path), paths)
        data = bytearray((tmp_path / paths[1]).read_bytes())
        data[4:200] = b"\xff" * 196
        (tmp_path / paths[1]).write_bytes(data)
        self.broken(tmp_path, InputError, assignment, "file day=1/1.parquet")

    def test_an_input_without_a_footer(self, tmp_path: Path) -> None:
        paths = fill(tmp_path, 1)
        assignment = assignment_over(keyed_table(tmp_path), paths)
        data = (tmp_path / paths[1]).read_bytes()
        (tmp_path / paths[1]).write_bytes(data[:-6])
        self.broken(tmp_path, InputError, assignment, "file day=1/1.parquet")

    def test_an_input_that_was_replaced(self, tmp_path: Path) -> None:
        paths = fill(tmp_path, 1)
        assignment = assignment_over(keyed_table(tmp_path), paths)
        write_file(tmp_path, paths[0], pq.read_table(tmp_path / paths[0]).slice(1))
        self.broken(tmp_path, InputError, assignment, "has 119 rows, but 120 when it was added")

    def test_an_input_with_a_column_that_the_table_does_not_have(self, tmp_path: Path) -> None:
        write_file(tmp_path, "y.parquet", pa.table({"k": [1], "name": ["a"], "v": [1], "h": [1]}))
        assignment = assignment_over(keyed_table(tmp_path), ["y.parquet"])
        self.broken(tmp_path, InputError, assignment, r"y\.parquet has a column 'h', which")

    def test_more_parts_than_reserved_outputs_fail_the_rewrite(self, tmp_path: Path) -> None:
        cuts = (encode_key([1], RowRules.of(keyed_table(tmp_path)).key_types),)
        paths = fill(tmp_path, 1)
        assignment = assignment_over(keyed_table(tmp_path), paths, cuts=cuts, outputs_max=1)
        self.broken(tmp_path, RewriteError, assignment, "2 outputs, but 1 are reserved")

    def test_an_output_that_cannot_be_written(self, tmp_path: Path) -> None:
        paths = fill(tmp_path, 1)
        (tmp_path / "_neve").write_text("in the way")
        assignment = assignment_over(keyed_table(tmp_path), paths)
        self.broken(tmp_path, RewriteError, assignment, "cannot be written: .*_neve")

    def test_rows_outside_of_the_tablet(self, tmp_path: Path) -> None:
        table = keyed_table(tmp_path)
        paths = fill(tmp_path, 1)
        bounds = Bounds(encode_key([3], RowRules.of(table).key_types), PLUS_INFINITY)
        assignment = assignment_over(table, paths, bounds=bounds)
        self.broken(tmp_path, VerificationError, assignment, "outside its range")
