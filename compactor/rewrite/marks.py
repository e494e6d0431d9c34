"""How far tasks are: each keeps a small file that the driver on the same machine reads.

Spark tells nothing of a task before its end. A mark that is missing or half written
costs a report of progress, nothing else.
"""

import struct
from contextlib import suppress
from pathlib import Path

STEP_BYTES = 8 * 1024**2
_MARK = struct.Struct("<QQ")


class Mark:
    """One task's progress; written whenever another step is done."""

    def __init__(self, folder: str, name: str) -> None:
        """Write nothing yet.

        Args:
            folder: Where the driver looks; empty: nobody does.
            name: Tells this task from others of the rewrite.
        """
        self._path = Path(folder, f"{name}.mark") if folder else None
        self._bytes = self._rows = self._told_bytes = 0

    def add(self, size_bytes: int, rows: int) -> None:
        """Count what was done since the last call."""
        self._bytes += size_bytes
        self._rows += rows
        if self._path is not None and self._bytes - self._told_bytes >= STEP_BYTES:
            self._told_bytes = self._bytes
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
