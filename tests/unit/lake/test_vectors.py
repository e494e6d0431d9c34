"""Deletion vectors: bytes of other writers, damaged bytes, and every kind of container."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from common.lake.delta.vectors import (
    MAGIC,
    VectorError,
    decode_vector,
    encode_vector,
    from_base85,
    to_base85,
    vector_of_file,
)
from tests.support.delta_tables import base85

SHAPES = {
    "none": [],
    "one": [5],
    "sparse": [*range(0, 60_000, 13)],
    "dense": [*range(5_000, 60_000), 65_535],
    "full container": [*range(65_536)],
    "several containers": [*range(65_000, 200_000), 400_000],
    "five runs": [*range(0, 5 * 65_536, 3), *range(5 * 65_536, 6 * 65_536)],
    "above 32 bits": [1, 2**32, 2**32 + 1, 2**40, 2**40 + 70_000],
}


def portable(positions: list[int], runs: bool) -> bytes:
    """Return the vector as CRoaring writes it."""
    bitmap = BitMap64(positions)
    if runs:
        bitmap.run_optimize()
    return struct.pack("<i", MAGIC) + bitmap.serialize()


@pytest.mark.parametrize("runs", [False, True], ids=["plain", "runs"])
@pytest.mark.parametrize("shape", SHAPES)
def test_vectors_of_another_writer_are_read(shape: str, runs: bool) -> None:
    positions = sorted(set(SHAPES[shape]))

    assert decode_vector(portable(positions, runs), len(positions)).tolist() == positions


@pytest.mark.parametrize("shape", SHAPES)
def test_another_reader_reads_vectors(shape: str) -> None:
    positions = sorted(set(SHAPES[shape]))
    data = encode_vector(np.array(positions, np.uint64))

    assert list(BitMap64.deserialize(data[4:])) == positions
    assert decode_vector(data, len(positions)).tolist() == positions


def test_the_example_of_other_implementations_is_read() -> None:
    text = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"

    assert decode_vector(from_base85(text, 44), 6).tolist() == [3, 4, 7, 11, 18, 29]


@given(data=st.binary(max_size=40))
def test_base85_is_that_of_other_writers(data: bytes) -> None:
    assert to_base85(data) == base85(data)
    assert from_base85(base85(data), len(data)) == data


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("abcd", 4),
        ("abcde", 9),
        ("abcde", 0),
        ("abcde", -1),
        ("ab de", 4),
        ("abcdé", 4),
        ("#####", 4),
    ],
)
def test_other_texts_are_refused(text: str, size: int) -> None:
    with pytest.raises(VectorError, match="Base85"):
        from_base85(text, size)


@pytest.mark.parametrize("cardinality", [5, 7, -1, 2**40])
def test_another_number_of_positions_is_refused(cardinality: int) -> None:
    with pytest.raises(VectorError, match=r"positions|rows"):
        decode_vector(portable([3, 4, 7, 11, 18, 29], False), cardinality)


def test_a_small_vector_cannot_name_billions_of_rows() -> None:
    huge = portable(list(range(100)), False)[:12] + struct.pack("<I", 0)
    header = struct.pack("<I", 12_347 | 65_535 << 16) + b"\xff" * 8192
    keys = b"".join(struct.pack("<HH", key, 65_535) for key in range(65_536))
    runs = struct.pack("<HHH", 1, 0, 65_535) * 65_536
    data = huge + header + keys + bytes(4 * 65_536) + runs

    with pytest.raises(VectorError, match="more positions than the log states"):
        decode_vector(data, 100)


@pytest.mark.parametrize("shape", ["sparse", "dense", "five runs", "above 32 bits"])
@pytest.mark.parametrize("runs", [False, True], ids=["plain", "runs"])
def test_damaged_bytes_are_refused_or_are_another_valid_vector(shape: str, runs: bool) -> None:
    positions = sorted(set(SHAPES[shape]))
    data = bytearray(portable(positions, runs))
    random = np.random.default_rng(7)
    refused = 0
    for _ in range(150):
        # The first bytes have the counts and kinds; a flip in a bitmap shows in its count.
        at = int(random.integers(0, min(len(data), 60))) if random.random() < 0.7 else -1
        at = int(random.integers(0, len(data))) if at < 0 else at
        damaged = (
            bytes(data[:at]) + bytes([data[at] ^ 1 << int(random.integers(8))]) + data[at + 1 :]
        )
        try:
            read = decode_vector(damaged, len(positions))
        except VectorError:
            refused += 1
        else:
            assert read.size == len(positions)
            assert bool(np.all(read[1:] > read[:-1]))
    assert refused > 50


def test_cut_bytes_are_refused() -> None:
    data = portable(SHAPES["above 32 bits"], False)
    for end in range(len(data)):
        with pytest.raises(VectorError):
            decode_vector(data[:end], 5)
    with pytest.raises(VectorError, match="after its end"):
        decode_vector(data + b"x", 5)


def test_a_vector_in_a_file_has_its_size_and_checksum() -> None:
    data = portable([1, 2], False)
    block = struct.pack(">i", len(data)) + data + struct.pack(">I", 0)

    with pytest.raises(VectorError, match="checksum"):
        vector_of_file(block, len(data))
    with pytest.raises(VectorError, match=f"expected {len(data) + 1}"):
        vector_of_file(block, len(data) + 1)
