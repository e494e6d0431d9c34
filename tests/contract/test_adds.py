"""Add files: call ids, bounds, partitions, operations, garbage."""

from __future__ import annotations

import pytest

from common.metadata.changes import AddFiles, ChangeTable, Outcome, Window
from common.metadata.codec.tablet import OPERATION
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.keyspace import delete, set_string
from common.model.file import DataFile
from common.model.table import Column, TableSettings, TableState
from common.model.tablet import (
    PLUS_INFINITY,
    Bounds,
    Operation,
    OperationKind,
    OperationStep,
    TabletId,
)
from common.primitives import CALL_LIFE_S
from common.runtime import call_id
from tests.contract.test_request_races import between
from tests.support.predictable import ManualClock
from tests.support.requests import select, submitted, tablet_of, wait
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


async def test_one_call_adds_to_several_tablets_or_to_none(harness: Harness) -> None:
    table = await harness.table()
    first, last = TabletId(table.id, MIDDLE), TabletId(table.id, PLUS_INFINITY)
    change = AddFiles(
        table=table.id,
        call=call_id(harness.clock),
        files={MIDDLE: (file("a"),), PLUS_INFINITY: (file("x", b"x", b"z"), file("b", b"b", b"n"))},
    )
    refused(await harness.apply(change), "bounds")
    found = await harness.store.tablets([first, last])
    assert [sorted(each.files) for each in found if each] == [[], []]
    files = {MIDDLE: (file("a"),), PLUS_INFINITY: (file("x", b"x", b"z"),)}
    applied(await harness.apply(AddFiles(table=table.id, call=call_id(harness.clock), files=files)))
    found = await harness.store.tablets([first, last])
    assert [sorted(each.files) for each in found if each] == [["a"], ["x"]]


