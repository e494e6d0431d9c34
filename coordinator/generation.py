"""The generation of every table: counted up each minute, and written beside its data.

    location's generation is read → the store's is read → behind? then nothing is written,
    and no job of the table is reserved until `neve fsck --accept` → else the store's is
    counted up → it is written into the location

The file is read before the key, so a key that is lower was lower for good. What was seen
is kept in memory: a coordinator that starts looks before the first job of each table.
The description of the table (`_neve/table.json`) is brought up to date on the way.
"""

import asyncio
from collections.abc import Callable, Collection

from common.errors import ConfigError, MetadataError, RequestError, UnavailableError
from common.metadata.changes import Applied
from common.metadata.ports import TabletStore
from common.metadata.upkeep_changes import BumpGeneration
from common.model.table import Table, TableState
from common.parquet.description import write_description
from common.parquet.generation import behind, write_generation, written_generation
from common.parquet.location import open_location
from coordinator.ports import Log

INTERVAL_S = 60.0
LOOK_AGAIN_S = 5.0
"""How soon tables that are new or behind are looked at again."""
_ERRORS = (ConfigError, MetadataError, RequestError, UnavailableError)


class Generations:
    """Which tables may be changed, as far as their generation says."""

    def __init__(self, store: TabletStore, log: Log) -> None:
        """Know nothing yet."""
        self._store = store
        self._log = log
        self._reasons: dict[str, str | None] = {}
        self._described: dict[str, Table] = {}

    @property
    def behind(self) -> frozenset[str]:
        """Ids of the tables that are read-only."""
        return frozenset(table for table, reason in self._reasons.items() if reason)

    async def refusal(self, table: str) -> str | None:
        """Return why no job of a table may be reserved; looks if nobody has looked yet."""
        if table not in self._reasons:
            try:
                found = await self._store.table(table)
                return None if found is None else await self.look(found)
            except _ERRORS as error:
                return f"its generation cannot be checked: {error}"
        return self._reasons[table]

    async def look(self, table: Table) -> str | None:
        """Compare store and location; return why the table is read-only, or None.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: Store or storage do not answer.
        """
        location = open_location(table.location)
        written = await asyncio.to_thread(written_generation, location)
        reason = behind(table.name, await self._store.generation(table.id), written)
        if reason and not self._reasons.get(table.id):
            self._log("table is behind its location", table=table.name, cause=reason)
        self._reasons[table.id] = reason
        return reason

    async def count_up(self, table: Table) -> None:
        """Count a table's generation up, unless it is behind.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: Store or storage do not answer.
        """
        if await self.look(table) is not None:
            return
        location = open_location(table.location)
        outcome = await self._store.apply(BumpGeneration(table=table.id))
        if isinstance(outcome, Applied) and outcome.generation is not None:
            await asyncio.to_thread(write_generation, location, outcome.generation)
        if self._described.get(table.id) != table:
            await asyncio.to_thread(write_description, location, table)
            self._described[table.id] = table

    async def run_forever(self, tables: Callable[[], Collection[Table]]) -> None:
        """Count all tables up once a minute; look sooner at those that are new or behind.

        Args:
            tables: Returns the tables that there are.
        """
        rounds = 0
        while True:
            everyone = [each for each in tables() if each.state is not TableState.GOING]
            whole = rounds % round(INTERVAL_S / LOOK_AGAIN_S) == 0
            for table in everyone:
                if whole or self._reasons.get(table.id, "new"):
                    await self._count_up_or_log(table)
            self._forget_all_but({table.id for table in everyone})
            rounds += 1
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _count_up_or_log(self, table: Table) -> None:
        try:
            await self.count_up(table)
        except _ERRORS as error:
            self._log("generation not counted up", table=table.name, cause=str(error))

    def _forget_all_but(self, known: set[str]) -> None:
        for table in [each for each in self._reasons if each not in known]:
            del self._reasons[table]
            self._described.pop(table, None)
