"""A table's schema grows over HTTP, and files say which of its schemas they have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neve.api import Column
from neve.client import Client
from neve.client.errors import CallerError, RefusedError
from tests.support.gateway import Gateway, serving


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture
def client(gateway: Gateway, tmp_path: Path) -> Iterator[Client]:
    with gateway.client() as made:
        schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
        made.create_table(
            "events", str(tmp_path / "events"), schema=schema, key=["id"], version_column="v"
        )
        yield made
        made.drop("events")


def write(folder: Path, name: str, **columns: pa.Array) -> str:
    pq.write_table(pa.table(columns), folder / "events" / name)
    return name


def ids(client: Client) -> dict[str, int]:
    """Return the schema id of each file, by how many rows it has."""
    return {file.path: file.schema_id for file in client.files("events")}


def test_a_new_column_is_refused_with_a_hint_and_then_added(client: Client, tmp_path: Path) -> None:
    ints = pa.array([1, 2])
    client.add_files("events", [write(tmp_path, "a.parquet", id=ints, v=ints)])
    newer = write(tmp_path, "b.parquet", id=ints, v=pa.array([3, 4]), price=pa.array([1.5, None]))
    with pytest.raises(CallerError, match=r"`neve table set events --add-column 'price:double'`"):
        client.add_files("events", [newer])

    before = client.describe("events")
    after = client.set("events", add_columns={"price": "double"})
    assert (before.schema_id, after.schema_id) == (0, 1)
    assert after.schema == (*before.schema, Column(name="price", type="double"))
    assert after.settings_version == before.settings_version + 1

    client.add_files("events", [newer])
    client.add_files("events", [write(tmp_path, "c.parquet", id=pa.array([7]), v=pa.array([7]))])
    client.append("events", pa.table({"id": [9], "v": [9]}))
    told = ids(client)
    appended = next(path for path in told if "/" in path)
    assert told == {"a.parquet": 0, "b.parquet": 1, "c.parquet": 0, appended: 1}
    rows = client.scan("events").to_pylist()
    assert [row["price"] for row in rows] == [1.5, None, None, None]


def test_a_column_widens_and_never_narrows(client: Client, tmp_path: Path) -> None:
    client.set("events", add_columns={"n": "int32"})
    small = pa.array([1], pa.int32())
    one = pa.array([1])
    client.add_files("events", [write(tmp_path, "a.parquet", id=one, v=one, n=small)])
    assert client.set("events", widen_columns={"n": "int64"}).schema_id == 2
    client.add_files("events", [write(tmp_path, "b.parquet", id=pa.array([2]), v=one, n=one)])
    assert ids(client) == {"a.parquet": 1, "b.parquet": 2}
    with pytest.raises(CallerError, match="is int64 and cannot become int32"):
        client.set("events", widen_columns={"n": "int32"})
    assert client.scan("events").column("n").to_pylist() == [1, 1]


def test_settings_and_schema_change_together_or_not_at_all(client: Client) -> None:
    with pytest.raises(CallerError, match="cannot become"):
        client.set("events", {"max_files": 5}, widen_columns={"v": "string"})
    assert client.describe("events").settings["max_files"] == 10
    with pytest.raises(RefusedError):
        client.set("events", add_columns={"x": "int64"}, settings_version=7)
    assert client.set("events", {"max_files": 5}, add_columns={"x": "int64"}).schema_id == 1
    assert client.describe("events").settings["max_files"] == 5
