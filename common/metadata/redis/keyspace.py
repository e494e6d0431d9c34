"""Redis as a keyspace: transactions, reads and health, each at the nodes that own the slots.

    RedisSession    one try of one transaction: WATCH and reads in one write, MULTI … EXEC in one
    RedisKeyspace   reads on all nodes at the same time, one round trip each

A node that answers that a key is elsewhere has done nothing, so the whole try is made again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from common.errors import BrokenValueError, MetadataError, UnknownOutcomeError
from common.metadata.codec import table
from common.metadata.executor import time_s
from common.metadata.keys import FULL, RESERVE, SHORT_STREAM_MAX, TABLES, TableKeys
from common.metadata.keyspace import (
    TIME,
    Command,
    KeyspaceSession,
    LinkLostError,
    Reply,
    StoreBusyError,
    StreamEntry,
    delete,
    get,
    hgetall,
    set_string,
)
from common.metadata.redis.acl import explained, missing_rights
from common.metadata.redis.address import parse_url_of_store
from common.metadata.redis.connection import (
    NO_MEMORY,
    TRANSIENT,
    Link,
    ReplyError,
    text_of,
)
from common.metadata.redis.nodes import Node, Nodes, nodes_of
from common.metadata.store_values import StoreHealth

# ------------------------------------------------------------------------------------------ Streams
# Reads of streams that wait. One command reads streams of one slot only, which is one table's.
#
# For few slots each has a read that waits, on a connection of its own. When one is answered, the
# others go on waiting: the next caller, after the same positions, finds them again, so no
# connection is given up with each answer. For many slots all streams of a node are looked at in one
# round trip, again and again. One Redis is one slot.


BLOCKED_MAX = 32
"""Most slots with a read that waits on a connection of its own."""
POLL_S = 0.1
"""Pause between two looks at more slots than that."""
POLL_STREAMS_PER_S = 20_000
"""Most streams that are looked at in a second, however many there are."""

_Key = tuple[Node, tuple[tuple[str, str], ...], int]
"""A read that waits: at which node, for which streams after which positions, how many entries."""
_Entries = Mapping[str, Sequence[StreamEntry]]


class StreamReads:
    """All reads of streams of a store."""

    def __init__(self, nodes: Nodes, timeout_s: float, translate: Callable[..., Exception]) -> None:
        """Read from `nodes`; `translate` makes our error of an answer and its command."""
        self._nodes = nodes
        self._timeout_s = timeout_s
        self._translate = translate
        self._waiting: dict[_Key, asyncio.Task[_Entries]] = {}

    async def wait(self, after: Mapping[str, str], count: int, block_s: float) -> _Entries:
        """Return the entries that come first; none if there are none in time."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + block_s
        slots: dict[int, dict[str, str]] = {}
        for key, position in after.items():
            slots.setdefault(self._nodes.slot_of(key), {})[key] = position
        pause_s = max(POLL_S, len(slots) / POLL_STREAMS_PER_S)
        while True:
            left_s = until_s - loop.time()
            if left_s > 0 and len(slots) <= BLOCKED_MAX:
                entries = await self._first(slots, count, left_s)
            else:
                entries = await self._look(slots, count)
                if not entries and left_s > 0:
                    await asyncio.sleep(min(pause_s, left_s))
            if entries or loop.time() >= until_s:
                return entries

    async def _look(self, slots: Mapping[int, Mapping[str, str]], count: int) -> _Entries:
        """Return the entries that are there, by one round trip to each node."""
        commands: dict[Node, list[Command]] = {}
        for slot, after in slots.items():
            node = await self._nodes.node_of(slot)
            commands.setdefault(node, []).append(_stream_read(after, count, 0.0))
        tasks = [
            asyncio.ensure_future(self._read(node, mine, 0.0)) for node, mine in commands.items()
        ]
        await asyncio.wait(tasks)
        return _results(tasks)

    async def _first(
        self, slots: Mapping[int, Mapping[str, str]], count: int, block_s: float
    ) -> _Entries:
        """Return the entries that come first, by reads that wait."""
        own: dict[_Key, asyncio.Task[_Entries]] = {}
        for slot, after in slots.items():
            node = await self._nodes.node_of(slot)
            key = (node, tuple(after.items()), count)
            task = self._waiting.get(key)
            if task is None:
                command = _stream_read(after, count, block_s)
                task = asyncio.ensure_future(self._read(node, [command], block_s))
                task.add_done_callback(_take_error)
                self._waiting[key] = task
            own[key] = task
        done, _ = await asyncio.wait(
            own.values(), timeout=block_s, return_when=asyncio.FIRST_COMPLETED
        )
        for key in [key for key, task in own.items() if task in done]:
            self._waiting.pop(key, None)
        return _results(done)

    async def _read(self, node: Node, commands: Sequence[Command], block_s: float) -> _Entries:
        try:
            async with node.lend(extra=True) as link:
                replies = await link.exchange(commands, block_s + self._timeout_s)
                return _joined(map(self._entries, replies))
        except LinkLostError as error:
            await self._nodes.doubt(node, error)
            raise

    def _entries(self, reply: Reply) -> _Entries:
        """Return the entries in an answer; raises one that is an error."""
        if isinstance(reply, ReplyError):
            raise self._translate(reply, ("XREAD", "one of several streams"))
        return {
            key.decode(): [_entry(*pair) for pair in pairs] for key, pairs in (reply or {}).items()
        }

    async def close(self) -> None:
        """End all reads."""
        tasks = [*self._waiting.values()]
        self._waiting.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _stream_read(after: Mapping[str, str], count: int, block_s: float) -> Command:
    # Nought would wait for ever.
    block = ("BLOCK", max(1, int(block_s * 1000))) if block_s > 0 else ()
    return ("XREAD", "COUNT", count, *block, "STREAMS", *after, *after.values())


