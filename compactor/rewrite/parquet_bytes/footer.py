"""A Parquet footer, as far as copying needs it: the bytes of each row group.

Files of old writers with unreliable statistics are refused.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias, Union

from common.errors import NotStitchableError
from common.parquet.file_inspection import RowGroupPlaces, layout_fault

# ------------------------------------------------------------------------------------------- Thrift
# Thrift's compact protocol, as far as Parquet's footers and page headers use it.
#
# Structs keep unknown fields, so that an edited footer loses nothing. Fields outside the requested
# shape stay bytes.


# ------------------------------------------------------------------------------------------- Values


TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)
VARINT_BYTES_MAX = 10
FIELD_ID_MAX = (1 << 15) - 1
NUMBERS = (I16, I32, I64)


class ThriftError(ValueError):
    """The bytes are not a struct of the compact protocol, or not a supported one."""


Shape: TypeAlias = Mapping[int, Union["Shape", None]]
"""By field id; None: a struct that is only located."""
Struct: TypeAlias = dict[int, "Field"]


class Elements(NamedTuple):
    """A decoded list of structs."""

    values: list[Struct]


class Located(NamedTuple):
    """A struct that stays in its buffer, which is cheaper than decoding it."""

    buffer: bytes
    start: int
    end: int
    places: dict[int, int]
    """Field id → position of its value, times 16, plus its type."""


class Field(NamedTuple):
    """One field: its type and its value; bytes if it was not decoded."""

    type: int
    value: Union[bytes, "Struct", Elements, Located]


def integer(struct: Struct | Located, number: int) -> int | None:
    """Return an integer, or None if the field is missing.

    Raises:
        ThriftError: It is not an integer of at most 64 bits.
    """
    if isinstance(struct, Located):
        if (position := struct.places.get(number)) is None:
            return None
        kind, value, at = position & 0x0F, struct.buffer, position >> 4
    else:
        if (field := struct.get(number)) is None:
            return None
        kind, at = field.type, 0
        value = field.value if isinstance(field.value, bytes) else b""
    if kind not in NUMBERS or not value:
        raise ThriftError(f"field {number} is of type {kind}, expected a whole number")
    return zigzag(value, at)


def binary(struct: Struct, number: int) -> bytes | None:
    """Return a text or bytes, or None if the field is missing.

    Raises:
        ThriftError: It has another type.
    """
    field = struct.get(number)
    if field is None:
        return None
    if field.type != BINARY or not isinstance(field.value, bytes):
        raise ThriftError(f"field {number} is of type {field.type}, expected bytes")
    size, start = varint(field.value, 0)
    return field.value[start : start + size]


def located(struct: Struct, number: int) -> Located | None:
    """Return a located struct, or None if the field is missing.

    Raises:
        ThriftError: It has another type.
    """
    field = struct.get(number)
    if field is None:
        return None
    if not isinstance(field.value, Located):
        raise ThriftError(f"field {number} is of type {field.type}, expected a struct")
    return field.value


def elements(struct: Struct, number: int) -> list[Struct]:
    """Return the structs of a decoded list; empty if the field is missing.

    Raises:
        ThriftError: It has another type.
    """
    field = struct.get(number)
    if field is None:
        return []
    if not isinstance(field.value, Elements):
        raise ThriftError(f"field {number} is of type {field.type}, expected a list of structs")
    return field.value.values


def number_field(value: int, kind: int = I64) -> Field:
    """Return a field with an integer."""
    bits = {I16: 16, I32: 32, I64: 64}[kind]
    assert -(1 << (bits - 1)) <= value < 1 << (bits - 1), (value, kind)
    return Field(kind, coded_varint((value << 1) ^ (value >> 63)))


def flag_field(value: bool) -> Field:
    """Return a field with a boolean."""
    return Field(TRUE if value else FALSE, b"")


def binary_field(value: bytes) -> Field:
    """Return a field with a text or bytes."""
    return Field(BINARY, coded_varint(len(value)) + value)


def list_field(values: Iterable[Struct]) -> Field:
    """Return a field with a list of structs."""
    return Field(LIST, Elements(list(values)))


def varint(buffer: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned number at a position of a buffer, and its end.

    Raises:
        ThriftError: It has more than 64 bits.
        IndexError: The buffer ends in it.
    """
    # Most numbers take up to four bytes, which are handled without the loop.
    if (first := buffer[at]) < 0x80:
        return first, at + 1
    if (second := buffer[at + 1]) < 0x80:
        return first & 0x7F | second << 7, at + 2
    low = first & 0x7F | (second & 0x7F) << 7
    if (third := buffer[at + 2]) < 0x80:
        return low | third << 14, at + 3
    if (fourth := buffer[at + 3]) < 0x80:
        return low | (third & 0x7F) << 14 | fourth << 21, at + 4
    value = shift = 0
    for _ in range(VARINT_BYTES_MAX):
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                raise ThriftError("a number has more than 64 bits")
            return value, at
        shift += 7
    raise ThriftError(f"a number takes more than {VARINT_BYTES_MAX} bytes")


