"""A cluster over the memory store in which coordinator and compactor die at chosen changes.

The coordinator is a real shell; it, a compactor and a user share a keyspace that counts
changes. A coordinator that dies by its own change has made it, and never hears the answer;
a compactor that dies forgets what it holds. Whoever died comes back at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from common.metadata.changes import Applied, CommitAttempt, RetagFiles
from common.metadata.store import TabletStore
from common.model.outcome import AttemptEnd
from common.settings import CoordinatorSettings
from common.wire import Assignment
from tests.support.flaky import Fault, FlakyKeyspace, Point
from tests.support.memory_store import MemoryKeyspace, MemoryStore
from tests.support.request_shell import Cluster, Shell, commit_of

PULSE_S = 0.1
"""The clock goes on by so much whenever the compactor beats."""
COORDINATOR, COMPACTOR = "coordinator", "compactor"
HURRIED = CoordinatorSettings(tick_s=0.003, adopt_grace_s=1.0, backoff_base_s=0.1)

JobKey = tuple[str, tuple[str, ...]]
"""A job: its kind and its inputs."""


def key_of(held: Assignment) -> JobKey:
    """Return which job somebody holds."""
    return held.job.kind.value, held.job.inputs


@dataclass
class MortalCluster(Cluster):
    """Who dies at which change of the store (from 1), and what became of the jobs."""

    deaths: Mapping[int, Collection[str]] = field(default_factory=dict)
    takes_at_once: int = 1
    handed: Counter[JobKey] = field(default_factory=Counter)
    """Jobs that the compactor was given, how often."""
    dropped: Counter[JobKey] = field(default_factory=Counter)
    """Jobs that it held when it died."""
    taken_back: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settings = replace(self.settings, coordinator=HURRIED)
        self.keyspace = MemoryKeyspace(self.clock)
        self.store = MemoryStore(keyspace=FlakyKeyspace(self.keyspace, self._of_others))
        self.changes = 0
        self.compactors = 1
        self.held: list[Assignment] = []
        self.shell: Shell | None = None
        self._died = asyncio.Event()
        self._forgets = False

    def may_commit(self, held: Assignment) -> bool:
        """Return whether the compactor has done this job by now."""
        return True

    def ending_of(self, held: Assignment) -> CommitAttempt | RetagFiles:
        """Return the change by which the compactor ends a job."""
        return commit_of(held)

    # ------------------------------------------------------------ deaths

    def store_of_coordinator(self) -> TabletStore:
        """Return a store that dies with the coordinator."""
        died, never = self._died, asyncio.Event()

        async def script(point: Point) -> Fault:
            if died.is_set():
                await never.wait()
            if point is Point.EXEC and self._counted():
                return Fault.APPLIED
            return Fault.NONE

        return MemoryStore(keyspace=FlakyKeyspace(self.keyspace, script))

    async def _of_others(self, point: Point) -> Fault:
        if point is Point.EXEC:
            self._counted()
        return Fault.NONE

    def _counted(self) -> bool:
        """Count a change; return whether the coordinator dies of it."""
        self.changes += 1
        victims = self.deaths.get(self.changes, ())
        self._forgets |= COMPACTOR in victims
        if COORDINATOR in victims:
            self._died.set()
        return COORDINATOR in victims

    # ------------------------------------------------------------- lives

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Let one coordinator follow another for the length of a block."""
        lives = asyncio.create_task(self._live())
        try:
            yield
            assert not lives.done(), lives
        finally:
            lives.cancel()
            await asyncio.gather(lives, return_exceptions=True)

    async def _live(self) -> None:
        while True:
            life = asyncio.create_task(self._one_life())
            death = asyncio.create_task(self._died.wait())
            try:
                await asyncio.wait({life, death}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.shell = None
                life.cancel()
                death.cancel()
                ends = await asyncio.gather(life, death, return_exceptions=True)
            assert isinstance(ends[0], asyncio.CancelledError), ends[0]
            self._died = asyncio.Event()

    async def _one_life(self) -> None:
        async with self.coordinator() as it:
            it.held = self.held
            self.shell = it
            await asyncio.Event().wait()

    # -------------------------------------------------------- compactor

    async def pulse(self) -> None:
        """Let the compactor beat, take what there is, and commit what it has done."""
        self.clock.advance(PULSE_S)
        if self._forgets:
            self._forgets = False
            self.dropped.update(map(key_of, self.held))
            self.held.clear()
            self.compactors += 1
        if self.shell is not None:
            self.shell.incarnation = f"i{self.compactors}"
            await self._or_death(self._take(self.shell))
        for held in [each for each in self.held if self.may_commit(each)]:
            await self._commit(held)
        await asyncio.sleep(0.001)

    async def _take(self, it: Shell) -> None:
        for attempt in await it.beat(*(held.reservation.attempt for held in self.held)):
            self.taken_back += 1
            (gone,) = (held for held in self.held if held.reservation.attempt == attempt)
            it.report(gone, AttemptEnd.CANCELLED, "it was taken back")
        for _ in range(self.takes_at_once):
            taken = await it.take(wait_max_s=0.002)
            if taken is None:
                return
            self.handed[key_of(taken)] += 1

    async def _or_death(self, doing: Awaitable[None]) -> None:
        did, death = asyncio.ensure_future(doing), asyncio.create_task(self._died.wait())
        await asyncio.wait({did, death}, return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if not did.done():
            did.cancel()
        await asyncio.gather(did, death, return_exceptions=True)
        if not did.cancelled():
            did.result()

    async def _commit(self, held: Assignment) -> None:
        """Commit without a coordinator; report if there is one, and if nobody has died."""
        outcome = await self.store.apply(self.ending_of(held))
        if self._forgets:
            return
        assert isinstance(outcome, Applied), outcome
        if self.shell is not None:
            self.shell.report(held, AttemptEnd.COMMITTED)
        else:
            self.held.remove(held)
