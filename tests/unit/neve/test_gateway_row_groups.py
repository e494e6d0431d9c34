"""Group commit of buffered rows: calls that wait share a transaction; each has its own answer."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import httpx
import pyarrow as pa
import pytest

from common.errors import UnavailableError
from common.metadata.changes import (
    AppendGroup,
    AppendRows,
    Applied,
    Change,
    Outcome,
    Refused,
    RowSpan,
    Unknown,
)
from common.metadata.codec.table import unpack_rows
from common.metadata.keys import TabletKeys
from common.metadata.keyspace import set_string
from common.metadata.store_values import TableBuffer
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.model.outcome import RefusalCode
from common.model.table import Column, Table
from common.model.tablet import PLUS_INFINITY, TabletId
from common.parquet.append import AppendTarget, content_digest, cut_by_tablet
from common.rows.row_facts import RowTally
from common.rows.rules import RowRules
from common.runtime import SystemClock
from neve.api import ARROW_STREAM, CALL_HEADER, LINES
from neve.client import Client
from neve.client.errors import CallerError
from neve.client.http import new_call
from neve.gateway.rows import group_commit
from neve.gateway.rows.group_commit import Room
from tests.support.gateway import TOKEN, Gateway, serving
from tests.support.memory_store import MemoryStore
from tests.support.patience import PATIENCE_S
from tests.tidy.tree import ROOT

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("name", pa.string())])


class HeldStore(MemoryStore):
    """A store that holds transactions of groups, and answers as it is asked to."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.groups: list[int] = []
        """Number of calls of each group."""
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.answers: dict[int, Callable[[Outcome], Outcome]] = {}
        """Number of a group → changes what it is answered."""
        self.listings = 0

    async def apply(self, change: Change, **more: Any) -> Outcome:
        if not isinstance(change, AppendGroup):
            return await super().apply(change, **more)
        self.groups.append(len(change.calls))
        number = len(self.groups)
        await self.go_on.wait()
        outcome = await super().apply(change, **more)
        answer = self.answers.get(number)
        return answer(outcome) if answer is not None else outcome

    async def tablet_ids(self, *given: Any, **more: Any) -> Any:
        self.listings += 1
        return await super().tablet_ids(*given, **more)


@pytest.fixture
def store() -> HeldStore:
    return HeldStore()


@pytest.fixture
def gateway(store: HeldStore) -> Iterator[Gateway]:
    with serving(store) as served:
        yield served


@pytest.fixture
def client(gateway: Gateway, tmp_path: Path) -> Iterator[Client]:
    with gateway.client() as made:
        made.create_table("bag", str(tmp_path / "bag"), schema=SCHEMA)
        made.create_table(
            "keyed",
            str(tmp_path / "keyed"),
            schema=SCHEMA,
            key=["id"],
            version_column="v",
            splits=["100"],
        )
        yield made


def send(gateway: Gateway, table: str, body: bytes, kind: str = LINES, call: str = "") -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
    headers |= {CALL_HEADER: call} if call else {}
    url = f"{gateway.url}/v1/tables/{table}/rows"
    return httpx.post(url, content=body, headers=headers, timeout=PATIENCE_S)


@contextmanager
def together(
    gateway: Gateway, store: HeldStore, table: str, first: bytes = b'{"id": 1, "v": 1}'
) -> Iterator[Callable[..., Future[httpx.Response]]]:
    """Yield a function that sends a call; all calls of the block are in the second group."""

    async def hold(*, is_held: bool) -> None:
        (store.go_on.clear if is_held else store.go_on.set)()

    gateway.ask(hold(is_held=True))
    with ThreadPoolExecutor(16) as senders:
        sent = [senders.submit(send, gateway, table, first)]
        until(lambda: bool(store.groups))

        def submit(*given: Any, **more: Any) -> Future[httpx.Response]:
            sent.append(senders.submit(send, gateway, table, *given, **more))
            return sent[-1]

        yield submit
        (queue,) = queues(gateway)
        until(lambda: len(queue) == len(sent) - 1)
        gateway.ask(hold(is_held=False))


def queues(gateway: Gateway) -> list[Any]:
    """Return the queues of calls that wait, as the running tasks have them."""
    tasks = [task for task in gateway.services.pending if not task.done()]
    frames = [task.get_coro().cr_frame for task in tasks]  # type: ignore[union-attr]  # a coroutine
    return [frame.f_locals["queue"] for frame in frames if "queue" in frame.f_locals]


