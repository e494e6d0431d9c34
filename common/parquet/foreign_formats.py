"""Marks of other table formats: a location that such a format owns is never Névé's.

A Delta table lists its files in `_delta_log`, an Iceberg table in `metadata/*.metadata.json`, and
so on. A compaction that replaces such files, and a collector that deletes them, destroys the
table. So no table is created in, above or below such a folder. Before files are deleted, their
folders are checked again, because a mark may have been added later.

`_neve/published` lists the marks that Névé wrote itself, one per line; they are ignored.
"""

import posixpath
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from pyarrow import fs

from common.errors import UnavailableError
from common.model.location_identity import PUBLISHED_PATH, SERVICE_FOLDER
from common.parquet.location import Location, fault
from common.parquet.service_files import read_small

FORMATS = {
    "_delta_log": "Delta Lake",
    ".hoodie": "Apache Hudi",
    "_spark_metadata": "Spark's streaming file sink",
    "_versions": "Lance",
}
"""Name of a folder in a table → its format."""
ICEBERG_FOLDER, ICEBERG = "metadata", "Apache Iceberg"
_ICEBERG_FILE = re.compile(r"[^/]+\.metadata\.json(?:\.gz)?")
FOLDERS_MAX = 1000
"""Folders below a location that are listed before a table is created there."""
PUBLISHED_BYTES_MAX = 64 * 1024


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


def mark_in_path(path: str) -> tuple[str, str] | None:
    """Return the mark that a path is or is in, and its format; None: there is none."""
    parts = path.split("/")
    for number, part in enumerate(parts):
        if part in FORMATS:
            return "/".join(parts[: number + 1]), FORMATS[part]
    if parts[-2:-1] == [ICEBERG_FOLDER] and _ICEBERG_FILE.fullmatch(parts[-1]):
        return path, ICEBERG
    return None


def published_marks(location: Location) -> frozenset[str]:
    """Return the marks in a location that Névé wrote itself, as relative paths.

    Raises:
        UnavailableError: The storage does not answer.
    """
    content = read_small(location, PUBLISHED_PATH, PUBLISHED_BYTES_MAX) or b""
    return frozenset(filter(None, content.decode("utf-8", errors="replace").split("\n")))


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
    own = published_marks(location)
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
        mark = _mark_in_folder(location, full, own if not folder else ())
        if mark is not None:
            return mark
    return None


def foreign_mark_below(location: Location) -> ForeignMark | None:
    """Return the mark of another format in a folder below a location, level by level.

    At most `FOLDERS_MAX` folders are listed, each once.

    Raises:
        UnavailableError: The storage does not answer.
    """
    own = published_marks(location)
    folders, prefix = deque([location.root]), f"{location.root}/"
    for _ in range(FOLDERS_MAX):
        if not folders:
            break
        for each in _listed(location, folders.popleft()):
            path = each.path.removeprefix(prefix)
            mark = mark_in_path(path)
            if mark is not None and not own.intersection({path, path.partition("/")[0]}):
                return ForeignMark(mark[1], each.path)
            is_folder = each.type == fs.FileType.Directory
            if is_folder and "=" not in each.base_name and path != SERVICE_FOLDER and not mark:
                folders.append(each.path)
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
    location: Location, folder: str, own: Collection[str] = ()
) -> ForeignMark | None:
    names = [name for name in (*FORMATS, ICEBERG_FOLDER) if name not in own]
    try:
        infos = location.filesystem.get_file_info([f"{folder}/{name}" for name in names])
    except OSError as error:
        raise UnavailableError(fault(location, folder, error)) from error
    for name, info in zip(names, infos, strict=True):
        if info.type == fs.FileType.NotFound:
            continue
        if name in FORMATS:
            return ForeignMark(FORMATS[name], info.path)
        for each in _listed(location, info.path):
            if _ICEBERG_FILE.fullmatch(each.base_name):
                return ForeignMark(ICEBERG, each.path)
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
