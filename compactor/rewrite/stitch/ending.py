"""The end of a stitched file: page indexes, footer, length, magic. Pure."""

import base64
import binascii
from collections.abc import Sequence
from importlib.metadata import version

import pyarrow as pa

from common.errors import NotStitchableError
from compactor.rewrite.stitch import footer as ids
from compactor.rewrite.stitch.footer import MAGIC, Layout, Span
from compactor.rewrite.stitch.moving import MovedGroup, group_struct
from compactor.rewrite.stitch.pieces import Footing
from compactor.rewrite.stitch.writers import CREATED_BY
from compactor.rewrite.thrift.values import (
    I32,
    Struct,
    binary_field,
    integer,
    list_field,
    number_field,
)
from compactor.rewrite.thrift.writing import encode

_OURS = frozenset(range(ids.VERSION, ids.CREATED_BY + 1))
_PARQUET_VERSION = 2


def ending(
    groups: Sequence[MovedGroup],
    layouts: Sequence[Layout],
    footing: Footing,
    arrow_schema: bytes | None,
    position: int,
) -> bytes:
    """Return everything that follows the copied bytes.

    Args:
        groups: All row groups at their new places, with their page indexes.
        layouts: Of the files that they come from; one at least.
        footing: What the footer is to say beside them.
        arrow_schema: By `arrow_schema_of`.
        position: Where the copied bytes end.
    """
    out = bytearray()
    indexes: list[dict[int, tuple[Span, Span]]] = [{} for _ in groups]
    columns = [
        (number, at, chunk)
        for number, group in enumerate(groups)
        for at, chunk in enumerate(group.chunks)
        if chunk.offset_index
    ]
    column_spans = []
    for _, _, chunk in columns:
        column_spans.append(Span(position + len(out), len(chunk.column_index)))
        out += chunk.column_index
    for (number, at, chunk), column_span in zip(columns, column_spans, strict=True):
        indexes[number][at] = (column_span, Span(position + len(out), len(chunk.offset_index)))
        out += chunk.offset_index
    described = [
        group_struct(group, number, indexes[number], footing.sorting)
        for number, group in enumerate(groups)
    ]
    return bytes(out) + file_end(_file_struct(groups, described, layouts, footing, arrow_schema))


def file_end(struct: Struct) -> bytes:
    """Return a footer, its length and the magic: what a Parquet file ends with."""
    footer = encode(struct)
    return footer + len(footer).to_bytes(4, "little") + MAGIC


def arrow_schema_of(pieces: Sequence[tuple[str, bytes | None]], footing: Footing) -> bytes | None:
    """Return the schema that readers who know Arrow are told; None: they go by Parquet's.

    It is written anew, since what a writer had said beside it would go with it.

    Args:
        pieces: Path of each file, and what it has under `ARROW:schema`.
        footing: May say what it is.

    Raises:
        NotStitchableError: The files do not agree, or one cannot be read.
    """
    if footing.schema is not None:
        return coded_schema(footing.schema)
    (first, coded), *others = pieces
    schema = _decoded(first, coded)
    for path, other in others:
        if other != coded and _decoded(path, other) != schema:
            raise NotStitchableError(f"files {first} and {path} have other columns for Arrow")
    return None if schema is None else coded_schema(schema)


def _decoded(path: str, coded: bytes | None) -> pa.Schema | None:
    if coded is None:
        return None
    try:
        message = base64.b64decode(coded, validate=True)
        return pa.ipc.read_schema(pa.py_buffer(message)).remove_metadata()
    except (binascii.Error, OSError, pa.ArrowException) as error:
        raise NotStitchableError(
            f"file {path} has no readable schema for Arrow: {error}"
        ) from error


def coded_schema(schema: pa.Schema) -> bytes:
    """Return columns as a footer tells them to those who know Arrow."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes())


def _file_struct(
    groups: Sequence[MovedGroup],
    described: Sequence[Struct],
    layouts: Sequence[Layout],
    footing: Footing,
    arrow_schema: bytes | None,
) -> Struct:
    """Return the FileMetaData.

    What we do not know of it (and the order of columns) stays if all files say the same.
    """
    first = layouts[0].struct
    struct = {
        number: field
        for number, field in first.items()
        if number not in _OURS and all(each.struct.get(number) == field for each in layouts)
    }
    versions = [integer(each.struct, ids.VERSION) or _PARQUET_VERSION for each in layouts]
    struct[ids.VERSION] = number_field(max(versions), I32)
    struct[ids.SCHEMA] = first[ids.SCHEMA]
    struct[ids.FILE_ROWS] = number_field(sum(group.group.rows for group in groups))
    struct[ids.ROW_GROUPS] = list_field(described)
    pairs = [(name.encode(), value.encode()) for name, value in footing.metadata.items()]
    if arrow_schema is not None:
        pairs.append((ids.ARROW_SCHEMA, arrow_schema))
    if pairs:
        struct[ids.KEY_VALUES] = list_field(
            {ids.KEY: binary_field(key), ids.VALUE: binary_field(value)} for key, value in pairs
        )
    signed = CREATED_BY.format(version=version("neve"))
    struct[ids.CREATED_BY] = binary_field(signed.encode())
    return struct
