"""The output of a stitch, on a local disk or in an object store.

Ranges are copied to a target. The target is read back and compared before it is complete.
"""

import errno
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

from common.errors import VerificationError
from common.parquet.location import Location, storage_error
from compactor.rewrite.file_io import NewFile
from compactor.rewrite.parquet_bytes.footer import Span
from compactor.rewrite.parquet_bytes.sources import Source, StoredSource, truncated_error

OnCopied = Callable[[int], None]


class Target(Protocol):
    """An output during the write."""

    @property
    def position(self) -> int:
        """Bytes written so far."""
        ...

    @property
    def synced_bytes(self) -> int:
        """Bytes that a local disk has made durable; elsewhere 0."""
        ...

    @property
    def sync_s(self) -> float:
        """Time that this took."""
        ...

    def write(self, content: bytes) -> None:
        """Append bytes.

        Raises:
            OSError: The disk is full, or the storage fails.
        """
        ...

    def copy(self, source: Source, span: Span) -> None:
        """Append a range of a source, which may be closed afterwards.

        Raises:
            OSError: As for `write`, or the source is too short.
            VerificationError: Bytes that were appended earlier differ from the source.
        """
        ...

    def finish(self) -> None:
        """Make it durable and read it back.

        Raises:
            VerificationError: Its contents are wrong.
            OSError: It is not durable, or cannot be read.
        """
        ...

    def abandon(self) -> None:
        """Delete it, whatever its state."""
        ...


# ------------------------------------------------------------------- Comparison of written bytes


_READ_BYTES = 1 << 18
"""Bytes read at a time, few enough to stay in the processor's cache until they are compared."""
_BEHIND_MAX = 16
"""Ranges that wait for comparison; each keeps a source open."""


