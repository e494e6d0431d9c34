"""What goes wrong for one table is its own affair: every loop goes on with all others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from common.errors import BrokenValueError, MetadataError
from common.metadata.changes import AddFiles, Applied, CreateTable
from common.metadata.codec.table import pack_name
from common.metadata.keys import TABLES, TableKeys, TabletKeys
from common.metadata.keyspace import hdel, hset, xadd
from common.metadata.store import TabletStore
from common.model.file import DataFile
from common.model.table import Column, Table
from common.model.tablet import PLUS_INFINITY, TabletId
from common.parquet.location import open_location
from common.parquet.manifest import POINTER_PATH
from common.parquet.service_files import LocationOwner, write_owner, written_generation
from common.primitives import Backoff
from common.runtime import call_id
from common.settings import CoordinatorSettings, Settings
from common.wire import Heartbeat, TakeRequest
from coordinator.context import (
    STORE_AWAY_ERRORS,
    Generations,
    ShellContext,
    TableFaults,
    is_store_away,
)
from coordinator.store_watch import take_lead
from coordinator.wiring import assemble, storage_loops
from tests.support.memory_store import MemoryStore
from tests.support.patience import PATIENCE_S
from tests.support.predictable import CountedIds, ManualClock

BAD, GOOD = "bad", "good"
SETTINGS = Settings(coordinator=CoordinatorSettings(collect_interval_s=0.1, tick_s=0.02))


class Poisoned:
    """A store in which everything about one table goes wrong, as nobody expects it."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.poisoned = True

    def __getattr__(self, name: str) -> Any:
        work = getattr(self._store, name)
        if name in ("changes", "tables", "close", "named_tables"):
            return work

        async def poisoned(*given: Any, **named: Any) -> Any:
            if self.poisoned and any(map(_is_bad, (*given, *named.values()))):
                raise TypeError("poison")
            return await work(*given, **named)

        return poisoned


def _is_bad(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_bad, value))
    owner = getattr(value, "tablet", value)
    return BAD in (value, getattr(owner, "table", None), getattr(value, "id", None))


def table_at(folder: Path, name: str) -> Table:
    columns = (Column("id", "int64"),)
    return Table(id=name, name=name, location=(folder / name).as_uri(), schema=columns)


async def two_tables(store: MemoryStore, folder: Path) -> list[Table]:
    tables = [table_at(folder, name) for name in (BAD, GOOD)]
    for table in tables:
        write_owner(open_location(table.location), LocationOwner(await store.store_id()))
        assert isinstance(await store.apply(CreateTable(table=table)), Applied)
        files = tuple(DataFile(path=f"f{n}.parquet", size_bytes=100, rows=1) for n in range(8))
        change = AddFiles(table=table.id, call=call_id(ManualClock()), files={PLUS_INFINITY: files})
        assert isinstance(await store.apply(change), Applied)
    return tables


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


class Life:
    """A coordinator with all its loops, over a store that may be poisoned."""

    def __init__(self, memory: MemoryStore) -> None:
        self.poison = Poisoned(memory)
        self.store: TabletStore = self.poison  # type: ignore[assignment]  # all by name
        self.logged: list[str] = []
        self.generations = Generations(self.store, self.log)
        clock, ids = ManualClock(), CountedIds("a")
        self.context = ShellContext(self.store, clock, ids, self.log, "coord-1", self.generations)
        self.parts = assemble(SETTINGS, self.context)
        self.loops: list[asyncio.Task[None]] = []

    def log(self, event: str, **fields: object) -> None:
        self.logged.append(f"{event} {fields}")

    async def start(self) -> None:
        everyone = self.parts.scanner.tables.values
        await take_lead(self.store, self.parts.scanner, "coord-1", self.log)
        every = (
            *self.parts.loops(SETTINGS),
            *storage_loops(SETTINGS, self.parts, everyone),
            self.generations.run_forever(everyone),
        )
        self.loops = [asyncio.create_task(loop) for loop in every]

    def look_at_everything(self) -> None:
        for table in (BAD, GOOD):
            self.parts.scanner.remind(table)
            self.parts.full_scan.look(table)

    async def taken(self) -> str:
        """Take a job, and return the table that it is of."""
        beat = Heartbeat(compactor="c", incarnation="i", group="default", node="n", slots=4)
        await self.parts.service.beat(beat)
        take = TakeRequest(
            take="t", compactor="c", incarnation="i", group="default", wait_max_s=PATIENCE_S
        )
        assignment = await self.parts.service.take(take)
        assert assignment is not None
        return assignment.job.tablet.table

    async def stop(self) -> None:
        assert not [loop for loop in self.loops if loop.done()]
        assert not self.parts.service.failed.done()
        for loop in self.loops:
            loop.cancel()
        await self.parts.service.stop()
        await asyncio.gather(*self.loops, return_exceptions=True)


