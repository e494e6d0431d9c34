"""A Parquet footer, as far as copying needs it: the bytes of each row group.

Files of old writers with unreliable statistics are refused.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

from common.errors import NotStitchableError
from common.parquet.footer_checks import RowGroupPlaces, layout_fault
from compactor.rewrite.parquet_bytes.thrift import (
    Located,
    Shape,
    Struct,
    ThriftError,
    binary,
    decode_whole,
    elements,
    integer,
    located,
)

THIS_WRITER = "neve version {version}"
"""The form that readers expect: application, the word version, number."""
_SIGNED = re.compile(r"(?P<name>[\w.-]+) version v?(?P<version>\d+(?:\.\d+)*)", re.ASCII)
_TOO_OLD = {
    # PARQUET-251 and similar: statistics of bytes in the wrong order; PARQUET-816: sizes
    # without the dictionary page; PARQUET-246: values that depend on the page before.
    "parquet-mr": (1, 10, 0),
    # PARQUET-686: statistics in signed order.
    "parquet-cpp": (1 << 31,),
    # ARROW-10353: pages of the second version that do not record whether they are compressed.
    "parquet-cpp-arrow": (2, 0, 0),
}


def refuse_old_writer(created_by: bytes | None) -> None:
    """Refuse files of writers with known faults, and of unknown writers.

    Raises:
        NotStitchableError: The writer is one of them.
    """
    if not created_by:
        raise NotStitchableError("it does not name its writer")
    text = created_by[:200].decode("utf-8", errors="replace")
    signed = _SIGNED.match(text)
    if signed is None:
        # The faulty versions of other writers are unknown; parquet-mr and Arrow have version
        # numbers.
        if text.startswith(tuple(_TOO_OLD)):
            raise NotStitchableError(f"its writer {text!r} has no version")
        return
    version = tuple(int(part[:9]) for part in signed["version"].split("."))
    if version < _TOO_OLD.get(signed["name"], (0,)):
        raise NotStitchableError(f"its writer {text!r} is known to write faulty metadata")


MAGIC = b"PAR1"
# FileMetaData
VERSION, SCHEMA, FILE_ROWS, ROW_GROUPS, KEY_VALUES, CREATED_BY = range(1, 7)
ENCRYPTION, SIGNING_KEY = 8, 9
# SchemaElement
CHILDREN = 5
# KeyValue
KEY, VALUE = 1, 2
# RowGroup
CHUNKS, TOTAL_BYTES, ROWS, SORTING, GROUP_OFFSET, GROUP_COMPRESSED, ORDINAL = range(1, 8)
# ColumnChunk
FILE_PATH, CHUNK_OFFSET, META, OFFSET_INDEX, OFFSET_INDEX_BYTES = range(1, 6)
COLUMN_INDEX, COLUMN_INDEX_BYTES, CRYPTO, ENCRYPTED_META = range(6, 10)
# ColumnMetaData
CODEC, COMPRESSED, DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE = 4, 7, 9, 10, 11
BLOOM, BLOOM_BYTES = 14, 15

_SHAPE: Shape = {
    SCHEMA: {},
    KEY_VALUES: {},
    ROW_GROUPS: {CHUNKS: {META: None}},
}
ARROW_SCHEMA = b"ARROW:schema"
CODECS = ("none", "snappy", "gzip", "lzo", "brotli", "lz4-hadoop", "zstd", "lz4")
"""By number in the format; `lz4-hadoop` is the deprecated framing, which Névé never writes."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of bytes in a file."""

    start: int
    size: int

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Chunk:
    """One column of one row group."""

    struct: Struct
    data: Span
    """Its pages, including the dictionary page."""
    codec: str
    column_index: Span | None
    offset_index: Span | None
    bloom_start: int | None
    bloom_size: int | None
    """None: only the filter's own header has it."""


@dataclass(frozen=True, slots=True)
class StoredRowGroup:
    """One row group."""

    struct: Struct
    rows: int
    decoded_bytes: int
    chunks: tuple[Chunk, ...]

    @property
    def compressed_bytes(self) -> int:
        """Bytes of its pages in the file."""
        return sum(chunk.data.size for chunk in self.chunks)

    @property
    def places(self) -> RowGroupPlaces:
        """Its positions, and the footer's fields about them."""
        return RowGroupPlaces(
            rows=self.rows,
            chunks=tuple((chunk.data.start, chunk.data.size) for chunk in self.chunks),
            file_offset=integer(self.struct, GROUP_OFFSET),
            total_compressed_size=integer(self.struct, GROUP_COMPRESSED),
            ordinal=integer(self.struct, ORDINAL),
        )


@dataclass(frozen=True, slots=True)
class FooterLayout:
    """The layout of a file from its footer, checked against the file's size."""

    size_bytes: int
    footer: bytes
    """The footer itself, without length and magic."""
    struct: Struct
    rows: int
    columns: bytes
    """The Parquet schema without the name of its root: equal bytes mean equal columns."""
    arrow_schema: bytes | None
    groups: tuple[StoredRowGroup, ...]

    @property
    def data_end(self) -> int:
        """The first byte after all pages, indexes and filters."""
        return self.size_bytes - len(self.footer) - 2 * len(MAGIC)

    @property
    def fault(self) -> str | None:
        """Why some readers miss rows of the file; None: no reader does."""
        return layout_fault([group.places for group in self.groups], self.data_end)


