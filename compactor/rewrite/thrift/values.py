"""Values of Thrift's compact protocol: fields that keep what nobody knows.

A struct is opened only as far as a *shape* says: a field that is named there becomes a
struct, or a list of structs, of which single fields can be read and replaced; or it is
only located: it stays bytes, whose numbers are known by their places. Every other field
stays the bytes that it was.

Source: "Thrift Compact protocol encoding" of the Apache Thrift specification.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias, Union

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)
VARINT_BYTES_MAX = 10
FIELD_ID_MAX = (1 << 15) - 1
NUMBERS = (I16, I32, I64)


class ThriftError(ValueError):
    """The bytes are no struct of the compact protocol, or not one that we take."""


Shape: TypeAlias = Mapping[int, Union["Shape", None]]
"""By the ids of fields; None: a struct that is only located."""
Struct: TypeAlias = dict[int, "Field"]


class Elements(NamedTuple):
    """An opened list of structs."""

    values: list[Struct]


class Located(NamedTuple):
    """A struct within a buffer, which stays as it is there: less work than to open it."""

    buffer: bytes
    start: int
    end: int
    places: dict[int, int]
    """Of each field the place of its value, times 16, and its type."""


class Field(NamedTuple):
    """One field: its type, and what it holds; bytes if it was not opened."""

    type: int
    value: Union[bytes, "Struct", Elements, Located]


def integer(struct: Struct | Located, number: int) -> int | None:
    """Return a whole number, None if the field is not there.

    Raises:
        ThriftError: It is no number of 64 bits.
    """
    if isinstance(struct, Located):
        if (place := struct.places.get(number)) is None:
            return None
        kind, value, at = place & 0x0F, struct.buffer, place >> 4
    else:
        if (field := struct.get(number)) is None:
            return None
        kind, at = field.type, 0
        value = field.value if isinstance(field.value, bytes) else b""
    if kind not in NUMBERS or not value:
        raise ThriftError(f"field {number} is of type {kind}, wanted a whole number")
    coded, _ = varint(value, at)
    return (coded >> 1) ^ -(coded & 1)


def binary(struct: Struct, number: int) -> bytes | None:
    """Return a text or bytes, None if the field is not there.

    Raises:
        ThriftError: It is something else.
    """
    field = struct.get(number)
    if field is None:
        return None
    if field.type != BINARY or not isinstance(field.value, bytes):
        raise ThriftError(f"field {number} is of type {field.type}, wanted bytes")
    size, start = varint(field.value, 0)
    return field.value[start : start + size]


def located(struct: Struct, number: int) -> Located | None:
    """Return a located struct, None if the field is not there.

    Raises:
        ThriftError: It is something else.
    """
    field = struct.get(number)
    if field is None:
        return None
    if not isinstance(field.value, Located):
        raise ThriftError(f"field {number} is of type {field.type}, wanted a struct")
    return field.value


def elements(struct: Struct, number: int) -> list[Struct]:
    """Return the structs of an opened list; none if the field is not there.

    Raises:
        ThriftError: It is something else.
    """
    field = struct.get(number)
    if field is None:
        return []
    if not isinstance(field.value, Elements):
        raise ThriftError(f"field {number} is of type {field.type}, wanted a list of structs")
    return field.value.values


def number_field(value: int, kind: int = I64) -> Field:
    """Return a field with a whole number."""
    bits = {I16: 16, I32: 32, I64: 64}[kind]
    assert -(1 << (bits - 1)) <= value < 1 << (bits - 1), (value, kind)
    return Field(kind, coded_varint((value << 1) ^ (value >> 63)))


def flag_field(value: bool) -> Field:
    """Return a field with a truth value."""
    return Field(TRUE if value else FALSE, b"")


def binary_field(value: bytes) -> Field:
    """Return a field with a text or bytes."""
    return Field(BINARY, coded_varint(len(value)) + value)


def list_field(values: Iterable[Struct]) -> Field:
    """Return a field with a list of structs."""
    return Field(LIST, Elements(list(values)))


def varint(buffer: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned number at a place of a buffer, and where it ends.

    Raises:
        ThriftError: It has more than 64 bits.
        IndexError: The buffer ends in it.
    """
    # Most take up to four bytes: those are spared the loop.
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


def after_varint(buffer: bytes, at: int) -> int:
    """Return where the unsigned number at a place of a buffer ends; see `varint`."""
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
    """Return a number of 64 bits as bytes, a negative one as its complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
