"""Checksums of stored pages, for those who decode without looking at them.

Polars reads a page whose bytes have changed as if nothing were wrong, and so does Arrow
unless told otherwise: a flipped bit becomes another value. Whoever wrote checksums gets
them checked before anything is made of the bytes; pages without one are believed.
"""

import zlib
from collections.abc import Iterable

import pyarrow.parquet as pq

_SIZE_FIELD, _CRC_FIELD = 3, 4
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12
_DEPTH_MAX = 8
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
            size, wanted, begin = _header(chunk, at)
        except IndexError:
            raise PageError(f"the page header at byte {at} has no end") from None
        end = begin + size
        if size < 0 or end > len(chunk):
            raise PageError(f"the page at byte {at} is said to have {size} bytes")
        if wanted is not None and zlib.crc32(view[begin:end]) != wanted & 0xFFFFFFFF:
            raise PageError(f"the page at byte {at} does not have its checksum")
        at = end


def _header(data: bytes, at: int) -> tuple[int, int | None, int]:
    """Return size and checksum of a page, and where its bytes begin."""
    field, size, crc = 0, -1, None
    while (head := data[at]) != _STOP:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = _zigzag(data, at)
        if field in (_SIZE_FIELD, _CRC_FIELD):
            value, at = _zigzag(data, at)
            size, crc = (value, crc) if field == _SIZE_FIELD else (size, value)
        else:
            at = _skipped(data, at, head & 15, 0)
    return size, crc, at + 1


def _skipped(data: bytes, at: int, kind: int, depth: int) -> int:
    """Return where a value ends."""
    if depth > _DEPTH_MAX:
        raise PageError("a page header is nested too deeply")
    if kind in (_TRUE, _FALSE):
        return at
    if kind == _BYTE:
        return at + 1
    if kind == _DOUBLE:
        return at + 8
    if kind == _BINARY:
        length, at = _varint(data, at)
        return at + length
    if kind == _STRUCT:
        return _skipped_struct(data, at, depth)
    if kind in (_LIST, _SET):
        return _skipped_list(data, at, depth)
    return _varint(data, at)[1]


def _skipped_struct(data: bytes, at: int, depth: int) -> int:
    while (head := data[at]) != _STOP:
        at += 1
        if not head >> 4:
            _, at = _varint(data, at)
        at = _skipped(data, at, head & 15, depth + 1)
    return at + 1


def _skipped_list(data: bytes, at: int, depth: int) -> int:
    head = data[at]
    count, at = head >> 4, at + 1
    if count == 15:
        count, at = _varint(data, at)
    for _ in range(min(count, len(data))):
        kind = head & 15
        at = at + 1 if kind in (_TRUE, _FALSE) else _skipped(data, at, kind, depth + 1)
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at
