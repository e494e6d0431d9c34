"""The tile rule, against splits and merges between the readings of the pieces."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from common.metadata.bulk_reads import tile
from common.model.file import DataFile
from common.model.tablet import PLUS_INFINITY, Bounds, Tablet, TabletId


def piece(start: bytes | None, end: bytes, *paths: str) -> Tablet:
    files = {path: DataFile(path=path, size_bytes=1, rows=1) for path in paths}
    return Tablet(id=TabletId("t", end), bounds=Bounds(start, end), files=files)


BEFORE = piece(None, PLUS_INFINITY, "left", "right")
LEFT, RIGHT = piece(None, b"m", "left"), piece(b"m", PLUS_INFINITY, "right")


@pytest.mark.parametrize(
    ("read", "tiled"),
    [
        ([BEFORE], [BEFORE]),
        ([LEFT, RIGHT], [LEFT, RIGHT]),
        ([LEFT, BEFORE], [BEFORE]),
        ([BEFORE, RIGHT], [BEFORE]),
        ([RIGHT], None),
        ([LEFT], None),
        ([], None),
    ],
)
def test_a_split_between_two_readings(read: list[Tablet], tiled: list[Tablet] | None) -> None:
    for order in permutations(read):
        assert tile(order, None, None) == tiled


@pytest.mark.parametrize(
    ("start", "end", "ends"),
    [
        (b"a", b"b", [b"m"]),
        (b"m", b"m", [b"m"]),
        (b"m\0", b"z", [PLUS_INFINITY]),
        (b"m", b"n", [b"m", PLUS_INFINITY]),
        (None, b"m", [b"m"]),
    ],
)
def test_a_part_of_the_keys(start: bytes | None, end: bytes, ends: list[bytes]) -> None:
    found = tile([LEFT, RIGHT], start, end)
    assert found is not None
    assert [each.id.end for each in found] == ends


@pytest.mark.parametrize("seed", range(50))
def test_a_long_life_of_splits_and_merges(seed: int) -> None:
    """Pieces read at any moments either leave a hole or show every file exactly once."""
    dice = Random(seed)
    keys = [bytes([key]) for key in range(20)]
    world = [piece(None, PLUS_INFINITY, *(f"f{key[0]}" for key in keys))]
    shown = 0
    for _ in range(60):
        read: dict[bytes, Tablet] = {}
        index = [each.id.end for each in world]
        dice.shuffle(index)
        for end in index:
            for each in world:
                if each.id.end == end:
                    read[end] = each
            if dice.random() < 0.3:
                world = changed(world, keys, dice)
        found = tile(read.values(), None, None)
        if found is not None:
            shown += 1
            paths = [path for each in found for path in each.files]
            assert sorted(paths) == sorted(f"f{key[0]}" for key in keys)
    assert shown > 5


def changed(world: list[Tablet], keys: list[bytes], dice: Random) -> list[Tablet]:
    """Split one tablet, or merge two."""
    at = dice.randrange(len(world))
    chosen = world[at]
    if dice.random() < 0.5 and at + 1 < len(world):
        right = world[at + 1]
        bounds = Bounds(chosen.bounds.start, right.bounds.end)
        merged = replace(right, bounds=bounds, files={**chosen.files, **right.files})
        return [*world[:at], merged, *world[at + 2 :]]
    inside = [key for key in keys if chosen.bounds.holds(key, key) and key != chosen.bounds.end]
    if not inside:
        return world
    cut = dice.choice(inside)
    paths = [f for f in chosen.files if int(f[1:]) <= cut[0]]
    left = piece(chosen.bounds.start, cut, *paths)
    rest = [f for f in chosen.files if f not in paths]
    return [*world[:at], left, piece(cut, chosen.bounds.end, *rest), *world[at + 1 :]]
