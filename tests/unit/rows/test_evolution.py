"""Schemas change only where nothing is lost, and a file's own schema is known by its columns."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from common.errors import RequestError
from common.model.table import Column, Table
from common.rows.schema import changed_schema, schema_id_of

TABLE = Table(
    id="t1",
    name="events",
    location="file:///data/events",
    schema=(
        Column("id", "int32", nullable=False),
        Column("v", "int64"),
        Column("day", "date32"),
        Column("note", "string"),
    ),
    key=("id", "day"),
    version_column="v",
    partition_by=("day",),
)


def test_columns_are_added_at_the_end_once() -> None:
    second = changed_schema(TABLE, [Column("price", "float")], [])
    assert second.schema[:-1] == TABLE.schema
    assert second.schema[-1] == Column("price", "float", True, 1)
    assert second.schema_id == 1
    assert changed_schema(second, [Column("price", "float")], []) == second
    third = changed_schema(second, [Column("tag", "string")], [Column("price", "double")])
    assert third.schema_id == 2
    assert [column.since for column in third.schema] == [0, 0, 0, 0, 2, 2]


@pytest.mark.parametrize(
    ("added", "wider", "says"),
    [
        (
            [Column("note", "int64")],
            [],
            "of type string; to make it int64, widen it",
        ),
        ([Column("x", "int64", nullable=False)], [], "cannot be added as not null"),
        ([Column("", "int64")], [], "has no name"),
        ([Column("x", "integer")], [], "integer"),
        ([], [Column("x", "int64")], "has no column 'x'; it has id, v, day, note"),
        ([], [Column("v", "int32")], "is int64 and cannot become int32"),
        ([], [Column("note", "int64")], "is string and cannot become int64"),
        ([], [Column("id", "double")], "is int32 and cannot become double"),
    ],
)
def test_a_schema_change_that_could_lose_values_is_refused(
    added: list[Column], wider: list[Column], says: str
) -> None:
    with pytest.raises(RequestError, match=says):
        changed_schema(TABLE, added, wider)


def test_a_key_widens_within_its_family() -> None:
    wider = changed_schema(TABLE, [], [Column("id", "int64")])
    assert wider.schema[0] == Column("id", "int64", False, 1)


def test_a_file_has_the_newest_schema_that_it_has_in_full() -> None:
    full = {"id": pa.int32(), "v": pa.int64(), "note": pa.string()}
    second = changed_schema(TABLE, [Column("price", "float")], [])
    third = changed_schema(second, [], [Column("id", "int64")])
    fourth = changed_schema(third, [Column("tag", "string")], [])

    def of(table: Table, **more: pa.DataType) -> int:
        return schema_id_of(table, pa.schema(list((full | more).items())))

    assert [of(table) for table in (TABLE, second, third, fourth)] == [0, 0, 0, 0]
    assert [of(table, price=pa.float32()) for table in (second, third, fourth)] == [1, 1, 1]
    newer = {"price": pa.float32(), "id": pa.int64()}
    assert [of(table, **newer) for table in (third, fourth)] == [2, 2]
    assert of(fourth, **newer, tag=pa.large_string()) == 3
    assert schema_id_of(TABLE, pa.schema([("v", pa.int64())])) == 0
    assert schema_id_of(replace(fourth, schema_id=9), pa.schema([])) == 0
