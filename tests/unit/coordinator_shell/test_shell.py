"""The shell over the memory store: from an added file to a job in a compactor's hand."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest

from common.metadata.changes import (
    AddFiles,
    Applied,
    CommitAttempt,
    CreateTable,
)
from common.model.file import DataFile
from common.model.outcome import AttemptEnd, RowCounts
from common.model.table import Column, Table
from common.model.tablet import PLUS_INFINITY, Analysis, Record, TabletId
from common.runtime import call_id
from common.settings import CoordinatorSettings, Settings
from common.wire import (
    Assignment,
    AttemptReport,
    Heartbeat,
    TakeRequest,
)
from coordinator.context import ShellContext
from coordinator.core.scans import needs_look
from coordinator.core.state import CoordinatorState
from coordinator.registry import planner_for
from coordinator.scan.scanner import Scanner
from coordinator.service import CoordinatorService
from coordinator.store_watch import take_lead
from tests.support.memory_store import MemoryStore
from tests.support.patience import PATIENCE_S
from tests.support.predictable import CountedIds, ManualClock

pytestmark = pytest.mark.unit
TABLET = TabletId("t1", PLUS_INFINITY)
TABLE = Table(
    id="t1", name="events", location="file:///data/events", schema=(Column("x", "int64"),)
)


@dataclass
class Shell:
    """A coordinator's shell without Ray."""

    store: MemoryStore
    clock: ManualClock
    service: CoordinatorService
    scanner: Scanner
    logged: list[str]

    async def beat(self, compactor: str = "c1", *attempts: str) -> None:
        await self.service.beat(
            Heartbeat(compactor=compactor, incarnation="i1", group="default", node="n", slots=2)
        )

    async def take(self, name: str = "take-1", wait_max_s: float = PATIENCE_S) -> Assignment | None:
        request = TakeRequest(
            take=name, compactor="c1", incarnation="i1", group="default", wait_max_s=wait_max_s
        )
        return await self.service.take(request)


@asynccontextmanager
async def shell(
    store: MemoryStore | None = None, state: CoordinatorState | None = None
) -> AsyncIterator[Shell]:
    """Run a shell's loops until the block ends."""
    clock = ManualClock()
    store = store or MemoryStore(clock)
    logged: list[str] = []

    def log(event: str, **_fields: object) -> None:
        logged.append(event)

    scanner = Scanner(store, planner_for(Settings()), log)
    context = ShellContext(store, clock, CountedIds("a"), log, "coord-1")
    state = state or CoordinatorState(CoordinatorSettings())
    service = CoordinatorService(state, context, scanner)
    scanner.attach(service.submit)
    await take_lead(store, scanner, "coord-1", log)
    loops = [
        asyncio.create_task(loop)
        for loop in (
            scanner.plan_forever(),
            scanner.follow_forever(),
            scanner.refresh_tables_forever(),
        )
    ]
    try:
        yield Shell(store, clock, service, scanner, logged)
        assert not service.failed.done(), service.failed
    finally:
        for loop in loops:
            loop.cancel()
        await service.stop()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*loops, return_exceptions=True)


def some_files(count: int, size_bytes: int = 100) -> tuple[DataFile, ...]:
    return tuple(
        DataFile(path=f"f{number}.parquet", size_bytes=size_bytes, rows=10)
        for number in range(count)
    )


async def with_files(store: MemoryStore, count: int) -> None:
    assert isinstance(await store.apply(CreateTable(table=TABLE)), Applied)
    files = {PLUS_INFINITY: some_files(count)}
    added = await store.apply(AddFiles(table="t1", call=call_id(ManualClock()), files=files))
    assert isinstance(added, Applied), added


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something has become true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def record_of(store: MemoryStore) -> Record:
    (record,) = await store.records([TABLET])
    assert record is not None
    return record


