"""`neve backup`: the metadata of tables as an archive, and perhaps their files as copies.

Per table: pin → tablets by the tile rule, each at one moment → (copies) → unpin, or leave
the pin for a while. What is acknowledged before the backup begins is in it; what comes
while it runs may be. Requests, reservations, history and garbage are not in it: a
restored table starts at rest.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from pyarrow import fs

from common.errors import UnavailableError
from common.ids import IdSource
from common.metadata.walk import walk_tiles
from common.model.table import Table
from common.model.tablet import Tablet
from common.parquet.description import table_to_plain, write_description
from common.parquet.location import Location, open_location
from neve.recovery.archive import FORMAT, FORMAT_VERSION, Digest, file_to_plain, line_of
from neve.recovery.hold import Hold
from neve.recovery.scope import Scope, in_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupOptions:
    """How tables are backed up."""

    hold_s: float = 0.0
    """How long files stay after the end, for whoever copies them; 0: not at all."""
    copy_to: str | None = None
    """Location below which the files are copied, table by table: `<copy_to>/<name>/…`."""


async def backup(
    scopes: Sequence[Scope], ids: IdSource, options: BackupOptions
) -> AsyncIterator[bytes]:
    """Yield the lines of an archive of tables.

    Args:
        scopes: The tables; at least one.
        ids: Names the pins.
        options: How.

    Raises:
        ConflictError: A table's tablets kept changing: begin again.
        UnavailableError: Store or storage do not answer.
    """
    digest = Digest()
    store = scopes[0].store
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
        async for line in _backup_table(scope, ids, options):
            yield line if _is_progress(line) else digest.see(line)
    yield line_of("end", lines=digest.lines, sha256=digest.hex)


async def _backup_table(
    scope: Scope, ids: IdSource, options: BackupOptions
) -> AsyncIterator[bytes]:
    table = scope.table
    target = copy_target(options.copy_to, table) if options.copy_to else None
    pin = ids.next("backup")
    tablets = files = size_bytes = 0
    async with Hold(scope.store, table.id, pin, keep_s=options.hold_s) as hold:
        yield line_of("table", table=table_to_plain(table), pin=pin, hold_s=options.hold_s)
        async for page in walk_tiles(scope.store, table):
            for tablet in page:
                for line in _tablet_lines(tablet):
                    yield line
                if target is not None:
                    await _copy(scope, tablet, target)
                    hold.check()
                tablets, files = tablets + 1, files + len(tablet.files)
                size_bytes += sum(file.size_bytes for file in tablet.files.values())
            yield line_of("progress", text=f"{table.name}: {files} files, {size_bytes} bytes")
        if target is not None:
            await scope.threads.run(write_description, target, table)
        yield line_of("table-end", tablets=tablets, files=files, size_bytes=size_bytes)


def copy_target(copy_to: str, table: Table) -> Location:
    """Return where the files of a table are copied to.

    Raises:
        RequestError: It is no location.
    """
    return open_location(f"{copy_to.rstrip('/')}/{table.name}")


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
        scope.threads.run(copy_file, scope.location, target, path) for path in tablet.files
    )


def copy_file(source: Location, target: Location, path: str) -> None:
    """Copy one file of a table to the same path elsewhere.

    Raises:
        UnavailableError: A storage does not answer, or forbids it.
    """
    full = target.full(path)
    try:
        if target.is_local:
            target.filesystem.create_dir(full.rpartition("/")[0], recursive=True)
        fs.copy_files(
            source.full(path),
            full,
            source_filesystem=source.filesystem,
            destination_filesystem=target.filesystem,
        )
    except OSError as error:
        raise UnavailableError(f"file {path} cannot be copied to {target.uri}: {error}") from error


def _is_progress(line: bytes) -> bool:
    return line.startswith(b'{"kind":"progress"')
