"""Conditions of a Redis that pass, on real servers: a change waits for their end, within bounds.

Each test brings a server into a condition in which it refuses a change, and ends the
condition when the store has waited a few times. No moment is measured: the store's own
pauses count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager

import pytest

from common.errors import MetadataError, UnavailableError
from common.metadata.changes import Change, Outcome
from common.metadata.executor import RetryLimits
from common.metadata.redis.connection import Link, RedisAddress, parse_url_of_store
from common.metadata.redis.keyspace import RedisKeyspace
from common.metadata.store import TabletStore
from common.model.tablet import TabletId
from common.runtime import SystemClock
from common.settings import StoreSettings
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer, free_port, running
from tests.support.store_harness import Harness, applied, commit, reserve

pytestmark = pytest.mark.anyio

WAITS = 3
"""Pauses of the store after which a condition ends."""
KEYS, KEY_BYTES = 4000, 1000
SLOW = ("--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024")
"""A server that would load for eighty seconds, and answers meanwhile."""

End = Callable[[], Awaitable[object]]


async def keyspace_on(server: RedisServer) -> RedisKeyspace:
    """Return a keyspace on a server, or on the cluster of which it is a node."""
    if b"cluster_enabled:1" in await say(server, "INFO", "cluster"):
        url = server.url.replace("redis://", "redis+cluster://")
        return RedisKeyspace(StoreSettings(url=url, timeout_s=5.0))
    return RedisKeyspace(StoreSettings(url=server.url, timeout_s=5.0))


async def say(server: RedisServer, *words: str | int) -> bytes:
    """Send one command to a server; return its answer."""
    address = parse_url_of_store(server.url)
    assert isinstance(address, RedisAddress)
    link = Link(address=address, timeout_s=5.0)
    await link.open()
    try:
        (answer,) = await link.exchange([words])
    finally:
        await link.disconnect()
    return answer if isinstance(answer, bytes) else str(answer).encode()


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what must come."""
    async with asyncio.timeout(PATIENCE_S):
        while not await what():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def harness_on(server: RedisServer) -> AsyncIterator[Harness]:
    """A store on a server, to prepare it and to look at it afterwards."""
    keyspace = await keyspace_on(server)
    yield Harness("redis", keyspace, SystemClock())
    await keyspace.close()


class PatientStore:
    """A store whose pauses are counted, and which can end a condition during one of them."""

    def __init__(self, keyspace: RedisKeyspace, *, end: End | None, tries_max: int) -> None:
        self.waits = 0
        self._end = end
        self._keyspace = keyspace
        self._store = TabletStore(
            self._keyspace,
            patience=RetryLimits(tries_max=tries_max, lost_pause_max_s=0.1),
            sleep=self._sleep,
            chance=lambda: 0.9,
            new_store_id=lambda: "store-1",
        )

    async def _sleep(self, seconds: float) -> None:
        self.waits += 1
        if self.waits == WAITS and self._end is not None:
            await self._end()
        await asyncio.sleep(seconds)

    async def apply(self, change: Change) -> Outcome:
        try:
            return await self._store.apply(change)
        finally:
            await self._keyspace.close()


async def gives_up(server: RedisServer, change: Change, reason: str) -> None:
    """A condition that does not end becomes an error that names it, after as many tries as set."""
    store = PatientStore(await keyspace_on(server), end=None, tries_max=5)
    message = f"^the metadata store refuses changes now: {reason}"
    with pytest.raises(UnavailableError, match=message):
        await store.apply(change)
    assert store.waits == 4


async def waits_for(server: RedisServer, change: Change, end: End) -> None:
    """A change is made once the condition has ended."""
    # Some conditions end a moment after what ends them.
    store = PatientStore(await keyspace_on(server), end=end, tries_max=200)
    applied(await store.apply(change))
    assert store.waits >= WAITS


async def committed(server: RedisServer, tablet: TabletId) -> None:
    """The commit was made, and once."""
    async with harness_on(server) as harness:
        found = await harness.store.tablet(tablet)
        assert found is not None
        assert (sorted(found.files), found.record.running) == (["out/t1-0.parquet"], 0)
        assert len(await harness.store.history(tablet.table)) == 1


async def reserved(server: RedisServer) -> TabletId:
    """Prepare a tablet whose files are reserved; return it."""
    async with harness_on(server) as harness:
        tablet = await harness.tablet_with("a", "b")
        applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    return tablet


# ---------------------------------------------------------------- LOADING


async def test_a_commit_waits_for_a_redis_that_is_loading() -> None:
    with running(append_only=False) as server:
        tablet = await reserved(server)
        async with harness_on(server) as harness:
            filler = [[("SET", f"filler:{n}", b"x" * KEY_BYTES)] for n in range(KEYS)]
            await harness.keyspace.fetch([*filler, [("CONFIG", "SET", "rdbcompression", "no")]])
        await say(server, "SAVE")
        server.kill()
        server.start(*SLOW, answer=b"-LOADING")
        await gives_up(server, commit(tablet, "t1"), "LOADING")
        change = commit(tablet, "t1")
        await waits_for(server, change, lambda: say(server, "CONFIG", "SET", "key-load-delay", 0))
        await committed(server, tablet)


# ---------------------------------------------------------------- READONLY and MASTERDOWN


