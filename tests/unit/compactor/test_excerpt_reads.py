"""Pieces of a row group are the same rows, whether all of its pages are read for them or few."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import InputError
from common.parquet.location import Location, open_location
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema
from compactor.rewrite.kernel import reader as reading
from compactor.rewrite.kernel.normalized_keys import RowGroup
from compactor.rewrite.kernel.reader import Reader
from compactor.rewrite.kernel.winners import DecodedRows, RowLayout
from compactor.rewrite.parquet_bytes.excerpts import Excerpts, RowStretch
from tests.support.tables_on_disk import keyed_table

ROWS = 300
NAME = "a.parquet"
PIECES = ((0, 100), (100, 1), (101, 150), (251, 49), (ROWS - 1, 1))


def some_rows() -> pa.Table:
    """Types that Polars keeps, and ones that it does not, nested ones and narrower ones."""
    numbers = range(ROWS)
    texts = [None if n % 9 == 0 else f"text {n % 20}" for n in numbers]
    return pa.table(
        {
            "k": pa.array(numbers, pa.int64()),
            "v": pa.array([n % 3 for n in numbers], pa.int64()),
            "narrow": pa.array([n % 100 for n in numbers], pa.int8()),
            "text": pa.array(texts),
            "coded": pa.array(texts).dictionary_encode(),
            "time": pa.array(list(numbers), pa.time64("us")),
            "fixed": pa.array([f"{n:04}".encode() for n in numbers], pa.binary(4)),
            "list": pa.array([[n] * (n % 4) for n in numbers], pa.list_(pa.int64())),
            "row": pa.array([{"a": n, "b": {"c": f"{n}"}} for n in numbers]),
            "when": pa.array([n * 10**9 for n in numbers], pa.timestamp("ns")),
        }
    )


@pytest.fixture(params=["local", "elsewhere"])
def location(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Location:
    found = open_location(tmp_path.as_uri())
    if request.param == "elsewhere":  # Read as an object store is.
        monkeypatch.setattr(Location, "is_local", False)
    return found


def write(folder: Path, rows: pa.Table, **options: Any) -> None:
    pq.write_table(
        rows,
        folder / NAME,
        row_group_size=ROWS,
        data_page_size=200,
        write_batch_size=16,
        write_page_checksum=True,
        use_deprecated_int96_timestamps=True,
        **options,
    )


def layout_of(folder: Path, schema: pa.Schema) -> RowLayout:
    table = keyed_table(folder, schema, key=("k",), tombstone_column=None, time_column=None)
    return RowLayout(arrow_schema(table.schema), RowRules.of(table))


def group(skip: int, rows: int) -> RowGroup:
    return RowGroup(
        input=0, number=0, start=skip, rows=rows, size_bytes=1, low=None, high=None, skip=skip
    )


def rows_of(held: DecodedRows, names: Sequence[str]) -> pa.Table:
    table = held.frame.to_arrow()
    for name in held.rest.column_names if held.rest is not None else ():
        assert held.rest is not None
        table = table.append_column(name, held.rest.column(name))
    return table.select(list(names))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RowStretch, str]]:
    """What excerpts are taken of."""
    found: list[tuple[RowStretch, str]] = []
    real = Excerpts.take

    def take(self: Excerpts, place: RowStretch, field: pa.Field) -> object:
        found.append((place, field.name))
        return real(self, place, field)

    monkeypatch.setattr(Excerpts, "take", take)
    return found


def test_excerpts_hold_what_the_whole_row_group_does(
    tmp_path: Path,
    location: Location,
    monkeypatch: pytest.MonkeyPatch,
    taken: list[tuple[RowStretch, str]],
) -> None:
    rows = some_rows()
    write(tmp_path, rows)
    wider = rows.schema.set(2, pa.field("narrow", pa.int32()))
    layout = layout_of(tmp_path, wider.append(pa.field("missing", pa.string())))
    read: list[list[pa.Table]] = []
    for least in (1 << 40, 0):
        monkeypatch.setattr(reading, "EXCERPT_BYTES_MIN", least)
        reader = Reader(location, NAME, layout)
        held = [reader.read(group(*piece), by_key=False) for piece in PIECES]
        read.append([rows_of(each, layout.schema.names) for each in held])
        assert bool(taken) == (least == 0)
    assert read[0] == read[1]
    assert [each.num_rows for each in read[1]] == [count for _, count in PIECES]
    assert read[1][2].column("k").to_pylist() == list(range(101, 251))
    flat = set(rows.column_names) - {"list", "row"}
    assert {name for _, name in taken} == flat
    assert {(place.skip, place.rows) for place, _ in taken} == set(PIECES)


def test_a_file_of_which_no_excerpts_can_be_taken_is_read_all_the_same(
    tmp_path: Path, location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = some_rows()
    write(tmp_path, rows)
    monkeypatch.setattr(reading, "EXCERPT_BYTES_MIN", 0)
    monkeypatch.setattr("compactor.rewrite.parquet_bytes.sources.FOOTER_BYTES_MAX", 1)
    reader = Reader(location, NAME, layout_of(tmp_path, rows.schema))
    held = reader.read(group(101, 150), by_key=False)
    assert rows_of(held, ["k"]).column(0).to_pylist() == list(range(101, 251))


def test_a_flipped_bit_is_found_by_the_piece_that_it_is_in(
    tmp_path: Path, location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = some_rows().select(["k", "v"])
    write(tmp_path, rows, use_dictionary=False, compression="none")
    monkeypatch.setattr(reading, "EXCERPT_BYTES_MIN", 0)
    data = bytearray((tmp_path / NAME).read_bytes())
    data[data.index((200).to_bytes(8, "little"))] ^= 4
    (tmp_path / NAME).write_bytes(data)
    reader = Reader(location, NAME, layout_of(tmp_path, rows.schema))
    for skip in (0, 100, 250):
        keys = rows_of(reader.read(group(skip, 50), by_key=False), ["k"]).column(0)
        assert keys.to_pylist() == list(range(skip, skip + 50))
    with pytest.raises(InputError, match=r"a\.parquet, column k cannot be read.* checksum"):
        reader.read(group(180, 50), by_key=False)
