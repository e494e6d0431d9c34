"""Recovery as users meet it: over HTTP, by the client, on the command line; over a real Redis."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from common.metadata.redis import connect
from common.model.location_identity import GUARD_NAME
from common.settings import StoreSettings
from neve import new_call_id
from neve.client import Client
from neve.client.errors import (
    CallerError,
    NeveError,
    ProtocolError,
    RefusedError,
)
from neve.client.recovery import (
    _write_archive,
    checked_line,
    lines_of,
)
from tests.support.command_line import invoke
from tests.support.gateway import TOKEN, Gateway, serving
from tests.support.other_formats import delta
from tests.support.redis_server import RedisServer, empty, executable, running

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
OLD_S = 10_000
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(executable() is None, reason="no redis-server on this machine"),
]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running() as server:
        yield server


@pytest.fixture
def gateway(redis: RedisServer) -> Iterator[Gateway]:
    with serving(connect(StoreSettings(url=redis.url, timeout_s=5.0))) as served:
        served.ask(empty(redis))
        yield served


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return tmp_path / "events"


@pytest.fixture
def client(gateway: Gateway, location: Path) -> Iterator[Client]:
    with gateway.client() as made:
        made.create_table(
            "events", str(location), schema=SCHEMA, key=["id"], version_column="v", splits=["100"]
        )
        made.append("events", rows(1, 150))
        yield made


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "v": [1] * len(ids)}, SCHEMA)


def orphan(location: Path) -> Path:
    described = json.loads((location / "_neve/table.json").read_text())
    path = location / "_neve/append/orphan.parquet"
    made_for = {"neve.table": described["table"]["id"]}
    pq.write_table(rows(7).replace_schema_metadata(made_for), path)
    old_s = time.time() - OLD_S
    os.utime(path, (old_s, old_s))
    return path


class Shell:
    """Runs `neve` against a gateway."""

    def __init__(self, gateway: Gateway, home: Path) -> None:
        cleared: dict[str, str | None] = dict.fromkeys(("NEVE_CONFIG", "NEVE_STACK"))
        self._environ = {
            **cleared,
            "NEVE_HOME": str(home),
            "NEVE_URL": gateway.url,
            "NEVE_TOKEN": TOKEN,
        }

    def run(self, *words: str, code: int = 0, says: str | None = None) -> Result:
        done = invoke(words, self._environ)
        assert done.exit_code == code, (words, done.output, done.exception)
        assert says is None or says in " ".join(done.output.split()), done.output
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code).stdout)


@pytest.fixture
def neve(gateway: Gateway, client: Client, tmp_path: Path) -> Shell:
    return Shell(gateway, tmp_path / "home")


def test_a_check_tells_what_it_found_and_did(client: Client, location: Path) -> None:
    texts: list[str] = []
    assert client.fsck("events", deep=True, progress=texts.append).sound
    assert "begun" in texts
    path = orphan(location)

    found = client.fsck("events")
    mended = client.fsck("events", repair=True)

    assert [finding.code for finding in found.findings] == ["orphaned"]
    assert (found.sound, found.findings[0].done) == (False, None)
    assert (mended.sound, mended.findings[0].done) == (True, True)
    assert client.fsck("events").findings == ()
    assert path.exists()


def test_a_sweep_is_dry_unless_told_otherwise(client: Client, location: Path) -> None:
    orphan(location)

    assert [client.gc("events").files for _ in range(2)] == [1, 1]
    assert client.gc("events", delete=True).given == 1
    assert client.gc("events").files == 0


def test_a_store_gone_back_is_read_only_until_accepted(
    client: Client, redis: RedisServer, location: Path
) -> None:
    (location / "_neve/generation").write_text("9\n")
    with serving_again(redis) as fresh:
        with pytest.raises(RefusedError, match="is read-only: its store is at generation"):
            fresh.append("events", rows(3))
        with pytest.raises(RefusedError):
            fresh.add_files("events", ["a.parquet"])
        assert fresh.count("events") == 2, "it can be read"
        with pytest.raises(RefusedError):
            fresh.gc("events", delete=True)
        assert not fresh.fsck("events", repair=True).sound
        assert fresh.fsck("events", accept=True).sound
        fresh.append("events", rows(3))
        assert fresh.count("events") == 3


def test_nothing_is_swept_or_restored_in_a_location_of_another_format(
    client: Client, neve: Shell, location: Path, tmp_path: Path
) -> None:
    client.backup(tmp_path / "all.neve", ["events"])
    path = orphan(location)
    delta(location / "raw")
    mark = str(location / "raw/_delta_log")
    before = {each for each in location.rglob("*.parquet") if each.name != GUARD_NAME}

    with pytest.raises(RefusedError, match=r"no file is deleted.*Delta Lake"):
        client.gc("events", delete=True)
    neve.run("gc", "events", "--delete", code=3, says=mark)
    assert client.gc("events").files == 1, "a sweep that deletes nothing may look"

    found = client.fsck("events")
    (finding,) = [each for each in found.findings if each.code == "other-format"]
    assert (found.sound, finding.path) == (False, mark)
    assert "move one of the two to a folder of its own" in finding.sentence
    neve.run("fsck", "events", code=1, says="other-format")

    client.drop("events")
    with pytest.raises(RefusedError, match="cannot take over tables of this format") as refusal:
        client.restore(tmp_path / "all.neve")
    assert mark in str(refusal.value)
    assert client.tables() == []
    assert set(location.rglob("*.parquet")) == before, "no file is deleted"
    assert path in before


@contextmanager
def serving_again(redis: RedisServer) -> Iterator[Client]:
    """Yield a client of a gateway that has looked at no table yet."""
    store = connect(StoreSettings(url=redis.url, timeout_s=5.0))
    with serving(store) as other, other.client() as made:
        yield made


def test_a_backup_with_copies_is_restored(client: Client, gateway: Gateway, tmp_path: Path) -> None:
    texts: list[str] = []
    archive = tmp_path / "all.neve"
    copies = tmp_path / "copies"

    size = client.backup(archive, copy_to=str(copies), progress=texts.append)
    dry = client.restore(
        archive,
        names={"events": "again"},
        locations={"events": str(copies / "events")},
        dry_run=True,
    )
    done = client.restore(
        archive, names={"events": "again"}, locations={"events": str(copies / "events")}
    )

    assert size == archive.stat().st_size
    assert any(text.startswith("events: 2 files") for text in texts)
    assert (dry.dry_run, [table.table for table in dry.tables]) == (True, ["again"])
    assert [(table.table, table.state, table.missing) for table in done.tables] == [
        ("again", "live", ())
    ]
    assert client.scan("again").equals(client.scan("events"))
    assert client.fsck("again").sound
    assert not list(tmp_path.glob("*.part"))
    with pytest.raises(RefusedError, match="exists already"):
        client.restore(archive)


def test_redis_lost_and_rebuilt(
    client: Client, gateway: Gateway, redis: RedisServer, location: Path
) -> None:
    rows_before = client.scan("events")
    gateway.ask(empty(redis))
    with serving_again(redis) as fresh:
        with pytest.raises(RefusedError, match="--adopt"):
            fresh.rebuild(str(location), "events")
        dry = fresh.rebuild(str(location), "events", adopt=True, dry_run=True)
        assert fresh.tables() == []
        done = fresh.rebuild(str(location), "events", adopt=True)
        assert (dry.files, done.files, done.rows, done.state) == (2, 2, 2, "live")
        assert done.lost == {}
        assert fresh.scan("events").equals(rows_before)


@pytest.mark.parametrize("verb", ["rebuild", "restore"])
def test_a_call_from_before_a_recovery_is_not_taken_twice(
    client: Client, gateway: Gateway, redis: RedisServer, tmp_path: Path, verb: str
) -> None:
    location, archive = tmp_path / "log", tmp_path / "log.neve"
    client.create_table("log", str(location), schema=SCHEMA, key=[])
    append, compact, lost = new_call_id(), new_call_id(), new_call_id()
    client.append("log", rows(1, 2, 3), call=append)
    request = client.compact("log", call=compact)
    client.backup(archive, tables=["log"])
    gateway.ask(empty(redis))
    with serving_again(redis) as fresh:
        if verb == "rebuild":
            report: Any = fresh.rebuild(str(location), "log", adopt=True)
        else:
            report = fresh.restore(archive, adopt=True)
        assert any("marks of calls" in each for each in report.not_recovered)
        assert any("buffered" in sentence for sentence in report.not_recovered)

        for call in (append, lost):
            with pytest.raises(CallerError, match="before the table was rebuilt or restored"):
                fresh.append("log", rows(1, 2, 3), call=call)
        with pytest.raises(CallerError, match="before the table was rebuilt or restored"):
            fresh.compact("log", call=compact)

        assert fresh.count("log") == 3
        assert [each.id for each in fresh.requests("log")] == []
        assert request.id
        fresh.append("log", rows(4))
        assert fresh.count("log") == 4


def test_a_recovery_refuses_calls_of_a_clock_that_is_fast(
    client: Client, gateway: Gateway, redis: RedisServer, tmp_path: Path
) -> None:
    location = tmp_path / "log"
    client.create_table("log", str(location), schema=SCHEMA, key=[])
    ahead = f"{int(1000 * (time.time() + 200)):012x}"
    call = f"{ahead[:8]}-{ahead[8:]}-7000-8000-000000000000"
    client.append("log", rows(1), call=call)
    gateway.ask(empty(redis))
    with serving_again(redis) as fresh:
        fresh.rebuild(str(location), "log", adopt=True)
        with pytest.raises(CallerError, match="before the table was rebuilt or restored"):
            fresh.append("log", rows(1), call=call)


def test_errors_are_what_they_are(client: Client, gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk\n")
    with pytest.raises(CallerError, match="not whole"):
        client.restore(tmp_path / "junk")
    with pytest.raises(CallerError, match="no table is named"):
        client.fsck("evnts")
    with pytest.raises(CallerError, match="is too long"):
        client.backup(tmp_path / "x", hold="300d")
    with pytest.raises(RefusedError, match="overlaps"):
        client.rebuild(str(tmp_path), "other")
    (tmp_path / "bare").mkdir()
    pq.write_table(rows(1), tmp_path / "bare/x.parquet")
    with pytest.raises(CallerError, match="give key"):
        client.rebuild(str(tmp_path / "bare"), "other")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = httpx.post(f"{gateway.url}/v1/restore", headers=headers, content=b"")
    assert (answer.status_code, answer.json()["error"]) == (422, "BodyError")
    wrong = {"name": "events"}
    kind = {"Content-Type": "application/vnd.neve.archive"}
    answer = httpx.post(
        f"{gateway.url}/v1/restore", params=wrong, headers=headers | kind, content=b""
    )
    assert answer.json()["error"] == "RequestError"
    assert httpx.post(f"{gateway.url}/v1/backup", json={}).status_code == 401


def test_an_answer_that_breaks_off_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="no line of JSON"):
        checked_line(b"{")
    with pytest.raises(ProtocolError, match="no kind"):
        checked_line(b"[]")
    with pytest.raises(NeveError, match="worse"):
        checked_line(b'{"kind": "error", "status": 500, "detail": "worse"}')
    with pytest.raises(ProtocolError, match="ended before its last line"):
        _write_archive(lines_of(iter([b'{"kind":"archive"}\n{"kind":'])), lambda _line: None, None)
    with pytest.raises(ProtocolError, match="digest"):
        _write_archive(iter([b'{"kind":"end","lines":1}\n']), lambda _line: None, None)


def test_fsck_gc_rebuild_and_backup_run_from_the_command_line(
    neve: Shell, location: Path, tmp_path: Path
) -> None:
    neve.run("fsck", "events", says="events: 2 tablets, 2 files")
    path = orphan(location)
    neve.run("gc", "events", says="1 file can be deleted")
    neve.run("fsck", "events", code=1, says="orphaned")
    assert neve.json("fsck", "events", code=1)["findings"][0]["path"].endswith(path.name)
    neve.run("gc", "events", "--delete", says="1 file will be deleted")
    assert neve.json("fsck", "events", "--deep")["sound"] is True
    next(location.glob("_neve/append/*[0-9a-f].parquet")).unlink()
    neve.run("fsck", "events", code=1, says="--forget-missing")
    neve.run("fsck", "events", "--forget-missing", says="done:")
    neve.run("fsck", "events", says="sound")


def test_the_command_line_brings_tables_back(neve: Shell, location: Path, tmp_path: Path) -> None:
    archive = str(tmp_path / "events.neve")
    copies = str(tmp_path / "copies")
    neve.run("backup", "events", "-o", archive, "--copy-to", copies, says="wrote")
    neve.run("backup", "all", "-o", archive, "--hold", "1m", says="wrote")
    there = ["--rename", "events=two", "--location", f"events={copies}/events"]
    neve.run("restore", archive, *there, "--dry-run", says="dry run: nothing was written")
    neve.run("restore", archive, *there, says="two live 2 2")
    neve.run("restore", archive, *there, code=3, says="exists already")
    neve.run("restore", archive, "--table", "none", code=2, says="no table 'none'")
    neve.run("table", "drop", "events", "--yes")
    neve.run("rebuild", str(location), "--name", "three", "--dry-run", says="rows 2")
    assert neve.json("rebuild", str(location), "--name", "three")["rows"] == 2
    neve.run("scan", "three", "--count", says="2")


def test_archives_that_cannot_be_written_or_read_give_one_sentence(
    neve: Shell, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "junk").write_bytes(b"junk\n")
    (tmp_path / "kept").write_bytes(b"kept")
    for output, says in (
        ("/nope/x", "neve: /nope/x cannot be written: No such file or directory"),
        (str(tmp_path / "folder"), "cannot be written: it is a folder or a device"),
        ("/dev/null", "neve: /dev/null cannot be written: it is a folder or a device"),
        ("/proc/x", "cannot be written"),
    ):
        neve.run("backup", "events", "-o", output, code=2, says=says)
    nowhere = ["--copy-to", str(tmp_path)]
    kept = str(tmp_path / "kept")
    neve.run("backup", "events", "-o", kept, *nowhere, code=3, says="may not share files")
    assert (tmp_path / "kept").read_bytes() == b"kept"
    for archive, says in (
        (str(tmp_path / "junk"), "neve: the archive is not whole: line 1 is no JSON"),
        (str(tmp_path / "folder"), "cannot be read: Is a directory"),
        ("/proc/self/mem", "neve: /proc/self/mem cannot be read: Input/output error"),
    ):
        neve.run("restore", archive, code=2, says=says)
    assert not [*tmp_path.glob("*.part"), *Path("/dev").glob("null.*")]


def test_an_archive_may_come_through_a_pipe(client: Client, tmp_path: Path, location: Path) -> None:
    client.backup(tmp_path / "a.neve")
    client.drop("events")
    os.mkfifo(tmp_path / "pipe")
    content = (tmp_path / "a.neve").read_bytes()
    writing = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(content))
    writing.start()
    done = client.restore(tmp_path / "pipe")
    writing.join()
    assert [table.table for table in done.tables] == ["events"]
