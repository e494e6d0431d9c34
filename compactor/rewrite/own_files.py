"""The compactor's own hand on storage: whose is a location, and away with failed outputs."""

import asyncio
from collections.abc import Awaitable, Callable

from common.clock import Clock
from common.errors import (
    CompactionError,
    ConflictError,
    InputError,
    RefusedError,
    UnavailableError,
)
from common.model.table import Table
from common.parquet.location import Location
from common.parquet.owner import Owner, read_owner, refuse_other
from compactor.rewrite.files import delete_file, table_location

STORE_PAUSES_S = (0.1, 0.3, 1.0, 3.0, 9.0)
"""Between two questions to a store that does not answer: no job fails for that."""
TRUSTED_S = 60.0
"""How long a location that was ours is not looked at again."""
TABLES_MAX = 10_000


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
        """Make sure that the table's location belongs to this store, and to no other table.

        A location without an owner is refused like another's: the gateway claims it
        before a table exists, so somebody has taken the mark or the folder away.

        Raises:
            InputError: It belongs to another store or table, or to none.
            UnavailableError: The storage or the store does not answer.
        """
        now_s = self._clock.now_s()
        if self._trusted_until_s.get(table.id, 0.0) > now_s:
            return
        ours = await self._ours()
        found = await asyncio.to_thread(_owner, table.location)
        try:
            refuse_other(table.location, found, ours, table.id)
        except RefusedError as error:
            raise InputError(str(error)) from error
        if len(self._trusted_until_s) >= TABLES_MAX:
            self._trusted_until_s.clear()
        self._trusted_until_s[table.id] = now_s + TRUSTED_S

    async def _ours(self) -> str:
        for pause_s in STORE_PAUSES_S:
            try:
                return await self._store_id()
            except (UnavailableError, ConflictError):
                await asyncio.sleep(pause_s)
        return await self._store_id()

    async def delete(self, table: Table, paths: tuple[str, ...]) -> None:
        """Delete outputs; what cannot be deleted stays for the collector.

        So do all where another table is by now: it may have been rebuilt from these outputs.
        """
        if paths:
            await asyncio.to_thread(_delete, table, paths)


def _owner(uri: str) -> Owner | None:
    return read_owner(table_location(uri))


def _delete(table: Table, paths: tuple[str, ...]) -> None:
    try:
        location: Location = table_location(table.location)
        owner = read_owner(location)
    except CompactionError:
        return
    if owner is not None and owner.is_another(table.id):
        return
    for path in paths:
        delete_file(location, path)
