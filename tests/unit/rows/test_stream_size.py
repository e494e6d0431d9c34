"""How large a stream becomes is known before anything of it is decoded."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import pyarrow as pa
import pytest

from neve.gateway.problems import TooLargeError
from neve.gateway.rows.ingestion import read_stream, stream_memory_bytes

ROWS = pa.table(
    {
        "id": range(5000),
        "text": [f"text {n % 7}" * 9 for n in range(5000)],
        "list": [[n, n + 1] for n in range(5000)],
        "word": pa.array([f"w{n % 5}" for n in range(5000)]).dictionary_encode(),
    }
)


ZSTD = b"\x28\xb5\x2f\xfd"
"""With which a frame begins."""


def stream(rows: pa.Table, compression: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows, max_chunksize=1000)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_the_size_is_what_arrow_allocates(compression: str | None) -> None:
    body = stream(ROWS, compression)
    plain = stream_memory_bytes(stream(ROWS, None))
    told = stream_memory_bytes(body)
    read = sum(batch.get_total_buffer_size() for batch in pa.ipc.open_stream(body))
    assert abs(told - plain) < 0.02 * plain, "but for padding"
    assert read <= 1.5 * told
    assert len(body) < told or compression is None


def test_an_empty_stream_takes_nothing() -> None:
    assert stream_memory_bytes(stream(ROWS.slice(0, 0), "zstd")) == 0


def test_a_stream_that_claims_to_be_huge_is_refused_before_it_is_read() -> None:
    body = bytearray(stream(pa.table({"x": [b"a" * 100_000]}), "zstd"))
    at = body.index(struct.pack("<q", 100_000) + ZSTD)
    body[at : at + 8] = struct.pack("<q", 4 << 40)
    assert stream_memory_bytes(bytes(body)) > 4 << 40
    with pytest.raises(TooLargeError, match="append them in parts"):
        read_stream(bytes(body), 1 << 30)


@pytest.mark.parametrize("claim", [-2, -(2**63)])
def test_a_length_that_makes_no_sense_is_refused(claim: int) -> None:
    body = bytearray(stream(pa.table({"x": [b"a" * 100_000]}), "zstd"))
    at = body.index(struct.pack("<q", 100_000) + ZSTD)
    body[at : at + 8] = struct.pack("<q", claim)
    with pytest.raises(ValueError, match="claims to hold"):
        stream_memory_bytes(bytes(body))


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_stream_is_told_of_or_measured(seed: int) -> None:
    drawn = random.Random(seed)
    whole = stream(ROWS, drawn.choice([None, "lz4", "zstd"]))
    for _ in range(400):
        body = bytearray(whole)
        for _ in range(drawn.randint(1, 8)):
            body[drawn.randrange(len(body))] = drawn.randrange(256)
        cut = bytes(body[: drawn.randint(0, len(body))]) if drawn.random() < 0.3 else bytes(body)
        with suppress(ValueError):
            assert stream_memory_bytes(cut) >= 0
