"""Has the disk write a growing file beside its making, so that making it durable is short."""

import os
from concurrent.futures import Future, ThreadPoolExecutor

from common.clock import SystemClock

FLUSH_BYTES = 32 * 1024**2
"""So much is handed to the disk at a time."""


class Flusher:
    """Syncs one file, again and again, in a thread of its own."""

    def __init__(self, descriptor: int) -> None:
        """Sync nothing yet.

        Args:
            descriptor: Of the file; closed only after `close`.
        """
        self._descriptor = descriptor
        self._thread = ThreadPoolExecutor(1, "flush")
        self._flushing: Future[None] | None = None
        self._flushed = 0
        self.sync_s = 0.0
        """How long it all took."""

    def reached(self, position: int) -> None:
        """Have the disk begin with what is there, unless it is busy with what was before.

        Raises:
            OSError: Something before is not durable.
        """
        if position - self._flushed < FLUSH_BYTES:
            return
        if self._flushing is not None:
            if not self._flushing.done():
                return
            self._flushing.result()
        self._flushed = position
        self._flushing = self._thread.submit(self._sync)

    def settle(self) -> None:
        """Wait until what was begun is durable.

        Raises:
            OSError: It is not.
        """
        if self._flushing is not None:
            self._flushing.result()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _sync(self) -> None:
        clock = SystemClock()
        begun_s = clock.now_s()
        os.fdatasync(self._descriptor)
        self.sync_s += clock.now_s() - begun_s
