"""The contents of a Parquet file: read once when it is added, in bounded memory.

Also keys sampled evenly over a file, and files that a reader process opens before this process
does.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.errors import CompactionError, RequestError, UnavailableError
from common.model.file import FAULTY_LAYOUT, DataFile
from common.model.key_values import KeyType
from common.model.request import KeyRange
from common.model.table import Column, Table
from common.parquet.location import Location, is_silence, map_files, open_location, size_of
from common.parquet.row_batches import OpenFile, open_parquet_file, row_batches, rows_at
from common.primitives import BoundedMap
from common.readers.pool import ReaderDeathError, in_reader
from common.rows.conform import BATCH_ROWS, conform, refuse_nulls, requires_values
from common.rows.key_encoding import encode_keys, fill_of_path, filled
from common.rows.merge import in_range, inside
from common.rows.row_facts import RowFacts, RowTally, data_file_of
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema, columns_of, normal_field, require_readable

# ------------------------------------------------------------------------------------ Footer checks
# The contents of a Parquet footer, and their consistency.
#
# Names and levels of codecs; whether a footer is consistent, since some inconsistent ones crash the
# process that reads on; and whether every reader finds the rows of its column chunks.


# ------------------------------------------------------------------------------------------- Codecs


CODECS = ("zstd", "snappy", "lz4", "gzip", "brotli", "none")
LEVELS = {"zstd": (1, 22), "gzip": (1, 9), "brotli": (0, 11)}
_ALIASES = {"uncompressed": "none", "gz": "gzip"}


def codec_name(written: str) -> str | None:
    """Return Névé's name of a codec, or None if it is unknown."""
    name = _ALIASES.get(written.lower(), written.lower())
    return name if name in CODECS else None


def has_level(codec: str, level: int) -> bool:
    """Return whether a codec supports a level; one without levels accepts any."""
    low, high = LEVELS.get(codec, (level, level))
    return low <= level <= high


# ------------------------------------------------------------------------ Consistency of a footer


def footer_fault(metadata: pq.FileMetaData) -> str | None:
    """Return what is wrong with a footer, or None.

    Arrow crashes the process when it is asked for statistics of a column chunk whose type
    differs from its column's.
    """
    physical = [metadata.schema.column(n).physical_type for n in range(metadata.num_columns)]
    rows = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        rows += group.num_rows
        if group.num_columns != len(physical) or group.num_rows < 0 or group.total_byte_size < 0:
            return f"row group {number} has impossible sizes"
        for at, wanted in enumerate(physical):
            if (chunk_type := group.column(at).physical_type) != wanted:
                name = metadata.schema.column(at).path
                return f"column {name} is {wanted}, but {chunk_type} in row group {number}"
    if rows != metadata.num_rows:
        return f"row groups have {rows} rows, the file {metadata.num_rows}"
    return None


# ---- Positions of column chunks
#
# A reader that splits a file assigns each row group to exactly one split, by a byte position from
# the footer: the first page of the first column (Trino, Hive), or the middle between that and the
# row group's end (Spark and everything else on parquet-mr; Impala). These positions are in one
# split each only if column chunks follow each other in the order of the schema. Otherwise such a
# reader silently misses row groups. `docs/reference/files.md` has the rules. Pure: footers in, a
# sentence out.


FOOTER_FRAME_BYTES = 8
"""Bytes after a footer: its length, and the letters PAR1."""
DATA_START = 4
"""Position of the first page of a file: after the letters PAR1."""


@dataclass(frozen=True, slots=True)
class RowGroupPlaces:
    """Positions of a row group according to its footer."""

    rows: int
    chunks: tuple[tuple[int, int], ...]
    """First byte and size of each column chunk, in the footer's order."""
    file_offset: int | None = None
    """Start of the row group according to the footer; None: missing, or not read."""
    total_compressed_size: int | None = None
    """Bytes of its pages according to the footer; None: missing, or not read."""
    ordinal: int | None = None
    """Index of the row group according to the footer; None: missing, or not read."""


