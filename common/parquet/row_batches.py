"""A Parquet file's rows in bounded memory: in small batches, or as single rows."""

import posixpath
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyarrow import parquet as pq
from pyarrow import types as is_type

from common.errors import UnavailableError
from common.model.location_identity import GUARD_NAME, GUARDS_FOLDER, is_service_path
from common.parquet.location import Location, existing_files, fault
from common.parquet.service_files import write_small
from common.rows.conform import BATCH_ROWS, Int64s

# ------------------------------------------------------------------------------------------ Opening


LARGE_BYTES = 192 * 1024**2
"""Uncompressed size of a large row group. In smaller ones, which most writers produce, each column
is read at once."""
BUFFERS_BYTES = 32 * 1024**2
"""Approximate size of the read buffers of all columns of a large row group."""
BUFFER_BYTES_MIN, BUFFER_BYTES_MAX = 64 * 1024, 4 * 1024**2


def open_parquet_file(
    source: Any,
    metadata: pq.FileMetaData | None = None,
    *,
    packed: Collection[str] = (),
    int96_unit: str | None = None,
) -> pq.ParquetFile:
    """Return an open Parquet file with verification of page checksums.

    Args:
        source: A file opened by Arrow; the caller closes it.
        metadata: Its footer, if known: single row groups will be read whole, each by as few
            reads as possible. Otherwise rows are read in the file's order, and only some
            pages per column of a large row group are in memory.
        packed: Text columns that are read as dictionaries, each text once; then rows are read
            in the file's order, even if the footer is known.
        int96_unit: Unit in which timestamps of 96 bits are read; None: nanoseconds.

    Raises:
        OSError: It cannot be read.
        ArrowException: It is not a Parquet file.
    """
    # Without it, a flipped bit would become another value and be written to the output.
    options = {
        "page_checksum_verification": True,
        "read_dictionary": [*packed] or None,
        "coerce_int96_timestamp_unit": int96_unit,
    }
    if metadata is not None and not packed:
        return pq.ParquetFile(source, metadata=metadata, pre_buffer=True, **options)
    file = pq.ParquetFile(source, metadata=metadata, pre_buffer=False, **options)
    footer = file.metadata
    if source.size() <= BUFFER_BYTES_MAX or not _is_large(footer):
        return file
    buffer_bytes = BUFFERS_BYTES // max(1, footer.num_columns)
    buffer_bytes = min(max(buffer_bytes, BUFFER_BYTES_MIN), BUFFER_BYTES_MAX)
    return pq.ParquetFile(
        source, metadata=footer, pre_buffer=False, buffer_size=buffer_bytes, **options
    )


def _is_large(footer: pq.FileMetaData) -> bool:
    sizes = (footer.row_group(at).total_byte_size for at in range(footer.num_row_groups))
    return any(size > LARGE_BYTES for size in sizes)


# ---- Batches
#
# A text of 20 KB that is repeated in 65,536 rows takes 20 KB in its file, and 1.3 GB in a batch.
# Footers do not show this. So text columns with few stored bytes are read as dictionaries, which
# hold each text of a batch once. The lengths of the rows then determine how many rows are decoded
# at a time. Columns whose stored bytes match the length of their texts are read directly, which is
# several times as fast.


BATCH_BYTES = 64 * 1024**2
"""Decoded size of one batch; only a batch of a single row may exceed it."""
PACKED_BYTES = 8
"""Stored bytes per row of a text column below which its texts are repeated."""
SMALL_ROWS = 1 << 12
"""Smaller batches cost more time than a look-up of texts in a dictionary."""
NESTED_ROWS = 1 << 10
"""Rows of a batch with texts within lists or structs, whose dictionaries are not read."""
UNEVEN = 32
"""A text is atypical if it is this many times as long as its row's share of the stored bytes."""
INDEX_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Way:
    """How the rows of a row group are read."""

    rows: int
    """Rows of a batch."""
    packed: frozenset[str] = frozenset()
    """Columns that are read as dictionaries."""
    uneven: frozenset[str] = frozenset()
    """Columns whose decoded size cannot be derived from their stored bytes."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """An open file of a table, which can be opened again."""

    location: Location
    """Location of its table."""
    path: str
    """Path relative to it."""
    parquet: pq.ParquetFile

    @contextmanager
    def packed(self, names: frozenset[str]) -> Iterator[pq.ParquetFile]:
        """Open it again, with some columns read as dictionaries."""
        with (
            self.location.open_file(self.path) as source,
            open_parquet_file(source, self.parquet.metadata, packed=names) as packed,
        ):
            yield packed


def row_batches(file: OpenFile, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield a file's rows in stored order, at most `BATCH_ROWS` and about `BATCH_BYTES` at a time.

    Args:
        file: The file.
        columns: Its columns to read, at least one.

    Raises:
        OSError: It cannot be read.
        ArrowException: It is damaged.
    """
    ways = _Ways(file, columns)
    parquet = file.parquet
    numbers = range(parquet.metadata.num_row_groups)
    for way, groups in groupby(numbers, ways.of):
        if not way.packed:
            read = parquet.iter_batches(way.rows, [*groups], [*columns], use_threads=False)
            yield from (pa.Table.from_batches([batch]) for batch in read)
            continue
        with file.packed(way.packed) as packed:
            for batch in packed.iter_batches(way.rows, [*groups], [*columns], use_threads=False):
                yield from _decoded(batch, way.packed, parquet.schema_arrow)


