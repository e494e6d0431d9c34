"""Buffered rows: append the rows of a call to a table's buffer, and close a segment of it.

    append rows      into the open segment; the first call opens one, a call after a full one too
    append a group   rows of several calls in one transaction, each with an answer of its own
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
    Refused,
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
from common.metadata.codec.table import LAST_SEGMENT, count_fields, unpack_buffer, unpack_segments
from common.metadata.keys import BUFFERED_CALL_LIFE_S, BUFFERED_MARK_LIFE_S, TableKeys, TabletKeys
from common.metadata.keyspace import Command, Word, get, hgetall, hincrby, hset, pexpire
from common.metadata.store_values import BufferSegment, CallKind, CallMark
from common.model.outcome import Refusal, RefusalCode
from common.model.table import Table
from common.model.tablet import Bounds, TabletId
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendGroup(Guarded):
    """Append the rows of several calls to the buffer of a table in one transaction.

    Each call has its own mark and its own answer (`Applied.answers`): a call that is refused
    refuses only itself. An unknown outcome is that of all calls.
    """

    table: str
    calls: tuple[AppendRows, ...]
    """Calls of this table in their order, at least one. A call may be there twice: a repetition
    that arrives before its first try has an answer."""


@transaction_of.register
def append_rows(change: AppendRows) -> Transaction:
    """Return the transaction that appends the rows of one call. Mark: that of the call."""
    group = append_group(AppendGroup(table=change.table, calls=(change,)))

    def decide(seen: Seen) -> Decision:
        decision = group.decide(seen)
        assert isinstance(decision, Write | NoWrite), decision
        assert isinstance(decision.outcome, Applied), decision
        (answer,) = decision.outcome.answers
        if isinstance(answer, Refused):
            return Refusal(answer.code, answer.reason)
        assert isinstance(decision, Write), decision
        return replace(decision, outcome=answer)

    return Transaction(group.needs, decide)


@transaction_of.register
def append_group(change: AppendGroup) -> Transaction:
    """Return the transaction that appends the rows of a group. Marks: those of its calls.

    It watches `rows`, which changes only with the segments. So concurrent groups do not conflict;
    they may exceed the bound of the buffer together, each by its own size.
    """
    keys = TableKeys(change.table)
    calls = dict.fromkeys(call.call for call in change.calls)
    reads = {f"call {call}": get(keys.call(call)) for call in calls}
    needs = whole_table(keys) | Needs(tuple(map(keys.call, calls)), reads) | buffer_segments(keys)
    needs |= Needs((), {"counts": hgetall(keys.row_counts)})
    for end in dict.fromkeys(end for call in change.calls for end in call.spans):
        needs |= _span_needs(TabletId(change.table, end))

    def decide(seen: Seen) -> Decision:
        group = _Appending(keys, seen)
        outcome = Applied(answers=tuple(map(group.answer, change.calls)))
        effects = group.effects()
        return Write(effects, outcome, durable=True) if effects else NoWrite(outcome)

    return Transaction(needs, decide)


class _Appending:
    """The end of a buffer while the calls of a group are appended to it, one after the other."""

    def __init__(self, keys: TableKeys, seen: Seen) -> None:
        """Start with what the store has.

        Args:
            keys: Keys of the table.
            seen: Values read.
        """
        self._keys, self._seen = keys, seen
        self._table = table_seen(keys, seen)
        self._marks: dict[str, CallMark] = {}
        """Marks that this group leaves."""
        self._repeated: dict[str, None] = {}
        self._bounds: dict[bytes, Bounds | None] = {}
        buffer = unpack_buffer(keys, seen["segments"], seen["counts"])
        self._size_bytes = buffer.size_bytes
        self._last = self._last_before = int(seen["segments"].get(LAST_SEGMENT.encode(), 0))
        self._segment = buffer.segments[-1] if buffer.segments else None
        """The segment that takes the next call, if it fits."""
        self._segment_bytes = (
            buffer.counts[self._segment.number].size_bytes if self._segment is not None else 0
        )
        self._changed: dict[int, BufferSegment] = {}
        """Segments to store, by their numbers."""
        self._appended: dict[int, list[AppendRows]] = {}
        """Calls to append, by the number of their segment."""

    def answer(self, change: AppendRows) -> Applied | Refused:
        """Append the rows of a call, or refuse them; return its answer."""
        mark = self._marks.get(change.call)
        if mark is None:
            mark = call_seen(self._keys, change.call, self._seen, f"call {change.call}")
        if mark is None:
            refusal = self._refusal_of_new(change)
            if refusal is None:
                return Applied(call=self._append(change))
        else:
            refusal = refused_other_content(change.call, mark, CallKind.APPEND, change.content)
            if refusal is None:
                self._repeated[change.call] = None
                return Applied(call=mark, repeated=True)
        return Refused(code=refusal.code, reason=refusal.reason, sent=self._seen.sent)

    def _refusal_of_new(self, change: AppendRows) -> Refusal | None:
        """Return why a call without a mark is refused, or None if it is accepted."""
        table = self._table
        since_s = table.calls_since_s if table else 0.0
        return (
            may_fill(change.table, table, "")
            or _refused_schema(change, table)
            or refused_call(change.call, self._seen.now_s, since_s, life_s=BUFFERED_CALL_LIFE_S)
            or self._refused_spans(change)
            or _refused_size(change, self._size_bytes)
        )

    def _refused_spans(self, change: AppendRows) -> Refusal | None:
        """Return why a tablet does not take its rows, or None: its bounds, or late rows."""
        table = self._table
        assert table is not None, change.table
        for end, span in change.spans.items():
            tablet = TabletId(change.table, end)
            bounds = self._bounds_of(tablet)
            if bounds is None:
                if table.partition_by:
                    continue  # The flush makes it. It has never dropped a row.
                return tablet_gone(tablet)
            if bounds.partition is None and not bounds.holds(span.key_min, span.key_max):
                return Refusal(
                    RefusalCode.BOUNDS, f"tablet {tablet}: rows have keys outside the tablet"
                )
            purge = self._seen[f"{tablet.text}/purge"]
            if purge is None or table.settings.allow_late_data:
                continue
            if span.version_min is None or span.version_min <= purge:
                return Refusal(
                    RefusalCode.PURGED,
                    f"tablet {tablet}: rows have versions at or below those already purged",
                )
        return None

    def _bounds_of(self, tablet: TabletId) -> Bounds | None:
        if tablet.end not in self._bounds:
            stored = self._seen[f"{tablet.text}/bounds"]
            self._bounds[tablet.end] = bounds_seen(TabletKeys.of(tablet), stored)
        return self._bounds[tablet.end]

    def _append(self, change: AppendRows) -> CallMark:
        """Put the rows into the open segment, or into a new one."""
        present = self._segment
        if present is None or not self._takes(present, change):
            if present is not None and present.is_open:
                self._changed[present.number] = replace(present, closed_s=self._seen.now_s)
            self._last += 1
            self._segment_bytes = 0
            segment = BufferSegment(
                number=self._last,
                flush=change.flush,
                schema_id=change.schema_id,
                schema=change.schema,
                opened_s=self._seen.now_s,
                floor=change.floor,
            )
        else:
            segment = replace(present, floor=min(present.floor, change.floor))
        if segment != present:
            self._segment = self._changed[segment.number] = segment
        self._appended.setdefault(segment.number, []).append(change)
        self._segment_bytes += change.size_bytes
        self._size_bytes += change.size_bytes
        mark = self._marks[change.call] = CallMark(
            kind=CallKind.APPEND,
            content=change.content,
            at_s=self._seen.now_s,
            rows=change.rows,
            size_bytes=change.size_bytes,
        )
        return mark

    def _takes(self, segment: BufferSegment, change: AppendRows) -> bool:
        """Return whether the last segment takes the rows of a call."""
        is_full = self._segment_bytes >= change.segment_bytes_max
        has_schema = (segment.schema_id, segment.schema) == (change.schema_id, change.schema)
        return segment.is_open and has_schema and not is_full

    def effects(self) -> tuple[Command, ...]:
        """Return what is written; nothing if all calls are refused."""
        keys = self._keys
        effects: list[Command] = []
        if self._last != self._last_before:
            effects.append(hset(keys.rows, {LAST_SEGMENT: self._last}))
        effects += [segment_stored(keys, segment) for segment in self._changed.values()]
        for number, calls in self._appended.items():
            messages: dict[Word, Word] = {call.call: call.message for call in calls}
            effects.append(hset(keys.segment(number), messages))
            sizes = sum(call.rows for call in calls), sum(call.size_bytes for call in calls)
            counts = zip(count_fields(number), (*sizes, len(calls)), strict=True)
            effects += [hincrby(keys.row_counts, name, by) for name, by in counts]
        for call, mark in self._marks.items():
            effects.append(leave_call_mark(keys, call, mark, BUFFERED_MARK_LIFE_S))
        # Written again, so that replicas have it before it is acknowledged again.
        effects += [
            pexpire(keys.call(call), BUFFERED_MARK_LIFE_S)
            for call in self._repeated
            if call not in self._marks
        ]
        if self._last != self._last_before:
            effects.append(table_changed(keys.id, "rows"))
        return tuple(effects)


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


def _refused_size(change: AppendRows, buffered_bytes: int) -> Refusal | None:
    if buffered_bytes < change.table_bytes_max:
        return None
    return Refusal(
        RefusalCode.BUFFERED,
        f"table {change.table} has {format_bytes(buffered_bytes)} of buffered rows, at most "
        f"{format_bytes(change.table_bytes_max)} are allowed: wait for a flush",
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
