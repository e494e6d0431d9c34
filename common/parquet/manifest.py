"""Manifests: the list of a table's files for readers, and its file format.

    _neve/manifest/latest.json                      the pointer: one small JSON object
    _neve/manifest/<number>-<begun>-<random>/part-<n>.parquet    one row per file

Parts are written first, the pointer last; written files never change.

For engines without support for Névé. `docs/reference/manifest.md` describes the format for users.
"""

import json
import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs
from pyarrow import parquet as pq

from common.errors import RequestError, UnavailableError
from common.metadata.store_values import AcceptedLoss
from common.model.fields import as_plain
from common.model.file import DataFile
from common.model.location_identity import MANIFEST_FOLDER
from common.model.table import Table
from common.model.tablet import Tablet
from common.parquet.location import Location
from common.parquet.service_files import read_small, write_small

FORMAT = "neve-manifest"
FORMAT_VERSION = 1

PART_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("merge", pa.bool_(), nullable=False),
        pa.field("tombstones", pa.int64(), nullable=False),
        pa.field("tablet", pa.string(), nullable=False),
        pa.field("partition", pa.string()),
        pa.field("key_min", pa.string()),
        pa.field("key_max", pa.string()),
        pa.field("time_min_s", pa.float64()),
        pa.field("time_max_s", pa.float64()),
    ]
)


