"""Where outputs are cut: about the same bytes between two cuts, and every cut is a key."""

from __future__ import annotations

from typing import Any

import pytest

from common.model.file import DataFile
from common.model.key_values import KeyType
from common.model.keys import PLUS_INFINITY, decode_key, encode_key
from coordinator.plugins.planners.packing import cut_keys, key_between

INT, BOOL = (KeyType.INT,), (KeyType.BOOL,)


def file(name: str, low: int, high: int, size: int = 100) -> DataFile:
    return DataFile(
        path=name, size_bytes=size, rows=1, key_min=encode_key([low], INT),
        key_max=encode_key([high], INT),
    )  # fmt: skip


def values(cuts: tuple[bytes, ...]) -> list[Any]:
    return [decode_key(cut, INT)[0] for cut in cuts]


def test_bounds_of_files_that_lie_near_are_cuts() -> None:
    files = [file(str(at), at * 100, at * 100 + 99) for at in range(4)]
    assert values(cut_keys(files, 4, INT)) == [99, 199, 299]
    assert values(cut_keys(files, 2)) == [199]
    assert cut_keys(files, 1, INT) == ()


def test_between_bounds_a_value_is_a_cut_where_types_are_known() -> None:
    wide = [file("a", 0, 1000), file("b", 1, 999)]
    assert values(cut_keys(wide, 4, INT)) == [250, 500, 749]
    assert cut_keys(wide, 4) == ()
    uneven = [file("a", 0, 1000, 100), file("b", 900, 1000, 900)]
    assert values(cut_keys(uneven, 2, INT)) == [945]


def test_a_key_of_many_bytes_is_in_one_output() -> None:
    files = [file("one", 5, 5, 1000), file("a", 0, 9, 10)]
    assert cut_keys(files, 2, INT) == ()
    near = [file("one", 5, 5, 1000), file("a", 6, 9, 1000)]
    assert values(cut_keys(near, 2, INT)) == [5]
    assert cut_keys([file("one", 5, 5), file("two", 5, 5)], 3, INT) == ()
    assert cut_keys([file("a", 0, 9, 0)], 3, INT) == ()


def test_a_key_is_a_cut_once() -> None:
    assert values(cut_keys([file("a", 0, 2)], 5, INT)) == [1], "only one key lies inside"


def test_files_without_known_keys_and_keys_that_are_too_long_do_not_count() -> None:
    unknown = DataFile(path="u", size_bytes=9000, rows=1)
    assert cut_keys([unknown], 2, INT) == ()
    assert values(cut_keys([unknown, file("a", 0, 100)], 2, INT)) == [50]
    long = DataFile(
        path="l", size_bytes=10, rows=1, key_min=b"a" * 600, key_max=b"b" * 600
    )  # fmt: skip
    longer = DataFile(path="m", size_bytes=10, rows=1, key_min=b"c" * 600, key_max=PLUS_INFINITY)
    assert cut_keys([long, longer], 2) == ()


@pytest.mark.parametrize(
    ("low", "high", "kinds"),
    [
        ((-5,), (900,), INT),
        ((1.5,), (2.5,), (KeyType.FLOAT,)),
        ((10**18,), (2 * 10**18,), (KeyType.TIMESTAMP,)),
        ((19_000,), (19_100,), (KeyType.DATE,)),
        (("aaa",), ("zzz",), (KeyType.STRING,)),
        (("order-1",), ("order-1zz",), (KeyType.STRING,)),
        (("",), ("\x7f",), (KeyType.STRING,)),
        ((b"\x00",), (b"\xff\xff",), (KeyType.BINARY,)),
        (("eu", 3), ("eu", 900), (KeyType.STRING, KeyType.INT)),
        (("eu", 3), ("us", 1), (KeyType.STRING, KeyType.INT)),
    ],
)
def test_a_key_between_two_others_is_one_of_their_types(
    low: tuple[Any, ...], high: tuple[Any, ...], kinds: tuple[KeyType, ...]
) -> None:
    first, last = encode_key(low, kinds), encode_key(high, kinds)
    found = [key_between(first, last, share / 10, kinds) for share in range(1, 10)]
    keys = [key for key in found if key is not None]
    assert len(keys) == 9
    assert keys == sorted(set(keys))
    assert all(first < key < last for key in keys)
    assert all(encode_key(decode_key(key, kinds), kinds) == key for key in keys)


@pytest.mark.parametrize(
    ("low", "high", "kinds"),
    [
        (b"no key", b"no kez", INT),
        (encode_key([1], INT), encode_key([2], INT), INT),
        (encode_key([1], INT), encode_key([1], INT), INT),
        (encode_key([False], BOOL), encode_key([True], BOOL), BOOL),
        (encode_key([None], INT), encode_key([9], INT), INT),
        (b"a", b"b", ()),
    ],
)  # fmt: skip
def test_where_nothing_lies_between_there_is_no_key(
    low: bytes, high: bytes, kinds: tuple[KeyType, ...]
) -> None:
    assert key_between(low, high, 0.5, kinds) is None
