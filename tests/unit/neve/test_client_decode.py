"""Wire models from JSON: newer servers are understood, broken answers are not."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from neve.api import (
    Added,
    Column,
    File,
    Table,
)
from neve.client.errors import ProtocolError
from neve.client.http import decode, decode_list

TABLE = {
    "id": "t-1",
    "name": "events",
    "location": "file:///data/events",
    "state": "live",
    "schema": [{"name": "id", "type": "int64"}],
}


def test_a_table_comes_back_with_defaults() -> None:
    table = decode(Table, TABLE)

    assert table.schema == (Column(name="id", type="int64", nullable=True),)
    assert table.rows is None


def test_a_decoded_dataclass_equals_its_source() -> None:
    file = File(path="a.parquet", tablet="last", size_bytes=1, rows=2, tags={"level": "0"})
    added = Added(call="c", files=(file,), rows=2, size_bytes=1)

    assert decode(Added, asdict(added)) == added


def test_fields_of_a_newer_server_are_ignored() -> None:
    assert decode(Table, TABLE | {"mood": "good"}) == decode(Table, TABLE)


def test_a_whole_number_is_a_number() -> None:
    assert decode(Table, TABLE | {"created_at_s": 3}).created_at_s == 3.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": None}, "Table.name is None"),
        ({"name": 3}, "Table.name is 3"),
        ({"schema": "id"}, "Table.schema is 'id'"),
        ({"schema": [3]}, "Table.schema is 3"),
        ({"schema": [{"name": "id"}]}, "Table.schema.type is missing"),
        ({"settings_version": True}, "Table.settings_version is True"),
    ],
)
def test_a_broken_answer_names_what_is_broken(change: dict[str, object], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        decode(Table, TABLE | change)


@pytest.mark.parametrize("answer", [None, [], {}, {"tables": 3}])
def test_a_list_must_be_there(answer: object) -> None:
    with pytest.raises(ProtocolError, match="no list 'tables'"):
        decode_list(Table, answer, "tables")
