"""Values that programs trip over, and trees of plain values with one of them in it."""

from __future__ import annotations

import copy
import random
from typing import Any

HUGE_CHARS = 200_000
DEEP = 450
"""Levels: nearly what msgpack writes."""
PLACES_DEEP_MAX = 20
TEXTS = (
    "",
    " ",
    "x",
    "0",
    "-1",
    "1e999",
    "nan",
    "inf",
    "null",
    "true",
    "9" * 5000,
    "a" * 300,
    "A" * HUGE_CHARS,
    "../../x",
    "/etc/passwd",
    "a\0b",
    "a\\b",
    "a;b",
    "{t}",
    "%s%n%x",
    "${env:HOME}",
    "é" * 300,
    "\u202e\u2066",
    "\ud800",
    "\ufffe",
    "🀄",
    "line\r\nanother: line",
    "1970-01-01",
    "9999-12-31T23:59:60Z",
    "1h",
    "100000000000d",
    "1 PiB",
    "99999999999999999999TiB",
    "s3://key:secret@bucket/t",
    "file:///proc/self/root/tmp",
    "ff",
    "zz",
    "+inf",
    "[1]",
    '{"a": 1}',
)
NUMBERS: tuple[int | float, ...] = (
    *(0, 1, -1, 2, 127, 255, 2**15, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1),
    *(2**63, -(2**31), -(2**63), 0.5, -0.0, 1e-320, 1e15, 1e18, 1e100, 1e308),
    *(float("inf"), float("-inf"), float("nan")),
)
"""As far as msgpack has them; JSON has more."""


def junk(draw: random.Random, *, plain: bool = True) -> Any:
    """Return a value that nobody expected.

    Args:
        draw: By the seed.
        plain: Of JSON only: no bytes.
    """
    match draw.randrange(8):
        case 0 | 1:
            return draw.choice(NUMBERS)
        case 2 | 3:
            return draw.choice(TEXTS)
        case 4:
            return draw.choice((None, True, False))
        case 5:
            return draw.choice(([], {}, [None], [[]], {"": None}, [1] * 1000, [["a", 1]], {"a": 1}))
        case 6 if not plain:
            return draw.choice((b"", b"\0", b"\xff" * 40, b"\x01m", bytes(5000)))
        case _:
            return deep(draw.choice((3, 8, 60, DEEP)) if not plain else 60)


def deep(levels: int) -> list[Any]:
    """Return lists in lists."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def spoiled(draw: random.Random, tree: Any, *, plain: bool = True) -> Any:
    """Return a copy of a tree in which one place is another."""
    places = list(_places(tree))
    if not places or draw.random() < 0.02:
        return junk(draw, plain=plain)
    tree = copy.deepcopy(tree)
    path = draw.choice(places)
    above = tree
    for step in path[:-1]:
        above = above[step]
    _spoil(draw, above, path[-1], plain=plain)
    return tree


def _places(tree: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(tree, dict):
        steps: list[Any] = list(tree)
    elif isinstance(tree, list):
        steps = list(range(len(tree)))
    else:
        return []
    found: list[tuple[Any, ...]] = []
    for step in steps if len(above) < PLACES_DEEP_MAX else ():
        found.append((*above, step))
        found += _places(tree[step], (*above, step))
    return found


def _spoil(draw: random.Random, holder: Any, step: Any, *, plain: bool) -> None:
    """Change, drop, repeat or rename what is at a place."""
    change = draw.randrange(10)
    if change == 0:
        del holder[step]
    elif change == 1 and isinstance(holder, list):
        holder.insert(step, copy.deepcopy(draw.choice(holder)))
    elif change == 1:
        holder[f"{step}x"] = holder[step]
    elif change == 2 and isinstance(holder, list):
        holder.append(junk(draw, plain=plain))
    elif change == 2:
        holder[str(draw.choice(TEXTS))] = holder.pop(step)
    else:
        holder[step] = _near(draw, holder[step], plain=plain)


def _near(draw: random.Random, value: Any, *, plain: bool) -> Any:
    """Return a value of the same type that is a little different, or any other."""
    if draw.random() < 0.5:
        return junk(draw, plain=plain)
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return draw.choice((value + 1, value - 1, -value, value * 2**20, str(value), value / 3))
    if isinstance(value, str):
        return draw.choice((value + "x", value[:-1], value.upper(), value * 50, f" {value}", 7))
    if isinstance(value, bytes):
        return draw.choice((value + b"\xff", value[:-1], value[::-1], value * 50, b"\0" + value))
    return [value]


def spoiled_bytes(draw: random.Random, data: bytes) -> bytes:
    """Return bytes that are another in one place or two."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(changed) + 1)
        match draw.randrange(6):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << draw.randrange(8)
            case 1 if changed:
                changed[at % len(changed)] = draw.choice((0, 1, 0x7F, 0x80, 0xC1, 0xFF))
            case 2:
                del changed[at:]
            case 3:
                del changed[at : at + draw.choice((1, 2, 9))]
            case 4:
                changed[at:at] = draw.choice((b"\0", b"\xff\xff\xff\xff", b"\x80", b"\r\n", b'"'))
            case _:
                part = changed[at : at + draw.choice((1, 8, 40))]
                changed[at:at] = part * draw.choice((1, 2, 30))
    return bytes(changed)
