"""A piece before it is copied: its footer and page indexes, and where its bytes come to lie."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.errors import InputError, NotStitchableError
from common.parquet.location import Location
from compactor.rewrite.stitch.footer import Group, Layout, Span
from compactor.rewrite.stitch.moving import (
    BLOOM_HEADER_BYTES_MAX,
    MovedGroup,
    Placed,
    bloom_size,
    place,
    require_apart,
    with_index,
)
from compactor.rewrite.stitch.pieces import Piece
from compactor.rewrite.stitch.sources import Source, layout_of, opened_source, read_spans

INDEX_BYTES_MAX = 16 * 1024**2
"""Page indexes of one row group; they are held in memory until the footer is written."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A piece that has been looked at."""

    piece: Piece
    location: Location
    layout: Layout
    copies: tuple[Span, ...]
    """Ranges of the file, in the order in which they follow each other in the output."""
    groups: tuple[MovedGroup, ...]
    """Its row groups at their new places, with their page indexes."""

    @property
    def copied_bytes(self) -> int:
        """Bytes that are copied of it."""
        return sum(span.size for span in self.copies)


def look(location: Location, piece: Piece, start: int, known: Layout | None = None) -> Looked:
    """Read what a piece says of itself.

    Args:
        location: Of pieces that name no other.
        piece: The piece.
        start: Where it comes to lie in the output.
        known: What its footer says, if it has been read; that it still says so is looked at
            when the piece is copied.

    Raises:
        NotStitchableError: Its row groups cannot be copied as they are.
        InputError: It is missing, cannot be read or has no such row groups.
        UnavailableError: The storage does not answer.
    """
    where = piece.location or location
    with opened_source(where, piece.path) as source:
        layout = known or layout_of(source)
        placed = placed_of(source, layout, _wanted(piece, layout), start)
    return Looked(piece, where, layout, placed.copies, placed.groups)


def placed_of(source: Source, layout: Layout, groups: Sequence[Group], start: int) -> Placed:
    """Return row groups of an open file at their new places, with their page indexes.

    Args:
        source: The file.
        layout: What its footer says.
        groups: Of this layout, in the order wanted.
        start: Where they come to lie in the output.

    Raises:
        NotStitchableError: They cannot be copied as they are.
        ReadError: The file cannot be read.
    """
    placed = place(groups, start, _bloom_sizes(source, groups, layout.data_end))
    require_apart(placed.copies)
    return replace(placed, groups=tuple(_with_indexes(source, each) for each in placed.groups))


def _wanted(piece: Piece, layout: Layout) -> list[Group]:
    count = len(layout.groups)
    numbers = range(count) if piece.row_groups is None else piece.row_groups
    if len(set(numbers)) != len(numbers) or not set(numbers) <= set(range(count)):
        message = f"file {piece.path} has row groups 0 to {count - 1}, wanted {numbers}, each once"
        raise InputError(message)
    return [layout.groups[number] for number in numbers if layout.groups[number].rows]


def _bloom_sizes(source: Source, groups: Sequence[Group], data_end: int) -> dict[int, int]:
    """Return the sizes of Bloom filters by their places, held against the end of the data."""
    sizes: dict[int, int] = {}
    for chunk in (chunk for group in groups for chunk in group.chunks):
        start, size = chunk.bloom_start, chunk.bloom_size
        if start is None:
            continue
        if not size:
            room = min(BLOOM_HEADER_BYTES_MAX, data_end - start)
            size = bloom_size(source.read(Span(start, room)))
        if size < 0 or start + size > data_end:
            raise NotStitchableError(f"a Bloom filter at byte {start} of {size} bytes")
        sizes[start] = size
    return sizes


def _with_indexes(source: Source, moved: MovedGroup) -> MovedGroup:
    """Return a row group with its page indexes, of those columns that have both parts."""
    pairs = [(each.chunk.column_index, each.chunk.offset_index) for each in moved.chunks]
    spans = [span for pair in pairs if None not in pair for span in pair if span is not None]
    read = read_spans(source, spans, INDEX_BYTES_MAX)
    chunks = [
        with_index(each, read[columns], read[offsets])
        if columns is not None and offsets is not None
        else each
        for each, (columns, offsets) in zip(moved.chunks, pairs, strict=True)
    ]
    return replace(moved, chunks=tuple(chunks))
