"""Single rows of a row group, and files that are opened for little memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from common.parquet import row_batches
from common.parquet.row_batches import open_parquet_file, rows_at


@pytest.mark.parametrize(
    "places", [[], [0], [99], [0, 9, 10, 11, 99], list(range(100)), range(3, 100, 7)]
)
def test_rows_are_found_wherever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: list[int]
) -> None:
    monkeypatch.setattr(row_batches, "_BATCH_ROWS", 10)
    rows = pa.table({"n": range(200), "text": [f"{n}" for n in range(200)], "more": [0] * 200})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=100)
    with pq.ParquetFile(tmp_path / "a.parquet") as parquet:
        found = rows_at(parquet, 1, ["text", "n"], places)
    assert found.equals(rows.slice(100).take(pa.array(places, pa.int64())).select(["text", "n"]))


@pytest.mark.parametrize("large", [False, True])
def test_files_of_any_size_are_read_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    monkeypatch.setattr(row_batches, "LARGE_BYTES", 0 if large else 1 << 40)
    monkeypatch.setattr(row_batches, "BUFFER_BYTES_MAX", 100)
    rows = pa.table({"n": range(10_000), "text": ["x" * (n % 50) for n in range(10_000)]})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=6000, use_dictionary=False)
    with (
        fs.LocalFileSystem().open_input_file(str(tmp_path / "a.parquet")) as source,
        open_parquet_file(source) as parquet,
    ):
        assert pa.Table.from_batches(parquet.iter_batches(700)).equals(rows)
        assert parquet.read_row_group(1).equals(rows.slice(6000))
