"""A connection lost at EXEC: applied, never to be, or still on its way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from common.errors import ConflictError, UnavailableError
from common.metadata.changes import (
    AddFiles,
    Applied,
    Change,
    CreateTable,
    DropTable,
    PinFiles,
    StampGarbage,
    Unknown,
)
from common.metadata.keys import TabletKeys
from common.metadata.keyspace import hset
from common.model.outcome import AttemptEnd
from common.model.tablet import PLUS_INFINITY, TabletId
from common.runtime import call_id
from tests.support.flaky import Fault, Point, Script
from tests.support.store_harness import (
    MIDDLE,
    Harness,
    applied,
    commit,
    file,
    refused,
    release,
    reserve,
)

pytestmark = pytest.mark.anyio

AT_EXEC = [Fault.LOST, Fault.APPLIED, Fault.LATE]


def once(fault: Fault, at: Point = Point.EXEC) -> Script:
    """Return a script with one fault, the first time."""
    left = [fault]

    async def script(point: Point) -> Fault:
        return left.pop() if left and point is at else Fault.NONE

    return script


def always(fault: Fault, at: Point = Point.EXEC) -> Script:
    """Return a script with a fault every time."""

    async def script(point: Point) -> Fault:
        return fault if point is at else Fault.NONE

    return script


def meanwhile(write: Callable[[], Awaitable[object]], at: Point = Point.LOOKED) -> Script:
    """Return a script that lets somebody else write once, and then nothing."""
    left = [write]

    async def script(point: Point) -> Fault:
        if left and point is at:
            await left.pop()()
        return Fault.NONE

    return script


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_an_add_is_made_once(harness: Harness, fault: Fault) -> None:
    tablet = await harness.tablet_with()
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = once(fault)
    change = AddFiles(table=tablet.table, call=call_id(harness.clock), files={MIDDLE: (file("a"),)})
    assert applied(await store.apply(change)).tries == 2
    assert await keyspace.deliver() == ([False] if fault is Fault.LATE else [])
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert (sorted(found.files), found.record.files) == (["a"], 1)


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_a_commit_is_made_once(harness: Harness, fault: Fault) -> None:
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = once(fault)
    applied(await store.apply(commit(tablet, "t1")))
    assert not any(await keyspace.deliver())
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert (sorted(found.files), found.record.running) == (["out/t1-0.parquet"], 0)
    assert len(await harness.store.history(tablet.table)) == 1


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_a_release_is_made_once(harness: Harness, fault: Fault) -> None:
    tablet = await harness.tablet_with("a")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = once(fault)
    applied(await store.apply(release(tablet, "t1")))
    assert not any(await keyspace.deliver())
    (record,) = await harness.store.records([tablet])
    assert record is not None
    assert (record.running, record.failures) == (0, 1)


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_a_table_is_made_and_dropped_once(harness: Harness, fault: Fault) -> None:
    store, keyspace = harness.flaky()
    await store.store_id()
    table = harness.new_table()
    keyspace.script = once(fault)
    applied(await store.apply(CreateTable(table=table)))
    assert not any(await keyspace.deliver())
    assert await harness.store.tables() == [table]
    keyspace.script = once(fault)
    applied(await store.apply(DropTable(table=table.id)))
    assert not any(await keyspace.deliver())
    assert await harness.keys(table.id) == []


async def test_a_commit_that_came_too_late_says_that_it_was_sent(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    store, keyspace = harness.flaky()
    await store.store_id()

    async def script(point: Point) -> Fault:
        if point is not Point.EXEC:
            return Fault.NONE
        applied(await harness.apply(release(tablet, "t1", AttemptEnd.LOST)))
        return Fault.LATE

    keyspace.script = script
    assert refused(await store.apply(commit(tablet, "t1")), "lost").sent
    assert await keyspace.deliver() == [False]
    assert not refused(await harness.apply(commit(tablet, "t1")), "lost").sent


async def test_a_reservation_is_never_repeated_under_the_same_id(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = once(Fault.LATE)
    assert isinstance(await store.apply(reserve(tablet, "t1", "a")), Unknown)
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert found.running == {}
    assert await keyspace.deliver() == [True]
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert sorted(found.running) == ["t1"]


async def test_a_reservation_found_by_its_mark_shows_the_files_of_now(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    store, keyspace = harness.flaky()
    await store.store_id()
    faults = [Fault.APPLIED]

    async def script(point: Point) -> Fault:
        if point is Point.EXEC:
            applied(await harness.add(tablet, file("between")))
            return faults.pop()
        return Fault.NONE

    keyspace.script = script
    reserved = applied(await store.apply(reserve(tablet, "t1", "a")))
    assert sorted(reserved.tablet.files if reserved.tablet else ()) == ["a", "between"]
    assert reserved.reservation is not None
    assert reserved.tablet is not None
    assert reserved.tablet.running == {"t1": reserved.reservation}
    assert reserved.tries == 2


async def test_a_store_that_never_answers_leaves_the_outcome_unknown(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = always(Fault.LOST)
    change = AddFiles(table=tablet.table, call=call_id(harness.clock), files={MIDDLE: (file("b"),)})
    outcome = await store.apply(change)
    assert isinstance(outcome, Unknown)
    assert store.counts.unknown == 1
    keyspace.script = always(Fault.LOST, Point.LOOKED)
    with pytest.raises(UnavailableError):
        await store.apply(change)
    keyspace.script = always(Fault.LOST, Point.FETCH)
    with pytest.raises(UnavailableError):
        await store.tablet(tablet)
    keyspace.script = once(Fault.LOST, Point.FETCH)
    assert await store.tablet(tablet) is not None


def the_changes(harness: Harness, tablet: TabletId) -> list[tuple[Change, str]]:
    """Return changes with a key whose change between WATCH and EXEC must stop them."""
    keys = TabletKeys.of(tablet)
    add = AddFiles(table=tablet.table, call=call_id(harness.clock), files={MIDDLE: (file("z"),)})
    return [
        (add, keys.files),
        (add, keys.bounds),
        (add, keys.purge),
        (add, keys.operation),
        (reserve(tablet, "t2", "b"), keys.running),
        (reserve(tablet, "t2", "b"), keys.selection),
        (reserve(tablet, "t2", "b"), keys.waiting),
        (reserve(tablet, "t2", "b"), keys.operation),
        (commit(tablet, "t1"), keys.running),
        (release(tablet, "t1"), keys.running),
        (PinFiles(table=tablet.table, pin="p", lease_s=60), f"neve:{{{tablet.table}}}:table"),
    ]


@pytest.mark.parametrize("number", range(11))
async def test_another_writer_between_watch_and_exec_makes_a_change_start_over(
    harness: Harness, number: int
) -> None:
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    store, keyspace = harness.flaky()
    await store.store_id()
    change, key = the_changes(harness, tablet)[number]

    async def touch() -> None:
        await rewrite(harness, key)

    keyspace.script = meanwhile(touch)
    outcome = applied(await store.apply(change))
    assert (outcome.tries, outcome.conflicts) == (2, 1)
    assert store.counts.conflicts == 1


async def rewrite(harness: Harness, key: str) -> None:
    """Change a key without changing what it says; written and taken away counts, too."""
    if key.endswith(":bounds"):
        await harness.write(("SET", key, await harness.read(("GET", key))))
    elif key.endswith((":purge", ":operation", ":selection")):
        await harness.write(("SET", key, b"x"), ("DEL", key))
    else:
        await harness.write(hset(key, {"x": b"x"}), ("HDEL", key, "x"))


async def test_a_hot_appender_disturbs_neither_reservation_nor_commit(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    store, keyspace = harness.flaky()
    await store.store_id()
    count = [0]

    async def script(point: Point) -> Fault:
        count[0] += 1
        applied(await harness.add(tablet, file(f"hot{count[0]}")))
        return Fault.NONE

    keyspace.script = script
    applied(await store.apply(reserve(tablet, "t1", "a", "b")))
    applied(await store.apply(commit(tablet, "t1")))
    assert count[0] >= 4
    assert store.counts.conflicts == 0
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert len(found.files) == count[0] + 1 == found.record.files


async def test_jobs_of_two_tablets_of_a_table_know_nothing_of_each_other(
    harness: Harness,
) -> None:
    table = await harness.table()
    first, second = TabletId(table.id, MIDDLE), TabletId(table.id, PLUS_INFINITY)
    applied(await harness.add(first, file("a"), file("b")))
    applied(await harness.add(second, file("y", b"y", b"z"), file("z", b"y", b"z")))
    store, keyspace = harness.flaky()
    await store.store_id()
    output = file("out/t2-0.parquet", b"y", b"z")
    steps: list[Change] = [
        reserve(second, "t2", "y", "z"),
        replace(commit(second, "t2"), outputs=(output,)),
    ]

    async def script(point: Point) -> Fault:
        if point is Point.EXEC:
            applied(await harness.apply(steps.pop(0)))
        return Fault.NONE

    keyspace.script = script
    applied(await store.apply(reserve(first, "t1", "a", "b")))
    applied(await store.apply(commit(first, "t1")))
    assert steps == []
    assert store.counts.conflicts == 0
    found = [await harness.store.tablet(each) for each in (first, second)]
    assert [sorted(each.files) for each in found if each] == [
        ["out/t1-0.parquet"],
        ["out/t2-0.parquet"],
    ]


async def test_a_change_that_loses_every_race_gives_up(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    store, keyspace = harness.flaky()
    await store.store_id()

    async def script(point: Point) -> Fault:
        if point is Point.EXEC:
            await rewrite(harness, TabletKeys.of(tablet).running)
        return Fault.NONE

    keyspace.script = script
    with pytest.raises(ConflictError):
        await store.apply(reserve(tablet, "t1", "a"))
    assert store.counts.conflicts == harness.tries_max


async def test_a_stamp_is_not_written_over_a_collector_that_was_faster(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    applied(await harness.apply(commit(tablet, "t1")))
    store, keyspace = harness.flaky()
    await store.store_id()
    stamp = StampGarbage(table=tablet.table, paths=("a",))

    async def faster() -> None:
        assert isinstance(await harness.apply(stamp), Applied)
        await harness.pass_time(0.01)

    keyspace.script = meanwhile(faster)
    outcome = applied(await store.apply(stamp))
    assert outcome.conflicts == 1
    (entry,) = await harness.store.garbage(tablet.table)
    assert 0 < entry.stamped_s < outcome.now_s
