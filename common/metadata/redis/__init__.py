"""The store in Redis. The only package that knows Redis; its errors never leave it.

In reading order:

    connection      forms of `store.url`, connections of redis-py, who owns a slot, errors
    keyspace        all of it as a keyspace: transactions, reads, streams, health
"""

import asyncio
import secrets

from common.metadata.executor import RetryLimits
from common.metadata.redis.keyspace import RedisKeyspace
from common.metadata.store import TabletStore
from common.runtime import RandomIds
from common.settings import StoreSettings


def connect(settings: StoreSettings) -> TabletStore:
    """Return the store that the settings name; raises `ConfigError`. It connects at first use."""
    return TabletStore(
        RedisKeyspace(settings),
        patience=RetryLimits(tries_max=settings.tries_max),
        sleep=asyncio.sleep,
        chance=secrets.SystemRandom().random,
        new_store_id=lambda: RandomIds().next("store"),
    )
