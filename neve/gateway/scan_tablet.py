"""Merge on read of one tablet, in pieces of bounded memory.

A tablet without a key, or with one clean file, streams as it is. Otherwise rows are
merged range by range: the cuts come from a sample of the files' keys, so that each
range decodes to about `PIECE_BYTES`.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa

from common.model.file import DataFile
from common.model.table import Table
from common.model.tablet import Tablet
from common.parquet.inspect import read_rows, stream_rows
from common.parquet.location import open_location
from common.rows.encode import encode_keys
from common.rows.rules import RowRules
from common.rows.scan import in_range, scan_tables, visible

PIECE_BYTES = 64 * 1024**2
"""Bytes on storage of all inputs of one piece; decoded they are a few times as many."""
SAMPLES_PER_PIECE = 20

Range = tuple[bytes | None, bytes | None]


class TabletReader:
    """Reads tablets of one table at one `now`, for one choice of columns."""

    def __init__(self, table: Table, now_s: float, columns: Sequence[str]) -> None:
        self._table = table
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

    def _pieces(
        self, files: Sequence[DataFile], start: bytes | None, end: bytes | None
    ) -> Iterator[pa.Table]:
        if not self._rules.key or (len(files) == 1 and files[0].clean):
            for file in files:
                yield from self._streamed(file, start, end)
            return
        for low, high in self._ranges(files, start, end):
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
            yield visible(inside, self._rules, self._now_s)

    def _ranges(
        self, files: Sequence[DataFile], start: bytes | None, end: bytes | None
    ) -> list[Range]:
        """Return ranges that tile `(start, end]`, each of about `PIECE_BYTES`."""
        count = sum(file.size_bytes for file in files) // PIECE_BYTES
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
