"""The collector: nothing goes before its grace, under a pin, or while a tablet holds it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import RewriteError
from common.metadata.changes import (
    AddFiles,
    Applied,
    BumpGeneration,
    CommitAttempt,
    CreateTable,
    DropTable,
    ForgetGarbage,
    PinFiles,
    Refused,
    ReleaseAttempt,
    ReserveFiles,
    StampGarbage,
    UnpinFiles,
)
from common.metadata.changes.protocol import into_garbage
from common.metadata.keys import TableKeys
from common.metadata.store_values import GarbageEntry, PinEntry
from common.model.file import DataFile
from common.model.job import Kind
from common.model.outcome import AttemptEnd, RowCounts
from common.model.table import Column, Table, TableState
from common.model.tablet import PLUS_INFINITY, Reservation, TabletId
from common.parquet.foreign_formats import ForeignMark
from common.parquet.location import open_location
from common.parquet.service_files import LocationOwner, write_owner
from common.runtime import Clock, call_id
from coordinator.context import ArrowStorage, TableFaults
from coordinator.core.maintenance import GarbageCounts
from coordinator.core.scans import GarbageRules, is_deletable
from coordinator.storage import garbage_collector as collector_module
from coordinator.storage.garbage_collector import (
    LOOK_LASTS_S,
    CollectedCounts,
    GarbageCollector,
)
from tests.support.memory_store import MemoryStore
from tests.support.other_formats import FORMATS
from tests.support.patience import PATIENCE_S
from tests.support.predictable import ManualClock

pytestmark = pytest.mark.unit
TABLE = Table(
    id="t1", name="events", location="file:///data/events", schema=(Column("x", "int64"),)
)
TABLET = TabletId("t1", PLUS_INFINITY)
RULES = GarbageRules(grace_s=60.0, clock_skew_max_s=5.0)


class FakeStorage:
    """Files as a set; whose the location is, as a value."""

    def __init__(self, *paths: str) -> None:
        self.paths = set(paths)
        self.whose: LocationOwner | None = None
        self.mark: ForeignMark | None = None
        self.fails = False
        self.generation = 0
        self.clock: Clock = ManualClock()
        self.slow_s = 0.0
        """How long the storage's thread stands still before it deletes."""

    async def delete(self, location: str, path: str, until_s: float) -> bool:
        if isinstance(self.clock, ManualClock):
            self.clock.advance(self.slow_s)
        if self.fails or self.clock.now_s() > until_s:
            raise RewriteError("storage does not answer, or too late")
        there = path in self.paths
        self.paths.discard(path)
        return there

    async def owner(self, location: str) -> LocationOwner | None:
        return self.whose

    async def foreign_mark(self, location: str, paths: Sequence[str]) -> ForeignMark | None:
        return self.mark

    async def only_copies(
        self, location: str, outputs: Sequence[str], inputs: Sequence[str]
    ) -> Sequence[str]:
        if self.fails:
            raise RewriteError("storage does not answer")
        return [] if self.paths.issuperset(inputs) else sorted(self.paths.intersection(outputs))


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
def test_garbage_is_deletable_after_its_grace_and_unpinned(
    stamped_s: float, pins: list[tuple[float, float]], expected: bool
) -> None:
    entry = GarbageEntry(path="a", stamped_s=stamped_s)
    entries = [PinEntry(pin="p", since_s=since, until_s=until) for since, until in pins]
    assert is_deletable(entry, entries, 1000.0, RULES) is expected


