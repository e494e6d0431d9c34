"""Partitioned tables: one tablet per partition, made as files and rows come."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import RequestError
from common.model.table import Column, Table
from common.rows.key_encoding import partition_of, partition_of_path, partition_values
from neve.client import Client
from neve.client.errors import CallerError
from tests.support.gateway import serving

DAY = date(2024, 1, 31)
TABLE = Table(
    id="t",
    name="events",
    location="file:///data",
    schema=(Column("day", "date"), Column("land", "string"), Column("x", "int64")),
    partition_by=("day", "land"),
)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving() as served, served.client() as made:
        yield made


def test_a_partition_is_the_same_whatever_names_it() -> None:
    written = partition_of(TABLE, [DAY, "a/b=c"])

    assert written.text == "day=2024-01-31/land=a%2Fb%3Dc"
    assert partition_of_path(TABLE, f"x/{written.text}/f.parquet") == written
    assert partition_of_path(TABLE, "land=a%2Fb%3Dc/day=2024-01-31/f.parquet") == written
    assert partition_values(TABLE, written.text)["land"] == "a/b=c"


def test_null_has_the_name_that_hive_gives_it() -> None:
    written = partition_of(TABLE, [None, None])

    assert written.text == "day=__HIVE_DEFAULT_PARTITION__/land=__HIVE_DEFAULT_PARTITION__"
    assert partition_of_path(TABLE, f"{written.text}/f.parquet") == written
    assert partition_values(TABLE, written.text) == {"day": None, "land": None}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("f.parquet", r"f.parquet is in no partition: .* expected a path such as day=…/land=…/"),
        ("day=2024-01-31/f.parquet", r"do not name land"),
        ("day=soon/land=x/f.parquet", r"key value 'soon' cannot be read as date"),
    ],
)
def test_a_path_without_its_partition_is_refused(path: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        partition_of_path(TABLE, path)


def test_files_and_rows_meet_in_their_partitions(client: Client, tmp_path: Path) -> None:
    schema = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("v", pa.int64())])
    client.create_table(
        "events",
        str(tmp_path),
        schema=schema,
        key=["day", "id"],
        version_column="v",
        partition_by=["day"],
    )
    days = [DAY, date(2024, 2, 1)]
    (tmp_path / "day=2024-01-31").mkdir()
    pq.write_table(
        pa.table({"day": [DAY], "id": [7], "v": [2]}, schema=schema),
        tmp_path / "day=2024-01-31" / "a.parquet",
    )

    client.append("events", pa.table({"day": days, "id": [7, 7], "v": [1, 1]}, schema=schema))
    client.add_files("events", ["day=2024-01-31/a.parquet"])

    assert [(tablet.partition, tablet.files) for tablet in client.tablets("events")] == [
        ("day=2024-01-31", 2),
        ("day=2024-02-01", 1),
    ]
    assert client.scan("events", ["v"]).column("v").to_pylist() == [2, 1]
    assert client.scan("events", ["day"], start="2024-02-01").column("day").to_pylist() == days[1:]
    pq.write_table(pa.table({"id": [1]}), tmp_path / "b.parquet")
    with pytest.raises(CallerError, match=r"lacks the columns day"):
        client.add_files("events", ["b.parquet"])


def test_a_file_may_leave_out_what_its_folder_says(client: Client, tmp_path: Path) -> None:
    schema = pa.schema([("land", pa.string()), ("x", pa.int64())])
    client.create_table("bag", str(tmp_path), schema=schema, partition_by=["land"])
    for land in ("de", "fr"):
        (tmp_path / f"land={land}").mkdir()
        pq.write_table(pa.table({"x": [1, 2]}), tmp_path / f"land={land}" / "a.parquet")

    client.add_files("bag", [f"land={land}/a.parquet" for land in ("de", "fr")])

    assert client.scan("bag", ["land"]).column("land").to_pylist() == ["de", "de", "fr", "fr"]
