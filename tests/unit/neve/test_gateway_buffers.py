"""Buffered rows over HTTP: acknowledged, read at once, flushed into files, refused at bounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import UnavailableError as UnavailableStorageError
from common.metadata.changes import Applied, BeginOperation, CloseSegment
from common.metadata.keys import TableKeys
from common.metadata.store_values import TableBuffer
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.model.table import Table
from common.model.tablet import OperationKind, TabletId
from common.parquet.file_inspection import FileFacts
from common.parquet.location import open_location
from common.parquet.service_files import write_generation
from common.wire import CoordinatorStatus
from neve import api
from neve.api import ARROW_STREAM, LINES, Buffered
from neve.client import Client
from neve.client.errors import CallerError, NeveError, NotFoundError, RefusedError, UnavailableError
from neve.client.http import new_call
from neve.gateway.rows import buffered
from neve.gateway.table_files import StoredFiles
from tests.support.gateway import TOKEN, Gateway, Storage, serving

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("v", pa.int64()),
        ("name", pa.string()),
        ("gone", pa.bool_()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(9, 2)),
    ]
)
BAG = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    with gateway.client() as made:
        yield made
        for table in made.tables():
            with suppress(RefusedError):  # Replaced files still wait for the collector.
                made.flush(table.name)
                made.drop(table.name)


@pytest.fixture
def keyed(client: Client, tmp_path: Path) -> str:
    """Return a table with two tablets, up to 100 and the rest."""
    client.create_table(
        "events",
        str(tmp_path / "events"),
        schema=SCHEMA,
        key=["id"],
        version_column="v",
        tombstone_column="gone",
        splits=["100"],
    )
    return "events"


@pytest.fixture
def bag(client: Client, tmp_path: Path) -> str:
    """Return an append-only table."""
    client.create_table("bag", str(tmp_path / "bag"), schema=BAG)
    return "bag"


def rows(*ids: int, v: int = 1, **more: Any) -> list[dict[str, Any]]:
    return [{"id": number, "v": v, "name": f"n{number}", **more} for number in ids]


def names(client: Client, table: str = "events") -> dict[int, str]:
    return {row["id"]: row["name"] for row in client.scan(table).to_pylist()}


def send(gateway: Gateway, table: str, body: bytes, kind: str = LINES) -> httpx.Response:
    return httpx.post(
        f"{gateway.url}/v1/tables/{table}/rows",
        content=body,
        headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": kind},
    )


def table_of(gateway: Gateway, name: str) -> Table:
    table = gateway.ask(gateway.store.table_named(name))
    assert isinstance(table, Table)
    return table


def buffer_of(gateway: Gateway, name: str) -> TableBuffer:
    (buffer,) = gateway.ask(gateway.store.buffers([table_of(gateway, name).id]))  # type: ignore[misc]  # a list
    assert isinstance(buffer, TableBuffer)
    return buffer


def close_segment(gateway: Gateway, name: str) -> None:
    (segment,) = buffer_of(gateway, name).segments
    close = CloseSegment(table=table_of(gateway, name).id, number=segment.number)
    assert isinstance(gateway.ask(gateway.store.apply(close)), Applied)


def test_rows_are_read_at_once_and_flushed_into_one_file_per_tablet(
    client: Client, keyed: str
) -> None:
    for number in (1, 150, 2, 151):
        answer = client.buffer_rows(keyed, rows(number))
        assert (answer.rows, answer.repeated, answer.delay_s) == (1, False, 0.0)
        assert "metadata store" in answer.durability

    assert client.files(keyed) == []
    assert names(client) == {number: f"n{number}" for number in (1, 2, 150, 151)}
    assert client.count(keyed) == 4
    assert client.count(keyed, start="2", end="150") == 2

    flushed = client.flush(keyed)

    assert (flushed.rows, flushed.files) == (4, 2)
    assert sorted(file.rows for file in client.files(keyed)) == [2, 2]
    assert names(client) == {number: f"n{number}" for number in (1, 2, 150, 151)}
    assert client.flush(keyed).rows == 0


def test_buffered_rows_are_merged_with_files_and_with_each_other(
    client: Client, keyed: str
) -> None:
    client.append(keyed, rows(1, 2, 3, v=2))
    client.buffer_rows(keyed, rows(1, v=3, name="newer"))
    client.buffer_rows(keyed, rows(2, v=1, name="older"))
    client.buffer_rows(keyed, rows(3, v=4, gone=True))
    expected = {1: "newer", 2: "n2"}

    assert names(client) == expected
    assert client.count(keyed) == 2
    client.buffer_rows(keyed, rows(1, v=5, name="newest"))
    assert names(client) == expected | {1: "newest"}
    client.flush(keyed)
    assert names(client) == expected | {1: "newest"}


def test_rows_of_a_table_without_a_key_are_counted_once(client: Client, bag: str) -> None:
    client.append(bag, [{"id": 1, "name": "a"}])
    for _ in range(3):
        client.buffer_rows(bag, [{"id": 1, "name": "a"}])

    assert client.count(bag) == 4
    assert client.scan(bag).num_rows == 4
    client.flush(bag)
    assert client.count(bag) == 4


def test_a_repeated_call_counts_once(client: Client, bag: str) -> None:
    call = new_call()
    assert not client.buffer_rows(bag, [{"id": 1}], call=call).repeated
    assert client.buffer_rows(bag, [{"id": 1}], call=call).repeated
    assert client.append(bag, [{"id": 1}], call=call).repeated
    assert client.count(bag) == 1
    client.flush(bag)
    assert client.buffer_rows(bag, [{"id": 1}], call=call).repeated
    assert client.count(bag) == 1
    with pytest.raises(RefusedError, match="used before"):
        client.buffer_rows(bag, [{"id": 2}], call=call)
    assert client.call(bag, call).state == "accepted"


def test_a_flush_of_a_tablet_takes_the_segments_with_its_rows_whole(
    client: Client, gateway: Gateway, keyed: str
) -> None:
    first, last = [tablet.tablet for tablet in client.tablets(keyed)]
    client.buffer_rows(keyed, rows(1, 2))
    close_segment(gateway, keyed)
    client.buffer_rows(keyed, rows(3, 150, 151))

    flushed = client.flush(keyed, last)

    assert (flushed.rows, flushed.files, flushed.tablet_rows) == (3, 2, 2)
    assert buffer_of(gateway, keyed).rows == 2
    again = client.flush(keyed, last)
    assert (again.rows, again.tablet_rows) == (0, 0)
    rest = client.flush(keyed, first)
    assert (rest.rows, rest.tablet_rows) == (2, 2)
    assert sorted(names(client)) == [1, 2, 3, 150, 151]
    with pytest.raises(NotFoundError, match="no tablet"):
        client.flush(keyed, "ffff")


def test_a_flush_of_a_partition_takes_its_segments(client: Client, tmp_path: Path) -> None:
    schema = pa.schema([("day", pa.int64()), ("id", pa.int64())])
    client.create_table("days", str(tmp_path / "days"), schema=schema, partition_by=["day"])
    client.append("days", [{"day": day, "id": 1} for day in (1, 2)])
    client.buffer_rows("days", [{"day": 1, "id": 2}])
    (first, second) = [tablet.tablet for tablet in client.tablets("days")]

    assert client.flush("days", second).rows == 0
    assert client.flush("days", first).tablet_rows == 1


def test_explain_shows_the_buffer_and_why_it_is_not_flushed(client: Client, keyed: str) -> None:
    def sentences(tablet: str | None = None) -> list[str]:
        explained = client.explain(keyed, tablet)
        return [text for text in explained[0].sentences if "buffer" in text]

    assert sentences() == []
    client.buffer_rows(keyed, rows(1, 2, 150))
    (sentence,) = sentences()
    assert re.search(
        r"3 rows in \d+ B are buffered \(segment \d+\), the oldest for [0-9.]+ m?s;", sentence
    )
    assert "a flush is due at 1m, at 16.0 MiB" in sentence
    (sentence,) = sentences("last")
    assert sentence.endswith("rows of this tablet among them: 1")


def test_explain_names_the_reason_of_a_flush(client: Client, gateway: Gateway, bag: str) -> None:
    client.buffer_rows(bag, [{"id": 1}])
    close_segment(gateway, bag)
    (explained,) = client.explain(bag)
    assert any("a flush is due: 1 segment" in text for text in explained.sentences)


def test_rows_go_into_the_partitions_that_they_belong_to(client: Client, tmp_path: Path) -> None:
    schema = pa.schema([("day", pa.int64()), ("id", pa.int64())])
    client.create_table("days", str(tmp_path / "days"), schema=schema, partition_by=["day"])
    client.append("days", [{"day": 1, "id": 1}])
    client.buffer_rows("days", [{"day": day, "id": 2} for day in (1, 2, 3)])

    assert client.count("days") == 4
    assert client.count("days", start="2", end="2") == 1
    assert sorted(row["day"] for row in client.scan("days").to_pylist()) == [1, 1, 2, 3]
    assert client.flush("days").files == 3
    assert client.count("days") == 4


def test_lines_of_json_are_checked_against_the_schema(
    client: Client, gateway: Gateway, keyed: str
) -> None:
    line = (
        b'{"id": 1, "v": 2, "name": "a", "at": "2026-01-02T03:04:05Z", "price": "12.50"}\n'
        b'{"id": 2, "v": 2}\n'
    )
    answer = send(gateway, keyed, line)
    assert answer.status_code == 200, answer.text
    (first, second) = client.scan(keyed).to_pylist()
    assert (first["at"].isoformat(), str(first["price"])) == ("2026-01-02T03:04:05+00:00", "12.50")
    assert (second["id"], second["name"]) == (2, None)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"id": 1, "v": 2, "title": "a"}', "title"),
        (b'{"id": "x", "v": 2}', "id"),
        (b'{"id": 1.5, "v": 2}', "JSON"),
        (b'{"v": 2}', "id"),
        (b"[1]", "JSON"),
        (b"{", "JSON"),
        (b"", "JSON"),
        (b"\xff\xfe", "JSON"),
    ],
)
def test_lines_that_do_not_fit_are_refused(
    client: Client, gateway: Gateway, keyed: str, body: bytes, words: str
) -> None:
    answer = send(gateway, keyed, body)
    assert 400 <= answer.status_code < 500, answer.text
    assert words in answer.json()["detail"]
    assert client.count(keyed) == 0


def test_a_body_above_four_mebibytes_is_refused(gateway: Gateway, bag: str) -> None:
    answer = send(gateway, bag, b"x" * (4 * 1024**2 + 1), ARROW_STREAM)
    assert answer.status_code == 413


def test_another_content_type_is_refused(gateway: Gateway, bag: str) -> None:
    assert send(gateway, bag, b"a,b\n", "text/csv").status_code == 422


def test_rows_that_do_not_fit_the_schema_are_refused(client: Client, bag: str) -> None:
    with pytest.raises(CallerError, match="no such column"):
        client.buffer_rows(bag, pa.table({"id": [1], "title": ["a"]}))
    assert client.count(bag) == 0


def test_columns_that_a_table_has_grown_are_kept_by_a_flush(client: Client, bag: str) -> None:
    client.buffer_rows(bag, [{"id": 1, "name": "a"}])
    client.set(bag, add_columns={"more": "int64"})
    client.buffer_rows(bag, [{"id": 2, "name": "b", "more": 7}])

    assert client.count(bag) == 2
    assert client.flush(bag).files == 2
    assert sorted(row["more"] or 0 for row in client.scan(bag).to_pylist()) == [0, 7]


def test_a_full_buffer_refuses_rows_and_a_flush_makes_room(tmp_path: Path) -> None:
    with serving(ingest={"table_bytes_max": 64 * 1024}) as small, small.client() as client:
        client.create_table("bag", str(tmp_path / "bag"), schema=BAG)
        batch = [{"id": number, "name": "x" * 100} for number in range(200)]
        delays: list[float] = []

        def fill() -> None:
            for _ in range(100):
                delays.append(client.buffer_rows("bag", batch).delay_s)

        with pytest.raises(UnavailableError, match="bound"):
            fill()
        taken = len(delays) * len(batch)
        assert delays[0] == 0.0
        assert delays[-1] > 0.0
        assert client.count("bag") == taken
        metrics = httpx.get(f"{small.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        values = dict(re.findall(r"^(neve_buffer_\w+) (\S+)$", metrics.text, re.MULTILINE))
        assert float(values["neve_buffer_refusals_total"]) >= 1
        assert float(values["neve_buffer_delay_seconds_total"]) > 0
        answer = send(small, "bag", b'{"id": 1}')
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        client.flush("bag")
        assert client.count("bag") == taken


def test_no_rows_are_buffered_while_an_older_part_could_drop_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffered, "REFRESH_S", 0.0)
    with serving() as served, served.client() as client:
        for name, tombstones in (("events", "gone"), ("other", "gone"), ("kept", None)):
            client.create_table(
                name,
                str(tmp_path / name),
                schema=SCHEMA,
                key=["id"],
                version_column="v",
                tombstone_column=tombstones,
            )
        coordinator = served.coordinator
        coordinator.up = False
        refused = "no rows of table 'events' are buffered for now: "
        with pytest.raises(UnavailableError, match=f"{refused}the coordinator has not answered"):
            client.buffer_rows("events", rows(1))
        client.buffer_rows("kept", rows(1))  # Nothing of it is ever dropped.
        coordinator.up = True
        ((_, older),) = CoordinatorStatus.__dataclass_fields__["buffers_refused"].default
        busy = "attempt a1 of compactor c1 was begun by an earlier coordinator"
        for table, reason in (("", older), (table_of(served, "events").id, busy)):
            coordinator.buffers_refused = ((table, reason),)
            with pytest.raises(UnavailableError, match=refused + reason):
                client.buffer_rows("events", rows(1))
        client.buffer_rows("other", rows(1))
        assert client.count("events") == 0
        coordinator.buffers_refused = ()
        client.buffer_rows("events", rows(1))
        coordinator.buffers_refused = ((table_of(served, "events").id, "its first scan"),)
        client.buffer_rows("events", rows(2))  # What was allowed stays allowed.
        coordinator.up = False
        client.buffer_rows("events", rows(3))
        assert (client.count("events"), client.count("other")) == (3, 1)


def delayed(client: Client) -> Buffered:
    """Return the answer to the first call that was delayed; the causes are read in between."""
    answers = (client.buffer_rows("bag", [{"id": 1}]) for _ in range(100_000))
    return next(answer for answer in answers if answer.delay_s)


def test_writers_are_slowed_down_by_compactions_that_wait_and_never_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffered, "REFRESH_S", 0.0)
    monkeypatch.setattr(buffered, "ASK_S", 0.0)
    bounds = {"files_max": 40, "backlog_bytes_max": 1000}
    with serving(ingest=bounds) as served, served.client() as client:
        client.create_table("bag", str(tmp_path / "bag"), schema=BAG)
        assert not client.buffer_rows("bag", [{"id": 1}]).delay_reason
        served.coordinator.overlapping = {table_of(served, "bag").id: 22, "other": 4000}
        answer = delayed(client)
        assert (answer.delay_s, answer.delay_reason) == (
            0.1,
            "the overlapping files of table 'bag' near their bound: 55%",
        )
        served.coordinator.overlapping = {}
        backlog = api.Backlog(table="bag", strategy="ratio", size_bytes=560, tablets=1)
        served.coordinator.backlogs = (backlog,)
        while "backlog" not in (answer := delayed(client)).delay_reason:
            pass
        assert answer.delay_s == 0.12
        served.coordinator.backlogs = (replace(backlog, size_bytes=10**9),)
        while answer.delay_s < 1:
            answer = delayed(client)
        assert answer.delay_s == 1.0
        served.coordinator.up = False
        assert delayed(client).delay_s == 1.0


def test_writers_are_slowed_down_before_the_memory_of_the_store_refuses_them(
    client: Client, gateway: Gateway, bag: str
) -> None:
    use = gateway.services.buffers
    client.buffer_rows(bag, [{"id": 1}])
    delays = {}
    for used_pct in (50.0, 60.0, 62.0, 70.0):
        use.store_used_pct = used_pct
        delays[used_pct] = use.admit("other", "other")[0]
    use.store_used_pct = 0.0
    assert delays == {50.0: 0.0, 60.0: 0.0, 62.0: pytest.approx(0.2), 70.0: 1.0}


def test_a_table_that_takes_no_rows_refuses_them_before_it_delays_or_fills(
    client: Client, gateway: Gateway, bag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = gateway.services.buffers
    client.buffer_rows(bag, [{"id": 1}])
    monkeypatch.setattr(buffered, "REFRESH_S", 1e9)  # Otherwise the real memory would count.
    write_generation(open_location((tmp_path / "bag").as_uri()), 7)
    gateway.services.generations._seen.clear()
    use.store_used_pct = 71.0
    try:
        with pytest.raises(RefusedError, match="read-only"):
            client.buffer_rows(bag, [{"id": 2}])
    finally:
        use.store_used_pct = 0.0
        client.fsck(bag, accept=True)


def test_a_store_that_runs_out_of_memory_takes_no_rows(
    client: Client, gateway: Gateway, bag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = gateway.services.buffers
    client.buffer_rows(bag, [{"id": 1}])
    monkeypatch.setattr(buffered, "REFRESH_S", 1e9)  # Otherwise the real memory would count.
    use.store_used_pct = 71.0
    try:
        assert send(gateway, bag, b'{"id": 1}').status_code == 503
        assert use.refused >= 1
    finally:
        use.store_used_pct = 0.0


def test_a_drop_that_keeps_files_flushes_first(client: Client, bag: str, tmp_path: Path) -> None:
    client.buffer_rows(bag, [{"id": 1}])
    client.drop(bag)
    files = [path for path in (tmp_path / "bag").rglob("*.parquet") if "append" in str(path)]
    assert len(files) == 1


# ------------------------------------------------------------------------------------ Other calls


def files_of(client: Client, table: str) -> int:
    return sum(file.rows for file in client.files(table))


def test_a_request_counts_rows_that_were_acknowledged_before_it(client: Client, keyed: str) -> None:
    client.buffer_rows(keyed, rows(1, 150))
    client.compact(keyed, delete_where="id = 1")
    assert files_of(client, keyed) == 2
    client.buffer_rows(keyed, rows(2))
    assert files_of(client, keyed) == 2


def test_a_backup_and_a_manifest_have_all_acknowledged_rows(
    client: Client, bag: str, tmp_path: Path
) -> None:
    client.buffer_rows(bag, [{"id": 1}])
    client.backup(tmp_path / "archive", tables=[bag])
    assert files_of(client, bag) == 1
    assert b"append/" in (tmp_path / "archive").read_bytes()
    client.buffer_rows(bag, [{"id": 2}])
    manifest = client.manifest(bag)
    assert len(manifest["files"]) == 2


def test_a_window_replaces_buffered_rows(client: Client, tmp_path: Path) -> None:
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("n", pa.int64())])
    folder = tmp_path / "windows"
    client.create_table("windows", str(folder), schema=schema, time_column="at")
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    client.buffer_rows("windows", [{"at": noon, "n": 1}])
    pq.write_table(pa.table({"at": [noon], "n": [2]}, schema=schema), folder / "new.parquet")

    added = client.add_files("windows", ["new.parquet"], version=1, window="2026-05-01..2026-05-02")

    assert added.replaced == 1
    assert [row["n"] for row in client.scan("windows").to_pylist()] == [2]


def test_a_paused_table_takes_rows(client: Client, bag: str) -> None:
    client.pause(bag)
    client.buffer_rows(bag, [{"id": 1}])
    assert client.flush(bag).rows == 1


def test_a_split_and_a_merge_keep_buffered_rows(
    client: Client, gateway: Gateway, keyed: str
) -> None:
    client.append(keyed, rows(*range(90)))
    client.buffer_rows(keyed, rows(20, 70, 150, v=2))
    table = gateway.ask(gateway.store.table_named(keyed))
    first = TabletId(table.id, encode_key((100,), (KeyType.INT,)))  # type: ignore[attr-defined]  # a table
    for change in (
        BeginOperation(
            tablets=(first,),
            kind=OperationKind.SPLIT,
            operation="op-1",
            at=encode_key((50,), (KeyType.INT,)),
        ),
    ):
        outcome = gateway.ask(gateway.store.apply(change))
        assert isinstance(outcome, Applied), outcome
    assert client.count(keyed) == 91
    assert client.flush(keyed).files == 3
    assert client.count(keyed) == 91


def test_fsck_finds_damaged_rows(client: Client, gateway: Gateway, bag: str) -> None:
    client.buffer_rows(bag, [{"id": 1}])
    assert client.fsck(bag).sound
    table = gateway.ask(gateway.store.table_named(bag))
    key = TableKeys(table.id).segment(1)  # type: ignore[attr-defined]  # a table
    ((call, stored),) = gateway.ask(gateway.store.buffered_rows(table.id, [1]))[0].items()  # type: ignore[attr-defined, index]  # rows

    async def put(value: bytes) -> None:
        async with gateway.store._keyspace.session() as session:
            await session.execute([("HSET", key, call, value)])

    gateway.ask(put(stored[:-1]))
    (finding,) = client.fsck(bag).findings
    assert finding.code == "undecodable"
    assert "buffered rows" in finding.sentence
    with pytest.raises(NeveError, match="damaged"):
        client.flush(bag)
    gateway.ask(put(stored))
    assert client.flush(bag).rows == 1


def test_a_buffer_that_cannot_be_read_stops_no_other_table(tmp_path: Path) -> None:
    with serving() as gateway, gateway.client() as client:
        for name in ("bag", "broken"):
            client.create_table(name, str(tmp_path / name), schema=BAG)
        key = TableKeys(table_of(gateway, "broken").id).rows

        async def damage() -> None:
            async with gateway.store._keyspace.session() as session:
                await session.execute([("HSET", key, "1", b"garbage")])

        gateway.ask(damage())
        client.buffer_rows("bag", [{"id": 1}])
        assert client.count("bag") == 1
        with pytest.raises(NeveError, match="the stored value"):
            client.buffer_rows("broken", [{"id": 1}])


def test_a_store_that_went_back_in_time_takes_no_rows(
    client: Client, gateway: Gateway, bag: str, tmp_path: Path
) -> None:
    client.buffer_rows(bag, [{"id": 1}])
    location = open_location((tmp_path / "bag").as_uri())
    write_generation(location, 7)
    gateway.services.generations._seen.clear()
    calls: tuple[Callable[[], object], ...] = (
        lambda: client.buffer_rows(bag, [{"id": 2}]),
        lambda: client.flush(bag),
        lambda: client.drop(bag),
        lambda: client.compact(bag),
    )
    for call in calls:
        with pytest.raises(RefusedError, match="read-only"):
            call()
    assert client.count(bag) == 1
    client.fsck(bag, accept=True)
    client.buffer_rows(bag, [{"id": 2}])
    assert client.flush(bag).rows == 2
    assert client.count(bag) == 2


def test_a_storage_that_does_not_answer_keeps_rows_buffered(tmp_path: Path) -> None:
    class Silent(StoredFiles):
        down = True

        def write(self, table: Table, path: str, rows: pa.Table) -> FileFacts:
            if self.down:
                raise UnavailableStorageError("storage does not answer")
            return super().write(table, path, rows)

    files = Silent()
    with serving(storage=Storage(files=files)) as served, served.client() as client:
        client.create_table("bag", str(tmp_path / "bag"), schema=BAG)
        client.buffer_rows("bag", [{"id": 1}])
        calls: tuple[Callable[[], object], ...] = (
            lambda: client.flush("bag"),
            lambda: client.compact("bag"),
            lambda: client.drop("bag"),
            lambda: client.backup(tmp_path / "archive", tables=["bag"]),
            lambda: client.manifest("bag"),
        )
        for call in calls:
            with pytest.raises(UnavailableError, match="does not answer"):
                call()
        assert client.count("bag") == 1
        files.down = False
        client.compact("bag")
        assert client.count("bag") == 1
