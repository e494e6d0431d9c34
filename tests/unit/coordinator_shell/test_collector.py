"""The collector: nothing goes before its grace, under a pin, or while a tablet holds it."""

import asyncio

import pytest

from common.clock import ManualClock
from common.errors import RewriteError
from common.ids import call_id
from common.metadata.changes import AddFiles, Applied, Commit, CreateTable, Reserve
from common.metadata.memory import MemoryStore
from common.metadata.ports import GarbageEntry, PinEntry
from common.metadata.upkeep_changes import Pin, StampGarbage, Unpin
from common.model.file import DataFile
from common.model.job import Kind
from common.model.outcome import RowCounts
from common.model.table import Column, Table
from common.model.tablet import PLUS_INFINITY, TabletId
from coordinator.collector import Collector, CollectorRules, due

pytestmark = pytest.mark.unit
TABLE = Table(
    id="t1", name="events", location="file:///data/events", schema=(Column("x", "int64"),)
)
TABLET = TabletId("t1", PLUS_INFINITY)
RULES = CollectorRules(grace_s=60.0, clock_skew_max_s=5.0)


class FakeStorage:
    """Files as a set; whose the location is, as a value."""

    def __init__(self, *paths: str) -> None:
        self.paths = set(paths)
        self.owner: str | None = None
        self.fails = False

    async def delete(self, location: str, path: str) -> bool:
        if self.fails:
            raise RewriteError("storage does not answer")
        there = path in self.paths
        self.paths.discard(path)
        return there

    async def store_id(self, location: str) -> str | None:
        return self.owner


@pytest.mark.parametrize(
    ("stamped_s", "pins", "expected"),
    [
        (0.0, [], False),
        (950.0, [], False),
        (940.0, [], True),
        (900.0, [(800.0, 2000.0)], False),
        (900.0, [(904.0, 2000.0)], False),
        (900.0, [(905.0, 2000.0)], True),
        (900.0, [(800.0, 999.0)], True),
    ],
)
def test_due(stamped_s: float, pins: list[tuple[float, float]], expected: bool) -> None:
    entry = GarbageEntry(path="a", stamped_s=stamped_s)
    entries = [PinEntry(pin="p", since_s=since, until_s=until) for since, until in pins]
    assert due(entry, entries, 1000.0, RULES) is expected


async def compacted(store: MemoryStore) -> None:
    """Leave two replaced files in the garbage."""
    await store.apply(CreateTable(table=TABLE))
    files = tuple(DataFile(path=f"f{n}.parquet", size_bytes=9, rows=1) for n in range(2))
    added = AddFiles(table="t1", call=call_id(ManualClock()), files={PLUS_INFINITY: files})
    assert isinstance(await store.apply(added), Applied)
    reserve = Reserve(
        tablet=TABLET,
        attempt="att-1",
        job="job-1",
        kind=Kind.SYSTEM,
        inputs=("f0.parquet", "f1.parquet"),
        output_prefix="_neve/last/job-1-att-1",
        outputs_max=1,
        group="default",
        compactor="c1",
    )
    assert isinstance(await store.apply(reserve), Applied)
    output = DataFile(path="_neve/last/job-1-att-1-0.parquet", size_bytes=9, rows=2)
    counts = RowCounts(rows_in=2, rows_out=2)
    commit = Commit(tablet=TABLET, attempt="att-1", outputs=(output,), counts=counts)
    assert isinstance(await store.apply(commit), Applied)


def collector_of(store: MemoryStore, storage: FakeStorage) -> Collector:
    return Collector(store, storage, RULES, lambda _event, **_fields: None)


def test_replaced_files_go_after_the_grace_and_not_before() -> None:
    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage("f0.parquet", "f1.parquet")
        await compacted(store)
        collector = collector_of(store, storage)
        assert (await collector.collect(TABLE)).stamped == 2
        clock.advance(59)
        assert (await collector.collect(TABLE)).deleted == 0
        assert storage.paths == {"f0.parquet", "f1.parquet"}
        clock.advance(1)
        assert (await collector.collect(TABLE)).deleted == 2
        assert not storage.paths
        assert not await store.garbage("t1")

    asyncio.run(story())


def test_a_reader_that_began_before_the_stamp_keeps_the_files() -> None:
    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage("f0.parquet", "f1.parquet")
        await compacted(store)
        await store.apply(Pin(table="t1", pin="reader", lease_s=1000))
        collector = collector_of(store, storage)
        await collector.collect(TABLE)
        clock.advance(100)
        assert (await collector.collect(TABLE)).waiting == 2
        await store.apply(Unpin(table="t1", pin="reader"))
        assert (await collector.collect(TABLE)).deleted == 2

    asyncio.run(story())


def test_the_pin_of_a_reader_that_died_goes_one_grace_after_its_lease() -> None:
    async def story() -> None:
        clock = ManualClock()
        store = MemoryStore(clock)
        await compacted(store)
        await store.apply(Pin(table="t1", pin="dead", lease_s=100))
        await store.apply(Pin(table="t1", pin="alive", lease_s=1000))
        collector = collector_of(store, FakeStorage())
        clock.advance(159)
        await collector.collect(TABLE)
        assert {each.pin for each in await store.pins("t1")} == {"dead", "alive"}
        clock.advance(2)
        await collector.collect(TABLE)
        assert {each.pin for each in await store.pins("t1")} == {"alive"}

    asyncio.run(story())


def test_a_file_that_a_tablet_holds_is_kept_and_stamped_back() -> None:
    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage("f0.parquet", "f1.parquet")
        await compacted(store)
        held = DataFile(path="f9.parquet", size_bytes=9, rows=1)
        added = AddFiles(table="t1", call=call_id(clock), files={PLUS_INFINITY: (held,)})
        assert isinstance(await store.apply(added), Applied)
        storage.paths.add("f9.parquet")
        await store.apply(StampGarbage(table="t1", paths=("f0.parquet", "f1.parquet")))
        collector = collector_of(store, storage)
        clock.advance(100)
        done = await collector.collect(TABLE)
        assert done.deleted == 2
        assert "f9.parquet" in storage.paths

    asyncio.run(story())


def test_nothing_is_deleted_in_a_location_of_another_store() -> None:
    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage("f0.parquet", "f1.parquet")
        storage.owner = "another"
        await compacted(store)
        collector = collector_of(store, storage)
        await collector.collect(TABLE)
        clock.advance(100)
        assert (await collector.collect(TABLE)).deleted == 0
        storage.owner = await store.store_id()
        assert (await collector.collect(TABLE)).deleted == 2

    asyncio.run(story())


def test_a_storage_that_fails_keeps_the_entry_for_the_next_round() -> None:
    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage("f0.parquet", "f1.parquet")
        await compacted(store)
        collector = collector_of(store, storage)
        await collector.collect(TABLE)
        clock.advance(100)
        storage.fails = True
        assert (await collector.collect(TABLE)).deleted == 0
        assert len(await store.garbage("t1")) == 2
        storage.fails = False
        assert (await collector.collect(TABLE)).deleted == 2

    asyncio.run(story())
