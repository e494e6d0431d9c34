"""Row groups whose columns are encoded by several threads, and written one after the other.

Arrow's writer encodes one column at a time. So each thread encodes some columns with a separate
writer, as a file in memory. The pages of that file are copied to the output, and its indexes and
footer are merged into the output's: the same as stitching, for columns instead of row groups.

Columns are written in schema order, whatever the order in which threads finish: readers that split
files look for a row group at its first column (`common/parquet/file_inspection.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.rewrite.memory_budget import MERGE_CORES, ordered_map
from compactor.rewrite.parquet_bytes import footer as ids
from compactor.rewrite.parquet_bytes.footer import (
    MAGIC,
    FooterLayout,
    StoredRowGroup,
    number_field,
)
from compactor.rewrite.parquet_bytes.relocation import (
    MovedGroup,
    SortColumn,
    StitchedFooter,
    file_tail,
)
from compactor.rewrite.parquet_bytes.sources import BufferSource, read_footer_of
from compactor.rewrite.parquet_bytes.stitch import place_piece

PARALLEL_BYTES_MIN = 4 * 1024**2
"""Decoded size below which threads do not pay off."""
PARALLEL_SHARE_MAX = 0.75
"""Largest share of one column in a row group. Above it, other columns finish earlier, and its pages
would be in memory twice."""
UNIT_BYTES = 4 * 1024**2
"""Approximate decoded size that a thread encodes at a time; a column is never divided."""
UNITS_MAX = 4 * MERGE_CORES
"""Approximate number of units, which consist of neighbouring columns."""
"""About: units are made of columns that follow each other."""

Options = Callable[[pa.Schema], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _EncodedColumns:
    """Neighbouring columns of a row group, as a file."""

    source: BufferSource
    layout: FooterLayout


class ParallelColumnWriter:
    """Writes a Parquet file with the methods of `pyarrow.parquet.ParquetWriter`."""

    def __init__(
        self,
        sink: Any,
        schema: pa.Schema,
        order: Sequence[pq.SortingColumn] | None,
        options: Options,
    ) -> None:
        """Write the file's first bytes.

        Args:
            sink: An open binary file; the caller closes it.
            schema: Schema of all rows.
            order: Columns by which rows ascend.
            options: Returns the options of Arrow's writer for some of the columns.
        """
        self._sink = sink
        self._schema = schema
        self._options = options
        self._sorting = tuple(
            SortColumn(each.column_index, each.descending, each.nulls_first) for each in order or ()
        )
        self._metadata: dict[str, str] = {}
        self._groups: list[MovedGroup] = []
        self._position = 0
        self._closed = False
        self._write(MAGIC)

    def write_table(self, rows: pa.Table, row_group_size: int) -> None:
        """Write rows as row groups of `row_group_size` rows."""
        for start in range(0, rows.num_rows, row_group_size):
            self._write_group(rows.slice(start, row_group_size))

    def add_key_value_metadata(self, pairs: Mapping[str, str]) -> None:
        """Add entries to the footer."""
        self._metadata |= pairs

    def close(self) -> None:
        """Write the footer."""
        if self._closed:
            return
        self._closed = True
        nothing = self._schema.empty_table()
        whole = _encode_columns(nothing, range(len(self._schema)), self._options).layout
        footing = StitchedFooter(metadata=self._metadata, sorting=self._sorting)
        end = file_tail(self._groups, [whole], footing, whole.arrow_schema, self._position)
        self._write(end)

    def _write_group(self, rows: pa.Table) -> None:
        sizes = [column.nbytes for column in rows.columns]
        units = _units(sizes)
        order = _work_order([sum(sizes[at] for at in unit) for unit in units])
        calls = [partial(_encode_columns, rows, units[number], self._options) for number in order]
        waiting: dict[int, _EncodedColumns] = {}
        moved: list[MovedGroup] = []
        for number, encoded in zip(order, ordered_map("encode columns", calls), strict=True):
            waiting[number] = encoded
            while len(moved) in waiting:
                moved.append(self._copied(waiting.pop(len(moved))))
        self._groups.append(_join_columns(moved))

    def _copied(self, encoded: _EncodedColumns) -> MovedGroup:
        """Write pages and Bloom filters of some columns; return them at their new positions."""
        layout, source = encoded.layout, encoded.source
        placed = place_piece(source, layout, layout.groups, self._position)
        for span in placed.copies:
            self._write(source.view[span.start : span.end])
        (moved,) = placed.groups
        return moved

    def _write(self, written: bytes | memoryview) -> None:
        self._sink.write(written)
        self._position += len(written)


def _encode_columns(rows: pa.Table, fields: Sequence[int], options: Options) -> _EncodedColumns:
    """Return some columns as a file of one row group; without rows, of none."""
    sink, chosen = pa.BufferOutputStream(), rows.select(fields)
    with pq.ParquetWriter(sink, chosen.schema, **options(chosen.schema)) as writer:
        if rows.num_rows:
            writer.write_table(chosen, row_group_size=rows.num_rows)
    source = BufferSource(sink.getvalue())
    return _EncodedColumns(source, read_footer_of(source))


def _join_columns(moved: Sequence[MovedGroup]) -> MovedGroup:
    """Return a row group of these columns, in order."""
    chunks = tuple(chunk for each in moved for chunk in each.chunks)
    decoded_bytes = sum(each.group.decoded_bytes for each in moved)
    first = moved[0].group
    struct = {**first.struct, ids.TOTAL_BYTES: number_field(decoded_bytes)}
    group = StoredRowGroup(struct, first.rows, decoded_bytes, tuple(each.chunk for each in chunks))
    return MovedGroup(group, chunks)


def _units(sizes: Sequence[int]) -> list[range]:
    """Return the columns in units of similar size, each of neighbouring columns.

    Args:
        sizes: Sizes of the columns, in order.
    """
    count = min(max(MERGE_CORES, sum(sizes) // UNIT_BYTES), UNITS_MAX)
    share_bytes, units, start, taken = sum(sizes) / count, list[range](), 0, 0
    for at, size in enumerate(sizes):
        if at > start and taken + size > share_bytes:
            units.append(range(start, at))
            start, taken = at, 0
        taken += size
    return [*units, range(start, len(sizes))]


def _work_order(sizes: Sequence[int]) -> list[int]:
    """Return the units in the order in which they are started.

    That is their own order, so that each can be written and released after it is encoded. But a
    unit with more than half of the remaining bytes comes first; otherwise it would be encoded
    alone at the end.

    Args:
        sizes: Sizes of the units.
    """
    left, order = list(range(len(sizes))), list[int]()
    while left:
        largest = max(left, key=lambda unit: sizes[unit])
        is_most = 2 * sizes[largest] > sum(sizes[unit] for unit in left)
        order.append(largest if is_most else left[0])
        left.remove(order[-1])
    return order
