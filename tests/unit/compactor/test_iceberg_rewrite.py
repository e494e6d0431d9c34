"""The rewrite of an Iceberg table's files: deletes of both kinds, columns by their field ids."""

from __future__ import annotations

import json
import time
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from common.errors import InputError
from common.lake.iceberg.write import stored_columns
from common.lake.source import Answer, Commit, SortKey
from common.rows.conform import FIELD_ID, ONLY_VALUE, field_id, project
from compactor.rewrite.lake_sort import merged
from tests.support.iceberg_tables import IcebergTable, sqlite_catalog
from tests.support.independent_reader import independent_reader
from tests.support.lake_attempts import (
    Rewritten,
    access_of,
    assignment_of,
    rewrite,
    snapshot_of,
    source_of,
)

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("day", pa.string())])
LARGE = 140_000
"""A row group of that many rows is large enough to be copied."""


def rows(first: int, count: int, day: str = "a") -> pa.Table:
    texts = [f"text {number % 97}" for number in range(count)]
    ids = pa.array(range(first, first + count), pa.int64())
    return pa.table({"id": ids, "text": texts, "day": [day] * count})


def new_table(folder: Path, schema: pa.Schema | Schema = SCHEMA, **properties: str) -> IcebergTable:
    return IcebergTable.create(sqlite_catalog(folder / "lake"), "t", schema, properties=properties)


def rewritten(table: IcebergTable, folder: Path, **more: Any) -> Rewritten:
    """Rewrite all live files."""
    paths = sorted(snapshot_of(table).files)
    return rewrite(assignment_of(table, paths, **more), folder, access=access_of(table))


def stored(table: IcebergTable, path: str) -> pa.Table:
    return table.stored(f"{table.table.location()}/{path}")


def rows_of(table: IcebergTable, made: Rewritten, *names: str) -> Counter[tuple[Any, ...]]:
    """Return the rows of all outputs, with their counts."""
    outputs = [stored(table, output.path) for output in made.result.outputs]
    lists = [pa.concat_tables(outputs)[name].to_pylist() for name in names]
    return Counter(zip(*lists, strict=True))


def ids_in(path: Path) -> dict[str, int]:
    """Return the identifiers of all fields of a file by their paths."""
    numbers: dict[str, int] = {}

    def see(field: pa.Field, prefix: str) -> None:
        name = f"{prefix}{field.name}"
        number = field_id(field)
        if number is not None:
            numbers[name] = number
        if pa.types.is_nested(field.type):
            for at in range(field.type.num_fields):
                see(field.type.field(at), f"{name}.")

    for field in pq.read_schema(path):
        see(field, "")
    return numbers


