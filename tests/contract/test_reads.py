"""Reads: one moment per tablet, ranges by the tile rule, the change feed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from common.errors import ConflictError, MetadataError
from common.metadata.changes import AddFiles, BumpGeneration, DropTable
from common.metadata.codec.layout import pack
from common.metadata.codec.tablet import BOUNDS
from common.metadata.keys import CHANGES_MAX, TABLES, TableKeys, TabletKeys
from common.metadata.keyspace import (
    Command,
    KeyspaceSession,
    delete,
    hdel,
    hgetall,
    hset,
    set_string,
    xadd,
    zadd,
)
from common.metadata.store_values import UNREADABLE, UnreadableTablet
from common.model.tablet import PLUS_INFINITY, Bounds, TabletId
from common.runtime import call_id
from tests.support.flaky import Fault, FlakyKeyspace, FlakySession, Point
from tests.support.patience import PATIENCE_S
from tests.support.requests import select, submitted
from tests.support.store_harness import MIDDLE, Harness, applied, commit, file, reserve

pytestmark = pytest.mark.anyio


async def test_many_tablets_are_read_in_key_order(harness: Harness) -> None:
    ends = tuple(number.to_bytes(2, "big") for number in range(600))
    table = await harness.table(splits=ends)
    ids = [TabletId(table.id, end) for end in (*ends, PLUS_INFINITY)]
    for number in (0, 31, 32, 255, 256, 599):
        key = ends[number]
        applied(await harness.add(ids[number], file(f"f{number}", key, key)))
    applied(await harness.apply(reserve(ids[256], "t1", "f256")))
    found = await harness.store.tablets([*ids, TabletId(table.id, b"none")])
    assert [each.id for each in found if each] == ids
    assert found[-1] is None
    assert found[256] is not None
    assert sorted(found[256].running) == ["t1"]
    assert found == [*(await harness.store.tablets(ids)), None]
    assert found[:-1] == [await harness.store.tablet(id_) for id_ in ids]
    records = await harness.store.records([*ids, TabletId(table.id, b"none")])
    assert records == [each.record if each else None for each in found]
    files = await harness.store.files([*ids, TabletId(table.id, b"none")])
    assert files == [each.files if each else {} for each in found]
    assert await harness.store.tablets([]) == []
    assert await harness.store.records([]) == []


async def test_ends_page_by_page_and_by_key(harness: Harness) -> None:
    table = await harness.table(splits=(b"\x00", b"c", MIDDLE))
    pages: list[bytes] = []
    after: bytes | None = None
    while page := await harness.store.tablet_ids(table.id, after, count=2):
        pages += [each.end for each in page]
        after = page[-1].end
    assert pages == [b"\x00", b"c", MIDDLE, PLUS_INFINITY]
    for key, end in ((b"", b"\x00"), (b"a", b"c"), (b"c", b"c"), (b"c\0", MIDDLE), (b"z", b"\xff")):
        assert await harness.store.locate(table.id, key) == TabletId(table.id, end)
    assert await harness.store.locate("tbl-none", b"a") is None


async def test_read_range_returns_the_tablets_that_meet_the_range(harness: Harness) -> None:
    table = await harness.table(splits=(b"c", b"f", MIDDLE))

    async def ends(start: bytes | None, end: bytes | None) -> list[bytes]:
        return [each.id.end for each in await harness.store.read_range(table.id, start, end)]

    assert await ends(None, None) == [b"c", b"f", MIDDLE, PLUS_INFINITY]
    assert await ends(b"c", b"c") == [b"c"]
    assert await ends(b"c\0", b"f") == [b"f"]
    assert await ends(b"d", b"g") == [b"f", MIDDLE]
    assert await ends(None, b"a") == [b"c"]
    assert await ends(b"z", None) == [PLUS_INFINITY]
    assert await harness.store.read_range("tbl-none") == ()


def split(tablet: TabletId, start: bytes | None, at: bytes) -> tuple[Command, ...]:
    """Return effects of a split, as its change will have them."""
    left = TabletKeys.of(TabletId(tablet.table, at))
    return (
        set_string(left.bounds, BOUNDS.pack(Bounds(start, at))),
        set_string(TabletKeys.of(tablet).bounds, BOUNDS.pack(Bounds(at, tablet.end))),
        zadd(TableKeys(tablet.table).index, at),
        hset(left.record, {"v": 1}),
    )


async def test_a_split_while_a_range_is_read(harness: Harness) -> None:
    table = await harness.table()
    last = TabletId(table.id, PLUS_INFINITY)
    store, keyspace = harness.flaky()
    fetches = [0]

    async def script(point: Point) -> Fault:
        fetches[0] += point is Point.FETCH
        if point is Point.FETCH and fetches[0] == 3:  # The index has been read, tablets not yet.
            await harness.write(*split(last, MIDDLE, b"t"))
        return Fault.NONE

    keyspace.script = script
    found = await store.read_range(table.id)
    assert [each.id.end for each in found] == [MIDDLE, b"t", PLUS_INFINITY]
    assert fetches[0] == 5


async def test_bounds_that_never_rest(harness: Harness) -> None:
    table = await harness.table()
    await harness.write(delete(TabletKeys.of(TabletId(table.id, MIDDLE)).bounds))
    with pytest.raises(ConflictError):
        await harness.store.read_range(table.id)
    assert len(await harness.store.read_range(table.id, b"z")) == 1


async def test_every_change_is_told(harness: Harness) -> None:
    table = await harness.table()
    tablet = TabletId(table.id, MIDDLE)
    start = await harness.store.tail(table.id)
    assert await harness.store.tail("tbl-none") == "0-0"
    applied(await harness.add(tablet, file("a")))
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    applied(await harness.apply(commit(tablet, "t1")))
    applied(await harness.apply(BumpGeneration(table=table.id)))  # A note: told to nobody.
    changes = await harness.store.changes({table.id: start}, block_s=0.0)
    assert [(change.tablet, change.what, change.attempt) for change in changes] == [
        (tablet, "add", None),
        (tablet, "reserve", "t1"),
        (tablet, "commit", "t1"),
    ]
    assert not any(change.whole_table for change in changes)
    middle = changes[1].position
    assert list(await harness.store.changes({table.id: middle}, block_s=0.0)) == [changes[2]]
    assert changes[2].position == await harness.store.tail(table.id)
    only = await harness.store.changes({table.id: start}, count=1, block_s=0.0)
    assert list(only) == [changes[0]]
    applied(await harness.apply(DropTable(table=table.id)))


async def test_a_reader_of_the_feed_waits_for_news(harness: Harness) -> None:
    tables = [await harness.table() for _ in range(3)]
    after = {table.id: await harness.store.tail(table.id) for table in tables}
    assert await harness.store.changes(after, block_s=0.01) == []
    assert await harness.store.changes({}) == ()
    waiting = asyncio.create_task(harness.store.changes(after, block_s=PATIENCE_S))
    await asyncio.sleep(0.02)
    tablet = TabletId(tables[1].id, MIDDLE)
    applied(await harness.add(tablet, file("a")))
    (change,) = await asyncio.wait_for(waiting, PATIENCE_S)
    assert change.tablet == tablet


async def test_streams_are_capped(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    key = TableKeys(tablet.table).changes
    if harness.is_real:
        entry = ("XADD", key, "MAXLEN", "~", CHANGES_MAX, "*", "t", "", "w", "x")
        for _ in range(21):
            await harness.write(*[entry] * (CHANGES_MAX // 20))
        applied(await harness.apply(reserve(tablet, "t1", "a")))
        assert CHANGES_MAX <= await harness.read(("XLEN", key)) < CHANGES_MAX + 1000
        return
    await harness.write(*[("XADD", key, "MAXLEN", "~", 10, "*", "t", "", "w", "x")] * 20)
    assert len(await harness.store.changes({tablet.table: "0-0"}, block_s=0.0)) == 10


async def test_an_entry_of_the_feed_is_remembered_until_it_is_dropped(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    key = TableKeys(tablet.table).changes
    position = await harness.store.tail(tablet.table)
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    assert await harness.store.remembers(tablet.table, position)
    assert await harness.store.remembers(tablet.table, "0-0")
    await harness.write(*[("XADD", key, "MAXLEN", "~", 1, "*", "t", "", "w", "x")] * 500)
    assert not await harness.store.remembers(tablet.table, position)
    newest = await harness.store.tail(tablet.table)
    assert await harness.store.remembers(tablet.table, newest)


DAMAGE: list[tuple[str, bytes, str]] = [
    ("files", b"", "is empty"),
    ("files", b"\x01\xc1", "cannot be decoded"),
    ("files", b"\x01", "cannot be decoded"),
    ("files", b"\x02\x90", "has format version 2, this release reads 1"),
    ("files", b"\x01\x93\x01\x02\x03\x04", "cannot be decoded"),
    ("files", b"\x01\x91\x01", "wrong number of fields"),
    ("files", b"\x01\x92\xa1a\x02", "size_bytes is"),
    ("files", b"\x01\x92\xff\x02", "must not be negative"),
    ("files", b"\x01\x81\x01\x02", "cannot be decoded"),
    ("files", b"\x01\x81\xa1a\x02", "wrong number of fields"),
    ("files", b"\x01" + b"\x91" * 2000, "cannot be decoded"),
    ("files", b"\x01\xdd\xff\xff\xff\xff", "cannot be decoded"),
    ("files", b"\x01\xdb\xff\xff\xff\xff", "cannot be decoded"),
    ("bounds", b"\x01\x92\xc0\xa1m", "end is"),
    ("running", b"\x01\x91\x01", "wrong number of fields"),
    ("selection", b"\x01\x92\xa1r\x91\x01", "something else"),
    ("operation", b"\x01\x93\xa1x\xa1i\xa3cut", "is no Operation"),
]


@pytest.mark.parametrize(("name", "data", "message"), DAMAGE)
async def test_damage_is_named(harness: Harness, name: str, data: bytes, message: str) -> None:
    tablet = await harness.tablet_with("a")
    keys = TabletKeys.of(tablet)
    if name in {"files", "running"}:
        await harness.write(hset(getattr(keys, name), {"broken": data}))
        counts = {"r": 1}
    else:
        await harness.write(set_string(getattr(keys, name), data))
        counts = {"s": 1}
    await harness.write(hset(keys.record, counts))
    with pytest.raises(MetadataError) as caught:
        await harness.store.tablet(tablet)
    assert message in str(caught.value)
    assert getattr(keys, name) in str(caught.value)
    with pytest.raises(MetadataError):
        await harness.apply(reserve(tablet, "t1", "a"))


@pytest.mark.parametrize(("name", "data", "message"), DAMAGE)
async def test_damage_of_one_tablet_hides_no_other(
    harness: Harness, name: str, data: bytes, message: str
) -> None:
    bad, good = await harness.tablet_with("a"), await harness.tablet_with("b")
    keys, nowhere = TabletKeys.of(bad), TabletId(bad.table, b"nowhere")
    if name in {"files", "running"}:
        await harness.write(hset(getattr(keys, name), {"broken": data}))
    else:
        await harness.write(set_string(getattr(keys, name), data))
    await harness.write(hset(keys.record, {"s": 1}))
    unreadable, readable, missing = await harness.store.readable([bad, good, nowhere])
    assert isinstance(unreadable, UnreadableTablet)
    assert (unreadable.id, missing) == (bad, None)
    assert message in unreadable.cause
    assert getattr(keys, name) in unreadable.cause
    assert readable == await harness.store.tablet(good)


async def test_damage_of_one_table_hides_no_other(harness: Harness) -> None:
    tables = [(await harness.tablet_with("a")).table for _ in range(3)]
    names = {table: name for name, table in (await harness.store.names()).items()}
    value, entry, whole = tables
    await harness.write(hset(TableKeys(value).table, {"settings": b"\xc1"}))
    listed = await harness.store.listed_tables()
    assert {entry, whole} <= {each.id for each in listed.tables}
    assert (listed.broken.keys(), listed.broken_ids) == ({names[value]}, {value})
    assert not listed.may_be_gone(value)
    assert listed.may_be_gone("another")
    await harness.write(hset(TABLES, {names[entry]: b"\x01\x90"}))
    listed = await harness.store.listed_tables()
    assert whole in {each.id for each in listed.tables}
    assert listed.broken.keys() == {names[value], names[entry]}
    assert "is not an entry of a table" in listed.broken[names[entry]]
    assert not listed.may_be_gone("another")
    await harness.write(hdel(TABLES, names[entry]))


async def test_an_entry_of_a_change_stream_that_cannot_be_read_hides_no_other(
    harness: Harness,
) -> None:
    tablet = await harness.tablet_with("a")
    position = await harness.store.tail(tablet.table)
    stream = TableKeys(tablet.table).changes
    await harness.write(xadd(stream, 1000, {"t": "no tablet", "w": "add"}))
    await harness.write(xadd(stream, 1000, {"t": tablet.text, "w": "add"}))
    odd, known = await harness.store.changes({tablet.table: position})
    assert (odd.what, odd.tablet.table, odd.whole_table) == (UNREADABLE, tablet.table, True)
    assert (known.what, known.tablet) == ("add", tablet)
    assert position < odd.position < known.position


async def test_unknown_fields_of_a_record_are_kept(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    keys = TabletKeys.of(tablet)
    (before,) = await harness.store.records([tablet])
    await harness.write(hset(keys.record, {"zz": b"\x02newer"}))
    assert await harness.store.records([tablet]) == [before]
    applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    applied(await harness.apply(commit(tablet, "t1")))
    assert (await harness.read(hgetall(keys.record)))[b"zz"] == b"\x02newer"
    (after,) = await harness.store.records([tablet])
    assert after is not None
    assert after.files == 1


async def test_damaged_records_and_paths_are_named(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    keys, table = TabletKeys.of(tablet), TableKeys(tablet.table)
    await harness.write(hset(keys.record, {"f": "many"}))
    with pytest.raises(MetadataError, match="is no record"):
        await harness.store.records([tablet])
    await harness.write(hset(keys.record, {"f": 1}))
    await harness.write(hset(keys.files, {b"\xff\xfe": b"\x01\x92\x01\x02"}))
    with pytest.raises(MetadataError, match="a path that is not text"):
        await harness.store.files([tablet])
    await harness.write(hset(table.table, {"settings": pack({"ratio": "3"})}))
    with pytest.raises(MetadataError, match="no settings of this release"):
        await harness.store.table(tablet.table)
    await harness.write(delete(table.table), hset(table.table, {"state": "live"}))
    with pytest.raises(MetadataError, match="lacks the field"):
        await harness.store.tables()


async def test_a_change_of_files_is_told_in_its_own_transaction(harness: Harness) -> None:
    """No reader can see other files and not be told: both are in one EXEC."""
    seen: list[tuple[Command, ...]] = []

    class Noting(FlakySession):
        async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
            seen.append(tuple(effects))
            return await super().execute(effects, durable=durable)

    class NotingKeyspace(FlakyKeyspace):
        @asynccontextmanager
        async def session(self) -> AsyncIterator[KeyspaceSession]:
            async with AsyncExitStack() as stack:
                inner = await stack.enter_async_context(self._inner.session())
                yield Noting(self, inner, stack)

    tablet = await harness.tablet_with("a", "b")
    store = harness.another(NotingKeyspace(harness.keyspace))
    await submitted(harness, tablet.table)
    change = select(tablet, "a", "b")
    for each in (change, reserve(tablet, "u1", "a", "b", request="r1"), commit(tablet, "u1")):
        applied(await store.apply(each))
    added = {tablet.end: (file("c"),)}
    applied(
        await store.apply(AddFiles(table=tablet.table, call=call_id(harness.clock), files=added))
    )

    files, feed = TabletKeys.of(tablet).files, TableKeys(tablet.table).changes
    changing = [effects for effects in seen if any(files in effect for effect in effects)]
    assert len(changing) == 2, "the commit, and the add"
    for effects in changing:
        assert [effect[:2] for effect in effects if effect[0] == "XADD" and feed in effect] == [
            ("XADD", feed)
        ]


async def test_files_looked_for_among_those_of_many_tablets(harness: Harness) -> None:
    table = await harness.table(splits=(b"g", MIDDLE))
    first, second, last = await harness.store.tablet_ids(table.id)
    applied(await harness.add(first, file("a"), file("b")))
    applied(await harness.add(second, file("c", b"h", b"h")))
    gone = TabletId(table.id, b"none")
    asked = {first: ["a", "c", "none"], last: ["a"], second: ["c"], gone: ["a"]}
    found = await harness.store.held_among(asked)
    assert [sorted(each) for each in found] == [["a"], [], ["c"], []]
    assert [*await harness.store.held_among({first: []})] == [set()]
    keys = [b"z", b"a", b"g", b"h"]
    assert await harness.store.locate_each(table.id, keys) == [last, first, first, second]
    assert await harness.store.locate_each("none", [b"a"]) == [None]
