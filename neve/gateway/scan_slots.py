"""Limits of concurrent scans: their number, and the rows that they hold in memory.

A scan holds the piece that it sends until its reader has received it. Stalled readers would fill
the memory with such pieces. Therefore a scan reads its next piece only while the total is within a
bound, and the server closes a connection whose reader receives nothing for too long.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from common.errors import UnavailableError


class ScanSlots:
    """The scans of one gateway. For one event loop."""

    def __init__(self, most: int, held_bytes_max: int) -> None:
        """Start with all slots free.

        Args:
            most: Maximum number of concurrent scans.
            held_bytes_max: Limit of bytes that were read but not received; scans pause after the
                piece that exceeds it.
        """
        self._most = most
        self._held_bytes_max = held_bytes_max
        self._held_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self.open = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that were read but not received by their readers."""
        return self._held_bytes

    @contextmanager
    def take(self) -> Iterator["ScanSlot"]:
        """Take a slot for the duration of a block.

        Raises:
            UnavailableError: All slots are taken.
        """
        if self.open >= self._most:
            raise UnavailableError(
                f"{self.open} scans are being read, as many as the gateway takes at a time "
                "(gateway.scans_max): try again when one is over"
            )
        self.open += 1
        place = ScanSlot(self)
        try:
            yield place
        finally:
            place.holds(0)
            self.open -= 1

    async def room(self) -> None:
        """Wait until another piece may be read."""
        await self._room.wait()

    def change(self, by_bytes: int) -> None:
        """Change the total of held bytes, and let scans continue or pause."""
        self._held_bytes += by_bytes
        if self._held_bytes < self._held_bytes_max:
            self._room.set()
        else:
            self._room.clear()


class ScanSlot:
    """The slot of one scan."""

    def __init__(self, places: ScanSlots) -> None:
        self._places = places
        self._bytes = 0

    async def room(self) -> None:
        """Release the held bytes, and wait until the next piece may be read."""
        self.holds(0)
        await self._places.room()

    def holds(self, count: int) -> None:
        """Set the number of bytes that this scan holds."""
        self._places.change(count - self._bytes)
        self._bytes = count
