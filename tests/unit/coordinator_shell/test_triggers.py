"""Triggers of a whole coordinator: what they ask, what is planned then, what is told of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from common.errors import RefusedError, UnavailableError
from common.metadata.changes import AddFiles, Applied, ChangeTable, CreateTable
from common.metadata.store_values import ListedTables
from common.model.file import DataFile
from common.model.job import Job
from common.model.table import TableSettings, TableState
from common.model.tablet import PLUS_INFINITY, TabletId
from common.runtime import call_id
from common.settings import Settings
from coordinator.context import ShellContext
from coordinator.store_watch import take_lead
from coordinator.wiring import CoordinatorParts, assemble
from tests.support.memory_store import MemoryStore
from tests.support.predictable import CountedIds
from tests.support.request_shell import ENDS, TABLE, Cluster, Shell, run, until
from tests.support.sim_loop import EPOCH_S, World

pytestmark = pytest.mark.unit

LAST = TabletId(TABLE.id, PLUS_INFINITY)
ADMIN_ONLY = replace(TABLE, settings=TableSettings(triggers=("admin",)))


async def cluster_with(count: int, table: object = ADMIN_ONLY) -> Cluster:
    """Return a cluster with one tablet of some small files; four are a job of `ratio`."""
    cluster = Cluster()
    await cluster.create(table, splits=())  # type: ignore[arg-type]  # a table
    await cluster.add(PLUS_INFINITY, *(f"f{number}" for number in range(count)))
    return cluster


def sentences(it: Shell) -> str:
    return " | ".join(it.parts.explain(LAST, it.cluster.clock.now_s()).sentences)


async def seen(it: Shell, count: int) -> None:
    """Wait until the tablet was planned with so many files left."""

    async def planned() -> bool:
        return len(it.parts.explain(LAST, it.cluster.clock.now_s()).left) == count

    await until(planned)


def test_a_gated_table_is_planned_when_an_operator_asks_and_not_before() -> None:
    async def story() -> None:
        cluster = await cluster_with(4)
        async with cluster.coordinator() as it:
            await seen(it, 4)
            left = it.parts.explain(LAST, 0.0).left
            assert set(left.values()) == {"waits for a trigger of its table (admin)"}
            assert "system jobs are planned only on a trigger: admin" in sentences(it)
            assert await it.take(wait_max_s=0.05) is None
            cluster.clock.advance(1.0)

            report = await it.parts.triggers.ask("t1")
            (answer,) = report.tablets
            assert (answer.verdict, answer.jobs, answer.files) == ("accepted", 1, 4)
            assert (report.table, report.trigger, report.left) == ("events", "admin", 0)
            cluster.clock.advance(1.0)
            await cluster.add(PLUS_INFINITY, "late1", "late2", "late3", "late4")
            taken = await it.take()
            assert taken is not None
            assert [file.path for file in taken.inputs] == [f"f{n}.parquet" for n in range(4)]
            await it.commit(taken)
            await seen(it, 5)

            async def answered() -> bool:
                return (await cluster.tablet()).record.answered_s == report.triggered_at_s

            await until(answered)
            assert await it.take(wait_max_s=0.05) is None, "late files wait for the next trigger"
            assert "trigger admin asked" in sentences(it)
            assert "wanted 1 job on 4 files" in sentences(it)
            again = await it.parts.triggers.ask("t1")
            assert again.triggered_at_s > report.triggered_at_s
            (answer,) = again.tablets
            assert (answer.verdict, answer.files) == ("accepted", 4)

    run(story())


def test_one_tablet_is_planned_when_an_operator_asks_for_it_and_no_other() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(ADMIN_ONLY)
        for end in ENDS:
            await cluster.add(end, *(f"{end.hex()}{number}" for number in range(4)))
        first = TabletId(TABLE.id, ENDS[0])
        async with cluster.coordinator() as it:
            await seen(it, 4)
            cluster.clock.advance(1.0)
            report = await it.parts.triggers.ask("t1", first)
            (answer,) = report.tablets
            assert (answer.tablet, answer.verdict, answer.files) == (first.text, "accepted", 4)
            assert report.triggered_at_s > 0
            taken = await it.take()
            assert taken is not None
            assert taken.reservation.attempt
            assert taken.job.tablet == first
            await it.commit(taken)

            async def answered() -> bool:
                tablet = await cluster.tablet(ENDS[0])
                return tablet.record.answered_s == report.triggered_at_s

            await until(answered)
            assert await it.take(wait_max_s=0.05) is None, "the other tablet was not asked"
            assert (await cluster.tablet()).record.triggered_s == 0
            (tally,) = it.parts.status().triggers
            assert (tally.trigger, tally.accepted) == ("admin", 1)
            cluster.clock.advance(1.0)
            whole = await it.parts.triggers.ask("t1")
            assert whole.triggered_at_s > report.triggered_at_s
            assert [each.verdict for each in whole.tablets] == ["refused", "accepted", "accepted"]

    run(story())


def test_a_refusal_is_told_with_its_reason_and_kept() -> None:
    async def story() -> None:
        cluster = await cluster_with(2, replace(ADMIN_ONLY, settings=replace(
            ADMIN_ONLY.settings, ratio=50.0
        )))  # fmt: skip
        async with cluster.coordinator() as it:
            (answer,) = (await it.parts.triggers.ask("t1")).tablets
            assert (answer.verdict, answer.jobs) == ("refused", 0)
            assert answer.reason.startswith("2 files: no set of at most 10 files")
            cluster.clock.advance(1.0)
            await cluster.add(PLUS_INFINITY, "another")
            await seen(it, 3)
            assert f"its planner found nothing to do: {answer.reason}" in sentences(it)
            status = it.parts.status()
            (tally,) = status.triggers
            assert (tally.table, tally.trigger, tally.refused) == ("events", "admin", 1)
            assert tally.refusal == answer.reason
            figures = {figure.labels: figure.value for figure in status.figures
                       if figure.metric == "neve_trigger_decisions_total"}  # fmt: skip
            assert figures == {("admin", "refused"): 1}

    run(story())


def test_a_trigger_that_may_not_ask_is_refused_and_that_is_kept() -> None:
    async def story() -> None:
        periodic = TableSettings(triggers=("periodic",), trigger_spread_s=300.0)
        cluster = await cluster_with(4, replace(TABLE, settings=periodic))
        async with cluster.coordinator() as it:
            with pytest.raises(RefusedError, match="does not have the trigger admin"):
                await it.parts.triggers.ask("t1")
            change = ChangeTable(table="t1", settings_version=1, state=TableState.PAUSED)
            await cluster.store.apply(change)
            with pytest.raises(
                RefusedError, match="is paused: its planner runs only while it is live"
            ):
                await it.parts.triggers.ask("t1")
            (tally,) = it.parts.status().triggers
            assert tally.refusal.startswith("table events is paused")
            assert (await cluster.store.table("t1")).triggered_at_s == 0  # type: ignore[union-attr]  # it is there

    run(story())


def test_a_trigger_outlives_the_coordinator_that_heard_it() -> None:
    async def story() -> None:
        cluster = await cluster_with(4)
        async with cluster.coordinator() as first:
            await seen(first, 4)
            cluster.clock.advance(1.0)
            await first.parts.triggers.ask("t1")
        async with cluster.coordinator() as second:
            taken = await second.take()
            assert taken is not None
            assert len(taken.inputs) == 4

    run(story())


def test_a_table_without_triggers_is_planned_after_changes_and_operators_may_ask() -> None:
    async def story() -> None:
        cluster = await cluster_with(2, replace(TABLE, settings=TableSettings(ratio=50.0)))
        async with cluster.coordinator() as it:
            (answer,) = (await it.parts.triggers.ask("t1")).tablets
            assert answer.verdict == "refused"
            cluster.clock.advance(1.0)
            await cluster.add(PLUS_INFINITY, *(f"more{number}" for number in range(60)))
            taken = await it.take()
            assert taken is not None, "no trigger was needed"

    run(story())


async def three_tables(world: World, store: MemoryStore) -> None:
    """Make tables e0 to e2 that are asked about every ten minutes; e1 has four small files."""
    settings = TableSettings(
        triggers=("periodic",), trigger_interval_s=600.0, trigger_spread_s=120.0
    )
    for number in range(3):
        location = f"file:///d/{number}"
        named = replace(TABLE, id=f"t{number}", name=f"e{number}", location=location)
        await store.apply(CreateTable(table=replace(named, settings=settings), splits=()))
    files = tuple(
        DataFile(path=f"{n}.parquet", size_bytes=9, rows=1, key_min=b"\x01", key_max=b"\x02")
        for n in range(4)
    )
    added = AddFiles(table="t1", call=call_id(world), files={PLUS_INFINITY: files})
    assert isinstance(await store.apply(added), Applied)


class FailsOnce(MemoryStore):
    """Does not answer who asks for tables first after a trigger."""

    asked_by_trigger = False

    async def listed_tables(self) -> ListedTables:
        if self.asked_by_trigger:
            self.asked_by_trigger = False
            raise UnavailableError("Redis does not answer")
        return await super().listed_tables()


def half_an_hour(store_type: type[MemoryStore]) -> tuple[Job, list[tuple[float, str]], list[str]]:
    """Return the job that waits at the end, who was asked when, and all events."""
    world, made = World(1), list[CoordinatorParts]()
    store, asked, events = store_type(world), list[tuple[float, str]](), list[str]()

    def log(event: str, **fields: object) -> None:
        events.append(event)
        if event == "trigger asks":
            asked.append((world.now_s() - EPOCH_S, str(fields["table"])))
            if isinstance(store, FailsOnce):
                store.asked_by_trigger = True

    async def life() -> None:
        await three_tables(world, store)
        parts = assemble(Settings(), ShellContext(store, world, CountedIds("a"), log, "coord-1"))
        made.append(parts)
        await take_lead(store, parts.scanner, "coord-1", log)
        async with asyncio.TaskGroup() as tasks:
            for loop in parts.loops(Settings()):
                tasks.create_task(loop)

    world.process("coordinator").start(life())
    try:
        world.run_until(EPOCH_S + 1900.0)
        (job,) = made[0].state.queued(None, 10, world.now_s())
    finally:
        world.end()
    return job.job, asked, events


def test_periodic_triggers_ask_at_the_start_and_each_interval_on_virtual_time() -> None:
    """Half an hour of simulated time: each table is asked about at its own moment."""
    job, asked, _ = half_an_hour(MemoryStore)
    assert len(job.inputs) == 4
    assert len({round(at_s) for at_s, _ in asked[:3]}) == 3, "they begin apart"
    for name in ("e0", "e1", "e2"):
        times_s = [at_s for at_s, table in asked if table == name]
        assert times_s[0] < 122.0, times_s
        gaps = [later - at_s for at_s, later in pairwise(times_s)]
        assert len(gaps) in {2, 3}, times_s
        assert all(599.0 < gap < 601.5 for gap in gaps), times_s


def test_a_store_that_is_away_right_after_a_trigger_ends_no_loop() -> None:
    job, asked, events = half_an_hour(FailsOnce)
    assert events.count("trigger is seen later") == len(asked) > 6
    assert len(job.inputs) == 4, "it is seen all the same"
