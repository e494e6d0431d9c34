"""Reads structs of Thrift's compact protocol.

The bytes come from files of strangers: lengths, counts, depth and numbers are bounded,
and what does not fit raises ThriftError.
"""

from collections.abc import Callable

from compactor.rewrite.thrift.values import (
    BINARY,
    BYTE,
    DOUBLE,
    FALSE,
    FIELD_ID_MAX,
    LIST,
    MAP,
    NUMBERS,
    SET,
    STRUCT,
    TRUE,
    UUID,
    Elements,
    Field,
    Located,
    Shape,
    Struct,
    ThriftError,
    after_varint,
    varint,
)

DEPTH_MAX = 24
"""Structs and lists inside each other. Parquet's own footer needs eight."""
_FIXED_BYTES = {TRUE: 1, FALSE: 1, BYTE: 1, DOUBLE: 8, UUID: 16}


def decode(buffer: bytes, shape: Shape, start: int = 0) -> tuple[Struct, int]:
    """Return the struct at a place of a buffer, and where it ends.

    Args:
        buffer: Bytes.
        shape: Which fields are opened.
        start: Where the struct begins.

    Raises:
        ThriftError: There is none.
    """
    try:
        return _struct(buffer, start, shape, DEPTH_MAX)
    except IndexError as error:
        raise ThriftError(f"ends after {len(buffer)} bytes, in the middle of a field") from error


def decode_whole(buffer: bytes, shape: Shape) -> Struct:
    """Return the one struct that a buffer holds.

    Raises:
        ThriftError: It holds something else, or more.
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
    found: Struct = {}
    number = 0
    while head := buffer[at]:
        kind, at, number = _field_head(buffer, at, number, head)
        if number in found:
            raise ThriftError(f"field {number} is there twice")
        if kind in NUMBERS:  # Most are.
            end = after_varint(buffer, at)
            found[number] = Field(kind, buffer[at:end])
            at = end
        elif number in shape and kind in _OPENED:
            value, at = _OPENED[kind](buffer, at, shape[number], depth - 1)
            found[number] = Field(kind, value)
        else:
            end = _after(buffer, at, kind, depth - 1)
            found[number] = Field(kind, buffer[at:end])
            at = end
    return found, at + 1


def _located(buffer: bytes, start: int, depth: int) -> tuple[Located, int]:
    if depth == 0:
        raise ThriftError(f"structs are more than {DEPTH_MAX} deep")
    places: dict[int, int] = {}
    at, number = start, 0
    while head := buffer[at]:
        kind = head & 0x0F
        if head > 0x0F:  # Most are.
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
    """Return type, place of the value and id of a field."""
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
        raise ThriftError("a list, wanted a struct")
    kind, count, at = _list_head(buffer, at)
    if kind != STRUCT and count:
        raise ThriftError(f"list of type {kind}, wanted structs")
    values = []
    for _ in range(count):
        value, at = _struct(buffer, at, shape, depth)
        values.append(value)
    return Elements(values), at


def _list_head(buffer: bytes, at: int) -> tuple[int, int, int]:
    head = buffer[at]
    at += 1
    count = head >> 4
    if count == 15:
        count, at = varint(buffer, at)
    # Every element takes a byte at least, so no count can promise more than is there.
    if count > len(buffer) - at:
        raise ThriftError(f"list of {count} elements in {len(buffer) - at} bytes")
    return head & 0x0F, count, at


def _after(buffer: bytes, at: int, kind: int, depth: int) -> int:
    """Return where a value ends that is not opened."""
    if kind in _NESTED and depth:
        return _NESTED[kind](buffer, at, depth)
    if kind in (TRUE, FALSE):
        return at
    return _after_element(buffer, at, kind, depth)


def _after_element(buffer: bytes, at: int, kind: int, depth: int) -> int:
    """Return where an element of a list ends; there, truth values take a byte."""
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
            _, at = varint(buffer, at)  # The id of a field that nobody asks for.
        kind = head & 0x0F
        if kind in NUMBERS:
            at = after_varint(buffer, at)
        elif kind == BINARY and buffer[at] < 0x80:
            at += 1 + buffer[at]
        else:
            at = _after(buffer, at, kind, depth - 1)
    return at + 1


def _after_list(buffer: bytes, at: int, depth: int) -> int:
    kind, count, at = _list_head(buffer, at)
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
