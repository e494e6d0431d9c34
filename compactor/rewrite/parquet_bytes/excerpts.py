"""Excerpts: some pages of a column chunk as a separate Parquet file, in memory.

Readers decode a whole row group even if only few of its rows are needed. If a row group is larger
than a task may hold, readers get an excerpt with the pages of the needed rows.
"""

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import InputError, NotStitchableError
from common.parquet.location import Location
from compactor.rewrite.parquet_bytes import footer as ids
from compactor.rewrite.parquet_bytes.footer import (
    I32,
    MAGIC,
    STRUCT,
    Chunk,
    Field,
    FooterLayout,
    Shape,
    Span,
    Struct,
    ThriftError,
    binary,
    binary_field,
    decode,
    decode_whole,
    edited,
    elements,
    integer,
    list_field,
    located,
    number_field,
)
from compactor.rewrite.parquet_bytes.relocation import (
    PAGE_BYTES,
    PAGE_OFFSET,
    PAGES,
    encode_arrow_schema,
    encode_footer,
)
from compactor.rewrite.parquet_bytes.sources import (
    PageError,
    Source,
    check_pages,
    open_source,
    read_footer_of,
)

# -------------------------------------------------------------------------- Pages of a column chunk


# PageHeader
TYPE, DECODED_BYTES, STORED_BYTES, DATA, DATA_V2 = 1, 2, 3, 5, 8
# DataPageHeader, DataPageHeaderV2
PAGE_VALUES = 1
# PageLocation
FIRST_ROW = 3
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
HEADER_SHAPE: Shape = {DATA: {}, DATA_V2: {}}
HEADER_READ_BYTES, HEADER_READ_BYTES_MAX = 4 * 1024, 1024**2
"""Bytes of the first read, and largest header: some writers put long statistics into headers."""
INDEX_BYTES_MAX = 16 * 1024**2
"""Largest offset index of a column chunk; otherwise the pages are walked."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a page."""

    kind: int
    size: int
    """Size of the header itself."""
    stored_bytes: int
    """Size of the page after it."""
    decoded_bytes: int
    rows: int
    """Number of rows, for a column that is not nested."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of a column chunk, in their order."""

    dictionary: Span
    """Empty if there is no dictionary."""
    starts: "array[int]"
    """Start of each page with values in the file, and the end of the last page."""
    first_rows: "array[int]"
    """First row of each page, and the total number of rows."""
    from_index: bool = False
    """Whether the positions come from an index that was not compared with the pages."""

    def holding(self, skip: int, rows: int) -> tuple[Span, range]:
        """Return the span of the pages with some rows, and the rows in them.

        Args:
            skip: Rows of the row group before these.
            rows: Number of rows, at least one.
        """
        first = bisect_right(self.first_rows, skip) - 1
        after_last = bisect_left(self.first_rows, skip + rows)
        start = self.starts[first]
        held = range(self.first_rows[first], self.first_rows[after_last])
        return Span(start, self.starts[after_last] - start), held


def pages_of(source: Source, chunk: Chunk, rows: int) -> Pages:
    """Return the pages of a column that is not nested.

    They come from an offset index. If it is missing or inconsistent, each page's header gives the
    position of the next page.

    Args:
        source: The open file.
        chunk: A chunk of one row group.
        rows: Number of rows of the row group.

    Raises:
        NotStitchableError: They are malformed, or have another number of rows.
        ReadError: The file cannot be read.
    """
    return _indexed(source, chunk, rows) or walk_pages(source, chunk, rows)


def walk_pages(source: Source, chunk: Chunk, rows: int) -> Pages:
    """Return the pages from their own headers; see `pages_of`."""
    try:
        return _walked(source, chunk, rows)
    except ThriftError as error:
        raise NotStitchableError(f"its pages are damaged: {error}") from error


