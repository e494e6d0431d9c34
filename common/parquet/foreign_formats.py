"""Tables of other formats in a location, which the service leaves alone, and its own log there.

A Delta table lists its files in `_delta_log`, an Iceberg table in `metadata/*.metadata.json`, and
so on. A compaction that replaces such files, and a collector that deletes them, destroys the
table. So no table is created in, above or below such a folder. Before files are deleted, their
folders are checked again, because a mark may have been added later.

The service itself publishes tables as Delta logs (`common.lake.delta.publication`) or as Iceberg
metadata (`common.lake.iceberg.publication`), here both called logs. `_neve/published` names the
tables of such logs. A log is the service's own while its newest version names one of them. Once
another writer has added a version, it is a foreign one.
"""

import json
import os
import posixpath
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pyarrow import fs

from common.errors import RefusedError, UnavailableError
from common.model.location_identity import (
    FORMATS,
    ICEBERG,
    ICEBERG_FILE,
    ICEBERG_FOLDER,
    ICEBERG_HINT,
    LOG_FILES,
    LOG_LAG,
    LOG_ROWS,
    LOG_TABLE,
    LOG_TIME,
    OWN_ICEBERG_MANIFEST,
    OWN_ICEBERG_METADATA,
    PUBLISHED_PATH,
    SERVICE_FOLDER,
    mark_in_path,
)
from common.model.table import PUBLISH_DELTA, PUBLISH_ICEBERG
from common.parquet.location import Location, fault
from common.parquet.service_files import read_small, write_small

# ------------------------------------------------------------------------------------ The own log

LOG_FOLDER = "_delta_log"
NOTE_BYTES_MAX = 64 * 1024
NOTE_TABLES_MAX = 16
PROBLEM_CHARS_MAX = 1000
_FIRST_LINE_BYTES_MAX = 64 * 1024
_METADATA_BYTES_MAX = 16 * 1024**2
_VERSION = re.compile(r"(\d{20})\.json")
_NUMBERED = re.compile(r"(\d{20})\..*")


@dataclass(frozen=True, slots=True)
class PublishedNote:
    """The content of `_neve/published`. It stays when the log is removed."""

    tables: tuple[str, ...] = ()
    """Ids of the tables whose logs were published in the location, newest first."""
    problem: str = ""
    """Why the last publication failed; empty: it did not."""

    def naming(self, table: str) -> "PublishedNote":
        """Return the note with a table as the newest one."""
        others = tuple(name for name in self.tables if name != table)
        return PublishedNote((table, *others)[:NOTE_TABLES_MAX], self.problem)


@dataclass(frozen=True, slots=True)
class OwnLog:
    """What the newest version of a log states that the service wrote."""

    table: str
    version: int
    as_of_s: float
    files: int
    rows: int
    lag: str = ""
    """Why the table has newer rows that the version lacks."""
    format: str = PUBLISH_DELTA
    path: str = ""
    """Of the metadata file of an Iceberg version, in the filesystem of the location."""


@dataclass(frozen=True, slots=True)
class _LogFolder:
    """What was found in the folder of a log."""

    folder: str = LOG_FOLDER
    names: Sequence[str] = ()
    """Its files; in the folder of Iceberg metadata, those with names of the service."""
    newest: int = -1
    """Highest number in the names of its files."""
    versions: Collection[str] = field(default_factory=frozenset)
    """Names of versions."""
    head: OwnLog | None = None
    """The newest version, if the service wrote it."""

    def is_of(self, note: PublishedNote) -> bool:
        """Return whether the log belongs to a table of a note, or has no version."""
        if not note.tables:
            return False
        return self.newest < 0 or (self.head is not None and self.head.table in note.tables)


def read_note(location: Location) -> PublishedNote:
    """Return the note on logs of the service in a location; an unreadable one is empty.

    Raises:
        UnavailableError: The storage does not answer.
    """
    content = read_small(location, PUBLISHED_PATH, NOTE_BYTES_MAX)
    try:
        value = json.loads(content or b"{}")
        tables, problem = value.get("tables", ()), value.get("problem", "")
        return PublishedNote(tuple(map(str, tables)), str(problem))
    except (AttributeError, TypeError, ValueError):
        return PublishedNote()


def write_note(location: Location, note: PublishedNote) -> None:
    """Write the note on logs of the service.

    Raises:
        UnavailableError: The storage does not answer, or forbids it.
    """
    value = {"tables": [*note.tables], "problem": note.problem[:PROBLEM_CHARS_MAX]}
    write_small(location, PUBLISHED_PATH, json.dumps(value).encode() + b"\n")


def own_log(location: Location) -> OwnLog | None:
    """Return the log that the service publishes in a location; None: there is none.

    Raises:
        UnavailableError: The storage does not answer.
    """
    note = read_note(location)
    folders = _log_folders(location) if note.tables else {}
    return next((log.head for log in folders.values() if log.head and log.is_of(note)), None)


