"""Redis as a keyspace: transactions, reads and health, each at the nodes that own the slots.

    StreamReads     reads of streams that wait
    RedisSession    one try of one transaction: WATCH and reads in one write, MULTI … EXEC in one
    RedisKeyspace   reads on all nodes at the same time, one round trip each

A node that answers that a key is elsewhere has done nothing, so the whole try is made again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

from common.config import secret_of
from common.errors import BrokenValueError, MetadataError, UnknownOutcomeError
from common.metadata.codec import table
from common.metadata.executor import give_back, keep_reserve, time_s
from common.metadata.keys import FULL, TABLES, TableKeys
from common.metadata.keyspace import (
    DENIED,
    INFO,
    TIME,
    Command,
    KeyspaceSession,
    LinkLostError,
    Reply,
    StoreBusyError,
    StreamEntry,
    get,
    hgetall,
    missing_rights,
)
from common.metadata.redis.connection import NO_MEMORY, TRANSIENT, Link, Node, Nodes, ReplyError
from common.metadata.store_values import StoreHealth
from common.settings import StoreSettings

MULTI: Command = ("MULTI",)
EXEC: Command = ("EXEC",)
APPEND_SYNC: Command = ("CONFIG", "GET", "appendfsync")
"""No user needs this right: it shows passwords, too. Without it, durability is not named."""
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

    def __init__(self, nodes: Nodes) -> None:
        """Read from `nodes`."""
        self._nodes = nodes
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
                    read = asyncio.ensure_future(self._read(node, some, count, left_s, pause_s))
                    # Perhaps no caller waits for its error any more.
                    read.add_done_callback(lambda task: task.cancelled() or task.exception())
                    self._reads[name] = read
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
            async with node.lend(extra=True) as link:
                replies = await link.exchange(commands, wait_s)
                entries = _joined(map(_entries, _checked(_XREADS * len(commands), replies)))
            if entries or wait_s or now_s() >= until_s:
                return entries
            await asyncio.sleep(min(pause_s, until_s - now_s()))

    async def close(self) -> None:
        """End all reads."""
        for task in self._reads.values():
            task.cancel()
        await asyncio.gather(*self._reads.values(), return_exceptions=True)


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
        link = await self._link(node)
        if not watch:
            return _checked(reads, await link.exchange(reads))
        self.watching = link
        commands = [("WATCH", *watch), *reads]
        return _checked(commands, await link.exchange(commands))[1:]

    async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
        """Send MULTI … EXEC to the node of the slot, and wait for its replicas if asked."""
        node = self.nodes.only
        if node is None:
            keys = (effect[1:] if effect[0] == "DEL" else effect[1:2] for effect in effects)
            (slot,) = {self.nodes.slot_of(str(key)) for some in keys for key in some}
            assert self.watched in {None, slot}, f"a transaction writes another slot: {effects}"
            node = await self.nodes.node_of(slot)
        link = await self._link(node)
        assert self.watching in {None, link}, "the node of the slot has changed"
        wanted = self.wait_replicas if durable else 0
        wait_s = link.timeout_s if wanted else 0.0
        wait: Command = ("WAIT", wanted, int(wait_s * 1000))
        try:
            replies = await link.exchange([MULTI, *effects, EXEC, *[wait] * bool(wanted)], wait_s)
        except LinkLostError as error:
            raise LinkLostError(str(error), sent=True) from error
        self.watching = None
        is_executed = _is_executed(effects, replies)
        if is_executed and wanted and replies[-1] < wanted:
            # Perhaps no primary any more: the next link looks for the one that is.
            raise LinkLostError(f"{replies[-1]} of {wanted} replicas have the change", sent=True)
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
                f" ({reply}); run `neve fsck`"
            )
    return executed is not None


# ---------------------------------------------------------------------------------------- Keyspace


class RedisKeyspace:
    """One Redis, or all nodes of a Redis Cluster. A table is on one node, with all its keys."""

    def __init__(self, settings: StoreSettings) -> None:
        """Connect later; the limits are those of each node. Raises `ConfigError`."""
        url = secret_of("store.url", settings.url, settings.url_file)
        self._nodes = Nodes.of(url, settings.connections_max, settings.timeout_s)
        self._streams = StreamReads(self._nodes)
        self._settings = settings
        self._reads_sync = True

    @asynccontextmanager
    async def session(self) -> AsyncIterator[KeyspaceSession]:
        """Return a session on connections of its own."""
        async with AsyncExitStack() as stack:
            session = RedisSession(self._nodes, stack, self._settings.wait_replicas)
            try:
                yield session
            except StoreBusyError as error:
                for node in [*session.links][:1]:
                    await self._make_room(node, error)
                raise
            if session.watching is not None and session.watching.is_connected:
                await session.watching.exchange([("UNWATCH",)])

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
        nodes = await self._nodes.every()
        reports = await asyncio.gather(*map(self._health_of, nodes))
        times_s = [now_s for health, now_s in reports if not health.silence]
        if not times_s:
            raise LinkLostError("; ".join(health.silence for health, _ in reports))
        if self._nodes.only is not None:
            return reports[0][0]
        by_address = {str(node.address): own for node, (own, _) in zip(nodes, reports, strict=True)}
        return StoreHealth.of_nodes(by_address, max(times_s) - min(times_s))

    async def _health_of(self, node: Node) -> tuple[StoreHealth, float]:
        """Return what a node reports of itself, and its time."""
        replicas_wanted = self._settings.wait_replicas
        unused = [] if replicas_wanted else ["wait"]
        if self._nodes.only is not None:
            unused.append("cluster|slots")
        questions: list[Command] = [TIME, INFO, ("EXISTS", FULL + node.tags[0])]
        if self._reads_sync:
            questions.append(APPEND_SYNC)
        try:
            async with node.lend(extra=True, fresh=True) as link:
                now, info, is_full, *more = await link.exchange(questions)
                lacks = await missing_rights(link.exchange, unused)
                await link.disconnect()  # Its transaction is never executed.
        except LinkLostError as error:
            return StoreHealth(silence=str(error)), 0.0
        append_sync = self._settings.append_fsync
        for config in more:
            if isinstance(config, ReplyError):
                # Each refusal would be a line in the server's log of refused commands.
                self._reads_sync = str(config).startswith(TRANSIENT)
            else:
                append_sync = config.get(b"appendfsync", b"").decode() or append_sync
        health = StoreHealth.of_info(info, full=is_full == 1, replicas_wanted=replicas_wanted)
        health = replace(health, lacks=lacks, append_sync=append_sync)
        return health, 0.0 if isinstance(now, ReplyError) else time_s(now)

    async def keep_reserve(self) -> None:
        """Set memory aside in each node, or give up what is no longer wanted."""
        await _all(
            keep_reserve(node.send, node.tags, self._settings.reserve_bytes)
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
            async with node.lend() as link:
                return _unpacked(batches, await link.exchange(commands))
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
        (names,) = await (await node_of(slot_of(TABLES))).send([hgetall(TABLES)])
        entries = {} if isinstance(names, ReplyError) else names
        ids = [table.unpack_name(name, entry).id for name, entry in entries.items()]
        here = [id_ for id_ in ids if await node_of(slot_of(TableKeys(id_).table)) is node]
        await give_back(node.send, node.tags[0], here)


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """Raise the first error when all have ended."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


