"""Excerpts: of any place of a row group the rows that are there, whoever wrote its pages."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import InputError
from common.parquet.location import open_location
from compactor.rewrite.kernel.reader import FileErrors
from compactor.rewrite.parquet_bytes.excerpts import (
    FIRST_ROW,
    Excerpts,
    RowStretch,
    arrow_column,
)
from compactor.rewrite.parquet_bytes.footer import (
    FooterLayout,
    decode_whole,
    elements,
    encode,
    list_field,
    number_field,
)
from compactor.rewrite.parquet_bytes.relocation import PAGES
from compactor.rewrite.parquet_bytes.sources import BufferSource, read_footer_of

ROWS = 5000
NAME = "a.parquet"
Write = Callable[[pa.Table, Path], None]


def some_rows() -> pa.Table:
    chance = random.Random(5)

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.1 else value

    numbers = range(ROWS)
    return pa.table(
        {
            "number": pa.array(numbers, pa.int64()),
            "few": pa.array([maybe(n % 7) for n in numbers], pa.int32()),
            "text": pa.array([maybe(f"text {n} " * (n % 5)) for n in numbers]),
            "same": pa.array([maybe("ab" * (n % 3)) for n in numbers]),
            "share": pa.array([maybe(chance.random()) for _ in numbers], pa.float64()),
            "flag": pa.array([maybe(n % 3 == 0) for n in numbers]),
            "zone": pa.array([maybe(n) for n in numbers], pa.timestamp("us", "Europe/Paris")),
            "amount": pa.array([maybe(n) for n in numbers]).cast(pa.decimal128(25, 2)),
        }
    )


def by_arrow(**options: Any) -> Write:
    def write(rows: pa.Table, path: Path) -> None:
        usual = {"data_page_size": 500, "write_batch_size": 64, "row_group_size": ROWS}
        pq.write_table(rows, path, **{**usual, **options})

    return write


def by_polars(rows: pa.Table, path: Path) -> None:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(path, data_page_size=500, row_group_size=ROWS)


def by_duckdb(rows: pa.Table, path: Path) -> None:
    with duckdb.connect() as connection:
        connection.register("found", rows)
        connection.execute(f"COPY found TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE {ROWS})")


WRITERS: dict[str, Write] = {
    "plain": by_arrow(use_dictionary=False),
    "dictionaries": by_arrow(),
    "version 2": by_arrow(data_page_version="2.0", compression="gzip"),
    "index and sums": by_arrow(write_page_index=True, write_page_checksum=True),
    "delta": by_arrow(use_dictionary=False, column_encoding={"number": "DELTA_BINARY_PACKED"}),
    "no codec": by_arrow(compression="none"),
    "several groups": by_arrow(row_group_size=1700),
    "polars": by_polars,
    "duckdb": by_duckdb,
}


def excerpts_of(folder: Path) -> Excerpts:
    return Excerpts(open_location(folder.as_uri()), NAME)


def places(path: Path, chance: random.Random) -> list[tuple[RowStretch, int]]:
    """Draw some rows of each row group; with the number of its first row in the file."""
    metadata, start, found = pq.read_metadata(path), 0, []
    for number in range(metadata.num_row_groups):
        rows = metadata.row_group(number).num_rows
        drawn = [(0, rows), (0, 1), (rows - 1, 1)]
        for _ in range(12):
            skip = chance.randrange(rows)
            drawn.append((skip, chance.randint(1, rows - skip)))
        found += [(RowStretch(number, skip, count), start) for skip, count in drawn]
        start += rows
    return found


@pytest.mark.parametrize("writer", WRITERS)
def test_readers_find_the_rows_of_any_place(tmp_path: Path, writer: str) -> None:
    path, rows = tmp_path / NAME, some_rows()
    WRITERS[writer](rows, path)
    excerpts, schema = excerpts_of(tmp_path), pq.read_schema(path)
    whole, frame = pq.read_table(path), pl.read_parquet(path)
    assert excerpts.columns() == set(rows.column_names)
    for place, start in places(path, random.Random(writer)):
        at = start + place.skip
        for name in rows.column_names:
            excerpt = excerpts.take(place, schema.field(name))
            column = arrow_column(excerpt, place.rows)
            assert column.equals(whole.column(name).slice(at, place.rows)), (place, name)
            assert column.type == schema.field(name).type
            read = pl.scan_parquet(excerpt.content).slice(excerpt.skip, place.rows).collect()
            assert read.get_column(name).equals(frame.get_column(name).slice(at, place.rows))


def test_few_rows_are_few_bytes(tmp_path: Path) -> None:
    by_arrow(use_dictionary=False)(some_rows(), tmp_path / NAME)
    excerpts, field = excerpts_of(tmp_path), pq.read_schema(tmp_path / NAME).field("share")
    excerpts.columns()
    stored = pq.read_metadata(tmp_path / NAME).row_group(0).column(4).total_compressed_size
    excerpt = excerpts.take(RowStretch(0, 2000, 10), field)
    assert len(excerpt.content) < stored / 10


def test_nested_columns_have_no_excerpts(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "before": [1, 2],
            "list": [[1], []],
            "row": [{"a": 1, "b": {"c": "x"}}, None],
            "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
            "behind": ["x", "y"],
        }
    )
    pq.write_table(rows, tmp_path / NAME)
    excerpts, schema = excerpts_of(tmp_path), pq.read_schema(tmp_path / NAME)
    assert excerpts.columns() == {"before", "behind"}
    excerpt = excerpts.take(RowStretch(0, 1, 1), schema.field("behind"))
    assert arrow_column(excerpt, 1).to_pylist() == ["y"]


def with_index(data: bytes, shift: Callable[[int], int]) -> bytes:
    """Return a file whose offset index of its first column tells other first rows."""
    chunk = layout(data).groups[0].chunks[0]
    span = chunk.offset_index
    assert span is not None
    index = decode_whole(data[span.start : span.end], {PAGES: {}})
    told = elements(index, PAGES)
    for at, each in enumerate(told):
        each[FIRST_ROW] = number_field(64 * at + shift(at))
    changed = encode({**index, PAGES: list_field(told)})
    assert len(changed) == span.size
    return data[: span.start] + changed + data[span.end :]


def layout(data: bytes) -> FooterLayout:
    return read_footer_of(BufferSource(pa.py_buffer(data)))


@pytest.mark.parametrize("shift", [lambda n: 20 * (n > 1), lambda n: -64 * (n > 70)])
def test_an_offset_index_that_lies_is_found_out(
    tmp_path: Path, shift: Callable[[int], int]
) -> None:
    """One with pages of other rows than they have, and one with a row in two pages."""
    path = tmp_path / NAME
    by_arrow(write_page_index=True, use_dictionary=False)(some_rows(), path)
    data = path.read_bytes()
    assert with_index(data, lambda _: 0) == data, "pages do not have 64 rows"
    path.write_bytes(with_index(data, shift))
    excerpts, field = excerpts_of(tmp_path), pq.read_schema(path).field("number")
    assert "number" in excerpts.columns()
    for skip in (0, 100, 150, 4470, 4600):
        excerpt = excerpts.take(RowStretch(0, skip, 100), field)
        assert arrow_column(excerpt, 100).to_pylist() == list(range(skip, skip + 100))


@pytest.mark.parametrize("indexed", [False, True])
def test_a_flipped_bit_is_an_error_that_names_file_and_column(
    tmp_path: Path, indexed: bool
) -> None:
    path, chance = tmp_path / NAME, random.Random(indexed)
    write = by_arrow(write_page_checksum=True, write_page_index=indexed)
    write(some_rows(), path)
    data, field = path.read_bytes(), pq.read_schema(path).field("share")
    span = layout(data).groups[0].chunks[4].data
    said = []
    for _ in range(60):
        damaged, at = bytearray(data), chance.randrange(span.start, span.end)
        damaged[at] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        excerpts = excerpts_of(tmp_path)
        excerpts.columns()
        try:
            with FileErrors("file a.parquet, column share"):  # As whoever reads has them.
                column = arrow_column(excerpts.take(RowStretch(0, 0, ROWS), field), ROWS)
        except InputError as error:
            said.append(str(error))
        else:  # It was hit where nobody looks.
            assert column.equals(some_rows().column("share"))
    assert len(said) > 50
    assert all("a.parquet, column share" in each for each in said)


def test_a_file_that_was_replaced_is_an_error(tmp_path: Path) -> None:
    by_arrow()(some_rows(), tmp_path / NAME)
    excerpts, field = excerpts_of(tmp_path), pq.read_schema(tmp_path / NAME).field("number")
    excerpts.columns()
    with pytest.raises(InputError, match=r"a\.parquet, column number .* row groups have changed"):
        excerpts.take(RowStretch(1, 0, 1), field)
    by_arrow()(some_rows().slice(0, 10), tmp_path / NAME)
    with pytest.raises(InputError, match=r"a\.parquet"):
        excerpts.take(RowStretch(0, 4000, 10), field)
