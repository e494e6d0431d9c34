"""Ids of calls over HTTP: once is once, whatever happened since; another call is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.metadata.changes import (
    AddFiles,
    Applied,
    Change,
    CommitAttempt,
    ForgetGarbage,
    Outcome,
    ReserveFiles,
    SubmitRequest,
)
from common.metadata.store_values import CallMark
from common.model.job import Kind
from common.model.outcome import RowCounts
from common.model.tablet import PLUS_INFINITY, TabletId
from common.parquet.location import open_location
from common.parquet.service_files import write_generation
from common.runtime import SystemClock
from neve.api import Added
from neve.client import Client
from neve.client.errors import (
    CallerError,
    RefusedError,
    UnknownOutcomeError,
)
from neve.client.http import Connection, new_call
from neve.client.requests import Request
from tests.support.gateway import TOKEN, Gateway, serving
from tests.support.memory_store import MemoryStore
from tests.support.shell import Shell
from tests.unit.metadata.test_durable import noted

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("name", pa.string())])
OLD_CALL = "0190a1b2-0000-7000-8000-000000000000"


class Overtaken(MemoryStore):
    """Lets others go on while one call stands still: behind its look for the mark, or later."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.stands_still = ""
        self.meanwhile: Callable[[], object] = list

    async def call_and_time(self, table: str, call: str) -> tuple[CallMark | None, float]:
        found = await super().call_and_time(table, call)
        await self._stand_still("looked")
        return found

    async def apply(self, change: Change) -> Outcome:
        if isinstance(change, AddFiles | SubmitRequest):
            await self._stand_still("about to write")
        return await super().apply(change)

    async def _stand_still(self, moment: str) -> None:
        if self.stands_still == moment:
            self.stands_still = ""
            await asyncio.to_thread(self.meanwhile)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture
def client(gateway: Gateway, tmp_path: Path) -> Iterator[Client]:
    with gateway.client() as made:
        made.create_table("bag", str(tmp_path / "bag"), schema=SCHEMA)
        made.create_table(
            "keyed", str(tmp_path / "keyed"), schema=SCHEMA, key=["id"], version_column="v"
        )
        yield made
        for table in made.tables():
            made.drop(table.name)


def rows(*ids: int) -> pa.Table:
    return pa.table(
        {"id": ids, "v": [1] * len(ids), "name": [f"n{id_}" for id_ in ids]}, schema=SCHEMA
    )


@pytest.mark.parametrize("table", ["bag", "keyed"])
def test_the_same_rows_in_another_order_are_the_same_call(client: Client, table: str) -> None:
    call = new_call()
    client.append(table, rows(1, 2, 2, 3), call=call)
    narrow = rows(3, 2, 1, 2).cast(
        pa.schema([("id", pa.int16()), ("v", pa.int8()), ("name", pa.large_string())])
    )

    for same in (rows(3, 2, 1, 2), narrow.select(["name", "v", "id"])):
        assert client.append(table, same, call=call).repeated

    assert client.describe(table).rows == 4


@pytest.mark.parametrize("table", ["bag", "keyed"])
@pytest.mark.parametrize(
    "other", [rows(1, 2), rows(1, 2, 3, 4), rows(1, 1, 2, 3), rows(1, 2, 3).select(["id", "v"])]
)
def test_other_rows_are_another_call(client: Client, table: str, other: pa.Table) -> None:
    call = new_call()
    client.append(table, rows(1, 2, 3), call=call)
    with pytest.raises(RefusedError, match="used before, with other content") as caught:
        client.append(table, other, call=call)
    assert caught.value.code == "call-content"
    assert client.describe(table).rows == 3


