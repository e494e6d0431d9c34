"""Repairs: each is made if the damage is as it was seen, and refused if work goes on there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from common.metadata.changes import (
    AcceptGeneration,
    Change,
    ClearMarks,
    CorrectFile,
    DiscardFiles,
    EndReservation,
    FillHole,
    FinishFilling,
    ForgetFiles,
    MoveFile,
    RecountRecord,
    RescueFile,
    RestoreFiles,
)
from common.metadata.changes.protocol import into_garbage
from common.metadata.codec.tablet import (
    FILE,
    FILES,
    SELECTED,
    SELECTION,
    WAITING,
)
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.keyspace import delete, hset, sadd, set_string
from common.metadata.store_values import RawTablet
from common.model.table import TableState
from common.model.tablet import PLUS_INFINITY, Selection, TabletId
from tests.support.flaky import Fault, Point
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


async def files_of(harness: Harness, tablet: TabletId) -> dict[str, int]:
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert found.record.files == len(found.files)
    assert found.record.size_bytes == sum(each.size_bytes for each in found.files.values())
    return {path: each.rows for path, each in found.files.items()}


async def seen(harness: Harness, tablet: TabletId) -> RawTablet:
    (found,) = await harness.store.inspect([tablet])
    return found


async def select(harness: Harness, tablet: TabletId, *files: str) -> None:
    """Let a request hold files, as a selection does."""
    keys = TabletKeys.of(tablet)
    selection = SELECTION.pack(Selection(request="r1", files=files))
    await harness.write(set_string(keys.selection, selection), hset(keys.record, {SELECTED: 1}))


async def test_orphans_go_to_garbage(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    discard = DiscardFiles(tablet=tablet, files={"_neve/x": b"c", "_neve/y": None})
    applied(await harness.apply(discard))
    applied(await harness.apply(discard))
    garbage = await harness.store.garbage(tablet.table)
    assert [(each.path, each.stamped_s, each.key_min) for each in garbage] == [
        ("_neve/x", 0, b"c"),
        ("_neve/y", 0, None),
    ]
    assert {each.tablet_end for each in garbage} == {tablet.end}


async def test_no_file_in_use_goes_to_garbage(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(reserve(tablet, "t1", "b")))
    for path, code in {"a": "used", "b": "used", "out/t1-1.parquet": "used"}.items():
        change = DiscardFiles(tablet=tablet, files={"x": None, path: None})
        refused(await harness.apply(change), code)
    refused(await harness.apply(DiscardFiles(tablet=tablet, files={"x": b"z"})), "bounds")
    nowhere = replace(tablet, end=b"q")
    refused(await harness.apply(DiscardFiles(tablet=nowhere, files={"x": None})), "tablet")
    gone = replace(tablet, table="none")
    refused(await harness.apply(DiscardFiles(tablet=gone, files={"x": None})), "table")
    assert await harness.store.garbage(tablet.table) == []


async def test_a_lost_file_is_forgotten(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b", "c")
    applied(await harness.apply(reserve(tablet, "t1", "b")))
    refused(await harness.apply(ForgetFiles(tablet=tablet, paths=("a", "b"))), "reserved")
    await select(harness, tablet, "c")
    refused(await harness.apply(ForgetFiles(tablet=tablet, paths=("c",))), "selected")
    applied(await harness.apply(ForgetFiles(tablet=tablet, paths=("a", "none"))))
    applied(await harness.apply(ForgetFiles(tablet=tablet, paths=("a",))))
    assert await files_of(harness, tablet) == {"b": 10, "c": 10}
    assert await harness.store.garbage(tablet.table) == []
    other = replace(tablet, table="none")
    refused(await harness.apply(ForgetFiles(tablet=other, paths=("a",))), "table")


@pytest.mark.parametrize("kind", ["forget", "move"])
async def test_a_reservation_under_way_sees_its_input_leave(harness: Harness, kind: str) -> None:
    tablet = await harness.tablet_with("a", "b")
    store, keyspace = harness.flaky()
    change: Change = ForgetFiles(tablet=tablet, paths=("a",))
    if kind == "move":
        await misplace(harness, tablet, "a")
        change = MoveFile(tablet=tablet, target=replace(tablet, end=PLUS_INFINITY), path="a")
    left = [change]

    async def meanwhile(point: Point) -> Fault:
        if point is Point.EXEC and left:
            applied(await harness.apply(left.pop()))
        return Fault.NONE

    await store.store_id()
    keyspace.script = meanwhile
    refused(await store.apply(reserve(tablet, "t1", "a", "b")), "gone")
    assert not left


async def misplace(harness: Harness, tablet: TabletId, path: str) -> None:
    """Write keys of another tablet on a file, past every rule."""
    wrong = file(path, b"x", b"y", added_at_s=1.0)
    await harness.write(hset(TabletKeys.of(tablet).files, {path: FILE.pack(wrong)}))


async def test_a_file_is_moved_to_where_its_keys_are(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    target = replace(tablet, end=PLUS_INFINITY)
    move = MoveFile(tablet=tablet, target=target, path="a")
    refused(await harness.apply(move), "bounds")
    await misplace(harness, tablet, "a")
    refused(await harness.apply(replace(move, target=replace(target, end=b"q"))), "tablet")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    refused(await harness.apply(move), "reserved")
    applied(await harness.apply(release(tablet, "t1")))
    applied(await harness.apply(move))
    applied(await harness.apply(move))
    assert await files_of(harness, tablet) == {"b": 10}
    assert await files_of(harness, target) == {"a": 10}


async def test_a_repair_corrects_the_entry_of_a_file(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    found = await harness.store.tablet(tablet)
    assert found is not None
    before = found.files["a"]
    after = replace(before, rows=7, size_bytes=77)
    restate = CorrectFile(tablet=tablet, before=before, after=after)
    refused(await harness.apply(replace(restate, before=replace(before, rows=1))), "version")
    outside = replace(after, key_max=b"z")
    refused(await harness.apply(replace(restate, after=outside)), "bounds")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    refused(await harness.apply(restate), "reserved")
    applied(await harness.apply(release(tablet, "t1")))
    applied(await harness.apply(restate))
    applied(await harness.apply(restate))
    assert await files_of(harness, tablet) == {"a": 7, "b": 10}
    refused(await harness.apply(replace(restate, tablet=replace(tablet, end=b"q"))), "version")
    again = replace(restate, before=after, after=before)
    await harness.write(hset(TableKeys(tablet.table).table, {"state": "going"}))
    refused(await harness.apply(again), "table")


async def test_a_file_in_use_leaves_garbage(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    table = TableKeys(tablet.table)
    await harness.write(*into_garbage(table, tablet.end, {"a": b"a", "x": None}))
    applied(await harness.apply(RescueFile(tablet=tablet, path="a")))
    applied(await harness.apply(RescueFile(tablet=tablet, path="a")))
    refused(await harness.apply(RescueFile(tablet=tablet, path="x")), "gone")
    assert [each.path for each in await harness.store.garbage(tablet.table)] == ["x"]


async def test_a_record_is_counted_anew(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    recount = RecountRecord(tablet=tablet)
    assert (await seen(harness, tablet)).miscounted == {}
    before = await harness.store.records([tablet])
    applied(await harness.apply(recount))
    assert await harness.store.records([tablet]) == before
    await harness.write(hset(TabletKeys.of(tablet).record, {FILES: 9, WAITING: 3}))
    assert (await seen(harness, tablet)).miscounted == {
        "files": (9, 2),
        "waiting requests": (3, 0),
    }
    applied(await harness.apply(recount))
    assert (await seen(harness, tablet)).miscounted == {}
    assert await files_of(harness, tablet) == {"a": 10, "b": 10}
    refused(await harness.apply(RecountRecord(tablet=replace(tablet, end=b"q"))), "tablet")
    refused(await harness.apply(RecountRecord(tablet=replace(tablet, table="none"))), "table")


async def test_a_reservation_left_over_ends(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    keys = TabletKeys.of(tablet)
    applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    end = EndReservation(tablet=tablet, attempt="t1")
    refused(await harness.apply(end), "running")
    entry = await harness.read(("HGET", keys.running, "t1"))
    applied(await harness.apply(commit(tablet, "t1")))
    applied(await harness.apply(end))
    await harness.write(hset(keys.running, {"t1": entry}), hset(keys.record, {"r": 1}))
    assert (await seen(harness, tablet)).outcomes == {"t1"}
    applied(await harness.apply(end))
    assert (await seen(harness, tablet)).outcomes == frozenset()
    garbage = {each.path for each in await harness.store.garbage(tablet.table)}
    assert garbage == {"a", "b", "out/t1-1.parquet"}, "the output that is in use stays"
    assert (await seen(harness, tablet)).miscounted == {}


async def test_markers_of_ended_requests_go(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    keys, table = TabletKeys.of(tablet), TableKeys(tablet.table)
    await select(harness, tablet, "a")
    await harness.write(
        hset(keys.waiting, {"r1": 1.0, "r2": 2.0}),
        sadd(keys.done, "r1", "r3"),
        hset(keys.record, {WAITING: 2, "d": 2}),
        hset(table.request("r2"), {"state": "active"}),
        hset(table.request("r3"), {"state": "done"}),
    )
    assert (await seen(harness, tablet)).ended == {"r1", "r3"}
    refused(await harness.apply(ClearMarks(tablet=tablet, requests=("r1", "r2"))), "request")
    clear = ClearMarks(tablet=tablet, requests=("r1", "r3"))
    applied(await harness.apply(clear))
    applied(await harness.apply(clear))
    found = await seen(harness, tablet)
    assert found.tablet is not None
    assert (found.tablet.selection, {*found.tablet.waiting}, found.tablet.done) == (
        None,
        {"r2"},
        frozenset(),
    )
    assert found.miscounted == {}
    other = replace(clear, tablet=replace(tablet, table="none"))
    refused(await harness.apply(other), "table")


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_hole_is_filled(harness: Harness, number: int) -> None:
    splits = (b"g", b"p")
    table = await harness.table(splits=splits)
    ends: Sequence[bytes] = (*splits, PLUS_INFINITY)
    starts = (None, *splits)
    hole = TabletId(table.id, ends[number])
    keys = TabletKeys.of(hole)
    fill = FillHole(tablet=hole, start=starts[number])
    applied(await harness.apply(fill))
    index = TableKeys(table.id).index
    await harness.write(delete(keys.bounds), ("ZREM", index, hole.end))
    assert (await seen(harness, hole)).tablet is None
    applied(await harness.apply(fill))
    tiles = await harness.store.read_range(table.id)
    assert [tile.bounds.end for tile in tiles] == [*ends]


async def test_only_a_hole_between_tablets_is_filled(harness: Harness) -> None:
    table = await harness.table(splits=(b"g", b"p"))

    def fill(start: bytes | None, end: bytes) -> FillHole:
        return FillHole(tablet=TabletId(table.id, end), start=start)

    refused(await harness.apply(fill(b"a", b"b")), "bounds")
    refused(await harness.apply(fill(b"g", b"z")), "bounds")
    refused(await harness.apply(fill(b"g", b"k")), "bounds")
    index = TableKeys(table.id).index
    await harness.write(("ZREM", index, PLUS_INFINITY))
    refused(await harness.apply(fill(b"p", b"q")), "bounds")
    other = replace(fill(None, b"b"), tablet=TabletId("none", b"b"))
    refused(await harness.apply(other), "table")


async def test_files_are_put_back_into_a_filling_table(harness: Harness) -> None:
    table = await harness.filling_table()
    tablet = TabletId(table.id, MIDDLE)
    files = (file("a", added_at_s=5.0), file("b"))
    put = RestoreFiles(tablet=tablet, files=files, purge=b"4", run="r1")
    applied(await harness.apply(put))
    applied(await harness.apply(put))
    assert await files_of(harness, tablet) == {"a": 10, "b": 10}
    found = (await seen(harness, tablet)).tablet
    assert found is not None
    assert (found.purge, found.files["a"].added_at_s) == (b"4", 5.0)
    assert (await seen(harness, tablet)).miscounted == {}
    applied(await harness.apply(replace(put, purge=None)))
    refused(await harness.apply(replace(put, files=(file("a", rows=1),))), "exists")
    refused(await harness.apply(replace(put, files=(file("c", b"x", b"y"),))), "bounds")
    refused(await harness.apply(replace(put, tablet=replace(tablet, end=b"q"))), "tablet")
    applied(await harness.apply(RestoreFiles(tablet=tablet, files=(), purge=b"7", run="r1")))
    live = FinishFilling(table=table.id, run="r1", files=2, state=TableState.LIVE)
    applied(await harness.apply(live))
    refused(await harness.apply(put), "state")
    refused(await harness.apply(replace(put, tablet=replace(tablet, table="none"))), "table")


async def test_a_partition_is_put_back(harness: Harness) -> None:
    table = await harness.filling_table(partition_by=("k",), splits=(), key=("k",))
    tablet = TabletId(table.id, b"\x01x")
    put = RestoreFiles(tablet=tablet, files=(file("a"),), partition="k=1", run="r1")
    applied(await harness.apply(put))
    applied(await harness.apply(put))
    (found,) = await harness.store.read_range(table.id)
    assert (found.bounds.partition, {*found.files}) == ("k=1", {"a"})


async def test_a_generation_is_accepted(harness: Harness) -> None:
    table = (await harness.table()).id
    applied(await harness.apply(AcceptGeneration(table=table, generation=8)))
    applied(await harness.apply(AcceptGeneration(table=table, generation=3)))
    assert await harness.store.generation(table) == 8
    refused(await harness.apply(AcceptGeneration(table="none", generation=3)), "table")


async def test_undecodable_fields_of_a_tablet_are_named(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    await harness.write(hset(TabletKeys.of(tablet).files, {"b": b"\x09junk"}))
    found = await seen(harness, tablet)
    assert found.tablet is None
    assert "b" in found.broken
