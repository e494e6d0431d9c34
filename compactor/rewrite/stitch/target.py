"""The output of a stitch: ranges are copied into it, and all of it is read back.

The whole file is held against what was read from the sources, and what we wrote ourselves:
byte by byte on a local disk; in an object store by two running CRC-32s.
"""

from collections.abc import Callable
from typing import Protocol

from compactor.rewrite.stitch.footer import Span
from compactor.rewrite.stitch.sources import Source

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
        """Append a range of a source, which may be closed after that.

        Raises:
            OSError: As for `write`, or the source ends before.
            VerificationError: What was appended before is not what was read.
        """
        ...

    def finish(self) -> None:
        """Make it durable and read it back.

        Raises:
            VerificationError: It does not hold what it should.
            OSError: It is not durable, or cannot be read.
        """
        ...

    def abandon(self) -> None:
        """Delete it, whatever state it is in."""
        ...
