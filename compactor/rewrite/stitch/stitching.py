"""Joins row groups of Parquet files into one file, as bytes.

    look     every footer is read and held against the others; nothing is written yet
    copy     piece by piece: pages, Bloom filters; page indexes are read and moved
    end      page indexes, footer; the file is made durable, read back and compared

Whatever goes wrong: the inputs are as they were, and no output is left.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from common.errors import InputError, NotStitchableError, RewriteError
from common.parquet.location import Location
from compactor.rewrite.stitch.ending import arrow_schema_of, ending
from compactor.rewrite.stitch.footer import MAGIC, Group, Layout, Span
from compactor.rewrite.stitch.local_target import LocalTarget
from compactor.rewrite.stitch.moving import (
    BLOOM_HEADER_BYTES_MAX,
    MovedGroup,
    bloom_size,
    place,
    require_apart,
    with_index,
)
from compactor.rewrite.stitch.pieces import (
    ROW_GROUPS_MAX,
    Footing,
    Piece,
    Stitched,
)
from compactor.rewrite.stitch.sources import (
    ReadError,
    Source,
    layout_of,
    opened_source,
    read_spans,
    require_unchanged,
)
from compactor.rewrite.stitch.stored_target import StoredTarget
from compactor.rewrite.stitch.target import OnCopied, Target

INDEX_BYTES_MAX = 16 * 1024**2
"""Page indexes of one row group; they are held in memory until the footer is written."""
FOOTERS_BYTES_MAX = 16 * 1024**2
"""Footers of all pieces together; all are held in memory."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """A piece whose footer has been read."""

    piece: Piece
    location: Location
    layout: Layout
    groups: tuple[Group, ...]


def stitch(
    location: Location,
    pieces: Sequence[Piece],
    output: str,
    *,
    footing: Footing | None = None,
    on_copied: OnCopied = lambda _: None,
) -> Stitched:
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
            Raised before anything is written, but for damaged page indexes.
        InputError: A piece is missing, cannot be read, is cut off or changed meanwhile.
        RewriteError: The output cannot be written: no space, no rights, a name taken.
        VerificationError: The output does not hold the bytes that were read.
        UnavailableError: The storage does not answer.
    """
    footing = footing or Footing()
    looked, read_bytes = [], 0
    for piece in pieces:
        looked.append(_look(location, piece))
        read_bytes += len(looked[-1].layout.footer)
        require_small_footers(read_bytes)
    schema = _require_alike(looked, footing)
    with _writing(location, output, on_copied) as target:
        with _output_faults(output):
            target.write(MAGIC)
        moved: list[MovedGroup] = []
        for each in looked:
            moved += _copied(each, target, output)
        layouts = [each.layout for each in looked]
        copied_bytes = target.position - len(MAGIC)
        with _output_faults(output):
            target.write(ending(moved, layouts, footing, schema, target.position))
            size_bytes = target.position
            target.finish()
    return Stitched(
        size_bytes=size_bytes,
        rows=sum(each.group.rows for each in moved),
        row_groups=len(moved),
        copied_bytes=copied_bytes,
        synced_bytes=target.synced_bytes,
        sync_s=target.sync_s,
    )


def require_small_footers(size_bytes: int) -> None:
    """Refuse to open so many bytes of footers at a time.

    Raises:
        NotStitchableError: They are too many.
    """
    if size_bytes > FOOTERS_BYTES_MAX:
        raise NotStitchableError(f"footers take more than {FOOTERS_BYTES_MAX} bytes together")


def read_file_layout(location: Location, path: str) -> Layout:
    """Return the layout of a file, for decisions about its row groups.

    Raises:
        NotStitchableError: Its row groups cannot be copied as they are.
        InputError: It is missing or cannot be read.
        UnavailableError: The storage does not answer.
    """
    with opened_source(location, path) as source:
        return layout_of(source)


def _look(location: Location, piece: Piece) -> _Looked:
    where = piece.location or location
    layout = piece.layout or read_file_layout(where, piece.path)
    count = len(layout.groups)
    numbers = range(count) if piece.row_groups is None else piece.row_groups
    if len(set(numbers)) != len(numbers) or not set(numbers) <= set(range(count)):
        message = f"file {piece.path} has row groups 0 to {count - 1}, wanted {numbers}, each once"
        raise InputError(message)
    groups = (layout.groups[number] for number in numbers)
    return _Looked(piece, where, layout, tuple(group for group in groups if group.rows))


def _require_alike(looked: Sequence[_Looked], footing: Footing) -> bytes | None:
    """Refuse pieces that do not fit together; return their schema as Arrow's readers want it."""
    if not looked:
        raise NotStitchableError("there is nothing to stitch, wanted one piece at least")
    first = looked[0]
    for each in looked:
        if each.layout.columns != first.layout.columns:
            message = f"files {first.piece.path} and {each.piece.path} have other columns"
            raise NotStitchableError(message)
    count = sum(len(each.groups) for each in looked)
    if count > ROW_GROUPS_MAX:
        raise NotStitchableError(f"{count} row groups are more than {ROW_GROUPS_MAX}")
    return arrow_schema_of(
        [(each.piece.path, each.layout.arrow_schema) for each in looked], footing
    )


def _copied(looked: _Looked, target: Target, output: str) -> list[MovedGroup]:
    """Copy one piece; return its row groups at their new places, with their page indexes."""
    with opened_source(looked.location, looked.piece.path) as source:
        require_unchanged(source, looked.layout)
        placed = place(looked.groups, target.position, _bloom_sizes(source, looked))
        require_apart(placed.copies)
        with ThreadPoolExecutor(1, "copy") as thread:
            copying = thread.submit(_copy_all, source, placed.copies, target)
            indexed = [_with_indexes(source, moved) for moved in placed.groups]
            with _output_faults(output):
                copying.result()
        require_unchanged(source, looked.layout)
        return indexed


def _copy_all(source: Source, spans: Sequence[Span], target: Target) -> None:
    for span in spans:
        target.copy(source, span)
    target.settle()


def _bloom_sizes(source: Source, looked: _Looked) -> dict[int, int]:
    """Return the sizes of Bloom filters by their places, held against the end of the data."""
    sizes: dict[int, int] = {}
    data_end = looked.layout.data_end
    for chunk in (chunk for group in looked.groups for chunk in group.chunks):
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


@contextmanager
def _writing(location: Location, output: str, on_copied: OnCopied) -> Iterator[Target]:
    """Yield the output; after an error there is none."""
    with _output_faults(output):
        target: Target = (LocalTarget if location.is_local else StoredTarget)(
            location, output, on_copied
        )
    try:
        yield target
    except BaseException:
        target.abandon()
        raise


@contextmanager
def _output_faults(output: str) -> Iterator[None]:
    """Tell faults of the output from those of its sources."""
    try:
        yield
    except ReadError:
        raise
    except OSError as error:
        raise RewriteError(f"output {output} cannot be written: {error}") from error
