"""The output of a stitch: ranges are copied into it, and all of it is read back.

Two running CRC-32s cover the whole file, byte by byte in order: one of what was read
from the sources (and of what we wrote ourselves), one of what the output holds.
"""

from collections.abc import Callable
from typing import Protocol

from compactor.rewrite.stitch.footer import Span
from compactor.rewrite.stitch.sources import Source

STEP_BYTES = 8 * 1024**2
"""Copied at a time; of an object store, read at a time."""
OnCopied = Callable[[int], None]


class Target(Protocol):
    """An output while it is written."""

    @property
    def position(self) -> int:
        """How long it is so far."""
        ...

    @property
    def synced_bytes(self) -> int:
        """How much of it a local disk has made durable; elsewhere 0."""
        ...

    @property
    def sync_s(self) -> float:
        """How long that took."""
        ...

    def write(self, content: bytes) -> None:
        """Append bytes of our own.

        Raises:
            OSError: There is no space for them, or the storage fails.
        """
        ...

    def copy(self, source: Source, span: Span) -> None:
        """Append a range of a source.

        Raises:
            OSError: As for `write`, or the source ends before.
        """
        ...

    def settle(self) -> None:
        """Wait until no source is read any more, so that it may be closed.

        Raises:
            OSError: As for `copy`.
        """
        ...

    def finish(self) -> tuple[int, int]:
        """Make it durable and read it back; return both sums: what it should be, what it is.

        Raises:
            OSError: It is not durable, or cannot be read.
        """
        ...

    def abandon(self) -> None:
        """Delete it, whatever state it is in."""
        ...
