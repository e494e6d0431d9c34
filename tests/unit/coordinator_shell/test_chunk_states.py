"""The service and the states of chunks: what is planned again, and what is stored of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from common.metadata.changes import AddFiles, Applied, CreateTable, Window, WriteAnalysis
from common.model.file import ChunkGrid, DataFile
from common.model.job import Plan
from common.model.table import Column, Table, TableSettings
from common.model.tablet import (
    PLUS_INFINITY,
    Analysis,
    Bounds,
    ChunkHead,
    ChunkNote,
    ChunkNotes,
    Record,
    StoredChunks,
    Tablet,
    TabletId,
)
from common.runtime import call_id
from common.settings import CoordinatorSettings, Settings
from common.spi.planner import PlanParameters
from coordinator.core import events as on
from coordinator.core.actions import Action
from coordinator.core.limits import Limits
from coordinator.core.planning import plan_tablet
from coordinator.core.scans import scope_of, with_scope
from coordinator.core.state import CoordinatorState
from coordinator.plugins.planners.time_chunk import TimeChunkPlanner
from coordinator.registry import planner_for
from tests.support.memory_store import MemoryStore
from tests.support.planning import job
from tests.support.predictable import ManualClock
from tests.support.reservations import reservation_of
from tests.unit.coordinator_shell.test_shell import Shell, shell

HOUR = 3600.0
OPTIONS = {"granularity": "1h", "skip_offset": "0", "small_cost": "0"}
TABLE = Table(
    id="t1",
    name="events",
    location="file:///data/events",
    schema=(Column("at", "int64"),),
    time_column="at",
    settings=TableSettings(planner="time-chunk", planner_options=OPTIONS),
)
TABLET = TabletId("t1", PLUS_INFINITY)


def hour(path: str, number: int) -> DataFile:
    start_s = number * HOUR
    return DataFile(
        path=path, size_bytes=100, rows=10, time_min_s=start_s, time_max_s=start_s + HOUR - 1
    )


async def add(store: MemoryStore, *files: DataFile, window: Window | None = None) -> None:
    call = call_id(ManualClock())
    change = AddFiles(table="t1", call=call, files={PLUS_INFINITY: files}, window=window)
    assert isinstance(await store.apply(change), Applied)


async def states(it: Shell, wanted: Mapping[int, ChunkNote]) -> None:
    """Wait until these states are stored."""
    async with asyncio.timeout(10):
        while (await it.store.chunks([TABLET]))[0].notes != wanted:
            await asyncio.sleep(0.01)


def test_a_late_file_is_planned_alone_and_other_jobs_stay_queued() -> None:
    async def story() -> None:
        store = MemoryStore(ManualClock())
        assert isinstance(await store.apply(CreateTable(table=TABLE)), Applied)
        await add(store, hour("a", 1), hour("b", 1), hour("c", 2), hour("d", 3))
        state = CoordinatorState(CoordinatorSettings())
        async with shell(store, state) as it:
            stable, unstable = Analysis.STABLE, Analysis.UNSTABLE
            first = {1: ChunkNote(unstable, 0, 2), 2: ChunkNote(stable, 0, 1)}
            await states(it, {**first, 3: ChunkNote(stable, 0, 1)})
            ids = state.queued_ids(TABLET)
            await add(store, hour("e", 3))
            await states(it, {**first, 3: ChunkNote(unstable, 1, 2)})
            assert len(state.queued_ids(TABLET)) == 2
            assert {*ids} < {*state.queued_ids(TABLET)}
            reasons = state.explain(TABLET, 0.0).left
            assert [*reasons] == ["c"], "its chunk was not planned again, and its reason is kept"
            await add(store, hour("f", 9))
            await states(
                it,
                {**first, 3: ChunkNote(unstable, 1, 2), 9: ChunkNote(stable, 1, 1)},
            )
            window = Window(9 * HOUR, 10 * HOUR, 1)
            await add(store, hour("g", 9), window=window)
            await states(
                it,
                {**first, 3: ChunkNote(unstable, 1, 2), 9: ChunkNote(stable, 2, 1)},
            )
            reasons = state.explain(TABLET, 0.0).left
            assert sorted(reasons) == ["c", "g"], "a file that was replaced has no reason"

    asyncio.run(story())


class Asked(TimeChunkPlanner):
    """Counts the files that it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[int] = []

    def plan(self, parameters: PlanParameters) -> Plan:
        self.files.append(len(parameters.files))
        return super().plan(parameters)


