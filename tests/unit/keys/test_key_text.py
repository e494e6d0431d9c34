"""Keys are printed for people and read from what people write."""

import math
from decimal import Decimal

import pytest

from common.errors import RequestError
from common.model.key_values import KeyType
from common.model.keys import (
    PLUS_INFINITY,
    encode_key,
    encode_value,
    format_key,
    parse_key,
)

DAY_NS = 86_400 * 10**9
VALUES: dict[KeyType, list[object]] = {
    KeyType.BOOL: [None, False, True],
    KeyType.INT: [None, -(2**63), 0, 2**64 - 1],
    KeyType.FLOAT: [None, -math.inf, -1.5, 0.1, 1e300, math.nan],
    KeyType.DECIMAL: [None, Decimal("-9E+37"), Decimal("-1E-38"), Decimal("0.1"), Decimal("1E+37")],
    KeyType.STRING: [None, "", "null", "+inf", "[", "a,b", "\0", '"', "é😀"],
    KeyType.BINARY: [None, b"", b"\0\xff"],
    KeyType.DATE: [None, -(2**31), -719_162, -1, 19_000, 2**31 - 1],
    KeyType.TIME: [None, 0, 1, DAY_NS - 1, 2**62],
    KeyType.TIMESTAMP: [None, -(2**63) * 10**9, -(10**9) - 1, -1, 0, 10**9, (2**63 - 1) * 10**9],
}


@pytest.mark.parametrize("key_type", KeyType)
def test_a_printed_key_can_be_parsed_again(key_type: KeyType) -> None:
    for value in VALUES[key_type]:
        data = encode_value(value, key_type)
        assert parse_key(format_key(data, [key_type]), [key_type]) == data
    assert parse_key(format_key(PLUS_INFINITY, [key_type]), [key_type]) == PLUS_INFINITY


def test_keys_are_printed_for_people() -> None:
    types = [
        KeyType.STRING,
        KeyType.TIMESTAMP,
        KeyType.DATE,
        KeyType.TIME,
        KeyType.BINARY,
        KeyType.DECIMAL,
    ]
    key = encode_key(["é", 1_500_000_000, 1, 1, b"\x01", Decimal("1.50")], types)
    assert format_key(key, types) == (
        '["é", "1970-01-01T00:00:01.5Z", "1970-01-02", "00:00:00.000000001", "0x01", "1.5"]'
    )


@pytest.mark.parametrize(
    ("written", "key_type", "value"),
    [
        ("17", KeyType.INT, 17),
        ([17], KeyType.INT, 17),
        ("a,b", KeyType.STRING, "a,b"),
        ('["[x"]', KeyType.STRING, "[x"),
        ("[null]", KeyType.STRING, None),
        ("TRUE", KeyType.BOOL, True),
        ("1.50", KeyType.DECIMAL, Decimal("1.5")),
        ([0.1], KeyType.DECIMAL, Decimal("0.1")),
        ("2024-01-01T01:00:00.123456789+01:00", KeyType.TIMESTAMP, 1_704_067_200_123_456_789),
        ("2024-01-01", KeyType.TIMESTAMP, 1_704_067_200 * 10**9),
        ("2024-01-01", KeyType.DATE, 19_723),
        ("20240101", KeyType.DATE, 19_723),
        ("0x00ff", KeyType.BINARY, b"\x00\xff"),
        ("nan", KeyType.FLOAT, math.nan),
        ([1], KeyType.FLOAT, 1.0),
        ("12:00", KeyType.TIME, DAY_NS // 2),
        ([5], KeyType.TIME, 5),
    ],
)
def test_keys_are_parsed_as_users_write_them(
    written: str | list[object], key_type: KeyType, value: object
) -> None:
    assert parse_key(written, [key_type]) == encode_value(value, key_type)


def test_several_columns_are_written_with_commas() -> None:
    types = [KeyType.STRING, KeyType.INT]
    assert parse_key("de, 17", types) == encode_key(["de", 17], types)
    assert parse_key("de", types) == encode_key(["de"], types)


@pytest.mark.parametrize(
    ("written", "key_type"),
    [
        ("x", KeyType.INT),
        ("maybe", KeyType.BOOL),
        ("ff", KeyType.BINARY),
        ("0xf", KeyType.BINARY),
        ("yesterday", KeyType.TIMESTAMP),
        ("2024-01-01T00:00:00.1234567890Z", KeyType.TIMESTAMP),
        ("2024-13-01", KeyType.DATE),
        ("12:00Z", KeyType.TIME),
        ("5", KeyType.TIME),
        ("1704067200", KeyType.TIMESTAMP),
        ("1.2.3", KeyType.TIMESTAMP),
        ("[1", KeyType.INT),
        ("1,5", KeyType.DECIMAL),
        ([["a"]], KeyType.STRING),
    ],
)
def test_a_key_that_cannot_be_parsed_is_refused(
    written: str | list[object], key_type: KeyType
) -> None:
    with pytest.raises(RequestError, match="key"):
        parse_key(written, [key_type])
