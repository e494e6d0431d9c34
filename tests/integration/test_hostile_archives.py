"""What an archive says is not believed: over a real Redis, through the gateway, from outside."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.metadata.keys import AUDIT
from common.metadata.redis import connect
from common.metadata.redis.keyspace import RedisKeyspace
from common.settings import Settings, StoreSettings
from coordinator.core.scans import recheck_at_s
from coordinator.registry import planner_for
from neve.client import Client
from neve.client.errors import (
    CallerError,
    NeveError,
    RefusedError,
)
from tests.support.gateway import Gateway, serving
from tests.support.hostile_archives import (
    SCHEMA,
    Line,
    archive_of,
    changed,
    lines_of,
    of_kind,
    scrambled,
    stranger,
    two_tables,
)
from tests.support.redis_server import RedisServer, executable, running

SEEDS = int(os.environ.get("HOSTILE_SEEDS", "300"))
SECRET = "TheSecretKeyOfTheService"
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(executable() is None, reason="no redis-server on this machine"),
]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def served(redis: RedisServer) -> Iterator[Gateway]:
    with serving(connect(StoreSettings(url=redis.url, timeout_s=5.0))) as running_gateway:
        yield running_gateway


@pytest.fixture
def gateway(served: Gateway, redis: RedisServer) -> Gateway:
    served.ask(keys(redis, flush=True))
    served.log.clear()
    return served


async def keys(redis: RedisServer, *, flush: bool = False) -> list[bytes]:
    keyspace = RedisKeyspace(StoreSettings(url=redis.url, timeout_s=5.0))
    [[found]] = await keyspace.fetch([[("FLUSHALL",) if flush else ("KEYS", "*")]])
    await keyspace.close()
    # What callers have asked is noted whatever becomes of it.
    return [] if flush else sorted(key for key in found if key != AUDIT.encode())


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    with gateway.client() as made:
        yield made


@pytest.fixture(scope="module")
def archive(served: Gateway, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a sound archive of a keyed and a partitioned table that were dropped since."""
    folder = tmp_path_factory.mktemp("tables")
    with served.client() as client, two_tables(client, folder):
        client.backup(folder / "sound.neve")
    return (folder / "sound.neve").read_bytes()


def restore(client: Client, tmp_path: Path, archive: bytes, **options: Any) -> list[str]:
    (tmp_path / "hostile.neve").write_bytes(archive)
    return [table.table for table in client.restore(tmp_path / "hostile.neve", **options).tables]


def table_of(lines: list[Line]) -> Line:
    table: Line = of_kind(lines, "table")["table"]
    return table


def refused(
    gateway: Gateway, redis: RedisServer, tmp_path: Path, archive: bytes, **options: Any
) -> NeveError:
    """Restore what must be refused, kindly, with nothing written; return the error."""
    before = gateway.ask(keys(redis))
    with gateway.client() as client, pytest.raises((CallerError, RefusedError)) as caught:
        restore(client, tmp_path, archive, **options)
    assert gateway.ask(keys(redis)) == before
    return caught.value


def test_a_sound_one_is_restored(client: Client, tmp_path: Path, archive: bytes) -> None:
    assert restore(client, tmp_path, archive_of(lines_of(archive))) == ["days", "events"]
    assert client.count("events") == 2
    assert client.fsck("events").sound
    assert client.fsck("days").sound


