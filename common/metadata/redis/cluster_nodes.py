"""The nodes of a Redis Cluster: which has which slots, as any of them tells, and links to each.

A node that answers that a key is elsewhere, is silent, dead or demoted makes the map doubtful.
Before it is used again the others are asked, since a replica may have taken over.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from common.errors import MetadataError
from common.metadata.commands import Command
from common.metadata.keyspace import LinkLostError, StoreBusyError
from common.metadata.redis.connection import (
    ClusterSeeds,
    Link,
    RedisAddress,
    ReplyError,
    open_link,
)
from common.metadata.redis.keyspace import ELSEWHERE
from common.metadata.redis.primary import LinkPool
from common.metadata.redis.slots import SlotMap, parse_slots, tag_of_slot

MAP_WAIT_S = 2.0
"""Longest wait for a node's map: the next node may know more."""
SLOT_RANGES: Command = ("CLUSTER", "SLOTS")


class ClusterNode:
    """One primary of a cluster, and links to it."""

    def __init__(self, address: RedisAddress, connections_max: int, timeout_s: float) -> None:
        """Connect later.

        Args:
            address: Where it is.
            connections_max: Most links for reads and changes.
            timeout_s: Longest wait for one answer.
        """
        self.address = address
        self.links = LinkPool(self, connections_max)
        self.retired = False
        """Whether the map names it no more."""
        self.marked_slots: Sequence[int] = ()
        """Slots of it in which it holds what is its own."""
        self._timeout_s = timeout_s

    def is_at(self, address: RedisAddress) -> bool:
        """Return whether links to a server may be used."""
        return not self.retired and address == self.address

    def marks(self, key: str) -> Sequence[str]:
        """Return the keys under which it may hold something of its own; it uses the first.

        Slots move, and what is in them: others of these keys have what came from other nodes.
        """
        return [f"{key}:{{{tag_of_slot(slot)}}}" for slot in self.marked_slots]

    async def open(self) -> Link:
        """Connect to it.

        Raises:
            StoreBusyError: It does not answer: a replica may be taking over.
            MetadataError: It is no node of a cluster.
        """
        try:
            link = await open_link(self.address, self._timeout_s)
        except LinkLostError as error:
            raise StoreBusyError(
                f"a node of the Redis Cluster does not answer ({error}): a fail-over may be under"
                " way"
            ) from error
        return _checked(link)


class ClusterNodes:
    """The map of slots as it was told last, and links to every primary in it."""

    def __init__(self, seeds: ClusterSeeds, connections_max: int, timeout_s: float) -> None:
        """Ask nobody yet.

        Args:
            seeds: Nodes that are asked first.
            connections_max: Most links to each node.
            timeout_s: Longest wait for one answer.
        """
        self._seeds = seeds
        self._connections_max = connections_max
        self._timeout_s = timeout_s
        self._nodes: dict[RedisAddress, ClusterNode] = {}
        self._map: SlotMap | None = None
        self._order = list(seeds.nodes)
        """Whom to ask for the map, the one that is likely to know first."""
        self._asking = asyncio.Lock()

    async def map(self) -> SlotMap:
        """Return the map of slots; ask for it if it is doubtful.

        Raises:
            LinkLostError: No node answers.
        """
        if self._map is not None:
            return self._map
        async with self._asking:
            found = self._map  # It may have been told to somebody else meanwhile.
            if found is None:
                found = await self._ask()
                self._take(found)
        return found

    async def node_of(self, slot: int) -> ClusterNode:
        """Return the node that has a slot.

        Raises:
            StoreBusyError: None has it.
            LinkLostError: No node answers.
        """
        address = (await self.map()).node_of(slot)
        if address is None:
            self._map = None
            raise StoreBusyError(f"CLUSTERDOWN no node of the Redis Cluster has slot {slot}")
        return self._nodes[address]

    async def every(self) -> Sequence[ClusterNode]:
        """Return all primaries."""
        return [self._nodes[address] for address in (await self.map()).nodes]

    @asynccontextmanager
    async def watched(self, node: ClusterNode) -> AsyncIterator[None]:
        """Doubt the map if a node is silent, or says that it has something no more."""
        try:
            yield
        except LinkLostError as error:
            text = str(error)
            is_silent = not isinstance(error, StoreBusyError) or "does not answer" in text
            if is_silent:
                self.doubt(node.address)
            elif text.startswith(ELSEWHERE):
                self.doubt(None, _named_in(text, self._seeds))
            raise

    def doubt(self, silent: RedisAddress | None, knowing: RedisAddress | None = None) -> None:
        """Ask for the map before it is used again.

        Args:
            silent: A node that is asked last.
            knowing: One that is asked first.
        """
        self._map = None
        if silent in self._order:
            self._ask_last(silent)
        if knowing is not None:
            self._order = [knowing, *(address for address in self._order if address != knowing)]

    def close_idle(self) -> None:
        """Close all links that are not lent."""
        for node in self._nodes.values():
            node.links.close_idle()

    async def _ask(self) -> SlotMap:
        """Return what the first node tells that answers."""
        silent: list[str] = []
        wait_s = min(self._timeout_s, MAP_WAIT_S)
        for address in list(self._order):
            try:
                return await self._told_by(address, wait_s)
            except LinkLostError as error:
                silent.append(str(error))
                self._ask_last(address)
        raise StoreBusyError(f"no node of the Redis Cluster answers: {'; '.join(silent)}")

    def _ask_last(self, silent: RedisAddress) -> None:
        """Ask a node last from now on: it may be gone for hours."""
        self._order.remove(silent)
        self._order.append(silent)

    async def _told_by(self, address: RedisAddress, wait_s: float) -> SlotMap:
        link = _checked(await open_link(address, wait_s))
        try:
            (reply,) = await link.exchange([SLOT_RANGES], wait_s)
        finally:
            link.close()
        if isinstance(reply, ReplyError):
            raise LinkLostError(f"{address} refuses: {reply}")
        found = parse_slots(reply, address, self._seeds.nodes[0])
        if not found.nodes:
            raise LinkLostError(f"{address} knows no node that has slots")
        return found

    def _take(self, found: SlotMap) -> None:
        """Use a map from now on; links to nodes that are no primaries any more end."""
        for address in [node for node in self._nodes if node not in found.nodes]:
            gone = self._nodes.pop(address)
            gone.retired = True
            gone.links.close_idle()
        for address in found.nodes:
            if address not in self._nodes:
                made = ClusterNode(address, self._connections_max, self._timeout_s)
                self._nodes[address] = made
            self._nodes[address].marked_slots = found.marked_slots_of(address)
        # Seeds may be gone for ever: whoever is in the map is asked as well.
        known = dict.fromkeys((*self._order, *found.nodes))
        kept = {*found.nodes, *self._seeds.nodes}
        self._order = [each for each in known if each in kept]
        self._map = found


def _named_in(text: str, seeds: ClusterSeeds) -> RedisAddress | None:
    """Return the node that an answer such as `MOVED 3999 127.0.0.1:6381` names."""
    words = text.split()
    if words[0] != "MOVED" or len(words) < 3:
        return None
    host, _, port = words[2].rpartition(":")
    return seeds.node_at(host.strip("[]"), int(port)) if host and port.isdigit() else None


def _checked(link: Link) -> Link:
    """Return a link to a node of a cluster."""
    if link.server.get(b"mode") == b"cluster":
        return link
    link.close()
    raise MetadataError(
        f"{link.address} is no node of a Redis Cluster (`cluster-enabled no`): write store.url as"
        " redis://host:port"
    )
