"""Buffered rows: append the rows of a call to a table's buffer, and close a segment of it.

    append rows      into the open segment; the first call opens one, a call after a full one too
    close a segment  from now on it never changes, and is the input of a flush
    flush            `AddFiles` with a segment: files in and segment out, in one transaction

A table has one buffer, which no split or merge touches: the flush cuts its rows by the tablets that
exist then. Each segment has a floor, the lowest version of its rows. A commit that drops dead rows
requires that no floor is as low as the highest dropped version (`refused_by_floor`), so a row that
was accepted above the watermark may still come in at its flush.

Mark of an append: `call:<id>`, for a quarter of an hour. `docs/design/0018-buffered-ingest.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from common.metadata.changes.files import (
    call_seen,
    leave_call_mark,
    refused_call,
    refused_other_content,
)
from common.metadata.changes.protocol import (
    Applied,
    Decision,
    Guarded,
    Needs,
    NoWrite,
    Seen,
    Transaction,
    Write,
    bounds_seen,
    buffer_segments,
    segment_stored,
    segments_closed,
    table_changed,
    table_seen,
    tablet_gone,
    transaction_of,
    whole_table,
)
from common.metadata.changes.tables import may_fill
from common.metadata.codec.table import (
    LAST_SEGMENT,
    count_fields,
    unpack_buffer,
    unpack_segments,
)
from common.metadata.keys import BUFFERED_CALL_LIFE_S, BUFFERED_MARK_LIFE_S, TableKeys, TabletKeys
from common.metadata.keyspace import Command, get, hgetall, hincrby, hset, pexpire
from common.metadata.store_values import BufferSegment, CallKind, CallMark, TableBuffer
from common.model.outcome import Refusal, RefusalCode
from common.model.table import Table
from common.model.tablet import TabletId
from common.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpan:
    """What the rows of a call for one tablet span."""

    key_min: bytes
    key_max: bytes
    version_min: bytes | None = None
    """None: unknown, or the table has no versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRows(Guarded):
    """Append the rows of a call to the buffer of a table: all of them, or none."""

    table: str
    call: str
    content: str
    """Digest of the rows, independent of their order."""
    message: bytes
    """The rows as they are stored (`pack_rows`)."""
    rows: int
    size_bytes: int
    """Decoded size of the rows."""
    schema_id: int
    schema: bytes
    """Arrow schema of the rows, which has this id."""
    floor: bytes = b""
    """The lowest version of the rows; empty: unknown, or the table has no versions."""
    spans: Mapping[bytes, RowSpan] = field(default_factory=dict)
    """For a table with a key: tablet end → what its rows span. A new partition has none."""
    flush: str
    """Call id for the flush of a segment that this call opens."""
    segment_bytes_max: int
    """Decoded size at which a segment is full."""
    table_bytes_max: int
    """Decoded size that the buffer may have, but for calls that are under way."""


@transaction_of.register
def append_rows(change: AppendRows) -> Transaction:
    """Return the transaction that appends rows to a buffer. Mark: that of the call.

    It watches `rows`, which changes only with the segments. So concurrent calls do not conflict;
    they may exceed the bound of the buffer together, each by its own size.
    """
    keys = TableKeys(change.table)
    reads = {"call": get(keys.call(change.call)), "counts": hgetall(keys.row_counts)}
    needs = whole_table(keys) | Needs((keys.call(change.call),), reads) | buffer_segments(keys)
    for end in change.spans:
        needs |= _span_needs(TabletId(change.table, end))

    def decide(seen: Seen) -> Decision:
        if (mark := call_seen(keys, change.call, seen)) is not None:
            refusal = refused_other_content(change.call, mark, CallKind.APPEND, change.content)
            if refusal is not None:
                return refusal
            # Written again, so that replicas have it before it is acknowledged again.
            effects = (pexpire(keys.call(change.call), BUFFERED_MARK_LIFE_S),)
            return Write(effects, Applied(call=mark, repeated=True), durable=True)
        table = table_seen(keys, seen)
        buffer = unpack_buffer(keys, seen["segments"], seen["counts"])
        refusal = (
            may_fill(change.table, table, "")
            or _refused_schema(change, table)
            or refused_call(
                change.call,
                seen.now_s,
                table.calls_since_s if table else 0.0,
                life_s=BUFFERED_CALL_LIFE_S,
            )
            or _refused_spans(change, table, seen)
            or _refused_size(change, buffer)
        )
        return refusal or _appended(change, keys, buffer, seen)

    return Transaction(needs, decide)


def _span_needs(tablet: TabletId) -> Needs:
    keys = TabletKeys.of(tablet)
    reads = {f"{tablet.text}/bounds": get(keys.bounds), f"{tablet.text}/purge": get(keys.purge)}
    return Needs((keys.bounds, keys.purge), reads)


