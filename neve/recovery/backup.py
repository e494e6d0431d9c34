"""`neve backup` and `neve restore`: write tables to an archive, and create tables from one.

`neve.recovery.archive` defines the format of an archive. A backup may copy files in addition to
the metadata.
"""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO

from pyarrow import fs

from common.errors import CompactionError, RefusedError, RequestError, UnavailableError, redacted
from common.metadata.file_pin import FilePin
from common.metadata.store import walk_tiles
from common.model.location_identity import overlapping_pair
from common.model.table import Table, TableState
from common.model.tablet import Tablet
from common.parquet.location import Location, child_uri, open_location
from common.parquet.service_files import table_to_plain, write_description
from common.runtime import IdSource
from common.units import format_count
from neve.recovery.archive import (
    FORMAT,
    FORMAT_VERSION,
    Digest,
    TabletDump,
    file_to_plain,
    line_of,
    read_archive,
)
from neve.recovery.scope import (
    CALLS_FORGOTTEN,
    LOGS_WRITTEN_ANEW,
    RecoveryPorts,
    TableAdmission,
    TableScope,
    gather_bounded,
    in_thread,
)
from neve.recovery.stored_files import list_location
from neve.recovery.table_creation import (
    CreatedTable,
    FreeSite,
    OtherTables,
    absent,
    end_filling,
    find_free_site,
    former_ids_of,
    make_table,
    other_tables,
    unused_files,
)

# ------------------------------------------------------------------------------------------- Backup