def test_rows_deleted_by_position_and_by_value_are_left_out(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for number in range(3):
        table.append(rows(number * 100, 100))
    table.delete([0, 1, 150, 299])
    table.delete([50, 51, 250], single=False)
    table.delete_equal(pa.table({"id": [7, 8, 150, 210]}))
    table.delete_equal(pa.table({"text": ["text 3"], "day": ["a"]}))
    made = rewritten(table, tmp_path / "attempt")
    expected = independent_reader().iceberg_rows(table.metadata, "id", "text", "day")
    assert rows_of(table, made, "id", "text", "day") == expected
    assert made.counts.tombstones_dropped == 300 - sum(expected.values())
    planned = made.result.planned
    assert planned.version == 7
    assert set(planned.sequences.values()) == {1, 2, 3}
    assert {sequence for pairs in planned.equality.values() for sequence, _ in pairs} == {6, 7}
    assert sum(map(len, planned.positions.values())) == 7
    assert sum(map(len, planned.matched.values())) == 4 + 3


def test_offsets_count_the_rows_of_both_deletes(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for number in range(4):
        table.append(rows(number * 100, 100))
    table.delete([5, 105, 250])
    table.delete_equal(pa.table({"id": [6, 105, 399]}))
    made = rewritten(table, tmp_path / "attempt", outputs=2)
    planned, checked = made.result.planned, 0
    for output in made.result.outputs:
        ids = stored(table, output.path)["id"].to_pylist()
        for run in output.offsets:
            before = stored(table, run.path)["id"].to_pylist()
            none = np.zeros(0, np.uint64)
            gone = {
                *planned.positions.get(run.path, none).tolist(),
                *planned.matched.get(run.path, none).tolist(),
            }
            kept = [before[at] for at in range(run.first, run.end) if at not in gone]
            assert ids[run.start : run.start + len(kept)] == kept
            checked += len(kept)
    assert checked == made.counts.rows_out == 400 - 5


def test_a_row_that_came_after_an_equality_delete_stays(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(rows(0, 10))
    table.delete_equal(pa.table({"id": [4, 5]}))
    table.append(rows(4, 1))
    made = rewritten(table, tmp_path / "attempt")
    assert sorted(rows_of(table, made, "id")) == [(row,) for row in range(10) if row != 5]


def test_outputs_have_field_ids_and_metrics(tmp_path: Path) -> None:
    table = new_table(tmp_path, **{"write.metadata.metrics.column.text": "counts"})
    table.append(rows(0, 100))
    table.append(rows(100, 100))
    made = rewritten(table, tmp_path / "attempt")
    (output,) = made.result.outputs
    path = Path(table.table.location().removeprefix("file://"), output.path)
    assert ids_in(path) == {"id": 1, "text": 2, "day": 3}
    metrics = json.loads(output.stats)
    assert metrics["value_counts"] == {"1": 200, "2": 200, "3": 200}
    assert metrics["lower_bounds"].keys() == metrics["upper_bounds"].keys() == {"1", "3"}
    assert output.partition == (("spec", "0"), ("partition", ""))


def test_renamed_dropped_added_and_widened_columns(tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "name", StringType(), required=False),
        NestedField(3, "count", IntegerType(), required=False),
        NestedField(4, "old", StringType(), required=False),
    )
    table = new_table(tmp_path, schema)
    older = {"id": [1, 2], "name": ["x", "y"], "old": ["o", "p"]}
    table.append(pa.table({**older, "count": pa.array([1, None], pa.int32())}))
    with table.table.update_schema() as update:
        update.rename_column("name", "title")
        update.update_column("count", LongType())
        update.delete_column("old")
        update.move_first("count")
    with table.table.update_schema() as update:
        update.add_column("name", DoubleType())
        update.add_column("old", LongType())
    new = {"count": [2**40], "id": [3], "title": ["z"], "name": [0.5], "old": [9]}
    table.append(pa.table(new))
    names = ("count", "id", "title", "name", "old")
    expected = independent_reader().iceberg_rows(table.metadata, *names)
    assert expected == Counter(
        [(1, 1, "x", None, None), (None, 2, "y", None, None), (2**40, 3, "z", 0.5, 9)]
    )
    made = rewritten(table, tmp_path / "attempt")
    assert rows_of(table, made, *names) == expected
    (output,) = made.result.outputs
    assert stored(table, output.path).column_names == list(names)


@pytest.mark.parametrize("is_partition", [False, True], ids=["", "of a partition"])
@pytest.mark.parametrize(
    ("narrow", "wide", "value", "other"),
    [
        (IntegerType(), LongType(), 2**31 - 1, 2**40),
        (FloatType(), DoubleType(), 0.5, 0.1),
        (DecimalType(9, 2), DecimalType(18, 2), Decimal("1234567.25"), Decimal("123456789012.25")),
    ],
    ids=["int", "float", "decimal"],
)
def test_a_promoted_column_is_committed_in_the_type_of_the_table(
    tmp_path: Path, narrow: Any, wide: Any, value: Any, other: Any, is_partition: bool
) -> None:
    columns = [NestedField(1, "id", LongType()), NestedField(2, "v", narrow)]
    table = new_table(tmp_path, Schema(*columns))
    if is_partition:
        with table.table.update_spec() as update:
            update.add_identity("v")

    def append(ids: list[int], values: list[Any]) -> None:
        table.append(pa.table([ids, values], schema=table.table.schema().as_arrow()))

    append([1, 2], [value] * 2)
    with table.table.update_schema() as change:
        change.update_column("v", wide)
    append([3, 4], [value] * 2)
    append([5], [value if is_partition else other])
    table.delete([2, 3])
    before = independent_reader().iceberg_rows(table.metadata, "id", "v")
    assert {row for row, _ in before} == {1, 4, 5}

    made = rewritten(table, tmp_path / "attempt")
    (output,) = made.result.outputs
    source = source_of(table)
    head = source.load()
    removed = tuple(head.files[path] for path in output.inputs)
    commit = Commit(
        head, "att-1", made.result.outputs, removed, now_s=time.time(), sequence=head.version
    )
    assert source.send(commit) is Answer.COMMITTED
    assert set(table.live()) == {f"{table.table.location()}/{output.path}"}
    assert independent_reader().iceberg_rows(table.metadata, "id", "v") == before
    rows = table.table.scan(row_filter=EqualTo("v", value)).to_arrow().sort_by("id").to_pydict()
    same = [1, 4, 5] if is_partition else [1, 4]
    assert rows == {"id": same, "v": [value] * len(same)}
    wanted = table.table.schema().as_arrow().field("v").type
    assert stored(table, output.path).schema.field("v").type == wanted


def test_nested_fields_are_found_by_their_ids(tmp_path: Path) -> None:
    point = StructType(
        NestedField(3, "x", DoubleType(), required=False),
        NestedField(4, "y", DoubleType(), required=False),
    )
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "point", point, required=False),
        NestedField(5, "tags", ListType(6, LongType(), False), required=False),
        NestedField(7, "by name", MapType(8, StringType(), 9, point_of(10)), required=False),
    )
    table = new_table(tmp_path, schema)
    value: dict[str, Any] = {
        "point": {"x": 1.0, "y": 2.0},
        "tags": [1, None],
        "by name": [("k", {"inner": "v", "other": None}), ("n", {"inner": None, "other": 5})],
    }
    arrow = table.table.schema().as_arrow()
    table.append(pa.Table.from_pylist([{"id": 1, **value}, {"id": 2, "by name": []}], arrow))
    with table.table.update_schema() as update:
        update.rename_column("point.x", "east")
        update.rename_column("by name.value.inner", "outer")
        update.delete_column("point.y")
        update.add_column(("point", "y"), StringType())
    new = {"id": 3, "point": {"east": 3.0, "y": "north"}, "tags": [], "by name": []}
    table.append(pa.Table.from_pylist([new], table.table.schema().as_arrow()))
    made = rewritten(table, tmp_path / "attempt")
    (output,) = made.result.outputs
    path = Path(table.table.location().removeprefix("file://"), output.path)
    numbers = ids_in(path)
    assert {name: numbers[name] for name in ("point.east", "tags.element")} == {
        "point.east": table.table.schema().find_field("point.east").field_id,
        "tags.element": table.table.schema().find_field("tags.element").field_id,
    }
    assert stored(table, output.path).sort_by("id").to_pylist() == [
        {
            "id": 1,
            "point": {"east": 1.0, "y": None},
            "tags": [1, None],
            "by_x20name": [
                ("k", {"outer": "v", "other": None}),
                ("n", {"outer": None, "other": 5}),
            ],
        },
        {"id": 2, "point": None, "tags": None, "by_x20name": []},
        {"id": 3, "point": {"east": 3.0, "y": "north"}, "tags": [], "by_x20name": []},
    ]


