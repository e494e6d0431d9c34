"""An output in an object store: ranged reads, a multipart upload, and one more read.

The bytes pass through here. Copying parts inside the store (S3's UploadPartCopy) would
spare that; Arrow's file systems do not offer it.
"""

import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from common.errors import VerificationError
from common.parquet.location import Location
from compactor.rewrite.files import NewFile
from compactor.rewrite.stitch.footer import Span
from compactor.rewrite.stitch.sources import Source, StoredSource
from compactor.rewrite.stitch.target import OnCopied

READ_AHEAD = 3
"""Steps that are under way at a time."""

STEP_BYTES = 8 * 1024**2
"""Read at a time."""


class StoredTarget:
    """An object: a multipart upload, which becomes visible, whole, when it is closed."""

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
        """Append bytes of our own."""
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
            found = 0

            def see(content: bytes) -> None:
                nonlocal found
                found = zlib.crc32(content, found)

            try:
                if source.size() != self.position:
                    raise OSError(f"holds {source.size()} bytes, {self.position} were written")
                self._steps(source, Span(0, self.position), see)
            finally:
                source.close()
            if found != self._crc:
                message = f"output {self._path} has the CRC {found:08x}, not {self._crc:08x}"
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
        for start in range(span.start, span.end, STEP_BYTES):
            step = Span(start, min(STEP_BYTES, span.end - start))
            reads.append(self._ahead.submit(source.read, step))
            if len(reads) > READ_AHEAD:
                use(reads.popleft().result())
        while reads:
            use(reads.popleft().result())
