"""Files that row groups are copied from: opened, and checked before and after the copy.

An input is immutable by contract. This is still verified: its size and its footer must be the same
before the first byte was copied and after the last.
"""

import os
import re
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import InputError, NotStitchableError, RequestError
from common.parquet.location import Location, storage_error
from compactor.rewrite.parquet_bytes.footer import (
    MAGIC,
    FooterLayout,
    Span,
    ThriftError,
    decode,
    integer,
    read_layout,
)

TAIL_BYTES = 64 * 1024
"""Size of the first read of a file, at its end; most footers are smaller."""
FOOTER_BYTES_MAX = 8 * 1024**2
"""Largest footer of a file. A decoded footer takes up to seventy times as much memory."""
GAP_BYTES_MAX = 64 * 1024
"""Ranges with smaller gaps are read at once."""
_ENDING_BYTES = 8


class ReadError(OSError):
    """A source cannot be read, or is too short."""


class Source(Protocol):
    """An open file."""

    @property
    def descriptor(self) -> int | None:
        """Its file descriptor, if it has one."""
        ...

    def size(self) -> int:
        """Return its current size in bytes."""
        ...

    def read(self, span: Span) -> bytes:
        """Return all bytes of a range.

        Raises:
            ReadError: The file is too short, or cannot be read.
        """
        ...


class LocalSource:
    """A file of this machine."""

    def __init__(self, full: str) -> None:
        self.descriptor: int | None = os.open(full, os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError, AttributeError):
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def size(self) -> int:
        """Return its current size in bytes."""
        assert self.descriptor is not None
        return os.fstat(self.descriptor).st_size

    def read(self, span: Span) -> bytes:
        """Return all bytes of a range."""
        assert self.descriptor is not None
        parts, at = [], span.start
        while at < span.end:
            with _as_read_error():
                part = os.pread(self.descriptor, span.end - at, at)
            if not part:
                raise truncated_error(span, at)
            parts.append(part)
            at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Close the file."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class StoredSource:
    """A file of an object store, read in ranges."""

    descriptor: int | None = None

    def __init__(self, location: Location, full: str) -> None:
        self._system = location.filesystem
        self._full = full
        self._file: Any = location.filesystem.open_input_file(full)

    def size(self) -> int:
        """Return its current size in bytes."""
        return int(self._system.get_file_info(self._full).size or 0)

    def read(self, span: Span) -> bytes:
        """Return all bytes of a range."""
        with _as_read_error():
            content: bytes = self._file.read_at(span.size, span.start)
        if len(content) != span.size:
            raise truncated_error(span, span.start + len(content))
        return content

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class BufferSource:
    """A file in memory."""

    descriptor: int | None = None

    def __init__(self, buffer: pa.Buffer) -> None:
        self.view = memoryview(buffer)

    def size(self) -> int:
        """Return its size in bytes."""
        return len(self.view)

    def read(self, span: Span) -> bytes:
        """Return all bytes of a range."""
        if span.end > len(self.view):
            raise truncated_error(span, len(self.view))
        return bytes(self.view[span.start : span.end])


@contextmanager
def _as_read_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fault = ReadError(str(error))
        fault.errno = error.errno  # Distinguishes a failing storage from a damaged file.
        raise fault from error


def truncated_error(span: Span, end: int) -> ReadError:
    """Return the error for a file that ends within a range."""
    return ReadError(f"ends at byte {end}, expected bytes {span.start} to {span.end}")


@contextmanager
def open_source(location: Location, path: str) -> Iterator[Source]:
    """Open a file; read errors name it.

    Raises:
        InputError: The file does not exist, is cut off, or cannot be read.
        NotStitchableError: As raised within.
        UnavailableError: The storage does not answer.
    """
    try:
        full = location.full(path)
        source = LocalSource(full) if location.is_local else StoredSource(location, full)
        try:
            yield source
        finally:
            source.close()
    except NotStitchableError as error:
        raise NotStitchableError(f"file {path} cannot be stitched: {error}") from error
    except FileNotFoundError as error:
        raise InputError(f"file {path} does not exist in {location.uri}") from error
    except RequestError as error:
        raise InputError(str(error)) from error
    except (OSError, pa.ArrowException) as error:
        raise storage_error(InputError, f"file {path} cannot be read: {error}", error) from error


