"""A store in memory, for tests and simulations: the same changes over a dictionary."""

import asyncio

from common.clock import Clock, ManualClock
from common.ids import CountedIds
from common.metadata.executor import Patience
from common.metadata.memory_keyspace import MemoryKeyspace
from common.metadata.store import KeyspaceStore


class MemoryStore(KeyspaceStore):
    """A store that lives as long as the process. Deterministic: no chance, no waiting."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        keyspace: MemoryKeyspace | None = None,
        patience: Patience | None = None,
    ) -> None:
        """Start empty, or on a keyspace that another store shares.

        Args:
            clock: The store's time; a `ManualClock` if left out.
            keyspace: Where everything is; several stores may share one, as processes do.
            patience: How often a change is tried.
        """
        self.keyspace = keyspace or MemoryKeyspace(clock or ManualClock())
        ids = CountedIds("memory")
        super().__init__(
            self.keyspace,
            patience=patience or Patience(),
            sleep=_yield,
            chance=lambda: 0.5,
            new_store_id=lambda: ids.next("store"),
        )


async def _yield(_seconds: float) -> None:
    """Let others run; simulated time passes only where a test moves it."""
    await asyncio.sleep(0)
