"""Buffered rows: check them, find the tablets of their keys, slow writers down, append them.

The store has all rows of a call, or none, before the call is acknowledged. The coordinator flushes
them; a caller may do so, too. Bounds are checked here first, because a writer that waits costs less
than one that is refused; the store checks the bound of the table once more.
"""

import asyncio
import io
from contextlib import suppress
from typing import Annotated

import pyarrow as pa
import pyarrow.json
from fastapi import Header, Query, Request

from common.errors import RefusedError, RequestError, UnavailableError, UnknownTableError
from common.metadata.changes import AppendRows, Refused, RowSpan
from common.metadata.codec.table import pack_rows
from common.model.outcome import RefusalCode
from common.model.table import Table
from common.parquet.append import (
    AppendTarget,
    TabletRows,
    content_digest,
    cut_by_tablet,
    no_tablets_error,
)
from common.parquet.buffered import message_of, schema_bytes
from common.rows.key_encoding import encode_keys
from common.rows.row_facts import RowTally
from common.rows.rules import RowRules, may_drop_rows
from common.rows.schema import arrow_schema
from common.runtime import call_id
from neve import api
from neve.gateway.access.callers import WRITE, current_call, route
from neve.gateway.bodies import received_body
from neve.gateway.problems import BodyError, CallIdError, require_applied
from neve.gateway.rows.add import refuse_future_versions, refuse_unknown_columns
from neve.gateway.rows.calls import Call, checked_call
from neve.gateway.rows.ingestion import fit_to_schema, highest_version, read_stream
from neve.gateway.services import Services, buffered_in, check_writable, flush_rows

