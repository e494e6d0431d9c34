"""The row hash of docs/design/0002-row-encoding.md once more, in plain Python, value by value."""

import math
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, cast

from common.model.key_values import KeyType, decimal_units, plain_value

ALL = (1 << 64) - 1


def mix(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & ALL
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & ALL
    return x ^ x >> 31


def fold(n: int, words: list[int]) -> int:
    total = n
    for place, word in enumerate(words, start=1):
        total += mix(mix(word) + place * 0x9E3779B97F4A7C15 & ALL)
    return mix(total & ALL)


def text(raw: bytes) -> int:
    padded = raw + b"\0" * (-len(raw) % 8)
    return fold(
        len(raw), [int.from_bytes(padded[at : at + 8], "little") for at in range(0, len(padded), 8)]
    )


def number_hash(value: float) -> int:
    if isinstance(value, int):
        return fold(1, [value & ALL])
    bits = struct.unpack(">Q", struct.pack(">d", value + 0.0))[0]
    return fold(1, [0x7FF8 << 48 if math.isnan(value) else bits])


def timestamp_hash(value: datetime) -> int:
    seconds, nanos = divmod(cast("int", plain_value(value, KeyType.TIMESTAMP)), 10**9)
    return fold(2, [seconds & ALL, nanos])


def decimal_hash(value: Decimal) -> int:
    units = decimal_units(value)
    assert units is not None
    return fold(4, [units >> shift & ALL for shift in (0, 64, 128, 192)])


def list_hash(values: list[object]) -> int:
    return fold(
        len(values),
        [0x6E756C6C6E756C6C if value is None else value_hash(value) for value in values],
    )


HASHES: list[tuple[type, Callable[[Any], int]]] = [
    (int, number_hash),
    (float, number_hash),
    (datetime, timestamp_hash),
    (date, lambda value: value_hash(plain_value(value, KeyType.DATE))),
    (time, lambda value: value_hash(plain_value(value, KeyType.TIME))),
    (Decimal, decimal_hash),
    (str, lambda value: text(value.encode())),
    (bytes, text),
    (list, list_hash),
    (tuple, lambda value: row({"key": value[0], "value": value[1]})),  # of a map
    (dict, lambda value: row(value)),
]


def value_hash(value: object) -> int:
    return next(hashed(value) for kind, hashed in HASHES if isinstance(value, kind))


def row(values: Mapping[str, object]) -> int:
    """The hash of a row of plain values."""
    total = sum(
        mix(value_hash(value) + text(name.encode()) & ALL)
        for name, value in values.items()
        if value is not None
    )
    return mix(total & ALL)
