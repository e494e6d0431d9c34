"""A gateway on a real Redis stands still while the real sweep and collector go on."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.metadata.changes import ForgetGarbage
from common.metadata.executor import RetryLimits
from common.metadata.redis import connect
from common.metadata.redis.keyspace import RedisKeyspace
from common.metadata.store import TabletStore
from common.model.table import Table
from common.runtime import RandomIds, SystemClock
from common.settings import StoreSettings
from common.storage_threads import StorageThreads
from coordinator.context import ArrowStorage
from coordinator.core.scans import GarbageRules
from coordinator.storage.garbage_collector import GarbageCollector
from neve.api import Added
from neve.client import Client
from neve.client.errors import CallerError, RefusedError
from neve.client.http import new_call
from neve.recovery.gc import collect_orphans
from neve.recovery.scope import TableScope
from tests.support.flaky import Fault, FlakyKeyspace, Point
from tests.support.gateway import Gateway, serving
from tests.support.redis_server import RedisServer, executable, running
from tests.support.store_harness import applied, commit, reserve

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
GRACE_S = 3.0
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(executable() is None, reason="no redis-server on this machine"),
]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running() as server:
        yield server


@dataclass
class Others:
    """An operator who sweeps, and a collector; they have connections of their own."""

    store: Any
    folder: Path
    threads: StorageThreads = field(default_factory=lambda: StorageThreads(2))
    swept: int = 0

    async def sweep_and_delete(self) -> None:
        """Give what nobody knows to the collector, and let two graces pass."""
        (table,) = await self.store.tables()
        old_s = time.time() - 1000.0
        for path in self.folder.rglob("_neve/append/*"):
            os.utime(path, (old_s, old_s))
        scope = TableScope(store=self.store, table=table, threads=self.threads, grace_s=GRACE_S)
        self.swept += (await collect_orphans(scope, delete=True)).given
        clock = SystemClock()
        rules = GarbageRules(grace_s=GRACE_S, clock_skew_max_s=0.0, retired_s=60.0)
        collector = GarbageCollector(
            self.store, ArrowStorage(clock), rules, lambda _e, **_f: None, clock=clock
        )
        await self.collect_twice(collector, table)

    async def collect_twice(self, collector: GarbageCollector, table: Table) -> None:
        await collector.collect(table)
        await asyncio.sleep(GRACE_S + 0.5)
        await collector.collect(table)


@dataclass
class Site:
    gateway: Gateway
    client: Client
    keyspace: FlakyKeyspace
    others: Others
    folder: Path
    overtaken: bool = False

    def stall_at(self, where: Point, *, times: int = 1) -> None:
        """Let the gateway stand still at a round trip of its next change, while others go on."""
        left = [where] * times

        async def script(point: Point) -> Fault:
            if left and point is left[0]:
                left.pop()
                await self.others.sweep_and_delete()
            return Fault.NONE

        self.keyspace.script = script

    def overtake(self, number: int, meanwhile: Callable[[], None]) -> None:
        """Let the gateway stand still at its next round trip of this number, while others go on."""
        self.overtaken, left = False, number

        async def script(_point: Point) -> Fault:
            nonlocal left
            left -= 1
            if left == -1:
                self.overtaken = True
                await asyncio.to_thread(meanwhile)
            return Fault.NONE

        self.keyspace.script = script

    def all_there(self) -> bool:
        return all((self.folder / file.path).exists() for file in self.client.files("events"))


@pytest.fixture
def site(redis: RedisServer, tmp_path: Path) -> Iterator[Site]:
    with stage(redis, tmp_path) as made:
        yield made


@contextmanager
def stage(redis: RedisServer, folder: Path) -> Iterator[Site]:
    """Yield a gateway whose connection follows a script, and an empty table."""
    keyspace = FlakyKeyspace(RedisKeyspace(StoreSettings(url=redis.url, timeout_s=60.0)))
    keyspace.spares_audit = True
    ids = RandomIds()
    store = TabletStore(
        keyspace,
        patience=RetryLimits(),
        sleep=asyncio.sleep,
        chance=lambda: 0.5,
        new_store_id=lambda: ids.next("store"),
    )
    others = Others(connect(StoreSettings(url=redis.url)), folder)
    times = {
        "garbage_grace_s": GRACE_S,
        "generation_interval_s": 1.0,
        "clock_skew_max_s": 0.0,
    }
    # Only calls make round trips: nobody else looks at the store after the start.
    with serving(store, times, watch_s=3600.0) as gateway, gateway.client() as client:
        client.create_table(
            "events",
            str(folder),
            schema=SCHEMA,
            key=["id"],
            version_column="v",
            splits=["100"],
        )
        try:
            yield Site(gateway, client, keyspace, others, folder)
            keyspace.script = nothing
            client.drop("events", delete_files=True)
            gateway.ask(empty(others))
        finally:
            gateway.ask(others.store.close())
            others.threads.close()


async def nothing(_point: Point) -> Fault:
    return Fault.NONE


async def empty(others: Others) -> None:
    """Let the drop come to its end."""
    clock = SystemClock()
    rules = GarbageRules(grace_s=0.0, clock_skew_max_s=0.0)
    collector = GarbageCollector(
        others.store, ArrowStorage(clock), rules, lambda _e, **_f: None, clock=clock
    )
    while tables := await others.store.tables():
        for table in tables:
            await collector.collect(table)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "v": [1] * len(ids)}, schema=SCHEMA)


@pytest.mark.parametrize("where", [Point.LOOKED, Point.EXEC])
def test_an_append_that_stood_still_acknowledges_no_file_that_is_gone(
    site: Site, where: Point
) -> None:
    site.stall_at(where)
    added = site.client.append("events", rows(1, 150))
    assert site.others.swept == 2
    assert (added.rows, len(added.files)) == (2, 2)
    assert site.all_there()
    assert site.client.scan("events").column("id").to_pylist() == [1, 150]


def test_a_repeated_append_does_not_take_files_of_the_first_try(site: Site) -> None:
    """The first try has written its files but not Redis; they are swept while it is repeated."""
    call, lost = new_call(), []

    async def loses(point: Point) -> Fault:
        if point is Point.EXEC and len(lost) < 40:
            lost.append(point)
            return Fault.LOST
        return Fault.NONE

    site.keyspace.script = loses
    site.client.append("events", rows(1, 150), call=call)
    assert lost, "the first try of the client has failed"
    first = set(site.folder.rglob("_neve/append/*.parquet"))
    assert len(first) > 2
    site.keyspace.script = nothing
    site.gateway.ask(site.others.sweep_and_delete())
    assert site.others.swept == len(first) - 2
    assert site.all_there()
    assert site.client.append("events", rows(150, 1), call=call).repeated
    assert site.client.scan("events").column("id").to_pylist() == [1, 150]


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("kind", ["add", "append"])
def test_a_first_try_at_another_gateway_is_answered_wherever_it_gets_in_between(
    redis: RedisServer, site: Site, kind: str, deleted: bool
) -> None:
    """The first try ends at each round trip of its repetition; its file is compacted at once."""
    there = connect(StoreSettings(url=redis.url))
    with serving(there) as another, another.client() as first:
        number, overtaken = 0, True
        while overtaken:
            call, name = new_call(), f"{number}.parquet"
            pq.write_table(rows(1), site.folder / name)

            def send(client: Client, call: str = call, name: str = name) -> Added:
                if kind == "add":
                    return client.add_files("events", [name], call=call)
                return client.append("events", rows(1), call=call)

            def first_try(send: Callable[[Client], Added] = send) -> None:
                send(first)
                (path,) = [file.path for file in first.files("events")]
                another.ask(replace_by_nothing(there, path, deleted=deleted))
                if deleted:
                    (site.folder / path).unlink()

            site.overtake(number, first_try)
            answer = send(site.client)
            site.keyspace.script = nothing
            overtaken = site.overtaken
            assert (answer.rows, answer.file_count) == (1, 1), number
            if overtaken:
                assert answer.repeated or kind == "add", number
                assert site.client.describe("events").rows == 0, number
            number += 1
    assert number > 5, "round trips of a call"


def test_the_name_of_a_file_that_was_deleted_is_refused(site: Site) -> None:
    """A collector that stood still before it deletes would delete the new file."""
    name = "user.parquet"
    pq.write_table(rows(1), site.folder / name)
    site.client.add_files("events", [name])
    site.gateway.ask(replace_by_nothing(site.others.store, name))
    with pytest.raises(RefusedError) as caught:
        site.client.add_files("events", [name])
    assert caught.value.code == "replaced"
    site.gateway.ask(site.others.sweep_and_delete())
    with pytest.raises(CallerError, match="does not exist"):
        site.client.add_files("events", [name])
    pq.write_table(rows(2), site.folder / name)
    with pytest.raises(RefusedError, match="was recently deleted") as caught:
        site.client.add_files("events", [name])
    assert caught.value.code == "retired"
    pq.write_table(rows(2), site.folder / "another.parquet")
    site.client.add_files("events", ["another.parquet"])
    assert site.client.scan("events").column("id").to_pylist() == [2]


async def replace_by_nothing(store: Any, path: str, *, deleted: bool = False) -> None:
    """Commit a job that leaves no row; its input waits for the collector, or is gone."""
    (table,) = await store.tables()
    tablet = (await store.tablet_ids(table.id))[0]
    attempt = f"t-{path.rpartition('/')[2]}"
    applied(await store.apply(reserve(tablet, attempt, path)))
    applied(await store.apply(commit(tablet, attempt, outputs=0)))
    if deleted:
        applied(await store.apply(ForgetGarbage(table=table.id, paths=(path,))))
