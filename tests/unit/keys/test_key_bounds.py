"""Bounds of keys: short, rounded outwards, readable, and on the same side of every split."""

import random

import pytest

from common.errors import RequestError
from common.model.key_values import KeyType
from common.model.keys import (
    BOUND_BYTES_MAX,
    PLUS_INFINITY,
    SPLIT_BYTES_MAX,
    decode_key,
    encode_key,
    lower_bound,
    require_short,
    upper_bound,
)

TYPES = (KeyType.INT, KeyType.STRING, KeyType.BINARY)
ALPHABET = ["a", "b", "\0", "\x01", "\x7f", "é", "\ud7ff", "\ue000", "\U0010ffff"]


def long_text(chance: random.Random) -> str:
    some = chance.sample(ALPHABET, chance.randint(1, 3))
    return "".join(chance.choices(some, k=chance.randint(1, 3) * 400))


def draw(chance: random.Random) -> bytes:
    """Return a key that begins like others, and may be long in any of its texts."""
    text = chance.choice(["", "a", "b" * 500, "b" * 2000, long_text(chance)])
    raw = chance.choice([b"", b"\xff" * 3000, b"\0" * 600, chance.randbytes(2), text.encode()])
    return encode_key([chance.randrange(2), text, raw], TYPES)


@pytest.mark.parametrize("seed", range(60))
def test_bounds_are_short_readable_and_outside(seed: int) -> None:
    chance = random.Random(seed)
    for key in (draw(chance) for _ in range(10)):
        low, high = lower_bound(key, TYPES), upper_bound(key, TYPES)
        assert low <= key <= high
        assert max(len(low), len(high)) <= BOUND_BYTES_MAX
        assert (low == key == high) == (len(key) <= BOUND_BYTES_MAX)
        decode_key(low, TYPES)
        assert high == PLUS_INFINITY or decode_key(high, TYPES)


@pytest.mark.parametrize("seed", range(60))
def test_no_end_of_a_tablet_lies_between_a_key_and_its_bound(seed: int) -> None:
    chance = random.Random(seed)
    keys = [draw(chance) for _ in range(10)]
    ends = [key for key in keys if len(key) <= SPLIT_BYTES_MAX]
    for key in keys:
        prefixes = decode_key(key, TYPES)
        text, raw = str(prefixes[1]), bytes(prefixes[2])  # type: ignore[arg-type]  # of these types
        ends += [
            encode_key([prefixes[0], text[: chance.randint(0, 120)]], TYPES),
            encode_key([prefixes[0], text[:100], raw[: chance.randint(0, 50)]], TYPES),
        ]
    ends = [end for end in ends if len(end) <= SPLIT_BYTES_MAX]
    for key in keys:
        high = upper_bound(key, TYPES)
        for end in ends:
            assert (key > end) == (lower_bound(key, TYPES) > end)
            assert high == PLUS_INFINITY or (key <= end) == (high <= end)


def test_where_nothing_is_above_the_bound_is_infinity() -> None:
    assert upper_bound(encode_key([b"\xff" * 2000], [KeyType.BINARY]), [KeyType.BINARY]) == (
        PLUS_INFINITY
    )
    highest = encode_key(["\U0010ffff" * 2000], [KeyType.STRING])
    assert upper_bound(highest, [KeyType.STRING]) == PLUS_INFINITY


def test_an_end_of_a_tablet_is_short() -> None:
    require_short(b"k" * SPLIT_BYTES_MAX, "split")
    with pytest.raises(RequestError, match="split 'kk' has a key of 513 bytes"):
        require_short(b"k" * (SPLIT_BYTES_MAX + 1), "split 'kk'")
