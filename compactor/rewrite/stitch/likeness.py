"""Whether an output on a local disk holds what was read, byte for byte, while it grows."""

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from common.errors import VerificationError
from compactor.rewrite.stitch.footer import Span
from compactor.rewrite.stitch.sources import short_of

_READ_BYTES = 1 << 20
"""Read at a time: it stays in the processor's cache until it is compared."""


class Likeness:
    """Reads the output back in a thread of its own, beside what it should hold.

    Comparing is several times as fast as working out two checksums, and sees more.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        """Look at nothing yet.

        Args:
            descriptor: Of the output, opened for reading; closed only after `close`.
            path: Of the output, for messages.
        """
        self._descriptor, self._path = descriptor, path
        self._thread = ThreadPoolExecutor(1, "compare")
        self._pending: deque[Future[None]] = deque()
        self._wanted, self._found = bytearray(), bytearray()

    def add_range(self, descriptor: int, span: Span, begun: int) -> None:
        """Compare a range of a source with what lies from `begun`; closed only after `settle`."""
        self._pending.append(self._thread.submit(self._compare_range, descriptor, span, begun))

    def add(self, content: bytes, begun: int) -> None:
        """Compare bytes with what lies from `begun`."""
        self._pending.append(self._thread.submit(self._compare, content, begun))

    def settle(self) -> None:
        """Wait for all.

        Raises:
            VerificationError: The output holds something else.
            OSError: A range could not be read.
        """
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """End the thread; what is waiting is forgotten."""
        self._thread.shutdown(cancel_futures=True)

    def _compare(self, content: bytes, begun: int) -> None:
        found = bytearray(len(content))
        _read(self._descriptor, found, begun)
        self._require(content == found, begun)

    def _compare_range(self, descriptor: int, span: Span, begun: int) -> None:
        shift = begun - span.start
        for at in range(span.start, span.end, _READ_BYTES):
            size = min(_READ_BYTES, span.end - at)
            if len(self._wanted) != size:
                self._wanted, self._found = bytearray(size), bytearray(size)
            _read(descriptor, self._wanted, at)
            _read(self._descriptor, self._found, at + shift)
            self._require(self._wanted == self._found, at + shift)

    def _require(self, alike: bool, at: int) -> None:
        if not alike:
            raise VerificationError(
                f"output {self._path} does not hold what was read, from byte {at} on"
            )


def _read(descriptor: int, into: bytearray, start: int) -> None:
    """Fill a buffer from a place of a file."""
    rest, at = memoryview(into), start
    while rest:
        count = os.preadv(descriptor, [rest], at)
        if not count:
            raise short_of(Span(start, len(into)), at)
        rest, at = rest[count:], at + count