def _entry(position: bytes, words: list[bytes]) -> StreamEntry:
    return position.decode(), dict(zip(words[::2], words[1::2], strict=True))


def _results(done: Iterable[asyncio.Task[_Entries]]) -> _Entries:
    """Return what some reads have brought; if none has, raise the error of one.

    A node that is lost does not silence tables of other nodes.
    """
    ended = list(done)
    entries = _joined(task.result() for task in ended if task.exception() is None)
    if not entries:
        for task in ended:
            task.result()
    return entries


def _joined(some: Iterable[_Entries]) -> _Entries:
    return {key: stream for entries in some for key, stream in entries.items()}


def _take_error(task: asyncio.Task[_Entries]) -> None:
    """Take an error that perhaps no caller waits for any more."""
    if not task.cancelled():
        task.exception()


# ----------------------------------------------------------------------------------- Memory reserve
# Memory set aside in Redis, and given back when it is full, so that a full store can be emptied.
#
# At `maxmemory` Redis refuses every MULTI, also one that only deletes or reads; single commands
# that delete are allowed. So a string of nothing is kept, and a client that is refused deletes it:
# then reads, commits, releases and the collector go on. A key shows to all that the store was full:
# adds and other changes that let it grow wait until it has room for a new reserve and as much
# again.
#
# Nothing is remembered here: every process does the same. Each key has the tags of its node. The
# node has the key with the first tag. What it holds under the other tags came from another node of
# a cluster, and is deleted.


SHARE_MAX = 16
"""The reserve is at most such a part of `maxmemory`, so that a small store has room for tables."""

Send = Callable[[list[Command]], Awaitable[list[Reply]]]
"""Sends single commands and returns the answers, errors among them as values."""

_WRITES = {
    "append-only file": "aof_last_write_status",
    "snapshot": "rdb_last_bgsave_status",
}
"""What is written to disk → what INFO calls its state."""


def questions(tag: str) -> list[Command]:
    """Return what `health_of` needs to know of a Redis."""
    return [("INFO",), ("EXISTS", FULL + tag)]


def health_of(info: Reply, full: Reply, replicas_wanted: int = 0) -> StoreHealth:
    """Return what a Redis reports of itself, by its answers to `questions`."""
    if isinstance(info, ReplyError):
        return StoreHealth(full=full == 1)
    fields = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    failures = [
        f"cannot write its {name}"
        for name, field in _WRITES.items()
        if fields.get(field, "ok") != "ok"
    ]
    return StoreHealth(
        policy=fields.get("maxmemory_policy", StoreHealth().policy),
        memory_bytes=int(fields.get("used_memory", 0)),
        memory_max_bytes=int(fields.get("maxmemory", 0)),
        full=full == 1,
        append_only=fields.get("aof_enabled", "1") == "1",
        write_failure=", ".join(failures),
        replicas=int(fields.get("connected_slaves", 0)),
        replicas_wanted=replicas_wanted,
    )