def zigzag(buffer: bytes, at: int) -> int:
    """Return the signed number at a position of a buffer; see `varint`."""
    coded, _ = varint(buffer, at)
    return (coded >> 1) ^ -(coded & 1)


def after_varint(buffer: bytes, at: int) -> int:
    """Return the end of the unsigned number at a position of a buffer; see `varint`."""
    if buffer[at] < 0x80:
        return at + 1
    if buffer[at + 1] < 0x80:
        return at + 2
    if buffer[at + 2] < 0x80:
        return at + 3
    if buffer[at + 3] < 0x80:
        return at + 4
    return varint(buffer, at)[1]


def coded_varint(value: int) -> bytes:
    """Return a number of 64 bits as bytes; negative numbers as their complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# ------------------------------------------------------------------------------------------ Reading


DEPTH_MAX = 24
"""Deepest nesting of structs and lists. Parquet's own footer needs eight levels."""
_FIXED_BYTES = {TRUE: 1, FALSE: 1, BYTE: 1, DOUBLE: 8, UUID: 16}


def decode(buffer: bytes, shape: Shape, start: int = 0) -> tuple[Struct, int]:
    """Return the struct at a position of a buffer, and its end.

    Args:
        buffer: The bytes.
        shape: The fields to decode.
        start: Position of the struct.

    Raises:
        ThriftError: There is no valid struct.
    """
    try:
        return _struct(buffer, start, shape, DEPTH_MAX)
    except IndexError as error:
        raise ThriftError(f"ends after {len(buffer)} bytes, in the middle of a field") from error


def decode_whole(buffer: bytes, shape: Shape) -> Struct:
    """Return the single struct in a buffer.

    Raises:
        ThriftError: The buffer holds something else, or more.
    """
    struct, end = decode(buffer, shape)
    if end != len(buffer):
        raise ThriftError(f"ends at byte {end} of {len(buffer)}")
    return struct


def _opened(
    buffer: bytes, at: int, shape: Shape | None, depth: int
) -> tuple[Struct | Located, int]:
    if shape is None:
        return _located(buffer, at, depth)
    return _struct(buffer, at, shape, depth)


def _struct(buffer: bytes, at: int, shape: Shape, depth: int) -> tuple[Struct, int]:
    if depth == 0:
        raise ThriftError(f"structs are more than {DEPTH_MAX} deep")
    struct: Struct = {}
    number = 0
    while head := buffer[at]:
        kind, at, number = _field_head(buffer, at, number, head)
        if number in struct:
            raise ThriftError(f"field {number} is there twice")
        if kind in NUMBERS:  # The most frequent case.
            end = after_varint(buffer, at)
            struct[number] = Field(kind, buffer[at:end])
            at = end
        elif number in shape and kind in _OPENED:
            value, at = _OPENED[kind](buffer, at, shape[number], depth - 1)
            struct[number] = Field(kind, value)
        else:
            end = _after(buffer, at, kind, depth - 1)
            struct[number] = Field(kind, buffer[at:end])
            at = end
    return struct, at + 1


