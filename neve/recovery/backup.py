"""`neve backup`: the metadata of tables as an archive, and perhaps their files as copies.

Per table: pin → tablets by the tile rule, each at one moment → (copies) → unpin, or leave
the pin for a while. What is acknowledged before the backup begins is in it; what comes
while it runs may be. Requests, reservations, history and garbage are not in it: a
restored table starts at rest.

Copies go where no table is and nothing lies: each target passes the checks of a new
table's location before the first byte is copied, and a file is only ever made, never
written over.
"""

import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from pyarrow import fs

from common.errors import RefusedError, UnavailableError
from common.ids import IdSource
from common.metadata.file_pin import FilePin
from common.metadata.table_walk import walk_tiles
from common.model.tablet import Tablet
from common.parquet.location import (
    Location,
    child_uri,
    open_location,
)
from common.parquet.service_files import table_to_plain, write_description
from neve.recovery.archive import FORMAT, FORMAT_VERSION, Digest, file_to_plain, line_of
from neve.recovery.founding import Neighbours, find_free_site, neighbours_of
from neve.recovery.scope import Door, Scope, in_turn
from neve.recovery.stored import list_location

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupOptions:
    """How tables are backed up."""

    hold_s: float = 0.0
    """How long files stay after the end, for whoever copies them; 0: not at all."""
    copy_to: str | None = None
    """Location below which the files are copied, table by table: `<copy_to>/<name>/…`."""


async def backup(
    scopes: Sequence[Scope], ids: IdSource, door: Door, options: BackupOptions
) -> AsyncIterator[bytes]:
    """Yield the lines of an archive of tables.

    Args:
        scopes: The tables; at least one.
        ids: Names the pins.
        door: Says where copies may go.
        options: How.

    Raises:
        RequestError: `copy_to` is no location.
        RefusedError: Copies may not go there, or something is there already.
        ConflictError: A table's tablets kept changing: begin again.
        UnavailableError: Store or storage do not answer.
    """
    digest = Digest()
    store = scopes[0].store
    targets = await _targets(scopes, door, options)
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
            yield line if _is_progress(line) else digest.see(line)
    yield line_of("end", lines=digest.lines, sha256=digest.hex)


async def _backup_table(
    scope: Scope, ids: IdSource, target: Location | None, options: BackupOptions
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
                    await _copy(scope, tablet, target)
                    held.check()
                tablets, files = tablets + 1, files + len(tablet.files)
                size_bytes += sum(file.size_bytes for file in tablet.files.values())
            yield line_of("progress", text=f"{table.name}: {files} files, {size_bytes} bytes")
        await held.confirm()  # What the archive lists is there, for as long as it is held.
        if target is not None:
            await scope.threads.run(target.uri, write_description, target, table)
        yield line_of("table-end", tablets=tablets, files=files, size_bytes=size_bytes)


async def _targets(
    scopes: Sequence[Scope], door: Door, options: BackupOptions
) -> dict[str, Location]:
    """Return where the files of each table are copied to, if that may be.

    Raises:
        RequestError: It is no location.
        RefusedError: It is a table's, the source's own for example, or another's; something
            lies there; or no table may be there.
    """
    targets: dict[str, Location] = {}
    near: Neighbours | None = None
    for scope in scopes if options.copy_to else ():
        near = near or await neighbours_of(scope.store, scope.threads)
        site = await door.site(child_uri(options.copy_to or "", scope.table.name))
        free = await find_free_site(scope.store, scope.threads, site, neighbours=near)
        target = open_location(free.site.uri)
        if there := await scope.threads.run(target.uri, list_location, target):
            raise RefusedError(
                f"location {target.uri} is not empty ({min(there)} lies there): copies go where "
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


async def _copy(scope: Scope, tablet: Tablet, target: Location) -> None:
    await in_turn(
        scope.threads.run(target.uri, copy_file, scope.location, target, path)
        for path in tablet.files
    )


def copy_file(source: Location, target: Location, path: str) -> None:
    """Copy one file of a table to the same path elsewhere, where nothing may be.

    Raises:
        RefusedError: Something is there.
        UnavailableError: A storage does not answer, or forbids it.
    """
    full = target.full(path)
    try:
        with source.open_stream(path) as content:
            if target.is_local:
                target.filesystem.create_dir(full.rpartition("/")[0], recursive=True)
                with open(full, "xb") as sink:
                    shutil.copyfileobj(content, sink, CHUNK_BYTES)
                return
            # Object stores are not asked to write on a condition: it is looked first.
            _refuse_there(target, full)
            with target.filesystem.open_output_stream(full) as sink:
                shutil.copyfileobj(content, sink, CHUNK_BYTES)
    except FileExistsError as error:
        raise RefusedError(
            f"file {path} is in {target.uri} already: somebody else writes there; nothing of it "
            "was changed"
        ) from error
    except OSError as error:
        raise UnavailableError(f"file {path} cannot be copied to {target.uri}: {error}") from error


def _refuse_there(target: Location, full: str) -> None:
    if target.filesystem.get_file_info(full).type != fs.FileType.NotFound:
        raise FileExistsError(full)


def _is_progress(line: bytes) -> bool:
    return line.startswith(b'{"kind":"progress"')
