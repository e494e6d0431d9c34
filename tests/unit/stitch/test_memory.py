"""Copying holds buffers, never a file: it cannot run out of memory, however large a file is."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.parquet.location import open_location
from compactor.rewrite.parquet_bytes.relocation import StitchPiece
from compactor.rewrite.parquet_bytes.stitch import stitch
from tests.support.peak_memory import peak_bytes
from tests.support.run_apart import run_apart

MB = 1024**2
FILE_BYTES, GROUPS = 160 * MB, 10
GROWTH_BYTES_MAX = FILE_BYTES // 10


def copies(folder: str) -> tuple[int, int]:
    """Copy a small file and then a large one; tell by how much the peak grew, and what was made."""
    location = open_location(folder)
    stitch(location, [StitchPiece("small.parquet")], "out/small.parquet")
    before = peak_bytes()
    made = stitch(location, [StitchPiece("large.parquet")], "out/large.parquet")
    return peak_bytes() - before, made.size_bytes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc")
def test_a_copy_of_ten_times_the_memory_that_it_may_take(tmp_path: Path) -> None:
    rows = FILE_BYTES // GROUPS // 8
    group = pa.table({"x": np.random.default_rng(1).random(rows)})
    options = {"compression": "none", "use_dictionary": False}
    pq.write_table(group.slice(0, 1000), tmp_path / "small.parquet", **options)
    with pq.ParquetWriter(tmp_path / "large.parquet", group.schema, **options) as writer:
        for _ in range(GROUPS):
            writer.write_table(group, row_group_size=rows)

    (grown_bytes, size_bytes), _ = run_apart(partial(copies, tmp_path.as_uri()))
    assert size_bytes > FILE_BYTES
    assert grown_bytes < GROWTH_BYTES_MAX
