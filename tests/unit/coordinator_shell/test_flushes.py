"""Buffered rows are flushed by age, size and memory; what becomes of a flush in each failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import BrokenValueError, RefusedError, UnavailableError, UnknownTableError
from common.metadata.changes import (
    Applied,
    BeginOperation,
    ChangeTable,
    CreateTable,
    DropTable,
    Outcome,
)
from common.metadata.keys import TableKeys
from common.metadata.store_values import BufferCounts, BufferSegment, StoreHealth, TableBuffer
from common.model.keys import encode_key
from common.model.table import Column, Table, TableState
from common.model.tablet import OperationKind, TabletId
from common.parquet.append import write_guarded
from common.parquet.buffered import (
    FlushPorts,
    FlushRules,
    flush_table,
    is_buffered,
    read_buffer,
    why_due,
    with_buffered,
)
from common.parquet.file_inspection import FileFacts
from common.runtime import RandomIds
from common.storage_threads import StorageThreads
from coordinator.core.maintenance import KindRules, OperationName, OwnOperations
from coordinator.storage.flushes import BufferFlusher, flush_statistics
from tests.support.buffers import buffer_rows, stored_paths
from tests.support.memory_store import MemoryStore
from tests.support.predictable import ManualClock

pytestmark = pytest.mark.anyio

RULES = FlushRules(age_max_s=60.0, segment_bytes=1 << 20)
COLUMNS = (Column("id", "int64"), Column("v", "int64"), Column("name", "string"))


@dataclass
class Site:
    """A store, a table in a folder, and a flusher."""

    folder: Path
    table: Table
    clock: ManualClock
    store: MemoryStore
    before_write: Callable[[], None] = lambda: None
    log: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        def write(table: Table, path: str, rows: pa.Table) -> FileFacts:
            self.before_write()
            return write_guarded(table, path, rows)

        self.ports = FlushPorts(
            store=self.store,
            ids=RandomIds(),
            threads=StorageThreads(),
            write=write,
            look_max_s=600.0,
        )
        self.flusher = BufferFlusher(
            self.ports, RULES, lambda event, **more: self.log.append((event, more))
        )

    async def write(self, *ids: int, **more: Any) -> Outcome:
        rows = [{"id": number, "v": 1, "name": f"n{number}"} for number in ids]
        outcome = await buffer_rows(self.store, self.clock, self.table, rows, **more)
        assert isinstance(outcome, Applied), outcome
        return outcome

    async def buffer(self) -> TableBuffer:
        (buffer,) = await self.store.buffers([self.table.id])
        return buffer

    async def visible(self) -> list[int]:
        """Return the ids in files and in the buffer, as a reader counts them."""
        buffered = await read_buffer(self.store, self.table, self.ports.threads)
        tablets = await self.store.read_range(self.table.id)
        assert await is_buffered(self.store, self.table, buffered)
        shown, memory = with_buffered(self.table, tablets, buffered, "read")
        ids: list[int] = []
        for tablet in shown:
            for path in tablet.files:
                source: Any = memory.get(path)
                where = pa.BufferReader(source) if source is not None else self.folder / path
                ids += pq.read_table(where, partitioning=None).column("id").to_pylist()
        return sorted(ids)


@pytest.fixture
async def site(tmp_path: Path) -> Site:
    return await site_in(tmp_path)


async def site_in(folder: Path, *, key: tuple[str, ...] = ("id",)) -> Site:
    clock = ManualClock(1_700_000_000.0)
    store = MemoryStore(clock)
    table = Table(
        id="tbl-1",
        name="events",
        location=folder.as_uri(),
        schema=COLUMNS,
        key=key,
        version_column="v" if key else None,
    )
    splits = (encode_key((100,), (kind(),)),) if key else ()
    assert isinstance(await store.apply(CreateTable(table=table, splits=splits)), Applied)
    live = await store.table(table.id)
    assert live is not None
    return Site(folder, live, clock, store)


def kind() -> Any:
    from common.model.key_values import KeyType

    return KeyType.INT


def buffer_of(*, age_s: float, size_bytes: int, closed_s: float = 0.0) -> TableBuffer:
    segment = BufferSegment(
        number=1, flush="call", schema_id=0, schema=b"", opened_s=1000.0 - age_s, closed_s=closed_s
    )
    counts = BufferCounts(rows=10, size_bytes=size_bytes, calls=2)
    return TableBuffer(segments=(segment,), counts={1: counts})


@pytest.mark.parametrize(
    ("buffer", "words"),
    [
        (TableBuffer(), None),
        (buffer_of(age_s=59.9, size_bytes=1), None),
        (buffer_of(age_s=60.0, size_bytes=1), " old"),
        (buffer_of(age_s=0.0, size_bytes=(1 << 20) - 1), None),
        (buffer_of(age_s=0.0, size_bytes=1 << 20), "1.0 MiB"),
        (buffer_of(age_s=0.0, size_bytes=1, closed_s=999.0), "1 segment"),
    ],
)
def test_a_buffer_is_flushed_when_it_is_old_large_or_closed(
    buffer: TableBuffer, words: str | None
) -> None:
    why = why_due(buffer, 1000.0, RULES)
    assert why is None if words is None else words in (why or "")


def test_the_score_of_a_flush_grows_with_age_and_size() -> None:
    ages = [0.0, 59.0, 60.0, 1800.0, 3600.0]
    scores = [
        flush_statistics("t", buffer_of(age_s=age_s, size_bytes=1000), 1000.0, RULES).perf
        for age_s in ages
    ]
    assert scores == sorted(scores)
    assert (scores[0], scores[2]) == (0.0, 1.0)
    sizes = [1 << 10, 1 << 20, 3 << 20]
    by_size = [
        flush_statistics("t", buffer_of(age_s=0.0, size_bytes=size), 1000.0, RULES).perf
        for size in sizes
    ]
    assert by_size == [0.0, 1.0, 2.0]


def test_the_scheduler_flushes_young_buffers_under_memory_pressure_only() -> None:
    own = OwnOperations(slots=2)
    own.add_kind(OperationName.FLUSH, KindRules(tables_max=4, wait_max_s=1e6))
    young = flush_statistics("t", buffer_of(age_s=1.0, size_bytes=1000), 1000.0, RULES)
    own.ask(OperationName.FLUSH, young, 0.0)
    assert own.next(0.0, used_pct=59.0) is None
    decision = own.next(0.0, used_pct=60.0)
    assert decision is not None
    assert decision.step == "memory"


def test_a_flush_that_is_due_uses_the_last_free_slot() -> None:
    own = OwnOperations(slots=1)
    own.add_kind("other", KindRules(tables_max=4, wait_max_s=0.0))
    own.add_kind(OperationName.FLUSH, KindRules(tables_max=4, wait_max_s=1e6))
    own.set_tables("other", ["a"], 0.0)
    due = flush_statistics("t", buffer_of(age_s=61.0, size_bytes=1000), 1000.0, RULES)
    own.ask(OperationName.FLUSH, due, 0.0)
    decision = own.next(10.0)
    assert decision is not None
    assert decision.kind == OperationName.FLUSH


async def test_a_flusher_finds_a_buffer_and_flushes_it_into_one_file_per_tablet(
    site: Site,
) -> None:
    await site.write(1, 150)
    await site.write(2, 151)
    site.flusher.table_changed(site.table.id)
    await site.flusher.look()
    figures = {figure.metric: figure.value for figure in site.flusher.figures()}
    assert figures["neve_buffered_rows"] == 4
    (buffered,) = site.flusher.buffered({site.table.id: site.table})
    assert (buffered.table, buffered.rows, buffered.age_s) == ("events", 4, 0.0)
    assert "4 rows in " in buffered.why
    assert site.flusher.buffered({}) == ()
    site.clock.advance(3)
    row = await site.flusher.row(site.table, scans_s=2.0)
    assert (row.state, row.gain, row.age_s) == ("runnable", 4.0, 3.0)
    # Cost now and later, and what it frees: of the store, and of each scan.
    assert row.freed_bytes == row.cost_bytes > 0
    assert (row.later_bytes, row.scan_bytes_s) == (2 * row.cost_bytes, 2.0 * row.cost_bytes)
    assert "(segment 1), the oldest for 3.0 s; a flush is due at 1m, at 1.0 MiB" in row.why
    assert row.why.endswith("/s of them")
    await site.flusher.run(site.table)
    assert await site.buffer() == TableBuffer()
    assert sorted((await stored_paths(site.store, site.table)).values()) == [2, 2]
    assert await site.visible() == [1, 2, 150, 151]
    await site.flusher.look()
    figures = {figure.metric: figure.value for figure in site.flusher.figures()}
    assert (figures["neve_buffered_rows"], figures["neve_flushed_rows_total"]) == (0, 4)
    assert (await site.flusher.row(site.table)).state == "idle"


async def test_rows_in_a_store_that_a_restart_empties_are_warned_of(site: Site) -> None:
    volatile = StoreHealth(append_only=False)
    assert site.flusher.warnings(volatile) == []
    await site.write(1)
    site.flusher.table_changed(site.table.id)
    await site.flusher.look()
    (warning,) = site.flusher.warnings(volatile)
    assert "appendonly no" in warning
    assert site.flusher.warnings(StoreHealth()) == []


async def test_the_watch_asks_for_a_flush_of_each_buffer(site: Site) -> None:
    await site.write(1)
    site.clock.advance(61)
    site.flusher.table_changed(site.table.id)
    asked: asyncio.Queue[Any] = asyncio.Queue()
    watch = asyncio.create_task(site.flusher.watch_forever(asked.put_nowait))
    statistics = await asyncio.wait_for(asked.get(), 20)
    watch.cancel()
    assert (statistics.name, statistics.low_io) == (site.table.id, True)
    assert "old" in statistics.why


async def test_the_watch_goes_on_beside_a_buffer_that_cannot_be_read(site: Site) -> None:
    await site.write(1)
    async with site.store._keyspace.session() as session:
        await session.execute([("HSET", TableKeys("tbl-2").rows, "1", "garbage")])
    for table in ("tbl-2", site.table.id):
        site.flusher.table_changed(table)
    asked: asyncio.Queue[Any] = asyncio.Queue()
    watch = asyncio.create_task(site.flusher.watch_forever(asked.put_nowait))
    statistics = await asyncio.wait_for(asked.get(), 20)
    watch.cancel()
    assert statistics.name == site.table.id
    with pytest.raises(BrokenValueError):
        await site.store.buffers(["tbl-2", site.table.id])


async def test_a_flush_that_dies_before_its_commit_is_made_again(site: Site) -> None:
    await site.write(1, 150)

    def die() -> None:
        raise UnavailableError("the process died")

    site.before_write = die
    with pytest.raises(UnavailableError):
        await site.flusher.run(site.table)
    assert await site.visible() == [1, 150]
    site.before_write = lambda: None
    await site.write(2)
    await site.flusher.run(site.table)
    assert await site.visible() == [1, 2, 150]
    assert await site.buffer() == TableBuffer()


async def test_of_many_flushes_of_a_segment_one_adds_its_files(site: Site) -> None:
    await site.write(99)
    await site.flusher.run(site.table)  # It has placed the guards, which this is not about.
    await site.write(1, 150)
    results = await asyncio.gather(*(flush_table(site.ports, site.table, 0) for _ in range(3)))
    assert sorted(result.rows for result in results) == [0, 0, 2]
    assert await site.visible() == [1, 99, 150]


async def test_rows_that_arrive_during_a_flush_stay_buffered(site: Site) -> None:
    await site.write(1)
    loop = asyncio.get_running_loop()

    def write_more() -> None:
        site.before_write = lambda: None
        asyncio.run_coroutine_threadsafe(site.write(2), loop).result(20)

    site.before_write = write_more
    await site.flusher.run(site.table)
    assert await site.visible() == [1, 2]
    assert (await site.buffer()).rows == 1


async def test_a_flush_cuts_rows_where_a_split_has_begun(site: Site) -> None:
    await site.write(1, 50, 99)
    tablet = TabletId(site.table.id, encode_key((100,), (kind(),)))
    at = encode_key((50,), (kind(),))
    split = BeginOperation(tablets=(tablet,), kind=OperationKind.SPLIT, operation="op-1", at=at)
    assert isinstance(await site.store.apply(split), Applied)
    await site.flusher.run(site.table)
    assert sorted((await stored_paths(site.store, site.table)).values()) == [1, 2]
    assert await site.visible() == [1, 50, 99]


async def test_a_flush_keeps_columns_that_the_table_has_grown_since_the_caller_read_it(
    site: Site,
) -> None:
    stale = site.table
    wider = (*COLUMNS, Column("more", "int64"))
    change = ChangeTable(table=stale.id, settings_version=stale.settings_version, schema=wider)
    assert isinstance(await site.store.apply(change), Applied)
    grown = await site.store.table(stale.id)
    assert grown is not None
    rows = [{"id": 1, "v": 1, "name": "a", "more": 7}]
    assert isinstance(await buffer_rows(site.store, site.clock, grown, rows), Applied)
    await flush_table(site.ports, stale, 0)
    (path,) = await stored_paths(site.store, grown)
    assert pq.read_table(site.folder / path).column("more").to_pylist() == [7]


async def test_a_store_that_went_back_in_time_is_not_flushed(site: Site) -> None:
    await site.write(1)
    behind = BufferFlusher(
        site.ports, RULES, lambda _event, **_more: None, known_generation=lambda _table: 9
    )
    with pytest.raises(RefusedError, match="read-only"):
        await behind.run(site.table)
    assert (await site.buffer()).rows == 1


async def test_a_table_that_is_dropped_is_not_flushed(site: Site) -> None:
    await site.write(1)
    await site.store.apply(DropTable(table=site.table.id, delete_files=True))
    await site.flusher.run(replace(site.table, state=TableState.GOING))
    with pytest.raises(UnknownTableError, match="dropped"):
        await site.flusher.run(site.table)


async def test_damaged_rows_stop_the_flush_and_are_not_lost(site: Site) -> None:
    await site.write(1)
    key = TableKeys(site.table.id).segment(1)
    (stored,) = await site.store.buffered_rows(site.table.id, [1])
    (call, rows) = next(iter(stored.items()))
    async with site.store._keyspace.session() as session:
        await session.execute([("HSET", key, call, rows[:-1])])
    with pytest.raises(BrokenValueError, match="damaged rows"):
        await site.flusher.run(site.table)
    async with site.store._keyspace.session() as session:
        await session.execute([("DEL", key)])
    with pytest.raises(BrokenValueError, match="0 calls instead of 1"):
        await site.flusher.run(site.table)
    assert (await site.buffer()).counts[1].calls == 1


async def test_damaged_rows_do_not_stop_the_flush_of_others(site: Site) -> None:
    for number in (1, 2, 3):
        await site.write(number, segment_bytes_max=1)  # A segment for each call.
    key = TableKeys(site.table.id).segment(2)
    (stored,) = await site.store.buffered_rows(site.table.id, [2])
    ((call, rows),) = stored.items()
    async with site.store._keyspace.session() as session:
        await session.execute([("HSET", key, call, rows[:-1])])
    with pytest.raises(BrokenValueError, match="damaged"):
        await site.flusher.run(site.table)
    assert [segment.number for segment in (await site.buffer()).segments] == [2]
    assert sorted((await stored_paths(site.store, site.table)).values()) == [1, 1]
    async with site.store._keyspace.session() as session:
        await session.execute([("HSET", key, call, rows)])
    await site.flusher.run(site.table)
    assert await site.visible() == [1, 2, 3]
    assert not (await site.buffer()).segments


async def test_a_table_without_a_key_keeps_every_row(tmp_path: Path) -> None:
    site = await site_in(tmp_path, key=())
    for _ in range(3):
        await site.write(7, 7)
    assert await site.visible() == [7] * 6
    await site.flusher.run(site.table)
    assert await site.visible() == [7] * 6
    assert len(await stored_paths(site.store, site.table)) == 1


async def test_a_reader_notices_rows_that_become_files_while_it_reads(site: Site) -> None:
    await site.write(1)
    buffered = await read_buffer(site.store, site.table, site.ports.threads)
    await site.write(2)
    assert await is_buffered(site.store, site.table, buffered)  # More rows do no harm.
    await site.flusher.run(site.table)
    assert not await is_buffered(site.store, site.table, buffered)
