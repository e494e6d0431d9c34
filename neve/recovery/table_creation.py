"""Making a table: `create`, `import`, `restore` and `rebuild` end here.

    its site is free: no table's, nobody else's, also by the folders above
    → claimed (or adopted) → its generation above the location's
    → created, paused if files are to be put in → marked as this table's
    → (files, tablet by tablet → described → live, if nothing is missing)

A table that cannot be finished is dropped again; its files stay.
"""

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from common.errors import CompactionError, RefusedError, UnavailableError, UnknownOutcomeError
from common.metadata.changes import (
    AcceptGeneration,
    Applied,
    Change,
    ChangeTable,
    CreateTable,
    DropTable,
    Outcome,
    Refused,
    RestoreFiles,
)
from common.metadata.keys import is_table_id
from common.metadata.mutation.tables import location_overlap
from common.metadata.ports import NamedTable, TabletStore
from common.model.file import DataFile
from common.model.location_identity import LocationIdentity, overlap_test
from common.model.table import Table, TableState
from common.model.tablet import PLUS_INFINITY, TabletId
from common.parquet.location import (
    Location,
    existing_files,
    open_location,
)
from common.parquet.resolved_locations import ResolvedLocation
from common.parquet.service_files import (
    OWNER_PATH,
    UNREADABLE_GENERATION,
    LocationOwner,
    read_owner,
    write_description,
    write_generation,
    write_owner,
    written_generation,
)
from common.storage_threads import StorageThreads
from neve.recovery.archive import TabletDump
from neve.recovery.scope import TableScope, identities_now
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSite:
    """A site that was found to be free, and what must be known to make a table there."""

    site: ResolvedLocation
    owner: LocationOwner
    """This store; the table is added when there is one."""
    others: Mapping[str, LocationIdentity]
    """Id of every other table → what its location is."""
    generation: int
    """Where the table's begins: above what an earlier table has left."""
    scribbled: bool
    """Whether what was left of a generation is no number, so that it has to go."""

    def creation(self, table: Table, splits: tuple[bytes, ...]) -> CreateTable:
        """Return the change that makes a table here."""
        return CreateTable(
            table=table,
            splits=splits,
            identity=self.site.identity,
            others=self.others,
            generation=self.generation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTables:
    """The tables that there are, and what their locations are now."""

    named: Sequence[NamedTable]
    identities: Mapping[str, LocationIdentity]
    """By table id."""

    def refuse_overlap(self, site: ResolvedLocation) -> None:
        """Refuse a site that shares files with a table.

        Raises:
            RefusedError: It does; its code is that of the store.
        """
        overlaps = overlap_test(site.identity)
        for each in self.named:
            if overlaps(self.identities[each.id]):
                raise RefusedError(location_overlap(site.uri, each.location, each.name), "location")


async def other_tables(store: TabletStore, threads: StorageThreads) -> OtherTables:
    """Return the tables of a store.

    Raises:
        UnavailableError: It does not answer.
    """
    named = await store.named_tables()
    return OtherTables(named=named, identities=await identities_now(threads, named))


async def find_free_site(
    store: TabletStore,
    threads: StorageThreads,
    site: ResolvedLocation,
    *,
    neighbours: OtherTables | None = None,
    take_over: bool = False,
) -> FreeSite:
    """Return a site where no table is; nothing is written.

    Args:
        store: Of this service.
        threads: Where storage is looked at.
        site: Where a table shall be.
        neighbours: The tables of the store, if the caller has read them.
        take_over: Whether it may be another store's.

    Raises:
        RefusedError: It is another's, or overlaps with one.
        UnavailableError: Store or storage do not answer.
    """
    ours, near = await store.store_id(), neighbours or await other_tables(store, threads)
    near.refuse_overlap(site)
    others = near.identities
    location = open_location(site.uri)
    found, above, written = await threads.run(location.uri, _read_site, location)
    if found is not None and found.store != ours and not take_over:
        raise RefusedError(
            f"location {site.uri} belongs to the store {found.store}, this one is {ours}: "
            "two services may not share a location; give a copy's location, or --adopt it if no "
            "other store lives there any more"
        )
    if found is not None and found.store == ours and found.table in others:
        raise RefusedError(
            f"location {site.uri} belongs to a table of this service, by its mark {OWNER_PATH} "
            f"(id {found.table}): two tables may not share files",
            "location",
        )
    for folder, owner in above.items():
        if owner.store != ours or owner.table in others:
            raise RefusedError(
                f"location {site.uri} lies in {folder}, which belongs to the store {owner.store}: "
                "two tables may not share files"
            )
    scribbled = written == UNREADABLE_GENERATION
    return FreeSite(
        site=site,
        owner=LocationOwner(ours),
        others=others,
        generation=written + 1 if written and not scribbled else 0,
        scribbled=scribbled,
    )


def _read_site(location: Location) -> tuple[LocationOwner | None, dict[str, LocationOwner], int]:
    """Return whose a location is, whose the folders above it are, and its generation."""
    above: dict[str, LocationOwner] = {}
    folder = posixpath.dirname(location.root)
    while folder.strip("/"):
        try:
            owner = read_owner(Location(location.uri, location.filesystem, folder))
        except UnavailableError:
            owner = None  # Who may not look there cannot have a table there.
        if owner is not None:
            above[folder] = owner
        folder = posixpath.dirname(folder)
    return read_owner(location), above, written_generation(location)


def former_ids_of(table: Table) -> tuple[str, ...]:
    """Return the ids that a table has had, when it is to get another one; the newest first."""
    ids = dict.fromkeys((table.id, *table.former_ids))
    return tuple(each for each in ids if is_table_id(each))[:FORMER_IDS_MAX]


async def claim_site(threads: StorageThreads, free: FreeSite) -> None:
    """Write into a free site that it is this store's.

    Which table's it is comes later: of two that are made there at once one is refused.

    Raises:
        RequestError: There is no such bucket, or the credentials do not fit it.
        UnavailableError: The storage does not answer, or forbids it.
    """
    location = open_location(free.site.uri)
    await threads.run(location.uri, _claim, location, free)


def _claim(location: Location, free: FreeSite) -> None:
    if read_owner(location) != free.owner:
        write_owner(location, free.owner)
    if free.scribbled:
        write_generation(location, 0)


async def sign_site(threads: StorageThreads, free: FreeSite, table: Table) -> None:
    """Write into a claimed site that it is this table's, and what the table is.

    Raises:
        UnavailableError: The storage does not answer; the coordinator writes it later.
    """
    location = open_location(free.site.uri)
    await threads.run(location.uri, write_owner, location, replace(free.owner, table=table.id))
    await threads.run(location.uri, write_description, location, table)


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
