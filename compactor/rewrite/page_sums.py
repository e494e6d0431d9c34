"""Checksums of stored pages, for those who decode without looking at them.

Polars reads a page whose bytes have changed as if nothing were wrong, and so does Arrow
unless told otherwise: a flipped bit becomes another value. Whoever wrote checksums gets
them checked before anything is made of the bytes; pages without one are believed.
"""

import os
import zlib
from collections.abc import Iterable

import pyarrow.parquet as pq

from compactor.rewrite.thrift.reading import decode
from compactor.rewrite.thrift.values import ThriftError, integer

# PageHeader of parquet.thrift
PAGE_BYTES, PAGE_CRC = 3, 4
PAGES_START = 4
"""Where the first page of a file is: behind the letters PAR1."""
WINDOW_BYTES = 2 * 1024**2
"""Read at a time, if no page has more."""


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
        window = os.pread(descriptor, wanted, start + at)
        if len(window) < wanted:
            raise PageError(f"it ends at byte {at + len(window)} of {size_bytes}")
        checked = _check_whole_pages(window, at, ends=at + wanted == size_bytes)
        room = WINDOW_BYTES if checked else 2 * room
        at += checked


def check_pages(pages: bytes, start: int = 0) -> None:
    """Check pages that follow each other, of one column chunk or of several.

    Args:
        pages: All their bytes.
        start: Where the first is, for messages.

    Raises:
        PageError: A checksum is wrong, or the bytes are no pages.
    """
    _check_whole_pages(pages, start, ends=True)


def _check_whole_pages(window: bytes, base: int, *, ends: bool) -> int:
    """Check the pages that lie in a window of a chunk as a whole; return their bytes.

    Args:
        window: The bytes; a page begins with them.
        base: Where they are in the chunk.
        ends: Whether the chunk ends with them.
    """
    view, at = memoryview(window), 0
    while at < len(window):
        try:
            header, begin = decode(window, {}, at)
            size, wanted = integer(header, PAGE_BYTES), integer(header, PAGE_CRC)
        except ThriftError as error:
            if not ends:
                return at
            raise PageError(f"the page header at byte {base + at} is damaged: {error}") from error
        if size is None or size < 0 or (ends and size > len(window) - begin):
            raise PageError(f"the page at byte {base + at} is said to have {size} bytes")
        if (end := begin + size) > len(window):
            return at
        if wanted is not None and zlib.crc32(view[begin:end]) != wanted & 0xFFFFFFFF:
            raise PageError(f"the page at byte {base + at} does not have its checksum")
        at = end
    return at
