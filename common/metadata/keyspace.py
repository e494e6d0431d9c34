"""What a store needs of Redis: reads at one moment, and WATCH … MULTI … EXEC.

Two adapters satisfy this port: Redis itself and a dictionary with the same
semantics. Everything above it (`executor`, `store`) is shared by both.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from common.errors import CompactionError
from common.metadata.commands import Command, Reply
from common.metadata.store_values import StoreHealth

StreamEntry = tuple[str, Mapping[bytes, bytes]]
"""Position and fields."""


class LinkLostError(CompactionError):
    """The connection broke or stayed silent. Never leaves the stores.

    `sent` tells whether an `EXEC` may have reached the server: the outcome is unknown.
    """

    def __init__(self, reason: str, *, sent: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent


class StoreBusyError(LinkLostError):
    """The store answers, and takes nothing now: it is full, starts or fails over.

    Nothing was written. It passes, or an operator ends it; the reason is the store's own.
    """


class KeyspaceSession(Protocol):
    """One connection, held for one try of one transaction."""

    async def look(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        """WATCH the keys, then read, in one round trip. May be called again, to look further.

        Raises:
            LinkLostError: The connection is gone; nothing was written.
        """
        ...

    async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
        """Send MULTI, the effects and EXEC; return False if a watched key had changed.

        Args:
            effects: The commands, of one slot.
            durable: Wait for as many replicas as the keyspace is configured for.

        Raises:
            LinkLostError: With `sent`: applied, never to be, or still on its way.
        """
        ...


class Keyspace(Protocol):
    """A Redis, or what behaves like one."""

    def session(self) -> AbstractAsyncContextManager[KeyspaceSession]:
        """Return a session on a connection of its own; what it watches ends with it."""
        ...

    async def fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read batches, all in one round trip (to each node).

        What a batch reads of one slot is read at one moment (one MULTI).

        Raises:
            LinkLostError: The connection is gone.
        """
        ...

    async def wait_entries(
        self, after: Mapping[str, str], count: int, block_s: float
    ) -> Mapping[str, Sequence[StreamEntry]]:
        """Return entries of streams after the given positions; wait if there are none."""
        ...

    async def health(self) -> StoreHealth:
        """Return how much room there is, and what the store would survive.

        Raises:
            LinkLostError: The connection is gone.
        """
        ...

    async def keep_reserve(self) -> None:
        """Set memory aside while there is room, so that a full store can be emptied.

        Raises:
            LinkLostError: The connection is gone.
        """
        ...

    async def close(self) -> None:
        """Give everything back."""
        ...
