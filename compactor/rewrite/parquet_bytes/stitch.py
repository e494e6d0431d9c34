"""Joins row groups of Parquet files into one file, as bytes: no page is decoded.

`stitch` is the entry. Each piece is inspected first: its footer, its page indexes and its
new place. Pieces that were inspected are copied in a thread while others are inspected.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from common.errors import InputError, NotStitchableError, RewriteError
from common.parquet.location import Location, storage_error
from compactor.rewrite.parquet_bytes.footer import (
    MAGIC,
    FooterLayout,
    Span,
    StoredRowGroup,
)
from compactor.rewrite.parquet_bytes.relocation import (
    BLOOM_HEADER_BYTES_MAX,
    ROW_GROUPS_MAX,
    MovedGroup,
    PlacedPiece,
    StitchedFile,
    StitchedFooter,
    StitchPiece,
    arrow_schema_of,
    bloom_size,
    file_tail,
    place_row_groups,
    require_disjoint,
    with_page_index,
)
from compactor.rewrite.parquet_bytes.sources import (
    ReadError,
    Source,
    open_source,
    read_footer_of,
    read_spans,
    require_source_unchanged,
)
from compactor.rewrite.parquet_bytes.targets import LocalTarget, OnCopied, StoredTarget, Target

# -------------------------------------------------------------------------------- Inspecting pieces


INDEX_BYTES_MAX = 16 * 1024**2
"""Page indexes of one row group; they are held in memory until the footer is written."""


@dataclass(frozen=True, slots=True)
class InspectedPiece:
    """A piece that has been looked at."""

    piece: StitchPiece
    location: Location
    layout: FooterLayout
    copies: tuple[Span, ...]
    """Ranges of the file, in the order in which they follow each other in the output."""
    groups: tuple[MovedGroup, ...]
    """Its row groups at their new places, with their page indexes."""

    @property
    def copied_bytes(self) -> int:
        """Bytes that are copied of it."""
        return sum(span.size for span in self.copies)


def inspect_piece(
    location: Location, piece: StitchPiece, start: int, known: FooterLayout | None = None
) -> InspectedPiece:
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
    with open_source(where, piece.path) as source:
        layout = known or read_footer_of(source)
        placed = place_piece(source, layout, _wanted(piece, layout), start)
    return InspectedPiece(piece, where, layout, placed.copies, placed.groups)


def place_piece(
    source: Source, layout: FooterLayout, groups: Sequence[StoredRowGroup], start: int
) -> PlacedPiece:
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
    placed = place_row_groups(groups, start, _bloom_sizes(source, groups, layout.data_end))
    require_disjoint(placed.copies)
    return replace(placed, groups=tuple(_with_indexes(source, group) for group in placed.groups))


def _wanted(piece: StitchPiece, layout: FooterLayout) -> list[StoredRowGroup]:
    count = len(layout.groups)
    numbers = range(count) if piece.row_groups is None else piece.row_groups
    if len(set(numbers)) != len(numbers) or not set(numbers) <= set(range(count)):
        message = (
            f"file {piece.path} has row groups 0 to {count - 1}, expected {numbers}, each once"
        )
        raise InputError(message)
    return [layout.groups[number] for number in numbers if layout.groups[number].rows]


def _bloom_sizes(source: Source, groups: Sequence[StoredRowGroup], data_end: int) -> dict[int, int]:
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
    pairs = [(chunk.chunk.column_index, chunk.chunk.offset_index) for chunk in moved.chunks]
    spans = [span for pair in pairs if None not in pair for span in pair if span is not None]
    read = read_spans(source, spans, INDEX_BYTES_MAX)
    chunks = [
        with_page_index(each, read[columns], read[offsets])
        if columns is not None and offsets is not None
        else each
        for each, (columns, offsets) in zip(moved.chunks, pairs, strict=True)
    ]
    return replace(moved, chunks=tuple(chunks))


# ----------------------------------------------------------------------------------- Copying pieces


class PieceCopier:
    """Copies pieces in a thread of its own, one after another; at its end all are copied."""

    def __init__(self, target: Target, output: str) -> None:
        """Copy nothing yet.

        Args:
            target: Takes the bytes.
            output: Its path, for messages.
        """
        self._target, self._output = target, output
        self._thread = ThreadPoolExecutor(1, "copy")
        self._pending: deque[Future[None]] = deque()

    def __enter__(self) -> "PieceCopier":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            while kind is None and self._pending:
                self._pending.popleft().result()
        finally:
            self._thread.shutdown(cancel_futures=True)

    def add(self, looked: InspectedPiece) -> None:
        """Copy a piece, behind those that were added before.

        Raises:
            InputError: This one, or one before, cannot be read or has changed.
            RewriteError: The output cannot be written.
            VerificationError: The output does not hold what was read.
        """
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._copy, looked))

    def _copy(self, looked: InspectedPiece) -> None:
        with open_source(looked.location, looked.piece.path) as source:
            require_source_unchanged(source, looked.layout)
            with output_errors(self._output):
                for span in looked.copies:
                    self._target.copy(source, span)
            require_source_unchanged(source, looked.layout)


@contextmanager
def output_errors(output: str) -> Iterator[None]:
    """Tell faults of the output from those of its sources."""
    try:
        yield
    except ReadError:
        raise
    except OSError as error:
        message = f"output {output} cannot be written: {error}"
        raise storage_error(RewriteError, message, error) from error


# ---------------------------------------------------------------------------------------- Stitching


FOOTERS_BYTES_MAX = 6 * 1024**2
"""Footers of all pieces together; opened, all of them are held until the end."""


def stitch(
    location: Location,
    pieces: Sequence[StitchPiece],
    output: str,
    *,
    footing: StitchedFooter | None = None,
    on_copied: OnCopied = lambda _: None,
) -> StitchedFile:
    """Write row groups of some files into a new file, one after the other, as bytes.

    No page is read into rows. Page indexes and Bloom filters are moved with their pages.
    The pieces must have the same Parquet columns (names, types, repetition, logical types,
    field ids); codecs and encodings may differ. Who cares for the order of rows, keys that
    meet, tombstones or expired rows has looked before.

    Args:
        location: Of the output, and of pieces that name no other.
        pieces: In the order of their rows; one at least.
        output: Path of the new file; nothing may be there.
        footing: What the footer says beside the row groups.
        on_copied: Hears of bytes copied, every few megabytes; what it raises ends the stitch.

    Raises:
        NotStitchableError: The row groups cannot be copied as they are; the rows perhaps can.
        InputError: A piece is missing, cannot be read, is cut off or changed meanwhile.
        RewriteError: The output cannot be written: no space, no rights, a name taken.
        VerificationError: The output does not hold the bytes that were read.
        UnavailableError: The storage does not answer.
    """
    footing = footing or StitchedFooter()
    if not pieces:
        raise NotStitchableError("there is nothing to stitch, expected one piece at least")
    with _open_target(location, output, on_copied) as target:
        with output_errors(output):
            target.write(MAGIC)
        with PieceCopier(target, output) as copying:
            looked = _inspect_and_copy(location, pieces, copying)
            rest = _tail_of_output(looked, footing)
        copied_bytes = target.position - len(MAGIC)
        with output_errors(output):
            target.write(rest)
            size_bytes = target.position
            target.finish()
    moved = [group for piece in looked for group in piece.groups]
    return StitchedFile(
        size_bytes=size_bytes,
        rows=sum(each.group.rows for each in moved),
        row_groups=len(moved),
        copied_bytes=copied_bytes,
        synced_bytes=target.synced_bytes,
        sync_s=target.sync_s,
    )


def _inspect_and_copy(
    location: Location, pieces: Sequence[StitchPiece], copying: PieceCopier
) -> list[InspectedPiece]:
    """Look at all pieces; those that have been are copied meanwhile."""
    looked: list[InspectedPiece] = []
    layouts: dict[tuple[str, str], FooterLayout] = {}
    footer_bytes, row_groups, end = 0, 0, len(MAGIC)
    for piece in pieces:
        name = ((piece.location or location).uri, piece.path)
        each = inspect_piece(location, piece, end, layouts.get(name))
        looked.append(each)
        if layouts.setdefault(name, each.layout) is each.layout:
            footer_bytes += len(each.layout.footer)
            _require_small_footers(footer_bytes)
        _require_alike(looked[0], each)
        row_groups += len(each.groups)
        if row_groups > ROW_GROUPS_MAX:
            raise NotStitchableError(f"row groups are more than {ROW_GROUPS_MAX}")
        end += each.copied_bytes
        copying.add(each)
    return looked


def _tail_of_output(looked: Sequence[InspectedPiece], footing: StitchedFooter) -> bytes:
    """Return what follows the bytes of pieces that have been looked at."""
    schema = arrow_schema_of(
        [(piece.piece.path, piece.layout.arrow_schema) for piece in looked], footing
    )
    moved = [group for piece in looked for group in piece.groups]
    end = len(MAGIC) + sum(piece.copied_bytes for piece in looked)
    return file_tail(moved, [piece.layout for piece in looked], footing, schema, end)


def _require_small_footers(size_bytes: int) -> None:
    """Refuse to hold so many bytes of footers."""
    if size_bytes > FOOTERS_BYTES_MAX:
        raise NotStitchableError(f"footers take more than {FOOTERS_BYTES_MAX} bytes together")


def _require_alike(first: InspectedPiece, each: InspectedPiece) -> None:
    """Refuse pieces that do not fit together."""
    if each.layout.columns != first.layout.columns:
        message = f"files {first.piece.path} and {each.piece.path} have other columns"
        raise NotStitchableError(message)


@contextmanager
def _open_target(location: Location, output: str, on_copied: OnCopied) -> Iterator[Target]:
    """Yield the output; after an error there is none."""
    with output_errors(output):
        target: Target = (LocalTarget if location.is_local else StoredTarget)(
            location, output, on_copied
        )
    try:
        yield target
    except BaseException:
        target.abandon()
        raise
