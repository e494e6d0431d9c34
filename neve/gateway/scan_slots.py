"""Scans that are sent at the same time: how many, and how much of them waits in memory.

A scan holds the piece that it sends until its reader has taken it. Readers who take nothing
would fill the memory with such pieces, so the next piece of any scan is read only when all that
is held is within a bound; a connection whose reader takes nothing for too long is cut.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from common.errors import UnavailableError


class ScanSlots:
    """The scans of one gateway. For one event loop."""

    def __init__(self, most: int, held_bytes_max: int) -> None:
        """Have all places free.

        Args:
            most: Scans at a time.
            held_bytes_max: Of rows that were read and not taken yet; the piece that passes it is
                the last one.
        """
        self._most = most
        self._held_bytes_max = held_bytes_max
        self._held_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self.open = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that were read and not taken yet."""
        return self._held_bytes

    @contextmanager
    def take(self) -> Iterator["ScanSlot"]:
        """Take a place for the length of a block.

        Raises:
            UnavailableError: All are taken.
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
        """Note that more or less is held."""
        self._held_bytes += by_bytes
        if self._held_bytes < self._held_bytes_max:
            self._room.set()
        else:
            self._room.clear()


class ScanSlot:
    """The place of one scan."""

    def __init__(self, places: ScanSlots) -> None:
        self._places = places
        self._bytes = 0

    async def room(self) -> None:
        """Let go what was held, and wait until the next piece may be read."""
        self.holds(0)
        await self._places.room()

    def holds(self, count: int) -> None:
        """Note how many bytes of rows this scan holds from now on."""
        self._places.change(count - self._bytes)
        self._bytes = count
