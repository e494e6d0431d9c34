"""Access to the files of tables for adds, appends and scans; merge on read of one tablet.

All calls block, and must run in a thread.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pyarrow as pa

from common.errors import CompactionError, RefusedError
from common.model.file import DataFile
from common.model.location_identity import canonical_scheme
from common.model.table import Table
from common.model.tablet import Tablet
from common.parquet.append import name_whole_file, write_appended
from common.parquet.file_inspection import (
    AT_ONCE,
    FileFacts,
    ProbedFiles,
    inspect_file,
    inspect_new_files,
    open_file,
    open_table_file,
    read_rows,
    stream_rows,
)
from common.parquet.foreign_formats import foreign_mark, own_log, read_note
from common.parquet.location import Location, existing_files, map_files, open_location
from common.parquet.manifest import files_to_merge
from common.parquet.row_batches import OpenFile, decoded_bytes, folders_of, place_guards
from common.parquet.service_files import LocationOwner, read_owner, written_generation
from common.parquet.write import TABLE_FOOTER, copy_in_microseconds
from common.primitives import BoundedMap
from common.readers.pool import ReaderDeathError
from common.rows.key_encoding import encode_keys
from common.rows.merge import count_visible, in_range, scan_tables, visible_rows
from common.rows.rules import RowRules, may_expire
from common.rows.schema import arrow_schema
from neve import api

# -------------------------------------------------------------------------- Decoded sizes of files


KNOWN_MAX = 50_000
"""Limit of cached weights, about 10 MB; the oldest are dropped."""

_Key = tuple[str, str, tuple[str, ...]]


class ScanWeights:
    """Cache of the decoded sizes of files. Thread-safe."""

    def __init__(self, known_max: int = KNOWN_MAX) -> None:
        """Create an empty cache."""
        self._lock = threading.Lock()
        self._cached: BoundedMap[_Key, int] = BoundedMap(known_max)

    def of(
        self, location: Location, files: Sequence[DataFile], columns: Sequence[str]
    ) -> dict[str, int]:
        """Return path → decoded size of the given columns in bytes. Blocks.

        Args:
            location: Location of the table.
            files: Files that are safe to open in this process.
            columns: Columns of the table; columns that a file lacks count as 0.

        Raises:
            RequestError: A file is missing, not Parquet or damaged.
            UnavailableError: The storage does not answer.
        """
        names = tuple(columns)
        with self._lock:
            cached = {
                file.path: self._cached.get((location.uri, file.path, names)) for file in files
            }
        fresh = [path for path, weight in cached.items() if weight is None]
        measured = map_files(location, partial(_weight, location, names), fresh)
        weights = dict(zip(fresh, measured, strict=True))
        with self._lock:
            for path, weight in weights.items():
                self._cached.put((location.uri, path, names), weight)
        return weights | {path: weight for path, weight in cached.items() if weight is not None}


def _weight(location: Location, names: tuple[str, ...], path: str) -> int:
    with open_table_file(location, path) as parquet:
        present = [name for name in names if name in parquet.schema_arrow.names]
        return decoded_bytes(OpenFile(location, path, parquet), present)


# ---------------------------------------------------------------------- Merge on read of one tablet


PIECE_BYTES = 64 * 1024**2
"""Stored bytes of all inputs of one piece; their decoded size is a few times larger."""
DECODED = 8
"""Assumed ratio of decoded to stored size; files with a higher ratio get a higher weight."""
SAMPLES_PER_PIECE = 20
ROW_BYTES = 16
"""Minimum size of a counted row in memory, however well its columns are encoded."""

Range = tuple[bytes | None, bytes | None]


class TabletReader:
    """Reads tablets of one table as of one time, for a fixed set of columns."""

    def __init__(
        self,
        table: Table,
        now_s: float,
        columns: Sequence[str],
        looks: ProbedFiles,
        weights: ScanWeights,
        *,
        deleted: bool = False,
        memory: Mapping[str, pa.Buffer] | None = None,
    ) -> None:
        self._table = table
        self._looks, self._weights = looks, weights
        self._rules = RowRules.of(table)
        self._now_s = now_s
        self._columns = list(columns)
        self._deleted = deleted
        self._location = replace(open_location(table.location), memory=memory or {})
        self.read_bytes = 0
        """Stored bytes of row groups read so far; footers and samples of texts are left out."""

    def read(self, tablet: Tablet, start: bytes | None, end: bytes | None) -> Iterator[pa.Table]:
        """Yield the visible rows of a tablet with keys in `(start, end]`, by key.

        Raises:
            RequestError: A file is missing or damaged.
            UnavailableError: The storage does not answer.
        """
        files = [file for _, file in sorted(tablet.files.items()) if _overlaps(file, start, end)]
        for piece in self._pieces(files, start, end):
            if piece.num_rows:
                yield piece.select(self._columns)

    def counts(self, tablet: Tablet, start: bytes | None, end: bytes | None) -> Iterator[int]:
        """Yield counts of visible rows with keys in `(start, end]`; their sum is the result.

        Raises: As `read`.
        """
        files = [file for _, file in sorted(tablet.files.items()) if _overlaps(file, start, end)]
        if not self._rules.key:
            for file in files:
                yield from self._bag_counts(file)
            return
        counted = self._certain_files(tablet, files, start, end)
        yield sum(file.rows for file in counted)
        rest = [file for file in files if file not in counted]
        self._looks.take(self._location, rest)
        names = list(self._rules.merge_columns)
        decoded = self._weights.of(self._location, rest, names)
        weights = {file.path: max(decoded[file.path], ROW_BYTES * file.rows) for file in rest}
        for low, high in self._ranges(rest, start, end, weights):
            overlapping = [file for file in rest if _overlaps(file, low, high)]
            rows = [
                read_rows(
                    self._location,
                    file.path,
                    self._rules,
                    low,
                    high,
                    columns=names,
                    on_read=self._count,
                )
                for file in overlapping
            ]
            count = None if self._deleted else count_visible(rows, self._rules, self._now_s)
            if count is not None:
                yield count
            else:
                yield from (piece.num_rows for piece in self._pieces(overlapping, low, high))

    def _bag_counts(self, file: DataFile) -> Iterator[int]:
        """Yield counts of the unexpired rows of a file, for a table without a key."""
        if not self._may_expire(file):
            yield file.rows
            return
        self._looks.take(self._location, [file])
        names = list(self._rules.merge_columns)
        for rows in stream_rows(self._location, file.path, self._rules, names, on_read=self._count):
            yield visible_rows(rows, self._rules, self._now_s).num_rows

    def _certain_files(
        self, tablet: Tablet, files: Sequence[DataFile], start: bytes | None, end: bytes | None
    ) -> list[DataFile]:
        """Return files whose rows are all visible, so that metadata provides their count."""
        every = [file for file in tablet.files.values() if file.rows]
        if any(file.key_min is None or file.key_max is None for file in every):
            return []  # A file without bounds may hold any key.
        merged = files_to_merge(self._table, every)
        return [
            file
            for file in files
            if file.clean
            and file.rows
            and file.path not in merged
            and _lies_in(file, start, end)
            and not self._may_expire(file)
        ]

    def _count(self, size_bytes: int) -> None:
        self.read_bytes += size_bytes

    def _may_expire(self, file: DataFile) -> bool:
        return may_expire([file], self._rules, arrow_schema(self._rules.schema), self._now_s)

    def _pieces(
        self, files: Sequence[DataFile], start: bytes | None, end: bytes | None
    ) -> Iterator[pa.Table]:
        if not self._rules.key or (len(files) == 1 and files[0].clean):
            for first in range(0, len(files), AT_ONCE):
                batch = files[first : first + AT_ONCE]
                self._looks.take(self._location, batch)
                for file in batch:
                    yield from self._streamed(file, start, end)
            return
        self._looks.take(self._location, files)
        names = [column.name for column in self._rules.schema]
        decoded = self._weights.of(self._location, files, names)
        weights = {file.path: max(file.size_bytes, decoded[file.path] // DECODED) for file in files}
        for low, high in self._ranges(files, start, end, weights):
            overlapping = [file for file in files if _overlaps(file, low, high)]
            rows = [
                read_rows(self._location, file.path, self._rules, low, high, on_read=self._count)
                for file in overlapping
            ]
            if rows:
                yield scan_tables(
                    rows, self._rules, self._now_s, start=low, end=high, deleted=self._deleted
                )

    def _streamed(
        self, file: DataFile, start: bytes | None, end: bytes | None
    ) -> Iterator[pa.Table]:
        """Yield a file's visible rows in file order; no row of the file hides another."""
        for rows in stream_rows(self._location, file.path, self._rules, on_read=self._count):
            inside = in_range(rows, self._rules, start, end)
            yield visible_rows(inside, self._rules, self._now_s)

    def _ranges(
        self,
        files: Sequence[DataFile],
        start: bytes | None,
        end: bytes | None,
        weights: Mapping[str, int],
    ) -> list[Range]:
        """Return ranges that tile `(start, end]`, each of about `PIECE_BYTES`.

        Args:
            files: Files to read.
            start: Start of the first range.
            end: End of the last range.
            weights: Path → weight of the file in bytes.
        """
        count = sum(weights.values()) // PIECE_BYTES
        if count == 0:
            return [(start, end)]
        step = max(1, sum(file.rows for file in files) // (count * SAMPLES_PER_PIECE))
        samples = sorted(key for file in files for key in self._sample(file, step, start, end))
        cuts = sorted(set(samples[SAMPLES_PER_PIECE::SAMPLES_PER_PIECE]))
        edges = [start, *cuts, end]
        return list(pairwise(edges))

    def _sample(
        self, file: DataFile, step: int, start: bytes | None, end: bytes | None
    ) -> Iterator[bytes]:
        """Yield the key of every `step`-th row, reading the key columns only."""
        rows_read = 0
        names = list(self._rules.key)
        for rows in stream_rows(self._location, file.path, self._rules, names, on_read=self._count):
            numbers = range(-rows_read % step, rows.num_rows, step)
            rows_read += rows.num_rows
            chosen = rows.take(pa.array(numbers, pa.int64()))
            for key in encode_keys(chosen, names, self._rules.key_types).to_pylist():
                if (start is None or key > start) and (end is None or key < end):
                    yield key


def _overlaps(file: DataFile, start: bytes | None, end: bytes | None) -> bool:
    """Return whether a file may hold keys in `(start, end]`."""
    if start is not None and file.key_max is not None and file.key_max <= start:
        return False
    return end is None or file.key_min is None or file.key_min <= end


def _lies_in(file: DataFile, start: bytes | None, end: bytes | None) -> bool:
    """Return whether all keys of a file with known bounds are in `(start, end]`."""
    if start is not None and (file.key_min is None or file.key_min <= start):
        return False
    return end is None or (file.key_max is not None and file.key_max <= end)


# --------------------------------------------------------------------------------- Files of a table


class StoredFiles:
    """The files in a table's location, for adds, appends and scans.

    Every method may raise `UnavailableError` if the storage does not answer. Paths are relative
    to the location.
    """

    def __init__(self) -> None:
        """Start with empty caches."""
        self._looks, self._weights = ProbedFiles(), ScanWeights()
        self._guarded: BoundedMap[tuple[str, int, frozenset[str]], bool] = BoundedMap(KNOWN_MAX)

    def owner(self, table: Table) -> LocationOwner | None:
        """Return store and table of the location's owner mark, or None without a mark."""
        return read_owner(open_location(table.location))

    def generation(self, table: Table) -> int:
        """Return the generation written in a location; 0: none was ever written."""
        return written_generation(open_location(table.location))

    def sizes(self, table: Table, paths: Sequence[str]) -> dict[str, int]:
        """Return path → size of the given files that exist."""
        return existing_files(open_location(table.location), paths)

    def inspect(self, table: Table, paths: Sequence[str]) -> list[FileFacts | CompactionError]:
        """Return the facts of files to add, in the order of paths.

        For a file that is missing, damaged or does not fit the table, the list has the error.
        """
        location, rules = open_location(table.location), RowRules.of(table)
        if mark := foreign_mark(location, paths):
            return [RefusedError(mark.refusal(location.uri)) for _ in paths]
        try:
            return inspect_new_files(location, paths, rules)
        except ReaderDeathError:
            # One file killed the reader; inspect each file separately to find it.
            return [_inspect_or_error(location, path, rules) for path in paths]

    def write(self, table: Table, path: str, rows: pa.Table) -> FileFacts:
        """Write rows of one tablet to a file, which appears under its name when it is complete.

        Args:
            table: Table with the rules and settings.
            path: A unique path.
            rows: Rows in the table's columns.
        """
        self._guard_directory(open_location(table.location), table, [path])
        return write_appended(table, path, rows)

    def copy(self, table: Table, path: str, copy: str, *, truncate: bool) -> None:
        """Copy a file, and convert its nanosecond timestamps to microseconds.

        Args:
            table: Table with the settings.
            path: Path of a user's file.
            copy: Path of the copy; an existing file is replaced.
            truncate: Whether to truncate digits below a microsecond; otherwise reject them.
        """
        location, footer = open_location(table.location), {TABLE_FOOTER: table.id}
        open_file(location, path)  # Probe in a reader process, which a malformed file may crash.
        self._guard_directory(location, table, [path, copy])
        scratch = f"{copy}.part" if location.is_local else copy
        copy_in_microseconds(
            location, (path, scratch), table.settings, footer=footer, truncate=truncate
        )
        if location.is_local:
            name_whole_file(location, scratch, copy)

    def _guard_directory(self, location: Location, table: Table, paths: Sequence[str]) -> None:
        """Place guards in a location, because plain readers miss files below `_neve`."""
        folders = folders_of(paths)
        guard = table.id, table.settings_version, folders
        if table.settings.directory_guard and not self._guarded.get(guard):
            place_guards(location, folders)
            self._guarded.put(guard, True)

    def reader(
        self,
        table: Table,
        now_s: float,
        columns: Sequence[str],
        *,
        deleted: bool = False,
        memory: Mapping[str, pa.Buffer] | None = None,
    ) -> TabletReader:
        """Return a reader of the rows of a table that are visible at one time.

        Args:
            table: The table, with the rules of visibility.
            now_s: The time.
            columns: Columns to return.
            deleted: Whether to return deletes as well, each followed by the newest row that it
                hides.
            memory: Files of buffered rows, by path.
        """
        looks, weights = self._looks, self._weights
        return TabletReader(table, now_s, columns, looks, weights, deleted=deleted, memory=memory)


def _inspect_or_error(
    location: Location, path: str, rules: RowRules
) -> FileFacts | CompactionError:
    try:
        return inspect_file(location, path, rules, is_new=True)
    except CompactionError as error:
        return error


def published_log(table: Table) -> api.PublishedLog:
    """Return the log that a table publishes, as its location has it. Blocks.

    Raises:
        UnavailableError: The storage does not answer.
    """
    location = open_location(table.location)
    published = api.PublishedLog(format=table.settings.publish, problem=read_note(location).problem)
    log = own_log(location)
    if log is None or log.format != published.format:
        return published
    return replace(
        published,
        version=log.version,
        as_of_s=log.as_of_s,
        files=log.files,
        rows=log.rows,
        lag=log.lag,
        metadata=_written_path(location, log.path),
    )


def _written_path(location: Location, path: str) -> str:
    """Return a path in a location's filesystem as other engines want it; an empty one stays."""
    scheme = canonical_scheme(location.uri.partition("://")[0])
    return path if location.is_local or not path else f"{scheme}://{path}"
