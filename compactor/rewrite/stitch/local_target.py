"""An output on a local disk.

The bytes go from file to file inside the system (`copy_file_range`); a thread beside it
compares them.
"""

import errno
import os

from common.parquet.location import Location
from compactor.rewrite.files import NewFile
from compactor.rewrite.stitch.footer import Span
from compactor.rewrite.stitch.likeness import Likeness
from compactor.rewrite.stitch.sources import Source, short_of
from compactor.rewrite.stitch.target import OnCopied

STEP_BYTES = 4 * 1024**2
"""Copied at a time: while it is compared, the next is copied."""
_NOT_HERE = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
"""Why a file system does not copy by itself."""


class LocalTarget:
    """A file of this machine."""

    def __init__(self, location: Location, path: str, on_copied: OnCopied) -> None:
        """Create it.

        Raises:
            OSError: It is there already, or cannot be created.
        """
        self._file = NewFile(location, path)
        self._descriptor: int = self._file.sink.fileno()
        try:
            self._reader = os.open(location.full(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file.abandon()
            raise
        self._on_copied = on_copied
        self._likeness = Likeness(self._reader, path)
        self._by_system = hasattr(os, "copy_file_range")
        self.position = self.synced_bytes = 0
        self.sync_s = 0.0

    def write(self, content: bytes) -> None:
        """Append bytes of our own."""
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
            step = Span(at, min(STEP_BYTES, span.end - at))
            if source.descriptor is None:
                self.write(source.read(step))
            else:
                self._copy_step(source.descriptor, step)
            at = step.end
            self._on_copied(step.size)
            self._file.reached(self.position)

    def finish(self) -> None:
        """Make it durable, and make sure that it holds what it should."""
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
                raise short_of(step, at)
            at += count
            self.position += count
        self._likeness.add_range(descriptor, Span(step.start, at - step.start), begun)
        while at < step.end:
            content = os.pread(descriptor, step.end - at, at)
            if not content:
                raise short_of(step, at)
            self.write(content)
            at += len(content)

    def _close(self) -> None:
        self._likeness.close()
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1
