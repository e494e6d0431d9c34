"""Redis as a keyspace: transactions, reads and health, each at the nodes that own the slots.

    StreamReads     reads of streams that wait
    RedisSession    one try of one transaction: WATCH and reads in one write, MULTI … EXEC in one
    RedisKeyspace   reads on all nodes at the same time, one round trip each

A node that answers that a key is elsewhere has done nothing, so the whole try is made again.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from common.errors import BrokenValueError, MetadataError, UnknownOutcomeError
from common.metadata.codec import table
from common.metadata.executor import time_s
from common.metadata.keys import FULL, RESERVE, SHORT_STREAM_MAX, TABLES, TableKeys
from common.metadata.keyspace import (
    RIGHT_QUESTIONS,
    STORE_KEYS,
    TIME,
    TRANSACTION_QUESTIONS,
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
from common.metadata.redis.connection import (
    NO_MEMORY,
    TRANSIENT,
    Link,
    ReplyError,
    text_of,
)
from common.metadata.redis.nodes import Node, Nodes, nodes_of
from common.metadata.store_values import StoreHealth

UNWATCH: Command = ("UNWATCH",)
MULTI: Command = ("MULTI",)
EXEC: Command = ("EXEC",)
INFO: Command = ("INFO",)
APPEND_SYNC: Command = ("CONFIG", "GET", "appendfsync")
"""No user needs this right: it shows passwords, too. Without it, durability is not named."""
DENIED = "NOPERM"
_OF_KEY = re.compile(r"access (a|one of the) keys?\b")
OTHER_TYPE = "WRONGTYPE"
"""Code of a key that holds a hash where a string is read, and so on."""
DISCARDED = "EXECABORT Transaction discarded because of: "
"""What precedes the reason if only `EXEC` is refused."""
KEYLESS = frozenset({"TIME", "SCAN", "INFO", "DBSIZE", "PING"})
"""Commands of the store that name no key. They go to the node of the table names."""
IS_FULL = get(FULL)

# ------------------------------------------------------------------------------------------ Streams

BLOCKED_MAX = 32
"""Most slots with a read that waits on a connection of its own."""
POLL_S = 0.1
"""Pause between two looks at the streams of a node, if there are more slots than that."""
POLL_STREAMS_PER_S = 20_000
"""Most streams that are looked at in a second, however many there are."""

_XREADS: list[Command] = [("XREAD", "one of several streams")]
_Entries = Mapping[str, Sequence[StreamEntry]]


class StreamReads:
    """All reads of streams of a store.

    One command reads streams of one slot only, which is one table's; one Redis is one slot. For few
    slots each has a read that waits. For many, all streams of a node are looked at in one round
    trip, again and again. When one read has ended, the others go on: the next caller, after the
    same positions, finds them again, so no connection is given up with each answer.
    """

    def __init__(self, nodes: Nodes, timeout_s: float) -> None:
        """Read from `nodes`; an answer comes within `timeout_s`."""
        self._nodes = nodes
        self._timeout_s = timeout_s
        self._reads: dict[object, asyncio.Task[_Entries]] = {}

    async def wait(self, after: Mapping[str, str], count: int, block_s: float) -> _Entries:
        """Return the entries that come first; none if there are none in time."""
        slots: dict[int, dict[str, str]] = {}
        for key, position in after.items():
            slots.setdefault(self._nodes.slot_of(key), {})[key] = position
        pause_s = max(POLL_S, len(slots) / POLL_STREAMS_PER_S)
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + block_s
        while True:
            left_s = max(0.0, until_s - now_s())
            reads: dict[tuple[Node, int], list[Command]] = {}
            for slot, streams in slots.items():
                place = await self._nodes.node_of(slot), slot if len(slots) <= BLOCKED_MAX else -1
                reads.setdefault(place, []).append((*streams, *streams.values()))
            tasks: list[asyncio.Task[_Entries]] = []
            for (node, _), some in reads.items():
                name = (node, *some, count, left_s > 0)
                if name not in self._reads:
                    read = self._read(node, some, count, left_s, pause_s)
                    self._reads[name] = asyncio.ensure_future(read)
                    self._reads[name].add_done_callback(_take_error)
                tasks.append(self._reads[name])
            when = asyncio.FIRST_COMPLETED if left_s else asyncio.ALL_COMPLETED
            done, _ = await asyncio.wait(tasks, timeout=left_s or None, return_when=when)
            # What ends before the next call is kept for it, also if a lost node fails at once.
            self._reads = {name: task for name, task in self._reads.items() if not task.done()}
            # A node that is lost does not silence tables of other nodes.
            entries = _joined(task.result() for task in done if task.exception() is None)
            entries = entries or _joined(task.result() for task in done)
            if entries or now_s() >= until_s:
                return entries

    async def _read(
        self, node: Node, slots: Sequence[Command], count: int, block_s: float, pause_s: float
    ) -> _Entries:
        """Return the entries that come first at one node: Redis waits, or this looks again."""
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + block_s
        wait_s = block_s if len(slots) == 1 else 0.0
        # Nought would wait for ever.
        block = ("BLOCK", max(1, int(wait_s * 1000))) if wait_s else ()
        commands: list[Command] = [
            ("XREAD", "COUNT", count, *block, "STREAMS", *streams) for streams in slots
        ]
        while True:
            async with self._nodes.heed(node), node.lend(extra=True) as link:
                replies = await link.exchange(commands, wait_s + self._timeout_s)
                entries = _joined(map(_entries, _checked(_XREADS * len(commands), replies)))
            if entries or wait_s or now_s() >= until_s:
                return entries
            await asyncio.sleep(min(pause_s, until_s - now_s()))

    async def close(self) -> None:
        """End all reads."""
        tasks = [*self._reads.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _take_error(task: asyncio.Task[_Entries]) -> None:
    """Take an error that perhaps no caller waits for any more."""
    if not task.cancelled():
        task.exception()


def _entries(reply: Reply) -> _Entries:
    """Return the entries in an answer."""
    return {
        key.decode(): [
            (position.decode(), dict(zip(words[::2], words[1::2], strict=True)))
            for position, words in pairs
        ]
        for key, pairs in (reply or {}).items()
    }


def _joined(some: Iterable[_Entries]) -> _Entries:
    return {key: stream for entries in some for key, stream in entries.items()}


# ----------------------------------------------------------------------------------- Memory reserve
# At `maxmemory` Redis refuses every MULTI, also one that only deletes or reads; single commands
# that delete are allowed. So a string of nothing is kept, and a client that is refused deletes it:
# then reads, commits, releases and the collector go on. A key shows to all that the store was full:
# changes that let it grow wait until it has room for a new reserve and as much again. Each key has
# the first tag of its node. What lies under other tags came from another node, and is deleted.

SHARE_MAX = 16
"""The reserve is at most such a part of `maxmemory`, so that a small store has room for tables."""

Send = Callable[[list[Command]], Awaitable[list[Reply]]]
"""Sends single commands and returns the answers, errors among them as values."""


def _health(replies: Sequence[Reply], replicas_wanted: int = 0) -> StoreHealth:
    """Return what a Redis reports of itself as answers to `INFO` and to whether it is full.

    A third answer, to `APPEND_SYNC`, may follow. It is an error if the user has no such right.
    """
    info, is_full, *more = replies
    answers = [reply for reply in more if not isinstance(reply, ReplyError)]
    config: Mapping[bytes, bytes] = answers[0] if answers else {}
    append_sync = config.get(b"appendfsync", b"").decode()
    return StoreHealth.of_info(
        b"" if isinstance(info, ReplyError) else info,
        full=is_full == 1,
        replicas_wanted=replicas_wanted,
        append_sync=append_sync if append_sync in {"no", "everysec", "always"} else "",
    )


async def keep_reserve(send: Send, tags: Sequence[str], size_max_bytes: int) -> None:
    """Set at most this memory aside if there is room for it twice; then adds go on, too."""
    reserve, full = RESERVE + tags[0], FULL + tags[0]
    strays = [delete(RESERVE + tag, FULL + tag) for tag in tags[1:]]
    info, is_full, present, *_ = await send([INFO, ("EXISTS", full), ("STRLEN", reserve), *strays])
    if isinstance(present, ReplyError):
        return  # It starts, or has its keys elsewhere by now: the next round keeps it.
    health = _health((info, is_full))
    wanted = min(size_max_bytes, health.memory_max_bytes // SHARE_MAX)
    room = health.memory_max_bytes - health.memory_bytes + present
    if not wanted and (present or health.full):
        await send([delete(reserve, full)])
    elif wanted and (present != wanted or health.full) and room >= 2 * wanted:
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


# ----------------------------------------------------------------------------------------- Session


def _slots(nodes: Nodes, commands: Iterable[Command], home: int | None = None) -> list[int]:
    """Return the slot of each command; one without a key has that of `home` or of the others."""
    slots = [
        None if command == IS_FULL or command[0] in KEYLESS else nodes.slot_of(str(command[1]))
        for command in commands
    ]
    if home is None:
        home = next((slot for slot in slots if slot is not None), nodes.slot_of(TABLES))
    return [home if slot is None else slot for slot in slots]


@dataclass(slots=True, eq=False)
class RedisSession:
    """One try of one transaction. What it watches and writes has one slot."""

    nodes: Nodes
    stack: AsyncExitStack
    """Gives links that are lent back."""
    timeout_s: float
    wait_replicas: int
    links: dict[Node, Link] = field(default_factory=dict)
    """The first is that to the node of the transaction."""
    watching: Link | None = None
    watched: int | None = None
    """The slot of what it watches."""
    home: int | None = None
    """The slot whose node gets the commands without a key."""

    async def look(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        """Watch and read in one round trip; then read what other nodes have."""
        node = self.nodes.only
        if node is not None:
            return await self._ask(node, watch, reads)
        if watch:
            (slot,) = {*map(self.nodes.slot_of, watch)}
            assert self.watched in {None, slot}, f"a transaction watches two slots: {watch}"
            self.watched = self.home = slot
        slots = _slots(self.nodes, reads, self.home)
        if self.home is None:
            self.home = slots[0]
        owners = [await self.nodes.node_of(slot) for slot in (self.home, *slots)]
        replies: list[Reply] = [None] * len(reads)
        # The home first: what other nodes answer must not be older than the watch.
        for node in dict.fromkeys(owners):
            mine = [index for index, owner in enumerate(owners[1:]) if owner is node]
            full = get(FULL + node.tags[0])
            own = [full if reads[index] == IS_FULL else reads[index] for index in mine]
            watched = watch if node is owners[0] else ()
            if own or watched:
                answers = await self._ask(node, watched, own)
                for index, answer in zip(mine, answers, strict=True):
                    replies[index] = answer
        return replies

    async def _ask(self, node: Node, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        """Watch and read at one node, in one round trip."""
        async with self.nodes.heed(node):
            link = await self._link(node)
            commands = [("WATCH", *watch), *reads] if watch else reads
            if watch:
                self.watching = link
            replies = _checked(commands, await link.exchange(commands, self.timeout_s))
        return replies[1:] if watch else replies

    async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
        """Send MULTI … EXEC to the node of the slot, and wait for its replicas if asked."""
        node = self.nodes.only
        if node is None:
            keys = (effect[1:] if effect[0] == "DEL" else effect[1:2] for effect in effects)
            (slot,) = {self.nodes.slot_of(str(key)) for some in keys for key in some}
            assert self.watched in {None, slot}, f"a transaction writes another slot: {effects}"
            node = await self.nodes.node_of(slot)
        wanted = self.wait_replicas if durable else 0
        wait: Command = ("WAIT", wanted, int(self.timeout_s * 1000))
        commands = [MULTI, *effects, EXEC, *[wait] * bool(wanted)]
        async with self.nodes.heed(node):
            link = await self._link(node)
            assert self.watching in {None, link}, "the node of the slot has changed"
            try:
                replies = await link.exchange(commands, self.timeout_s * (1 + bool(wanted)))
            except LinkLostError as error:
                raise LinkLostError(str(error), sent=True) from error
            self.watching = None
            is_executed = _is_executed(effects, replies)
            if is_executed and wanted and replies[-1] < wanted:
                # Perhaps no primary any more: `heed` looks for the one that is.
                reason = f"{replies[-1]} of {wanted} replicas have the change"
                raise LinkLostError(reason, sent=True)
        return is_executed

    async def _link(self, node: Node) -> Link:
        """Return the link to a node. A second one waits for no permit: others wait for ours."""
        link = self.links.get(node)
        if link is None:
            lent = node.lend(extra=bool(self.links))
            link = self.links[node] = await self.stack.enter_async_context(lent)
        return link


def _is_executed(effects: Sequence[Command], replies: Sequence[Reply]) -> bool:
    """Return whether MULTI … EXEC was executed; False: a watched key has changed."""
    executed = replies[len(effects) + 1]
    if isinstance(executed, ReplyError):
        raise translate_errors(next(reply for reply in replies if isinstance(reply, ReplyError)))
    for effect, reply in zip(effects, executed or (), strict=executed is not None):
        if isinstance(reply, ReplyError):
            # Redis has executed the others: what the key holds is not what any change left.
            raise UnknownOutcomeError(
                f"{effect[1]!s}: {effect[0]!s} is refused after other writes of the change"
                f" ({text_of(reply)}); run `neve fsck`"
            )
    return executed is not None


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
        append_sync: str = "",
    ) -> None:
        """Connect later; `StoreSettings` explains the limits, which are those of each node."""
        self._nodes = nodes_of(url, connections_max, timeout_s)
        self._streams = StreamReads(self._nodes, timeout_s)
        self._timeout_s, self._wait_replicas = timeout_s, wait_replicas
        self._reads_sync, self._append_sync = True, append_sync
        self._reserve_bytes = reserve_bytes

    @asynccontextmanager
    async def session(self) -> AsyncIterator[KeyspaceSession]:
        """Return a session on connections of its own."""
        async with AsyncExitStack() as stack:
            session = RedisSession(self._nodes, stack, self._timeout_s, self._wait_replicas)
            try:
                yield session
            except StoreBusyError as error:
                for node in [*session.links][:1]:
                    await self._make_room(node, error)
                raise
            if session.watching is not None and session.watching.is_connected:
                await session.watching.exchange([UNWATCH], self._timeout_s)

    async def fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read batches, each at one moment; one round trip for each node, all at once."""
        if not batches:
            return []
        if self._nodes.only is not None:
            return await self._read(self._nodes.only, batches)
        if len(batches) == 1 and batches[0][0][0] == "SCAN":
            return [[await self._scan(batches[0][0])]]
        try:
            return await self._read_slots(batches)
        except StoreBusyError as error:
            if not str(error).startswith("MOVED "):
                raise
        return await self._read_slots(batches)  # By a new slot map; then the caller pauses.

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
        by_address: dict[str, StoreHealth] = {}
        times_s: list[float] = []
        reports = await asyncio.gather(*map(self._health_of, nodes), return_exceptions=True)
        for node, report in zip(nodes, reports, strict=True):
            if isinstance(report, LinkLostError):
                by_address[str(node.address)] = StoreHealth(silence=str(report))
            elif isinstance(report, BaseException):
                raise report
            else:
                by_address[str(node.address)] = report[0]
                times_s.append(report[1])
        if not times_s:
            raise LinkLostError("; ".join(health.silence for health in by_address.values()))
        return StoreHealth.of_nodes(by_address, max(times_s) - min(times_s))

    async def _health_of(self, node: Node) -> tuple[StoreHealth, float]:
        """Return what a node reports of itself, and its time."""
        commands = [TIME, INFO, ("EXISTS", FULL + node.tags[0])]
        if self._reads_sync:
            commands.append(APPEND_SYNC)
        now, *replies = await self._send(node, commands)
        if self._reads_sync and isinstance(replies[-1], ReplyError):
            # Each refusal would be a line in the server's log of refused commands.
            self._reads_sync = text_of(replies[-1]).startswith(TRANSIENT)
        health = _health(replies, self._wait_replicas)
        unused = [] if self._wait_replicas else ["wait"]
        if self._nodes.only is not None:
            unused.append("cluster|slots")
        async with self._nodes.heed(node), node.lend(extra=True) as link:
            lacks = await missing_rights(link, self._timeout_s, unused)
        append_sync = health.append_sync or self._append_sync
        health = replace(health, lacks=lacks, append_sync=append_sync)
        return health, 0.0 if isinstance(now, ReplyError) else time_s(now)

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
        # Number of a batch and slot → indexes in the batch.
        parts: dict[Node, dict[tuple[int, int], list[int]]] = {}
        for number, batch in enumerate(batches):
            for index, slot in enumerate(_slots(self._nodes, batch)):
                owned = parts.setdefault(await self._nodes.node_of(slot), {})
                owned.setdefault((number, slot), []).append(index)

        async def read(node: Node, owned: Mapping[tuple[int, int], Sequence[int]]) -> None:
            some = [[batches[at][index] for index in part] for (at, _), part in owned.items()]
            answers = await self._read(node, some)
            for ((number, _), part), answer in zip(owned.items(), answers, strict=True):
                for index, reply in zip(part, answer, strict=True):
                    replies[number][index] = reply

        await _all(read(node, owned) for node, owned in parts.items())
        return replies

    async def _read(self, node: Node, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read batches at one node in one round trip."""
        commands: list[Command] = []
        for batch in batches:  # Each is read at one moment.
            commands += batch if len(batch) == 1 else (MULTI, *batch, EXEC)
        try:
            async with self._nodes.heed(node):
                async with node.lend() as link:
                    replies = await link.exchange(commands, self._timeout_s)
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
        if not str(error).startswith(NO_MEMORY):
            return
        slot_of, node_of = self._nodes.slot_of, self._nodes.node_of
        (names,) = await self._send(await node_of(slot_of(TABLES)), [hgetall(TABLES)])
        entries = {} if isinstance(names, ReplyError) else names
        ids = [table.unpack_name(name, entry).id for name, entry in entries.items()]
        here = [id_ for id_ in ids if await node_of(slot_of(TableKeys(id_).table)) is node]
        await give_back(partial(self._send, node), node.tags[0], here)

    async def _send(self, node: Node, commands: list[Command]) -> list[Reply]:
        """Send single commands without a permit, for which callers that need room may wait."""
        async with self._nodes.heed(node), node.lend(extra=True, fresh=True) as link:
            return await link.exchange(commands, self._timeout_s)


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """Raise the first error when all have ended."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


# ------------------------------------------------------------------------------------------- Rights


async def missing_rights(link: Link, timeout_s: float, unused: Sequence[str]) -> tuple[str, ...]:
    """Return the rights of the store, but those unused, that a user lacks, as ACL rules name them.

    Redis decides when a command enters a transaction. This one is never executed: the link is
    closed. Keys that may not be reached are `~neve:*`.
    """
    try:
        opened = await link.exchange(list(TRANSACTION_QUESTIONS.values()), timeout_s)
        lacks = _denied(TRANSACTION_QUESTIONS, opened)
        if not isinstance(opened[-1], ReplyError):
            lacks += _denied(
                RIGHT_QUESTIONS, await link.exchange(list(RIGHT_QUESTIONS.values()), timeout_s)
            )
    finally:
        await link.disconnect()
    return tuple(right for right in dict.fromkeys(lacks) if right not in unused)


def _denied(asked: Mapping[str, Command], answers: Sequence[Reply]) -> list[str]:
    # `EXEC` is refused in a longer sentence, which gives this reason.
    texts = [text_of(reply) if isinstance(reply, ReplyError) else "" for reply in answers]
    denied = [(right, text) for right, text in zip(asked, texts, strict=True) if DENIED in text]
    return [f"~{STORE_KEYS}" if _OF_KEY.search(text) else right for right, text in denied]


# ------------------------------------------------------------------------------------------ Answers


def _unpacked(batches: Sequence[Sequence[Command]], replies: list[Reply]) -> list[list[Reply]]:
    """Return the answers to batches; raises the first error among them."""
    if len(replies) == len(batches):  # Of one command each.
        return [[reply] for reply in _checked([batch[0] for batch in batches], replies)]
    results: list[list[Reply]] = []
    start = 0
    for batch in batches:
        end = start + (1 if len(batch) == 1 else len(batch) + 2)
        if len(batch) > 1:  # What precedes the answers is only of interest if it is an error.
            _checked(((),) * (end - start), replies[start:end])
        results.append(_checked(batch, replies[start:end] if len(batch) == 1 else replies[end - 1]))
        start = end
    return results


def _checked(commands: Sequence[Command], replies: list[Reply]) -> list[Reply]:
    """Return answers; raises the first error among them."""
    for command, reply in zip(commands, replies, strict=True):
        if isinstance(reply, ReplyError):
            raise translate_errors(reply, command)
    return replies


def translate_errors(error: ReplyError, command: Command = ()) -> Exception:
    """Return our error for an answer of Redis, perhaps to a command; nothing was written."""
    text = text_of(error).removeprefix(DISCARDED)
    if text.startswith(TRANSIENT):
        return StoreBusyError(text)
    if text.startswith(OTHER_TYPE) and len(command) > 1:
        # Of this key alone: others can be read.
        return BrokenValueError(
            f"{command[1]!s}: the stored value is of another type than {command[0]!s} reads"
            f" ({text}); run `neve fsck`"
        )
    if text.startswith(DENIED):
        text += (
            "; `neve redis-acl` prints the rights that the user in store.url needs, and"
            " `ACL SETUSER` gives them"
        )
    return MetadataError(f"Redis refuses: {text}")
