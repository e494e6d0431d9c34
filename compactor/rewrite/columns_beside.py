"""Row groups whose columns are encoded by several threads, and written one after the other.

Arrow's writer encodes one column at a time. So each thread gives some columns to a writer
of its own, as a file in memory; its pages are copied into the output, its indexes and its
footer into the output's: what stitching does with row groups of files, for columns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.rewrite.declared import leaves
from compactor.rewrite.kernel.lanes import LANE_CORES, in_order
from compactor.rewrite.stitch import footer as ids
from compactor.rewrite.stitch.ending import ending
from compactor.rewrite.stitch.footer import MAGIC, Group, Layout
from compactor.rewrite.stitch.looking import placed_of
from compactor.rewrite.stitch.moving import MovedChunk, MovedGroup
from compactor.rewrite.stitch.pieces import Footing, SortedBy
from compactor.rewrite.stitch.sources import BufferSource, layout_of
from compactor.rewrite.thrift.values import number_field

BESIDE_BYTES_MIN = 4 * 1024**2
"""Rows with less are encoded sooner than threads are told of them."""
BESIDE_SHARE_MAX = 0.75
"""Of a row group: where one column has more, others are done before it, and its pages would be in
memory twice."""
UNIT_BYTES = 4 * 1024**2
"""Decoded, that a thread encodes at a time, about; a column is never parted."""
UNITS_MAX = 4 * LANE_CORES

Options = Callable[[pa.Schema], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Encoded:
    """Some columns of a row group, as a file."""

    fields: tuple[int, ...]
    """Their numbers in the table."""
    source: BufferSource
    layout: Layout


class ColumnsBeside:
    """Writes a Parquet file as `pyarrow.parquet.ParquetWriter` does, with the same methods."""

    def __init__(
        self,
        sink: Any,
        schema: pa.Schema,
        order: Sequence[pq.SortingColumn] | None,
        options: Options,
    ) -> None:
        """Write the file's first bytes.

        Args:
            sink: An open binary file; whoever opened it closes it.
            schema: Of all rows.
            order: What rows ascend by.
            options: Returns what Arrow's writer is told for some of the columns.
        """
        self._sink = sink
        self._schema = schema
        self._options = options
        self._sorting = tuple(
            SortedBy(each.column_index, each.descending, each.nulls_first) for each in order or ()
        )
        self._metadata: dict[str, str] = {}
        self._groups: list[MovedGroup] = []
        self._position = 0
        self._closed = False
        self._write(MAGIC)

    def write_table(self, rows: pa.Table, row_group_size: int) -> None:
        """Write rows as row groups of so many rows."""
        for start in range(0, rows.num_rows, row_group_size):
            self._write_group(rows.slice(start, row_group_size))

    def add_key_value_metadata(self, pairs: Mapping[str, str]) -> None:
        """Have the footer say more."""
        self._metadata |= pairs

    def close(self) -> None:
        """Write the footer."""
        if self._closed:
            return
        self._closed = True
        nothing = self._schema.empty_table()
        whole = _encoded(nothing, range(len(self._schema)), self._options).layout
        footing = Footing(metadata=self._metadata, sorting=self._sorting)
        end = ending(self._groups, [whole], footing, whole.arrow_schema, self._position)
        self._write(end)

    def _write_group(self, rows: pa.Table) -> None:
        calls = [partial(_encoded, rows, fields, self._options) for fields in _units(rows)]
        start, struct, decoded_bytes = self._position, None, 0
        columns: dict[int, tuple[MovedChunk, ...]] = {}
        for encoded in in_order("encode columns", calls):
            moved = self._copied(encoded)
            struct = struct or moved.group.struct
            decoded_bytes += moved.group.decoded_bytes
            columns |= self._by_field(encoded.fields, moved.chunks)
        assert struct is not None
        chunks = tuple(chunk for at in sorted(columns) for chunk in columns[at])
        struct = {**struct, ids.TOTAL_BYTES: number_field(decoded_bytes)}
        group = Group(struct, rows.num_rows, decoded_bytes, tuple(each.chunk for each in chunks))
        self._groups.append(MovedGroup(group, start, chunks))

    def _copied(self, encoded: _Encoded) -> MovedGroup:
        """Write pages and Bloom filters of some columns; return them at their new places."""
        layout, source = encoded.layout, encoded.source
        placed = placed_of(source, layout, layout.groups, self._position)
        for span in placed.copies:
            self._write(source.view[span.start : span.end])
        (moved,) = placed.groups
        return moved

    def _by_field(
        self, fields: Sequence[int], chunks: Sequence[MovedChunk]
    ) -> dict[int, tuple[MovedChunk, ...]]:
        found, at = {}, 0
        for number in fields:
            count = leaves(self._schema.field(number).type)
            found[number] = tuple(chunks[at : at + count])
            at += count
        return found

    def _write(self, written: bytes | memoryview) -> None:
        self._sink.write(written)
        self._position += len(written)


def _encoded(rows: pa.Table, fields: Sequence[int], options: Options) -> _Encoded:
    """Return some columns as a file of one row group; without rows of none."""
    sink, chosen = pa.BufferOutputStream(), rows.select(fields)
    with pq.ParquetWriter(sink, chosen.schema, **options(chosen.schema)) as writer:
        if rows.num_rows:
            writer.write_table(chosen, row_group_size=rows.num_rows)
    source = BufferSource(sink.getvalue())
    return _Encoded(tuple(fields), source, layout_of(source))


def _units(rows: pa.Table) -> list[list[int]]:
    """Return the columns in units of about the same size, each in the table's order."""
    sizes = {at: rows.column(at).nbytes for at in range(rows.num_columns)}
    count = min(max(LANE_CORES, sum(sizes.values()) // UNIT_BYTES), UNITS_MAX, len(sizes))
    units: list[list[int]] = [[] for _ in range(count)]
    taken = [0] * count
    for at in sorted(sizes, key=lambda at: sizes[at], reverse=True):
        least = taken.index(min(taken))
        units[least].append(at)
        taken[least] += sizes[at]
    return [sorted(unit) for unit in units if unit]