def chunk_fault(metadata: pq.FileMetaData, size_bytes: int) -> str | None:
    """Return why some readers miss rows of a file, or None.

    Arrow does not expose the footer's fields of whole row groups, so those are not checked.

    Args:
        metadata: The footer from Arrow.
        size_bytes: Size of the file.
    """
    numbers = range(metadata.num_row_groups)
    data_end = size_bytes - metadata.serialized_size - FOOTER_FRAME_BYTES
    return _order_of_columns(metadata) or layout_fault(
        [_layout_of(metadata.row_group(number)) for number in numbers], data_end
    )


def layout_fault(groups: Sequence[RowGroupPlaces], data_end: int) -> str | None:
    """Return why some readers miss rows of a file with such row groups, or None.

    Row groups without rows are skipped: their positions may be invalid.

    Args:
        groups: In the footer's order.
        data_end: First byte after pages, indexes and Bloom filters: the start of the footer.
    """
    end = DATA_START
    for number, group in enumerate(groups):
        if not group.rows or not group.chunks:
            continue
        for column, (start, size) in enumerate(group.chunks):
            if start < end:
                return (
                    f"column {column} of row group {number} begins at byte {start}, before byte"
                    f" {end}, the end of the previous one in the footer"
                )
            end = start + size
            if size < 0 or end > data_end:
                return (
                    f"column {column} of row group {number} ends at byte {end}, but pages end at"
                    f" byte {data_end}"
                )
        if fault := _fault_of_words(number, group):
            return fault
    return None


def _fault_of_words(number: int, group: RowGroupPlaces) -> str | None:
    """Return the contradiction in a footer's fields of a row group, or None."""
    start, size = group.chunks[0][0], sum(size for _, size in group.chunks)
    if group.file_offset not in (None, start):
        stated = group.file_offset
        return f"row group {number} claims to begin at byte {stated}, but begins at byte {start}"
    if group.total_compressed_size not in (None, size):
        stated = group.total_compressed_size
        return f"row group {number} claims to have {stated} bytes, but has {size}"
    if group.ordinal not in (None, number):
        return f"row group {number} claims to be number {group.ordinal}"
    return None


def _order_of_columns(metadata: pq.FileMetaData) -> str | None:
    """Return which column the footer lists in the wrong order, or None."""
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for at, wanted in enumerate(names):
            if (chunk_path := group.column(at).path_in_schema) != wanted:
                return f"row group {number} lists column {chunk_path} in the position of {wanted}"
    return None


def _layout_of(group: pq.RowGroupMetaData) -> RowGroupPlaces:
    return RowGroupPlaces(
        rows=group.num_rows,
        chunks=tuple(_extent(group.column(at)) for at in range(group.num_columns)),
    )


