"""Transforms of user requests by real Spark: which rows, which values, once, or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import RewriteError, TransformError
from common.model.file import DataFile
from common.model.keys import encode_key, encode_value
from common.model.request import KeyRange, OutputSpec, Request, TransformKind, TransformSpec
from common.model.table import Table
from common.parquet.location import Location
from common.rows.row_facts import row_hash
from common.rows.rules import DropRule, RowRules
from compactor.core import RewriteResult
from compactor.rewrite import attempt, general_merge, spark_tasks, transform
from compactor.rewrite.attempt import rewrite
from compactor.rewrite.plan.rewrite_plan import RewritePlan
from tests.support.assignments import an_assignment
from tests.support.row_reference import reference_merge
from tests.support.spark_session import local_session
from tests.support.tables_on_disk import (
    KEYED,
    bag_table,
    inspected,
    keyed_table,
    random_rows,
    read_output,
    settings,
    write_file,
)

NOW_S = 1_000_000
WAYS = pytest.mark.parametrize("way", ["merge", "stored", "memory", "sql"])
Row = dict[str, Any]


def asked(kind: TransformKind, text: str, **more: Any) -> Request:
    spec = TransformSpec(kind=kind, text=text)
    return Request(id="request-1", table="table-1", transform=spec, **more)


def deleting(text: str, **more: Any) -> Request:
    return asked(TransformKind.DELETE_WHERE, text, **more)


def setting(text: str, **more: Any) -> Request:
    return asked(TransformKind.SET, text, **more)


def plugged(name: str) -> Request:
    spec = TransformSpec(kind=TransformKind.PLUGIN, name=name)
    return Request(id="request-1", table="table-1", transform=spec)


def run(
    table: Table, files: Sequence[DataFile], request: Request, name: str = "1", **more: Any
) -> RewriteResult:
    assignment = an_assignment(
        tuple(files), table=table, request=request, attempt=f"attempt-{name}", now_s=NOW_S, **more
    )
    return rewrite(local_session(), assignment, lambda _: None, lambda: False)


def small_steps(
    read: Callable[..., Iterator[pa.Table]], rows: int, location: Location, path: str, _: int,
    *names: Any, **more: Any,
) -> Iterator[pa.Table]:  # fmt: skip
    return read(location, path, rows, *names, **more)


def plan_for_spark(make_plan: Callable[..., RewritePlan], *args: Any) -> RewritePlan:
    """Have Spark work out what the kernel could."""
    plan = make_plan(*args)
    return plan if plan.rules.transform is None else attempt.without_native(plan)


def take(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have jobs not merged by the kernel, even small ones sorted by Spark, in small steps."""
    if way == "merge":
        return
    if way == "stored":
        monkeypatch.setattr(attempt, "make_plan", partial(plan_for_spark, attempt.make_plan))
        return
    monkeypatch.setattr(attempt, "kernel_supports", lambda _: False)
    for module, rows_max in ((transform, 70), (general_merge, 50)):
        in_steps = partial(small_steps, module.read_tables, rows_max)
        monkeypatch.setattr(module, "read_tables", in_steps)
    if way == "sql":
        monkeypatch.setattr(attempt, "IN_MEMORY_BYTES", 0)
        monkeypatch.setattr(spark_tasks, "READ_TASK_BYTES", 4000)


def fill(folder: Path, seed: int, files: int = 3) -> list[str]:
    chance = random.Random(seed)
    paths = [f"{n}.parquet" for n in range(files)]
    for path in paths:
        write_file(folder, path, pa.Table.from_pylist(random_rows(chance, 120), KEYED))
    return paths


def rows_of(table: Table, paths: Sequence[str]) -> list[Row]:
    return [row for path in paths for row in read_output(table, path).to_pylist()]


def outputs(table: Table, result: RewriteResult) -> list[Row]:
    return rows_of(table, [file.path for file in result.outputs])


def plain(rows: Sequence[Any]) -> list[str]:
    return [repr({k: 0.0 if v == 0 and k == "x" else v for k, v in row.items()}) for row in rows]


def merged(table: Table, rows: Sequence[Row], drop: DropRule | None = None) -> Any:
    def hash_of(row: Any) -> int:
        return int(row_hash(pa.Table.from_pylist([dict(row)], KEYED))[0])

    return reference_merge(rows, RowRules.of(table), NOW_S, hash_of, drop)


def tombstone(row: Row) -> Row:
    return {**row, "dead": True, "x": None}


