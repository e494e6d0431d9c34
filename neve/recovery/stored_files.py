"""Files in a table's location: listing, and classification by name, footer and partition.

The name of a file identifies its writer. Only the table's metadata shows who uses the file.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

import pyarrow.parquet as pq
from pyarrow import fs

from common.errors import RequestError, UnavailableError
from common.model.location_identity import APPEND_FOLDER, SERVICE_FOLDER, is_guard, is_service_path
from common.model.table import Table
from common.model.tablet import TabletId
from common.parquet.file_inspection import open_table_file
from common.parquet.location import Location, fault
from common.parquet.write import TABLE_FOOTER
from common.readers.pool import in_reader
from common.rows.key_encoding import Partition, folders_of, partition_of, partition_of_path

CLOCKS_APART_S = 300.0
"""Largest assumed difference between the clocks of store and storage."""
COMMIT_DELAY_MAX_S = 900.0
"""How much older a file may be than the change that added it, including clock differences."""
_HIVE = r"(?:[^/=]+=[^/]*/)*"
_OUTPUT = re.compile(rf"{SERVICE_FOLDER}/(?:last|[0-9a-f]{{1,48}})/{_HIVE}job-[^/]*\.parquet")
_APPENDED = re.compile(rf"{APPEND_FOLDER}/{_HIVE}[^/]+")


class FileOrigin(StrEnum):
    """Writer of a file, by its name. Only the metadata shows who uses the file."""

    OUTPUT = "output"
    """Written by a job."""
    APPENDED = "appended"
    """Written by the gateway for an append."""
    SERVICE = "service"
    """Written by the service for itself: marks, manifests, guards of the directory."""
    USER = "user"
    """Written by a user; the service deletes it only after a compaction replaced it."""
    OTHER = "other"
    """Not data: a hidden file, or a file without a Parquet name."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a location."""

    path: str
    size_bytes: int
    changed_s: float | None
    """Last modification by the storage's clock, in epoch seconds; None: unknown."""

    @property
    def whose(self) -> FileOrigin:
        """Writer of the file."""
        return file_origin(self.path)


def file_origin(path: str) -> FileOrigin:
    """Return the writer of a file, by its path relative to the location."""
    if is_guard(path):
        return FileOrigin.SERVICE
    if is_service_path(path):
        if _OUTPUT.fullmatch(path):
            return FileOrigin.OUTPUT
        return FileOrigin.APPENDED if _APPENDED.fullmatch(path) else FileOrigin.SERVICE
    hidden = any(part.startswith(("_", ".")) and "=" not in part for part in path.split("/"))
    return (
        FileOrigin.USER if path.endswith((".parquet", ".parq")) and not hidden else FileOrigin.OTHER
    )


def list_location(location: Location, folder: str = "") -> dict[str, StoredFile]:
    """Return every file below a location, or below a folder of it, by path in the location.

    Raises:
        UnavailableError: The storage does not answer.
    """
    where = f"{location.root}/{folder}" if folder else location.root
    selector = fs.FileSelector(where, recursive=True, allow_not_found=True)
    try:
        infos = location.filesystem.get_file_info(selector)
    except OSError as error:
        raise UnavailableError(f"location {location.uri} cannot be listed: {error}") from error
    prefix = location.root + "/"
    files = (info for info in infos if info.type == fs.FileType.File)
    stored = (
        StoredFile(file.path.removeprefix(prefix), file.size, _seconds(file.mtime_ns))
        for file in files
    )
    return {file.path: file for file in stored}


def look_up(location: Location, paths: Collection[str]) -> dict[str, StoredFile]:
    """Return the given files that exist, by a lookup of each path instead of a listing.

    Raises:
        RequestError: A path is not below the location.
        UnavailableError: The storage does not answer.
    """
    full = {location.full(path): path for path in paths}
    try:
        infos = location.filesystem.get_file_info([*full])
    except OSError as error:
        raise UnavailableError(fault(location, "some files", error)) from error
    return {
        path: StoredFile(path, info.size, _seconds(info.mtime_ns))
        for path, info in zip(full.values(), infos, strict=True)
        if info.type == fs.FileType.File
    }