def _extent(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the start and the size of a column chunk.

    Some writers store an offset of 0 for a missing dictionary.
    """
    start = chunk.data_page_offset
    if dictionary := chunk.dictionary_page_offset:
        start = min(start, dictionary)
    return start, chunk.total_compressed_size


# ---------------------------------------------------------------------------------- File inspection


# ------------------------------------------------------------------------- Facts and rows of a file


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """Facts from a file's bytes. `schema` has normal types."""

    path: str
    """Path relative to the table's location."""
    size_bytes: int
    schema: pa.Schema
    rows: RowFacts
    key_types: tuple[KeyType, ...]
    """Families of the table's key columns."""
    row_groups: int
    layout_fault: str | None = None
    """Why some readers miss rows of it; None: no reader does."""

    def data_file(self, *, added_at_s: float) -> DataFile:
        """Return the metadata of the file as an added file of a user."""
        file = data_file_of(
            self.rows,
            self.path,
            self.size_bytes,
            key_types=self.key_types,
            added_at_s=added_at_s,
            tombstones_since_s=added_at_s,
        )
        return file if self.layout_fault is None else replace(file, tags=(FAULTY_LAYOUT,))


@contextmanager
def open_table_file(
    location: Location,
    path: str,
    metadata: pq.FileMetaData | None = None,
    *,
    int96_unit: str | None = None,
    whole_bytes: int = 0,
) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file of a table; read errors name the file.

    Args:
        location: Location of the table.
        path: Path relative to it.
        metadata: Its footer, if known: single row groups will be read, each by as few
            reads as possible.
        int96_unit: Unit in which timestamps of 96 bits are read; None: nanoseconds, which cannot
            hold distant ones.
        whole_bytes: Files up to this size are read at once, not each column by itself.

    Raises:
        RequestError: There is no such file, it is not Parquet, or it is damaged.
        UnavailableError: The storage does not answer.
    """
    try:
        with (
            location.open_file(path) as stored,
            _in_memory(stored, whole_bytes) as source,
            open_parquet_file(source, metadata, int96_unit=int96_unit) as file,
        ):
            if metadata is None and (fault := footer_fault(file.metadata)) is not None:
                raise RequestError(f"file {path} has a damaged footer: {fault}")
            yield file
    except FileNotFoundError as error:
        message = f"file {path} does not exist in {location.uri}"
        raise RequestError(message) from error
    except UnicodeDecodeError as error:
        message = f"file {path} has a name of a column that is not UTF-8: {error.object!r:.80}"
        raise RequestError(message) from error
    except pa.ArrowMemoryError:
        raise  # The storage failed, which says nothing about the file.
    except pa.ArrowException as error:
        message = f"file {path} is not readable as Parquet: {error}"
        raise RequestError(message) from error
    except OSError as error:
        if is_silence(error):
            message = f"storage of {location.uri} does not answer for {path}: {error}"
            raise UnavailableError(message) from error
        message = f"file {path} cannot be read, it is damaged or unsupported: {error}"
        raise RequestError(message) from error


def _in_memory(stored: pa.NativeFile, size_max: int) -> pa.NativeFile:
    """Return a file with the content of another one that is small, else that one itself."""
    if not size_max or stored.size() > size_max:
        return stored
    return pa.BufferReader(stored.read_buffer())


@in_reader("file {path}")
def inspect_file(
    location: Location, path: str, rules: RowRules, *, is_new: bool = False
) -> FileFacts:
    """Return exact facts of a file, reading only the columns that they depend on.

    Args:
        location: Location of the table.
        path: Relative to it, or an absolute path below it.
        rules: Rules of the table; columns that its schema lacks are allowed.
        is_new: Whether the file is to be added: then columns that must not be null are checked
            as well. Files that are already in the table are not checked.

    Raises:
        RequestError: The file is missing, not Parquet, damaged, of a schema that does not
            widen to the table's, or has nulls that the table does not allow; the message
            names the problem and what was expected.
        UnavailableError: The storage does not answer.
    """
    path = location.relative(path)
    size_bytes = size_of(location, path)
    source = f"file {path}"
    with open_table_file(location, path) as file:
        whole = OpenFile(location, path, file)
        schema = pa.schema(list(map(normal_field, file.schema_arrow)))
        require_readable(source, schema, arrow_schema(rules.schema))
        tally = RowTally(rules)
        fill = fill_of_path(rules.partition_by, arrow_schema(rules.schema), path)
        filled_columns = {name: value for name, value in fill.items() if name in tally.columns}
        tally.require([*schema.names, *fill], source)
        if is_new:
            _require_values(whole, arrow_schema(rules.schema), fill, source)
        for rows in _batches(whole, [name for name in tally.columns if name in schema.names]):
            tally.see(filled(rows, filled_columns), source)
        return FileFacts(
            path=path,
            size_bytes=size_bytes,
            schema=schema,
            rows=tally.facts(),
            key_types=rules.key_types,
            row_groups=file.metadata.num_row_groups,
            layout_fault=chunk_fault(file.metadata, size_bytes),
        )


@in_reader("some files")
def inspect_new_files(
    location: Location, paths: Sequence[str], rules: RowRules
) -> list[FileFacts | CompactionError]:
    """Return facts of files to be added, or the error of `inspect_file` for each, in order.

    Files of a remote storage are read concurrently.
    """

    def look(path: str) -> FileFacts | CompactionError:
        try:
            return inspect_file(location, path, rules, is_new=True)
        except CompactionError as error:
            return error

    return map_files(location, look, paths)


def _require_values(
    whole: OpenFile, wanted: pa.Schema, fill: Mapping[str, pa.Scalar], source: str
) -> None:
    """Refuse nulls in columns of the table that must not be null.

    Nothing is read if the file's own schema allows no nulls, or its statistics count none.
    """
    file = whole.parquet
    for field in filter(requires_values, wanted):
        if field.name not in file.schema_arrow.names:
            folder_value = fill.get(field.name)
            if not field.nullable and (folder_value is None or not folder_value.is_valid):
                message = f"{source} lacks the column {field.name}, which must not be null"
                raise RequestError(message)
            continue
        file_field = normal_field(file.schema_arrow.field(field.name))
        if _allows_no_more(file_field, field) or _null_count(file, field) == 0:
            continue
        for rows in _batches(whole, [field.name]):
            refuse_nulls(conform(rows, pa.schema([field]), source), source)


def _allows_no_more(file_field: pa.Field, table_field: pa.Field) -> bool:
    """Return whether a column of a file cannot hold nulls that the table refuses."""
    if file_field.nullable and not table_field.nullable:
        return False
    inside = (file_field.type.num_fields, table_field.type.num_fields)
    return inside[0] == inside[1] and all(
        _allows_no_more(file_field.type.field(at), table_field.type.field(at))
        for at in range(inside[1])
    )


def _null_count(file: pq.ParquetFile, field: pa.Field) -> int | None:
    """Return the number of nulls of a plain column from its statistics; None: unknown."""
    if pa.types.is_nested(field.type):
        return None
    metadata, total = file.metadata, 0
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(names.index(field.name)).statistics
        if statistics is None or not statistics.has_null_count:
            return None
        total += statistics.null_count
    return total


OnRead = Callable[[int], None]
"""Called with bytes that were read from storage."""


def read_rows(
    location: Location,
    path: str,
    rules: RowRules,
    start: bytes | None = None,
    end: bytes | None = None,
    *,
    columns: Sequence[str] | None = None,
    on_read: OnRead | None = None,
) -> pa.Table:
    """Return a file's rows with a key in `(start, end]`, in the columns of the rules' schema.

    Args:
        location: Location of the table.
        path: Relative to it, or an absolute path below it.
        rules: Rules of the table.
        start: Encoded key after which the range begins; None: at the first key.
        end: Encoded last key of the range, inclusive; None: the last key.
        columns: Columns of the schema, including those of the key; None: all.
        on_read: See `stream_rows`.

    Raises:
        RequestError: As for `inspect_file`.
        UnavailableError: The storage does not answer.
    """
    full = arrow_schema(rules.schema)
    schema = full if columns is None else pa.schema([full.field(name) for name in columns])
    batches = stream_rows(location, path, rules, columns, on_read=on_read)
    parts = [in_range(rows, rules, start, end) for rows in batches]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def stream_rows(
    location: Location,
    path: str,
    rules: RowRules,
    columns: Sequence[str] | None = None,
    *,
    on_read: OnRead | None = None,
) -> Iterator[pa.Table]:
    """Yield a file's rows in stored order, in the columns of the rules' schema.

    Nulls that the schema does not allow stay null, because the rows are already in the table.

    Args:
        location: Location of the table.
        path: Relative to it, or an absolute path below it.
        rules: Rules of the table.
        columns: Columns of the schema; None: all.
        on_read: Called with the stored bytes of each batch: its rows' part of the columns.

    Raises:
        RequestError: As for `inspect_file`.
        UnavailableError: The storage does not answer.
    """
    full = arrow_schema(rules.schema)
    schema = full if columns is None else pa.schema([full.field(name) for name in columns])
    free = pa.schema([field.with_nullable(True) for field in schema])
    path = location.relative(path)
    fill = fill_of_path(rules.partition_by, full, path)
    filled_columns = {name: value for name, value in fill.items() if name in schema.names}
    with open_table_file(location, path) as file:
        names = [name for name in schema.names if name in file.schema_arrow.names]
        row_bytes = _row_bytes(file.metadata, names) if on_read else 0.0
        for rows in _batches(OpenFile(location, path, file), names):
            if on_read is not None:
                on_read(round(row_bytes * rows.num_rows))
            table = conform(filled(rows.select(names), filled_columns), free, f"file {path}")
            yield pa.Table.from_arrays(table.columns, schema=schema)


def _row_bytes(metadata: pq.FileMetaData, columns: Collection[str]) -> float:
    """Return the average stored size of a row's values in some columns."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    leaves = [
        leaf
        for leaf in range(metadata.num_columns)
        if metadata.schema.column(leaf).path.split(".", 1)[0] in columns
    ]
    stored = sum(group.column(leaf).total_compressed_size for group in groups for leaf in leaves)
    return float(stored / max(1, metadata.num_rows))


