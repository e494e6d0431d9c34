"""Buffered rows: the routes, bodies, and how writers are slowed down.

The store has all rows of a call, or none, before the call is acknowledged; `group_commit` appends
them. The coordinator flushes them; a caller may do so, too. Bounds are checked here first, because
a writer that waits costs less than one that is refused; the store checks the bound of the table
once more.
"""

import asyncio
import io
import json
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import Annotated

import pyarrow as pa
import pyarrow.json
from fastapi import Header, Query, Request
from starlette.responses import Response

from common.errors import RequestError, UnavailableError
from common.model.table import Table
from common.rows.rules import may_drop_rows
from common.rows.schema import arrow_schema
from neve import api
from neve.gateway.access.callers import WRITE, current_call, route
from neve.gateway.bodies import ReceivedBody, received_body
from neve.gateway.problems import BodyError
from neve.gateway.rows.calls import Call, checked_call
from neve.gateway.rows.group_commit import RecentTables, Room, RowGroups, Taken
from neve.gateway.rows.ingestion import read_stream, stream_memory_bytes
from neve.gateway.services import Services, buffered_in, check_writable, flush_rows

DECODED_MAX = 4 * api.ROWS_BYTES_MAX
"""Decoded size that a compressed body may have."""
LINES_FACTOR = 4
"""About how much larger than lines of JSON their rows are in memory, at most."""
REFRESH_S = 1.0
"""Interval between readings of the sizes of buffers, while rows arrive."""
LIST_S = 30.0
"""Interval between readings of all tables, which other gateways may fill."""
ASK_S = 5.0
"""Interval between readings of the work that waits for compactors, while rows arrive."""
ROOM_BYTES = 64 * 1024**2
"""Decoded size of all rows that are checked or wait for a transaction; other calls wait."""


