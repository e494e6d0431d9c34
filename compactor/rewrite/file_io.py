"""Inputs and outputs of a rewrite as files: read errors name the file, outputs are created once.

A row group is paid for before it is read. An output is created under its final name and never
renamed. On a local disk it is created exclusively, flushed while it grows, and synced before it is
complete.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.errors import InputError, RequestError
from common.parquet.file_inspection import open_table_file
from common.parquet.location import Location, open_location
from common.rows.key_encoding import Fill, fill_of_path
from common.rows.rules import RowRules
from common.runtime import SystemClock

# --------------------------------------------------------------------------- Stored bytes of
# columns


Pay = Callable[[int], None]


def leaf_columns(metadata: pq.FileMetaData, columns: Sequence[str] | None) -> list[int]:
    """Return the numbers of the leaf columns that hold some columns of a file.

    Args:
        metadata: The file's footer.
        columns: Names of the columns to read; None: all.
    """
    leaves = range(metadata.num_columns)
    if columns is None:
        return list(leaves)
    paths = [metadata.schema.column(leaf).path for leaf in leaves]
    # As in Arrow, a name also matches all names that begin with it and a dot.
    named = frozenset(columns)
    return [leaf for leaf in leaves if {paths[leaf], paths[leaf].split(".", 1)[0]} & named]


def stored_bytes(metadata: pq.FileMetaData, group: int, leaves: Sequence[int]) -> int:
    """Return the compressed size of leaf columns in a row group."""
    row_group = metadata.row_group(group)
    return sum(row_group.column(leaf).total_compressed_size for leaf in leaves)


def paid_batches(
    parquet: pq.ParquetFile, rows_max: int, columns: Sequence[str] | None, pay: Pay
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file; each row group is paid for before its first row is read.

    A batch may reach into the next row group by less than `rows_max` rows.
    """
    metadata, paid_rows, seen_rows, group = parquet.metadata, 0, 0, 0
    leaves = leaf_columns(metadata, columns)
    batches = parquet.iter_batches(batch_size=rows_max, columns=columns)
    while True:
        while paid_rows <= seen_rows and group < metadata.num_row_groups:
            pay(stored_bytes(metadata, group, leaves))
            paid_rows += metadata.row_group(group).num_rows
            group += 1
        batch = next(batches, None)
        if batch is None:
            return
        seen_rows += batch.num_rows
        yield batch


# -------------------------------------------------------------------------- Flushing a growing file


FLUSH_BYTES = 32 * 1024**2
"""Bytes that are flushed to the disk at a time."""


class Flusher:
    """Syncs one file repeatedly, in a separate thread."""

    def __init__(self, descriptor: int) -> None:
        """Create an idle flusher.

        Args:
            descriptor: Descriptor of the file; closed only after `close`.
        """
        self._descriptor = descriptor
        self._thread = ThreadPoolExecutor(1, "flush")
        self._syncs: list[Future[None]] = []
        self._flushed = 0
        self.sync_s = 0.0
        """Total time of the syncs."""

    def reached(self, position: int) -> None:
        """Start a sync of the bytes written so far, unless a sync is running.

        Raises:
            OSError: An earlier sync failed.
        """
        if position - self._flushed < FLUSH_BYTES or not all(sync.done() for sync in self._syncs):
            return
        self.settle()
        self._flushed = position
        self._syncs = [self._thread.submit(self._sync, os.fdatasync)]

    def finish(self) -> None:
        """Start the last sync, after the running one."""
        self._syncs.append(self._thread.submit(self._sync, os.fsync))

    def settle(self) -> None:
        """Wait for all syncs.

        Raises:
            OSError: One failed.
        """
        for sync in self._syncs:
            sync.result()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _sync(self, call: Callable[[int], None]) -> None:
        clock = SystemClock()
        begun_s = clock.now_s()
        call(self._descriptor)
        self.sync_s += clock.now_s() - begun_s


# ------------------------------------------------------------------------------- Inputs and outputs


def table_location(uri: str) -> Location:
    """Return a table's location.

    Raises:
        InputError: The URI is invalid.
        ConfigError: Its storage cannot be used from this machine.
    """
    try:
        return open_location(uri)
    except RequestError as error:
        raise InputError(str(error)) from error


def folder_and_name(uri: str, path: str) -> tuple[str, str]:
    """Return the location of a file and its path there.

    Args:
        uri: Location of its table.
        path: Path relative to it, or the whole URI of a file that lies elsewhere.
    """
    folder, separator, name = path.rpartition("/")
    return (folder, name) if separator and "://" in path else (uri, path)


@contextmanager
def opened_input(location: Location, path: str) -> Iterator[pq.ParquetFile]:
    """Open an input.

    Raises:
        InputError: It is missing or cannot be read.
        UnavailableError: The storage does not answer.
    """
    try:
        with open_table_file(location, path) as parquet:
            yield parquet
    except RequestError as error:
        raise InputError(str(error)) from error