def remove_own_log(location: Location, kept: str = "") -> bool:
    """Remove the log that the service has published; return whether there was one.

    The newest version goes last: an interrupted removal leaves a log that is known as its own.

    Args:
        location: The location.
        kept: A format whose log stays.

    Raises:
        RefusedError: Another writer has added a version.
        UnavailableError: The storage does not answer.
    """
    note = read_note(location)
    if not note.tables:
        return False
    logs = [log for name, log in _log_folders(location).items() if name != kept]
    are_removed = [_remove(location, log) for log in logs if log.is_of(note)]
    for log in logs:
        if not log.is_of(note):
            message = (
                f"the newest version of the log {location.root}/{log.folder} was not written by "
                "the service: another writer has added to it. Nothing of it is removed; look what "
                "was written, then remove the folder yourself"
            )
            raise RefusedError(message)
    return any(are_removed)


def _remove(location: Location, log: _LogFolder) -> bool:
    path = f"{location.root}/{log.folder}"
    names = sorted(log.names, key=lambda name: (name in log.versions, name))
    try:
        for name in names:
            with suppress(FileNotFoundError):
                location.filesystem.delete_file(f"{path}/{name}")
        if log.folder == LOG_FOLDER:
            location.filesystem.delete_dir(path)
        elif location.is_local:
            with suppress(OSError):  # It has files of users.
                os.rmdir(path)
    except FileNotFoundError:
        return bool(names)
    except OSError as error:
        raise UnavailableError(fault(location, log.folder, error)) from error
    return bool(names)


def is_published_metadata(path: str) -> bool:
    """Return whether a path in a location has a name of Iceberg metadata of the service."""
    folder, _, name = path.rpartition("/")
    patterns = (OWN_ICEBERG_METADATA, OWN_ICEBERG_MANIFEST)
    is_own = name == ICEBERG_HINT or any(pattern.fullmatch(name) for pattern in patterns)
    return folder == ICEBERG_FOLDER and is_own


def _log_folders(location: Location) -> dict[str, _LogFolder]:
    """Return what may be a log of the service, by format."""
    return {PUBLISH_DELTA: _delta_folder(location), PUBLISH_ICEBERG: _iceberg_folder(location)}


def _delta_folder(location: Location) -> _LogFolder:
    names = _file_names(location, LOG_FOLDER)
    numbers = [int(match[1]) for name in names if (match := _NUMBERED.fullmatch(name))]
    versions = frozenset(name for name in names if _VERSION.fullmatch(name))
    newest = max(numbers, default=-1)
    name = f"{newest:020}.json"
    head = _delta_head(location, newest) if name in versions else None
    return _LogFolder(LOG_FOLDER, names, newest, versions, head)


def _iceberg_folder(location: Location) -> _LogFolder:
    names = _file_names(location, ICEBERG_FOLDER)
    found = {name: OWN_ICEBERG_METADATA.fullmatch(name) for name in names}
    own = {name: match for name, match in found.items() if match is not None}
    versions = sorted(own, key=lambda name: int(own[name][1]))
    others = [name for name in names if name not in own and ICEBERG_FILE.fullmatch(name)]
    if others or len({match[2] for match in own.values()}) > 1:
        return _LogFolder(ICEBERG_FOLDER, (), 0)  # Of another writer, or of two.
    if not versions:
        manifests = [name for name in names if OWN_ICEBERG_MANIFEST.fullmatch(name)]
        return _LogFolder(ICEBERG_FOLDER, manifests)
    newest = own[versions[-1]]
    head = _iceberg_head(location, versions[-1], newest[2])
    manifests = [
        name for name in names if name == ICEBERG_HINT or OWN_ICEBERG_MANIFEST.fullmatch(name)
    ]
    return _LogFolder(
        ICEBERG_FOLDER, [*manifests, *versions], int(newest[1]), frozenset(versions), head
    )


def _file_names(location: Location, folder: str) -> list[str]:
    infos = _listed(location, f"{location.root}/{folder}")
    return [info.base_name for info in infos if info.type == fs.FileType.File]


def _delta_head(location: Location, version: int) -> OwnLog | None:
    content = read_small(location, f"{LOG_FOLDER}/{version:020}.json", _FIRST_LINE_BYTES_MAX)
    with suppress(KeyError, TypeError, ValueError, RecursionError):
        return _own_log(json.loads((content or b"").split(b"\n")[0])["commitInfo"], version)
    return None


def _iceberg_head(location: Location, name: str, metadata_id: str) -> OwnLog | None:
    path = f"{ICEBERG_FOLDER}/{name}"
    content = read_small(location, path, _METADATA_BYTES_MAX)
    with suppress(KeyError, TypeError, ValueError, RecursionError):
        metadata = json.loads(content or b"")
        if metadata["table-uuid"] == metadata_id:
            log = _own_log(metadata["properties"], int(name.partition("-")[0]))
            return replace(log, format=PUBLISH_ICEBERG, path=f"{location.root}/{path}")
    return None


