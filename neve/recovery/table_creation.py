"""Creation of a table: the last step of `create`, `import`, `restore` and `rebuild`.

    the site is free: neither the location nor a folder above it has another owner
    → claim (or adopt) the site → choose a generation above that of the location
    → create the table as filling → add its files, tablet by tablet → write mark and description
    → list the location again → make the table live, or paused, in one transaction

An interruption leaves a filling table. Nothing reads, changes or publishes a filling table, and the
same verb starts over (`docs/design/0015-filling-tables.md`). The files stay in any case.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from common.errors import CompactionError, RefusedError, UnknownOutcomeError
from common.metadata.changes import (
    AcceptGeneration,
    Applied,
    Change,
    DropTable,
    FinishFilling,
    Outcome,
    Refused,
    RestoreFiles,
)
from common.metadata.keys import is_table_id
from common.metadata.store import TabletStore
from common.model.file import DataFile
from common.model.location_identity import is_service_path
from common.model.table import Filling, Table, TableState, filling_text
from common.model.tablet import PLUS_INFINITY, TabletId
from common.parquet.location import (
    Location,
    existing_files,
    open_location,
)
from common.parquet.row_batches import folders_of, place_guards
from common.storage_threads import StorageThreads
from common.units import format_count
from neve.recovery.archive import TabletDump
from neve.recovery.location_ownership import (
    FreeSite,
    create_at_site,
    sign_site,
)
from neve.recovery.scope import PROGRESS_EVERY, Steps, TableScope, in_thread
from neve.recovery.stored_files import (
    FileOrigin,
    StoredFile,
    file_origin,
    list_location,
)

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