def point_of(number: int) -> StructType:
    return StructType(
        NestedField(number, "inner", StringType(), required=False),
        NestedField(number + 1, "other", LongType(), required=False),
    )


def numbered(name: str, arrow: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, arrow, metadata={FIELD_ID: str(number)})


def test_nulls_stay_nulls_at_every_depth() -> None:
    inner = pa.struct([numbered("gone", pa.int32(), 9), numbered("x", pa.int32(), 4)])
    key = pa.field("key", pa.string(), False, {FIELD_ID: "6"})
    older = pa.schema(
        [
            numbered("pt", inner, 3),
            numbered("ns", pa.map_(key, numbered("value", inner, 7)), 5),
            numbered("ls", pa.large_list(numbered("element", inner, 2)), 1),
        ]
    )
    wide = pa.struct([numbered("y", pa.int64(), 4), numbered("z", pa.string(), 8)])
    newer = pa.schema(
        [
            numbered("lists", pa.list_(numbered("element", wide, 2)), 1),
            numbered("point", wide, 3),
            numbered("named", pa.map_(key, numbered("value", wide, 7)), 5),
        ]
    )
    one, other = {"gone": 1, "x": 5}, {"gone": 2, "x": None}
    rows = [
        {"pt": one, "ns": [("a", None), ("b", other)], "ls": [one, None]},
        {"pt": None, "ns": None, "ls": None},
        {"pt": other, "ns": [], "ls": []},
    ]
    table = pa.Table.from_pylist(rows, older).rename_columns(["point", "named", "lists"])
    new_one, new_other = {"y": 5, "z": None}, {"y": None, "z": None}
    expected = [
        {"lists": [new_one, None], "point": new_one, "named": [("a", None), ("b", new_other)]},
        {"lists": None, "point": None, "named": None},
        {"lists": [], "point": new_other, "named": []},
    ]
    for first in range(3):
        part = project(table.slice(first), older, newer, "x.parquet")
        assert part.schema.equals(newer, check_metadata=True)
        assert part.to_pylist() == expected[first:]