def _batches(file: OpenFile, columns: list[str]) -> Iterator[pa.Table]:
    if columns:
        yield from row_batches(file, columns)
        return
    # No column is needed, only the number of rows, which is in the footer.
    rows = file.parquet.metadata.num_rows
    for first in range(0, rows, BATCH_ROWS):
        yield pa.table({"row": pa.nulls(min(BATCH_ROWS, rows - first))})


@in_reader("file {path}")
def read_columns(location: str, path: str) -> tuple[Column, ...]:
    """Return the columns of a Parquet file below a location.

    Raises:
        RequestError: The file is missing, not below the location, or not a Parquet file.
    """
    opened = open_location(location)
    with open_table_file(opened, opened.relative(path)) as file:
        return columns_of(file.schema_arrow)


@in_reader("file {file.path}")
def count_rows_of_file(table: Table, file: DataFile, keys: KeyRange) -> int:
    """Return the number of a file's rows with a key in a range, by reading its keys."""
    rules = RowRules.of(table)
    full = arrow_schema(rules.schema)
    schema = pa.schema([full.field(name) for name in rules.key])
    rows = 0
    location = open_location(table.location)
    with open_table_file(location, file.path) as source:
        present = [name for name in schema.names if name in source.schema_arrow.names]
        for batch in row_batches(OpenFile(location, file.path, source), present):
            part = conform(batch, schema, f"file {file.path}")
            flags = inside(encode_keys(part, rules.key, rules.key_types), keys)
            rows += pc.sum(flags).as_py() or 0
    return rows


