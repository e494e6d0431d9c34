"""Creation of a table: the last step of `create`, `import`, `restore` and `rebuild`.

    the site is free: neither the location nor a folder above it has another owner
    → claim (or adopt) the site → choose a generation above that of the location
    → create the table as filling → add its files, tablet by tablet → write mark and description
    → list the location again → make the table live, or paused, in one transaction

An interruption leaves a filling table. Nothing reads, changes or publishes a filling table, and the
same verb starts over (`docs/design/0015-filling-tables.md`). The files stay in any case.
"""

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from common.errors import CompactionError, RefusedError, UnavailableError, UnknownOutcomeError
from common.metadata.changes import (
    AcceptGeneration,
    Applied,
    Change,
    CreateTable,
    DropTable,
    FinishFilling,
    Outcome,
    Refused,
    RestoreFiles,
)
from common.metadata.changes.tables import location_overlap
from common.metadata.keys import is_table_id
from common.metadata.store import TabletStore
from common.metadata.store_values import NamedTable
from common.model.file import DataFile
from common.model.location_identity import LocationIdentity, is_service_path, overlap_test
from common.model.table import Filling, Table, TableState, filling_text
from common.model.tablet import PLUS_INFINITY, TabletId
from common.parquet.foreign_formats import foreign_mark, foreign_mark_below
from common.parquet.location import Location, existing_files, open_location
from common.parquet.resolved_location import ResolvedLocation, resolve_location
from common.parquet.row_batches import folders_of, place_guards
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
from common.units import format_count
from neve.recovery.archive import TabletDump
from neve.recovery.scope import (
    PROGRESS_EVERY,
    Finding,
    FindingCode,
    Steps,
    TableScope,
    identities_now,
    in_thread,
)
from neve.recovery.stored_files import FileOrigin, StoredFile, file_origin, list_location

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


# ----------------------------------------------------------------------------------------- Creation


