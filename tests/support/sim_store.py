"""The memory keyspace behind a network: round trips take time, connections break, replicas lag.

Everything above it is the production code: executor, transactions, decoding. A broken
connection at `EXEC` has one of three ends, as with a real server: applied, never to
be, or still on its way and decided by its `WATCH` when it arrives. A fail-over goes to
a replica that has missed the last one or two changes; whoever waited for the replica
keeps what he was told.

A store that is *spread* is a Redis Cluster with a node for each slot: each table and each key
of the whole store has one. A transaction that names two is refused, and slots fail over apart.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any

from common.metadata.executor import RetryLimits
from common.metadata.keys import FULL, TABLES
from common.metadata.keyspace import Command, LinkLostError, Reply, StoreBusyError, StreamEntry
from common.metadata.store import TabletStore
from common.metadata.store_values import StoreHealth
from tests.support.memory_store import MemoryKeyspace, MemorySession
from tests.support.sim_loop import World
from tests.support.sim_truth import Truth

LAG_MAX_S = 1.5
"""Longest that a replica is behind."""
FORGOTTEN_MAX = 2
STORE_ID = "store-sim"
LATE_MAX_S = 10.0


@dataclass
class StoreFaults:
    """How badly the store is connected. Probabilities per round trip."""

    latency_max_s: float = 0.01
    lost_look: float = 0.0
    lost_exec: float = 0.0
    late_exec: float = 0.0
    feed_max_s: float = 0.0
    """Longest delay of what the change feed tells."""


class Refusal(Enum):
    """What a real server says when it lives, and takes nothing."""

    STARTS = "LOADING"
    """Nothing at all."""
    NO_REPLICAS = "NOREPLICAS"
    """No write."""
    FULL = "OOM"
    """No write that may grow something."""


FREEING = frozenset({"DEL", "HDEL", "SREM", "ZREM", "XTRIM", "XDEL"})
"""Commands that a full server takes."""


def _grows(effects: Sequence[Command]) -> bool:
    return any(effect[0] not in FREEING for effect in effects)


ONE_SLOT = ""


def table_or_key(key: str) -> str:
    """Return what has a slot of its own: a table, or a key of the whole store."""
    return key.partition("{")[2].partition("}")[0] or key


@dataclass
class _Undo:
    """What a write has replaced, as long as a fail-over may forget it."""

    slot: str
    number: int
    at_s: float
    values: dict[str, tuple[Any, float | None]]


class SimServer:
    """The one Redis. Whatever is written is held against the truth at once."""

    def __init__(
        self,
        world: World,
        truth: Truth,
        faults: StoreFaults,
        *,
        forgets: bool,
        spread: bool = False,
        waits_for_names: bool = False,
    ) -> None:
        self.world = world
        self.truth = truth
        self.faults = faults
        self.memory = truth.memory
        self.network = world.process("network")
        self.spread = spread
        """Whether each slot is on a node of its own."""
        self.waits_for_names = waits_for_names
        self._epochs: Counter[str] = Counter()
        """Counts fail-overs of slots: connections of an earlier one are gone."""
        self.seen: Counter[str] = Counter()
        self._forgets = forgets
        self._undo: list[_Undo] = []
        self._writes = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._refusal: Refusal | None = None
        self._refuses_until_s = 0.0

    def refuse(self, refusal: Refusal, for_s: float) -> None:
        """Take nothing of a kind for a time, and say so."""
        self._refusal, self._refuses_until_s = refusal, self.world.now_s() + for_s

    def slot_of(self, command: Command) -> str | None:
        """Return the slot of a command; None: it has no key."""
        if not self.spread:
            return ONE_SLOT
        return None if command[0] in ("TIME", "SCAN") else table_or_key(str(command[1]))

    def slots_of(self, watch: Sequence[str], commands: Sequence[Command]) -> dict[str, None]:
        """Return the slots of keys and commands, the first one first."""
        if not self.spread:
            return {ONE_SLOT: None}
        found = [*map(table_or_key, watch), *map(self.slot_of, commands)]
        return {slot: None for slot in found if slot not in {None, FULL}}

    def epoch(self, slot: str) -> int:
        """Return how often a slot has failed over."""
        return self._epochs[slot]

    def check_read(self) -> None:
        """Refuse a read, if reads are refused now."""
        if self._refused() is Refusal.STARTS:
            raise self._busy()

    def check_write(self, effects: Sequence[Command]) -> None:
        """Refuse a write, if it is one of those that are refused now."""
        refusal = self._refused()
        if refusal is not None and (refusal is not Refusal.FULL or _grows(effects)):
            raise self._busy()

    def _refused(self) -> Refusal | None:
        return self._refusal if self.world.now_s() < self._refuses_until_s else None

    def _busy(self) -> StoreBusyError:
        assert self._refusal is not None
        self.seen[f"refused: {self._refusal.value}"] += 1
        return StoreBusyError(f"simulated: {self._refusal.value}")

    def write(self, session: MemorySession, effects: Sequence[Command]) -> int:
        """Make a write, unless something watched has changed; return its number, or 0."""
        saved = self._saved(effects) if self._forgets else {}
        if not session.execute_now(effects):
            return 0
        self._writes += 1
        if self._forgets:
            (slot,) = self.slots_of((), effects)
            self._undo.append(_Undo(slot, self._writes, self.world.now_s(), saved))
            del self._undo[:-8]
        try:
            self.truth.written(effects)
        except AssertionError as error:
            self.world.fail(error)
            raise
        self._ring()
        return self._writes

    def replicated(self, number: int, slot: str) -> None:
        """A replica has told that it has everything of a slot up to a write."""
        self._undo = [undo for undo in self._undo if undo.number > number or undo.slot != slot]

    def fail_over(self) -> int:
        """Forget the last one or two writes of a slot that no replica has; return how many."""
        slot = ONE_SLOT
        if self.spread:
            written = sorted({undo.slot for undo in self._undo})
            slot = self.world.dice.choice([*written, TABLES])
            self.seen[f"fail-overs of {'names' if slot == TABLES else 'one slot'}"] += 1
        self._epochs[slot] += 1
        oldest_s = self.world.now_s() - LAG_MAX_S
        mine = [undo for undo in self._undo if undo.slot == slot]
        young = [undo for undo in mine[-FORGOTTEN_MAX:] if undo.at_s > oldest_s]
        count = self.world.dice.randint(1, FORGOTTEN_MAX)
        for undo in reversed(young[-count:]):
            for key, saved in undo.values.items():
                self._put_back(key, *saved)
        self._undo = [undo for undo in self._undo if undo.slot != slot]
        self.truth.went_back()
        self._ring()
        return len(young[-count:])

    def go_back(self) -> None:
        """Another server answers, which knows what it knew once: connections are gone."""
        assert not self.spread
        self._epochs[ONE_SLOT] += 1
        self._undo.clear()
        self._ring()

    async def news(self, timeout_s: float) -> None:
        """Wait for a write."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return

    def _ring(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _saved(self, effects: Sequence[Command]) -> dict[str, tuple[Any, float | None]]:
        values = self.memory.values
        saved = {}
        for effect in effects:
            for key in effect[1:] if effect[0] == "DEL" else effect[1:2]:
                if key not in saved:
                    name = str(key)
                    saved[name] = (copy(values.find(name)), values._expires_s.get(name))
        return saved

    def _put_back(self, key: str, value: Any, expires_s: float | None) -> None:
        values = self.memory.values
        values.remove(key)
        if value is not None:
            values.put(key, value)
            if expires_s is not None:
                values._expires_s[key] = expires_s


class SimKeyspace:
    """A client's connections to the server; satisfies `common.metadata.keyspace.Keyspace`."""

    def __init__(self, server: SimServer, fetched: Callable[[], None]) -> None:
        self.server = server
        self.world = server.world
        self._fetched = fetched

    def session(self) -> SimSession:
        return SimSession(self.server)

    async def fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        server, faults = self.server, self.server.faults
        slots = [slot for batch in batches for slot in server.slots_of((), batch)]
        epochs = {slot: server.epoch(slot) for slot in slots}
        if self.world.chance(faults.lost_look):
            server.seen["reads lost"] += 1
            raise LinkLostError("simulated: lost while reading")
        replies = []
        for batch in batches:
            # Others get in between two batches: each is one moment, not all together.
            await asyncio.sleep(self.world.random() * faults.latency_max_s)
            if any(server.epoch(slot) != epoch for slot, epoch in epochs.items()):
                raise LinkLostError("simulated: fail-over while reading")
            server.check_read()
            replies.append(server.memory.run(batch))
        self._fetched()
        return replies

    async def wait_entries(
        self, after: Mapping[str, str], count: int, block_s: float
    ) -> Mapping[str, Sequence[StreamEntry]]:
        faults = self.server.faults
        self.server.check_read()
        found = await self.server.memory.wait_entries(after, count, 0.0)
        if not found and block_s > 0:
            await self.server.news(block_s)
        await asyncio.sleep(self.world.random() * (faults.feed_max_s or faults.latency_max_s))
        return found or await self.server.memory.wait_entries(after, count, 0.0)

    async def health(self) -> StoreHealth:
        return StoreHealth()

    async def keep_reserve(self) -> None:
        return

    async def close(self) -> None:
        return


class SimSession:
    """One connection; `common.metadata.keyspace.Session`."""

    def __init__(self, server: SimServer) -> None:
        self._server = server
        self._world = server.world
        self._epochs = {} if server.spread else {ONE_SLOT: server.epoch(ONE_SLOT)}
        """Of the slots that it is connected to."""
        self._inner = MemorySession(server.memory)

    async def __aenter__(self) -> SimSession:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return

    async def look(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        server = self._server
        if self._world.chance(server.faults.lost_look):
            server.seen["reads lost"] += 1
            raise LinkLostError("simulated: lost while reading")
        self._check_epoch(sent=False)
        server.check_read()
        first, *others = server.slots_of(watch, reads) or {None: None}
        assert len(server.slots_of([*self._inner.watched, *watch], ())) <= 1, watch
        replies: dict[int, Reply] = {}
        for slot in (first, *others):  # What is watched is watched before all else is read.
            self._connect(slot)
            of = server.slot_of
            mine = [at for at, each in enumerate(reads) if (_at(of(each), first)) == slot]
            found = self._inner.look_now(watch if slot == first else (), [reads[at] for at in mine])
            replies |= dict(zip(mine, found, strict=True))
            await self._hop()
            self._check_epoch(sent=False)
        return [replies[at] for at in range(len(reads))]

    async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
        server, world, faults = self._server, self._world, self._server.faults
        server.check_write(effects)
        (slot,) = server.slots_of([*self._inner.watched], effects)
        self._connect(slot)
        late = world.chance(faults.late_exec)
        lost = not late and world.chance(faults.lost_exec)
        arrived = asyncio.get_running_loop().create_future()
        if not lost or world.chance(0.5):
            # It is on its way: whoever sent it may die, it arrives.
            way_s = world.random() * (LATE_MAX_S if late else faults.latency_max_s)
            server.network.call_later(way_s, self._arrive, effects, arrived)
        if late or lost:
            server.seen["EXEC late" if late else "EXEC lost"] += 1
            await self._hop()
            raise LinkLostError("simulated: lost at EXEC", sent=True)
        number: int | None = await arrived
        if number is None:
            raise LinkLostError("simulated: fail-over before EXEC", sent=True)
        await self._hop()
        self._check_epoch(sent=True)
        if number and durable and not self._is_waited_for_later(effects):
            await self._hop()
            self._check_epoch(sent=True)
            server.replicated(number, slot)
        return bool(number)

    def _is_waited_for_later(self, effects: Sequence[Command]) -> bool:
        """Return whether a name is written that a later wait covers, as it did in recorded seeds.

        On one server the table goes live after its name, and waits for replicas of both.
        """
        return not self._server.waits_for_names and effects[0][:2] == ("HSET", TABLES)

    def _arrive(self, effects: Sequence[Command], arrived: asyncio.Future[int | None]) -> None:
        number = None if self._is_gone() else self._server.write(self._inner, effects)
        if not arrived.done():
            arrived.set_result(number)

    def _connect(self, slot: str | None) -> None:
        if slot is not None:
            self._epochs.setdefault(slot, self._server.epoch(slot))

    def _is_gone(self) -> bool:
        epochs = self._epochs.items()
        return any(self._server.epoch(slot) != epoch for slot, epoch in epochs)

    def _check_epoch(self, *, sent: bool) -> None:
        if self._is_gone():
            raise LinkLostError("simulated: fail-over", sent=sent)

    async def _hop(self) -> None:
        await asyncio.sleep(self._world.random() * self._server.faults.latency_max_s)


def _at(slot: str | None, first: str | None) -> str | None:
    """Return where a command goes: without a key of its own to the first slot."""
    return first if slot in {None, FULL} else slot


def sim_store(
    server: SimServer, tries_max: int, fetched: Callable[[], None] = lambda: None
) -> TabletStore:
    """Return the production store over a simulated connection, more or less patient.

    Args:
        server: The one Redis.
        tries_max: Tries of one change.
        fetched: Called whenever something was read.
    """
    return TabletStore(
        SimKeyspace(server, fetched),
        patience=RetryLimits(tries_max=tries_max),
        sleep=asyncio.sleep,
        chance=server.world.random,
        new_store_id=lambda: STORE_ID,
    )


def sim_memory(world: World) -> MemoryKeyspace:
    """Return the values of the server, on the world's clock."""
    return MemoryKeyspace(world)
