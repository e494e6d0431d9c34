"""Scan a table: pin its files, merge on read, stream rows as Arrow, unpin; export its manifest."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

import pyarrow as pa
from fastapi import Query
from fastapi.responses import StreamingResponse

from common.errors import CompactionError, ConflictError, RequestError
from common.metadata.file_pin import FilePin
from common.metadata.store import walk_tiles
from common.model.key_values import KeyType
from common.model.keys import PLUS_INFINITY, decode_key, encode_key, key_before, parse_key
from common.model.request import KeyRange
from common.model.table import Table
from common.model.tablet import Tablet
from common.parquet.buffered import READS_MAX, is_buffered, read_buffer, with_buffered
from common.parquet.location import open_location
from common.parquet.manifest import ManifestTotals, manifest_entries, manifest_header
from common.rows.rules import RowRules, keeps_deleted_rows
from common.rows.schema import arrow_schema
from neve import api
from neve.api import failed_stream
from neve.gateway.access.callers import READ, current_call, route
from neve.gateway.access.quotas import ScanSlot
from neve.gateway.bodies import begun_stream
from neve.gateway.key_views import key_range
from neve.gateway.problems import problem_body, short_of_memory
from neve.gateway.services import Services, check_location_allowed, check_table_owner
from neve.gateway.table_files import TabletReader

BATCH_ROWS = 65_536
_Part = TypeVar("_Part", pa.Table, int)
_ReadTablet = Callable[[Tablet, bytes | None, bytes | None], Iterator[_Part]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """Options of a scan; the range is `(start, end]` in encoded keys."""

    columns: tuple[str, ...]
    start: bytes | None = None
    end: bytes | None = None
    partitions: KeyRange | None = None
    """Range of partitions; None: all."""
    include_expired: bool | None = None
    """Whether to include expired rows that no compaction has dropped so far; None: as the table's
    setting `show_expired_rows` says."""
    include_deleted: bool = False
    """Whether to include tombstones that no compaction has dropped so far, each followed by the
    newest row that it hides if the table keeps deleted rows."""


def scan_options(
    table: Table, columns: Sequence[str] | None, start: str | None, end: str | None
) -> ScanOptions:
    """Parse the options of a scan.

    Args:
        table: The table to read.
        columns: Names of columns; None: all.
        start: First key, inclusive, or a prefix of it. For a partitioned table, the first
            partition by the values of its columns; if the key begins with these columns, further
            key values may follow.
        end: Last key or partition, inclusive, in the same form.

    Raises:
        RequestError: A column is unknown or repeated, or a key cannot be parsed.
    """
    names = [column.name for column in table.schema]
    chosen = list(columns) if columns else names
    for name in chosen:
        if name not in names:
            raise RequestError(
                f"column {name!r} is unknown; table {table.name!r} has {', '.join(names)}"
            )
    if len(set(chosen)) < len(chosen):
        raise RequestError(f"columns {chosen} name one twice, expected each once")
    if start is None and end is None:
        return ScanOptions(columns=tuple(chosen))
    count = len(table.partition_by)
    if count and table.key[:count] != table.partition_by:
        return ScanOptions(columns=tuple(chosen), partitions=key_range(table, start, end))
    if not table.key:
        raise RequestError(
            f"table {table.name!r} has no key, so it cannot be read by a range of it"
        )
    types = RowRules.of(table).key_types
    first = None if start is None else parse_key(start, types)
    last = None if end in (None, "+inf") else parse_key(end, types)
    return ScanOptions(
        columns=tuple(chosen),
        start=None if first is None else key_before(first),
        # `last` may be a prefix, so end after every key that begins with it.
        end=None if last is None else last + b"\xff",
        partitions=_partitions(first, last, types, count) if count else None,
    )


def _partitions(
    first: bytes | None, last: bytes | None, types: Sequence[KeyType], count: int
) -> KeyRange:
    """Return the partitions of a range of keys that begin with the partition columns."""
    ends = []
    for key in (first, last):
        whole = key is None or key == PLUS_INFINITY
        values = () if whole or key is None else decode_key(key, types)[:count]
        ends.append(encode_key(values, types) or None)
    start, end = ends
    return KeyRange(start, None if end is None else end + b"\xff")


@asynccontextmanager
async def open_scan(
    services: Services, table: Table, options: ScanOptions
) -> AsyncIterator[AsyncIterator[pa.Table]]:
    """Open a scan; yields an iterator over the visible rows, in pieces ordered by key.

    Args:
        services: Ports and settings.
        table: The table to read.
        options: Options of the scan.
    """
    async with pin_listed_files(services, table) as pin:
        tablets, memory = await _tablets(services, table, options)
        reader = await _reader(services, table, options, memory)
        parts = _parts_of_tablets(
            services, table, tablets, options, reader=reader, read=reader.read
        )
        yield _while_pinned(parts, pin)


async def count_rows(services: Services, table: Table, options: ScanOptions) -> int:
    """Return the number of rows that a scan would return.

    Args:
        services: Ports and settings.
        table: The table to read.
        options: Options of the scan; its columns are ignored.
    """
    async with pin_listed_files(services, table) as pin:
        tablets, memory = await _tablets(services, table, options)
        reader = await _reader(services, table, options, memory)
        parts = _while_pinned(
            _parts_of_tablets(services, table, tablets, options, reader=reader, read=reader.counts),
            pin,
        )
        return sum([part async for part in parts])


async def _tablets(
    services: Services, table: Table, options: ScanOptions
) -> tuple[Sequence[Tablet], Mapping[str, pa.Buffer]]:
    """Return the tablets that may hold rows of a range, ascending, and their files in memory.

    Buffered rows are read first: those that a flush puts into files meanwhile are read again, as
    files, and otherwise the files hold none of them.

    Raises:
        ConflictError: Flushes were faster than the reads.
    """
    # Keys do not determine the ends of partitions, so the bounds of files filter the rows instead.
    span = (None, None) if table.partition_by else (options.start, options.end)
    memory: Mapping[str, pa.Buffer] = {}
    for _ in range(READS_MAX):
        buffered = await read_buffer(services.store, table, services.rows)
        tablets = await services.store.read_range(table.id, *span)
        if await is_buffered(services.store, table, buffered):
            break
    else:
        raise ConflictError(f"table {table.name}: its rows keep being flushed; try again")
    if buffered.rows:
        name = services.ids.next("buffered")
        tablets, memory = await services.rows.run(
            table.location, with_buffered, table, tablets, buffered, name
        )
    if (chosen := options.partitions) is not None:
        tablets = [tablet for tablet in tablets if chosen.holds(tablet.id.end)]
    services.reads.note(services, table.id, [tablet.id.text for tablet in tablets])
    return sorted(tablets, key=lambda tablet: tablet.id.end), memory


async def _reader(
    services: Services, table: Table, options: ScanOptions, memory: Mapping[str, pa.Buffer]
) -> TabletReader:
    now_s = await services.store.now_s()
    return services.files.reader(
        _table_to_read(table, options),
        now_s,
        options.columns,
        deleted=options.include_deleted and keeps_deleted_rows(table),
        memory=memory,
    )


def _table_to_read(table: Table, options: ScanOptions) -> Table:
    """Return a table with the rules of visibility that the scan asks for.

    Without a TTL no row expires, and without a tombstone column a tombstone is an ordinary row. The
    scan still returns only the newest row of each key, except where a delete keeps its row.
    """
    shown = options.include_expired
    if table.settings.show_expired_rows if shown is None else shown:
        table = replace(table, settings=replace(table.settings, ttl_s=None))
    if not options.include_deleted or keeps_deleted_rows(table):
        return table
    return replace(table, tombstone_column=None)


@asynccontextmanager
async def pin_listed_files(services: Services, table: Table) -> AsyncIterator[FilePin]:
    """Pin all files that are listed inside the block until its end.

    Raises:
        RefusedError: The table's location has another owner, or the table is being dropped.
    """
    await check_table_owner(services, table)
    name = services.ids.next("pin")
    # Unpin in a separate task: when a reader disconnects, this task is cancelled at every await.
    async with FilePin(services.store, table.id, name, later=services.later) as pin:
        yield pin


async def _while_pinned(parts: AsyncIterator[_Part], pin: FilePin) -> AsyncIterator[_Part]:
    """Yield parts, and check after each one that the pin still holds.

    Raises:
        ConflictError: The pin expired, so that a missing file is not damage.
    """
    while True:
        try:
            part = await anext(parts, None)
        except CompactionError:
            pin.check()
            raise
        pin.check()
        if part is None:
            return
        yield part
        del part  # Do not keep the part alive while the consumer is done with it.


async def arrow_stream(
    services: Services, table: Table, options: ScanOptions
) -> AsyncGenerator[bytes, None]:
    """Yield an Arrow IPC stream of the visible rows.

    Raises:
        UnavailableError: Too many scans are being read.
        QuotaError: The caller has reached its limit of scans.
    """
    begun = False
    try:
        caller = current_call().caller.name
        with services.quotas.scan(caller), services.scans.take() as slot:
            async with open_scan(services, table, options) as pieces:
                async for chunk in _stream_chunks(table, options, pieces, slot):
                    yield chunk
                    begun = True
    except (CompactionError, MemoryError) as error:
        if not begun:
            raise  # Nothing was sent, so the error becomes a problem.
        reported = short_of_memory() if isinstance(error, MemoryError) else error
        services.log("scan failed", table=table.name, cause=str(reported))
        yield failed_stream(problem_body(reported))


async def _stream_chunks(
    table: Table, options: ScanOptions, pieces: AsyncIterator[pa.Table], slot: ScanSlot
) -> AsyncIterator[bytes]:
    """Yield the Arrow stream of rows; hold one piece at a time, and none while waiting."""
    full = arrow_schema(table.schema)
    sink, schema = _Sink(), pa.schema([full.field(name) for name in options.columns])
    writer = pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema)
    await slot.room()
    async for piece in pieces:
        slot.holds(piece.nbytes)
        for batch in piece.to_batches(max_chunksize=BATCH_ROWS):
            writer.write_batch(batch)
            del batch
            yield sink.take()
        del piece
        await slot.room()
    writer.close()
    yield sink.take()


async def _parts_of_tablets(
    services: Services,
    table: Table,
    tablets: Sequence[Tablet],
    options: ScanOptions,
    *,
    reader: TabletReader,
    read: "_ReadTablet[_Part]",
) -> AsyncIterator[_Part]:
    """Yield the parts of one tablet after the other, each read in a thread and paid for."""
    paid_bytes = 0
    for tablet in tablets:
        parts = await services.rows.run(table.location, read, tablet, options.start, options.end)
        while (part := await services.rows.run(table.location, next, parts, None)) is not None:
            unpaid_bytes = reader.read_bytes - paid_bytes
            await services.foreground.pay(services, table.settings.volume, unpaid_bytes)
            paid_bytes += unpaid_bytes
            yield part
            del part


class _Sink:
    """A file that Arrow writes to; `take` removes the bytes written so far."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        """Copy the data, because Arrow may reuse the buffer."""
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def flush(self) -> None:
        """Do nothing: nothing is buffered elsewhere."""

    def close(self) -> None:
        """Do nothing: the remaining bytes are still needed."""


# ----------------------------------------------------------------------------- The current manifest


async def manifest_json(services: Services, table: Table) -> AsyncGenerator[bytes, None]:
    """Yield a table's manifest as one JSON object: description, files and totals.

    Raises:
        RefusedError: The location has another owner, or no table is allowed there.
        ConflictError: The tablets keep changing; try again.
    """
    await check_location_allowed(services, table)
    location, totals = open_location(table.location), ManifestTotals()
    async with pin_listed_files(services, table) as pin:
        begun_s = await services.store.now_s()
        head = json.dumps(manifest_header(table, 0, begun_s, None), indent=1)
        # Send the head with the first file, so that an unreadable table fails before any output.
        opening = head.removesuffix("\n}").encode() + b',\n "files": ['
        comma = opening + b"\n"
        async for page in walk_tiles(services.store, table):
            for tablet in page:
                entries = manifest_entries(location, table, tablet)
                totals.add(entries)
                for entry in entries:
                    yield comma + b"  " + json.dumps(entry).encode()
                    comma = b",\n"
            pin.check()
        begin = b"" if totals.files else opening
        yield begin + b'\n ],\n "totals": ' + json.dumps(totals.plain()).encode() + b"\n}\n"


async def manifest_names(services: Services, table: Table) -> AsyncGenerator[bytes, None]:
    """Yield the absolute names of a table's files, one per line."""
    await check_location_allowed(services, table)
    location = open_location(table.location)
    async with pin_listed_files(services, table) as pin:
        async for page in walk_tiles(services.store, table):
            for tablet in page:
                names = [entry["file"] for entry in manifest_entries(location, table, tablet)]
                pin.check()
                # Yield even without names, so that errors occur before the answer begins.
                yield "".join(f"{name}\n" for name in names).encode()