FILES_PER_CHANGE = 2000
BROUGHT_IN = frozenset({FileOrigin.APPENDED, FileOrigin.USER})
OF_ROWS = BROUGHT_IN | {FileOrigin.OUTPUT}
FORMER_IDS_MAX = 100
"""Limit of former ids kept for a table that was restored many times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTable:
    """A table that was created, with the files that are missing, late or unused."""

    table: Table
    tablets: int
    files: int
    missing: tuple[str, ...]
    late: tuple[str, ...] = ()
    """Files that arrived after the first listing, or that the listing missed."""
    unused: tuple[str, ...] = ()
    """Data files in the location that the archive does not name."""


def former_ids_of(table: Table) -> tuple[str, ...]:
    """Return the ids of a table that is about to get a new id, newest first."""
    ids = dict.fromkeys((table.id, *table.former_ids))
    return tuple(id_ for id_ in ids if is_table_id(id_))[:FORMER_IDS_MAX]


async def make_table(
    scope: TableScope,
    free: FreeSite,
    tablets: Sequence[TabletDump],
    *,
    stored: Mapping[str, StoredFile],
    live: bool,
    complete: bool,
    lost: bool = False,
    verb: str = "rebuild",
) -> CreatedTable:
    """Create a table with these tablets and files.

    Args:
        scope: The table, with a new id; its files are in its location.
        free: The site of the table.
        tablets: Tablets in ascending order; those of an unpartitioned table tile.
        stored: Listing of the location; listed again if `complete`.
        live: Whether the table becomes live if no file is missing; otherwise it stays paused.
        complete: Whether all files in the location were examined.
        lost: Whether rows are known to be lost: the table is paused and publishes no manifest.
        verb: Verb that the user called, and repeats after an interruption.

    Raises:
        RefusedError: The name or location is taken, another run has taken over the table, or a
            file has reappeared under a name that a collector may still delete.
    """
    files = await in_thread(partial(_files_of, tablets))
    await _refuse_retired(scope, free.site.uri, files, stored)
    # The id is new, so it also serves as the fencing token of this run.
    filling = Filling(run=scope.table.id, verb=verb, files=len(files))
    table = replace(scope.table, state=TableState.FILLING, filling=filling)
    ends = tuple(tablet.bounds.end for tablet in tablets if tablet.bounds.end != PLUS_INFINITY)
    creation = free.creation(table, () if table.partition_by else ends)
    _require_applied(await create_at_site(scope.threads, scope.store, free, creation))
    try:
        await _add_files(scope, tablets, filling.run)
        if not complete:
            await _note_loss(scope, filling.run)
        await _guard_directory(scope, files, stored)
        await _sign(scope, live=live)
        location = open_location(free.site.uri)
        late = await _late_files(scope, location, stored) if complete else ()
        missing = await absent(scope.threads, location, files, {} if complete else stored)
        incomplete = lost or bool(missing or late)
        table = await _finish(scope, filling, live=live, incomplete=incomplete)
    except CompactionError:
        # The drop is refused if the table became live and only the answer was lost.
        with suppress(CompactionError):
            await scope.store.apply(DropTable(table=table.id, unfinished=True))
        raise
    unused = () if complete else await in_thread(partial(unused_files, files, stored))
    return CreatedTable(
        table=table,
        tablets=len(tablets),
        files=len(files),
        missing=missing,
        late=late,
        unused=unused,
    )


def _files_of(tablets: Iterable[TabletDump], steps: Steps) -> list[DataFile]:
    return [file for dump in tablets for file in steps.over(dump.files)]


def _user_paths(files: Iterable[DataFile], stored: Collection[str], steps: Steps) -> Sequence[str]:
    return [
        file.path
        for file in steps.over(files)
        if file.path in stored and not is_service_path(file.path)
    ]


async def _refuse_retired(
    scope: TableScope, location: str, files: Sequence[DataFile], stored: Mapping[str, StoredFile]
) -> None:
    """Reject user files that reappeared after a collector deleted files of the same names.

    Raises:
        RefusedError: A file reappeared; the message names it.
    """
    users = await in_thread(partial(_user_paths, files, stored))
    for first in range(0, len(users), FILES_PER_CHANGE):
        batch = users[first : first + FILES_PER_CHANGE]
        if retired := await scope.store.retired_among(location, batch):
            raise RefusedError(
                f"file {retired[0]} of {location} is there again, and a collector has deleted a "
                "file of this name recently: a deletion that is still on its way would delete the "
                "new file, too; move it to another name, make the table in another location, or "
                "wait until coordinator.retired_names_s has passed",
                "retired",
            )


async def _guard_directory(
    scope: TableScope, files: Sequence[DataFile], stored: Collection[str]
) -> None:
    """Place guards where plain readers would miss rows, or read files outside the table."""
    if not scope.table.settings.directory_guard:
        return
    folders = await in_thread(partial(_guarded_folders, files, stored))
    if folders is not None:
        await scope.run(place_guards, scope.location, folders)


def _guarded_folders(
    files: Iterable[DataFile], stored: Iterable[str], steps: Steps
) -> Collection[str] | None:
    """Return the folders of user files outside the table; None: the table needs no guards."""
    paths_in_table = {file.path for file in steps.over(files)}
    if not any(map(is_service_path, steps.over(paths_in_table))):
        return None
    return folders_of(
        path
        for path in steps.over(stored)
        if path not in paths_in_table and file_origin(path) is FileOrigin.USER
    )


async def end_filling(
    store: TabletStore, name: str, location: str, verb: str, *, dry_run: bool = False
) -> None:
    """Drop the filling table of an interrupted run of the same verb, so that this run starts over.

    Args:
        store: Store of this service.
        name: Name of the table.
        location: URI of the table's location.
        verb: Verb of this run.
        dry_run: Whether nothing may be written.

    Raises:
        RefusedError: Another verb fills the table, it has another location, or this is a dry run
            and a filling table exists.
    """
    table = await store.table_named(name)
    if table is None or table.filling is None:
        return
    if dry_run or table.filling.verb != verb or table.location != location:
        raise RefusedError(filling_text(table), "filling")
    await store.apply(DropTable(table=table.id, unfinished=True))


async def _sign(scope: TableScope, *, live: bool) -> None:
    """Sign the location, unless another run has taken over the table in the meantime.

    The description states the final state for the case that no file is missing; a later rebuild
    reads it.
    """
    current = await scope.store.table(scope.table.id)
    if current is None or current.state is not TableState.FILLING:
        raise RefusedError(f"table {scope.table.name!r} was dropped while it was filled")
    state = TableState.LIVE if live else TableState.PAUSED
    await sign_site(scope.threads, scope.store, replace(scope.table, state=state))


async def _late_files(
    scope: TableScope, location: Location, stored: Mapping[str, StoredFile]
) -> tuple[str, ...]:
    """Return the data files that arrived after the first listing, or that it missed.

    Compactors of an earlier table clean up until they see the new mark.
    """
    again = await scope.run(list_location, location)
    return await in_thread(partial(_others_of_origin, again, stored, BROUGHT_IN))


def _others_of_origin(
    paths: Iterable[str],
    paths_in_table: Collection[str],
    origins: Collection[FileOrigin],
    steps: Steps,
) -> tuple[str, ...]:
    """Return the unknown paths of the given origins, sorted."""
    others = (
        path
        for path in steps.over(paths)
        if path not in paths_in_table and file_origin(path) in origins
    )
    return tuple(steps.in_order(others))


def unused_files(files: Iterable[DataFile], stored: Iterable[str], steps: Steps) -> tuple[str, ...]:
    """Return the data files in storage that do not belong to a table."""
    paths_in_table = {file.path for file in steps.over(files)}
    return _others_of_origin(stored, paths_in_table, OF_ROWS, steps)


async def _finish(scope: TableScope, filling: Filling, *, live: bool, incomplete: bool) -> Table:
    """Make the table live or paused, and return it in its new state."""
    state = TableState.LIVE if live and not incomplete else TableState.PAUSED
    change = FinishFilling(
        table=scope.table.id,
        run=filling.run,
        files=filling.files,
        state=state,
        incomplete=incomplete,
    )
    await _apply(scope, change)
    return replace(scope.table, state=state, incomplete=incomplete)


async def _add_files(scope: TableScope, tablets: Iterable[TabletDump], run: str) -> None:
    count, reported = 0, 0
    for dump in tablets:
        tablet = TabletId(scope.table.id, dump.bounds.end)
        for files in _chunks(dump.files):
            await _apply(
                scope,
                RestoreFiles(
                    tablet=tablet,
                    files=files,
                    purge=dump.purge,
                    partition=dump.bounds.partition,
                    run=run,
                ),
            )
            count += len(files)
        if count >= reported + PROGRESS_EVERY:
            reported = count
            scope.on_progress(f"{scope.table.name}: {format_count(count, 'file')}")
    scope.on_progress(f"{scope.table.name}: {format_count(count, 'file')}")


def _chunks(files: tuple[DataFile, ...]) -> Iterator[tuple[DataFile, ...]]:
    yield files[:FILES_PER_CHANGE]
    for first in range(FILES_PER_CHANGE, len(files), FILES_PER_CHANGE):
        yield files[first : first + FILES_PER_CHANGE]


async def _note_loss(scope: TableScope, run: str) -> None:
    """Record that unknown files in the location may hold rows.

    A coordinator may increment the generation concurrently; then the accepted generation is no
    longer new, and the loop tries again.
    """
    while await scope.store.loss(scope.table.id) is None:
        above = await scope.store.generation(scope.table.id) + 1
        change = AcceptGeneration(table=scope.table.id, generation=above, lost=True, run=run)
        await _apply(scope, change)


async def absent(
    threads: StorageThreads,
    location: Location,
    files: Iterable[DataFile],
    stored: Mapping[str, StoredFile],
) -> tuple[str, ...]:
    """Return the files of a table that are missing, or have another size than recorded.

    Args:
        threads: Threads for access to storage.
        location: Location of the table.
        files: Files of the table.
        stored: A listing of the location; files that it lacks are looked up by name.
    """
    doubtful = await in_thread(partial(_unlisted, files, stored))
    if not doubtful:
        return ()
    existing = await threads.run(location.uri, existing_files, location, [*doubtful])
    return await in_thread(partial(_not_there, doubtful, existing))


def _unlisted(
    files: Iterable[DataFile], stored: Mapping[str, StoredFile], steps: Steps
) -> dict[str, int]:
    """Return path and size of the files that a listing lacks, or lists with another size."""
    return {
        file.path: file.size_bytes
        for file in steps.over(files)
        if file.path not in stored or stored[file.path].size_bytes != file.size_bytes
    }


def _not_there(
    expected: Mapping[str, int], stored: Mapping[str, int], steps: Steps
) -> tuple[str, ...]:
    others = (path for path, size in steps.over(expected.items()) if stored.get(path) != size)
    return tuple(steps.in_order(others))


async def _apply(scope: TableScope, change: Change) -> None:
    _require_applied(await scope.store.apply(change))


def _require_applied(outcome: Outcome) -> None:
    if isinstance(outcome, Refused):
        raise RefusedError(outcome.reason, outcome.code)
    if not isinstance(outcome, Applied):
        raise UnknownOutcomeError(outcome.reason)