@contextmanager
def pair(*options: str) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A primary, and what becomes its replica."""
    at_once = ("--repl-diskless-sync-delay", "0")
    with (
        running(append_only=False, options=at_once) as primary,
        running(append_only=False, options=options) as replica,
    ):
        yield primary, replica


async def follow(replica: RedisServer, primary: RedisServer) -> None:
    """Make one server the other's replica, and wait until it has all."""
    await say(replica, "REPLICAOF", "127.0.0.1", primary.port)

    async def is_up() -> bool:
        try:
            return b"master_link_status:up" in await say(replica, "INFO", "replication")
        except MetadataError:
            return False

    await until(is_up)


async def test_a_commit_waits_until_a_replica_is_promoted() -> None:
    with pair() as (primary, replica):
        tablet = await reserved(primary)
        await follow(replica, primary)
        await gives_up(replica, commit(tablet, "t1"), "READONLY")
        change = commit(tablet, "t1")
        await waits_for(replica, change, lambda: say(replica, "REPLICAOF", "NO", "ONE"))
        await committed(replica, tablet)


async def test_a_commit_waits_for_a_replica_without_its_primary() -> None:
    with pair("--replica-serve-stale-data", "no") as (primary, replica):
        tablet = await reserved(primary)
        await follow(replica, primary)
        primary.kill()

        async def is_down() -> bool:
            return b"master_link_status:down" in await say(replica, "INFO", "replication")

        await until(is_down)
        await gives_up(replica, commit(tablet, "t1"), "MASTERDOWN")
        change = commit(tablet, "t1")
        await waits_for(replica, change, lambda: say(replica, "REPLICAOF", "NO", "ONE"))
        await committed(replica, tablet)


# ---------------------------------------------------------------- CLUSTERDOWN, TRYAGAIN, ASK


@contextmanager
def cluster(size: int, *options: str) -> Iterator[Sequence[RedisServer]]:
    """Nodes of a cluster that do not know each other yet and have no slots."""
    with ExitStack() as stack:
        nodes = []
        for _ in range(size):
            own = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()), *options)
            nodes.append(stack.enter_context(running(append_only=False, options=own)))
        yield nodes


async def all_slots(node: RedisServer) -> None:
    """Give a node all slots."""
    await say(node, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)

    async def is_ok() -> bool:
        return b"cluster_state:ok" in await say(node, "CLUSTER", "INFO")

    await until(is_ok)


async def slot_of(node: RedisServer, tablet: TabletId) -> int:
    """Return the slot of all keys of a table."""
    return int(await say(node, "CLUSTER", "KEYSLOT", tablet.table))


@pytest.mark.parametrize(
    ("coverage", "reason"),
    [
        ("yes", "CLUSTERDOWN The cluster is down"),
        ("no", "CLUSTERDOWN no node of the Redis Cluster has slot"),
    ],
)
async def test_a_commit_waits_for_a_cluster_that_is_down(coverage: str, reason: str) -> None:
    with cluster(1, "--cluster-require-full-coverage", coverage) as (node,):
        await all_slots(node)
        tablet = await reserved(node)
        slot = await slot_of(node, tablet)
        await say(node, "CLUSTER", "DELSLOTS", slot)

        async def is_down() -> bool:
            state = b"fail" if coverage == "yes" else b"ok"
            return b"cluster_state:" + state in await say(node, "CLUSTER", "INFO")

        await until(is_down)
        await gives_up(node, commit(tablet, "t1"), reason)
        change = commit(tablet, "t1")
        await waits_for(node, change, lambda: say(node, "CLUSTER", "ADDSLOTS", slot))
        await committed(node, tablet)


async def migrating(source: RedisServer, target: RedisServer, tablet: TabletId) -> int:
    """Begin to move the slot of a table to another node; return the slot."""
    own_port = (await say(target, "CONFIG", "GET", "cluster-port")).decode()
    bus = next(word for word in own_port.replace("'", " ").split() if word.isdigit())
    await say(source, "CLUSTER", "MEET", "127.0.0.1", target.port, bus)
    name = (await say(target, "CLUSTER", "MYID")).decode()
    slot = await slot_of(source, tablet)

    async def knows() -> bool:
        return name.encode() in await say(source, "CLUSTER", "NODES")

    await until(knows)
    await say(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", name)
    return slot


async def test_a_commit_gives_up_on_tryagain_while_a_slot_migrates() -> None:
    with cluster(2) as (source, target):
        await all_slots(source)
        async with harness_on(source) as harness:
            tablet = await harness.tablet_with("a", "b")
        slot = await migrating(source, target, tablet)
        # Of the keys that it watches some are there, and others would be on the other node.
        await gives_up(source, reserve(tablet, "t1", "a"), "TRYAGAIN")
        change = reserve(tablet, "t1", "a", "b")
        await waits_for(source, change, lambda: say(source, "CLUSTER", "SETSLOT", slot, "STABLE"))
        async with harness_on(source) as harness:
            applied(await harness.apply(commit(tablet, "t1")))
        await committed(source, tablet)


async def test_a_commit_gives_up_on_ask_while_a_slot_migrates() -> None:
    with cluster(2) as (source, target):
        await all_slots(source)
        tablet = await reserved(source)
        slot = await migrating(source, target, tablet)
        # It watches one key, which is there, and reads others that are nowhere.
        await gives_up(source, commit(tablet, "t1"), "ASK")
        change = commit(tablet, "t1")
        await waits_for(source, change, lambda: say(source, "CLUSTER", "SETSLOT", slot, "STABLE"))
        await committed(source, tablet)
