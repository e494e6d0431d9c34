"""Checksums of stored pages, for those who decode without looking at them.

Polars reads a page whose bytes have changed as if nothing were wrong, and so does Arrow
unless told otherwise: a flipped bit becomes another value. Whoever wrote checksums gets
them checked before anything is made of the bytes; pages without one are believed.
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
"""Where the first page of a file is: behind the letters PAR1."""
WINDOW_BYTES = 2 * 1024**2
"""Read at a time, if no page has more."""
HEADER_DECODE_BYTES = 512
"""Decoded at first; a longer header is decoded again with more."""
_buffers = threading.local()


class PageError(Exception):
    """A page is not as it was written."""


def chunk_places(group: pq.RowGroupMetaData, names: Iterable[str]) -> list[tuple[str, int, int]]:
    """Return where the column chunks of a row group lie: path, first byte, bytes.

    Args:
        group: Its metadata.
        names: Columns that are wanted; nested ones by their first name.
    """
    wanted, places = frozenset(names), []
    for number in range(group.num_columns):
        column = group.column(number)
        path = column.path_in_schema
        if path in wanted or path.partition(".")[0] in wanted:
            start = column.data_page_offset
            if column.has_dictionary_page and column.dictionary_page_offset is not None:
                start = min(start, column.dictionary_page_offset)
            places.append((path, start, column.total_compressed_size))
    return places


def check_chunk(descriptor: int, start: int, size_bytes: int) -> None:
    """Check the pages of a column chunk, of which few are in memory at a time.

    Args:
        descriptor: Of the open file.
        start: Where the chunk begins.
        size_bytes: Of the chunk.

    Raises:
        PageError: A checksum is wrong, or the bytes are no pages.
        OSError: They cannot be read.
    """
    at, room = 0, WINDOW_BYTES
    while at < size_bytes:
        wanted = min(room, size_bytes - at)
        window = _thread_buffer(wanted)
        if (found := os.preadv(descriptor, [window], start + at)) < wanted:
            raise PageError(f"it ends at byte {at + found} of {size_bytes}")
        checked = _check_whole_pages(window, at, ends=at + wanted == size_bytes)
        room = WINDOW_BYTES if checked else 2 * room
        at += checked


def _thread_buffer(size_bytes: int) -> memoryview:
    """Return room for bytes of a file, the same again and again for each thread.

    Row groups that are decoded beside it would lie between windows that come and go.
    """
    if size_bytes > WINDOW_BYTES:
        return memoryview(bytearray(size_bytes))
    if len(getattr(_buffers, "window", b"")) < WINDOW_BYTES:
        _buffers.window = bytearray(WINDOW_BYTES)
    return memoryview(_buffers.window)[:size_bytes]


def check_pages(pages: bytes, start: int = 0) -> None:
    """Check pages that follow each other, of one column chunk or of several.

    Args:
        pages: All their bytes.
        start: Where the first is, for messages.

    Raises:
        PageError: A checksum is wrong, or the bytes are no pages.
    """
    _check_whole_pages(memoryview(pages), start, ends=True)


def _check_whole_pages(window: memoryview, base: int, *, ends: bool) -> int:
    """Check the pages that lie in a window of a chunk as a whole; return their bytes.

    Args:
        window: The bytes; a page begins with them.
        base: Where they are in the chunk.
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
            raise PageError(f"the page at byte {base + at} is said to have {size} bytes")
        if (end := begin + size) > len(window):
            return at
        if wanted is not None and zlib.crc32(window[begin:end]) != wanted & 0xFFFFFFFF:
            raise PageError(f"the page at byte {base + at} does not have its checksum")
        at = end
    return at


def _header(window: memoryview, at: int) -> tuple[int | None, int | None, int]:
    """Return a page's size and checksum, and where it begins behind its header.

    Raises:
        ThriftError: There is no header, or it is cut off.
    """
    size = HEADER_DECODE_BYTES
    while True:
        try:
            header, end = decode(bytes(window[at : at + size]), {})
            return integer(header, PAGE_BYTES), integer(header, PAGE_CRC), at + end
        except ThriftError:
            if at + size >= len(window):
                raise
            size *= 16  # Some writers have long statistics in it.
