"""Checksums of stored pages: each is looked at, whatever a page's size."""

from __future__ import annotations

import os
import random
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.rewrite.parquet_bytes import sources
from compactor.rewrite.parquet_bytes.footer import (
    I32,
    STRUCT,
    Field,
    Struct,
    ThriftError,
    binary_field,
    decode,
    encode,
    flag_field,
    integer,
    number_field,
)
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


PAGE_BYTES, PAGE_CRC = 3, 4


def drawn_page(draw: random.Random) -> bytes:
    """Return a page of any kind, with or without a checksum and statistics."""
    payload = draw.randbytes(draw.choice((0, 1, 127, 128, 9_000)))
    checksum = zlib.crc32(payload)
    signed = checksum - (checksum >> 31 << 32)
    numbers = (0, 1, 63, 64, 127, 9_000, 2**31 - 1, -1)
    kind: Struct = {
        number: number_field(draw.choice(numbers), I32) for number in range(1, draw.randrange(2, 7))
    }
    if draw.random() < 0.3:
        kind[7] = flag_field(draw.random() < 0.5)
    if draw.random() < 0.3:
        kind[8] = Field(STRUCT, {5: binary_field(draw.randbytes(9))})
    header: Struct = {
        1: number_field(draw.randrange(4), I32),
        2: number_field(draw.choice(numbers), I32),
        PAGE_BYTES: number_field(len(payload), I32),
    }
    if draw.random() < 0.8:
        header[PAGE_CRC] = number_field(signed, I32)
    if draw.random() < 0.9:
        header[draw.choice((5, 7, 8))] = Field(STRUCT, kind)
    return encode(header) + payload


def expected_fault(pages: bytes) -> bool:
    """Return whether consecutive pages have a fault, by decoding every header completely."""
    at = 0
    while at < len(pages):
        try:
            header, end = decode(pages, {}, at)
            size, checksum = integer(header, PAGE_BYTES), integer(header, PAGE_CRC)
        except ThriftError:
            return True
        if size is None or not 0 <= size <= len(pages) - end:
            return True
        at = end + size
        if checksum is not None and zlib.crc32(pages[end:at]) != checksum & 0xFFFFFFFF:
            return True
    return False


def finds_fault(pages: bytes) -> bool:
    try:
        check_pages(pages)
    except PageError:
        return True
    return False


@pytest.mark.parametrize("seed", range(40))
def test_headers_of_any_form_are_read_as_thrift_defines_them(seed: int) -> None:
    draw = random.Random(seed)
    pages = b"".join(drawn_page(draw) for _ in range(3))
    assert not finds_fault(pages)
    for _ in range(200):
        changed = bytearray(pages)
        for _ in range(draw.choice((1, 1, 2))):
            changed[draw.randrange(min(40, len(pages)))] ^= 1 << draw.randrange(8)
        assert finds_fault(bytes(changed)) == expected_fault(bytes(changed)), changed[:60].hex()
        cut = pages[: draw.randrange(len(pages) + 1)]
        assert finds_fault(cut) == expected_fault(cut), len(cut)


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