async def keep_reserve(send: Send, tags: Sequence[str], size_max_bytes: int) -> None:
    """Set at most this memory aside if there is room for it twice; then adds go on, too."""
    reserve, full = RESERVE + tags[0], FULL + tags[0]
    strays = [delete(RESERVE + tag, FULL + tag) for tag in tags[1:]]
    info, is_full, present, *_ = await send([*questions(tags[0]), ("STRLEN", reserve), *strays])
    if isinstance(present, ReplyError):
        return  # It starts, or has its keys elsewhere by now: the next round keeps it.
    health = health_of(info, is_full)
    wanted = min(size_max_bytes, health.memory_max_bytes // SHARE_MAX)
    if not wanted:
        if present or health.full:
            await send([delete(reserve, full)])
        return
    if present == wanted and not health.full:
        return
    room = health.memory_max_bytes - health.memory_bytes + present
    if room >= 2 * wanted:
        # The old one goes first: it may be larger. The key is the last to go, so that no change
        # grows into what is about to be set aside.
        fill: Command = ("SETRANGE", reserve, wanted - 1, b"\0")
        await send([delete(reserve), fill, delete(full)])


async def give_back(send: Send, tag: str, table_ids: Iterable[str]) -> None:
    """Make room in a Redis that is full: shorten streams of its tables, then drop the reserve."""
    trims = [
        ("XTRIM", stream, "MAXLEN", "~", SHORT_STREAM_MAX)
        for keys in map(TableKeys, table_ids)
        for stream in (keys.history, keys.changes)
    ]
    await send([*trims, delete(RESERVE + tag), set_string(FULL + tag, 1)])


def ids_of_names(names: Reply) -> list[str]:
    """Return the ids of tables in the answer to a read of all names."""
    if isinstance(names, ReplyError):
        return []
    return [table.unpack_name(name, entry).id for name, entry in names.items()]


# ----------------------------------------------------------------------------------------- Keyspace


UNWATCH: Command = ("UNWATCH",)
MULTI: Command = ("MULTI",)
EXEC: Command = ("EXEC",)
OTHER_TYPE = "WRONGTYPE"
"""Code of a key that holds a hash where a string is read, and so on."""
DISCARDED = "EXECABORT Transaction discarded because of: "
"""What precedes the reason if only `EXEC` is refused."""
KEYLESS = frozenset({"TIME", "SCAN", "INFO", "DBSIZE", "PING"})
"""Commands of the store that name no key. They go to the node of the table names."""
IS_FULL = get(FULL)
REDIRECTS_MAX = 4
"""Most times that one read follows a new slot map at once; after that its caller pauses."""

T = TypeVar("T")
_Part = tuple[int, Sequence[int]]
"""Number of a batch, and the indexes in it of what has one slot."""


# ----------------------------------------------------------------------------------------- Session


class RedisSession:
    """One try of one transaction. What it watches and writes has one slot."""

    def __init__(
        self, nodes: Nodes, stack: AsyncExitStack, timeout_s: float, wait_replicas: int
    ) -> None:
        """Touch no node; links that are lent go back with `stack`."""
        self._nodes = nodes
        self._stack = stack
        self._timeout_s = timeout_s
        self._wait_replicas = wait_replicas
        self._links: dict[Node, Link] = {}
        self._watching: Link | None = None
        self._watched: int | None = None
        """The slot of what it watches."""
        self._home: int | None = None
        """The slot whose node gets the commands without a key."""
        self.at: Node | None = None
        """The node of the transaction."""

    async def look(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        """Watch and read in one round trip; then read what other nodes have."""
        node = self._nodes.only
        if node is not None:
            return await self._ask(node, watch, reads)
        slots = [None if read == IS_FULL else _slot_of(self._nodes, read) for read in reads]
        if watch:
            (slot,) = {*map(self._nodes.slot_of, watch)}
            assert self._watched in {None, slot}, f"a transaction watches two slots: {watch}"
            self._watched = self._home = slot
        elif self._home is None:
            keyed = (slot for slot in slots if slot is not None)
            self._home = next(keyed, self._nodes.slot_of(TABLES))
        home = await self._nodes.node_of(self._home)
        owners = [
            home if slot in {None, self._home} else await self._nodes.node_of(slot)
            for slot in slots
        ]
        replies: dict[int, Reply] = {}
        # The home first: what other nodes answer must not be older than the watch.
        for node in dict.fromkeys((home, *owners)):
            mine = [index for index, owner in enumerate(owners) if owner is node]
            watched = watch if node is home else ()
            if mine or watched:
                own = [_tagged(reads[index], node) for index in mine]
                answers = await self._ask(node, watched, own)
                replies |= dict(zip(mine, answers, strict=True))
        return [replies[index] for index in range(len(reads))]

    async def _ask(self, node: Node, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        """Watch and read at one node: Redis executes the commands in this order."""
        commands = [("WATCH", *watch), *reads] if watch else list(reads)
        try:
            link = await self._link(node)
            if watch:
                self._watching = link
            replies = await link.exchange(commands, self._timeout_s)
            for command, reply in zip(commands, replies, strict=True):
                if isinstance(reply, ReplyError):
                    raise translate_errors(reply, command)
        except LinkLostError as error:
            await self._nodes.doubt(node, error)
            raise
        return replies[1:] if watch else replies

    async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
        """Send MULTI … EXEC to the node of the slot, and wait for its replicas if asked."""
        node = self._nodes.only
        if node is None:
            (slot,) = {self._nodes.slot_of(str(key)) for effect in effects for key in _keys(effect)}
            assert self._watched in {None, slot}, f"a transaction writes another slot: {effects}"
            node = await self._nodes.node_of(slot)
        try:
            link = await self._link(node)
            assert self._watching in {None, link}, "the node of the slot has changed"
            return await self._execute(link, effects, durable=durable)
        except LinkLostError as error:
            await self._nodes.doubt(node, error)
            raise

    async def _execute(self, link: Link, effects: Sequence[Command], *, durable: bool) -> bool:
        wait = durable and self._wait_replicas > 0
        commands = [MULTI, *effects, EXEC]
        if wait:
            commands.append(("WAIT", self._wait_replicas, int(self._timeout_s * 1000)))
        try:
            replies = await link.exchange(commands, self._timeout_s * (1 + wait))
        except LinkLostError as error:
            raise LinkLostError(str(error), sent=True) from error
        self._watching = None
        executed = replies[len(effects) + 1]
        if isinstance(executed, ReplyError):
            raise translate_errors(
                next(reply for reply in replies if isinstance(reply, ReplyError))
            )
        if executed is None:
            return False
        for effect, reply in zip(effects, executed, strict=True):
            if isinstance(reply, ReplyError):
                # Redis has executed the others: what the key holds is not what any change left.
                raise UnknownOutcomeError(
                    f"{effect[1]!s}: {effect[0]!s} is refused after other writes of the change"
                    f" ({text_of(reply)}); run `neve fsck`"
                )
        if wait and replies[-1] < self._wait_replicas:
            reason = f"{replies[-1]} of {self._wait_replicas} replicas have the change"
            raise LinkLostError(reason, sent=True)
        return True

    async def leave(self) -> None:
        """Watch no key any more."""
        if self._watching is not None and self._watching.is_connected:
            await self._watching.exchange([UNWATCH], self._timeout_s)

    async def _link(self, node: Node) -> Link:
        """Return the link to a node. A second one waits for no permit: others wait for ours."""
        link = self._links.get(node)
        if link is None:
            self.at = self.at or node
            lent = node.lend(extra=bool(self._links))
            link = self._links[node] = await self._stack.enter_async_context(lent)
        return link


def _keys(effect: Command) -> Sequence[object]:
    return effect[1:] if effect[0] == "DEL" else effect[1:2]


def _slot_of(nodes: Nodes, command: Command) -> int | None:
    """Return the slot of the first key of a command; None: it has no key."""
    return None if command[0] in KEYLESS else nodes.slot_of(str(command[1]))


def _tagged(command: Command, node: Node) -> Command:
    """Return a read of whether the store is full as one of whether a node is full."""
    return get(FULL + node.tags[0]) if command == IS_FULL else command


# ---------------------------------------------------------------------------------------- Keyspace


class RedisKeyspace:
    """One Redis, or all nodes of a Redis Cluster. A table is on one node, with all its keys."""

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
            url: Any form of `store.url`.
            connections_max: Most links to one node for reads and changes; streams have their own.
            timeout_s: Longest wait for one answer.
            wait_replicas: Replicas of the node that must have a durable change.
            reserve_bytes: Memory to set aside in each node, if its memory is bounded.
        """
        self._nodes = nodes_of(parse_url_of_store(url), connections_max, timeout_s)
        self._streams = StreamReads(self._nodes, timeout_s, translate_errors)
        self._timeout_s = timeout_s
        self._wait_replicas = wait_replicas
        self._reserve_bytes = reserve_bytes

    @asynccontextmanager
    async def session(self) -> AsyncIterator[KeyspaceSession]:
        """Return a session on connections of its own."""
        async with AsyncExitStack() as stack:
            session = RedisSession(self._nodes, stack, self._timeout_s, self._wait_replicas)
            try:
                yield session
            except StoreBusyError as error:
                if session.at is not None:
                    await self._make_room(session.at, error)
                raise
            await session.leave()

    async def fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read batches, each at one moment; one round trip for each node, all at once."""
        if not batches:
            return []
        if self._nodes.only is not None:
            return await self._read(self._nodes.only, batches)
        if len(batches) == 1 and batches[0][0][0] == "SCAN":
            return [[await self._scan(batches[0][0])]]
        for redirects in range(REDIRECTS_MAX):
            try:
                return await self._read_slots(batches)
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
        """Return what the nodes report of themselves; of a cluster, one may be silent."""
        if self._nodes.only is not None:
            return (await self._health_of(self._nodes.only))[0]
        nodes = await self._nodes.every()
        reports = await _all(self._health_or_silence(node) for node in nodes)
        by_address = {
            str(node.address): health for node, (health, _) in zip(nodes, reports, strict=True)
        }
        if all(health.silence for health in by_address.values()):
            raise LinkLostError("; ".join(health.silence for health in by_address.values()))
        times_s = [now_s for _, now_s in reports if now_s is not None]
        return StoreHealth.of_nodes(by_address, max(times_s) - min(times_s))

    async def _health_or_silence(self, node: Node) -> tuple[StoreHealth, float | None]:
        try:
            return await self._health_of(node)
        except LinkLostError as error:
            return StoreHealth(silence=str(error)), None

    async def _health_of(self, node: Node) -> tuple[StoreHealth, float]:
        """Return what a node reports of itself, and its time."""
        now, info, full = await self._send(node, [TIME, *questions(node.tags[0])])
        health = health_of(info, full, self._wait_replicas)
        unused = () if self._wait_replicas else ("wait",)
        if self._nodes.only is not None:
            unused = (*unused, "cluster|slots")
        async with self._at(node), node.lend(extra=True) as link:
            lacks = await missing_rights(link, self._timeout_s, unused=unused)
        return replace(health, lacks=lacks), 0.0 if isinstance(now, ReplyError) else time_s(now)

    async def keep_reserve(self) -> None:
        """Set memory aside in each node, or give up what is no longer wanted."""
        await _all(
            keep_reserve(partial(self._send, node), node.tags, self._reserve_bytes)
            for node in await self._nodes.every()
        )

    async def close(self) -> None:
        """Close all connections that are not in use."""
        await self._streams.close()
        await self._nodes.close_idle()

    async def _read_slots(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read batches at the nodes that own their slots."""
        replies: list[list[Reply]] = [[None] * len(batch) for batch in batches]
        parts: dict[Node, list[_Part]] = {}
        for number, batch in enumerate(batches):
            for slot, indexes in self._by_slot(batch).items():
                node = await self._nodes.node_of(slot)
                parts.setdefault(node, []).append((number, indexes))

        async def read(node: Node, mine: list[_Part]) -> None:
            own = [[batches[number][index] for index in indexes] for number, indexes in mine]
            answers = await self._read(node, own)
            for (number, indexes), batch in zip(mine, answers, strict=True):
                for index, reply in zip(indexes, batch, strict=True):
                    replies[number][index] = reply

        await _all(read(node, mine) for node, mine in parts.items())
        return replies

    def _by_slot(self, batch: Sequence[Command]) -> Mapping[int, Sequence[int]]:
        """Return the indexes of a batch's commands by slot; one without a key follows the first."""
        slots = [_slot_of(self._nodes, command) for command in batch]
        home = next((slot for slot in slots if slot is not None), self._nodes.slot_of(TABLES))
        indexes: dict[int, list[int]] = {}
        for index, slot in enumerate(slots):
            indexes.setdefault(home if slot is None else slot, []).append(index)
        return indexes

    async def _read(self, node: Node, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read batches at one node in one round trip."""
        try:
            async with self._at(node):
                async with node.lend() as link:
                    replies = await link.exchange(_packed(batches), self._timeout_s)
                return _unpacked(batches, replies)
        except StoreBusyError as error:
            await self._make_room(node, error)
            raise

    async def _scan(self, command: Command) -> Reply:
        """Walk over the keys of one node after the other; the cursor has the number of the node."""
        nodes = await self._nodes.every()
        inner, number = divmod(int(command[1]), len(nodes))
        (((cursor, keys),),) = await self._read(nodes[number], [[("SCAN", inner, *command[2:])]])
        if int(cursor):
            return [b"%d" % (int(cursor) * len(nodes) + number), keys]
        return [b"%d" % ((number + 1) % len(nodes)), keys]

    async def _make_room(self, node: Node, error: StoreBusyError) -> None:
        """Give the memory that is set aside back if a node is full."""
        if str(error).startswith(NO_MEMORY):
            slot_of, node_of = self._nodes.slot_of, self._nodes.node_of
            (names,) = await self._send(await node_of(slot_of(TABLES)), [hgetall(TABLES)])
            ids = ids_of_names(names)
            here = [id_ for id_ in ids if await node_of(slot_of(TableKeys(id_).table)) is node]
            await give_back(partial(self._send, node), node.tags[0], here)

    async def _send(self, node: Node, commands: list[Command]) -> list[Reply]:
        """Send single commands without a permit, for which callers that need room may wait."""
        async with self._at(node), node.lend(extra=True, fresh=True) as link:
            return await link.exchange(commands, self._timeout_s)

    @asynccontextmanager
    async def _at(self, node: Node) -> AsyncIterator[None]:
        try:
            yield
        except LinkLostError as error:
            await self._nodes.doubt(node, error)
            raise


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Return all results; raise the first error when all have ended."""
    some = list(work)
    if len(some) == 1:
        return [await some[0]]
    results = await asyncio.gather(*some, return_exceptions=True)
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done


# ------------------------------------------------------------------------------ Words and answers


def _packed(batches: Sequence[Sequence[Command]]) -> list[Command]:
    """Return the commands of batches; each batch is read at one moment."""
    commands: list[Command] = []
    for batch in batches:
        commands += batch if len(batch) == 1 else (MULTI, *batch, EXEC)
    return commands


def _unpacked(batches: Sequence[Sequence[Command]], replies: list[Reply]) -> list[list[Reply]]:
    """Return the answers to batches; raises the first error among them."""
    results: list[list[Reply]] = []
    start = 0
    for batch in batches:
        length = 1 if len(batch) == 1 else len(batch) + 2
        results.append(_answers(batch, replies[start : start + length]))
        start += length
    return results


def _answers(batch: Sequence[Command], replies: list[Reply]) -> list[Reply]:
    """Return the answers of one batch."""
    if len(replies) > 1:
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise translate_errors(reply)
    answers: list[Reply] = replies if len(replies) == 1 else replies[-1]
    for command, reply in zip(batch, answers, strict=True):
        if isinstance(reply, ReplyError):
            raise translate_errors(reply, command)
    return answers


def translate_errors(error: ReplyError, command: Command = ()) -> Exception:
    """Return our error for an error answer of Redis; nothing was written.

    Args:
        error: The answer.
        command: The command that it answers, if that is known.
    """
    text = text_of(error).removeprefix(DISCARDED)
    if text.startswith(TRANSIENT):
        return StoreBusyError(text)
    if text.startswith(OTHER_TYPE) and len(command) > 1:
        # Of this key alone: others can be read.
        return BrokenValueError(
            f"{command[1]!s}: the stored value is of another type than {command[0]!s} reads"
            f" ({text}); run `neve fsck`"
        )
    return MetadataError(f"Redis refuses: {explained(text)}")