def _located(buffer: bytes, start: int, depth: int) -> tuple[Located, int]:
    if depth == 0:
        raise ThriftError(f"structs are more than {DEPTH_MAX} deep")
    places: dict[int, int] = {}
    at, number = start, 0
    while head := buffer[at]:
        kind = head & 0x0F
        if head > 0x0F:  # The most frequent case.
            at, number = at + 1, number + (head >> 4)
        else:
            _, at, number = _field_head(buffer, at, number, head)
        if number in places:
            raise ThriftError(f"field {number} is there twice")
        places[number] = at << 4 | kind
        at = after_varint(buffer, at) if kind in NUMBERS else _after(buffer, at, kind, depth - 1)
    if places and max(places) > FIELD_ID_MAX:
        raise ThriftError(f"field id {max(places)} is not between 1 and {FIELD_ID_MAX}")
    return Located(buffer, start, at + 1, places), at + 1


def _field_head(buffer: bytes, at: int, number: int, head: int) -> tuple[int, int, int]:
    """Return type, value position and id of a field."""
    at += 1
    if delta := head >> 4:
        number += delta
    else:
        coded, at = varint(buffer, at)
        number = (coded >> 1) ^ -(coded & 1)
    if not 0 < number <= FIELD_ID_MAX:
        raise ThriftError(f"field id {number} is not between 1 and {FIELD_ID_MAX}")
    return head & 0x0F, at, number


def _structs(buffer: bytes, at: int, shape: Shape | None, depth: int) -> tuple[Elements, int]:
    if shape is None:
        raise ThriftError("a list, expected a struct")
    kind, count, at = list_head(buffer, at)
    if kind != STRUCT and count:
        raise ThriftError(f"list of type {kind}, expected structs")
    values = []
    for _ in range(count):
        value, at = _struct(buffer, at, shape, depth)
        values.append(value)
    return Elements(values), at


def list_head(buffer: bytes, at: int) -> tuple[int, int, int]:
    """Return type and number of a list's elements, and the position of the first one.

    Raises:
        ThriftError: There are more elements than bytes.
        IndexError: The buffer ends in it.
    """
    head = buffer[at]
    at += 1
    count = head >> 4
    if count == 15:
        count, at = varint(buffer, at)
    # Every element takes at least a byte, so the count is limited by the remaining bytes.
    if count > len(buffer) - at:
        raise ThriftError(f"list of {count} elements in {len(buffer) - at} bytes")
    return head & 0x0F, count, at


def _after(buffer: bytes, at: int, kind: int, depth: int) -> int:
    """Return the end of a value that is not decoded."""
    if kind in _NESTED and depth:
        return _NESTED[kind](buffer, at, depth)
    if kind in (TRUE, FALSE):
        return at
    return _after_element(buffer, at, kind, depth)


def _after_element(buffer: bytes, at: int, kind: int, depth: int) -> int:
    """Return the end of a list element; in lists, booleans take a byte."""
    if kind in NUMBERS:
        return after_varint(buffer, at)
    if kind == BINARY:
        size, at = varint(buffer, at)
        return _within(buffer, at + size)
    if kind in _FIXED_BYTES:
        return _within(buffer, at + _FIXED_BYTES[kind])
    if kind not in _NESTED:
        raise ThriftError(f"type {kind} is not one of the compact protocol")
    if depth == 0:
        raise ThriftError(f"values are more than {DEPTH_MAX} deep")
    return _NESTED[kind](buffer, at, depth)


