"""The full scan over the memory store: what the feed missed is found, and no more is held."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from common.errors import UnavailableError
from common.metadata.changes import AddFiles, CreateTable, WriteAnalysis
from common.model.file import DataFile
from common.model.job import Kind, job_id
from common.model.table import Table
from common.model.tablet import Analysis, TabletId
from common.runtime import call_id
from common.settings import Settings
from coordinator.context import ShellContext
from coordinator.core.maintenance import KindRules, OperationStatistics
from coordinator.core.scans import TabletSpan
from coordinator.maintenance import REFRESH_S, OwnKind, OwnMaintenance
from coordinator.registry import planner_for
from coordinator.scan import full_scan, scanner
from coordinator.scan.full_scan import (
    FullScan,
    LocalRangeScans,
    RangeFindings,
    ScanRange,
)
from coordinator.scan.scanner import Scanner
from coordinator.store_watch import take_lead
from tests.support.memory_store import MemoryStore
from tests.support.patience import PATIENCE_S
from tests.support.predictable import CountedIds, ManualClock
from tests.support.request_shell import TABLE
from tests.support.sim_loop import EPOCH_S, World
from tests.support.thirty_tablets import ENDS, applied, store_with_table

pytestmark = pytest.mark.unit
PLAN = planner_for(Settings())


class Queue:
    """What is queued, as far as a scan wants to know it."""

    def __init__(self, queued: dict[bytes, tuple[str, ...]] | None = None) -> None:
        self.queued = queued or {}
        self.deferred: set[bytes] = set()

    def queued_ends(self, table: str) -> list[bytes]:
        assert table == TABLE.id
        return list(self.queued)

    def queued_ids(self, tablet: TabletId) -> tuple[str, ...]:
        return self.queued.get(tablet.end, ())

    def is_deferred(self, tablet: TabletId) -> bool:
        return tablet.end in self.deferred


class Failing:
    """Scans that fail a few times for some ranges, and then scan."""

    def __init__(self, inner: LocalRangeScans, failures: dict[bytes | None, int]) -> None:
        self.inner, self.failures = inner, failures
        self.asked: list[TabletSpan] = []
        self.under_way = self.most = 0

    async def scan(self, scan_range: ScanRange) -> RangeFindings:
        self.asked.append(scan_range.span)
        if self.failures.get(scan_range.span.after, 0):
            self.failures[scan_range.span.after] -= 1
            raise UnavailableError("the node of the task has died")
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        scanned = await self.inner.scan(scan_range)
        self.under_way -= 1
        return scanned


class Scans:
    """A full scan and the scanner that it fills."""

    def __init__(self, store: MemoryStore, queue: Queue) -> None:
        self.store, self.logged = store, list[str]()
        self.scanner = Scanner(store, PLAN, self.log)
        self.here = LocalRangeScans(store, PLAN)
        self.full = FullScan(store, self.scanner, queue, self.here, self.log)

    def log(self, event: str, **_fields: object) -> None:
        self.logged.append(event)

    def take_found(self) -> list[bytes]:
        """Return what was found, and let the scanner forget it."""
        found: list[bytes] = []
        while batch := self.scanner._next_batch(self.scanner._own):
            found += [tablet.end for tablet in batch]
        return sorted(found)


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story

    asyncio.run(bounded())


async def stored(*busy: int) -> MemoryStore:
    """Return a store with a table of 30 tablets, of which some want a job."""
    clock = ManualClock()
    store = await store_with_table(clock)
    for number in busy:
        end = ENDS[number - 1]
        files = tuple(
            DataFile(path=path, size_bytes=100, rows=10, key_min=end, key_max=end)
            for path in paths(number)
        )
        await applied(store, AddFiles(table="t1", call=call_id(clock), files={end: files}))
    return store


def paths(number: int) -> list[str]:
    return [f"f{number}-{index}.parquet" for index in range(5)]


def wanted_job(number: int) -> str:
    """Return the id of the job that is wanted in a busy tablet."""
    tablet = TabletId("t1", ENDS[number - 1])
    return job_id(tablet, Kind.SYSTEM, None, paths(number), ())


def test_only_what_differs_from_the_queue_is_looked_at_again() -> None:
    async def story() -> None:
        store = await stored(3, 7, 12)
        queue = Queue({ENDS[6]: (wanted_job(7),), ENDS[11]: ("old-job",), ENDS[20]: ("unwanted",)})
        scans = Scans(store, queue)
        await scans.full.scan_table(TABLE)
        assert scans.take_found() == [ENDS[2], ENDS[11], ENDS[20]]
        queue.queued = {ENDS[number - 1]: (wanted_job(number),) for number in (3, 7, 12)}
        await scans.full.scan_table(TABLE)
        assert scans.take_found() == []
        assert (scans.full.counts.scans, scans.full.counts.tablets) == (2, 60)

    run(story())


def test_a_tablet_whose_jobs_wait_for_a_window_is_not_looked_at() -> None:
    async def story() -> None:
        store, queue = await stored(3, 7, 12), Queue({ENDS[11]: ("old-job",)})
        queue.deferred = {ENDS[2], ENDS[11]}
        scans = Scans(store, queue)
        await scans.full.scan_table(TABLE)
        assert scans.take_found() == [ENDS[6], ENDS[11]]

    run(story())


def test_a_tablet_that_only_the_store_calls_deferred_is_looked_at() -> None:
    """A fail-over takes back that it was planned, with the reservation of its job."""

    async def story() -> None:
        store, queue = await stored(3, 7, 12), Queue()
        tablets = [TabletId("t1", ENDS[number - 1]) for number in (3, 7, 12)]
        for tablet, record in zip(tablets, await store.records(tablets), strict=True):
            assert record is not None
            note = WriteAnalysis(
                tablet=tablet,
                analysis=Analysis.DEFERRED,
                version=record.version,
                settings_version=TABLE.settings_version,
            )
            await applied(store, note)
        scans = Scans(store, queue)
        queue.deferred = {ENDS[2], ENDS[6]}

        await scans.full.scan_table(TABLE)

        assert scans.take_found() == [ENDS[11]]

    run(story())


def test_a_dropped_tablet_with_queued_jobs_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_scan, "RANGE_TABLETS", 10)

    async def story() -> None:
        scans = Scans(await stored(), Queue({b"\x07\x01": ("job",), b"\xfe": ("job",)}))
        await scans.full.scan_table(TABLE)
        assert scans.take_found() == [b"\x07\x01", b"\xfe"]

    run(story())


def test_ranges_run_side_by_side_and_one_that_fails_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(full_scan, "RANGE_TABLETS", 7)
    monkeypatch.setattr(full_scan, "RETRY_PAUSE_S", 0.0)

    async def story() -> None:
        scans = Scans(await stored(3, 12, 20, 30), Queue({ENDS[8]: ("unwanted",)}))
        elsewhere = Failing(scans.here, {None: 1, ENDS[13]: 2})
        scans.full.use(elsewhere, 3)
        await scans.full.scan_table(TABLE)
        assert scans.take_found() == [ENDS[2], ENDS[8], ENDS[11], ENDS[19], ENDS[29]]
        assert (scans.full.counts.ranges, scans.full.counts.ranges_failed) == (8, 3)
        assert elsewhere.most > 1
        assert scans.full.counts.tablets == 30

    run(story())


def test_work_of_the_first_range_waits_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a coordinator that starts hands out long before it has seen the last tablet."""
    monkeypatch.setattr(full_scan, "RANGE_TABLETS", 10)

    async def story() -> None:
        scans, others = Scans(await stored(3, 12, 30), Queue()), asyncio.Event()

        class SlowBeyondTheFirst:
            async def scan(self, scan_range: ScanRange) -> RangeFindings:
                if scan_range.span.after is not None:
                    await others.wait()
                return await scans.here.scan(scan_range)

        scans.full.use(SlowBeyondTheFirst(), 2)
        scan = asyncio.create_task(scans.full.scan_table(TABLE))
        while not scans.scanner.waiting:
            await asyncio.sleep(0)
        assert scans.take_found() == [ENDS[2]]
        others.set()
        await scan
        assert scans.take_found() == [ENDS[11], ENDS[29]]

    run(story())


