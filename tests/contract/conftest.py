"""Every test of this folder runs over each adapter of the metadata store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from common.metadata.redis.keyspace import RedisKeyspace
from common.runtime import SystemClock
from common.settings import StoreSettings
from tests.support.flaky import FlakyKeyspace
from tests.support.memory_store import MemoryKeyspace
from tests.support.predictable import ManualClock
from tests.support.redis_cluster import RedisCluster, redis_cluster
from tests.support.redis_server import LOGIN, RedisServer, redis_server
from tests.support.store_harness import Harness

__all__ = ["redis_cluster", "redis_server"]

TIMEOUT_S = 5.0
SLOW = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(
    params=[
        *("memory", "redis"),
        *(pytest.param(name, marks=SLOW) for name in ("flaky", "cluster")),
    ]
)
async def harness(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Harness]:
    """One adapter, empty. The flaky one, without faults, shows only that it adds none.

    What a Redis Cluster adds is one slot per transaction, to which the memory keeps as well.
    """
    name: str = request.param
    if name == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        # Every test shows that the user of an installation may do what the store does.
        keyspace = RedisKeyspace(StoreSettings(url=server.user_url, timeout_s=TIMEOUT_S))
        admin = RedisKeyspace(StoreSettings(url=server.url, timeout_s=TIMEOUT_S))
        await admin.fetch([[("FLUSHALL",)]])
        yield Harness(name, keyspace, SystemClock(), admin=admin)
        await keyspace.close()
        await admin.close()
        return
    if name == "cluster":
        cluster: RedisCluster = request.getfixturevalue("redis_cluster")
        for server in cluster.primaries:
            server.say("FLUSHALL")
        spread = RedisKeyspace(StoreSettings(url=cluster.url, timeout_s=TIMEOUT_S))
        admin = RedisKeyspace(
            StoreSettings(url=cluster.url.replace(LOGIN, ""), timeout_s=TIMEOUT_S)
        )
        yield Harness(name, spread, SystemClock(), admin=admin)
        await spread.close()
        await admin.close()
        return
    clock = ManualClock()
    memory = MemoryKeyspace(clock)
    yield Harness(name, FlakyKeyspace(memory) if name == "flaky" else memory, clock)
