"""Reading and writing of rows: add, append, files, scan, count."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, Union, overload
from urllib.parse import quote

from neve import api
from neve.client.http import AsyncConnection, Connection, Parameters, decode, new_call
from neve.client.tables import table_path

if TYPE_CHECKING:
    import pyarrow as pa

    from neve.client.writer import AsyncRowWriter, RowWriter

# --------------------------------------------------------------------------------------------- Rows


class ArrowStream(Protocol):
    """An object that exports a stream of record batches by Arrow's PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a capsule with the stream."""
        ...


class ArrowArray(Protocol):
    """An object that exports one record batch by Arrow's PyCapsule interface."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        """Return two capsules, with the schema and the batch."""
        ...


Rows: TypeAlias = Union[
    "pa.Table",
    "pa.RecordBatch",
    ArrowStream,
    ArrowArray,
    Iterable["pa.RecordBatch"],
    Sequence[Mapping[str, object]],
]
"""Inputs that `append` accepts."""


class RowCalls:
    """Client methods for rows and files."""

    _connection: Connection

    def files(self, table: str) -> list[api.File]:
        """Return the files of a table, tablet by tablet."""
        pages = self._connection.pages(table_path(table, "files"), api.FilePage)
        return [file for page in pages for file in page.files]

    def add_files(
        self,
        table: str,
        paths: Iterable[str],
        *,
        version: int | None = None,
        window: str | None = None,
        call: str | None = None,
    ) -> api.Added:
        """Add Parquet files from below the table's location, all or none.

        Args:
            table: Name of the table.
            paths: Paths relative to the location, or URIs below it.
            version: With `window`: version of the files, from 1.
            window: With `version`: two dates or times in UTC, such as `2026-05-01..2026-05-02`. The
                files replace those of lower versions in this window of time.
            call: Id of this call (`neve.new_call_id()`); reuse it after an unknown outcome.
        """
        body: dict[str, object] = {"paths": [paths] if isinstance(paths, str) else list(paths)}
        body |= {"version": version} if version is not None else {}
        body |= {"window": window} if window is not None else {}
        answer = self._connection.call(
            "POST",
            table_path(table, "files"),
            body=body,
            call=call or new_call(),
        )
        return decode(api.Added, answer)

    def append(
        self,
        table: str,
        rows: Rows,
        *,
        call: str | None = None,
    ) -> api.Added:
        """Add rows, all or none; the service sorts them, splits them by tablet and writes files.

        Args:
            table: Name of the table.
            rows: Columns by name; a missing column is null. An Arrow table or batch, any object
                with Arrow's PyCapsule interface (a Polars, pandas or DuckDB result, a reader),
                an iterable of batches, or a list of dictionaries.
            call: Id of this call (`neve.new_call_id()`); reuse it after an unknown outcome.
        """
        answer = self._connection.call(
            "POST",
            table_path(table, "append"),
            content=self._stream_of(table, rows),
            headers={"Content-Type": api.ARROW_STREAM},
            call=call or new_call(),
        )
        return decode(api.Added, answer)

    def buffer_rows(self, table: str, rows: Rows, *, call: str | None = None) -> api.Buffered:
        """Buffer rows, all or none: scans see them at once; the service flushes them into files.

        Args:
            table: Name of the table.
            rows: As for `append`; at most 4 MiB as an Arrow stream.
            call: Id of this call (`neve.new_call_id()`); reuse it within five minutes after an
                unknown outcome.
        """
        content = self._stream_of(table, rows)
        path = table_path(table, "rows")
        return decode(
            api.Buffered, self._connection.post(path, content, api.ARROW_STREAM, call or new_call())
        )

    def _stream_of(self, table: str, rows: Rows) -> bytes:
        """Return rows as an Arrow stream; dictionaries get the types of their table."""
        from neve.client.arrow import stream_of, table_of

        if isinstance(rows, Sequence) and rows and isinstance(rows[0], Mapping):
            rows = table_of(rows, self._types(table))
        return stream_of(rows)

    def flush(self, table: str, tablet: str | None = None) -> api.FlushedRows:
        """Flush the buffered rows of a table, and wait until they are in files.

        Args:
            table: Name of the table.
            tablet: Flush only the segments of the buffer with rows of this tablet, identified by
                its end. Rows of other tablets in them are flushed, too.
        """
        parameters = {"tablet": tablet}
        answer = self._connection.call("POST", table_path(table, "flush"), parameters=parameters)
        return decode(api.FlushedRows, answer)

    def writer(
        self, table: str, *, rows_max: int = 1000, bytes_max: int = 1 << 20, wait_s: float = 0.5
    ) -> RowWriter:
        """Return a writer of single rows, which buffers them on the service in batches.

            with client.writer("events") as writer:
                writer.write({"id": 1, "name": "a"})

        Args:
            table: Name of the table.
            rows_max: Rows of a batch.
            bytes_max: Approximate size of a batch; at most 2 MiB.
            wait_s: Longest time that a row waits for its batch to be sent.
        """
        from neve.client.writer import RowWriter, WriterLimits

        limits = WriterLimits(rows_max, bytes_max, wait_s)
        return RowWriter(self, table, self._types(table), limits)

    def async_writer(
        self, table: str, *, rows_max: int = 1000, bytes_max: int = 1 << 20, wait_s: float = 0.5
    ) -> AsyncRowWriter:
        """Return a writer for the tasks of an event loop, with the methods of `writer`.

            async with client.async_writer("events") as writer:
                await writer.write({"id": 1, "name": "a"})

        Args:
            table: Name of the table.
            rows_max: Rows of a batch.
            bytes_max: Approximate size of a batch; at most 2 MiB.
            wait_s: Longest time that a row waits for its batch to be sent.
        """
        from neve.client.writer import AsyncRowWriter, WriterLimits

        limits = WriterLimits(rows_max, bytes_max, wait_s)
        return AsyncRowWriter(AsyncRowCalls(self._connection.for_tasks()), table, limits)

    def _types(self, table: str) -> dict[str, str]:
        """Return column name → type of a table, in the notation of the service."""
        return _types_of(self._connection.call("GET", table_path(table)))

    def call(self, table: str, call: str) -> api.Call:
        """Return the outcome of a call id: accepted and with which result, unknown, or too old.

        Args:
            table: Name of the table.
            call: Id that was sent with `add_files`, `append` or `compact`.
        """
        path = table_path(table, f"calls/{quote(call, safe='')}")
        return decode(api.Call, self._connection.call("GET", path))

    @overload
    def scan(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        *,
        batches: Literal[False] = False,
        include_expired: bool | None = None,
        include_deleted: bool = False,
    ) -> pa.Table: ...

    @overload
    def scan(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        *,
        batches: Literal[True],
        include_expired: bool | None = None,
        include_deleted: bool = False,
    ) -> pa.RecordBatchReader: ...

    def scan(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        *,
        batches: bool = False,
        include_expired: bool | None = None,
        include_deleted: bool = False,
    ) -> pa.Table | pa.RecordBatchReader:
        """Return the merged rows of a table: the newest row per key, without deleted rows.

        Args:
            table: Name of the table.
            columns: Columns to return; None: all.
            start: First key, inclusive; None: from the beginning. For a partitioned table, the
                first partition, such as `"2025,4"`.
            end: Last key or partition, inclusive; None: to the end.
            batches: Return a streaming reader, instead of the whole result in memory.
            include_expired: Include expired rows that no compaction has dropped so far; None: as
                the table setting `show_expired_rows` says.
            include_deleted: Include tombstones that no compaction has dropped so far; with the
                table setting `keep_deleted_rows` each is followed by the newest row that it hides.
        """
        from neve.client.arrow import reader_of

        names = None if columns is None else list(columns)
        parameters: Parameters = {"columns": names, "start": start, "end": end}
        opened = self._scan_stream(
            table, {**parameters, **_included(expired=include_expired, deleted=include_deleted)}
        )
        if batches:
            return reader_of(opened)
        return reader_of(opened).read_all()

    def count(
        self,
        table: str,
        start: str | None = None,
        end: str | None = None,
        *,
        include_expired: bool | None = None,
        include_deleted: bool = False,
    ) -> int:
        """Return the number of rows that a scan would return.

        Args:
            table: Name of the table.
            start: First key or partition, inclusive; None: from the beginning.
            end: Last key or partition, inclusive; None: to the end.
            include_expired: As for `scan`.
            include_deleted: As for `scan`.
        """
        parameters: Parameters = {"start": start, "end": end}
        included = _included(expired=include_expired, deleted=include_deleted)
        answer = self._connection.call(
            "GET", table_path(table, "count"), parameters={**parameters, **included}
        )
        return int(answer["rows"])

    def _scan_stream(
        self, table: str, parameters: Parameters
    ) -> Generator[pa.RecordBatch | pa.Schema, None, None]:
        """Yield the schema, then the batches."""
        from neve.client.arrow import arrow_reader

        with (
            self._connection.stream(table_path(table, "scan"), parameters) as chunks,
            arrow_reader(chunks) as reader,
        ):
            yield reader.schema
            yield from reader


def _types_of(answer: Any) -> dict[str, str]:
    """Return column name → type of a described table."""
    return {column.name: column.type for column in decode(api.Table, answer).schema}


class AsyncRowCalls:
    """The calls of an async writer."""

    def __init__(self, connection: AsyncConnection) -> None:
        """Own a connection."""
        self._connection = connection

    async def types(self, table: str) -> Mapping[str, str]:
        """Return column name → type of a table, in the notation of the service."""
        return _types_of(await self._connection.call("GET", table_path(table)))

    async def buffer_rows(
        self, table: str, rows: pa.Table, *, call: str | None = None
    ) -> api.Buffered:
        """Buffer rows; see `RowCalls.buffer_rows`."""
        from neve.client.arrow import stream_of

        content, path = stream_of(rows), table_path(table, "rows")
        answer = await self._connection.call("POST", path, content, api.ARROW_STREAM, call)
        return decode(api.Buffered, answer)

    async def flush(self, table: str) -> api.FlushedRows:
        """Flush the buffered rows of a table, and wait until they are in files."""
        return decode(
            api.FlushedRows, await self._connection.call("POST", table_path(table, "flush"))
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()


def _included(*, expired: bool | None, deleted: bool) -> dict[str, bool]:
    """Return the query parameters that include invisible rows; usually none."""
    visibility = {"include_expired": expired, "include_deleted": deleted or None}
    return {name: value for name, value in visibility.items() if value is not None}
