"""Redis as a keyspace: a bounded pool of links, WATCH with its reads in one round trip.

Memory is set aside in Redis and given back when it is full, so that a full store can be emptied.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from common.errors import MetadataError
from common.metadata.codec import table
from common.metadata.commands import Command, Reply, delete, hgetall, set_string
from common.metadata.keys import FULL, RESERVE, SHORT_STREAM_MAX, TABLES, TableKeys
from common.metadata.keyspace import (
    KeyspaceSession,
    LinkLostError,
    StoreBusyError,
    StreamEntry,
)
from common.metadata.redis.connection import (
    Link,
    ReplyError,
    parse_url_of_store,
)
from common.metadata.redis.primary import LinkPool, Primary
from common.metadata.store_values import CLUSTER_REFUSED, StoreHealth

# ---- Memory set aside
#
# At `maxmemory` Redis refuses every MULTI, also one that only deletes or reads; single commands
# that delete are allowed. So a string of nothing is kept, and whoever is refused deletes it: then
# reads, commits, releases and the collector go on. A key tells everybody that the store was full:
# adds and whatever else lets it grow wait until it has room for a new reserve and as much again.


SHARE_MAX = 16
"""The reserve is at most such a part of `maxmemory`, so that a small store has room for tables."""

Send = Callable[[list[Command]], Awaitable[list[Reply]]]
"""Sends single commands and returns the answers, errors among them as values."""

STATE: Command = ("INFO",)


class MemoryReserve:
    """The memory set aside in one Redis. Nothing is remembered here: others do the same."""

    def __init__(self, send: Send, size_max_bytes: int, replicas_wanted: int = 0) -> None:
        """Send nothing yet.

        Args:
            send: To the Redis.
            size_max_bytes: Of the reserve; 0: keep none.
            replicas_wanted: How many replicas must have an add.
        """
        self._send = send
        self._size_max_bytes = size_max_bytes
        self._replicas_wanted = replicas_wanted

    async def health(self) -> StoreHealth:
        """Return what the server says of itself."""
        info, full = await self._send([STATE, ("EXISTS", FULL)])
        if isinstance(info, ReplyError):
            return StoreHealth(full=full == 1)
        said = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
        failures = [
            f"cannot write its {name}"
            for name, field in _WRITES.items()
            if said.get(field, "ok") != "ok"
        ]
        return StoreHealth(
            policy=said.get("maxmemory_policy", StoreHealth().policy),
            memory_bytes=int(said.get("used_memory", 0)),
            memory_max_bytes=int(said.get("maxmemory", 0)),
            full=full == 1,
            append_only=said.get("aof_enabled", "1") == "1",
            write_failure=", ".join(failures),
            replicas=int(said.get("connected_slaves", 0)),
            replicas_wanted=self._replicas_wanted,
            is_cluster=said.get("cluster_enabled") == "1",
        )

    async def keep(self) -> None:
        """Set the memory aside if there is room for it twice; then adds go on, too."""
        health = await self.health()
        (present,) = await self._send([("STRLEN", RESERVE)])
        wanted = min(self._size_max_bytes, health.memory_max_bytes // SHARE_MAX)
        if not wanted:
            if present or health.full:
                await self._send([delete(RESERVE, FULL)])
            return
        if present == wanted and not health.full:
            return
        room = health.memory_max_bytes - health.memory_bytes + present
        if room >= 2 * wanted:
            # The old one goes first: it may be larger. The key is the last to go, so that
            # nobody grows into what is about to be set aside.
            fill: Command = ("SETRANGE", RESERVE, wanted - 1, b"\0")
            await self._send([delete(RESERVE), fill, delete(FULL)])

    async def give_back(self) -> None:
        """Make room in a store that is full: shorten streams, then give the reserve back."""
        (names,) = await self._send([hgetall(TABLES)])
        tables = [] if isinstance(names, ReplyError) else list(names.items())
        trims = [
            ("XTRIM", stream, "MAXLEN", "~", SHORT_STREAM_MAX)
            for name, entry in tables
            for keys in (TableKeys(table.unpack_name(name, entry).id),)
            for stream in (keys.history, keys.changes)
        ]
        await self._send([*trims, delete(RESERVE), set_string(FULL, 1)])


_WRITES = {
    "append-only file": "aof_last_write_status",
    "snapshot": "rdb_last_bgsave_status",
}
"""What is written to disk → what INFO calls its state."""


# ------------------------------------------------------------------------------------- The keyspace


UNWATCH: Command = ("UNWATCH",)
MULTI: Command = ("MULTI",)
EXEC: Command = ("EXEC",)
NO_MEMORY = "OOM"
TRANSIENT = (
    *("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "ASK ", "BUSY", "UNBLOCKED"),
    *("NOREPLICAS", "MISCONF", NO_MEMORY),
)
"""What a Redis says that starts, fails over, moves a slot, is full or cannot write: nothing was
written, and the same change succeeds later."""
DEMOTED = ("READONLY", "MASTERDOWN", "UNBLOCKED")
"""What a Redis says that is the primary no more, or is no longer sure of it."""
ELSEWHERE = "MOVED "
"""What a node of a Redis Cluster says of a key that another node has."""
DISCARDED = "EXECABORT Transaction discarded because of: "
"""What stands before the reason if only `EXEC` is refused."""


class RedisKeyspace:
    """One Redis at a time: the primary, wherever it is. A Redis Cluster cannot hold a store."""

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
            url: `redis://`, `rediss://` or `unix://`; or `redis+sentinel://`, `rediss+sentinel://`.
            connections_max: Most links for reads and changes; streams have their own.
            timeout_s: Longest wait for one answer.
            wait_replicas: Replicas that must have a durable change.
            reserve_bytes: Memory to set aside in it, if its memory is bounded.
        """
        self._reserve = MemoryReserve(self._send, reserve_bytes, wait_replicas)
        self._links = LinkPool(Primary(parse_url_of_store(url), timeout_s), connections_max)
        self._timeout_s = timeout_s
        self._wait_replicas = wait_replicas

    @asynccontextmanager
    async def session(self) -> AsyncIterator[KeyspaceSession]:
        """Return a session on a link of its own."""
        async with self._links.lend() as link:
            session = RedisSession(link, self._timeout_s, self._wait_replicas)
            async with self._room():
                yield session
            await session.leave()

    async def fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read batches, each at one moment, all in one round trip."""
        if not batches:
            return []
        commands: list[Command] = []
        for batch in batches:
            commands += batch if len(batch) == 1 else (MULTI, *batch, EXEC)
        async with self._links.lend() as link:
            replies = await link.exchange(commands, self._timeout_s)
        found: list[list[Reply]] = []
        at = 0
        async with self._room():
            for batch in batches:
                length = 1 if len(batch) == 1 else len(batch) + 2
                found.append(_answers(replies[at : at + length]))
                at += length
        return found

    async def wait_entries(
        self, after: Mapping[str, str], count: int, block_s: float
    ) -> Mapping[str, Sequence[StreamEntry]]:
        """Return entries of streams after positions; wait on a link of its own."""
        block = ("BLOCK", int(block_s * 1000)) if block_s > 0 else ()
        command = ("XREAD", "COUNT", count, *block, "STREAMS", *after, *after.values())
        async with self._links.lend_for_stream() as link:
            reply = (await link.exchange([command], block_s + self._timeout_s))[0]
            async with self._room():
                if isinstance(reply, ReplyError):
                    raise translate_errors(reply)
        return {
            key.decode(): [_entry(*pair) for pair in pairs] for key, pairs in (reply or {}).items()
        }

    async def health(self) -> StoreHealth:
        """Return what the server says of itself."""
        return await self._reserve.health()

    async def keep_reserve(self) -> None:
        """Set memory aside, or give up what is no longer wanted."""
        await self._reserve.keep()

    async def close(self) -> None:
        """Close all links that are not in use."""
        self._links.close_idle()

    async def _send(self, commands: list[Command]) -> list[Reply]:
        """Send single commands on a link outside the pool, which may wait for this very room."""
        link = await self._links.open()
        try:
            return await link.exchange(commands, self._timeout_s)
        finally:
            link.close()

    @asynccontextmanager
    async def _room(self) -> AsyncIterator[None]:
        """Make room when the store says that it is full; whoever was refused tries again."""
        try:
            yield
        except StoreBusyError as error:
            if str(error).startswith(NO_MEMORY):
                await self._reserve.give_back()
            if str(error).startswith(DEMOTED):
                self._links.close_idle()  # Only a new link looks where the primary is now.
            raise


class RedisSession:
    """One try of one transaction on one link."""

    def __init__(self, link: Link, timeout_s: float, wait_replicas: int) -> None:
        """Use `link` until the session ends."""
        self._link = link
        self._timeout_s = timeout_s
        self._wait_replicas = wait_replicas
        self._watching = False

    async def look(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        """Watch and read in one round trip: Redis executes them in this order."""
        commands = [("WATCH", *watch), *reads] if watch else list(reads)
        self._watching = self._watching or bool(watch)
        replies = await self._link.exchange(commands, self._timeout_s)
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise translate_errors(reply)
        return replies[1:] if watch else replies

    async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
        """Send MULTI … EXEC in one write, and wait for replicas if asked."""
        wait = durable and self._wait_replicas > 0
        commands = [MULTI, *effects, EXEC]
        if wait:
            commands.append(("WAIT", self._wait_replicas, int(self._timeout_s * 1000)))
        try:
            replies = await self._link.exchange(commands, self._timeout_s * (1 + wait))
        except LinkLostError as error:
            raise LinkLostError(str(error), sent=True) from error
        self._watching = False
        executed = replies[len(effects) + 1]
        if isinstance(executed, ReplyError):
            raise translate_errors(next(each for each in replies if isinstance(each, ReplyError)))
        if executed is None:
            return False
        for reply in executed:
            assert not isinstance(reply, ReplyError), (effects, reply)
        if wait and replies[-1] < self._wait_replicas:
            reason = f"{replies[-1]} of {self._wait_replicas} replicas have the change"
            raise LinkLostError(reason, sent=True)
        return True

    async def leave(self) -> None:
        """Watch nothing any more."""
        if self._watching and self._link.alive:
            await self._link.exchange([UNWATCH], self._timeout_s)


def _answers(replies: list[Reply]) -> list[Reply]:
    """Return the answers of one batch."""
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise translate_errors(reply)
    answers: list[Reply] = replies if len(replies) == 1 else replies[-1]
    for reply in answers:
        if isinstance(reply, ReplyError):
            raise translate_errors(reply)
    return answers


def _entry(position: bytes, words: list[bytes]) -> StreamEntry:
    return position.decode(), dict(zip(words[::2], words[1::2], strict=True))


def translate_errors(error: ReplyError) -> Exception:
    """Return our error for an answer of Redis that says no; nothing was written."""
    text = str(error).removeprefix(DISCARDED)
    if text.startswith(TRANSIENT):
        return StoreBusyError(text)
    if text.startswith(ELSEWHERE):
        return MetadataError(f"{CLUSTER_REFUSED} ({text})")
    return MetadataError(f"Redis refuses: {text}")
