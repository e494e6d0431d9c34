"""A whole service over an object store: its processes find it by the environment alone."""

from __future__ import annotations

import pyarrow as pa
import pytest

from common.parquet.location import Location, open_location
from neve.client.errors import NeveError
from neve.recovery.stored_files import FileOrigin, list_location
from tests.support.readers import check_table
from tests.support.s3_server import VARIABLES, S3Server
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

ROWS = 40_000
SOON = {"manifest_interval_s": "1s"}
"""What is replaced is deleted once a manifest has said so."""
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
    ]
)


@pytest.fixture(autouse=True)
def on_s3(objects: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process, too, finds the object store by its environment."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in objects.environ.items():
        monkeypatch.setenv(name, value)


def rows(first: int, count: int, version: int) -> pa.Table:
    texts = [f"text {n * 7919 % 1009}" for n in range(count)]
    columns = {"k": range(first, first + count), "v": [version] * count, "text": texts}
    return pa.table(columns, schema=SCHEMA)


def stored(location: Location) -> set[str]:
    found = list_location(location).values()
    return {each.path for each in found if each.whose in (FileOrigin.OUTPUT, FileOrigin.APPENDED)}


def test_append_compact_scan_and_collect(service: Service) -> None:
    client, location = service.client, open_location("s3://tables/keyed")
    client.create_table(
        "keyed",
        location="s3://tables/keyed",
        schema=SCHEMA,
        key=["k"],
        version_column="v",
        settings=SOON,
    )
    for version in range(4):
        client.append("keyed", rows(10 * version, 200, version))
    client.wait_until_at_rest("keyed", timeout_s=120)
    (left,) = client.files("keyed")
    assert left.rows == 230
    found = client.scan("keyed").sort_by("k")
    assert found["k"].to_pylist() == list(range(230))
    assert found["v"].to_pylist() == [0] * 10 + [1] * 10 + [2] * 10 + [3] * 200
    service.wait("clean storage", lambda: stored(location) == {left.path})

    orphan = "_neve/last/job-0-0.parquet"
    with location.filesystem.open_output_stream(location.full(orphan)) as sink:
        sink.write(b"left behind by somebody who died")
    found_orphans = service.wait("old orphan", lambda: client.gc("keyed", delete=True).orphans)
    assert [found_orphan.path for found_orphan in found_orphans] == [orphan]
    service.wait("clean storage", lambda: stored(location) == {left.path})
    assert client.fsck("keyed", deep=True).sound


@pytest.mark.long
def test_an_append_only_table_keeps_its_rows(service: Service) -> None:
    client, location = service.client, open_location("s3://tables/bag")
    client.create_table(
        "bag",
        location="s3://tables/bag",
        schema=SCHEMA,
        settings={"row_group_bytes": "1MB", **SOON},
    )
    for number in range(5):  # As many as the planner of such tables wants.
        client.append("bag", rows(number * ROWS, ROWS, 1))
    client.wait_until_at_rest("bag", timeout_s=120)
    assert sum(file.rows for file in client.files("bag")) == 5 * ROWS
    assert sorted(client.scan("bag")["k"].to_pylist()) == list(range(5 * ROWS))
    check_table(client, "bag", location)
    kept = {file.path for file in client.files("bag")}
    service.wait("clean storage", lambda: stored(location) == kept)
    assert any(not each.startswith("_neve/append/") for each in kept)


def test_a_bucket_that_is_not_there(service: Service) -> None:
    with pytest.raises(NeveError, match="no such bucket"):
        service.client.create_table(
            "lost", location="s3://no-such-bucket/t", schema=SCHEMA, key=["k"], version_column="v"
        )