def test_a_piece_that_goes_on_failing_is_left_and_retires_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(full_scan, "RANGE_TABLETS", 10)
    monkeypatch.setattr(full_scan, "RETRY_PAUSE_S", 0.0)

    async def story() -> None:
        queue = Queue({ENDS[14]: ("queued",), ENDS[25]: ("unwanted",)})
        scans = Scans(await stored(3, 12), queue)
        scans.full.use(Failing(scans.here, {ENDS[9]: 100}), 2)
        await scans.full.scan_table(TABLE)
        assert scans.take_found() == [ENDS[2], ENDS[25]]
        assert scans.full.counts.ranges_failed == full_scan.TRIES_MAX
        assert scans.logged.count("piece of a full scan failed") == full_scan.TRIES_MAX

    run(story())


def test_a_scan_waits_while_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_scan, "RANGE_TABLETS", 5)
    monkeypatch.setattr(scanner, "FOUND_MAX", 8)

    async def story() -> None:
        scans = Scans(await stored(*range(1, 31)), Queue())
        scan = asyncio.create_task(scans.full.scan_table(TABLE))
        most, found = 0, list[bytes]()
        while not scan.done() or scans.scanner.waiting:
            for _ in range(100):
                await asyncio.sleep(0)
            most = max(most, scans.scanner.waiting)
            found += scans.take_found()
        assert sorted(found) == list(ENDS)
        assert 8 <= most <= 8 + 5

    run(story())


