"""Ids of calls: the mark is looked for first, and tells what was accepted under it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import (
    AddFiles,
    DiscardFiles,
    ForgetGarbage,
    StampGarbage,
    SubmitRequest,
)
from common.metadata.keys import TableKeys
from common.metadata.store_values import CallKind
from common.model.request import Request
from common.model.tablet import PLUS_INFINITY, TabletId
from common.runtime import call_id
from tests.support.flaky import Fault, Point
from tests.support.store_harness import MIDDLE, Harness, applied, commit, file, refused, reserve

pytestmark = pytest.mark.anyio


def append(table: str, call: str, content: str, *paths: str, **fields: object) -> AddFiles:
    """Return an append of two files to the first tablet, and one to the last."""
    files = {
        MIDDLE: tuple(file(path) for path in paths[:2]),
        PLUS_INFINITY: tuple(file(path, b"x", b"y") for path in paths[2:]),
    }
    plain = {end: some for end, some in files.items() if some}
    return AddFiles(
        table=table,
        call=call,
        files=plain,
        kind=CallKind.APPEND,
        content=content,
        **fields,  # type: ignore[arg-type]  # any field
    )


async def test_a_repeated_call_is_told_what_the_first_one_brought(harness: Harness) -> None:
    table, call = await harness.table(), call_id(harness.clock)
    change = append(table.id, call, "30 rows", "a", "b", "c")
    assert await harness.store.call(table.id, call) is None
    first = applied(await harness.apply(change))
    mark = await harness.store.call(table.id, call)
    assert mark is not None
    assert (mark.kind, mark.content, mark.at_s) == (CallKind.APPEND, "30 rows", first.now_s)
    assert (mark.rows, mark.files, mark.size_bytes) == (30, 3, 300)
    assert mark.tablets == tuple(TabletId(table.id, end).text for end in (MIDDLE, PLUS_INFINITY))
    assert (first.call, first.repeated) == (mark, False)

    # The same rows, which a second try has cut and named otherwise.
    again = applied(await harness.apply(append(table.id, call, "30 rows", "d", "e")))

    assert (again.call, again.repeated) == (mark, True)
    tablets = await harness.store.read_range(table.id)
    assert [sorted(tablet.files) for tablet in tablets] == [["a", "b"], ["c"]]


async def test_a_call_from_before_a_rebuild_of_its_table_is_refused(harness: Harness) -> None:
    call = call_id(harness.clock)
    table = await harness.table(calls_since_s=harness.clock.now_s() + 1000.0)
    outcome = await harness.apply(append(table.id, call, "30 rows", "a"))
    assert "before the table was rebuilt or restored" in refused(outcome, "call-too-old").reason


async def test_an_id_stands_for_one_call(harness: Harness) -> None:
    table, call = await harness.table(), call_id(harness.clock)
    applied(await harness.apply(append(table.id, call, "30 rows", "a")))
    other = append(table.id, call, "31 rows", "d")
    refused(await harness.apply(other), "call-content")
    refused(await harness.apply(replace(other, kind=CallKind.ADD, content="")), "call-content")
    request = Request(id="r1", table=table.id)
    refused(await harness.apply(SubmitRequest(request=request, call=call)), "call-content")
    assert await harness.store.request(table.id, "r1") is None


async def test_the_call_of_a_request_leaves_its_mark(harness: Harness) -> None:
    table, call = await harness.table(), call_id(harness.clock)
    submit = SubmitRequest(request=Request(id="r1", table=table.id), call=call)
    made = applied(await harness.apply(submit))
    mark = await harness.store.call(table.id, call)
    assert mark is not None
    assert (mark.kind, mark.request, mark.at_s) == (CallKind.COMPACT, "r1", made.now_s)
    assert applied(await harness.apply(submit)).repeated
    refused(await harness.apply(append(table.id, call, "30 rows", "a")), "call-content")
    other = replace(submit, request=Request(id="r1", table=table.id, boost=3))
    refused(await harness.apply(other), "call-content")
    old = replace(submit, request=Request(id="r2", table=table.id), call="0190" + call[4:])
    refused(await harness.apply(old), "call-too-new" if call < "0190" else "call-too-old")


async def test_a_file_that_was_seen_long_ago_is_looked_at_again(harness: Harness) -> None:
    table = await harness.table()
    now_s = await harness.store.now_s()
    change = append(table.id, call_id(harness.clock), "x", "a", looked_s=now_s, look_max_s=60.0)
    old = replace(change, looked_s=now_s - 60.5)
    refused(await harness.apply(old), "look-too-old")
    applied(await harness.apply(change))
    # The mark is looked for first: the same call again is no matter of its files.
    assert applied(await harness.apply(old)).repeated


async def test_a_file_that_is_swept_while_its_writer_stands_still_is_not_added(
    harness: Harness,
) -> None:
    """A gateway that stood still between its reads and `EXEC`, for longer than any grace."""
    store, keyspace = harness.flaky()
    table = await harness.table()
    tablet, path = TabletId(table.id, MIDDLE), "_neve/append/a.parquet"
    now_s = await harness.store.now_s()
    change = append(table.id, call_id(harness.clock), "x", path, looked_s=now_s, look_max_s=0.3)
    slept = []

    async def script(point: Point) -> Fault:
        if point is Point.EXEC and not slept:
            slept.append(point)
            for other in (
                DiscardFiles(tablet=tablet, files={path: b"a"}),
                StampGarbage(table=table.id, paths=(path,)),
                ForgetGarbage(table=table.id, paths=(path,)),
            ):
                applied(await harness.apply(other))
            await harness.pass_time(0.5)
        return Fault.NONE

    keyspace.script = script
    refused(await store.apply(change), "look-too-old")
    assert await harness.store.call(table.id, change.call) is None


async def test_the_name_of_a_deleted_file_is_not_used_again_for_a_while(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    applied(await harness.apply(commit(tablet, "t1")))
    refused(await harness.add(tablet, file("a")), "replaced")
    own = "_neve/append/x.parquet"
    applied(await harness.apply(DiscardFiles(tablet=tablet, files={own: None})))
    table = await harness.store.table(tablet.table)
    assert table is not None
    forget = ForgetGarbage(
        table=table.id, paths=("a", "b", own, "none"), location=table.location, retired_s=1.0
    )
    applied(await harness.apply(forget))
    applied(await harness.apply(forget))

    refused(await harness.add(tablet, file("c"), file("a")), "retired")

    applied(await harness.add(tablet, file("none"), file(own)))
    await harness.pass_time(1.1)
    applied(await harness.add(tablet, file("a")))


async def test_a_name_is_retired_before_its_entry_goes(harness: Harness) -> None:
    """A collector that dies between the two leaves the entry, which bars the name as well."""
    tablet = await harness.tablet_with("a")
    table = await harness.store.table(tablet.table)
    assert table is not None
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    applied(await harness.apply(commit(tablet, "t1")))
    store, keyspace = harness.flaky()
    await store.store_id()
    execs = 0

    async def script(point: Point) -> Fault:
        nonlocal execs
        execs += point is Point.EXEC
        if point is Point.EXEC and execs == 2:
            refused(await harness.add(tablet, file("a")), "replaced")
            await harness.write(("HDEL", TableKeys(table.id).garbage, "a"))
            refused(await harness.add(tablet, file("a")), "retired")
        return Fault.NONE

    keyspace.script = script
    forget = ForgetGarbage(table=table.id, paths=("a",), location=table.location, retired_s=60.0)
    applied(await store.apply(forget))
    assert execs == 2
    assert await harness.store.garbage(table.id) == []


async def test_no_name_is_barred_if_the_operator_wants_none(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    applied(await harness.apply(commit(tablet, "t1")))
    applied(await harness.apply(ForgetGarbage(table=tablet.table, paths=("a",))))
    applied(await harness.add(tablet, file("a")))
