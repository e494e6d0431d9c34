"""A look at a footer says whether readers that split files find every row."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.parquet.file_inspection import (
    RowGroupPlaces,
    chunk_fault,
    layout_fault,
)
from compactor.rewrite.parquet_bytes import footer as ids
from compactor.rewrite.parquet_bytes.footer import Span, elements, list_field
from compactor.rewrite.parquet_bytes.relocation import encode_footer
from compactor.rewrite.parquet_bytes.sources import BufferSource, read_footer_of
from tests.support.layouts import layout_of_file
from tests.support.misordered import last_first, write_misordered

pytestmark = pytest.mark.unit

DATA_END = 100
FIRST = RowGroupPlaces(3, ((4, 10), (14, 20)), file_offset=4, total_compressed_size=30, ordinal=0)
SECOND = RowGroupPlaces(5, ((40, 6), (50, 50)), file_offset=40, total_compressed_size=56, ordinal=1)
ROWS = pa.table({"k": range(1000), "t": [f"text {at}" for at in range(1000)], "n": [1.5] * 1000})


def test_columns_that_follow_each_other_are_found_by_everybody() -> None:
    """Filters or nothing at all may lie between row groups, and between columns."""
    assert layout_fault([FIRST, SECOND], DATA_END) is None


def test_missing_footer_fields_are_no_fault() -> None:
    silent = replace(FIRST, file_offset=None, total_compressed_size=None, ordinal=None)
    assert layout_fault([silent, replace(SECOND, ordinal=None)], DATA_END) is None


def test_row_groups_without_rows_may_point_anywhere() -> None:
    empty = RowGroupPlaces(0, ((0, 0), (500, 7)), file_offset=0, total_compressed_size=9, ordinal=0)
    assert layout_fault([empty, replace(FIRST, ordinal=1)], DATA_END) is None


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ([replace(FIRST, chunks=((24, 10), (4, 20)))], "column 1 of row group 0 begins at byte 4,"),
        ([replace(FIRST, chunks=((4, 11), (14, 20)))], "begins at byte 14, before byte 15"),
        ([replace(FIRST, chunks=((3, 11), (14, 20)))], "begins at byte 3, before byte 4"),
        (
            [replace(SECOND, ordinal=0), replace(FIRST, ordinal=1)],
            "column 0 of row group 1 begins at byte 4, before byte 100",
        ),
        ([FIRST, replace(SECOND, chunks=((40, 6), (50, 51)))], "ends at byte 101, but pages end"),
        ([replace(FIRST, chunks=((4, -1), (14, 20)))], "ends at byte 3, but"),
        ([replace(FIRST, file_offset=14)], "claims to begin at byte 14, but begins at byte 4"),
        ([replace(FIRST, total_compressed_size=20)], "claims to have 20 bytes, but has 30"),
        ([FIRST, replace(SECOND, ordinal=0)], "row group 1 claims to be number 0"),
    ],
)
def test_a_layout_that_misleads_readers_is_a_fault(groups: list[RowGroupPlaces], says: str) -> None:
    fault = layout_fault(groups, DATA_END)
    assert fault is not None
    assert says in fault


def by_pyarrow(path: Path) -> None:
    pq.write_table(ROWS, path, row_group_size=300, bloom_filter_options={"k": {"ndv": 300}})


def by_polars(path: Path) -> None:
    frame = pl.from_arrow(ROWS)
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(path, row_group_size=300)


def by_duckdb(path: Path) -> None:
    duckdb.connect().from_arrow(ROWS).write_parquet(str(path), row_group_size=300)


def without_rows(path: Path) -> None:
    pq.write_table(ROWS.slice(0, 0), path)


@pytest.mark.parametrize("write", [by_pyarrow, by_polars, by_duckdb, without_rows])
def test_files_of_other_writers_are_as_they_should_be(tmp_path: Path, write: object) -> None:
    path = tmp_path / "f.parquet"
    write(path)  # type: ignore[operator]  # one of the functions above
    assert chunk_fault(pq.read_metadata(path), path.stat().st_size) is None
    assert layout_of_file(path).fault is None


def test_a_misordered_file_is_found_by_arrows_footer_and_by_our_own(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    write_misordered(path, ROWS, order=last_first, row_group_size=300)
    assert pq.read_table(path).equals(ROWS)
    for fault in (
        chunk_fault(pq.read_metadata(path), path.stat().st_size),
        layout_of_file(path).fault,
    ):
        assert fault is not None
        assert fault.startswith("column 1 of row group 0 begins at byte ")


def test_a_footer_that_lists_columns_in_another_order_is_found() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1, 2], "b": [3, 4]}), sink)
    source = BufferSource(sink.getvalue())
    layout = read_footer_of(source)
    (group,) = (dict(each.struct) for each in layout.groups)
    group[ids.CHUNKS] = list_field(reversed(elements(group, ids.CHUNKS)))
    pages = source.read(Span(0, layout.data_end))
    file = pages + encode_footer({**layout.struct, ids.ROW_GROUPS: list_field([group])})

    fault = chunk_fault(pq.read_metadata(io.BytesIO(file)), len(file))

    assert fault == "row group 0 lists column b in the position of a"
