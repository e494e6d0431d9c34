"""Merge on read of one tablet, in pieces of bounded memory; or only its count.

A tablet without a key, or with one clean file, streams as it is. Otherwise rows are
merged range by range: the cuts come from a sample of the files' keys, so that each
range decodes to about `PIECE_BYTES`. Rows are counted by the columns that say which of
them a reader sees, and by metadata alone where it is exact.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pyarrow as pa

from common.model.file import DataFile
from common.model.table import Table
from common.model.tablet import Tablet
from common.parquet.file_inspection import AT_ONCE, ProbedFiles, read_rows, stream_rows
from common.parquet.location import open_location
from common.parquet.manifest import files_to_merge
from common.rows.dead_rows import may_expire
from common.rows.key_encoding import encode_keys
from common.rows.merge import (
    count_visible,
    in_range,
    scan_tables,
    visible_rows,
)
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema
from neve.gateway.scan_weights import ScanWeights

PIECE_BYTES = 64 * 1024**2
"""Bytes on storage of all inputs of one piece; decoded they are a few times as many."""
DECODED = 8
"""So many times as many; files of which it is more weigh more than they have on storage."""
SAMPLES_PER_PIECE = 20
ROW_BYTES = 16
"""What a row that is counted takes at least, however well its columns are encoded."""

Range = tuple[bytes | None, bytes | None]


class TabletReader:
    """Reads tablets of one table at one `now`, for one choice of columns."""

    def __init__(
        self,
        table: Table,
        now_s: float,
        columns: Sequence[str],
        looks: ProbedFiles,
        weights: ScanWeights,
    ) -> None:
        self._table = table
        self._looks, self._weights = looks, weights
        self._rules = RowRules.of(table)
        self._now_s = now_s
        self._columns = list(columns)
        self._location = open_location(table.location)

    def read(self, tablet: Tablet, start: bytes | None, end: bytes | None) -> Iterator[pa.Table]:
        """Yield the visible rows of a tablet with keys in `(start, end]`, by key."""
        files = [each for _, each in sorted(tablet.files.items()) if _overlaps(each, start, end)]
        for piece in self._pieces(files, start, end):
            if piece.num_rows:
                yield piece.select(self._columns)

    def counts(self, tablet: Tablet, start: bytes | None, end: bytes | None) -> Iterator[int]:
        """Yield numbers of visible rows with keys in `(start, end]`; their sum is the answer."""
        files = [each for _, each in sorted(tablet.files.items()) if _overlaps(each, start, end)]
        if not self._rules.key:
            for file in files:
                yield from self._bag_counts(file)
            return
        known = self._known(tablet, files, start, end)
        yield sum(file.rows for file in known)
        rest = [file for file in files if file not in known]
        self._looks.take(self._location, rest)
        names = list(self._rules.merge_columns)
        decoded = self._weights.of(self._location, rest, names)
        weights = {file.path: max(decoded[file.path], ROW_BYTES * file.rows) for file in rest}
        for low, high in self._ranges(rest, start, end, weights):
            near = [file for file in rest if _overlaps(file, low, high)]
            rows = [
                read_rows(self._location, file.path, self._rules, low, high, columns=names)
                for file in near
            ]
            count = count_visible(rows, self._rules, self._now_s)
            if count is not None:
                yield count
            else:
                yield from (piece.num_rows for piece in self._pieces(near, low, high))

    def _bag_counts(self, file: DataFile) -> Iterator[int]:
        """Yield numbers of rows of a file of a table without a key that have not expired."""
        if not self._may_expire(file):
            yield file.rows
            return
        self._looks.take(self._location, [file])
        names = list(self._rules.merge_columns)
        for rows in stream_rows(self._location, file.path, self._rules, names):
            yield visible_rows(rows, self._rules, self._now_s).num_rows

    def _known(
        self, tablet: Tablet, files: Sequence[DataFile], start: bytes | None, end: bytes | None
    ) -> list[DataFile]:
        """Return files of which a reader sees every row: metadata says how many."""
        every = [file for file in tablet.files.values() if file.rows]
        if any(file.key_min is None or file.key_max is None for file in every):
            return []  # It may hold any key.
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

    def _may_expire(self, file: DataFile) -> bool:
        return may_expire([file], self._rules, arrow_schema(self._rules.schema), self._now_s)

    def _pieces(
        self, files: Sequence[DataFile], start: bytes | None, end: bytes | None
    ) -> Iterator[pa.Table]:
        if not self._rules.key or (len(files) == 1 and files[0].clean):
            for first in range(0, len(files), AT_ONCE):
                some = files[first : first + AT_ONCE]
                self._looks.take(self._location, some)
                for file in some:
                    yield from self._streamed(file, start, end)
            return
        self._looks.take(self._location, files)
        names = [column.name for column in self._rules.schema]
        decoded = self._weights.of(self._location, files, names)
        weights = {file.path: max(file.size_bytes, decoded[file.path] // DECODED) for file in files}
        for low, high in self._ranges(files, start, end, weights):
            near = [file for file in files if _overlaps(file, low, high)]
            rows = [read_rows(self._location, file.path, self._rules, low, high) for file in near]
            if rows:
                yield scan_tables(rows, self._rules, self._now_s, start=low, end=high)

    def _streamed(
        self, file: DataFile, start: bytes | None, end: bytes | None
    ) -> Iterator[pa.Table]:
        """Yield a file's visible rows as they lie: none of them hides another."""
        for rows in stream_rows(self._location, file.path, self._rules):
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
            files: Whose rows are read.
            start: Where the first begins.
            end: Where the last ends.
            weights: The bytes of each file, by path.
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
        seen = 0
        names = list(self._rules.key)
        for rows in stream_rows(self._location, file.path, self._rules, names):
            numbers = range(-seen % step, rows.num_rows, step)
            seen += rows.num_rows
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
    """Return whether every key of a file, whose bounds are known, is in `(start, end]`."""
    if start is not None and (file.key_min is None or file.key_min <= start):
        return False
    return end is None or (file.key_max is not None and file.key_max <= end)
