"""Where copied row groups come to lie, and how their descriptions change. Pure.

Places in a footer, in an offset index and of a Bloom filter are absolute: each moves
by as much as its column chunk does. What a column index holds does not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from common.errors import NotStitchableError
from compactor.rewrite.stitch import footer as ids
from compactor.rewrite.stitch.footer import Chunk, Group, Span
from compactor.rewrite.stitch.pieces import SortedBy
from compactor.rewrite.thrift.reading import decode, decode_whole
from compactor.rewrite.thrift.values import (
    I16,
    I32,
    STRUCT,
    Field,
    Struct,
    ThriftError,
    elements,
    flag_field,
    integer,
    list_field,
    located,
    number_field,
)
from compactor.rewrite.thrift.writing import edited, encode

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
    """A column chunk and its new place."""

    chunk: Chunk
    start: int
    bloom: Span | None = None
    """Where its filter comes to lie."""
    column_index: bytes = b""
    offset_index: bytes = b""
    """Already rewritten; both empty: it has none."""

    @property
    def shift(self) -> int:
        """By how much it moves."""
        return self.start - self.chunk.data.start


@dataclass(frozen=True, slots=True)
class MovedGroup:
    """A row group and its new place."""

    group: Group
    chunks: tuple[MovedChunk, ...]
    """In the order of the schema, each behind the one before."""

    @property
    def start(self) -> int:
        """The first byte of its first column."""
        return self.chunks[0].start


@dataclass(frozen=True, slots=True)
class Placed:
    """What is copied of one file, and where it comes to lie."""

    copies: tuple[Span, ...]
    """Ranges of the file, in the order in which they follow each other in the output."""
    groups: tuple[MovedGroup, ...]


def place(groups: Sequence[Group], start: int, bloom_sizes: Mapping[int, int]) -> Placed:
    """Return how the row groups of one file are copied to a place of the output.

    Their pages come first, each row group's in the order of the schema whatever their order was:
    readers that split files look for a row group where its first column is. Then come their Bloom
    filters.

    Args:
        groups: In the order wanted.
        start: Where the first byte goes.
        bloom_sizes: Of their filters, by where they are in the file.
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
    return Placed(tuple(_joined(copies)), tuple(placed))


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Return the same bytes in fewer ranges."""
    joined: list[Span] = []
    for span in spans:
        if joined and joined[-1].end == span.start:
            joined[-1] = Span(joined[-1].start, joined[-1].size + span.size)
        elif span.size:
            joined.append(span)
    return joined


def require_apart(spans: Sequence[Span]) -> None:
    """Refuse ranges of a file that meet: a small file could be copied into a huge one.

    Raises:
        NotStitchableError: Two of them do.
    """
    ordered = sorted(spans, key=lambda span: span.start)
    if any(before.end > after.start for before, after in pairwise(ordered)):
        raise NotStitchableError("row groups share bytes")


def bloom_size(header: bytes) -> int:
    """Return the size of a Bloom filter by its first bytes; older writers tell it only there.

    Raises:
        NotStitchableError: They are none.
    """
    try:
        struct, end = decode(header, {})
        bits = integer(struct, BLOOM_BITSET_BYTES)
    except ThriftError as error:
        raise NotStitchableError(f"a Bloom filter has no header: {error}") from error
    if bits is None or not 0 < bits < 1 << 31:
        raise NotStitchableError(f"a Bloom filter has {bits} bytes")
    return end + bits


def with_index(moved: MovedChunk, column_index: bytes, offset_index: bytes) -> MovedChunk:
    """Return a chunk with its page index, whose places are moved with it.

    Args:
        moved: The chunk.
        column_index: As it is in the file.
        offset_index: As it is in the file.

    Raises:
        NotStitchableError: The offset index speaks of bytes that are not the chunk's.
    """
    try:
        return replace(
            moved, column_index=column_index, offset_index=_moved_index(moved, offset_index)
        )
    except ThriftError as error:
        raise NotStitchableError(f"an offset index is damaged: {error}") from error


def _moved_index(moved: MovedChunk, offset_index: bytes) -> bytes:
    data = moved.chunk.data
    struct = decode_whole(offset_index, {PAGES: {}})
    for page in elements(struct, PAGES):
        at, size = integer(page, PAGE_OFFSET), integer(page, PAGE_BYTES)
        if at is None or size is None or not data.start <= at <= at + size <= data.end:
            raise ThriftError(f"page at byte {at} is not in {data.start} to {data.end}")
        page[PAGE_OFFSET] = number_field(at + moved.shift)
    return encode(struct)


def group_struct(
    moved: MovedGroup,
    ordinal: int,
    indexes: Mapping[int, tuple[Span, Span]],
    sorting: Sequence[SortedBy] | None,
) -> Struct:
    """Return the description of a row group at its new place.

    Args:
        moved: The row group.
        ordinal: Its number in the output.
        indexes: Places of column and offset index, by the number of the column.
        sorting: See `Footing`.
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
    # Where a copy of this description stands beside the pages: there is none.
    struct[ids.CHUNK_OFFSET] = _NOWHERE
    if index is not None:
        columns, offsets = index
        struct[ids.COLUMN_INDEX] = number_field(columns.start)
        struct[ids.COLUMN_INDEX_BYTES] = number_field(columns.size, I32)
        struct[ids.OFFSET_INDEX] = number_field(offsets.start)
        struct[ids.OFFSET_INDEX_BYTES] = number_field(offsets.size, I32)
    return struct


def _meta_bytes(moved: MovedChunk) -> bytes:
    """Return what is said of a column chunk, with its new places."""
    meta = located(moved.chunk.struct, ids.META)
    assert meta is not None, "a chunk without it is refused"
    places: dict[int, Field | None] = {
        ids.INDEX_PAGE: None,
        ids.BLOOM: None if moved.bloom is None else number_field(moved.bloom.start),
        ids.BLOOM_BYTES: None if moved.bloom is None else number_field(moved.bloom.size, I32),
    }
    for number in (ids.DATA_PAGE, ids.DICTIONARY_PAGE):
        at = integer(meta, number)
        there = at is not None and moved.chunk.data.start <= at  # Or there is no such page.
        places[number] = number_field(at + moved.shift) if at is not None and there else None
    return edited(meta, places)


def _sorting_struct(column: SortedBy) -> Struct:
    return {
        SORT_COLUMN: number_field(column.column, I32),
        SORT_DESCENDING: flag_field(column.descending),
        SORT_NULLS_FIRST: flag_field(column.nulls_first),
    }
