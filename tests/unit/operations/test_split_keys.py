"""Where a tablet is split: balanced bytes, few of them rewritten, always inside."""

from __future__ import annotations

import random

import pytest

from common.model.file import DataFile
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.model.tablet import PLUS_INFINITY, Bounds
from coordinator.core.split_merge import files_to_sample, split_keys

ALL = Bounds(None, PLUS_INFINITY)


def key(value: int) -> bytes:
    return encode_key([value], [KeyType.INT])


def file(path: str, low: int, high: int, size: int = 100, **more: object) -> DataFile:
    facts = {"path": path, "size_bytes": size, "rows": 1, "key_min": key(low), "key_max": key(high)}
    return DataFile(**(facts | more))  # type: ignore[arg-type]  # facts by name


@pytest.mark.parametrize(
    ("files", "cut"),
    [
        # Files side by side: between two of them, where nothing has to be rewritten.
        ([file("a", 0, 9), file("b", 10, 19), file("c", 20, 29), file("d", 30, 39)], 19),
        ([file("a", 0, 9, 300), file("b", 10, 19), file("c", 20, 29), file("d", 30, 39)], 9),
        # A little out of balance, but nothing rewritten, is better than balanced.
        ([file("a", 0, 9, 42), file("b", 10, 29, 58), file("c", 12, 13, 1)], 9),
        # One file covers all: where the others suggest it.
        ([file("a", 0, 100, 1000), file("b", 40, 50), file("c", 60, 70)], 50),
        # Nothing is known inside, or it is too far away.
        ([file("a", 0, 100)], None),
        ([file("a", 5, 5)], None),
        ([file("a", 0, 100, 1000), file("b", 0, 5, 10)], None),
        ([DataFile(path="none", size_bytes=5, rows=0)], None),
        ([], None),
    ],
)
def test_where_a_tablet_is_split_by_what_files_say(files: list[DataFile], cut: int | None) -> None:
    found = split_keys(ALL, files)
    assert found == (() if cut is None else (key(cut),))


def test_a_key_at_or_beyond_the_bounds_is_no_cut() -> None:
    files = [file("a", 0, 20), file("b", 11, 20)]
    assert split_keys(Bounds(key(-1), key(20)), files) == (key(11),)
    assert split_keys(Bounds(key(11), key(20)), files) == ()


def test_samples_tell_where_the_bytes_of_a_large_file_are() -> None:
    large = file("a", 0, 1000, 1000)
    crowd = [*range(900, 1001, 2), 0]
    (cut,) = split_keys(ALL, [large], {"a": [key(value) for value in crowd]})
    assert 940 <= int.from_bytes(cut[2:], "big") <= 960
    assert split_keys(ALL, [large], {"a": [key(7)]}) == ()
    # Rows of one key cannot be told apart.
    assert split_keys(ALL, [file("a", 7, 7, 1000)], {"a": [key(7)] * 50}) == ()


def test_a_key_that_begins_another() -> None:
    """A prefix, as a user may have given it as the end of a tablet."""
    prefix, low, high = key(7), key(7) + b"\x01a", key(7) + b"\x01b"
    files = [
        DataFile(path="a", size_bytes=100, rows=1, key_min=prefix, key_max=low),
        DataFile(path="b", size_bytes=100, rows=1, key_min=low, key_max=high),
    ]
    assert split_keys(ALL, files) == (low,)
    samples = {"a": [prefix, prefix + b"\x00"], "b": [low, high]}
    assert split_keys(ALL, files, samples) == (prefix + b"\x00",)


def test_several_cuts_divide_the_rows_evenly() -> None:
    samples = {"a": [key(value) for value in range(0, 1001, 10)]}
    cuts = split_keys(ALL, [file("a", 0, 1000, 1000)], samples, parts=4)
    values = [int.from_bytes(cut[2:], "big") for cut in cuts]
    assert len(values) == 3
    assert all(abs(value - aim) <= 60 for value, aim in zip(values, (250, 500, 750), strict=True))
    few = split_keys(ALL, [file("a", 0, 9), file("b", 10, 19)], parts=4)
    assert few == (key(9),)


def test_only_the_largest_files_are_sampled() -> None:
    files = [file("a", 0, 9, 500), file("b", 0, 9, 300), file("c", 0, 9, 100)]
    assert [each.path for each in files_to_sample(files)] == ["a", "b"]
    equal = [file(name, 0, 9) for name in "fedcba"]
    assert [each.path for each in files_to_sample(equal)] == ["a", "b", "c", "d"]
    odd = [file("a", 0, 9, open=True), DataFile(path="none", size_bytes=5, rows=0)]
    assert files_to_sample(odd) == ()


@pytest.mark.parametrize("seed", range(20))
def test_a_split_of_any_files_is_balanced_and_inside(seed: int) -> None:
    dice = random.Random(seed)
    rows: dict[str, list[int]] = {}
    for number in range(dice.randint(1, 30)):
        middle, width = dice.randint(0, 10_000), dice.choice((10, 500, 10_000))
        rows[f"f{number}"] = [middle + dice.randint(0, width) for _ in range(200)]
    sizes = {path: dice.choice((10, 100, 5000)) for path in rows}
    files = [file(path, min(own), max(own), sizes[path]) for path, own in rows.items()]
    samples = {
        each.path: [key(value) for value in sorted(rows[each.path])[::4]]
        for each in files_to_sample(files)
    }
    (cut,) = split_keys(ALL, files, samples)
    total = sum(sizes.values())
    left = sum(
        sizes[path] * sum(key(value) <= cut for value in own) / len(own)
        for path, own in rows.items()
    )
    assert 0.15 <= left / total <= 0.85
    assert min(each.key_min for each in files if each.key_min) <= cut
    assert cut < max(each.key_max for each in files if each.key_max)
