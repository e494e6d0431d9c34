"""Routes of files and rows, and appends.

An append splits rows by tablet, sorts them, writes files below `_neve/append/`, and adds the files.

The mark of the call makes repetitions safe: it contains a digest of the rows that does not depend
on their order. Every try writes its own files; the listing sweep finds files that were never added.
"""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import replace
from struct import Struct, error
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
from fastapi import Query, Request

from common.errors import RequestError
from common.metadata.store_values import CallKind, CallMark
from common.model.location_identity import append_file_names
from common.model.table import Table
from common.parquet.append import content_digest, cut_by_tablet
from common.rows.conform import conform, refuse_nulls
from common.rows.key_encoding import encode_column
from common.rows.row_facts import RowTally
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema
from neve import api
from neve.gateway.access.callers import READ, WRITE, route
from neve.gateway.bodies import received_body
from neve.gateway.key_views import file_view, key_types
from neve.gateway.problems import BodyError, TooLargeError
from neve.gateway.rows.add import (
    IncomingFiles,
    RoutedFiles,
    add_files,
    add_incoming,
    append_targets,
    checked_window,
    refuse_future_versions,
    refuse_unknown_columns,
)
from neve.gateway.rows.calls import Call, call_once, call_view, checked_call, require_same_call
from neve.gateway.services import PAGE_TABLETS, Services, bounded_count

# -------------------------------------------------------------------------------------- Stream size
# The decompressed size of an Arrow IPC stream, computed from its metadata alone.
#
# A compressed buffer begins with its decompressed length, eight bytes that decide how much Arrow
# allocates before it looks at the rest. 131 kB can request 4 GiB. So this module walks the messages
# first and reads the few flatbuffer fields that matter (Arrow columnar format 1.5, `Message.fbs`).
# It allocates no more than the stream holds, and an offset outside the stream is an error.


_CONTINUATION = 0xFFFFFFFF
_U32, _I32, _U16, _I64, _BUFFER = (
    Struct("<I"),
    Struct("<i"),
    Struct("<H"),
    Struct("<q"),
    Struct("<qq"),
)
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_BUFFERS, _COMPRESSION = 2, 3
_DATA = 1


def stream_memory_bytes(stream: bytes) -> int:
    """Return the number of bytes of a stream's buffers after decompression.

    Raises:
        ValueError: The stream has incomplete messages, or an invalid length.
    """
    try:
        return _batches_bytes(stream)
    except (error, IndexError) as broken:
        raise ValueError(f"a message is damaged: {broken}") from broken


def _batches_bytes(stream: bytes) -> int:
    """Return the decompressed size of all batches, without generators: it runs for each call."""
    total = at = 0
    while at + 4 <= len(stream):
        size = _U32.unpack_from(stream, at)[0]
        at += 4
        if size == _CONTINUATION:
            size = _U32.unpack_from(stream, at)[0]
            at += 4
        if size == 0:
            break
        message = _target(stream, at)
        body = at + size
        length_at = _field(stream, message, _BODY_LENGTH)
        length = _I64.unpack_from(stream, length_at)[0] if length_at else 0
        if length < 0 or body + length > len(stream):
            raise ValueError(f"a message has a body of {length} bytes, which exceeds the stream")
        at = body + length
        if batch := _batch_of(stream, message):
            total += _batch_bytes(stream, batch, body, at)
    return total


def _batch_of(stream: bytes, message: int) -> int:
    """Return the offset of the batch table of a message; 0: the message is no batch."""
    kind_at = _field(stream, message, _HEADER_TYPE)
    kind = stream[kind_at] if kind_at else 0
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0
    header_at = _field(stream, message, _HEADER)
    if not header_at:
        return 0
    batch = _target(stream, header_at)
    if kind == _RECORD_BATCH:
        return batch
    data_at = _field(stream, batch, _DATA)
    return _target(stream, data_at) if data_at else 0


def _batch_bytes(stream: bytes, batch: int, body: int, end: int) -> int:
    """Return the decompressed size of a batch's buffers."""
    buffers_at = _field(stream, batch, _BUFFERS)
    if not buffers_at:
        return 0
    vector = _target(stream, buffers_at)
    count = _U32.unpack_from(stream, vector)[0]
    first, end_of_buffers = vector + 4, vector + 4 + count * _BUFFER.size
    if end_of_buffers > len(stream):
        raise ValueError(f"a batch has {count} buffers, which exceed the stream")
    packed = bool(_field(stream, batch, _COMPRESSION))
    total = 0
    for offset, length in _BUFFER.iter_unpack(stream[first:end_of_buffers]):
        begin = body + offset
        if offset < 0 or length < 0 or begin + length > end:
            raise ValueError(f"a buffer of {length} bytes at {offset} is outside its message")
        total += _unpacked(stream, begin, length) if packed and length else length
    return total


def _unpacked(stream: bytes, begin: int, length: int) -> int:
    """Return the decompressed length of a buffer; a stored -1 marks an uncompressed buffer."""
    if length < _I64.size:
        raise ValueError(f"a compressed buffer has only {length} bytes")
    stated: int = _I64.unpack_from(stream, begin)[0]
    if stated < -1:
        raise ValueError(f"a compressed buffer claims to hold {stated} bytes")
    return length - _I64.size if stated == -1 else stated


