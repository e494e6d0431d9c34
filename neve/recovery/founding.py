"""Making a table out of what was kept: restore and rebuild end here.

    claim (or adopt) the location → create the table, paused → put files, tablet by tablet
    → its generation above the location's → described → live, if nothing is missing

A table that cannot be finished is dropped again; its files stay.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from common.errors import CompactionError, RefusedError, UnknownOutcomeError
from common.metadata.changes import Applied, Change, ChangeTable, CreateTable, DropTable, Refused
from common.metadata.repair_changes import AcceptGeneration, PutFiles
from common.model.file import DataFile
from common.model.table import Table, TableState
from common.model.tablet import PLUS_INFINITY, TabletId
from common.parquet.description import write_description
from common.parquet.generation import UNREADABLE, write_generation, written_generation
from common.parquet.location import Location
from common.parquet.owner import claim, owner_of
from neve.recovery.archive import TabletDump
from neve.recovery.check_place import adopt
from neve.recovery.scope import Scope
from neve.recovery.stored import StoredFile

FILES_PER_CHANGE = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Founded:
    """A table that was made, and the files that it should have but storage has not."""

    table: Table
    tablets: int
    files: int
    missing: tuple[str, ...]


async def check_free(scope: Scope, *, take_over: bool) -> None:
    """Refuse a location that is another store's, unless it is to be taken over.

    Raises:
        RefusedError: It is.
    """
    ours, found = await scope.store.store_id(), await scope.owner()
    if found not in (None, ours) and not take_over:
        raise RefusedError(
            f"location {scope.table.location} belongs to the store {found}, this one is {ours}: "
            "give a copy's location, or --adopt it if no other store lives there any more"
        )


async def found_table(
    scope: Scope,
    tablets: Sequence[TabletDump],
    *,
    stored: dict[str, StoredFile],
    take_over: bool,
    live: bool,
) -> Founded:
    """Make a table with these tablets and files.

    Args:
        scope: The table, with a new id; its location is where the files are.
        tablets: Ascending; those of an unpartitioned table tile.
        stored: What lies in the location.
        take_over: Whether another store's mark is overwritten.
        live: Whether the table becomes live if no file is missing; else it stays paused.

    Raises:
        RefusedError: The name or location is taken.
    """
    table = replace(scope.table, state=TableState.PAUSED)
    await check_free(scope, take_over=take_over)
    store_id = await scope.store.store_id()
    ends = tuple(each.bounds.end for each in tablets if each.bounds.end != PLUS_INFINITY)
    await _apply(scope, CreateTable(table=table, splits=() if table.partition_by else ends))
    try:
        await scope.threads.run(_own, scope.location, store_id, take_over=take_over)
        await _fill(scope, tablets)
        await _match_generation(scope)
        await scope.threads.run(write_description, scope.location, table)
    except CompactionError:
        await scope.store.apply(DropTable(table=table.id))
        raise
    files = [file for each in tablets for file in each.files]
    missing = tuple(sorted(_missing(files, stored)))
    if live and not missing:
        change = ChangeTable(
            table=table.id, settings_version=table.settings_version, state=TableState.LIVE
        )
        await _apply(scope, change)
        table = replace(table, state=TableState.LIVE)
    return Founded(table=table, tablets=len(tablets), files=len(files), missing=missing)


def _own(location: Location, store: str, *, take_over: bool) -> None:
    if take_over and owner_of(location) != store:
        adopt(location, store)
    else:
        claim(location, store)


async def _fill(scope: Scope, tablets: Iterable[TabletDump]) -> None:
    count = 0
    for each in tablets:
        tablet = TabletId(scope.table.id, each.bounds.end)
        for files in _chunks(each.files):
            await _apply(
                scope,
                PutFiles(
                    tablet=tablet, files=files, purge=each.purge, partition=each.bounds.partition
                ),
            )
            count += len(files)
        scope.tell(f"{scope.table.name}: {count} files")


def _chunks(files: tuple[DataFile, ...]) -> Iterator[tuple[DataFile, ...]]:
    yield files[:FILES_PER_CHANGE]
    for first in range(FILES_PER_CHANGE, len(files), FILES_PER_CHANGE):
        yield files[first : first + FILES_PER_CHANGE]


async def _match_generation(scope: Scope) -> None:
    """Let the table not look like one whose store has gone back in time."""
    written = await scope.threads.run(written_generation, scope.location)
    if written == UNREADABLE:
        await scope.threads.run(write_generation, scope.location, 0)
    elif written:
        await _apply(scope, AcceptGeneration(table=scope.table.id, generation=written + 1))


def _missing(files: Iterable[DataFile], stored: dict[str, StoredFile]) -> Iterator[str]:
    for file in files:
        found = stored.get(file.path)
        if found is None or found.size_bytes != file.size_bytes:
            yield file.path


async def _apply(scope: Scope, change: Change) -> None:
    outcome = await scope.store.apply(change)
    if isinstance(outcome, Refused):
        raise RefusedError(outcome.reason)
    if not isinstance(outcome, Applied):
        raise UnknownOutcomeError(outcome.reason)
