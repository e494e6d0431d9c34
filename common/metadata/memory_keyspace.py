"""A dictionary that behaves like Redis: WATCH by version of a key, MULTI at one moment.

Like Redis, a key counts as changed when it was written, also with the same value, but
not by an effect that changes nothing (`SADD` of a member, `DEL` of no key).
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from common.clock import Clock
from common.metadata.commands import Command, Reply
from common.metadata.health import StoreHealth
from common.metadata.keyspace import Session, StreamEntry
from common.metadata.memory_commands import position_key, run
from common.metadata.memory_values import Values


class MemoryKeyspace:
    """Keys of a store, shared by everybody who has a reference to it."""

    def __init__(self, clock: Clock) -> None:
        """Start empty.

        Args:
            clock: What TIME answers, and what lets keys expire.
        """
        self.values = Values(clock)
        self._listeners: list[asyncio.Queue[str]] = []
        self._news = asyncio.Event()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Return a session; what it watches ends with it."""
        yield MemorySession(self)

    async def fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read batches, each at one moment."""
        return [self.run(batch) for batch in batches]

    def run(self, commands: Sequence[Command]) -> list[Reply]:
        """Execute commands at one moment, and ring what they publish."""
        replies = [run(self.values, command) for command in commands]
        for command in commands:
            if command[0] == "PUBLISH":
                self._ring(str(command[1]))
        return replies

    async def wait_entries(
        self, after: Mapping[str, str], count: int, block_s: float
    ) -> Mapping[str, Sequence[StreamEntry]]:
        """Return entries of streams after positions; wait for the first."""
        found = self._entries(after, count)
        if not found and block_s > 0:
            self._news.clear()
            try:
                async with asyncio.timeout(block_s):
                    await self._news.wait()
            except TimeoutError:
                return {}
            found = self._entries(after, count)
        return found

    async def listen(self, pattern: str) -> AsyncGenerator[str, None]:
        """Yield the names of channels that ring; the pattern's middle is free."""
        head, _, tail = pattern.partition("*")
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._listeners.append(queue)
        try:
            while True:
                channel = await queue.get()
                if channel.startswith(head) and channel.endswith(tail):
                    yield channel
        finally:
            self._listeners.remove(queue)

    async def health(self) -> StoreHealth:
        """Return that nothing is wrong: a process has the memory that it has."""
        return StoreHealth()

    async def keep_reserve(self) -> None:
        """Keep none: there is no bound."""

    async def close(self) -> None:
        """Keep everything: others may share it."""

    def _ring(self, channel: str) -> None:
        self._news.set()
        for queue in self._listeners:
            queue.put_nowait(channel)

    def _entries(self, after: Mapping[str, str], count: int) -> dict[str, Sequence[StreamEntry]]:
        found: dict[str, Sequence[StreamEntry]] = {}
        for key, position in after.items():
            entries = self.values.stream(key)
            first = bisect_right(
                entries, position_key(position), key=lambda entry: position_key(entry[0])
            )
            if first < len(entries):
                later = entries[first : first + count]
                found[key] = [(place, dict(fields)) for place, fields in later]
        return found


class MemorySession:
    """One connection: remembers the versions of what it watches."""

    def __init__(self, keyspace: MemoryKeyspace) -> None:
        """Watch nothing yet."""
        self._keyspace = keyspace
        self.watched: dict[str, int] = {}

    async def look(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        """Watch, then read."""
        return self.look_now(watch, reads)

    async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
        """Write all effects, unless a watched key has changed."""
        return self.execute_now(effects)

    def look_now(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        """Watch, then read, at one moment."""
        for key in watch:
            self.watched.setdefault(key, self._keyspace.values.version(key))
        return self._keyspace.run(reads)

    def execute_now(self, effects: Sequence[Command]) -> bool:
        """Write all effects at one moment, unless a watched key has changed."""
        values = self._keyspace.values
        if any(values.version(key) != version for key, version in self.watched.items()):
            return False
        self._keyspace.run(effects)
        self.watched.clear()
        return True
