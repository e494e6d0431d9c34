"""Tablets that overlap are trimmed or joined, and doubles dropped, if nothing can come of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import (
    AddFiles,
    DropDuplicate,
    DropTable,
    JoinTablets,
    RecountRecord,
    TrimTablet,
)
from common.metadata.codec.tablet import BOUNDS, FILE
from common.metadata.keys import TabletKeys
from common.metadata.keyspace import delete, hset, set_string
from common.model.tablet import PLUS_INFINITY, Bounds, TabletId
from common.runtime import call_id
from tests.contract.test_operations import layout, note, split
from tests.contract.test_repairs import files_of, select
from tests.contract.test_request_races import between
from tests.support.requests import submitted, tablet_of, wait
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


async def overlapping(harness: Harness, start: bytes | None = b"g") -> tuple[TabletId, TabletId]:
    """Return two tablets, up to `m` and behind it, the second of which starts too early."""
    table = await harness.table()
    left, right = TabletId(table.id, MIDDLE), TabletId(table.id, PLUS_INFINITY)
    applied(await harness.add(left, file("l", b"a", b"m")))
    applied(await harness.add(right, file("r", b"n", b"z")))
    await starts_at(harness, right, start)
    return left, right


async def starts_at(harness: Harness, tablet: TabletId, start: bytes | None) -> None:
    """Write the bounds of a tablet, past every rule."""
    bounds = BOUNDS.pack(Bounds(start, tablet.end))
    await harness.write(set_string(TabletKeys.of(tablet).bounds, bounds))


async def put(harness: Harness, tablet: TabletId, path: str, low: bytes, high: bytes) -> None:
    """Write a file into a tablet, past every rule."""
    entry = FILE.pack(file(path, low, high, added_at_s=1.0))
    await harness.write(hset(TabletKeys.of(tablet).files, {path: entry}))
    applied(await harness.apply(RecountRecord(tablet=tablet)))


def trim(tablet: TabletId, before: bytes | None = b"g", start: bytes = MIDDLE) -> TrimTablet:
    return TrimTablet(tablet=tablet, before=before, start=start)


@pytest.mark.parametrize("start", [None, b"g"])
async def test_a_tablet_begins_where_the_one_before_it_ends(
    harness: Harness, start: bytes | None
) -> None:
    left, right = await overlapping(harness, start)
    applied(await harness.apply(reserve(right, "s1", "r")))
    version = (await tablet_of(harness, right)).record.version
    for _ in range(2):
        applied(await harness.apply(trim(right, start)))
    assert (await tablet_of(harness, right)).record.version == version + 1
    assert await layout(harness, left.table) == [
        (None, MIDDLE, ["l"]),
        (MIDDLE, PLUS_INFINITY, ["r"]),
    ]
    applied(await harness.apply(commit(right, "s1")))


async def test_a_tablet_is_not_trimmed_over_files_or_beside_nothing(harness: Harness) -> None:
    left, right = await overlapping(harness)
    refused(await harness.apply(trim(right, None)), "bounds")
    refused(await harness.apply(trim(right, start=b"k")), "bounds")
    refused(await harness.apply(trim(left, None, start=MIDDLE)), "bounds")
    refused(await harness.apply(trim(TabletId(left.table, b"q"))), "tablet")
    applied(await harness.apply(split(right, b"p")))
    refused(await harness.apply(trim(right)), "operation")
    await harness.write(delete(TabletKeys.of(right).operation))
    await put(harness, right, "over", b"k", b"p")
    refused(await harness.apply(trim(right)), "bounds")
    await put(harness, right, "over", b"m", b"p")
    refused(await harness.apply(trim(right)), "bounds")
    await put(harness, right, "over", b"n", b"p")
    # A file that comes while it is decided is seen.
    late = {right.end: (file("late", b"h", b"i"),)}
    add = AddFiles(table=left.table, call=call_id(harness.clock), files=late)
    refused(await between(harness, trim(right), add), "bounds")
    applied(await harness.apply(DropTable(table=left.table)))
    refused(await harness.apply(trim(right)), "table")


@pytest.mark.parametrize("start", [None, b"g"])
async def test_two_tablets_become_one(harness: Harness, start: bytes | None) -> None:
    left, right = await overlapping(harness, start)
    await put(harness, right, "over", b"h", b"z")
    await put(harness, right, "l", b"a", b"m")
    applied(await harness.apply(note(left, settled=((1.0, b"4"), (5.0, b"8")))))
    applied(await harness.apply(note(right, settled=((3.0, b"6"),))))
    applied(await harness.apply(reserve(right, "s1", "r")))
    for _ in range(2):
        applied(await harness.apply(JoinTablets(left=left, right=right)))
    applied(await harness.apply(commit(right, "s1")))
    assert await layout(harness, left.table) == [
        (None, PLUS_INFINITY, ["l", "out/s1-0.parquet", "over"])
    ]
    assert (await tablet_of(harness, right)).record.settled == ((3.0, b"4"), (5.0, b"6"))
    assert {*await files_of(harness, right)} == {"l", "out/s1-0.parquet", "over"}
    assert await harness.store.tablet_ids(left.table) == [right]


async def test_tablets_where_somebody_works_are_not_joined(harness: Harness) -> None:
    left, right = await overlapping(harness)
    join = JoinTablets(left=left, right=right)
    applied(await harness.apply(reserve(left, "s1", "l")))
    refused(await harness.apply(join), "running")
    applied(await harness.apply(release(left, "s1")))
    await submitted(harness, left.table)
    applied(await harness.apply(wait(right)))
    refused(await harness.apply(join), "waiting")
    await harness.write(delete(TabletKeys.of(right).waiting))
    await select(harness, left, "l")
    refused(await harness.apply(join), "selected")
    await harness.write(delete(TabletKeys.of(left).selection))
    applied(await harness.apply(split(right, b"p")))
    refused(await harness.apply(join), "operation")
    await harness.write(delete(TabletKeys.of(right).operation))
    refused(await between(harness, join, reserve(left, "s2", "l")), "running")
    await starts_at(harness, right, MIDDLE)
    refused(await harness.apply(join), "bounds")
    refused(await harness.apply(JoinTablets(left=right, right=left)), "bounds")
    refused(await harness.apply(replace(join, left=TabletId(left.table, b"a"))), "tablet")
    applied(await harness.apply(DropTable(table=left.table)))
    refused(await harness.apply(join), "table")


@pytest.mark.parametrize("side", [0, 1])
async def test_no_row_rises_by_joining(harness: Harness, side: int) -> None:
    both = await overlapping(harness)
    join = JoinTablets(left=both[0], right=both[1])
    await harness.write(set_string(TabletKeys.of(both[side]).purge, b"3"))
    refused(await harness.apply(join), "purged")
    other = TabletKeys.of(both[1 - side])
    await harness.write(delete(other.files))
    applied(await harness.apply(RecountRecord(tablet=both[1 - side])))
    applied(await harness.apply(join))
    assert (await tablet_of(harness, both[1])).purge == b"3"


async def test_a_double_leaves_the_tablet_that_lacks_its_keys(harness: Harness) -> None:
    left, right = await overlapping(harness, MIDDLE)
    await put(harness, right, "l", b"a", b"m")
    drop = DropDuplicate(tablet=right, holder=left, path="l")
    applied(await harness.apply(reserve(right, "s1", "l")))
    refused(await harness.apply(drop), "reserved")
    applied(await harness.apply(release(right, "s1")))
    refused(await harness.apply(DropDuplicate(tablet=left, holder=right, path="l")), "bounds")
    refused(await harness.apply(replace(drop, holder=TabletId(left.table, b"q"))), "gone")
    refused(await between(harness, drop, reserve(right, "s2", "l")), "reserved")
    applied(await harness.apply(release(right, "s2")))
    for _ in range(2):
        applied(await harness.apply(drop))
    assert await files_of(harness, left) == {"l": 10}
    assert await files_of(harness, right) == {"r": 10}
    refused(await harness.apply(replace(drop, tablet=left, holder=right)), "gone")
    other = TabletId("none", MIDDLE)
    drop = replace(drop, tablet=other, holder=TabletId("none", b"q"))
    refused(await harness.apply(drop), "table")
