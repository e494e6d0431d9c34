"""The change streams of all tables, read on from where they were read last.

A position is that of an entry: commits, splits and restarts of others leave it good. It
is lost only if so many changes came since that the stream, which is capped, has dropped
the entry: then nobody knows what else was dropped, and the whole table is looked at.
"""

from collections import Counter
from collections.abc import Sequence

from common.metadata.ports import TabletChanged, TabletStore

FEED_BLOCK_S = 0.5
CHANGES_MAX = 2000
"""Entries of a table that are read at a time; no stream is capped that short."""


class Feed:
    """Where each table's stream was read last. Positions only go on."""

    def __init__(self, store: TabletStore) -> None:
        """Follow no table yet."""
        self._store = store
        self._positions: dict[str, str] = {}
        self.resets = 0
        """How often a position was lost."""

    def __bool__(self) -> bool:
        return bool(self._positions)

    async def follow(self, table: str) -> None:
        """Hear what changes from now on; one that is followed already goes on as it was.

        Raises:
            MetadataError: The store did not answer as it should.
        """
        if table not in self._positions:
            self._positions[table] = await self._store.tail(table)

    def forget(self, table: str) -> None:
        """Follow a table no longer."""
        self._positions.pop(table, None)

    async def read(self) -> tuple[Sequence[TabletChanged], Sequence[str]]:
        """Wait for changes; return them, and the tables of which others were missed.

        Raises:
            MetadataError: The store did not answer as it should; nothing is lost by it.
        """
        before = dict(self._positions)
        changes = await self._store.changes(before, count=CHANGES_MAX, block_s=FEED_BLOCK_S)
        counts = Counter(change.tablet.table for change in changes)
        behind = [table for table, count in counts.items() if count >= CHANGES_MAX]
        missed = [each for each in behind if not await self._store.remembers(each, before[each])]
        for change in changes:
            if change.tablet.table in self._positions:
                self._positions[change.tablet.table] = change.position
        self.resets += len(missed)
        return changes, missed
