"""Steps of single decisions that no shorter way leads to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from common.errors import BrokenValueError
from common.metadata import changes
from common.metadata.changes.protocol import More, Needs, Seen, Transaction
from common.metadata.changes.selections import may_drop_hold
from common.metadata.codec.tablet import SELECTION, VERSION
from common.metadata.executor import Executor, RetryLimits
from common.metadata.keys import TableKeys, TabletKeys, is_table_id
from common.metadata.keyspace import hset, set_string, srem
from common.model.table import TableState
from common.model.tablet import PLUS_INFINITY, Analysis, Bounds, Selection, Tablet, TabletId
from tests.support.flaky import Fault, Point
from tests.support.memory_store import MemoryKeyspace, MemoryStore
from tests.support.predictable import ManualClock
from tests.support.store_harness import MIDDLE, Harness, applied, commit, file, refused, reserve


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def memory() -> Harness:
    clock = ManualClock()
    return Harness("memory", MemoryKeyspace(clock), clock)


def test_notes_about_a_table_that_is_not_there() -> None:
    async def story() -> None:
        harness = memory()
        tablet = TabletId("tbl-1", MIDDLE)
        note = changes.WriteAnalysis(
            tablet=tablet, analysis=Analysis.EMPTY, version=1, settings_version=1
        )
        publish = changes.PublishManifest(table="tbl-1", number=1, path="m", begun_s=0)
        for change in (
            note,
            publish,
            changes.BumpGeneration(table="tbl-1"),
            changes.DropHold(tablet=tablet),
        ):
            refused(await harness.apply(change), "table")

    run(story())


def test_an_analysis_leaves_the_marks_of_settled_versions() -> None:
    async def story() -> None:
        harness = memory()
        tablet = await harness.tablet_with("a")
        note = changes.WriteAnalysis(
            tablet=tablet,
            analysis=Analysis.DEFERRED,
            version=1,
            settings_version=1,
            settled=((1.0, b"v"),),
        )
        applied(await harness.apply(note))
        again = replace(note, analysis=Analysis.STABLE, settled=None)
        applied(await harness.apply(again))
        (record,) = await harness.store.records([tablet])
        assert record is not None
        assert (record.analysis, record.settled) == (Analysis.STABLE, ((1.0, b"v"),))

    run(story())


@pytest.mark.parametrize("junk", [b"\x01\x92\x07\xff", b"seven", b"\xff"])
def test_a_number_or_name_that_is_none_is_told_with_its_key(junk: bytes) -> None:
    """A trigger that met such a generation ended the coordinator."""

    async def story() -> None:
        harness = memory()
        tablet = await harness.tablet_with("a")
        table, own = TableKeys(tablet.table), TabletKeys.of(tablet)
        trigger = changes.TriggerTable(table=tablet.table, trigger="periodic", generation=1)
        note = changes.WriteAnalysis(
            tablet=tablet, analysis=Analysis.EMPTY, version=1, settings_version=1
        )
        accept = changes.AcceptGeneration(table=tablet.table, generation=3)
        for command, key, change in (
            (set_string(table.generation, junk), table.generation, trigger),
            (set_string(table.generation, junk), table.generation, accept),
            (
                set_string(table.generation, junk),
                table.generation,
                changes.BumpGeneration(table=tablet.table),
            ),
            (hset(own.record, {VERSION: junk}), own.record, note),
            (hset(own.waiting, {"req-1": junk}), own.waiting, changes.DropHold(tablet=tablet)),
        ):
            await harness.write(command)
            with pytest.raises(BrokenValueError, match=f"{re.escape(key)}: the stored value"):
                await harness.apply(change)

    run(story())


def test_repeats_that_find_their_mark() -> None:
    async def story() -> None:
        harness = memory()
        tablet = await harness.tablet_with("a")
        claim = changes.ClaimCoordination(coordinator="c1")
        applied(await harness.apply(claim))
        applied(await harness.apply(claim))
        publish = changes.PublishManifest(table=tablet.table, number=1, path="m", begun_s=0)
        applied(await harness.apply(publish))
        applied(await harness.apply(replace(publish, number=2)))
        applied(await harness.apply(reserve(tablet, "t1", "a")))
        applied(await harness.apply(commit(tablet, "t1")))
        applied(await harness.apply(changes.KeepGarbage(table=tablet.table, path="a")))
        refused(
            await harness.apply(changes.DropHold(tablet=TabletId(tablet.table, b"q"))), "tablet"
        )

    run(story())


def test_a_table_that_is_dropped_while_it_is_made() -> None:
    async def story() -> None:
        harness = memory()
        store, keyspace = harness.flaky()
        await store.store_id()
        table = harness.new_table()
        looks = [0]

        async def script(point: Point) -> Fault:
            looks[0] += point is Point.EXEC
            if point is Point.EXEC and looks[0] == 3:  # It has its name, and is to go live.
                applied(await harness.apply(changes.DropTable(table=table.id)))
            return Fault.NONE

        keyspace.script = script
        refused(await store.apply(changes.CreateTable(table=table)), "table")
        assert await harness.keys(table.id) == []
        assert await harness.store.names() == {}

    run(story())


def test_a_table_whose_creator_died_is_dropped_by_its_id() -> None:
    async def story() -> None:
        harness = memory()
        store, keyspace = harness.flaky()
        await store.store_id()
        table = harness.new_table()
        looks = [0]

        async def script(point: Point) -> Fault:
            looks[0] += point is Point.EXEC
            return Fault.LOST if looks[0] > 1 else Fault.NONE

        keyspace.script = script
        assert isinstance(await store.apply(changes.CreateTable(table=table)), changes.Unknown)
        found = await harness.store.table(table.id)
        assert found is not None
        assert found.state is TableState.NEW
        assert await harness.store.tables() == []
        assert await harness.store.table_ids() == [table.id]
        tablet = TabletId(table.id, PLUS_INFINITY)
        refused(await harness.add(tablet, file("a")), "table")
        applied(await harness.apply(changes.DropTable(table=table.id)))
        assert await harness.keys(table.id) == []

    run(story())


def test_a_hold_needs_a_selection() -> None:
    tablet = Tablet(id=TabletId("t", MIDDLE), bounds=Bounds(None, MIDDLE))
    refusal = may_drop_hold(tablet, now_s=1.0, expiry_s=0.0)
    assert refusal is not None
    assert refusal.code == "hold"


def test_a_decision_that_keeps_asking_is_a_programming_error() -> None:
    def decide(_seen: Seen) -> More:
        return More(Needs(), decide)

    async def story() -> None:
        keyspace = MemoryKeyspace(ManualClock())
        executor = Executor(keyspace, RetryLimits(), asyncio.sleep, lambda: 0.0)
        with pytest.raises(AssertionError):
            await executor.run(Transaction(Needs(), decide))

    run(story())


def test_several_stores_share_a_memory() -> None:
    async def story() -> None:
        first = MemoryStore()
        second = MemoryStore(keyspace=first.keyspace)
        assert await first.store_id() == await second.store_id()
        applied(await first.apply(changes.ClaimCoordination(coordinator="c")))
        claim = await second.claim()
        assert claim is not None
        assert claim.coordinator == "c"
        await first.close()

    run(story())


def test_effects_that_change_nothing_disturb_nobody() -> None:
    async def story() -> None:
        keyspace = MemoryKeyspace(ManualClock())
        keyspace.run([("SADD", "{t}s", "a"), ("HSET", "{t}h", "f", 1), ("ZADD", "{t}z", 0, b"m")])
        async with keyspace.session() as session:
            await session.look(["{t}s", "{t}h", "{t}z", "{t}none"], [])
            keyspace.run([("SADD", "{t}s", "a"), srem("{t}s", "b"), ("HDEL", "{t}h", "g")])
            keyspace.run([("ZADD", "{t}z", 0, b"m"), ("ZREM", "{t}z", b"n"), ("DEL", "{t}none")])
            assert await session.execute([("SET", "{t}x", 1)])
        async with keyspace.session() as session:
            await session.look(["{t}s"], [])
            keyspace.run([srem("{t}s", "a")])
            assert not await session.execute([("SET", "{t}x", 2)])
        assert keyspace.values.keys() == ["{t}h", "{t}x", "{t}z"]
        async with keyspace.session() as session:
            await session.look(["{t}h"], [])
            keyspace.run([("HSET", "{t}h", "f", 1)])  # The same again counts as a change.
            assert not await session.execute([("SET", "{t}x", 2)])

    run(story())


def test_a_selection_is_read_back() -> None:
    async def story() -> None:
        harness = memory()
        tablet = await harness.tablet_with("a")
        keys = TabletKeys.of(tablet)
        selection = Selection(request="r1", files=("a",))
        await harness.write(
            set_string(keys.selection, SELECTION.pack(selection)), hset(keys.record, {"s": 1})
        )
        found = await harness.store.tablet(tablet)
        assert found is not None
        assert found.selection == selection

    run(story())


def test_redis_keys_have_their_published_names() -> None:
    table, tablet = TableKeys("tbl-1"), TabletKeys.of(TabletId("tbl-1", PLUS_INFINITY))
    assert tablet.files == "neve:{tbl-1}:tablet:last:files"
    assert table.request("r1") == "neve:{tbl-1}:request:r1"
    assert is_table_id("tbl-0a")
    assert not is_table_id("tbl}x")
    assert len(set(tablet.every) | set(table.every)) == 28
    assert table.segment(7) == "neve:{tbl-1}:rows:7"
