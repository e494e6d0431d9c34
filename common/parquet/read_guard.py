"""The guard of a directory: a file that makes plain readers fail instead of counting wrongly.

A reader that lists the directory finds replaced files next to their replacements, or, after the
collector has run, no file at all. No directory can be right at every moment, so readers must fail.
The guard is a file that ends in `.parquet` but is not Parquet. It is written to the location, and
to each folder in which files were replaced or rows were appended. (Spark reads no file directly in
the location if it has partition folders.) Its name sorts before most other files and names the
alternative.

A guard is written before the commit that needs it becomes visible, and before that it is recorded
in `_neve/guards`, so that a drop finds all guards without listing the whole location.
"""

import posixpath
from collections.abc import Collection, Iterable

from pyarrow import fs

from common.errors import UnavailableError
from common.model.service_paths import GUARD_NAME, GUARDS_FOLDER, is_service_path
from common.parquet.location import Location, existing_files, fault
from common.parquet.service_files import write_small

CONTENT = b"""This is no Parquet file, and it is here on purpose: this directory is a table of Neve.
Its files are replaced while you read. A program that lists the directory itself would count rows
twice, or miss rows. Read the table with `neve.read`, a client, or the manifest in
_neve/manifest/latest.json. `neve table set TABLE directory_guard=off` removes this file.
"""
_NOTE = "noted"


def folders_of(paths: Iterable[str]) -> frozenset[str]:
    """Return the folders that need a guard when these files are replaced or appended.

    The location itself, as an empty text, and the folder of each file. For a file below `_neve`,
    the folder of its partition (`_neve/append/day=1/x.parquet`: `day=1`), where plain readers look.
    """
    return frozenset({"", *map(_folder_of, paths)})


def _folder_of(path: str) -> str:
    folder = posixpath.dirname(path)
    return "/".join(folder.split("/")[2:]) if is_service_path(path) else folder


def place_guards(location: Location, folders: Collection[str]) -> None:
    """Write the missing guards in some folders of a location.

    Raises:
        UnavailableError: The storage does not answer, or forbids it.
    """
    guards = {posixpath.join(folder, GUARD_NAME): folder for folder in folders}
    for path in sorted(guards.keys() - existing_files(location, [*guards]).keys()):
        write_small(location, posixpath.join(GUARDS_FOLDER, guards[path], _NOTE), b"")
        write_small(location, path, CONTENT)


def remove_guards(location: Location) -> None:
    """Delete all guards of a location, and their records.

    Raises:
        UnavailableError: The storage does not answer, or forbids it.
    """
    root = f"{location.root}/{GUARDS_FOLDER}"
    selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
    try:
        for each in location.filesystem.get_file_info(selector):
            if each.base_name == _NOTE and each.type == fs.FileType.File:
                folder = posixpath.dirname(each.path).removeprefix(root).strip("/")
                _delete(location, posixpath.join(folder, GUARD_NAME))
        if location.filesystem.get_file_info(root).type == fs.FileType.Directory:
            location.filesystem.delete_dir(root)
    except OSError as error:
        raise UnavailableError(fault(location, GUARDS_FOLDER, error)) from error


def _delete(location: Location, path: str) -> None:
    try:
        location.filesystem.delete_file(location.full(path))
    except FileNotFoundError:
        return