def read_footer_of(source: Source) -> FooterLayout:
    """Return the layout from the footer of an open file.

    Raises:
        NotStitchableError: See `read_layout`; or it is not a Parquet file.
        ReadError: It cannot be read.
    """
    size = source.size()
    if size < 2 * len(MAGIC) + _ENDING_BYTES:
        raise NotStitchableError(f"{size} bytes are not a Parquet file")
    tail = source.read(Span(max(0, size - TAIL_BYTES), min(size, TAIL_BYTES)))
    length = _footer_length(tail, size)
    start = size - _ENDING_BYTES - length
    if length + _ENDING_BYTES <= len(tail):
        footer = tail[len(tail) - _ENDING_BYTES - length : -_ENDING_BYTES]
    else:
        footer = source.read(Span(start, length))
    return read_layout(footer, size)


def _footer_length(tail: bytes, size: int) -> int:
    ending = tail[-len(MAGIC) :]
    if ending == b"PARE":
        raise NotStitchableError("its footer is encrypted")
    if ending != MAGIC:
        raise NotStitchableError(f"it ends with {ending!r}, expected {MAGIC!r}")
    length = int.from_bytes(tail[-_ENDING_BYTES : -len(MAGIC)], "little")
    if length > min(size - _ENDING_BYTES - len(MAGIC), FOOTER_BYTES_MAX):
        raise NotStitchableError(f"its footer of {length} bytes does not fit into {size}")
    return length


def require_source_unchanged(source: Source, layout: FooterLayout) -> None:
    """Refuse a file that has changed.

    Args:
        source: The open file.
        layout: The layout that was read before.

    Raises:
        ReadError: Size or footer have changed, or cannot be read.
    """
    size = source.size()
    if size != layout.size_bytes:
        raise ReadError(f"changed while it was copied: {size} bytes, not {layout.size_bytes}")
    start = size - _ENDING_BYTES - len(layout.footer)
    if source.read(Span(start, len(layout.footer))) != layout.footer:
        raise ReadError("changed while it was copied: it has another footer")


def read_spans(source: Source, spans: Sequence[Span], bytes_max: int) -> dict[Span, bytes]:
    """Return the bytes of some ranges; close ranges are read together.

    Args:
        source: The open file.
        spans: Ranges in any order.
        bytes_max: Largest total size.

    Raises:
        NotStitchableError: The total is larger.
        ReadError: They cannot be read.
    """
    if sum(span.size for span in spans) > bytes_max:
        raise NotStitchableError(f"its page indexes take more than {bytes_max} bytes")
    contents: dict[Span, bytes] = {}
    near: list[Span] = []
    for span in [*sorted(spans, key=lambda each: each.start), None]:
        if near and (span is None or span.start - near[-1].end > GAP_BYTES_MAX):
            start = near[0].start
            read = source.read(Span(start, max(each.end for each in near) - start))
            contents |= {each: read[each.start - start : each.end - start] for each in near}
            near = []
        if span is not None:
            near.append(span)
    return contents


# ---------------------------------------------------------------------------------------- Checksums
# Checksums of stored pages, for readers that do not verify them.
#
# Polars does not detect changed bytes in a page, and neither does Arrow by default: a flipped bit
# becomes another value. Checksums in a file are verified before its bytes are decoded; pages
# without a checksum are accepted.


# PageHeader of parquet.thrift
PAGE_BYTES, PAGE_CRC = 3, 4
PAGES_START = 4
"""Position of the first page of a file: after the letters PAR1."""
WINDOW_BYTES = 2 * 1024**2
"""Bytes read at a time, unless a page is larger."""
FIRST_BYTES = 8192
"""Bytes read to find out whether pages have checksums."""
HEADER_DECODE_BYTES = 512
"""Bytes decoded first; a longer header is decoded again with more bytes."""
_I32 = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
_PLAIN_HEADER = re.compile(
    # Type, decoded size, size.
    rb"\x15%(i32)b\x15%(i32)b\x15(%(i32)b)"
    # A checksum or none, and the start of the struct for the kind of page: fields 5 to 8.
    rb"(?:\x15(%(i32)b)[\x1c\x2c\x3c\x4c]|[\x2c\x3c\x4c\x5c])"
    # The struct has integers and booleans only. Then both structs end.
    rb"(?:[\x15\x25\x35]%(i32)b|[\x11\x12\x21\x22])*\x00\x00" % {b"i32": _I32}
)
"""A page header without statistics, as most writers produce it.

The first byte of a field determines the length of the field, so there is only one match. It takes a
tenth of the time of a decoder.
"""
_buffers = threading.local()


class PageError(Exception):
    """A page differs from what was written."""


def chunk_places(group: pq.RowGroupMetaData, names: Iterable[str]) -> list[tuple[str, int, int]]:
    """Return the positions of a row group's column chunks: path, first byte, size.

    Args:
        group: Its metadata.
        names: Wanted columns; nested ones by their top-level name.
    """
    wanted, chunks = frozenset(names), []
    for number in range(group.num_columns):
        column = group.column(number)
        path = column.path_in_schema
        if path in wanted or path.partition(".")[0] in wanted:
            chunks.append((path, *chunk_place(column)))
    return chunks