# ------------------------------------------------------------------------------------------ Answers


def _unpacked(batches: Sequence[Sequence[Command]], replies: list[Reply]) -> list[list[Reply]]:
    """Return the answers to batches; raises the first error among them."""
    results: list[list[Reply]] = []
    rest = iter(replies)
    for batch in batches:
        answer = [*islice(rest, 1 if len(batch) == 1 else len(batch) + 2)]
        if len(batch) > 1:  # What precedes the answers is only of interest if it is an error.
            answer = _checked([()] * len(answer), answer)[-1]
        results.append(_checked(batch, answer))
    return results


def _checked(commands: Sequence[Command], replies: list[Reply]) -> list[Reply]:
    """Return answers; raises the first error among them."""
    for command, reply in zip(commands, replies, strict=True):
        if isinstance(reply, ReplyError):
            raise translate_errors(reply, command)
    return replies


def translate_errors(error: ReplyError, command: Command = ()) -> Exception:
    """Return our error for an answer of Redis, perhaps to a command; nothing was written."""
    text = str(error).removeprefix(DISCARDED)
    if text.startswith(TRANSIENT):
        return StoreBusyError(text)
    if text.startswith("WRONGTYPE") and len(command) > 1:
        # This key alone holds a hash where a string is read, or so: others can be read.
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
