"""Redis as a keyspace: a bounded pool of links, WATCH with its reads in one round trip."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from common.errors import BrokenValueError, MetadataError, UnknownOutcomeError
from common.metadata.commands import Command, Reply, hgetall
from common.metadata.keys import FULL, RESERVE, TABLES
from common.metadata.keyspace import (
    KeyspaceSession,
    LinkLostError,
    StoreBusyError,
    StreamEntry,
)
from common.metadata.redis.acl import explained, missing_rights
from common.metadata.redis.connection import (
    ClusterSeeds,
    Link,
    ReplyError,
    parse_url_of_store,
    text_of,
)
from common.metadata.redis.memory_reserve import MemoryReserve, ids_of_names
from common.metadata.redis.primary import LinkPool, Primary
from common.metadata.store_values import StoreHealth

UNWATCH: Command = ("UNWATCH",)
MULTI: Command = ("MULTI",)
EXEC: Command = ("EXEC",)
NO_MEMORY = "OOM"
TRANSIENT = (
    *("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "ASK ", "BUSY", "UNBLOCKED"),
    *("MOVED ", "NOREPLICAS", "MISCONF", NO_MEMORY),
)
"""What a Redis says that starts, fails over, moves a slot, is full or cannot write: nothing was
written, and the same change succeeds later."""
DEMOTED = ("READONLY", "MASTERDOWN", "UNBLOCKED")
"""What a Redis says that is the primary no more, or is no longer sure of it."""
ELSEWHERE = ("MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN", *DEMOTED)
"""What a node of a Redis Cluster says of a key that another node has by now, or will have."""
OTHER_TYPE = "WRONGTYPE"
"""What a Redis says of a key that holds a hash where a string is read, and so on."""
DISCARDED = "EXECABORT Transaction discarded because of: "
"""What stands before the reason if only `EXEC` is refused."""


class RedisKeyspace:
    """One Redis at a time: the primary, wherever it is."""

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
        source = parse_url_of_store(url)
        assert not isinstance(source, ClusterSeeds), "see `cluster`"
        self._reserve = MemoryReserve(
            self._send,
            self._table_ids,
            size_max_bytes=reserve_bytes,
            replicas_wanted=wait_replicas,
            reserves=(RESERVE,),
            fulls=(FULL,),
        )
        self._links = LinkPool(Primary(source, timeout_s), connections_max)
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
        async with self._links.lend() as link:
            replies = await link.exchange(packed_batches(batches), self._timeout_s)
        async with self._room():
            return unpacked_batches(batches, replies)

    async def wait_entries(
        self, after: Mapping[str, str], count: int, block_s: float
    ) -> Mapping[str, Sequence[StreamEntry]]:
        """Return entries of streams after positions; wait on a link of its own."""
        async with self._links.lend_for_stream() as link:
            (reply,) = await link.exchange(
                [stream_read(after, count, block_s)], block_s + self._timeout_s
            )
            async with self._room():
                return stream_entries(reply)

    async def health(self) -> StoreHealth:
        """Return what the server says of itself."""
        unused = ("cluster|slots", *(() if self._wait_replicas else ("wait",)))
        health = await self._reserve.health()
        return replace(
            health, lacks=await missing_rights(self._links, self._timeout_s, unused=unused)
        )

    async def keep_reserve(self) -> None:
        """Set memory aside, or give up what is no longer wanted."""
        await self._reserve.keep()

    async def close(self) -> None:
        """Close all links that are not in use."""
        await self._links.close_idle()

    async def _send(self, commands: list[Command]) -> list[Reply]:
        """Send single commands on a link outside the pool, which may wait for this very room."""
        link = await self._links.open()
        try:
            return await link.exchange(commands, self._timeout_s)
        finally:
            await link.close()

    async def _table_ids(self) -> list[str]:
        (names,) = await self._send([hgetall(TABLES)])
        return ids_of_names(names)

    @asynccontextmanager
    async def _room(self) -> AsyncIterator[None]:
        """Make room when the store says that it is full; whoever was refused tries again."""
        try:
            yield
        except StoreBusyError as error:
            if str(error).startswith(NO_MEMORY):
                await self._reserve.give_back()
            if str(error).startswith(DEMOTED):
                await self._links.close_idle()  # Only a new link looks where the primary is now.
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
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ReplyError):
                raise translate_errors(reply, command)
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
        """Watch nothing any more."""
        if self._watching and self._link.alive:
            await self._link.exchange([UNWATCH], self._timeout_s)


# ------------------------------------------------------------------------------ Words and answers


def packed_batches(batches: Sequence[Sequence[Command]]) -> list[Command]:
    """Return the commands of batches, each of which is read at one moment."""
    commands: list[Command] = []
    for batch in batches:
        commands += batch if len(batch) == 1 else (MULTI, *batch, EXEC)
    return commands


def unpacked_batches(
    batches: Sequence[Sequence[Command]], replies: list[Reply]
) -> list[list[Reply]]:
    """Return the answers to batches; raises the first one that says no."""
    found: list[list[Reply]] = []
    at = 0
    for batch in batches:
        length = 1 if len(batch) == 1 else len(batch) + 2
        found.append(_answers(batch, replies[at : at + length]))
        at += length
    return found


def stream_read(after: Mapping[str, str], count: int, block_s: float) -> Command:
    """Return the command that reads streams after positions."""
    # Nought would wait for ever.
    block = ("BLOCK", max(1, int(block_s * 1000))) if block_s > 0 else ()
    return ("XREAD", "COUNT", count, *block, "STREAMS", *after, *after.values())


def stream_entries(reply: Reply) -> Mapping[str, Sequence[StreamEntry]]:
    """Return the entries in the answer to such a command; raises one that says no."""
    if isinstance(reply, ReplyError):
        raise translate_errors(reply, ("XREAD", "one of several streams"))
    return {key.decode(): [_entry(*pair) for pair in pairs] for key, pairs in (reply or {}).items()}


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


def _entry(position: bytes, words: list[bytes]) -> StreamEntry:
    return position.decode(), dict(zip(words[::2], words[1::2], strict=True))


def translate_errors(error: ReplyError, command: Command = ()) -> Exception:
    """Return our error for an answer of Redis that says no; nothing was written.

    Args:
        error: The answer.
        command: To what it is the answer, if that is known.
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
