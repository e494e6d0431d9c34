"""Damage to bytes of Parquet and Arrow, drawn by a random generator: the seed tells all.

Chance alone seldom gets far: most damage is found at the first look. So places that decoders
believe are preferred: the footer, page headers, lengths, counts, offsets, statistics.
"""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow.parquet as pq

MAGIC_BYTES = 4
FOOTER_TAIL_BYTES = 8
"""Length of the footer, and the magic number."""
HEADER_BYTES = 40
"""About so long is the header of a page."""
EXTREMES = (0, 1, 2, 127, 128, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1)
_TEXTS = (b"\x18\x08", b"\x18\x04")
"""Of thrift: a text of so many bytes follows, as the bounds of a number are."""
_LONG_VARINT = (b"\xff" * 9 + b"\x01", b"\xff" * 20, b"\x80" * 12 + b"\x01", b"\xff" * 4 + b"\x0f")


@dataclass(frozen=True, slots=True)
class Sound:
    """Bytes that are as they should be, and places in them that decoders believe."""

    data: bytes
    numbers: tuple[int, ...] = ()
    """Counts, sizes and offsets that a Parquet footer holds."""
    pages: tuple[int, ...] = ()
    """Where first pages of column chunks begin."""

    @classmethod
    def of_file(cls, data: bytes) -> Sound:
        """Return a sound Parquet file. Damaged ones are opened in other processes alone."""
        footer = pq.read_metadata(io.BytesIO(data))
        numbers, pages = {footer.num_rows}, set[int]()
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            numbers |= {group.num_rows, group.total_byte_size}
            for place in range(group.num_columns):
                chunk = group.column(place)
                numbers |= {chunk.num_values, chunk.total_compressed_size}
                numbers.add(chunk.total_uncompressed_size)
                begins = {chunk.data_page_offset, chunk.dictionary_page_offset} - {None}
                numbers |= begins
                pages |= begins
        return cls(data, tuple(sorted(numbers)), tuple(sorted(pages)))


Damage = Callable[[random.Random, bytearray, Sound], bytearray]


def damaged_file(draw: random.Random, sound: Sound) -> tuple[str, bytes]:
    """Return a damaged Parquet file, and what was done to it."""
    return _damaged(draw, sound, _OF_FILES)


def damaged_stream(draw: random.Random, sound: bytes) -> tuple[str, bytes]:
    """Return a damaged Arrow stream or file, and what was done to it."""
    return _damaged(draw, Sound(sound), _OF_STREAMS)


def _damaged(
    draw: random.Random, sound: Sound, ways: dict[str, tuple[int, Damage]]
) -> tuple[str, bytes]:
    data, done = bytearray(sound.data), list[str]()
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        names = [*ways]
        (name,) = draw.choices(names, [ways[each][0] for each in names])
        data = ways[name][1](draw, data, sound)
        done.append(name)
    return " + ".join(done), bytes(data)


def _footer(data: bytearray) -> tuple[int, int]:
    """Return where the footer begins and ends, as far as its length can be believed."""
    end = max(MAGIC_BYTES, len(data) - FOOTER_TAIL_BYTES)
    length = struct.unpack("<I", data[end : end + 4].ljust(4, b"\0"))[0]
    begin = end - length
    return (begin if MAGIC_BYTES <= begin < end else MAGIC_BYTES), end