@pytest.mark.parametrize("from_the_start", [True, False])
def test_all_loops_go_on_beside_a_table_that_nobody_can_work_on(
    tmp_path: Path, from_the_start: bool
) -> None:
    async def story() -> None:
        memory = MemoryStore(ManualClock())
        _, good = await two_tables(memory, tmp_path)
        life = Life(memory)
        life.poison.poisoned = from_the_start
        await life.start()
        life.poison.poisoned = True
        life.look_at_everything()
        assert await life.taken() == GOOD
        place = open_location(good.location)
        await until(lambda: written_generation(place) > 0)
        await until(lambda: Path(place.full(POINTER_PATH)).exists())
        faults = life.context.faults
        of_all = {"the look at generations", "the full scan", "publishing", "the collector"}
        wanted = {"taking notice"} if from_the_start else of_all
        await until(lambda: wanted <= {*faults.counts})
        told = life.parts.explain(TabletId(BAD, PLUS_INFINITY), 0.0).sentences
        assert any("failed" in each and "TypeError: poison" in each for each in told), told
        assert not [each for each in life.logged if GOOD in each and "poison" in each]
        figures = {figure.metric: figure.value for figure in life.parts.status().figures}
        assert figures["neve_tables_left_alone"] >= 1
        assert figures["neve_table_faults_total"] >= 1
        await life.stop()

    asyncio.run(story())


@pytest.mark.parametrize("from_the_start", [True, False])
@pytest.mark.parametrize("what", ["table", "record"])
def test_unreadable_records_of_a_table_stop_that_table_alone(
    tmp_path: Path, what: str, from_the_start: bool
) -> None:
    key = TableKeys(BAD).table
    if what == "record":
        key = TabletKeys.of(TabletId(BAD, PLUS_INFINITY)).record
    garbage = hset(key, {"settings" if what == "table" else "v": b"\xc1garbage"})

    async def story() -> None:
        memory = MemoryStore(ManualClock())
        await two_tables(memory, tmp_path)
        life = Life(memory)
        life.poison.poisoned = False
        if from_the_start:
            memory.keyspace.run([garbage])
        await life.start()
        memory.keyspace.run([garbage])
        await life.parts.scanner.refresh_tables()
        for table in (BAD, GOOD):
            life.parts.scanner.ask(TabletId(table, PLUS_INFINITY))
        assert await life.taken() == GOOD
        counts = life.context.faults.counts
        await until(lambda: bool(counts["reading" if what == "table" else "planning"]))
        told = life.parts.status().store_warnings
        assert any("is quarantined, it cannot be read: neve:{bad}:" in each for each in told), told
        assert (BAD in life.parts.scanner.tables) == (what == "record" or not from_the_start)
        await life.stop()

    asyncio.run(story())


async def keyed_table_of_three(store: MemoryStore, folder: Path) -> Table:
    """Return a table of three tablets, with files to merge in each."""
    table = replace(table_at(folder, "keyed"), key=("id",), version_column="id")
    write_owner(open_location(table.location), LocationOwner(await store.store_id()))
    assert isinstance(await store.apply(CreateTable(table=table, splits=(b"f", b"m"))), Applied)
    for end, key in zip((b"f", b"m", PLUS_INFINITY), (b"a", b"g", b"n"), strict=True):
        files = tuple(
            DataFile(path=f"{key!r}{n}", size_bytes=9, rows=1, key_min=key, key_max=key)
            for n in range(8)
        )
        change = AddFiles(table=table.id, call=call_id(ManualClock()), files={end: files})
        assert isinstance(await store.apply(change), Applied)
    return table