class BufferSizes:
    """Keeps `BufferUse` up to date while rows arrive."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._read_s = self._listed_s = self._asked_s = self._safety_s = float("-inf")
        self._reading, self._asking = asyncio.Lock(), asyncio.Lock()

    async def refresh(self) -> None:
        """Read the sizes of all buffers, and the memory of the store, unless that was just done.

        Raises:
            UnavailableError: The store does not answer.
        """
        clock = self._services.clock
        if clock.now_s() - self._read_s < REFRESH_S:
            return
        async with self._reading:
            now_s = clock.now_s()
            if now_s - self._read_s < REFRESH_S:
                return
            use, store = self._services.buffers, self._services.store
            tables = list(use.sizes)
            if now_s - self._listed_s >= LIST_S:
                tables = list({*tables, *(await store.names()).values()})
                self._listed_s = now_s
            buffers = await store.readable_buffers(tables)
            use.sizes = {
                table: buffer.size_bytes for table, buffer in buffers.items() if buffer.segments
            }
            use.opened_s = min(
                (segment.opened_s for buffer in buffers.values() for segment in buffer.segments),
                default=None,
            )
            if now_s - self._asked_s >= ASK_S:
                self._asked_s = now_s
                self._services.later(self._ask_coordinator())  # It may not answer for long.
            health = await store.health()
            use.store_used_pct, use.durability = health.used_pct, health.durability
            self._read_s = now_s

    async def require_safe(self, table: Table) -> None:
        """Refuse rows that an attempt of an older compactor may need, as it drops others.

        Raises:
            UnavailableError: There may be such an attempt, or the coordinator has never answered.
        """
        use, clock = self._services.buffers, self._services.clock
        if not may_drop_rows(table) or use.why_unsafe(table.id) is None:
            return
        async with self._asking:
            if use.why_unsafe(table.id) and clock.now_s() - self._safety_s >= REFRESH_S:
                await self._ask_coordinator()
                self._safety_s = clock.now_s()  # Those who have waited share the answer.
        if (why := use.why_unsafe(table.id)) is not None:
            raise use.refuse(f"no rows of table {table.name!r} are buffered for now: {why}")

    async def _ask_coordinator(self) -> None:
        """Read which compactions wait; a coordinator that is down leaves the last answer."""
        with suppress(UnavailableError):
            status = await self._services.coordinator.status()
            use = self._services.buffers
            use.note_unsafe(dict(status.buffers_refused))
            use.overlapping = dict(status.overlapping)
            use.backlogs = {entry.table: entry.size_bytes for entry in status.backlogs}


# ------------------------------------------------------------------------------------------- Bodies


def read_lines(body: bytes, table: Table) -> pa.Table:
    """Return rows of lines of JSON: an object for each row, with columns by name.

    Raises:
        RequestError: A line is no such object, has an unknown column, or a value does not fit.
    """
    schema = arrow_schema(table.schema)
    free = pa.schema([field.with_nullable(True) for field in schema])
    try:
        rows = pa.json.read_json(
            io.BytesIO(body),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=len(body) + 1),
            parse_options=pa.json.ParseOptions(
                explicit_schema=free, unexpected_field_behavior="infer"
            ),
        )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RequestError(
            f"the body is not lines of JSON that fit table {table.name!r}: {error}"
        ) from error
    if rows.num_rows == 0:
        raise RequestError("the body contains no rows, expected at least one")
    # A column that no line has is missing, which is an error for those of key and version.
    present = [name for name in rows.schema.names if rows[name].null_count < rows.num_rows]
    return rows.select(present)


def rows_of(kind: str, body: bytes, size_bytes: int | None, table: Table) -> pa.Table:
    """Return the rows of a body. Blocks.

    Args:
        kind: Content type of the body.
        body: An Arrow IPC stream, or lines of JSON.
        size_bytes: `memory_bytes` of the body; None: unknown.
        table: The table, whose types those of lines are.

    Raises:
        RequestError: The body is malformed.
    """
    if kind == api.LINES:
        return read_lines(body, table)
    return read_stream(body, DECODED_MAX, size_bytes)


def memory_bytes(kind: str, body: bytes) -> int | None:
    """Return about how much memory the rows of a body take; None: the body is malformed."""
    if kind == api.LINES:
        return LINES_FACTOR * len(body)
    try:
        return stream_memory_bytes(body)
    except ValueError:
        return None  # It is refused when it is decoded.


# ------------------------------------------------------------------------------------------- Routes


_BINARY = {"type": "string", "format": "binary"}
_BODY = {
    "requestBody": {
        "content": {
            api.ARROW_STREAM: {"schema": _BINARY},
            api.LINES: {"schema": {"type": "string"}},
        }
    }
}


_ANSWER = tuple(field.name for field in fields(api.Buffered))


class BufferRoutes:
    """Routes that buffer rows, and flush them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._sizes = BufferSizes(services)
        self._tables = RecentTables(services)
        self._groups = RowGroups(services, self._tables)
        self._room = Room(ROOM_BYTES)

    @route("POST /v1/tables/{table}/rows", WRITE, serve="serve_rows", openapi_extra=_BODY)
    async def rows(
        self,
        table: str,
        request: Request,
        call: Call = None,
        content_type: Annotated[str, Header(include_in_schema=False)] = "",
    ) -> api.Buffered:
        """Buffer rows until they are flushed into files: all rows, or none.

        The body has at most 4 MiB: an Arrow IPC stream, or lines of JSON. Scans see the rows at
        once, readers of the manifest after the flush. A call may be repeated for five minutes. It
        is delayed while buffers fill; 503: they are full.
        """
        services = self._services
        stored_table = await self._tables.table(table)
        kind = content_type.partition(";")[0].strip()
        if kind not in {api.ARROW_STREAM, api.LINES}:
            raise BodyError(
                f"content type {kind!r} is not accepted here, expected {api.ARROW_STREAM} or "
                f"{api.LINES}"
            )
        call = checked_call(services, call)
        await self._sizes.require_safe(stored_table)
        await self._sizes.refresh()
        delay_s, delay_reason = await self._admitted(stored_table)
        async with received_body(request) as received:
            taken = await self._taken(table, stored_table, received, kind, call)
        current_call().details = f"rows={0 if taken.repeated else taken.rows}"
        return api.Buffered(
            call=call,
            rows=taken.rows,
            size_bytes=taken.size_bytes,
            durability=services.buffers.durability,
            delay_s=round(delay_s, 3),
            repeated=taken.repeated,
            delay_reason=delay_reason,
        )

    async def _admitted(self, table: Table) -> tuple[float, str]:
        """Wait as long as the bounds demand; return how long that was, and why.

        A table that takes no rows refuses them first: a writer that waits would wait in vain.
        """
        try:
            delay_s, reason = self._services.buffers.admit(table.id, table.name)
        except UnavailableError:
            await check_writable(self._services, table)
            raise
        if delay_s:
            await check_writable(self._services, table)
            await asyncio.sleep(delay_s)
        return delay_s, reason

    async def _taken(
        self, name: str, table: Table, received: ReceivedBody, kind: str, call: str
    ) -> Taken:
        """Append the rows of a body, as soon as there is room for them in memory."""
        body, measured_bytes, size_bytes = b"", None, DECODED_MAX
        if not received.is_on_disk:
            body = await received.read()
            measured_bytes = memory_bytes(kind, body)
            size_bytes = measured_bytes or 0  # A malformed body takes none.
        async with self._room.take(size_bytes):
            body = body or await received.read()
            decode = partial(rows_of, kind, body, measured_bytes)
            return await self._groups.buffer(name, table, call, decode, size_bytes)

    async def serve_rows(self, request: Request) -> Response:
        """Serve `rows` without the framework's parsing of parameters, which takes longer."""
        headers = request.headers
        call, kind = headers.get(api.CALL_HEADER), headers.get("content-type", "")
        answer = await self.rows(request.path_params["table"], request, call, kind)
        body = {name: getattr(answer, name) for name in _ANSWER}
        return Response(json.dumps(body), media_type="application/json")

    @route("POST /v1/tables/{table}/flush", WRITE)
    async def flush(
        self,
        table: str,
        tablet: Annotated[str | None, Query(description="End of a tablet; all by default.")] = None,
    ) -> api.FlushedRows:
        """Flush the buffered rows of a table, and return when they are in files.

        The tablets of a table share a buffer. With a tablet, only the segments of the buffer that
        have rows of it are flushed, whole: rows of other tablets in them are flushed, too.
        """
        services = self._services
        stored_table = await services.table(table)
        counts: dict[int, int] | None = None
        if tablet is not None:
            counts = await buffered_in(services, stored_table, tablet)
        flushed = await flush_rows(services, stored_table, counts)
        return api.FlushedRows(
            table=stored_table.name,
            rows=flushed.rows,
            files=flushed.files,
            size_bytes=flushed.size_bytes,
            tablet_rows=None if counts is None else sum(counts.values()),
        )
