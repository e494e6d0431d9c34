"""May a table be written? Not while its store is older than its location says.

The location is read once a minute; in between, each change requires of the store what was
read there.
"""

from collections.abc import Awaitable, Callable

from common.errors import RefusedError
from common.metadata.ports import TabletStore
from common.model.table import Table
from common.parquet.service_files import generation_fault

CHECK_INTERVAL_S = 60.0
TABLES_MAX = 100_000


class Generations:
    """Remembers which tables were found whole, and looks again every minute.

    A table that was found behind is looked at each time, so that it is writable as soon
    as somebody has accepted.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}

    async def check(
        self, store: TabletStore, table: Table, now_s: float, read: Callable[[], Awaitable[int]]
    ) -> int:
        """Return the generation that a table's store must have, and has.

        Args:
            store: The store.
            table: The table.
            now_s: When this is asked.
            read: Reads the generation of the table's location.

        Raises:
            RefusedError: The store has gone back in time; the message says how to accept it.
            UnavailableError: The storage does not answer.
        """
        seen_s, known = self._seen.get(table.id, (None, 0))
        if seen_s is not None and 0 <= now_s - seen_s < CHECK_INTERVAL_S:
            return known
        # The location first: what is counted up meanwhile is then not taken for a lag.
        written = await read()
        reason = generation_fault(table.name, await store.generation(table.id), written)
        if reason is not None:
            raise RefusedError(reason)
        if len(self._seen) >= TABLES_MAX:
            self._seen.clear()
        self._seen[table.id] = now_s, written
        return written