def _poke(draw: random.Random, data: bytearray, low: int, high: int) -> bytearray:
    """Change a few bytes between two places."""
    high = min(high, len(data))
    if low >= high:
        return data
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(low, high)
        change = draw.randrange(4)
        if change == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif change == 1:
            data[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
        else:
            data[at] = draw.randrange(256)
    return data


def _replaced_in_footer(data: bytearray, begin: int, end: int, new: bytes) -> bytearray:
    """Put bytes in the place of others in the footer, and let its length be right."""
    low, high = _footer(data)
    grown = len(new) - (end - begin)
    changed = data[:begin] + new + data[end:]
    at = high + grown
    changed[at : at + 4] = struct.pack("<I", max(0, high - low + grown) & 0xFFFFFFFF)
    return changed


def _footer_bytes(draw: random.Random, data: bytearray, _sound: Sound) -> bytearray:
    return _poke(draw, data, *_footer(data))


def _footer_varint(draw: random.Random, data: bytearray, _sound: Sound) -> bytearray:
    low, high = _footer(data)
    at = draw.randrange(low, max(low + 1, high))
    return _replaced_in_footer(data, at, at + draw.choice((0, 1, 2)), draw.choice(_LONG_VARINT))


def _zigzag(value: int) -> bytes:
    left, out = (value << 1) ^ (value >> 63), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def _size(draw: random.Random, data: bytearray, sound: Sound) -> bytearray:
    """Let a count, a size or an offset of the footer say something else."""
    low, high = _footer(data)
    old = _zigzag(draw.choice(sound.numbers))
    places = [at for at in range(low, high) if data.startswith(old, at)]
    if not places:
        return _footer_bytes(draw, data, sound)
    at, value = draw.choice(places), draw.choice((*EXTREMES, -1, -(2**31), -(2**62), len(data)))
    return _replaced_in_footer(data, at, at + len(old), _zigzag(value))


def _statistics(draw: random.Random, data: bytearray, sound: Sound) -> bytearray:
    """Change bounds and counts of nulls: they follow texts of values in the footer."""
    low, high = _footer(data)
    marks = [at for at in range(low, high) if data.startswith(b"text ", at)]
    marks += [at for at in range(low, high - 1) if data[at : at + 2] in _TEXTS]
    if not marks:
        return _footer_bytes(draw, data, sound)
    at = draw.choice(marks)
    if draw.random() < 0.5:
        return _poke(draw, data, at, at + 24)
    return _replaced_in_footer(data, at + 1, at + 2, _zigzag(draw.choice(EXTREMES)))


def _footer_length(draw: random.Random, data: bytearray, _sound: Sound) -> bytearray:
    at = max(0, len(data) - FOOTER_TAIL_BYTES)
    right = struct.unpack("<I", data[at : at + 4].ljust(4, b"\0"))[0]
    near = right + draw.choice((-64, -8, -1, 1, 8, 64))
    value = draw.choice((*EXTREMES, len(data), len(data) - 8, near, near, near))
    data[at : at + 4] = struct.pack("<I", value & 0xFFFFFFFF)
    return data


def _page_header(draw: random.Random, data: bytearray, sound: Sound) -> bytearray:
    at = draw.choice(sound.pages)
    if at >= len(data):
        return data
    if draw.random() < 0.3:
        data[at + 1 : at + 2] = draw.choice(_LONG_VARINT)[:4]
        return data
    return _poke(draw, data, at, at + HEADER_BYTES)


def _page_data(draw: random.Random, data: bytearray, _sound: Sound) -> bytearray:
    return _poke(draw, data, MAGIC_BYTES, _footer(data)[0])


def _cut(draw: random.Random, data: bytearray, _sound: Sound) -> bytearray:
    if len(data) < 2:
        return data
    at, length = draw.randrange(len(data)), draw.choice((1, 4, 8, 64, 4096))
    if draw.random() < 0.5:
        return data[:at]
    return data[:at] + data[at + length :]


def _doubled(draw: random.Random, data: bytearray, _sound: Sound) -> bytearray:
    at, length = draw.randrange(max(1, len(data))), draw.choice((1, 8, 64, 1024))
    return data[:at] + data[at : at + length] + data[at:]


def _moved(draw: random.Random, data: bytearray, _sound: Sound) -> bytearray:
    """Copy a piece over another one."""
    if len(data) < 16:
        return data
    length = draw.choice((4, 8, 16, 64))
    begin, to = (draw.randrange(len(data) - 8) for _ in range(2))
    piece = data[begin : begin + length]
    data[to : to + len(piece)] = piece
    return data


def _anywhere(draw: random.Random, data: bytearray, _sound: Sound) -> bytearray:
    return _poke(draw, data, 0, len(data))


def _word(draw: random.Random, data: bytearray, _sound: Sound) -> bytearray:
    """Let an aligned number of Arrow (a length, an offset, a count) be an extreme one."""
    width = draw.choice((4, 8))
    if len(data) < 2 * width:
        return data
    at = draw.randrange(len(data) // width) * width
    value = draw.choice((*EXTREMES, -1, -8, len(data)))
    data[at : at + width] = (value & (256**width - 1)).to_bytes(width, "little")
    return data


def _message(draw: random.Random, data: bytearray, sound: Sound) -> bytearray:
    """Change the metadata of a message: what stands right behind a continuation mark."""
    marks = [at for at in range(0, len(data) - 8, 8) if data.startswith(b"\xff\xff\xff\xff", at)]
    if not marks:
        return _anywhere(draw, data, sound)
    at = draw.choice(marks) + 4
    size = min(struct.unpack_from("<I", data, at)[0], 4096)
    if draw.random() < 0.5:
        return _poke(draw, data, at, at + 4 + size)
    place = at + 4 * draw.randrange(1 + size // 4)
    data[place : place + 4] = struct.pack("<I", draw.choice(EXTREMES) & 0xFFFFFFFF)
    return data


_OF_FILES: dict[str, tuple[int, Damage]] = {
    "footer": (20, _footer_bytes),
    "varint of the footer": (12, _footer_varint),
    "size, count or offset": (16, _size),
    "statistics": (12, _statistics),
    "length of the footer": (4, _footer_length),
    "page header": (18, _page_header),
    "page": (8, _page_data),
    "cut": (4, _cut),
    "doubled": (3, _doubled),
    "moved": (3, _moved),
}
"""What is done to Parquet, and how often."""
_OF_STREAMS: dict[str, tuple[int, Damage]] = {
    "message": (40, _message),
    "word": (25, _word),
    "anywhere": (15, _anywhere),
    "cut": (6, _cut),
    "doubled": (6, _doubled),
    "moved": (8, _moved),
}
