"""Joins row groups of Parquet files into one file, as bytes: no page is decoded.

`stitch` is the entry. Each piece is inspected first: its footer, its page indexes and its new
position. Inspected pieces are copied in a thread while others are inspected.
"""

import errno
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from common.errors import InputError, NotStitchableError, RewriteError, VerificationError
from common.parquet.location import Location, storage_error
from compactor.rewrite.file_io import NewFile
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
    StoredSource,
    open_source,
    read_footer_of,
    read_spans,
    require_source_unchanged,
    truncated_error,
)

# ------------------------------------------------------------------------------------------ Targets
# The output of a stitch, on a local disk or in an object store.
#
# Ranges are copied to a target. The target is read back and compared before it is complete.


OnCopied = Callable[[int], None]


class Target(Protocol):
    """An output during the write."""

    @property
    def position(self) -> int:
        """Bytes written so far."""
        ...

    @property
    def synced_bytes(self) -> int:
        """Bytes that a local disk has made durable; elsewhere 0."""
        ...

    @property
    def sync_s(self) -> float:
        """Time that this took."""
        ...

    def write(self, content: bytes) -> None:
        """Append bytes.

        Raises:
            OSError: The disk is full, or the storage fails.
        """
        ...

    def copy(self, source: Source, span: Span) -> None:
        """Append a range of a source, which may be closed afterwards.

        Raises:
            OSError: As for `write`, or the source is too short.
            VerificationError: Bytes that were appended earlier differ from the source.
        """
        ...

    def finish(self) -> None:
        """Make it durable and read it back.

        Raises:
            VerificationError: Its contents are wrong.
            OSError: It is not durable, or cannot be read.
        """
        ...

    def abandon(self) -> None:
        """Delete it, whatever its state."""
        ...


# ------------------------------------------------------------------- Comparison of written bytes


_READ_BYTES = 1 << 18
"""Bytes read at a time, few enough to stay in the processor's cache until they are compared."""
_BEHIND_MAX = 16
"""Ranges that wait for comparison; each keeps a source open."""


