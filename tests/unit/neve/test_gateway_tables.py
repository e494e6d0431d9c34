"""Tables over HTTP: every refusal names the value, and nothing is half done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neve.client import Client
from neve.client.errors import (
    CallerError,
    NeveError,
    NotFoundError,
    RefusedError,
)
from tests.support.gateway import Gateway, serving

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("version", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("gone", pa.bool_()),
        ("notes", pa.list_(pa.string())),
    ]
)


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


def create(client: Client, folder: Path, **changes: Any) -> Any:
    wanted: dict[str, Any] = {
        "name": "events",
        "location": str(folder / "events"),
        "schema": SCHEMA,
        "key": ["id"],
        "version_column": "version",
    }
    return client.create_table(**(wanted | changes))


def test_a_table_is_created_and_told(client: Client, tmp_path: Path) -> None:
    made = create(
        client,
        tmp_path,
        tombstone_column="gone",
        time_column="at",
        splits=["10", "20"],
        settings={"ttl": "7d", "target_bytes": "32MB", "ratio": "2.5"},
    )

    assert client.describe("events").schema == made.schema
    assert (made.state, made.key, made.settings["ttl_s"]) == ("live", ("id",), 604_800.0)
    assert (made.settings["target_bytes"], made.settings["ratio"]) == (32 * 1024**2, 2.5)
    assert [tablet.end for tablet in client.tablets("events")] == ["[10]", "[20]", "+inf"]
    assert (tmp_path / "events" / "_neve" / "store").read_text().startswith("store-")
    (listed,) = client.tables()
    assert listed.name == "events"
    assert [column.name for column in listed.schema] == ["id", "version", "at", "gone"]
    assert listed.columns == made.columns == len(made.schema)


def test_a_table_has_so_many_columns_at_most(client: Client, tmp_path: Path) -> None:
    """The list of all tables leaves them out, so that a wide one is not everybody's."""
    most = [{"name": f"c{number}", "type": "int8"} for number in range(10_000)]
    body = {"name": "wide", "location": str(tmp_path / "wide"), "schema": most}
    client._connection.call("POST", "/v1/tables", body=body)
    answer = client._connection.call("GET", "/v1/tables")
    assert len(json.dumps(answer)) < 4_000
    with pytest.raises(CallerError, match="at most 10000"):
        client._connection.call("POST", "/v1/tables", body={**body, "schema": [*most, most[0]]})
    with pytest.raises(CallerError, match="10001 columns"):
        client.set("wide", add_columns={"more": "int8"})


