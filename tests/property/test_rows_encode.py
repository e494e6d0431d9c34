"""The vectorised encoding and hash say the same as the plain ones, on seeded random columns."""

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.rows.key_encoding import encode_keys
from common.rows.row_facts import row_hash
from tests.property import rows_reference as reference

Draw = Callable[[random.Random], object]
SPECIAL_FLOATS = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 5e-324, -1.5]
ALPHABET = ["", "a", "\0", "\x01", "\0\x01", "é", "😀", "abcdefg", "abcdefgh", "x" * 17]


def whole(bits: int, *, signed: bool = True) -> Draw:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return lambda chance: chance.choice(
        [low, high, 0, chance.randint(low, high), chance.randint(0, 9)]
    )


def a_float(chance: random.Random) -> object:
    return chance.choice([*SPECIAL_FLOATS, chance.random()])


def a_text(chance: random.Random) -> str:
    return "".join(chance.choices(ALPHABET, k=chance.randint(0, 3)))


def a_binary(chance: random.Random) -> object:
    return bytes(chance.choices([0, 1, 97, 255], k=chance.randint(0, 20)))


def a_timestamp(chance: random.Random) -> datetime:
    return datetime.fromtimestamp(chance.randint(-(10**10), 10**10), UTC)


def a_decimal(precision: int, scale: int) -> Draw:
    return lambda chance: Decimal(
        (
            chance.randint(0, 1),
            tuple(chance.choices(range(10), k=chance.randint(1, precision))),
            -scale,
        )
    )


COLUMNS: list[tuple[pa.DataType, KeyType, Draw]] = [
    (pa.bool_(), KeyType.BOOL, lambda chance: chance.random() < 0.5),
    *((getattr(pa, f"int{bits}")(), KeyType.INT, whole(bits)) for bits in (8, 16, 32, 64)),
    *(
        (getattr(pa, f"uint{bits}")(), KeyType.INT, whole(bits, signed=False))
        for bits in (8, 16, 32, 64)
    ),
    (pa.float64(), KeyType.FLOAT, a_float),
    (pa.float32(), KeyType.FLOAT, lambda chance: float(np.float32(a_float(chance)))),
    (pa.string(), KeyType.STRING, a_text),
    (pa.large_string(), KeyType.STRING, a_text),
    (pa.string_view(), KeyType.STRING, a_text),
    (pa.dictionary(pa.int8(), pa.string()), KeyType.STRING, lambda chance: chance.choice(ALPHABET)),
    (pa.binary(), KeyType.BINARY, a_binary),
    (pa.binary(3), KeyType.BINARY, lambda chance: bytes(chance.choices([0, 7, 255], k=3))),
    (pa.date32(), KeyType.DATE, lambda chance: date.fromordinal(chance.randint(1, 3_000_000))),
    (pa.date64(), KeyType.DATE, lambda chance: date.fromordinal(chance.randint(1, 3_000_000))),
    (pa.time32("s"), KeyType.TIME, lambda chance: time(chance.randint(0, 23), 59, 7)),
    (
        pa.time64("us"),
        KeyType.TIME,
        lambda chance: time(chance.randint(0, 23), 59, 7, chance.randint(0, 999_999)),
    ),
    (pa.timestamp("s"), KeyType.TIMESTAMP, lambda chance: a_timestamp(chance).replace(tzinfo=None)),
    (
        pa.timestamp("us", "UTC"),
        KeyType.TIMESTAMP,
        lambda chance: a_timestamp(chance).replace(microsecond=7),
    ),
    (pa.decimal128(10, 2), KeyType.DECIMAL, a_decimal(10, 2)),
    (pa.decimal128(38, 38), KeyType.DECIMAL, a_decimal(38, 38)),
    (pa.decimal128(38, 0), KeyType.DECIMAL, a_decimal(38, 0)),
    (pa.decimal32(5, 1), KeyType.DECIMAL, a_decimal(5, 1)),
    (pa.decimal256(40, 2), KeyType.DECIMAL, a_decimal(40, 2)),
]


