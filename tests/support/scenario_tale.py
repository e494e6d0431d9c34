"""The scenario over the memory store, with somebody dying at any one change of the store.

The coordinator is a real shell; it, a compactor and a user share a keyspace that counts
changes. At the chosen one the victim dies: a coordinator's own change is made and its
answer never comes, a compactor forgets what it holds. Whoever died comes back at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from common.ids import call_id
from common.metadata.changes import AddFiles, Applied
from common.metadata.memory import MemoryStore
from common.metadata.memory_keyspace import MemoryKeyspace
from common.metadata.ports import TabletStore
from common.model.file import DataFile
from common.model.group import Service
from common.model.keys import KeyType, encode_key
from common.model.outcome import AttemptEnd
from common.model.table import TableSettings
from common.model.tablet import PLUS_INFINITY, Tablet
from common.settings import CoordinatorSettings, Settings
from common.wire import Assignment
from tests.support.flaky import Fault, FlakyKeyspace, Point
from tests.support.request_shell import TABLE, Cluster, Shell, commit_of
from tests.support.scenario import (
    FIVE,
    INPUTS_MAX,
    NEW,
    RESULTS,
    SCRIPT,
    SPANS,
    Names,
    merged,
    numbered,
)
from tests.support.scripted import Span, span_of

PULSE_S = 0.1
"""The clock goes on by so much whenever the compactor beats."""
SETTINGS = Settings(
    coordinator=CoordinatorSettings(tick_s=0.003, adopt_grace_s=1.0, backoff_base_s=0.1),
    services={"scenario": Service(name="scenario", planner="scripted", options=SCRIPT)},
)
SCENARIO = replace(TABLE, settings=TableSettings(service="scenario", max_files=INPUTS_MAX))
TELL_MAX_S = 20.0

JobSpan = tuple[str, Span]
"""A job: its kind, and the first and last key of its inputs."""
FIVE_SPANS = tuple(("USER", merged(inputs)) for inputs in FIVE)
WHOLE = ("USER", merged(RESULTS))
OLD, NEWER, NEXT, LAST = (("SYSTEM", SPANS[name]) for name in ("F201", "F341", "F342", "F407"))


class Deaths(NamedTuple):
    """Who dies, at which change of the store (from 1); 0: nobody."""

    victims: Collection[str] = ()
    at: int = 0


NOBODY = Deaths()


def jobs_of(tablet: Tablet) -> set[JobSpan]:
    """Return the jobs that are reserved."""
    return {
        (entry.kind.value, span_of([tablet.files[path] for path in entry.inputs]))
        for entry in tablet.running.values()
    }


def job_of(held: Assignment) -> JobSpan:
    """Return which job somebody holds."""
    return held.job.kind.value, span_of(held.inputs)


def spans_of(tablet: Tablet, paths: Collection[str]) -> set[Span]:
    """Return the spans of some of a tablet's files."""
    return {span_of([tablet.files[path]]) for path in paths}


