"""Ownership of locations: sites where a table may be created, and checks of a table's location."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from common.errors import RefusedError, UnavailableError
from common.metadata.changes import (
    AcceptGeneration,
    CreateTable,
    DropTable,
    Outcome,
    Refused,
)
from common.metadata.changes.tables import location_overlap
from common.metadata.store import TabletStore
from common.metadata.store_values import NamedTable
from common.model.location_identity import LocationIdentity, overlap_test
from common.model.table import Table
from common.parquet.foreign_formats import foreign_mark, foreign_mark_below
from common.parquet.location import Location, ResolvedLocation, open_location, resolve_location
from common.parquet.service_files import (
    OWNER_PATH,
    UNREADABLE_GENERATION,
    LocationOwner,
    generation_fault,
    read_owner,
    write_description,
    write_generation,
    write_owner,
    written_generation,
)
from common.storage_threads import StorageThreads
from neve.recovery.scope import Finding, FindingCode, TableScope, identities_now

# ----------------------------------------------------------------------- Finding and claiming sites


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSite:
    """A free site, with the values needed to create a table there."""

    site: ResolvedLocation
    owner: LocationOwner
    """This store, without a table; the table is added after its creation."""
    others: Mapping[str, LocationIdentity]
    """Id of every other table → identity of its location."""
    generation: int
    """First generation of the table, above the generation of an earlier table."""
    scribbled: bool
    """Whether the generation in the location is not a number and must be overwritten."""

    def creation(self, table: Table, splits: tuple[bytes, ...]) -> CreateTable:
        """Return the change that creates a table at this site."""
        return CreateTable(
            table=table,
            splits=splits,
            identity=self.site.identity,
            others=self.others,
            generation=self.generation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTables:
    """The existing tables, and the current identities of their locations."""

    named: Sequence[NamedTable]
    identities: Mapping[str, LocationIdentity]
    """By table id."""

    def refuse_overlap(self, site: ResolvedLocation) -> None:
        """Reject a site that shares files with a table.

        Raises:
            RefusedError: The site overlaps a table; the code is the one that the store uses.
        """
        overlaps = overlap_test(site.identity)
        for table in self.named:
            if overlaps(self.identities[table.id]):
                raise RefusedError(
                    location_overlap(site.uri, table.location, table.name), "location"
                )


async def other_tables(store: TabletStore, threads: StorageThreads) -> OtherTables:
    """Return the tables of a store, after finishing drops that have left only a name.

    Raises:
        UnavailableError: Store or storage does not answer.
    """
    present = {table.id for table in (await store.listed_tables()).tables}
    for named_table in await store.named_tables():
        if named_table.id not in present and await store.table(named_table.id) is None:
            await store.apply(DropTable(table=named_table.id, resumed=True))
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
    """Check that a site is free, and return it; write nothing.

    Args:
        store: Store of this service.
        threads: Threads for access to storage.
        site: Site of the new table.
        neighbours: Tables of the store, if the caller has read them.
        take_over: Whether the site may belong to another store.

    Raises:
        RefusedError: The site has another owner, or overlaps the location of a table.
        UnavailableError: Store or storage does not answer.
    """
    ours, other = await store.store_id(), neighbours or await other_tables(store, threads)
    other.refuse_overlap(site)
    others = other.identities
    location = open_location(site.uri)
    present, above, generation = await threads.run(location.uri, _read_site, location)
    if present is not None and present.store != ours and not take_over:
        raise RefusedError(
            f"location {site.uri} belongs to the store {present.store}, this one is {ours}: "
            "two services may not share a location; give a copy's location, or --adopt it if no "
            "other store lives there any more"
        )
    if present is not None and present.store == ours and present.table in others:
        raise RefusedError(
            f"location {site.uri} belongs to a table of this service, by its mark {OWNER_PATH} "
            f"(id {present.table}): two tables may not share files",
            "location",
        )
    for folder, owner in above.items():
        if owner.store != ours or owner.table in others:
            raise RefusedError(
                f"location {site.uri} lies in {folder}, which belongs to the store {owner.store}: "
                "two tables may not share files"
            )
    scribbled = generation == UNREADABLE_GENERATION
    return FreeSite(
        site=site,
        owner=LocationOwner(ours),
        others=others,
        generation=generation + 1 if generation and not scribbled else 0,
        scribbled=scribbled,
    )


def _read_site(location: Location) -> tuple[LocationOwner | None, dict[str, LocationOwner], int]:
    """Return the owner of a location, the owners of its parent folders, and its generation.

    Raises:
        RefusedError: Another table format owns the location, or a folder in it.
    """
    mark = foreign_mark(location) or foreign_mark_below(location)
    if mark is not None:
        raise RefusedError(mark.refusal(location.uri), "location")
    above = dict(owners_upwards(location, posixpath.dirname(location.root)))
    return read_owner(location), above, written_generation(location)


def owners_upwards(location: Location, folder: str) -> Iterator[tuple[str, LocationOwner]]:
    """Yield the folders with an owner from one up, and their owners. Blocks.

    Args:
        location: A location in the storage of the folder.
        folder: The first folder.
    """
    while folder.strip("/"):
        with suppress(UnavailableError):  # Without access, this service has no table there.
            owner = read_owner(Location(location.uri, location.filesystem, folder))
            if owner is not None:
                yield folder, owner
        folder = posixpath.dirname(folder)


async def create_at_site(
    threads: StorageThreads, store: TabletStore, free: FreeSite, change: CreateTable
) -> Outcome:
    """Mark a free site as owned by this store, and create a table there.

    The mark gets the table's id later: if two tables are created there at once, the store refuses
    one of them.

    Raises:
        RequestError: The bucket does not exist, or does not accept the credentials.
        UnavailableError: The storage does not answer, or denies access.
    """
    location = open_location(free.site.uri)
    await threads.run(location.uri, _claim, location, free)
    outcome = await store.apply(change)
    if isinstance(outcome, Refused):  # Another table may have been created and signed first.
        await give_mark_back(threads, store, location.uri)
    return outcome


def _claim(location: Location, free: FreeSite) -> None:
    if read_owner(location) != free.owner:
        write_owner(location, free.owner)
    if free.scribbled:
        write_generation(location, 0)


async def sign_site(threads: StorageThreads, store: TabletStore, table: Table) -> None:
    """Write the table's owner mark and description into a claimed site.

    A run that was suspended may overwrite the mark of a newer table. The run therefore checks
    afterwards whether its own table still exists, and restores the mark if it does not.

    Args:
        threads: Threads for access to storage.
        store: Store of this service.
        table: The table to describe.

    Raises:
        UnavailableError: The storage does not answer; the coordinator writes both later.
    """
    location, ours = open_location(table.location), await store.store_id()
    await threads.run(location.uri, write_owner, location, LocationOwner(ours, table.id))
    await threads.run(location.uri, write_description, location, table)
    if await store.table(table.id) is None:
        await give_mark_back(threads, store, table.location)


async def give_mark_back(threads: StorageThreads, store: TabletStore, uri: str) -> None:
    """Restore the mark of the table that the store has at a site, if there is one.

    Raises:
        UnavailableError: Store or storage does not answer.
    """
    location, ours = open_location(uri), await store.store_id()
    for named in await store.named_tables():
        table = await store.table(named.id) if named.location == uri else None
        if table is None:
            continue
        await threads.run(uri, write_owner, location, LocationOwner(ours, table.id))
        if table.filling is None:  # The coordinator writes the description of a filling table.
            await threads.run(uri, write_description, location, table)


def take_over(location: Location, owner: LocationOwner, table: Table) -> None:
    """Overwrite the owner mark and the description of a location that had another owner."""
    write_owner(location, owner)
    write_description(location, table)


# -------------------------------------------------- Checks of a table's location and its generation


async def check_location_owner(scope: TableScope) -> list[Finding]:
    """Return a finding unless the location belongs to this store and to this table."""
    ours, owner = await scope.store.store_id(), await scope.owner()
    if owner is None:
        whose = f"no table ({OWNER_PATH} is missing)"
    elif owner.store != ours:
        whose = f"the store {owner.store}"
    elif owner.is_another(scope.table.id):
        whose = f"the table with id {owner.table}, and this one's is {scope.table.id}"
    else:
        return []
    own = LocationOwner(ours, scope.table.id)
    return [
        Finding(
            code=FindingCode.OWNER,
            path=OWNER_PATH,
            sentence=f"the location belongs to {whose}; this store is {ours}",
            repair="--adopt writes this store's and table's id into it: only if nothing else "
            "works there",
            act=partial(take_over, scope.location, own, scope.table),
        )
    ]


async def check_shared_files(scope: TableScope) -> list[Finding]:
    """Return a finding for each table that shares files with this one, under any location name."""
    named = [
        named_table
        for named_table in await scope.store.named_tables()
        if named_table.id != scope.table.id
    ]
    identities = await identities_now(scope.threads, named)
    overlaps = overlap_test((await scope.run(resolve_location, scope.table.location)).identity)
    return [
        Finding(
            code=FindingCode.SHARED,
            path=OWNER_PATH,
            sentence=location_overlap(scope.table.location, table.location, table.name),
            repair="nothing: copy one table's files to a place of their own "
            "(`neve backup --copy-to`), restore it there and drop it here",
        )
        for table in named
        if overlaps(identities[table.id])
    ]


async def check_foreign_marks(scope: TableScope) -> list[Finding]:
    """Return a finding if another table format owns the location or a folder in it."""
    mark = await scope.run(foreign_mark, scope.location)
    mark = mark or await scope.run(foreign_mark_below, scope.location)
    if mark is None:
        return []
    sentence = mark.stop(scope.table.name)
    return [Finding(code=FindingCode.OTHER_FORMAT, path=mark.path, sentence=sentence)]


async def check_generation(scope: TableScope) -> list[Finding]:
    """Return a finding if the store is older than the location."""
    stored_generation = await scope.run(written_generation, scope.location)
    stored = await scope.store.generation(scope.table.id)
    reason = generation_fault(scope.table.name, stored, stored_generation)
    if reason is None:
        return []
    scribbled = stored_generation == UNREADABLE_GENERATION
    beyond = 1 + (stored if scribbled else stored_generation)
    accept = AcceptGeneration(table=scope.table.id, generation=beyond, lost=True)
    return [
        Finding(
            code=FindingCode.GENERATION,
            sentence=reason,
            repair="--accept takes the table as the store has it, and lets it be written again",
            changes=(accept,),
            act=partial(write_generation, scope.location, stored) if scribbled else None,
        )
    ]
