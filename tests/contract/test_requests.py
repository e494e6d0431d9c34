"""The life of a request as a whole: submit, list, cancel a part, move on, close."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import (
    BeginOperation,
    CancelRange,
    ChangeTable,
    DropTable,
    EndOperation,
    StepOperation,
    SubmitRequest,
)
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.keyspace import hset
from common.model.request import (
    KeyRange,
    OutputSpec,
    Request,
    RequestState,
    SelectorSpec,
    TransformKind,
    TransformSpec,
)
from common.model.table import TableState
from common.model.tablet import PLUS_INFINITY, OperationKind, OperationStep, TabletId
from tests.support.requests import (
    cancel,
    close,
    finish,
    keys,
    move,
    select,
    state_of,
    submitted,
    tablet_of,
    wait,
)
from tests.support.store_harness import MIDDLE, Harness, applied, file, refused, reserve

pytestmark = pytest.mark.anyio

FULL = Request(
    id="r1",
    table="",
    range=KeyRange(b"a", b"z"),
    selector=SelectorSpec(name="size", options={"min": "1MB"}),
    transform=TransformSpec(kind=TransformKind.SET, text="x = 1", options={"a": "b"}),
    output=OutputSpec(codec="zstd", codec_level=5, row_group_bytes=1024),
    hints={"group": "large"},
    boost=3,
    deadline_s=9e9,
    automatic=True,
)


async def test_a_request_is_stored_once_as_active(harness: Harness) -> None:
    table = await harness.table()
    wanted = replace(FULL, table=table.id)
    odd = replace(wanted, state=RequestState.DONE, cause="x", fails=True, submitted_at_s=1.0)
    made = applied(await harness.apply(SubmitRequest(request=odd)))
    stored = await harness.store.request(table.id, "r1")
    assert stored == replace(wanted, submitted_at_s=made.now_s)
    await harness.pass_time(0.01)
    applied(await harness.apply(SubmitRequest(request=wanted)))
    assert await harness.store.request(table.id, "r1") == stored
    other = replace(wanted, boost=4)
    refused(await harness.apply(SubmitRequest(request=other)), "exists")
    assert await harness.store.requests(table.id) == [stored]
    assert await harness.store.request(table.id, "r2") is None


async def test_requests_are_listed_by_time(harness: Harness) -> None:
    table = await harness.table()
    for name in ("r3", "r1", "r2"):
        await submitted(harness, table.id, name)
        await harness.pass_time(0.002)
    newest = await harness.store.requests(table.id, 2)
    assert [each.id for each in newest] == ["r2", "r1"]
    assert [open_request.id for open_request in await harness.store.open_requests(table.id)] == [
        "r3",
        "r1",
        "r2",
    ]


async def test_requests_need_a_table(harness: Harness) -> None:
    table = await harness.table()
    lost = Request(id="r1", table="tbl-none")
    refused(await harness.apply(SubmitRequest(request=lost)), "table")
    pause = ChangeTable(table=table.id, settings_version=1, state=TableState.PAUSED)
    applied(await harness.apply(pause))
    await submitted(harness, table.id)
    for state in RequestState:
        if state is not RequestState.ACTIVE:
            refused(await harness.apply(move("tbl-none", state)), "table")
            refused(await harness.apply(move(table.id, state, "r9")), "request")
    for name, code in (("tbl-none", "table"), (table.id, "request")):
        part = CancelRange(table=name, request="r9", range=keys(b"a"))
        refused(await harness.apply(part), code)
        refused(await harness.apply(close(name, "r9")), code)


async def test_a_request_is_done_when_it_is_done_in_every_tablet(harness: Harness) -> None:
    table = await harness.table(splits=(b"g", b"p"))
    first, second, last = (TabletId(table.id, end) for end in (b"g", b"p", PLUS_INFINITY))
    await submitted(harness, table.id, range=keys(b"h", b"p\x00"))
    await submitted(harness, table.id, "r2")
    done = move(table.id, RequestState.DONE)
    everywhere = move(table.id, RequestState.DONE, "r2")
    refused(await harness.apply(done), "open")
    refused(await harness.apply(select(first)), "range")
    refused(await harness.apply(select(last)), "range")
    applied(await harness.apply(select(second)))
    made = applied(await harness.apply(done))
    applied(await harness.apply(done))
    stored = await harness.store.request(table.id, "r1")
    assert stored is not None
    assert (stored.state, stored.ended_at_s) == (RequestState.DONE, made.now_s)
    for tablet in (first, second, last):
        refused(await harness.apply(everywhere), "open")
        applied(await harness.apply(select(tablet, request="r2")))
    applied(await harness.apply(everywhere))


async def test_a_request_is_cancelled_when_nothing_is_left_of_it(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    await submitted(harness, tablet.table)
    ends = (RequestState.CANCELLED, RequestState.FAILED)
    for state in ends:
        refused(await harness.apply(move(tablet.table, state)), "request")
    applied(await harness.apply(select(tablet, "a", "b")))
    applied(await harness.apply(reserve(tablet, "t1", "a", "b", request="r1")))
    applied(await harness.apply(move(tablet.table, RequestState.CANCELLING, cause="by hand")))
    again = move(tablet.table, RequestState.CANCELLING, cause="once more", fails=True)
    applied(await harness.apply(again))
    refused(await harness.apply(move(tablet.table, RequestState.DONE)), "request")
    refused(await harness.apply(move(tablet.table, RequestState.FAILED)), "request")
    refused(await harness.apply(move(tablet.table, RequestState.CANCELLED)), "open")
    applied(await harness.apply(cancel(tablet)))
    applied(await harness.apply(move(tablet.table, RequestState.CANCELLED)))
    stored = await harness.store.request(tablet.table, "r1")
    assert stored is not None
    assert (stored.state, stored.cause) == (RequestState.CANCELLED, "by hand")


async def test_a_marker_alone_keeps_a_request_from_ending(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    await submitted(harness, tablet.table)
    applied(await harness.apply(wait(tablet)))
    fails = move(tablet.table, RequestState.CANCELLING, cause="no planner", fails=True)
    applied(await harness.apply(fails))
    refused(await harness.apply(move(tablet.table, RequestState.CANCELLED)), "request")
    refused(await harness.apply(move(tablet.table, RequestState.FAILED)), "open")
    applied(await harness.apply(cancel(tablet)))
    applied(await harness.apply(move(tablet.table, RequestState.FAILED)))
    assert await state_of(harness, tablet.table) == "failed"


async def test_a_selection_or_a_job_alone_keeps_a_request_from_ending(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    await submitted(harness, tablet.table)
    applied(await harness.apply(select(tablet, "a")))
    applied(await harness.apply(move(tablet.table, RequestState.CANCELLING)))
    refused(await harness.apply(move(tablet.table, RequestState.CANCELLED)), "open")
    applied(await harness.apply(reserve(tablet, "u1", "a", request="r1")))
    selection = TabletKeys.of(tablet).selection
    stored = await harness.read(("GET", selection))
    await harness.write(("DEL", selection))
    refused(await harness.apply(move(tablet.table, RequestState.CANCELLED)), "open")
    await harness.write(("SET", selection, stored))
    applied(await harness.apply(cancel(tablet)))
    applied(await harness.apply(move(tablet.table, RequestState.CANCELLED)))


async def test_a_drop_that_was_interrupted_cancels_the_requests(harness: Harness) -> None:
    table = await harness.table()
    await submitted(harness, table.id)
    keys = TableKeys(table.id)
    await harness.write(hset(keys.table, {"state": "going"}), hset(keys.garbage, {"x": "y"}))
    assert not applied(await harness.apply(DropTable(table=table.id))).complete
    assert await state_of(harness, table.id) == "cancelling"


async def test_a_part_is_cancelled_by_itself(harness: Harness) -> None:
    table = await harness.table()
    left, right = TabletId(table.id, MIDDLE), TabletId(table.id, PLUS_INFINITY)
    await submitted(harness, table.id)
    applied(await harness.apply(wait(left)))
    refused(await harness.apply(cancel(left)), "request")
    part = CancelRange(table=table.id, request="r1", range=keys(None, MIDDLE + b"\x00"))
    applied(await harness.apply(part))
    applied(await harness.apply(part))
    stored = await harness.store.request(table.id, "r1")
    assert stored is not None
    assert stored.cancelled_ranges == (part.range,)
    refused(await harness.apply(select(left)), "range")
    refused(await harness.apply(cancel(right)), "request")
    applied(await harness.apply(cancel(left)))
    found = await tablet_of(harness, left)
    assert (found.waiting, found.done) == ({}, {"r1"})
    applied(await harness.apply(cancel(left)))
    refused(await harness.apply(move(table.id, RequestState.DONE_IN_PART)), "open")
    applied(await harness.apply(select(right)))
    refused(await harness.apply(move(table.id, RequestState.DONE)), "request")
    applied(await harness.apply(move(table.id, RequestState.DONE_IN_PART)))
    applied(await harness.apply(move(table.id, RequestState.DONE_IN_PART)))
    refused(await harness.apply(cancel(left)), "request")
    refused(await harness.apply(replace(part, range=keys(b"x"))), "request")


async def test_a_merge_under_way_keeps_what_was_not_cancelled(harness: Harness) -> None:
    """The left tablet is cancelled while it becomes one with the right one."""
    table = await harness.table()
    left, right = TabletId(table.id, MIDDLE), TabletId(table.id, PLUS_INFINITY)
    applied(await harness.add(right, file("r", b"x", b"y")))
    await submitted(harness, table.id)
    both = {"tablets": (left, right), "operation": "op"}
    begin = BeginOperation(kind=OperationKind.MERGE, **both)
    applied(await harness.apply(begin))
    part = CancelRange(table=table.id, request="r1", range=keys(None, MIDDLE + b"\x00"))
    applied(await harness.apply(part))
    refused(await harness.apply(cancel(left)), "operation")
    for change in (StepOperation(step=OperationStep.CLOSE, **both), EndOperation(**both)):
        applied(await harness.apply(change))

    refused(await harness.apply(cancel(right)), "request")
    refused(await harness.apply(move(table.id, RequestState.DONE_IN_PART)), "open")
    applied(await harness.apply(select(right, "r")))
    refused(await harness.apply(move(table.id, RequestState.DONE_IN_PART)), "open")
    stored = await harness.store.request(table.id, "r1")
    assert stored is not None
    assert [stored.means(key) for key in (b"a", MIDDLE, MIDDLE + b"\x00", b"x")] == [
        False,
        False,
        True,
        True,
    ]


async def test_an_ended_request_is_closed_when_its_markers_are_gone(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", splits=())
    await submitted(harness, tablet.table)
    applied(await harness.apply(select(tablet, shown=("a",))))
    refused(await harness.apply(close(tablet.table)), "request")
    refused(await harness.apply(finish(tablet)), "request")
    applied(await harness.apply(move(tablet.table, RequestState.DONE)))
    refused(await harness.apply(close(tablet.table)), "open")
    for _ in range(2):
        applied(await harness.apply(finish(tablet)))
    assert (await tablet_of(harness, tablet)).done == frozenset()
    assert [
        open_request.id for open_request in await harness.store.open_requests(tablet.table)
    ] == ["r1"]
    for _ in range(2):
        applied(await harness.apply(close(tablet.table)))
    assert await harness.store.open_requests(tablet.table) == []
    assert [request.id for request in await harness.store.requests(tablet.table)] == ["r1"]


async def test_a_table_that_goes_takes_its_requests_along(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    await submitted(harness, tablet.table)
    await submitted(harness, tablet.table, "r2")
    applied(await harness.apply(select(tablet, "a")))
    applied(await harness.apply(reserve(tablet, "t1", "a", request="r1")))
    outcome = applied(await harness.apply(DropTable(table=tablet.table)))
    assert not outcome.complete, "the outputs of t1 wait in garbage"
    assert [request.state for request in await harness.store.requests(tablet.table)] == [
        RequestState.CANCELLING,
        RequestState.CANCELLING,
    ]
    applied(await harness.apply(cancel(tablet)))
    applied(await harness.apply(finish(tablet)))
    refused(
        await harness.apply(SubmitRequest(request=Request(id="r3", table=tablet.table))), "table"
    )
    await harness.write(("DEL", f"neve:{{{tablet.table}}}:garbage"))
    assert applied(await harness.apply(DropTable(table=tablet.table))).complete
    assert await harness.keys(tablet.table) == []
