"""Any keyspace with an interrupted connection: others get in between, answers get lost.

A *script* is asked at every round trip and says what happens there. It may first let
somebody else write: that is how a test, or a seeded scheduler, makes two changes meet.
With no script nothing happens, and a store on it must pass the contract suite.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from common.metadata.keys import AUDIT
from common.metadata.keyspace import (
    Command,
    Keyspace,
    KeyspaceSession,
    LinkLostError,
    Reply,
    StreamEntry,
)
from common.metadata.store_values import StoreHealth


class Point(enum.StrEnum):
    """Where a script is asked."""

    FETCH = "before a read outside any change"
    LOOKED = "after WATCH and reads"
    EXEC = "before EXEC"


class Fault(enum.StrEnum):
    """What a script may answer."""

    NONE = "none"
    LOST = "lost: the connection breaks, an EXEC never arrives"
    APPLIED = "applied: an EXEC is made, its answer is lost"
    LATE = "late: the connection breaks, the EXEC arrives when it is delivered"


Script = Callable[[Point], Awaitable[Fault]]


async def no_faults(_point: Point) -> Fault:
    """Let everything pass."""
    return Fault.NONE


class Dice(Protocol):
    """Chance, such as a seeded `random.Random`."""

    def random(self) -> float:
        """Return a number from 0 to below 1."""
        ...


def seeded(dice: Dice, *, lost: float, applied: float, late: float) -> Script:
    """Return a script that draws faults; the same seed draws the same ones."""

    async def script(point: Point) -> Fault:
        drawn = dice.random()
        for fault, share in ((Fault.LOST, lost), (Fault.APPLIED, applied), (Fault.LATE, late)):
            if drawn < share and (fault is Fault.LOST or point is Point.EXEC):
                return fault
            drawn -= share
        return Fault.NONE

    return script


class FlakyKeyspace:
    """A keyspace whose connection follows a script."""

    def __init__(self, inner: Keyspace, script: Script = no_faults) -> None:
        self.script = script
        self.spares_audit = False
        """Whether what the gateway notes of calls passes by the script, which means changes."""
        self._inner = inner
        self._late: list[Callable[[], Awaitable[bool]]] = []

    @asynccontextmanager
    async def session(self) -> AsyncIterator[KeyspaceSession]:
        async with AsyncExitStack() as stack:
            inner = await stack.enter_async_context(self._inner.session())
            yield FlakySession(self, inner, stack)

    async def fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        if await self.script(Point.FETCH) is not Fault.NONE:
            raise LinkLostError("scripted: lost while reading")
        return await self._inner.fetch(batches)

    async def wait_entries(
        self, after: Mapping[str, str], count: int, block_s: float
    ) -> Mapping[str, Sequence[StreamEntry]]:
        return await self._inner.wait_entries(after, count, block_s)

    async def health(self) -> StoreHealth:
        return await self._inner.health()

    async def keep_reserve(self) -> None:
        await self._inner.keep_reserve()

    async def close(self) -> None:
        for send in self._late:
            await send()
        await self._inner.close()

    async def deliver(self) -> list[bool]:
        """Let every late EXEC arrive; return which of them their WATCH let through."""
        late, self._late = self._late, []
        return [await send() for send in late]

    def delay(self, send: Callable[[], Awaitable[bool]]) -> None:
        self._late.append(send)


class FlakySession:
    """One connection of a flaky keyspace."""

    def __init__(
        self, keyspace: FlakyKeyspace, inner: KeyspaceSession, stack: AsyncExitStack
    ) -> None:
        self._keyspace = keyspace
        self._inner = inner
        self._stack = stack

    async def look(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        replies = await self._inner.look(watch, reads)
        if await self._keyspace.script(Point.LOOKED) is not Fault.NONE:
            raise LinkLostError("scripted: lost while reading")
        return replies

    async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
        spared = self._keyspace.spares_audit and all(
            effect[:2] == ("XADD", AUDIT) for effect in effects
        )
        fault = Fault.NONE if spared else await self._keyspace.script(Point.EXEC)
        if fault is Fault.NONE:
            return await self._inner.execute(effects, durable=durable)
        if fault is Fault.APPLIED:
            await self._inner.execute(effects, durable=durable)
        if fault is Fault.LATE:
            held = self._stack.pop_all()

            async def send() -> bool:
                async with held:
                    return await self._inner.execute(effects, durable=durable)

            self._keyspace.delay(send)
        raise LinkLostError(f"scripted: {fault.value}", sent=True)
