"""Where the pages of a column chunk lie, and which rows they hold.

Source: Data Pages and PageIndex of the Apache Parquet format; field ids of parquet.thrift.
"""

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise

from common.errors import NotStitchableError
from compactor.rewrite.stitch.footer import Chunk, Span
from compactor.rewrite.stitch.moving import PAGE_BYTES, PAGE_OFFSET, PAGES
from compactor.rewrite.stitch.sources import Source
from compactor.rewrite.thrift.reading import decode, decode_whole
from compactor.rewrite.thrift.values import (
    Shape,
    Struct,
    ThriftError,
    elements,
    integer,
)

# PageHeader
TYPE, DECODED_BYTES, STORED_BYTES, DATA, DATA_V2 = 1, 2, 3, 5, 8
# DataPageHeader, DataPageHeaderV2
VALUES = 1
# PageLocation
FIRST_ROW = 3
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
HEADER_SHAPE: Shape = {DATA: {}, DATA_V2: {}}
HEADER_BYTES, HEADER_BYTES_MAX = 4 * 1024, 1024**2
"""Read at first, and at most: a header holds statistics, of which some writers make long ones."""
INDEX_BYTES_MAX = 16 * 1024**2
"""Of a column chunk's offset index; it is walked through otherwise."""


@dataclass(frozen=True, slots=True)
class Header:
    """What precedes a page."""

    kind: int
    size: int
    """Bytes of the header itself."""
    stored_bytes: int
    """Of the page behind it."""
    decoded_bytes: int
    rows: int
    """Of a column that is not nested."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of a column chunk, one behind the other."""

    dictionary: Span
    """Without bytes if there is none."""
    starts: "array[int]"
    """Where each page with values begins in the file, and where the last one ends."""
    first_rows: "array[int]"
    """The first row of each page, and the rows of all."""
    told: bool = False
    """By an index, which nobody has looked behind."""

    def holding(self, skip: int, rows: int) -> tuple[Span, range]:
        """Return where the pages with some rows are, and which rows are in them.

        Args:
            skip: Rows of the row group that come before these.
            rows: How many they are, one at least.
        """
        first = bisect_right(self.first_rows, skip) - 1
        behind = bisect_left(self.first_rows, skip + rows)
        start = self.starts[first]
        held = range(self.first_rows[first], self.first_rows[behind])
        return Span(start, self.starts[behind] - start), held


def pages_of(source: Source, chunk: Chunk, rows: int) -> Pages:
    """Return the pages of a column that is not nested.

    An offset index tells them; where there is none, or one that cannot be true, each
    page's header tells where the next one is.

    Args:
        source: The open file.
        chunk: Of one row group.
        rows: Of the row group.

    Raises:
        NotStitchableError: They are no pages, or not of so many rows.
        ReadError: The file cannot be read.
    """
    return _indexed(source, chunk, rows) or walked(source, chunk, rows)


def walked(source: Source, chunk: Chunk, rows: int) -> Pages:
    """Return the pages as their own headers tell them; see `pages_of`."""
    try:
        return _walked(source, chunk, rows)
    except ThriftError as error:
        raise NotStitchableError(f"its pages are damaged: {error}") from error


def header_at(view: bytes, at: int) -> Header:
    """Return the header of a page.

    Args:
        view: Bytes that hold it.
        at: Where it begins in them.

    Raises:
        ThriftError: There is none, or it is cut off.
    """
    struct, end = decode(view, HEADER_SHAPE, at)
    kind = integer(struct, TYPE)
    stored, decoded = _count(struct, STORED_BYTES), _count(struct, DECODED_BYTES)
    if kind == DICTIONARY_PAGE:
        return Header(kind, end - at, stored, decoded, 0)
    described = struct.get({DATA_PAGE: DATA, DATA_PAGE_V2: DATA_V2}.get(kind or 0, 0))
    if kind is None or described is None or not isinstance(described.value, dict):
        raise ThriftError(f"a page of type {kind}")
    return Header(kind, end - at, stored, decoded, _count(described.value, VALUES))


def _indexed(source: Source, chunk: Chunk, rows: int) -> Pages | None:
    """Return the pages as an offset index tells them; None: there is none to be believed."""
    span, data = chunk.offset_index, chunk.data
    if span is None or span.size > INDEX_BYTES_MAX:
        return None
    try:
        index = decode_whole(source.read(span), {PAGES: {}})
        places = [
            (_count(each, PAGE_OFFSET), _count(each, PAGE_BYTES), _count(each, FIRST_ROW))
            for each in elements(index, PAGES)
        ]
    except ThriftError:
        return None
    starts = array("q", [start for start, _, _ in places] + [data.end])
    first_rows = array("q", [row for _, _, row in places] + [rows])
    together = all(
        start + size == after for (start, size, _), after in zip(places, starts[1:], strict=True)
    )
    ascending = all(before < after for before, after in pairwise(first_rows))
    if not (places and together and ascending and starts[0] >= data.start and first_rows[0] == 0):
        return None
    dictionary = Span(data.start, starts[0] - data.start)
    return Pages(dictionary, starts, first_rows, told=True)


def _walked(source: Source, chunk: Chunk, rows: int) -> Pages:
    """Return the pages as their headers tell them."""
    data = chunk.data
    starts, first_rows = array("q"), array("q")
    at, row, dictionary = data.start, 0, Span(data.start, 0)
    while at < data.end:
        header = _read_header(source, Span(at, data.end - at))
        end = at + header.size + header.stored_bytes
        if header.kind == DICTIONARY_PAGE and at == data.start:
            dictionary = Span(at, end - at)
        elif header.kind == DICTIONARY_PAGE:
            raise ThriftError(f"a second dictionary at byte {at}")
        elif header.rows:
            starts.append(at)
            first_rows.append(row)
            row += header.rows
        elif not starts:  # Others without values go with the page before.
            raise ThriftError(f"a page without values at byte {at}")
        at = end
    if at != data.end or row != rows:
        raise ThriftError(f"{row} rows in {at - data.start} of {data.size} bytes, not {rows}")
    starts.append(at)
    first_rows.append(row)
    return Pages(dictionary, starts, first_rows)


def _read_header(source: Source, rest: Span) -> Header:
    """Return the header that the rest of a column chunk begins with."""
    wanted = HEADER_BYTES
    while True:
        view = source.read(Span(rest.start, min(wanted, rest.size)))
        try:
            return header_at(view, 0)
        except ThriftError:
            if len(view) == rest.size or wanted >= HEADER_BYTES_MAX:
                raise
            wanted *= 16


def _count(struct: Struct, number: int) -> int:
    value = integer(struct, number)
    if value is None or value < 0:
        raise ThriftError(f"field {number} of a page is {value}, wanted a count")
    return value
