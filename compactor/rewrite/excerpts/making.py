"""Makes a file of one column of pages that come from another file. Pure."""

from dataclasses import dataclass

import pyarrow as pa

from common.errors import NotStitchableError
from compactor.rewrite.excerpts.pages import DICTIONARY_PAGE, header_at
from compactor.rewrite.stitch import footer as ids
from compactor.rewrite.stitch.ending import coded_schema, file_end
from compactor.rewrite.stitch.footer import MAGIC, Chunk, Layout
from compactor.rewrite.thrift.values import (
    I32,
    STRUCT,
    Field,
    Struct,
    ThriftError,
    binary,
    binary_field,
    elements,
    integer,
    list_field,
    located,
    number_field,
)
from compactor.rewrite.thrift.writing import edited

# SchemaElement
REPETITION, NAME, CHILDREN = 3, 4, 5
REPEATED = 2
# ColumnMetaData
VALUES, DECODED, KEY_VALUES = 5, 6, 8
STATISTICS, ENCODING_STATS, SIZE_STATISTICS, GEOSPATIAL_STATISTICS = 12, 13, 16, 17
_LEFT_OUT = (
    *(KEY_VALUES, STATISTICS, ENCODING_STATS, SIZE_STATISTICS, GEOSPATIAL_STATISTICS),
    *(ids.INDEX_PAGE, ids.BLOOM, ids.BLOOM_BYTES),
)
"""They are of all pages, or at places that are not in the excerpt."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is not nested."""

    element: Struct
    """What the schema says of it."""
    leaf: int
    """Its number among the columns that hold values."""


def flat_columns(layout: Layout) -> dict[str, Column]:
    """Return the columns of a file that are not nested, by name.

    Raises:
        ThriftError: The schema is damaged.
    """
    schema = elements(layout.struct, ids.SCHEMA)
    found: dict[str, Column] = {}
    leaf, within = 0, 0
    for element in schema[1:]:
        children = integer(element, CHILDREN) or 0
        if within == 0 and not children and integer(element, REPETITION) != REPEATED:
            found[(binary(element, NAME) or b"").decode(errors="replace")] = Column(element, leaf)
        within += children - (1 if within else 0)
        leaf += not children
    return found


def file_of_pages(
    layout: Layout, chunk: Chunk, column: Column, pages: tuple[bytes, bytes], field: pa.Field
) -> tuple[bytes, int]:
    """Return a Parquet file with some pages, and how many rows they hold.

    Args:
        layout: Of the file that they come from.
        chunk: In which they are.
        column: Whose they are.
        pages: The page with the dictionary, or nothing; those with values.
        field: The column as Arrow reads it.

    Raises:
        NotStitchableError: They are no pages.
    """
    try:
        rows, decoded_bytes = _sums(pages)
    except ThriftError as error:
        raise NotStitchableError(f"its pages are damaged: {error}") from error
    start = len(MAGIC)
    meta = located(chunk.struct, ids.META)
    assert meta is not None, "the layout has looked"
    stored_bytes = len(pages[0]) + len(pages[1])
    fields: dict[int, Field | None] = dict.fromkeys(_LEFT_OUT)
    fields |= {
        VALUES: number_field(rows),
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
    end = file_end(_file_struct(layout, column, group, field))
    return b"".join((MAGIC, *pages, end)), rows


def _sums(pages: tuple[bytes, bytes]) -> tuple[int, int]:
    """Return the rows of pages, and their bytes before the codec, headers included."""
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
            raise ThriftError(f"a page ends {at - len(content)} bytes behind its place")
    return rows, decoded_bytes


def _file_struct(layout: Layout, column: Column, group: Struct, field: pa.Field) -> Struct:
    root, *_ = elements(layout.struct, ids.SCHEMA)
    told: Struct = {
        ids.KEY: binary_field(ids.ARROW_SCHEMA),
        ids.VALUE: binary_field(coded_schema(pa.schema([field]))),
    }
    kept = {n: layout.struct[n] for n in (ids.VERSION, ids.CREATED_BY) if n in layout.struct}
    return {
        **kept,
        ids.SCHEMA: list_field([{**root, CHILDREN: number_field(1, I32)}, column.element]),
        ids.FILE_ROWS: group[ids.ROWS],
        ids.ROW_GROUPS: list_field([group]),
        ids.KEY_VALUES: list_field([told]),
    }
