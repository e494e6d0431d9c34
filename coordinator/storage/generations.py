"""The generation of every table: incremented regularly, and written to the table's location.

    read the location's generation → read the store's generation → if the store is behind, the table
    stays read-only until `neve fsck --accept` → otherwise increment the store's generation → write
    the new generation to the location

The file is read before the key, so a lower key proves that the store is behind. Known generations
are kept in memory: a new coordinator checks each table before its first change, and each change
requires the known generation of the store (`common.metadata.changes`). The description of the table
(`_neve/table.json`) is updated at the same time.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from common.errors import ConfigError, MetadataError, RequestError, UnavailableError, redacted
from common.metadata.changes import Applied, BumpGeneration
from common.metadata.store import TabletStore
from common.model.table import Table, TableState
from common.parquet.location import Location, open_location
from common.parquet.service_files import (
    LocationOwner,
    generation_fault,
    read_description,
    read_owner,
    write_description,
    write_generation,
    written_generation,
)
from common.storage_threads import StorageThreads
from common.telemetry import Log
from coordinator.table_faults import TableFaults

LOOK_AGAIN_S = 5.0
"""Interval between checks of tables that are new or behind."""
LOOK_LASTS_S = 5.0
"""How long after a check a generation may be incremented: shorter than a fail-over of the store."""
TABLES_AT_ONCE = 8
_ERRORS = (ConfigError, MetadataError, RequestError, UnavailableError)


class Generations:
    """Decides from the generation of a table whether the table may be changed."""

    def __init__(
        self,
        store: TabletStore,
        log: Log,
        faults: TableFaults | None = None,
        threads: StorageThreads | None = None,
        *,
        interval_s: float = 60.0,
    ) -> None:
        """Create an instance without known generations.

        Args:
            store: The store of the tables.
            log: Receives anomalies.
            faults: Isolates failures of one table.
            threads: Threads for calls to the storage.
            interval_s: Interval between two increments of a table.
        """
        self._interval_s = interval_s
        self.threads = threads or StorageThreads()
        self.faults = faults or TableFaults(log)
        self._store = store
        self._log = log
        self._reasons: dict[str, str | None] = {}
        self._known: dict[str, int] = {}
        self._described: dict[str, Table] = {}

    def may_change(self, table: str) -> bool:
        """Return whether the generation of a table was read and is not behind."""
        return self._reasons.get(table, "not looked at yet") is None

    def known(self, table: str) -> int:
        """Return the highest known generation of a table."""
        return self._known.get(table, 0)

    async def refusal(self, table: str) -> str | None:
        """Return why no job of a table may be reserved, or None; check the table if necessary."""
        if table not in self._reasons:
            try:
                found = await self._store.table(table)
                return None if found is None else await self.look(found)
            except Exception as error:  # A table that cannot be checked gets no jobs.
                if not isinstance(error, _ERRORS):
                    self.faults.note("the look at generations", table, error)
                return f"its generation cannot be checked: {redacted(str(error))}"
        return self._reasons[table]

    async def look(self, table: Table) -> str | None:
        """Compare store and location; return why the table is read-only, or None.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: Store or storage do not answer.
        """
        location, known = open_location(table.location), self.known(table.id)
        written = await self.threads.run(table.location, written_generation, location)
        stored = await self._store.generation(table.id)
        if stored < known and written < known:
            # The store lost writes before the location was written: record the known generation.
            await self.threads.run(table.location, _raise_written, location, known)
            written = known
        reason = generation_fault(table.name, stored, written)
        owner = await self.threads.run(table.location, read_owner, location)
        if reason is None and owner is not None:
            reason = foreign_owner(table, owner)
        if reason and not self._reasons.get(table.id):
            self._log("table is read-only", table=table.name, cause=reason)
        self._reasons[table.id] = reason
        if reason is None:
            self._known[table.id] = stored
        return reason

    async def count_up(self, table: Table) -> None:
        """Increment the generation of a table, unless it is behind.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: Store or storage do not answer.
        """
        until_s = await self._store.now_s() + LOOK_LASTS_S
        if await self.look(table) is not None:
            return
        location, known = open_location(table.location), self.known(table.id)
        change = BumpGeneration(table=table.id, generation=known, until_s=until_s)
        outcome = await self._store.apply(change)
        if isinstance(outcome, Applied) and outcome.generation is not None:
            self._known[table.id] = outcome.generation
            await self.threads.run(table.location, _raise_written, location, outcome.generation)
        if self._described.get(table.id) != table:
            await self.threads.run(table.location, _describe, location, table)
            self._described[table.id] = table

    async def run_forever(self, tables: Callable[[], Collection[Table]]) -> None:
        """Increment all tables once per interval; check new tables and those behind more often.

        Args:
            tables: Returns the existing tables.
        """
        rounds, gate = 0, asyncio.Semaphore(TABLES_AT_ONCE)
        pause_s = min(LOOK_AGAIN_S, self._interval_s)

        async def count_up(table: Table) -> None:
            async with gate:
                work = partial(self._count_up_or_log, table)
                await self.faults.run("the look at generations", table.id, work)

        while True:
            everyone = [each for each in tables() if each.state is not TableState.GOING]
            whole = rounds % int(self._interval_s / pause_s) == 0
            due = [each for each in everyone if whole or not self.may_change(each.id)]
            await asyncio.gather(*map(count_up, due))
            self._forget_all_but({table.id for table in everyone})
            rounds += 1
            await asyncio.sleep(pause_s)

    async def _count_up_or_log(self, table: Table) -> None:
        try:
            await self.count_up(table)
        except _ERRORS as error:
            self._log("generation not counted up", table=table.name, cause=str(error))

    def _forget_all_but(self, known: set[str]) -> None:
        for table in [reason for reason in self._reasons if reason not in known]:
            del self._reasons[table]
            self._known.pop(table, None)
            self._described.pop(table, None)


def _raise_written(location: Location, generation: int) -> None:
    """Write a generation to a location, unless it has a higher one from another coordinator."""
    if written_generation(location) < generation:
        write_generation(location, generation)


def _describe(location: Location, table: Table) -> None:
    """Write the description of a table; an incomplete table keeps the state described before."""
    described = read_description(location) if table.incomplete else None
    if described is not None and described.id == table.id:
        table = replace(table, state=described.state)
    write_description(location, table)


def foreign_owner(table: Table, owner: LocationOwner) -> str | None:
    """Return why a table is read-only if its location belongs to another table, or None."""
    if not owner.is_another(table.id):
        return None
    return (
        f"table {table.name} is read-only: the mark in its location {table.location} belongs"
        f" to the table with id {owner.table}; check for a moved folder or a changed link or"
        f" mount, then run `neve fsck {table.name}`"
    )
