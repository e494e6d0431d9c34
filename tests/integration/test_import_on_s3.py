"""Import, manifest and export in an object store: no folders, no links, names as they are."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import neve.read
from common.parquet import location as object_store
from common.parquet.foreign_formats import foreign_mark
from common.parquet.location import open_location
from common.runtime import RandomIds
from coordinator.context import ArrowStorage
from coordinator.storage.manifests import ManifestPublisher
from neve.client.errors import CallerError, NotFoundError, RefusedError
from tests.support.gateway import Gateway, serving
from tests.support.s3_server import VARIABLES, S3Server, s3_server

pytestmark = [pytest.mark.integration]
URI = "s3://lake/my tables/events"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        running.create_bucket("lake")
        yield running


@pytest.fixture
def gateway(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    object_store._client.cache_clear()
    with serving() as served:
        yield served
    object_store._client.cache_clear()


def put(path: str, rows: pa.Table | bytes) -> None:
    location = open_location(URI.replace(" ", "%20"))
    with location.filesystem.open_output_stream(location.full(path)) as sink:
        if isinstance(rows, bytes):
            sink.write(rows)
        else:
            pq.write_table(rows, sink)


def test_a_file_with_nanoseconds_is_copied_in_microseconds(gateway: Gateway) -> None:
    path = "fine/day=1/a b%.parquet"
    put(path, pa.table({"at": pa.array([1_499], pa.timestamp("ns"))}))
    with gateway.client() as client:
        with pytest.raises(CallerError, match="lose data: 1499"):
            client.import_table(f"{URI}/fine", "fine", timestamps="us")
        for files in (0, 1):
            done = client.import_table(f"{URI}/fine", "fine", timestamps="us-truncated")
            assert (done.already, done.misfits) == (files, 0)
        assert client.scan("fine")["at"].cast(pa.int64()).to_pylist() == [1]
        client.drop("fine")
    location = open_location(URI.replace(" ", "%20"))
    location.filesystem.delete_dir_contents(location.full("fine"))


def test_a_prefix_with_the_mark_of_another_format_is_refused(gateway: Gateway) -> None:
    """Also above and below it; a mark is looked for without a listing of all objects."""
    root = "s3://lake/other/t"
    location = open_location(root)
    for path in ("_delta_log/00000000000000000000.json", "data/a.parquet"):
        with location.filesystem.open_output_stream(location.full(path)) as sink:
            sink.write(b"{}")
    with gateway.client() as client:
        for where in ("s3://lake/other", root, f"{root}/data"):
            with pytest.raises(RefusedError, match="Delta Lake"):
                client.create_table("t", where, schema=pa.schema({"id": pa.int64()}))
            with pytest.raises(RefusedError, match="Delta Lake"):
                client.import_table(where, "t")
        client.create_table("t", "s3://lake/other/free", schema=pa.schema({"id": pa.int64()}))
    mark = foreign_mark(location)
    assert mark is not None
    assert mark.path == "lake/other/t/_delta_log"


def check_reads_without_the_service() -> None:
    rows = neve.read.arrow(URI.replace(" ", "%20"))
    days = map(str, rows["day"].to_pylist())
    assert sorted(zip(rows["id"].to_pylist(), days, strict=True)) == [
        (1, "2024-01-31"),
        (2, "2024-01-31"),
        (3, "2024-02-01"),
        (9, "2024-03-18"),
    ]
    assert neve.read.pandas(f"{URI}/", columns=["id"])["id"].sum() == 15


def check_there_is_no_manifest() -> None:
    with pytest.raises(NotFoundError, match="has no manifest"):
        neve.read.arrow(URI)


def test_a_prefix_becomes_a_table_and_is_read_by_its_manifest(gateway: Gateway) -> None:
    for day, ids in (("2024-01-31", [1, 2]), ("2024-02-01", [3])):
        put(f"day={day}/a%2Fb é.parquet", pa.table({"id": ids}))
    put("day=2024-01-31/_SUCCESS", b"x")
    put("_temporary/0/x.parquet", b"x")
    put("day=2024-02-01/note.txt", b"hello")
    with gateway.client() as client:
        dry = client.import_table(URI, "events", dry_run=True)
        assert [(misfit_file.path, misfit_file.why) for misfit_file in dry.misfit_files] == [
            ("day=2024-02-01/note.txt", "it is not Parquet")
        ]
        done = client.import_table(URI, "events", leave_misfits=True)
        assert (done.added, done.ignored, done.partitions, done.state) == (2, 2, 2, "paused")
        assert client.import_table(URI, "events", leave_misfits=True).already == 2
        client.append("events", pa.table({"id": [9], "day": pa.array([19_800], pa.date32())}))
        assert client.count("events") == 4
        for other in ("s3://lake/my tables", "s3://lake/my tables/events/day=2024-01-31"):
            with pytest.raises(RefusedError, match=r"overlaps .* of table 'events'"):
                client.import_table(other, "other")

        manifests = ManifestPublisher(gateway.store, RandomIds(), 900.0, lambda *_, **__: None)
        table = gateway.ask(gateway.store.table_named("events"))
        assert gateway.ask(manifests.look(table)) is True
        names = [each["file"] for each in client.manifest("events")["files"]]
        assert f"{URI}/day=2024-01-31/a%2Fb é.parquet" in names

    location = open_location(URI.replace(" ", "%20"))
    with location.filesystem.open_input_stream(
        location.full("_neve/manifest/latest.json")
    ) as stream:
        pointer = json.loads(stream.read())
    part = pointer["parts"][0]["file"].removeprefix("s3://")
    listed = pq.read_table(part, filesystem=location.filesystem)["file"].to_pylist()
    assert listed == names
    found = [
        pq.read_table(name.removeprefix("s3://"), filesystem=location.filesystem, partitioning=None)
        for name in names
    ]
    assert sorted(id_ for rows in found for id_ in rows["id"].to_pylist()) == [1, 2, 3, 9]

    check_reads_without_the_service()

    gateway.ask(ArrowStorage().delete(table.location, "_neve/manifest", math.inf))
    check_there_is_no_manifest()
