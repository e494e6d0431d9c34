"""What lies in a table's location: listed once, told apart by name."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from pyarrow import fs

from common.errors import UnavailableError
from common.parquet.location import Location, fault

OWN_FOLDER = "_neve/"
_HIVE = r"(?:[^/=]+=[^/]*/)*"
_OUTPUT = re.compile(rf"_neve/(?:last|[0-9a-f]{{1,48}})/{_HIVE}job-[^/]*\.parquet")
_APPENDED = re.compile(rf"_neve/append/{_HIVE}[^/]+")


class Whose(StrEnum):
    """Who wrote a file, by its name. Who uses it, only the keys say."""

    OUTPUT = "output"
    """A job."""
    APPENDED = "appended"
    """The gateway, for an append."""
    SERVICE = "service"
    """The service, for itself: marks, manifests."""
    USER = "user"
    """A user: never deleted by the service unless it was replaced."""
    OTHER = "other"
    """Somebody, but it is no data: hidden files, or not Parquet by name."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a location."""

    path: str
    size_bytes: int
    changed_s: float | None
    """When it was last written, by the storage's clock; None: the storage does not tell."""

    @property
    def whose(self) -> Whose:
        """Who wrote it."""
        return whose(self.path)


def whose(path: str) -> Whose:
    """Return who wrote a file, by its path relative to the location."""
    if path.startswith(OWN_FOLDER):
        if _OUTPUT.fullmatch(path):
            return Whose.OUTPUT
        return Whose.APPENDED if _APPENDED.fullmatch(path) else Whose.SERVICE
    hidden = any(part.startswith(("_", ".")) and "=" not in part for part in path.split("/"))
    return Whose.USER if path.endswith((".parquet", ".parq")) and not hidden else Whose.OTHER


def list_location(location: Location, folder: str = "") -> dict[str, StoredFile]:
    """Return every file below a location, or a folder of it, by its path in the location.

    Raises:
        UnavailableError: The storage does not answer.
    """
    where = f"{location.root}/{folder}" if folder else location.root
    selector = fs.FileSelector(where, recursive=True, allow_not_found=True)
    try:
        found = location.filesystem.get_file_info(selector)
    except OSError as error:
        raise UnavailableError(f"location {location.uri} cannot be listed: {error}") from error
    prefix = location.root + "/"
    files = (each for each in found if each.type == fs.FileType.File)
    stored = (
        StoredFile(each.path.removeprefix(prefix), each.size, _seconds(each.mtime_ns))
        for each in files
    )
    return {each.path: each for each in stored}


def look_up(location: Location, paths: Collection[str]) -> dict[str, StoredFile]:
    """Return those of some files that are there, whatever a listing says.

    Raises:
        RequestError: A path is not below the location.
        UnavailableError: The storage does not answer.
    """
    full = {location.full(path): path for path in paths}
    try:
        found = location.filesystem.get_file_info([*full])
    except OSError as error:
        raise UnavailableError(fault(location, "some files", error)) from error
    return {
        path: StoredFile(path, each.size, _seconds(each.mtime_ns))
        for path, each in zip(full.values(), found, strict=True)
        if each.type == fs.FileType.File
    }


def _seconds(nanos: int | None) -> float | None:
    return None if not nanos or nanos < 0 else nanos / 1e9
