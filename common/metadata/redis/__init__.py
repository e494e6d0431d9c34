"""The store in Redis. The only package that knows Redis; its errors never leave it.

In reading order:

    connection      where a Redis, its Sentinels or a cluster are, and one connection
    primary         the server that holds the truth now: found, checked, connected to
    acl             what a user of Redis must be allowed
    memory_reserve  memory set aside in a Redis, so that a full one can be emptied
    keyspace        one Redis as a keyspace: a pool of links
    slots           slots of a Redis Cluster: the one of a key, and which node has which
    cluster_nodes   its nodes: the map, and links to each
    cluster         a Redis Cluster as a keyspace
"""

import asyncio
import secrets

from common.ids import RandomIds
from common.metadata.executor import RetryLimits
from common.metadata.redis.cluster import ClusterKeyspace
from common.metadata.redis.connection import ClusterSeeds, parse_url_of_store
from common.metadata.redis.keyspace import RedisKeyspace
from common.metadata.store import TabletStore
from common.secret_files import secret_of
from common.settings import StoreSettings

__all__ = ["RedisStore", "connect"]

_CHANCE_STEPS = 1 << 20


class RedisStore(TabletStore):
    """The truth, in Redis."""


def connect(settings: StoreSettings) -> RedisStore:
    """Return the store that the settings name. It connects when it is first used.

    Raises:
        ConfigError: The URL is none of a Redis, or its file cannot be read.
    """
    url = secret_of("store.url", settings.url, settings.url_file)
    is_cluster = isinstance(parse_url_of_store(url), ClusterSeeds)
    keyspace = ClusterKeyspace if is_cluster else RedisKeyspace
    return RedisStore(
        keyspace(
            url,
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