def _seconds(nanos: int | None) -> float | None:
    return None if not nanos or nanos < 0 else nanos / 1e9


# --------------------------------------------------------------------------- Footers of job outputs


FOOTER_FORMAT = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFooter:
    """Footer of a job's output. With `rows` 0, the file marks a commit that left no rows."""

    path: str
    table: str
    tablet: str
    job: str
    attempt: str
    inputs: tuple[str, ...]
    request: str | None
    purge: bytes | None
    outputs: tuple[str, ...] | None
    """All outputs of the attempt; only the footer of its last file lists them."""
    rows: int


@in_reader("file {path}")
def table_of_file(location: Location, path: str) -> str | None:
    """Return the id of the table that a file was written for; None: the footer has no id.

    Raises:
        RequestError: The file is missing, not Parquet, or damaged.
        UnavailableError: The storage does not answer.
    """
    with open_table_file(location, path) as file:
        table: bytes | None = (file.metadata.metadata or {}).get(TABLE_FOOTER.encode())
    return None if table is None else table.decode(errors="replace")


@in_reader("file {path}")
def read_output_footer(location: Location, path: str) -> OutputFooter | None:
    """Return the footer of a job's output; None: the file is not the output of a job.

    Raises:
        RequestError: The file is missing, not Parquet, damaged, or from another release.
        UnavailableError: The storage does not answer.
    """
    with open_table_file(location, path) as file:
        named: Mapping[bytes, bytes] = file.metadata.metadata or {}
        rows = file.metadata.num_rows
    texts = {
        name.decode().removeprefix("neve."): value.decode(errors="replace")
        for name, value in named.items()
        if name.startswith(b"neve.")
    }
    if "attempt" not in texts:
        return None
    if texts.get("format") != FOOTER_FORMAT:
        raise RequestError(f"file {path} has a footer of format {texts.get('format')!r}")
    try:
        return _footer(path, texts, rows)
    except (KeyError, ValueError, TypeError) as error:
        raise RequestError(f"file {path} has a footer that makes no sense: {error}") from error


def _footer(path: str, texts: Mapping[str, str], rows: int) -> OutputFooter:
    outputs = texts.get("outputs")
    TabletId.parse("", texts["tablet"])
    return OutputFooter(
        path=path,
        table=texts["table"],
        tablet=texts["tablet"],
        job=texts["job"],
        attempt=texts["attempt"],
        inputs=_paths(texts["inputs"]),
        request=texts.get("request") or None,
        purge=bytes.fromhex(texts["purge"]) if texts.get("purge") else None,
        outputs=None if outputs is None else _paths(outputs),
        rows=rows,
    )


def _paths(text: str) -> tuple[str, ...]:
    paths = json.loads(text)
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError(f"{text[:100]!r} is no list of paths")
    return tuple(paths)


# --------------------------------------------------------------------------------------- Partitions


@in_reader("file {path}")
def partition_of_file(location: Location, table: Table, path: str) -> Partition:
    """Return the partition of a file, from its folder names or from its first row.

    Raises:
        RequestError: Neither determines a partition, or the file cannot be read.
    """
    if folders_of(path).keys() >= set(table.partition_by):
        return partition_of_path(table, path)
    with open_table_file(location, path) as file:
        return partition_of(table, _first_row(file, table, path))


def _first_row(file: pq.ParquetFile, table: Table, path: str) -> list[object]:
    names = list(table.partition_by)
    if missing := sorted(set(names) - {*file.schema_arrow.names}):
        raise RequestError(f"file {path} lacks the partition column {missing[0]}")
    batch = next(file.iter_batches(1, columns=names), None)
    if batch is None or not batch.num_rows:
        raise RequestError(f"file {path} has no row, so it belongs to no partition")
    return [batch.column(name)[0].as_py() for name in names]