def resting(count: int) -> Tablet:
    """Return a tablet with a file in each of many chunks, all of them at rest, and a late one."""
    files = [hour(f"f{number}", number) for number in range(count)]
    late = hour("late", 17)
    head = ChunkHead(epoch=1, grid=ChunkGrid(HOUR), policy="p", files=count, size_bytes=100 * count)
    stored = StoredChunks(
        head=head,
        versions={17: 1},
        notes={number: ChunkNote(Analysis.STABLE, 0, 1) for number in range(count)},
        files=1,
        size_bytes=100,
    )
    return Tablet(
        id=TABLET,
        bounds=Bounds(None, PLUS_INFINITY),
        files={file.path: file for file in (*files, late)},
        record=Record(version=2, files=count + 1, size_bytes=100 * count + 100),
        chunks=stored,
    )


def test_of_100_000_chunks_one_late_file_has_one_planned_and_one_written() -> None:
    tablet, asked = resting(100_000), Asked()
    scope = scope_of(tablet, TABLE, ChunkGrid(HOUR), "p", 1e9)
    services = Settings().services
    plan = plan_tablet(scope.tablet, TABLE, services, {"time-chunk": asked}, 1e9)
    plan = with_scope(plan, tablet, scope, ChunkGrid(HOUR), "p")

    assert (scope.asked, asked.files) == (frozenset({17}), [2])
    state = CoordinatorState(CoordinatorSettings())
    state.handle(on.TableSeen(table=TABLE), 0.0)
    assert tablet.chunks is not None
    event = on.TabletPlanned(
        tablet=TABLET, plan=plan, record=tablet.record, settings_version=1, chunks=tablet.chunks
    )
    (change,) = state.handle(event, 0.0)
    assert isinstance(change, WriteAnalysis)
    assert change.chunks is not None
    assert change.chunks.notes == {17: ChunkNote(Analysis.UNSTABLE, 1, 2)}
    assert len(state.queued_ids(TABLET)) == 1


def test_a_file_in_more_chunks_than_are_counted_has_the_whole_tablet_planned() -> None:
    """It is shorter than 16 chunks, but begins and ends inside of one: it has rows in 17."""
    tablet, grid = resting(40), ChunkGrid(HOUR)
    assert scope_of(tablet, TABLE, grid, "p", 1e9).asked == frozenset({17})
    long = replace(hour("long", 0), time_min_s=20.5 * HOUR, time_max_s=36.4 * HOUR)
    assert (len(grid.chunks_of(long)), grid.counted(long)) == (17, range(0))
    chunks, record = tablet.chunks, tablet.record
    assert chunks is not None
    changed = replace(
        tablet,
        files={**tablet.files, long.path: long},
        record=replace(record, files=record.files + 1, size_bytes=record.size_bytes + 100),
        chunks=replace(chunks, files=chunks.files + 1, size_bytes=chunks.size_bytes + 100),
    )
    assert scope_of(changed, TABLE, grid, "p", 1e9).asked is None


def changed_head(tablet: Tablet, **facts: Any) -> Tablet:
    chunks = tablet.chunks
    assert chunks is not None
    assert chunks.head is not None
    return replace(tablet, chunks=replace(chunks, head=replace(chunks.head, **facts)))


def test_the_whole_tablet_is_planned_where_a_part_would_not_do() -> None:
    tablet, grid = resting(40), ChunkGrid(HOUR)
    triggers = replace(TABLE, settings=replace(TABLE.settings, triggers=("admin",)))
    wholes = {
        "a request waits to select files": (replace(tablet, waiting={"r1": 1.0}), TABLE),
        "a trigger asks about all files": (tablet, triggers),
        "the policy is another one": (changed_head(tablet, policy="older"), TABLE),
        "a plan of all was due": (changed_head(tablet, due_at_s=9e8), TABLE),
    }
    for name, (other, table) in wholes.items():
        scope = scope_of(other, table, grid, "p", 1e9)
        assert (scope.asked, scope.tablet) == (None, other), name
    later = scope_of(changed_head(tablet, due_at_s=2e9), TABLE, grid, "p", 1e9)
    assert later.asked == frozenset({17})


