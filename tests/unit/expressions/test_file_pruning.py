"""Files are left out of a deletion only if no row of theirs can be meant."""

from __future__ import annotations

from itertools import product

import pytest

from common.expressions.file_pruning import ColumnBounds, may_be_true
from common.model.key_values import KeyType
from common.model.keys import encode_key, encode_value

MONTH = {"month": KeyType.INT}


def bounds(kind: KeyType, least: object, greatest: object) -> ColumnBounds:
    return ColumnBounds(
        kind=kind, least=encode_value(least, kind), greatest=encode_value(greatest, kind)
    )


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("month = 4", True),
        ("month = 5", False),
        ("4 = month", True),
        ("5 < month", False),
        ("3 < month and v > 7", True),
        ("month = 5 and v > 7", False),
        ("month = 5 or v > 7", True),
        ("not month = 4", False),
        ("month <> 4", False),
        ("month in (1, 2, 3)", False),
        ("month not in (1, 2, 3)", True),
        ("month not in (3, 4)", False),
        ("month between 1 and 3", False),
        ("month not between 4 and 9", False),
        ("month is null", False),
        ("month is not null", True),
        ("month + 1 = 9", True),
        ("month = 4.5", True),
        ("month <=> 5", True),
        ("coalesce(month, 0) = 9", True),
        ("day = '2025-04-01'", True),
        ("day = date '2025-04-02'", False),
        ("day < '2025-04-01 10:00:00'", True),
        ("region = 'eu'", True),
        ("region >= 'f'", False),
        ("region like 'x%'", True),
        ("gone = 1", False),
        ("gone is null", True),
        ("not gone is null", False),
    ],
)
def test_a_partition(text: str, meant: bool) -> None:
    known = {
        "month": bounds(KeyType.INT, 4, 4),
        "day": bounds(KeyType.DATE, 20179, 20179),
        "region": bounds(KeyType.STRING, "eu", "eu"),
        "gone": bounds(KeyType.INT, None, None),
    }
    assert may_be_true(text, known) is meant


def test_no_row_within_bounds_is_lost() -> None:
    values = [None, -1, 0, 1, 2, 3]
    ops = {
        "=": int.__eq__, "<>": int.__ne__, "<": int.__lt__,
        "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__,
    }  # fmt: skip
    for (low, high), (op, holds), literal in product(
        [(a, b) for a in range(6) for b in range(a, 6)], ops.items(), range(-2, 5)
    ):
        here = values[low : high + 1]
        known = {"k": bounds(KeyType.INT, here[0], here[-1])}
        true = any(v is not None and holds(v, literal) for v in here)
        false = any(v is not None and not holds(v, literal) for v in here)
        assert may_be_true(f"k {op} {literal}", known) >= true, (here, op, literal)
        assert may_be_true(f"not k {op} {literal}", known) >= false, (here, op, literal)


def test_keys_of_several_columns_bound_their_first_one() -> None:
    types = (KeyType.STRING, KeyType.INT)
    known = {
        "name": ColumnBounds(
            kind=KeyType.STRING,
            least=encode_key(["b", 7], types),
            greatest=encode_key(["d", -3], types),
        )
    }
    for text, meant in {
        "name = 'b'": True, "name = 'd'": True, "name = 'c'": True, "name = 'bb'": True,
        "name = 'a'": False, "name = 'da'": False, "name < 'b'": False, "name <= 'b'": True,
        "name > 'd'": False, "name >= 'd'": True,
    }.items():  # fmt: skip
        assert may_be_true(text, known) is meant, text