# ---------------------------------------------------------------------------------- Samples of keys


SAMPLES = 64
"""Keys per file: the position of a cut is accurate to about two percent of the bytes."""
ROW_GROUPS_MAX = 16
"""Row groups that are sampled, one at a time, and only their key columns."""


@in_reader("file {path}")
def sample_keys(location: Location, path: str, rules: RowRules) -> list[bytes]:
    """Return up to `SAMPLES` encoded keys of a keyed table's file, none if it has no rows.

    Args:
        location: Location of the table.
        path: Path relative to it.
        rules: Rules of the table.

    Raises:
        RequestError: The file is missing, not Parquet or damaged.
        UnavailableError: The storage does not answer.
    """
    names = {*rules.key}
    schema = arrow_schema([column for column in rules.schema if column.name in names])
    with open_table_file(location, path) as file:
        groups = _row_groups(file.metadata)
        if not groups:
            return []
        present = [name for name in schema.names if name in file.schema_arrow.names]
        count = max(2, SAMPLES // len(groups))
        try:
            parts = [
                rows_at(
                    file, group, present, _spread(file.metadata.row_group(group).num_rows, count)
                )
                for group in groups
            ]
            rows = conform(pa.concat_tables(parts), schema, f"file {path}")
        except pa.ArrowNotImplementedError as error:
            raise RequestError(f"the keys of file {path} cannot be read: {error}") from error
    return list(encode_keys(rows, rules.key, rules.key_types).to_pylist())


def _row_groups(footer: pq.FileMetaData) -> list[int]:
    """Return some row groups that have rows, including the first and the last."""
    filled = [n for n in range(footer.num_row_groups) if footer.row_group(n).num_rows]
    if len(filled) <= ROW_GROUPS_MAX:
        return filled
    step = (len(filled) - 1) / (ROW_GROUPS_MAX - 1)
    return [filled[round(number * step)] for number in range(ROW_GROUPS_MAX)]


def _spread(rows: int, count: int) -> list[int]:
    """Return `count` row numbers at equal distances, including both ends."""
    count = min(count, rows)
    if count < 2:
        return list(range(count))
    step = (rows - 1) / (count - 1)
    return [round(number * step) for number in range(count)]


# ---- Summaries: entries that writers have put into footers


SUMMARY_BYTES_MAX = 64 * 1024
"""Largest size of one text."""


def read_summaries(
    location: Location, paths: Sequence[str], names: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return texts of the key-value metadata in footers: path → name → text. Blocks.

    Args:
        location: Location of the table.
        paths: Paths relative to it.
        names: Names of the entries; entries that a file lacks are left out.

    Raises:
        RequestError: A file is missing, not Parquet or damaged; an entry is too long or not
            text.
        UnavailableError: The storage does not answer.
    """
    summaries: dict[str, dict[str, str]] = {}
    for first in range(0, len(paths), AT_ONCE):
        batch = tuple(paths[first : first + AT_ONCE])
        summaries.update(zip(batch, _summaries(location, batch, tuple(names)), strict=True))
    return summaries


@in_reader("footers of some files")
def _summaries(
    location: Location, paths: Sequence[str], names: Sequence[str]
) -> list[dict[str, str]]:
    def look(path: str) -> dict[str, str]:
        with open_table_file(location, path) as file:
            metadata = file.metadata.metadata or {}
        return {
            name: _summary(path, name, metadata[name.encode()])
            for name in names
            if name.encode() in metadata
        }

    return map_files(location, look, paths)


def _summary(path: str, name: str, data: bytes) -> str:
    if len(data) > SUMMARY_BYTES_MAX:
        raise RequestError(
            f"file {path}: its footer's {name!r} has {len(data)} bytes, expected at most "
            f"{SUMMARY_BYTES_MAX}"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as odd:
        raise RequestError(f"file {path}: its footer's {name!r} is not UTF-8 text") from odd


# ---- Files that a reader process opens first
#
# Parquet files that crash a process do so when their footer is opened. So a service that must read
# many rows itself lets a reader open each file once before.


AT_ONCE = 64
"""Files that a reader opens per order."""
KNOWN_MAX = 50_000
"""Files that are remembered as opened, some 10 MB; the least recent ones are forgotten."""


class ProbedFiles:
    """The files that a reader has opened without a crash. Thread-safe."""

    def __init__(self, known_max: int = KNOWN_MAX) -> None:
        """Create an empty set."""
        self._lock = threading.Lock()
        self._opened: BoundedMap[tuple[str, str], None] = BoundedMap(known_max)

    def take(self, location: Location, files: Sequence[DataFile]) -> None:
        """Let a reader open files that no job wrote and no reader has opened. Blocks.

        Args:
            location: Location of their table.
            files: Files that this process will open next.

        Raises:
            RequestError: One of them is missing, not Parquet or damaged, or crashes the process
                that opens it.
            UnavailableError: The storage does not answer.
        """
        paths = [file.path for file in files if file.job is None]
        with self._lock:
            fresh = [path for path in paths if (location.uri, path) not in self._opened]
        for first in range(0, len(fresh), AT_ONCE):
            batch = fresh[first : first + AT_ONCE]
            _look(location, batch)
            self._note(location, batch)

    def _note(self, location: Location, paths: Sequence[str]) -> None:
        with self._lock:
            for path in paths:
                self._opened.put((location.uri, path), None)


def _look(location: Location, paths: Sequence[str]) -> None:
    try:
        errors = open_files(location, paths)
    except ReaderDeathError:
        # One of them caused it; separate calls show which one.
        for path in paths:
            open_file(location, path)
        return
    for error in errors:
        if error is not None:
            raise error


@in_reader("some files")
def open_files(location: Location, paths: Sequence[str]) -> list[CompactionError | None]:
    """Open files; return the error of `open_file` for each, in order."""

    def look(path: str) -> CompactionError | None:
        try:
            open_file(location, path)
        except CompactionError as error:
            return error
        return None

    return map_files(location, look, paths)


@in_reader("file {path}")
def open_file(location: Location, path: str) -> None:
    """Open a file, which reads its footer.

    Raises:
        RequestError: It is missing, not Parquet or damaged.
        UnavailableError: The storage does not answer.
    """
    with open_table_file(location, path) as file:
        _ = file.schema_arrow