def test_credentials_are_sent_to_no_endpoint_that_an_archive_names(
    gateway: Gateway,
    redis: RedisServer,
    tmp_path: Path,
    archive: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with stranger() as (host, heard):
        for uri in (
            f"s3://lake/t?endpoint_override={host}&scheme=http&region=x",
            f"s3://key:{SECRET}@lake/t?endpoint_override={host}&scheme=http",
            f"s3a://lake/t?scheme=http&endpoint_override={host}",
        ):
            lie = changed(archive, lambda lines, uri=uri: table_of(lines).update(location=uri))  # type: ignore[misc]  # bound now
            error = refused(gateway, redis, tmp_path, lie, only=["days"])
            assert SECRET not in str(error)
            with pytest.raises(NeveError), gateway.client() as client:
                restore(client, tmp_path, archive, locations={"days": uri}, only=["days"])
            with pytest.raises(NeveError), gateway.client() as client:
                client.rebuild(uri, "days")
        assert heard == []
    assert SECRET not in json.dumps(gateway.log, default=str)


def test_two_tables_do_not_come_to_share_files(
    gateway: Gateway, redis: RedisServer, client: Client, tmp_path: Path, archive: bytes
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "live")
    client.create_table("live", str(tmp_path / "live"), schema=SCHEMA)
    for place in ("link", "live/below", ".", "events/../live"):
        uri = f"{tmp_path.as_uri()}/{place}"
        lie = changed(archive, lambda lines, uri=uri: table_of(lines).update(location=uri))  # type: ignore[misc]  # bound now
        refused(gateway, redis, tmp_path, lie)
    same = changed(
        archive,
        lambda lines: of_kind(lines, "table", 1)["table"].update(
            location=table_of(lines)["location"]
        ),
    )
    error = refused(gateway, redis, tmp_path, same)
    assert "'days' and 'events' of the archive would share files" in str(error)
    twice = changed(archive, lambda lines: of_kind(lines, "table", 1)["table"].update(name="days"))
    assert "holds table 'days' twice" in str(refused(gateway, redis, tmp_path, twice))
    error = refused(gateway, redis, tmp_path, archive, names={"days": "events"})
    assert "'events' exists already" in str(error)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ratio": "3"}, "ratio is str '3', expected float"),
        ({"max_files": 0}, "setting max_files is 0, expected at least 2"),
        ({"ttl_s": [1]}, "ttl_s is tuple"),
        ({"service": "elsewhere"}, "'elsewhere' is not configured"),
        ({"codec": "brotli-9"}, "setting codec is 'brotli-9', expected one of"),
        ({"selector": "no-such"}, "setting selector: .*no-such"),
        ({"volume": "../x"}, "a DNS label such as disk-1"),
        ({"bloom_columns": ["none"]}, "which table 'days' does not have"),
        ({"ratio": float("nan")}, "ratio is float 'nan'"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_settings_pass_the_checks_of_set(
    gateway: Gateway,
    redis: RedisServer,
    tmp_path: Path,
    archive: bytes,
    settings: Line,
    says: str,
) -> None:
    lie = changed(archive, lambda lines: table_of(lines)["settings"].update(settings))
    error = refused(gateway, redis, tmp_path, lie)
    with pytest.raises(NeveError, match=says):
        raise error


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "a/b"}, "table name 'a/b' must be a DNS label"),
        ({"name": ""}, "must be a DNS label"),
        ({"name": 7}, "name is int '7', expected str"),
        ({"key": ["none"]}, "key 'none' is not a column"),
        ({"version_column": 3}, "version_column is int"),
        ({"tombstone_column": "n"}, "tombstone_column 'n' is not a column"),
        ({"schema": []}, "has no columns"),
        ({"schema": [{"name": "n", "type": "int65"}]}, "int65"),
        ({"schema": [{"name": "\ud800", "type": "int64"}]}, "surrogates not allowed"),
        ({"schema": {"a": 1}}, "is not a table of this release"),
        ({"state": "odd"}, "'odd' is not a valid TableState"),
        ({"created_at_s": "now"}, "created_at_s is str"),
        ({"location": "/etc/neve"}, "is in or around /etc"),
        ({"location": "file:///proc/self/root/tmp/x"}, "is in or around /proc"),
        ({"location": None}, "location is NoneType"),
        ({"former_ids": [1]}, "former_ids"),
    ],
)
def test_tables_pass_the_checks_of_create(
    gateway: Gateway, redis: RedisServer, tmp_path: Path, archive: bytes, fields: Line, says: str
) -> None:
    lie = changed(archive, lambda lines: of_kind(lines, "table", 1)["table"].update(fields))
    with pytest.raises(NeveError, match=says):
        raise refused(gateway, redis, tmp_path, lie)


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("file", {"path": "../../x"}, "is no file of this release"),
        ("file", {"path": "/etc/passwd"}, "is no file of this release"),
        ("file", {"path": "a//b"}, "is not a plain path"),
        ("file", {"path": "a\\b"}, "is not a plain path"),
        ("file", {"path": "\ud800"}, "line 4"),
        ("file", {"size_bytes": "1"}, "is no file of this release"),
        ("file", {"size_bytes": -1}, "must not be negative"),
        ("file", {"rows": True}, "rows is <class 'bool'>"),
        ("file", {"rows": 1 << 70}, "is no file of this release"),
        ("file", {"added_at_s": float("inf")}, "a time that is no number"),
        ("file", {"tags": 7}, "is no file of this release"),
        ("file", {"key_min": "zz"}, "is no file of this release"),
        ("tablet", {"end": ""}, "is not that of partition"),
        ("tablet", {"partition": "day=zz"}, "is not that of partition 'day=zz'"),
        ("tablet", {"partition": "n=1"}, "of no partition"),
        ("tablet", {"partition": 3}, "partition that is no text"),
        ("tablet", {"files": "1"}, "has '1' files"),
        ("tablet", {"files": 1 << 40}, "at most 2000000 of a table are taken"),
        ("archive", {"version": "1"}, "this release reads"),
    ],
)
def test_tablets_and_files_are_what_the_store_could_hold(
    gateway: Gateway,
    redis: RedisServer,
    tmp_path: Path,
    archive: bytes,
    kind: str,
    fields: Line,
    says: str,
) -> None:
    def edit(lines: list[Line]) -> None:
        of_kind(lines, kind).update(fields)

    lines = lines_of(archive)
    edit(lines)
    lie = archive_of(lines)
    if kind == "tablet" and "files" in fields:
        digestless = [json.dumps(line).encode() + b"\n" for line in lines]
        lie = b"".join(digestless)
    with pytest.raises(NeveError, match=says):
        raise refused(gateway, redis, tmp_path, lie)