class OutputComparison:
    """Reads the output back in a separate thread and compares it with the expected bytes.

    A comparison is several times as fast as computing two checksums, and more thorough.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        """Create an idle comparison.

        Args:
            descriptor: Descriptor of the output, open for reading; closed only after `close`.
            path: Path of the output, for messages.
        """
        self._descriptor, self._path = descriptor, path
        self._thread = ThreadPoolExecutor(1, "compare")
        self._pending: deque[Future[None]] = deque()
        self._wanted, self._found = bytearray(), bytearray()
        self._closed = False

    def add_range(self, descriptor: int, span: Span, begun: int) -> None:
        """Compare a range of a source, which may be closed at once, with the output from `begun`.

        Raises:
            VerificationError: The output differs from what was added before, or
                one of the two can no longer be read.
            OSError: No more files can be opened.
        """
        while len(self._pending) >= _BEHIND_MAX:
            self._pending.popleft().result()
        own = os.dup(descriptor)
        self._pending.append(self._thread.submit(self._compare_range, own, span, begun))

    def add(self, content: bytes, begun: int) -> None:
        """Compare bytes with the output from `begun`."""
        self._pending.append(self._thread.submit(self._compare, content, begun))

    def settle(self) -> None:
        """Wait for all comparisons.

        Raises:
            VerificationError: The output has other contents, or cannot be read.
        """
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """End the thread; waiting ranges are not compared."""
        self._closed = True
        self._thread.shutdown()

    def _compare(self, content: bytes, begun: int) -> None:
        if self._closed:
            return
        stored = bytearray(len(content))
        with self._faults(begun):
            _read(self._descriptor, stored, begun)
        self._require(content == stored, begun)

    def _compare_range(self, descriptor: int, span: Span, begun: int) -> None:
        try:
            for at in range(span.start, span.end, _READ_BYTES):
                if self._closed:
                    return
                step = Span(at, min(_READ_BYTES, span.end - at))
                self._compare_step(descriptor, step, begun + at - span.start)
        finally:
            os.close(descriptor)

    def _compare_step(self, descriptor: int, step: Span, begun: int) -> None:
        if len(self._wanted) != step.size:
            self._wanted, self._found = bytearray(step.size), bytearray(step.size)
        with self._faults(begun):
            _read(descriptor, self._wanted, step.start)
            _read(self._descriptor, self._found, begun)
        self._require(self._wanted == self._found, begun)

    @contextmanager
    def _faults(self, at: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = (
                f"output {self._path} cannot be compared with its source from byte {at} on: {error}"
            )
            raise storage_error(VerificationError, message, error) from error

    def _require(self, alike: bool, at: int) -> None:
        if not alike:
            raise VerificationError(
                f"output {self._path} differs from its source from byte {at} on"
            )


def _read(descriptor: int, into: bytearray, start: int) -> None:
    """Fill a buffer from a position of a file."""
    rest, at = memoryview(into), start
    while rest:
        count = os.preadv(descriptor, [rest], at)
        if not count:
            raise truncated_error(Span(start, len(into)), at)
        rest, at = rest[count:], at + count


# --------------------------------------------------------------------------------------- Local disk


LOCAL_STEP_BYTES = 4 * 1024**2
"""Bytes copied at a time: while they are compared, the next ones are copied."""
_NOT_HERE = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
"""Errors of file systems that cannot copy ranges."""


class LocalTarget:
    """A file of this machine."""

    def __init__(self, location: Location, path: str, on_copied: OnCopied) -> None:
        """Create the file.

        Raises:
            OSError: It exists already, or cannot be created.
        """
        self._file = NewFile(location, path)
        self._descriptor: int = self._file.sink.fileno()
        try:
            self._reader = os.open(location.full(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file.abandon()
            raise
        self._on_copied = on_copied
        self._likeness = OutputComparison(self._reader, path)
        self._by_system = hasattr(os, "copy_file_range")
        self.position = self.synced_bytes = 0
        self.sync_s = 0.0

    def write(self, content: bytes) -> None:
        """Append bytes."""
        begun, rest = self.position, memoryview(content)
        while rest:
            count = os.pwrite(self._descriptor, rest, self.position)
            self.position += count
            rest = rest[count:]
        self._likeness.add(content, begun)

    def copy(self, source: Source, span: Span) -> None:
        """Append a range of a source."""
        at = span.start
        while at < span.end:
            step = Span(at, min(LOCAL_STEP_BYTES, span.end - at))
            if source.descriptor is None:
                self.write(source.read(step))
            else:
                self._copy_step(source.descriptor, step)
            at = step.end
            self._on_copied(step.size)
            self._file.reached(self.position)

    def finish(self) -> None:
        """Make it durable, and check its contents."""
        try:
            self._file.close()
            self.sync_s = self._file.sync_s
            self.synced_bytes = self.position
            self._likeness.settle()
        finally:
            self._close()

    def abandon(self) -> None:
        """Delete it."""
        self._close()
        self._file.abandon()

    def _copy_step(self, descriptor: int, step: Span) -> None:
        begun, at = self.position, step.start
        while at < step.end and self._by_system:
            try:
                count = os.copy_file_range(
                    descriptor, self._descriptor, step.end - at, at, self.position
                )
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                self._by_system = False
                break
            if not count:
                raise truncated_error(step, at)
            at += count
            self.position += count
        self._likeness.add_range(descriptor, Span(step.start, at - step.start), begun)
        while at < step.end:
            content = os.pread(descriptor, step.end - at, at)
            if not content:
                raise truncated_error(step, at)
            self.write(content)
            at += len(content)

    def _close(self) -> None:
        self._likeness.close()
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1


# ------------------------------------------------------------------------------------- Object store


READ_AHEAD = 3
"""Steps that are read concurrently."""

STORED_STEP_BYTES = 8 * 1024**2
"""Bytes read at a time."""


class StoredTarget:
    """An object: a multipart upload, which becomes visible as a whole when it is closed."""

    synced_bytes, sync_s = 0, 0.0

    def __init__(self, location: Location, path: str, on_copied: OnCopied) -> None:
        self._location = location
        self._path, self._full = path, location.full(path)
        self._file = NewFile(location, path)
        self._on_copied = on_copied
        self._ahead = ThreadPoolExecutor(READ_AHEAD, "read-ahead")
        self._crc = 0
        self.position = 0

    def write(self, content: bytes) -> None:
        """Append bytes."""
        self._file.sink.write(content)
        self._crc = zlib.crc32(content, self._crc)
        self.position += len(content)

    def copy(self, source: Source, span: Span) -> None:
        """Append a range of a source."""
        self._steps(source, span, self._take)

    def finish(self) -> None:
        """Make it durable and read it back."""
        try:
            self._file.close()
            source = StoredSource(self._location, self._full)
            crc = 0

            def see(content: bytes) -> None:
                nonlocal crc
                crc = zlib.crc32(content, crc)

            try:
                if source.size() != self.position:
                    raise OSError(f"holds {source.size()} bytes, {self.position} were written")
                self._steps(source, Span(0, self.position), see)
            finally:
                source.close()
            if crc != self._crc:
                message = f"output {self._path} has the CRC {crc:08x}, not {self._crc:08x}"
                raise VerificationError(message)
        finally:
            self._ahead.shutdown(cancel_futures=True)

    def abandon(self) -> None:
        """Delete it."""
        self._ahead.shutdown(cancel_futures=True)
        self._file.abandon()

    def _take(self, content: bytes) -> None:
        self.write(content)
        self._on_copied(len(content))

    def _steps(self, source: Source, span: Span, use: Callable[[bytes], None]) -> None:
        """Read a range in steps, some of them ahead, and use them in order."""
        reads: deque[Future[bytes]] = deque()
        for start in range(span.start, span.end, STORED_STEP_BYTES):
            step = Span(start, min(STORED_STEP_BYTES, span.end - start))
            reads.append(self._ahead.submit(source.read, step))
            if len(reads) > READ_AHEAD:
                use(reads.popleft().result())
        while reads:
            use(reads.popleft().result())


# -------------------------------------------------------------------------------- Inspecting pieces


INDEX_BYTES_MAX = 16 * 1024**2
"""Largest page indexes of one row group; they stay in memory until the footer is written."""


@dataclass(frozen=True, slots=True)
class InspectedPiece:
    """A piece after its inspection."""

    piece: StitchPiece
    location: Location
    layout: FooterLayout
    copies: tuple[Span, ...]
    """Ranges of the file, in the order of the output."""
    groups: tuple[MovedGroup, ...]
    """Its row groups at their new positions, with their page indexes."""

    @property
    def copied_bytes(self) -> int:
        """Number of its bytes that are copied."""
        return sum(span.size for span in self.copies)


def inspect_piece(
    location: Location, piece: StitchPiece, start: int, known: FooterLayout | None = None
) -> InspectedPiece:
    """Read the description of a piece.

    Args:
        location: Default location of pieces.
        piece: The piece.
        start: Its position in the output.
        known: The layout of its footer, if it was read before; the footer is compared with it
            when the piece is copied.

    Raises:
        NotStitchableError: Its row groups cannot be copied unchanged.
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
    """Return row groups of an open file at their new positions, with their page indexes.

    Args:
        source: The file.
        layout: The layout of its footer.
        groups: Row groups of this layout, in the wanted order.
        start: Their position in the output.

    Raises:
        NotStitchableError: They cannot be copied unchanged.
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
    """Return the sizes of Bloom filters by position, checked against the end of the data."""
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
    """Return a row group with the page indexes of columns that have both parts."""
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
    """Copies pieces in a separate thread, one after another; on exit all are copied."""

    def __init__(self, target: Target, output: str) -> None:
        """Create an idle copier.

        Args:
            target: Receives the bytes.
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
        """Copy a piece after those that were added before.

        Raises:
            InputError: This one, or an earlier one, cannot be read or has changed.
            RewriteError: The output cannot be written.
            VerificationError: The output differs from its sources.
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
    """Distinguish faults of the output from those of its sources."""
    try:
        yield
    except ReadError:
        raise
    except OSError as error:
        message = f"output {output} cannot be written: {error}"
        raise storage_error(RewriteError, message, error) from error


# ---------------------------------------------------------------------------------------- Stitching


FOOTERS_BYTES_MAX = 6 * 1024**2
"""Largest total size of the pieces' footers; decoded, all of them are held until the end."""


