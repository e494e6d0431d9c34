"""Files of a directory to import: listing, and facts from their footers.

A file that cannot be in the table is recorded with the reason.
"""

import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from common.errors import RefusedError, RequestError, UnavailableError
from common.model.service_paths import SERVICE_FOLDER, is_guard
from common.parquet.file_inspection import open_table_file
from common.parquet.foreign_formats import (
    ForeignMark,
    foreign_mark,
    mark_in_path,
    published_marks,
)
from common.parquet.location import Location
from common.parquet.service_files import OWNER_PATH, owner_of
from common.readers.pool import in_reader
from neve.recovery.stored_files import FileOrigin, list_location

FILES_MAX = 1_000_000
"""Limit of files in an imported directory, whose names are held in memory."""
FORMER = frozenset({FileOrigin.OUTPUT, FileOrigin.APPENDED})


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that may belong to the table."""

    path: str
    """Path relative to the location."""
    size_bytes: int


@dataclass(slots=True)
class Listing:
    """Listing of a directory; `files` is sorted by path."""

    files: list[FoundFile] = field(default_factory=list)
    misfits: dict[str, str] = field(default_factory=dict)
    """Path → why it cannot be in a table."""
    ignored: int = 0
    """Number of hidden files; a hidden local folder counts once."""
    published: frozenset[str] = frozenset()
    """Marks of other table formats that the service itself wrote."""


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name is hidden (Spark's rule), or is a guard."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or is_guard(name)


def check_import_location(location: Location, store: str) -> None:
    """Check that a directory can be imported: no other owner, no owner above, no links.

    Raises:
        RequestError: The location is not a directory, or its path contains a link.
        RefusedError: The location belongs to another store or to another table format, or lies
            in a location that has an owner.
        UnavailableError: The storage does not answer.
    """
    if location.is_local:
        _require_directory(location)
    mark = foreign_mark(location)
    if mark is not None:
        raise RefusedError(mark.refusal(location.uri))
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
            owner = None  # Without access to the folder, this service has no table there.
        if owner is not None:
            raise RefusedError(
                f"location {location.uri} lies in {above}, which belongs to the store {owner}: "
                "two tables may not share files"
            )
        above = posixpath.dirname(above)


def _require_directory(location: Location) -> None:
    if not os.path.isdir(location.root):
        raise RequestError(f"location {location.uri} is no directory on the service's machine")
    real = os.path.realpath(location.root)
    if real != location.root:
        raise RequestError(
            f"location {location.uri} goes through a link; give the place itself: {real}"
        )


def list_directory(location: Location) -> Listing:
    """List a directory.

    Raises:
        RequestError: The directory has more files than can be imported.
        RefusedError: A folder in it belongs to another table, or to another table format.
        UnavailableError: The storage does not answer.
    """
    found = Listing(published=published_marks(location))
    try:
        for path, size_bytes, why in (
            _list_local(location, found) if location.is_local else _list_remote(location, found)
        ):
            if why is None:
                why = _why_unusable(location, path)
            if why is not None:
                found.misfits[_path_text(path)] = why
                continue
            found.files.append(FoundFile(path, size_bytes))
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
    """Return the files that an earlier table has left in a directory, path → why it is a misfit.

    Raises:
        UnavailableError: The storage does not answer.
    """
    why = (
        "it was written for a table that is gone, and may hold its rows alone: `neve rebuild` "
        "brings that table back"
    )
    stored = list_location(location, SERVICE_FOLDER)
    return {path: why for path, file in stored.items() if file.whose in FORMER}


def _list_local(location: Location, found: Listing) -> Iterator[tuple[str, int, str | None]]:
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(f"{location.root}/{folder}") as entries:
            for entry in entries:
                path = folder + entry.name
                _refuse_other_format(location, path, found)
                if entry.name == SERVICE_FOLDER and os.path.exists(f"{entry.path}/store"):
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


def _list_remote(location: Location, found: Listing) -> Iterator[tuple[str, int, str | None]]:
    prefix = location.root + "/"
    selector = fs.FileSelector(location.root, recursive=True)
    for each in location.filesystem.get_file_info(selector):
        if each.type != fs.FileType.File:
            continue
        path = each.path.removeprefix(prefix)
        _refuse_other_format(location, path, found)
        if f"/{path}".endswith(f"/{OWNER_PATH}"):
            _refuse_nested(location, path.removesuffix(OWNER_PATH))
        elif any(map(is_hidden, path.split("/"))):
            found.ignored += 1
        else:
            yield path, int(each.size), None


def _refuse_nested(location: Location, folder: str) -> None:
    """Reject a subfolder that belongs to a table; the location itself was checked before."""
    if folder:
        raise RefusedError(
            f"folder {folder.rstrip('/')} of {location.uri} is a table of its own "
            f"(it holds {OWNER_PATH}): two tables may not share files"
        )


def _refuse_other_format(location: Location, path: str, found: Listing) -> None:
    """Reject a location with a subfolder that is a table of another format."""
    mark = mark_in_path(path)
    if mark is not None and mark[0] not in found.published:
        where = f"{location.root}/{mark[0]}"
        raise RefusedError(ForeignMark(mark[1], where).refusal(location.uri))


def _why_unusable(location: Location, path: str) -> str | None:
    try:
        path.encode()
        location.relative(path)
    except UnicodeEncodeError:
        return "its name is not UTF-8; rename it"
    except RequestError:
        return "its name has empty parts, '..', a backslash or a zero byte; rename it"
    return None


def _path_text(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode()


# ------------------------------------------------------------------------------------------ Footers


_MAGIC, _MAGIC_ENCRYPTED = b"PAR1", b"PARE"


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of one column of a file; None: the footer does not contain the value."""

    nulls: int | None
    low: object = None
    high: object = None


