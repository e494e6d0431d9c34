"""Bounds of keys as metadata keeps them: short, however long a key is, and rounded outwards.

A bound of a file may be a little further out than its keys are: whoever asks whether a key
may be in the file is told so once too often, and never once too seldom. Ends of tablets are
kept shorter than any bound is cut, so that a file within a tablet is within it by its
bounds, too: no end lies between a key and its bound.
"""

from bisect import bisect_right
from collections.abc import Sequence

from common.errors import RequestError
from common.model.key_values import KeyType
from common.model.keys import PLUS_INFINITY, decode_key, encode_value

BOUND_BYTES_MAX = 1024
"""Of a bound of a file."""
SPLIT_BYTES_MAX = 512
"""Of an end of a tablet, or a key where outputs are cut."""
_TEXTS = (KeyType.STRING, KeyType.BINARY)
_TAIL_BYTES = 8
"""Kept for what frames a text, and for a character that is not cut through."""
_SURROGATES = range(0xD800, 0xE000)
_LAST = 0x10FFFF


def lower_bound(key: bytes, types: Sequence[KeyType]) -> bytes:
    """Return a key, or a short one at or below it."""
    if len(key) <= BOUND_BYTES_MAX:
        return key
    prefix, text = _cut(key, types)
    return prefix if text is None else prefix + encode_value(text, _kind(text))


def upper_bound(key: bytes, types: Sequence[KeyType]) -> bytes:
    """Return a key, or a short one above it and above every key that begins as it does."""
    if len(key) <= BOUND_BYTES_MAX:
        return key
    prefix, text = _cut(key, types)
    above = None if text is None else _above(text)
    return PLUS_INFINITY if above is None else prefix + encode_value(above, _kind(above))


def require_short(end: bytes, what: str) -> None:
    """Refuse a key that cannot be the end of a tablet.

    Raises:
        RequestError: It is too long; the message begins with `what`.
    """
    if len(end) > SPLIT_BYTES_MAX and end != PLUS_INFINITY:
        raise RequestError(
            f"{what} has a key of {len(end)} bytes, at most {SPLIT_BYTES_MAX} are possible"
        )


def _cut(key: bytes, types: Sequence[KeyType]) -> tuple[bytes, str | bytes | None]:
    """Return the columns of a key that fit, and the beginning of the text that does not.

    The text is None if what does not fit is no text.
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
    """Return as much of a text as fits into so many encoded bytes."""
    kind = _kind(text)
    sizes = range(min(room, len(text)) + 1)
    fitting = bisect_right(sizes, room, key=lambda size: len(encode_value(text[:size], kind)))
    return text[: max(0, fitting - 1)]


def _above(text: str | bytes) -> str | bytes | None:
    """Return the least text of this length or less that is above all that begin like this one."""
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
