"""The interface to Redis: reads at one moment, and WATCH … MULTI … EXEC.

Two adapters implement it: Redis itself, and a dictionary with the same semantics.
Everything above it (`executor`, `store`) is shared by both.
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
    """The connection broke or timed out. Stays within the stores.

    `sent`: whether an `EXEC` may have reached the server, so that the outcome is unknown.
    """

    def __init__(self, reason: str, *, sent: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent


class StoreBusyError(LinkLostError):
    """The store answers but refuses work now: it is full, is starting or fails over.

    Nothing was written. The state is temporary or needs an operator; the reason is the store's own.
    """


class KeyspaceSession(Protocol):
    """One connection, held for one try of one transaction."""

    async def look(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        """WATCH the keys, then read, in one round trip. May be called again to read further.

        Raises:
            LinkLostError: The connection is gone; nothing was written.
        """
        ...

    async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
        """Send MULTI, the effects and EXEC; return False if a watched key has changed.

        Args:
            effects: Commands for one slot.
            durable: Whether to wait for the configured number of replicas.

        Raises:
            LinkLostError: With `sent`, the effects may be applied, or may still be on their way.
        """
        ...


class Keyspace(Protocol):
    """A Redis, or an equivalent."""

    def session(self) -> AbstractAsyncContextManager[KeyspaceSession]:
        """Return a session on a separate connection; its watches end with it."""
        ...

    async def fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        """Read batches, all in one round trip (to each node).

        Reads of one batch in one slot happen at one moment (one MULTI).

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
        """Return the free memory and the durability of the store.

        Raises:
            LinkLostError: The connection is gone.
        """
        ...

    async def keep_reserve(self) -> None:
        """Reserve memory while there is room, so that a full store can be emptied.

        Raises:
            LinkLostError: The connection is gone.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
