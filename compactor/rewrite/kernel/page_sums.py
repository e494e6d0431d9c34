"""Checksums of stored pages, for those who decode without looking at them.

Polars reads a page whose bytes have changed as if nothing were wrong, and so does Arrow
unless told otherwise: a flipped bit becomes another value. Whoever wrote checksums gets
them checked before anything is made of the bytes; pages without one are believed.
"""

import zlib
from collections.abc import Iterable

import pyarrow.parquet as pq

from compactor.rewrite.thrift.reading import decode
from compactor.rewrite.thrift.values import ThriftError, integer

# PageHeader of parquet.thrift
PAGE_BYTES, PAGE_CRC = 3, 4
PAGES_START = 4
"""Where the first page of a file is: behind the letters PAR1."""


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


def check_pages(chunk: bytes) -> None:
    """Check the pages of a column chunk.

    Args:
        chunk: All its bytes.

    Raises:
        PageError: A checksum is wrong, or the bytes are no pages.
    """
    view, at = memoryview(chunk), 0
    while at < len(chunk):
        try:
            header, begin = decode(chunk, {}, at)
            size, wanted = integer(header, PAGE_BYTES), integer(header, PAGE_CRC)
        except ThriftError as error:
            raise PageError(f"the page header at byte {at} is damaged: {error}") from error
        if size is None or not 0 <= size <= len(chunk) - begin:
            raise PageError(f"the page at byte {at} is said to have {size} bytes")
        end = begin + size
        if wanted is not None and zlib.crc32(view[begin:end]) != wanted & 0xFFFFFFFF:
            raise PageError(f"the page at byte {at} does not have its checksum")
        at = end
