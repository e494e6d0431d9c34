"""Checksums of stored pages: each is looked at, whatever a page's size."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.rewrite.parquet_bytes import sources
from compactor.rewrite.parquet_bytes.sources import (
    PageError,
    check_chunk,
    check_pages,
    chunk_places,
)

ROWS = 20_000
WINDOW_BYTES = 4096


@pytest.fixture(params=[64, WINDOW_BYTES, 1024**2], ids="pages of {} bytes".format)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file with pages smaller than a window, and much larger."""
    path = tmp_path / "a.parquet"
    rows = pa.table({"n": np.random.default_rng(1).random(ROWS)})
    pq.write_table(
        rows, path, data_page_size=request.param, use_dictionary=False, write_page_checksum=True
    )
    return path


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "WINDOW_BYTES", WINDOW_BYTES)


def check(path: Path) -> None:
    """Check the one column of a file, in windows and at once: both say the same."""
    ((_, start, size),) = chunk_places(pq.read_metadata(path).row_group(0), ["n"])
    said = []
    with path.open("rb") as file:
        for checked in (
            lambda: check_chunk(file.fileno(), start, size),
            lambda: check_pages(os.pread(file.fileno(), size, start)),
        ):
            try:
                checked()
                said.append("")
            except PageError as error:
                said.append(str(error))
    assert said[0] == said[1]
    if said[0]:
        raise PageError(said[0])


def test_pages_as_they_were_written_pass(stored: Path) -> None:
    check(stored)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_changed_bit_is_seen_wherever_it_is(stored: Path, share: float) -> None:
    ((_, start, size),) = chunk_places(pq.read_metadata(stored).row_group(0), ["n"])
    data = bytearray(stored.read_bytes())
    data[start + int(size * share)] ^= 4
    stored.write_bytes(data)
    with pytest.raises(PageError, match=r"page (header )?at byte \d+"):
        check(stored)


def test_a_chunk_that_is_said_to_be_longer_than_its_file_is_refused(stored: Path) -> None:
    with stored.open("rb") as file, pytest.raises(PageError):
        check_chunk(file.fileno(), 4, stored.stat().st_size + 1)


def test_a_page_that_reaches_over_the_end_of_its_chunk_is_refused(stored: Path) -> None:
    ((_, start, size),) = chunk_places(pq.read_metadata(stored).row_group(0), ["n"])
    with (
        stored.open("rb") as file,
        pytest.raises(PageError, match=r"claims to have|is damaged"),
    ):
        check_chunk(file.fileno(), start, size - 1)


def test_pages_after_one_without_a_checksum_are_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = pa.table({"n": np.random.default_rng(1).random(ROWS)})
    pq.write_table(rows, path, data_page_size=64, use_dictionary=False)
    ((_, start, size),) = chunk_places(pq.read_metadata(path).row_group(0), ["n"])
    data = bytearray(path.read_bytes())
    data[start + size // 2 : start + size] = bytes(size - size // 2)
    path.write_bytes(data)
    with path.open("rb") as file:
        check_chunk(file.fileno(), start, size)
        with pytest.raises(PageError):
            check_pages(os.pread(file.fileno(), size, start))
