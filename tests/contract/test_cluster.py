"""A store on a Redis Cluster: its URL, slots and their map, and what one transaction may touch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from common.errors import ConfigError
from common.metadata.keyspace import LinkLostError, get, set_string
from common.metadata.redis.connection import (
    TAGGED_SLOTS,
    Link,
    StoreServers,
    parse_url_of_store,
    tag_of_slot,
)
from common.metadata.redis.keyspace import BLOCKED_MAX, RedisKeyspace
from common.model.tablet import TabletId
from common.runtime import SystemClock
from common.settings import StoreSettings
from tests.support.patience import PATIENCE_S
from tests.support.redis_cluster import PRIMARIES, RedisCluster
from tests.support.redis_server import free_port
from tests.support.store_harness import MIDDLE, Harness, applied, file

pytestmark = [pytest.mark.anyio]


@pytest.fixture
async def spread(redis_cluster: RedisCluster, anyio_backend: str) -> AsyncIterator[Harness]:
    keyspace = RedisKeyspace(StoreSettings(url=redis_cluster.url, timeout_s=5.0))
    yield Harness("cluster", keyspace, SystemClock())
    await keyspace.close()


# ------------------------------------------------------------------------------------------- URLs


def test_a_url_names_nodes_with_one_login() -> None:
    found = parse_url_of_store("redis+cluster://user:p%40ss@one:1,two,[::1]:3/0")
    assert isinstance(found, StoreServers)
    places = [(node.host, node.port) for node in found.known]
    assert places == [("one", 1), ("two", 6379), ("::1", 3)]
    other = replace(found.known[0], host="there", port=7)
    assert (str(other), other.username, other.password) == ("there:7", "user", "p@ss")


def test_tls_is_for_all_nodes() -> None:
    found = parse_url_of_store("rediss+cluster://:secret@one,two?ssl_cert_reqs=none")
    assert isinstance(found, StoreServers)
    for node in (*found.known, replace(found.known[0], host="three", port=1)):
        assert node.password == "secret"
        assert node.tls is not None
        assert not node.tls.check_hostname


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ("", "the host of a node is missing"),
        ("one,,two", "the host of a node is missing"),
        ("one:port", "Port could not be cast"),
        ("one/1", "database '1' is not 0"),
        ("one?db=2", "database 2 is not 0"),
        ("one/0/1", "database '0/1' is not 0"),
    ],
)
def test_a_malformed_url_is_refused_with_the_form(rest: str, reason: str) -> None:
    form = rf"no URL of a Redis Cluster: {reason}.*; expected redis\+cluster://"
    with pytest.raises(ConfigError, match=form):
        parse_url_of_store(f"redis+cluster://{rest}")


# ------------------------------------------------------------------------------------------ Slots


def slot_of(key: str) -> int:
    return key_slot(key.encode())


def test_a_node_finds_tags_for_what_is_its_own() -> None:
    slots = [*TAGGED_SLOTS, REDIS_CLUSTER_HASH_SLOTS - 1]
    assert [slot_of(f"neve:full:{{{tag_of_slot(slot)}}}") for slot in slots] == slots


# ----------------------------------------------------------------------- What a transaction touches


async def test_a_transaction_of_two_slots_is_a_broken_invariant(spread: Harness) -> None:
    one, other = "neve:{a}:x", "neve:{b}:x"
    async with spread.keyspace.session() as session:
        with pytest.raises(ValueError, match="too many values"):
            await session.look((one, other), ())
    async with spread.keyspace.session() as session:
        await session.look((one,), (get(one),))
        with pytest.raises(AssertionError, match="watches two slots"):
            await session.look((other,), ())
        with pytest.raises(AssertionError, match="writes another slot"):
            await session.execute((set_string(other, 1),))
        # It may glance at what other nodes have.
        assert await session.look((), (get(other), get(one))) == [None, None]


async def test_a_watch_holds_though_other_nodes_are_read(spread: Harness) -> None:
    key = "neve:{a}:watched"
    await spread.write(set_string(key, 1, 60.0))
    async with spread.keyspace.session() as session:
        await session.look((key,), (get(key), get("neve:{b}:x"), get("neve:{c}:x")))
        await spread.write(set_string(key, 2, 60.0))
        assert not await session.execute((set_string(key, 3, 60.0),))
    assert await spread.read(get(key)) == b"2"


async def test_what_other_nodes_have_is_read_after_the_watch(
    spread: Harness, redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, elsewhere = "neve:{a}:watched", "neve:{b}:x"
    places = [slot_of(each) * PRIMARIES // REDIS_CLUSTER_HASH_SLOTS for each in (key, elsewhere)]
    assert places[0] != places[1], "the two lie on different nodes"
    assert isinstance(spread.keyspace, RedisKeyspace)
    pool = await spread.keyspace._nodes.node_of(slot_of(elsewhere))
    lend = pool.lend

    @asynccontextmanager
    async def written_first(**given: bool) -> AsyncIterator[Link]:
        """Have somebody write what is watched right before the other node is asked."""
        await spread.write(set_string(key, 2, 60.0))
        async with lend(**given) as link:
            yield link

    async with spread.keyspace.session() as session:
        with monkeypatch.context() as patch:
            patch.setattr(pool, "lend", written_first)
            await session.look((key,), (get(elsewhere),))
        assert not await session.execute((set_string(key, 3, 60.0),))


async def test_readers_of_many_feeds_hear_of_each(spread: Harness) -> None:
    """Of so many tables no read waits on a link of its own."""
    tables = [await spread.table() for _ in range(BLOCKED_MAX + 8)]
    after = {table.id: await spread.store.tail(table.id) for table in tables}
    assert await spread.store.changes(after, block_s=0.01) == []
    waiting = asyncio.create_task(spread.store.changes(after, block_s=PATIENCE_S))
    changed = tables[7]
    applied(await spread.add(TabletId(changed.id, MIDDLE), file("a")))
    (change,) = await asyncio.wait_for(waiting, PATIENCE_S)
    assert change.tablet.table == changed.id
    assert {table.id for table in tables} <= {*await spread.store.table_ids()}


async def test_a_feed_that_was_silent_is_not_connected_to_anew(
    spread: Harness, redis_cluster: RedisCluster
) -> None:
    tables = [await spread.table() for _ in range(6)]
    after = {table.id: await spread.store.tail(table.id) for table in tables}
    assert await spread.store.changes(after, block_s=0.05) == []

    def connected() -> int:
        states = (server.say("INFO", "stats") for server in redis_cluster.primaries)
        return sum(int(state["total_connections_received"]) for state in states)

    before = connected()
    busy = TabletId(tables[0].id, MIDDLE)
    for number in range(10):
        applied(await spread.add(busy, file(f"f{number}")))
        changes = await spread.store.changes(after, block_s=PATIENCE_S)
        after |= {change.tablet.table: change.position for change in changes}
        assert {change.tablet for change in changes} == {busy}
    opened = connected() - before - len(redis_cluster.primaries)
    assert opened < 10, f"{opened} links were opened for 10 answers"


async def test_a_node_that_fails_at_once_silences_no_table_of_another(
    spread: Harness, redis_cluster: RedisCluster
) -> None:
    feed, lost = "neve:{a}:feed", "neve:{b}:feed"
    place = slot_of(lost) * PRIMARIES // REDIS_CLUSTER_HASH_SLOTS
    ports = {redis_cluster.primaries[place].port: free_port()}
    keyspace = RedisKeyspace(StoreSettings(url=redis_cluster.url, timeout_s=5.0))
    nodes: Any = keyspace._nodes
    nodes._map.address_remap = lambda at: (at[0], ports.get(at[1], at[1]))
    await spread.write(("DEL", feed), ("XADD", feed, "1-1", "t", "x"))
    failures = 0
    while failures < 100:
        try:
            entries = await keyspace.wait_entries({feed: "0", lost: "0"}, 10, PATIENCE_S)
            break
        except LinkLostError:
            failures += 1
    assert entries == {feed: [("1-1", {b"t": b"x"})]}
    await spread.write(("DEL", feed))
    await keyspace.close()
