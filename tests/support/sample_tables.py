"""Tables of some megabytes for tests of whole files: made quickly, by a seed, alike every time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

TEXT_BYTES = 80
LINEITEM_FLAGS = ("A", "N", "R")
LINEITEM_MODES = ("AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK")


def random_texts(chance: np.random.Generator, rows: int, size: int = TEXT_BYTES) -> pa.Array:
    """Return texts of a size, of random small letters: no two are alike, no codec helps much."""
    letters = chance.integers(97, 123, size=rows * size, dtype=np.uint8)
    return (
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), rows, [None, pa.py_buffer(letters)])
        .cast(pa.binary())
        .cast(pa.string())
    )


def three_texts(ids: range, *, version: int = 1) -> pa.Table:
    """Return rows `id, v, flag, a, b, c`, of which the last three are random texts."""
    chance = np.random.default_rng(ids.start)
    rows = len(ids)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "v": pa.array(np.full(rows, version), pa.int64()),
            "flag": pa.array(chance.random(rows) < 0.5),
            **{name: random_texts(chance, rows) for name in "abc"},
        }
    )


def lineitem(orders: range) -> pa.Table:
    """Return rows like TPC-H's lineitem, four per order; narrow columns come before a wide one."""
    chance = np.random.default_rng(orders.start)
    rows = 4 * len(orders)
    days = chance.integers(8000, 10500, size=(3, rows), dtype=np.int32)
    return pa.table(
        {
            "l_orderkey": pa.array(np.repeat(np.arange(orders.start, orders.stop), 4), pa.int64()),
            "l_linenumber": pa.array(np.tile(np.arange(1, 5), len(orders)), pa.int32()),
            "l_partkey": pa.array(chance.integers(1, 200_000, rows), pa.int64()),
            "l_suppkey": pa.array(chance.integers(1, 10_000, rows), pa.int64()),
            "l_quantity": pa.array(chance.integers(1, 51, rows), pa.int32()),
            "l_extendedprice": pa.array(chance.integers(90_000, 10_000_000, rows) / 100),
            "l_discount": pa.array(chance.integers(0, 11, rows) / 100),
            "l_tax": pa.array(chance.integers(0, 9, rows) / 100),
            "l_returnflag": _one_of(chance, rows, LINEITEM_FLAGS),
            "l_linestatus": _one_of(chance, rows, ("F", "O")),
            **{
                name: pa.array(day, pa.date32())
                for name, day in zip(
                    ("l_shipdate", "l_commitdate", "l_receiptdate"), days, strict=True
                )
            },
            "l_shipmode": _one_of(chance, rows, LINEITEM_MODES),
            "l_comment": random_texts(chance, rows, 27),
            "v": pa.array(np.ones(rows), pa.int64()),
        }
    )


def _one_of(chance: np.random.Generator, rows: int, words: tuple[str, ...]) -> pa.Array:
    numbers = pa.array(chance.integers(0, len(words), rows), pa.int32())
    return pa.DictionaryArray.from_arrays(numbers, list(words)).cast(pa.string())
