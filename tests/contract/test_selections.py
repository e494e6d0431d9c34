"""A request in one tablet: wait, select, rewrite, complete, cancel, finish."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import ChangeTable, DropHold
from common.metadata.codec.tablet import OPERATION
from common.metadata.keys import TabletKeys
from common.metadata.keyspace import hset, set_string
from common.model.outcome import AttemptEnd
from common.model.request import KeyRange, RequestState
from common.model.table import TableSettings, TableState
from common.model.tablet import Operation, OperationKind, OperationStep, TabletId
from tests.support.requests import (
    cancel,
    complete,
    finish,
    move,
    select,
    submitted,
    tablet_of,
    wait,
)
from tests.support.store_harness import Harness, applied, commit, file, refused, release, reserve

pytestmark = pytest.mark.anyio


async def test_from_waiting_to_done(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b", "c", "d")
    await submitted(harness, tablet.table)
    applied(await harness.apply(reserve(tablet, "s1", "d")))
    refused(await harness.apply(select(tablet, "a", "b")), "running")
    waited = applied(await harness.apply(wait(tablet)))
    applied(await harness.apply(wait(tablet)))
    assert (await tablet_of(harness, tablet)).waiting == {"r1": waited.now_s}
    refused(await harness.apply(reserve(tablet, "s2", "c")), "waiting")
    applied(await harness.apply(release(tablet, "s1")))

    made = applied(await harness.apply(select(tablet, "a", "b", "c", shown=("d",))))
    found = await tablet_of(harness, tablet)
    assert found.selection is not None
    assert (found.selection.files, found.selection.since_s) == (("a", "b", "c"), made.now_s)
    assert found.waiting == {}
    refused(await harness.apply(reserve(tablet, "s3", "c", "d")), "selected")

    applied(await harness.apply(reserve(tablet, "u1", "a", "b", request="r1")))
    applied(await harness.apply(commit(tablet, "u1")))
    found = await tablet_of(harness, tablet)
    assert found.selection is not None
    assert found.selection.files == ("c", "out/u1-0.parquet")
    assert (found.selection.results, found.selection.completed_jobs) == (("out/u1-0.parquet",), 1)
    assert found.files["out/u1-0.parquet"].request == "r1"
    applied(await harness.apply(reserve(tablet, "u2", *found.selection.files, request="r1")))
    applied(await harness.apply(commit(tablet, "u2")))
    found = await tablet_of(harness, tablet)
    assert (found.selection, found.done) == (None, {"r1"})
    assert sorted(found.files) == ["d", "out/u2-0.parquet"]
    refused(await harness.apply(wait(tablet)), "done")
    refused(await harness.apply(select(tablet, "d")), "done")


async def test_a_selection_of_which_nothing_is_left_is_done(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    await submitted(harness, tablet.table)
    applied(await harness.apply(select(tablet, "a")))
    applied(await harness.apply(reserve(tablet, "u1", "a", request="r1")))
    applied(await harness.apply(commit(tablet, "u1", outputs=0)))
    found = await tablet_of(harness, tablet)
    assert (found.selection, found.done, found.files) == (None, {"r1"}, {})


async def test_a_user_job_takes_files_of_its_own_selection_only(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    await submitted(harness, tablet.table)
    applied(await harness.apply(select(tablet, "a")))
    for inputs, request in ((("a",), "r2"), (("a", "b"), "r1"), (("b",), "r1")):
        change = reserve(tablet, "u1", *inputs, request=request)
        refused(await harness.apply(change), "selected")


async def test_each_condition_of_waiting_and_selecting_is_enforced(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    other = TabletId(tablet.table, b"q")
    keys = TabletKeys.of(tablet)
    for change in (wait(tablet), select(tablet, "a")):
        refused(await harness.apply(change), "request")
        refused(await harness.apply(replace(change, tablet=TabletId("tbl-none", b"q"))), "table")
    await submitted(harness, tablet.table)
    await submitted(harness, tablet.table, "r2", range=KeyRange(b"x"))
    await submitted(harness, tablet.table, "r3")
    applied(await harness.apply(move(tablet.table, RequestState.CANCELLING, "r3")))
    operation = Operation(OperationKind.SPLIT, "op1", OperationStep.CUT, b"c")
    for change in (wait(tablet), select(tablet, "a")):
        refused(await harness.apply(replace(change, tablet=other)), "tablet")
        refused(await harness.apply(replace(change, request="r2")), "range")
        refused(await harness.apply(replace(change, request="r3")), "request")
        await harness.write(set_string(keys.operation, OPERATION.pack(operation)))
        refused(await harness.apply(change), "operation")
        await harness.write(("DEL", keys.operation))
    refused(await harness.apply(select(tablet, "a", shown=("gone",))), "gone")
    strange = replace(select(tablet, "a"), shown=("b",))
    refused(await harness.apply(strange), "files")
    assert (await tablet_of(harness, tablet)).selection is None


async def test_requests_take_turns(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    await submitted(harness, tablet.table)
    await submitted(harness, tablet.table, "r2")
    applied(await harness.apply(reserve(tablet, "s1", "a")))
    applied(await harness.apply(wait(tablet)))
    applied(await harness.apply(wait(tablet, "r2")))
    applied(await harness.apply(commit(tablet, "s1")))
    applied(await harness.apply(select(tablet, "b")))
    assert (await tablet_of(harness, tablet)).waiting == {}, "of every request"
    refused(await harness.apply(wait(tablet, "r2")), "selected")
    refused(await harness.apply(select(tablet, "b", request="r2")), "selected")
    applied(await harness.apply(reserve(tablet, "s2", "out/s1-0.parquet")))


async def test_an_open_file_is_never_chosen(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    applied(await harness.add(tablet, file("growing", open=True)))
    await submitted(harness, tablet.table)
    await submitted(harness, tablet.table, "r2")
    applied(await harness.apply(select(tablet, "a", "growing")))
    found = await tablet_of(harness, tablet)
    assert found.selection is not None
    assert found.selection.files == ("a",)
    applied(await harness.apply(reserve(tablet, "u1", "a", request="r1")))
    applied(await harness.apply(commit(tablet, "u1")))
    applied(await harness.apply(select(tablet, "growing", request="r2")))
    found = await tablet_of(harness, tablet)
    assert (found.selection, found.done) == (None, {"r1", "r2"})


async def test_nothing_chosen_is_done_and_leaves_the_other_s_marker(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    await submitted(harness, tablet.table)
    await submitted(harness, tablet.table, "r2")
    applied(await harness.apply(wait(tablet)))
    applied(await harness.apply(wait(tablet, "r2")))
    applied(await harness.apply(select(tablet, shown=("a",))))
    found = await tablet_of(harness, tablet)
    assert ([*found.waiting], found.done, found.selection) == (["r2"], {"r1"}, None)


async def test_several_outputs_are_completed_when_the_planner_says_so(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b", "c")
    await submitted(harness, tablet.table)
    refused(await harness.apply(complete(tablet, "a")), "selected")
    refused(await harness.apply(complete(TabletId(tablet.table, b"q"), "a")), "tablet")
    refused(await harness.apply(complete(TabletId("tbl-none", b"q"), "a")), "table")
    applied(await harness.apply(select(tablet, "a", "b", "c")))
    refused(await harness.apply(complete(tablet, "a", "b", "c")), "results")
    applied(await harness.apply(reserve(tablet, "u1", "a", "b", request="r1")))
    applied(await harness.apply(commit(tablet, "u1", outputs=2)))
    outputs = ("out/u1-0.parquet", "out/u1-1.parquet")
    refused(await harness.apply(complete(tablet, *outputs)), "selected")
    refused(await harness.apply(complete(tablet, "c", *outputs)), "results")
    applied(await harness.apply(reserve(tablet, "u2", "c", request="r1")))
    refused(await harness.apply(complete(tablet, "c", *outputs)), "running")
    applied(await harness.apply(commit(tablet, "u2")))
    every = ("out/u2-0.parquet", *outputs)
    refused(await harness.apply(complete(tablet, *every, request="r2")), "selected")
    applied(await harness.apply(complete(tablet, *every)))
    applied(await harness.apply(complete(tablet, *every)))
    found = await tablet_of(harness, tablet)
    assert (found.selection, found.done, found.record.selected) == (None, {"r1"}, False)
    assert sorted(found.files) == sorted(every)


async def test_cancelling_stops_running_jobs(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b", "c", "d")
    await submitted(harness, tablet.table)
    applied(await harness.apply(select(tablet, "a", "b", "c")))
    applied(await harness.apply(reserve(tablet, "u1", "a", request="r1")))
    applied(await harness.apply(reserve(tablet, "u2", "b", request="r1")))
    applied(await harness.apply(reserve(tablet, "s1", "d")))
    refused(await harness.apply(cancel(tablet)), "request")
    refused(await harness.apply(cancel(tablet, "r9")), "request")
    applied(await harness.apply(move(tablet.table, RequestState.CANCELLING)))
    for _ in range(2):
        applied(await harness.apply(cancel(tablet)))
    found = await tablet_of(harness, tablet)
    assert ([*found.running], found.selection, found.done) == (["s1"], None, frozenset())
    assert sorted(found.files) == ["a", "b", "c", "d"]
    garbage = [each.path for each in await harness.store.garbage(tablet.table)]
    assert garbage == [f"out/u{n}-{m}.parquet" for n in (1, 2) for m in (0, 1)]
    refused(await harness.apply(commit(tablet, "u1")), "cancelled")
    outcome = await harness.store.outcome(tablet.table, "u2")
    assert outcome is not None
    assert (outcome.end, outcome.cause) == (AttemptEnd.CANCELLED, "request r1 was cancelled")
    ends = {each.attempt: each.end for each in await harness.store.history(tablet.table)}
    assert ends == {"u1": "cancelled", "u2": "cancelled"}
    changes = await harness.store.changes({tablet.table: "0-0"}, block_s=0)
    told = [(change.what, change.attempt, change.request) for change in changes][-3:]
    assert told == [("release", "u1", "r1"), ("release", "u2", "r1"), ("cancel", None, "r1")]
    refused(await harness.apply(reserve(tablet, "u3", "c", request="r1")), "selected")
    applied(await harness.apply(cancel(TabletId(tablet.table, b"q"))))


async def test_a_released_user_job_leaves_the_hold(harness: Harness) -> None:
    settings = TableSettings(hold_expiry_s=0.0)
    tablet = await harness.tablet_with("a", settings=settings)
    await submitted(harness, tablet.table)
    applied(await harness.apply(select(tablet, "a")))
    applied(await harness.apply(reserve(tablet, "u1", "a", request="r1")))
    refused(await harness.apply(DropHold(tablet=tablet)), "hold")
    applied(await harness.apply(release(tablet, "u1", AttemptEnd.CANCELLED)))
    found = await tablet_of(harness, tablet)
    assert found.selection is not None
    assert found.record.failures == 0
    applied(await harness.apply(DropHold(tablet=tablet)))
    applied(await harness.apply(wait(tablet)))
    applied(await harness.apply(select(tablet, "a")))


async def test_markers_are_finished_also_where_the_table_is_paused(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", splits=())
    await submitted(harness, tablet.table)
    pause = ChangeTable(table=tablet.table, settings_version=1, state=TableState.PAUSED)
    applied(await harness.apply(pause))
    applied(await harness.apply(wait(tablet)))
    applied(await harness.apply(select(tablet)))
    applied(await harness.apply(move(tablet.table, RequestState.DONE)))
    applied(await harness.apply(finish(tablet)))
    found = await tablet_of(harness, tablet)
    assert found.done == frozenset()
    version = found.record.version
    applied(await harness.apply(finish(tablet)))
    assert (await tablet_of(harness, tablet)).record.version == version


async def test_a_done_marker_without_a_request_is_finished(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    keys = TabletKeys.of(tablet)
    await harness.write(("SADD", keys.done, "r9"), hset(keys.record, {"d": 1}))
    applied(await harness.apply(finish(tablet, "r9")))
    assert (await tablet_of(harness, tablet)).done == frozenset()