CHUNK_BYTES = 1 << 20
NOT_IN_ARCHIVES = (
    "rows that were buffered after the backup had begun: it flushed those of before",
    CALLS_FORGOTTEN,
    "requests, reservations and selections: submit requests again",
    LOGS_WRITTEN_ANEW,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupOptions:
    """Options of a backup."""

    hold_s: float = 0.0
    """How long files are kept after the backup, so that they can be copied; 0: not at all."""
    copy_to: str | None = None
    """Location below which the files of each table are copied: `<copy_to>/<name>/…`."""


async def backup(
    scopes: Sequence[TableScope], ids: IdSource, admission: TableAdmission, options: BackupOptions
) -> AsyncIterator[bytes]:
    """Yield the lines of an archive of tables.

    Args:
        scopes: The tables; at least one.
        ids: Source of the pins' ids.
        admission: Decides where copies may be written.
        options: Options of the backup.

    Raises:
        RequestError: `copy_to` is not a location.
        RefusedError: Copies may not be written to `copy_to`, or files exist there.
        ConflictError: The tablets of a table kept changing; repeat the backup.
        UnavailableError: Store or storage does not answer.
    """
    digest = Digest()
    store = scopes[0].store
    targets = await _copy_targets(scopes, admission, options)
    yield digest.see(
        line_of(
            "archive",
            format=FORMAT,
            version=FORMAT_VERSION,
            store=await store.store_id(),
            made_at_s=await store.now_s(),
        )
    )
    for scope in scopes:
        async for line in _backup_table(scope, ids, targets.get(scope.table.name), options):
            yield line if line.startswith(b'{"kind":"progress"') else digest.see(line)
    yield line_of("end", lines=digest.lines, sha256=digest.hex)


async def _backup_table(
    scope: TableScope, ids: IdSource, target: Location | None, options: BackupOptions
) -> AsyncIterator[bytes]:
    table = scope.table
    pin = ids.next("backup")
    tablets = files = size_bytes = 0
    async with FilePin(scope.store, table.id, pin, keep_s=options.hold_s) as held:
        yield line_of("table", table=table_to_plain(table), pin=pin, hold_s=options.hold_s)
        async for page in walk_tiles(scope.store, table):
            for tablet in page:
                for line in _tablet_lines(tablet):
                    yield line
                if target is not None:
                    await _copy_files(scope, tablet, target)
                    held.check()
                tablets, files = tablets + 1, files + len(tablet.files)
                size_bytes += sum(file.size_bytes for file in tablet.files.values())
            yield line_of(
                "progress", text=f"{table.name}: {format_count(files, 'file')}, {size_bytes} bytes"
            )
        await held.confirm()  # All files that the archive lists exist while the pin holds.
        if target is not None:
            await scope.threads.run(target.uri, write_description, target, table)
        yield line_of("table-end", tablets=tablets, files=files, size_bytes=size_bytes)


async def _copy_targets(
    scopes: Sequence[TableScope], admission: TableAdmission, options: BackupOptions
) -> dict[str, Location]:
    """Return the location to which the files of each table are copied.

    Raises:
        RequestError: `copy_to` is not a location.
        RefusedError: The location belongs to a table, such as the source itself, or to another
            owner; it is not empty; or no table is allowed there.
    """
    targets: dict[str, Location] = {}
    others: OtherTables | None = None
    for scope in scopes if options.copy_to else ():
        others = others or await other_tables(scope.store, scope.threads)
        site = await admission.site(child_uri(options.copy_to or "", scope.table.name))
        free = await find_free_site(scope.store, scope.threads, site, neighbours=others)
        target = open_location(free.site.uri)
        if stored := await scope.threads.run(target.uri, list_location, target):
            raise RefusedError(
                f"location {target.uri} is not empty ({min(stored)} lies there): copies go where "
                "nothing is, give another --copy-to"
            )
        targets[scope.table.name] = target
    return targets


def _tablet_lines(tablet: Tablet) -> list[bytes]:
    bounds = tablet.bounds
    closed = [file for _, file in sorted(tablet.files.items()) if not file.open]
    head = line_of(
        "tablet",
        end=bounds.end.hex(),
        start=None if bounds.start is None else bounds.start.hex(),
        partition=bounds.partition,
        purge=None if tablet.purge is None else tablet.purge.hex(),
        files=len(closed),
    )
    return [head, *(line_of("file", **file_to_plain(file)) for file in closed)]


async def _copy_files(scope: TableScope, tablet: Tablet, target: Location) -> None:
    await gather_bounded(
        scope.threads.run(target.uri, copy_file, scope.location, target, path)
        for path in tablet.files
    )


def copy_file(source: Location, target: Location, path: str) -> None:
    """Copy one file of a table to the same path in another location.

    Raises:
        RefusedError: The target file exists.
        UnavailableError: A storage does not answer, or denies access.
    """
    full = target.full(path)
    try:
        with source.open_stream(path) as content:
            if target.is_local:
                target.filesystem.create_dir(full.rpartition("/")[0], recursive=True)
                with open(full, "xb") as sink:
                    shutil.copyfileobj(content, sink, CHUNK_BYTES)
                return
            # Writes to object stores are not conditional, so check for an existing file first.
            _refuse_existing(target, full)
            with target.filesystem.open_output_stream(full) as sink:
                shutil.copyfileobj(content, sink, CHUNK_BYTES)
    except FileExistsError as error:
        raise RefusedError(
            f"file {path} is in {target.uri} already: somebody else writes there; nothing of it "
            "was changed"
        ) from error
    except OSError as error:
        raise UnavailableError(f"file {path} cannot be copied to {target.uri}: {error}") from error


def _refuse_existing(target: Location, full: str) -> None:
    if target.filesystem.get_file_info(full).type != fs.FileType.NotFound:
        raise FileExistsError(full)


# ------------------------------------------------------------------------------------------ Restore


Dumped = tuple[Table, tuple[TabletDump, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """Options of a restore: which tables to create, and where."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Name in the archive → new name."""
    locations: Mapping[str, str] = field(default_factory=dict)
    """Name in the archive → current location of its files."""
    only: Sequence[str] = ()
    """Names in the archive to restore; empty: all."""
    adopt: bool = False
    dry_run: bool = False


async def restore(
    ports: RecoveryPorts, source: IO[bytes], options: RestoreOptions
) -> Sequence[CreatedTable]:
    """Restore tables. If one fails, the tables created before it remain.

    Args:
        ports: External dependencies.
        source: The archive; must be seekable.
        options: Options of the restore.

    Raises:
        RequestError: The archive is incomplete, lacks a requested table, or describes a table
            that `create` would reject.
        RefusedError: A name or location is taken, a location belongs to another store, or no
            table is allowed there.
    """
    ports.on_progress("reading the archive")
    tables = await asyncio.to_thread(_read_tables, source)
    _check_options(options, [table.name for table in tables])
    chosen = [table for table in tables if _is_wanted(table, options)]
    ports.on_progress(f"checking {format_count(len(chosen), 'table')}")
    now_s = await ports.store.now_s()
    checked = {table.name: _checked_table(ports, table, options, now_s) for table in chosen}
    for name, table in checked.items():
        await _end_filling(ports, name, table, dry_run=options.dry_run)
    others = await other_tables(ports.store, ports.threads)
    _check_names(others, list(checked.values()))
    targets = {
        name: await _restore_target(ports, others, name, checked[name], options) for name in checked
    }
    _check_locations_differ(list(targets.values()))
    founded: list[CreatedTable] = []
    dumps = _wanted_tables(source, options)
    while (dumped := await asyncio.to_thread(next, dumps, None)) is not None:
        target = targets[dumped[0].name]
        founded.append(await _restore_one(ports, target, dumped, dry_run=options.dry_run))
    return founded


def _read_tables(source: IO[bytes]) -> list[Table]:
    """Read and verify a whole archive, and return its tables."""
    source.seek(0)
    tables = [dump for dump in read_archive(source) if isinstance(dump, Table)]
    names = Counter(table.name for table in tables)
    if twice := [name for name, count in names.items() if count > 1]:
        raise RequestError(f"the archive holds table {twice[0]!r} twice")
    return tables


@dataclass(frozen=True, slots=True)
class _RestoreTarget:
    """A table to create, and its site."""

    table: Table
    free: FreeSite


def _checked_table(
    ports: RecoveryPorts, dumped: Table, options: RestoreOptions, now_s: float
) -> Table:
    """Return a table to create, with the same checks as `create`, except for its location.

    Raises:
        RequestError: `create` would reject the table.
    """
    table = replace(
        dumped,
        id=ports.ids.next("t"),
        former_ids=former_ids_of(dumped),
        calls_since_s=now_s,
        name=options.names.get(dumped.name, dumped.name),
        location=options.locations.get(dumped.name, dumped.location),
    )
    try:
        return ports.admission.checked(table)
    except RequestError as error:
        raise _error_about(dumped.name, error) from error


async def _end_filling(ports: RecoveryPorts, name: str, table: Table, *, dry_run: bool) -> None:
    """Drop the filling table that an interrupted restore has left."""
    try:
        site = await ports.admission.site(table.location)
        await end_filling(ports.store, table.name, site.uri, "restore", dry_run=dry_run)
    except (RequestError, RefusedError) as error:
        raise _error_about(name, error) from error


async def _restore_target(
    ports: RecoveryPorts, others: OtherTables, name: str, table: Table, options: RestoreOptions
) -> _RestoreTarget:
    """Return a table to create and its site, with the same checks as `create`.

    Raises:
        RequestError: The location is invalid.
        RefusedError: No table is allowed there, or the location has another owner.
    """
    try:
        site = await ports.admission.site(table.location)
        free = await find_free_site(
            ports.store, ports.threads, site, neighbours=others, take_over=options.adopt
        )
    except (RequestError, RefusedError) as error:
        raise _error_about(name, error) from error
    return _RestoreTarget(replace(table, location=site.uri), free)


def _error_about(name: str, error: CompactionError) -> CompactionError:
    """Return the error with the name of the archive's table in front of its message."""
    return type(error)(f"table {redacted(name[:100])!r} of the archive: {error}")


def _check_names(others: OtherTables, tables: Sequence[Table]) -> None:
    """Reject names that an existing table or another table of the archive has.

    Raises:
        RefusedError: A name is taken.
    """
    names_taken = {named.name for named in others.named}
    for table in tables:
        if table.name in names_taken:
            raise RefusedError(
                f"table {table.name!r} exists already: restore it under another name"
            )
        names_taken.add(table.name)


def _check_locations_differ(targets: Sequence[_RestoreTarget]) -> None:
    """Reject tables whose locations would share files.

    Raises:
        RefusedError: Two locations overlap.
    """
    pair = overlapping_pair({target.table.name: target.free.site.identity for target in targets})
    if pair is not None:
        raise RefusedError(
            f"tables {pair[0]!r} and {pair[1]!r} of the archive would share files: give one of "
            "them another location"
        )


def _check_options(options: RestoreOptions, names: Sequence[str]) -> None:
    names_given = {*options.only, *options.names, *options.locations}
    if unknown := sorted(names_given - {*names}):
        raise RequestError(
            f"the archive has no table {unknown[0]!r}; it has {', '.join(names) or 'none'}"
        )


def _wanted_tables(source: IO[bytes], options: RestoreOptions) -> Iterator[Dumped]:
    """Yield the requested tables, with one table in memory at a time."""
    source.seek(0)
    table: Table | None = None
    tablets: list[TabletDump] = []
    for dump in read_archive(source):
        if isinstance(dump, TabletDump):
            tablets.append(dump)
            continue
        if table is not None and _is_wanted(table, options):
            yield table, tuple(tablets)
        table, tablets = dump, []
    if table is not None and _is_wanted(table, options):
        yield table, tuple(tablets)


def _is_wanted(table: Table, options: RestoreOptions) -> bool:
    return not options.only or table.name in options.only


async def _restore_one(
    ports: RecoveryPorts, target: _RestoreTarget, dumped: Dumped, *, dry_run: bool
) -> CreatedTable:
    table, scope = target.table, ports.scope(target.table)
    stored = await scope.run(list_location, scope.location)
    tablets = dumped[1]
    if dry_run:
        files = [file for tablet in tablets for file in tablet.files]
        missing = await absent(ports.threads, scope.location, files, stored)
        return CreatedTable(
            table=table,
            tablets=len(tablets),
            files=len(files),
            missing=missing,
            unused=await in_thread(partial(unused_files, files, stored)),
        )
    live = dumped[0].state is TableState.LIVE
    return await make_table(
        scope, target.free, tablets, stored=stored, live=live, complete=False, verb="restore"
    )
