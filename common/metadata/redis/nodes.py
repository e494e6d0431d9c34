"""The servers of a store: which one owns a slot, and a pool of connections to each.

    Node           one server, and the pool of redis-py for it
    Nodes          a Redis by its address, or the primary that Sentinels name
    ClusterNodes   the primaries of a Redis Cluster, by the slot map of redis-py

A pool asks for the primary again with each new connection, so a fail-over needs no restart.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import cache, partial
from itertools import count
from typing import Any

from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, NodesManager
from redis.asyncio.connection import ConnectionPool
from redis.asyncio.sentinel import Sentinel
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import MovedError, RedisClusterException
from redis.maint_notifications import MaintNotificationsConfig

from common.errors import MetadataError
from common.metadata.keyspace import LinkLostError, StoreBusyError
from common.metadata.redis.address import (
    CLUSTER_FORM,
    SENTINEL_FORM,
    ClusterSeeds,
    RedisAddress,
    SentinelService,
    StoreSource,
)
from common.metadata.redis.connection import (
    DEMOTED,
    ELSEWHERE,
    Link,
    ReplyError,
    link_class,
    text_of,
    why_unreachable,
)

LOOKUP_WAIT_S = 2.0
"""Longest wait for one Sentinel, or for the slot map of one node: the next one may answer."""
_UNBOUNDED = 1 << 30
_NO_NOTIFICATIONS = MaintNotificationsConfig(enabled=False)

Open = Callable[[Link], Awaitable[None]]
"""Connects a link."""


class Node:
    """One server, and the connections to it. Every idle one is whole and watches nothing."""

    def __init__(
        self, address: RedisAddress, connections_max: int, timeout_s: float, open_link: Open
    ) -> None:
        """Create a node without connections.

        Args:
            address: Of the server, or how to log in at the server that `open_link` finds.
            connections_max: Most connections for reads and changes; streams have their own.
            timeout_s: Longest wait for a connection.
            open_link: Connects a link.
        """
        self.address = address
        self.tags: Sequence[str] = ("",)
        """Endings of the keys under which it may hold something of its own; it uses the first."""
        self.retired = False
        """Whether no slot is there any more."""
        self._open = open_link
        self._pool = ConnectionPool(
            link_class(address),
            _UNBOUNDED,
            _NO_NOTIFICATIONS,
            address=address,
            timeout_s=timeout_s,
        )
        self._permits = asyncio.Semaphore(connections_max)
        self._primary: tuple[str, int] | None = None

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
                    await self._connect(link)
                yield link
                if self.retired or _server_of(link) != self._primary:
                    await link.disconnect()
            except BaseException as error:
                await link.disconnect()  # It may watch keys, or have answers left.
                if isinstance(error, LinkLostError) and not isinstance(error, StoreBusyError):
                    # A server that is silent to one caller is silent to all.
                    await self.close_idle()
                raise
            finally:
                await self._pool.release(link)

    async def _connect(self, link: Link) -> None:
        await link.disconnect()
        try:
            await self._open(link)
        except BaseException:
            await link.disconnect()
            raise
        if _server_of(link) != self._primary:
            self._primary = _server_of(link)
            await self.close_idle()  # They lead to an earlier primary.

    async def close_idle(self) -> None:
        """Close all connections that are not lent."""
        await self._pool.disconnect(inuse_connections=False)


def _server_of(link: Link) -> tuple[str, int]:
    return link.host, link.port


def nodes_of(source: StoreSource, connections_max: int, timeout_s: float) -> "Nodes":
    """Return the servers of a store, none of them connected."""
    if isinstance(source, ClusterSeeds):
        return ClusterNodes(source, connections_max, timeout_s)
    if isinstance(source, SentinelService):
        sentinels = _Sentinels(source, timeout_s)
        return Nodes([Node(source.primary, connections_max, timeout_s, sentinels.open)])
    return Nodes([Node(source, connections_max, timeout_s, _open_single)])


# --------------------------------------------------------------------------------- One Redis


class Nodes:
    """The servers of a store. Here the one that has everything."""

    def __init__(self, nodes: Sequence[Node] = ()) -> None:
        """Use one node for everything."""
        self.only: Node | None = nodes[0] if nodes else None
        """The node that has everything; None: slots decide."""
        self._every = list(nodes)

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

    async def doubt(self, node: Node, error: LinkLostError) -> None:
        """Draw conclusions from an error: a node may be silent, demoted, or have lost a slot."""
        if isinstance(error, StoreBusyError) and str(error).startswith(DEMOTED):
            await node.close_idle()  # Only a new connection looks where the primary is.

    async def close_idle(self) -> None:
        """Close all connections that are not lent."""
        for node in self._every:
            await node.close_idle()


async def _open_single(link: Link) -> None:
    """Connect to a server that must be able to hold a store."""
    await link.open()
    mode = link.server.get(b"mode")
    if mode == b"sentinel":
        raise MetadataError(
            f"{link.address} is a Sentinel, which holds no data: write store.url as {SENTINEL_FORM}"
        )
    if mode == b"cluster":
        raise MetadataError(
            f"{link.address} is a node of a Redis Cluster: write store.url as {CLUSTER_FORM}"
        )


class _Sentinels:
    """Finds a primary by its Sentinels, in the steps that Redis asks of clients.

    `Sentinel.discover_master` believes the first Sentinel that answers. This asks the next one if
    the server that it names does not serve as primary.
    """

    def __init__(self, service: SentinelService, timeout_s: float) -> None:
        self._service = service
        self._wait_s = min(timeout_s, LOOKUP_WAIT_S)
        self._sentinels = list(service.sentinels)

    async def open(self, link: Link) -> None:
        """Connect a link to the primary.

        Raises:
            LinkLostError: No Sentinel answers, or none knows the service.
            StoreBusyError: The primary that Sentinels name does not serve as one.
        """
        silent: list[str] = []
        ignorant: list[str] = []
        down: list[str] = []
        fallen: dict[RedisAddress, str] = {}
        for sentinel in list(self._sentinels):
            try:
                primary = await self._primary_of(sentinel)
            except StoreBusyError as error:
                down.append(str(error))
                continue
            except LinkLostError as error:
                silent.append(str(error))
                continue
            if isinstance(primary, str):
                ignorant.append(primary)
            elif primary not in fallen and await _serves(link, primary, fallen):
                self._sentinels.remove(sentinel)  # It is asked first next time.
                self._sentinels.insert(0, sentinel)
                return
        raise self._not_found(silent, ignorant, [*fallen.values(), *down])

    async def _primary_of(self, sentinel: RedisAddress) -> RedisAddress | str:
        """Return the address of the primary that a Sentinel names, or what it knows instead."""
        client = _client_of(sentinel, self._wait_s)
        lookup = Sentinel([])  # type: ignore[no-untyped-call]  # redis-py's own
        lookup.sentinels = [client]
        try:
            services: Any = await client.sentinel_masters()
        except ReplyError as error:
            text = text_of(error)
            is_other = "unknown command" in text
            return f"{sentinel} is no Sentinel" if is_other else f"{sentinel} refuses: {text}"
        except (RedisError, OSError) as error:
            raise LinkLostError(why_unreachable(sentinel, error)) from error
        finally:
            await lookup.aclose()
        state = services.get(self._service.name)
        if state is None:
            return f"{sentinel} knows {', '.join(sorted(services)) or 'none'}"
        primary = self._service.primary_at(state["ip"], int(state["port"]))
        if not lookup.check_master_state(state, self._service.name):
            raise StoreBusyError(f"{primary} is down, as {sentinel} reports")
        return primary

    def _not_found(
        self, silent: list[str], ignorant: list[str], fallen: list[str]
    ) -> LinkLostError:
        name = self._service.name
        if fallen:
            return StoreBusyError(
                f"the primary {name!r} that the Sentinels name does not serve"
                f" ({'; '.join(fallen)}): a fail-over may be under way"
            )
        if ignorant:
            return LinkLostError(f"no Sentinel knows a service {name!r}: {'; '.join(ignorant)}")
        return LinkLostError(f"no Sentinel answers: {'; '.join(silent)}")


def _client_of(sentinel: RedisAddress, wait_s: float) -> Redis:
    """Return a client of redis-py for a Sentinel."""
    return Redis.from_pool(
        ConnectionPool(
            link_class(sentinel),
            None,
            _NO_NOTIFICATIONS,
            address=sentinel,
            timeout_s=wait_s,
            socket_timeout=wait_s,
            protocol=3,
        )
    )


async def _serves(link: Link, primary: RedisAddress, fallen: dict[RedisAddress, str]) -> bool:
    """Connect a link to a server that serves as primary, or note why it does not."""
    link.address = primary
    link.host, link.port = primary.host, primary.port
    try:
        await _open_single(link)
    except LinkLostError as error:
        fallen[primary] = str(error)
        return False
    # The role as `ROLE` reports it. It comes with the greeting, and needs no right.
    if link.server.get(b"role") == b"master":
        return True
    await link.disconnect()
    fallen[primary] = f"{primary} is a replica by now"
    return False


# ------------------------------------------------------------------------------ A Redis Cluster


TAGGED_SLOTS = range(0, REDIS_CLUSTER_HASH_SLOTS, 64)
"""Slots in which nodes hold what is their own: few, so that all of them can be looked into."""


@cache
def tag_of_slot(slot: int) -> str:
    """Return a hash tag whose keys lie in a slot."""
    return next(str(number) for number in count() if key_slot(b"%d" % number) == slot)


class ClusterNodes(Nodes):
    """The primaries of a Redis Cluster, and the slot map of redis-py as a node gave it last.

    An answer that a key is elsewhere, and a node that is silent, dead or demoted, make the map
    doubtful. It is read again before it is used, since a replica may have taken over.
    """

    def __init__(self, seeds: ClusterSeeds, connections_max: int, timeout_s: float) -> None:
        """Create the nodes that the map names later.

        Args:
            seeds: Nodes that can be asked for the map, besides those in it.
            connections_max: Most connections to each node.
            timeout_s: Longest wait for one answer.
        """
        super().__init__()
        wait_s = min(timeout_s, LOOKUP_WAIT_S)
        first = seeds.nodes[0]
        arguments: dict[str, Any] = {
            "connection_class": link_class(first),
            "address": first,
            "timeout_s": wait_s,
            "socket_timeout": wait_s,
        }
        self._seeds = seeds
        self._seed_nodes = [ClusterNode(each.host, each.port, **arguments) for each in seeds.nodes]
        self._map = NodesManager(
            self._seed_nodes,
            require_full_coverage=False,
            connection_kwargs=arguments,
            dynamic_startup_nodes=False,
            # A node that does not know its own host is reached where the seed is.
            address_remap=lambda at: (at[0] if at[0] not in (None, "?") else first.host, at[1]),
        )
        self._new_node = partial(Node, connections_max=connections_max, timeout_s=timeout_s)
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

    async def doubt(self, node: Node, error: LinkLostError) -> None:
        """Read the map again before it is used, or correct the slot that an answer names."""
        text = str(error)
        if not isinstance(error, StoreBusyError) or "does not answer" in text:
            self._is_doubtful, self._silent = True, str(node.address)
        elif text.startswith("MOVED ") and ":" in text.split()[-1].lstrip(":"):
            await self._map.move_slot(MovedError(text.removeprefix("MOVED ")))
            await self._follow_map()
        elif text.startswith(ELSEWHERE):
            self._is_doubtful = True

    async def _refresh(self) -> None:
        if self._is_doubtful:
            async with self._asking:
                if self._is_doubtful:
                    await self._read_map()
                    await self._follow_map()
                    self._is_doubtful, self._silent = False, None

    async def _read_map(self) -> None:
        """Ask one node after the other for the map, the silent one last."""
        seeds = {node.name: node for node in self._seed_nodes}
        self._map.startup_nodes = seeds | self._map.nodes_cache
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
        nodes = ", ".join(map(str, self._seeds.nodes))
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
                address = self._seeds.node_at(owner.host, int(owner.port))
                self._nodes[name] = self._new_node(address, open_link=_open_node)
            tagged = [slot for slot in own if slot in TAGGED_SLOTS] or [min(own)]
            self._nodes[name].tags = [f":{{{tag_of_slot(slot)}}}" for slot in sorted(tagged)]
        self._every = [self._nodes[name] for name in sorted(self._nodes)]


async def _open_node(link: Link) -> None:
    """Connect to a node of a cluster."""
    try:
        await link.open()
    except LinkLostError as error:
        raise StoreBusyError(
            f"a node of the Redis Cluster does not answer ({error}): a fail-over may be under way"
        ) from error
