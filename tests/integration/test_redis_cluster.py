"""Tables on a Redis Cluster of real nodes: nodes die, stand still and hand slots over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import pytest
import redis
from redis.crc import key_slot

from common.errors import ConfigError, ConflictError, UnavailableError
from common.metadata.changes import Applied, Change, CreateTable, DropTable, Outcome, Refused
from common.metadata.keys import RESERVE, TableKeys
from common.metadata.redis import connect
from common.metadata.redis.keyspace import RedisKeyspace
from common.metadata.store import TabletStore
from common.model.tablet import TabletId
from common.runtime import RandomIds, SystemClock
from common.settings import StoreSettings
from neve.serve.preflight import require_store
from tests.integration.test_redis_fail_over import Adder, files_of
from tests.support.patience import PATIENCE_S, SERVICE_S
from tests.support.redis_cluster import PRIMARIES, ClusterServer, RedisCluster, cluster_running
from tests.support.redis_server import RedisServer, running
from tests.support.store_harness import MIDDLE, Harness, applied, commit, file, reserve

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

ADDS = 20
"""Acknowledged adds to each table before a node is lost, and after it."""
Loss = Callable[[ClusterServer], AbstractContextManager[None]]


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    """Three primaries, and two replicas of each: of one test, since it hurts them."""
    with cluster_running() as servers:
        yield servers


def store_on(cluster: RedisCluster, timeout_s: float = 2.0) -> TabletStore:
    return connect(StoreSettings(url=cluster.url, wait_replicas=1, timeout_s=timeout_s))


async def table_at(cluster: RedisCluster, harness: Harness, place: int) -> TabletId:
    """Return the first tablet of a new table on one of the nodes."""
    while True:
        table = harness.new_table()
        if cluster.place_of(table.id) == place:
            applied(await harness.store.apply(CreateTable(table=table, splits=(MIDDLE,))))
            return TabletId(table.id, MIDDLE)


async def answered(store: TabletStore, change: Change) -> Outcome:
    """Apply a change until it is made or refused, as an application does."""
    async with asyncio.timeout(SERVICE_S):
        while True:
            with suppress(UnavailableError, ConflictError):
                outcome = await store.apply(change)
                if isinstance(outcome, Applied | Refused):
                    return outcome
            await asyncio.sleep(0.05)


class Compactor:
    """Replaces files two by two, again and again; a fail-over may forget what it has done."""

    def __init__(self, store: TabletStore, tablet: TabletId) -> None:
        self.inputs: dict[str, tuple[str, ...]] = {}
        """Output → what it may have replaced."""
        self._store = store
        self._tablet = tablet
        self._ids = RandomIds()

    async def step(self) -> bool:
        """Try to replace two files; return whether they are replaced."""
        found = await self._store.tablet(self._tablet)
        assert found is not None
        held = {path for entry in found.running.values() for path in entry.inputs}
        chosen = sorted(found.files.keys() - held)[:2]
        attempt = self._ids.next("att")
        if len(chosen) < 2:
            return False
        self.inputs[f"out/{attempt}-0.parquet"] = tuple(chosen)
        if not isinstance(
            await self._store.apply(reserve(self._tablet, attempt, *chosen)), Applied
        ):
            return False
        return isinstance(
            await self._store.apply(commit(self._tablet, attempt, inputs=chosen)), Applied
        )

    def holds(self, files: set[str], path: str) -> bool:
        """Return whether files have a path, or what replaced it."""
        if path in files:
            return True
        later = (out for out, inputs in self.inputs.items() if path in inputs)
        return any(self.holds(files, out) for out in later)


class Maker:
    """Creates tables and drops two of three."""

    def __init__(self, store: TabletStore, harness: Harness) -> None:
        self.kept: dict[str, str] = {}
        self.dropped: list[str] = []
        self._store = store
        self._harness = harness

    async def step(self) -> bool:
        table = self._harness.new_table()
        outcome = await answered(self._store, CreateTable(table=table))
        if not isinstance(outcome, Applied):
            return False  # Its first try was taken for one that was given up.
        if len(self.kept) <= len(self.dropped) // 2:
            self.kept[table.name] = table.id
            return True
        applied(await answered(self._store, DropTable(table=table.id)))
        self.dropped.append(table.name)
        return True


async def again(step: Callable[[], Awaitable[bool]], count: int) -> None:
    """Take a step until it has succeeded so often."""
    done = 0
    async with asyncio.timeout(SERVICE_S):
        while done < count:
            with suppress(UnavailableError, ConflictError):
                done += await step()
            await asyncio.sleep(0.01)


@contextmanager
def killed(server: RedisServer) -> Iterator[None]:
    server.kill()
    yield


class Works:
    """What is done on a cluster: adds, commits, creations and drops, with tables on each node."""

    def __init__(self, cluster: RedisCluster) -> None:
        self.store = store_on(cluster)
        self._keyspace = RedisKeyspace(StoreSettings(url=cluster.url, timeout_s=2.0))
        self._harness = Harness("cluster", self._keyspace, SystemClock())
        self._cluster = cluster
        self.tablets: list[TabletId] = []
        self._adders: list[Adder] = []
        self._compactors: list[Compactor] = []
        self._maker = Maker(self.store, self._harness)

    async def begin(self) -> None:
        places = range(PRIMARIES)
        self.tablets = [await table_at(self._cluster, self._harness, place) for place in places]
        self._adders = [Adder(self.store, tablet) for tablet in self.tablets]
        self._compactors = [Compactor(self.store, tablet) for tablet in self.tablets]
        await self.go_on(ADDS)
        await asyncio.gather(*(again(compactor.step, 3) for compactor in self._compactors))

    async def record(self, lost_s: float) -> None:
        """Do each kind of work once on each node, and print when it was done."""

        async def recorded(work: Awaitable[None], what: str) -> None:
            await work
            print(f"{what} {time.monotonic() - lost_s:.1f} s after the loss")

        works = [(each.add(1), f"an add to table {at}") for at, each in enumerate(self._adders)]
        works += [
            (again(each.step, 1), f"a commit in table {at}")
            for at, each in enumerate(self._compactors)
        ]
        works.append((again(self._maker.step, 3), "creations and drops"))
        await asyncio.gather(*(recorded(work, what) for work, what in works))

    async def go_on(self, count: int) -> None:
        await asyncio.gather(*(adder.add(count) for adder in self._adders))
        await again(self._maker.step, 3)

    async def check(self, count: int) -> None:
        """Assert that everything is there that was acknowledged, and nothing that was dropped."""
        every = zip(self._adders, self.tablets, self._compactors, strict=True)
        for adder, tablet, compactor in every:
            files = {*await files_of(self.store, tablet)}
            assert len(adder.acknowledged) == count
            lacking = [path for path in adder.acknowledged if not compactor.holds(files, path)]
            assert not lacking, f"acknowledged adds are lost: {lacking}"
        names, maker = await self.store.names(), self._maker
        assert maker.kept.items() <= names.items()
        assert not names.keys() & {*maker.dropped}
        assert {*names.values()} <= {*await self.store.table_ids()}

    async def close(self) -> None:
        await self.store.close()
        await self._keyspace.close()


@pytest.mark.parametrize("lose", [killed, RedisServer.frozen], ids=["killed", "frozen"])
@pytest.mark.parametrize("with_names", [False, True], ids=["a table", "the names"])
async def test_all_work_goes_on_when_a_node_is_lost(
    cluster: RedisCluster, lose: Loss, with_names: bool
) -> None:
    works = Works(cluster)
    await works.begin()
    place = (cluster.place_of_names + (not with_names)) % PRIMARIES
    lost = cluster.primaries[place]
    slot = key_slot(TableKeys(works.tablets[place].table).table.encode())

    with lose(lost):
        await works.record(time.monotonic())
        new = await asyncio.to_thread(cluster.until_failed_over, lost, slot)
        await works.go_on(ADDS - 1)
    assert new is not lost
    await works.check(2 * ADDS)
    await works.close()


async def test_a_slot_moves_while_its_table_is_changed() -> None:
    # Nobody fails over here, however busy the machine is.
    patient = ("--cluster-node-timeout", "60000")
    with cluster_running(replicas=0, options=patient) as cluster:
        store, other = (connect(StoreSettings(url=cluster.url, timeout_s=5.0)) for _ in range(2))
        harness = Harness(
            "cluster", RedisKeyspace(StoreSettings(url=cluster.url, timeout_s=5.0)), SystemClock()
        )
        tablet = await table_at(cluster, harness, 0)
        adder = Adder(store, tablet)
        await adder.add(ADDS)
        assert await files_of(other, tablet) == adder.acknowledged, "it knows where the table is"
        slot = key_slot(TableKeys(tablet.table).table.encode())
        source, target = cluster.primaries[:2]

        adds = asyncio.ensure_future(adder.add(ADDS))
        steps = 0
        for _ in cluster.move_slot(slot, source, target):
            steps += 1
            known = {*adder.acknowledged}
            with suppress(UnavailableError):  # Half of the table is here, half of it there.
                assert known <= {*await files_of(other, tablet)}
        moved_s = time.monotonic()
        await adds
        waited_s = time.monotonic() - moved_s
        print(f"all adds are acknowledged {waited_s:.1f} s after the slot has moved")

        assert steps > 2
        assert cluster.owner(slot) is target
        for each in (store, other):
            assert await files_of(each, tablet) == adder.acknowledged
            await each.close()
        assert len(adder.acknowledged) == 2 * ADDS
        await harness.keyspace.close()


async def test_readers_of_the_feed_hear_of_tables_whose_nodes_live(cluster: RedisCluster) -> None:
    store = store_on(cluster)
    harness = Harness(
        "cluster", RedisKeyspace(StoreSettings(url=cluster.url, timeout_s=2.0)), SystemClock()
    )
    tablets = [await table_at(cluster, harness, place) for place in range(PRIMARIES)]
    after = {tablet.table: await store.tail(tablet.table) for tablet in tablets}
    dead = (cluster.place_of_names + 1) % PRIMARIES
    living = tablets[(dead + 1) % PRIMARIES]
    with cluster.primaries[dead].frozen():
        waiting = asyncio.ensure_future(store.changes(after, block_s=SERVICE_S))
        await Adder(harness.store, living).add(1)
        (change,) = await waiting
    assert change.tablet == living
    await store.close()
    await harness.keyspace.close()


async def test_a_node_that_is_gone_silences_no_feed_of_others() -> None:
    options = ("--cluster-require-full-coverage", "no")
    with cluster_running(replicas=0, options=options) as cluster:
        keyspace = RedisKeyspace(StoreSettings(url=cluster.url, timeout_s=2.0))
        harness = Harness("cluster", keyspace, SystemClock())
        tablets = [await table_at(cluster, harness, place) for place in range(PRIMARIES)]
        after = {tablet.table: await harness.store.tail(tablet.table) for tablet in tablets}
        cluster.primaries[(cluster.place_of_names + 1) % PRIMARIES].kill()
        living = tablets[cluster.place_of_names]
        applied(await harness.add(living, file("a")))

        heard: list[TabletId] = []

        async def hear() -> bool:
            found = await harness.store.changes(after, block_s=1.0)
            heard.extend(change.tablet for change in found)
            return bool(found)

        await again(hear, 1)
        assert heard == [living]
        await keyspace.close()


async def test_each_node_sets_memory_aside_also_when_slots_have_moved(
    cluster: RedisCluster,
) -> None:
    for server in cluster.primaries:
        server.say("CONFIG", "SET", "maxmemory", str(64 << 20))
    size = 1 << 20
    keyspace = RedisKeyspace(StoreSettings(url=cluster.url, timeout_s=5.0, reserve_bytes=size))
    harness = Harness("cluster", keyspace, SystemClock())

    def reserves() -> list[list[bytes]]:
        return [server.say("KEYS", f"{RESERVE}*") for server in cluster.primaries]

    await harness.store.keep_reserve()
    before = reserves()
    assert [len(each) for each in before] == [1, 1, 1]
    # The first slot of the second node goes to the first one, with the memory set aside in it.
    slot = key_slot(before[1][0])
    list(cluster.move_slot(slot, cluster.primaries[1], cluster.primaries[0]))
    assert [len(each) for each in reserves()] == [2, 0, 1]
    await harness.read(("STRLEN", before[1][0].decode()))  # It hears that the slot has moved.
    await harness.store.keep_reserve()
    assert [len(each) for each in reserves()] == [1, 1, 1]
    assert (await harness.store.health()).memory_max_bytes == PRIMARIES * (64 << 20)
    await keyspace.close()


async def test_a_node_that_is_full_keeps_no_other_from_growing(cluster: RedisCluster) -> None:
    keyspace = RedisKeyspace(StoreSettings(url=cluster.url, timeout_s=5.0, reserve_bytes=1 << 20))
    harness = Harness("cluster", keyspace, SystemClock(), tries_max=3)
    full, free = [await table_at(cluster, harness, place) for place in (0, 1)]
    server = cluster.primaries[0]
    server.say("CONFIG", "SET", "maxmemory", str(64 << 20))
    await harness.store.keep_reserve()
    filler = f"filler:{{{full.table}}}"
    with suppress(redis.OutOfMemoryError):
        while True:
            server.say("APPEND", filler, "x" * (1 << 18))

    with pytest.raises(UnavailableError, match="it was full"):
        await harness.add(full, file("a"))
    applied(await harness.add(free, file("a")))
    (sentence,) = (await harness.store.health()).warnings
    assert sentence.startswith(f"node 127.0.0.1:{server.port} of the store (Redis) was full")
    await harness.store.keep_reserve()
    assert (await harness.store.health()).full, "there is no room yet"
    server.say("DEL", filler)
    # The server may free the memory in the background.
    async with asyncio.timeout(PATIENCE_S):
        while (await harness.store.health()).warnings:
            await asyncio.sleep(0.05)
            await harness.store.keep_reserve()
    applied(await harness.add(full, file("a")))
    await keyspace.close()


def test_the_wrong_form_of_a_url_is_refused_in_one_sentence() -> None:
    with cluster_running(replicas=0) as cluster:
        for server in cluster.primaries:
            with pytest.raises(ConfigError) as refused:
                require_store(StoreSettings(url=server.url))
            assert str(refused.value) == (
                f"setting store.url: 127.0.0.1:{server.port} is a node of a Redis Cluster: write"
                " store.url as redis+cluster://[user:password@]host:6379,host:6379,host:6379"
            )
        assert require_store(StoreSettings(url=cluster.url)) == ()
        # One seed is enough, and one that is gone is passed over.
        gone = f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster.primaries[2].port}/0"
        assert require_store(StoreSettings(url=gone)) == ()
        server = cluster.primaries[1]
        server.say("CONFIG", "SET", "appendonly", "no")
        (warning,) = require_store(StoreSettings(url=cluster.url))
        node = f"node 127.0.0.1:{server.port} of the store"
        assert warning.startswith(f"{node} (Redis) has no append-only file")
        server.say("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        with pytest.raises(ConfigError, match=f"{node} has maxmemory-policy allkeys-lru"):
            require_store(StoreSettings(url=cluster.url))


def test_a_server_that_is_no_node_is_refused() -> None:
    with running() as server:
        url = server.url.replace("redis://", "redis+cluster://")
        with pytest.raises(ConfigError, match="is no node of a Redis Cluster"):
            require_store(StoreSettings(url=url))