def _after_struct(buffer: bytes, at: int, depth: int) -> int:
    while head := buffer[at]:
        at += 1
        if not head >> 4:
            _, at = varint(buffer, at)  # The id of a field that is not requested.
        kind = head & 0x0F
        if kind in NUMBERS:
            at = after_varint(buffer, at)
        elif kind == BINARY and buffer[at] < 0x80:
            at += 1 + buffer[at]
        else:
            at = _after(buffer, at, kind, depth - 1)
    return at + 1


def _after_list(buffer: bytes, at: int, depth: int) -> int:
    kind, count, at = list_head(buffer, at)
    for _ in range(count):
        at = _after_element(buffer, at, kind, depth - 1)
    return at


def _after_map(buffer: bytes, at: int, depth: int) -> int:
    count, at = varint(buffer, at)
    if count == 0:
        return at
    kinds = buffer[at]
    at += 1
    if count > len(buffer) - at:
        raise ThriftError(f"map of {count} entries in {len(buffer) - at} bytes")
    for _ in range(count):
        at = _after_element(buffer, at, kinds >> 4, depth - 1)
        at = _after_element(buffer, at, kinds & 0x0F, depth - 1)
    return at


def _within(buffer: bytes, end: int) -> int:
    if end > len(buffer):
        raise ThriftError(f"a value ends at byte {end} of {len(buffer)}")
    return end


_NESTED = {STRUCT: _after_struct, LIST: _after_list, SET: _after_list, MAP: _after_map}
_OPENED: dict[int, Callable[..., tuple[Struct | Located | Elements, int]]] = {
    STRUCT: _opened,
    LIST: _structs,
}


# ------------------------------------------------------------------------------------------ Writing


def encode(struct: Struct) -> bytes:
    """Return a struct as bytes, with its fields in the order of their ids."""
    out = bytearray()
    _put_struct(out, struct)
    return bytes(out)


def edited(struct: Located, fields: Mapping[int, Field | None]) -> bytes:
    """Return a located struct as bytes, with changed numbers.

    Args:
        struct: The struct.
        fields: New numbers by field id; None: remove the field.
    """
    buffer, at, parts = struct.buffer, struct.start, list[bytes]()
    for number, field in sorted(fields.items()):
        position = struct.places.get(number)
        if field is None and position is None:
            continue
        if field is None or position is None or position & 0x0F != field.type:
            return _edited_opened(struct, fields)  # Fields are added, removed or change their type.
        if position >> 4 < at:
            return _edited_opened(
                struct, fields
            )  # Fields are not stored in the order of their ids.
        assert isinstance(field.value, bytes), "a number is bytes"
        parts += (buffer[at : position >> 4], field.value)
        at = after_varint(buffer, position >> 4)
    parts.append(buffer[at : struct.end])
    return b"".join(parts)


def _edited_opened(struct: Located, fields: Mapping[int, Field | None]) -> bytes:
    opened, _ = decode(struct.buffer, {}, struct.start)
    for number, field in fields.items():
        opened.pop(number, None)
        if field is not None:
            opened[number] = field
    return encode(opened)


def _put_struct(out: bytearray, struct: Struct) -> None:
    last = 0
    for number in sorted(struct):
        field = struct[number]
        if 0 < number - last <= 15:
            out.append((number - last) << 4 | field.type)
        else:
            out.append(field.type)
            out += coded_varint(number << 1)
        last = number
        if isinstance(field.value, bytes):
            out += field.value
        elif isinstance(field.value, Elements):
            _put_structs(out, field.value.values)
        elif isinstance(field.value, Located):
            out += field.value.buffer[field.value.start : field.value.end]
        else:
            _put_struct(out, field.value)
    out.append(0)


def _put_structs(out: bytearray, values: list[Struct]) -> None:
    if len(values) < 15:
        out.append(len(values) << 4 | STRUCT)
    else:
        out.append(0xF0 | STRUCT)
        out += coded_varint(len(values))
    for value in values:
        _put_struct(out, value)


# ------------------------------------------------------------------------------------------- Footer


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