def read_layout(footer: bytes, size_bytes: int) -> FooterLayout:
    """Return the layout of a file.

    Args:
        footer: The footer bytes, without length and magic.
        size_bytes: Size of the whole file.

    Raises:
        NotStitchableError: It is damaged, encrypted, refers to other files, or its writer
            is known for wrong sizes or statistics.
    """
    try:
        return _layout(decode_whole(footer, _SHAPE), footer, size_bytes)
    except ThriftError as error:
        raise NotStitchableError(f"its footer is damaged: {error}") from error


def _layout(struct: Struct, footer: bytes, size_bytes: int) -> FooterLayout:
    if ENCRYPTION in struct or SIGNING_KEY in struct:
        raise NotStitchableError("it is encrypted or signed")
    refuse_old_writer(binary(struct, CREATED_BY))
    columns, leaves = _columns(struct)
    if not leaves:
        raise NotStitchableError("it has no columns")
    data_end = size_bytes - len(footer) - 2 * len(MAGIC)
    groups = tuple(_group(group, leaves, data_end) for group in elements(struct, ROW_GROUPS))
    rows = integer(struct, FILE_ROWS)
    if rows != sum(group.rows for group in groups):
        raise ThriftError(f"{rows} rows, but its row groups have others")
    values = {binary(pair, KEY): binary(pair, VALUE) for pair in elements(struct, KEY_VALUES)}
    return FooterLayout(size_bytes, footer, struct, rows, columns, values.get(ARROW_SCHEMA), groups)


def _columns(struct: Struct) -> tuple[bytes, int]:
    """Return the columns as bytes, and the number of leaf columns."""
    root, *columns = elements(struct, SCHEMA) or [{}]
    leaves = sum(not integer(column, CHILDREN) for column in columns)
    return repr((integer(root, CHILDREN), columns)).encode(), leaves


def _group(struct: Struct, leaves: int, data_end: int) -> StoredRowGroup:
    rows, decoded = _count(struct, ROWS), _count(struct, TOTAL_BYTES)
    if not rows:
        return StoredRowGroup(struct, 0, decoded, ())  # Skipped; its positions may be invalid.
    chunks = tuple(_chunk(chunk, data_end) for chunk in elements(struct, CHUNKS))
    if len(chunks) != leaves:
        raise ThriftError(f"row group of {len(chunks)} columns, but the schema has {leaves}")
    spans = sorted((chunk.data for chunk in chunks), key=lambda span: span.start)
    for before, after in pairwise(spans):
        if before.end > after.start:
            raise ThriftError(f"columns share the bytes from {after.start}")
    return StoredRowGroup(struct, rows, decoded, chunks)


def _chunk(struct: Struct, data_end: int) -> Chunk:
    meta = located(struct, META)
    if CRYPTO in struct or ENCRYPTED_META in struct or meta is None:
        raise NotStitchableError("it has encrypted or undescribed columns")
    if binary(struct, FILE_PATH):
        raise NotStitchableError("its columns are in other files")
    codec = _count(meta, CODEC)
    if codec >= len(CODECS):
        raise NotStitchableError(f"its codec {codec} is unknown")
    column_index = _span(struct, COLUMN_INDEX, COLUMN_INDEX_BYTES, data_end)
    offset_index = _span(struct, OFFSET_INDEX, OFFSET_INDEX_BYTES, data_end)
    bloom = integer(meta, BLOOM)
    bloom_size = integer(meta, BLOOM_BYTES)
    if bloom is not None:
        _inside(Span(bloom, bloom_size or 0), data_end)
    return Chunk(
        struct, _pages(meta, data_end), CODECS[codec], column_index, offset_index, bloom, bloom_size
    )


def _pages(meta: Located, data_end: int) -> Span:
    """Return the span of a column's pages.

    Some writers store an offset of 0 for a missing dictionary; parquet-mr and Arrow accept
    that as well.
    """
    start = _count(meta, DATA_PAGE)
    dictionary = integer(meta, DICTIONARY_PAGE)
    index = integer(meta, INDEX_PAGE)
    if dictionary is not None and dictionary > start:
        raise ThriftError(f"dictionary at byte {dictionary}, after the values at {start}")
    if dictionary is not None and dictionary > 0:
        start = dictionary
    if index is not None and 0 < index < start:
        raise NotStitchableError("it has index pages, which no known writer produces")
    return _inside(Span(start, _count(meta, COMPRESSED)), data_end)


def _span(struct: Struct, start: int, size: int, data_end: int) -> Span | None:
    at, length = integer(struct, start), integer(struct, size)
    if at is None or not length:
        return None
    return _inside(Span(at, length), data_end)


def _inside(span: Span, data_end: int) -> Span:
    if span.start < len(MAGIC) or span.size < 0 or span.end > data_end:
        raise ThriftError(f"bytes {span.start} to {span.end} are not before byte {data_end}")
    return span


def _count(struct: Struct | Located, number: int) -> int:
    value = integer(struct, number)
    if value is None or value < 0:
        raise ThriftError(f"field {number} is {value}, expected a count")
    return value
