"""`backup --copy-to` makes files where nothing is, and never writes over one: disk and S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from common.errors import RefusedError as Refused
from common.parquet import location
from common.parquet.location import child_uri, open_location
from neve.client import Client
from neve.client.errors import (
    CallerError,
    NeveError,
    RefusedError,
)
from neve.recovery.backup import copy_file
from tests.support.gateway import Gateway, serving
from tests.support.s3_server import VARIABLES, S3Server, s3_server

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
pytestmark = [pytest.mark.integration]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        running.create_bucket("lake")
        yield running


@pytest.fixture
def gateway(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gateway]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    location._client.cache_clear()
    with serving(locations=(str(tmp_path), "s3://lake")) as served:
        yield served
    location._client.cache_clear()


@pytest.fixture
def client(gateway: Gateway, tmp_path: Path) -> Iterator[Client]:
    with gateway.client() as made:
        for name in ("events", "users"):
            made.create_table(
                name, str(tmp_path / name), schema=SCHEMA, key=["id"], version_column="v"
            )
            made.append(name, pa.table({"id": [1], "v": [1]}, SCHEMA))
        yield made


def contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def refused(client: Client, tmp_path: Path, copy_to: str, *tables: str) -> str:
    """Back up where nothing may be written; return the reason."""
    before = contents(tmp_path)
    with pytest.raises((RefusedError, CallerError)) as caught:
        client.backup(tmp_path / "x.neve", tables or ("events",), copy_to=copy_to)
    assert contents(tmp_path) == before
    return str(caught.value)


def test_copies_into_the_location_of_a_table_are_refused(client: Client, tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies/events").symlink_to(tmp_path / "users")
    (tmp_path / "up").symlink_to(tmp_path)
    (tmp_path / "users/sub").mkdir()
    for copy_to in (tmp_path, tmp_path / "copies", tmp_path / "up", tmp_path / "users/sub"):
        said = refused(client, tmp_path, str(copy_to))
        assert "two tables may not share files" in said
    said = refused(client, tmp_path, f"/proc/self/root{tmp_path}")
    assert "is in or around /proc" in said
    assert client.count("events") == client.count("users") == 1
    assert client.fsck("events").sound


def test_nothing_is_written_where_something_is(client: Client, tmp_path: Path) -> None:
    (tmp_path / "full/events").mkdir(parents=True)
    (tmp_path / "full/events/note.txt").write_text("mine")
    assert "is not empty (note.txt lies there)" in refused(client, tmp_path, str(tmp_path / "full"))
    (tmp_path / "other/_neve").mkdir(parents=True)
    (tmp_path / "other/_neve/store").write_text("store-x\n")
    assert "belongs to the store store-x" in refused(client, tmp_path, str(tmp_path / "other"))
    assert "is not where tables are allowed" in refused(client, tmp_path, "/var/tmp/neve-copies")
    assert "no credentials" in refused(client, tmp_path, "s3://k:s@lake/x")
    assert "how its storage is reached" in refused(
        client, tmp_path, "s3://lake/x?endpoint_override=127.0.0.1:1"
    )


def test_all_targets_are_looked_at_before_the_first_file_is_copied(
    client: Client, tmp_path: Path
) -> None:
    (tmp_path / "copies/users").mkdir(parents=True)
    (tmp_path / "copies/users/x").write_bytes(b"")
    refused(client, tmp_path, str(tmp_path / "copies"), "events", "users")
    assert not (tmp_path / "copies/events").exists()


@pytest.mark.parametrize("copy_to", ["s3://lake/copies", "copies"])
def test_a_copy_is_whole_and_made_once(client: Client, tmp_path: Path, copy_to: str) -> None:
    where = copy_to if "://" in copy_to else str(tmp_path / copy_to)
    client.backup(tmp_path / "x.neve", copy_to=where)
    with pytest.raises(RefusedError, match="is not empty"):
        client.backup(tmp_path / "y.neve", copy_to=where)
    client.restore(
        tmp_path / "x.neve", names={"events": "again"}, only=["events"],
        locations={"events": child_uri(where, "events")},
    )  # fmt: skip
    assert client.count("again") == 1
    assert client.fsck("again", deep=True).sound


def test_other_names_of_a_bucket_are_no_way_round(client: Client, tmp_path: Path) -> None:
    client.create_table("remote", "s3a://lake/remote", schema=SCHEMA)
    assert client.describe("remote").location == "s3://lake/remote"
    for uri in ("s3n://lake", "s3://lake//./", "S3://lake"):
        with pytest.raises(NeveError, match="two tables may not share files"):
            client.backup(tmp_path / "x.neve", ("remote",), copy_to=uri)
        with pytest.raises(RefusedError, match="two tables may not share files"):
            client.create_table("twice", f"{uri}/remote/below", schema=SCHEMA)


def test_options_that_the_operator_wrote_lead_to_the_storage(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*VARIABLES, *server.environ):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.setenv(name, server.environ[name])
    options = f"endpoint_override=127.0.0.1:{server.port}&scheme=http&region=eu-central-1"
    with (
        serving(locations=(f"s3://lake/a?{options}",)) as served,
        served.client() as client,
    ):
        client.create_table("t", f"s3://lake/a/t?{options}", schema=SCHEMA)
        client.append("t", pa.table({"id": [1], "v": [1]}, SCHEMA))
        (file,) = client.manifest("t")["files"]
        assert file["file"].startswith("s3://lake/a/t/_neve/append/")
        archive = tmp_path / "x.neve"
        client.backup(archive, copy_to=f"s3://lake/a/copies?{options}")
        copied = child_uri(f"s3://lake/a/copies?{options}", "t")
        client.restore(archive, names={"t": "u"}, locations={"t": copied})
        assert (client.count("t"), client.count("u")) == (1, 1)
        for uri in (f"s3://lake/a/t/x?{options}", f"s3n://lake/a//t?{options}"):
            with pytest.raises(RefusedError, match="two tables may not share files"):
                client.create_table("v", uri, schema=SCHEMA)


@pytest.mark.parametrize("target", ["s3://lake/target", "file"])
def test_a_file_that_came_meanwhile_is_left_as_it_is(
    gateway: Gateway, tmp_path: Path, target: str
) -> None:
    source = open_location((tmp_path / "source").as_uri())
    (tmp_path / "source").mkdir()
    (tmp_path / "source/a.parquet").write_bytes(b"source")
    place = open_location(target if "://" in target else (tmp_path / "target").as_uri())
    copy_file(source, place, "a.parquet")
    (tmp_path / "source/a.parquet").write_bytes(b"changed")
    with pytest.raises(Refused, match="somebody else writes there"):
        copy_file(source, place, "a.parquet")
    with place.filesystem.open_input_stream(place.full("a.parquet")) as content:
        assert content.read() == b"source"


def test_a_link_that_came_meanwhile_leads_nowhere(tmp_path: Path) -> None:
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    (tmp_path / "source/a.parquet").write_bytes(b"source")
    (tmp_path / "target/a.parquet").symlink_to(tmp_path / "target/elsewhere")
    source, target = (open_location((tmp_path / name).as_uri()) for name in ("source", "target"))
    with pytest.raises(Refused):
        copy_file(source, target, "a.parquet")
    assert not (tmp_path / "target/elsewhere").exists()
