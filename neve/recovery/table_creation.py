"""Making a table: `create`, `import`, `restore` and `rebuild` end here.

    its site is free: no table's, nobody else's, also by the folders above
    → claimed (or adopted) → its generation above the location's
    → created, paused if files are to be put in → marked as this table's
    → (files, tablet by tablet → described → live, if nothing is missing)

A table that cannot be finished is dropped again; its files stay.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from common.errors import CompactionError, RefusedError, UnknownOutcomeError
from common.metadata.changes import (
    AcceptGeneration,
    Applied,
    Change,
    ChangeTable,
    DropTable,
    Outcome,
    Refused,
    RestoreFiles,
)
from common.metadata.keys import is_table_id
from common.model.file import DataFile
from common.model.table import Table, TableState
from common.model.tablet import PLUS_INFINITY, TabletId
from common.parquet.location import (
    Location,
    existing_files,
    open_location,
)
from common.storage_threads import StorageThreads
from neve.recovery.archive import TabletDump
from neve.recovery.location_ownership import (
    FreeSite,
    claim_site,
    sign_site,
)
from neve.recovery.scope import TableScope
from neve.recovery.stored_files import (
    FileOrigin,
    StoredFile,
    file_origin,
    list_location,
)

FILES_PER_CHANGE = 2000
BROUGHT_IN = frozenset({FileOrigin.APPENDED, FileOrigin.USER})
FORMER_IDS_MAX = 100
"""Ids that are remembered of a table that has been restored again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTable:
    """A table that was made, and the files that it should have but storage has not."""

    table: Table
    tablets: int
    files: int
    missing: tuple[str, ...]
    late: tuple[str, ...] = ()
    """Files that came, or were not listed, when it was looked what lies there."""


def former_ids_of(table: Table) -> tuple[str, ...]:
    """Return the ids that a table has had, when it is to get another one; the newest first."""
    ids = dict.fromkeys((table.id, *table.former_ids))
    return tuple(each for each in ids if is_table_id(each))[:FORMER_IDS_MAX]


async def make_table(
    scope: TableScope,
    free: FreeSite,
    tablets: Sequence[TabletDump],
    *,
    stored: Mapping[str, StoredFile],
    live: bool,
    complete: bool,
) -> CreatedTable:
    """Make a table with these tablets and files.

    Args:
        scope: The table, with a new id; its location is where the files are.
        free: That location.
        tablets: Ascending; those of an unpartitioned table tile.
        stored: What lies in the location; looked at once more if all of it counts.
        live: Whether the table becomes live if no file is missing; else it stays paused.
        complete: Whether all that lies in the location was looked at. Else what the table does
            not know may be rows that came later.

    Raises:
        RefusedError: The name or location is taken.
    """
    table, site = replace(scope.table, state=TableState.PAUSED), free.site
    ends = tuple(each.bounds.end for each in tablets if each.bounds.end != PLUS_INFINITY)
    await claim_site(scope.threads, free)
    await _apply(scope, free.creation(table, () if table.partition_by else ends))
    try:
        await _add_files(scope, tablets)
        if not complete:
            await _note_loss(scope)
        await sign_site(scope.threads, free, table)
    except CompactionError:
        await scope.store.apply(DropTable(table=table.id))
        raise
    files, location = [file for each in tablets for file in each.files], open_location(site.uri)
    late: list[str] = []
    if complete:  # Compactors of an earlier table tidy up until they see the mark.
        again = await scope.run(list_location, location)
        late = sorted(
            path for path in again.keys() - stored.keys() if file_origin(path) in BROUGHT_IN
        )
        stored = {}
    missing = await absent(scope.threads, location, files, stored)
    if live and not missing and not late:
        change = ChangeTable(
            table=table.id, settings_version=table.settings_version, state=TableState.LIVE
        )
        await _apply(scope, change)
        table = replace(table, state=TableState.LIVE)
    return CreatedTable(
        table=table,
        tablets=len(tablets),
        files=len(files),
        missing=missing,
        late=tuple(late),
    )


async def _add_files(scope: TableScope, tablets: Iterable[TabletDump]) -> None:
    count = 0
    for each in tablets:
        tablet = TabletId(scope.table.id, each.bounds.end)
        for files in _chunks(each.files):
            await _apply(
                scope,
                RestoreFiles(
                    tablet=tablet, files=files, purge=each.purge, partition=each.bounds.partition
                ),
            )
            count += len(files)
        scope.on_progress(f"{scope.table.name}: {count} files")


def _chunks(files: tuple[DataFile, ...]) -> Iterator[tuple[DataFile, ...]]:
    yield files[:FILES_PER_CHANGE]
    for first in range(FILES_PER_CHANGE, len(files), FILES_PER_CHANGE):
        yield files[first : first + FILES_PER_CHANGE]


async def _note_loss(scope: TableScope) -> None:
    """Note that what lies there and is not known may be rows.

    A coordinator may count the generation up meanwhile; then what is accepted is no news.
    """
    while await scope.store.loss(scope.table.id) is None:
        above = await scope.store.generation(scope.table.id) + 1
        await _apply(scope, AcceptGeneration(table=scope.table.id, generation=above, lost=True))


async def absent(
    threads: StorageThreads,
    location: Location,
    files: Iterable[DataFile],
    stored: Mapping[str, StoredFile],
) -> tuple[str, ...]:
    """Return which files of a table are not there, or are others.

    Args:
        threads: Where storage is looked at.
        location: Of the table.
        files: Its files.
        stored: What a listing names; whatever it misses is looked up by its name.
    """
    sizes = {file.path: file.size_bytes for file in files}
    known = {path: each.size_bytes for path, each in stored.items()}
    doubtful = [path for path, size in sizes.items() if known.get(path) != size]
    there = await threads.run(location.uri, existing_files, location, doubtful) if doubtful else {}
    return tuple(sorted(path for path in doubtful if there.get(path) != sizes[path]))


async def _apply(scope: TableScope, change: Change) -> None:
    outcome: Outcome = await scope.store.apply(change)
    if isinstance(outcome, Refused):
        raise RefusedError(outcome.reason, outcome.code)
    if not isinstance(outcome, Applied):
        raise UnknownOutcomeError(outcome.reason)