def test_large_row_groups_without_deletes_are_copied_as_bytes(tmp_path: Path) -> None:
    table = new_table(tmp_path, **{"write.parquet.compression-codec": "snappy"})
    large, _ = table.append(rows(0, LARGE)), table.append(rows(LARGE, 50))
    made = rewritten(table, tmp_path / "attempt")
    assert sorted(flag for flags in made.plan.copied for flag in flags) == [False, True]
    (output,) = made.result.outputs
    path = Path(table.table.location().removeprefix("file://"), output.path)
    group = pq.read_metadata(large[0].removeprefix("file://")).row_group(0).column(0)
    start = group.dictionary_page_offset or group.data_page_offset
    pages = Path(large[0].removeprefix("file://")).read_bytes()
    assert pages[start : start + group.total_compressed_size] in path.read_bytes()
    assert ids_in(path) == {"id": 1, "text": 2, "day": 3}
    assert pq.read_metadata(path).row_group(1).column(0).compression == "SNAPPY"
    assert sum(rows_of(table, made, "id").values()) == LARGE + 50


def test_another_codec_of_the_table_is_written(tmp_path: Path) -> None:
    table = new_table(tmp_path, **{"write.parquet.compression-codec": "gzip"})
    table.append(rows(0, LARGE))
    with table.table.transaction() as transaction:
        codec = {"write.parquet.compression-codec": "zstd", "write.parquet.compression-level": "9"}
        transaction.set_properties(codec)
    made = rewritten(table, tmp_path / "attempt")
    assert made.plan.copied == ((False,),)
    assert made.plan.rewrite.output.settings.codec_level == 9
    (output,) = made.result.outputs
    path = Path(table.table.location().removeprefix("file://"), output.path)
    assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"