def _refused_schema(change: AppendRows, table: Table | None) -> Refusal | None:
    if table is None or table.schema_id == change.schema_id:
        return None
    return Refusal(
        RefusalCode.SCHEMA,
        f"table {table.name} has schema {table.schema_id}, the rows were converted to "
        f"{change.schema_id}: try again",
    )


def _refused_spans(change: AppendRows, table: Table | None, seen: Seen) -> Refusal | None:
    """Return why a tablet does not take its rows, or None: its bounds, or late rows."""
    assert table is not None, change.table
    for end, span in change.spans.items():
        tablet = TabletId(change.table, end)
        keys = TabletKeys.of(tablet)
        bounds = bounds_seen(keys, seen[f"{tablet.text}/bounds"])
        if bounds is None:
            if table.partition_by:
                continue  # The flush makes it. It has never dropped a row.
            return tablet_gone(tablet)
        if bounds.partition is None and not bounds.holds(span.key_min, span.key_max):
            return Refusal(
                RefusalCode.BOUNDS, f"tablet {tablet}: rows have keys outside the tablet"
            )
        purge = seen[f"{tablet.text}/purge"]
        if purge is None or table.settings.allow_late_data:
            continue
        if span.version_min is None or span.version_min <= purge:
            return Refusal(
                RefusalCode.PURGED,
                f"tablet {tablet}: rows have versions at or below those already purged",
            )
    return None


def _refused_size(change: AppendRows, buffer: TableBuffer) -> Refusal | None:
    if buffer.size_bytes < change.table_bytes_max:
        return None
    return Refusal(
        RefusalCode.BUFFERED,
        f"table {change.table} has {format_bytes(buffer.size_bytes)} of buffered rows, at most "
        f"{format_bytes(change.table_bytes_max)} are allowed: wait for a flush",
    )


def _appended(change: AppendRows, keys: TableKeys, buffer: TableBuffer, seen: Seen) -> Decision:
    """Put the rows into the open segment, or into a new one."""
    present = buffer.segments[-1] if buffer.segments else None
    is_new = present is None or not _takes(present, change, buffer)
    segment = present
    effects: list[Command] = []
    if present is not None and is_new:
        effects += segments_closed(keys, [present], seen.now_s)
    if segment is None or is_new:
        segment = _opened(change, keys, seen)
        effects.append(hset(keys.rows, {LAST_SEGMENT: segment.number}))
    floor = min(segment.floor, change.floor)
    if is_new or floor != segment.floor:
        effects.append(segment_stored(keys, replace(segment, floor=floor)))
    effects.append(hset(keys.segment(segment.number), {change.call: change.message}))
    counts = zip(count_fields(segment.number), (change.rows, change.size_bytes, 1), strict=True)
    effects += [hincrby(keys.row_counts, name, by) for name, by in counts]
    mark = CallMark(
        kind=CallKind.APPEND,
        content=change.content,
        at_s=seen.now_s,
        rows=change.rows,
        size_bytes=change.size_bytes,
    )
    effects.append(leave_call_mark(keys, change.call, mark, BUFFERED_MARK_LIFE_S))
    if is_new:
        effects.append(table_changed(change.table, "rows"))
    return Write(tuple(effects), Applied(call=mark), durable=True)


def _takes(segment: BufferSegment, change: AppendRows, buffer: TableBuffer) -> bool:
    """Return whether a segment takes the rows of a call."""
    is_full = buffer.counts[segment.number].size_bytes >= change.segment_bytes_max
    has_schema = (segment.schema_id, segment.schema) == (change.schema_id, change.schema)
    return segment.is_open and has_schema and not is_full


def _opened(change: AppendRows, keys: TableKeys, seen: Seen) -> BufferSegment:
    last = int(seen["segments"].get(LAST_SEGMENT.encode(), 0))
    return BufferSegment(
        number=last + 1,
        flush=change.flush,
        schema_id=change.schema_id,
        schema=change.schema,
        opened_s=seen.now_s,
        floor=change.floor,
    )


# -------------------------------------------------------------------------------------------- Close


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseSegment(Guarded):
    """Close a segment of buffered rows, so that it can be flushed."""

    table: str
    number: int


@transaction_of.register
def close_segment(change: CloseSegment) -> Transaction:
    """Return the transaction that closes a segment. Mark: it is closed, or flushed."""
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        segments = unpack_segments(keys.rows, seen["segments"])
        meant = [segment for segment in segments if segment.number == change.number]
        effects = segments_closed(keys, meant, seen.now_s)
        return Write(effects) if effects else NoWrite()

    return Transaction(buffer_segments(keys), decide)
