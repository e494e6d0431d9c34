"""Survey of a directory for an import. Nothing is written.

List the files → read their footers → unite partition folders and schemas → return a `Survey` with
the columns, files and misfits of one table. `neve.gateway.imports` creates the table.
"""

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from common.errors import RefusedError, RequestError, UnavailableError
from common.model.key_values import KeyType, key_type_of, plain_value
from common.model.location_identity import SERVICE_FOLDER, is_guard, mark_in_path
from common.model.table import Column, Table
from common.parquet.file_inspection import open_table_file
from common.parquet.foreign_formats import (
    ForeignMark,
    foreign_mark,
    is_published_metadata,
    published_marks,
)
from common.parquet.location import Location
from common.parquet.service_files import OWNER_PATH, owner_of
from common.readers.pool import in_reader
from common.rows.key_encoding import folders_of, partition_of, value_of_folder
from common.rows.schema import (
    arrow_schema,
    columns_of,
    has_nanoseconds,
    in_microseconds,
    require_readable,
    type_from_text,
    unite_schemas,
)
from neve.api import NewImport
from neve.recovery.stored_files import FileOrigin, list_location

# -------------------------------------------------------------------------------------------- Files
# Files of a directory to import: listing, and facts from their footers.
#
# A file that cannot be in the table is recorded with the reason.


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
    """Folders with marks of other table formats that the service itself wrote."""


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
    listing = Listing(published=published_marks(location))
    try:
        for path, size_bytes, why in (
            _list_local(location, listing) if location.is_local else _list_remote(location, listing)
        ):
            if why is None:
                why = _why_unusable(location, path)
            if why is not None:
                listing.misfits[path.encode("utf-8", "backslashreplace").decode()] = why
                continue
            listing.files.append(FoundFile(path, size_bytes))
            if len(listing.files) > FILES_MAX:
                raise RequestError(
                    f"location {location.uri} holds more than {FILES_MAX:,} files; "
                    "import its folders as tables of their own"
                )
    except OSError as error:
        raise UnavailableError(f"location {location.uri} cannot be listed: {error}") from error
    listing.files.sort(key=lambda file: file.path)
    return listing


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


def _list_local(location: Location, listing: Listing) -> Iterator[tuple[str, int, str | None]]:
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(f"{location.root}/{folder}") as entries:
            for entry in entries:
                path = folder + entry.name
                _refuse_other_format(location, path, listing)
                if entry.name == SERVICE_FOLDER and os.path.exists(f"{entry.path}/store"):
                    _refuse_nested(location, folder)
                elif is_hidden(entry.name) or is_published_metadata(path):
                    listing.ignored += 1
                elif entry.is_symlink():
                    yield path, 0, "it is a link, and links are not followed"
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(f"{path}/")
                elif entry.is_file(follow_symlinks=False):
                    yield path, entry.stat(follow_symlinks=False).st_size, None
                else:
                    yield path, 0, "it is neither a file nor a folder"


def _list_remote(location: Location, listing: Listing) -> Iterator[tuple[str, int, str | None]]:
    prefix = location.root + "/"
    selector = fs.FileSelector(location.root, recursive=True)
    for entry in location.filesystem.get_file_info(selector):
        if entry.type != fs.FileType.File:
            continue
        path = entry.path.removeprefix(prefix)
        _refuse_other_format(location, path, listing)
        if f"/{path}".endswith(f"/{OWNER_PATH}"):
            _refuse_nested(location, path.removesuffix(OWNER_PATH))
        elif any(map(is_hidden, path.split("/"))) or is_published_metadata(path):
            listing.ignored += 1
        else:
            yield path, int(entry.size), None


def _refuse_nested(location: Location, folder: str) -> None:
    """Reject a subfolder that belongs to a table; the location itself was checked before."""
    if folder:
        raise RefusedError(
            f"folder {folder.rstrip('/')} of {location.uri} is a table of its own "
            f"(it holds {OWNER_PATH}): two tables may not share files"
        )


def _refuse_other_format(location: Location, path: str, listing: Listing) -> None:
    """Reject a location with a subfolder that is a table of another format."""
    mark = mark_in_path(path)
    if mark is not None and path.partition("/")[0] not in listing.published:
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
    present = [name for name in names if name in schema.names]
    if not present:
        return {}
    at = {metadata.schema.column(n).path: n for n in range(metadata.num_columns)}
    return {name: _statistics_of_column(metadata, at[name]) for name in present if name in at}