def test_types_with_a_form_of_their_own_in_files(tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "key", UUIDType(), required=False),
        NestedField(3, "price", DecimalType(9, 2), required=False),
    )
    table = new_table(tmp_path, schema)
    arrow, key = table.table.schema().as_arrow(), UUID(int=7)
    for first in (0, LARGE):
        keys = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([key.bytes], pa.binary(16)))
        prices = pa.array([3], pa.int64()).cast(pa.decimal128(19, 0)).cast(pa.decimal128(9, 2))
        columns = [pa.array(range(first, first + LARGE)), *(take(c) for c in (keys, prices))]
        table.append(pa.table(columns, schema=arrow))
    table.delete([5])
    made = rewritten(table, tmp_path / "attempt")
    (output,) = made.result.outputs
    path = Path(table.table.location().removeprefix("file://"), output.path)
    assert ids_in(path) == {"id": 1, "key": 2, "price": 3}
    columns = pq.read_metadata(path).schema
    assert str(columns.column(1).logical_type) == "UUID"
    assert columns.column(2).physical_type == "INT32"
    assert made.counts.rows_out == 2 * LARGE - 1


def take(column: pa.Array) -> pa.Array:
    return column.take(pa.array(np.zeros(LARGE, np.int64)))


def test_imported_files_get_their_ids_from_the_name_mapping(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(rows(0, 5))
    path = tmp_path / "lake" / "warehouse" / "db" / "t" / "imported.parquet"
    pq.write_table(rows(5, 5), path)
    table.table.add_files([path.as_uri()])
    with table.table.update_schema() as update:
        update.rename_column("text", "words")
    expected = independent_reader().iceberg_rows(table.metadata, "id", "words", "day")
    made = rewritten(table, tmp_path / "attempt")
    assert rows_of(table, made, "id", "words", "day") == expected
    assert sum(expected.values()) == 10
    with table.table.transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    with pytest.raises(InputError, match="no field ids, and its table has no name mapping"):
        rewritten(table, tmp_path / "another", attempt="att-2")


def test_a_column_that_only_the_partition_has(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    with table.table.update_spec() as update:
        update.add_identity("day")
    metadata, partition = table.table.metadata, (("spec", "1"), ("partition", "day=a%2Fb"))
    in_file = [SCHEMA.field(at) for at in range(2)]
    numbered = pa.schema(
        [field.with_metadata({"PARQUET:field_id": str(at + 1)}) for at, field in enumerate(in_file)]
    )
    columns = stored_columns(metadata, "x.parquet", partition, numbered)
    assert [field_id(field) for field in columns] == [1, 2, 3]
    assert columns.field("day").metadata[ONLY_VALUE] == b"a/b"
    with_day = stored_columns(metadata, "x.parquet", partition, snapshot_of(table).file_schema)
    assert all(ONLY_VALUE not in field.metadata for field in with_day)


def test_partitions_of_several_specs(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "day"))
    catalog = sqlite_catalog(tmp_path / "lake")
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "text", StringType(), required=False),
        NestedField(3, "day", StringType(), required=False),
    )
    table = IcebergTable.create(catalog, "t", schema, spec)
    table.append(rows(0, 10, "a/b"))
    table.append(rows(10, 10, "a/b"))
    with table.table.update_spec() as update:
        update.remove_field("day")
    table.append(rows(20, 10, "a/b"))
    files = snapshot_of(table).files
    old = [path for path, file in files.items() if file.partition[0] == ("spec", "0")]
    assert len(old) == 2
    made = rewrite(assignment_of(table, old), tmp_path / "attempt", access=access_of(table))
    (output,) = made.result.outputs
    assert output.partition == (("spec", "0"), ("partition", "day=a%2Fb"))
    assert rows_of(table, made, "id", "day") == Counter((row, "a/b") for row in range(20))


# --------------------------------------------------------------------------------------- Sort order


def sorted_table(folder: Path) -> IcebergTable:
    """Return a table that is sorted by a text, descending with nulls last, and an id."""
    order = SortOrder(
        SortField(2, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST),
        SortField(1, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST),
    )
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "text", StringType(), required=False),
    )
    return IcebergTable.create(sqlite_catalog(folder / "lake"), "t", schema, sort_order=order)