@pytest.mark.parametrize("whole", [True, False])
def test_one_tablet_that_cannot_be_read_bars_no_other_of_its_table(
    tmp_path: Path, *, whole: bool
) -> None:
    """Found by the full scan, with a file as another release may write one; then it is mended."""

    async def story() -> None:
        memory = MemoryStore(ManualClock())
        table = await keyed_table_of_three(memory, tmp_path)
        bad = TabletId(table.id, b"m")
        if whole:  # With something else than bounds and files, every key of it is read.
            memory.keyspace.run([hset(TabletKeys.of(bad).record, {"d": b"1"})])
        memory.keyspace.run([hset(TabletKeys.of(bad).files, {"x": b"\x02newer"})])
        life = Life(memory)
        life.poison.poisoned = False
        await life.start()
        life.parts.full_scan.look(table.id)
        faults, queued = life.context.faults, life.parts.state.queued
        await until(lambda: bool(faults.all_unreadable()))
        await until(lambda: len(queued(None, 10, 0.0)) == 2)
        assert {each.job.tablet.end for each in queued(None, 10, 0.0)} == {b"f", PLUS_INFINITY}
        [told] = faults.all_unreadable()
        assert told.startswith("tablet keyed;6d is quarantined, it cannot be read: neve:{keyed}:")
        assert told in life.parts.explain(bad, 0.0).sentences
        assert told in life.parts.status().store_warnings
        assert life.parts.status().quarantined == 1
        conditions = [(one.kind, one.count) for one in life.parts.notices(0).conditions]
        assert conditions == [("quarantined", 1)]
        assert life.parts.full_scan.counts.ranges_failed == 0

        memory.keyspace.run([hdel(TabletKeys.of(bad).files, "x")])
        life.parts.scanner.ask(bad)
        await until(lambda: len(queued(None, 10, 0.0)) == 3)
        assert faults.all_unreadable() == ()
        await life.stop()

    asyncio.run(story())


def test_a_change_that_cannot_be_read_costs_a_look_at_its_table(tmp_path: Path) -> None:
    async def story() -> None:
        memory = MemoryStore(ManualClock())
        await two_tables(memory, tmp_path)
        life = Life(memory)
        life.poison.poisoned = False
        await life.start()
        queued = life.parts.state.queued
        await until(lambda: len(queued(None, 10, 0.0)) == 2)
        scans = life.parts.full_scan.counts.scans
        memory.keyspace.run([xadd(TableKeys(BAD).changes, 1000, {"t": b"no tablet", "w": b"add"})])
        await until(lambda: any("change cannot be read" in each for each in life.logged))
        await until(lambda: life.parts.full_scan.counts.scans > scans)
        for name in (BAD, GOOD):  # What comes behind it is heard.
            files = (DataFile(path="later.parquet", size_bytes=100, rows=1),)
            one = AddFiles(table=name, call=call_id(ManualClock()), files={PLUS_INFINITY: files})
            assert isinstance(await memory.apply(one), Applied)

        def inputs() -> list[int]:
            return [len(each.job.inputs) for each in queued(None, 10, 0.0)]

        await until(lambda: inputs() == [9, 9])
        assert len([each for each in life.logged if "change cannot be read" in each]) == 1
        await life.stop()

    asyncio.run(story())


def test_an_entry_of_the_list_of_tables_that_cannot_be_read_bars_no_other(tmp_path: Path) -> None:
    async def story() -> None:
        memory = MemoryStore(ManualClock())
        await two_tables(memory, tmp_path)
        life = Life(memory)
        life.poison.poisoned = False
        await life.start()
        memory.keyspace.run([hset(TABLES, {BAD: b"\xc1garbage"})])
        third = table_at(tmp_path, "third")
        memory.keyspace.run([hset(TABLES, {"third": pack_name(third)})])
        await life.parts.scanner.refresh_tables()
        known = life.parts.scanner.tables
        assert {*known} == {BAD, GOOD}, "nobody can say that it was dropped"
        [told] = life.parts.status().store_warnings
        assert told.startswith("table bad is quarantined, it cannot be read: neve:tables b'bad'")
        life.logged.clear()
        await life.parts.scanner.refresh_tables()
        assert life.logged == [], "it is told once"
        memory.keyspace.run([hset(TABLES, {BAD: pack_name(known[BAD])})])
        await life.parts.scanner.refresh_tables()
        assert life.parts.status().store_warnings == ()
        await life.stop()

    asyncio.run(story())