def _statistics_of_column(metadata: pq.FileMetaData, at: int) -> ColumnStatistics:
    nulls, lows, highs = 0, list[object](), list[object]()
    for number in range(metadata.num_row_groups):
        chunk = metadata.row_group(number).column(at)
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count:
            return ColumnStatistics(None)
        nulls += statistics.null_count
        if statistics.null_count == chunk.num_values:
            continue
        if not statistics.has_min_max:
            return ColumnStatistics(nulls if number == metadata.num_row_groups - 1 else None)
        lows.append(statistics.min)
        highs.append(statistics.max)
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


# ------------------------------------------------------------------------------------------- Survey


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """The user's description of the table to import."""

    key: tuple[str, ...] = ()
    version_column: str | None = None
    partition_by: tuple[str, ...] | None = None
    """Partition columns; None: taken from the folder names."""
    partition_types: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[Column, ...] | None = None
    """Columns of an existing table; None: the table is new."""
    narrow: bool = False
    """Whether files with nanoseconds will be copied in microseconds."""


@dataclass(slots=True)
class FileTotals:
    """Totals of files."""

    files: int = 0
    rows: int = 0
    size_bytes: int = 0

    def add(self, file: FoundFile, footer: FooterFacts) -> None:
        """Count a file."""
        self.files += 1
        self.rows += footer.rows
        self.size_bytes += file.size_bytes


@dataclass(slots=True, kw_only=True)
class Survey:
    """Result of a survey: the columns of a table, and the files that fit."""

    columns: tuple[Column, ...] = ()
    partition_by: tuple[str, ...] = ()
    files: list[FoundFile] = field(default_factory=list)
    total: FileTotals = field(default_factory=FileTotals)
    partitions: dict[str, FileTotals] = field(default_factory=dict)
    misfits: dict[str, str] = field(default_factory=dict)
    nanosecond_files: set[str] = field(default_factory=set)
    """Paths of files with nanosecond timestamps."""
    unknown_nulls: int = 0
    """Number of files without statistics on null versions."""
    unversioned_rows: int = 0
    """Number of rows with a null version, according to the statistics."""


@dataclass(slots=True, kw_only=True)
class ImportedDirectory:
    """State of the import of one directory."""

    body: NewImport
    location: Location
    table: Table | None
    """The table of an earlier run; None: the table is new."""
    listing: Listing = field(default_factory=Listing)
    survey: Survey = field(default_factory=Survey)
    known: set[str] = field(default_factory=set)
    """Paths that the table holds, or that a compaction has replaced."""
    copied: dict[str, int] = field(default_factory=dict)
    """Path → size of files whose copies the table has, or had."""
    already: int = 0
    added: int = 0


# ----------------------------------------------------------- Columns and types of partition folders