def _target(stream: bytes, at: int) -> int:
    """Return the target of the offset that is stored at a position."""
    target: int = at + _U32.unpack_from(stream, at)[0]
    return target


def _field(stream: bytes, table: int, number: int) -> int:
    """Return the position of a table's field; 0: the field is omitted."""
    vtable = table - _I32.unpack_from(stream, table)[0]
    if vtable < 0:
        raise ValueError(f"a table of fields begins at {vtable}")
    size = _U16.unpack_from(stream, vtable)[0]
    entry = 4 + 2 * number
    if entry + 2 > size:
        return 0
    offset = _U16.unpack_from(stream, vtable + entry)[0]
    return table + offset if offset else 0


# ------------------------------------------------------------------------------------------- Append


DECODED_FACTOR_MAX = 4
"""Limit of the decoded size, in multiples of the largest body; bodies may be compressed."""


async def append_rows(services: Services, table: Table, body: bytes, call: str | None) -> api.Added:
    """Append the rows of an Arrow stream: all of them, or none.

    Args:
        services: Ports and settings.
        table: The table.
        body: An Arrow IPC stream.
        call: Call id from the caller.

    Raises:
        RequestError: The body is not an Arrow stream, has no rows, or does not fit the schema.
        RefusedError: The table or a tablet does not accept rows now.
    """
    call = checked_call(services, call)

    async def same(mark: CallMark) -> None:
        rows = await _rows_of(services, table, body)
        content = await services.rows.run(table.location, content_digest, rows)
        require_same_call(call, mark, CallKind.APPEND, content)

    async def make(_: float) -> api.Added:
        rows = await _rows_of(services, table, body)
        return await _append_rows(services, table, rows, call)

    return await call_once(services, table, call, same=same, make=make)


async def _rows_of(services: Services, table: Table, body: bytes) -> pa.Table:
    """Return the rows of a body, converted to the columns of their table."""
    bytes_max = DECODED_FACTOR_MAX * services.settings.gateway.body_bytes_max
    rows = await services.rows.run(table.location, read_stream, body, bytes_max)
    refuse_unknown_columns(table, [("the body", rows.schema)])
    return await services.rows.run(table.location, fit_to_schema, rows, table)


async def _append_rows(services: Services, table: Table, rows: pa.Table, call: str) -> api.Added:
    # Compute the digest concurrently with the writing: for long texts it takes as much CPU time.
    digesting = asyncio.create_task(services.rows.run(table.location, content_digest, rows))

    async def prepare(now_s: float, ends: Collection[bytes]) -> RoutedFiles:
        ahead_max_s = services.settings.gateway.version_ahead_max_s
        refuse_future_versions(table, [("a row", highest_version(rows, table))], now_s, ahead_max_s)
        targets = [] if table.partition_by else await append_targets(services, table, ends)
        routed = RoutedFiles()
        parts = await services.rows.run(table.location, cut_by_tablet, rows, table, targets)
        # Every try uses new names: a sweep may already be discarding the files of the last try.
        names = append_file_names(call, services.ids.next("try"), len(parts))
        for part, name in zip(parts, names, strict=True):
            path = part.path(name)
            write = services.files.write
            facts = await services.rows.run(table.location, write, table, path, part.rows)
            await services.foreground.pay(services, table.settings.volume, facts.size_bytes)
            file = replace(facts.data_file(added_at_s=now_s), schema_id=table.schema_id)
            routed.put(part.end, file, part.partition)
        routed.content = await digesting
        return routed

    incoming = IncomingFiles(services=services, table=table, call=call, kind=CallKind.APPEND)
    try:
        return await add_incoming(incoming, prepare)
    finally:
        digesting.cancel()


def highest_version(rows: pa.Table, table: Table) -> bytes | None:
    """Return the highest version in the rows; None: the table has no version column."""
    if table.version_column is None:
        return None
    highest = pa.array([pc.max(rows.column(table.version_column))])
    latest: bytes = encode_column(highest, RowRules.of(table).version_type)[0].as_py()
    return latest


def fit_to_schema(rows: pa.Table, table: Table) -> pa.Table:
    """Convert rows to the columns and types of their table.

    Raises:
        RequestError: A column is missing, does not fit, or has nulls although it is required.
    """
    RowTally(RowRules.of(table)).require(rows.schema.names, "the body")
    conformed = conform(rows, arrow_schema(table.schema), "the body")
    refuse_nulls(conformed, "the body")  # Arrow trusts a producer's claim that there are no nulls.
    return conformed


