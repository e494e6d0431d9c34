"""The folder of an attempt on the compactor's own disk, and the reports of tasks in it.

The folder holds runs and parts of a merge. Each task also keeps small files in it for the driver:
its progress, and how many rows a transform has changed and deleted. It also holds the values of a
transform. So executors on other machines need a shared folder. Folders that a dead process has left
are removed.
"""

import fcntl
import math
import mmap
import os
import re
import shutil
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from common.errors import AttemptCancelledError, ConfigError, RewriteError
from common.lake.source import Positions
from common.parquet.location import storage_error
from common.primitives import Budget
from common.rows.conform import Flags, Int64s
from common.runtime import Clock, MachineClock, SystemClock

if TYPE_CHECKING:
    import polars as pl

_NAME = re.compile(r"neve-attempt-([0-9]+)-.*")
_LOCK = "alive"


@contextmanager
def attempt_folder(scratch: str = "") -> Iterator[str]:
    """Yield a new folder, which is deleted afterwards.

    Args:
        scratch: The compactor's own parent folder; empty: the folder for temporary files.

    Raises:
        ConfigError: The folder is not writable.
        UnavailableError: The disk is full now.
    """
    try:
        if scratch:
            Path(scratch).mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_left_folders(scratch)
        folder = tempfile.mkdtemp(prefix=f"neve-attempt-{os.getpid()}-", dir=scratch or None)
    except OSError as error:
        where = f"setting compactor.scratch: {scratch}" if scratch else "the temporary folder"
        message = f"{where} cannot be written to: {error}"
        raise storage_error(ConfigError, message, error) from error
    try:
        with open(Path(folder, _LOCK), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left_folders(scratch: str = "") -> None:
    """Remove the folders of dead drivers.

    In a scratch folder a process id is meaningless, because the process may have been on another
    machine. The folder belongs to one compactor, and its lock shows whether it is in use.
    """
    for path in Path(scratch or tempfile.gettempdir()).glob("neve-attempt-*"):
        named = _NAME.fullmatch(path.name)
        if named is None or (not scratch and _runs(int(named[1]))):
            continue
        if not _locked(path / _LOCK):
            shutil.rmtree(path, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # The process belongs to another user.
    return True


def _locked(path: Path) -> bool:
    try:
        with open(path, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def remove_parts(folder: str) -> None:
    """Remove the runs and parts of a merge that is given up."""
    for path in (path for name in ("run-*", "part-*") for path in Path(folder).glob(name)):
        path.unlink(missing_ok=True)


# -------------------------------------------------------------------------------- Progress of tasks


MARK_INTERVAL_S = 0.1
"""The driver reads the marks less often."""
_MARK = struct.Struct("<QQ")


class ProgressMark:
    """One task's progress, written at intervals."""

    def __init__(self, folder: str, name: str, clock: Clock | None = None) -> None:
        """Create a mark without writing it.

        Args:
            folder: Folder that the driver reads; empty: nothing is written.
            name: Distinguishes the task from others of the rewrite.
            clock: None: the system's clock.
        """
        self._clock = clock or SystemClock()
        self._path = Path(folder, f"{name}.mark") if folder else None
        self._bytes = self._rows = 0
        self._marked_s = self._clock.now_s()

    def add(self, size_bytes: int, rows: int) -> None:
        """Add the work since the last call."""
        self._bytes += size_bytes
        self._rows += rows
        if self._path is None or (now_s := self._clock.now_s()) - self._marked_s < MARK_INTERVAL_S:
            return
        self._marked_s = now_s
        with suppress(OSError):
            self._path.write_bytes(_MARK.pack(self._bytes, self._rows))


def read_marks(folder: str) -> tuple[int, int]:
    """Return decoded bytes and rows processed by all tasks that write to a folder."""
    done_bytes = done_rows = 0
    for path in Path(folder).glob("*.mark"):
        with suppress(OSError, struct.error):
            size_bytes, rows = _MARK.unpack(path.read_bytes())
            done_bytes, done_rows = done_bytes + size_bytes, done_rows + rows
    return done_bytes, done_rows


# ---------------------------------------------------------------------- Rows changed by a transform


_COUNTS = struct.Struct("<QQ")
_CHANGES_SUFFIX = "changes"


@dataclass(slots=True)
class ChangeCounts:
    """Counts of one input, or of all inputs."""

    changed: int = 0
    """Rows that were assigned values, whether or not they differ."""
    deleted: int = 0

    def write(self, folder: str, at: int) -> None:
        """Write the counts of an input, by its number; empty folder: write nothing.

        Raises:
            OSError: They cannot be written; without them the driver's sum would be too small.
        """
        if folder:
            Path(folder, f"{at}.{_CHANGES_SUFFIX}").write_bytes(
                _COUNTS.pack(self.changed, self.deleted)
            )


def read_change_counts(folder: str) -> ChangeCounts:
    """Return the sums over all inputs."""
    total = ChangeCounts()
    for path in Path(folder).glob(f"*.{_CHANGES_SUFFIX}"):
        changed, deleted = _COUNTS.unpack(path.read_bytes())
        total.changed, total.deleted = total.changed + changed, total.deleted + deleted
    return total


# ----------------------------------------------------------------------------------- Stored values
# Values that were computed before the rewrite: by Spark, or by a plug-in. For each input, the
# attempt's folder has the number of the value of each row, the values in batches, and which of them
# delete their rows. They are read by row number, as often and in whatever order the rewrite reads
# rows, without holding more than the values of those rows.


_BATCH = np.dtype([("first", np.int64), ("offset", np.int64), ("size", np.int64)])
_WINDOW = 20
"""Bits of a number within the deletions that are written at a time."""


def rows_path(folder: str, at: int) -> Path:
    """Return the path of an input's numbers: of the value of each of its rows, or -1."""
    return Path(folder, f"values-{at}.rows")


def _path(folder: str, at: int, kind: str) -> Path:
    return Path(folder, f"values-{at}.{kind}")


class ValueWriter:
    """Writes the values of one input; they are usable when it is closed after `finish`."""

    def __init__(self, folder: str, at: int, *, complete: bool) -> None:
        """Create the files.

        Args:
            folder: Folder of the attempt.
            at: The input.
            complete: Whether every number has values; otherwise only deletions are written.

        Raises:
            OSError: They cannot be created.
        """
        self._at = at
        self._batches: list[tuple[int, int, int]] = []
        self._count = 0
        self._complete = complete
        self._folder = folder
        self._values = _path(folder, at, "arrow").open("wb")
        self._deleted = _path(folder, at, "deleted").open("wb")

    def add_values(self, numbers: Int64s, values: Mapping[str, pa.ChunkedArray]) -> None:
        """Add the next values.

        Args:
            numbers: Their numbers.
            values: Values by column; a column that is missing keeps its values.

        Raises:
            RewriteError: Values before these are missing.
        """
        if not np.array_equal(numbers, np.arange(self._count, self._count + len(numbers))):
            raise RewriteError(f"input {self._at}: values are missing after {self._count} values")
        first, offset = self._count, self._values.tell()
        if values:
            table = pa.table(dict(values))
            with pa.ipc.new_stream(self._values, table.schema) as stream:
                stream.write_table(table)
            self._batches.append((first, offset, self._values.tell() - offset))
        self._count += len(numbers)

    def add_deleted(self, numbers: Int64s) -> None:
        """Add the numbers of values whose rows are deleted, ascending."""
        for window in np.unique(numbers >> _WINDOW).tolist():
            own = numbers[numbers >> _WINDOW == window]
            flags = np.zeros(int(own[-1] - own[0]) + 1, np.bool_)
            flags[own - own[0]] = True
            self._deleted.seek(int(own[0]))
            self._deleted.write(flags.tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._deleted.close()
        self._values.close()

    def finish(self, count: int) -> None:
        """End the files.

        Args:
            count: Number of values that the input must have.

        Raises:
            RewriteError: Values are missing.
        """
        self._deleted.truncate(count)
        if self._complete and self._count != count:
            raise RewriteError(f"input {self._at}: {self._count} values, expected {count}")
        np.array(self._batches, _BATCH).tofile(_path(self._folder, self._at, "batches"))


@dataclass(frozen=True, slots=True)
class NewValues:
    """New values of a column in some rows."""

    places: Int64s
    """Numbers of the rows, each once."""
    index: Int64s
    """For each of these rows the number of its value."""
    values: "pa.ChunkedArray | pl.Series"


class StoredValues:
    """The stored values of one input."""

    def __init__(self, folder: str, at: int) -> None:
        """Look for the values.

        Raises:
            RewriteError: There are none.
        """
        self._folder, self._at = folder, at
        try:
            self._batches = np.fromfile(_path(folder, at, "batches"), _BATCH)
        except OSError as error:
            raise RewriteError(f"the values of input {at} are missing: {error}") from error

    def numbers(self, start: int, rows: int) -> Int64s:
        """Return the number of the value of each row from `start`; -1: the row has none.

        Raises:
            RewriteError: Numbers are missing.
        """
        path = rows_path(self._folder, self._at)
        numbers: Int64s = np.fromfile(path, np.int64, rows, offset=8 * start)
        if len(numbers) != rows:
            raise RewriteError(f"input {self._at}: {len(numbers)} values for {rows} rows")
        return numbers

    def deleted(self, numbers: Int64s) -> Flags:
        """Return which values delete their rows.

        Args:
            numbers: Numbers of at least one value.
        """
        low, high = int(numbers.min()), int(numbers.max()) + 1
        path = _path(self._folder, self._at, "deleted")
        flags: Flags = np.fromfile(path, np.bool_, high - low, offset=low)[numbers - low]
        return flags

    def columns(self, numbers: Int64s, places: Int64s) -> dict[str, NewValues]:
        """Return the new values by column.

        Args:
            numbers: Numbers of at least one value.
            places: Numbers of the rows that have these values.
        """
        firsts = self._batches["first"]
        begin = int(np.searchsorted(firsts, numbers.min(), "right")) - 1
        end = int(np.searchsorted(firsts, numbers.max(), "right"))
        parts: dict[str, list[tuple[int, pa.ChunkedArray]]] = {}
        with _path(self._folder, self._at, "arrow").open("rb", buffering=0) as stored:
            for first, offset, size in self._batches[begin:end].tolist():
                content = os.pread(stored.fileno(), size, offset)
                table = pa.ipc.open_stream(pa.py_buffer(content)).read_all()
                for name, column in zip(table.column_names, table.columns, strict=True):
                    parts.setdefault(name, []).append((first, column))
        return {name: _joined(stored, numbers, places) for name, stored in parts.items()}


def _joined(
    parts: Sequence[tuple[int, pa.ChunkedArray]], numbers: Int64s, places: Int64s
) -> NewValues:
    """Return the values of one column, from the batches that have it."""
    firsts = np.array([first for first, _ in parts])
    sizes = np.array([len(column) for _, column in parts])
    part = np.searchsorted(firsts, numbers, "right") - 1
    within = numbers - firsts[part]
    here = (part >= 0) & (within < sizes[part])
    index = (np.cumsum(sizes) - sizes)[part] + within
    values = pa.chunked_array([chunk for _, column in parts for chunk in column.chunks])
    return NewValues(places[here], index[here], values)


def joined_values(parts: Sequence[NewValues]) -> NewValues:
    """Return stored values of one column for several stretches of rows as one."""
    places, index, chunks, before = [], [], list[pa.Array](), 0
    for part in parts:
        assert isinstance(part.values, pa.ChunkedArray), "stored values"
        places.append(part.places)
        index.append(part.index + before)
        chunks += part.values.chunks
        before += len(part.values)
    return NewValues(np.concatenate(places), np.concatenate(index), pa.chunked_array(chunks))


# ------------------------------------------------------------ Inputs of the rewrite of a lake table
# Which rows of inputs are deleted, and which columns they have: for tasks, which read few inputs.


_DELETED, _DELETED_ENDS = "deleted.npy", "deleted-ends.npy"


def store_positions(folder: str, positions: Sequence[Positions]) -> None:
    """Store the deleted positions of all inputs."""
    ends = np.cumsum([0, *map(len, positions)])
    if ends[-1]:
        np.save(Path(folder, _DELETED_ENDS), ends)
        np.save(Path(folder, _DELETED), np.concatenate(positions))


def stored_positions(folder: str) -> Callable[[int], Positions]:
    """Return the function that returns the deleted positions of an input by its number."""
    if not Path(folder, _DELETED).exists():
        return lambda _: np.zeros(0, np.uint64)
    ends = np.load(Path(folder, _DELETED_ENDS)).tolist()
    stored: Positions = np.load(Path(folder, _DELETED), mmap_mode="r")
    return lambda at: stored[ends[at] : ends[at + 1]]


def _columns_path(folder: str, at: int) -> Path:
    return Path(folder, f"columns-{at}.arrow")


def store_columns(folder: str, at: int, columns: pa.Schema) -> None:
    """Store the columns of an input with identifiers."""
    _columns_path(folder, at).write_bytes(columns.serialize().to_pybytes())


def stored_columns(folder: str, at: int) -> pa.Schema | None:
    """Return the columns of an input with identifiers; None: names identify them."""
    path = _columns_path(folder, at)
    return pa.ipc.read_schema(pa.py_buffer(path.read_bytes())) if path.exists() else None


# ---------------------------------------------------------------------------------------- The grant
# The remaining bytes of an attempt's grant: a token bucket that all its tasks share.
#
#   asked      bytes that callers have requested or moved; only grows
#   covered    bytes that the grant has paid for; grows with time, never far beyond `asked`
#
# A caller continues when `covered` has reached the value that `asked` had at its arrival, so
# callers are served in arrival order. The state is a mapped file in the attempt's folder, on the
# machine where all its tasks run. A system lock guards it, which is released when its holder dies.
# Times are of the machine's clock: a step of the wall clock would pay for bytes.


GRANT_FILE = "allowance"
_CANCELLED = "cancelled while it moved bytes"
SYNC_BYTES_MIN = 4 * 1024**2
"""Smaller syncs are not recorded, because recording takes as long."""
OPEN_MAX = 16
_UNLIMITED = math.inf
_FORM = struct.Struct("<dddddQdBQ")


@dataclass(slots=True)
class _State(Budget):
    """The content of the file."""

    synced_bytes: int = 0
    sync_s: float = 0.0
    stopped: int = 0
    read_bytes: int = 0
    """Part of `asked`."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of an allowance so far."""

    moved_bytes: int = 0
    waited_s: float = 0.0
    synced_bytes: int = 0
    sync_s: float = 0.0
    read_bytes: int = 0
    """Part of `moved_bytes` that came from inputs; the grant pays for it first."""

    @property
    def written_bytes(self) -> int:
        """Part of `moved_bytes` that went to outputs."""
        return self.moved_bytes - self.read_bytes


class Allowance:
    """One process's access to the allowance of an attempt; thread-safe."""

    def __init__(self, folder: str) -> None:
        """Open the allowance of the attempt with this folder; without one, nothing is limited.

        Args:
            folder: Empty: no attempt.
        """
        self._clock = MachineClock()
        self._thread = threading.Lock()
        self._pause = threading.Event()
        self._map: mmap.mmap | None = None
        self._descriptor = -1
        if not folder:
            return
        try:
            self._descriptor = os.open(Path(folder, GRANT_FILE), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        weakref.finalize(self, os.close, self._descriptor)
        self._map = mmap.mmap(self._descriptor, _FORM.size)

    @classmethod
    def create(cls, folder: str, bytes_s: float | None) -> "Allowance":
        """Create the allowance of an attempt, with nothing saved up.

        Args:
            folder: Folder of the attempt.
            bytes_s: Its first grant; None: no limit.
        """
        rate = _UNLIMITED if bytes_s is None else bytes_s
        empty = _State(rate, MachineClock().now_s())
        Path(folder, GRANT_FILE).write_bytes(_packed(empty))
        return cls(folder)

    def grant(self, bytes_s: float | None) -> None:
        """Apply another grant from now on; None: no limit."""
        with self._locked() as state:
            state.bytes_s = _UNLIMITED if bytes_s is None else bytes_s

    @property
    def limited(self) -> bool:
        """Whether there is a limit now."""
        with self._locked() as state:
            return state.bytes_s != _UNLIMITED

    def stop(self) -> None:
        """End every wait, because the attempt was cancelled."""
        with self._locked() as state:
            state.stopped = 1

    def pay(self, read_bytes: int = 0, *, written_bytes: int = 0) -> None:
        """Count bytes that are about to be moved, or just were; return when they are covered.

        Raises:
            AttemptCancelledError: The attempt was cancelled.
        """
        with self._locked() as state:
            state.asked += read_bytes + written_bytes
            state.read_bytes += read_bytes
            state.pass_time(state.at_s)
            asked, covered, stopped = state.asked, state.covered, state.stopped
        if stopped:
            raise AttemptCancelledError(_CANCELLED)
        if covered < asked:
            self._wait(asked)

    def settle(self) -> None:
        """Wait until all moved bytes are covered; errors as of `pay`."""
        self.pay()

    def synced(self, size_bytes: int, took_s: float) -> None:
        """Record how long the storage took to make bytes durable."""
        if size_bytes >= SYNC_BYTES_MIN:
            with self._locked() as state:
                state.synced_bytes += size_bytes
                state.sync_s += took_s

    def usage(self) -> Usage:
        """Return the use so far."""
        with self._locked() as state:
            moved, read = state.moved_bytes, min(state.moved_bytes, state.read_bytes)
            return Usage(moved, state.waited_s, state.synced_bytes, state.sync_s, read)

    def _wait(self, asked: float) -> None:
        last_s = self._clock.now_s()
        while True:
            with self._locked() as state:
                now_s = self._clock.now_s()
                state.waited_s, last_s = state.waited_s + now_s - last_s, now_s
                if state.stopped:
                    raise AttemptCancelledError(_CANCELLED)
                wait_s = state.wait_s(asked)
            if wait_s <= 0:
                return
            self._pause.wait(wait_s)

    @contextmanager
    def _locked(self) -> Iterator[_State]:
        """Yield the current state; changes are written, unless an error occurs."""
        if self._map is None:
            yield _State(_UNLIMITED, 0.0)
            return
        with self._thread:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                state = _State(*_FORM.unpack_from(self._map))
                state.pass_time(self._clock.now_s())
                yield state
                self._map[: _FORM.size] = _packed(state)
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)


@lru_cache(OPEN_MAX)
def allowance_of(folder: str) -> Allowance:
    """Return the allowance of the attempt with a folder, opened once per process.

    Args:
        folder: Folder of the attempt; empty: no attempt.
    """
    return Allowance(folder)


def _packed(state: _State) -> bytes:
    return _FORM.pack(
        state.bytes_s,
        state.at_s,
        state.asked,
        state.covered,
        state.waited_s,
        state.synced_bytes,
        state.sync_s,
        state.stopped,
        state.read_bytes,
    )