def header_at(view: bytes, at: int) -> Header:
    """Return the header of a page.

    Args:
        view: Bytes that contain it.
        at: Its position in them.

    Raises:
        ThriftError: It is malformed, or cut off.
    """
    struct, end = decode(view, HEADER_SHAPE, at)
    kind = integer(struct, TYPE)
    stored, decoded = _count(struct, STORED_BYTES), _count(struct, DECODED_BYTES)
    if kind == DICTIONARY_PAGE:
        return Header(kind, end - at, stored, decoded, 0)
    described = struct.get({DATA_PAGE: DATA, DATA_PAGE_V2: DATA_V2}.get(kind or 0, 0))
    if kind is None or described is None or not isinstance(described.value, dict):
        raise ThriftError(f"a page of type {kind}")
    return Header(kind, end - at, stored, decoded, _count(described.value, PAGE_VALUES))


def _indexed(source: Source, chunk: Chunk, rows: int) -> Pages | None:
    """Return the pages from an offset index; None: there is no plausible one."""
    span, data = chunk.offset_index, chunk.data
    if span is None or span.size > INDEX_BYTES_MAX:
        return None
    try:
        index = decode_whole(source.read(span), {PAGES: {}})
        locations = [
            (_count(element, PAGE_OFFSET), _count(element, PAGE_BYTES), _count(element, FIRST_ROW))
            for element in elements(index, PAGES)
        ]
    except ThriftError:
        return None
    starts = array("q", [start for start, _, _ in locations] + [data.end])
    first_rows = array("q", [row for _, _, row in locations] + [rows])
    adjacent = all(
        start + size == after for (start, size, _), after in zip(locations, starts[1:], strict=True)
    )
    ascending = all(before < after for before, after in pairwise(first_rows))
    if not (
        locations and adjacent and ascending and starts[0] >= data.start and first_rows[0] == 0
    ):
        return None
    dictionary = Span(data.start, starts[0] - data.start)
    return Pages(dictionary, starts, first_rows, from_index=True)


def _walked(source: Source, chunk: Chunk, rows: int) -> Pages:
    """Return the pages from their headers."""
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
        elif not starts:  # Other pages without values belong to the page before.
            raise ThriftError(f"a page without values at byte {at}")
        at = end
    if at != data.end or row != rows:
        raise ThriftError(f"{row} rows in {at - data.start} of {data.size} bytes, not {rows}")
    starts.append(at)
    first_rows.append(row)
    return Pages(dictionary, starts, first_rows)


def _read_header(source: Source, rest: Span) -> Header:
    """Return the header at the start of the rest of a column chunk."""
    wanted = HEADER_READ_BYTES
    while True:
        view = source.read(Span(rest.start, min(wanted, rest.size)))
        try:
            return header_at(view, 0)
        except ThriftError:
            if len(view) == rest.size or wanted >= HEADER_READ_BYTES_MAX:
                raise
            wanted *= 16


def _count(struct: Struct, number: int) -> int:
    value = integer(struct, number)
    if value is None or value < 0:
        raise ThriftError(f"field {number} of a page is {value}, expected a count")
    return value


# ------------------------------------------------------------------------ Files from pages


# SchemaElement
REPETITION, NAME, CHILDREN = 3, 4, 5
REPEATED = 2
# ColumnMetaData
CHUNK_VALUES, DECODED, KEY_VALUES = 5, 6, 8
STATISTICS, ENCODING_STATS, SIZE_STATISTICS, GEOSPATIAL_STATISTICS = 12, 13, 16, 17
_LEFT_OUT = (
    *(KEY_VALUES, STATISTICS, ENCODING_STATS, SIZE_STATISTICS, GEOSPATIAL_STATISTICS),
    *(ids.INDEX_PAGE, ids.BLOOM, ids.BLOOM_BYTES),
)
"""They describe all pages, or positions that are not in the excerpt."""


@dataclass(frozen=True, slots=True)
class FlatColumn:
    """A column that is not nested."""

    element: Struct
    """Its schema element."""
    leaf: int
    """Its index among the leaf columns."""


