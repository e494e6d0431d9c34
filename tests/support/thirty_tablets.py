"""A table of thirty tablets in memory."""

from __future__ import annotations

from common.metadata.changes import Applied, Change, CreateTable
from common.model.tablet import PLUS_INFINITY
from tests.support.memory_store import MemoryStore
from tests.support.predictable import ManualClock
from tests.support.request_shell import TABLE

ENDS = (*(bytes([number]) for number in range(1, 30)), PLUS_INFINITY)


async def applied(store: MemoryStore, change: Change) -> None:
    """Make a change."""
    outcome = await store.apply(change)
    assert isinstance(outcome, Applied), outcome


async def store_with_table(clock: ManualClock) -> MemoryStore:
    """Return a store with the table, which has no files."""
    store = MemoryStore(clock)
    await applied(store, CreateTable(table=TABLE, splits=ENDS[:-1]))
    return store
