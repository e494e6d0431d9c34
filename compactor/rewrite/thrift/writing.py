"""Writes structs of Thrift's compact protocol."""

from compactor.rewrite.thrift.values import STRUCT, Elements, Struct, coded_varint


def encode(struct: Struct) -> bytes:
    """Return a struct as bytes, its fields in the order of their ids."""
    out = bytearray()
    _put_struct(out, struct)
    return bytes(out)


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
