"""Chooses split keys of a tablet from the bounds of its files or from samples of their keys."""

from collections.abc import Callable

from common.errors import CompactionError
from common.model.file import DataFile
from common.model.table import Table
from common.model.tablet import Tablet
from common.parquet.file_inspection import sample_keys
from common.parquet.location import open_location
from common.readers.pool import ReaderDeathError
from common.rows.rules import RowRules
from common.storage_threads import StorageThreads
from common.telemetry import Log
from coordinator.core.split_merge import (
    files_to_sample,
    is_sure,
    split_keys,
)

NoteFatalFile = Callable[[str, str], None]
"""Called with the path of a file that has crashed its reader process, and the cause."""


async def choose_split_keys(
    tablet: Tablet,
    table: Table,
    log: Log,
    *,
    parts: int = 2,
    fatal: NoteFatalFile = lambda *_: None,
    threads: StorageThreads | None = None,
) -> tuple[bytes, ...]:
    """Return keys that split a tablet into parts of about equal bytes, or none if none fit.

    Args:
        tablet: The version that was read.
        table: Its table, which has a key.
        log: Receives files that could not be sampled; their key bounds are used instead.
        parts: Number of parts, at least 2.
        fatal: Receives files that must not be read again; in this case no key is returned.
        threads: Threads for calls to the storage.

    Raises:
        UnavailableError: The storage does not answer.
    """
    files = [*tablet.files.values()]
    rough = split_keys(tablet.bounds, files, parts=parts)
    if len(rough) == parts - 1 and all(is_sure(cut, files) for cut in rough):
        return rough
    threads = threads or StorageThreads()
    samples, deaths = await threads.run(table.location, _read_samples, table, files, log)
    for path, cause in deaths.items():
        fatal(path, cause)
    return () if deaths else split_keys(tablet.bounds, files, samples, parts=parts)


def _read_samples(
    table: Table, files: list[DataFile], log: Log
) -> tuple[dict[str, list[bytes]], dict[str, str]]:
    """Return sampled keys by path, and the causes of reader crashes by path."""
    samples: dict[str, list[bytes]] = {}
    deaths: dict[str, str] = {}
    for file in files_to_sample(files):
        try:
            samples[file.path] = sample_keys(
                open_location(table.location), file.path, RowRules.of(table)
            )
        except ReaderDeathError as error:
            deaths[file.path] = str(error)
        except CompactionError as error:
            log("keys of a file not sampled", table=table.name, path=file.path, cause=str(error))
    return samples, deaths