async def compacted(store: MemoryStore, table: Table = TABLE) -> None:
    """Leave two replaced files in the garbage."""
    await store.apply(CreateTable(table=table))
    files = tuple(DataFile(path=f"f{n}.parquet", size_bytes=9, rows=1) for n in range(2))
    added = AddFiles(table="t1", call=call_id(ManualClock()), files={PLUS_INFINITY: files})
    assert isinstance(await store.apply(added), Applied)
    reserve = ReserveFiles(
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
    commit = CommitAttempt(tablet=TABLET, attempt="att-1", outputs=(output,), counts=counts)
    assert isinstance(await store.apply(commit), Applied)


def collector_of(store: MemoryStore, storage: FakeStorage) -> GarbageCollector:
    return GarbageCollector(
        store,
        storage,
        RULES,
        lambda _event, **_fields: None,
        clock=storage.clock,
        known_generation=lambda _table: storage.generation,
    )


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


def test_what_is_counted_as_deletable_is_what_the_next_round_deletes() -> None:
    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage("f0.parquet", "f1.parquet")
        storage.clock, storage.whose = clock, LocationOwner(await store.store_id())
        await compacted(store)
        collector = collector_of(store, storage)
        end = TABLET.end
        assert await collector.counts(TABLE) == {end: GarbageCounts(waiting=2)}, "not stamped yet"
        await collector.collect(TABLE)
        clock.advance(59.0)
        assert await collector.counts(TABLE) == {end: GarbageCounts(waiting=2)}
        clock.advance(2.0)
        assert await collector.counts(TABLE) == {end: GarbageCounts(waiting=2, deletable=2)}
        assert (await collector.collect(TABLE)).deleted == 2
        assert await collector.counts(TABLE) == {}

    asyncio.run(story())


def test_a_reader_that_began_before_the_stamp_keeps_the_files() -> None:
    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage("f0.parquet", "f1.parquet")
        await compacted(store)
        await store.apply(PinFiles(table="t1", pin="reader", lease_s=1000))
        collector = collector_of(store, storage)
        await collector.collect(TABLE)
        clock.advance(100)
        assert (await collector.collect(TABLE)).waiting == 2
        await store.apply(UnpinFiles(table="t1", pin="reader"))
        assert (await collector.collect(TABLE)).deleted == 2

    asyncio.run(story())


def test_the_pin_of_a_reader_that_died_goes_one_grace_after_its_lease() -> None:
    async def story() -> None:
        clock = ManualClock()
        store = MemoryStore(clock)
        await compacted(store)
        await store.apply(PinFiles(table="t1", pin="dead", lease_s=100))
        await store.apply(PinFiles(table="t1", pin="alive", lease_s=1000))
        collector = collector_of(store, FakeStorage())
        clock.advance(159)
        await collector.collect(TABLE)
        assert {pin.pin for pin in await store.pins("t1")} == {"dead", "alive"}
        clock.advance(2)
        await collector.collect(TABLE)
        assert {pin.pin for pin in await store.pins("t1")} == {"alive"}

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
        storage.whose = LocationOwner("another")
        await compacted(store)
        collector = collector_of(store, storage)
        await collector.collect(TABLE)
        clock.advance(100)
        assert (await collector.collect(TABLE)).deleted == 0
        storage.whose = LocationOwner(await store.store_id(), TABLE.id)
        assert (await collector.collect(TABLE)).deleted == 2

    asyncio.run(story())


def test_nothing_is_deleted_where_another_table_was_made() -> None:
    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage("f0.parquet", "f1.parquet")
        storage.whose = LocationOwner(await store.store_id(), "t2")
        await compacted(store)
        collector = collector_of(store, storage)
        await collector.collect(TABLE)
        clock.advance(100)
        assert (await collector.collect(TABLE)).deleted == 0

    asyncio.run(story())


def test_a_mark_that_changes_during_a_round_ends_the_deletions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collector_module, "DELETE_BATCH", 1)

    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage("f0.parquet", "f1.parquet")
        await compacted(store)
        collector = collector_of(store, storage)
        await collector.collect(TABLE)
        clock.advance(100)
        deleting = storage.delete

        async def meanwhile(location: str, path: str, until_s: float) -> bool:
            storage.whose = LocationOwner(await store.store_id(), "t2")
            return await deleting(location, path, until_s)

        storage.delete = meanwhile  # type: ignore[method-assign]  # another table is made
        assert (await collector.collect(TABLE)).deleted == 1

    asyncio.run(story())


@pytest.mark.parametrize("where", ["file:///data/events", "file:///data"])
def test_the_names_of_a_dropped_tables_files_are_barred_for_the_next_table(where: str) -> None:
    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage("f0.parquet", "f1.parquet")
        await compacted(store)
        rules = replace(RULES, retired_s=500.0)
        collector = GarbageCollector(
            store, storage, rules, lambda _event, **_fields: None, clock=storage.clock
        )
        await store.apply(DropTable(table=TABLE.id, delete_files=True))
        going = replace(TABLE, state=TableState.GOING)
        await collector.collect(going)
        clock.advance(100)
        await collector.collect(going)
        assert await store.table(TABLE.id) is None
        another = replace(TABLE, id="t2", location=where)
        assert isinstance(await store.apply(CreateTable(table=another)), Applied)
        below = "" if where == TABLE.location else "events/"
        outcomes = [
            await store.apply(
                AddFiles(
                    table="t2",
                    call=call_id(clock),
                    files={PLUS_INFINITY: (DataFile(path=path, size_bytes=9, rows=1),)},
                )
            )
            for path in (f"{below}f0.parquet", f"{below}new.parquet")
        ]
        assert isinstance(outcomes[0], Refused)
        assert outcomes[0].code == "retired"
        assert isinstance(outcomes[1], Applied)


@pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)
def test_nothing_is_deleted_where_the_mark_of_another_format_appears(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    """The table was imported when there was no mark yet, or nobody looked for one."""

    async def story() -> None:
        clock, faults = ManualClock(), TableFaults(lambda _event, **_fields: None)
        store, table = MemoryStore(clock), replace(TABLE, location=(tmp_path / "t").as_uri())
        write_owner(open_location(table.location), LocationOwner(await store.store_id(), table.id))
        await compacted(store, table)
        for name in ("f0.parquet", "f1.parquet", "_neve/last/job-1-att-1-0.parquet"):
            (tmp_path / "t" / name).parent.mkdir(exist_ok=True)
            (tmp_path / "t" / name).write_text("rows")
        storage = ArrowStorage(clock)
        collector = GarbageCollector(
            store, storage, RULES, lambda _event, **_fields: None, clock=clock, faults=faults
        )
        await collector.collect(table)
        clock.advance(100)
        write(tmp_path / "t")
        before = sorted(tmp_path.rglob("*"))
        for _ in range(2):
            assert await collector.collect(table) == CollectedCounts(waiting=2)
        (sentence,) = faults.notices
        assert "table events: no file is deleted" in sentence
        await store.apply(DropTable(table=table.id, delete_files=True))
        for _ in range(9):
            going = await store.table(table.id)
            if going is None:
                break
            await collector.collect(going)
            clock.advance(100)
        assert await store.table(table.id) is None, "the drop has ended"
        assert sorted(tmp_path.rglob("*")) == before, "and no file is deleted"

    asyncio.run(story())


def test_the_collector_goes_on_when_the_mark_is_gone() -> None:
    async def story() -> None:
        clock, faults = ManualClock(), TableFaults(lambda _event, **_fields: None)
        store, storage = MemoryStore(clock), FakeStorage("f0.parquet", "f1.parquet")
        await compacted(store)
        collector = GarbageCollector(
            store, storage, RULES, lambda _event, **_fields: None, clock=clock, faults=faults
        )
        storage.clock, storage.mark = clock, ForeignMark("Delta Lake", "/t/_delta_log")
        await collector.collect(TABLE)
        clock.advance(100)
        assert (await collector.collect(TABLE)).deleted == 0
        assert faults.notices
        storage.mark = None
        assert (await collector.collect(TABLE)).deleted == 2
        assert not faults.notices

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


def test_a_collector_that_paused_before_its_deletion_deletes_nothing() -> None:
    """Another collector may have deleted the file, and its name may be another file's by now."""

    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage("f0.parquet", "f1.parquet")
        await compacted(store)
        collector = collector_of(store, storage)
        await collector.collect(TABLE)
        clock.advance(100)
        storage.slow_s = LOOK_LASTS_S + 1
        assert (await collector.collect(TABLE)).deleted == 0
        assert storage.paths == {"f0.parquet", "f1.parquet"}
        storage.slow_s = 0.0
        assert (await collector.collect(TABLE)).deleted == 2

    asyncio.run(story())


def test_a_file_is_deleted_only_while_its_entry_stands() -> None:
    """Another collector is quicker, and a file of that name comes anew, between look and look."""

    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage("f0.parquet", "f1.parquet")
        await compacted(store)
        collector = collector_of(store, storage)
        await collector.collect(TABLE)
        clock.advance(100)
        looking = store.pins

        async def meanwhile(table: str) -> Sequence[PinEntry]:
            await store.apply(ForgetGarbage(table=table, paths=("f0.parquet",)))
            return await looking(table)

        store.pins = meanwhile  # type: ignore[method-assign]  # somebody is quicker
        await collector.collect(TABLE)
        assert storage.paths == {"f0.parquet"}

    asyncio.run(story())


def test_the_names_of_deleted_files_of_users_are_barred() -> None:
    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage("f0.parquet", "f1.parquet")
        await compacted(store)
        collector = GarbageCollector(
            store,
            storage,
            replace(RULES, retired_s=500.0),
            lambda _event, **_fields: None,
            clock=storage.clock,
        )
        await collector.collect(TABLE)
        clock.advance(100)
        assert (await collector.collect(TABLE)).deleted == 2
        again = DataFile(path="f0.parquet", size_bytes=9, rows=1)
        added = AddFiles(table="t1", call=call_id(clock), files={PLUS_INFINITY: (again,)})
        outcome = await store.apply(added)
        assert isinstance(outcome, Refused)
        assert outcome.code == "retired"
        clock.advance(500)
        assert isinstance(await store.apply(added), Applied)

    asyncio.run(story())


async def given_up(store: MemoryStore, attempt: str, *inputs: str) -> str:
    """Reserve files, release them again, and return the output that was reserved."""
    reserve = ReserveFiles(
        tablet=TABLET,
        attempt=attempt,
        job="job-2",
        kind=Kind.SYSTEM,
        inputs=inputs,
        output_prefix=f"_neve/last/job-2-{attempt}",
        outputs_max=1,
        group="default",
        compactor="c1",
    )
    assert isinstance(await store.apply(reserve), Applied)
    release = ReleaseAttempt(tablet=TABLET, attempt=attempt, end=AttemptEnd.LOST, cause="silence")
    assert isinstance(await store.apply(release), Applied)
    return f"_neve/last/job-2-{attempt}-0.parquet"


def test_the_output_of_an_attempt_whose_inputs_are_gone_is_kept() -> None:
    """Its commit was forgotten by a store that went back: nobody else has the rows."""

    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage()
        await compacted(store)
        (made,) = (await store.tablets([TABLET]))[0].files  # type: ignore[union-attr]  # it is there
        only = await given_up(store, "att-2", made)
        said: list[str] = []
        collector = GarbageCollector(
            store, storage, RULES, lambda event, **_: said.append(event), clock=storage.clock
        )
        storage.paths |= {only}
        for _ in range(4):
            done = await collector.collect(TABLE)
            clock.advance(100)
        assert (only in storage.paths, done.kept) == (True, 1)
        assert said == ["output may be the only copy"]
        assert [each.attempt for each in await store.uncommitted("t1")] == ["att-2"]

        storage.paths |= {made}  # It has been brought back from a copy.
        for _ in range(2):
            await collector.collect(TABLE)
            clock.advance(100)
        assert only not in storage.paths
        assert await store.uncommitted("t1") == []

    asyncio.run(story())


def test_the_output_of_an_attempt_that_gave_up_goes_once_its_inputs_were_seen() -> None:
    """What a later commit replaces and another round deletes says nothing of this attempt."""

    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage()
        await compacted(store)
        (made,) = (await store.tablets([TABLET]))[0].files  # type: ignore[union-attr]  # it is there
        waste = await given_up(store, "att-2", made)
        storage.paths |= {made, waste}
        storage.fails = True
        collector = collector_of(store, storage)
        assert (await collector.collect(TABLE)).stamped == 2, "not before storage has answered"
        storage.fails = False
        assert (await collector.collect(TABLE)).stamped == 1
        storage.paths.discard(made)
        clock.advance(100)
        await collector.collect(TABLE)
        assert waste not in storage.paths

    asyncio.run(story())


def test_a_table_that_goes_leaves_what_may_be_an_only_copy() -> None:
    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage()
        await compacted(store)
        (made,) = (await store.tablets([TABLET]))[0].files  # type: ignore[union-attr]  # it is there
        only = await given_up(store, "att-2", made)
        storage.paths |= {only}
        await store.apply(DropTable(table="t1"))
        collector = collector_of(store, storage)
        for _ in range(4):
            going = await store.table("t1")
            if going is not None:
                await collector.collect(going)
            clock.advance(100)
        assert await store.names() == {}
        assert storage.paths == {only}

    asyncio.run(story())


def test_nothing_is_deleted_when_the_store_has_gone_back() -> None:
    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage("f0.parquet", "f1.parquet")
        await compacted(store)
        collector = collector_of(store, storage)
        await collector.collect(TABLE)
        clock.advance(100)
        storage.generation = 1
        assert (await collector.collect(TABLE)).deleted == 0
        await store.apply(BumpGeneration(table="t1"))
        assert (await collector.collect(TABLE)).deleted == 2

    asyncio.run(story())


def test_an_attempt_that_ends_while_the_collector_looks_is_looked_at_by_the_next_round() -> None:
    """Its outputs were not among the entries that this round has read."""

    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage()
        await compacted(store)
        (made,) = (await store.tablets([TABLET]))[0].files  # type: ignore[union-attr]  # it is there
        looking, ended = store.uncommitted, list[str]()

        async def meanwhile(table: str) -> Sequence[Reservation]:
            if not ended:
                ended.append(await given_up(store, "att-2", made))
                storage.paths.add(ended[0])
            return await looking(table)

        store.uncommitted = meanwhile  # type: ignore[method-assign]  # somebody gives up
        collector = collector_of(store, storage)
        for _ in range(4):
            await collector.collect(TABLE)
            clock.advance(100)
        assert {*ended} <= storage.paths

    asyncio.run(story())


async def with_garbage(store: MemoryStore, count: int, name: str = "t1") -> list[str]:
    """Make a table of which so many files wait for deletion, and return their paths."""
    await store.apply(
        CreateTable(table=replace(TABLE, id=name, name=name, location=f"s3://b/{name}"))
    )
    paths = [f"{name}-{number}.parquet" for number in range(count)]
    entries = into_garbage(TableKeys(name), PLUS_INFINITY, dict.fromkeys(paths, b"k"))
    async with store.keyspace.session() as session:
        await session.execute(entries)
    await store.apply(StampGarbage(table=name, paths=tuple(paths)))
    return paths


def test_a_round_takes_some_files_and_the_next_has_known_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collector_module, "ROUND_MAX", 7)
    monkeypatch.setattr(collector_module, "DELETE_BATCH", 3)

    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), FakeStorage()
        await with_garbage(store, 20)
        clock.advance(100)
        collector = collector_of(store, storage)
        left = await collector.run(TABLE)
        assert left is not None
        assert (left.name, left.why) == ("t1", "11 replaced files can be deleted")
        assert (left.data_retained_bytes, left.ram_anchored_bytes) == (11, 11 * 256)
        again = await collector.run(TABLE)
        assert again is not None
        assert again.data_retained_bytes == 2
        assert await collector.run(TABLE) is None
        assert not await store.garbage("t1")

    asyncio.run(story())