async def test_the_same_call_twice_adds_once(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    call = call_id(harness.clock)
    added = applied(await harness.add(tablet, file("a", tombstones=1), call=call))
    before = await harness.store.tablet(tablet)
    await harness.pass_time(0.01)
    applied(await harness.add(tablet, file("a", tombstones=1, added_at_s=99.0), call=call))
    assert await harness.store.tablet(tablet) == before
    assert before is not None
    made = before.files["a"]
    assert (made.added_at_s, made.tombstones_since_s) == (added.now_s, added.now_s)
    refused(await harness.add(tablet, file("b"), call=call), "call-content")
    refused(await harness.add(tablet, file("a", size_bytes=11), call=call), "call-content")


async def test_the_same_call_after_its_file_was_consumed_adds_nothing(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    call = call_id(harness.clock)
    applied(await harness.add(tablet, file("a"), call=call))
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    applied(await harness.apply(commit(tablet, "t1")))
    applied(await harness.add(tablet, file("a"), call=call))
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert sorted(found.files) == ["out/t1-0.parquet"]
    refused(await harness.add(tablet, file("a")), "replaced")


@pytest.mark.parametrize(
    ("off_s", "code"), [(-CALL_LIFE_S - 60, "call-too-old"), (3600, "call-too-new")]
)
async def test_a_call_id_lives_a_day(harness: Harness, off_s: float, code: str) -> None:
    tablet = await harness.tablet_with()
    call = call_id(ManualClock(await harness.store.now_s() + off_s))
    refused(await harness.add(tablet, file("a"), call=call), code)
    refused(await harness.add(tablet, file("a"), call="call-17"), "call-form")


async def test_the_mark_of_a_call_outlives_the_call_id(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    call = call_id(harness.clock)
    applied(await harness.add(tablet, file("a"), call=call))
    if harness.is_real:
        left_s = (await harness.read(("PTTL", TableKeys(tablet.table).call(call)))) / 1000
        assert left_s > CALL_LIFE_S + 60
        return
    await harness.pass_time(CALL_LIFE_S + 60)
    applied(await harness.add(tablet, file("a"), call=call))
    await harness.pass_time(CALL_LIFE_S + 60)
    applied(await harness.add(tablet, file("a"), call=call))  # The repeat renewed the mark.
    await harness.pass_time(CALL_LIFE_S + 1200)
    refused(await harness.add(tablet, file("b"), call=call), "call-too-old")


async def test_each_condition_of_an_add_is_enforced(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    refused(await harness.add(tablet, file("a")), "exists")
    refused(await harness.add(tablet), "files")
    refused(await harness.add(tablet, file("b"), file("b")), "files")
    refused(await harness.add(tablet, file("b", b"a", b"z")), "bounds")
    refused(await harness.add(tablet, file("b", key_min=None, key_max=None)), "bounds")  # type: ignore[arg-type]  # a bad file
    refused(await harness.add(TabletId(tablet.table, b"q"), file("b")), "tablet")
    refused(await harness.add(TabletId("tbl-none", MIDDLE), file("b")), "table")
    pause = ChangeTable(table=tablet.table, settings_version=1, state=TableState.PAUSED)
    applied(await harness.apply(pause))
    applied(await harness.add(tablet, file("b")))


async def test_adds_during_a_split(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    key = TabletKeys.of(tablet).operation

    async def step(step: OperationStep) -> None:
        operation = Operation(OperationKind.SPLIT, "op1", step, b"c")
        await harness.write(set_string(key, OPERATION.pack(operation)))

    await step(OperationStep.CUT)
    refused(await harness.add(tablet, file("x", b"b", b"d")), "crosses")
    applied(await harness.add(tablet, file("left", b"b", b"c"), file("right", b"ca", b"d")))
    await step(OperationStep.DRAIN)
    refused(await harness.add(tablet, file("over", b"b", b"d")), "crosses")
    applied(await harness.add(tablet, file("left2", b"b", b"c")))
    await step(OperationStep.CLOSE)
    refused(await harness.add(tablet, file("late", b"b", b"c")), "operation")
    await harness.write(delete(key))
    applied(await harness.add(tablet, file("late", b"b", b"c")))


async def test_a_table_may_take_late_data(harness: Harness) -> None:
    settings = TableSettings(allow_late_data=True)
    tablet = await harness.tablet_with(settings=settings)
    await harness.write(set_string(TabletKeys.of(tablet).purge, b"7"))
    applied(await harness.add(tablet, file("old"), file("new", version_min=b"8")))
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert found.files["old"].tags == (("late", "true"),)
    assert found.files["new"].tags == ()


async def test_a_new_partition_makes_its_tablet(harness: Harness) -> None:
    table = await harness.table(partition_by=("day",), splits=())
    assert await harness.store.tablet_ids(table.id) == []

    def change(text: str, *paths: str) -> AddFiles:
        files = {b"day1": tuple(file(path, b"\x01", b"\x02") for path in paths)}
        call = call_id(harness.clock)
        return AddFiles(table=table.id, call=call, files=files, partitions={b"day1": text})

    applied(await harness.apply(change("day=1", "a")))
    applied(await harness.apply(change("day=1", "b")))
    tablet = TabletId(table.id, b"day1")
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert found.bounds == Bounds(None, b"day1", "day=1")
    assert sorted(found.files) == ["a", "b"]
    assert found.record.files == 2
    assert await harness.store.tablet_ids(table.id) == [tablet]
    assert len(await harness.store.read_range(table.id)) == 1
    no_partition = AddFiles(
        table=table.id, call=call_id(harness.clock), files={b"day2": (file("c"),)}
    )
    refused(await harness.apply(no_partition), "tablet")


async def test_a_range_partitioned_table_grows_no_tablets(harness: Harness) -> None:
    table = await harness.table()
    change = AddFiles(
        table=table.id,
        call=call_id(harness.clock),
        files={b"q": (file("a"),)},
        partitions={b"q": "day=1"},
    )
    refused(await harness.apply(change), "tablet")


async def test_a_bag_of_rows_has_no_keys(harness: Harness) -> None:
    table = await harness.table(key=(), version_column=None, splits=())
    tablet = TabletId(table.id, PLUS_INFINITY)
    bag = {"key_min": None, "key_max": None, "version_min": None, "version_max": None}
    applied(await harness.add(tablet, file("a", **bag)))  # type: ignore[arg-type]  # any field


# ------------------------------------------------------------------------------- A window of time


def timed(path: str, start_s: float, last_s: float) -> DataFile:
    return DataFile(path=path, size_bytes=100, rows=10, time_min_s=start_s, time_max_s=last_s)


async def series(harness: Harness, *files: DataFile) -> TabletId:
    """Make a table without a key and with a time column, and add files."""
    columns = (Column("at", "int64"), Column("v", "int64"))
    plain = {"key": (), "version_column": None, "time_column": "at"}
    table = await harness.table(splits=(), schema=columns, **plain)
    tablet = TabletId(table.id, PLUS_INFINITY)
    if files:
        applied(await harness.add(tablet, *files))
    return tablet


def replacing(
    harness: Harness, tablet: TabletId, window: Window, *files: DataFile, call: str = ""
) -> AddFiles:
    return AddFiles(
        table=tablet.table,
        call=call or call_id(harness.clock),
        files={tablet.end: files},
        window=window,
    )


async def test_files_replace_those_of_lower_versions_in_their_window(harness: Harness) -> None:
    old = [timed("before", 0, 9), timed("a", 10, 14), timed("b", 15, 19), timed("after", 20, 29)]
    untimed = DataFile(path="untimed", size_bytes=7, rows=1)
    tablet = await series(harness, *old, untimed)
    window, call = Window(10, 20, 2), call_id(harness.clock)
    change = replacing(harness, tablet, window, timed("new", 10, 19), call=call)

    assert applied(await harness.apply(change)).replaced == 2
    found = await tablet_of(harness, tablet)
    assert sorted(found.files) == ["after", "before", "new", "untimed"]
    assert (found.files["new"].data_version, found.files["before"].data_version) == (2, 0)
    assert (found.record.files, found.record.size_bytes) == (4, 307)
    assert sorted(await harness.store.garbage_among(tablet.table, ["a", "b", "new"])) == ["a", "b"]

    assert applied(await harness.apply(change)).repeated
    other = replacing(harness, tablet, Window(0, 20, 2), timed("new", 10, 19), call=call)
    refused(await harness.apply(other), "call-content")
    same = replacing(harness, tablet, window, timed("more", 12, 13))
    assert applied(await harness.apply(same)).replaced == 0
    refused(await harness.add(tablet, timed("a", 10, 14)), "replaced")
    assert {*await harness.store.garbage_among(tablet.table, ["a", "b"])} == {"a", "b"}


async def test_a_replacement_is_refused_whole_with_its_reason(harness: Harness) -> None:
    tablet = await series(harness, timed("a", 10, 14), timed("b", 18, 25))
    applied(await harness.apply(replacing(harness, tablet, Window(30, 40, 7), timed("c", 30, 39))))

    async def replace(start_s: float, end_s: float, version: int, name: str = "n") -> Outcome:
        new = timed(name, start_s, end_s - 1)
        return await harness.apply(replacing(harness, tablet, Window(start_s, end_s, version), new))

    sticking = refused(await replace(10, 20, 1), "window")
    assert "file b of version 0 has times from 1970-01-01 00:00:18 to" in sticking.reason
    lower = refused(await replace(30, 40, 6), "window")
    assert "file c in 1970-01-01 00:00:30..1970-01-01 00:00:40 has version 7" in lower.reason
    outside = replacing(harness, tablet, Window(10, 12, 1), timed("n", 10, 12))
    refused(await harness.apply(outside), "window")
    nothing = DataFile(path="n", size_bytes=1, rows=1)
    refused(await harness.apply(replacing(harness, tablet, Window(10, 12, 1), nothing)), "window")

    applied(await harness.apply(reserve(tablet, "t1", "a")))
    refused(await replace(10, 15, 1), "reserved")
    applied(await harness.apply(release(tablet, "t1")))
    await submitted(harness, tablet.table)
    applied(await harness.apply(wait(tablet)))
    refused(await replace(10, 15, 1), "waiting")
    applied(await harness.apply(select(tablet, "a", shown=("b", "c"))))
    refused(await replace(10, 15, 1), "selected")
    assert sorted((await tablet_of(harness, tablet)).files) == ["a", "b", "c"]
    assert applied(await replace(50, 60, 1)).replaced == 0, "the selection holds only `a`"


async def test_only_an_append_only_table_with_times_takes_a_window(harness: Harness) -> None:
    keyed = await harness.tablet_with("a")
    new = file("n", time_min_s=10.0, time_max_s=11.0)
    answer = refused(
        await harness.apply(replacing(harness, keyed, Window(10, 20, 1), new)), "window"
    )
    assert "has a key" in answer.reason
    plain = {"key": (), "version_column": None}
    timeless = TabletId((await harness.table(splits=(), **plain)).id, PLUS_INFINITY)
    change = replacing(harness, timeless, Window(10, 20, 1), timed("n", 10, 11))
    assert "no time column" in refused(await harness.apply(change), "window").reason


async def test_a_replacement_meets_a_job_over_a_file_that_it_replaces(harness: Harness) -> None:
    """Whichever comes second is refused: a reservation does not watch the files."""
    tablet = await series(harness, timed("a", 10, 14))
    change = replacing(harness, tablet, Window(10, 20, 1), timed("n", 10, 19))
    refused(await between(harness, reserve(tablet, "t1", "a"), change), "gone")
    other = await series(harness, timed("a", 10, 14))
    change = replacing(harness, other, Window(10, 20, 1), timed("n", 10, 19))
    refused(await between(harness, change, reserve(other, "t1", "a")), "reserved")
    assert sorted((await tablet_of(harness, other)).files) == ["a"]


async def test_an_output_has_the_highest_version_of_its_inputs(harness: Harness) -> None:
    tablet = await series(harness, timed("a", 10, 14))
    for version in (3, 9):
        window = Window(20 * version, 20 * version + 20, version)
        new = timed(f"v{version}", window.start_s, window.start_s + 5)
        applied(await harness.apply(replacing(harness, tablet, window, new)))
    applied(await harness.apply(reserve(tablet, "t1", "a", "v9", "v3")))
    applied(await harness.apply(commit(tablet, "t1")))
    assert (await tablet_of(harness, tablet)).files["out/t1-0.parquet"].data_version == 9
