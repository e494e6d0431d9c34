"""Files of a directory that is to become a table: who may be in it, and who cannot.

Hidden files are ignored as Spark does: names that begin with `.`, or with `_` but hold
no `=`, and all below such folders. Links are told and never followed: what they lead to
belongs to somebody else, or would be in the table twice.
"""

import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field

from pyarrow import fs

from common.errors import RefusedError, RequestError, UnavailableError
from common.parquet.location import Location
from common.parquet.service_files import OWNER_PATH, owner_of
from neve.recovery.stored import Whose, list_location

FILES_MAX = 1_000_000
"""Files of one directory that are imported; their names are held in memory."""
OWN_FOLDER = "_neve"
FORMER = frozenset({Whose.OUTPUT, Whose.APPENDED})


@dataclass(frozen=True, slots=True)
class Found:
    """A file that may be one of the table's."""

    path: str
    """Relative to the location."""
    size_bytes: int


@dataclass(slots=True)
class Listing:
    """What a directory holds; `files` by path."""

    files: list[Found] = field(default_factory=list)
    misfits: dict[str, str] = field(default_factory=dict)
    """Path → why it cannot be in a table."""
    ignored: int = 0
    """Hidden files, and hidden folders of this machine."""


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name is no data (Spark's rule)."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def check_place(location: Location, store: str) -> None:
    """Refuse a directory that is another's, or lies in another's, or is reached through a link.

    Raises:
        RequestError: It is no directory, or its path goes through a link.
        RefusedError: It belongs to another store, or lies in a location that has an owner.
        UnavailableError: The storage does not answer.
    """
    if location.is_local:
        if not os.path.isdir(location.root):
            raise RequestError(f"location {location.uri} is no directory on the service's machine")
        real = os.path.realpath(location.root)
        if real != location.root:
            raise RequestError(
                f"location {location.uri} goes through a link; give the place itself: {real}"
            )
    owner = owner_of(location)
    if owner is not None and owner != store:
        raise RefusedError(
            f"location {location.uri} belongs to the store {owner}, this one is {store}: "
            "two services may not share a location (`neve rebuild --adopt` takes it over)"
        )
    above = posixpath.dirname(location.root)
    while above.strip("/"):
        try:
            owner = owner_of(Location(location.uri, location.filesystem, above))
        except UnavailableError:
            owner = None  # Who may not look there cannot have a table there.
        if owner is not None:
            raise RefusedError(
                f"location {location.uri} lies in {above}, which belongs to the store {owner}: "
                "two tables may not share files"
            )
        above = posixpath.dirname(above)


def list_directory(location: Location) -> Listing:
    """Return what a directory holds.

    Raises:
        RequestError: It holds more files than can be imported.
        RefusedError: A folder in it is another table's.
        UnavailableError: The storage does not answer.
    """
    found = Listing()
    try:
        for path, size_bytes, why in (
            _local(location, found) if location.is_local else _remote(location, found)
        ):
            if why is None:
                why = _unusable(location, path)
            if why is not None:
                found.misfits[_shown(path)] = why
                continue
            found.files.append(Found(path, size_bytes))
            if len(found.files) > FILES_MAX:
                raise RequestError(
                    f"location {location.uri} holds more than {FILES_MAX:,} files; "
                    "import its folders as tables of their own"
                )
    except OSError as error:
        raise UnavailableError(f"location {location.uri} cannot be listed: {error}") from error
    found.files.sort(key=lambda file: file.path)
    return found


def list_former(location: Location) -> dict[str, str]:
    """Return the files that an earlier table of a directory has left, and why none is imported.

    Raises:
        UnavailableError: The storage does not answer.
    """
    why = (
        "it was written for a table that is gone, and may hold its rows alone: `neve rebuild` "
        "brings that table back"
    )
    stored = list_location(location, OWN_FOLDER)
    return {path: why for path, file in stored.items() if file.whose in FORMER}


def _local(location: Location, found: Listing) -> Iterator[tuple[str, int, str | None]]:
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(f"{location.root}/{folder}") as entries:
            for entry in entries:
                path = folder + entry.name
                if entry.name == OWN_FOLDER and os.path.exists(f"{entry.path}/store"):
                    _refuse_nested(location, folder)
                elif is_hidden(entry.name):
                    found.ignored += 1
                elif entry.is_symlink():
                    yield path, 0, "it is a link, and links are not followed"
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(f"{path}/")
                elif entry.is_file(follow_symlinks=False):
                    yield path, entry.stat(follow_symlinks=False).st_size, None
                else:
                    yield path, 0, "it is neither a file nor a folder"


def _remote(location: Location, found: Listing) -> Iterator[tuple[str, int, str | None]]:
    prefix = location.root + "/"
    selector = fs.FileSelector(location.root, recursive=True)
    for each in location.filesystem.get_file_info(selector):
        if each.type != fs.FileType.File:
            continue
        path = each.path.removeprefix(prefix)
        if f"/{path}".endswith(f"/{OWNER_PATH}"):
            _refuse_nested(location, path.removesuffix(OWNER_PATH))
        elif any(map(is_hidden, path.split("/"))):
            found.ignored += 1
        else:
            yield path, int(each.size), None


def _refuse_nested(location: Location, folder: str) -> None:
    """Refuse a folder below that is a table's; the location itself was checked before."""
    if folder:
        raise RefusedError(
            f"folder {folder.rstrip('/')} of {location.uri} is a table of its own "
            f"(it holds {OWNER_PATH}): two tables may not share files"
        )


def _unusable(location: Location, path: str) -> str | None:
    try:
        path.encode()
        location.relative(path)
    except UnicodeEncodeError:
        return "its name is not UTF-8; rename it"
    except RequestError:
        return "its name has empty parts, '..', a backslash or a zero byte; rename it"
    return None


def _shown(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode()
