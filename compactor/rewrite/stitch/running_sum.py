"""CRC-32 of a file while it grows."""

import os
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from compactor.rewrite.stitch.footer import Span
from compactor.rewrite.stitch.sources import short_of

_READ_BYTES = 1 << 20
"""Read at a time: it stays in the processor's cache until it is summed up."""


class RunningSum:
    """CRC-32 of ranges of files, in the order in which they were added, in its own thread."""

    def __init__(self) -> None:
        self._crc = 0
        self._thread = ThreadPoolExecutor(1, "crc")
        self._pending: deque[Future[None]] = deque()

    def add_range(self, descriptor: int, span: Span) -> None:
        """Take in a range of a file; it is read later, and closed only after `settle`."""
        self._pending.append(self._thread.submit(self._sum_range, descriptor, span))

    def add(self, content: bytes) -> None:
        """Take in bytes."""
        self._pending.append(self._thread.submit(self._sum, content))

    def settle(self) -> int:
        """Wait for all; return the sum.

        Raises:
            OSError: A range could not be read.
        """
        while self._pending:
            self._pending.popleft().result()
        return self._crc

    def close(self) -> None:
        """End the thread; what is waiting is forgotten."""
        self._thread.shutdown(cancel_futures=True)

    def _sum(self, content: bytes) -> None:
        self._crc = zlib.crc32(content, self._crc)

    def _sum_range(self, descriptor: int, span: Span) -> None:
        buffer = memoryview(bytearray(min(_READ_BYTES, span.size)))
        at = span.start
        while at < span.end:
            count = os.preadv(descriptor, [buffer[: span.end - at]], at)
            if not count:
                raise short_of(span, at)
            self._crc = zlib.crc32(buffer[:count], self._crc)
            at += count
