"""Files are left out of a deletion only if no row of theirs can be meant."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from decimal import Decimal
from itertools import product

import pytest

from common.expressions.file_pruning import ColumnBounds, may_be_true
from common.model.key_values import KeyType, key_type_of
from common.model.keys import encode_key, encode_value


def bounds(type_: str, least: object, greatest: object) -> ColumnBounds:
    kind = key_type_of(type_)
    return ColumnBounds(
        type=type_, least=encode_value(least, kind), greatest=encode_value(greatest, kind)
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
        ("month = 4.5", False),
        ("month > 3.5 and month < 4.5", True),
        ("month in (3.5, 4)", True),
        ("month = 5e0", True),
        ("month in (5, 6e0)", True),
        ("month < -99999999999999999999", False),
        ("month < 99999999999999999999", True),
        ("month = 4.0000000000000000001", True),
        ("month <=> 5", True),
        ("coalesce(month, 0) = 9", True),
        ("day = '2025-04-01'", True),
        ("day = date '2025-04-02'", False),
        ("day < '2025-04-01 10:00:00'", True),
        ("region = 'eu'", True),
        ("region >= 'f'", False),
        ("region like 'x%'", True),
        ("gone = 1", False),
        ("gone < 1", False),
        ("gone is null", True),
        ("not gone is null", False),
    ],
)
def test_a_partition_is_pruned_by_its_values(text: str, meant: bool) -> None:
    known = {
        "month": bounds("int32", 4, 4),
        "day": bounds("date", 20179, 20179),
        "region": bounds("string", "eu", "eu"),
        "gone": bounds("int64", None, None),
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
        known = {"k": bounds("int64", here[0], here[-1])}
        true = any(v is not None and holds(v, literal) for v in here)
        false = any(v is not None and not holds(v, literal) for v in here)
        assert may_be_true(f"k {op} {literal}", known) >= true, (here, op, literal)
        assert may_be_true(f"not k {op} {literal}", known) >= false, (here, op, literal)


def test_keys_of_several_columns_bound_their_first_one() -> None:
    types = (KeyType.STRING, KeyType.INT)
    known = {
        "name": ColumnBounds(
            type="string",
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


AT = "2025-04-01 10:00:00.000001"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (f"at = '{AT}'", True),
        ("at = '2025-04-01 10:00:00'", False),
        ("at < timestamp '2025-04-01 10:00:00.000001'", False),
        ("at <= '2025-04-01 12:00:00.000001+02:00'", True),
        ("at > '2025-04-01'", True),
        ("at > date '2025-04-02'", False),
        ("at between '2025-04-01' and '2025-04-02'", True),
        ("at in ('2025-03-01', '2025-04-02')", False),
        ("at is null", False),
        ("day < '2025-04-01 10:00:00'", True),
        ("day < timestamp '2025-04-01 00:00:00'", False),
        ("day = timestamp '2025-04-01 10:00:00'", False),
        ("price = 1.25", True),
        ("price = 1.250", True),
        ("price > 1.25", False),
        ("price in (1, 2.5)", False),
        ("price > 1.25e0", True),
        ("price < 0.00000000000000000000000000000000001", True),
        ("x > 1e300", True),
        ("x < 1e300", False),
        ("x = 0.1", False),
        ("y = 0.1", True),
        ("y < 0.1", True),
        ("y < 0.09", False),
        ("flag", True),
        ("not flag", False),
        ("flag = false", False),
        ("flag in (true, false)", True),
        ("flag and month = 1", True),
        ("since is null", True),
        ("since < '2025-01-01'", False),
        ("not since is null", True),
    ],
)
def test_files_are_pruned_by_times_dates_and_decimals(text: str, meant: bool) -> None:
    nanos = 1_743_501_600_000_001_000
    at = bounds("timestamp[ns]", nanos + 7, nanos + 999)
    known = {
        "at": at,
        "day": bounds("date", 20179, 20179),
        "price": bounds("decimal(10, 2)", Decimal("1.25"), Decimal("1.25")),
        "x": bounds("double", math.nan, math.nan),
        "y": bounds("float", *2 * [struct.unpack("f", struct.pack("f", 0.1))[0]]),
        "flag": bounds("bool", True, True),
        "since": replace(at, type="timestamp[us, UTC]", nulls=True),
    }
    assert may_be_true(text, known) is meant
