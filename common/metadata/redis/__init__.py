"""The store in Redis. The only package that knows Redis; its errors never leave it.

In reading order:

    connection  where a Redis or its Sentinels are, and one connection
    primary     the server that holds the truth now: found, checked, connected to
    keyspace    Redis as a keyspace: a pool of links, and memory set aside
"""

import asyncio
import secrets

from common.ids import RandomIds
from common.metadata.executor import RetryLimits
from common.metadata.redis.keyspace import RedisKeyspace
from common.metadata.store import KeyspaceStore
from common.settings import StoreSettings

__all__ = ["RedisStore", "connect"]

_CHANCE_STEPS = 1 << 20


class RedisStore(KeyspaceStore):
    """The truth, in Redis."""


def connect(settings: StoreSettings) -> RedisStore:
    """Return the store that the settings name. It connects when it is first used.

    Raises:
        ConfigError: The URL is none of a Redis.
    """
    return RedisStore(
        RedisKeyspace(
            settings.url,
            connections_max=settings.connections_max,
            timeout_s=settings.timeout_s,
            wait_replicas=settings.wait_replicas,
            reserve_bytes=settings.reserve_bytes,
        ),
        patience=RetryLimits(tries_max=settings.tries_max),
        sleep=asyncio.sleep,
        chance=lambda: secrets.randbelow(_CHANCE_STEPS) / _CHANCE_STEPS,
        new_store_id=lambda: RandomIds().next("store"),
    )
