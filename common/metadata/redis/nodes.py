"""The servers of a store: which one owns a slot, and a pool of connections to each.

    Node, Nodes    one server and the pool of redis-py for it; all servers of a store
    _Primary       the primary that Sentinels name
    ClusterNodes   the primaries of a Redis Cluster, by the slot map of redis-py

A pool asks for the primary again with each new connection, so a fail-over needs no restart.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import count
from typing import Any

from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, NodesManager
from redis.asyncio.connection import ConnectionPool
from redis.asyncio.sentinel import Sentinel
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import RedisClusterException
from redis.maint_notifications import MaintNotificationsConfig

from common.errors import MetadataError
from common.metadata.keyspace import LinkLostError, StoreBusyError
from common.metadata.redis.connection import (
    CLUSTER_FORM,
    DEMOTED,
    ELSEWHERE,
    SENTINEL_FORM,
    Link,
    RedisAddress,
    StoreServers,
    link_arguments,
    parse_url_of_store,
    text_of,
    why_unreachable,
)

LOOKUP_WAIT_S = 2.0
"""Longest wait for one Sentinel, or for the slot map of one node: the next one may answer."""
_UNBOUNDED = 1 << 30
_NO_NOTIFICATIONS = MaintNotificationsConfig(enabled=False)


class Node:
    """One server, and the connections to it. Every idle one is whole and watches nothing."""

    def __init__(self, address: RedisAddress, connections_max: int, timeout_s: float) -> None:
        """Create a node with so many connections for reads and changes; streams have their own."""
        self.address = address
        self.tags: Sequence[str] = ("",)
        """Endings of the keys under which it may hold something of its own; it uses the first."""
        self.retired = False
        """Whether no slot is there any more."""
        self._pool = ConnectionPool(
            max_connections=_UNBOUNDED,
            maint_notifications_config=_NO_NOTIFICATIONS,
            **link_arguments(address, timeout_s),
        )
        self._permits = asyncio.Semaphore(connections_max)
        self._primary: RedisAddress | None = None

    @asynccontextmanager
    async def lend(self, *, extra: bool = False, fresh: bool = False) -> AsyncIterator[Link]:
        """Lend a link for a read or a change.

        Args:
            extra: To a caller that may not wait for others, or that waits long itself.
            fresh: Connect anew, which finds out where the primary is.
        """
        async with nullcontext() if extra else self._permits:
            link: Link = self._pool.get_available_connection()  # type: ignore[no-untyped-call]  # redis-py's own
            try:
                if fresh or not await link.is_clean():
                    await link.disconnect()
                    await self._open(link)
                    if link.address != self._primary:
                        self._primary = link.address
                        await self.close_idle()  # They lead to an earlier primary.
                yield link
                if self.retired or link.address != self._primary:
                    await link.disconnect()
            except BaseException as error:
                await link.disconnect()  # It may watch keys, or have answers left.
                if isinstance(error, LinkLostError) and not isinstance(error, StoreBusyError):
                    # A server that is silent to one caller is silent to all.
                    await self.close_idle()
                raise
            finally:
                await self._pool.release(link)

    async def _open(self, link: Link) -> None:
        """Connect to a server that must be able to hold a store."""
        await link.open()
        kind, form = _OTHERS.get(link.server[b"mode"], ("", ""))
        if kind:
            raise MetadataError(f"{link.address} is a {kind}: write store.url as {form}")

    async def close_idle(self) -> None:
        """Close all connections that are not lent."""
        await self._pool.disconnect(inuse_connections=False)


_OTHERS = {
    b"sentinel": ("Sentinel, which holds no data", SENTINEL_FORM),
    b"cluster": ("node of a Redis Cluster", CLUSTER_FORM),
}


class Nodes:
    """The servers of a store. Here the one that has everything."""

    def __init__(self, only: Node | None) -> None:
        """Use one node for everything; None: slots decide."""
        self.only = only
        self._every: Sequence[Node] = [only] if only else []

    def slot_of(self, key: str) -> int:
        """Return the slot of a key."""
        return 0

    async def node_of(self, slot: int) -> Node:
        """Return the node that owns a slot.

        Raises:
            StoreBusyError: None owns it.
            LinkLostError: No node answers.
        """
        return self._every[0]

    async def every(self) -> Sequence[Node]:
        """Return all nodes that own slots, in a fixed order."""
        return self._every

    @asynccontextmanager
    async def heed(self, node: Node) -> AsyncIterator[None]:
        """Draw conclusions from an error: a node may be silent, demoted, or have lost a slot."""
        try:
            yield
        except LinkLostError as error:
            await self._doubt(node, error)
            raise

    async def _doubt(self, node: Node, error: LinkLostError) -> None:
        if isinstance(error, StoreBusyError) and str(error).startswith(DEMOTED):
            await node.close_idle()  # Only a new connection looks where the primary is.

    async def close_idle(self) -> None:
        """Close all connections that are not lent."""
        for node in self._every:
            await node.close_idle()


def nodes_of(url: str, connections_max: int, timeout_s: float) -> Nodes:
    """Return the servers of a store, none of them connected."""
    source = parse_url_of_store(url)
    if isinstance(source, RedisAddress):
        return Nodes(Node(source, connections_max, timeout_s))
    if source.service:
        return Nodes(_Primary(source, connections_max, timeout_s))
    return ClusterNodes(source, connections_max, timeout_s)


# ---------------------------------------------------------------------------------------- Sentinels


class _IgnorantError(LinkLostError):
    """A server that answers does not know the service."""


_NOT_FOUND = {
    StoreBusyError: (
        "the primary {!r} that the Sentinels name does not serve ({}): a fail-over may be under way"
    ),
    _IgnorantError: "no Sentinel knows a service {!r}: {}",
    LinkLostError: "no Sentinel answers: {1}",
}
"""Problem → how it is reported if it is the one that matters most."""


class _Primary(Node):
    """A primary that is found by its Sentinels, in the steps that Redis asks of clients.

    `Sentinel.discover_master` believes the first Sentinel that answers. This asks the next one if
    the server that it names does not serve as primary.
    """

    def __init__(self, servers: StoreServers, connections_max: int, timeout_s: float) -> None:
        super().__init__(servers.login, connections_max, timeout_s)
        self._service = servers.service
        self._wait_s = min(timeout_s, LOOKUP_WAIT_S)
        self._sentinels = list(servers.known)

    async def _open(self, link: Link) -> None:
        problems: dict[RedisAddress, LinkLostError] = {}
        for sentinel in list(self._sentinels):
            subject = sentinel
            try:
                subject = await self._primary_of(sentinel)
                if subject not in problems:
                    await self._open_primary(link, subject)
                    self._sentinels.remove(sentinel)  # It is asked first next time.
                    self._sentinels.insert(0, sentinel)
                    return
            except LinkLostError as error:
                problems[subject] = error
        for kind, form in _NOT_FOUND.items():
            texts = [str(problem) for problem in problems.values() if isinstance(problem, kind)]
            if texts:
                raise kind(form.format(self._service, "; ".join(texts)))

    async def _primary_of(self, sentinel: RedisAddress) -> RedisAddress:
        """Return the address of the primary that a Sentinel names."""
        pool = ConnectionPool(
            maint_notifications_config=_NO_NOTIFICATIONS,
            socket_timeout=self._wait_s,
            protocol=3,
            **link_arguments(sentinel, self._wait_s),
        )
        try:
            async with Redis.from_pool(pool) as client:
                services: Any = await client.sentinel_masters()
        except (RedisError, OSError) as error:
            if "unknown command" in str(error):
                raise _IgnorantError(f"{sentinel} is no Sentinel") from error
            raise LinkLostError(why_unreachable(sentinel, error)) from error
        if self._service not in services:
            raise _IgnorantError(f"{sentinel} knows {', '.join(sorted(services)) or 'none'}")
        state = services[self._service]
        primary = replace(self.address, host=state["ip"], port=int(state["port"]))
        if not Sentinel([]).check_master_state(state, self._service):  # type: ignore[no-untyped-call]  # redis-py's own
            raise StoreBusyError(f"{primary} is down, as {sentinel} reports")
        return primary

    async def _open_primary(self, link: Link, primary: RedisAddress) -> None:
        """Connect a link to a server that serves as primary; raise `StoreBusyError` if not."""
        link.address = primary
        link.host, link.port = primary.host, primary.port
        try:
            await super()._open(link)
        except LinkLostError as error:
            raise StoreBusyError(str(error)) from error
        # The role as `ROLE` reports it. It comes with the greeting, and needs no right.
        if link.server.get(b"role") != b"master":
            await link.disconnect()
            raise StoreBusyError(f"{primary} is a replica by now")


# ---------------------------------------------------------------------------------- A Redis Cluster


TAGGED_SLOTS = range(0, REDIS_CLUSTER_HASH_SLOTS, 64)
"""Slots in which nodes hold what is their own: few, so that all of them can be looked into."""


@cache
def tag_of_slot(slot: int) -> str:
    """Return a hash tag whose keys lie in a slot."""
    return next(str(number) for number in count() if key_slot(b"%d" % number) == slot)


class _Member(Node):
    """A node of a cluster."""

    async def _open(self, link: Link) -> None:
        try:
            await link.open()
        except LinkLostError as error:
            raise StoreBusyError(
                f"a node of the Redis Cluster does not answer ({error}): a fail-over may be under"
                " way"
            ) from error


class ClusterNodes(Nodes):
    """The primaries of a Redis Cluster, and the slot map of redis-py as a node gave it last.

    An answer that a key is elsewhere, and a node that is silent, dead or demoted, make the map
    doubtful. It is read again before it is used, since a replica may have taken over.
    """

    def __init__(self, servers: StoreServers, connections_max: int, timeout_s: float) -> None:
        """Create the nodes that the map names later; the seeds can be asked for it, too."""
        super().__init__(None)
        wait_s = min(timeout_s, LOOKUP_WAIT_S)
        first = servers.known[0]
        arguments = link_arguments(first, wait_s) | {"socket_timeout": wait_s}
        self._seeds = [ClusterNode(node.host, node.port, **arguments) for node in servers.known]
        self._map = NodesManager(
            self._seeds,
            require_full_coverage=False,
            connection_kwargs=arguments,
            dynamic_startup_nodes=False,
            # A node that does not know its own host is reached where the seed is.
            address_remap=lambda at: (at[0] if at[0] not in (None, "?") else first.host, at[1]),
        )
        self._new_node = partial(_Member, connections_max=connections_max, timeout_s=timeout_s)
        self._login = first
        self._nodes: dict[str, Node] = {}
        self._is_doubtful = True
        self._silent: str | None = None
        self._asking = asyncio.Lock()

    def slot_of(self, key: str) -> int:
        """Return the slot of a key."""
        return key_slot(key.encode())

    async def node_of(self, slot: int) -> Node:
        """Return the node that owns a slot."""
        await self._refresh()
        owners = self._map.slots_cache.get(slot)
        if not owners:
            self._is_doubtful = True
            raise StoreBusyError(f"CLUSTERDOWN no node of the Redis Cluster has slot {slot}")
        return self._nodes[owners[0].name]

    async def every(self) -> Sequence[Node]:
        """Return all primaries that own slots, in the order of their addresses."""
        await self._refresh()
        return self._every

    async def _doubt(self, node: Node, error: LinkLostError) -> None:
        """Read the map again before it is used."""
        text = str(error)
        if not isinstance(error, StoreBusyError) or "does not answer" in text:
            self._is_doubtful, self._silent = True, str(node.address)
        elif text.startswith(ELSEWHERE):
            self._is_doubtful = True

    async def _refresh(self) -> None:
        while self._is_doubtful:
            async with self._asking:
                if self._is_doubtful:
                    await self._read_map()
                    await self._follow_map()
                    self._is_doubtful, self._silent = False, None

    async def _read_map(self) -> None:
        """Ask one node after the other for the map, the silent one last."""
        self._map.startup_nodes = {node.name: node for node in self._seeds} | self._map.nodes_cache
        try:
            await self._map.initialize(last_failed_node_name=self._silent)
        except RedisClusterException as error:
            raise self._not_found(error) from error
        except IndexError as error:  # redis-py looks for a primary among no nodes.
            raise StoreBusyError("no node of the Redis Cluster knows one that has slots") from error
        finally:
            await self._map.aclose("startup_nodes")

    def _not_found(self, error: RedisClusterException) -> Exception:
        """Return why no node gave the map; redis-py calls every refusal a server without slots."""
        last = error.__cause__
        refusal = last.__context__ if isinstance(last, RedisClusterException) else last
        nodes = ", ".join(f"{node.host}:{node.port}" for node in self._seeds)
        text = text_of(refusal) if isinstance(refusal, RedisError) else str(refusal or error)
        if "cluster support disabled" in text:
            return MetadataError(
                f"{nodes} is no node of a Redis Cluster (`cluster-enabled no`): write store.url as"
                " redis://host:port"
            )
        return StoreBusyError(f"no node of the Redis Cluster answers: {nodes}: {text}")

    async def _follow_map(self) -> None:
        """Have a pool for each primary of the map; connections to other servers end."""
        slots: dict[str, list[int]] = {}
        for slot, owners in self._map.slots_cache.items():
            slots.setdefault(owners[0].name, []).append(slot)
        for name in self._nodes.keys() - slots.keys():
            gone = self._nodes.pop(name)
            gone.retired = True
            await gone.close_idle()
        for name, own in slots.items():
            if name not in self._nodes:
                owner = self._map.nodes_cache[name]
                address = replace(self._login, host=owner.host, port=int(owner.port))
                self._nodes[name] = self._new_node(address)
            tagged = [slot for slot in own if slot in TAGGED_SLOTS] or [min(own)]
            self._nodes[name].tags = [f":{{{tag_of_slot(slot)}}}" for slot in sorted(tagged)]
        self._every = [self._nodes[name] for name in sorted(self._nodes)]