def decoded_bytes(file: OpenFile, columns: Sequence[str]) -> int:
    """Return the approximate decoded size of all rows; nested texts count as stored.

    Only columns whose stored bytes do not show it are read, and each of their texts once.

    Args:
        file: The file.
        columns: Its columns.

    Raises:
        OSError: It cannot be read.
        ArrowException: It is damaged.
    """
    ways = _Ways(file, columns)
    footer, total = file.parquet.metadata, 0
    for number in range(footer.num_row_groups):
        group, way = footer.row_group(number), ways.of(number)
        total += sum(group.column(at).total_uncompressed_size for at in ways.leaves)
        if names := way.packed | way.uneven:
            with file.packed(names) as packed:
                for batch in packed.iter_batches(BATCH_ROWS, [number], [*names], use_threads=False):
                    total += int(_lengths(batch, names).sum())
    return total


class _Ways:
    """How each row group of a file is read."""

    def __init__(self, file: OpenFile, columns: Sequence[str]) -> None:
        self._file, self._footer = file, file.parquet.metadata
        wanted, schema = {*columns}, self._footer.schema
        self.leaves = [
            at
            for at in range(self._footer.num_columns)
            if (name := schema.column(at).path) in wanted or name.split(".")[0] in wanted
        ]
        self._texts = [at for at in self.leaves if schema.column(at).physical_type == "BYTE_ARRAY"]
        self._flat = {
            field.name for field in file.parquet.schema_arrow if not is_type.is_nested(field.type)
        }

    def of(self, number: int) -> _Way:
        """Return how a row group is read."""
        group = self._footer.row_group(number)
        rows = min(BATCH_ROWS, max(1, group.num_rows))
        stored = sum(group.column(at).total_uncompressed_size for at in self.leaves)
        limit = min(rows, _rows_of(max(1, stored // max(1, group.num_rows))))
        # Whatever the other columns hold: no text is longer than all of them together.
        large = [
            at
            for at in self._texts
            if rows * group.column(at).total_uncompressed_size > BATCH_BYTES
        ]
        ways = [self._of_texts(number, group.column(at)) for at in large]
        limit = min([limit, *(way.rows for way in ways)])
        return _Way(
            # Most row groups get the same number, so that one call reads many of them.
            BATCH_ROWS if limit == rows else 1 << (limit.bit_length() - 1),
            packed=frozenset[str]().union(*(way.packed for way in ways)),
            uneven=frozenset[str]().union(*(way.uneven for way in ways)),
        )

    def _of_texts(self, number: int, chunk: pq.ColumnChunkMetaData) -> _Way:
        """Return how the texts of one column, which may be long, are read."""
        name, rows = chunk.path_in_schema, chunk.num_values
        stored, names = chunk.total_uncompressed_size, frozenset({name})
        if not _is_repeating(chunk):
            return _Way(BATCH_ROWS)
        if name not in self._flat or not chunk.has_dictionary_page:
            return _Way(NESTED_ROWS)
        if stored < PACKED_BYTES * rows:
            return _Way(BATCH_ROWS, packed=names)
        longest = self._longest(number, name)
        uneven = names if longest * rows > UNEVEN * stored else frozenset[str]()
        if _rows_of(longest) < SMALL_ROWS:
            return _Way(BATCH_ROWS, packed=names, uneven=uneven)
        return _Way(_rows_of(longest), uneven=uneven)

    def _longest(self, number: int, name: str) -> int:
        """Return the length of the longest text in a dictionary."""
        with self._file.packed(frozenset({name})) as packed:
            batch = next(packed.iter_batches(1, [number], [name], use_threads=False), None)
        if batch is None:
            return 0
        return int(pc.max(pc.binary_length(batch.column(0).dictionary)).as_py() or 0)


def _rows_of(row_bytes: int) -> int:
    return max(1, BATCH_BYTES // max(1, row_bytes))


def _is_repeating(chunk: pq.ColumnChunkMetaData) -> bool:
    """Return whether a chunk may store a text once that is repeated in many rows."""
    return chunk.has_dictionary_page or any(
        "DICTIONARY" in encoding or encoding == "DELTA_BYTE_ARRAY" for encoding in chunk.encodings
    )


def _decoded(
    batch: pa.RecordBatch, packed: frozenset[str], schema: pa.Schema
) -> Iterator[pa.Table]:
    """Yield a batch in parts of about `BATCH_BYTES`, its dictionaries decoded."""
    ends = np.cumsum(_lengths(batch, packed))
    first = 0
    while first < batch.num_rows:
        before = ends[first - 1] if first else 0
        last = int(np.searchsorted(ends, before + BATCH_BYTES, side="right"))
        last = max(last, first + 1)
        part = batch.slice(first, last - first)
        first = last
        columns = [
            _plain(column, schema.field(name).type) if name in packed else column
            for name, column in zip(part.schema.names, part.columns, strict=True)
        ]
        yield pa.table(columns, names=part.schema.names)


def _plain(column: pa.DictionaryArray, wanted: pa.DataType) -> pa.Array:
    values = column.dictionary_decode()
    return values if is_type.is_dictionary(wanted) else values.cast(wanted)


def _lengths(batch: pa.RecordBatch, names: frozenset[str]) -> Int64s:
    """Return the decoded bytes of each row of a batch in dictionary columns."""
    total = np.full(batch.num_rows, INDEX_BYTES * len(names), np.int64)
    for name in names:
        column = batch.column(name)
        longs = pc.fill_null(pc.binary_length(column.dictionary).cast(pa.int64()), 0)
        taken = pc.fill_null(longs.take(column.indices), 0)
        total += taken.to_numpy(zero_copy_only=False)
    return total


# -------------------------------------------------------------------------------------- Single rows


_BATCH_ROWS = 1 << 13


def rows_at(
    parquet: pq.ParquetFile, group: int, names: Sequence[str], row_numbers: Sequence[int]
) -> pa.Table:
    """Return some rows of a row group, decoding only few at a time.

    Args:
        parquet: The open file.
        group: The row group's number.
        names: Columns of the file.
        row_numbers: Row numbers in the row group, ascending.
    """
    schema = pa.schema([parquet.schema_arrow.field(name) for name in names])
    tables, before, at = [schema.empty_table()], 0, 0
    batches = parquet.iter_batches(
        _BATCH_ROWS, row_groups=[group], columns=list(names), use_threads=False
    )
    for batch in batches:
        end = at
        while end < len(row_numbers) and row_numbers[end] < before + batch.num_rows:
            end += 1
        if end > at:
            in_batch = [index - before for index in row_numbers[at:end]]
            picked = batch.select(list(names)).take(pa.array(in_batch, pa.int64()))
            tables.append(pa.Table.from_batches([picked]))
        before, at = before + batch.num_rows, end
        if at == len(row_numbers):
            break
    return pa.concat_tables(tables)


# --------------------------------------------------------------------------------------- Read guard
# The guard of a directory: a file that makes plain readers fail instead of counting wrongly.
#
# A reader that lists the directory finds replaced files next to their replacements, or, after the
# collector has run, no file at all. No directory can be right at every moment, so readers must
# fail. The guard is a file that ends in `.parquet` but is not Parquet. It is written to the
# location, and to each folder in which files were replaced or rows were appended. (Spark reads no
# file directly in the location if it has partition folders.) Its name sorts before most other files
# and names the alternative.
#
# A guard is written before the commit that needs it becomes visible, and before that it is recorded
# in `_neve/guards`, so that a drop finds all guards without listing the whole location.


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
        for entry in location.filesystem.get_file_info(selector):
            if entry.base_name == _NOTE and entry.type == fs.FileType.File:
                folder = posixpath.dirname(entry.path).removeprefix(root).strip("/")
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