DECODED_MAX = 4 * api.ROWS_BYTES_MAX
"""Decoded size that a compressed body may have."""
TRIES_MAX = 4
_AGAIN = frozenset({RefusalCode.BOUNDS, RefusalCode.TABLET, RefusalCode.SCHEMA})
"""A tablet was split or merged since the rows were routed, or the schema has grown."""
_OF_CALL = frozenset({RefusalCode.CALL_FORM, RefusalCode.CALL_TOO_OLD, RefusalCode.CALL_TOO_NEW})
REFRESH_S = 1.0
"""Interval between readings of the sizes of buffers, while rows arrive."""
LIST_S = 30.0
"""Interval between readings of all tables, which other gateways may fill."""
ASK_S = 5.0
"""Interval between readings of the work that waits for compactors, while rows arrive."""
CALLS_AT_ONCE = 16
"""Calls whose rows are checked concurrently, because they are in memory."""


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
            buffers = await store.buffers(tables)
            use.sizes = {
                table: buffer.size_bytes
                for table, buffer in zip(tables, buffers, strict=True)
                if buffer.segments
            }
            use.opened_s = min(
                (segment.opened_s for buffer in buffers for segment in buffer.segments),
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
    # A column that no line has is missing, which is an error for those of key and version.
    present = [name for name in rows.schema.names if rows[name].null_count < rows.num_rows]
    return rows.select(present)


def _rows_of(kind: str, body: bytes, table: Table) -> pa.Table:
    """Return the rows of a body, converted to the columns of their table. Blocks."""
    rows = read_lines(body, table) if kind == api.LINES else read_stream(body, DECODED_MAX)
    refuse_unknown_columns(table, [("the body", rows.schema)])
    return fit_to_schema(rows, table)


# ------------------------------------------------------------------------------------------- Append


async def buffer_rows(
    services: Services, table: Table, body: bytes, kind: str, call: str
) -> tuple[int, int, bool]:
    """Append the rows of a body to the buffer of a table: all of them, or none.

    Args:
        services: Ports and settings.
        table: The table.
        body: An Arrow IPC stream, or lines of JSON.
        kind: Content type of the body.
        call: Id of the call.

    Returns:
        Number of rows, their decoded size, and whether the call was accepted before.

    Raises:
        RequestError: The body is malformed, or does not fit the schema.
        RefusedError: The table or a tablet does not accept the rows.
        UnavailableError: A bound is reached, or the store does not answer.
    """
    generation = await check_writable(services, table)
    for _ in range(TRIES_MAX):
        change = await _change_of(services, table, body, kind, call, generation)
        outcome = await services.store.apply(change)
        if isinstance(outcome, Refused) and outcome.code == RefusalCode.BUFFERED:
            services.buffers.sizes[table.id] = services.buffers.table_bytes_max
            services.buffers.admit(table.id, table.name)
        if isinstance(outcome, Refused) and outcome.code in _OF_CALL:
            raise CallIdError(outcome.reason, outcome.code)
        if isinstance(outcome, Refused) and outcome.code in _AGAIN:
            present = await services.store.table(table.id)
            if present is None:
                raise UnknownTableError(f"table {table.name!r} was dropped a moment ago")
            table = present
            continue
        applied = require_applied(outcome)
        if not applied.repeated:
            services.buffers.took(table.id, change.size_bytes)
        return change.rows, change.size_bytes, applied.repeated
    raise RefusedError(f"table {table.name!r}: its tablets keep changing; try again")


async def _change_of(  # noqa: PLR0917 - what a call consists of
    services: Services, table: Table, body: bytes, kind: str, call: str, generation: int
) -> AppendRows:
    run, settings = services.rows.run, services.settings
    rows = await run(table.location, _rows_of, kind, body, table)
    ahead_max_s = settings.gateway.version_ahead_max_s
    now_s = await services.store.now_s()
    refuse_future_versions(table, [("a row", highest_version(rows, table))], now_s, ahead_max_s)
    spans = await _spans(services, table, rows)
    versions = [span.version_min for span in spans.values()]
    floor = min((version or b"" for version in versions), default=b"")
    content = await run(table.location, content_digest, rows)
    return AppendRows(
        table=table.id,
        call=call,
        content=content,
        message=await run(table.location, _message, rows),
        rows=rows.num_rows,
        size_bytes=max(1, rows.nbytes),
        schema_id=table.schema_id,
        schema=schema_bytes(rows.schema),
        floor=floor,
        spans=spans,
        flush=call_id(services.clock),
        segment_bytes_max=settings.ingest.flush_bytes,
        table_bytes_max=settings.ingest.table_bytes_max,
        generation=generation,
    )


def _message(rows: pa.Table) -> bytes:
    return pack_rows(message_of(rows), rows.num_rows)


async def _spans(services: Services, table: Table, rows: pa.Table) -> dict[bytes, RowSpan]:
    """Return what the rows of each tablet span; nothing for a table without a key."""
    if not table.key:
        return {}
    run = services.rows.run
    targets = [] if table.partition_by else await _targets(services, table, rows)
    parts = await run(table.location, cut_by_tablet, rows, table, targets)
    return await run(table.location, _spans_of, table, parts)


def _spans_of(table: Table, parts: list[TabletRows]) -> dict[bytes, RowSpan]:
    rules, spans = RowRules.of(table), dict[bytes, RowSpan]()
    for part in parts:
        tally = RowTally(rules)
        tally.see(part.rows, "the body")
        facts = tally.facts()
        assert facts.key_min is not None, table.name
        assert facts.key_max is not None, table.name
        spans[part.end] = RowSpan(
            key_min=facts.key_min, key_max=facts.key_max, version_min=facts.version_min
        )
    return spans


async def _targets(services: Services, table: Table, rows: pa.Table) -> list[AppendTarget]:
    """Return the tablets that hold keys of the rows, ascending. One look-up for each tablet."""
    run = services.rows.run
    keys = await run(table.location, _sorted_keys, rows, table)
    targets: list[AppendTarget] = []
    at = 0
    while at < len(keys):
        tablet = await services.store.locate(table.id, keys[at])
        if tablet is None:
            raise no_tablets_error(table)
        after = targets[-1].up_to if targets else None
        targets.append(AppendTarget(after, tablet.end, tablet.end))
        while at < len(keys) and keys[at] <= tablet.end:
            at += 1
    return targets


def _sorted_keys(rows: pa.Table, table: Table) -> list[bytes]:
    keys = encode_keys(rows, table.key, RowRules.of(table).key_types)
    return sorted(set(keys.to_pylist()))


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


class BufferRoutes:
    """Routes that buffer rows, and flush them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._sizes = BufferSizes(services)
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE)

    @route("POST /v1/tables/{table}/rows", WRITE, openapi_extra=_BODY)
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
        stored_table = await services.table(table)
        kind = content_type.partition(";")[0].strip()
        if kind not in {api.ARROW_STREAM, api.LINES}:
            raise BodyError(
                f"content type {kind!r} is not accepted here, expected {api.ARROW_STREAM} or "
                f"{api.LINES}"
            )
        call = checked_call(services, call)
        await check_writable(services, stored_table)  # A table that takes no rows delays nobody.
        await self._sizes.require_safe(stored_table)
        await self._sizes.refresh()
        delay_s, delay_reason = services.buffers.admit(stored_table.id, stored_table.name)
        if delay_s:
            await asyncio.sleep(delay_s)
        async with received_body(request) as body, self._calls:
            rows, size_bytes, repeated = await buffer_rows(
                services, stored_table, await body(), kind, call
            )
        current_call().details = f"rows={0 if repeated else rows}"
        return api.Buffered(
            call=call,
            rows=rows,
            size_bytes=size_bytes,
            durability=services.buffers.durability,
            delay_s=round(delay_s, 3),
            repeated=repeated,
            delay_reason=delay_reason,
        )

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