def flat_columns(layout: FooterLayout) -> dict[str, FlatColumn]:
    """Return the columns of a file that are not nested, by name.

    Raises:
        ThriftError: The schema is damaged.
    """
    schema = elements(layout.struct, ids.SCHEMA)
    columns: dict[str, FlatColumn] = {}
    leaf, within = 0, 0
    for element in schema[1:]:
        children = integer(element, CHILDREN) or 0
        if within == 0 and not children and integer(element, REPETITION) != REPEATED:
            columns[(binary(element, NAME) or b"").decode(errors="replace")] = FlatColumn(
                element, leaf
            )
        within += children - (1 if within else 0)
        leaf += not children
    return columns


def file_of_pages(
    layout: FooterLayout,
    chunk: Chunk,
    column: FlatColumn,
    pages: tuple[bytes, bytes],
    field: pa.Field,
) -> tuple[bytes, int]:
    """Return a Parquet file with some pages, and the number of their rows.

    Args:
        layout: Layout of the source file.
        chunk: Chunk of the pages.
        column: Column of the pages.
        pages: The dictionary page, or nothing; the pages with values.
        field: The column as Arrow reads it.

    Raises:
        NotStitchableError: The pages are malformed.
    """
    try:
        rows, decoded_bytes = _rows_and_bytes(pages)
    except ThriftError as error:
        raise NotStitchableError(f"its pages are damaged: {error}") from error
    start = len(MAGIC)
    meta = located(chunk.struct, ids.META)
    assert meta is not None, "the layout has checked it"
    stored_bytes = len(pages[0]) + len(pages[1])
    fields: dict[int, Field | None] = dict.fromkeys(_LEFT_OUT)
    fields |= {
        CHUNK_VALUES: number_field(rows),
        DECODED: number_field(decoded_bytes),
        ids.COMPRESSED: number_field(stored_bytes),
        ids.DATA_PAGE: number_field(start + len(pages[0])),
        ids.DICTIONARY_PAGE: number_field(start) if pages[0] else None,
    }
    described: Struct = {
        ids.CHUNK_OFFSET: number_field(0),
        ids.META: Field(STRUCT, edited(meta, fields)),
    }
    group: Struct = {
        ids.CHUNKS: list_field([described]),
        ids.TOTAL_BYTES: number_field(decoded_bytes),
        ids.ROWS: number_field(rows),
    }
    end = encode_footer(_file_struct(layout, column, group, field))
    return b"".join((MAGIC, *pages, end)), rows


def _rows_and_bytes(pages: tuple[bytes, bytes]) -> tuple[int, int]:
    """Return the rows of pages, and their uncompressed bytes with headers."""
    rows = decoded_bytes = 0
    for dictionary, content in zip((True, False), pages, strict=True):
        at = 0
        while at < len(content):
            header = header_at(content, at)
            if (header.kind == DICTIONARY_PAGE) != dictionary:
                raise ThriftError(f"a page of type {header.kind}")
            rows += header.rows
            decoded_bytes += header.size + header.decoded_bytes
            at += header.size + header.stored_bytes
        if at != len(content):
            raise ThriftError(f"a page ends {at - len(content)} bytes after its span")
    return rows, decoded_bytes


def _file_struct(
    layout: FooterLayout, column: FlatColumn, group: Struct, field: pa.Field
) -> Struct:
    root, *_ = elements(layout.struct, ids.SCHEMA)
    arrow_schema: Struct = {
        ids.KEY: binary_field(ids.ARROW_SCHEMA),
        ids.VALUE: binary_field(encode_arrow_schema(pa.schema([field]))),
    }
    kept = {n: layout.struct[n] for n in (ids.VERSION, ids.CREATED_BY) if n in layout.struct}
    return {
        **kept,
        ids.SCHEMA: list_field([{**root, CHILDREN: number_field(1, I32)}, column.element]),
        ids.FILE_ROWS: group[ids.ROWS],
        ids.ROW_GROUPS: list_field([group]),
        ids.KEY_VALUES: list_field([arrow_schema]),
    }


# ---------------------------------------------------------------------------------- Taking excerpts


@dataclass(frozen=True, slots=True)
class RowStretch:
    """Some rows of a file."""

    number: int
    """Number of their row group."""
    skip: int
    """Rows of it before these."""
    rows: int
    """Number of rows, at least one."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A Parquet file of one column."""

    content: bytes
    skip: int
    """Rows of it before the wanted ones."""