@pytest.mark.parametrize("in_memory", [True, False], ids=["one run", "many runs"])
def test_outputs_have_the_sort_order_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    if not in_memory:
        monkeypatch.setattr("compactor.rewrite.lake.SORTED_SHARE", 1_000_000)
    table, chance = sorted_table(tmp_path), Random(1)
    for _ in range(4):
        texts = [None if not row % 50 else f"text {row * 7 % 13}" for row in range(1000)]
        ids = [chance.randrange(10_000) for _ in range(1000)]
        table.append(pa.table({"id": pa.array(ids, pa.int64()), "text": texts}))
    table.delete_equal(pa.table({"id": range(0, 10_000, 9)}))
    made = rewritten(table, tmp_path / "attempt", outputs=2)
    expected = independent_reader().iceberg_rows(table.metadata, "id", "text")
    assert rows_of(table, made, "id", "text") == expected
    for output in made.result.outputs:
        assert output.offsets == ()
        rows = stored(table, output.path).select(["text", "id"]).to_pylist()
        texts = [row["text"] for row in rows]
        assert [text for text in texts if text] == sorted(filter(None, texts), reverse=True)
        assert None not in texts[: len([text for text in texts if text])]
        assert all(
            one["id"] <= other["id"]
            for one, other in pairwise(rows)
            if one["text"] == other["text"]
        )
        assert len(rows) == output.rows


@pytest.mark.parametrize("seed", range(20))
def test_runs_are_merged_like_one_sort(seed: int) -> None:
    chance, order = Random(seed), [SortKey("a", is_descending=True), SortKey("b")]
    values = [None, *range(5)]
    runs = []
    for number in range(chance.randint(0, 5)):
        count = chance.randint(0, 40)
        table = pa.table(
            {
                "a": pa.array([chance.choice(values) for _ in range(count)], pa.int64()),
                "b": pa.array([chance.choice(values) for _ in range(count)], pa.int64()),
                "run": pa.array([number] * count, pa.int64()),
            }
        )
        runs.append(sorted_by(table, order))
    batches = [batches_of(run, chance) for run in runs]
    made = list(merged(list(map(iter, batches)), order))
    if not sum(run.num_rows for run in runs):
        assert sum(table.num_rows for table in made) == 0
        return
    assert pa.concat_tables(made).equals(sorted_by(pa.concat_tables(runs), order))


def batches_of(run: pa.Table, chance: Random) -> list[pa.Table]:
    """Return rows in batches of random sizes, some of them empty."""
    ends = sorted(chance.randint(0, run.num_rows) for _ in range(chance.randint(0, 6)))
    edges = pairwise([0, *ends, run.num_rows])
    return [run.slice(begin, end - begin) for begin, end in edges]


def sorted_by(table: pa.Table, order: list[SortKey]) -> pa.Table:
    """Sort by Python, from the last key to the first; nulls come first."""
    rows = table.to_pylist()
    for key in reversed(order):
        rows.sort(
            key=lambda row: -1 if row[key.column] is None else row[key.column],
            reverse=key.is_descending,
        )
        rows.sort(key=lambda row: row[key.column] is not None)
    return pa.Table.from_pylist(rows, table.schema)


def test_a_file_that_lies_elsewhere_is_read_there(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(rows(0, 5))
    path = tmp_path / "elsewhere" / "imported.parquet"
    path.parent.mkdir()
    pq.write_table(rows(5, LARGE), path)
    table.table.add_files([path.as_uri()])
    table.delete([1, 7])
    expected = independent_reader().iceberg_rows(table.metadata, "id", "text", "day")
    made = rewritten(table, tmp_path / "attempt")
    assert path.as_uri() in made.result.planned.positions
    assert rows_of(table, made, "id", "text", "day") == expected
    assert sum(expected.values()) == LARGE + 3