@dataclass
class Tale(Cluster):
    """One telling. `check` is given the tablet at every beat."""

    deaths: Deaths = NOBODY
    check: Callable[[Tablet], None] = lambda _tablet: None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settings = SETTINGS
        self.keyspace = MemoryKeyspace(self.clock)
        self.store = MemoryStore(keyspace=FlakyKeyspace(self.keyspace, self._of_others))
        self.changes = 0
        self.rows = 0
        self.lives = 1
        self.held: list[Assignment] = []
        self.handed: Counter[JobSpan] = Counter()
        self.dropped: list[JobSpan] = []
        self.taken_back = 0
        self.gates: set[JobSpan] = set()
        self.shell: Shell | None = None
        self._died = asyncio.Event()
        self._forgets = False

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
        if self.changes != self.deaths.at:
            return False
        self._forgets = "compactor" in self.deaths.victims
        if "coordinator" in self.deaths.victims:
            self._died.set()
        return self._died.is_set()

    # ------------------------------------------------------------- lives

    async def tell(self) -> None:
        """Tell the story to its end."""
        await self.create(SCENARIO, splits=())
        lives = asyncio.create_task(self._live())
        try:
            async with asyncio.timeout(TELL_MAX_S):
                for act, goal in STEPS:
                    await act(self)
                    while not await goal(self):
                        assert not lives.done(), lives
                        await self._pulse()
        finally:
            lives.cancel()
            await asyncio.gather(lives, return_exceptions=True)

    async def _live(self) -> None:
        while True:
            life, death = (
                asyncio.create_task(self._one_life()),
                asyncio.create_task(self._died.wait()),
            )
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

    async def _pulse(self) -> None:
        """Let the compactor beat, take what there is, and commit what it may."""
        self.clock.advance(PULSE_S)
        if self._forgets:
            self._forgets = False
            self.dropped += [job_of(held) for held in self.held]
            self.held.clear()
            self.lives += 1
        if self.shell is not None:
            self.shell.incarnation = f"i{self.lives}"
            await self._or_death(self._take(self.shell))
        for held in list(self.held):
            if job_of(held) in self.gates:
                await self._commit(held)
        self.check(await self.tablet())
        await asyncio.sleep(0.001)

    async def _take(self, it: Shell) -> None:
        for attempt in await it.beat(*(held.reservation.attempt for held in self.held)):
            self.taken_back += 1
            (gone,) = (held for held in self.held if held.reservation.attempt == attempt)
            it.report(gone, AttemptEnd.CANCELLED, "it was taken back")
        if (taken := await it.take(wait_max_s=0.002)) is not None:
            self.handed[job_of(taken)] += 1

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
        outcome = await self.store.apply(commit_of(held))
        if not self._forgets:
            assert isinstance(outcome, Applied), outcome
            self.held.remove(held)
            if self.shell is not None:
                self.held.append(held)
                self.shell.report(held, AttemptEnd.COMMITTED)

    # -------------------------------------------------------------- acts

    async def come(self, names: Names) -> None:
        """Add files."""
        self.rows += len(names)
        files = tuple(
            DataFile(
                path=f"{name}.parquet",
                size_bytes=1000,
                rows=1,
                key_min=encode_key([SPANS[name][0]], (KeyType.INT,)),
                key_max=encode_key([SPANS[name][1]], (KeyType.INT,)),
                added_at_s=self.clock.now_s(),
            )
            for name in sorted(names)
        )
        change = AddFiles(table="t1", call=call_id(self.clock), files={PLUS_INFINITY: files})
        outcome = await self.store.apply(change)
        assert isinstance(outcome, Applied), outcome

    async def over(self) -> bool:
        """Return whether the request has ended."""
        return (await self.request("r1")).state.ended

    async def at_rest(self) -> bool:
        """Return whether one file and nothing else is left."""
        tablet = await self.tablet()
        one = spans_of(tablet, tablet.files) == {SPANS["F407"]} and not tablet.running
        return one and await self.is_clean() and not self.held


def _open(*jobs: JobSpan) -> Callable[[Tale], Awaitable[None]]:
    async def act(tale: Tale) -> None:
        tale.gates.update(jobs)

    return act


def _seen(goal: Callable[[Tablet], bool]) -> Callable[[Tale], Awaitable[bool]]:
    async def seen(tale: Tale) -> bool:
        return goal(await tale.tablet())

    return seen


def _selected(tablet: Tablet) -> set[Span]:
    return set() if tablet.selection is None else spans_of(tablet, tablet.selection.files)


STEPS: tuple[tuple[Callable[[Tale], Awaitable[None]], Callable[[Tale], Awaitable[bool]]], ...] = (
    (lambda tale: tale.come(numbered(1, 200)), _seen(lambda seen: OLD in jobs_of(seen))),
    (lambda tale: tale.submit("r1"), _seen(lambda seen: bool(seen.waiting or seen.selection))),
    (_open(OLD), _seen(lambda seen: seen.selection is not None)),
    (_open(), _seen(lambda seen: jobs_of(seen) >= set(FIVE_SPANS))),
    (lambda tale: tale.come(NEW), _seen(lambda seen: NEWER in jobs_of(seen))),
    (_open(*FIVE_SPANS), _seen(lambda seen: _selected(seen) == {span for _, span in FIVE_SPANS})),
    (_open(), _seen(lambda seen: WHOLE in jobs_of(seen))),
    (_open(NEWER), _seen(lambda seen: NEXT in jobs_of(seen))),
    (_open(WHOLE), Tale.over),
    (_open(NEXT, LAST), Tale.at_rest),
)
"""What happens, and what is waited for before the next thing happens."""
