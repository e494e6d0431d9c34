"""Requests and operations: another writer between WATCH and EXEC, and answers that are lost."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest

from common.metadata.changes import (
    AddFiles,
    Applied,
    CancelRange,
    Change,
    CloseRequest,
    DropTable,
    Refused,
    ReserveFiles,
    SubmitRequest,
    transaction_for,
)
from common.model.file import DataFile
from common.model.request import KeyRange, Request, RequestState
from common.model.tablet import PLUS_INFINITY, TabletId
from common.runtime import call_id
from tests.contract.test_operations import (
    CLOSE,
    DRAIN,
    abandon,
    end,
    layout,
    merge,
    note,
    split,
    step,
)
from tests.contract.test_unknown import meanwhile, once
from tests.support.flaky import Fault, Point
from tests.support.memory_store import MemoryKeyspace
from tests.support.requests import (
    cancel,
    close,
    complete,
    finish,
    move,
    select,
    state_of,
    submitted,
    tablet_of,
    wait,
)
from tests.support.store_harness import MIDDLE, Harness, applied, commit, file, refused, reserve

pytestmark = pytest.mark.anyio


async def between(harness: Harness, change: Change, *others: Change) -> Applied | Refused:
    """Apply a change, letting others be made between its WATCH and its first EXEC."""
    store, keyspace = harness.flaky()
    await store.store_id()
    left = [*others]

    async def script(point: Point) -> Fault:
        while point is Point.EXEC and left:
            applied(await harness.apply(left.pop(0)))
        return Fault.NONE

    keyspace.script = script
    outcome = await store.apply(change)
    assert isinstance(outcome, Applied | Refused)
    assert not left, "the change never came to its EXEC"
    return outcome


async def test_a_selection_meets_a_new_reservation(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    await submitted(harness, tablet.table)
    refused(await between(harness, select(tablet, "a"), reserve(tablet, "s1", "a")), "running")
    applied(await harness.apply(commit(tablet, "s1")))
    refused(await between(harness, reserve(tablet, "s2", "b"), select(tablet, "b")), "selected")
    found = await tablet_of(harness, tablet)
    assert ([*found.running], found.selection is not None) == ([], True)


async def test_a_selection_meets_a_job_that_came_and_went(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    await submitted(harness, tablet.table)
    came = (reserve(tablet, "s1", "a"), commit(tablet, "s1"))
    refused(await between(harness, select(tablet, "a", "b"), *came), "gone")


async def test_a_marker_meets_a_reservation_and_a_selection(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    await submitted(harness, tablet.table)
    await submitted(harness, tablet.table, "r2")
    refused(await between(harness, reserve(tablet, "s1", "a"), wait(tablet)), "waiting")
    refused(await between(harness, wait(tablet, "r2"), select(tablet, "a")), "selected")
    found = await tablet_of(harness, tablet)
    assert (found.waiting, found.running) == ({}, {})


async def test_two_coordinators_take_the_same_step_once(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", splits=())
    await submitted(harness, tablet.table)
    await submitted(harness, tablet.table, "r2")
    applied(await between(harness, wait(tablet), wait(tablet)))
    assert [*(await tablet_of(harness, tablet)).waiting] == ["r1"]
    refused(await between(harness, select(tablet), select(tablet)), "done")
    assert (await tablet_of(harness, tablet)).waiting == {}
    applied(await harness.apply(select(tablet, request="r2")))
    done = move(tablet.table, RequestState.DONE)
    applied(await between(harness, done, done))
    applied(await between(harness, finish(tablet), finish(tablet)))
    assert (await tablet_of(harness, tablet)).done == {"r2"}
    applied(await between(harness, close(tablet.table), close(tablet.table)))


async def test_waiting_and_selecting_meet_a_cancel(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    for number, change in enumerate((wait(tablet), select(tablet, "a"), select(tablet))):
        name = f"r{number}"
        await submitted(harness, tablet.table, name)
        end_it = move(tablet.table, RequestState.CANCELLING, name)
        refused(await between(harness, replace(change, request=name), end_it), "request")
        applied(await harness.apply(move(tablet.table, RequestState.CANCELLED, name)))
    part = CancelRange(table=tablet.table, request="r9", range=KeyRange())
    await submitted(harness, tablet.table, "r9")
    refused(await between(harness, select(tablet, "a", request="r9"), part), "range")
    found = await tablet_of(harness, tablet)
    assert (found.waiting, found.selection, found.done) == ({}, None, frozenset())


async def test_a_cancel_meets_a_commit_and_a_reservation(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b", "c")
    await submitted(harness, tablet.table)
    applied(await harness.apply(select(tablet, "a", "b", "c")))
    applied(await harness.apply(reserve(tablet, "u1", "a", request="r1")))
    applied(await harness.apply(move(tablet.table, RequestState.CANCELLING)))
    applied(await between(harness, cancel(tablet), commit(tablet, "u1")))
    found = await tablet_of(harness, tablet)
    assert (sorted(found.files), found.running) == (["b", "c", "out/u1-0.parquet"], {})

    await submitted(harness, tablet.table, "r2")
    applied(await harness.apply(select(tablet, "b", "c", request="r2")))
    applied(await harness.apply(move(tablet.table, RequestState.CANCELLING, "r2")))
    job = reserve(tablet, "u2", "b", request="r2")
    applied(await between(harness, cancel(tablet, "r2"), job))
    applied(await harness.apply(cancel(tablet, "r2")))
    found = await tablet_of(harness, tablet)
    assert (found.running, found.selection) == ({}, None)
    refused(await harness.apply(commit(tablet, "u2")), "cancelled")


async def test_a_commit_and_a_reservation_meet_a_cancel(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    await submitted(harness, tablet.table)
    applied(await harness.apply(select(tablet, "a", "b")))
    applied(await harness.apply(reserve(tablet, "u1", "a", request="r1")))
    applied(await harness.apply(move(tablet.table, RequestState.CANCELLING)))
    refused(await between(harness, commit(tablet, "u1"), cancel(tablet)), "cancelled")
    await submitted(harness, tablet.table, "r2")
    applied(await harness.apply(select(tablet, "a", "b", request="r2")))
    applied(await harness.apply(move(tablet.table, RequestState.CANCELLING, "r2")))
    job = reserve(tablet, "u2", "b", request="r2")
    refused(await between(harness, job, cancel(tablet, "r2")), "selected")
    assert (await tablet_of(harness, tablet)).running == {}


async def test_completion_meets_a_job_and_a_cancel(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    await submitted(harness, tablet.table)
    applied(await harness.apply(select(tablet, "a")))
    applied(await harness.apply(reserve(tablet, "u1", "a", request="r1")))
    applied(await harness.apply(commit(tablet, "u1", outputs=2)))
    outputs = ("out/u1-0.parquet", "out/u1-1.parquet")
    job = reserve(tablet, "u2", outputs[0], request="r1")
    refused(await between(harness, complete(tablet, *outputs), job), "running")
    stop = (move(tablet.table, RequestState.CANCELLING), cancel(tablet))
    other = replace(job, attempt="u3", inputs=outputs[1:])
    refused(await between(harness, other, *stop), "selected")
    refused(await harness.apply(complete(tablet, *outputs)), "selected")
    assert (await tablet_of(harness, tablet)).done == frozenset()


async def test_a_part_cancelled_leaves_no_marker_behind_the_request(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", splits=())
    await submitted(harness, tablet.table)
    part = CancelRange(table=tablet.table, request="r1", range=KeyRange())
    applied(await harness.apply(part))
    over = (
        cancel(tablet),
        move(tablet.table, RequestState.DONE_IN_PART),
        finish(tablet),
        close(tablet.table),
    )
    refused(await between(harness, cancel(tablet), *over), "request")
    assert (await tablet_of(harness, tablet)).done == frozenset()


async def test_a_request_is_not_done_with_a_part_that_is_cancelled_meanwhile(
    harness: Harness,
) -> None:
    tablet = await harness.tablet_with("a", splits=())
    await submitted(harness, tablet.table)
    applied(await harness.apply(select(tablet)))
    part = CancelRange(table=tablet.table, request="r1", range=KeyRange())
    done = move(tablet.table, RequestState.DONE)
    refused(await between(harness, done, part), "request")
    applied(await harness.apply(move(tablet.table, RequestState.DONE_IN_PART)))
    assert await state_of(harness, tablet.table) == "done_in_part"


async def test_a_request_that_ends_meets_its_cancel(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", splits=())
    await submitted(harness, tablet.table)
    applied(await harness.apply(select(tablet)))
    stop = move(tablet.table, RequestState.CANCELLING)
    refused(await between(harness, move(tablet.table, RequestState.DONE), stop), "request")
    assert await state_of(harness, tablet.table) == "cancelling"
    await submitted(harness, tablet.table, "r2")
    applied(await harness.apply(select(tablet, request="r2")))
    done = move(tablet.table, RequestState.DONE, "r2")
    refused(
        await between(harness, move(tablet.table, RequestState.CANCELLING, "r2"), done), "request"
    )


async def test_a_request_meets_the_end_of_its_table(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    drop = DropTable(table=tablet.table)
    submit = SubmitRequest(request=Request(id="r1", table=tablet.table))
    refused(await between(harness, submit, drop), "table")
    assert await harness.keys(tablet.table) == []
    for change in (wait, select):
        other = await harness.tablet_with()
        await submitted(harness, other.table)
        refused(await between(harness, change(other), DropTable(table=other.table)), "table")
        assert await harness.keys(other.table) == []
    other = await harness.tablet_with()
    await submitted(harness, other.table)
    applied(await harness.apply(wait(other)))
    applied(await harness.apply(move(other.table, RequestState.CANCELLING)))
    applied(await between(harness, cancel(other), DropTable(table=other.table)))
    assert await harness.keys(other.table) == []
    other = await harness.tablet_with()
    submit = SubmitRequest(request=Request(id="r1", table=other.table))
    applied(await between(harness, DropTable(table=other.table), submit))
    assert await harness.keys(other.table) == []


async def test_a_split_that_begins_meets_a_request(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    await submitted(harness, tablet.table)
    refused(await between(harness, split(tablet), select(tablet, "a")), "selected")
    other = await harness.tablet_with("a")
    await submitted(harness, other.table)
    refused(await between(harness, split(other), wait(other)), "waiting")
    third = await harness.tablet_with("a")
    await submitted(harness, third.table)
    refused(await between(harness, split(third), select(third)), "done")


async def test_a_request_and_a_job_meet_a_split_that_begins(harness: Harness) -> None:
    for change in (wait, select, job):
        tablet = await harness.tablet_with("a")
        await submitted(harness, tablet.table)
        refused(await between(harness, change(tablet), split(tablet)), "operation")
        found = await tablet_of(harness, tablet)
        assert (found.waiting, found.done, found.running) == ({}, frozenset(), {})


async def test_a_cancelled_part_meets_a_split_that_begins(harness: Harness) -> None:
    """Its done marker would be lost by the end of the split, which looks for none."""
    tablet = await harness.tablet_with("a")
    await submitted(harness, tablet.table)
    part = CancelRange(table=tablet.table, request="r1", range=KeyRange())
    applied(await harness.apply(part))
    refused(await between(harness, cancel(tablet), split(tablet)), "operation")
    assert (await tablet_of(harness, tablet)).done == frozenset()
    other = await harness.tablet_with("a")
    await submitted(harness, other.table)
    applied(await harness.apply(replace(part, table=other.table)))
    refused(await between(harness, split(other), cancel(other)), "done")


def job(tablet: TabletId) -> Change:
    return reserve(tablet, "s1", "a")


async def test_a_job_that_cuts_meets_the_drain(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    applied(await harness.add(tablet, file("l", b"a", b"b"), file("r", b"d", b"e")))
    applied(await harness.apply(reserve(tablet, "s1", "l")))
    applied(await harness.apply(split(tablet)))
    cut = replace(reserve(tablet, "s2", "r"), cuts_at=b"c")
    refused(await between(harness, cut, step(DRAIN, tablet)), "operation")
    applied(await between(harness, commit(tablet, "s1"), note(tablet)))
    applied(await harness.apply(step(CLOSE, tablet)))
    applied(await between(harness, end(tablet), end(tablet)))
    assert [files for _, _, files in await layout(harness, tablet.table)] == [
        ["out/s1-0.parquet"],
        ["r"],
        [],
    ]


async def test_an_add_meets_every_step_of_a_split(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    crossing, left, right = file("x", b"b", b"d"), file("l", b"a", b"b"), file("r", b"d", b"e")
    refused(await between(harness, add(harness, crossing, tablet), split(tablet)), "crosses")
    applied(await between(harness, add(harness, left, tablet), step(DRAIN, tablet)))
    refused(await between(harness, add(harness, right, tablet), step(CLOSE, tablet)), "operation")
    refused(await harness.apply(add(harness, left, tablet)), "exists")
    applied(await between(harness, end(tablet), note(tablet)))
    refused(
        await between(harness, add(harness, right, tablet), split(tablet, b"d", "op2")), "crosses"
    )


async def test_an_add_meets_the_end_of_a_merge(harness: Harness) -> None:
    table = await harness.table()
    left, right = TabletId(table.id, MIDDLE), TabletId(table.id, PLUS_INFINITY)
    applied(await harness.apply(merge(left, right)))
    closing = (step(CLOSE, left, right), end(left, right))
    addition = add(harness, file("l", b"a", b"b"), left)
    refused(await between(harness, addition, *closing), "tablet")
    assert await layout(harness, table.id) == [(None, PLUS_INFINITY, [])]


def add(harness: Harness, what: DataFile, tablet: TabletId) -> AddFiles:
    return AddFiles(table=tablet.table, call=call_id(harness.clock), files={tablet.end: (what,)})


async def everything(harness: Harness, tablet: TabletId) -> list[Change]:
    """Return changes, each of which is allowed when those before it have been made."""
    table = tablet.table
    right = TabletId(table, PLUS_INFINITY)
    return [
        SubmitRequest(request=Request(id="r1", table=table)),
        SubmitRequest(request=Request(id="r2", table=table)),
        wait(tablet),
        select(tablet, "a", "b"),
        reserve(tablet, "u1", "a", "b", request="r1"),
        commit(tablet, "u1", outputs=2),
        complete(tablet, "out/u1-0.parquet", "out/u1-1.parquet"),
        CancelRange(table=table, request="r1", range=KeyRange(MIDDLE + b"\x00")),
        cancel(right),
        move(table, RequestState.DONE_IN_PART),
        finish(tablet),
        finish(right),
        close(table),
        select(tablet, "out/u1-0.parquet", request="r2"),
        move(table, RequestState.CANCELLING, "r2"),
        cancel(tablet, "r2"),
        move(table, RequestState.CANCELLED, "r2"),
        close(table, "r2"),
        split(tablet, b"b", "op0"),
        abandon(tablet, name="op0"),
        split(tablet, b"c"),
        step(DRAIN, tablet),
        step(CLOSE, tablet),
        end(tablet),
        merge(tablet, right, "op2"),
        step(CLOSE, tablet, right, name="op2"),
        end(tablet, right, name="op2"),
    ]


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.APPLIED, Fault.LATE])
async def test_every_change_is_made_once_though_its_answer_is_lost(
    harness: Harness, fault: Fault
) -> None:
    tablet = await harness.tablet_with("a", "b")
    store, keyspace = harness.flaky()
    await store.store_id()
    for change in await everything(harness, tablet):
        keyspace.script = always_none if isinstance(change, ReserveFiles) else once(fault)
        outcome = applied(await store.apply(change))
        assert outcome.tries > 1 or isinstance(change, ReserveFiles), change
        # What has been forgotten may be forgotten again.
        assert not any(await keyspace.deliver()) or isinstance(change, CloseRequest), change
    assert await layout(harness, tablet.table) == [
        (None, b"c", ["out/u1-0.parquet", "out/u1-1.parquet"]),
        (b"c", PLUS_INFINITY, []),
    ]
    assert await harness.store.open_requests(tablet.table) == []
    states = [request.state.value for request in await harness.store.requests(tablet.table)]
    assert sorted(states) == ["cancelled", "done_in_part"]


async def always_none(_point: Point) -> Fault:
    return Fault.NONE


@pytest.mark.parametrize("harness", ["memory"], indirect=True)
@pytest.mark.parametrize("number", range(27))
async def test_a_foreign_write_makes_every_change_look_again(harness: Harness, number: int) -> None:
    tablet = await harness.tablet_with("a", "b")
    changes = await everything(harness, tablet)
    for change in changes[:number]:
        applied(await harness.apply(change))
    for key in sorted({*transaction_for(changes[number]).needs.watch}):
        twin = MemoryKeyspace(harness.clock)
        twin.values = deepcopy(harness.keyspace.values)  # type: ignore[attr-defined] - memory
        other = Harness("memory", twin, harness.clock)
        store, keyspace = other.flaky()
        await store.store_id()
        keyspace.script = meanwhile(lambda key=key, twin=twin: touched(twin, key))  # type: ignore[misc] - bound now
        outcome = applied(await store.apply(changes[number]))
        assert outcome.conflicts == 1, key


async def touched(keyspace: MemoryKeyspace, key: str) -> None:
    keyspace.values.touch(key)
