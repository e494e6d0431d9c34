"""Changes of a buffer whose answers are lost, and late ones that meet what was made meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import (
    AcceptGeneration,
    AddFiles,
    Applied,
    CloseSegment,
    DropTable,
    SubmitRequest,
    Unknown,
    Window,
)
from common.metadata.keys import TableKeys
from common.metadata.store import TabletStore
from common.metadata.store_values import TableBuffer
from common.model.request import Request
from common.model.table import Column
from common.model.tablet import PLUS_INFINITY, TabletId
from common.runtime import call_id
from tests.contract.test_buffers import DROPPED, SPAN, append, buffer_of, close, flush, rows_of
from tests.contract.test_unknown import AT_EXEC, always, once
from tests.support.flaky import Fault, FlakyKeyspace
from tests.support.store_harness import Harness, applied, commit, file, refused, reserve

pytestmark = pytest.mark.anyio


async def with_fault(harness: Harness, fault: Fault) -> tuple[TabletStore, FlakyKeyspace]:
    """Return a store on the same keys whose connection has one fault, at the next `EXEC`."""
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = once(fault)
    return store, keyspace


@pytest.mark.parametrize("fault", AT_EXEC)
@pytest.mark.parametrize("bytes_max", [1000, 100])
async def test_a_later_append_is_made_once(harness: Harness, fault: Fault, bytes_max: int) -> None:
    """Into the open segment, and into a new one because that is full."""
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    store, keyspace = await with_fault(harness, fault)
    applied(await store.apply(rows_of(harness, tablet, segment_bytes_max=bytes_max)))
    assert not any(await keyspace.deliver())
    buffer = await buffer_of(harness, tablet)
    assert (buffer.rows, sum(counts.calls for counts in buffer.counts.values())) == (4, 2)
    assert [segment.is_open for segment in buffer.segments] == (
        [True] if bytes_max == 1000 else [False, True]
    )


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_a_floor_is_lowered_whatever_answer_is_lost(harness: Harness, fault: Fault) -> None:
    tablet = await harness.tablet_with("old")
    span = {tablet.end: replace(SPAN, version_min=b"9")}
    applied(await append(harness, tablet, spans=span, floor=b"9"))
    store, keyspace = await with_fault(harness, fault)
    applied(await store.apply(rows_of(harness, tablet)))
    assert not any(await keyspace.deliver())
    (segment,) = (await buffer_of(harness, tablet)).segments
    assert segment.floor == b"5"


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_dead_rows_are_dropped_once_beside_newer_buffered_rows(
    harness: Harness, fault: Fault
) -> None:
    tablet = await harness.tablet_with("old")
    span = {tablet.end: replace(SPAN, version_min=b"9")}
    applied(await append(harness, tablet, spans=span, floor=b"9"))
    applied(await harness.apply(reserve(tablet, "t1", "old")))
    store, keyspace = await with_fault(harness, fault)
    applied(await store.apply(replace(commit(tablet, "t1"), dropped=DROPPED)))
    assert not any(await keyspace.deliver())
    refused(await append(harness, tablet), "purged")
    assert (await buffer_of(harness, tablet)).rows == 2


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_a_drop_leaves_no_buffer_whatever_answer_is_lost(
    harness: Harness, fault: Fault
) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    await close(harness, tablet)
    applied(await harness.apply(await flush(harness, tablet)))
    applied(await append(harness, tablet))
    store, keyspace = await with_fault(harness, fault)
    drop = DropTable(table=tablet.table, delete_files=True)
    await store.apply(drop)
    await harness.write(("DEL", TableKeys(tablet.table).garbage))
    applied(await harness.apply(drop))
    assert not any(await keyspace.deliver())
    assert await harness.keys(tablet.table) == []


@pytest.mark.parametrize("what", ["append", "flush", "close"])
async def test_a_change_of_a_buffer_that_arrives_after_the_drop_is_not_made(
    harness: Harness, what: str
) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    if what == "flush":
        await close(harness, tablet)
    changes = {
        "append": rows_of(harness, tablet),
        "flush": await flush(harness, tablet),
        "close": CloseSegment(table=tablet.table, number=1),
    }
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = always(Fault.LATE)
    assert isinstance(await store.apply(changes[what]), Unknown)
    drop = DropTable(table=tablet.table, delete_files=True)
    await harness.apply(drop)
    await harness.write(("DEL", TableKeys(tablet.table).garbage))
    applied(await harness.apply(drop))
    assert not any(await keyspace.deliver())
    assert await harness.keys(tablet.table) == []


async def test_a_close_that_arrives_after_the_flush_closes_no_other_segment(
    harness: Harness,
) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = always(Fault.LATE)
    change = CloseSegment(table=tablet.table, number=1)
    assert isinstance(await store.apply(change), Unknown)
    await close(harness, tablet)
    applied(await harness.apply(await flush(harness, tablet)))
    applied(await append(harness, tablet))
    assert not any(await keyspace.deliver())
    (segment,) = (await buffer_of(harness, tablet)).segments
    assert (segment.number, segment.is_open) == (2, True)


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_an_older_state_is_accepted_once(harness: Harness, fault: Fault) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    store, keyspace = await with_fault(harness, fault)
    applied(await store.apply(AcceptGeneration(table=tablet.table, generation=7, lost=True)))
    applied(await append(harness, tablet))
    assert not any(await keyspace.deliver())
    buffer = await buffer_of(harness, tablet)
    assert [segment.is_open for segment in buffer.segments] == [False, True]


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_a_window_is_replaced_once_after_the_flush(harness: Harness, fault: Fault) -> None:
    schema = (Column("at", "timestamp[us, tz=UTC]"),)
    table = await harness.table(
        splits=(), key=(), version_column=None, time_column="at", schema=schema
    )
    tablet = TabletId(table.id, PLUS_INFINITY)
    bag = {"key_min": None, "key_max": None, "version_min": None, "version_max": None}
    times = {"time_min_s": 10.0, "time_max_s": 20.0}
    applied(await append(harness, tablet, spans={}))
    await close(harness, tablet)
    made = file("f", rows=2, **bag, **times)  # type: ignore[arg-type]  # any field
    applied(await harness.apply(await flush(harness, tablet, made)))
    day = AddFiles(
        table=table.id,
        call=call_id(harness.clock),
        files={tablet.end: (file("w", **bag, **times),)},  # type: ignore[arg-type]  # any field
        window=Window(0.0, 100.0, 1),
    )
    store, keyspace = await with_fault(harness, fault)
    applied(await store.apply(day))
    applied(await append(harness, tablet, spans={}))
    assert not any(await keyspace.deliver())
    stored = await harness.store.tablet(tablet)
    assert stored is not None
    assert sorted(stored.files) == ["w"]
    assert (await buffer_of(harness, tablet)).rows == 2


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_a_request_is_stored_once_after_the_flush(harness: Harness, fault: Fault) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    await close(harness, tablet)
    applied(await harness.apply(await flush(harness, tablet)))
    assert await buffer_of(harness, tablet) == TableBuffer()
    store, keyspace = await with_fault(harness, fault)
    now_s = await harness.store.now_s()
    submit = SubmitRequest(request=Request(id="r1", table=tablet.table), flushed_s=now_s)
    outcome = await store.apply(submit)
    assert isinstance(outcome, Applied)
    assert not any(await keyspace.deliver())
    assert [request.id for request in await harness.store.open_requests(tablet.table)] == ["r1"]