def test_the_schema_is_taken_from_an_example(client: Client, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    pq.write_table(SCHEMA.empty_table(), tmp_path / "events" / "a.parquet")

    made = create(client, tmp_path, schema=None, example="a.parquet")

    assert [column.name for column in made.schema] == SCHEMA.names
    assert made.schema[3].type == "timestamp[us, UTC]"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": "Events"}, "table name 'Events' must be a DNS label"),
    ({"name": "a" * 64}, "table name 'a{64}' must be a DNS label"),
    ({"location": "events"}, "location 'events' is not a location"),
    ({"location": "ftp://host/x"}, "'ftp://host/x' is not a location"),
    ({"location": "s3://key:secret@bucket/x"}, r"'s3://\*\*\*@bucket/x' is not a location"),
    ({"location": "/a/../b"}, "'/a/../b' must not contain '..'"),
    ({"location": "file:///"}, "'file:///' must name a folder"),
    ({"schema": None}, "either a schema or an example file, not neither"),
    ({"example": "a.parquet"}, "either a schema or an example file, not both"),
    ({"schema": None, "example": "none.parquet"}, "file none.parquet does not exist"),
    ({"schema": None, "example": "../a.parquet"}, "'../a.parquet' is not a plain path"),
    ({"schema": pa.schema([])}, "'events' has no columns"),
    ({"key": ["nix"]}, "key 'nix' is not a column; the columns are id, day"),
    ({"key": ["id", "id"]}, "names a column twice"),
    ({"key": ["notes"]}, "column type list<.*> has no order"),
    ({"version_column": None}, "has a key, but no version_column"),
    ({"version_column": "nix"}, "version_column 'nix' is not a column"),
    ({"version_column": "id"}, "version_column 'id' is in the key"),
    ({"key": []}, "version_column 'version' needs a key"),
    ({"tombstone_column": "id"}, "tombstone_column 'id' is int64, expected a bool column"),
    ({"time_column": "gone"}, "time_column 'gone' is bool, expected a timestamp"),
    ({"partition_by": ["day"]}, "partition column 'day' is not in the key"),
    ({"splits": ["x"]}, "key value 'x' cannot be read as int"),
    ({"splits": ["2", "1"]}, "split '1' does not come after the one before"),
    ({"splits": ["2", "+inf"]}, "a split cannot be empty or \\+inf"),
    ({"key": ["id", "day"], "partition_by": ["day"], "splits": ["1"]}, "is partitioned by day"),
    ({"settings": {"ratoi": 3}}, "setting 'ratoi' is unknown; did you mean 'ratio'"),
    ({"settings": {"ratio": "much"}}, "setting ratio is 'much', expected a number"),
    ({"settings": {"max_files": 1}}, "setting max_files is 1, expected at least 2"),
    ({"settings": {"max_files": 2.5}}, "setting max_files is 2.5, expected a whole number"),
    (
        {"settings": {"target_bytes": "32 parsecs"}},
        "setting target_bytes '32 parsecs' is not a size",
    ),
    ({"settings": {"ttl": "7d"}}, "setting ttl_s 604800 needs a time_column"),
    (
        {"settings": {"planner": "time-window"}},
        "setting planner: planner 'time-window': needs a time_column, and the table has none",
    ),
    ({"settings": {"ttl": "1d", "ttl_s": "2d"}}, "setting ttl_s is given twice"),
    ({"settings": {"bloom_columns": "id,idd"}}, "bloom_columns names 'idd', which table 'events'"),
    (
        {"settings": {"bloom_columns": 7}},
        "bloom_columns is 7, expected a list of texts such as name",
    ),
    ({"settings": {"codec": "rar"}}, "setting codec is 'rar', expected one of zstd"),
    ({"settings": {"codec_level": 30}}, "codec_level 30 is not a level of zstd, expected 1 to 22"),
    ({"settings": {"lowest_ratio": 5}}, "lowest_ratio 5 is above ratio 3"),
    ({"settings": {"service": "express"}}, "service 'express' is not configured; known: default"),
    ({"settings": {"allow_late_data": "maybe"}}, "'maybe', expected true or false"),
    ({"settings": {"weight": True}}, "setting weight is True, expected a number"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[each[1][:40] for each in REFUSED])
def test_a_bad_table_is_refused_and_nothing_is_there(
    client: Client, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(CallerError, match=message):
        create(client, tmp_path, **change)
    assert client.tables() == []
    assert not (tmp_path / "events").exists()


def test_unknown_names_in_a_body_are_refused(gateway: Gateway, client: Client) -> None:
    body = {"name": "events", "location": "/tmp/x", "schemata": []}

    with pytest.raises(
        CallerError, match=r"body.schemata: Unexpected keyword argument, got '\[\]'"
    ) as caught:
        client._connection.call("POST", "/v1/tables", body=body)
    assert (caught.value.status, caught.value.error) == (422, "BodyError")


def test_a_name_or_location_is_given_once(client: Client, tmp_path: Path) -> None:
    create(client, tmp_path)

    with pytest.raises(RefusedError, match=r"table 'events' exists already"):
        create(client, tmp_path, location=str(tmp_path / "other"))
    with pytest.raises(RefusedError, match=r"overlaps .* of table 'events'") as caught:
        create(client, tmp_path, name="inner", location=str(tmp_path / "events" / "inner"))
    assert caught.value.code == "location"
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "events" / "inner").exists()


def test_a_location_of_another_store_is_refused(client: Client, tmp_path: Path) -> None:
    mark = tmp_path / "events" / "_neve" / "store"
    mark.parent.mkdir(parents=True)
    mark.write_text("store-of-others\n")

    with pytest.raises(RefusedError, match=r"belongs to the store store-of-others"):
        create(client, tmp_path)
    assert client.tables() == []


def test_settings_change_together_or_not_at_all(client: Client, tmp_path: Path) -> None:
    create(client, tmp_path)

    changed = client.set("events", {"ratio": 4, "target": "64M"})
    assert (changed.settings["ratio"], changed.settings_version) == (4.0, 2)
    with pytest.raises(CallerError, match=r"'max_fils' is unknown; did you mean 'max_files'"):
        client.set("events", {"ratio": 5, "max_fils": 3})
    assert client.describe("events").settings["ratio"] == 4.0
    with pytest.raises(CallerError, match=r"needs a time_column"):
        client.set("events", {"ttl": "1d"})


def test_a_change_for_an_older_version_is_refused(client: Client, tmp_path: Path) -> None:
    create(client, tmp_path)
    client.set("events", {"ratio": 4}, settings_version=1)

    with pytest.raises(RefusedError, match=r"settings version 2") as caught:
        client.set("events", {"ratio": 5}, settings_version=1)
    assert caught.value.code == "version"


def test_a_table_is_paused_and_resumed(client: Client, tmp_path: Path) -> None:
    create(client, tmp_path)

    assert client.pause("events").state == "paused"
    assert client.pause("events").state == "paused"
    assert client.resume("events").state == "live"
    assert create(client, tmp_path, name="p", location=str(tmp_path / "p"), paused=True).state == (
        "paused"
    )


def test_a_dropped_table_is_gone(client: Client, tmp_path: Path) -> None:
    create(client, tmp_path)
    client.drop("events")

    with pytest.raises(NotFoundError, match=r"no table is named 'events'; there is none yet"):
        client.describe("events")
    create(client, tmp_path)


def test_a_table_that_is_not_there_is_told_with_the_nearest_name(
    client: Client, tmp_path: Path
) -> None:
    create(client, tmp_path)

    with pytest.raises(NotFoundError, match=r"did you mean 'events'") as caught:
        client.describe("event")
    assert (caught.value.error, caught.value.status) == ("UnknownTableError", 404)
    with pytest.raises(CallerError, match=r"must be a DNS label"):
        client.describe("Event")


def test_tablets_come_page_by_page(gateway: Gateway, client: Client, tmp_path: Path) -> None:
    create(client, tmp_path, splits=[str(number) for number in range(450)])

    tablets = client.tablets("events")
    assert len(tablets) == 451
    assert [tablet.tablet for tablet in tablets[:-1]] == sorted(
        tablet.tablet for tablet in tablets[:-1]
    )
    with pytest.raises(NeveError, match=r"count 0 is out of range"):
        client._connection.call("GET", "/v1/tables/events/tablets", parameters={"count": 0})
    with pytest.raises(NotFoundError, match=r"has no tablet 'zz'"):
        client._connection.call("GET", "/v1/tables/events/tablets", parameters={"after": "zz"})
