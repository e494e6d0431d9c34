"""Many small writes: rows are gathered into batches, which are buffered on the service.

    write → batch of rows → one call per batch, with an id of its own → acknowledged

    PendingRows      rows that are not acknowledged: what is sent next, and when it is sent again
    RowWriter        has a thread that sends them
    AsyncRowWriter   has a task that sends them

A batch is sent when it has enough rows or bytes, or when its first row has waited long enough.
Batches are sent one after the other, in their order. A batch keeps its call id however often it is
sent, so it counts once. Rows that are not acknowledged are lost if the process of the writer ends.
"""

from __future__ import annotations

import asyncio
import threading
import time  # noqa: TID251  the client may import no clock of the project
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from neve import api
from neve.client.errors import CallerError, NeveError, UnavailableError
from neve.client.http import new_call

if TYPE_CHECKING:
    import pyarrow as pa

BATCHES_MAX = 4
"""Batches that wait to be sent; above that, `write` waits."""
BYTES_MAX = 2 * 1024**2
"""Largest size of a batch: the service takes 4 MiB."""
RETRY_S = 240.0
"""How long a batch is sent again: shorter than the five minutes that the service knows its id."""
PAUSE_FIRST_S, PAUSE_MAX_S = 0.2, 5.0


# ------------------------------------------------------------------------------------- Pending rows


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """When the rows of a writer are sent."""

    rows_max: int
    bytes_max: int
    wait_s: float

    def __post_init__(self) -> None:
        """Refuse limits that make no batches.

        Raises:
            CallerError: A limit is out of range.
        """
        if self.rows_max < 1 or self.wait_s <= 0 or not 1 <= self.bytes_max <= BYTES_MAX:
            raise CallerError(
                f"a writer with rows_max={self.rows_max}, bytes_max={self.bytes_max} and "
                f"wait_s={self.wait_s} is not possible; expected at least 1 row, 1 to {BYTES_MAX} "
                "bytes, more than 0 s"
            )


@dataclass(slots=True)
class Batch:
    """Rows that are sent together, under one id."""

    rows: pa.Table
    call: str
    made_s: float
    lost: int = 0
    """Number of tries without an answer."""

    def pause_s(self) -> float | None:
        """Return the pause before the next try; None: the batch is too old to be sent again."""
        pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(self.lost, 10))
        self.lost += 1
        return None if time.monotonic() + pause_s - self.made_s > RETRY_S else pause_s


class PendingRows:
    """The rows of a writer that are not acknowledged. Knows neither threads nor tasks."""

    def __init__(self, table: str, limits: WriterLimits) -> None:
        """Start without rows."""
        self._table, self._limits = table, limits
        self._rows: list[pa.Table] = []
        self._count, self._size_bytes, self._first_s = 0, 0, 0.0
        self.batches: deque[Batch] = deque()
        """Batches to send, in their order; the first one may be on its way."""
        self.failure: NeveError | None = None
        self.is_closed = False
        self.acknowledged = 0

    @property
    def is_full(self) -> bool:
        """Whether a caller has to wait after its rows were put."""
        return len(self.batches) > BATCHES_MAX and self.failure is None

    @property
    def is_sending(self) -> bool:
        """Whether there are batches that may still be acknowledged."""
        return bool(self.batches) and self.failure is None

    def put(self, rows: pa.Table) -> None:
        """Add rows, and make a batch if there are enough.

        Raises:
            NeveError: A batch failed, or the writer is closed.
        """
        self.raise_failure()
        if not self._rows:
            self._first_s = time.monotonic()
        self._rows.append(rows)
        self._count += rows.num_rows
        self._size_bytes += rows.nbytes
        if self._count >= self._limits.rows_max or self._size_bytes >= self._limits.bytes_max:
            self.cut()

    def cut(self) -> None:
        """Make a batch of the rows that wait, or more if they are large."""
        import pyarrow as pa

        if not self._rows:
            return
        # A column that some rows lack is null in them.
        rows = self._rows[0]
        if len(self._rows) > 1:
            rows = pa.concat_tables(self._rows, promote_options="default").combine_chunks()
        self._rows, self._count, self._size_bytes = [], 0, 0
        for part in _parts(rows, self._limits.bytes_max):
            self.batches.append(Batch(part, new_call(), time.monotonic()))

    def next(self) -> Batch | float | None:
        """Return the batch to send; or how long to wait for one, None: until rows are put."""
        if self._rows and self._first_s + self._limits.wait_s <= time.monotonic():
            self.cut()
        if self.batches:
            return self.batches[0]
        if not self._rows:
            return None
        return max(0.0, self._first_s + self._limits.wait_s - time.monotonic())

    def sent(self, batch: Batch, error: Exception | None) -> None:
        """Count a batch that was acknowledged; an error ends the writer."""
        if error is None:
            self.batches.popleft()
            self.acknowledged += batch.rows.num_rows
        elif isinstance(error, NeveError):
            self.failure = error
        else:
            self.failure = NeveError(f"a batch of {batch.rows.num_rows} rows was not sent: {error}")

    def raise_failure(self) -> None:
        """Raise the error that has ended the writer.

        Raises:
            NeveError: A batch failed, or the writer is closed.
        """
        if self.failure is not None:
            raise self.failure
        if self.is_closed:
            raise CallerError(f"the writer of table {self._table!r} is closed")


