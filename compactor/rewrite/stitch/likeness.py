"""Whether an output on a local disk holds what was read, byte for byte, while it grows."""

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from common.errors import VerificationError
from compactor.rewrite.stitch.footer import Span
from compactor.rewrite.stitch.sources import short_of

_READ_BYTES = 1 << 18
"""Read at a time: it stays in the processor's cache until it is compared."""
_BEHIND_MAX = 16
"""Ranges that wait to be compared; each holds a source open."""


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
        self._closed = False

    def add_range(self, descriptor: int, span: Span, begun: int) -> None:
        """Compare a range of a source, which may be closed at once, with what lies from `begun`.

        Raises:
            VerificationError: The output holds something else than was added before, or
                one of the two can no longer be read.
            OSError: No more files can be opened.
        """
        while len(self._pending) >= _BEHIND_MAX:
            self._pending.popleft().result()
        own = os.dup(descriptor)
        self._pending.append(self._thread.submit(self._compare_range, own, span, begun))

    def add(self, content: bytes, begun: int) -> None:
        """Compare bytes with what lies from `begun`."""
        self._pending.append(self._thread.submit(self._compare, content, begun))

    def settle(self) -> None:
        """Wait for all.

        Raises:
            VerificationError: The output holds something else, or cannot be read.
        """
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """End the thread; what is waiting is not compared."""
        self._closed = True
        self._thread.shutdown()

    def _compare(self, content: bytes, begun: int) -> None:
        if self._closed:
            return
        found = bytearray(len(content))
        with self._faults(begun):
            _read(self._descriptor, found, begun)
        self._require(content == found, begun)

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
            raise VerificationError(
                f"output {self._path} cannot be held against what was read, "
                f"from byte {at} on: {error}"
            ) from error

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
