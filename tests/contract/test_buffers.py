"""Buffered rows: append, close, flush; what other changes require of them; unknown outcomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.errors import BrokenValueError
from common.metadata.changes import (
    AcceptGeneration,
    AddFiles,
    AppendGroup,
    AppendRows,
    ChangeTable,
    CloseSegment,
    DropTable,
    Outcome,
    Refused,
    RowSpan,
    Unknown,
    Window,
)
from common.metadata.codec.table import pack_rows, unpack_rows
from common.metadata.keys import BUFFERED_CALL_LIFE_S, BUFFERED_MARK_LIFE_S, TableKeys, TabletKeys
from common.metadata.keyspace import set_string
from common.metadata.store_values import CallKind, TableBuffer
from common.model.file import DataFile
from common.model.outcome import DroppedRows
from common.model.table import Column, TableSettings, TableState
from common.model.tablet import PLUS_INFINITY, TabletId
from common.runtime import call_id
from tests.contract.test_unknown import AT_EXEC, always, meanwhile, once
from tests.support.flaky import Fault, Point, no_faults
from tests.support.predictable import ManualClock
from tests.support.store_harness import MIDDLE, Harness, applied, commit, file, refused, reserve

pytestmark = pytest.mark.anyio

SPAN = RowSpan(key_min=b"a", key_max=b"b", version_min=b"5")


def rows_of(harness: Harness, tablet: TabletId, **fields: object) -> AppendRows:
    """Return a call with two rows for a tablet."""
    plain: dict[str, object] = {
        "table": tablet.table,
        "call": call_id(harness.clock),
        "content": "2:00",
        "message": pack_rows(b"two rows", 2),
        "rows": 2,
        "size_bytes": 100,
        "schema_id": 0,
        "schema": b"schema",
        "floor": b"5",
        "spans": {tablet.end: SPAN},
        "flush": call_id(harness.clock),
        "segment_bytes_max": 1000,
        "table_bytes_max": 5000,
    }
    return AppendRows(**(plain | fields))  # type: ignore[arg-type]  # any field


async def append(harness: Harness, tablet: TabletId, **fields: object) -> Outcome:
    """Append two rows to the buffer of a table."""
    return await harness.apply(rows_of(harness, tablet, **fields))


async def buffer_of(harness: Harness, tablet: TabletId) -> TableBuffer:
    """Return the buffer of a table."""
    (buffer,) = await harness.store.buffers([tablet.table])
    return buffer


async def close(harness: Harness, tablet: TabletId, number: int = 1) -> None:
    """Close a segment."""
    applied(await harness.apply(CloseSegment(table=tablet.table, number=number)))


async def flush(
    harness: Harness, tablet: TabletId, *files: DataFile, number: int = 1, calls: int = 1
) -> AddFiles:
    """Return the flush of a segment into files of a tablet."""
    buffer = await buffer_of(harness, tablet)
    segments = {segment.number: segment for segment in buffer.segments}
    present = segments.get(number)
    return AddFiles(
        table=tablet.table,
        call=present.flush if present else "none",
        files={tablet.end: files or (file("f", rows=2),)},
        kind=CallKind.APPEND,
        content="2:00",
        segment=number,
        segment_calls=calls,
        segment_closed_s=present.closed_s if present else 0.0,
    )


async def test_rows_are_buffered_until_a_flush_puts_files_in_their_place(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    first, second = rows_of(harness, tablet), rows_of(harness, tablet, message=pack_rows(b"x", 2))
    applied(await harness.apply(first))
    applied(await harness.apply(second))
    buffer = await buffer_of(harness, tablet)
    assert (buffer.rows, buffer.size_bytes, buffer.counts[1].calls) == (4, 200, 2)
    (rows,) = await harness.store.buffered_rows(tablet.table, [1])
    assert {call.decode(): unpack_rows("rows", stored) for call, stored in rows.items()} == {
        first.call: (b"two rows", 2),
        second.call: (b"x", 2),
    }
    change = await flush(harness, tablet, calls=2)
    refused(await harness.apply(change), "buffered")  # It is open.
    await close(harness, tablet)
    refused(await harness.apply(change), "buffered")  # It has another end than was read.
    change = await flush(harness, tablet, calls=2)
    refused(await harness.apply(replace(change, segment_calls=1)), "buffered")
    refused(await harness.apply(replace(change, call=call_id(harness.clock))), "gone")
    mark = applied(await harness.apply(change)).call
    assert mark is not None
    assert (mark.files, mark.rows) == (1, 2)
    assert await buffer_of(harness, tablet) == TableBuffer()
    assert await harness.store.buffered_rows(tablet.table, [1]) == [{}]
    flushed = await harness.store.tablet(tablet)
    assert flushed is not None
    assert (sorted(flushed.files), flushed.record.files) == (["f"], 1)


async def test_a_second_try_of_a_flush_adds_nothing(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    await close(harness, tablet)
    change = await flush(harness, tablet)
    applied(await harness.apply(change))
    zombie = replace(change, files={tablet.end: (file("g", rows=2),)})
    assert applied(await harness.apply(zombie)).repeated
    await harness.write(("DEL", TableKeys(tablet.table).call(change.call)))  # The mark expired.
    refused(await harness.apply(zombie), "gone")
    flushed = await harness.store.tablet(tablet)
    assert flushed is not None
    assert sorted(flushed.files) == ["f"]


async def test_a_segment_is_flushed_long_after_its_call_id_is_too_old(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    old = call_id(ManualClock(await harness.store.now_s() - 40 * 3600))
    applied(await append(harness, tablet, flush=old))
    await close(harness, tablet)
    applied(await harness.apply(await flush(harness, tablet)))


async def test_the_same_call_appends_once(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    change = rows_of(harness, tablet)
    applied(await harness.apply(change))
    assert applied(await harness.apply(change)).repeated
    refused(await harness.apply(replace(change, content="2:01")), "call-content")
    assert (await buffer_of(harness, tablet)).rows == 2
    await close(harness, tablet)
    applied(await harness.apply(await flush(harness, tablet)))
    assert applied(await harness.apply(change)).repeated  # Also after its rows were flushed.
    assert await buffer_of(harness, tablet) == TableBuffer()
    if harness.is_real:
        left_s = await harness.read(("PTTL", TableKeys(tablet.table).call(change.call))) / 1000
        assert BUFFERED_CALL_LIFE_S + 60 < left_s <= BUFFERED_MARK_LIFE_S


async def test_an_old_call_is_refused_because_its_mark_may_be_gone(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    now_s = await harness.store.now_s()
    old = call_id(ManualClock(now_s - BUFFERED_CALL_LIFE_S - 5))
    refused(await append(harness, tablet, call=old), "call-too-old")
    applied(await append(harness, tablet, call=call_id(ManualClock(now_s - 200))))


async def test_a_full_segment_is_closed_by_the_next_call(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    for _ in range(3):
        applied(await append(harness, tablet, segment_bytes_max=150))
    buffer = await buffer_of(harness, tablet)
    assert [segment.is_open for segment in buffer.segments] == [False, True]
    assert [buffer.counts[number].calls for number in (1, 2)] == [2, 1]
    assert len({segment.flush for segment in buffer.segments}) == 2
    applied(await harness.apply(await flush(harness, tablet, calls=2)))
    assert [segment.number for segment in (await buffer_of(harness, tablet)).segments] == [2]
    refused(await append(harness, tablet, table_bytes_max=100), "buffered")


async def test_numbers_of_segments_are_not_used_again(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    for number in (1, 2):
        applied(await append(harness, tablet))
        await close(harness, tablet, number)
        change = await flush(harness, tablet, file(f"f{number}", rows=2), number=number)
        applied(await harness.apply(change))
    assert await buffer_of(harness, tablet) == TableBuffer()


async def test_rows_of_another_schema_go_into_another_segment(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    table = await harness.store.table(tablet.table)
    assert table is not None
    wider = ChangeTable(
        table=table.id,
        settings_version=table.settings_version,
        schema=(*table.schema, Column("more", "int64")),
    )
    applied(await harness.apply(wider))
    refused(await append(harness, tablet), "schema")
    applied(await append(harness, tablet, schema_id=1, schema=b"wider"))
    buffer = await buffer_of(harness, tablet)
    assert [segment.is_open for segment in buffer.segments] == [False, True]
    assert [segment.schema for segment in buffer.segments] == [b"schema", b"wider"]


async def test_each_requirement_of_an_append_is_enforced(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    outside = RowSpan(key_min=b"a", key_max=b"z", version_min=b"5")
    refused(await append(harness, tablet, spans={tablet.end: outside}), "bounds")
    refused(await append(harness, tablet, spans={b"q": SPAN}), "tablet")
    refused(await append(harness, TabletId("tbl-none", MIDDLE)), "table")
    await harness.write(set_string(TabletKeys.of(tablet).purge, b"5"))
    refused(await append(harness, tablet), "purged")
    newer = replace(SPAN, version_min=b"6")
    applied(await append(harness, tablet, spans={tablet.end: newer}, floor=b"6"))
    filling = await harness.filling_table()
    refused(await append(harness, TabletId(filling.id, MIDDLE)), "table")
    assert (await buffer_of(harness, tablet)).rows == 2


async def test_a_paused_table_takes_rows_and_flushes_them(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    pause = ChangeTable(table=tablet.table, settings_version=1, state=TableState.PAUSED)
    applied(await harness.apply(pause))
    applied(await append(harness, tablet))
    await close(harness, tablet)
    applied(await harness.apply(await flush(harness, tablet)))


async def test_late_rows_are_taken_if_the_table_allows_them(harness: Harness) -> None:
    tablet = await harness.tablet_with(settings=TableSettings(allow_late_data=True))
    await harness.write(set_string(TabletKeys.of(tablet).purge, b"5"))
    applied(await append(harness, tablet))


# ------------------------------------------------------------------------------------------ Groups


def group_of(*calls: AppendRows, **fields: int) -> AppendGroup:
    """Return a change with several calls."""
    return AppendGroup(table=calls[0].table, calls=calls, **fields)


def answers(outcome: Outcome) -> list[str]:
    """Return what became of each call of a group: empty if it is made now, or `repeated`."""
    return [
        answer.code.value if isinstance(answer, Refused) else "repeated" * answer.repeated
        for answer in applied(outcome).answers
    ]


async def test_a_refused_call_refuses_only_itself(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    await harness.write(set_string(TabletKeys.of(tablet).purge, b"5"))
    newer = {"spans": {tablet.end: replace(SPAN, version_min=b"6")}, "floor": b"6"}
    done = rows_of(harness, tablet, **newer)
    applied(await harness.apply(done))
    first, last = (rows_of(harness, tablet, **newer) for _ in range(2))
    now_s = await harness.store.now_s()
    outside = RowSpan(key_min=b"a", key_max=b"z", version_min=b"6")
    group = group_of(
        first,
        rows_of(harness, tablet),
        rows_of(harness, tablet, **newer | {"spans": {tablet.end: outside}}),
        rows_of(harness, tablet, **newer | {"spans": {b"q": SPAN}}),
        rows_of(harness, tablet, schema_id=7, **newer),
        rows_of(harness, tablet, call=call_id(ManualClock(now_s - 400)), **newer),
        replace(done, content="2:01"),
        done,
        rows_of(harness, tablet, table_bytes_max=200, **newer),
        last,
    )
    expected = ["", "purged", "bounds", "tablet", "schema", "call-too-old", "call-content"]
    outcome = await harness.apply(group)
    assert answers(outcome) == [*expected, "repeated", "buffered", ""]
    buffer = await buffer_of(harness, tablet)
    assert (buffer.rows, buffer.size_bytes, buffer.counts[1].calls) == (6, 300, 3)
    (rows,) = await harness.store.buffered_rows(tablet.table, [1])
    assert {call.decode() for call in rows} == {done.call, first.call, last.call}
    refused_only = await harness.apply(group_of(rows_of(harness, tablet)))
    assert answers(refused_only) == ["purged"]


async def test_a_group_is_refused_by_a_store_that_went_back_in_time(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    change = group_of(rows_of(harness, tablet), generation=1)
    refused(await harness.apply(change), "generation")
    assert await buffer_of(harness, tablet) == TableBuffer()


async def test_a_call_that_is_twice_in_a_group_counts_once(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    call = rows_of(harness, tablet)
    other = replace(call, content="2:01")
    outcome = await harness.apply(group_of(call, other, call))
    assert answers(outcome) == ["", "call-content", "repeated"]
    assert (await buffer_of(harness, tablet)).counts[1].calls == 1


async def test_a_group_fills_segments_as_its_calls_would_alone(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    versions = [b"9", b"7", b"8", b"6", b"9"]
    calls = [
        rows_of(
            harness,
            tablet,
            segment_bytes_max=150,
            floor=version,
            spans={tablet.end: replace(SPAN, version_min=version)},
        )
        for version in versions
    ]
    applied(await harness.apply(calls[0]))
    assert answers(await harness.apply(group_of(*calls[1:]))) == [""] * 4
    buffer = await buffer_of(harness, tablet)
    assert [segment.is_open for segment in buffer.segments] == [False, False, True]
    assert [segment.floor for segment in buffer.segments] == [b"7", b"6", b"9"]
    assert [buffer.counts[number].calls for number in (1, 2, 3)] == [2, 2, 1]
    stored = await harness.store.buffered_rows(tablet.table, [1, 2, 3])
    assert [len(rows) for rows in stored] == [2, 2, 1]


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_each_call_of_a_group_is_made_once(harness: Harness, fault: Fault) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))  # So that no call opens a segment, which all watch.
    calls = [rows_of(harness, tablet) for _ in range(3)]
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = once(fault)
    outcome = await store.apply(group_of(*calls))
    assert applied(outcome).tries == 2
    assert answers(outcome) == ["repeated" if fault is Fault.APPLIED else ""] * 3
    assert not any(await keyspace.deliver())
    assert (await buffer_of(harness, tablet)).counts[1].calls == 4


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_calls_of_a_group_of_unknown_outcome_are_sent_again_one_by_one(
    harness: Harness, fault: Fault
) -> None:
    """Each of them counts once, whether the group was made, and whenever its `EXEC` arrives."""
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))  # So that no call opens a segment, which all watch.
    calls = [rows_of(harness, tablet) for _ in range(3)]
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = always(fault)
    assert isinstance(await store.apply(group_of(*calls)), Unknown)
    keyspace.script = no_faults
    applied(await store.apply(calls[1]))
    other = rows_of(harness, tablet)
    applied(await store.apply(group_of(calls[2], other)))
    assert not any(await keyspace.deliver())
    applied(await store.apply(calls[0]))
    assert (await buffer_of(harness, tablet)).counts[1].calls == 5
    assert answers(await store.apply(group_of(*calls, other))) == ["repeated"] * 4


async def test_a_refusal_after_a_lost_answer_says_so(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    store, keyspace = harness.flaky()
    await store.store_id()

    async def script(point: Point) -> Fault:
        if point is Point.EXEC:
            await harness.write(set_string(TabletKeys.of(tablet).purge, b"5"))
            return Fault.LATE
        return Fault.NONE

    keyspace.script = script
    (answer,) = applied(await store.apply(group_of(rows_of(harness, tablet)))).answers
    assert isinstance(answer, Refused)
    assert (answer.code.value, answer.sent) == ("purged", True)
    assert not any(await keyspace.deliver())
    assert await buffer_of(harness, tablet) == TableBuffer()


# ------------------------------------------------------------------------------------ Dropped rows


DROPPED = DroppedRows(spans=((b"a", b"b"),), version_max=b"5")


async def dropping(harness: Harness, tablet: TabletId, dropped: DroppedRows = DROPPED) -> Outcome:
    """Commit an attempt that has dropped rows."""
    applied(await harness.apply(reserve(tablet, "t1", "old")))
    return await harness.apply(replace(commit(tablet, "t1"), dropped=dropped))


@pytest.mark.parametrize(("floor", "code"), [(b"4", "resurface"), (b"5", "resurface"), (b"6", "")])
async def test_rows_are_dropped_past_the_oldest_buffered_row_only(
    harness: Harness, floor: bytes, code: str
) -> None:
    tablet = await harness.tablet_with("old")
    span = replace(SPAN, version_min=floor)
    applied(await append(harness, tablet, spans={tablet.end: span}, floor=floor))
    outcome = await dropping(harness, tablet)
    if not code:
        applied(outcome)
        return
    refused(outcome, code)
    await close(harness, tablet)
    low = file("f", b"c", b"d", rows=2, version_min=floor)
    applied(await harness.apply(await flush(harness, tablet, low)))
    applied(await harness.apply(replace(commit(tablet, "t1"), dropped=DROPPED)))


async def test_rows_of_unknown_version_keep_all_dead_rows(harness: Harness) -> None:
    tablet = await harness.tablet_with("old")
    span = replace(SPAN, version_min=None)
    applied(await append(harness, tablet, spans={tablet.end: span}, floor=b""))
    applied(await append(harness, tablet))
    refused(await dropping(harness, tablet), "resurface")


async def test_a_lower_version_lowers_the_floor(harness: Harness) -> None:
    tablet = await harness.tablet_with("old")
    for version in (b"9", b"7", b"8"):
        span = replace(SPAN, version_min=version)
        applied(await append(harness, tablet, spans={tablet.end: span}, floor=version))
    (segment,) = (await buffer_of(harness, tablet)).segments
    assert segment.floor == b"7"
    refused(await dropping(harness, tablet, replace(DROPPED, version_max=b"7")), "resurface")


async def test_an_append_in_the_middle_of_a_commit_that_drops_rows_is_seen(
    harness: Harness,
) -> None:
    tablet = await harness.tablet_with("old")
    newer = {tablet.end: replace(SPAN, version_min=b"9")}
    applied(await append(harness, tablet, spans=newer, floor=b"9"))
    applied(await harness.apply(CloseSegment(table=tablet.table, number=1)))
    applied(await harness.apply(reserve(tablet, "t1", "old")))
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = meanwhile(lambda: append(harness, tablet))
    refused(await store.apply(replace(commit(tablet, "t1"), dropped=DROPPED)), "resurface")


async def test_a_commit_that_drops_rows_in_the_middle_of_an_append_is_seen(
    harness: Harness,
) -> None:
    tablet = await harness.tablet_with("old")
    span = replace(SPAN, version_min=b"9")
    applied(await append(harness, tablet, spans={tablet.end: span}, floor=b"9"))
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = meanwhile(lambda: dropping(harness, tablet))
    refused(await store.apply(rows_of(harness, tablet)), "purged")
    assert (await buffer_of(harness, tablet)).rows == 2


async def test_a_flush_holds_the_answer_of_the_append_though_a_merge_raised_the_watermark(
    harness: Harness,
) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    await close(harness, tablet)
    await harness.write(set_string(TabletKeys.of(tablet).purge, b"8"))  # That of its neighbour.
    refused(await harness.add(tablet, file("late")), "purged")
    applied(await harness.apply(await flush(harness, tablet)))
    flushed = await harness.store.tablet(tablet)
    assert flushed is not None
    assert ("late", "true") in flushed.files["f"].tags


# ----------------------------------------------------------------------- Changes that need all rows


async def test_a_window_is_not_replaced_while_rows_are_buffered(harness: Harness) -> None:
    schema = (Column("at", "timestamp[us, tz=UTC]"),)
    table = await harness.table(
        splits=(), key=(), version_column=None, time_column="at", schema=schema
    )
    tablet = TabletId(table.id, PLUS_INFINITY)
    bag = {"key_min": None, "key_max": None, "version_min": None, "version_max": None}
    times = {"time_min_s": 10.0, "time_max_s": 20.0}
    applied(await append(harness, tablet, spans={}))
    day = AddFiles(
        table=table.id,
        call=call_id(harness.clock),
        files={tablet.end: (file("w", **bag, **times),)},  # type: ignore[arg-type]  # any field
        window=Window(0.0, 100.0, 1),
    )
    refused(await harness.apply(day), "buffered")
    await close(harness, tablet)
    made = file("f", rows=2, **bag, **times)  # type: ignore[arg-type]  # any field
    applied(await harness.apply(await flush(harness, tablet, made)))
    assert applied(await harness.apply(day)).replaced == 1


async def test_a_drop_that_keeps_files_waits_for_the_flush(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    refused(await harness.apply(DropTable(table=tablet.table)), "buffered")
    await close(harness, tablet)
    applied(await harness.apply(await flush(harness, tablet)))
    applied(await harness.apply(DropTable(table=tablet.table)))
    assert await harness.keys(tablet.table) == []


async def test_an_append_in_the_middle_of_a_drop_is_seen(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = meanwhile(lambda: append(harness, tablet))
    refused(await store.apply(DropTable(table=tablet.table)), "buffered")


async def test_a_drop_with_files_leaves_no_key(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    for _ in range(3):
        applied(await append(harness, tablet, segment_bytes_max=100))
    outcome = applied(await harness.apply(DropTable(table=tablet.table, delete_files=True)))
    assert not outcome.complete  # Files of the service wait for the collector.
    refused(await append(harness, tablet), "table")
    garbage = TableKeys(tablet.table).garbage
    await harness.write(("DEL", garbage))
    applied(await harness.apply(DropTable(table=tablet.table, delete_files=True)))
    assert await harness.keys(tablet.table) == []


async def test_no_row_joins_a_segment_that_was_open_when_the_store_lost_changes(
    harness: Harness,
) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    accept = AcceptGeneration(table=tablet.table, generation=7, lost=True)
    applied(await harness.apply(accept))
    applied(await append(harness, tablet))
    buffer = await buffer_of(harness, tablet)
    assert [segment.is_open for segment in buffer.segments] == [False, True]
    assert [buffer.counts[number].calls for number in (1, 2)] == [1, 1]


async def test_a_store_that_lost_changes_takes_no_rows_and_flushes_none(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    await close(harness, tablet)
    refused(await append(harness, tablet, generation=7), "generation")
    change = await flush(harness, tablet)
    refused(await harness.apply(replace(change, generation=7)), "generation")
    applied(await append(harness, tablet))
    open_segment = CloseSegment(table=tablet.table, number=2, generation=7)
    refused(await harness.apply(open_segment), "generation")


# --------------------------------------------------------------------------------- Unknown outcomes


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_an_append_is_made_once(harness: Harness, fault: Fault) -> None:
    tablet = await harness.tablet_with()
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = once(fault)
    assert applied(await store.apply(rows_of(harness, tablet))).tries == 2
    assert not any(await keyspace.deliver())
    buffer = await buffer_of(harness, tablet)
    assert (buffer.rows, buffer.counts[1].calls) == (2, 1)


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_a_flush_is_made_once(harness: Harness, fault: Fault) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    await close(harness, tablet)
    change = await flush(harness, tablet)
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = once(fault)
    applied(await store.apply(change))
    assert not any(await keyspace.deliver())
    flushed = await harness.store.tablet(tablet)
    assert flushed is not None
    assert (sorted(flushed.files), flushed.record.files) == (["f"], 1)
    assert await buffer_of(harness, tablet) == TableBuffer()


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_a_segment_is_closed_once(harness: Harness, fault: Fault) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = once(fault)
    applied(await store.apply(CloseSegment(table=tablet.table, number=1)))
    assert not any(await keyspace.deliver())
    (segment,) = (await buffer_of(harness, tablet)).segments
    assert not segment.is_open


async def test_an_append_that_arrives_after_the_segment_was_closed_is_not_made(
    harness: Harness,
) -> None:
    """Its `EXEC` is late: by then the segment is a closed input, which must not change."""
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = once(Fault.LATE)
    applied(await store.apply(rows_of(harness, tablet)))  # The second try was made.
    await close(harness, tablet)
    assert not any(await keyspace.deliver())
    assert (await buffer_of(harness, tablet)).counts[1].calls == 2


async def test_a_flush_of_two_tries_at_once_is_made_once(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    await close(harness, tablet)
    change = await flush(harness, tablet)
    other = replace(change, files={tablet.end: (file("g", rows=2),)})
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = meanwhile(lambda: harness.apply(other))
    assert applied(await store.apply(change)).repeated
    flushed = await harness.store.tablet(tablet)
    assert flushed is not None
    assert sorted(flushed.files) == ["g"]


def test_damaged_rows_are_noticed() -> None:
    stored = pack_rows(b"x" * 1000, 3)
    assert unpack_rows("rows", stored) == (b"x" * 1000, 3)
    for at in range(len(stored)):
        damaged = bytes([*stored[:at], stored[at] ^ 1, *stored[at + 1 :]])
        with pytest.raises(BrokenValueError):
            unpack_rows("rows", damaged)
    for length in (0, 5, 20):
        with pytest.raises(BrokenValueError):
            unpack_rows("rows", stored[:length])
