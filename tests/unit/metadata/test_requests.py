"""Requests over many tablets, many requests of a table, and corners of their rules."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from common.errors import MetadataError
from common.metadata.changes import CancelRange, DropTable, SubmitRequest, WriteAnalysis
from common.metadata.changes.requests import CANCELLED_RANGES_MAX, FORGOTTEN_MAX, TABLETS_PER_LOOK
from common.metadata.changes.selections import may_hold_range
from common.metadata.changes.split_merge import may_end, merge_settled_versions
from common.metadata.codec.table import (
    request_fields,
    request_member,
    unpack_request,
)
from common.metadata.keys import (
    CALL_SKEW_S,
    REQUESTS_KEPT,
    REQUESTS_OPEN_MAX,
    TableKeys,
    TabletKeys,
)
from common.metadata.keyspace import hset, sadd, zadd, zrem
from common.model.job import Kind
from common.model.request import KeyRange, Request, RequestState, TransformKind, TransformSpec
from common.model.tablet import (
    PLUS_INFINITY,
    Analysis,
    Bounds,
    Operation,
    OperationKind,
    OperationStep,
    Reservation,
    Tablet,
    TabletId,
)
from common.primitives import CALL_LIFE_S
from common.runtime import call_id
from tests.support.flaky import Fault, Point
from tests.support.memory_store import MemoryKeyspace
from tests.support.predictable import ManualClock
from tests.support.requests import cancel, close, finish, move, select, submitted, wait
from tests.support.store_harness import Harness, applied, file, refused

MANY = TABLETS_PER_LOOK * 2 + 7


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def memory() -> Harness:
    clock = ManualClock()
    return Harness("memory", MemoryKeyspace(clock), clock)


def end_of(number: int) -> bytes:
    return b"%06d" % number


async def wide_table(harness: Harness, tablets: int = MANY) -> list[TabletId]:
    splits = tuple(end_of(number) for number in range(tablets - 1))
    table = await harness.table(splits=splits)
    return [TabletId(table.id, end) for end in (*splits, PLUS_INFINITY)]


async def mark_done(harness: Harness, tablet: TabletId, request: str = "r1") -> None:
    keys = TabletKeys.of(tablet)
    await harness.write(sadd(keys.done, request), hset(keys.record, {"d": 1}))


@pytest.mark.parametrize("tablets", [TABLETS_PER_LOOK, TABLETS_PER_LOOK + 1, MANY])
def test_a_request_over_many_tablets_is_done_when_each_is(tablets: int) -> None:
    async def story() -> None:
        harness = memory()
        ids = await wide_table(harness, tablets)
        table = ids[0].table
        await submitted(harness, table)
        done = move(table, RequestState.DONE)
        for tablet in ids[:-1]:
            await mark_done(harness, tablet)
        refused(await harness.apply(done), "open")
        await mark_done(harness, ids[-1])
        applied(await harness.apply(done))
        refused(await harness.apply(close(table)), "open")
        for tablet in ids:
            applied(await harness.apply(finish(tablet)))
        applied(await harness.apply(close(table)))

    run(story())


def test_a_request_over_many_tablets_ends_when_nothing_is_left_in_any() -> None:
    async def story() -> None:
        harness = memory()
        ids = await wide_table(harness)
        table = ids[0].table
        await submitted(harness, table)
        applied(await harness.apply(wait(ids[-1])))
        applied(await harness.apply(move(table, RequestState.CANCELLING)))
        refused(await harness.apply(move(table, RequestState.CANCELLED)), "open")
        applied(await harness.apply(cancel(ids[-1])))
        applied(await harness.apply(move(table, RequestState.CANCELLED)))

    run(story())


@pytest.mark.parametrize(
    ("start", "until", "first", "last"),
    [
        (None, end_of(2), 0, 2),
        (end_of(2), end_of(4), 2, 4),
        (end_of(2) + b"\x00", end_of(4) + b"\x00", 3, 4),
        (end_of(2), end_of(4) + b"\x00", 2, 4),
        (end_of(2), end_of(4) + b"\x00\x00", 2, 5),
        (end_of(7) + b"a", None, 8, 9),
    ],
)
def test_exactly_the_tablets_of_the_range_must_be_done(
    start: bytes | None, until: bytes | None, first: int, last: int
) -> None:
    async def story() -> None:
        harness = memory()
        ids = await wide_table(harness, 10)
        table = ids[0].table
        await submitted(harness, table, range=KeyRange(start, until))
        done = move(table, RequestState.DONE)
        for number, tablet in enumerate(ids):
            inside = first <= number <= last
            found = await harness.store.tablet(tablet)
            assert found is not None
            assert may_hold_range(KeyRange(start, until), found.bounds) is inside, number
            if inside:
                refused(await harness.apply(done), "open")
                applied(await harness.apply(select(tablet)))
            else:
                refused(await harness.apply(select(tablet)), "range")
        applied(await harness.apply(done))

    run(story())


@pytest.mark.parametrize("lost", range(4))
def test_a_hole_among_the_tablets_keeps_a_request_from_being_done(lost: int) -> None:
    async def story() -> None:
        harness = memory()
        ids = await wide_table(harness, 4)
        table = ids[0].table
        await submitted(harness, table)
        for tablet in ids:
            await mark_done(harness, tablet)
        hole = TabletKeys.of(ids[lost])
        bounds = await harness.read(("GET", hole.bounds))
        await harness.write(("DEL", hole.bounds))
        refused(await harness.apply(move(table, RequestState.DONE)), "bounds")
        await harness.write(zrem(TableKeys(table).index, ids[lost].end))
        refused(await harness.apply(move(table, RequestState.DONE)), "bounds")
        await harness.write(
            zadd(TableKeys(table).index, ids[lost].end), ("SET", hole.bounds, bounds)
        )
        applied(await harness.apply(move(table, RequestState.DONE)))

    run(story())


def test_partitions_count_each_by_itself() -> None:
    assert may_hold_range(KeyRange(b"d1", b"d3"), Bounds(None, b"d2", "day=2"))
    assert not may_hold_range(KeyRange(b"d1", b"d3"), Bounds(None, b"d3", "day=3"))

    async def story() -> None:
        harness = memory()
        table = await harness.table(partition_by=("k",))
        request = await submitted(harness, table.id, range=KeyRange(b"d1", b"d3"))
        assert request.state is RequestState.ACTIVE
        applied(await harness.apply(move(table.id, RequestState.DONE)))

    run(story())


def test_only_so_many_requests_are_open_at_once() -> None:
    async def story() -> None:
        harness = memory()
        table = await harness.table()
        key = TableKeys(table.id).open_requests
        await harness.write(zadd(key, *(b"%020d:x" % n for n in range(REQUESTS_OPEN_MAX))))
        full = SubmitRequest(request=Request(id="r1", table=table.id))
        refused(await harness.apply(full), "full")

    run(story())


def test_the_oldest_closed_requests_are_forgotten() -> None:
    async def story() -> None:
        harness = memory()
        table = await harness.table(splits=())
        tablet = TabletId(table.id, PLUS_INFINITY)
        keys = TableKeys(table.id)
        old = [
            Request(id=f"old{n}", table=table.id, submitted_at_s=n, state=RequestState.DONE)
            for n in range(REQUESTS_KEPT + 5)
        ]
        await harness.write(
            zadd(keys.requests, *map(request_member, old)),
            zadd(keys.open_requests, request_member(old[1])),
            *(hset(keys.request(each.id), request_fields(each)) for each in old),
        )
        harness.clock.advance(1e9)  # type: ignore[attr-defined] - a clock that tests move
        await submitted(harness, table.id)
        applied(await harness.apply(select(tablet)))
        applied(await harness.apply(move(table.id, RequestState.DONE)))
        applied(await harness.apply(finish(tablet)))
        applied(await harness.apply(close(table.id)))
        left = {request.id for request in await harness.store.requests(table.id, 2 * REQUESTS_KEPT)}
        assert {each.id for each in old} - left == {"old0", "old2", "old3", "old4", "old5"}
        assert "r1" in left
        assert await harness.store.request(table.id, "old0") is None
        assert FORGOTTEN_MAX > 1, "what is too much shrinks with every request that is closed"

    run(story())


def test_a_request_is_found_by_its_call_whatever_came_after_it() -> None:
    """A repeated submit must not become a second request: `set v = v + 1`, twice."""

    async def story() -> None:
        harness = memory()
        table = await harness.table(splits=())
        tablet, keys = TabletId(table.id, PLUS_INFINITY), TableKeys(table.id)
        call = call_id(harness.clock)
        submit = SubmitRequest(request=Request(id="r0", table=table.id), call=call)
        applied(await harness.apply(submit))
        await ended(harness, tablet, "r0")
        now_s = await harness.store.now_s()
        younger = [
            Request(id=f"r{n}", table=table.id, submitted_at_s=now_s + n, state=RequestState.DONE)
            for n in range(2, REQUESTS_KEPT + 5)
        ]
        await harness.write(zadd(keys.requests, *map(request_member, younger)))
        await submitted(harness, table.id, "last")
        await ended(harness, tablet, "last")

        listed = {
            request.id for request in await harness.store.requests(table.id, 2 * REQUESTS_KEPT)
        }
        assert "r0" not in listed
        assert applied(await harness.apply(submit)).repeated
        found = await harness.store.request(table.id, "r0")
        assert found is not None
        assert found.state is RequestState.DONE
        await harness.pass_time(CALL_LIFE_S + 1)
        assert applied(await harness.apply(submit)).repeated, "it must be too old before it goes"
        await harness.pass_time(2 * CALL_SKEW_S)
        assert await harness.store.request(table.id, "r0") is None
        refused(await harness.apply(submit), "call-too-old")

    run(story())


async def ended(harness: Harness, tablet: TabletId, request: str) -> None:
    """Let a request come to its end."""
    table = tablet.table
    for change in (
        select(tablet, request=request),
        move(table, RequestState.DONE, request),
        finish(tablet, request),
        close(table, request),
    ):
        applied(await harness.apply(change))


def test_only_so_many_parts_are_cancelled_by_themselves() -> None:
    async def story() -> None:
        harness = memory()
        table = await harness.table()
        await submitted(harness, table.id)
        for number in range(CANCELLED_RANGES_MAX + 1):
            part = KeyRange(b"%03d" % number, b"%03da" % number)
            change = CancelRange(table=table.id, request="r1", range=part)
            if number < CANCELLED_RANGES_MAX:
                applied(await harness.apply(change))
            else:
                refused(await harness.apply(change), "full")

    run(story())


@pytest.mark.parametrize(
    "stored",
    [
        {b"state": b"active"},
        {b"state": b"odd", b"value": b""},
        {b"state": b"active", b"value": b"\x01\x90"},
        {b"state": b"active", b"value": b"\x01\xc0"},
    ],
)
def test_unpacking_a_damaged_request_is_an_error(stored: dict[bytes, bytes]) -> None:
    with pytest.raises(MetadataError, match="here"):
        unpack_request("here", "t", "r1", stored)


def test_nested_parts_of_a_request_are_checked() -> None:
    transform = TransformSpec(kind=TransformKind.SET, text="x = 1")
    request = Request(id="r1", table="t", hints={"a": "b"}, transform=transform)
    good = request_fields(request)["value"]
    assert isinstance(good, bytes)
    for right, wrong in ((b"\xa1a\xa1b", b"\xa1a\x07"), (b"\xa3set", b"\xa3sit")):
        assert right in good
        stored = {b"state": b"active", b"value": good.replace(right, wrong)}
        with pytest.raises(MetadataError, match="here"):
            unpack_request("here", "t", "r1", stored)


def test_a_split_that_something_came_over_does_not_end() -> None:
    split = Operation(OperationKind.SPLIT, "op", OperationStep.CLOSE, b"c")
    plain = Tablet(id=TabletId("t", b"m"), bounds=Bounds(None, b"m"), operation=split)
    entry = Reservation(
        attempt="t1",
        job="j",
        kind=Kind.SYSTEM,
        inputs=("a",),
        output_prefix="o",
        outputs_max=1,
        group="g",
        compactor="c",
        since_s=0,
        now_s=0,
    )
    for fields, code in (
        ({"files": {"x": file("x", b"b", b"d")}}, "crosses"),
        ({"running": {"t1": entry}}, "running"),
    ):
        refusal = may_end([replace(plain, **fields)])  # type: ignore[arg-type] - one of the two
        assert refusal is not None
        assert refusal.code == code
    assert may_end([plain]) is None


def test_two_drops_of_one_table_end_as_one() -> None:
    async def story() -> None:
        harness = memory()
        table = await harness.table()
        await submitted(harness, table.id)
        store, keyspace = harness.flaky()
        await store.store_id()
        left = [1, 2]

        async def script(point: Point) -> Fault:
            if point is Point.EXEC and left and left.pop() == 1:
                applied(await harness.apply(DropTable(table=table.id)))
            return Fault.NONE

        keyspace.script = script
        applied(await store.apply(DropTable(table=table.id)))
        assert not left
        assert await harness.keys(table.id) == []

    run(story())


def test_notes_leave_each_other_alone() -> None:
    async def story() -> None:
        harness = memory()
        tablet = await harness.tablet_with("a")
        said = WriteAnalysis(tablet=tablet, analysis=Analysis.STABLE, version=1, settings_version=1)
        applied(await harness.apply(said))
        for fields in ({"selector_hash": "abc"}, {"settled": ((1.0, b"5"),)}, {}):
            note = WriteAnalysis(
                tablet=tablet,
                analysis=Analysis.UNKNOWN,
                version=-1,
                settings_version=-1,
                **fields,  # type: ignore[arg-type] - one of the two
            )
            applied(await harness.apply(note))
        (record,) = await harness.store.records([tablet])
        assert record is not None
        assert (record.analysis, record.analysis_version) == (Analysis.STABLE, 1)
        assert (record.selector_hash, record.settled) == ("abc", ((1.0, b"5"),))

    run(story())


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [
        ((), ((1.0, b"5"),), ()),
        (((1.0, b"5"),), ((1.0, b"4"),), ((1.0, b"4"),)),
        (((1.0, b"5"), (9.0, b"9")), ((4.0, b"7"),), ((4.0, b"5"), (9.0, b"7"))),
        (((1.0, b"5"), (9.0, b"9")), ((4.0, b"5"),), ((4.0, b"5"),)),
    ],
)
def test_merged_marks_hold_for_both(one: Any, other: Any, merged: Any) -> None:
    assert merge_settled_versions(one, other) == merge_settled_versions(other, one) == merged
