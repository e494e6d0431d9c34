"""Looks after tables and names of which only one is there.

    creating:  the table, new ─► its name ─► live, acknowledged
                     │               │
                     └─── died here ─┴──► nobody uses it, nobody finds it or frees its name

A table that is still new, or a name without a table, is remembered when it is seen; what is
the same a grace later is removed. A creator that wakes up even later is refused at its
last step and takes back what it has made (`common/metadata/mutation/tables.py`).

A table without a name that is live or paused was acknowledged, and it holds rows: a fail-over
of the node that has the names has forgotten its name, or one of the table's own node that it
was dropped. It gets its name back a grace later, if nobody has taken name or location. A table
that was being filled is removed: its files stay, and its recovery is repeated.
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
"""Returns what locations are now, by the same keys."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What is to be done about a table, if it is the same a grace later."""

    table: Table | None = None
    """One that has lost its name; None: what is there of a table is removed."""


async def _told_by_uri(_locations: Mapping[str, str]) -> Mapping[str, LocationIdentity]:
    """Know no more of locations than their URIs tell."""
    return {}


class UnfinishedTables:
    """Looks at every table of the store, named or not."""

    def __init__(
        self,
        store: TabletStore,
        grace_s: float,
        log: Log,
        faults: TableFaults,
        identities: Identities = _told_by_uri,
    ) -> None:
        """Know of none.

        Args:
            store: Where tables are.
            grace_s: How long one must have been the same before anything is done about it.
            log: Hears what was done.
            faults: Keeps a table that fails from ending the loop, and tells operators.
            identities: Finds out which locations share files.
        """
        self._store = store
        self._grace_s = grace_s
        self._log = log
        self._faults = faults
        self._identities = identities
        self._seen_s: dict[tuple[str, bool], float] = {}
        """Table id, and whether it has lost its name → when it was first seen like that, by the
        store's time."""

    async def look(self) -> int:
        """Look once; return how many tables or names were removed or restored.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: It did not answer.
        """
        found = await self._look_for_all()
        # Read last: nobody was found later than that.
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
        """Return tables that are not finished or have no name, and names without a table."""
        ids = await self._store.table_ids()
        named = {named_table.id for named_table in await self._store.named_tables()}
        found = {table: _Found() for table in sorted(named.difference(ids))}
        for table in ids:
            look = partial(self._look_at, table, has_name=table in named)
            if (each := await self._faults.run(PART, table, look)) is not None:
                found[table] = each
        return found

    async def _look_at(self, table: str, *, has_name: bool) -> _Found | None:
        """Return what is to be done about a table that is there; None: nothing."""
        present = await self._store.table(table)
        if present is None:
            return None
        if present.state is TableState.NEW:
            return _Found()
        if has_name:
            return None  # If it is going, the collector goes on with it.
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
        """Give a table its name back, or tell operators why it stays without one."""
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
        """Look again and again.

        Args:
            interval_s: Pause between two looks; a grace, if that is shorter and there is something
                to wait for.
        """
        while True:
            await asyncio.sleep(min(interval_s, self._grace_s) if self._seen_s else interval_s)
            try:
                await self.look()
            except (MetadataError, UnavailableError) as error:
                self._log("unfinished tables not looked for", cause=str(error))