def chunk_place(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the first byte of a column chunk, and its size."""
    start = column.data_page_offset
    if column.has_dictionary_page and (first := column.dictionary_page_offset) is not None:
        start = min(start, first)
    return start, column.total_compressed_size


def check_chunk(descriptor: int, start: int, size_bytes: int) -> None:
    """Check the pages of a column chunk, with few of them in memory at a time.

    Writers give a checksum to all pages of a chunk or to none, so the first page decides.

    Args:
        descriptor: Descriptor of the open file.
        start: Start of the chunk.
        size_bytes: Size of the chunk.

    Raises:
        PageError: A checksum is wrong, or a page is malformed.
        OSError: They cannot be read.
    """
    if not has_checksum(os.pread(descriptor, min(FIRST_BYTES, size_bytes), start)):
        return
    at, room = 0, WINDOW_BYTES
    while at < size_bytes:
        wanted = min(room, size_bytes - at)
        window = _thread_buffer(wanted)
        if (read_bytes := os.preadv(descriptor, [window], start + at)) < wanted:
            raise PageError(f"it ends at byte {at + read_bytes} of {size_bytes}")
        checked = _check_whole_pages(window, at, ends=at + wanted == size_bytes)
        room = WINDOW_BYTES if checked else 2 * room
        at += checked


def has_checksum(page: bytes) -> bool:
    """Return whether a page has a checksum, or an unreadable header, from its first bytes."""
    try:
        _, wanted, _ = _header(memoryview(page), 0)
    except ThriftError:
        return True
    return wanted is not None


def _thread_buffer(size_bytes: int) -> memoryview:
    """Return a buffer for bytes of a file, reused by each thread.

    New buffers would fragment the memory between row groups that are decoded concurrently.
    """
    if size_bytes > WINDOW_BYTES:
        return memoryview(bytearray(size_bytes))
    if len(getattr(_buffers, "window", b"")) < WINDOW_BYTES:
        _buffers.window = bytearray(WINDOW_BYTES)
    return memoryview(_buffers.window)[:size_bytes]


def check_pages(pages: bytes, start: int = 0) -> None:
    """Check consecutive pages of one column chunk or of several.

    Args:
        pages: All their bytes.
        start: Position of the first page, for messages.

    Raises:
        PageError: A checksum is wrong, or a page is malformed.
    """
    _check_whole_pages(memoryview(pages), start, ends=True)


def _check_whole_pages(window: memoryview, base: int, *, ends: bool) -> int:
    """Check the pages that are completely in a window of a chunk; return their size.

    Args:
        window: The bytes, which begin with a page.
        base: Their position in the chunk.
        ends: Whether the chunk ends with them.
    """
    at = 0
    while at < len(window):
        try:
            size, wanted, begin = _header(window, at)
        except ThriftError as error:
            if not ends:
                return at
            raise PageError(f"the page header at byte {base + at} is damaged: {error}") from error
        if size is None or size < 0 or (ends and size > len(window) - begin):
            raise PageError(f"the page at byte {base + at} claims to have {size} bytes")
        if (end := begin + size) > len(window):
            return at
        if wanted is not None and zlib.crc32(window[begin:end]) != wanted & 0xFFFFFFFF:
            raise PageError(f"the page at byte {base + at} does not have its checksum")
        at = end
    return at


def _header(window: memoryview, at: int) -> tuple[int | None, int | None, int]:
    """Return a page's size and checksum, and its position after the header.

    Raises:
        ThriftError: The header is malformed, or cut off.
    """
    if (plain := _PLAIN_HEADER.match(window, at)) is None:
        return _decoded_header(window, at)
    size, checksum = plain.groups()
    return _number(size), None if checksum is None else _number(checksum), plain.end()


def _number(coded: bytes) -> int:
    """Return an integer from its bytes in Thrift's compact protocol."""
    value = 0
    for byte in reversed(coded):
        value = value << 7 | byte & 0x7F
    return (value >> 1) ^ -(value & 1)


def _decoded_header(window: memoryview, at: int) -> tuple[int | None, int | None, int]:
    """Return the same for any header, field by field."""
    size = HEADER_DECODE_BYTES
    while True:
        try:
            header, end = decode(bytes(window[at : at + size]), {})
            return integer(header, PAGE_BYTES), integer(header, PAGE_CRC), at + end
        except ThriftError:
            if at + size >= len(window):
                raise
            size *= 16  # Some writers put long statistics into it.
