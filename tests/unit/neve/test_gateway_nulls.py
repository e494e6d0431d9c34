"""Nulls: one rule at every door. A column that may be null may be so in a key, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neve.client import Client
from neve.client.errors import CallerError, RefusedError
from tests.support.gateway import Gateway, serving

FREE = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("v", pa.int64()),
        ("more", pa.struct([pa.field("x", pa.int64(), nullable=False)])),
    ]
)
STRICT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("v", pa.int64(), nullable=False),
        pa.field("more", pa.struct([pa.field("x", pa.int64(), nullable=False)])),
    ]
)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "a", "v": 1, "more": {"x": 1}},
    {"id": None, "name": "a", "v": 1, "more": None},
    {"id": 2, "name": None, "v": 1, "more": {"x": 2}},
    {"id": None, "name": None, "v": 2, "more": {"x": 3}},
]
BAD = {
    "id": {**ROWS[0], "id": None},
    "name": {**ROWS[0], "name": None},
    "v": {**ROWS[0], "v": None},
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    with gateway.client() as made:
        yield made
        for table in made.tables():
            made.drop(table.name)


def create(client: Client, folder: Path, schema: pa.Schema, **more: Any) -> None:
    client.create_table(
        "t", str(folder), schema=schema, key=["id", "name"], version_column="v", **more
    )


def write(folder: Path, name: str, rows: list[dict[str, Any]], schema: pa.Schema = FREE) -> str:
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / name)
    return name


def test_null_is_a_key_like_any_other_and_the_first_one(client: Client, tmp_path: Path) -> None:
    create(client, tmp_path, FREE, splits=["1"])
    client.append("t", pa.Table.from_pylist(ROWS[:2], FREE))
    client.add_files("t", [write(tmp_path, "a.parquet", ROWS[3:])])
    client.append("t", pa.Table.from_pylist(ROWS[2:3], FREE))
    newer = {**ROWS[1], "v": 7}
    client.append("t", pa.Table.from_pylist([newer], FREE))

    wanted = [ROWS[3], newer, ROWS[0], ROWS[2]]
    assert client.scan("t").to_pylist() == wanted
    assert client.scan("t", start="[null]", end='[null, "a"]').to_pylist() == wanted[:2]
    assert client.count("t", end="[null]") == 2


@pytest.mark.parametrize("column", [*BAD])
def test_a_column_that_must_not_be_null_refuses_at_every_door(
    client: Client, tmp_path: Path, column: str
) -> None:
    create(client, tmp_path / "t", STRICT)
    rows = [ROWS[0], BAD[column]]
    message = f"column {column} of .* holds nulls, but must not be null"

    with pytest.raises(CallerError, match=message.replace(".*", "the body")):
        client.append("t", pa.Table.from_pylist(rows, FREE))
    with pytest.raises(CallerError, match=message.replace(".*", "file bad.parquet")):
        client.add_files("t", [write(tmp_path / "t", "bad.parquet", rows)])
    free = pa.Table.from_pylist(rows, FREE)
    with pytest.raises(CallerError, match=message.replace(".*", "the body")):
        client.append("t", pa.Table.from_arrays(free.columns, schema=STRICT))

    assert client.describe("t").files == 0
    for schema in (FREE, STRICT):  # Values are what counts, not what a file's schema allows.
        client.append("t", pa.Table.from_pylist(ROWS[:1], schema))
        name = f"good-{schema is FREE}.parquet"
        client.add_files("t", [write(tmp_path / "t", name, ROWS[:1], schema)])
    assert client.scan("t").to_pylist() == ROWS[:1]


def test_a_column_that_must_not_be_null_must_be_there(client: Client, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("x", pa.int64(), nullable=False)])
    client.create_table("t", str(tmp_path), schema=schema)
    rows = pa.table({"id": [1]})
    pq.write_table(rows, tmp_path / "a.parquet")
    for attempt in (lambda: client.append("t", rows), lambda: client.add_files("t", ["a.parquet"])):
        with pytest.raises(CallerError, match="lacks the column x, which must not be null"):
            attempt()


def test_a_file_without_statistics_is_read(client: Client, tmp_path: Path) -> None:
    create(client, tmp_path, STRICT)
    for name, rows in (("good", ROWS[:1]), ("bad", [BAD["name"]])):
        table = pa.Table.from_pylist(rows, FREE)
        pq.write_table(table, tmp_path / f"{name}.parquet", write_statistics=False)
    client.add_files("t", ["good.parquet"])
    with pytest.raises(CallerError, match=r"column name of file bad.parquet holds nulls"):
        client.add_files("t", ["bad.parquet"])


def test_an_import_into_a_table_has_the_same_rule(client: Client, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    folder.mkdir()
    write(folder, "good.parquet", ROWS[:1], STRICT)
    wanted: dict[str, Any] = {"key": ["id", "name"], "version_column": "v"}
    client.import_table(str(folder), "t", **wanted)
    write(folder, "bad.parquet", [BAD["v"]])
    table = pa.Table.from_pylist([BAD["name"]], FREE)
    pq.write_table(table, folder / "worse.parquet", write_statistics=False)
    with pytest.raises(RefusedError, match=r"bad.parquet.*its column v holds nulls"):
        client.import_table(str(folder), "t", **wanted)
    (folder / "bad.parquet").unlink()
    with pytest.raises(CallerError, match=r"column name of file worse.parquet holds nulls"):
        client.import_table(str(folder), "t", **wanted)
    report = client.import_table(str(folder), "t", **wanted, leave_misfits=True)
    assert report.misfits == 1
    assert client.scan("t").to_pylist() == ROWS[:1]