def test_a_storage_that_stands_still_holds_up_its_own_table_only() -> None:
    class Stuck(FakeStorage):
        async def delete(self, location: str, path: str, until_s: float) -> bool:
            if path.startswith("held"):
                await stuck.wait()
            return await super().delete(location, path, until_s)

    stuck = asyncio.Event()

    async def story() -> None:
        clock = ManualClock()
        store, storage = MemoryStore(clock), Stuck()
        for name in ("held", "quick"):
            storage.paths.update(await with_garbage(store, 50, name))
        clock.advance(100)
        tables, collector = list(await store.tables()), collector_of(store, storage)
        everything = asyncio.gather(*map(collector.run, tables))
        async with asyncio.timeout(PATIENCE_S):
            while await store.garbage("quick"):
                await asyncio.sleep(0)
        assert len(await store.garbage("held")) == 50
        stuck.set()
        await everything
        assert not storage.paths

    asyncio.run(story())


def _log(_event: str, **_fields: object) -> None: ...


def test_a_table_whose_folder_is_gone_gives_its_name_back(tmp_path: Path) -> None:
    async def story() -> None:
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        table = replace(TABLE, location=(tmp_path / "gone").as_uri())
        await store.apply(CreateTable(table=table))
        files = (DataFile(path="a.parquet", size_bytes=9, rows=1),)
        added = AddFiles(table="t1", call=call_id(clock), files={PLUS_INFINITY: files})
        assert isinstance(await store.apply(added), Applied)
        await store.apply(DropTable(table="t1", delete_files=True))
        storage = ArrowStorage(clock)
        collector = GarbageCollector(
            store, storage, RULES, lambda _event, **_fields: None, clock=clock
        )
        for _ in range(2):
            going = await store.table("t1")
            assert going is not None
            await collector.collect(going)
            clock.advance(RULES.grace_s + 1)
        assert await store.names() == {}

    asyncio.run(story())
