"""Deletion vectors of Delta tables: positions of deleted rows as bytes. Untrusted; pure.

The format is the "portable" one of Delta's protocol, section "Deletion Vector Format": a magic
number, a count, and for the upper 32 bits of positions in ascending order one Roaring bitmap of the
lower 32 bits (https://github.com/RoaringBitmap/RoaringFormatSpec). Only valid bytes are accepted:
libraries for Roaring bitmaps read damaged ones without an error, or beyond the end of memory.
"""

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from common.lake.source import Positions

MAGIC = 1_681_511_377
POSITIONS_MAX = 2**26
"""Most positions in one vector: 512 MiB of them in memory."""
VECTOR_BYTES_MAX = 64 * 1024**2

_WITH_RUNS, _WITHOUT_RUNS = 12_347, 12_346
_ARRAY_MAX = 4096
_BITMAP_BYTES = 8192
_CONTAINERS_MAX = 65_536
_OFFSETS_FROM = 4
"""A bitmap with runs has offsets of its containers if it has at least so many."""
_ALPHABET = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

_U16 = np.dtype("<u2")


class VectorError(ValueError):
    """The bytes are no valid deletion vector."""


class _Bytes:
    """Bytes read from front to back; every read is checked against the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        end = self._at + count
        if end > len(self._data):
            message = f"deletion vector ends after {len(self._data)} bytes, expected {end} or more"
            raise VectorError(message)
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def number(self, form: str) -> int:
        """Return the next number of a `struct` form."""
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(value)

    def require_end(self) -> None:
        """Refuse bytes that are left over."""
        if rest := len(self._data) - self._at:
            message = f"deletion vector has {rest} bytes after its end"
            raise VectorError(message)


# ------------------------------------------------------------------------------------------ Reading


def decode_vector(data: bytes, cardinality: int) -> Positions:
    """Return the positions of a vector.

    Args:
        data: The bytes from the magic number on.
        cardinality: Number of positions that the log states.

    Raises:
        VectorError: The bytes are not valid, or have another number of positions.
    """
    if not 0 <= cardinality <= POSITIONS_MAX:
        message = f"deletion vector of {cardinality} rows is above the limit of {POSITIONS_MAX}"
        raise VectorError(message)
    source = _Bytes(data)
    if (magic := source.number("<i")) != MAGIC:
        message = f"deletion vector begins with {magic}, expected {MAGIC}"
        raise VectorError(message)
    parts: list[Positions] = []
    left, last = cardinality, -1
    for _ in range(source.number("<Q")):
        upper = source.number("<I")
        _require_ascending(upper, last)
        last = upper
        for part in _bitmap(source, left):
            left -= part.size
            parts.append(part + np.uint64(upper << 32))
    source.require_end()
    if left:
        message = f"deletion vector has {cardinality - left} positions, expected {cardinality}"
        raise VectorError(message)
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _bitmap(source: _Bytes, left: int) -> Iterator[Positions]:
    """Yield the positions of a 32-bit bitmap by container, at most `left` in all."""
    cookie = source.number("<I")
    if cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        flags = np.frombuffer(source.take((count + 7) // 8), np.uint8)
        is_run = np.unpackbits(flags, bitorder="little").astype(bool)
        has_offsets = count >= _OFFSETS_FROM
    elif cookie == _WITHOUT_RUNS:
        count = source.number("<I")
        is_run, has_offsets = np.zeros(min(count, _CONTAINERS_MAX), bool), True
    else:
        message = f"deletion vector has a bitmap of the unknown kind {cookie}"
        raise VectorError(message)
    if count > _CONTAINERS_MAX:
        message = f"deletion vector has a bitmap of {count} containers"
        raise VectorError(message)
    header = np.frombuffer(source.take(4 * count), _U16).reshape(count, 2)
    if has_offsets:
        source.take(4 * count)  # containers follow each other, so their offsets are not needed
    last = -1
    for (key, less_one), run in zip(header.tolist(), is_run, strict=False):
        _require_ascending(key, last)
        last, size = key, less_one + 1
        left -= size
        if left < 0:
            message = "deletion vector has more positions than the log states"
            raise VectorError(message)
        yield _container(source, size, bool(run)).astype(np.uint64) + np.uint64(key << 16)


def _container(source: _Bytes, size: int, is_run: bool) -> NDArray[np.integer]:
    """Return the lower 16 bits of `size` positions."""
    values: NDArray[np.integer]
    if is_run:
        values = _runs(source, size)
    elif size <= _ARRAY_MAX:
        values = np.frombuffer(source.take(2 * size), _U16)
    else:
        bits = np.frombuffer(source.take(_BITMAP_BYTES), np.uint8)
        values = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    if values.size != size or bool(np.any(values[1:] <= values[:-1])):
        message = f"deletion vector has a damaged container of {size} positions"
        raise VectorError(message)
    return values


def _runs(source: _Bytes, size: int) -> NDArray[np.integer]:
    count = source.number("<H")
    runs = np.frombuffer(source.take(4 * count), _U16).reshape(count, 2).astype(np.int64)
    firsts, lengths = runs[:, 0], runs[:, 1] + 1
    if int(lengths.sum()) != size or bool(np.any(firsts + lengths > _CONTAINERS_MAX)):
        message = f"deletion vector has damaged runs of {size} positions"
        raise VectorError(message)
    starts = np.cumsum(lengths) - lengths
    return np.repeat(firsts - starts, lengths) + np.arange(size)


def _require_ascending(value: int, last: int) -> None:
    if value <= last:
        message = f"deletion vector is not in ascending order: {value} after {last}"
        raise VectorError(message)


# ------------------------------------------------------------------------------------------ Writing


def encode_vector(positions: Positions) -> bytes:
    """Return positions as bytes, from the magic number on.

    Args:
        positions: Ascending, without duplicates, below 2**64.
    """
    bitmaps = _split(positions.astype("<u8", copy=False), 32)
    parts = [struct.pack("<iQ", MAGIC, len(bitmaps))]
    for upper, values in bitmaps:
        parts += [struct.pack("<I", upper), _encode_bitmap(values)]
    return b"".join(parts)


def _encode_bitmap(values: Positions) -> bytes:
    containers = _split(values, 16)
    header = b"".join(struct.pack("<HH", key, part.size - 1) for key, part in containers)
    bodies = [_encode_container(part) for _, part in containers]
    begin = 8 + 8 * len(containers)
    offsets = np.cumsum([begin, *map(len, bodies)])[:-1].astype("<u4").tobytes()
    return struct.pack("<II", _WITHOUT_RUNS, len(containers)) + header + offsets + b"".join(bodies)


def _encode_container(values: Positions) -> bytes:
    if values.size <= _ARRAY_MAX:
        return values.astype(_U16).tobytes()
    bits = np.zeros(8 * _BITMAP_BYTES, np.uint8)
    bits[values.astype(np.int64)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _split(values: Positions, bits: int) -> list[tuple[int, Positions]]:
    """Return the values by their upper bits, each reduced to its lower bits."""
    uppers, firsts = np.unique(values >> np.uint64(bits), return_index=True)
    parts = np.split(values & np.uint64((1 << bits) - 1), firsts[1:])
    return list(zip(uppers.tolist(), parts, strict=False))


# -------------------------------------------------------------------------------------- Files, text


def vector_of_file(data: bytes, size: int) -> bytes:
    """Return the bytes of a vector from those that lie in a file at its offset.

    Args:
        data: Its size, the vector and its checksum.
        size: Its size as the log states it.

    Raises:
        VectorError: The size differs, or the checksum is wrong.
    """
    source = _Bytes(data)
    if (present := source.number(">i")) != size:
        message = f"deletion vector has {present} bytes, expected {size}"
        raise VectorError(message)
    vector = source.take(size)
    if source.number(">I") != zlib.crc32(vector):
        message = "deletion vector does not match its checksum"
        raise VectorError(message)
    return vector


def from_base85(text: str, size: int) -> bytes:
    """Return the first `size` bytes of a text in the Base85 of ZeroMQ.

    Raises:
        VectorError: The text has other characters, or too few.
    """
    codes = np.full(256, 255, np.uint64)
    codes[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(85)
    raw = np.frombuffer(text.encode("latin-1", "replace"), np.uint8)
    digits = codes[raw]
    if raw.size % 5 or not 0 <= raw.size // 5 * 4 - size < 4 or bool(np.any(digits == 255)):
        message = f"text of {raw.size} characters is not the Base85 of {size} bytes"
        raise VectorError(message)
    words = digits.reshape(-1, 5) @ np.array([85**4, 85**3, 85**2, 85, 1], np.uint64)
    if bool(np.any(words >= 1 << 32)):
        message = "text in Base85 has a group above 32 bits"
        raise VectorError(message)
    return words.astype(">u4").tobytes()[:size]


def to_base85(data: bytes) -> str:
    """Return bytes in the Base85 of ZeroMQ, filled up with zeros to a multiple of four."""
    words = np.frombuffer(data + bytes(-len(data) % 4), ">u4").astype(np.uint64)
    powers = np.array([85**4, 85**3, 85**2, 85, 1], np.uint64)
    digits = words[:, None] // powers % np.uint64(85)
    return np.frombuffer(_ALPHABET, np.uint8)[digits.astype(np.int64)].tobytes().decode()