def read_stream(body: bytes, bytes_max: int, size_bytes: int | None = None) -> pa.Table:
    """Return the rows of an Arrow IPC stream.

    Args:
        body: The stream.
        bytes_max: Limit of the rows' size in memory.
        size_bytes: `stream_memory_bytes` of the body; None: not computed so far.

    Raises:
        RequestError: The body is not an Arrow IPC stream, or has no rows.
        TooLargeError: The rows exceed the limit.
    """
    try:
        # Check before Arrow allocates memory: compressed buffers may declare any length.
        if size_bytes is None:
            size_bytes = stream_memory_bytes(body)
        if size_bytes > bytes_max:
            raise TooLargeError(f"the rows take more than {bytes_max} bytes: append them in parts")
        with pa.ipc.open_stream(body) as reader:
            _require_text(reader.schema)
            batches = []
            for batch in reader:
                batch.validate(full=True)
                batches.append(batch)
            rows = pa.Table.from_batches(batches, reader.schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RequestError(f"the body is not an Arrow IPC stream: {error}") from error
    if rows.num_rows == 0:
        raise RequestError("the body contains no rows, expected at least one")
    return rows


def _require_text(schema: pa.Schema) -> None:
    """Reject names that are not UTF-8, which Arrow would detect only when they are used.

    Raises:
        RequestError: The name of a column, a nested field or a time zone is not UTF-8.
    """
    try:
        for field in schema:
            for _ in _texts(field):
                pass
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the body has a column or time zone name that is not UTF-8: {error.object!r:.80}"
        ) from error


_WITHOUT_TEXT = frozenset(
    {
        *(pa.int8().id, pa.int16().id, pa.int32().id, pa.int64().id, pa.date32().id),
        *(pa.float32().id, pa.float64().id, pa.bool_().id, pa.string().id, pa.binary().id),
    }
)
"""Frequent types without names or time zones."""


def _texts(field: pa.Field) -> Iterator[str | None]:
    """Yield the texts in a field and its type."""
    yield field.name
    arrow = field.type
    if arrow.id in _WITHOUT_TEXT:
        return
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    if pa.types.is_dictionary(arrow) or pa.types.is_run_end_encoded(arrow):
        arrow = arrow.value_type
    if pa.types.is_timestamp(arrow):
        yield arrow.tz
    for number in range(arrow.num_fields):
        yield from _texts(arrow.field(number))


# ------------------------------------------------------------------------------------------- Routes


APPENDS_AT_ONCE = 3
"""Limit of concurrent appends, because their bodies are in memory; further appends wait."""

_BINARY = {"type": "string", "format": "binary"}
_ARROW_BODY = {"requestBody": {"content": {api.ARROW_STREAM: {"schema": _BINARY}}}}


class IngestRoutes:
    """Routes of files and rows under `/v1/tables/{table}`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._appends = asyncio.Semaphore(APPENDS_AT_ONCE)

    @route("GET /v1/tables/{table}/files", READ)
    async def files(
        self,
        table: str,
        after: Annotated[
            str | None, Query(description="Return only files of tablets after this one.")
        ] = None,
        count: Annotated[
            int, Query(description="Number of tablets at most whose files are returned.")
        ] = PAGE_TABLETS,
        tablet: Annotated[
            str | None, Query(description="Return only the files of this tablet.")
        ] = None,
    ) -> api.FilePage:
        """Return a page of files, tablet by tablet.

        Pass `next` as `after` to get the following page.
        """
        services = self._services
        stored_table = await services.table(table)
        count = bounded_count(count, PAGE_TABLETS, "count")
        ids = await services.page_of_ids(stored_table, after, count, tablet)
        types = key_types(stored_table)
        files = [
            file_view(file, tablet.text, types)
            for tablet, tablet_files in zip(ids, await services.store.files(ids), strict=True)
            for _, file in sorted(tablet_files.items())
        ]
        following = ids[-1].text if len(ids) == count and tablet is None else None
        return api.FilePage(files=tuple(files), next=following)

    @route("POST /v1/tables/{table}/files", WRITE)
    async def add(self, table: str, body: api.NewFiles, call: Call = None) -> api.Added:
        """Add Parquet files that lie in the location of the table.

        All files are added, or none. A call takes at most 10,000 files. With `version` and
        `window` they replace the files of lower versions in a window of time.
        """
        stored_table = await self._services.table(table)
        window = checked_window(stored_table, body.version, body.window)
        return await add_files(self._services, stored_table, body.paths, call, window=window)

    @route("POST /v1/tables/{table}/append", WRITE, openapi_extra=_ARROW_BODY)
    async def append(self, table: str, request: Request, call: Call = None) -> api.Added:
        """Append the rows of an Arrow IPC stream: all rows, or none.

        The service sorts the rows and writes one file or more per tablet.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != api.ARROW_STREAM:
            raise BodyError(
                f"content type {kind!r} is not accepted here, expected {api.ARROW_STREAM}"
            )
        stored_table = await self._services.table(table)
        # Receive the body before entering the semaphore: a slow sender must not block others.
        async with received_body(request) as body, self._appends:
            return await append_rows(self._services, stored_table, await body.read(), call)

    @route("GET /v1/tables/{table}/calls/{call}", READ)
    async def call(self, table: str, call: str) -> api.Call:
        """Return what became of a call: it was accepted, is unknown, or is too old to be known."""
        return await call_view(self._services, await self._services.table(table), call)