def test_archives_whose_tablets_leave_a_gap_or_overlap_are_refused(
    gateway: Gateway, redis: RedisServer, tmp_path: Path, archive: bytes
) -> None:
    def number(lines: list[Line], kind: str) -> int:
        table = lines.index(of_kind(lines, "table", 1))
        return next(n for n, line in enumerate(lines) if n > table and line["kind"] == kind)

    def without_the_first(lines: list[Line]) -> None:
        first = number(lines, "tablet")
        del lines[first : first + 2]

    def without_the_last(lines: list[Line]) -> None:
        del lines[-3:-1]

    def backwards(lines: list[Line]) -> None:
        lines[number(lines, "tablet")]["start"] = "ff"

    def one_file_twice(lines: list[Line]) -> None:
        first = number(lines, "file")
        lines.insert(first, lines[first])

    for edit, says in (
        (without_the_first, "does not begin where the one before it ends"),
        (without_the_last, "whose last tablet does not reach to the end"),
        (backwards, "does not begin where the one before it ends"),
        (one_file_twice, "which an earlier line has, too"),
    ):
        with pytest.raises(NeveError, match=says):
            raise refused(gateway, redis, tmp_path, changed(archive, edit))


def test_small_texts_do_not_become_large_values(
    gateway: Gateway, redis: RedisServer, tmp_path: Path, archive: bytes
) -> None:
    head, rest = archive.split(b"\n", 1)
    deep = b'{"kind":"table","table":' + b"[" * 100_000 + b"\n"
    wide = b'{"kind":"table","table":[' + b"1," * 1_100_000 + b"1]}\n"
    long = b'{"kind":"table","table":"' + b"x" * (17 * 1024**2) + b'"}\n'
    digits = b'{"kind":"table","table":' + b"1" * 5000 + b"}\n"
    for line, says in (
        (deep, "nested too deeply"),
        (wide, "more than 1000000 items"),
        (long, "longer than any line may be"),
        (digits, "no JSON"),
        (b"\xff\xfe\n", "no JSON"),
    ):
        with pytest.raises(NeveError, match=says):
            raise refused(gateway, redis, tmp_path, head + b"\n" + line + rest)


async def planned(gateway: Gateway, name: str) -> None:
    """Look at a table as a coordinator does: read, plan, and say when to look again."""
    [table] = [each for each in await gateway.store.tables() if each.name == name]
    plan = planner_for(Settings())
    for tablet in await gateway.store.read_range(table.id):
        recheck_at_s(tablet, table, plan(tablet, table, 1e9))


def test_the_service_survives_any_scrambled_archive(
    gateway: Gateway, client: Client, tmp_path: Path, archive: bytes
) -> None:
    """What is let in can be read, checked and dropped; what is not is refused in a sentence."""
    let_in = 0
    for seed in range(SEEDS):
        try:
            made = restore(client, tmp_path, scrambled(archive, seed))
        except (CallerError, RefusedError):
            made = [table.name for table in client.tables()]
        let_in += bool(made)
        for name in made:
            assert client.describe(name).name == name, seed
            client.fsck(name)
            gateway.ask(planned(gateway, name))
            client.drop(name)
        assert client.tables() == [], seed
    assert 0 < let_in < SEEDS, "some of both"
    assert not [event for event in gateway.log if event[0] == "request failed"]


def test_junk_and_truncated_archives_are_refused(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    for junk in (b"", b"junk\n", b"{}\n", b"[1]\n", b"\0" * 100, b'{"kind":"archive"}\n'):
        with pytest.raises(CallerError, match="not whole"):
            restore(client, tmp_path, junk)