_WHOLE = re.compile(r"-?[0-9]{1,19}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def type_of_values(texts: Iterable[str | None]) -> str:
    """Infer the type of a partition column, in text form; `string` without any value.

    Args:
        texts: Values from folder names; None is null.
    """
    values = {text for text in texts if text is not None}
    if values and all(_WHOLE.fullmatch(text) for text in values):
        numbers = [int(text) for text in values]
        if all(-(2**31) <= number < 2**31 for number in numbers):
            return "int32"
        if all(-(2**63) <= number < 2**63 for number in numbers):
            return "int64"
    if values and all(map(_is_day, values)):
        return "date"
    return "string"


def usual_columns(folders: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the partition columns of most files; on a tie, the longer list of columns.

    Args:
        folders: Per file, the columns in its folder names, in order.
    """
    counted = Counter(tuple(names) for names in folders)
    return max(counted, key=lambda names: (counted[names], len(names), names), default=())


def _is_day(text: str) -> bool:
    if not _DAY.fullmatch(text):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


# --------------------------------------------------------- One schema for as many files as possible


SEEDS_MAX = 20
"""Number of schemas that are tried as the first schema of a union."""


@dataclass(frozen=True, slots=True)
class SchemaUnion:
    """A schema, and the files that do not fit it, path → reason."""

    schema: pa.Schema
    misfits: Mapping[str, str] = field(default_factory=dict)


def best_union(
    paths: Mapping[pa.Schema, Sequence[str]], columns: Sequence[Column] | None = None
) -> SchemaUnion:
    """Return the schema union with the fewest misfits.

    Args:
        paths: Schema → paths of its files, sorted.
        columns: Columns of an existing table; None: the table is new.
    """
    order = sorted(paths, key=lambda schema: (-len(paths[schema]), paths[schema][0]))
    if columns is not None:
        return _unite_known(paths, order, arrow_schema(columns))
    unions: list[SchemaUnion] = []
    for first in order[:SEEDS_MAX]:
        unions.append(
            _unite_in_order(paths, [first, *(schema for schema in order if schema is not first)])
        )
        if not unions[-1].misfits:
            break
    return min(unions, key=lambda union: len(union.misfits), default=SchemaUnion(pa.schema([])))


def _unite_in_order(
    paths: Mapping[pa.Schema, Sequence[str]], order: Sequence[pa.Schema]
) -> SchemaUnion:
    """Unite schemas one by one, and skip schemas that are incompatible with the earlier ones."""
    united: pa.Schema | None = None
    misfits: dict[str, str] = {}
    for schema in order:
        sources = [] if united is None else [("the other files", united)]
        try:
            joined = unite_schemas([*sources, (f"file {paths[schema][0]}", schema)])
            columns_of(joined)  # Raises for types that tables do not support.
        except RequestError as error:
            misfits |= dict.fromkeys(paths[schema], str(error))
        else:
            united = joined
    return SchemaUnion(united if united is not None else pa.schema([]), misfits)


def _unite_known(
    paths: Mapping[pa.Schema, Sequence[str]], order: Sequence[pa.Schema], expected: pa.Schema
) -> SchemaUnion:
    misfits: dict[str, str] = {}
    for schema in order:
        try:
            _require_known(f"file {paths[schema][0]}", schema, expected)
        except RequestError as error:
            misfits |= dict.fromkeys(paths[schema], str(error))
    return SchemaUnion(expected, misfits)


def _require_known(source: str, schema: pa.Schema, expected: pa.Schema) -> None:
    require_readable(source, schema, expected)
    if unknown := sorted(set(schema.names) - set(expected.names)):
        raise RequestError(
            f"{source} has the columns {', '.join(unknown)}, which the table does not have"
        )


# --------------------------------------------------------------------------------------- The survey


STATISTICS_LETTERS_MAX = 16
"""Longest text that is compared, because statistics of longer texts may be truncated."""


@dataclass(slots=True)
class _ReadFile:
    file: FoundFile
    footer: FooterFacts
    folder_values: dict[str, str | None]


def survey(
    footers: Sequence[tuple[FoundFile, FooterFacts | str]], options: ImportOptions
) -> Survey:
    """Survey files, and return the table that they make together.

    Args:
        footers: Files with the facts of their footers, or why a footer cannot be used.
        options: Options from the user.

    Raises:
        RequestError: The user's types or columns contradict the files.
    """
    result = Survey()
    files = _files_in_folders(footers, options, result)
    files = _files_with_columns(files, options, result)
    schema, files = _unite_files(files, options, result)
    result.columns = _columns(schema, files, options, result)
    if files:
        _count_files(files, result)
    return result


def _files_in_folders(
    footers: Sequence[tuple[FoundFile, FooterFacts | str]], options: ImportOptions, survey: Survey
) -> list[_ReadFile]:
    files = []
    for file, footer in sorted(footers, key=lambda read: read[0].path):
        if isinstance(footer, str):
            survey.misfits[file.path] = footer
            continue
        try:
            facts = _footer(file, footer, options, survey)
            files.append(_ReadFile(file, facts, folders_of(file.path)))
        except RequestError as error:
            survey.misfits[file.path] = str(error)
    if options.partition_by is None:
        survey.partition_by = usual_columns(list(file.folder_values) for file in files)
    else:
        survey.partition_by = options.partition_by
    kept = []
    for read_file in files:
        if set(read_file.folder_values) == set(survey.partition_by):
            kept.append(read_file)
        else:
            actual, should_be = (
                _folder_text(read_file.folder_values),
                _folder_text(survey.partition_by),
            )
            survey.misfits[read_file.file.path] = f"it lies in {actual}, expected {should_be}"
    return kept


def _footer(
    file: FoundFile, footer: FooterFacts, options: ImportOptions, survey: Survey
) -> FooterFacts:
    """Return the facts of a file, or those of its future copy in microseconds."""
    if not any(map(has_nanoseconds, footer.schema.types)):
        return footer
    survey.nanosecond_files.add(file.path)
    return replace(footer, schema=in_microseconds(footer.schema)) if options.narrow else footer


def _folder_text(columns: Sequence[str] | Mapping[str, object]) -> str:
    return "folders of " + ", ".join(columns) if columns else "no partition's folder"


def _files_with_columns(
    files: list[_ReadFile], options: ImportOptions, survey: Survey
) -> list[_ReadFile]:
    needed = {*options.key, *filter(None, [options.version_column])} - {*survey.partition_by}
    required = [column.name for column in options.columns or () if not column.nullable]
    kept = []
    for file in files:
        missing = sorted(needed.difference(file.footer.schema.names))
        null = next((name for name in required if _null_count(file, name)), None)
        if missing:
            survey.misfits[file.file.path] = (
                f"it lacks the columns {', '.join(missing)} of the key or version"
            )
        elif null is not None:
            survey.misfits[file.file.path] = f"its column {null} holds nulls, but must not be null"
        else:
            nulls = _null_count(file, options.version_column)
            survey.unknown_nulls += nulls is None
            survey.unversioned_rows += nulls or 0
            kept.append(file)
    return kept


def _null_count(file: _ReadFile, name: str | None) -> int | None:
    """Return a column's number of nulls; 0 without statistics requested; None: unknown."""
    if name is None or name not in file.footer.columns:
        return 0
    return file.footer.columns[name].nulls


def _unite_files(
    files: list[_ReadFile], options: ImportOptions, survey: Survey
) -> tuple[pa.Schema, list[_ReadFile]]:
    paths: dict[pa.Schema, list[str]] = {}
    for file in files:
        paths.setdefault(file.footer.schema, []).append(file.file.path)
    union = best_union(paths, options.columns)
    survey.misfits |= union.misfits
    return union.schema, [file for file in files if file.file.path not in union.misfits]


def _columns(
    schema: pa.Schema, files: list[_ReadFile], options: ImportOptions, survey: Survey
) -> tuple[Column, ...]:
    """Return the table's columns: those of files, and those that occur only in folder names."""
    if options.columns is not None:
        return options.columns
    # A partition column is nullable, because later files may lack it.
    fields = [
        column.with_nullable(True) if column.name in survey.partition_by else column
        for column in schema
    ]
    for name in survey.partition_by:
        if name not in schema.names:
            given = options.partition_types.get(name)
            text = given or type_of_values(file.folder_values[name] for file in files)
            fields.append(pa.field(name, type_from_text(text)))
    columns = columns_of(pa.schema(fields))
    if unknown := sorted(set(options.partition_types) - set(survey.partition_by)):
        raise RequestError(f"partition type of {unknown[0]!r}: no folder names such a column")
    if inside := sorted(set(options.partition_types).intersection(schema.names)):
        raise RequestError(
            f"partition type of {inside[0]!r} cannot be chosen: files have the column, "
            "and so its type"
        )
    return columns


def _count_files(files: list[_ReadFile], survey: Survey) -> None:
    """Count the files whose folder values fit the column types and the column statistics."""
    if any(name not in {column.name for column in survey.columns} for name in survey.partition_by):
        raise RequestError(f"partition columns {list(survey.partition_by)} are not the table's")
    table = Table(
        id="",
        name="",
        location="",
        schema=survey.columns,
        partition_by=survey.partition_by,
    )
    types = {column.name: column.type for column in survey.columns}
    kinds = {name: key_type_of(types[name]) for name in survey.partition_by}
    for file in files:
        try:
            plain = {name: value_of_folder(file.folder_values[name], kinds[name]) for name in kinds}
            _check_statistics(file, plain, kinds)
            text = partition_of(table, list(plain.values())).text
        except RequestError as error:
            survey.misfits[file.file.path] = str(error)
            continue
        survey.files.append(file.file)
        survey.total.add(file.file, file.footer)
        if kinds:
            survey.partitions.setdefault(text, FileTotals()).add(file.file, file.footer)


def _check_statistics(
    file: _ReadFile, plain: Mapping[str, object], kinds: Mapping[str, KeyType]
) -> None:
    """Reject a file with a partition column that contradicts its folder.

    Raises:
        RequestError: The statistics of the column differ from the folder's value.
    """
    for name, value in plain.items():
        statistics = file.footer.columns.get(name)
        text = file.folder_values[name] or ""
        if statistics is None or statistics.low is None or len(text) > STATISTICS_LETTERS_MAX:
            continue
        try:
            ends = {plain_value(end, kinds[name]) for end in (statistics.low, statistics.high)}
        except RequestError:
            continue  # The statistics have another representation, and cannot be compared.
        if ends != {value}:
            raise RequestError(
                f"its column {name} holds {statistics.low!r} to {statistics.high!r}, "
                f"but its folder says {file.folder_values[name]!r}"
            )
