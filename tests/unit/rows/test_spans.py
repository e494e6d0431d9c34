"""Ranges of dropped keys: every key in one, nobody else's if possible; few and short."""

import random

from common.rows.rules import (
    KEY_BYTES_MAX,
    SPANS_MAX,
    key_spans,
    merged_spans,
)


def test_ranges_end_where_files_begin_or_end() -> None:
    keys = [b"a", b"d", b"g", b"k"]
    assert key_spans(keys.__getitem__, 4, ()) == ((b"a", b"k"),)
    assert key_spans(keys.__getitem__, 4, [b"b", b"c"]) == ((b"a", b"a"), (b"d", b"k"))
    assert key_spans(keys.__getitem__, 4, [b"A", b"z", b"h"]) == ((b"a", b"g"), (b"k", b"k"))


def test_ranges_that_meet_are_one() -> None:
    assert merged_spans([(b"m", b"n"), (b"a", b"c"), (b"c", b"d")]) == ((b"a", b"d"), (b"m", b"n"))
    assert merged_spans([(b"a", b"z"), (b"b", b"c")]) == ((b"a", b"z"),)
    assert merged_spans([]) == ()


def test_of_too_many_ranges_the_closest_are_joined() -> None:
    near = [(b"k%06d" % at, b"k%06d" % at) for at in range(0, 4 * SPANS_MAX, 2)]
    found = merged_spans([(b"a", b"b"), *near, (b"y", b"z")])
    assert len(found) == SPANS_MAX
    assert (found[0], found[-1]) == ((b"a", b"b"), (b"y", b"z"))
    assert all(any(low <= key <= high for low, high in found) for key, _ in near)


def test_long_keys_are_rounded_outwards() -> None:
    long = b"k" * (KEY_BYTES_MAX + 1)
    high = b"k" * (KEY_BYTES_MAX - 2) + b"\xff" * 40
    ((low, top),) = merged_spans([(long, high)])
    assert low <= long < high <= top
    assert max(len(low), len(top)) <= KEY_BYTES_MAX
    nothing_above = b"\xff" * (KEY_BYTES_MAX + 1)
    assert merged_spans([(long, nothing_above)])[0][1] == nothing_above


def test_every_key_is_covered_and_files_between_are_not() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        keys = sorted({chance.randbytes(chance.randint(1, 3)) for _ in range(40)})
        files = [sorted(chance.randbytes(2) for _ in range(2)) for _ in range(5)]
        free = [key for key in keys if not any(low <= key <= high for low, high in files)]
        if not free:
            continue
        marks = [end for file in files for end in file]
        spans = key_spans(free.__getitem__, len(free), marks)
        assert all(any(low <= key <= high for low, high in spans) for key in free)
        assert not any(
            low <= high_of and low_of <= high for low, high in spans for low_of, high_of in files
        )
