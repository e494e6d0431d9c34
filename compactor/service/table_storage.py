"""The compactor's own access to storage: owners of locations, deletion of failed outputs.

Storage may be slow, so every call runs in a thread.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from common.backoff import Backoff
from common.bounded_map import BoundedMap
from common.clock import Clock
from common.errors import (
    CompactionError,
    ConflictError,
    InputError,
    RefusedError,
    UnavailableError,
)
from common.model.table import Table
from common.parquet.location import Location, existing_files
from common.parquet.service_files import (
    LocationOwner,
    read_owner,
    refuse_other_owner,
)
from common.storage_threads import StorageThreads
from compactor.rewrite.file_io import delete_file, table_location

STORE_BACKOFF = Backoff()
"""Pauses between two calls to a store that does not answer."""
STORE_TRIES_MAX = 7
"""Some 13 s in all, so that no job fails because a store restarts."""
TRUSTED_S = 60.0
"""Time for which a successful check of a location stays valid."""
TABLES_MAX = 10_000


class TableStorage:
    """Checks and deletes through `common.parquet`, in threads, because storage may be slow."""

    def __init__(self, store_id: Callable[[], Awaitable[str]], clock: Clock) -> None:
        """Create an unused instance.

        Args:
            store_id: Returns the id of this service's store.
            clock: Measures the age of checks.
        """
        self._store_id = store_id
        self._clock = clock
        self._threads = StorageThreads()
        self._trusted_until_s: BoundedMap[str, float] = BoundedMap(TABLES_MAX)

    async def check_location(self, table: Table, *, again: bool = False) -> None:
        """Check that the table's location belongs to this store, and to no other table.

        The gateway claims a location before a table exists. So a location without an owner was
        emptied, or its file system is not mounted at the moment; jobs wait until it is back.

        Args:
            table: The table.
            again: Check even if a recent check was successful.

        Raises:
            InputError: It belongs to another store or table.
            UnavailableError: The storage or the store does not answer, or the location has lost
                its owner.
        """
        now_s = self._clock.now_s()
        if not again and (self._trusted_until_s.get(table.id) or 0.0) > now_s:
            return
        ours = await self._ours()
        owner = await self._threads.run(table.location, _owner, table.location)
        try:
            refuse_other_owner(table.location, owner, ours, table.id)
        except RefusedError as error:
            if owner is None:
                raise UnavailableError(f"{error}; is it mounted?") from error
            raise InputError(str(error)) from error
        self._trusted_until_s.put(table.id, now_s + TRUSTED_S)

    async def _ours(self) -> str:
        failures = 0
        while True:
            try:
                return await self._store_id()
            except (UnavailableError, ConflictError):
                failures += 1
                if failures >= STORE_TRIES_MAX:
                    raise
            await asyncio.sleep(STORE_BACKOFF.wait_s(failures))

    async def missing(self, table: Table, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Return the files that do not exist.

        Raises:
            UnavailableError: The storage does not answer.
        """
        if not paths:
            return ()
        return await self._threads.run(table.location, _missing, table.location, paths)

    async def delete(self, table: Table, paths: tuple[str, ...]) -> None:
        """Delete outputs; files that cannot be deleted are left to the collector.

        Nothing is deleted if the location belongs to another table, which may have been rebuilt
        from these outputs.
        """
        if paths:
            with suppress(UnavailableError):
                await self._threads.run(table.location, _delete, table, paths)


def _owner(uri: str) -> LocationOwner | None:
    return read_owner(table_location(uri))


def _missing(uri: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    try:
        present = existing_files(table_location(uri), paths)
    except CompactionError as error:
        # The outputs were written moments ago, so the failure may be temporary.
        raise UnavailableError(f"outputs cannot be checked: {error}") from error
    return tuple(path for path in paths if path not in present)


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
