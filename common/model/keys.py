"""Keys as bytes that sort like the values they encode, and bounds of keys for metadata.

A bound has a limited length, whatever the length of its key, and is rounded outwards.

    null             00
    value            01 payload          (integers from 2^63: 02 payload)
    bool             00 or 01
    int, date, time  8 bytes big-endian, sign bit flipped; from 2^63: as unsigned
    float            8 bytes of the double: negative all bits, others the sign flipped;
                     -0.0 is 0.0, every NaN is ff ff ff ff ff ff ff ff
    decimal          32 bytes big-endian, sign bit flipped: the value in units of 10^-38
    timestamp        12 bytes: seconds as int, nanoseconds in the second (UTC)
    string, binary   the bytes with 00 written as 00 ff, then 00 01

A key is the concatenation of its values. Fewer values than columns form a prefix, which sorts
before every key that begins with it. Types are families (`KeyType`), so widening a column changes
no byte. Versions and times are keys of one value. For implementations by third parties:
docs/design/0002-row-encoding.md.
"""

import json
import math
import struct
from bisect import bisect_right
from collections.abc import Sequence
from decimal import Decimal

from common.errors import RequestError
from common.model.key_values import (
    NANOS,
    KeyType,
    decimal_from_units,
    decimal_units,
    key_type_of,
    plain_value,
    value_from_text,
    value_to_json,
)
from common.model.tablet import PLUS_INFINITY

__all__ = [
    "PLUS_INFINITY",
    "KeyType",
    "decode_key",
    "decode_value",
    "encode_key",
    "encode_value",
    "format_key",
    "key_type_of",
    "parse_key",
]


_NULL, _VALUE, _LARGE = b"\x00", b"\x01", b"\x02"
_TERMINATOR = b"\x00\x01"
_SIGN, _ALL = 1 << 63, (1 << 64) - 1
_DOUBLE = struct.Struct(">d")
_WORD = struct.Struct(">Q")
_TIMESTAMP = struct.Struct(">QI")


def encode_key(values: Sequence[object], types: Sequence[KeyType]) -> bytes:
    """Return the encoding of a key or of a prefix of a key.

    Args:
        values: One per key column, in order; fewer form a prefix.
        types: The families of the key columns.

    Raises:
        RequestError: There are more values than columns, or one is not of its type.
    """
    if len(values) > len(types):
        message = f"key has {len(values)} values, but only {len(types)} columns"
        raise RequestError(message)
    return b"".join(map(encode_value, values, types))


def encode_value(value: object, key_type: KeyType) -> bytes:
    """Return the bytes of one value: a version, a time, or one column of a key."""
    plain = plain_value(value, key_type)
    if plain is None:
        return _NULL
    if isinstance(plain, int) and plain >= _SIGN and key_type is KeyType.INT:
        return _LARGE + _WORD.pack(plain)
    return _VALUE + _payload(plain, key_type)


def _payload(plain: object, key_type: KeyType) -> bytes:
    match plain:
        case bool():
            return bytes([plain])
        case int() if key_type is KeyType.TIMESTAMP:
            seconds, nanos = divmod(plain, NANOS)
            return _TIMESTAMP.pack(seconds + _SIGN, nanos)
        case int():
            return _WORD.pack(plain + _SIGN)
        case float():
            return _float_payload(plain)
        case str():
            return plain.encode().replace(b"\x00", b"\x00\xff") + _TERMINATOR
        case bytes():
            return plain.replace(b"\x00", b"\x00\xff") + _TERMINATOR
        case _:
            return _decimal_payload(plain)


def _decimal_payload(plain: object) -> bytes:
    assert isinstance(plain, Decimal)
    units = decimal_units(plain)
    assert units is not None
    return (units + (1 << 255)).to_bytes(32, "big")


def _float_payload(value: float) -> bytes:
    if math.isnan(value):
        return b"\xff" * 8
    bits = _WORD.unpack(_DOUBLE.pack(value + 0.0))[0]  # + 0.0 turns -0.0 into 0.0
    return _WORD.pack(bits ^ _ALL if bits & _SIGN else bits | _SIGN)


