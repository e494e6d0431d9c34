"""Many small writes: rows are gathered into batches, which a thread buffers on the service.

    write → batch of rows → thread: one call per batch, with an id of its own → acknowledged

A batch is sent when it has enough rows or bytes, or when its first row has waited long enough.
Batches are sent one after the other, in their order. A batch keeps its call id however often it is
sent, so it counts once. Rows that are not acknowledged are lost if the process of the writer ends.
"""

import threading
import time  # noqa: TID251  the client may import no clock of the project
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from neve.api import Buffered, FlushedRows
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


class BufferCalls(Protocol):
    """The calls of a client that a writer makes."""

    def buffer_rows(self, table: str, rows: "pa.Table", *, call: str | None = None) -> Buffered:
        """Buffer rows, all or none."""
        ...

    def flush(self, table: str) -> FlushedRows:
        """Flush the buffered rows of a table."""
        ...


@dataclass(slots=True)
class _Batch:
    """Rows that are sent together, under one id."""

    rows: "pa.Table"
    call: str
    made_s: float


class RowWriter:
    """Writes rows of one table. Safe to share between threads.

    An error of a batch ends the writer: the next `write`, `flush` or `close` raises it. Rows of
    that batch and of later ones are then not acknowledged.
    """

    def __init__(
        self,
        client: BufferCalls,
        table: str,
        types: Mapping[str, str],
        *,
        rows_max: int,
        bytes_max: int,
        wait_s: float,
    ) -> None:
        """Create a writer, and start its thread. `Client.writer` describes the arguments."""
        if rows_max < 1 or wait_s <= 0 or not 1 <= bytes_max <= BYTES_MAX:
            raise CallerError(
                f"a writer with rows_max={rows_max}, bytes_max={bytes_max} and wait_s={wait_s} is "
                f"not possible; expected at least 1 row, 1 to {BYTES_MAX} bytes, more than 0 s"
            )
        self._client, self._table, self._types = client, table, dict(types)
        self._rows_max, self._bytes_max, self._wait_s = rows_max, bytes_max, wait_s
        self._rows: list[pa.Table] = []
        self._count, self._size_bytes, self._first_s = 0, 0, 0.0
        self._batches: deque[_Batch] = deque()
        self._failure: NeveError | None = None
        self._closed = False
        self._changed = threading.Condition()
        self.acknowledged = 0
        """Rows that the service has acknowledged."""
        self._thread = threading.Thread(target=self._run, name=f"writer {table}", daemon=True)
        self._thread.start()

    def write(self, *rows: Mapping[str, Any]) -> None:
        """Write rows: columns by name, a missing column is null. Waits while batches are full.

        Raises:
            CallerError: A value does not fit its column. No row of this call was taken.
            NeveError: An earlier batch failed.
        """
        from neve.client.arrow import table_of

        checked = table_of(rows, self._types)  # Before it is mixed with rows of other callers.
        with self._changed:
            self._raise_failure()
            if not self._rows:
                self._first_s = time.monotonic()
            self._rows.append(checked)
            self._count += checked.num_rows
            self._size_bytes += checked.nbytes
            if self._count >= self._rows_max or self._size_bytes >= self._bytes_max:
                self._cut()
            self._changed.notify_all()
            while len(self._batches) > BATCHES_MAX and self._failure is None:
                self._changed.wait()
            self._raise_failure()

    def sync(self) -> int:
        """Send all rows, wait until they are acknowledged, and return their number so far.

        Raises:
            NeveError: A batch failed.
        """
        with self._changed:
            self._cut()
            self._changed.notify_all()
            while self._batches and self._failure is None:
                self._changed.wait()
            self._raise_failure()
            return self.acknowledged

    def flush(self) -> FlushedRows:
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
            if not self._closed:
                self.sync()
        finally:
            with self._changed:
                self._closed = True
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

    # ---------------------------------------------------------------------------------- Batches

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise CallerError(f"the writer of table {self._table!r} is closed")

    def _cut(self) -> None:
        """Make a batch of the rows that wait."""
        import pyarrow as pa

        if not self._rows:
            return
        # A column that some rows lack is null in them.
        rows = pa.concat_tables(self._rows, promote_options="default").combine_chunks()
        self._rows, self._count, self._size_bytes = [], 0, 0
        for part in _parts(rows, self._bytes_max):
            self._batches.append(_Batch(part, new_call(), time.monotonic()))

    def _run(self) -> None:
        """Send batches until the writer is closed or fails."""
        while (batch := self._next()) is not None:
            try:
                self._send(batch)
            except NeveError as error:
                failure: NeveError | None = error
            except Exception as error:
                failure = NeveError(f"a batch of {batch.rows.num_rows} rows was not sent: {error}")
            else:
                failure = None
            with self._changed:
                self._failure = failure
                if failure is None:
                    self._batches.popleft()
                    self.acknowledged += batch.rows.num_rows
                self._changed.notify_all()
            if failure is not None:
                return

    def _next(self) -> _Batch | None:
        """Return the next batch when there is one; None: the writer is closed."""
        with self._changed:
            while True:
                if self._batches:
                    return self._batches[0]
                if self._closed:
                    return None
                left_s = self._first_s + self._wait_s - time.monotonic() if self._rows else None
                if left_s is not None and left_s <= 0:
                    self._cut()
                    continue
                self._changed.wait(left_s)

    def _send(self, batch: _Batch) -> None:
        """Send a batch until it is acknowledged, refused, or too old to be sent again."""
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                self._client.buffer_rows(self._table, batch.rows, call=batch.call)
            except UnavailableError as error:
                if time.monotonic() + pause_s - batch.made_s > RETRY_S:
                    raise
                _ = error
            else:
                return
            time.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, 2 * pause_s)


def _parts(rows: "pa.Table", bytes_max: int) -> Iterable["pa.Table"]:
    """Cut rows into parts of about this size."""
    count = max(1, -(-rows.nbytes // bytes_max))
    step = -(-rows.num_rows // count)
    return [rows.slice(at, step) for at in range(0, rows.num_rows, step)]