def until(is_so: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if is_so():
            return
        done.wait(0.01)
    raise AssertionError("it did not become so")


def table_of(gateway: Gateway, name: str) -> Table:
    table = gateway.ask(gateway.store.table_named(name))
    assert isinstance(table, Table)
    return table


def buffer_of(gateway: Gateway, table: Table) -> TableBuffer:
    (buffer,) = cast("Sequence[TableBuffer]", gateway.ask(gateway.store.buffers([table.id])))
    return buffer


def test_calls_that_wait_share_a_transaction_and_a_refused_one_refuses_only_itself(
    client: Client, gateway: Gateway, store: HeldStore
) -> None:
    call, arrow = new_call(), pa.BufferOutputStream()
    with pa.ipc.new_stream(arrow, SCHEMA.with_metadata({"pandas": "{}"})) as writer:
        writer.write(pa.record_batch([[6, 7], [1, 1], ["a", None]], schema=SCHEMA))
    with together(gateway, store, "keyed") as submit:
        good = [
            submit(b'{"id": 2, "v": 1}\n{"id": 200, "v": 1}', call=call),
            submit(b'{"id": 5, "v": 1, "name": "x"}'),
            submit(arrow.getvalue().to_pybytes(), ARROW_STREAM),
        ]
        bad = [
            submit(b"{"),
            submit(b'{"id": 3, "v": 1, "title": "x"}'),
            submit(b'{"v": 1}'),
            submit(b"abc", ARROW_STREAM),
            submit(b'{"id": 4, "v": 1}', call="01900000-0000-7000-8000-000000000000"),
        ]
        twice = submit(b'{"id": 200, "v": 1}\n{"id": 2, "v": 1}', call=call)
    assert [answer.result().status_code for answer in (*good, twice)] == [200] * 4
    assert {answer.result().status_code for answer in bad} == {400}, [
        answer.result().text for answer in bad
    ]
    repeated = [good[0].result().json()["repeated"], twice.result().json()["repeated"]]
    assert sorted(repeated) == [False, True]
    assert store.groups == [1, 5]
    assert sorted(row["id"] for row in client.scan("keyed").to_pylist()) == [1, 2, 5, 6, 7, 200]
    # The metadata of a caller's schema does not close segments.
    buffer = buffer_of(gateway, table_of(gateway, "keyed"))
    assert [segment.number for segment in buffer.segments] == [1]
    assert client.flush("keyed").files == 2


def test_an_unknown_outcome_is_that_of_all_calls_and_each_may_be_sent_again(
    client: Client, gateway: Gateway, store: HeldStore
) -> None:
    calls = [new_call() for _ in range(3)]
    bodies = [b'{"id": %d, "v": 1}' % number for number in range(3)]
    store.answers[2] = lambda _: Unknown(reason="no answer")
    with together(gateway, store, "bag") as submit:
        sent = [submit(body, call=call) for body, call in zip(bodies, calls, strict=True)]
    assert [answer.result().status_code for answer in sent] == [503] * 3
    assert {answer.result().json()["error"] for answer in sent} == {"UnknownOutcomeError"}
    assert store.groups == [1, 3]
    again = [
        send(gateway, "bag", body, call=call) for body, call in zip(bodies, calls, strict=True)
    ]
    assert [answer.json()["repeated"] for answer in again] == [True] * 3
    assert client.count("bag") == 4


def test_a_refusal_after_a_lost_answer_is_an_unknown_outcome(
    client: Client, gateway: Gateway, store: HeldStore
) -> None:
    refused = Refused(code=RefusalCode.CALL_TOO_OLD, reason="too old", sent=True)
    store.answers[1] = lambda _: Applied(answers=(refused,))
    answer = send(gateway, "bag", b'{"id": 1, "v": 1}')
    assert answer.json()["error"] == "UnknownOutcomeError"


def test_an_error_of_the_store_is_that_of_all_calls_of_the_group(
    client: Client, gateway: Gateway, store: HeldStore
) -> None:
    def down(_: Outcome) -> Outcome:
        raise UnavailableError("the metadata store does not answer")

    store.answers[2] = down
    with together(gateway, store, "bag") as submit:
        sent = [submit(b'{"id": 2, "v": 1}') for _ in range(2)]
    assert [answer.result().status_code for answer in sent] == [503, 503]
    assert send(gateway, "bag", b'{"id": 3, "v": 1}').status_code == 200


def test_a_damaged_tablet_fails_only_the_calls_with_rows_for_it(
    client: Client, gateway: Gateway, store: HeldStore
) -> None:
    table = table_of(gateway, "keyed")

    async def damage() -> None:
        keys = TabletKeys.of(TabletId(table.id, PLUS_INFINITY))
        async with store._keyspace.session() as session:
            await session.execute([set_string(keys.bounds, b"\x01garbage")])

    gateway.ask(damage())
    with together(gateway, store, "keyed") as submit:
        bad = submit(b'{"id": 150, "v": 1}\n{"id": 3, "v": 1}')
        good = [submit(b'{"id": %d, "v": 1}' % number) for number in (2, 4)]
    assert [answer.result().status_code for answer in good] == [200, 200]
    assert bad.result().status_code >= 500
    assert buffer_of(gateway, table).rows == 3


def test_rows_are_routed_again_when_tablets_have_changed(
    client: Client, gateway: Gateway, store: HeldStore
) -> None:
    line = b'{"id": %d, "v": 1}'
    assert send(gateway, "keyed", line % 1).status_code == 200
    listings = store.listings
    assert send(gateway, "keyed", line % 2).status_code == 200
    assert store.listings == listings

    def moved(outcome: Outcome) -> Outcome:
        assert isinstance(outcome, Applied)
        refused = Refused(code=RefusalCode.BOUNDS, reason="rows have keys outside the tablet")
        return Applied(answers=(refused,) * len(outcome.answers))

    store.answers[3] = moved
    assert send(gateway, "keyed", line % 3).json()["repeated"]  # It was made, after all.
    assert store.listings == listings + 1


def test_a_table_that_was_dropped_and_made_again_gets_the_rows(
    client: Client, tmp_path: Path
) -> None:
    client.buffer_rows("bag", [{"id": 1}])
    client.flush("bag")
    client.drop("bag")
    client.create_table("bag", str(tmp_path / "again"), schema=SCHEMA)
    client.buffer_rows("bag", [{"id": 2}])
    assert [row["id"] for row in client.scan("bag").to_pylist()] == [2]


def test_a_table_with_many_tablets_is_looked_up_by_key(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "TARGETS_MAX", 1)
    client.buffer_rows("keyed", [{"id": number, "v": 1} for number in (1, 100, 101, 500)])
    assert client.flush("keyed").files == 2
    assert client.count("keyed") == 4


@pytest.mark.parametrize("size", [1000, 200_000, 2_000_000])
def test_bodies_of_all_sizes_are_taken(client: Client, size: int) -> None:
    count = 50
    rows = [{"id": n, "v": 1, "name": f"{n:03d}" + "x" * (size // count)} for n in range(count)]
    assert client.buffer_rows("bag", rows).rows == count
    assert client.scan("bag").sort_by("id").to_pylist() == rows


def test_versions_too_far_ahead_are_refused_alone(
    gateway: Gateway, client: Client, store: HeldStore, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    client.create_table(
        "timed", str(tmp_path / "timed"), schema=schema, key=["id"], version_column="at"
    )
    with pytest.raises(CallerError, match="later than"):
        client.buffer_rows("timed", pa.table({"id": [1], "at": [1 << 60]}).cast(schema))
    line = b'{"id": 1, "at": "%d-01-01T00:00:00Z"}'
    client.append("timed", pa.table({"id": [9], "at": [0]}).cast(schema))
    store.groups.clear()
    with together(gateway, store, "timed", line % 2020) as submit:
        good, bad = submit(line % 2021), submit(line % 2999)
    assert (good.result().status_code, bad.result().status_code) == (200, 400)


RANDOM = pa.schema([("id", pa.int64()), ("part", pa.string()), ("v", pa.int64())])
COLUMNS = tuple(Column(field.name, str(field.type)) for field in RANDOM)
KEYED = Table(id="t", name="t", location="", schema=COLUMNS, key=("id",), version_column="v")
TABLES = (
    KEYED,
    replace(KEYED, key=("id", "part")),
    replace(KEYED, partition_by=("part",)),
    replace(KEYED, partition_by=("part",), key=(), version_column=None),
    replace(KEYED, key=(), version_column=None),
)
TARGETS = [
    AppendTarget(after, end, end)
    for after, end in pairwise(
        [None, *(encode_key((at,), (KeyType.INT,)) for at in (10, 20, 30)), PLUS_INFINITY]
    )
    if end is not None
]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("table", TABLES, ids=["key", "long", "parts", "days", "bag"])
def test_each_call_of_a_group_becomes_the_change_that_it_would_be_alone(
    table: Table, seed: int
) -> None:
    dice = random.Random(seed)
    bodies = [
        pa.Table.from_pylist(
            [
                {
                    "id": dice.randrange(40),
                    "part": dice.choice(["a", "b", "\0", None]),
                    "v": dice.randrange(9),
                }
                for _ in range(dice.randrange(1, 20))
            ],
            RANDOM,
        )
        for _ in range(dice.randrange(1, 8))
    ]
    targets = TARGETS if table.key and not table.partition_by else []
    rules = group_commit._Rules(table, targets, 0.0, 0.0, 1000, 5000)

    async def changes() -> list[AppendRows]:
        loop = asyncio.get_running_loop()

        def call_with(rows: pa.Table) -> group_commit._Call:
            return group_commit._Call(table, "c", lambda _: rows, 1, loop.create_future())

        calls = [call_with(rows) for rows in bodies]
        parts, failures = group_commit.checked_rows(table, calls)
        assert not failures
        made, failures = group_commit.changes_of(parts, rules, lambda: "flush")
        assert not failures
        return [made[call] for call in calls]

    for rows, change in zip(bodies, asyncio.run(changes()), strict=True):
        assert (change.rows, change.content) == (rows.num_rows, content_digest(rows))
        assert change.spans == spans_alone(table, rows, targets)
        versions = [span.version_min or b"" for span in change.spans.values()]
        assert change.floor == min(versions, default=b"")
        message, count = unpack_rows("rows", change.message)
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), RANDOM)
        assert pa.Table.from_batches([batch]).equals(rows.combine_chunks())
        assert count == rows.num_rows


def spans_alone(
    table: Table, rows: pa.Table, targets: Sequence[AppendTarget]
) -> dict[bytes, RowSpan]:
    """Return what the rows of one call span, by the code that looks at rows of files."""
    spans: dict[bytes, RowSpan] = {}
    for part in cut_by_tablet(rows, table, targets) if table.key else ():
        tally = RowTally(RowRules.of(table))
        tally.see(part.rows)
        facts = tally.facts()
        assert facts.key_min is not None
        assert facts.key_max is not None
        spans[part.end] = RowSpan(
            key_min=facts.key_min, key_max=facts.key_max, version_min=facts.version_min
        )
    return spans


WITHOUT_PANDAS = """
import sys, pyarrow as pa
from tests.unit.neve import test_gateway_row_groups as tests
rows = pa.ipc.open_stream(sys.stdin.buffer.read()).read_all()
for table in tests.TABLES:
    targets = tests.TARGETS if table.key and not table.partition_by else []
    call = tests.group_commit._Call(table, "c", lambda _: rows, 1, None)
    parts, failures = tests.group_commit.checked_rows(table, [call])
    rules = tests.group_commit._Rules(table, targets, 0.0, 0.0, 1000, 5000)
    changes, more = tests.group_commit.changes_of(parts, rules, lambda: "flush")
    assert changes and not failures and not more
assert "pandas" not in sys.modules
"""


def test_the_checks_of_rows_do_not_load_pandas() -> None:
    """Which takes a second or more of the event loop, at the first call."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, RANDOM) as writer:
        writer.write(pa.record_batch([[1, 2], ["a", "b"], [1, 1]], schema=RANDOM))
    command = [sys.executable, "-c", WITHOUT_PANDAS]
    body = stream.getvalue().to_pybytes()
    ended = subprocess.run(command, input=body, cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()


def test_room_is_given_in_order_and_all_of_it_to_a_large_caller() -> None:
    async def story() -> list[str]:
        room, events = Room(100), list[str]()

        async def caller(name: str, size_bytes: int, over: asyncio.Event) -> None:
            async with room.take(size_bytes):
                events.append(name)
                await over.wait()

        ends = [asyncio.Event() for _ in range(5)]
        sizes = [60, 500, 10, 10, 10]
        tasks = [
            asyncio.create_task(caller(str(number), size, ends[number]))
            for number, size in enumerate(sizes)
        ]
        await asyncio.sleep(0)
        assert events == ["0"]  # The others wait for the large one.
        tasks[2].cancel()
        ends[0].set()
        await tasks[0]
        await asyncio.sleep(0)
        assert events == ["0", "1"]
        ends[1].set()
        await tasks[1]
        await asyncio.sleep(0)
        for end in ends[3:]:
            end.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with room.take(100):
            events.append("all")
        return events

    assert asyncio.run(story()) == ["0", "1", "3", "4", "all"]
