"""Row groups at new positions in another file: their descriptions change, their bytes do not.

Pure: the pieces of a stitch, the position of each row group, and the end of the new file with its
page indexes and footer. Nothing is read or written here.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from itertools import pairwise

import pyarrow as pa

from common.errors import NotStitchableError
from common.parquet.location import Location
from compactor.rewrite.parquet_bytes import footer as ids
from compactor.rewrite.parquet_bytes.footer import (
    I16,
    I32,
    MAGIC,
    STRUCT,
    THIS_WRITER,
    Chunk,
    Field,
    FooterLayout,
    Span,
    StoredRowGroup,
    Struct,
    ThriftError,
    binary_field,
    coded_varint,
    decode,
    decode_whole,
    edited,
    elements,
    encode,
    flag_field,
    integer,
    list_field,
    list_head,
    located,
    number_field,
    zigzag,
)

ROW_GROUPS_MAX = 32_767
"""Largest number of row groups in a Parquet file: ordinals have 16 bits."""


@dataclass(frozen=True, slots=True)
class StitchPiece:
    """Row groups of one file, in their order in the output."""

    path: str
    """Path relative to `location`."""
    row_groups: tuple[int, ...] | None = None
    """Their numbers, each once; None: all. Those without rows are skipped."""
    location: Location | None = None
    """None: the location of the output. Parts on a local disk have a different one."""


@dataclass(frozen=True, slots=True)
class SortColumn:
    """One column of a declared order, as in Parquet's SortingColumn."""

    column: int
    """Index among the leaf columns."""
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StitchedFooter:
    """Contents of the output's footer other than row groups."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    """Key-value metadata; that of the pieces is not copied."""
    schema: pa.Schema | None = None
    """Columns for readers that use Arrow's schema; None: as in all pieces."""
    sorting: tuple[SortColumn, ...] | None = None
    """Order declared for every row group; None: each keeps its own; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StitchedFile:
    """An output that was written, made durable and read back."""

    size_bytes: int
    rows: int
    row_groups: int
    copied_bytes: int
    """Bytes of it that were copied from the pieces."""
    synced_bytes: int = field(default=0, compare=False)
    """Bytes that a local disk made durable in `sync_s`."""
    sync_s: float = field(default=0.0, compare=False)


# ------------------------------------------------------------------------------------- New
# positions


# OffsetIndex and its PageLocation
PAGES = 1
PAGE_OFFSET, PAGE_BYTES = 1, 2
# BloomFilterHeader
BLOOM_BITSET_BYTES = 1
# SortingColumn
SORT_COLUMN, SORT_DESCENDING, SORT_NULLS_FIRST = 1, 2, 3
BLOOM_HEADER_BYTES_MAX = 256
_NOWHERE = number_field(0)
_INDEX_FIELDS = range(ids.OFFSET_INDEX, ids.COLUMN_INDEX_BYTES + 1)


@dataclass(frozen=True, slots=True)
class MovedChunk:
    """A column chunk and its new position."""

    chunk: Chunk
    start: int
    bloom: Span | None = None
    """New position of its filter."""
    column_index: bytes = b""
    offset_index: bytes = b""
    """Already rewritten; both empty: it has none."""

    @property
    def shift(self) -> int:
        """Distance of the move."""
        return self.start - self.chunk.data.start


@dataclass(frozen=True, slots=True)
class MovedGroup:
    """A row group and its new position."""

    group: StoredRowGroup
    chunks: tuple[MovedChunk, ...]
    """Chunks in the order of the schema, each after the one before."""

    @property
    def start(self) -> int:
        """The first byte of its first column."""
        return self.chunks[0].start


@dataclass(frozen=True, slots=True)
class PlacedPiece:
    """The copied ranges of one file, and their position in the output."""

    copies: tuple[Span, ...]
    """Ranges of the file, in the order of the output."""
    groups: tuple[MovedGroup, ...]


def place_row_groups(
    groups: Sequence[StoredRowGroup], start: int, bloom_sizes: Mapping[int, int]
) -> PlacedPiece:
    """Return how the row groups of one file are copied to a position of the output.

    Their pages come first, those of each row group in the order of the schema, whatever their
    order was: readers that split files look for a row group at its first column. Their Bloom
    filters follow.

    Args:
        groups: Row groups in the wanted order.
        start: Position of the first byte.
        bloom_sizes: Sizes of their filters, by position in the file.
    """
    copies: list[Span] = []
    starts, at = dict[int, int](), start
    for group in groups:
        for chunk in group.chunks:
            starts[id(chunk)] = at
            copies.append(chunk.data)
            at += chunk.data.size
    placed = []
    for group in groups:
        chunks = []
        for chunk in group.chunks:
            bloom = None
            if chunk.bloom_start is not None:
                bloom = Span(at, bloom_sizes[chunk.bloom_start])
                copies.append(Span(chunk.bloom_start, bloom.size))
                at = bloom.end
            chunks.append(MovedChunk(chunk, starts[id(chunk)], bloom))
        placed.append(MovedGroup(group, tuple(chunks)))
    return PlacedPiece(tuple(_merge_spans(copies)), tuple(placed))


def _merge_spans(spans: Sequence[Span]) -> list[Span]:
    """Return the same bytes in fewer ranges."""
    joined: list[Span] = []
    for span in spans:
        if joined and joined[-1].end == span.start:
            joined[-1] = Span(joined[-1].start, joined[-1].size + span.size)
        elif span.size:
            joined.append(span)
    return joined


def require_disjoint(spans: Sequence[Span]) -> None:
    """Refuse overlapping ranges, with which a small file could be copied into a huge one.

    Raises:
        NotStitchableError: Two of them overlap.
    """
    ordered = sorted(spans, key=lambda span: span.start)
    if any(before.end > after.start for before, after in pairwise(ordered)):
        raise NotStitchableError("row groups share bytes")


def bloom_size(header: bytes) -> int:
    """Return the size of a Bloom filter from its header, the only source in older files.

    Raises:
        NotStitchableError: The header is malformed.
    """
    try:
        struct, end = decode(header, {})
        bits = integer(struct, BLOOM_BITSET_BYTES)
    except ThriftError as error:
        raise NotStitchableError(f"a Bloom filter has no header: {error}") from error
    if bits is None or not 0 < bits < 1 << 31:
        raise NotStitchableError(f"a Bloom filter has {bits} bytes")
    return end + bits


def with_page_index(moved: MovedChunk, column_index: bytes, offset_index: bytes) -> MovedChunk:
    """Return a chunk with its page index, whose positions are moved with it.

    Args:
        moved: The chunk.
        column_index: As it is in the file.
        offset_index: As it is in the file.

    Raises:
        NotStitchableError: The offset index refers to bytes outside the chunk.
    """
    try:
        return replace(
            moved, column_index=column_index, offset_index=_moved_index(moved, offset_index)
        )
    except ThriftError as error:
        raise NotStitchableError(f"an offset index is damaged: {error}") from error


_PLAIN_PAGE = re.compile(
    rb"\x16([\x80-\xff]{0,9}[\x00-\x7f])(\x15([\x80-\xff]{0,4}[\x00-\x7f])"
    rb"\x16[\x80-\xff]{0,9}[\x00-\x7f]\x00)"
)
"""A page in an offset index as every writer has it: position, then size and first row."""
_PLAIN_LIST, _NO_PAGES, _PLAIN_OFFSET = b"\x19", b"\x19\x0c", b"\x16"
"""Heads of fields: the list of pages as the first field, the same without pages, a position."""


def _moved_index(moved: MovedChunk, offset_index: bytes) -> bytes:
    if (plain := _moved_plain_index(moved, offset_index)) is not None:
        return plain
    struct = decode_whole(offset_index, {PAGES: {}})
    for page in elements(struct, PAGES):
        at, size = integer(page, PAGE_OFFSET), integer(page, PAGE_BYTES)
        page[PAGE_OFFSET] = number_field(_moved_page(moved, at, size))
    return encode(struct)


def _moved_plain_index(moved: MovedChunk, offset_index: bytes) -> bytes | None:
    """Return the same for an index that is stored plainly, ten times as fast; None: it is not."""
    if not offset_index.startswith(_PLAIN_LIST):
        return None
    try:
        _, count, at = list_head(offset_index, 1)
        parts = [offset_index[:at]]
        for _ in range(count):
            if (page := _PLAIN_PAGE.match(offset_index, at)) is None:
                return None
            start, size = zigzag(offset_index, page.start(1)), zigzag(offset_index, page.start(3))
            parts += (_PLAIN_OFFSET, coded_varint(2 * _moved_page(moved, start, size)), page[2])
            at = page.end()
    except IndexError:
        return None
    rest = offset_index[at:]
    decode_whole(_NO_PAGES + rest, {PAGES: {}})  # Refuses what the other way refuses.
    return b"".join((*parts, rest))


def _moved_page(moved: MovedChunk, at: int | None, size: int | None) -> int:
    """Return the new position of a page, which lies in its chunk."""
    data = moved.chunk.data
    if at is None or size is None or not data.start <= at <= at + size <= data.end:
        raise ThriftError(f"page at byte {at} is not in {data.start} to {data.end}")
    return at + moved.shift


def group_struct(
    moved: MovedGroup,
    ordinal: int,
    indexes: Mapping[int, tuple[Span, Span]],
    sorting: Sequence[SortColumn] | None,
) -> Struct:
    """Return the description of a row group at its new position.

    Args:
        moved: The row group.
        ordinal: Its number in the output.
        indexes: Spans of column and offset index, by column number.
        sorting: See `StitchedFooter`.
    """
    struct = dict(moved.group.struct)
    struct[ids.CHUNKS] = list_field(
        _chunk_struct(chunk, indexes.get(number)) for number, chunk in enumerate(moved.chunks)
    )
    struct[ids.GROUP_OFFSET] = number_field(moved.start)
    struct[ids.GROUP_COMPRESSED] = number_field(moved.group.compressed_bytes)
    struct[ids.ORDINAL] = number_field(ordinal, I16)
    if sorting is not None:
        struct.pop(ids.SORTING, None)
    if sorting:
        struct[ids.SORTING] = list_field(map(_sorting_struct, sorting))
    return struct


def _chunk_struct(moved: MovedChunk, index: tuple[Span, Span] | None) -> Struct:
    struct = {
        number: field for number, field in moved.chunk.struct.items() if number not in _INDEX_FIELDS
    }
    struct[ids.META] = Field(STRUCT, _meta_bytes(moved))
    # Position of a copy of this description next to the pages: there is none.
    struct[ids.CHUNK_OFFSET] = _NOWHERE
    if index is not None:
        columns, offsets = index
        struct[ids.COLUMN_INDEX] = number_field(columns.start)
        struct[ids.COLUMN_INDEX_BYTES] = number_field(columns.size, I32)
        struct[ids.OFFSET_INDEX] = number_field(offsets.start)
        struct[ids.OFFSET_INDEX_BYTES] = number_field(offsets.size, I32)
    return struct


def _meta_bytes(moved: MovedChunk) -> bytes:
    """Return the description of a column chunk with its new positions."""
    meta = located(moved.chunk.struct, ids.META)
    assert meta is not None, "a chunk without it is refused"
    positions: dict[int, Field | None] = {
        ids.INDEX_PAGE: None,
        ids.BLOOM: None if moved.bloom is None else number_field(moved.bloom.start),
        ids.BLOOM_BYTES: None if moved.bloom is None else number_field(moved.bloom.size, I32),
    }
    for number in (ids.DATA_PAGE, ids.DICTIONARY_PAGE):
        at = integer(meta, number)
        there = at is not None and moved.chunk.data.start <= at  # False if there is no such page.
        positions[number] = number_field(at + moved.shift) if at is not None and there else None
    return edited(meta, positions)


def _sorting_struct(column: SortColumn) -> Struct:
    return {
        SORT_COLUMN: number_field(column.column, I32),
        SORT_DESCENDING: flag_field(column.descending),
        SORT_NULLS_FIRST: flag_field(column.nulls_first),
    }


# -------------------------------------------------------------------------- The end of the new file


_OURS = frozenset(range(ids.VERSION, ids.CREATED_BY + 1))
_PARQUET_VERSION = 2


def file_tail(
    groups: Sequence[MovedGroup],
    layouts: Sequence[FooterLayout],
    footing: StitchedFooter,
    arrow_schema: bytes | None,
    position: int,
) -> bytes:
    """Return all bytes that follow the copied ones.

    Args:
        groups: All row groups at their new positions, with their page indexes.
        layouts: Layouts of the source files; at least one.
        footing: Further contents of the footer.
        arrow_schema: From `arrow_schema_of`.
        position: End of the copied bytes.
    """
    out = bytearray()
    indexes: list[dict[int, tuple[Span, Span]]] = [{} for _ in groups]
    columns = [
        (number, at, chunk)
        for number, group in enumerate(groups)
        for at, chunk in enumerate(group.chunks)
        if chunk.offset_index
    ]
    column_spans = []
    for _, _, chunk in columns:
        column_spans.append(Span(position + len(out), len(chunk.column_index)))
        out += chunk.column_index
    for (number, at, chunk), column_span in zip(columns, column_spans, strict=True):
        indexes[number][at] = (column_span, Span(position + len(out), len(chunk.offset_index)))
        out += chunk.offset_index
    described = [
        group_struct(group, number, indexes[number], footing.sorting)
        for number, group in enumerate(groups)
    ]
    return bytes(out) + encode_footer(
        _file_struct(groups, described, layouts, footing, arrow_schema)
    )


def encode_footer(struct: Struct) -> bytes:
    """Return a footer, its length and the magic: the end of a Parquet file."""
    footer = encode(struct)
    return footer + len(footer).to_bytes(4, "little") + MAGIC


def arrow_schema_of(
    pieces: Sequence[tuple[str, bytes | None]], footing: StitchedFooter
) -> bytes | None:
    """Return the schema for readers that use Arrow's; None: they use Parquet's.

    It is encoded anew, because a copy would include other data of its writer.

    Args:
        pieces: Path of each file, and its value of `ARROW:schema`.
        footing: May override the schema.

    Raises:
        NotStitchableError: The files differ, or one cannot be read.
    """
    if footing.schema is not None:
        return encode_arrow_schema(footing.schema)
    (first, coded), *others = pieces
    schema = _decoded(first, coded)
    for path, other in others:
        if other != coded and _decoded(path, other) != schema:
            raise NotStitchableError(
                f"files {first} and {path} have other columns in their Arrow schemas"
            )
    return None if schema is None else encode_arrow_schema(schema)


def _decoded(path: str, coded: bytes | None) -> pa.Schema | None:
    if coded is None:
        return None
    try:
        message = base64.b64decode(coded, validate=True)
        return pa.ipc.read_schema(pa.py_buffer(message)).remove_metadata()
    except (binascii.Error, OSError, pa.ArrowException) as error:
        raise NotStitchableError(f"file {path} has no readable Arrow schema: {error}") from error


def encode_arrow_schema(schema: pa.Schema) -> bytes:
    """Return columns as the Arrow schema of a footer."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes())