def test_tablets_from_the_feed_are_planned_before_those_from_a_scan() -> None:
    async def story() -> None:
        scans = Scans(await stored(), Queue())
        ids = [TabletId("t1", end) for end in ENDS]
        for tablet in ids[:20]:
            scans.scanner.found(tablet)
        scans.scanner.ask(ids[25])
        scans.scanner.ask(ids[3])
        scans.scanner.found(ids[25])
        assert scans.scanner._next_batch(scans.scanner._own) == [
            ids[25],
            ids[3],
            *ids[:3],
            *ids[4:20],
        ]
        assert scans.scanner._next_batch(scans.scanner._own) == []

    run(story())


def test_the_first_scan_is_under_way_until_each_table_was_scanned() -> None:
    async def story() -> None:
        scans = Scans(await stored(3), Queue())
        scans.scanner.tables["t1"] = TABLE
        scans.scanner.tables["t2"] = replace(TABLE, id="t2")
        assert scans.full.unscanned_tables == 2
        await scans.full.scan_table(TABLE)
        assert scans.full.unscanned_tables == 1
        assert scans.full.why_no_buffers() == [("t2", "its first scan has not ended")]
        many = {f"n{number}": replace(TABLE, id=f"n{number}") for number in range(2000)}
        scans.scanner.tables.update(many)
        assert scans.full.why_no_buffers() == [("", "the first scan of 2,001 tables has not ended")]
        for table in many:
            del scans.scanner.tables[table]
        del scans.scanner.tables["t2"]
        assert scans.full.unscanned_tables == 0

    run(story())


