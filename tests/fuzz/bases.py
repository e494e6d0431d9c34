"""Sound files and streams, from several writers, of which damaged ones are made."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from common.model.table import Column, Table
from common.parquet.location import open_location
from common.parquet.write import write_table
from common.rows.rules import RowRules
from common.rows.schema import columns_of

ROWS = 120
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("v", pa.int64()),
        pa.field("s", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("x", pa.float64()),
        pa.field("d", pa.decimal128(12, 2)),
        pa.field("b", pa.bool_()),
        pa.field("l", pa.list_(pa.int64())),
        pa.field("o", pa.struct([("n", pa.int32()), ("t", pa.string())])),
    ]
)
KEY, VERSION = ("id",), "v"
FLAT = [field.name for field in SCHEMA if field.name not in {"l", "o"}]
"""Columns that every writer writes with the types of the table."""


def rows() -> pa.Table:
    """Return rows with values of every kind, null where a column may be."""
    return pa.Table.from_pylist(
        [
            {
                "id": number,
                "v": 1000 + number,
                "s": None if number % 7 == 0 else f"text {number % 11}" * (number % 5),
                "at": datetime(2026, 1, 1 + number % 28, 12, tzinfo=UTC),
                "day": date(2026, 1, 1 + number % 28),
                "x": float("nan") if number % 13 == 0 else number / 3,
                "d": Decimal(number) / 4,
                "b": number % 3 == 0,
                "l": [number] * (number % 4),
                "o": None if number % 5 == 0 else {"n": number, "t": "o" * (number % 3)},
            }
            for number in range(ROWS)
        ],
        SCHEMA,
    )


def _arrow_file(**options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows(), sink, **options)
    return sink.getvalue()


def _own_file(folder: Path) -> bytes:
    columns: tuple[Column, ...] = columns_of(SCHEMA)
    table = Table(
        id="t-1",
        name="own",
        location=f"file://{folder}",
        schema=columns,
        key=KEY,
        version_column=VERSION,
    )
    write_table(
        open_location(table.location), "own.parquet", rows(), RowRules.of(table), table.settings
    )
    return (folder / "own.parquet").read_bytes()


def _polars_file(folder: Path) -> bytes:
    path = folder / "polars.parquet"
    pl.from_arrow(rows().select(FLAT)).write_parquet(path, row_group_size=50)  # type: ignore[union-attr]  # a frame
    return path.read_bytes()


def _duckdb_file(folder: Path) -> bytes:
    path, given = folder / "duckdb.parquet", rows().select(FLAT)
    with duckdb.connect() as engine:
        engine.register("given", given)
        engine.sql(f"COPY given TO '{path}' (FORMAT parquet, CODEC zstd)")
    return path.read_bytes()


def files(folder: Path) -> dict[str, bytes]:
    """Return sound Parquet files by what wrote them.

    Args:
        folder: For writers that want a file.
    """
    return {
        "arrow, snappy": _arrow_file(),
        "arrow, small row groups, zstd": _arrow_file(row_group_size=40, compression="zstd"),
        "arrow, pages of version 2": _arrow_file(data_page_version="2.0", compression="gzip"),
        "arrow, checksums, indexes": _arrow_file(
            write_page_index=True, write_page_checksum=True, compression="lz4"
        ),
        "arrow, plain": _arrow_file(use_dictionary=False, compression="none", data_page_size=256),
        "arrow, delta": _arrow_file(
            use_dictionary=False,
            compression="brotli",
            column_encoding={"id": "DELTA_BINARY_PACKED", "s": "DELTA_BYTE_ARRAY"},
        ),
        "neve": _own_file(folder),
        "polars": _polars_file(folder),
        "duckdb": _duckdb_file(folder),
    }


@cache
def streams() -> dict[str, bytes]:
    """Return sound Arrow streams by what is special about them."""
    plain = rows()
    words = plain.set_column(2, "s", plain["s"].dictionary_encode())
    wide = plain.set_column(2, "s", plain["s"].cast(pa.large_string()))
    views = plain.set_column(2, "s", plain["s"].cast(pa.string_view()))
    given = {
        "plain": (plain, None),
        "lz4": (plain, "lz4"),
        "zstd": (plain, "zstd"),
        "dictionary": (words, None),
        "dictionary, zstd": (words, "zstd"),
        "large text": (wide, "lz4"),
        "text views": (views, None),
    }
    return {name: _stream(table, codec) for name, (table, codec) in given.items()}


def _stream(table: pa.Table, codec: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=50)
    return sink.getvalue().to_pybytes()


@cache
def arrow_files() -> dict[str, bytes]:
    """Return sound Arrow files by their compression."""
    found = {}
    for codec in (None, "lz4", "zstd"):
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.ipc.new_file(sink, SCHEMA, options=options) as writer:
            writer.write_table(rows(), max_chunksize=50)
        found[codec or "plain"] = sink.getvalue().to_pybytes()
    return found
