"""Bits of several words side by side in one number per row, which sorts like them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from common.rows.arrays import Words

WORD_BITS = 64
BLOCK_ROWS = 1 << 14
"""Rows that are packed at once: so what is packed stays in the cache of a core."""
GAP_BITS = 1
"""Constant bits between others that are packed with them: less work than leaving them out."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bits of every row: `bits` of them above `shift`, after `low` is taken off."""

    words: Words
    bits: int
    shift: int = 0
    low: int = 0


def bits_of(pieces: Sequence[Piece]) -> int:
    """Return how many bits pieces have together."""
    return sum(piece.bits for piece in pieces)


def pieces_of(level: Words) -> list[Piece]:
    """Return a word in pieces, highest first, without bits that are the same in all rows."""
    varying = int(np.bitwise_or.reduce(level)) & ~int(np.bitwise_and.reduce(level))
    low = int(level.min())
    spread_bits = (int(level.max()) - low).bit_length()
    runs = list(_runs_of_ones(varying))
    if sum(bits for _, bits in runs) >= spread_bits:
        return [Piece(level, spread_bits, low=low)] if spread_bits else []
    return [Piece(level, bits, shift=start) for start, bits in reversed(runs)]


def _runs_of_ones(mask: int) -> Iterator[tuple[int, int]]:
    """Yield where runs of ones begin in a number, and how long they are; lowest first."""
    start = 0
    while mask >> start:
        if not mask >> start & 1:
            start += 1
            continue
        bits = 1
        while mask >> (start + bits) & ((2 << GAP_BITS) - 1):
            bits += 1
        yield start, bits
        start += bits


def first_of(pieces: Sequence[Piece], room: int) -> list[Piece]:
    """Return the first bits of pieces, as many as there is room for."""
    first: list[Piece] = []
    for piece in pieces:
        if piece.bits > room:
            if room:
                shift = piece.shift + piece.bits - room
                first.append(Piece(piece.words, room, shift, piece.low))
            break
        first.append(piece)
        room -= piece.bits
    return first


def packed_of(pieces: Sequence[Piece], row_bits: int, rows: int) -> Words:
    """Return the pieces of each row side by side, and its number."""
    packed = np.zeros(rows, np.uint64)
    scratch = np.empty(min(rows, BLOCK_ROWS), np.uint64)
    numbers = np.arange(min(rows, BLOCK_ROWS), dtype=np.uint64)
    for start in range(0, rows, BLOCK_ROWS):
        block = packed[start : start + BLOCK_ROWS]
        some = scratch[: len(block)]
        for piece in pieces:
            words = piece.words[start : start + BLOCK_ROWS]
            if piece.low:
                words = np.subtract(words, np.uint64(piece.low), out=some)
            if piece.shift:
                words = np.right_shift(words, np.uint64(piece.shift), out=some)
            words = np.bitwise_and(words, np.uint64((1 << piece.bits) - 1), out=some)
            block <<= np.uint64(piece.bits)
            block |= words
        block <<= np.uint64(row_bits)
        block |= np.add(numbers[: len(block)], np.uint64(start), out=some)
    return packed