def commit_of(assignment: Assignment) -> CommitAttempt:
    reservation = assignment.reservation
    output = DataFile(path=reservation.output_path(0), size_bytes=500, rows=50, job=reservation.job)
    counts = RowCounts(rows_in=50, rows_out=50)
    return CommitAttempt(
        tablet=assignment.job.tablet, attempt=reservation.attempt, outputs=(output,), counts=counts
    )


def test_files_added_before_the_start_are_found_reserved_and_handed_out() -> None:
    async def story() -> None:
        store = MemoryStore(ManualClock())
        await with_files(store, 5)
        async with shell(store) as it:
            await it.beat()
            assignment = await it.take()
            assert assignment is not None
            assert [file.path for file in assignment.inputs] == [f"f{n}.parquet" for n in range(5)]
            tablet = await store.tablet(TABLET)
            assert tablet is not None
            assert list(tablet.running) == [assignment.reservation.attempt]

    asyncio.run(story())


def test_a_file_added_while_a_compactor_waits_is_handed_out_by_the_feed() -> None:
    async def story() -> None:
        async with shell() as it:
            await it.beat()
            waiting = asyncio.create_task(it.take())
            await asyncio.sleep(0.05)
            await with_files(it.store, 5)
            assert (await waiting) is not None

    asyncio.run(story())


def test_a_commit_brings_the_tablet_to_rest_and_the_record_says_so() -> None:
    async def story() -> None:
        store = MemoryStore(ManualClock())
        await with_files(store, 5)
        async with shell(store) as it:
            await it.beat()
            assignment = await it.take()
            assert assignment is not None
            assert isinstance(await store.apply(commit_of(assignment)), Applied)
            it.service.report(
                AttemptReport(
                    compactor="c1",
                    attempt=assignment.reservation.attempt,
                    end=AttemptEnd.COMMITTED,
                )
            )
            assert await it.take("take-2", wait_max_s=0.2) is None
            async with asyncio.timeout(PATIENCE_S):
                while (record := await record_of(store)).analysis is not Analysis.STABLE:
                    await asyncio.sleep(0.01)
            assert not needs_look(record, TABLE)

    asyncio.run(story())


def test_the_same_take_twice_gets_the_same_assignment() -> None:
    async def story() -> None:
        store = MemoryStore(ManualClock())
        await with_files(store, 5)
        async with shell(store) as it:
            await it.beat()
            one, two = await asyncio.gather(it.take("same"), it.take("same"))
            assert one == two
            again = await it.take("same")
            assert again is not None
            assert one is not None
            assert again.reservation.attempt == one.reservation.attempt

    asyncio.run(story())


def test_a_failed_attempt_leaves_its_inputs_and_is_explained() -> None:
    async def story() -> None:
        store = MemoryStore(ManualClock())
        await with_files(store, 5)
        async with shell(store) as it:
            await it.beat()
            assignment = await it.take()
            assert assignment is not None
            failed = AttemptReport(
                compactor="c1",
                attempt=assignment.reservation.attempt,
                end=AttemptEnd.FAILED,
                error_class="InputError",
                cause="f3.parquet is no Parquet file",
            )
            it.service.report(failed)
            async with asyncio.timeout(PATIENCE_S):
                while (tablet := await store.tablet(TABLET)) is None or tablet.running:
                    await asyncio.sleep(0.01)
            assert sorted(tablet.files) == [f"f{n}.parquet" for n in range(5)]
            assert tablet.record.failures == 1
            assert await it.take("take-2", wait_max_s=0.1) is None

    asyncio.run(story())


def test_a_take_whose_time_is_up_gets_nothing_and_holds_nothing() -> None:
    async def story() -> None:
        async with shell() as it:
            await it.beat()
            assert await it.take(wait_max_s=0.05) is None
            await with_files(it.store, 5)
            await until(lambda: it.scanner.planned > 0)
            tablet = await it.store.tablet(TABLET)
            assert tablet is not None
            assert not tablet.running

    asyncio.run(story())
