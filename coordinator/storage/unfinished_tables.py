"""Removes tables whose creator died before anybody learned that they exist.

    creating:  the table, new ─► its name ─► live, acknowledged
                     │               │
                     └─── died here ─┴──► nobody uses it, nobody finds it or frees its name

A table that is still new, or a name without a table, is remembered when it is seen; what is
the same a grace later is removed. A creator that wakes up even later is refused at its
last step and takes back what it has made (`common/metadata/mutation/tables.py`). A table
without a name that is *not* new is left alone: it was acknowledged, and it holds rows.
"""

import asyncio
from collections.abc import Collection
from functools import partial

from common.errors import MetadataError, UnavailableError
from common.metadata.changes import Applied, DropTable
from common.metadata.ports import TabletStore
from common.model.table import TableState
from common.telemetry import Log
from coordinator.table_faults import TableFaults

PART = "the removal of unfinished tables"


class UnfinishedTables:
    """Looks at every table of the store, named or not."""

    def __init__(self, store: TabletStore, grace_s: float, log: Log, faults: TableFaults) -> None:
        """Know of none.

        Args:
            store: Where tables are.
            grace_s: How long one must have been unfinished before it is removed.
            log: Hears what was removed.
            faults: Keeps a table that fails from ending the loop.
        """
        self._store = store
        self._grace_s = grace_s
        self._log = log
        self._faults = faults
        self._seen_s: dict[str, float] = {}
        """Table id → when it was first seen unfinished, by the store's time."""
        self._told: set[str] = set()

    async def look(self) -> int:
        """Look once; return how many tables or names were removed.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: It did not answer.
        """
        unfinished = await self._unfinished()
        now_s = await self._store.now_s()
        self._seen_s = {table: self._seen_s.get(table, now_s) for table in unfinished}
        removed = 0
        for table, since_s in self._seen_s.items():
            if now_s - since_s >= self._grace_s:
                done = await self._faults.run(PART, table, partial(self._remove, table))
                removed += bool(done)
        return removed

    async def _unfinished(self) -> list[str]:
        """Return the tables that are not finished, and those of which only a name is left."""
        ids = await self._store.table_ids()
        names = await self._store.named_tables()
        named = {each.id for each in names}
        found = sorted(named.difference(ids))
        for table in ids:
            if await self._faults.run(PART, table, partial(self._is_new, table, named)):
                found.append(table)
        return found

    async def _is_new(self, table: str, named: Collection[str]) -> bool:
        """Return whether a table was never live; one without a name may be going again."""
        present = await self._store.table(table)
        if present is None:
            return False
        if present.state is TableState.GOING:
            return table not in named  # Those with a name are gone on with by the collector.
        if table not in named and present.state is not TableState.NEW and table not in self._told:
            self._told.add(table)
            self._log("table has no name", table=table, was=present.name, location=present.location)
        return present.state is TableState.NEW

    async def _remove(self, table: str) -> bool:
        outcome = await self._store.apply(DropTable(table=table, unfinished=True))
        if removed := isinstance(outcome, Applied) and outcome.complete:
            self._log("unfinished table removed", table=table)
        return removed

    async def run_forever(self, interval_s: float) -> None:
        """Look again and again.

        Args:
            interval_s: Pause between two looks.
        """
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.look()
            except (MetadataError, UnavailableError) as error:
                self._log("unfinished tables not looked for", cause=str(error))
