"""Manifests in a location: parts first, the pointer last; what is written never changes."""

import json
import posixpath
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import fs
from pyarrow import parquet as pq

from common.errors import RequestError, UnavailableError
from common.model.own_paths import MANIFEST_FOLDER
from common.parquet.location import Location
from common.parquet.manifest import PART_SCHEMA, absolute_name
from common.parquet.small_files import read_small, write_small

POINTER_PATH = f"{MANIFEST_FOLDER}/latest.json"
_POINTER_BYTES_MAX = 64 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """What a pointer says, as far as the service asks it."""

    number: int
    path: str
    """The folder of its parts."""


def folder_name(number: int, begun_s: float, chance: str) -> str:
    """Return the folder of a manifest's parts; its time tells when nobody needs it any more."""
    return f"{MANIFEST_FOLDER}/{number:010d}-{int(begun_s)}-{chance}"


def begun_of(folder: str) -> float | None:
    """Return when a manifest was begun by the name of its folder; None: it is none."""
    parts = posixpath.basename(folder).split("-", 2)
    return (
        float(parts[1]) if len(parts) == 3 and parts[0].isdigit() and parts[1].isdigit() else None
    )


def write_part(
    location: Location, folder: str, number: int, entries: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Write one part; return what the pointer says of it.

    Raises:
        UnavailableError: The storage did not take it.
    """
    path = f"{folder}/part-{number:05d}.parquet"
    full = location.full(path)
    try:
        if location.is_local:
            location.filesystem.create_dir(posixpath.dirname(full), recursive=True)
        with location.filesystem.open_output_stream(full) as sink:
            rows = pa.Table.from_pylist(list(entries), PART_SCHEMA)
            pq.write_table(rows, sink, compression="zstd")
    except OSError as error:
        raise UnavailableError(f"{path} of {location.uri} cannot be written: {error}") from error
    return {"path": path, "file": absolute_name(location, path), "files": len(entries)}


def write_pointer(location: Location, folder: str, body: Mapping[str, Any]) -> None:
    """Point readers to a manifest whose parts are written.

    Raises:
        UnavailableError: The storage did not take it.
    """
    whole = {**body, "path": folder}
    write_small(location, POINTER_PATH, json.dumps(whole, indent=1).encode() + b"\n")


def read_pointer(location: Location) -> Pointer | None:
    """Return what the pointer of a location says; None: there is none that can be read.

    Raises:
        UnavailableError: The storage does not answer.
    """
    content = read_small(location, POINTER_PATH, _POINTER_BYTES_MAX)
    try:
        body = json.loads(content or b"")
        return Pointer(number=int(body["number"]), path=str(body["path"]))
    except (ValueError, KeyError, TypeError):
        return None


def manifest_folders(location: Location) -> list[str]:
    """Return the folders of all manifests, by their paths relative to the location.

    Raises:
        UnavailableError: The storage does not answer.
    """
    base = location.full(MANIFEST_FOLDER)
    try:
        found = location.filesystem.get_file_info(fs.FileSelector(base, allow_not_found=True))
    except OSError as error:
        raise UnavailableError(f"{location.uri} cannot be listed: {error}") from error
    names = [posixpath.basename(each.path) for each in found]
    return sorted(f"{MANIFEST_FOLDER}/{name}" for name in names if begun_of(name) is not None)


def delete_others(
    location: Location, kept: Collection[str], outdated: Collection[str], before_s: float
) -> None:
    """Delete manifests that are outdated, and old ones that nobody knows.

    Args:
        location: Of the table.
        kept: Folders that somebody may read.
        outdated: Folders that nobody reads any more.
        before_s: Unknown ones that were begun before may go: their publisher has died.

    Raises:
        UnavailableError: The storage refused.
    """
    for folder in manifest_folders(location):
        unknown = folder not in kept and (begun_of(folder) or 0.0) < before_s
        if folder in outdated or unknown:
            delete_folder(location, folder)


def delete_folder(location: Location, folder: str) -> None:
    """Delete a folder of the service with all that is in it.

    Raises:
        RequestError: It is not below `_neve/manifest`.
        UnavailableError: The storage refused.
    """
    if folder != MANIFEST_FOLDER and not folder.startswith(f"{MANIFEST_FOLDER}/"):
        raise RequestError(f"folder {folder} is not one of manifests, wanted {MANIFEST_FOLDER}")
    try:
        location.filesystem.delete_dir(location.full(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise UnavailableError(f"{folder} of {location.uri} was not deleted: {error}") from error
