"""Checksums of stored pages, for readers that do not verify them.

Polars does not detect changed bytes in a page, and neither does Arrow by default: a flipped bit
becomes another value. Checksums in a file are verified before its bytes are decoded; pages without
a checksum are accepted.
"""

import os
import threading
import zlib
from collections.abc import Iterable

import pyarrow.parquet as pq

from compactor.rewrite.parquet_bytes.thrift import ThriftError, decode, integer

# PageHeader of parquet.thrift
PAGE_BYTES, PAGE_CRC = 3, 4
PAGES_START = 4
"""Position of the first page of a file: after the letters PAR1."""
WINDOW_BYTES = 2 * 1024**2
"""Bytes read at a time, unless a page is larger."""
HEADER_DECODE_BYTES = 512
"""Bytes decoded first; a longer header is decoded again with more bytes."""
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
            start = column.data_page_offset
            if column.has_dictionary_page and column.dictionary_page_offset is not None:
                start = min(start, column.dictionary_page_offset)
            chunks.append((path, start, column.total_compressed_size))
    return chunks


def check_chunk(descriptor: int, start: int, size_bytes: int) -> None:
    """Check the pages of a column chunk, with few of them in memory at a time.

    Args:
        descriptor: Descriptor of the open file.
        start: Start of the chunk.
        size_bytes: Size of the chunk.

    Raises:
        PageError: A checksum is wrong, or a page is malformed.
        OSError: They cannot be read.
    """
    at, room = 0, WINDOW_BYTES
    while at < size_bytes:
        wanted = min(room, size_bytes - at)
        window = _thread_buffer(wanted)
        if (read_bytes := os.preadv(descriptor, [window], start + at)) < wanted:
            raise PageError(f"it ends at byte {at + read_bytes} of {size_bytes}")
        checked = _check_whole_pages(window, at, ends=at + wanted == size_bytes)
        room = WINDOW_BYTES if checked else 2 * room
        at += checked


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
    size = HEADER_DECODE_BYTES
    while True:
        try:
            header, end = decode(bytes(window[at : at + size]), {})
            return integer(header, PAGE_BYTES), integer(header, PAGE_CRC), at + end
        except ThriftError:
            if at + size >= len(window):
                raise
            size *= 16  # Some writers put long statistics into it.