def test_wishes_for_a_table_join_and_a_table_that_is_gone_is_passed_by() -> None:
    async def story() -> None:
        scans, asked = Scans(await stored(3), Queue()), list[tuple[str, str]]()
        scans.scanner.tables["t1"] = replace(TABLE)
        scans.full.ask_by(lambda operation: asked.append((operation.name, operation.why)))
        for table in ("t1", "t1", "gone"):
            scans.full.look(table)
        scans.full.look("t1", fresh=False, every=True)
        assert [name for name, _ in asked] == ["t1", "t1", "gone", "t1"]
        assert asked[-1][1] == "every tablet shall be planned"
        await scans.full.run(replace(TABLE, id="gone"))
        await scans.full.run(TABLE)
        assert scans.take_found() == [ENDS[2]]
        assert (scans.full.counts.scans, scans.full.counts.planned) == (1, 30)

    run(story())


@pytest.mark.parametrize("interval_s", [60.0, 7.0])
def test_every_tablet_is_looked_at_at_the_start_and_each_interval(interval_s: float) -> None:
    """On simulated time, and no longer apart while the scheduler has a free slot."""
    world, looks = World(1), list[tuple[float, int]]()
    store = MemoryStore(world)
    scans = Scans(store, Queue())

    class Noting:
        async def scan(self, scan_range: ScanRange) -> RangeFindings:
            scanned = await scans.here.scan(scan_range)
            looks.append((world.now_s() - EPOCH_S, scanned.tablets))
            return scanned

    async def life() -> None:
        context = ShellContext(store, world, CountedIds("a"), scans.log, "coord-1")
        full = FullScan(store, scans.scanner, Queue(), Noting(), scans.log)
        upkeep = OwnMaintenance(context, 2, lambda: 0.0)
        kind = OwnKind(
            part="the full scan",
            rules=KindRules(tables_max=1, wait_max_s=interval_s),
            tables=scans.scanner.tables.values,
            run=full.run,
        )
        upkeep.add("analysis", kind)
        full.ask_by(partial(upkeep.ask, "analysis"))
        await store.apply(CreateTable(table=TABLE, splits=ENDS[:-1]))
        await take_lead(store, scans.scanner, "coord-1", scans.log)
        await upkeep.run_forever()

    world.process("coordinator").start(life())
    world.run_until(EPOCH_S + 3.5 * interval_s)
    world.end()
    assert [count for _, count in looks] == [len(ENDS)] * 4
    assert [at_s for at_s, _ in looks] == pytest.approx([n * interval_s for n in range(4)])


def test_long_work_leaves_a_slot_to_work_that_frees_memory() -> None:
    """On simulated time: scans and manifests never end, and then the store's memory fills up."""
    world, begun, used_pct = World(1), list[tuple[str, float]](), [0.0]
    store = MemoryStore(world)
    log = Scans(store, Queue()).log
    context = ShellContext(store, world, CountedIds("a"), log, "coord-1")
    upkeep = OwnMaintenance(context, 3, lambda: used_pct[-1])
    tables = [replace(TABLE, id=f"t{number}") for number in range(9)]

    def add(name: str, lasts_s: float, wait_max_s: float) -> None:
        async def work(_table: Table) -> None:
            begun.append((name, world.now_s() - EPOCH_S))
            await asyncio.sleep(lasts_s)

        rules = KindRules(tables_max=4, wait_max_s=wait_max_s)
        upkeep.add(name, OwnKind(part=name, rules=rules, tables=lambda: tables, run=work))

    known = OperationStatistics(name="t1", data_retained_bytes=9, ram_anchored_bytes=900)
    add("manifest", 1e6, 10.0)
    add("analysis", 1e6, 10.0)
    add("garbage", 1.0, 1000.0)
    coordinator = world.process("coordinator")
    coordinator.start(upkeep.run_forever())
    coordinator.call_later(60.0, upkeep.schedule.ask, "garbage", known, 60.0)
    coordinator.call_later(120.0, used_pct.append, 70.0)
    world.run_until(EPOCH_S + 300.0)
    world.end()
    *long, (last, at_s) = begun
    assert {name for name, _ in long} <= {"manifest", "analysis"}
    assert (len(long), last) == (2, "garbage"), "two slots of three"
    assert 120.0 <= at_s <= 120.0 + REFRESH_S, "at the next poll"
