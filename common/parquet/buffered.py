"""Buffered rows as Arrow: encoded for the store, read with the files, flushed into files.

    flush: close the segment → read its rows → cut them by tablet → write a file for each tablet
    → add the files and remove the segment, in one change

    read: segments and rows → files of the tablets → segments again; a segment that is gone may be
    in files now, so the read starts over

Any process may flush. The change requires the segment, so of two flushes one adds its files, and
the files of the other one are orphans for the listing sweep.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyarrow import parquet as pq

from common.control_settings import IngestSettings
from common.errors import BrokenValueError, ConflictError, RefusedError, UnavailableError
from common.metadata.changes import AddFiles, Applied, CloseSegment, Outcome, Refused
from common.metadata.codec.layout import broken_value_error
from common.metadata.codec.table import pack_rows, unpack_rows
from common.metadata.keys import TableKeys
from common.metadata.store import TabletStore
from common.metadata.store_values import BufferSegment, CallKind, TableBuffer
from common.model.file import DataFile
from common.model.location_identity import append_file_names
from common.model.outcome import RefusalCode
from common.model.table import Table
from common.model.tablet import Bounds, Tablet, TabletId
from common.parquet.append import WRITTEN_MAX_S, AppendTarget, TabletRows, cut_by_tablet, targets_of
from common.parquet.file_inspection import FileFacts
from common.parquet.write import sorted_by_key
from common.rows.conform import conform
from common.rows.row_facts import RowTally, data_file_of
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema
from common.runtime import IdSource
from common.storage_threads import StorageThreads
from common.units import exact_duration, format_bytes, format_count, format_duration

# ---------------------------------------------------------------------------------- Rows of a call


def message_of(rows: pa.RecordBatch) -> bytes:
    """Return the rows of a call as they are stored: one Arrow message, without their schema."""
    message: bytes = rows.serialize().to_pybytes()
    return pack_rows(message, rows.num_rows)


def schema_bytes(schema: pa.Schema) -> bytes:
    """Return a schema as it is stored with a segment."""
    stored: bytes = schema.serialize().to_pybytes()
    return stored


def rows_of_calls(table: Table, segment: BufferSegment, calls: Mapping[bytes, bytes]) -> pa.Table:
    """Return the rows of a segment in the columns and types of its table.

    Args:
        table: The table; its schema may have grown since.
        segment: The segment.
        calls: Call → rows as stored; at least one.

    Raises:
        BrokenValueError: They are damaged.
    """
    where = TableKeys(table.id).segment(segment.number)
    parts = []
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(segment.schema))
        for call, stored in sorted(calls.items()):
            message, count = unpack_rows(f"{where} {call!r}", stored)
            batch = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
            batch.validate(full=True)
            if batch.num_rows != count:
                raise broken_value_error(where, f"has {batch.num_rows} rows instead of {count}")
            parts.append(batch)
        # Statistics, hashes and files of thousands of small chunks take longer than this copy.
        rows = pa.Table.from_batches(parts, schema).combine_chunks()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise broken_value_error(where, f"has damaged rows ({error})") from error
    return conform(rows, arrow_schema(table.schema), "the buffer")


# ------------------------------------------------------------------------- When a buffer is flushed


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushRules:
    """When a buffer is flushed."""

    age_max_s: float
    segment_bytes: int
    """Decoded size at which a segment is closed."""
    bytes_max: int = 0
    """Bound of all buffers."""

    @classmethod
    def of(cls, settings: IngestSettings) -> "FlushRules":
        """Return the rules that settings give."""
        return cls(
            age_max_s=settings.flush_age_max_s,
            segment_bytes=settings.flush_bytes,
            bytes_max=settings.bytes_max,
        )


def why_due(buffer: TableBuffer, now_s: float, rules: FlushRules) -> str | None:
    """Return why a buffer must be flushed now, or None if it may wait.

    Args:
        buffer: The buffer.
        now_s: The store's time.
        rules: When it is flushed.
    """
    if not buffer.segments:
        return None
    if closed := [segment for segment in buffer.segments if not segment.is_open]:
        return f"{format_count(len(closed), 'segment')} of buffered rows are closed"
    age_s = now_s - buffer.segments[0].opened_s
    if age_s >= rules.age_max_s:
        return f"buffered rows are {exact_duration(round(age_s))} old"
    if buffer.size_bytes >= rules.segment_bytes:
        return f"{format_bytes(buffer.size_bytes)} of rows are buffered"
    return None


def buffer_text(buffer: TableBuffer, now_s: float, rules: FlushRules) -> str:
    """Return what a buffer holds, and why it is flushed now, or why it is not.

    The number of its oldest segment is the position of the log that it keeps: a flush of that
    segment frees all before the next one.

    Args:
        buffer: The buffer.
        now_s: The store's time.
        rules: When it is flushed.
    """
    if not buffer.segments:
        return "no rows are buffered"
    numbers = [segment.number for segment in buffer.segments]
    which = f"segment {numbers[0]}"
    if len(numbers) > 1:
        which = f"segments {numbers[0]} to {numbers[-1]}"
    age_s = max(0.0, now_s - buffer.segments[0].opened_s)
    holds = (
        f"{format_count(buffer.rows, 'row')} in {format_bytes(buffer.size_bytes)} are buffered"
        f" ({which}), the oldest for {format_duration(age_s)}"
    )
    due = why_due(buffer, now_s, rules)
    if due is not None:
        return f"{holds}; a flush is due: {due}"
    return (
        f"{holds}; a flush is due at {exact_duration(rules.age_max_s)}, at"
        f" {format_bytes(rules.segment_bytes)}, or when the metadata store is short of memory"
    )


# -------------------------------------------------------------------------------------------- Flush


TRIES_MAX = 4
AGAIN = frozenset(
    {
        RefusalCode.BOUNDS,
        RefusalCode.TABLET,
        RefusalCode.CROSSES,
        RefusalCode.OPERATION,
        RefusalCode.LOOK_TOO_OLD,
        RefusalCode.REPLACED,
    }
)
"""A tablet was split or merged since the rows were cut, or the files may have been discarded."""
WAITS_MAX, WAIT_S = 40, 0.05
"""Waits for the end of a split or merge, which follows its last step at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPorts:
    """What a flush needs of its process."""

    store: TabletStore
    ids: IdSource
    threads: StorageThreads
    write: Callable[[Table, str, pa.Table], FileFacts]
    """Writes rows of one tablet to a path; blocks."""
    look_max_s: float
    """Grace period of deletions: a sweep may discard files that are older."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """What a flush has put into files."""

    segments: int = 0
    rows: int = 0
    files: int = 0
    size_bytes: int = 0

    def __add__(self, other: "Flushed") -> "Flushed":
        return Flushed(
            segments=self.segments + other.segments,
            rows=self.rows + other.rows,
            files=self.files + other.files,
            size_bytes=self.size_bytes + other.size_bytes,
        )


async def flush_table(
    ports: FlushPorts, table: Table, generation: int, numbers: Collection[int] | None = None
) -> Flushed:
    """Flush the rows that are buffered now; rows that arrive meanwhile stay buffered.

    Args:
        ports: Ports of the process.
        table: The table.
        generation: The generation that its store must have reached.
        numbers: Segments to flush; None: all. An open one is closed first.

    Raises:
        RefusedError: The table does not accept files now; its rows stay buffered.
        UnavailableError: Store or storage does not answer; its rows stay buffered.
        BrokenValueError: Rows are damaged; their segments stay, and all others are flushed.
    """
    (buffer,) = await ports.store.buffers([table.id])
    flushed, damage = Flushed(), list[BrokenValueError]()
    for segment in buffer.segments:
        if numbers is not None and segment.number not in numbers:
            continue
        counts, closed = buffer.counts, segment
        if segment.is_open:
            close = CloseSegment(table=table.id, number=segment.number, generation=generation)
            _require_applied(table, await ports.store.apply(close))
            (buffer_now,) = await ports.store.buffers([table.id])
            now = [one for one in buffer_now.segments if one.flush == segment.flush]
            if not now:
                continue  # Another process has flushed it.
            counts, (closed,) = buffer_now.counts, now
        calls = counts[closed.number].calls
        try:
            flushed += await flush_segment(ports, table, closed, calls, generation)
        except BrokenValueError as error:
            damage.append(error)
    if damage:  # Rows of other segments are in files now.
        raise damage[0]
    return flushed


async def flush_segment(
    ports: FlushPorts, table: Table, segment: BufferSegment, calls: int, generation: int
) -> Flushed:
    """Put the rows of a closed segment into files; nothing if another process has done so.

    Args:
        ports: Ports of the process.
        table: Its table.
        segment: The segment.
        calls: Number of calls whose rows it has.
        generation: The generation that the store must have reached.
    """
    if (read := await _read_segment(ports, table, segment, calls)) is None:
        return Flushed()
    table, rows = read
    routed: Collection[bytes] = ()
    waits = tries = 0
    reason = "its tablets keep changing"
    while tries < TRIES_MAX and waits <= WAITS_MAX:
        files, partitions, now_s = await _write_files(ports, table, segment, rows, routed)
        change = AddFiles(
            table=table.id,
            call=segment.flush,
            files=files,
            partitions=partitions,
            kind=CallKind.APPEND,
            content=f"segment {segment.number}",
            looked_s=now_s,
            look_max_s=min(ports.look_max_s, WRITTEN_MAX_S),
            generation=generation,
            segment=segment.number,
            segment_calls=calls,
            segment_closed_s=segment.closed_s,
        )
        outcome = await ports.store.apply(change)
        if isinstance(outcome, Refused) and outcome.code == RefusalCode.GONE:
            return Flushed()
        if not isinstance(outcome, Refused) or outcome.code not in AGAIN:
            applied = _require_applied(table, outcome)
            return Flushed() if applied.repeated else _flushed(files)
        if outcome.code == RefusalCode.OPERATION:
            waits += 1
            await asyncio.sleep(WAIT_S)
        else:
            tries += 1
        routed, reason = tuple(files), outcome.reason
    raise RefusedError(f"table {table.name!r}: buffered rows cannot be flushed now: {reason}")


async def _read_segment(
    ports: FlushPorts, table: Table, segment: BufferSegment, calls: int
) -> tuple[Table, pa.Table] | None:
    """Return a table as it is now, and the rows of a segment; None: another process flushed it."""
    (stored,) = await ports.store.buffered_rows(table.id, [segment.number])
    if len(stored) != calls:
        if not stored and not await _has_segment(ports.store, table, segment):
            return None
        where = TableKeys(table.id).segment(segment.number)
        raise broken_value_error(where, f"has the rows of {len(stored)} calls instead of {calls}")
    # The caller may have read the table before its schema grew.
    present = await ports.store.table(table.id)
    if present is None or present.schema_id < segment.schema_id:
        raise RefusedError(f"table {table.name!r} is being dropped or changed; try again")
    run = ports.threads.run
    return present, await run(table.location, rows_of_calls, present, segment, stored)


async def _has_segment(store: TabletStore, table: Table, segment: BufferSegment) -> bool:
    (buffer,) = await store.buffers([table.id])
    return any(present.flush == segment.flush for present in buffer.segments)


async def _write_files(
    ports: FlushPorts,
    table: Table,
    segment: BufferSegment,
    rows: pa.Table,
    routed: Collection[bytes],
) -> tuple[dict[bytes, tuple[DataFile, ...]], dict[bytes, str], float]:
    """Write a file for each tablet; return files and new partitions by tablet, and the time."""
    now_s = await ports.store.now_s()
    targets: list[AppendTarget] = []
    if not table.partition_by:
        targets, _ = await targets_of(ports.store, table, routed)
    run = ports.threads.run
    parts = await run(table.location, cut_by_tablet, rows, table, targets)
    # Every try has other names: a sweep may already be discarding the files of the last try.
    names = append_file_names(segment.flush, ports.ids.next("try"), len(parts))
    files: dict[bytes, tuple[DataFile, ...]] = {}
    partitions: dict[bytes, str] = {}
    for part, name in zip(parts, names, strict=True):
        facts = await run(table.location, ports.write, table, part.path(name), part.rows)
        file = replace(facts.data_file(added_at_s=now_s), schema_id=table.schema_id)
        files[part.end] = (*files.get(part.end, ()), file)
        if part.partition is not None:
            partitions[part.end] = part.partition.text
    return files, partitions, now_s


def _flushed(files: Mapping[bytes, Sequence[DataFile]]) -> Flushed:
    every = [file for group in files.values() for file in group]
    return Flushed(
        segments=1,
        rows=sum(file.rows for file in every),
        files=len(every),
        size_bytes=sum(file.size_bytes for file in every),
    )


def _require_applied(table: Table, outcome: Outcome) -> Applied:
    """Return the outcome of a change that was made, or raise its error."""
    if isinstance(outcome, Refused):
        raise RefusedError(
            f"table {table.name!r}: buffered rows cannot be flushed now: {outcome.reason}",
            outcome.code,
        )
    if not isinstance(outcome, Applied):
        raise UnavailableError(
            f"table {table.name!r}: it is unknown whether buffered rows were flushed: "
            f"{outcome.reason}; they are flushed again if not"
        )
    return outcome


# -------------------------------------------------------------------------------------------- Reads


READS_MAX = 20
"""Reads of a buffer and of files that a flush may make invalid in sequence."""


@dataclass(frozen=True, slots=True)
class BufferedRows:
    """The buffered rows of a table at one time."""

    flushes: frozenset[str] = frozenset()
    """The segments that were read, by the call ids of their flushes."""
    rows: tuple[pa.Table, ...] = ()
    numbers: tuple[int, ...] = ()
    """The segment of each table of rows."""


async def read_buffer(store: TabletStore, table: Table, threads: StorageThreads) -> BufferedRows:
    """Return the buffered rows of a table.

    Raises:
        MetadataError: Rows are damaged.
        ConflictError: Flushes were faster than the reads.
    """
    for _ in range(READS_MAX):
        (buffer,) = await store.buffers([table.id])
        if not buffer.segments:
            return BufferedRows()
        numbers = [segment.number for segment in buffer.segments]
        stored = await store.buffered_rows(table.id, numbers)
        # An open segment may have more by now.
        complete = all(
            len(calls) >= buffer.counts[number].calls
            for number, calls in zip(numbers, stored, strict=True)
        )
        if complete:
            rows = [
                await threads.run(table.location, rows_of_calls, table, segment, calls)
                for segment, calls in zip(buffer.segments, stored, strict=True)
            ]
            return BufferedRows(
                frozenset(segment.flush for segment in buffer.segments), tuple(rows), tuple(numbers)
            )
    raise ConflictError(f"table {table.name}: its buffered rows keep being flushed; try again")


async def rows_of_tablet(
    store: TabletStore, table: Table, tablet: Tablet, threads: StorageThreads
) -> dict[int, int]:
    """Return how many buffered rows belong to a tablet: segment → rows; others are left out.

    Raises:
        MetadataError: Rows are damaged.
        ConflictError: Flushes were faster than the reads.
    """
    buffered = await read_buffer(store, table, threads)
    targets = [AppendTarget(tablet.bounds.start, tablet.id.end, tablet.id.end)]

    def count(rows: pa.Table) -> int:
        parts = _parts(rows, table, targets)
        return sum(part.rows.num_rows for part in parts if part.end == tablet.id.end)

    counts = [await threads.run(table.location, count, rows) for rows in buffered.rows]
    return {number: rows for number, rows in zip(buffered.numbers, counts, strict=True) if rows}


async def is_buffered(store: TabletStore, table: Table, buffered: BufferedRows) -> bool:
    """Return whether no rows that were read have become files since."""
    if not buffered.flushes:
        return True
    (buffer,) = await store.buffers([table.id])
    return buffered.flushes <= {segment.flush for segment in buffer.segments}


def with_buffered(
    table: Table, tablets: Sequence[Tablet], buffered: BufferedRows, name: str
) -> tuple[list[Tablet], dict[str, pa.Buffer]]:
    """Return tablets with buffered rows as further files, and these files by path. Blocks.

    Args:
        table: The table.
        tablets: All tablets of a range, or of a partitioned table.
        buffered: The buffered rows; those of other tablets are left out, but for those of
            partitions without a tablet, which are returned as tablets.
        name: A unique part of the names of the files.
    """
    rules, memory = RowRules.of(table), dict[str, pa.Buffer]()
    by_end = {tablet.id.end: tablet for tablet in tablets}
    targets = [
        AppendTarget(tablet.bounds.start, tablet.id.end, tablet.id.end)
        for tablet in sorted(tablets, key=lambda tablet: tablet.id.end)
    ]
    for number, rows in enumerate(buffered.rows):
        for index, part in enumerate(_parts(rows, table, targets)):
            path = part.path(f"{name}-{number}-{index}.parquet")
            file, memory[path] = _file_in_memory(path, part.rows, rules)
            tablet = by_end.get(part.end)
            if tablet is None:
                assert part.partition is not None, table.name
                bounds = Bounds(None, part.end, part.partition.text)
                tablet = Tablet(id=TabletId(table.id, part.end), bounds=bounds, files={})
            by_end[part.end] = replace(tablet, files={**tablet.files, path: file})
    return list(by_end.values()), memory


def _parts(rows: pa.Table, table: Table, targets: Sequence[AppendTarget]) -> list[TabletRows]:
    """Return the rows of each tablet; keys that are in no target are left out."""
    if table.partition_by or not table.key:
        return cut_by_tablet(rows, table, targets) if table.partition_by or targets else []
    holes = list[AppendTarget]()
    after: bytes | None = None
    for target in targets:
        if target.after is not None and (after is None or after < target.after):
            holes.append(AppendTarget(after, target.after, b""))
        after = target.up_to
    ends = sorted([*targets, *holes], key=lambda target: target.up_to)
    parts = cut_by_tablet(rows, table, [*ends, AppendTarget(after, b"\xff" * 512, b"")])
    return [part for part in parts if part.end]


def _file_in_memory(path: str, rows: pa.Table, rules: RowRules) -> tuple[DataFile, pa.Buffer]:
    """Return rows of a tablet as an uncompressed Parquet file in memory."""
    rows = sorted_by_key(rows, rules)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="none", write_page_checksum=True)
    buffer = sink.getvalue()
    tally = RowTally(rules)
    tally.see(rows, f"file {path}")
    file = data_file_of(
        tally.facts(),
        path,
        buffer.size,
        key_types=rules.key_types,
        added_at_s=0.0,
        tombstones_since_s=0.0,
    )
    # A reader process need not try it: this process has written it.
    return replace(file, job="buffer"), buffer
