"""May a table be written? Not while its store is older than its location says."""

import asyncio

from common.errors import RefusedError
from common.metadata.ports import TabletStore
from common.model.table import Table
from common.parquet.generation import behind, written_generation
from common.parquet.location import open_location

CHECK_INTERVAL_S = 60.0
TABLES_MAX = 100_000


class Generations:
    """Remembers which tables were found whole, and looks again every minute.

    A table that was found behind is looked at each time, so that it is writable as soon
    as somebody has accepted.
    """

    def __init__(self) -> None:
        self._seen_s: dict[str, float] = {}

    async def check(self, store: TabletStore, table: Table, now_s: float) -> None:
        """Refuse a table whose store has gone back in time.

        Raises:
            RefusedError: It has; the message says how to accept it.
            UnavailableError: The storage does not answer.
        """
        seen_s = self._seen_s.get(table.id)
        if seen_s is not None and 0 <= now_s - seen_s < CHECK_INTERVAL_S:
            return
        # The location first: what is counted up meanwhile is then not taken for a lag.
        written = await asyncio.to_thread(written_generation, open_location(table.location))
        reason = behind(table.name, await store.generation(table.id), written)
        if reason is not None:
            raise RefusedError(reason)
        if len(self._seen_s) >= TABLES_MAX:
            self._seen_s.clear()
        self._seen_s[table.id] = now_s
