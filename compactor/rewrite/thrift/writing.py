"""Writes structs of Thrift's compact protocol."""

from collections.abc import Mapping

from compactor.rewrite.thrift.reading import decode
from compactor.rewrite.thrift.values import (
    STRUCT,
    Elements,
    Field,
    Located,
    Struct,
    after_varint,
    coded_varint,
)


def encode(struct: Struct) -> bytes:
    """Return a struct as bytes, its fields in the order of their ids."""
    out = bytearray()
    _put_struct(out, struct)
    return bytes(out)


def edited(struct: Located, fields: Mapping[int, Field | None]) -> bytes:
    """Return a located struct as bytes, with other numbers.

    Args:
        struct: The struct.
        fields: New numbers, by the ids of their fields; None: there is no such field.
    """
    buffer, at, parts = struct.buffer, struct.start, list[bytes]()
    for number, field in sorted(fields.items()):
        place = struct.places.get(number)
        if field is None and place is None:
            continue
        if field is None or place is None or place & 0x0F != field.type:
            return _edited_opened(struct, fields)  # Fields come, go or change their type.
        if place >> 4 < at:
            return _edited_opened(struct, fields)  # Fields do not lie in the order of their ids.
        assert isinstance(field.value, bytes), "a number is bytes"
        parts += (buffer[at : place >> 4], field.value)
        at = after_varint(buffer, place >> 4)
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
