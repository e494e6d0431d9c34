"""Chooses where a tablet is split: by the bounds of its files, or by samples of their keys."""

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
from coordinator.core.split_merge.split_keys import (
    files_to_sample,
    is_sure,
    split_keys,
)

NoteFatalFile = Callable[[str, str], None]
"""Called with a file that has ended the process that read it, and how."""


async def choose_split_keys(
    tablet: Tablet,
    table: Table,
    log: Log,
    *,
    parts: int = 2,
    fatal: NoteFatalFile = lambda *_: None,
    threads: StorageThreads | None = None,
) -> tuple[bytes, ...]:
    """Return keys that split a tablet into parts of about equal bytes; none where none does.

    Args:
        tablet: As it was read.
        table: Its table, which has a key.
        log: Hears of files that could not be read: they count as far as they are known.
        parts: How many; at least 2.
        fatal: Hears of files that nobody should look into again; then no key is returned.
        threads: Where storage is looked at.

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
    """Return keys of files by path, and how files have ended readers."""
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