class OutputComparison:
    """Reads the output back in a separate thread and compares it with the expected bytes.

    A comparison is several times as fast as computing two checksums, and more thorough.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        """Create an idle comparison.

        Args:
            descriptor: Descriptor of the output, open for reading; closed only after `close`.
            path: Path of the output, for messages.
        """
        self._descriptor, self._path = descriptor, path
        self._thread = ThreadPoolExecutor(1, "compare")
        self._pending: deque[Future[None]] = deque()
        self._wanted, self._found = bytearray(), bytearray()
        self._closed = False

    def add_range(self, descriptor: int, span: Span, begun: int) -> None:
        """Compare a range of a source, which may be closed at once, with the output from `begun`.

        Raises:
            VerificationError: The output differs from what was added before, or
                one of the two can no longer be read.
            OSError: No more files can be opened.
        """
        while len(self._pending) >= _BEHIND_MAX:
            self._pending.popleft().result()
        own = os.dup(descriptor)
        self._pending.append(self._thread.submit(self._compare_range, own, span, begun))

    def add(self, content: bytes, begun: int) -> None:
        """Compare bytes with the output from `begun`."""
        self._pending.append(self._thread.submit(self._compare, content, begun))

    def settle(self) -> None:
        """Wait for all comparisons.

        Raises:
            VerificationError: The output has other contents, or cannot be read.
        """
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """End the thread; waiting ranges are not compared."""
        self._closed = True
        self._thread.shutdown()

    def _compare(self, content: bytes, begun: int) -> None:
        if self._closed:
            return
        stored = bytearray(len(content))
        with self._faults(begun):
            _read(self._descriptor, stored, begun)
        self._require(content == stored, begun)

    def _compare_range(self, descriptor: int, span: Span, begun: int) -> None:
        try:
            for at in range(span.start, span.end, _READ_BYTES):
                if self._closed:
                    return
                step = Span(at, min(_READ_BYTES, span.end - at))
                self._compare_step(descriptor, step, begun + at - span.start)
        finally:
            os.close(descriptor)

    def _compare_step(self, descriptor: int, step: Span, begun: int) -> None:
        if len(self._wanted) != step.size:
            self._wanted, self._found = bytearray(step.size), bytearray(step.size)
        with self._faults(begun):
            _read(descriptor, self._wanted, step.start)
            _read(self._descriptor, self._found, begun)
        self._require(self._wanted == self._found, begun)

    @contextmanager
    def _faults(self, at: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = (
                f"output {self._path} cannot be compared with its source from byte {at} on: {error}"
            )
            raise storage_error(VerificationError, message, error) from error

    def _require(self, alike: bool, at: int) -> None:
        if not alike:
            raise VerificationError(
                f"output {self._path} differs from its source from byte {at} on"
            )


def _read(descriptor: int, into: bytearray, start: int) -> None:
    """Fill a buffer from a position of a file."""
    rest, at = memoryview(into), start
    while rest:
        count = os.preadv(descriptor, [rest], at)
        if not count:
            raise truncated_error(Span(start, len(into)), at)
        rest, at = rest[count:], at + count


# --------------------------------------------------------------------------------------- Local disk


LOCAL_STEP_BYTES = 4 * 1024**2
"""Bytes copied at a time: while they are compared, the next ones are copied."""
_NOT_HERE = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
"""Errors of file systems that cannot copy ranges."""


class LocalTarget:
    """A file of this machine."""

    def __init__(self, location: Location, path: str, on_copied: OnCopied) -> None:
        """Create the file.

        Raises:
            OSError: It exists already, or cannot be created.
        """
        self._file = NewFile(location, path)
        self._descriptor: int = self._file.sink.fileno()
        try:
            self._reader = os.open(location.full(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file.abandon()
            raise
        self._on_copied = on_copied
        self._likeness = OutputComparison(self._reader, path)
        self._by_system = hasattr(os, "copy_file_range")
        self.position = self.synced_bytes = 0
        self.sync_s = 0.0

    def write(self, content: bytes) -> None:
        """Append bytes."""
        begun, rest = self.position, memoryview(content)
        while rest:
            count = os.pwrite(self._descriptor, rest, self.position)
            self.position += count
            rest = rest[count:]
        self._likeness.add(content, begun)

    def copy(self, source: Source, span: Span) -> None:
        """Append a range of a source."""
        at = span.start
        while at < span.end:
            step = Span(at, min(LOCAL_STEP_BYTES, span.end - at))
            if source.descriptor is None:
                self.write(source.read(step))
            else:
                self._copy_step(source.descriptor, step)
            at = step.end
            self._on_copied(step.size)
            self._file.reached(self.position)

    def finish(self) -> None:
        """Make it durable, and check its contents."""
        try:
            self._file.close()
            self.sync_s = self._file.sync_s
            self.synced_bytes = self.position
            self._likeness.settle()
        finally:
            self._close()

    def abandon(self) -> None:
        """Delete it."""
        self._close()
        self._file.abandon()

    def _copy_step(self, descriptor: int, step: Span) -> None:
        begun, at = self.position, step.start
        while at < step.end and self._by_system:
            try:
                count = os.copy_file_range(
                    descriptor, self._descriptor, step.end - at, at, self.position
                )
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                self._by_system = False
                break
            if not count:
                raise truncated_error(step, at)
            at += count
            self.position += count
        self._likeness.add_range(descriptor, Span(step.start, at - step.start), begun)
        while at < step.end:
            content = os.pread(descriptor, step.end - at, at)
            if not content:
                raise truncated_error(step, at)
            self.write(content)
            at += len(content)

    def _close(self) -> None:
        self._likeness.close()
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1


# ------------------------------------------------------------------------------------- Object store


READ_AHEAD = 3
"""Steps that are read concurrently."""

STORED_STEP_BYTES = 8 * 1024**2
"""Bytes read at a time."""


class StoredTarget:
    """An object: a multipart upload, which becomes visible as a whole when it is closed."""

    synced_bytes, sync_s = 0, 0.0

    def __init__(self, location: Location, path: str, on_copied: OnCopied) -> None:
        self._location = location
        self._path, self._full = path, location.full(path)
        self._file = NewFile(location, path)
        self._on_copied = on_copied
        self._ahead = ThreadPoolExecutor(READ_AHEAD, "read-ahead")
        self._crc = 0
        self.position = 0

    def write(self, content: bytes) -> None:
        """Append bytes."""
        self._file.sink.write(content)
        self._crc = zlib.crc32(content, self._crc)
        self.position += len(content)

    def copy(self, source: Source, span: Span) -> None:
        """Append a range of a source."""
        self._steps(source, span, self._take)

    def finish(self) -> None:
        """Make it durable and read it back."""
        try:
            self._file.close()
            source = StoredSource(self._location, self._full)
            crc = 0

            def see(content: bytes) -> None:
                nonlocal crc
                crc = zlib.crc32(content, crc)

            try:
                if source.size() != self.position:
                    raise OSError(f"holds {source.size()} bytes, {self.position} were written")
                self._steps(source, Span(0, self.position), see)
            finally:
                source.close()
            if crc != self._crc:
                message = f"output {self._path} has the CRC {crc:08x}, not {self._crc:08x}"
                raise VerificationError(message)
        finally:
            self._ahead.shutdown(cancel_futures=True)

    def abandon(self) -> None:
        """Delete it."""
        self._ahead.shutdown(cancel_futures=True)
        self._file.abandon()

    def _take(self, content: bytes) -> None:
        self.write(content)
        self._on_copied(len(content))

    def _steps(self, source: Source, span: Span, use: Callable[[bytes], None]) -> None:
        """Read a range in steps, some of them ahead, and use them in order."""
        reads: deque[Future[bytes]] = deque()
        for start in range(span.start, span.end, STORED_STEP_BYTES):
            step = Span(start, min(STORED_STEP_BYTES, span.end - start))
            reads.append(self._ahead.submit(source.read, step))
            if len(reads) > READ_AHEAD:
                use(reads.popleft().result())
        while reads:
            use(reads.popleft().result())