class Work:
    """Something that fails so many times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.tries = 0

    async def __call__(self) -> str:
        self.tries += 1
        if self.tries <= self.failures:
            raise ValueError("location s3://key:secret@bucket/t")
        return "done"


def test_a_fault_is_told_left_alone_and_forgotten() -> None:
    async def story() -> None:
        logged: list[tuple[str, dict[str, object]]] = []
        faults = TableFaults(lambda event, **fields: logged.append((event, fields)))
        work = Work(failures=2)
        assert await faults.run("the collector", "t1", work) is None
        assert await faults.run("the collector", "t1", work) is None
        assert work.tries == 1, "it is left alone"
        assert await faults.run("publishing", "t1", Work(0)) == "done", "by that part only"
        assert await faults.run("the collector", "t2", Work(0)) == "done"
        [(event, fields)] = logged
        assert event == "work on a table failed"
        assert fields["cause"] == "ValueError: location s3://***@bucket/t"
        assert "test_table_faults.py:" in str(fields["place"])
        [sentence] = faults.sentences("t1", "t1;last")
        assert "the collector failed and pauses for" in sentence
        assert "secret" not in sentence

    asyncio.run(story())


def test_success_ends_a_fault() -> None:
    async def story() -> None:
        faults, work = (
            TableFaults(lambda *_args, **_fields: None, backoff=Backoff(base_s=0.0)),
            Work(2),
        )
        assert await faults.run("the collector", "t1", work) is None
        assert await faults.run("the collector", "t1", work) is None
        assert "2 times in a row" in faults.sentences("t1")[0]
        with pytest.raises(ValueError, match="location"):
            await faults.run("the collector", "t1", Work(1), (ValueError,))
        assert await faults.run("the collector", "t1", work) == "done"
        assert faults.sentences("t1") == ()
        assert (faults.standing, faults.counts["the collector"]) == (0, 2)

    asyncio.run(story())


def test_skipped_work_is_asked_for_once_after_the_pause() -> None:
    async def story() -> None:
        faults = TableFaults(lambda *_args, **_fields: None, backoff=Backoff(base_s=0.02))
        work, asked = Work(1), list[str]()
        for name in ("failed", "left alone", "left alone, too"):
            again = partial(asked.append, name)
            assert await faults.run("driving requests", "t1", work, retry=again) is None
        assert (work.tries, asked) == (1, [])
        await until(lambda: bool(asked))
        assert asked == ["failed"]
        assert await faults.run("driving requests", "t1", work, retry=again) == "done"
        await asyncio.sleep(0)
        assert asked == ["failed"], "nobody asks for what is done"

    asyncio.run(story())


def test_broken_values_are_faults_where_store_errors_are_expected() -> None:
    async def story() -> None:
        faults = TableFaults(lambda *_args, **_fields: None)

        async def broken() -> None:
            raise BrokenValueError("no record")

        async def away() -> None:
            raise MetadataError("no answer")

        assert await faults.run("planning", "t1", broken, STORE_AWAY_ERRORS) is None
        assert faults.standing == 1
        with pytest.raises(MetadataError, match="no answer"):
            await faults.run("planning", "t2", away, STORE_AWAY_ERRORS)

    asyncio.run(story())


def test_a_table_that_is_gone_is_forgotten_with_its_tablets() -> None:
    async def story() -> None:
        faults = TableFaults(lambda *_args, **_fields: None)
        for subject in ("t1", "t1;last", "t10"):
            faults.note("planning", subject, ValueError("x"))
        assert faults.standing == 3
        faults.forget("t1")
        assert [faults.standing, len(faults.sentences("t10"))] == [1, 1]

    asyncio.run(story())


def test_the_pause_doubles_up_to_a_bound() -> None:
    async def story() -> None:
        faults = TableFaults(lambda *_args, **_fields: None)
        loop = asyncio.get_running_loop()
        pauses = []
        for _ in range(12):
            faults.note("planning", "t1", ValueError("x"))
            [(_, fault)] = list(faults._faults)
            pauses.append(round(fault.retry_at_s - loop.time()))
        assert pauses[:4] == [5, 10, 20, 40]
        assert pauses[-1] == 300

    asyncio.run(story())


def test_a_cancelled_call_ends_at_once() -> None:
    async def story() -> None:
        faults = TableFaults(lambda *_args, **_fields: None)

        async def never() -> None:
            await asyncio.Event().wait()

        work: Awaitable[None] = faults.run("planning", "t1", never)
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert faults.standing == 0

    asyncio.run(story())


def test_a_broken_value_does_not_mean_that_the_store_is_away() -> None:
    assert is_store_away(MetadataError("no answer"))
    assert not is_store_away(BrokenValueError("no record"))
    assert not is_store_away(ValueError("a plug-in"))