@WAYS
def test_delete_where_leaves_tombstones_in_the_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    take(way, monkeypatch)
    table, paths = keyed_table(tmp_path, settings=settings(ttl_s=100.0)), fill(tmp_path, 1)
    types = RowRules.of(table).key_types
    key_range = KeyRange(encode_key([10], types), encode_key([30, "a"], types))
    request = deleting("x = 1.5 or v = 5", range=key_range)

    def changed(row: Row) -> Row:
        inside = key_range.holds(encode_key([row["k"], row["name"]], types))
        wanted = row["x"] == 1.5 or row["v"] == 5
        return tombstone(row) if inside and wanted and not row["dead"] else row

    before = rows_of(table, paths)
    wanted = merged(table, [changed(row) for row in before])
    result = run(table, inspected(table, paths), request)
    assert plain(outputs(table, result)) == plain(wanted.kept)
    assert plain(wanted.kept) != plain(merged(table, before).kept)
    gone = sum(changed(row) is not row for row in before)
    kernel = "merge" if way == "stored" else way
    assert (result.counts, result.kernel) == (replace(wanted.counts, deleted=gone), kernel)
    assert result.outputs[0].request == "request-1"
    footer = pq.read_metadata(tmp_path / result.outputs[0].path).metadata
    assert footer[b"neve.request"] == b"request-1"


@WAYS
def test_rows_of_a_part_that_was_cancelled_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A tablet that a cancelled range only meets goes on without the keys of that range."""
    take(way, monkeypatch)
    table, paths = keyed_table(tmp_path), fill(tmp_path, 1)
    types = RowRules.of(table).key_types
    cancelled = (
        KeyRange(until=encode_key([10], types)),
        KeyRange(encode_key([20], types), encode_key([30, "a"], types)),
    )
    request = deleting("v < 6", cancelled_ranges=cancelled)

    def changed(row: Row) -> Row:
        key = encode_key([row["k"], row["name"]], types)
        inside = not any(part.holds(key) for part in cancelled)
        return tombstone(row) if inside and row["v"] < 6 and not row["dead"] else row

    before = rows_of(table, paths)
    wanted = merged(table, [changed(row) for row in before])
    result = run(table, inspected(table, paths), request)
    assert plain(outputs(table, result)) == plain(wanted.kept)
    assert plain(wanted.kept) != plain(merged(table, before).kept)


def test_set_changes_live_rows_and_ties_are_decided_afterwards(tmp_path: Path) -> None:
    table, paths = keyed_table(tmp_path), fill(tmp_path, 2)
    request = setting("x = case when v > 2 then v * 10 else x end")

    def changed(row: Row) -> Row:
        return {**row, "x": 10.0 * row["v"]} if row["v"] > 2 and not row["dead"] else row

    before = rows_of(table, paths)
    wanted = merged(table, [changed(row) for row in before])
    result = run(table, inspected(table, paths), request)
    assert plain(outputs(table, result)) == plain(wanted.kept)
    live = sum(not row["dead"] for row in before)
    assert result.counts == replace(wanted.counts, changed=live)


def test_fresh_tombstones_go_where_nothing_older_can_return(tmp_path: Path) -> None:
    rows = [{"k": 1, "name": "a", "v": 2, "x": 1.0}, {"k": 2, "name": "a", "v": 1}]
    write_file(tmp_path, "a.parquet", pa.Table.from_pylist(rows, KEYED))
    table = keyed_table(tmp_path)
    files = inspected(table, ["a.parquet"])
    kept = run(table, files, deleting("x > 0"))
    assert (kept.outputs[0].tombstones, kept.outputs[0].tombstones_since_s) == (1, NOW_S)
    settled = encode_value(2, RowRules.of(table).version_type)
    gone = run(table, files, deleting("x > 0"), "2", settled=settled)
    assert (gone.counts.tombstones_dropped, gone.counts.rows_out) == (1, 1)
    assert gone.dropped is not None


@pytest.mark.parametrize("way", ["merge", "stored"], ids=["by polars", "by spark"])
def test_an_append_only_table_loses_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    take(way, monkeypatch)
    paths = fill(tmp_path, 3)
    table = bag_table(tmp_path, settings=settings(ttl_s=150.0))
    before = rows_of(table, paths)
    left = [row for row in before if row["v"] != 3]
    result = run(table, inspected(table, paths), deleting("v = 3"))
    wanted = merged(table, left)
    assert sorted(plain(outputs(table, result))) == sorted(plain(wanted.kept))
    lost = len(before) - len(left)
    counts = replace(wanted.counts, rows_in=len(before), transform_dropped=lost, deleted=lost)
    assert result.counts == counts
    assert counts.transform_dropped > 0
    assert counts.balanced

    added = run(table, inspected(table, paths), setting("v = v + 1, x = null"), "2")
    values = sorted(row["v"] for row in outputs(table, added))
    assert values == sorted(row["v"] + 1 for row in merged(table, before).kept)
    assert (added.counts.changed, added.kernel) == (added.counts.rows_in, "bag")


@pytest.mark.parametrize("make_table", [keyed_table, bag_table])
def test_values_that_turn_out_to_be_sparks_do_not_leave_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_table: Callable[..., Table]
) -> None:
    """Polars meets a character that is not ASCII's, after other rows have been changed."""
    monkeypatch.setattr(attempt, "IN_MEMORY_BYTES", 0)
    table, paths = make_table(tmp_path), fill(tmp_path, 7)
    before = rows_of(table, paths)
    result = run(table, inspected(table, paths), setting("x = length(upper(name)) + 1"))

    def value(name: str | None) -> float | None:
        return None if name is None else len(name) + 1.0

    changed = [
        row if table.key and row["dead"] else {**row, "x": value(row["name"])} for row in before
    ]
    wanted = merged(table, changed).kept if table.key else changed
    assert sorted(plain(outputs(table, result))) == sorted(plain(wanted))
    live = sum(not (table.key and row["dead"]) for row in before)
    kernel = "merge" if table.key else "bag"
    assert (result.counts.changed, result.kernel) == (live, kernel)


