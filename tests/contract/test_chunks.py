"""States of chunks of time: counted by each change of files, written by plans, read by scopes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from common.metadata.changes import AddFiles, CommitAttempt, DropTable, Window, WriteAnalysis
from common.metadata.keys import TabletKeys
from common.metadata.keyspace import hset
from common.model.file import ChunkGrid, DataFile
from common.model.job import TabletPlan
from common.model.outcome import RowCounts
from common.model.table import Column, Table, TableSettings
from common.model.tablet import PLUS_INFINITY, Analysis, ChunkNote, Tablet, TabletId
from common.runtime import call_id
from common.settings import Settings
from coordinator.core.scans import chunk_notes
from coordinator.ports import PlanTablet
from coordinator.registry import planner_for
from tests.support.store_harness import Harness, applied, commit, release, reserve

pytestmark = pytest.mark.anyio

HOUR = 3600.0
NOW_S = 1e9
OPTIONS = {"granularity": "1h", "skip_offset": "0", "small_cost": "0"}


def hour(path: str, first: int, hours: int = 1, size_bytes: int = 100) -> DataFile:
    """Return a file with times in some hours."""
    times = {"time_min_s": first * HOUR, "time_max_s": (first + hours) * HOUR - 1}
    return DataFile(path=path, size_bytes=size_bytes, rows=10, **times)


@dataclass
class Series:
    """A table by time chunks, with the steps of a coordinator."""

    harness: Harness
    table: Table
    tablet: TabletId
    plan: PlanTablet = field(default_factory=lambda: planner_for(Settings()))

    async def add(self, *files: DataFile) -> None:
        applied(await self.harness.add(self.tablet, *files))

    async def read(self) -> Tablet:
        (tablet,) = await self.harness.store.readable([self.tablet], {self.tablet})
        assert isinstance(tablet, Tablet)
        return tablet

    async def look(self) -> TabletPlan:
        """Plan the tablet and store the states of its chunks."""
        return await self.note(await self.read())

    async def note(self, tablet: Tablet) -> TabletPlan:
        plan = self.plan(tablet, self.table, NOW_S)
        notes = chunk_notes(plan, tablet.record, tablet.chunks)
        if notes is not None:
            change = WriteAnalysis(
                tablet=self.tablet,
                analysis=Analysis.UNKNOWN,
                version=-1,
                settings_version=-1,
                chunks=notes,
            )
            applied(await self.harness.apply(change))
        return plan

    async def notes(self) -> Mapping[int, ChunkNote]:
        chunks = (await self.read()).chunks
        assert chunks is not None
        return chunks.notes

    async def work(self, plan: TabletPlan) -> None:
        """Do the jobs of a plan: each leaves one file for each chunk."""
        for job in plan.jobs:
            if job.depends_on:
                continue
            tablet = await self.read()
            attempt = self.harness.ids.next("t")
            change = replace(reserve(self.tablet, attempt, *job.inputs), outputs_max=40)
            applied(await self.harness.apply(change))
            files = [tablet.files[path] for path in job.inputs]
            grid = ChunkGrid(HOUR)
            numbers = sorted({number for file in files for number in grid.chunks_of(file)})
            cuts = [int(at // HOUR) for at in job.cuts_at_s]
            parts = sorted(
                {max([cut for cut in cuts if cut <= n], default=numbers[0]) for n in numbers}
            )
            outputs = tuple(
                replace(hour(f"out/{attempt}-{at}.parquet", first), tags=job.output_tags)
                for at, first in enumerate(parts)
            )
            made = CommitAttempt(
                tablet=self.tablet, attempt=attempt, outputs=outputs, counts=RowCounts()
            )
            applied(await self.harness.apply(made))


async def series(harness: Harness, **options: str) -> Series:
    settings = TableSettings(planner="time-chunk", planner_options=OPTIONS | options)
    columns = (Column("at", "int64"), Column("v", "int64"))
    plain = {"key": (), "version_column": None, "time_column": "at"}
    table = await harness.table(splits=(), schema=columns, settings=settings, **plain)
    return Series(harness, table, TabletId(table.id, PLUS_INFINITY))


async def test_each_change_of_files_counts_in_its_chunks(harness: Harness) -> None:
    made = await series(harness)
    await made.add(hour("a", 1), hour("b", 2, hours=2))
    await made.look()
    assert await made.notes() == {
        1: ChunkNote(Analysis.STABLE, 0, 1),
        2: ChunkNote(Analysis.STABLE, 0, 1),
        3: ChunkNote(Analysis.STABLE, 0, 1),
    }
    await made.add(hour("c", 1), hour("d", 9))
    plan = await made.look()
    assert plan.asked == frozenset({1, 9}), "only what has changed is planned"
    notes = await made.notes()
    assert notes[1] == ChunkNote(Analysis.UNSTABLE, 1, 2)
    assert notes[9] == ChunkNote(Analysis.STABLE, 1, 1)
    await made.work(plan)
    plan = await made.look()
    assert (plan.asked, plan.jobs) == (frozenset({1}), ())
    assert (await made.notes())[1] == ChunkNote(Analysis.STABLE, 2, 1)
    change = AddFiles(
        table=made.table.id,
        call=call_id(harness.clock),
        files={PLUS_INFINITY: (hour("e", 2),)},
        window=Window(2 * HOUR, 4 * HOUR, 1),
    )
    assert applied(await harness.apply(change)).replaced == 1
    assert (await made.look()).asked == frozenset({2, 3})
    notes = await made.notes()
    assert notes[2] == ChunkNote(Analysis.STABLE, 1, 1)
    assert notes[3] == ChunkNote(Analysis.EMPTY, 1, 0)
    assert (await made.look()).asked == frozenset()
    applied(await harness.apply(DropTable(table=made.table.id)))
    assert TabletKeys.of(made.tablet).chunks not in await harness.keys(made.table.id)


async def test_a_table_without_times_or_another_planner_has_no_such_key(harness: Harness) -> None:
    plain = await harness.tablet_with("a", splits=())
    applied(await harness.apply(reserve(plain, "t1", "a")))
    applied(await harness.apply(commit(plain, "t1", inputs=("a",))))
    other = await series(harness)
    other.table = replace(other.table, settings=TableSettings(planner="bin-pack"))
    await other.add(hour("a", 1))
    await other.look()
    for tablet in (plain, other.tablet):
        assert TabletKeys.of(tablet).chunks not in await harness.keys(tablet.table)


async def test_a_tablet_that_changes_while_it_is_planned_counts_from_then_on(
    harness: Harness,
) -> None:
    made = await series(harness)
    await made.add(hour("a", 1))
    before = await made.read()
    await made.add(hour("b", 1), hour("c", 5))
    await made.note(before)
    assert await made.notes() == {}, "they would be of the tablet as it was"
    plan = await made.look()
    assert (plan.asked, len(plan.jobs)) == (None, 1)
    assert {number: note.files for number, note in (await made.notes()).items()} == {1: 2, 5: 1}
    before = await made.read()
    await made.add(hour("d", 5))
    await made.note(before)
    assert (await made.look()).asked == frozenset({1, 5}), (
        "the add counted, whatever was noted meanwhile"
    )


async def test_changes_of_an_older_release_are_noticed(harness: Harness) -> None:
    """It adds and removes files, and counts them in the record alone."""
    made = await series(harness)
    await made.add(hour("a", 1), hour("b", 2))
    await made.look()
    assert (await made.look()).asked == frozenset()
    chunks = TabletKeys.of(made.tablet).chunks
    stored = await harness.read(("HGETALL", chunks))
    await made.add(hour("c", 2))
    await harness.write(("DEL", chunks), hset(chunks, stored))
    plan = await made.look()
    assert (plan.asked, len(plan.jobs)) == (None, 1)
    assert (await made.look()).asked == frozenset({2}), "it is whole once"


async def test_notes_of_another_policy_do_not_count(harness: Harness) -> None:
    made = await series(harness)
    await made.add(hour("a", 1), hour("b", 2))
    await made.look()
    await made.add(hour("c", 2))
    old = await made.read()
    settings = replace(made.table.settings, planner_options=OPTIONS | {"granularity": "2h"})
    changed = replace(made.table, settings=settings, settings_version=2)
    before, made.table = made.table, changed
    plan = await made.look()
    assert plan.asked is None
    stored = await made.notes()
    assert {number: note.files for number, note in stored.items()} == {0: 1, 1: 2}
    made.table = before
    assert (await made.note(old)).asked == frozenset({2}), "a plan by the older policy is late"
    assert await made.notes() == stored


async def test_a_chunk_is_planned_again_after_its_attempt_failed(harness: Harness) -> None:
    made = await series(harness)
    await made.add(hour("a", 1), hour("b", 1), hour("c", 2))
    plan = await made.look()
    applied(await harness.apply(reserve(made.tablet, "t1", *plan.jobs[0].inputs)))
    assert (await made.look()).jobs == ()
    assert (await made.notes())[1] == ChunkNote(Analysis.UNKNOWN, 0, 2)
    applied(await harness.apply(release(made.tablet, "t1")))
    again = await made.look()
    assert (again.asked, [job.id for job in again.jobs]) == (frozenset({1}), [plan.jobs[0].id])


# One store is enough: the property is of the plans.
@pytest.mark.parametrize("harness", ["memory"], indirect=True)
@pytest.mark.parametrize("seed", range(8))
async def test_a_part_is_planned_as_the_whole_would_be(harness: Harness, seed: int) -> None:
    chance = random.Random(seed)
    options = {} if seed % 2 else {"skip_offset": "4h", "small_cost": "500"}
    made = await series(harness, **options)
    narrow = 0
    for step in range(25):
        files = [
            hour(f"{step}-{number}", chance.randrange(30), chance.choice((1, 1, 1, 2, 3)))
            for number in range(chance.randrange(3))
        ]
        if files:
            await made.add(*files)
        tablet = await made.read()
        whole = made.plan(replace(tablet, chunks=None), made.table, NOW_S)
        plan = await made.note(tablet)
        narrow += plan.asked is not None
        assert plan.jobs == whole.jobs
        assert plan.left.items() <= whole.left.items()
        if chance.random() < 0.5:
            await made.work(replace(plan, jobs=plan.jobs[: chance.randrange(4)]))
    assert narrow > 20


@pytest.mark.parametrize("field", ["head", "1", "17"])
async def test_states_that_cannot_be_read_begin_anew(harness: Harness, field: str) -> None:
    made = await series(harness)
    await made.add(hour("a", 1), hour("b", 2))
    await made.look()
    await harness.write(hset(TabletKeys.of(made.tablet).chunks, {field: "of a newer release"}))
    await made.add(hour("c", 2))
    plan = await made.look()
    assert (plan.asked, len(plan.jobs)) == (None, 1)
    await made.look()
    assert (await made.look()).asked == frozenset({2})