@dataclass(slots=True, kw_only=True)
class ManifestTotals:
    """Totals of a manifest's files."""

    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    merge: bool = False
    """Whether some files must be merged with others on read."""

    def plain(self) -> dict[str, Any]:
        """Return them as plain JSON values."""
        return asdict(self)

    def add(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Count entries."""
        for entry in entries:
            self.files += 1
            self.rows += entry["rows"]
            self.size_bytes += entry["size_bytes"]
            self.merge = self.merge or entry["merge"]


def files_to_merge(table: Table, files: Sequence[DataFile]) -> frozenset[str]:
    """Return the files of one tablet that must be merged with others on read.

    Readers see all rows of a clean file that overlaps no other in keys, except expired rows.
    Append-only tables need no merge.

    Args:
        table: Table of the files.
        files: All files of the tablet.
    """
    if not table.key:
        return frozenset()
    merged = {file.path for file in files if file.rows and not file.clean}
    before: DataFile | None = None
    bounded = [file for file in files if file.key_min is not None and file.key_max is not None]
    for file in sorted(bounded, key=lambda listed: (listed.key_min or b"", listed.path)):
        if before is not None and (file.key_min or b"") <= (before.key_max or b""):
            merged |= {before.path, file.path}
        if before is None or (file.key_max or b"") > (before.key_max or b""):
            before = file
    return frozenset(merged)


def manifest_entries(location: Location, table: Table, tablet: Tablet) -> list[dict[str, Any]]:
    """Return a manifest's entries for a tablet's files, by path: one row of a part each."""
    files = [file for _, file in sorted(tablet.files.items()) if not file.open]
    merged = files_to_merge(table, files)
    return [
        {
            "path": file.path,
            "file": absolute_name(location, file.path),
            "size_bytes": file.size_bytes,
            "rows": file.rows,
            "merge": file.path in merged,
            "tombstones": file.tombstones,
            "tablet": tablet.id.text,
            "partition": tablet.bounds.partition,
            "key_min": None if file.key_min is None else file.key_min.hex(),
            "key_max": None if file.key_max is None else file.key_max.hex(),
            "time_min_s": file.time_min_s,
            "time_max_s": file.time_max_s,
        }
        for file in files
    ]


def absolute_name(location: Location, path: str) -> str:
    """Return a file's name as engines open it: `/data/t/a.parquet`, `s3://lake/t/a.parquet`.

    Nothing is percent-encoded, because engines take such names literally. A local file has no
    scheme, because engines disagree on the meaning of `%` after one.
    """
    if location.is_local:
        return f"{location.root}/{path}"
    parts = urlsplit(location.uri)
    return f"{parts.scheme}://{parts.netloc}{unquote(parts.path).rstrip('/')}/{path}"


def manifest_header(
    table: Table,
    number: int,
    begun_s: float,
    totals: ManifestTotals | None,
    loss: AcceptedLoss | None = None,
) -> dict[str, Any]:
    """Return the fields of a manifest other than its files or parts.

    Args:
        table: Table of the manifest.
        number: Number of the manifest; 0: created for a single reader.
        begun_s: The store's time before files were looked up.
        totals: Totals of all files; None: not known.
        loss: Period whose changes the store has lost, so the manifest may lack them.
    """
    body: dict[str, Any] = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "table": table.name,
        "table_id": table.id,
        "complete": not table.incomplete,
        "location": table.location,
        "number": number,
        "begun_s": begun_s,
        "schema": [
            {"name": column.name, "type": column.type, "nullable": column.nullable}
            for column in table.schema
        ],
        "key": list(table.key),
        "version_column": table.version_column,
        "tombstone_column": table.tombstone_column,
        "time_column": table.time_column,
        "ttl_s": table.settings.ttl_s,
        "partition_by": list(table.partition_by),
    }
    if loss is not None:
        body["loss"] = as_plain(loss)
    if totals is not None:
        body["totals"] = totals.plain()
    return body


# ------------------------------------------------------------------------------ Files of a manifest


POINTER_PATH = f"{MANIFEST_FOLDER}/latest.json"
_POINTER_BYTES_MAX = 64 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestPointer:
    """The fields of a pointer that the service uses."""

    number: int
    path: str
    """The folder of its parts."""


def manifest_folder_name(number: int, begun_s: float, chance: str) -> str:
    """Return the folder of a manifest's parts; the time in it shows when it is obsolete."""
    return f"{MANIFEST_FOLDER}/{number:010d}-{int(begun_s)}-{chance}"


def begun_of(folder: str) -> float | None:
    """Return the begin of a manifest from its folder's name; None: not a manifest."""
    parts = posixpath.basename(folder).split("-", 2)
    return (
        float(parts[1])
        if len(parts) == 3 and parts[0].isdecimal() and parts[1].isdecimal()
        else None
    )


def write_part(
    location: Location, folder: str, number: int, entries: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Write one part; return its entry for the pointer.

    Raises:
        UnavailableError: The storage refused it.
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
    """Publish a manifest whose parts are written.

    Raises:
        UnavailableError: The storage refused it.
    """
    whole = {**body, "path": folder}
    write_small(location, POINTER_PATH, json.dumps(whole, indent=1).encode() + b"\n")


def read_pointer(location: Location) -> ManifestPointer | None:
    """Return the pointer of a location; None: there is none that can be read.

    Raises:
        UnavailableError: The storage does not answer.
    """
    content = read_small(location, POINTER_PATH, _POINTER_BYTES_MAX)
    try:
        body = json.loads(content or b"")
        return ManifestPointer(number=int(body["number"]), path=str(body["path"]))
    except (ValueError, KeyError, TypeError):
        return None


def manifest_folders(location: Location) -> list[str]:
    """Return the folders of all manifests, as relative paths.

    Raises:
        UnavailableError: The storage does not answer.
    """
    base = location.full(MANIFEST_FOLDER)
    try:
        infos = location.filesystem.get_file_info(fs.FileSelector(base, allow_not_found=True))
    except OSError as error:
        raise UnavailableError(f"{location.uri} cannot be listed: {error}") from error
    names = [posixpath.basename(info.path) for info in infos]
    return sorted(f"{MANIFEST_FOLDER}/{name}" for name in names if begun_of(name) is not None)


def delete_others(
    location: Location, kept: Collection[str], outdated: Collection[str], before_s: float
) -> None:
    """Delete outdated manifests, and old unknown ones.

    Args:
        location: Location of the table.
        kept: Folders that may have readers.
        outdated: Folders that have no readers any more.
        before_s: Unknown ones that were begun earlier are deleted: their publisher has died.

    Raises:
        UnavailableError: The storage refused.
    """
    for folder in manifest_folders(location):
        unknown = folder not in kept and (begun_of(folder) or 0.0) < before_s
        if folder in outdated or unknown:
            delete_folder(location, folder)


def delete_folder(location: Location, folder: str) -> None:
    """Delete a folder of the service with all its contents.

    Raises:
        RequestError: It is not below `_neve/manifest`.
        UnavailableError: The storage refused.
    """
    if folder != MANIFEST_FOLDER and not folder.startswith(f"{MANIFEST_FOLDER}/"):
        raise RequestError(f"folder {folder} is not one of manifests, expected {MANIFEST_FOLDER}")
    try:
        location.filesystem.delete_dir(location.full(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise UnavailableError(f"{folder} of {location.uri} was not deleted: {error}") from error