def test_files_without_times_are_part_of_every_plan_and_of_no_chunk() -> None:
    tablet, grid = resting(40), ChunkGrid(HOUR)
    record, chunks = tablet.record, tablet.chunks
    assert chunks is not None
    timeless = DataFile(path="timeless", size_bytes=100, rows=10)
    inputs = ("timeless", "f30")
    running = reservation_of(job("j1", inputs=inputs), "a1", "c1")
    changed = replace(
        tablet,
        files={**tablet.files, "timeless": timeless},
        record=replace(record, files=record.files + 1, size_bytes=record.size_bytes + 100),
        chunks=replace(chunks, files=chunks.files + 1, size_bytes=chunks.size_bytes + 100),
        running={"a1": running},
    )
    scope = scope_of(changed, TABLE, grid, "p", 1e9)
    assert scope.asked == frozenset({17, 30})
    assert sorted(scope.tablet.files) == ["f17", "f30", "late", "timeless"]


def two_hours(tablet: TabletId) -> Tablet:
    """Return a tablet whose states are not stored yet, with two files in each of two hours."""
    return Tablet(
        id=tablet,
        bounds=Bounds(None, PLUS_INFINITY),
        files={file.path: file for file in (hour(f"f{n}", n // 2) for n in range(4))},
        record=Record(version=1, files=4, size_bytes=400),
        chunks=StoredChunks(),
    )


def planned(tablet: Tablet, priority: int = 0) -> on.TabletPlanned:
    plan = planner_for(Settings())(tablet, TABLE, 1e9)
    jobs = tuple(replace(job, priority=job.priority + priority) for job in plan.jobs)
    grid = ChunkGrid(HOUR)
    return on.TabletPlanned(
        tablet=tablet.id,
        plan=replace(plan, jobs=jobs),
        record=tablet.record,
        settings_version=1,
        chunks=tablet.chunks,
        numbers={path: grid.chunks_of(file) for path, file in tablet.files.items()},
    )


def stored(actions: Sequence[Action], tablet: TabletId) -> list[ChunkNotes]:
    return [
        action.chunks
        for action in actions
        if isinstance(action, WriteAnalysis)
        and action.tablet == tablet
        and action.chunks is not None
    ]


def test_a_chunk_whose_job_a_full_queue_drops_is_deferred() -> None:
    state = CoordinatorState(CoordinatorSettings(), limits=Limits(queue_count_max=1))
    state.handle(on.TableSeen(table=TABLE), 0.0)
    tablet = two_hours(TABLET)
    (notes,) = stored(state.handle(planned(tablet), 0.0), TABLET)
    assert sorted(note.analysis for note in notes.notes.values()) == ["deferred", "unstable"]
    again = replace(tablet, chunks=StoredChunks(head=notes.head, notes=notes.notes))
    assert len(planned(again).plan.jobs) == 2, "it is planned again"


def test_a_job_of_another_tablet_that_is_evicted_makes_its_chunk_deferred() -> None:
    state = CoordinatorState(CoordinatorSettings(), limits=Limits(queue_count_max=2))
    state.handle(on.TableSeen(table=TABLE), 0.0)
    other = TabletId("t1", b"other")
    (first,) = stored(state.handle(planned(two_hours(other)), 0.0), other)
    assert {note.analysis for note in first.notes.values()} == {Analysis.UNSTABLE}
    actions = state.handle(planned(two_hours(TABLET), priority=100), 0.0)
    (evicted,) = stored(actions, other)
    assert {note.analysis for note in evicted.notes.values()} == {Analysis.DEFERRED}
    assert (evicted.head.epoch, evicted.notes.keys()) == (first.head.epoch, first.notes.keys())