def drawn(chance: random.Random, draw: Draw, rows: int, nulls: float) -> list[object]:
    return [None if chance.random() < nulls else draw(chance) for _ in range(rows)]


def chunked(values: list[object], arrow: pa.DataType) -> pa.ChunkedArray:
    """Three chunks, the middle one a slice of something longer."""
    third = len(values) // 3
    middle = pa.array([*values[:2], *values[third : 2 * third], *values[:1]], arrow).slice(2, third)
    return pa.chunked_array(
        [pa.array(values[:third], arrow), middle, pa.array(values[2 * third :], arrow)], type=arrow
    )


@pytest.mark.parametrize("nulls", [0.0, 0.3])
@pytest.mark.parametrize(
    ("arrow", "key_type", "draw"), COLUMNS, ids=[str(each[0]) for each in COLUMNS]
)
def test_one_key_column_is_encoded_as_its_values_are(
    arrow: pa.DataType, key_type: KeyType, draw: Draw, nulls: float
) -> None:
    values = drawn(random.Random(str(arrow)), draw, 200, nulls)
    table = pa.table({"k": chunked(values, arrow)})
    assert table["k"].to_pylist() == values or key_type is KeyType.FLOAT

    assert encode_keys(table, ["k"], [key_type]).to_pylist() == [
        encode_key([v], [key_type]) for v in values
    ]
    assert row_hash(table).tolist() == [reference.row({"k": value}) for value in values]


@pytest.mark.parametrize("seed", range(30))
def test_several_key_columns_are_encoded_as_their_values_are(seed: int) -> None:
    chance = random.Random(seed)
    chosen = chance.choices(COLUMNS, k=chance.randint(2, 4))
    names = [f"c{at}" for at in range(len(chosen))]
    columns = [drawn(chance, draw, 60, chance.choice([0.0, 0.2])) for _, _, draw in chosen]
    table = pa.table(
        {n: chunked(c, part[0]) for n, c, part in zip(names, columns, chosen, strict=True)}
    )
    types = [part[1] for part in chosen]
    rows = list(zip(*columns, strict=True))

    assert encode_keys(table, names, types).to_pylist() == [encode_key(row, types) for row in rows]
    expected = [reference.row(dict(zip(names, row, strict=True))) for row in rows]
    assert row_hash(table).tolist() == expected
    assert row_hash(table.select(names[::-1])).tolist() == expected


NESTED: list[tuple[pa.DataType, list[object]]] = [
    (pa.list_(pa.int32()), [[1, None, 3], [], None, [2**31 - 1], [None]]),
    (pa.large_list(pa.string()), [["a", ""], None, ["b"]]),
    (pa.list_view(pa.int8()), [[1, 2], None, [3]]),
    (pa.list_(pa.float32(), 2), [[0.0, -0.0], None, [1.0, None]]),
    (
        pa.struct([("a", pa.int8()), ("b", pa.string())]),
        [{"a": 1, "b": "x"}, None, {"a": None, "b": None}],
    ),
    (pa.map_(pa.string(), pa.int16()), [[("a", 1), ("b", None)], [], None, [("c", 3)]]),
    (
        pa.list_(pa.struct([("x", pa.list_(pa.date32())), ("y", pa.bool_())])),
        [[{"x": [date(2024, 1, 1)], "y": True}, None], [{"x": None, "y": None}], None],
    ),
]


@pytest.mark.parametrize(("arrow", "values"), NESTED, ids=lambda part: str(part)[:24])
def test_nested_columns_hash_like_their_values(arrow: pa.DataType, values: list[object]) -> None:
    values = values * 4
    table = pa.table({"n": chunked(values, arrow), "k": pa.array(range(len(values)), pa.int16())})
    expected = [reference.row({"n": value, "k": at}) for at, value in enumerate(values)]
    assert row_hash(table).tolist() == expected


def test_text_longer_than_a_step_hashes_alike() -> None:
    values = ["x" * 5_000_000, "", "y" * 3_000_000, "z"]
    assert row_hash(pa.table({"a": values})).tolist() == [
        reference.row({"a": value}) for value in values
    ]
