"""Batches of an import: each one change, whose call id is made from its paths."""

from collections.abc import Callable, Sequence

from common.digests import digest
from common.errors import CompactionError, RefusedError, RequestError
from common.metadata.table_walk import walk_tiles
from common.model.outcome import RefusalCode
from common.model.table import Table
from neve import api
from neve.gateway.add import add_files, inspected
from neve.gateway.problems import ChangeRefusedError
from neve.gateway.services import Services
from neve.importing.directory import Directory

BATCH_FILES = 500
"""Files of one change; each has its own watches, so larger ones lose more races."""
CALL_HOUR_S = 3600
TRIES_MAX = 4
KNOWN_BY_NOW = frozenset({RefusalCode.EXISTS, RefusalCode.REPLACED, RefusalCode.CALL_CONTENT})
"""Some of the files are in the table, or were: the others are added without them."""
Tell = Callable[..., None]


async def read_known(services: Services, directory: Directory) -> None:
    """Read which paths need not be added: they are in the table, or were, and are replaced."""
    if directory.table is None:
        return
    known: set[str] = set()
    async for page in walk_tiles(services.store, directory.table):
        for tablet in page:
            known.update(tablet.files)
    known.update(each.path for each in await services.store.garbage(directory.table.id))
    directory.known = known


async def add_all(services: Services, directory: Directory, table: Table, tell: Tell) -> None:
    """Add every file that fits, batch by batch, in the order of their paths.

    Raises:
        RequestError: A file cannot be read to its end; those before it are in.
        RefusedError: The table does not take files now.
    """
    files, rows, done_bytes = directory.survey.files, 0, 0
    for first in range(0, len(files), BATCH_FILES):
        batch = files[first : first + BATCH_FILES]
        rows += await _add_batch(services, directory, table, [each.path for each in batch])
        done_bytes += sum(each.size_bytes for each in batch)
        tell(
            "adding files",
            files_done=first + len(batch),
            files=len(files),
            bytes_done=done_bytes,
            size_bytes=directory.survey.total.size_bytes,
            rows=rows,
        )


async def _add_batch(
    services: Services, directory: Directory, table: Table, paths: Sequence[str]
) -> int:
    """Add some files; return their rows. Those that somebody else has added are left out."""
    directory.table = directory.table or table
    for _ in range(TRIES_MAX):
        if not paths:
            return 0
        done = await _tried(services, directory, table, paths)
        if isinstance(done, api.Added):
            directory.added += done.file_count
            return done.rows
        paths = done
    raise RefusedError(f"table {table.name!r}: its files keep changing; repeat the import")


async def _tried(
    services: Services, directory: Directory, table: Table, paths: Sequence[str]
) -> api.Added | Sequence[str]:
    """Add files, or return those that are still to be added."""
    try:
        call = batch_call(table.id, paths, await services.store.now_s())
        return await add_files(services, table, paths, call)
    except ChangeRefusedError as error:
        if error.code not in KNOWN_BY_NOW:
            raise
        await read_known(services, directory)
        left = [path for path in paths if path not in directory.known]
        if len(left) == len(paths):
            raise
    except RequestError:
        if not directory.body.leave_misfits:
            raise
        left = await _readable(services, directory, table, paths)
        if len(left) == len(paths):
            raise
    return left


async def _readable(
    services: Services, directory: Directory, table: Table, paths: Sequence[str]
) -> list[str]:
    """Return the files that can be read to their end; the others turn out to be misfits."""
    good = list[str]()
    looks = await inspected(services, table, paths)
    for path, found in zip(paths, looks, strict=True):
        if isinstance(found, RequestError):
            directory.survey.misfits[path] = str(found)
        elif isinstance(found, CompactionError):
            raise found
        else:
            good.append(path)
    return good


def batch_call(table: str, paths: Sequence[str], now_s: float) -> str:
    """Return the id of the call that adds a batch: the same for the same paths.

    It carries the hour, since a call id must tell a time that is not long ago (UUIDv7). A
    repetition in another hour is another call; then that the paths are in the table
    already is what keeps them from being added twice.

    Args:
        table: Its id.
        paths: Of the batch.
        now_s: The store's time.
    """
    millis = int(now_s // CALL_HOUR_S) * CALL_HOUR_S * 1000
    text = f"{millis:012x}", digest([table, *sorted(paths)], 18)
    stamp, chance = text
    return f"{stamp[:8]}-{stamp[8:]}-7{chance[:3]}-8{chance[3:6]}-{chance[6:]}"
