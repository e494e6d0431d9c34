"""The memory keyspace behind a network: round trips take time, connections break.

Everything above is the production code: executor, transactions, decoding. A broken
connection at `EXEC` has one of three ends, as with a real server: applied, never to
be, or still on its way and decided by its `WATCH` when it arrives.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from common.metadata.commands import Command, Reply
from common.metadata.executor import Patience
from common.metadata.keyspace import LinkLostError, StreamEntry
from common.metadata.memory_keyspace import MemoryKeyspace, MemorySession
from common.metadata.store import KeyspaceStore
from tests.support.sim_tasks import Process, Tasks


@dataclass
class StoreFaults:
    """How badly the store is connected. Probabilities per round trip."""

    latency_max_s: float = 0.01
    lost_look: float = 0.0
    lost_exec: float = 0.0
    late_exec: float = 0.0
    late_max_s: float = 10.0


class SimKeyspace:
    """A client's connection to the one store; satisfies `common.metadata.keyspace.Keyspace`."""

    def __init__(
        self,
        shared: MemoryKeyspace,
        tasks: Tasks,
        faults: StoreFaults,
        written: Callable[[Sequence[Command]], None],
    ) -> None:
        self.shared = shared
        self.tasks = tasks
        self.faults = faults
        self.written = written
        self.network = Process("network")

    @asynccontextmanager
    async def session(self) -> AsyncIterator[SimSession]:
        yield SimSession(self)

    async def fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        await self.hop()
        if self.tasks.chance(self.faults.lost_look):
            raise LinkLostError("simulated: lost while reading")
        replies = []
        for batch in batches:
            replies.append(self.shared.run(batch))
            if len(batches) > 1:
                # Others get in between two batches: each is one moment, not all together.
                await self.tasks.sleep(0.0)
        await self.hop()
        return replies

    async def wait_entries(
        self, after: Mapping[str, str], count: int, block_s: float
    ) -> Mapping[str, Sequence[StreamEntry]]:
        await self.hop()
        return await self.shared.wait_entries(after, count, 0.0)

    async def listen(self, pattern: str) -> AsyncIterator[str]:
        raise NotImplementedError(pattern)
        yield ""

    async def close(self) -> None:
        return

    async def hop(self) -> None:
        await self.tasks.sleep(self.tasks.dice.random() * self.faults.latency_max_s)


class SimSession:
    """One connection; `common.metadata.keyspace.Session`."""

    def __init__(self, keyspace: SimKeyspace) -> None:
        self._keyspace = keyspace
        self._inner = MemorySession(keyspace.shared)

    async def look(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        await self._keyspace.hop()
        if self._keyspace.tasks.chance(self._keyspace.faults.lost_look):
            raise LinkLostError("simulated: lost while reading")
        replies = self._inner.look_now(watch, reads)
        await self._keyspace.hop()
        return replies

    async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
        keyspace = self._keyspace
        tasks, faults = keyspace.tasks, keyspace.faults
        await keyspace.hop()
        if tasks.chance(faults.late_exec):
            delay_s = tasks.dice.random() * faults.late_max_s
            tasks.tell(f"EXEC late by {delay_s:.2f} s")
            at_s = tasks.now_s() + delay_s
            tasks.call_at(at_s, keyspace.network, lambda: self._apply(effects) and None)
            raise LinkLostError("simulated: lost at EXEC, on its way", sent=True)
        if tasks.chance(faults.lost_exec):
            applied = tasks.chance(0.5) and self._apply(effects)
            tasks.tell(f"EXEC lost, applied={applied}")
            raise LinkLostError("simulated: lost at EXEC", sent=True)
        done = self._apply(effects)
        await keyspace.hop()
        return done

    def _apply(self, effects: Sequence[Command]) -> bool:
        done = self._inner.execute_now(effects)
        if done:
            self._keyspace.written(effects)
        return done


def sim_store(keyspace: SimKeyspace, tries_max: int) -> KeyspaceStore:
    """Return the production store over a simulated connection, more or less patient."""
    tasks = keyspace.tasks
    return KeyspaceStore(
        keyspace,
        patience=Patience(tries_max=tries_max),
        sleep=tasks.sleep,
        chance=tasks.dice.random,
        new_store_id=lambda: "store-sim",
    )