@dataclass(frozen=True, slots=True)
class FooterFacts:
    """Facts from the footer of a file."""

    schema: pa.Schema
    rows: int
    columns: dict[str, ColumnStatistics]
    """Statistics of the requested columns that the file has."""


def read_import_footer(
    location: Location, file: FoundFile, names: Sequence[str]
) -> FooterFacts | str:
    """Return the facts of a file's footer, or why the footer cannot be used.

    Args:
        location: Location of the file.
        file: The file, as listed.
        names: Columns whose statistics are read.

    Raises:
        UnavailableError: The storage does not answer.
    """
    if file.size_bytes == 0:
        return "it is empty (0 bytes)"
    try:
        return _read_footer(location, file, names)
    except RequestError as error:  # Includes files that killed their reader process.
        return str(error)


@in_reader("file {file.path}")
def _read_footer(location: Location, file: FoundFile, names: Sequence[str]) -> FooterFacts | str:
    try:
        with open_table_file(location, file.path) as parquet:
            metadata = parquet.metadata
            schema = parquet.schema_arrow.remove_metadata()
            return FooterFacts(
                schema, metadata.num_rows, _column_statistics(metadata, schema, names)
            )
    except RequestError as error:
        return _why_not_parquet(location, file) or str(error)
    except pa.ArrowException as error:
        return f"its footer cannot be understood: {error}"


def _column_statistics(
    metadata: pq.FileMetaData, schema: pa.Schema, names: Sequence[str]
) -> dict[str, ColumnStatistics]:
    wanted = [name for name in names if name in schema.names]
    if not wanted:
        return {}
    at = {metadata.schema.column(n).path: n for n in range(metadata.num_columns)}
    return {name: _statistics_of_column(metadata, at[name]) for name in wanted if name in at}


def _statistics_of_column(metadata: pq.FileMetaData, at: int) -> ColumnStatistics:
    nulls, lows, highs = 0, list[object](), list[object]()
    for number in range(metadata.num_row_groups):
        chunk = metadata.row_group(number).column(at)
        said = chunk.statistics
        if said is None or not said.has_null_count:
            return ColumnStatistics(None)
        nulls += said.null_count
        if said.null_count == chunk.num_values:
            continue
        if not said.has_min_max:
            return ColumnStatistics(nulls if number == metadata.num_row_groups - 1 else None)
        lows.append(said.min)
        highs.append(said.max)
    try:
        return ColumnStatistics(nulls, min(lows, default=None), max(highs, default=None))  # type: ignore[type-var]  # of one type
    except TypeError:
        return ColumnStatistics(nulls)


def _why_not_parquet(location: Location, file: FoundFile) -> str | None:
    """Return why an unreadable file is not Parquet, by its last bytes; None: it may be Parquet."""
    try:
        with location.filesystem.open_input_file(location.full(file.path)) as source:
            source.seek(max(0, file.size_bytes - 4))
            magic = bytes(source.read(4))
    except OSError:
        return None
    if magic == _MAGIC_ENCRYPTED:
        return "it is encrypted: the service has no key for it"
    return None if magic == _MAGIC else "it is not Parquet"
