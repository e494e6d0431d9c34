"""How far tasks are: each keeps a small file that the driver on the same machine reads.

Spark tells nothing of a task before its end. A mark that is missing or half written
costs a report of progress, nothing else.
"""

import struct
from contextlib import suppress
from pathlib import Path

from common.clock import Clock, SystemClock

TELL_INTERVAL_S = 0.1
"""The driver looks less often than that."""
_MARK = struct.Struct("<QQ")


class Mark:
    """One task's progress; written now and then."""

    def __init__(self, folder: str, name: str, clock: Clock | None = None) -> None:
        """Write nothing yet.

        Args:
            folder: Where the driver looks; empty: nobody does.
            name: Tells this task from others of the rewrite.
            clock: None: the system's.
        """
        self._clock = clock or SystemClock()
        self._path = Path(folder, f"{name}.mark") if folder else None
        self._bytes = self._rows = 0
        self._told_s = self._clock.now_s()

    def add(self, size_bytes: int, rows: int) -> None:
        """Count what was done since the last call."""
        self._bytes += size_bytes
        self._rows += rows
        if self._path is None or (now_s := self._clock.now_s()) - self._told_s < TELL_INTERVAL_S:
            return
        self._told_s = now_s
        with suppress(OSError):
            self._path.write_bytes(_MARK.pack(self._bytes, self._rows))


def read_marks(folder: str) -> tuple[int, int]:
    """Return decoded bytes and rows done by all tasks that write into a folder."""
    done_bytes = done_rows = 0
    for path in Path(folder).glob("*.mark"):
        with suppress(OSError, struct.error):
            size_bytes, rows = _MARK.unpack(path.read_bytes())
            done_bytes, done_rows = done_bytes + size_bytes, done_rows + rows
    return done_bytes, done_rows
