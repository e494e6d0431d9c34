"""Faults of redis-py 8.1 that the store must not have, each shown on the library and on the store.

A proxy drops the answer to `EXEC`, as a network does: the change is applied, and the client
cannot know it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster as LibraryCluster
from redis.exceptions import (
    BusyLoadingError,
    OutOfMemoryError,
    RedisClusterException,
    RedisError,
    ResponseError,
    WatchError,
)
from redis.exceptions import ConnectionError as LibraryConnectionError

from common.metadata.keyspace import LinkLostError, get, incr
from common.metadata.redis.connection import Link, RedisAddress
from common.metadata.redis.keyspace import RedisKeyspace
from common.settings import StoreSettings
from tests.support.redis_cluster import PRIMARIES, RedisCluster
from tests.support.redis_proxy import Cut, RedisProxy, proxy_to
from tests.support.redis_server import LOGIN, RedisServer

pytestmark = pytest.mark.anyio

KEY = "neve:{lost answers}:count"


@pytest.fixture
async def proxy(redis_server: RedisServer, anyio_backend: str) -> AsyncIterator[RedisProxy]:
    redis_server.say("DEL", KEY)
    async with proxy_to(redis_server.url) as door:
        yield door


@pytest.fixture
async def cluster_proxy(
    redis_cluster: RedisCluster, anyio_backend: str
) -> AsyncIterator[RedisProxy]:
    """A proxy to the node that owns the key."""
    owner = owner_of_key(redis_cluster)
    owner.say("DEL", KEY)
    async with proxy_to(owner.url.replace(LOGIN, "")) as door:
        yield door


def owner_of_key(cluster: RedisCluster) -> RedisServer:
    slot = int(cluster.servers[0].say("CLUSTER", "KEYSLOT", KEY))
    return cluster.primaries[slot * PRIMARIES // 16_384]


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1].split("/")[0])


@asynccontextmanager
async def library_cluster(
    cluster: RedisCluster, proxy: RedisProxy
) -> AsyncIterator[LibraryCluster]:
    """The cluster client of the library, which reaches the owner of the key through the proxy."""
    ports = {owner_of_key(cluster).port: port_of(proxy.url)}
    client = LibraryCluster(
        host="127.0.0.1",
        port=cluster.primaries[0].port,
        address_remap=lambda address: (address[0], ports.get(address[1], address[1])),
    )
    await client.initialize()
    yield client
    await client.aclose()


# ---------------------------------------------------------------------------- What the library does


async def test_a_pipeline_without_watch_applies_twice(
    proxy: RedisProxy, redis_server: RedisServer
) -> None:
    client = Redis(host="127.0.0.1", port=port_of(proxy.url))
    pipeline = client.pipeline(transaction=True)
    pipeline.incr(KEY)
    proxy.cut = Cut.AFTER
    await pipeline.execute()
    assert redis_server.say("GET", KEY) == b"2"
    await client.aclose()


async def test_a_pipeline_with_watch_takes_a_lost_answer_for_a_conflict(
    proxy: RedisProxy, redis_server: RedisServer
) -> None:
    client = Redis(host="127.0.0.1", port=port_of(proxy.url))
    async with client.pipeline(transaction=True) as pipeline:
        await pipeline.watch(KEY)
        pipeline.multi()
        pipeline.incr(KEY)
        proxy.cut = Cut.AFTER
        with pytest.raises(WatchError):
            await pipeline.execute()
    assert redis_server.say("GET", KEY) == b"1", "a conflict would mean that nothing was written"
    await client.aclose()


async def test_a_pipeline_of_a_cluster_repeats_exec_without_its_watch(
    redis_cluster: RedisCluster, cluster_proxy: RedisProxy
) -> None:
    async with library_cluster(redis_cluster, cluster_proxy) as client:
        pipeline = client.pipeline(transaction=True)
        await pipeline.watch(KEY)
        pipeline.multi()
        pipeline.incr(KEY)
        cluster_proxy.cut = Cut.AFTER
        await pipeline.execute()
        await pipeline.reset()
    assert owner_of_key(redis_cluster).say("GET", KEY) == b"2"


async def test_a_pipeline_of_a_cluster_starts_a_thread_for_each_command_and_refuses_time(
    redis_cluster: RedisCluster, cluster_proxy: RedisProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def counted(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    async with library_cluster(redis_cluster, cluster_proxy) as client:
        pipeline = client.pipeline(transaction=True)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", counted)
            for _ in range(3):
                pipeline.incr(KEY)
        assert len(started) == 3
        await pipeline.watch(KEY)
        with pytest.raises((RedisClusterException, RedisError)):
            await pipeline.execute_command("TIME")
        await pipeline.reset()


def test_classes_of_errors_say_less_than_their_codes() -> None:
    loading = BusyLoadingError("Redis is loading", status_code="LOADING")
    full = OutOfMemoryError("command not allowed", status_code="OOM")
    assert isinstance(loading, LibraryConnectionError), "redis-py takes the answer for a loss"
    assert "OOM" not in str(full)
    link = Link(address=RedisAddress(), timeout_s=1.0)
    for text in ("LOADING Redis is loading", "OOM command not allowed"):
        answer = link._parser.parse_error(text)
        assert (type(answer), str(answer)) == (ResponseError, text)


# ------------------------------------------------------------------------------ What the store does


async def lose_the_answer(keyspace: RedisKeyspace, proxy: RedisProxy, *watch: str) -> None:
    """Increment the key; assert that the outcome is unknown."""
    async with keyspace.session() as session:
        if watch:
            await session.look(watch, (get(KEY), ("TIME",)))
        proxy.cut = Cut.AFTER
        with pytest.raises(LinkLostError) as lost:
            await session.execute((incr(KEY),))
        assert lost.value.sent, "the outcome is unknown"


@pytest.mark.parametrize("watch", [(), (KEY,)], ids=["without watch", "with watch"])
async def test_the_store_applies_once_and_reports_an_unknown_outcome(
    proxy: RedisProxy, redis_server: RedisServer, watch: tuple[str, ...]
) -> None:
    keyspace = RedisKeyspace(StoreSettings(url=proxy.url, timeout_s=5.0))
    await keyspace.fetch([[get(KEY)]])
    await lose_the_answer(keyspace, proxy, *watch)
    assert redis_server.say("GET", KEY) == b"1"
    await keyspace.close()


async def test_the_store_applies_once_on_a_cluster(
    redis_cluster: RedisCluster, cluster_proxy: RedisProxy
) -> None:
    keyspace = RedisKeyspace(StoreSettings(url=redis_cluster.url.replace(LOGIN, ""), timeout_s=5.0))
    owner = owner_of_key(redis_cluster)
    ports = {owner.port: port_of(cluster_proxy.url)}
    nodes: Any = keyspace._nodes
    nodes._map.address_remap = lambda at: (at[0], ports.get(at[1], at[1]))
    threads = threading.active_count()
    await lose_the_answer(keyspace, cluster_proxy, KEY)
    assert owner.say("GET", KEY) == b"1"
    assert threading.active_count() == threads
    await keyspace.close()


async def test_a_watch_ends_with_its_connection(redis_server: RedisServer) -> None:
    """redis-py would connect anew at the next command, and execute it unwatched."""
    redis_server.say("DEL", KEY)
    keyspace = RedisKeyspace(StoreSettings(url=redis_server.url, timeout_s=5.0))
    async with keyspace.session() as session:
        await session.look((KEY,), (get(KEY),))
        redis_server.say("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        with pytest.raises(LinkLostError):
            await session.execute((incr(KEY),))
        with pytest.raises(LinkLostError, match="not connected"):
            await session.execute((incr(KEY),))
    assert redis_server.say("GET", KEY) is None
    await keyspace.close()


async def test_a_server_that_accepts_and_stays_silent_is_left_in_time() -> None:
    async def stay_silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(stay_silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    keyspace = RedisKeyspace(StoreSettings(url=f"redis://127.0.0.1:{port}", timeout_s=0.1))
    with pytest.raises(LinkLostError, match="no answer within"):
        await keyspace.fetch([[get(KEY)]])
    await keyspace.close()
    for writer in writers:
        writer.transport.abort()
    server.close()
