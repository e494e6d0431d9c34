"""Keys sort like their values, decode to them, and are read from what people write."""

import itertools
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pytest

from common.errors import RequestError
from common.model.key_values import KeyType, key_type_of
from common.model.keys import (
    PLUS_INFINITY,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    parse_key,
)

DAY_NS = 86_400 * 10**9
ASCENDING: dict[KeyType, list[object]] = {
    KeyType.BOOL: [None, False, True],
    KeyType.INT: [None, -(2**63), -256, -1, 0, 1, 255, 256, 2**63 - 1, 2**63, 2**64 - 1],
    KeyType.FLOAT: [None, -math.inf, -1e300, -1.5, -5e-324, 0.0, 5e-324, 1.5, math.inf, math.nan],
    KeyType.DECIMAL: [
        None,
        Decimal(10) ** 37 * -9,
        Decimal("-1.5"),
        Decimal("-1E-38"),
        Decimal(0),
        Decimal("0.1"),
        Decimal("1.5"),
        Decimal("1E+37"),
    ],
    KeyType.STRING: [
        None,
        "",
        "\0",
        "\0\0",
        "\0\x01",
        "\x01",
        "a",
        "a\0",
        "a\0b",
        "a\x01",
        "ab",
        "é",
        "😀",
    ],
    KeyType.BINARY: [
        None,
        b"",
        b"\0",
        b"\0\0",
        b"\0\x01",
        b"\0\xff",
        b"\x01",
        b"\xff",
        b"\xff\0",
        b"\xff\xff",
    ],
    KeyType.DATE: [None, -(2**31), -1, 0, 19_000, 2**31 - 1],
    KeyType.TIME: [None, 0, 1, DAY_NS - 1],
    KeyType.TIMESTAMP: [
        None,
        -(2**63) * 10**9,
        -(10**9) - 1,
        -1,
        0,
        1,
        10**9,
        2**63,
        (2**63 - 1) * 10**9,
    ],
}


@pytest.mark.parametrize("key_type", KeyType)
def test_encoding_ascends_with_the_values_and_decodes_to_them(key_type: KeyType) -> None:
    values = ASCENDING[key_type]
    encoded = [encode_value(value, key_type) for value in values]
    assert all(low < high for low, high in itertools.pairwise(encoded))
    assert max(encoded) < PLUS_INFINITY
    assert min(encoded) > b""
    decoded = [decode_value(data, key_type) for data in encoded]
    assert list(map(repr, decoded))[:-1] == list(map(repr, values))[:-1] or decoded == values


def test_a_prefix_sorts_before_every_key_that_it_begins() -> None:
    types = [KeyType.STRING, KeyType.INT]
    prefix = encode_key(["a"], types)
    for number in (None, -(2**63), 0, 2**64 - 1):
        assert prefix < encode_key(["a", number], types) < encode_key(["a\0"], types)
    assert decode_key(prefix, types) == ("a",)
    assert encode_key([], types) == b""


def test_encoded_keys_keep_their_published_bytes() -> None:
    """They live in the store and in other people's code: a change is a new format."""
    types = [KeyType.STRING, KeyType.INT, KeyType.FLOAT, KeyType.TIMESTAMP, KeyType.BOOL]
    key = encode_key(["a\0b", -1, 1.0, 1_500_000_000, None], types)
    assert key.hex(" ") == (
        "01 61 00 ff 62 00 01 01 7f ff ff ff ff ff ff ff 01 bf f0 00 00 00 00 00 00 "
        "01 80 00 00 00 00 00 00 01 1d cd 65 00 00"
    )
    assert encode_value(2**63, KeyType.INT).hex() == "028000000000000000"
    assert encode_value(Decimal("1E-38"), KeyType.DECIMAL).hex() == "01" + "80" + "00" * 30 + "01"


def test_values_that_are_equal_have_equal_bytes() -> None:
    assert encode_value(-0.0, KeyType.FLOAT) == encode_value(0.0, KeyType.FLOAT)
    assert encode_value(-math.nan, KeyType.FLOAT) == encode_value(math.nan, KeyType.FLOAT)
    assert encode_value(Decimal("1.50"), KeyType.DECIMAL) == encode_value(
        Decimal("1.5"), KeyType.DECIMAL
    )
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    expected = encode_value(int(noon.timestamp()) * 10**9, KeyType.TIMESTAMP)
    assert encode_value(noon, KeyType.TIMESTAMP) == expected
    assert encode_value(noon.replace(tzinfo=None), KeyType.TIMESTAMP) == expected
    assert encode_value(date(1970, 1, 2), KeyType.DATE) == encode_value(1, KeyType.DATE)
    assert encode_value(time(0, 0, 1, 5), KeyType.TIME) == encode_value(1_000_005_000, KeyType.TIME)


@pytest.mark.parametrize(
    ("value", "key_type"),
    [
        (True, KeyType.INT),
        (2**64, KeyType.INT),
        (-(2**63) - 1, KeyType.INT),
        (1.0, KeyType.INT),
        ("1", KeyType.FLOAT),
        (b"a", KeyType.STRING),
        ("a", KeyType.BINARY),
        ("\ud800", KeyType.STRING),
        (Decimal("1E-39"), KeyType.DECIMAL),
        (Decimal("1E+38"), KeyType.DECIMAL),
        (Decimal("NaN"), KeyType.DECIMAL),
        (Decimal("1E+99999999"), KeyType.DECIMAL),
        (1.0, KeyType.DECIMAL),
        (datetime(2024, 1, 1, tzinfo=UTC), KeyType.DATE),
        (2**63, KeyType.TIME),
        (2**63 * 10**9, KeyType.TIMESTAMP),
        (True, KeyType.TIMESTAMP),
        (1, KeyType.BOOL),
    ],
)
def test_a_value_of_another_type_is_refused(value: object, key_type: KeyType) -> None:
    with pytest.raises(RequestError, match=str(key_type)):
        encode_value(value, key_type)


@pytest.mark.parametrize("data", ["", "01", "03", "0180", "010000000000000000ff", "80"])
def test_bytes_that_are_no_key_are_refused(data: str) -> None:
    with pytest.raises(ValueError, match=r"encoded key|unpack"):
        decode_value(bytes.fromhex(data), KeyType.INT)


def test_text_without_its_end_is_refused() -> None:
    with pytest.raises(ValueError, match="ends within a string"):
        decode_value(b"\x01abc", KeyType.STRING)


def test_too_many_values_are_refused() -> None:
    with pytest.raises(RequestError, match="2 values, but only 1 columns"):
        encode_key([1, 2], [KeyType.INT])
    with pytest.raises(RequestError, match="2 values, but only 1 columns"):
        parse_key("[1, 2]", [KeyType.INT])


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("int8", KeyType.INT),
        ("uint64", KeyType.INT),
        ("float", KeyType.FLOAT),
        ("double", KeyType.FLOAT),
        ("decimal(10, 2)", KeyType.DECIMAL),
        ("timestamp[us, UTC]", KeyType.TIMESTAMP),
        ("time[ns]", KeyType.TIME),
        ("binary[16]", KeyType.BINARY),
        ("date", KeyType.DATE),
    ],
)
def test_column_types_belong_to_families(text: str, family: KeyType) -> None:
    assert key_type_of(text) is family


@pytest.mark.parametrize("text", ["list<int64>", "struct<a: int64>", "", "null"])
def test_a_column_without_order_cannot_be_a_key(text: str) -> None:
    with pytest.raises(RequestError, match="no order"):
        key_type_of(text)
