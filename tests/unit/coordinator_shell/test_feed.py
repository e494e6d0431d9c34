"""The feed: positions outlive what happens to files, and what was missed is looked at."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from common.metadata import bulk_reads
from common.metadata.changes import AddFiles, CreateTable, WriteAnalysis, protocol
from common.model.file import DataFile
from common.model.job import Job, Kind, TabletPlan
from common.model.table import LakeTable
from common.model.tablet import PLUS_INFINITY, Analysis, TabletId
from common.runtime import call_id
from common.settings import Settings
from common.spi.planner import Surroundings
from coordinator.core import events as on
from coordinator.registry import planner_for
from coordinator.scan import scanner as module
from coordinator.scan.scanner import ChangeFeed, Scanner
from coordinator.service import AnalysisWriter
from tests.support.memory_store import MemoryStore
from tests.support.patience import PATIENCE_S
from tests.support.predictable import ManualClock
from tests.support.request_shell import TABLE
from tests.support.store_harness import commit, reserve
from tests.support.thirty_tablets import ENDS, applied, store_with_table

pytestmark = pytest.mark.unit


async def add(store: MemoryStore, *ends: bytes) -> None:
    """Add a file to each of these tablets, a change each."""
    for end in ends:
        name = f"{end.hex()}.parquet"
        keys = {"key_min": end[:1], "key_max": end[:1]}
        file = DataFile(path=name, size_bytes=9, rows=1, **keys)  # type: ignore[arg-type]  # keys by name
        files = {end: (file,)}
        await applied(store, AddFiles(table="t1", call=call_id(ManualClock()), files=files))


def test_a_position_outlives_a_commit() -> None:
    async def story() -> None:
        store = await store_with_table(ManualClock())
        feed = ChangeFeed(store)
        await feed.follow("t1")
        await add(store, ENDS[0], ENDS[1])
        await feed.read()

        tablet = TabletId("t1", ENDS[0])
        await applied(store, reserve(tablet, "att", "01.parquet"))
        await applied(store, commit(tablet, "att", outputs=0))
        await add(store, ENDS[2])
        changes, missed = await feed.read()
        assert [(change.tablet.end, change.what) for change in changes] == [
            (ENDS[0], "reserve"),
            (ENDS[0], "commit"),
            (ENDS[2], "add"),
        ]
        assert (list(missed), feed.resets) == ([], 0)

    asyncio.run(story())


@pytest.mark.parametrize(("capped", "resets"), [(100, 0), (12, 1)])
def test_a_gap_in_the_change_stream_is_counted_once(
    monkeypatch: pytest.MonkeyPatch, capped: int, resets: int
) -> None:
    monkeypatch.setattr(protocol, "CHANGES_MAX", capped)
    monkeypatch.setattr(module, "CHANGES_MAX", 5)

    async def story() -> None:
        store = await store_with_table(ManualClock())
        feed = ChangeFeed(store)
        await add(store, ENDS[0])
        await feed.follow("t1")
        await add(store, *ENDS[1:])
        heard: list[bytes] = []
        missed: list[str] = []
        for _ in range(8):
            changes, others = await feed.read()
            heard += [change.tablet.end for change in changes]
            missed += others
        assert heard == list(ENDS[1:] if not resets else ENDS[-capped:])
        assert (missed, feed.resets) == (["t1"] * resets, resets)

    asyncio.run(story())


def test_a_table_of_which_changes_were_missed_is_looked_at_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "CHANGES_MAX", 12)
    monkeypatch.setattr(module, "CHANGES_MAX", 5)

    async def story() -> None:
        store, logged = await store_with_table(ManualClock()), list[str]()

        def log(event: str, **_fields: object) -> None:
            logged.append(event)

        scanner = Scanner(store, planner_for(Settings()), log)
        await add(store, ENDS[0])
        await scanner.refresh_tables()
        while scanner.waiting:
            scanner._next_batch(scanner._own)
        await add(store, *ENDS[1:])
        async with asyncio.timeout(PATIENCE_S):
            follows = asyncio.create_task(scanner.follow_forever())
            while scanner.waiting < len(ENDS):
                await asyncio.sleep(0.01)
            follows.cancel()
        assert logged == ["changes missed"]

    asyncio.run(story())


def test_tablets_of_lake_tables_wait_in_a_lane_of_their_own_while_their_mirror_moves() -> None:
    async def story() -> None:
        store = await store_with_table(ManualClock())
        lake = LakeTable(format="delta", uri="file:///data/sales", table_id="uid-1")
        for number in (1, 2):
            name, location = f"lake{number}", f"file:///lake{number}"
            table = replace(TABLE, id=name, name=name, location=location, key=(), lake=lake)
            await applied(store, CreateTable(table=table))
        scanner = Scanner(store, planner_for(Settings()), lambda *_, **__: None)
        await scanner.refresh_tables()
        own, lakes = scanner._own, scanner._lakes
        while scanner.waiting:
            scanner._next_batch(own)
            scanner._next_batch(lakes)
        first, second = (TabletId(f"lake{number}", PLUS_INFINITY) for number in (1, 2))
        native = TabletId("t1", ENDS[0])
        with scanner.held("lake1"):
            scanner.ask(first)
            scanner.found(second)
            scanner.ask(native)
            assert scanner._next_batch(own) == [native]
            assert scanner._next_batch(lakes) == [second]
            assert scanner._next_batch(lakes) == []
            assert not lakes.news.is_set(), "the loop sleeps"
            assert scanner.waiting == 1
        assert lakes.news.is_set()
        assert scanner._next_batch(lakes) == [first]
        assert scanner.waiting == 0

    asyncio.run(story())


def test_a_large_tablet_is_decoded_and_planned_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, plans, facts = list[str](), list[on.TabletPlanned](), list[object]()
    around = Surroundings(free_bytes=7)

    async def story() -> None:
        store, plan = await store_with_table(ManualClock()), planner_for(Settings())
        await add(store, ENDS[0])

        def noted(*values: Any, **more: Any) -> TabletPlan:
            threads.append(threading.current_thread().name)
            facts.append(more.get("known"))
            return plan(*values, **more)

        scanner = Scanner(store, noted, lambda *_, **__: None, around=lambda *_: around)

        def hear(event: on.Event) -> None:
            if isinstance(event, on.TabletPlanned):
                plans.append(event)

        scanner.attach(hear)
        await scanner.refresh_tables()
        for files in (2_000, 0):
            monkeypatch.setattr(module, "LARGE_FILES", files)
            monkeypatch.setattr(bulk_reads, "LARGE_FILES", files)
            await scanner.plan_batch([TabletId("t1", ENDS[0])])

    asyncio.run(story())
    assert threads[0] == threading.main_thread().name
    assert threads[1] != threads[0]
    assert plans[0].plan == plans[1].plan
    assert facts == [None, around]


def test_a_plan_of_very_many_jobs_is_bounded_by_kind_and_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "JOBS_MAX", 3)

    def job(name: str, kind: Kind, group: str, *after: str) -> Job:
        return Job(
            id=name,
            tablet=TabletId("t1", PLUS_INFINITY),
            table_name="t",
            kind=kind,
            inputs=(f"{name}-1", f"{name}-2"),
            input_bytes=1,
            group=group,
            priority=1,
            reason="r",
            depends_on=after,
        )

    system, user = Kind.SYSTEM, Kind.USER
    jobs = [job(f"s{number}", system, "small") for number in range(5)]
    jobs += [job("w1", system, "wide", "s4"), job("w2", system, "wide", "s0")]
    jobs += [job("w3", system, "wide", "w1"), job("u1", user, "small")]
    plan = TabletPlan(jobs=tuple(jobs), left={"x": "is too large"})
    bounded = module.bounded_plan(plan)
    assert [job.id for job in bounded.jobs] == ["s0", "s1", "s2", "w2", "u1"]
    why = "is planned later, since 3 jobs of its tablet come first"
    later = {f"{name}-{at}": why for name in ("s3", "s4", "w1", "w3") for at in (1, 2)}
    assert bounded.left == {"x": "is too large", **later}
    assert module.bounded_plan(bounded).jobs == bounded.jobs
    few = replace(plan, jobs=plan.jobs[:3])
    assert module.bounded_plan(few) is few


def test_a_reserved_tablet_is_planned_later_and_a_commit_has_it_planned_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        store = await store_with_table(ManualClock())
        await add(store, ENDS[0], ENDS[1])
        scanner = Scanner(store, planner_for(Settings()), lambda *_, **__: None)
        await scanner.refresh_tables()
        while scanner.waiting:
            scanner._next_batch(scanner._own)
        first, second = (TabletId("t1", end) for end in ENDS[:2])
        async with asyncio.timeout(PATIENCE_S):
            monkeypatch.setattr(module, "RESERVED_PAUSE_S", 2 * PATIENCE_S)
            await applied(store, reserve(first, "att-1", "01.parquet"))
            await scanner._follow_once()
            assert scanner._next_batch(scanner._own) == []
            await applied(store, commit(first, "att-1", outputs=0))
            await scanner._follow_once()
            assert scanner._next_batch(scanner._own) == [first]
            monkeypatch.setattr(module, "RESERVED_PAUSE_S", 0.01)
            await applied(store, reserve(second, "att-2", "02.parquet"))
            await scanner._follow_once()
            while not scanner.waiting:
                await asyncio.sleep(0.01)
            assert scanner._next_batch(scanner._own) == [second]

    asyncio.run(story())


def test_analyses_of_tablets_that_come_to_rest_soon_after_each_other_are_one_change() -> None:
    async def story() -> None:
        store, tasks = await store_with_table(ManualClock()), list[asyncio.Task[None]]()

        def spawn(work: Coroutine[Any, Any, None]) -> None:
            tasks.append(asyncio.create_task(work))

        tablets = [TabletId("t1", end) for end in ENDS]
        writer = AnalysisWriter(store, spawn, lambda *_, **__: None)
        changes = store.counts.changes
        for tablet in tablets:
            writer.put(
                WriteAnalysis(tablet=tablet, analysis=Analysis.EMPTY, version=0, settings_version=0)
            )
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*tasks)
        assert store.counts.changes == changes + 1
        records = await store.records(tablets)
        assert {record.analysis for record in records if record} == {Analysis.EMPTY}

    asyncio.run(story())