def test_replicas_have_the_mark_that_a_repeated_call_is_answered_from(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = new_call()
    client.append("bag", rows(1, 2), call=call)
    durable = noted(monkeypatch)

    assert client.append("bag", rows(2, 1), call=call).repeated
    assert True in durable


def test_a_schema_that_has_grown_makes_no_other_call(client: Client) -> None:
    call = new_call()
    client.append("bag", rows(1, 2), call=call)
    client.set("bag", {}, add_columns={"more": "double"})
    assert client.append("bag", rows(2, 1), call=call).repeated
    assert client.describe("bag").rows == 2


def test_one_id_is_one_call_of_one_kind(client: Client, tmp_path: Path) -> None:
    pq.write_table(rows(1), tmp_path / "bag/a.parquet")
    added, appended, compacted = new_call(), new_call(), new_call()
    client.add_files("bag", ["a.parquet"], call=added)
    client.append("bag", rows(1), call=appended)
    client.compact("bag", call=compacted)
    for call, kind in ((added, "add"), (appended, "append"), (compacted, "compact")):
        again = {
            "add": lambda call=call: client.add_files("bag", ["a.parquet"], call=call),
            "append": lambda call=call: client.append("bag", rows(1), call=call),
            "compact": lambda call=call: client.compact("bag", call=call),
        }
        for name, repeat in again.items():
            if name == kind:
                repeat()
                continue
            with pytest.raises(RefusedError, match=f"used before, for `{kind}`") as caught:
                repeat()
            assert caught.value.code == "call-content"
    assert client.describe("bag").rows == 2
    assert len(client.requests("bag")) == 1


def compacted(gateway: Gateway, table: str, *inputs: str, deleted: bool = True) -> None:
    """Replace files by nothing, and let the collector have been there, or not yet."""
    tablet = TabletId(table, PLUS_INFINITY)
    reserve = ReserveFiles(
        tablet=tablet,
        attempt="att-1",
        job="job-1",
        kind=Kind.SYSTEM,
        inputs=inputs,
        output_prefix="_neve/last/out",
        outputs_max=1,
        group="default",
        compactor="c-1",
    )
    commit = CommitAttempt(tablet=tablet, attempt="att-1", outputs=(), counts=RowCounts(rows_in=1))
    changes: list[Change] = [reserve, commit, ForgetGarbage(table=table, paths=inputs)]
    for change in changes if deleted else changes[:2]:
        assert isinstance(gateway.ask(gateway.store.apply(change)), Applied)


def test_an_add_whose_file_is_gone_since_was_accepted(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    call = new_call()
    for name in ("a", "b"):
        pq.write_table(rows(1), tmp_path / f"bag/{name}.parquet")
    client.add_files("bag", ["a.parquet", "b.parquet"], call=call)
    compacted(gateway, client.describe("bag").id, "a.parquet")
    (tmp_path / "bag/a.parquet").unlink()

    again = client.add_files("bag", ["b.parquet", "a.parquet"], call=call)

    assert (again.repeated, again.rows, again.file_count) == (True, 2, 2)
    with pytest.raises(RefusedError, match="with other content"):
        client.add_files("bag", ["a.parquet"], call=call)
    with pytest.raises(CallerError, match="does not exist"):
        client.add_files("bag", ["a.parquet"])


def test_a_file_that_was_written_over_is_other_content(client: Client, tmp_path: Path) -> None:
    call = new_call()
    pq.write_table(rows(1), tmp_path / "bag/a.parquet")
    client.add_files("bag", ["a.parquet"], call=call)
    pq.write_table(rows(*range(500)), tmp_path / "bag/a.parquet")
    with pytest.raises(RefusedError, match="with other content"):
        client.add_files("bag", ["a.parquet"], call=call)


def test_a_repeated_call_is_answered_after_the_table_became_read_only(
    client: Client, tmp_path: Path
) -> None:
    """The table has become read-only between the call and its repetition."""
    added, appended, compact = new_call(), new_call(), new_call()
    pq.write_table(rows(1), tmp_path / "bag/a.parquet")

    def everything() -> list[object]:
        return [
            client.add_files("bag", ["a.parquet"], call=added).rows,
            client.append("bag", rows(1), call=appended).rows,
            client.compact("bag", call=compact).id,
        ]

    first = everything()
    write_generation(open_location((tmp_path / "bag").as_uri()), 7)
    assert everything() == first


def sent(client: Client, kind: str, call: str) -> Added | Request:
    if kind == "compact":
        return client.compact("bag", call=call, deadline="10m")
    if kind == "add":
        return client.add_files("bag", ["a.parquet"], call=call)
    return client.append("bag", rows(1, 2), call=call)


@pytest.mark.parametrize("since", ["replaced", "deleted", "read-only"])
@pytest.mark.parametrize("stands_still", ["looked", "about to write"])
@pytest.mark.parametrize("kind", ["add", "append", "compact"])
def test_a_first_try_that_ends_while_it_is_repeated_is_the_one_that_counts(
    tmp_path: Path, kind: str, stands_still: str, since: str
) -> None:
    """It was with a gateway that stood still; what it brought in is compacted at once."""
    store, call, folder = Overtaken(), new_call(), tmp_path / "bag"
    with serving(store) as gateway, gateway.client() as client:
        client.create_table("bag", str(folder), schema=SCHEMA)
        pq.write_table(rows(1, 2), folder / "a.parquet")

        def first_try() -> None:
            sent(client, kind, call)
            files = [file.path for file in client.files("bag")]
            if since == "read-only":
                write_generation(open_location(folder.as_uri()), 7)
            elif files:
                compacted(gateway, client.describe("bag").id, *files, deleted=since == "deleted")
            if files and since == "deleted":
                (folder / files[0]).unlink()

        store.meanwhile, store.stands_still = first_try, stands_still
        answer = sent(client, kind, call)

        assert store.stands_still == "", "it was overtaken"
        if isinstance(answer, Request):
            assert [request.id for request in client.requests("bag")] == [answer.id]
            return
        assert (answer.rows, answer.file_count) == (2, 1)
        assert answer.repeated or kind == "add", "the same file tells not whose try it was"
        assert client.describe("bag").rows == (2 if since == "read-only" else 0)


def test_an_application_can_ask_what_became_of_a_call(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    pq.write_table(rows(1), tmp_path / "bag/a.parquet")
    added, appended, compact, unused = (new_call() for _ in range(4))
    client.add_files("bag", ["a.parquet"], call=added)
    client.append("bag", rows(1, 2), call=appended)
    request = client.compact("bag", call=compact)

    told = client.call("bag", added)
    assert (told.state, told.kind, told.rows, told.file_count) == ("accepted", "add", 1, 1)
    assert (told.tablets, told.request) == (("last",), None)
    assert told.at_s is not None
    told = client.call("bag", appended.upper())
    assert (told.call, told.kind, told.rows) == (appended, "append", 2)
    told = client.call("bag", compact)
    assert (told.kind, told.request, told.rows) == ("compact", request.id, None)
    assert client.call("bag", unused).state == "unknown"
    assert client.call("keyed", added).state == "unknown", "a call is of one table"
    assert client.call("bag", OLD_CALL).state == "too-old"
    with pytest.raises(CallerError, match="is not a UUIDv7"):
        client.call("bag", "mine")
    with pytest.raises(CallerError, match="no table is named"):
        client.call("none", added)

    neve = Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
    neve.run("call", "bag", appended, says="append of 2 rows")
    neve.run("call", "bag", compact, says=f"as request {request.id}")
    neve.run("call", "bag", unused, says="has not been accepted so far")
    neve.run("call", "bag", OLD_CALL, says="too old")
    assert neve.json("call", "bag", added)["state"] == "accepted"


def test_an_unknown_outcome_carries_the_call_id(gateway: Gateway, client: Client) -> None:
    class Breaks(httpx.BaseTransport):
        """Sends everything and loses every answer."""

        def __init__(self) -> None:
            self._inner = httpx.HTTPTransport()

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            self._inner.handle_request(request).read()
            raise httpx.RemoteProtocolError("the answer was lost", request=request)

    lost = Client(gateway.url, token=TOKEN)
    lost._connection = Connection(gateway.url, TOKEN, transport=Breaks(), sleep=lambda _: None)
    with pytest.raises(UnknownOutcomeError, match="the id of the call is") as caught:
        lost.append("bag", rows(1, 2))
    assert caught.value.call is not None
    told = client.call("bag", caught.value.call)
    assert (told.state, told.rows) == ("accepted", 2)
    assert client.describe("bag").rows == 2
