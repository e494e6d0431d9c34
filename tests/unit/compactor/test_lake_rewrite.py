"""The rewrite of a lake table's files: deletes applied, offsets kept, row groups copied."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.control_settings import CatalogSettings
from common.errors import ConflictError, InputError, RewriteError
from common.lake.source import LakeOutput
from compactor.lake_commit import LakeResult, packed_result, unpacked_result
from compactor.rewrite.general_merge import RowComparison
from compactor.rewrite.lake import GroupSpan, divide, read_lake_inputs
from tests.support.delta_tables import DeltaTable
from tests.support.independent_reader import independent_reader
from tests.support.lake_attempts import Rewritten, assignment_of, rewrite, service_table

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("day", pa.string())])
LARGE = 140_000
"""A row group of that many rows is large enough to be copied."""


def rows(first: int, count: int, **columns: pa.Array) -> pa.Table:
    texts = [f"text {number % 97}" for number in range(count)]
    return pa.table({"id": pa.array(range(first, first + count)), "text": texts, **columns})


def new_table(folder: Path) -> DeltaTable:
    return DeltaTable.create(folder / "sales", SCHEMA, ["day"])


def stored(delta: DeltaTable, output: LakeOutput | str) -> pa.Table:
    path = output if isinstance(output, str) else output.path
    return pq.read_table(delta.folder / path, partitioning=None)


def ids_of(delta: DeltaTable, made: Rewritten) -> list[int]:
    ids: list[int] = []
    for output in made.result.outputs:
        ids += stored(delta, output)["id"].to_pylist()
    return ids


def check_offsets(delta: DeltaTable, made: Rewritten) -> None:
    """Every row that an offset names lies there."""
    positions = made.result.planned.positions
    checked = 0
    for output in made.result.outputs:
        ids = stored(delta, output)["id"].to_pylist()
        for run in output.offsets:
            before = stored(delta, run.path)["id"].to_pylist()
            deleted = set(positions.get(run.path, np.zeros(0)).tolist())
            kept = [before[at] for at in range(run.first, run.end) if at not in deleted]
            assert ids[run.start : run.start + len(kept)] == kept
            checked += len(kept)
    assert checked == made.counts.rows_out


# ------------------------------------------------------------------------------------------- Divide


def test_an_output_ends_where_an_input_ends() -> None:
    assert divide([[10], [10], [10], [10]], 2) == (
        (GroupSpan(0, 0, 1), GroupSpan(1, 0, 1)),
        (GroupSpan(2, 0, 1), GroupSpan(3, 0, 1)),
    )


def test_only_an_input_larger_than_an_output_is_divided() -> None:
    assert divide([[5, 5], [100, 100, 100], [5]], 3) == (
        (GroupSpan(0, 0, 2), GroupSpan(1, 0, 1)),
        (GroupSpan(1, 1, 2),),
        (GroupSpan(1, 2, 3), GroupSpan(2, 0, 1)),
    )


@pytest.mark.parametrize("seed", range(50))
def test_each_row_group_is_in_one_output(seed: int) -> None:
    chance = Random(seed)
    live = [
        [chance.choice([0, 1, 7, 100]) for _ in range(chance.randint(0, 4))]
        for _ in range(chance.randint(1, 8))
    ]
    parts = chance.randint(1, 5)
    outputs = divide(live, parts)
    assert 1 <= len(outputs) <= parts
    groups = [
        (span.at, group)
        for spans in outputs
        for span in spans
        for group in range(span.first, span.end)
    ]
    assert groups == [(at, group) for at, own in enumerate(live) for group in range(len(own))]
    assert {span.at for spans in outputs for span in spans} == set(range(len(live)))


# ------------------------------------------------------------------------------------------ Rewrite


def test_deleted_rows_are_left_out_and_others_keep_their_order(tmp_path: Path) -> None:
    delta = new_table(tmp_path)
    paths = [delta.append(rows(n * 1000, 1000), {"day": "a"}) for n in range(3)]
    delta.append(rows(5000, 10), {"day": "b"})
    gone = [0, 7, 999, *range(1000, 1500), 2999]
    delta.delete(gone)
    made = rewrite(assignment_of(delta, paths), tmp_path / "attempt")
    assert made.counts.rows_in == 3000
    assert made.counts.tombstones_dropped == len(gone)
    by_path = [row for path in sorted(paths) for row in stored(delta, path)["id"].to_pylist()]
    assert ids_of(delta, made) == [row for row in by_path if row not in set(gone)]
    (output,) = made.result.outputs
    assert output.partition == (("day", "a"),)
    assert sorted(output.inputs) == sorted(paths)
    assert stored(delta, output).column_names == ["id", "text"]
    assert json.loads(output.stats)["numRecords"] == 3000 - len(gone)
    check_offsets(delta, made)


def test_large_row_groups_without_deletes_are_copied_as_bytes(tmp_path: Path) -> None:
    delta = new_table(tmp_path)
    options = {"row_group_size": LARGE, "compression": "gzip"}
    large = delta.append(rows(0, 3 * LARGE), {"day": "a"}, **options)
    small = delta.append(rows(9 * LARGE, 50), {"day": "a"}, **options)
    delta.delete([LARGE + 5])
    made = rewrite(assignment_of(delta, [large, small]), tmp_path / "attempt")
    at = sorted([large, small]).index(large)
    assert made.plan.copied[at] == (True, False, True)
    assert made.plan.copied[1 - at] == (False,)
    (output,) = made.result.outputs
    before = (delta.folder / large).read_bytes()
    after = (delta.folder / output.path).read_bytes()
    group = pq.read_metadata(delta.folder / large).row_group(0).column(0)
    start = group.dictionary_page_offset or group.data_page_offset
    assert before[start : start + group.total_compressed_size] in after
    assert set(ids_of(delta, made)) == {
        *range(3 * LARGE),
        *range(9 * LARGE, 9 * LARGE + 50),
    } - {LARGE + 5}
    check_offsets(delta, made)


def test_rows_that_a_task_cannot_hold_are_read_twice(tmp_path: Path) -> None:
    delta = new_table(tmp_path)
    path = delta.append(rows(0, 200_000), {"day": "a"}, row_group_size=50_000)
    delta.delete(range(0, 200_000, 10))
    made = rewrite(assignment_of(delta, [path]), tmp_path / "attempt", 256 * 1024**2)
    assert made.plan.rewrite.memory.in_memory_bytes < 180_000 * 16
    assert ids_of(delta, made) == [row for row in range(200_000) if row % 10]


def test_tables_are_compared_wherever_they_are_cut() -> None:
    table = pa.table({"x": [1.0, float("nan"), 3.0, 4.0, 5.0]})
    for cuts in ([5], [2, 3], [1, 1, 3], [4, 1]):
        ends = np.cumsum([0, *cuts]).tolist()
        pieces = [table.slice(begin, end - begin) for begin, end in pairwise(ends)]
        comparison = RowComparison(pieces)
        assert comparison.matches(table.slice(0, 3))
        assert comparison.matches(table.slice(3))
        assert not comparison.matches(table.slice(0, 1))
    assert not RowComparison([table]).matches(pa.table({"x": [1.0, float("nan"), 3.5]}))
    assert not RowComparison([table]).matches(pa.table({"x": [1.0, 2.0, 3.0]}))


def test_an_added_column_is_null_and_a_widened_one_is_converted(tmp_path: Path) -> None:
    delta = DeltaTable.create(tmp_path / "sales", pa.schema([("id", pa.int64())]))
    older = pa.table({"id": pa.array([1, 2], pa.int32()), "strange": ["x", "y"]})
    paths = [delta.append(older)]
    delta.add_column(pa.schema([("id", pa.int64()), ("more", pa.string())]))
    paths.append(delta.append(pa.table({"id": [3], "more": ["new"]})))
    made = rewrite(assignment_of(delta, paths), tmp_path / "attempt")
    (output,) = made.result.outputs
    written = stored(delta, output)
    assert written.schema.equals(pa.schema([("id", pa.int64()), ("more", pa.string())]))
    assert sorted(written.to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "more": None},
        {"id": 2, "more": None},
        {"id": 3, "more": "new"},
    ]


DAY = datetime.date(2026, 1, 2)
MIDNIGHT = datetime.datetime.fromisoformat("2026-01-02T00:00:00")
NOON = datetime.datetime.fromisoformat("2026-01-02T12:00:00")
FRACTION = Decimal("1.25")
WIDENED: list[tuple[pa.DataType, Any, pa.DataType, Any, Any]] = [
    (pa.int8(), -128, pa.int16(), -128, 300),
    (pa.int8(), 7, pa.int64(), 7, 2**40),
    (pa.int16(), -5, pa.int32(), -5, 70_000),
    (pa.int32(), 2**31 - 1, pa.int64(), 2**31 - 1, 2**40),
    (pa.int8(), 3, pa.float64(), 3.0, 0.5),
    (pa.int32(), 2**31 - 1, pa.float64(), 2**31 - 1.0, 0.5),
    (pa.float32(), 0.1, pa.float64(), float(np.float32(0.1)), 0.1),
    (pa.int32(), -7, pa.decimal128(12, 2), Decimal("-7.00"), Decimal("0.25")),
    (pa.int64(), 2**62, pa.decimal128(22, 1), Decimal(f"{2**62}.0"), Decimal("0.5")),
    (pa.decimal128(5, 2), FRACTION, pa.decimal128(9, 2), FRACTION, Decimal("0.25")),
    (pa.decimal128(5, 2), FRACTION, pa.decimal128(20, 4), Decimal("1.2500"), Decimal("0.25")),
    (pa.date32(), DAY, pa.timestamp("us"), MIDNIGHT, NOON),
    (pa.list_(pa.int32()), [1, None], pa.list_(pa.int64()), [1, None], [2**40]),
    (pa.list_(pa.int16()), [1, None], pa.list_(pa.float64()), [1.0, None], [0.5]),
    (
        pa.struct([("x", pa.int32()), ("y", pa.date32())]), {"x": 1, "y": DAY},
        pa.struct([("x", pa.float64()), ("y", pa.date32())]), {"x": 1.0, "y": DAY},
        {"x": 0.5, "y": DAY},
    ),
]  # fmt: skip
"""A type, a value of it, the wider type, the same value there, and another one."""


@pytest.mark.parametrize(
    ("narrow", "value", "wide", "same", "other"),
    WIDENED,
    ids=[f"{narrow} to {wide}" for narrow, _, wide, _, _ in WIDENED],
)
def test_columns_that_the_log_has_widened_get_the_type_of_the_table(
    tmp_path: Path, narrow: pa.DataType, value: Any, wide: pa.DataType, same: Any, other: Any
) -> None:
    """DuckDB reads the table alike before; deltalake and Polars do not know the feature."""
    before, after = (pa.schema([("id", pa.int64()), ("v", kind)]) for kind in (narrow, wide))
    delta = DeltaTable.create(tmp_path / "sales", before)
    ids = pa.array([1, 2, 3], pa.int64())
    paths = [delta.append(pa.table([ids, pa.array([value, None, value], narrow)], schema=before))]
    delta.widen(after, ["typeWidening", "timestampNtz"])
    last = pa.array([4, 5], pa.int64())
    paths.append(delta.append(pa.table([last, pa.array([other, None], wide)], schema=after)))
    delta.delete([3])
    made = rewrite(assignment_of(delta, paths), tmp_path / "attempt")

    (output,) = made.result.outputs
    written = stored(delta, output)
    assert written.schema.field("v").type.equals(wide)
    values = dict(zip(*written.to_pydict().values(), strict=True))
    assert values == {1: same, 2: None, 4: other, 5: None}
    query = "select id, v::varchar from {} order by id"
    read = independent_reader().ask
    expected = read(query.format("delta_scan(?)"), [str(delta.folder)])
    assert read(query.format("read_parquet(?)"), [str(delta.folder / output.path)]) == expected


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (pa.int64(), pa.float64()),
        (pa.date32(), pa.timestamp("us", "UTC")),
        (pa.float64(), pa.float32()),
        (pa.string(), pa.int64()),
    ],
    ids=str,
)
def test_other_changes_of_a_type_fail_the_job(
    tmp_path: Path, narrow: pa.DataType, wide: pa.DataType
) -> None:
    delta = DeltaTable.create(tmp_path / "sales", pa.schema([("v", narrow)]))
    path = delta.append(pa.table({"v": pa.array([None], narrow)}))
    delta.add_column(pa.schema([("v", wide)]))
    with pytest.raises(InputError, match="neither can be widened to the other"):
        rewrite(assignment_of(delta, [path]), tmp_path / "attempt")


def test_a_value_that_a_widened_type_does_not_hold_fails_the_job(tmp_path: Path) -> None:
    delta = DeltaTable.create(tmp_path / "sales", pa.schema([("v", pa.int32())]))
    path = delta.append(pa.table({"v": pa.array([100], pa.int32())}))
    delta.add_column(pa.schema([("v", pa.decimal128(3, 1))]))
    with pytest.raises(InputError, match=r"column v of file .* cannot be converted"):
        rewrite(assignment_of(delta, [path]), tmp_path / "attempt")


def test_moments_of_96_bits_are_written_in_microseconds(tmp_path: Path) -> None:
    at = pa.timestamp("us", "UTC")
    schema = pa.schema([("id", pa.int64()), ("at", at)])
    delta = DeltaTable.create(tmp_path / "sales", schema)
    distant = datetime.datetime(4000, 1, 1, tzinfo=datetime.UTC)
    table = pa.table({"id": [1], "at": pa.array([distant], at)})
    path = delta.append(table, use_deprecated_int96_timestamps=True)
    assert pq.read_metadata(delta.folder / path).schema.column(1).physical_type == "INT96"
    made = rewrite(assignment_of(delta, [path]), tmp_path / "attempt")
    (output,) = made.result.outputs
    metadata = pq.read_metadata(delta.folder / output.path)
    assert metadata.schema.column(1).physical_type == "INT64"
    assert stored(delta, output).to_pylist() == [{"id": 1, "at": distant}]
    assert json.loads(output.stats)["minValues"]["at"] == "4000-01-01T00:00:00.000Z"


def test_several_outputs_name_their_own_inputs(tmp_path: Path) -> None:
    delta = new_table(tmp_path)
    paths = [delta.append(rows(n * 100, 100), {"day": "a"}) for n in range(4)]
    delta.delete([5, 250])
    made = rewrite(assignment_of(delta, paths, outputs=2), tmp_path / "attempt")
    first, second = made.result.outputs
    assert sorted(first.inputs + second.inputs) == sorted(paths)
    assert len(first.inputs) == len(second.inputs) == 2
    assert len(ids_of(delta, made)) == 398
    check_offsets(delta, made)


def test_a_file_without_a_live_row_is_in_no_output(tmp_path: Path) -> None:
    delta = new_table(tmp_path)
    paths = [delta.append(rows(n * 100, 100), {"day": "a"}) for n in range(2)]
    delta.delete(range(100))
    made = rewrite(assignment_of(delta, paths), tmp_path / "attempt")
    (output,) = made.result.outputs
    assert output.inputs == (paths[1],)
    delta.delete(range(100, 200))
    made = rewrite(assignment_of(delta, paths, attempt="att-2"), tmp_path / "another")
    assert made.result.outputs == made.files == ()
    assert made.counts.tombstones_dropped == 200
    assert made.result.planned.deletes.keys() == set(paths)


def test_a_file_that_left_the_table_is_a_conflict(tmp_path: Path) -> None:
    delta = new_table(tmp_path)
    paths = [delta.append(rows(n * 100, 100), {"day": "a"}) for n in range(2)]
    assignment = assignment_of(delta, paths)
    delta.delete_by_copy([5])
    with pytest.raises(ConflictError, match="has left the table before version"):
        read_lake_inputs(assignment, CatalogSettings(), lambda: None)


def test_another_table_of_that_place_is_a_conflict(tmp_path: Path) -> None:
    delta = new_table(tmp_path)
    path = delta.append(rows(0, 100), {"day": "a"})
    table = service_table(delta)
    assert table.lake is not None
    other = replace(table, lake=replace(table.lake, table_id="another"))
    with pytest.raises(ConflictError, match="but another was attached"):
        read_lake_inputs(assignment_of(delta, [path], table=other), CatalogSettings(), lambda: None)


def test_files_of_two_partitions_are_refused(tmp_path: Path) -> None:
    delta = new_table(tmp_path)
    paths = [delta.append(rows(n, 1), {"day": day}) for n, day in enumerate("ab")]
    with pytest.raises(RewriteError, match="more than one partition"):
        read_lake_inputs(assignment_of(delta, paths), CatalogSettings(), lambda: None)


def test_a_file_with_other_rows_than_logged_is_refused(tmp_path: Path) -> None:
    delta = new_table(tmp_path)
    path = delta.append(rows(0, 100), {"day": "a"})
    pq.write_table(rows(0, 99), delta.folder / path)
    with pytest.raises(InputError, match="has 99 rows, but its table says 100"):
        rewrite(assignment_of(delta, [path]), tmp_path / "attempt")


def test_positions_stay_the_same_in_packed_form(tmp_path: Path) -> None:
    delta = new_table(tmp_path)
    path = delta.append(rows(0, 1000), {"day": "a"})
    delta.delete([0, 3, 4, 999])
    inputs = read_lake_inputs(assignment_of(delta, [path]), CatalogSettings(), lambda: None)
    result = unpacked_result(packed_result(LakeResult(inputs.planned, ())))
    assert result.planned.positions[path].tolist() == [0, 3, 4, 999]
    assert result.planned.positions[path].dtype == np.uint64
    many = np.arange(3_000_000, dtype=np.uint64)
    planned = replace(inputs.planned, positions={path: many})
    assert len(packed_result(LakeResult(planned, ()))) < 1_000_000
