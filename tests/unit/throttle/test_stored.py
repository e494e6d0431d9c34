"""What is paid for a read is what the file's footer says of it, before it is read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.rewrite.file_io import (
    leaf_columns,
    paid_batches,
    stored_bytes,
)

pytestmark = pytest.mark.unit

ROWS = pa.table(
    {
        "a": range(1000),
        "a.b": range(1000),
        "s": [{"x": n, "y": [n]} for n in range(1000)],
        "sx": ["text"] * 1000,
    }
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.parquet"
    pq.write_table(ROWS, path, row_group_size=400)
    return path


def test_columns_and_their_leaves(path: Path) -> None:
    metadata = pq.read_metadata(path)
    names = [metadata.schema.column(leaf).path for leaf in leaf_columns(metadata, None)]
    assert names == ["a", "a.b", "s.x", "s.y.list.element", "sx"]
    assert leaf_columns(metadata, ["s"]) == [2, 3]
    assert leaf_columns(metadata, ["a.b", "sx", "missing"]) == [1, 4]
    whole = sum(stored_bytes(metadata, group, range(5)) for group in range(3))
    # All but magic, footer and its length.
    assert whole == path.stat().st_size - 4 - metadata.serialized_size - 8


def test_each_row_group_is_paid_for_before_its_first_row(path: Path) -> None:
    metadata = pq.read_metadata(path)
    sizes = [stored_bytes(metadata, group, [4]) for group in range(3)]
    paid: list[int] = []
    with pq.ParquetFile(path) as parquet:
        seen = [
            (batch.num_rows, len(paid)) for batch in paid_batches(parquet, 150, ["sx"], paid.append)
        ]
    assert paid == sizes
    assert sum(rows for rows, _ in seen) == 1000
    ends, total = [400, 800, 1000], 0
    for rows, paid_groups in seen:
        assert paid_groups > sum(end <= total for end in ends)
        total += rows


def test_a_file_without_rows_costs_nothing(tmp_path: Path) -> None:
    pq.write_table(ROWS.slice(0, 0), tmp_path / "empty.parquet")
    paid: list[int] = []
    with pq.ParquetFile(tmp_path / "empty.parquet") as parquet:
        assert sum(batch.num_rows for batch in paid_batches(parquet, 10, None, paid.append)) == 0
    assert sum(paid) <= 200
