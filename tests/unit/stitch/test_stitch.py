"""Row groups are copied as bytes, and every reader finds them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import InputError, NotStitchableError, RewriteError
from common.parquet.location import Location, open_location
from compactor.rewrite.parquet_bytes.relocation import (
    SortColumn,
    StitchedFile,
    StitchedFooter,
    StitchPiece,
)
from compactor.rewrite.parquet_bytes.stitch import STORED_STEP_BYTES, stitch

ROWS = 10_000


def rows_of(number: int, rows: int = ROWS) -> pa.Table:
    chance = np.random.default_rng(number)
    return pa.table(
        {
            "k": np.arange(rows) + number * rows,
            "text": [f"v{n % 700}-{number}" for n in range(rows)],
            "x": pa.array(chance.random(rows), mask=chance.random(rows) < 0.1),
            "list": [[n, None] if n % 3 else None for n in range(rows)],
            "row": [{"a": n, "b": "x" * (n % 5)} for n in range(rows)],
            "at": pa.array(np.arange(rows), pa.timestamp("us", "Europe/Paris")),
        }
    )


def write(folder: Path, number: int, **options: Any) -> pa.Table:
    """Write a file of several row groups; return its rows."""
    table = rows_of(number)
    given = {"row_group_size": 3000, "write_page_index": True, "write_page_checksum": True}
    pq.write_table(table, folder / f"{number}.parquet", **given | options)
    return table


def stitched(
    folder: Path, pieces: Sequence[StitchPiece | str], **more: Any
) -> tuple[StitchedFile, pq.ParquetFile]:
    listed = [piece if isinstance(piece, StitchPiece) else StitchPiece(piece) for piece in pieces]
    result = stitch(place(folder), listed, "out/s.parquet", **more)
    content = (folder / "out" / "s.parquet").read_bytes()
    assert len(content) == result.size_bytes
    file = pq.ParquetFile(folder / "out" / "s.parquet", page_checksum_verification=True)
    assert (file.metadata.num_rows, file.metadata.num_row_groups) == (
        result.rows,
        result.row_groups,
    )
    return result, file


def place(folder: Path) -> Location:
    return open_location(folder.as_uri())


def test_whole_files_follow_each_other(tmp_path: Path) -> None:
    tables = [write(tmp_path, number, compression="zstd") for number in range(3)]
    result, file = stitched(tmp_path, [f"{number}.parquet" for number in range(3)])
    whole = pa.concat_tables(tables)
    assert file.read().equals(whole)
    assert (result.rows, result.row_groups) == (3 * ROWS, 12)
    assert file.schema_arrow.equals(whole.schema)
    out = tmp_path / "out" / "s.parquet"
    assert pl.read_parquet(out)["x"].to_list() == whole["x"].to_pylist()
    seen = duckdb.connect().sql(f"select count(*), sum(k), count(x) from '{out}'").fetchall()
    wanted = (whole.num_rows, sum(whole["k"].to_pylist()), ROWS * 3 - whole["x"].null_count)
    assert seen == [wanted]


def test_chosen_row_groups_in_the_order_given(tmp_path: Path) -> None:
    one, two = (write(tmp_path, number) for number in (1, 2))
    pieces = [
        StitchPiece("2.parquet", (3,)),
        StitchPiece("1.parquet", (1, 0)),
        StitchPiece("2.parquet", (0,)),
    ]
    _, file = stitched(tmp_path, pieces)
    parts = [two.slice(9000), one.slice(3000, 3000), one.slice(0, 3000), two.slice(0, 3000)]
    assert file.read().equals(pa.concat_tables(parts))


def test_pieces_of_another_location(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "table").mkdir()
    one, two = write(scratch, 1), write(tmp_path / "table", 2)
    _, file = stitched(
        tmp_path / "table", [StitchPiece("1.parquet", None, place(scratch)), "2.parquet"]
    )
    assert file.read().equals(pa.concat_tables([one, two]))


def test_the_footer_says_what_was_asked(tmp_path: Path) -> None:
    write(tmp_path, 1, sorting_columns=[pq.SortingColumn(2)])
    tagged = rows_of(2).replace_schema_metadata({"neve.job": "old", "pandas": "{}"})
    pq.write_table(tagged, tmp_path / "2.parquet", row_group_size=3000)
    footing = StitchedFooter(metadata={"neve.job": "7", "neve.attempt": "é"})
    _, file = stitched(tmp_path, ["1.parquet", "2.parquet"], footing=footing)
    found = file.metadata.metadata
    del found[b"ARROW:schema"]
    assert found == {b"neve.job": b"7", b"neve.attempt": "é".encode()}
    assert file.schema_arrow.metadata is None
    assert file.metadata.created_by.startswith("neve version ")
    declared = [file.metadata.row_group(n).sorting_columns for n in (0, 4)]
    assert declared == [(pq.SortingColumn(2),), ()]


@pytest.mark.parametrize(
    ("sorting", "declared"),
    [((SortColumn(0),), (pq.SortingColumn(0, nulls_first=True),)), ((), ())],
)
def test_an_order_is_declared_or_taken_back(
    tmp_path: Path, sorting: tuple[SortColumn, ...], declared: tuple[pq.SortingColumn, ...]
) -> None:
    write(tmp_path, 1, sorting_columns=[pq.SortingColumn(2)])
    _, file = stitched(tmp_path, ["1.parquet"], footing=StitchedFooter(sorting=sorting))
    assert file.metadata.row_group(0).sorting_columns == declared
    assert file.read().equals(rows_of(1))


def test_a_stitched_file_can_be_stitched_again(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)
    stitched(tmp_path, ["1.parquet", "2.parquet"])
    (tmp_path / "out" / "s.parquet").rename(tmp_path / "s.parquet")
    _, file = stitched(tmp_path, ["s.parquet", "1.parquet"])
    assert file.read().equals(pa.concat_tables([rows_of(1), rows_of(2), rows_of(1)]))


def test_stitching_empty_files_gives_an_empty_file(tmp_path: Path) -> None:
    pq.write_table(rows_of(1, 0), tmp_path / "0.parquet")
    result, file = stitched(tmp_path, ["0.parquet", "0.parquet"])
    assert (result.rows, result.row_groups, result.copied_bytes) == (0, 0, 0)
    assert file.read().equals(rows_of(1, 0))


def test_ranges_larger_than_a_step(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).bytes(3 * STORED_STEP_BYTES)
    values = [noise[at : at + 4096] for at in range(0, len(noise), 4096)]
    big = pa.table({"b": values})
    pq.write_table(big, tmp_path / "b.parquet", compression="none", use_dictionary=False)
    seen: list[int] = []
    result, file = stitched(tmp_path, ["b.parquet"], on_copied=seen.append)
    assert file.read().equals(big)
    assert sum(seen) == result.copied_bytes
    assert len(seen) >= 3


def test_other_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 1)
    for other in (
        rows_of(2).drop_columns("x"),
        rows_of(2).rename_columns(["K", "text", "x", "list", "row", "at"]),
        rows_of(2).set_column(0, "k", pa.array(range(ROWS), pa.int32())),
        rows_of(2).set_column(5, "at", pa.array(range(ROWS), pa.timestamp("us", "UTC"))),
    ):
        pq.write_table(other, tmp_path / "2.parquet")
        with pytest.raises(NotStitchableError, match="other columns"):
            stitched(tmp_path, ["1.parquet", "2.parquet"])
        assert not (tmp_path / "out" / "s.parquet").exists()


@pytest.mark.parametrize("numbers", [(4,), (-1,), (0, 0)])
def test_row_groups_that_are_not_there(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    write(tmp_path, 1)
    with pytest.raises(InputError, match="has row groups 0 to 3"):
        stitched(tmp_path, [StitchPiece("1.parquet", numbers)])


def test_a_name_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "s.parquet").write_bytes(b"mine")
    with pytest.raises(RewriteError, match=r"cannot be written: .*exists"):
        stitched(tmp_path, ["1.parquet"])
    assert (tmp_path / "out" / "s.parquet").read_bytes() == b"mine"


def test_a_missing_piece_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"file no\.parquet does not exist"):
        stitched(tmp_path, ["no.parquet"])