def stitch(
    location: Location,
    pieces: Sequence[StitchPiece],
    output: str,
    *,
    footing: StitchedFooter | None = None,
    on_copied: OnCopied = lambda _: None,
) -> StitchedFile:
    """Write row groups of some files into a new file, one after the other, as bytes.

    No page is decoded. Page indexes and Bloom filters move with their pages. The pieces must
    have the same Parquet columns (names, types, repetition, logical types, field ids); codecs
    and encodings may differ. The caller is responsible for the order of rows, equal keys,
    tombstones and expired rows.

    Args:
        location: Location of the output, and of pieces that name no other.
        pieces: Pieces in the order of their rows; at least one.
        output: Path of the new file, which must not exist.
        footing: Contents of the footer other than row groups.
        on_copied: Called with copied bytes, every few megabytes; an error ends the stitch.

    Raises:
        NotStitchableError: The row groups cannot be copied unchanged; a rewrite may work.
        InputError: A piece is missing, cannot be read, is cut off or has changed.
        RewriteError: The output cannot be written: no space, no rights, or it exists.
        VerificationError: The output differs from its sources.
        UnavailableError: The storage does not answer.
    """
    footing = footing or StitchedFooter()
    if not pieces:
        raise NotStitchableError("there is nothing to stitch, expected at least one piece")
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
    """Inspect all pieces, and copy those that are inspected meanwhile."""
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
    """Return the bytes after those of the inspected pieces."""
    schema = arrow_schema_of(
        [(piece.piece.path, piece.layout.arrow_schema) for piece in looked], footing
    )
    moved = [group for piece in looked for group in piece.groups]
    end = len(MAGIC) + sum(piece.copied_bytes for piece in looked)
    return file_tail(moved, [piece.layout for piece in looked], footing, schema, end)


def _require_small_footers(size_bytes: int) -> None:
    """Refuse footers that are too large to hold."""
    if size_bytes > FOOTERS_BYTES_MAX:
        raise NotStitchableError(f"footers take more than {FOOTERS_BYTES_MAX} bytes together")


def _require_alike(first: InspectedPiece, each: InspectedPiece) -> None:
    """Refuse pieces with different columns."""
    if each.layout.columns != first.layout.columns:
        message = f"files {first.piece.path} and {each.piece.path} have other columns"
        raise NotStitchableError(message)


@contextmanager
def _open_target(location: Location, output: str, on_copied: OnCopied) -> Iterator[Target]:
    """Yield the output; after an error it is deleted."""
    with output_errors(output):
        target: Target = (LocalTarget if location.is_local else StoredTarget)(
            location, output, on_copied
        )
    try:
        yield target
    except BaseException:
        target.abandon()
        raise