class Excerpts:
    """One file, from which excerpts are taken. Thread-safe."""

    def __init__(self, location: Location, path: str) -> None:
        """Create excerpts without reading.

        Args:
            location: Location of the file.
            path: Path relative to it.
        """
        self._location, self._path = location, path
        self._layout: FooterLayout | None = None
        self._columns: dict[str, FlatColumn] | None = None
        self._pages: dict[tuple[int, str], Pages] = {}

    def columns(self) -> frozenset[str]:
        """Return the columns from which excerpts can be taken.

        Raises:
            InputError: The file cannot be read.
            UnavailableError: The storage does not answer.
        """
        if self._columns is None:
            try:
                with open_source(self._location, self._path) as source:
                    self._layout = read_footer_of(source)
                self._columns = flat_columns(self._layout)
            except (NotStitchableError, ThriftError):
                self._columns = {}
        return frozenset(self._columns)

    def take(self, place: RowStretch, field: pa.Field) -> Excerpt:
        """Return the pages that hold some rows of one of `columns`.

        Args:
            place: The rows.
            field: The column as Arrow reads it.

        Raises:
            InputError: They cannot be read, or differ from what was written.
            UnavailableError: The storage does not answer.
        """
        with open_source(self._location, self._path) as source:
            try:
                return self._taken(source, place, field)
            except (NotStitchableError, PageError) as error:
                name = f"file {self._path}, column {field.name}"
                raise InputError(f"{name} cannot be read, it is damaged: {error}") from error

    def _taken(self, source: Source, stretch: RowStretch, field: pa.Field) -> Excerpt:
        """Return an excerpt; if the offset index is wrong, the pages are walked."""
        assert self._layout is not None, "the caller has asked for the columns"
        assert self._columns is not None
        groups = self._layout.groups
        if (
            stretch.number >= len(groups)
            or stretch.skip + stretch.rows > groups[stretch.number].rows
        ):
            raise NotStitchableError("its row groups have changed")
        column, group = self._columns[field.name], groups[stretch.number]
        of = _ExcerptColumn(self._layout, group.chunks[column.leaf], column, field)
        pages = self._pages.get((stretch.number, field.name))
        pages = pages or pages_of(source, of.chunk, group.rows)
        try:
            excerpt = _excerpt(source, of, stretch, pages)
        except (NotStitchableError, PageError):
            if not pages.from_index:
                raise
            pages = walk_pages(source, of.chunk, group.rows)
            excerpt = _excerpt(source, of, stretch, pages)
        self._pages[stretch.number, field.name] = pages
        return excerpt


@dataclass(frozen=True, slots=True)
class _ExcerptColumn:
    """The column chunk of an excerpt."""

    layout: FooterLayout
    chunk: Chunk
    column: FlatColumn
    field: pa.Field


def _excerpt(source: Source, of: _ExcerptColumn, stretch: RowStretch, pages: Pages) -> Excerpt:
    """Return an excerpt, if the pages are at their expected positions.

    Raises:
        NotStitchableError: They are different pages.
        PageError: A page differs from what was written.
        ReadError: They cannot be read.
    """
    span, held = pages.holding(stretch.skip, stretch.rows)
    read = (source.read(pages.dictionary), source.read(span))
    for stored, part in zip(read, (pages.dictionary, span), strict=True):
        check_pages(stored, part.start)
    content, rows = file_of_pages(of.layout, of.chunk, of.column, read, of.field)
    if rows != len(held):
        raise NotStitchableError(f"{rows} rows in pages of {len(held)}")
    return Excerpt(content, stretch.skip - held.start)


def arrow_column(excerpt: Excerpt, rows: int) -> pa.ChunkedArray:
    """Return the wanted rows of an excerpt as an Arrow column."""
    with pq.ParquetFile(pa.BufferReader(excerpt.content), pre_buffer=False) as parquet:
        return parquet.read(use_threads=False).column(0).slice(excerpt.skip, rows)