def _own_log(facts: Mapping[str, Any], version: int) -> OwnLog:
    return OwnLog(
        str(facts[LOG_TABLE]),
        version,
        float(facts[LOG_TIME]),
        int(facts[LOG_FILES]),
        int(facts[LOG_ROWS]),
        str(facts.get(LOG_LAG) or "")[:PROBLEM_CHARS_MAX],
    )


# ------------------------------------------------------------------------------- Foreign formats


FOLDERS_MAX = 1000
"""Folders below a location that are listed before a table is created there."""


@dataclass(frozen=True, slots=True)
class ForeignMark:
    """Evidence that a folder is a table of another format."""

    format: str
    path: str
    """The mark's path in its filesystem."""

    def refusal(self, uri: str) -> str:
        """Return why no table can be at a location, and what to do."""
        return (
            f"location {uri} shares files with a table of {self.format} ({self.path}), whose "
            "files a compaction would delete. Névé cannot take over tables of this format yet: "
            "export the table to plain Parquet files in a folder of its own, and import that folder"
        )

    def stop(self, table: str) -> str:
        """Return why no file is deleted in a table's location, and what to do."""
        return (
            f"table {table}: no file is deleted, because its location shares files with a table "
            f"of {self.format} ({self.path}); move one of the two to a folder of its own, or drop "
            f"{table} without its files"
        )


def published_marks(location: Location) -> frozenset[str]:
    """Return the folders of marks in a location that the service wrote itself.

    Raises:
        UnavailableError: The storage does not answer.
    """
    note = read_note(location)
    folders = _log_folders(location).values() if note.tables else ()
    return frozenset(log.folder for log in folders if log.is_of(note))


def foreign_mark(location: Location, paths: Iterable[str] = ()) -> ForeignMark | None:
    """Return the mark of another format that owns a location, or some files in it.

    Checks the location, the folders above it, and the folders between it and the files. Folders
    of partitions (`day=1`) cannot be tables and are skipped.

    Args:
        location: Existing or planned location of a table.
        paths: Paths of files in it.

    Raises:
        UnavailableError: The storage does not answer.
    """
    published = published_marks(location)
    for folder in _folders_above(location.root):
        try:
            mark = _mark_in_folder(location, folder)
        except UnavailableError:
            continue  # Folders that the service cannot read are not part of a location.
        if mark is not None:
            return mark
    inside = sorted({folder for path in paths for folder in _folders_of(path)})
    for folder in ("", *inside):
        full = f"{location.root}/{folder}" if folder else location.root
        mark = _mark_in_folder(location, full, published if not folder else ())
        if mark is not None:
            return mark
    return None


def foreign_mark_below(location: Location) -> ForeignMark | None:
    """Return the mark of another format in a folder below a location, level by level.

    At most `FOLDERS_MAX` folders are listed, each once.

    Raises:
        UnavailableError: The storage does not answer.
    """
    published = published_marks(location)
    folders, prefix = deque([location.root]), f"{location.root}/"
    for _ in range(FOLDERS_MAX):
        if not folders:
            break
        for info in _listed(location, folders.popleft()):
            path = info.path.removeprefix(prefix)
            mark = mark_in_path(path)
            if mark is not None and path.partition("/")[0] not in published:
                return ForeignMark(mark[1], info.path)
            is_folder = info.type == fs.FileType.Directory
            if is_folder and "=" not in info.base_name and path != SERVICE_FOLDER and not mark:
                folders.append(info.path)
    return None


def _folders_above(root: str) -> Iterator[str]:
    folder = posixpath.dirname(root)
    while folder.strip("/"):
        yield folder
        folder = posixpath.dirname(folder)


def _folders_of(path: str) -> Iterator[str]:
    """Yield the folders between a location and a file that may be separate tables."""
    folder = posixpath.dirname(path)
    while folder and not folder.startswith(SERVICE_FOLDER):
        if "=" not in posixpath.basename(folder):
            yield folder
        folder = posixpath.dirname(folder)


def _mark_in_folder(
    location: Location, folder: str, published: Collection[str] = ()
) -> ForeignMark | None:
    names = [name for name in (*FORMATS, ICEBERG_FOLDER) if name not in published]
    try:
        infos = location.filesystem.get_file_info([f"{folder}/{name}" for name in names])
    except OSError as error:
        raise UnavailableError(fault(location, folder, error)) from error
    for name, info in zip(names, infos, strict=True):
        if info.type == fs.FileType.NotFound:
            continue
        if name in FORMATS:
            return ForeignMark(FORMATS[name], info.path)
        for entry in _listed(location, info.path):
            if ICEBERG_FILE.fullmatch(entry.base_name):
                return ForeignMark(ICEBERG, entry.path)
    return None


def _listed(location: Location, folder: str) -> list[fs.FileInfo]:
    selector = fs.FileSelector(folder, allow_not_found=True)
    try:
        infos: list[fs.FileInfo] = location.filesystem.get_file_info(selector)
    except NotADirectoryError:
        return []
    except OSError as error:
        raise UnavailableError(fault(location, folder, error)) from error
    return infos