# ------------------------------------------------------------------------------------------- Routes


Columns = Annotated[
    list[str] | None, Query(description="Names of the columns; all columns by default.")
]
Start = Annotated[
    str | None, Query(description="First key or partition (included), or a prefix of it.")
]
End = Annotated[
    str | None, Query(description="Last key or partition (included), or a prefix of it.")
]
IncludeExpired = Annotated[
    bool | None,
    Query(
        description="Whether to return rows that have expired, until a compaction drops them; by "
        "default as the table setting `show_expired_rows` says."
    ),
]
IncludeDeleted = Annotated[
    bool,
    Query(
        description="Also tombstones, until a compaction drops them; with the table setting "
        "`keep_deleted_rows` each with the newest row that it hides."
    ),
]


class ScanRoutes:
    """Routes that read the rows of a table."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("GET /v1/tables/{table}/scan", READ)
    async def scan(
        self,
        table: str,
        columns: Columns = None,
        start: Start = None,
        end: End = None,
        *,
        include_expired: IncludeExpired = None,
        include_deleted: IncludeDeleted = False,
    ) -> StreamingResponse:
        """Return the rows as an Arrow IPC stream.

        Of rows with the same key only the newest is returned. Tombstones and expired rows are left
        out unless they are asked for.
        """
        services = self._services
        stored_table = await services.table(table)
        options = replace(
            scan_options(stored_table, columns, start, end),
            include_expired=include_expired,
            include_deleted=include_deleted,
        )
        begun_s = services.clock.now_s()
        stream = await begun_stream(arrow_stream(services, stored_table, options))
        services.waits.note(
            services, stored_table.id, max(0.0, services.clock.now_s() - begun_s), 1
        )
        return StreamingResponse(stream, media_type=api.ARROW_STREAM)

    @route("GET /v1/tables/{table}/count", READ)
    async def count(
        self,
        table: str,
        start: Start = None,
        end: End = None,
        *,
        include_expired: IncludeExpired = None,
        include_deleted: IncludeDeleted = False,
    ) -> dict[str, int]:
        """Return the number of rows that a scan would return.

        Only the columns that decide the number are read.
        """
        stored_table = await self._services.table(table)
        options = replace(
            scan_options(stored_table, [stored_table.schema[0].name], start, end),
            include_expired=include_expired,
            include_deleted=include_deleted,
        )
        with self._services.quotas.scan(current_call().caller.name):
            return {"rows": await count_rows(self._services, stored_table, options)}
