"""Keys at which outputs are cut into parts of similar size.

Only the smallest and the greatest key of a file are known, so its bytes are assumed to be evenly
spread between them. A cut is a nearby bound of a file if there is one. Otherwise a cut is a value
between two bounds, which requires the types of the key columns.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from common.model.file import DataFile
from common.model.key_values import KeyType
from common.model.keys import SPLIT_BYTES_MAX, decode_key, encode_key

SLACK = 0.1
"""Maximum distance of a file's bound from the ideal cut, as a fraction of an output's bytes."""
CUT_BYTES_MAX = 64
"""Limit of a computed key, because the merge kernel can compare longer keys only by reading them.
"""
_DIGITS = 8


def shared_length(low: Sequence[int], high: Sequence[int]) -> int:
    """Return the length of the common prefix of two keys, in bytes or characters."""
    pairs = enumerate(zip(low, high, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(low), len(high)))


def number_after(key: bytes, skipped: int) -> int:
    """Return the eight bytes after a common prefix as a number that sorts like the key."""
    return int.from_bytes(key[skipped : skipped + _DIGITS].ljust(_DIGITS, b"\0"), "big")


def cut_keys(
    files: Sequence[DataFile], parts: int, key_types: Sequence[KeyType] = ()
) -> tuple[bytes, ...]:
    """Return keys that cut the merge of some files into parts of similar size.

    Args:
        files: Inputs of one job; files without known keys are ignored.
        parts: Wanted number of outputs.
        key_types: Types of the table's key columns; empty: cut at bounds of files only.

    Returns:
        At most `parts` - 1 keys, ascending; fewer if no key is near enough to an ideal cut.
    """
    found = _density(files)
    points = found.points
    if parts < 2 or len(points) < 2 or not found.filled[-1]:
        return ()
    share = found.filled[-1] / parts
    cuts: list[bytes] = []
    for number in range(1, parts):
        cut = _cut_at(share * number, share, found, key_types)
        if cut is None or len(cut) > SPLIT_BYTES_MAX or not points[0] <= cut < points[-1]:
            continue
        if not cuts or cut > cuts[-1]:
            cuts.append(cut)
    return tuple(cuts)


@dataclass(frozen=True, slots=True)
class _Density:
    """Distribution of the bytes of some files over keys."""

    points: Sequence[bytes]
    """All bounds of files, ascending."""
    filled: Sequence[float]
    """Cumulative bytes up to each point, inclusive."""
    single: Sequence[float]
    """Bytes of files with only this key."""


def _density(files: Sequence[DataFile]) -> _Density:
    spans = [
        (file.key_min, file.key_max, float(file.size_bytes))
        for file in files
        if file.key_min is not None and file.key_max is not None
    ]
    points = sorted({key for low, high, _ in spans for key in (low, high)})
    place = {key: number for number, key in enumerate(points)}
    between, single = [0.0] * len(points), [0.0] * len(points)
    for low, high, size in spans:
        skipped = shared_length(low, high)
        before = number_after(low, skipped)
        width = number_after(high, skipped) - before
        if width <= 0:
            between[place[high]] += size
            single[place[high]] += size
            continue
        for at in range(place[low] + 1, place[high] + 1):
            number = number_after(points[at], skipped)
            between[at] += size * (number - before) / width
            before = number
    return _Density(points, list(accumulate(between)), single)


def _cut_at(
    aim: float, share: float, found: _Density, key_types: Sequence[KeyType]
) -> bytes | None:
    """Return the key with about `aim` bytes up to it; None if no key is near."""
    points, filled = found.points, found.filled
    high = min(bisect_left(filled, aim), len(points) - 1)
    low = max(0, high - 1)
    nearest = min((low, high), key=lambda at: abs(filled[at] - aim))
    spread = filled[high] - found.single[high] - filled[low]
    if abs(filled[nearest] - aim) > SLACK * share and filled[low] < aim < filled[low] + spread:
        made = key_between(points[low], points[high], (aim - filled[low]) / spread, key_types)
        if made is not None:
            return made
    return points[nearest] if abs(filled[nearest] - aim) <= share / 2 else None


def key_between(
    low: bytes, high: bytes, share: float, key_types: Sequence[KeyType]
) -> bytes | None:
    """Return a key, or a prefix of one, between two keys.

    Args:
        low: The smaller key.
        high: The greater one.
        share: Position between them, 0 to 1.
        key_types: Types of the key columns.

    Returns:
        None if the keys cannot be decoded, or their types have no value between the two.
    """
    try:
        pairs = zip(decode_key(low, key_types), decode_key(high, key_types), strict=False)
        values: list[object] = []
        for kind, (one, other) in zip(key_types, pairs, strict=False):
            if one != other:
                values.append(_value_between(one, other, share, kind))
                break
            values.append(one)
        found = encode_key(values, key_types[: len(values)])
    except (ValueError, OverflowError):
        return None
    return found if low < found < high and len(found) <= CUT_BYTES_MAX else None


_WHOLE = (KeyType.INT, KeyType.DATE, KeyType.TIME, KeyType.TIMESTAMP)


def _value_between(low: object, high: object, share: float, kind: KeyType) -> object:
    match low, high:
        case (int(), int()) if kind in _WHOLE:
            return low + int((high - low) * share)
        case (float(), float()):
            return low + (high - low) * share
        case (str(), str()):
            digits = _digits_between([*map(ord, low)], [*map(ord, high)], share, 128)
            return "".join(map(chr, digits))
        case (bytes(), bytes()):
            return bytes(_digits_between([*low], [*high], share, 256))
        case _:
            raise ValueError(kind)


def _digits_between(low: list[int], high: list[int], share: float, base: int) -> list[int]:
    """Return digits between those of two texts: their common prefix, and a few more digits.

    Texts are assumed to be ASCII after the prefix; the caller checks the result for other texts.
    """
    same = shared_length(low, high)
    first, last = (_value(each[same : same + _PLACES], base) for each in (low, high))
    number, digits = first + int((last - first) * share), list[int]()
    for _ in range(_PLACES):
        number, digit = divmod(number, base)
        digits.insert(0, digit)
    return [*low[:same], *digits]


_PLACES = 4


def _value(digits: list[int], base: int) -> int:
    padded = [*digits, *[0] * _PLACES][:_PLACES]
    return sum(min(digit, base - 1) * base ** (_PLACES - 1 - at) for at, digit in enumerate(padded))
