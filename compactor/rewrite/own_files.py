"""The compactor's own hand on storage: whose is a location, and away with failed outputs."""

import asyncio
from collections.abc import Awaitable, Callable

from common.clock import Clock
from common.errors import CompactionError, InputError
from common.model.table import Table
from common.parquet.location import Location
from common.parquet.owner import OWNER_PATH, owner_of
from compactor.rewrite.files import delete_file, table_location

TRUSTED_S = 60.0
"""How long a location that was ours is not looked at again."""
LOCATIONS_MAX = 10_000


class StorageFiles:
    """Checks and deletes through `common.parquet`, in threads: storage may be slow."""

    def __init__(self, store_id: Callable[[], Awaitable[str]], clock: Clock) -> None:
        """Look at nothing yet.

        Args:
            store_id: Tells the id of our store.
            clock: For how long an answer is trusted.
        """
        self._store_id = store_id
        self._clock = clock
        self._trusted_until_s: dict[str, float] = {}

    async def check_location(self, table: Table) -> None:
        """Make sure that the table's location belongs to this store.

        A location without an owner is refused like another's: the gateway claims it
        before a table exists, so somebody has taken the mark or the folder away.

        Raises:
            InputError: It belongs to another store, or to none.
            UnavailableError: The storage or the store does not answer.
        """
        now_s = self._clock.now_s()
        if self._trusted_until_s.get(table.location, 0.0) > now_s:
            return
        ours = await self._store_id()
        found = await asyncio.to_thread(_owner, table.location)
        if found != ours:
            whose = f"the store {found}" if found else f"nobody ({OWNER_PATH} is missing)"
            message = f"location {table.location} belongs to {whose}, wanted {ours}"
            raise InputError(message)
        if len(self._trusted_until_s) >= LOCATIONS_MAX:
            self._trusted_until_s.clear()
        self._trusted_until_s[table.location] = now_s + TRUSTED_S

    async def delete(self, table: Table, paths: tuple[str, ...]) -> None:
        """Delete outputs; what cannot be deleted stays for the collector."""
        if paths:
            await asyncio.to_thread(_delete, table.location, paths)


def _owner(uri: str) -> str | None:
    return owner_of(table_location(uri))


def _delete(uri: str, paths: tuple[str, ...]) -> None:
    try:
        location: Location = table_location(uri)
    except CompactionError:
        return
    for path in paths:
        delete_file(location, path)