def read_tables(
    location: Location,
    path: str,
    rows_max: int,
    columns: Sequence[str] | None = None,
    *,
    pay: Pay,
) -> Iterator[pa.Table]:
    """Yield the rows of an input in batches.

    Args:
        location: Location of the table.
        path: Path of the input.
        rows_max: Rows of a batch.
        columns: Wanted columns, if the file has them; at least one is returned. None: all.
        pay: Called with the bytes of each row group before it is read.

    Raises:
        InputError: The file cannot be read completely.
        UnavailableError: The storage does not answer.
    """
    try:
        with open_table_file(location, path) as parquet:
            chosen = None
            if columns is not None:
                names = parquet.schema_arrow.names
                chosen = [name for name in names if name in columns] or names[:1]
            for batch in paid_batches(parquet, rows_max, chosen, pay):
                yield pa.Table.from_batches([batch])
    except RequestError as error:
        raise InputError(str(error)) from error


def folder_fill(rules: RowRules, schema: pa.Schema, path: str) -> Fill:
    """Return the values that an input's folders give for columns it may omit.

    Args:
        rules: Rules of the table.
        schema: Target schema of the rows.
        path: Path of the input.

    Raises:
        InputError: A folder's value does not fit its column.
    """
    try:
        return fill_of_path(rules.partition_by, schema, path)
    except RequestError as error:
        raise InputError(str(error)) from error


def forget_pages(location: Location, paths: Sequence[str]) -> None:
    """Release the pages of files from the page cache, to leave room for other files.

    Only for a local disk, and on this node. It is a hint: pages that are not durable or are
    mapped stay, and files that cannot be opened are ignored.
    """
    if not location.is_local:
        return
    for path in paths:
        with suppress(OSError):
            descriptor = os.open(location.full(path), os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def delete_file(location: Location, path: str) -> bool:
    """Delete a file; return whether it is gone. A missing file counts as gone."""
    try:
        location.filesystem.delete_file(location.full(path))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


class NewFile:
    """A file during the write. It is complete only after `close`; before, it may be abandoned."""

    def __init__(self, location: Location, path: str) -> None:
        """Create the file.

        Raises:
            OSError: It exists already (on a local disk), or cannot be created.
        """
        self._location = location
        self._path = path
        self._full = location.full(path)
        self.sync_s = 0.0
        """Time that a local disk took to make it durable; known after it is closed."""
        self.sink: Any
        self._flusher: Flusher | None = None
        if location.is_local:
            Path(self._full).parent.mkdir(parents=True, exist_ok=True)
            # Exclusive: another writer of this file would be a bug that must not go unnoticed.
            self.sink = open(self._full, "xb")  # noqa: SIM115 - closed by close or abandon
            self._flusher = Flusher(self.sink.fileno())
        else:
            # An object becomes visible as a whole when the stream is closed.
            self.sink = location.filesystem.open_output_stream(self._full)

    def reached(self, position: int) -> None:
        """Make a local disk start writing the data up to a position.

        Raises:
            OSError: An earlier write failed.
        """
        if self._flusher is not None:
            self._flusher.reached(position)

    def close(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Make the file durable.

        Args:
            meanwhile: Called once all bytes are written, while a local disk makes them durable; it
                may read the file.

        Raises:
            OSError: It is not durable.
        """
        if self._flusher is not None:
            self.sink.flush()
            self._flusher.finish()
            try:
                meanwhile()
            finally:
                self._flusher.settle()
            self._flusher.close()
            self.sync_s = self._flusher.sync_s
            self.sink.close()
            _sync_folder(Path(self._full).parent)
        else:
            self.sink.close()
            meanwhile()

    def abandon(self) -> None:
        """Delete the file, whatever its state."""
        if self._flusher is not None:
            self._flusher.close()
        with suppress(OSError, ValueError):
            self.sink.close()
        delete_file(self._location, self._path)


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # Some file systems cannot; they order names themselves.
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------ Timestamps of 96 bits


INT96_UNIT = "us"
"""Lake tables keep microseconds; nanoseconds could not hold distant times."""


def unmarked_instants(
    metadata: pq.FileMetaData, named: Mapping[str, str], schema: pa.Schema
) -> list[str]:
    """Return the columns of timestamps of 96 bits that are instants, but do not say so."""
    columns = map(metadata.schema.column, range(metadata.num_columns))
    paths = [column.path for column in columns if column.physical_type == "INT96"]
    names = [named[path] for path in paths if path in named]
    return [name for name in names if getattr(schema.field(name).type, "tz", None)]


def with_zone(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """Return rows with a zone in columns that have none."""
    for name in names:
        at = table.column_names.index(name)
        table = table.set_column(at, name, pc.assume_timezone(table.column(at), "UTC"))
    return table