def test_no_row_is_transformed_twice(tmp_path: Path) -> None:
    rows = [{"k": n, "name": "a", "v": 1, "x": float(n)} for n in range(6)]
    for at in range(3):
        part = pa.Table.from_pylist(rows[2 * at : 2 * at + 2], KEYED)
        write_file(tmp_path, f"{at}.parquet", part)
    table = keyed_table(tmp_path)
    first, second, third = inspected(table, ["0.parquet", "1.parquet", "2.parquet"])
    request = setting("x = x + 100")
    between = run(table, [first, second], request).outputs[0]
    # Another request's mark is no reason to leave a file alone.
    end = run(table, [between, replace(third, request="request-0")], request, "2")
    assert [row["x"] for row in outputs(table, end)] == [100.0 + n for n in range(6)]
    again = run(table, end.outputs, request, "3")
    assert [row["x"] for row in outputs(table, again)] == [100.0 + n for n in range(6)]


MISSING = r"^transform nope cannot be used on compactor host \S+: .*'nope' is not installed"


@pytest.mark.parametrize(
    ("way", "request_", "says"),
    [
        (
            "sql",
            setting("x = 1 / v"),
            r"^set x = 1 / v: failed for a row: \[DIVIDE_BY_ZERO\] .*\(at column 9: 1 / v\)$",
        ),
        (
            "memory",
            deleting("cast(name as int) = 1"),
            r"\[CAST_INVALID_INPUT\] The value '.*\(at column 14: cast\(name as int\)\)$",
        ),
        (
            "merge",
            setting("x = 1 / v"),
            r"^set x = 1 / v: failed for a row: \[DIVIDE_BY_ZERO\] .*\(at column 9: 1 / v\)$",
        ),
        (
            "merge",
            deleting("cast(name as int) = 1"),
            r"\[CAST_INVALID_INPUT\] The value '.*\(at column 14: cast\(name as int\)\)$",
        ),
        (
            "append-only",
            setting("x = 1 / v"),
            r"^set x = 1 / v: failed for a row: \[DIVIDE_BY_ZERO\] .*\(at column 9: 1 / v\)$",
        ),
        ("memory", setting("x = 1, nome = 2"), "request-1: .*no column nome"),
        ("memory", plugged("nope"), MISSING),
        ("sql", plugged("nope"), MISSING),
    ],
    ids=[
        "division",
        "cast",
        "division in the kernel",
        "cast in the kernel",
        "append-only",
        "no column",
        "missing plug-in",
        "missing plug-in, in Spark",
    ],
)
def test_a_failure_is_loud_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, request_: Request, says: str
) -> None:
    make_table = bag_table if way == "append-only" else keyed_table
    take("merge" if way == "append-only" else way, monkeypatch)
    table, paths = make_table(tmp_path), fill(tmp_path, 4)
    with pytest.raises(TransformError, match=says):
        run(table, inspected(table, paths), request_)
    assert list(tmp_path.glob("_neve/**/*.parquet")) == []


def test_a_row_outside_of_the_range_cannot_fail_the_job(tmp_path: Path) -> None:
    rows = [{"k": n, "name": "a", "v": n, "dead": n == 2, "x": 1.0} for n in (0, 1, 2)]
    write_file(tmp_path, "a.parquet", pa.Table.from_pylist(rows, KEYED))
    table = keyed_table(tmp_path)
    start = encode_key([1], RowRules.of(table).key_types)
    # Neither k = 0, which lies outside, nor k = 2, which is a tombstone, is worked out.
    request = setting("x = 10 / (k * (2 - k))", range=KeyRange(start))
    result = run(table, inspected(table, ["a.parquet"]), request)
    assert [row["x"] for row in outputs(table, result)] == [1.0, 10.0, 1.0]