def decode_key(data: bytes, types: Sequence[KeyType]) -> tuple[object, ...]:
    """Return the plain values of an encoded key; fewer than columns if it is a prefix.

    Raises:
        ValueError: The bytes are not a key of these types.
    """
    values, at = [], 0
    for key_type in types:
        if at == len(data):
            break
        value, at = _decode_at(data, at, key_type)
        values.append(value)
    if at != len(data):
        message = f"encoded key {data.hex()} does not end where its {len(types)} columns do"
        raise ValueError(message)
    return tuple(values)


def decode_value(data: bytes, key_type: KeyType) -> object:
    """Return the plain value of bytes from `encode_value`."""
    (value,) = decode_key(data, (key_type,))
    return value


def _decode_at(data: bytes, at: int, key_type: KeyType) -> tuple[object, int]:
    marker, at = data[at : at + 1], at + 1
    if marker == _NULL:
        return None, at
    if marker == _LARGE and key_type is KeyType.INT:
        return _WORD.unpack(_cut(data, at, 8))[0], at + 8
    if marker != _VALUE:
        message = f"encoded key {data.hex()} has no {key_type} at byte {at - 1}"
        raise ValueError(message)
    if key_type in (KeyType.STRING, KeyType.BINARY):
        return _decode_text(data, at, key_type)
    width = _WIDTHS.get(key_type, 8)
    return _decode_fixed(_cut(data, at, width), key_type), at + width


_WIDTHS = {KeyType.BOOL: 1, KeyType.DECIMAL: 32, KeyType.TIMESTAMP: 12}


def _cut(data: bytes, at: int, width: int) -> bytes:
    if len(data) < at + width:
        message = f"encoded key {data.hex()} ends within a value"
        raise ValueError(message)
    return data[at : at + width]


def _decode_fixed(payload: bytes, key_type: KeyType) -> object:
    match key_type:
        case KeyType.BOOL:
            return payload == b"\x01"
        case KeyType.FLOAT:
            bits = _WORD.unpack(payload)[0]
            return _DOUBLE.unpack(
                _WORD.pack(bits ^ _SIGN if bits & _SIGN else ~bits & (_SIGN * 2 - 1))
            )[0]
        case KeyType.DECIMAL:
            return decimal_from_units(int.from_bytes(payload, "big") - (1 << 255))
        case KeyType.TIMESTAMP:
            seconds, nanos = _TIMESTAMP.unpack(payload)
            return int((seconds - _SIGN) * NANOS + nanos)
        case _:
            return int(_WORD.unpack(payload)[0]) - _SIGN


def _decode_text(data: bytes, at: int, key_type: KeyType) -> tuple[object, int]:
    end = data.find(_TERMINATOR, at)
    if end < 0:
        message = f"encoded key {data.hex()} ends within a {key_type}"
        raise ValueError(message)
    raw = data[at:end].replace(b"\x00\xff", b"\x00")
    return (raw.decode() if key_type is KeyType.STRING else raw), end + 2


def format_key(data: bytes, types: Sequence[KeyType]) -> str:
    """Return a readable key: a JSON list that `parse_key` parses back, or `+inf`."""
    if data == PLUS_INFINITY:
        return "+inf"
    values = decode_key(data, types)
    return json.dumps(list(map(value_to_json, values, types)), ensure_ascii=False)


KEY_CHARS_MAX = 1024**2
"""Longest key that is parsed from text; keys in tables may be longer."""


def parse_key(written: str | Sequence[object], types: Sequence[KeyType]) -> bytes:
    """Return the encoded key or prefix of a user's text or JSON.

    Args:
        written: JSON values, or text: `+inf`, a JSON list, or plain values separated by
            commas (a key of one column may contain commas).
        types: The families of the key columns.

    Raises:
        RequestError: The text is not a key of these types.
    """
    if isinstance(written, str):
        if written == "+inf":
            return PLUS_INFINITY
        if len(written) > KEY_CHARS_MAX:
            message = (
                f"key {written[:100]!r}… has {len(written)} characters, more than the limit of"
                f" {KEY_CHARS_MAX}"
            )
            raise RequestError(message)
        written = _values_of_text(written, len(types))
    if len(written) > len(types):
        message = f"key {written!r} has {len(written)} values, but only {len(types)} columns"
        raise RequestError(message)
    return encode_key(list(map(value_from_text, written, types)), types)


