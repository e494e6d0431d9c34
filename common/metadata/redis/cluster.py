"""A Redis Cluster as a keyspace: every transaction, read and stream at the node that has its slot.

    ClusterSession   one try of one transaction: it watches one slot, and glances at others
    ClusterKeyspace  reads on all nodes at once, one round trip each

A node that answers that a key is elsewhere has done nothing, so the whole try is made again with
a new map. Who has which slot, `cluster_nodes` knows.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from common.metadata.commands import TIME, Command, Reply, get, hgetall
from common.metadata.executor import time_s
from common.metadata.keys import FULL, RESERVE, TABLES, TableKeys
from common.metadata.keyspace import (
    KeyspaceSession,
    LinkLostError,
    StoreBusyError,
    StreamEntry,
)
from common.metadata.redis.acl import missing_rights
from common.metadata.redis.cluster_nodes import ClusterNode, ClusterNodes
from common.metadata.redis.connection import (
    ClusterSeeds,
    RedisAddress,
    ReplyError,
    parse_url_of_store,
)
from common.metadata.redis.keyspace import (
    NO_MEMORY,
    RedisSession,
    packed_batches,
    stream_entries,
    stream_read,
    translate_errors,
    unpacked_batches,
)
from common.metadata.redis.memory_reserve import MemoryReserve, ids_of_names
from common.metadata.redis.slots import slot_of, slot_of_command
from common.metadata.store_values import NO_EVICTION, StoreHealth

REDIRECTS_MAX = 4
"""How often one read follows a new map at once; after that its caller pauses."""
NAMES_SLOT = slot_of(TABLES)
"""Whose node is asked what has no key, such as the time."""

IS_FULL = get(FULL)

_Part = tuple[int, Sequence[int]]
"""Number of a batch, and the places in it of what has one slot."""

T = TypeVar("T")


# ----------------------------------------------------------------------------------------- Session


class ClusterSession:
    """One try of one transaction. What it watches and writes has one slot."""

    def __init__(
        self, nodes: ClusterNodes, stack: AsyncExitStack, timeout_s: float, wait_replicas: int
    ) -> None:
        """Touch no node yet; links that are lent go back with `stack`."""
        self._nodes = nodes
        self._stack = stack
        self._timeout_s = timeout_s
        self._wait_replicas = wait_replicas
        self._sessions: dict[ClusterNode, RedisSession] = {}
        self._watched: int | None = None
        """The slot of what it watches."""
        self._home: int | None = None
        """The slot whose node is asked what has no key."""
        self.at: ClusterNode | None = None
        """The node of the transaction."""

    async def look(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        """Watch and read in one round trip; then read what other nodes have."""
        places = [_place(command) for command in reads]
        if watch:
            (slot,) = {*map(slot_of, watch)}
            assert self._watched in {None, slot}, f"a transaction watches two slots: {watch}"
            self._watched = self._home = slot
        elif self._home is None:
            self._home = next((slot for slot in places if slot is not None), NAMES_SLOT)
        home = await self._nodes.node_of(self._home)
        nodes = [
            home if slot in {None, self._home} else await self._nodes.node_of(slot)
            for slot in places
        ]
        replies: dict[int, Reply] = {}
        # The home first: what other nodes tell must not be older than the watch.
        for node in dict.fromkeys((home, *nodes)):
            mine = [at for at, each in enumerate(nodes) if each is node]
            watched = watch if node is home else ()
            if mine or watched:
                session = await self._session(node)
                async with self._nodes.watched(node):
                    found = await session.look(watched, [_marked(reads[at], node) for at in mine])
                replies |= dict(zip(mine, found, strict=True))
        return [replies[at] for at in range(len(reads))]

    async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
        """Send MULTI … EXEC to the node of the slot, and wait for its replicas if asked."""
        (slot,) = {slot_of(str(key)) for effect in effects for key in _keys_of(effect)}
        assert self._watched in {None, slot}, f"a transaction writes another slot: {effects}"
        node = await self._nodes.node_of(slot)
        session = await self._session(node)
        async with self._nodes.watched(node):
            return await session.execute(effects, durable=durable)

    async def leave(self) -> None:
        """Watch nothing any more."""
        for session in self._sessions.values():
            await session.leave()

    async def _session(self, node: ClusterNode) -> RedisSession:
        """Return the session on a node. A second one waits for no place: others wait for ours."""
        session = self._sessions.get(node)
        if session is None:
            lent = node.links.lend_beside() if self._sessions else node.links.lend()
            self.at = self.at or node
            async with self._nodes.watched(node):
                link = await self._stack.enter_async_context(lent)
            session = RedisSession(link, self._timeout_s, self._wait_replicas)
            self._sessions[node] = session
        return session


def _keys_of(effect: Command) -> Sequence[object]:
    return effect[1:] if effect[0] == "DEL" else effect[1:2]


def _place(command: Command) -> int | None:
    """Return the slot that a read needs; None: it goes with the transaction."""
    return None if command == IS_FULL else slot_of_command(command)


def _marked(command: Command, node: ClusterNode) -> Command:
    """Return a read of whether the store is full as one of whether a node is."""
    return get(node.marks(FULL)[0]) if command == IS_FULL else command


# ---------------------------------------------------------------------------------------- Keyspace


class ClusterKeyspace:
    """All nodes of a Redis Cluster. A table is on one of them, with everything that it has."""

    def __init__(
        self,
        url: str,
        *,
        connections_max: int = 32,
        timeout_s: float = 10.0,
        wait_replicas: int = 0,
        reserve_bytes: int = 0,
    ) -> None:
        """Connect later.

        Args:
            url: `redis+cluster://` or `rediss+cluster://`.
            connections_max: Most links to one node for reads and changes; streams have their own.
            timeout_s: Longest wait for one answer.
            wait_replicas: Replicas of the node that must have a durable change.
            reserve_bytes: Memory to set aside in each node, if its memory is bounded.
        """
        seeds = parse_url_of_store(url)
        assert isinstance(seeds, ClusterSeeds), "see `keyspace`"
        self._nodes = ClusterNodes(seeds, connections_max, timeout_s)
        self._streams = _StreamReads(self._nodes, timeout_s)
        self._timeout_s = timeout_s
        self._wait_replicas = wait_replicas
        self._reserve_bytes = reserve_bytes

    @asynccontextmanager
    async def session(self) -> AsyncIterator[KeyspaceSession]:
        """Return a session on links of its own."""
        async with AsyncExitStack() as stack:
            session = ClusterSession(self._nodes, stack, self._timeout_s, self._wait_replicas)
            try:
                yield session
            except StoreBusyError as error:
                if str(error).startswith(NO_MEMORY) and session.at is not None:
                    await self._reserve_of(session.at).give_back()
                raise
            await session.leave()

    async def fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read batches, each at one moment; one round trip for each node, all at once."""
        if len(batches) == 1 and batches[0][0][0] == "SCAN":
            return [[await self._scan(batches[0][0])]]
        for redirects in range(REDIRECTS_MAX):
            try:
                return await self._fetch(batches)
            except StoreBusyError as error:
                if not str(error).startswith("MOVED ") or redirects == REDIRECTS_MAX - 1:
                    raise
        raise AssertionError

    async def wait_entries(
        self, after: Mapping[str, str], count: int, block_s: float
    ) -> Mapping[str, Sequence[StreamEntry]]:
        """Return entries of streams after positions; wait on a link of its own to each node."""
        return await self._streams.wait(after, count, block_s)

    async def health(self) -> StoreHealth:
        """Return what all nodes say of themselves; one that is silent is told among them."""
        nodes = await self._nodes.every()
        found = await _all(self._health_of(node) for node in nodes)
        told = {str(node.address): health for node, (health, _) in zip(nodes, found, strict=True)}
        return _health_of(told, [now_s for _, now_s in found if now_s is not None])

    async def _health_of(self, node: ClusterNode) -> tuple[StoreHealth, float | None]:
        """Return what a node says of itself, and its time."""
        try:
            (now,) = await self._send(node, [TIME])
            health = await self._reserve_of(node).health()
            return replace(health, lacks=await self._lacks(node)), time_s(now)
        except LinkLostError as error:
            return StoreHealth(silence=str(error)), None

    async def _lacks(self, node: ClusterNode) -> tuple[str, ...]:
        """Return the rights that the user of the URL is not given at a node."""
        unused = () if self._wait_replicas else ("wait",)
        async with self._nodes.watched(node):
            return await missing_rights(node.links, self._timeout_s, unused=unused)

    async def keep_reserve(self) -> None:
        """Set memory aside in each node, or give up what is no longer wanted."""
        await _all(self._reserve_of(node).keep() for node in await self._nodes.every())

    async def close(self) -> None:
        """Close all links that are not in use."""
        await self._streams.close()
        self._nodes.close_idle()

    async def _fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read batches where the map says that they are."""
        replies: list[list[Reply]] = [[None] * len(batch) for batch in batches]
        parts: dict[ClusterNode, list[_Part]] = {}
        for number, batch in enumerate(batches):
            for slot, places in _by_slot(batch).items():
                node = await self._nodes.node_of(slot)
                parts.setdefault(node, []).append((number, places))

        async def read(node: ClusterNode, mine: list[_Part]) -> None:
            own = [[batches[number][place] for place in places] for number, places in mine]
            async with self._nodes.watched(node):
                async with node.links.lend() as link:
                    answers = await link.exchange(packed_batches(own), self._timeout_s)
                try:
                    found = unpacked_batches(own, answers)
                except StoreBusyError as error:
                    if str(error).startswith(NO_MEMORY):
                        await self._reserve_of(node).give_back()
                    raise
            for (number, places), each in zip(mine, found, strict=True):
                for place, reply in zip(places, each, strict=True):
                    replies[number][place] = reply

        await _all(read(node, mine) for node, mine in parts.items())
        return replies

    async def _scan(self, command: Command) -> Reply:
        """Walk over the keys of one node after the other; the cursor tells which one is next."""
        nodes = await self._nodes.every()
        inner, place = divmod(int(command[1]), len(nodes))
        node = nodes[place]
        async with self._nodes.watched(node), node.links.lend() as link:
            (reply,) = await link.exchange([("SCAN", inner, *command[2:])], self._timeout_s)
            if isinstance(reply, ReplyError):
                raise translate_errors(reply)
        position, keys = int(reply[0]), reply[1]
        if position:
            return [b"%d" % (position * len(nodes) + place), keys]
        return [b"%d" % ((place + 1) % len(nodes)), keys]

    def _reserve_of(self, node: ClusterNode) -> MemoryReserve:
        """Return the memory set aside in a node."""

        async def send(commands: list[Command]) -> list[Reply]:
            return await self._send(node, commands)

        async def table_ids() -> list[str]:
            (names,) = await self._send(await self._nodes.node_of(NAMES_SLOT), [hgetall(TABLES)])
            slots = await self._nodes.map()
            places = {
                name: slots.node_of(slot_of(TableKeys(name).table)) for name in ids_of_names(names)
            }
            return [each for each, address in places.items() if address == node.address]

        return MemoryReserve(
            send,
            table_ids,
            size_max_bytes=self._reserve_bytes,
            replicas_wanted=self._wait_replicas,
            reserves=node.marks(RESERVE),
            fulls=node.marks(FULL),
        )

    async def _send(self, node: ClusterNode, commands: list[Command]) -> list[Reply]:
        """Send single commands on a link outside the pool, which may wait for this very room."""
        async with self._nodes.watched(node):
            link = await node.links.open()
            try:
                return await link.exchange(commands, self._timeout_s)
            finally:
                link.close()


def _by_slot(batch: Sequence[Command]) -> Mapping[int, Sequence[int]]:
    """Return the places of a batch's commands by slot; one without a key goes with the first."""
    slots = [slot_of_command(command) for command in batch]
    home = next((slot for slot in slots if slot is not None), NAMES_SLOT)
    found: dict[int, list[int]] = {}
    for place, slot in enumerate(slots):
        found.setdefault(home if slot is None else slot, []).append(place)
    return found


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Return all results; raise the first error when all have ended."""
    some = list(work)
    if len(some) == 1:
        return [await some[0]]
    found = await asyncio.gather(*some, return_exceptions=True)
    done: list[T] = []
    for each in found:
        if isinstance(each, BaseException):
            raise each
        done.append(each)
    return done


def _health_of(nodes: Mapping[str, StoreHealth], times_s: Sequence[float]) -> StoreHealth:
    """Return what all nodes together are: sums, or what the worst of them says.

    Raises:
        LinkLostError: None answers.
    """
    every = [node for node in nodes.values() if not node.silence]
    if not every:
        raise LinkLostError("; ".join(node.silence for node in nodes.values()))
    bounded = all(health.memory_max_bytes for health in every)
    return StoreHealth(
        policy=max((health.policy for health in every), key=NO_EVICTION.__ne__),
        memory_bytes=sum(health.memory_bytes for health in every),
        memory_max_bytes=sum(health.memory_max_bytes for health in every) if bounded else 0,
        full=any(health.full for health in every),
        append_only=all(health.append_only for health in every),
        write_failure=", ".join(health.write_failure for health in every if health.write_failure),
        replicas=min(health.replicas for health in every),
        replicas_wanted=every[0].replicas_wanted,
        nodes=nodes,
        clocks_apart_s=max(times_s) - min(times_s),
    )


# ----------------------------------------------------------------------------------------- Streams


BLOCKED_MAX = 32
"""Most streams, each of another slot, that are waited for on a link of their own."""
POLL_S = 0.1
"""Pause between two looks at more streams than that."""
POLL_STREAMS_PER_S = 20_000
"""Most streams that are looked at in a second, however many there are."""

_Waiting = tuple[RedisAddress, tuple[tuple[str, str], ...], int]
"""A read that waits: at which node, for which streams after which positions, how many entries."""
_Entries = Mapping[str, Sequence[StreamEntry]]


class _StreamReads:
    """Reads of streams. One command reads streams of one slot only, which is one table's.

    Of few tables each has a read that waits, on a link of its own. When one is answered, the
    others go on waiting: whoever asks next, after the same positions, finds them again, so no
    link is given up with each answer. Of many tables all streams of a node are looked at in one
    round trip, again and again.
    """

    def __init__(self, nodes: ClusterNodes, timeout_s: float) -> None:
        self._nodes = nodes
        self._timeout_s = timeout_s
        self._waiting: dict[_Waiting, asyncio.Task[_Entries]] = {}

    async def wait(self, after: Mapping[str, str], count: int, block_s: float) -> _Entries:
        """Return what there is first; nothing if there is nothing in time."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + block_s
        slots: dict[int, dict[str, str]] = {}
        for key, position in after.items():
            slots.setdefault(slot_of(key), {})[key] = position
        pause_s = max(POLL_S, len(slots) / POLL_STREAMS_PER_S)
        while True:
            left_s = until_s - loop.time()
            if left_s > 0 and len(slots) <= BLOCKED_MAX:
                found = await self._first(slots, count, left_s)
            else:
                found = await self._look(slots, count)
                if not found and left_s > 0:
                    await asyncio.sleep(min(pause_s, left_s))
            if found or loop.time() >= until_s:
                return found

    async def _look(self, slots: Mapping[int, Mapping[str, str]], count: int) -> _Entries:
        """Return what there is now, by one round trip to each node."""
        commands: dict[ClusterNode, list[Command]] = {}
        for slot, after in slots.items():
            node = await self._nodes.node_of(slot)
            commands.setdefault(node, []).append(stream_read(after, count, 0.0))

        async def read(node: ClusterNode, mine: Sequence[Command]) -> _Entries:
            async with self._nodes.watched(node), node.links.lend_for_stream() as link:
                replies = await link.exchange(mine, self._timeout_s)
                return _joined(map(stream_entries, replies))

        tasks = [asyncio.ensure_future(read(node, mine)) for node, mine in commands.items()]
        await asyncio.wait(tasks)
        return _heard(tasks)

    async def _first(
        self, slots: Mapping[int, Mapping[str, str]], count: int, block_s: float
    ) -> _Entries:
        """Return what comes first, by reads that wait."""
        own: dict[_Waiting, asyncio.Task[_Entries]] = {}
        for slot, after in slots.items():
            node = await self._nodes.node_of(slot)
            waiting = (node.address, tuple(after.items()), count)
            task = self._waiting.get(waiting)
            if task is None:
                task = asyncio.ensure_future(self._read(node, after, count, block_s))
                task.add_done_callback(_take_error)
                self._waiting[waiting] = task
            own[waiting] = task
        done, _ = await asyncio.wait(
            own.values(), timeout=block_s, return_when=asyncio.FIRST_COMPLETED
        )
        for key in [key for key, task in own.items() if task in done]:
            self._waiting.pop(key, None)
        return _heard(done)

    async def _read(
        self, node: ClusterNode, after: Mapping[str, str], count: int, block_s: float
    ) -> _Entries:
        async with self._nodes.watched(node), node.links.lend_for_stream() as link:
            command = stream_read(after, count, block_s)
            (reply,) = await link.exchange([command], block_s + self._timeout_s)
            return stream_entries(reply)

    async def close(self) -> None:
        """End all reads."""
        tasks = [*self._waiting.values()]
        self._waiting.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _heard(done: Iterable[asyncio.Task[_Entries]]) -> _Entries:
    """Return what some reads have brought; if none has, raise what went wrong with one.

    A node that is lost keeps nobody from hearing of tables of other nodes.
    """
    ended = list(done)
    found = _joined(task.result() for task in ended if task.exception() is None)
    if not found:
        for task in ended:
            task.result()
    return found


def _joined(some: Iterable[_Entries]) -> _Entries:
    return {key: entries for each in some for key, entries in each.items()}


def _take_error(task: asyncio.Task[_Entries]) -> None:
    """Take an error that perhaps nobody waits for any more."""
    if not task.cancelled():
        task.exception()
