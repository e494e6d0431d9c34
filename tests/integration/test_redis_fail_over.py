"""A store behind Sentinels follows its primary over a fail-over, on real processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.errors import UnavailableError
from common.metadata.changes import AddFiles, Applied
from common.metadata.keyspace import LinkLostError, StoreBusyError
from common.metadata.redis import connect
from common.metadata.redis.keyspace import RedisKeyspace
from common.metadata.store import TabletStore
from common.model.tablet import TabletId
from common.runtime import SystemClock, call_id
from common.settings import StoreSettings
from coordinator.context import Generations
from tests.support.patience import PATIENCE_S, SERVICE_S
from tests.support.redis_sentinels import (
    SERVICE,
    RedisGroup,
    SentinelServer,
    group_running,
    sentinel_url,
)
from tests.support.redis_server import RedisServer, free_port
from tests.support.store_harness import Harness, file

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

ADDS_BEFORE, ADDS_AFTER = 20, 20
"""Acknowledged adds before the primary dies, and after it."""
ADDS_DURING = 200
"""Enough to last until the Sentinels name the new primary."""
PAUSE_MS = 10_000


@pytest.fixture
def group() -> Iterator[RedisGroup]:
    """A primary, two replicas, three Sentinels: of one test, since it hurts them."""
    with group_running() as servers:
        yield servers


def store_on(url: str, *, wait_replicas: int = 0) -> TabletStore:
    return connect(StoreSettings(url=url, wait_replicas=wait_replicas, timeout_s=5.0))


class Adder:
    """Adds a file again and again, as an application does: a call is repeated until it is known."""

    def __init__(self, store: TabletStore, tablet: TabletId) -> None:
        self.acknowledged: list[str] = []
        self._store = store
        self._tablet = tablet

    async def add(self, count: int) -> None:
        for _ in range(count):
            path = f"added-{len(self.acknowledged):04}"
            files = {self._tablet.end: (file(path),)}
            change = AddFiles(table=self._tablet.table, call=call_id(), files=files)
            async with asyncio.timeout(SERVICE_S):
                while not await self._is_acknowledged(change):
                    await asyncio.sleep(0.05)
            self.acknowledged.append(path)

    async def _is_acknowledged(self, change: AddFiles) -> bool:
        try:
            return isinstance(await self._store.apply(change), Applied)
        except UnavailableError:
            return False


async def files_of(store: TabletStore, tablet: TabletId) -> list[str]:
    found = await store.tablet(tablet)
    assert found is not None
    return sorted(found.files)


async def test_nothing_acknowledged_is_lost_when_the_primary_dies(group: RedisGroup) -> None:
    store = store_on(group.url, wait_replicas=1)
    harness = Harness(
        "redis", RedisKeyspace(StoreSettings(url=group.url, timeout_s=5.0)), SystemClock()
    )
    tablets = [await harness.tablet_with() for _ in range(2)]
    adders = [Adder(store, tablet) for tablet in tablets]
    await asyncio.gather(*(each.add(ADDS_BEFORE) for each in adders))
    lost = group.primary()
    assert lost is group.servers[0]

    lost.kill()
    killed_s = time.monotonic()
    await asyncio.gather(*(each.add(1) for each in adders))
    print(f"adds go on {time.monotonic() - killed_s:.1f} s after the primary was killed")
    await asyncio.gather(*(each.add(ADDS_AFTER - 1) for each in adders))

    assert group.primary() is not lost
    for adder, tablet in zip(adders, tablets, strict=True):
        assert len(adder.acknowledged) == ADDS_BEFORE + ADDS_AFTER
        assert await files_of(store, tablet) == adder.acknowledged
    await store.close()
    await harness.keyspace.close()


async def test_links_leave_a_primary_that_was_frozen(group: RedisGroup) -> None:
    """A link that was idle meanwhile must not be used there when the server wakes up."""
    idle = Harness(
        "redis", RedisKeyspace(StoreSettings(url=group.url, timeout_s=2.0)), SystemClock()
    )
    busy = Harness(
        "redis", RedisKeyspace(StoreSettings(url=group.url, timeout_s=2.0)), SystemClock()
    )
    tablet = await idle.tablet_with("a")
    await many_links(idle)
    old = group.primary()
    with old.frozen():
        new = await asyncio.to_thread(group.until_failed_over, old)
        await Adder(busy.store, tablet).add(1)
    assert new is not old
    # The old one still takes itself for the primary; Sentinels demote it in some seconds.
    await idle.keyspace.health()
    wanted = ["a", "added-0000"]
    for found in await asyncio.gather(*(files_of(idle.store, tablet) for _ in range(20))):
        assert found == wanted
    await asyncio.to_thread(group.until_demoted, old)
    assert await files_of(idle.store, tablet) == wanted
    await idle.keyspace.close()
    await busy.keyspace.close()


@dataclass(frozen=True, slots=True)
class Move:
    """A way to move a primary that serves, which loses no acknowledged add."""

    wait_replicas: int = 1
    words: tuple[str, ...] = ()
    """More words of `SENTINEL FAILOVER`."""
    pause: bool = False
    """Whether the primary takes no changes meanwhile."""


MOVES = [
    pytest.param(Move(words=("COORDINATED",)), id="coordinated"),
    pytest.param(Move(pause=True), id="paused", marks=pytest.mark.long),
    pytest.param(Move(wait_replicas=2), id="every replica has each add", marks=pytest.mark.long),
]
"""Without any of them, the primary and its other replica acknowledge adds that are lost later."""


@pytest.mark.parametrize("move", MOVES)
async def test_adds_go_on_when_an_operator_moves_the_primary(group: RedisGroup, move: Move) -> None:
    store = store_on(group.url, wait_replicas=move.wait_replicas)
    harness = Harness(
        "redis", RedisKeyspace(StoreSettings(url=group.url, timeout_s=5.0)), SystemClock()
    )
    tablet = await harness.tablet_with()
    adder, old = Adder(store, tablet), group.primary()
    await adder.add(ADDS_BEFORE)

    adds = asyncio.ensure_future(adder.add(ADDS_DURING))
    if move.pause:
        old.say("CLIENT", "PAUSE", PAUSE_MS, "WRITE")
    group.sentinels[0].ask("SENTINEL", "FAILOVER", SERVICE, *move.words)
    moved_s = time.monotonic()
    await asyncio.to_thread(group.until_failed_over, old)
    await adds
    await adder.add(1)
    print(f"all adds are acknowledged {time.monotonic() - moved_s:.1f} s after the order")

    assert await files_of(store, tablet) == adder.acknowledged
    assert len(adder.acknowledged) == ADDS_BEFORE + ADDS_DURING + 1
    await store.close()
    await harness.keyspace.close()


async def many_links(harness: Harness) -> None:
    await asyncio.gather(*(harness.store.tables() for _ in range(8)))


def links_to(server: RedisServer) -> int:
    """Return how many links of ours a server has."""
    listed: bytes = server.say("CLIENT", "LIST")
    return listed.count(b" name=neve ")


async def until_no_link_is_left(server: RedisServer) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while links_to(server):
            await asyncio.sleep(0.02)


async def test_all_links_leave_a_server_that_is_silent_to_one(group: RedisGroup) -> None:
    harness = Harness(
        "redis", RedisKeyspace(StoreSettings(url=group.url, timeout_s=1.0)), SystemClock()
    )
    await many_links(harness)
    server = group.primary()
    assert links_to(server) > 1
    with server.frozen(), pytest.raises(LinkLostError, match="no answer within 1 s"):
        await harness.read(("PING",))
    await until_no_link_is_left(server)
    await harness.keyspace.close()


async def test_all_links_leave_a_server_that_says_it_is_a_replica() -> None:
    with group_running(replicas=1, sentinels=0) as group:
        server, other = group.servers
        harness = Harness(
            "redis", RedisKeyspace(StoreSettings(url=server.url, timeout_s=5.0)), SystemClock()
        )
        await many_links(harness)
        # By hand, no link is broken; Sentinels would break them all.
        other.say("REPLICAOF", "NO", "ONE")
        server.say("REPLICAOF", "127.0.0.1", str(other.port))
        assert links_to(server) > 1
        with pytest.raises(StoreBusyError, match="READONLY"):
            await harness.write(("SET", "neve:x", 1))
        await until_no_link_is_left(server)
        await harness.keyspace.close()


async def test_a_replica_that_a_sentinel_takes_for_the_primary_is_refused(
    group: RedisGroup, tmp_path_factory: pytest.TempPathFactory
) -> None:
    replica = group.servers[1]
    alone = SentinelServer(tmp_path_factory.mktemp("alone"), replica.port)
    try:
        await asyncio.to_thread(_until_named, alone, replica)
        refused = RedisKeyspace(StoreSettings(url=sentinel_url([alone.port]), timeout_s=5.0))
        with pytest.raises(StoreBusyError, match=f"127.0.0.1:{replica.port} is a replica by now"):
            await refused.fetch([[("PING",)]])
        # The next Sentinel knows better.
        ports = [alone.port, group.sentinels[0].port]
        store = store_on(sentinel_url(ports))
        assert await store.tables() == []
        await store.close()
        await refused.close()
    finally:
        alone.stop()


def _until_named(sentinel: SentinelServer, server: RedisServer) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not sentinel.names(server.port):
        assert time.monotonic() < until_s, f"{server.url} is not watched"
        time.sleep(0.05)


async def test_a_table_that_a_fail_over_took_back_in_time_is_read_only(tmp_path: Path) -> None:
    with group_running(replicas=1) as group:
        store = store_on(group.url)
        harness = Harness(
            "redis", RedisKeyspace(StoreSettings(url=group.url, timeout_s=5.0)), SystemClock()
        )
        table = await harness.table(location=tmp_path.as_uri())
        primary, replica = group.servers
        assert await store.generation(table.id) == 0
        # The replica is cut off, as by a network that broke a moment before the primary.
        await asyncio.to_thread(replica.say, "REPLICAOF", "127.0.0.1", str(free_port()))
        said: list[str] = []
        generations = Generations(store, lambda event, **_fields: said.append(event))
        await generations.count_up(table)
        assert generations.may_change(table.id)
        primary.kill()
        await asyncio.to_thread(group.until_failed_over, primary)

        reason = await generations.look(table)

        assert reason is not None
        assert "its store is at generation 0, but _neve/generation of its location" in reason
        assert said == ["table is read-only"]
        assert not generations.may_change(table.id)
        generations.threads.close()
        await store.close()
        await harness.keyspace.close()
