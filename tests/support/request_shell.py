"""A coordinator's shell over the memory store, a compactor that commits at once, and requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from common.metadata.changes import (
    AddFiles,
    Applied,
    Change,
    CommitAttempt,
    CreateTable,
    MoveRequest,
    Outcome,
    SubmitRequest,
)
from common.metadata.store import TabletStore
from common.model.file import DataFile
from common.model.outcome import AttemptEnd, RowCounts
from common.model.request import Request, RequestProgressInTablet, RequestState
from common.model.table import Column, Table
from common.model.tablet import PLUS_INFINITY, Tablet, TabletId
from common.runtime import call_id
from common.settings import Settings
from common.wire import (
    Assignment,
    AttemptProgress,
    AttemptReport,
    Heartbeat,
    TakeRequest,
)
from coordinator.context import ShellContext
from coordinator.core.requests import meets_tablet, tablet_progress
from coordinator.store_watch import take_lead
from coordinator.wiring import CoordinatorParts, assemble
from tests.support.memory_store import MemoryStore
from tests.support.patience import PATIENCE_S
from tests.support.predictable import CountedIds, ManualClock

TABLE = Table(
    id="t1",
    name="events",
    location="file:///data/events",
    schema=(Column("x", "int64"),),
    key=("x",),
)
SPLITS = (b"\x40", b"\x80")
ENDS = (*SPLITS, PLUS_INFINITY)


@dataclass
class Cluster:
    """A store, and the coordinators that come and go over it."""

    clock: ManualClock = field(default_factory=ManualClock)
    settings: Settings = field(default_factory=Settings)
    takes: int = 0
    started: int = 0

    def __post_init__(self) -> None:
        self.store: TabletStore = MemoryStore(self.clock)
        self.logged: list[tuple[str, dict[str, object]]] = []

    def store_of_coordinator(self) -> TabletStore:
        """Return the store as a coordinator reaches it."""
        return self.store

    async def apply(self, change: Change) -> None:
        outcome: Outcome = await self.store.apply(change)
        assert isinstance(outcome, Applied), outcome

    async def create(self, table: Table = TABLE, splits: tuple[bytes, ...] = SPLITS) -> None:
        made = await self.store.apply(CreateTable(table=table, splits=splits))
        assert isinstance(made, Applied), made

    async def add(self, end: bytes, *names: str, size_bytes: int = 100) -> None:
        starts = dict(zip(ENDS, (b"", *SPLITS), strict=True))
        files = tuple(
            DataFile(
                path=f"{name}.parquet",
                size_bytes=size_bytes,
                rows=10,
                key_min=starts[end] + b"\x01",
                key_max=end if end != PLUS_INFINITY else b"\xf0",
                added_at_s=self.clock.now_s(),
            )
            for name in names
        )
        added = await self.store.apply(
            AddFiles(table="t1", call=call_id(self.clock), files={end: files})
        )
        assert isinstance(added, Applied), added

    async def submit(self, request: str, **given: object) -> None:
        asked = Request(id=request, table="t1", **given)  # type: ignore[arg-type]  # facts by name
        await self.apply(SubmitRequest(request=asked))

    async def request(self, request: str) -> Request:
        if (found := await self.store.request("t1", request)) is None:
            raise AssertionError(request)
        return found

    async def tablet(self, end: bytes = PLUS_INFINITY) -> Tablet:
        found = await self.store.tablet(TabletId("t1", end))
        assert found is not None
        return found

    async def selected(self) -> bool:
        return all(tablet.selection for tablet in await self.tablets())

    async def tablets(self) -> list[Tablet]:
        return list(await self.store.read_range("t1"))

    async def progress(self, request: str) -> tuple[RequestProgressInTablet, ...]:
        """Return how far a request has come in each tablet of its range."""
        found = await self.request(request)
        others = await self.store.open_requests("t1")
        return tuple(
            tablet_progress(found, tablet, others)
            for tablet in await self.tablets()
            if meets_tablet(found, tablet.bounds)
        )

    async def is_clean(self) -> bool:
        """Return whether no request has left anything behind."""
        read = await self.tablets()
        left = [each for each in read if each.selection or each.waiting or each.done]
        return not left and not await self.store.open_requests("t1")

    @asynccontextmanager
    async def coordinator(self) -> AsyncIterator[Shell]:
        """Run a coordinator; it is killed when the block ends, wherever it is."""
        self.started += 1
        name = f"coord-{self.started}"

        def log(event: str, **fields: object) -> None:
            self.logged.append((event, fields))

        store = self.store_of_coordinator()
        context = ShellContext(store, self.clock, CountedIds(f"{self.started}-"), log, name)
        parts = assemble(self.settings, context)
        await take_lead(store, parts.scanner, name, log)
        loops = [asyncio.create_task(loop) for loop in parts.loops(self.settings)]
        try:
            yield Shell(self, parts)
            for loop in loops:
                assert not loop.done(), loop
            assert not parts.service.failed.done(), parts.service.failed
        finally:
            for loop in loops:
                loop.cancel()
            await parts.service.stop()
            await asyncio.gather(*loops, return_exceptions=True)


@dataclass
class Shell:
    """A running coordinator, and the one compactor that it knows."""

    cluster: Cluster
    parts: CoordinatorParts
    held: list[Assignment] = field(default_factory=list)
    incarnation: str = "i1"

    async def beat(self, *attempts: str) -> tuple[str, ...]:
        """Return which of these attempts shall not go on."""
        listed = tuple(AttemptProgress(attempt=attempt, state="rewriting") for attempt in attempts)
        beat = Heartbeat(
            compactor="c1",
            incarnation=self.incarnation,
            group="default",
            node="n",
            slots=100,
            attempts=listed,
        )
        return (await self.parts.service.beat(beat)).cancel

    async def take(self, wait_max_s: float = PATIENCE_S) -> Assignment | None:
        self.cluster.takes += 1
        await self.beat(*(held.reservation.attempt for held in self.held))
        taken = await self.parts.service.take(
            TakeRequest(
                take=f"take-{self.cluster.takes}",
                compactor="c1",
                incarnation=self.incarnation,
                group="default",
                wait_max_s=wait_max_s,
            )
        )
        self.held += [] if taken is None else [taken]
        return taken

    async def commit(self, taken: Assignment) -> None:
        """Commit a job that was taken: one output of all its inputs."""
        outcome = await self.cluster.store.apply(commit_of(taken))
        assert isinstance(outcome, Applied), outcome
        self.report(taken, AttemptEnd.COMMITTED)

    def report(
        self,
        taken: Assignment,
        end: AttemptEnd,
        cause: str = "",
        error_class: str = "InputError",
    ) -> None:
        """Tell the coordinator how a job ended."""
        self.held.remove(taken)
        self.parts.service.report(
            AttemptReport(
                compactor="c1",
                attempt=taken.reservation.attempt,
                end=end,
                error_class=error_class if end is AttemptEnd.FAILED else "",
                cause=cause,
            )
        )

    async def work(self, *requests: str) -> None:
        """Take and commit jobs until some requests have ended."""
        async with asyncio.timeout(2 * PATIENCE_S):
            for request in requests:
                while not (await self.cluster.request(request)).state.ended:
                    taken = await self.take(wait_max_s=0.02)
                    if taken is not None:
                        await self.commit(taken)

    async def finish(self, request: str) -> RequestState:
        """Take and commit jobs until a request, the last one, has left nothing; return how."""
        await self.work(request)
        return await ended(self.cluster, request)


def commit_of(taken: Assignment) -> CommitAttempt:
    """Return the commit of a job: one output of all its inputs."""
    reservation, inputs = taken.reservation, taken.inputs
    rows = sum(file.rows for file in inputs)
    keys = [key for file in inputs for key in (file.key_min, file.key_max) if key is not None]
    output = replace(
        inputs[0],
        path=reservation.output_path(0),
        key_min=min(keys),
        key_max=max(keys),
        size_bytes=sum(file.size_bytes for file in inputs),
        rows=rows,
        job=reservation.job,
        request=reservation.request,
    )
    return CommitAttempt(
        tablet=taken.job.tablet,
        attempt=reservation.attempt,
        outputs=(output,),
        counts=RowCounts(rows_in=rows, rows_out=rows),
    )


async def filled(count: int = 2) -> Cluster:
    """Return a cluster with three tablets of some files; of two, no system job is wanted."""
    cluster = Cluster()
    await cluster.create()
    for number, end in enumerate(ENDS):
        await cluster.add(end, *(f"{number}-{index}" for index in range(count)))
    return cluster


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run a test's story, for a bounded time."""
    asyncio.run(asyncio.wait_for(story, 4 * PATIENCE_S))


def cancelling(request: str = "r1") -> MoveRequest:
    """Return the change by which a user cancels a request."""
    return MoveRequest(
        table="t1", request=request, state=RequestState.CANCELLING, cause="enough of it"
    )


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something has become true."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.005)


async def ended(cluster: Cluster, request: str) -> RequestState:
    """Wait until a request has ended and left nothing; return how."""

    async def over() -> bool:
        return (await cluster.request(request)).state.ended and await cluster.is_clean()

    await until(over)
    return (await cluster.request(request)).state