def _file_struct(
    groups: Sequence[MovedGroup],
    described: Sequence[Struct],
    layouts: Sequence[FooterLayout],
    footing: StitchedFooter,
    arrow_schema: bytes | None,
) -> Struct:
    """Return the FileMetaData.

    Unknown fields (and the order of columns) are kept if all files have the same.
    """
    first = layouts[0].struct
    struct = {
        number: field
        for number, field in first.items()
        if number not in _OURS and all(layout.struct.get(number) == field for layout in layouts)
    }
    versions = [integer(layout.struct, ids.VERSION) or _PARQUET_VERSION for layout in layouts]
    struct[ids.VERSION] = number_field(max(versions), I32)
    struct[ids.SCHEMA] = first[ids.SCHEMA]
    struct[ids.FILE_ROWS] = number_field(sum(group.group.rows for group in groups))
    struct[ids.ROW_GROUPS] = list_field(described)
    pairs = [(name.encode(), value.encode()) for name, value in footing.metadata.items()]
    if arrow_schema is not None:
        pairs.append((ids.ARROW_SCHEMA, arrow_schema))
    if pairs:
        struct[ids.KEY_VALUES] = list_field(
            {ids.KEY: binary_field(key), ids.VALUE: binary_field(value)} for key, value in pairs
        )
    struct[ids.CREATED_BY] = binary_field(_signature())
    return struct


@cache
def _signature() -> bytes:
    return THIS_WRITER.format(version=version("neve")).encode()