def _values_of_text(text: str, columns: int) -> Sequence[object]:
    if not text.startswith("["):
        return [text] if columns <= 1 else [part.strip() for part in text.split(",")]
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"key {text[:100]!r} begins like a JSON list, but is not valid JSON: {error}"
        raise RequestError(message) from error
    assert isinstance(values, list)
    return values


# ---- Bounds of keys
#
# A bound of a file may lie slightly outside its keys. A check whether the file may hold a key
# can then return true without need, but never false by mistake. Ends of tablets are shorter than
# the length at which bounds are cut. No end can lie between a key and its bound, so the bounds of
# a file within a tablet are within the tablet as well.


BOUND_BYTES_MAX = 1024
"""Longest bound of a file."""
SPLIT_BYTES_MAX = 512
"""Longest end of a tablet, or key at which outputs are cut."""
_TEXTS = (KeyType.STRING, KeyType.BINARY)
_TAIL_BYTES = 8
"""Bytes reserved for the framing of a text, and for a character that must not be cut."""
_SURROGATES = range(0xD800, 0xE000)
_LAST = 0x10FFFF


def lower_bound(key: bytes, types: Sequence[KeyType]) -> bytes:
    """Return a key, or a shorter one at or below it."""
    if len(key) <= BOUND_BYTES_MAX:
        return key
    prefix, text = _cut_to_length(key, types)
    return prefix if text is None else prefix + encode_value(text, _kind(text))


def upper_bound(key: bytes, types: Sequence[KeyType]) -> bytes:
    """Return a key, or a shorter one above it and above every key with the same beginning."""
    if len(key) <= BOUND_BYTES_MAX:
        return key
    prefix, text = _cut_to_length(key, types)
    above = None if text is None else _above(text)
    return PLUS_INFINITY if above is None else prefix + encode_value(above, _kind(above))


def require_short(end: bytes, what: str) -> None:
    """Refuse a key that is too long for the end of a tablet.

    Raises:
        RequestError: It is too long; the message begins with `what`.
    """
    if len(end) > SPLIT_BYTES_MAX and end != PLUS_INFINITY:
        raise RequestError(
            f"{what} has a key of {len(end)} bytes, more than the limit of {SPLIT_BYTES_MAX}"
        )


def key_before(key: bytes) -> bytes | None:
    """Return bytes that sort below an encoded key and above every smaller key."""
    if not key:
        return None
    if key[-1] == 0:
        return key[:-1]
    return key[:-1] + bytes([key[-1] - 1]) + b"\xff" * 40


def _cut_to_length(key: bytes, types: Sequence[KeyType]) -> tuple[bytes, str | bytes | None]:
    """Return the columns of a key that fit, and the beginning of a text column that does not.

    The text is None if the column that does not fit is not a text.
    """
    prefix = b""
    values = decode_key(key, types)
    for value, kind in zip(values, types, strict=False):
        part = encode_value(value, kind)
        if len(prefix) + len(part) > BOUND_BYTES_MAX:
            room = BOUND_BYTES_MAX - len(prefix) - _TAIL_BYTES
            text = value if kind in _TEXTS and room > 0 else None
            assert text is None or isinstance(text, str | bytes)
            return prefix, None if text is None else _beginning(text, room)
        prefix += part
    raise AssertionError(key)


def _beginning(text: str | bytes, room: int) -> str | bytes:
    """Return the part of a text that fits into `room` encoded bytes."""
    kind = _kind(text)
    sizes = range(min(room, len(text)) + 1)
    fitting = bisect_right(sizes, room, key=lambda size: len(encode_value(text[:size], kind)))
    return text[: max(0, fitting - 1)]


def _above(text: str | bytes) -> str | bytes | None:
    """Return the least text, at most as long, that sorts above all texts with this beginning."""
    if isinstance(text, bytes):
        short = text.rstrip(b"\xff")
        return short[:-1] + bytes([short[-1] + 1]) if short else None
    kept = text.rstrip(chr(_LAST))
    if not kept:
        return None
    point = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if point in _SURROGATES else point)


def _kind(text: str | bytes) -> KeyType:
    return KeyType.STRING if isinstance(text, str) else KeyType.BINARY