def test_types_that_spark_does_not_have(tmp_path: Path) -> None:
    values = {
        "u64": pa.array([0, 2**64 - 1, None], pa.uint64()),
        "u8": pa.array([255, None, 0], pa.uint8()),
        "ns": pa.array([1_001, -1, None], pa.timestamp("ns")),
        "ms": pa.array([5, None, -5], pa.timestamp("ms", "Europe/Paris")),
        "fixed": pa.array([b"abcd", None, b"\0\0\0\0"], pa.binary(4)),
        "big": pa.array(["1.5", None, "-7"]).cast(pa.decimal256(50, 3)),
        "dec": pa.array(["1.50", None, "-9.99"]).cast(pa.decimal128(20, 2)),
        "list": pa.array([[1, None], [], None], pa.list_(pa.int64())),
        "row": pa.array([{"a b": 1, "at": 3}, None, {"a b": None, "at": None}]),
        "neve_row": pa.array(["x", None, ""]),
        "day": pa.array([0, None, -7], pa.date32()),
        "none": pa.nulls(3),
    }
    rows = pa.table({"k": [1, 2, 3], "v": [1, 1, 1], **values})
    write_file(tmp_path, "a.parquet", rows)
    # A file from before the columns were there.
    write_file(
        tmp_path, "b.parquet", rows.select(["k", "v"]).set_column(0, "k", pa.array([4, 5, 6]))
    )
    table = keyed_table(
        tmp_path,
        pq.read_schema(tmp_path / "a.parquet"),
        key=("k",),
        tombstone_column=None,
        time_column=None,
    )
    text = """
        neve_row = case when u64 = 18446744073709551615 or u8 = 255 then 'yes' else 'no' end,
        dec = case when big is null and list is null then 1 else dec + row.`a b` end,
        ns = case when ns = timestamp '1970-01-01 00:00:00.000001' then now() end,
        ms = case when ms < timestamp '1970-01-01 00:00:00' then now() else ms end,
        day = coalesce(day, date '2000-01-01')
    """
    result = run(table, inspected(table, ["a.parquet", "b.parquet"]), setting(text))
    back = pq.read_table(tmp_path / result.outputs[0].path)
    changed = {
        "neve_row": pa.array(["yes", "yes", "no"] + 3 * ["no"]),
        "dec": pa.array(["2.50", None, None] + 3 * ["1.00"]).cast(pa.decimal128(20, 2)),
        "ns": pa.array([NOW_S * 10**9, None, None] + 3 * [None], pa.timestamp("ns")),
        "ms": pa.array([5, None, NOW_S * 1000] + 3 * [None], pa.timestamp("ms", "Europe/Paris")),
        "day": pa.array([0, 10_957, -7] + 3 * [10_957], pa.date32()),
    }
    for name in back.column_names:
        column = back.column(name)
        if name in changed:
            assert column.to_pylist() == changed[name].to_pylist(), name
        elif name not in ("k", "v"):
            assert (
                column[:3].cast(rows.schema.field(name).type).to_pylist()
                == rows.column(name).to_pylist()
            ), name
            assert column[3:].null_count == 3, name


def test_a_request_says_how_outputs_are_written(tmp_path: Path) -> None:
    paths = fill(tmp_path, 5)
    table = keyed_table(
        tmp_path,
        settings=settings(
            configurer="by-size", configurer_options={"threshold": "1KB", "codec": "gzip"}
        ),
    )
    files = inspected(table, paths)
    result = rewrite(
        local_session(), an_assignment(files, table=table), lambda _: None, lambda: False
    )
    group = pq.read_metadata(tmp_path / result.outputs[0].path).row_group(0)
    assert group.column(0).compression == "GZIP"
    wish = Request(id="request-1", table="table-1", output=OutputSpec(codec="snappy"))
    result = run(table, files, wish, "2")
    group = pq.read_metadata(tmp_path / result.outputs[0].path).row_group(0)
    assert group.column(0).compression == "SNAPPY"


@WAYS
def test_a_value_that_the_table_does_not_allow_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    take(way, monkeypatch)
    schema = KEYED.set(5, KEYED.field("x").with_nullable(nullable=False))
    table, paths = keyed_table(tmp_path, schema), fill(tmp_path, 4)
    with pytest.raises(TransformError, match="a value is null, but column x must not be null"):
        run(table, inspected(table, paths), setting("x = case when v = 3 then null else 1.0 end"))
    assert not list(tmp_path.rglob("_neve/**/*.parquet"))


def test_a_job_without_its_request_is_not_done(tmp_path: Path) -> None:
    table, paths = keyed_table(tmp_path), fill(tmp_path, 6, files=1)
    assignment = an_assignment(inspected(table, paths), table=table, request=deleting("v = 1"))
    for request in (None, Request(id="request-2", table="table-1")):
        wrong = replace(assignment, request=request)
        with pytest.raises(RewriteError, match="belongs to request request-1, but came with"):
            rewrite(local_session(), wrong, lambda _: None, lambda: False)
