"""The audit: what is kept, of which calls, and what happens when it cannot be kept."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest

from common.errors import UnavailableError
from common.runtime import SystemClock
from neve import api
from neve.api import Column
from neve.cli.access import render_audit
from neve.cli.session import Session
from neve.client import Client
from neve.client.errors import CallerError, ForbiddenError
from neve.gateway.access import audit as audit_module
from neve.gateway.access.audit import (
    EARLY_BURST,
    LOOK_INTERVAL_S,
    TEXT_MAX,
    Audit,
    AuditFile,
    folded,
    line_of,
    outcome_of,
)
from neve.gateway.access.tokens import TokenFile
from tests.support.flaky import Fault, FlakyKeyspace, Point
from tests.support.gateway import RUNNING, TOKEN, Gateway, serving
from tests.support.memory_store import MemoryKeyspace, MemoryStore
from tests.support.patience import PATIENCE_S
from tests.support.predictable import ManualClock

FULL = Path("/dev/full")
"""A device that is always full."""
ENTRY = api.AuditEntry(outcome="begun", id="aud-1", at_s=1.0, caller="ci", action="POST /v1/tables")
READ = {"latency_s": 0.1, "reads": 1}
COLUMNS = [Column(name="x", type="int64")]


@dataclass
class Stream:
    """The stream of a store that may be away."""

    up: bool = True
    lines: list[bytes] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    async def note(self, lines: Sequence[bytes], kind: str) -> None:
        if not self.up:
            raise UnavailableError("the store is away")
        self.lines += lines
        self.kinds += [kind] * len(lines)


@dataclass
class Site:
    """An audit with a clock that is moved by hand."""

    file: AuditFile | None
    stream: Stream = field(default_factory=Stream)
    at_s: float = 1000.0
    log: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.audit = Audit(
            self.file,
            self.stream.note,
            self,
            lambda event, **facts: self.log.append((event, facts)),
        )

    def now_s(self) -> float:
        return self.at_s


def site(path: Path | None) -> Site:
    return Site(None if path is None else AuditFile(path, 64 * 1024, 2, ManualClock()))


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("status", "error", "outcome"),
    [
        (200, "", "done"),
        (202, "", "done"),
        (200, "ConflictError", "failed"),
        (403, "", "refused"),
        (429, "", "refused"),
        (500, "", "failed"),
        (503, "", "failed"),
        (None, "", "failed"),
    ],
)
def test_what_came_of_a_call(status: int | None, error: str, outcome: str) -> None:
    assert outcome_of(status, error) == outcome


def test_of_several_lines_of_a_call_the_last_one_counts() -> None:
    lines = [
        line_of(replace(ENTRY, id="aud-2")),
        line_of(replace(ENTRY, outcome="done")),
        b"not json",
        b"[]",
        line_of(ENTRY),
    ]
    found = folded(lines, 10, {})

    assert [(each["id"], each["outcome"]) for each in found] == [
        ("aud-2", "begun"),
        ("aud-1", "done"),
    ]
    assert folded(lines, 1, {}) == found[:1]
    assert folded(lines, 10, {"outcome": "done"}) == found[1:]


def test_an_entry_holds_no_secrets_and_has_a_bound() -> None:
    entry = replace(ENTRY, details="name=s3://key:secret@lake/a?token=1\n", action="x" * 9999)
    line = line_of(entry)

    assert b"secret" not in line
    assert b"token=1" not in line
    assert b"\n" not in line
    assert len(json.loads(line)["action"]) == TEXT_MAX


async def begin_and_end(where: Site) -> None:
    await where.audit.begin(ENTRY)
    where.audit.end(replace(ENTRY, outcome="done"))
    await where.audit.close()


def test_the_file_has_both_lines_and_the_stream_the_last(tmp_path: Path) -> None:
    where = site(tmp_path / "new" / "audit.jsonl")
    asyncio.run(begin_and_end(where))

    path = tmp_path / "new" / "audit.jsonl"
    assert [each["outcome"] for each in lines_of(path)] == ["begun", "done"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [json.loads(line)["outcome"] for line in where.stream.lines] == ["done"]
    assert where.audit.counts.failures == 0


@pytest.mark.parametrize("path", [None, FULL])
def test_without_a_file_that_works_the_stream_has_both(path: Path | None) -> None:
    where = site(path)
    asyncio.run(begin_and_end(where))

    assert [json.loads(line)["outcome"] for line in where.stream.lines] == ["begun", "done"]
    assert where.audit.counts.failures == (0 if path is None else 2)
    assert [event for event, _ in where.log] == ([] if path is None else ["audit not written"])


@pytest.mark.parametrize("path", [None, FULL])
def test_a_begun_line_in_the_stream_is_ended_there(path: Path | None) -> None:
    where = site(path)

    async def refused_and_next() -> None:
        for name in ("aud-1", "aud-2"):
            await where.audit.begin(replace(ENTRY, id=name))
        where.audit.end(replace(ENTRY, id="aud-2", outcome="refused"))
        await where.audit.close()

    asyncio.run(refused_and_next())
    assert where.stream.kinds == ["", "", ""]


@pytest.mark.parametrize("path", [None, FULL])
def test_a_call_that_no_place_notes_is_not_begun(path: Path | None) -> None:
    where = site(path)
    where.stream.up = False
    with pytest.raises(UnavailableError, match="nothing is changed until it can"):
        asyncio.run(where.audit.begin(ENTRY))
    assert where.log[-1][0] == "audit not written"


def test_what_is_no_file_does_not_hold_up_anybody(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    os.mkfifo(path)  # To open it for writing would wait for a reader.
    where = site(path)
    asyncio.run(begin_and_end(where))

    assert [json.loads(line)["outcome"] for line in where.stream.lines] == ["begun", "done"]
    assert [event for event, _ in where.log] == ["audit not written"]


def test_a_file_that_was_taken_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    clock = ManualClock()
    file = AuditFile(path, 64 * 1024, 2, clock)
    file.write([b"one"])
    path.rename(tmp_path / "taken")
    file.write([b"two"])
    clock.advance(LOOK_INTERVAL_S)
    file.write([b"three"])

    assert (tmp_path / "taken").read_bytes() == b"one\ntwo\n"
    assert path.read_bytes() == b"three\n"
    file.close()


def test_lines_wait_for_a_stream_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "RETRY_S", 0.01)
    where = site(tmp_path / "audit.jsonl")

    async def life() -> None:
        where.stream.up = False
        for number in range(3):
            where.audit.end(replace(ENTRY, id=f"aud-{number}"))
        async with asyncio.timeout(PATIENCE_S):
            while not where.audit.counts.failures:
                await asyncio.sleep(0.01)
        assert where.stream.lines == []
        where.stream.up = True
        async with asyncio.timeout(PATIENCE_S):
            while len(where.stream.lines) < 3:
                await asyncio.sleep(0.01)
        await where.audit.close()

    asyncio.run(life())
    assert [json.loads(line)["id"] for line in where.stream.lines] == ["aud-0", "aud-1", "aud-2"]


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "WAITING_MAX", 5)
    monkeypatch.setattr(audit_module, "RETRY_S", 0.01)
    where = site(tmp_path / "audit.jsonl")

    async def life() -> None:
        where.stream.up = False
        for number in range(8):
            where.audit.end(replace(ENTRY, id=f"aud-{number}"))
        where.stream.up = True
        async with asyncio.timeout(PATIENCE_S):
            while len(where.stream.lines) < 5:
                await asyncio.sleep(0.01)
        await where.audit.close()

    asyncio.run(life())
    assert [json.loads(line)["id"][-1] for line in where.stream.lines] == list("34567")
    assert len(lines_of(tmp_path / "audit.jsonl")) == 8
    assert where.audit.counts.failures >= 3


def test_a_file_is_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, 64 * 1024, 2, ManualClock())
    for number in range(8):
        file.write([b"%d" % number * 33_000])

    file.close()
    found = {each.name: each.read_bytes()[:1] for each in tmp_path.iterdir()}
    assert found == {"audit.jsonl": b"6", "audit.jsonl.1": b"4", "audit.jsonl.2": b"2"}


def test_a_flood_at_the_door_is_counted(tmp_path: Path) -> None:
    where = site(tmp_path / "audit.jsonl")
    flood = replace(ENTRY, caller="-", outcome="refused")

    async def life() -> None:
        for _ in range(EARLY_BURST + 40):
            where.audit.refuse_early(flood)
        where.at_s += 1
        where.audit.refuse_early(flood)
        await where.audit.close()

    asyncio.run(life())
    assert not (tmp_path / "audit.jsonl").exists()
    kept = lines_of(tmp_path / "audit-refused.jsonl")
    assert len(kept) == EARLY_BURST + 1
    assert {*where.stream.kinds} == {"refused"}
    assert str(kept[-1]["details"]).startswith("40 others like it were left out")


# ------------------------------------------------------------------------------------ Through HTTP


def create(gateway: Gateway, folder: Path, name: str = "events") -> None:
    (folder / name).mkdir()
    with gateway.client() as client:
        client.create_table(name, str(folder / name), schema=COLUMNS)


def first_entries(admin: Client, count: int, *, of: int = 100) -> list[api.AuditEntry]:
    """Return the newest entries when there are `count`: they reach the store a moment later."""
    for _ in range(1000):
        if len(entries := admin.audit(count=of)) >= count:
            break
    return entries


def test_every_change_has_one_entry_also_a_refused_one(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    _, token = file.create("reader", ["read"], now_s=0.0, life_s=None)
    path = tmp_path / "audit.jsonl"
    access = {"tokens_file": str(file.path), "audit_file": str(path)}
    with serving(access=access) as gateway, gateway.client() as admin:
        create(gateway, tmp_path)
        admin.pause("events")
        with gateway.client(token) as reader:
            reader.tables()
            with pytest.raises(ForbiddenError):
                reader.compact("events", boost=1)
            with pytest.raises(ForbiddenError):
                reader.audit()
        with gateway.client("neve_wrong") as nobody, pytest.raises(CallerError):
            nobody.drop("events")
        with pytest.raises(CallerError):
            admin.drop("nothing")
        admin.drop("events", delete_files=True)
        entries = first_entries(admin, 6)
        of_reader = admin.audit(caller="reader")

    told = [
        (entry.caller, entry.action, entry.table, entry.outcome, entry.error)
        for entry in reversed(entries)
    ]
    assert told == [
        ("gateway.token", "POST /v1/tables", "events", "done", ""),
        ("gateway.token", "POST /v1/tables/{table}/pause", "events", "done", ""),
        (
            "reader",
            "POST /v1/tables/{table}/compactions",
            "events",
            "refused",
            "ForbiddenError",
        ),
        ("-", "DELETE /v1/tables/{table}", "events", "refused", "UnauthorizedError"),
        (
            "gateway.token",
            "DELETE /v1/tables/{table}",
            "nothing",
            "refused",
            "UnknownTableError",
        ),
        ("gateway.token", "DELETE /v1/tables/{table}", "events", "done", ""),
    ]
    assert entries[0].details == "delete_files=true"
    assert entries[0].address == "127.0.0.1"
    assert entries[3].call, "the id of the call"
    assert [each.status for each in of_reader] == [403]
    assert TOKEN not in path.read_text()
    assert token not in path.read_text()


def test_the_audit_survives_a_gateway(tmp_path: Path) -> None:
    keyspace = MemoryKeyspace(SystemClock())
    access = {"audit_file": str(tmp_path / "audit.jsonl")}
    with serving(MemoryStore(keyspace=keyspace), access=access) as gateway:
        create(gateway, tmp_path)
    with serving(MemoryStore(keyspace=keyspace), access=access) as again, again.client() as client:
        assert [first_entry.action for first_entry in first_entries(client, 1)] == [
            "POST /v1/tables"
        ]


def test_without_an_audit_nothing_is_changed_and_everything_can_be_read(tmp_path: Path) -> None:
    broken = {"now": False}

    async def script(point: Point) -> Fault:
        return Fault.LOST if broken["now"] and point is Point.EXEC else Fault.NONE

    keyspace = MemoryKeyspace(SystemClock())
    store = MemoryStore(keyspace=FlakyKeyspace(keyspace, script))  # type: ignore[arg-type]  # as one
    with serving(store, access={"audit_file": str(FULL)}) as gateway, gateway.client() as client:
        create(gateway, tmp_path)
        broken["now"] = True
        answer = httpx.post(
            f"{gateway.url}/v1/tables/events/pause",
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        assert answer.status_code == 503
        assert "nothing is changed" in answer.json()["detail"]
        assert [table.state for table in client.tables()] == ["live"]
        broken["now"] = False
        assert client.pause("events").state == "paused"


def test_a_text_that_no_answer_can_hold_is_audited_with_a_mark() -> None:
    """Or one call would have `GET /v1/audit` fail from then on."""
    line = line_of(api.AuditEntry(id="a", at_s=1.0, caller="c", action="POST", table="x\ud800"))
    older = b'{"id": "b", "table": "y\\ud800"}'

    assert [each["table"] for each in folded([line, older], 2, {})] == ["x?", "y?"]


# ------------------------------------------------------------------ What an entry says, and where


@pytest.mark.parametrize(
    ("query", "details"),
    [
        ("x=a://b?&delete_files=true", "delete_files=true (1 unknown)"),
        ("pad=" + "y" * 5_000 + "&delete_files=yes", "delete_files=true (1 unknown)"),
        ("delete_files=false&delete_files=1", "delete_files=true"),
        ("delete_files=true%20delete_files%3Dfalse", 'delete_files="true delete_files=false"'),
        ("", ""),
    ],
)
def test_parameters_are_noted_as_the_route_takes_them(
    query: str, details: str, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    with serving(access={"audit_file": str(path)}) as gateway:
        create(gateway, tmp_path)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        httpx.delete(f"{gateway.url}/v1/tables/events?{query}", headers=headers)
        with gateway.client() as admin:
            first_entries(admin, 2)
    noted = [line["details"] for line in lines_of(path) if "DELETE" in str(line["action"])]
    assert noted == [details, details]


def test_bodies_of_changes_are_noted_by_names_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with serving(access={"audit_file": str(path)}) as gateway, gateway.client() as admin:
        create(gateway, tmp_path)
        admin.set("events", {"target_bytes": 2**30}, add_columns={"more": "int64"})
        with pytest.raises(CallerError):
            admin.add_files("events", ["a.parquet", "b.parquet"])
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"{gateway.url}/v1/tables/events"
        httpx.patch(url, headers=headers, json={"settings": {}, "sec://k:ret@x": "s" * 99})
        first_entries(admin, 4)
    noted = [each["details"] for each in lines_of(path) if each["outcome"] != "begun"]
    assert noted[0].startswith("schema=(1) paused=false name=events location=/")
    assert noted[1] == "add_columns=(1) settings=target_bytes"
    assert noted[2] == "paths=(2)"
    assert noted[3] == "(1 unknown)"


def test_a_token_of_other_tables_leaves_no_begun_call(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    _, token = file.create("writer", ["read", "admin:other-*"], now_s=0.0, life_s=None)
    path = tmp_path / "audit.jsonl"
    access = {"tokens_file": str(file.path), "audit_file": str(path)}
    with serving(access=access) as gateway, gateway.client() as admin:
        create(gateway, tmp_path)
        with gateway.client(token) as writer, pytest.raises(ForbiddenError):
            writer.drop("events")
        first_entries(admin, 2)
        (refused,) = admin.audit(caller="writer")
    assert (refused.outcome, refused.status, refused.table) == ("refused", 403, "events")
    assert {each["caller"] for each in lines_of(path)} == {"gateway.token"}
    (line,) = lines_of(tmp_path / "audit-refused.jsonl")
    assert line["outcome"] == "refused"


LATE_REFUSALS = [
    ("/v1/tables/events/compactions", {"delete_where": "x = 1"}, 403),
    (f"/v1/jobs/{RUNNING.attempt}/cancel", None, 403),
    ("/v1/jobs/att-none/cancel", None, 404),
    ("/v1/reads", {"tables": {"events": {"latency_s": 0.1, "reads": 1}, "hidden": {}}}, 422),
    ("/v1/reads", {"tables": dict.fromkeys(["events", "hidden"], READ)}, 404),
]
"""Path and body of calls whose right the path alone does not decide, and the status."""


@pytest.mark.parametrize("has_file", [True, False])
@pytest.mark.parametrize(("path", "body", "status"), LATE_REFUSALS)
def test_a_call_that_its_body_refuses_leaves_no_begun_call(
    path: str, body: object, status: int, has_file: bool, tmp_path: Path
) -> None:
    grants = ["read:events", "compact:other-*" if "jobs" in path else "compact:events"]
    tokens = TokenFile(tmp_path / "tokens.json")
    _, token = tokens.create("narrow", grants, now_s=0.0, life_s=None)
    file = tmp_path / "audit.jsonl"
    access = {"tokens_file": str(tokens.path), "audit_file": str(file) if has_file else ""}
    with serving(access=access) as gateway, gateway.client() as admin:
        for name in ("events", "hidden"):
            create(gateway, tmp_path, name)
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=gateway.url, headers=headers) as narrow:
            for _ in range(EARLY_BURST + 20):
                answer = narrow.post(path, json=body)
                assert answer.status_code == status, answer.text
        first_entries(admin, EARLY_BURST + 2)
        store = gateway.services.store
        changes = gateway.ask(store.audit(1_000))
        refused = gateway.ask(store.audit(1_000, "refused"))
    assert b"narrow" not in b"".join(changes)
    assert EARLY_BURST <= len(refused) < EARLY_BURST + 20
    assert {json.loads(line)["outcome"] for line in refused} == {"refused"}
    if has_file:
        assert {each["caller"] for each in lines_of(file)} == {"gateway.token"}


def test_a_table_that_is_named_by_its_id_is_noted_before_it_is_changed(tmp_path: Path) -> None:
    """The path does not show that the caller may change it."""
    tokens = TokenFile(tmp_path / "tokens.json")
    _, token = tokens.create("narrow", ["compact:events"], now_s=0.0, life_s=None)
    file = tmp_path / "audit.jsonl"
    access = {"tokens_file": str(tokens.path), "audit_file": str(file)}
    with serving(access=access) as gateway:
        create(gateway, tmp_path)
        with gateway.client() as admin:
            id_ = admin.describe("events").id
        with gateway.client(token) as narrow:
            assert narrow.pause(id_).state == "paused"
    noted = [each["outcome"] for each in lines_of(file) if each["caller"] == "narrow"]
    assert noted == ["begun", "done"]
    assert not (tmp_path / "audit-refused.jsonl").exists()


def test_refused_calls_push_out_no_change(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    _, token = file.create("reader", ["read"], now_s=0.0, life_s=None)
    path = tmp_path / "audit.jsonl"
    access = {"tokens_file": str(file.path), "audit_file": str(path), "audit_entries_max": 100}
    with serving(access=access) as gateway, gateway.client() as admin:
        create(gateway, tmp_path)
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=gateway.url, headers=headers) as reader:
            for _ in range(3 * EARLY_BURST):
                assert reader.delete("/v1/tables/events").status_code == 403
        entries = first_entries(admin, EARLY_BURST + 1, of=1_000)

    assert [line["outcome"] for line in lines_of(path)] == ["begun", "done"]
    refused = [entry for entry in entries if entry.outcome == "refused"]
    assert EARLY_BURST <= len(refused) < 2 * EARLY_BURST
    assert refused[0].action == "DELETE /v1/tables/{table}"
    assert "POST /v1/tables" in {entry.action for entry in entries}


def test_reads_are_audited_where_that_is_set(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    access = {"audit_file": str(path), "audit_reads": True}
    with serving(access=access) as gateway, gateway.client() as client:
        create(gateway, tmp_path)
        client.append("events", [{"x": 1}])
        client.scan("events", columns=["x"])
        client.tables()
        first_entries(client, 3)
        read = [each for each in client.audit() if each.action.startswith("GET")]

    assert [each.action for each in read] == ["GET /v1/tables/{table}/scan"]
    assert (read[0].table, read[0].outcome, read[0].caller) == ("events", "done", "gateway.token")
    assert read[0].details.startswith("columns=x")
    assert [line["id"] for line in lines_of(tmp_path / "audit-reads.jsonl")] == [read[0].id]


def test_no_text_of_a_caller_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    odd = "a\x1b]0;title\x07b\x9b31mc\u202ed\re"
    entry = api.AuditEntry(id="aud-1", at_s=1.0, caller=odd, action="POST", details=odd)
    session = Session(as_json=False)
    session.show({}, lambda _: render_audit([entry]))
    session.say(odd)
    session.fail(ValueError(odd), "ValueError")
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert "a\\x1b]0;title" in text
        assert all(letter.isprintable() or letter in "\n\t" for letter in text)


# ----------------------------------------------------------------------------------- Buffered rows


def row_write(caller: str = "ci", at_s: float = 1000.0, **more: object) -> api.AuditEntry:
    entry = replace(ENTRY, id=f"aud-{caller}-{at_s}", caller=caller, table="events", at_s=at_s)
    return replace(entry, **more)  # type: ignore[arg-type]  # any field


def test_calls_that_buffer_rows_share_an_entry_per_caller_and_minute(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    where = site(path)

    async def calls() -> None:
        writes = where.audit.row_writes
        for caller, at_s in (("ci", 1000.0), ("ci", 1059.0), ("other", 1059.0), ("ci", 1060.0)):
            entry = row_write(caller, at_s)
            await writes.begin(entry)
            writes.end(replace(entry, outcome="done", details="rows=20"))
        refused = row_write("ci", 1061.0)
        await writes.begin(refused)
        writes.end(replace(refused, outcome="refused"))
        await where.audit.close()

    asyncio.run(calls())
    begun = [line for line in lines_of(path) if line["outcome"] == "begun"]
    done = {line["id"]: line["details"] for line in lines_of(path) if line["outcome"] == "done"}
    assert len(begun) == 3
    assert done == {
        "aud-ci-1000.0": "calls=2 rows=40 refused=0 failed=0",
        "aud-other-1059.0": "calls=1 rows=20 refused=0 failed=0",
        "aud-ci-1060.0": "calls=2 rows=20 refused=1 failed=0",
    }


def test_a_call_that_buffers_rows_is_not_made_without_a_first_line() -> None:
    where = site(FULL)
    where.stream.up = False

    async def calls() -> None:
        writes = where.audit.row_writes
        with pytest.raises(UnavailableError, match="audit"):
            await writes.begin(row_write())
        where.stream.up = True
        await writes.begin(row_write(at_s=1001.0))

    asyncio.run(calls())
    assert len(where.stream.lines) == 1


def test_the_route_of_buffered_rows_shares_its_entry_and_no_other_route_does(
    tmp_path: Path,
) -> None:
    path = tmp_path / "audit.jsonl"
    with serving(access={"audit_file": str(path)}) as gateway, gateway.client() as admin:
        create(gateway, tmp_path, "rows")
        for _ in range(3):
            admin.buffer_rows("rows", [{"x": 1}, {"x": 2}])
        with pytest.raises(CallerError):
            admin.buffer_rows("rows", [{"other": 1}])
        admin.flush("rows")
        admin.drop("rows")  # Its path ends like that of the route.
    lines = [line for line in lines_of(path) if line["outcome"] == "done"]
    assert [line["action"] for line in lines if line["action"] != "POST /v1/tables"] == [
        "POST /v1/tables/{table}/flush",
        "DELETE /v1/tables/{table}",
        "POST /v1/tables/{table}/rows",
    ]
    assert lines[-1]["details"] == "calls=4 rows=6 refused=1 failed=0"
