"""Parquet files as earlier releases could write them: column chunks largest first.

Arrow, Polars and DuckDB read such a file rightly; whoever splits files may miss its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.rewrite.parquet_bytes import footer as ids
from compactor.rewrite.parquet_bytes.footer import (
    MAGIC,
    Chunk,
    Span,
    StoredRowGroup,
    Struct,
    list_field,
    number_field,
)
from compactor.rewrite.parquet_bytes.relocation import (
    MovedChunk,
    MovedGroup,
    encode_footer,
    group_struct,
    with_page_index,
)
from compactor.rewrite.parquet_bytes.sources import BufferSource, read_footer_of

Order = Callable[[Sequence[Chunk]], list[Chunk]]


def largest_first(chunks: Sequence[Chunk]) -> list[Chunk]:
    return sorted(chunks, key=lambda chunk: chunk.data.size, reverse=True)


def last_first(chunks: Sequence[Chunk]) -> list[Chunk]:
    return list(reversed(chunks))


def write_misordered(
    path: Path, rows: pa.Table, *, order: Order = largest_first, **options: Any
) -> None:
    """Write rows into a file whose row groups are complete, but not in the schema's order."""
    sink = pa.BufferOutputStream()
    given = {"write_page_index": True, "write_page_checksum": True, "compression": "zstd"}
    pq.write_table(rows, sink, **given | options)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(misordered(sink.getvalue(), order))


def misordered(content: pa.Buffer, order: Order = largest_first) -> bytes:
    """Return a file with its row groups' column chunks in another order."""
    source = BufferSource(content)
    layout = read_footer_of(source)
    written = _Written(source)
    begins, moved = [], []
    for group in (each for each in layout.groups if each.rows):
        begins.append(len(written.content))
        moved.append(written.put(group, order))
    described = [
        # Such files said of a row group where its first byte was, whatever column that was of.
        group_struct(group, number, written.put_indexes(group), None)
        | {ids.GROUP_OFFSET: number_field(begin)}
        for number, (group, begin) in enumerate(zip(moved, begins, strict=True))
    ]
    struct: Struct = {**layout.struct, ids.ROW_GROUPS: list_field(described)}
    return bytes(written.content) + encode_footer(struct)


def told_otherwise(content: bytes) -> bytes:
    """Return a file whose footer says that each row group begins where its second column does."""
    source = BufferSource(pa.py_buffer(content))
    layout = read_footer_of(source)
    described = [
        {**group.struct, ids.GROUP_OFFSET: number_field(group.chunks[1].data.start)}
        for group in layout.groups
    ]
    struct: Struct = {**layout.struct, ids.ROW_GROUPS: list_field(described)}
    return content[: layout.data_end] + encode_footer(struct)


@dataclass
class _Written:
    """A file in the making."""

    source: BufferSource
    content: bytearray = field(default_factory=lambda: bytearray(MAGIC))

    def put(self, group: StoredRowGroup, order: Order) -> MovedGroup:
        """Write the pages of a row group, then its Bloom filters."""
        starts: dict[int, int] = {}
        for chunk in order(group.chunks):
            starts[chunk.data.start] = self._put(chunk.data).start
        return MovedGroup(group, tuple(self._moved(each, starts) for each in group.chunks))

    def put_indexes(self, group: MovedGroup) -> dict[int, tuple[Span, Span]]:
        """Write the page indexes of a row group; return where they are, by column."""
        spans = {}
        for at, chunk in enumerate(group.chunks):
            if chunk.offset_index:
                columns = Span(len(self.content), len(chunk.column_index))
                spans[at] = (columns, Span(columns.end, len(chunk.offset_index)))
                self.content += chunk.column_index + chunk.offset_index
        return spans

    def _moved(self, chunk: Chunk, starts: Mapping[int, int]) -> MovedChunk:
        bloom = None
        if chunk.bloom_start is not None:
            bloom = self._put(Span(chunk.bloom_start, chunk.bloom_size or 0))
        moved = MovedChunk(chunk, starts[chunk.data.start], bloom)
        if chunk.column_index is None or chunk.offset_index is None:
            return moved
        index = self.source.read(chunk.column_index), self.source.read(chunk.offset_index)
        return with_page_index(moved, *index)

    def _put(self, span: Span) -> Span:
        start = len(self.content)
        self.content += self.source.read(span)
        return Span(start, span.size)