def _parts(rows: pa.Table, bytes_max: int) -> Iterable[pa.Table]:
    """Cut rows into parts of about this size."""
    count = max(1, -(-rows.nbytes // bytes_max))
    if count == 1:
        return [rows]
    step = -(-rows.num_rows // count)
    return [rows.slice(at, step) for at in range(0, rows.num_rows, step)]


# ----------------------------------------------------------------------------------------- A thread


class BufferCalls(Protocol):
    """The calls of a client that a writer makes."""

    def buffer_rows(self, table: str, rows: pa.Table, *, call: str | None = None) -> api.Buffered:
        """Buffer rows, all or none."""
        ...

    def flush(self, table: str) -> api.FlushedRows:
        """Flush the buffered rows of a table."""
        ...


class RowWriter:
    """Writes rows of one table. Safe to share between threads.

    An error of a batch ends the writer: the next `write`, `flush` or `close` raises it. Rows of
    that batch and of later ones are then not acknowledged.
    """

    def __init__(
        self, client: BufferCalls, table: str, types: Mapping[str, str], limits: WriterLimits
    ) -> None:
        """Create a writer, and start its thread. `Client.writer` describes the limits."""
        self._client, self._table, self._types = client, table, dict(types)
        self._pending = PendingRows(table, limits)
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"writer {table}", daemon=True)
        self._thread.start()

    @property
    def acknowledged(self) -> int:
        """Rows that the service has acknowledged."""
        return self._pending.acknowledged

    def write(self, *rows: Mapping[str, Any]) -> None:
        """Write rows: columns by name, a missing column is null. Waits while batches are full.

        Raises:
            CallerError: A value does not fit its column. No row of this call was taken.
            NeveError: An earlier batch failed.
        """
        from neve.client.arrow import table_of

        checked = table_of(rows, self._types)  # Before it is mixed with rows of other callers.
        with self._changed:
            self._pending.put(checked)
            self._changed.notify_all()
            while self._pending.is_full:
                self._changed.wait()
            self._pending.raise_failure()

    def sync(self) -> int:
        """Send all rows, wait until they are acknowledged, and return their number so far.

        Raises:
            NeveError: A batch failed.
        """
        with self._changed:
            self._pending.cut()
            self._changed.notify_all()
            while self._pending.is_sending:
                self._changed.wait()
            self._pending.raise_failure()
            return self._pending.acknowledged

    def flush(self) -> api.FlushedRows:
        """Send all rows, and wait until the buffer of the table is in files.

        Raises:
            NeveError: A batch failed, or the flush did: the rows are acknowledged then.
        """
        self.sync()
        return self._client.flush(self._table)

    def close(self) -> None:
        """Send all rows, wait until they are acknowledged, and end the writer.

        Raises:
            NeveError: A batch failed.
        """
        try:
            if not self._pending.is_closed:
                self.sync()
        finally:
            with self._changed:
                self._pending.is_closed = True
                self._changed.notify_all()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except NeveError:
            if kind is None:
                raise  # Otherwise the error of the block is reported.

    def _run(self) -> None:
        """Send batches until the writer is closed or fails."""
        while (batch := self._next()) is not None:
            failure: Exception | None = None
            try:
                self._send(batch)
            except Exception as error:
                failure = error
            with self._changed:
                self._pending.sent(batch, failure)
                self._changed.notify_all()
            if failure is not None:
                return

    def _next(self) -> Batch | None:
        """Return the next batch when there is one; None: the writer is closed."""
        with self._changed:
            while not isinstance(batch := self._pending.next(), Batch):
                if self._pending.is_closed:
                    return None
                self._changed.wait(batch)
            return batch

    def _send(self, batch: Batch) -> None:
        """Send a batch until it is acknowledged, refused, or too old to be sent again."""
        while True:
            try:
                self._client.buffer_rows(self._table, batch.rows, call=batch.call)
            except UnavailableError:
                if (pause_s := batch.pause_s()) is None:
                    raise
            else:
                return
            time.sleep(pause_s)


# ------------------------------------------------------------------------------------------- A task


class AsyncBufferCalls(Protocol):
    """The calls that an async writer makes."""

    async def types(self, table: str) -> Mapping[str, str]:
        """Return column name → type of a table."""
        ...

    async def buffer_rows(
        self, table: str, rows: pa.Table, *, call: str | None = None
    ) -> api.Buffered:
        """Buffer rows, all or none."""
        ...

    async def flush(self, table: str) -> api.FlushedRows:
        """Flush the buffered rows of a table."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class AsyncRowWriter:
    """Writes rows of one table from the tasks of one event loop: a `RowWriter` without a thread.

    Use it by `async with`. A block that is cancelled does not wait for its rows; the first
    `acknowledged` of them have arrived.
    """

    def __init__(self, calls: AsyncBufferCalls, table: str, limits: WriterLimits) -> None:
        """Create a writer. `Client.async_writer` describes the limits."""
        self._calls, self._table = calls, table
        self._types: Mapping[str, str] = {}
        self._pending = PendingRows(table, limits)
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    @property
    def acknowledged(self) -> int:
        """Rows that the service has acknowledged."""
        return self._pending.acknowledged

    async def write(self, *rows: Mapping[str, Any]) -> None:
        """Write rows: columns by name, a missing column is null. Waits while batches are full.

        Raises:
            CallerError: A value does not fit its column. No row of this call was taken.
            NeveError: An earlier batch failed.
        """
        from neve.client.arrow import table_of

        assert self._task is not None, "the writer is used outside `async with`"
        checked = table_of(rows, self._types)
        async with self._changed:
            self._pending.put(checked)
            self._changed.notify_all()
            while self._pending.is_full:
                await self._changed.wait()
            self._pending.raise_failure()

    async def sync(self) -> int:
        """Send all rows, wait until they are acknowledged, and return their number so far.

        Raises:
            NeveError: A batch failed.
        """
        async with self._changed:
            self._pending.cut()
            self._changed.notify_all()
            while self._pending.is_sending:
                await self._changed.wait()
            self._pending.raise_failure()
            return self._pending.acknowledged

    async def flush(self) -> api.FlushedRows:
        """Send all rows, and wait until the buffer of the table is in files.

        Raises:
            NeveError: A batch failed, or the flush did: the rows are acknowledged then.
        """
        await self.sync()
        return await self._calls.flush(self._table)

    async def close(self) -> None:
        """Send all rows, wait until they are acknowledged, and end the writer.

        Raises:
            NeveError: A batch failed.
        """
        try:
            if not self._pending.is_closed:
                await self.sync()
        finally:
            await self._end()

    async def __aenter__(self) -> Self:
        try:
            self._types = await self._calls.types(self._table)
        except BaseException:
            await self._calls.close()
            raise
        self._task = asyncio.create_task(self._run(), name=f"writer {self._table}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            await self._end()
            return
        try:
            await self.close()
        except NeveError:
            if kind is None:
                raise  # Otherwise the error of the block is reported.

    async def _end(self) -> None:
        """End the task, and close the connections."""
        self._pending.is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._calls.close()

    async def _run(self) -> None:
        """Send batches until the task is cancelled or a batch fails."""
        failure: Exception | None = None
        while failure is None:
            batch = await self._next()
            try:
                await self._send(batch)
            except Exception as error:
                failure = error
            async with self._changed:
                self._pending.sent(batch, failure)
                self._changed.notify_all()

    async def _next(self) -> Batch:
        async with self._changed:
            while not isinstance(batch := self._pending.next(), Batch):
                with suppress(TimeoutError):
                    async with asyncio.timeout(batch):
                        await self._changed.wait()
            return batch

    async def _send(self, batch: Batch) -> None:
        """Send a batch until it is acknowledged, refused, or too old to be sent again."""
        while True:
            try:
                await self._calls.buffer_rows(self._table, batch.rows, call=batch.call)
            except UnavailableError:
                if (pause_s := batch.pause_s()) is None:
                    raise
            else:
                return
            await asyncio.sleep(pause_s)
