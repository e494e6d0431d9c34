"""Repairs tables without a name and names without a table.

    creating:  the table, new ─► its name ─► live, acknowledged
                     │               │
                     └─── died here ─┴──► unused, not found by name, and its name stays taken

A new table or a name without a table is remembered when it is first seen, and removed if it is
unchanged one grace period later. If its creator wakes up after that, the store refuses the last
step, and the creator undoes its work (`common/metadata/mutation/tables.py`).

A live or paused table without a name was acknowledged and holds rows: a fail-over has lost either
its name or its drop, on different nodes of the store. Its name is restored one grace period later,
unless another table has the name or the location. A table without a name that was being filled is
removed: its files stay, and its recovery is repeated.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from common.errors import MetadataError, UnavailableError
from common.metadata.changes import Applied, DropTable, Outcome, RestoreName
from common.metadata.store import TabletStore
from common.model.location_identity import LocationIdentity
from common.model.table import Table, TableState
from common.telemetry import Log
from coordinator.table_faults import TableFaults

PART = "the removal of unfinished tables"

Identities = Callable[[Mapping[str, str]], Awaitable[Mapping[str, LocationIdentity]]]
"""Returns the current identities of locations, by the same keys."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The repair of a table, if its state is unchanged one grace period later."""

    table: Table | None = None
    """Table whose name is to be restored; None means that the table or name is removed."""


async def _told_by_uri(_locations: Mapping[str, str]) -> Mapping[str, LocationIdentity]:
    """Return no identities, so that locations are compared by URI only."""
    return {}


class UnfinishedTables:
    """Checks every table of the store, with or without a name."""

    def __init__(
        self,
        store: TabletStore,
        grace_s: float,
        log: Log,
        faults: TableFaults,
        identities: Identities = _told_by_uri,
    ) -> None:
        """Create an instance without remembered tables.

        Args:
            store: The store with the tables.
            grace_s: How long a table must be unchanged before it is repaired.
            log: Receives the repairs.
            faults: Isolates failures of one table, and shows notices to operators.
            identities: Determines which locations share files.
        """
        self._store = store
        self._grace_s = grace_s
        self._log = log
        self._faults = faults
        self._identities = identities
        self._seen_s: dict[tuple[str, bool], float] = {}
        """(Table id, whether it has lost its name) → store time when it was first seen so."""

    async def look(self) -> int:
        """Check once; return the number of removed or restored tables and names.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: The store did not answer.
        """
        found = await self._look_for_all()
        # The time is read last, so that it is not earlier than any finding.
        now_s = await self._store.now_s()
        keys = {table: (table, each.table is not None) for table, each in found.items()}
        self._seen_s = {key: self._seen_s.get(key, now_s) for key in keys.values()}
        self._faults.keep_notices(PART, found)
        done = 0
        for table, each in found.items():
            if now_s - self._seen_s[keys[table]] >= self._grace_s:
                step = partial(self._remove, table)
                if each.table is not None:
                    step = partial(self._restore, each.table)
                done += bool(await self._faults.run(PART, table, step))
        return done

    async def _look_for_all(self) -> dict[str, _Found]:
        """Return unfinished tables, tables without a name, and names without a table."""
        ids = await self._store.table_ids()
        named = {named_table.id for named_table in await self._store.named_tables()}
        found = {table: _Found() for table in sorted(named.difference(ids))}
        for table in ids:
            look = partial(self._look_at, table, has_name=table in named)
            if (each := await self._faults.run(PART, table, look)) is not None:
                found[table] = each
        return found

    async def _look_at(self, table: str, *, has_name: bool) -> _Found | None:
        """Return the repair of an existing table, or None if it needs none."""
        present = await self._store.table(table)
        if present is None:
            return None
        if present.state is TableState.NEW:
            return _Found()
        if has_name:
            return None  # The collector continues a drop.
        if present.state in {TableState.FILLING, TableState.GOING}:
            return _Found()
        if (table, True) not in self._seen_s:
            self._log("table has no name", table=table, was=present.name, location=present.location)
        return _Found(present)

    async def _remove(self, table: str) -> bool:
        outcome = await self._store.apply(DropTable(table=table, unfinished=True))
        if removed := isinstance(outcome, Applied) and outcome.complete:
            self._log("unfinished table removed", table=table)
        return removed

    async def _restore(self, table: Table) -> bool:
        """Restore the name of a table, or notify operators why this is not possible."""
        others = {
            named_table.id: named_table.location for named_table in await self._store.named_tables()
        }
        known = dict(await self._identities({**others, table.id: table.location}))
        mine = known.pop(table.id, None)
        change = RestoreName(table=table.id, identity=mine, others=known)
        outcome: Outcome = await self._store.apply(change)
        if isinstance(outcome, Applied):
            self._log("name given back to a table", table=table.id, name=table.name)
            return True
        self._faults.notice(
            PART,
            table.id,
            f"table {table.id} ({table.location}) has lost its name {table.name!r}, which"
            f" cannot be restored: {outcome.reason}; drop the table that now has this name, or"
            " move its files",
        )
        return False

    async def run_forever(self, interval_s: float) -> None:
        """Check in a loop.

        Args:
            interval_s: Pause between two checks; if tables wait for a repair, at most the grace
                period.
        """
        while True:
            await asyncio.sleep(min(interval_s, self._grace_s) if self._seen_s else interval_s)
            try:
                await self.look()
            except (MetadataError, UnavailableError) as error:
                self._log("unfinished tables not looked for", cause=str(error))
