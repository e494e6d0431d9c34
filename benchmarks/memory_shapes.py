"""Inputs that are hard on memory: each a folder of Parquet files with key, version and tombstone.

    wide        24 runs of 50 columns over one key range
    deep        200 runs of six columns that overlap everywhere
    texts       8 runs whose rows hold texts of 4 to 256 KiB
    repeated    8 runs with texts of 2 KiB of which there are only 50: a hundredth when encoded
    one-group   one file that is a single row group, and four usual ones over it
    versions    8 runs of which nearly all rows have the same key
    skew        16 runs with nine of ten rows in a thousandth of the keys
    tiny        files of about 100 KB, each over the whole key range

Written by pyarrow with zstd 1, row groups of at most 32 MB decoded but for `one-group`.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP_BYTES = 24 * 1024**2
CHUNK_ROWS = 1 << 20
KEY, VERSION, TOMBSTONE = "key", "version", "dead"
Keys = Callable[[np.random.Generator, int], np.ndarray]
Payload = Callable[[np.random.Generator, int], dict[str, pa.Array]]


def make(shape: str, folder: Path, size_bytes: int) -> list[str]:
    """Write the files of a shape; return their names.

    Args:
        shape: One of `SHAPES`.
        folder: Made anew.
        size_bytes: Of all rows decoded, about.

    Raises:
        KeyError: There is no such shape.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return list(SHAPES[shape](folder, size_bytes))


@dataclass(frozen=True, slots=True)
class _Rows:
    """What the rows of a shape are like."""

    row_bytes: int
    payload: Payload
    keys: Keys


def _runs(folder: Path, size_bytes: int, *, runs: int, like: _Rows) -> Iterator[str]:
    rows = max(1, size_bytes // runs // like.row_bytes)
    for run in range(runs):
        yield _write(folder, run, rows, like, GROUP_BYTES // like.row_bytes)


def _write(folder: Path, run: int, rows: int, like: _Rows, group_rows: int) -> str:
    """Write one run in sorted stretches, so that it is never in memory as a whole."""
    chance, name, writer = np.random.default_rng(run), f"run-{run:04}.parquet", None
    ordered = np.sort(like.keys(chance, rows))
    step = max(1, min(CHUNK_ROWS, group_rows, (256 << 20) // like.row_bytes))
    if group_rows >= rows:
        step = rows
    for start in range(0, rows, step):
        ids = ordered[start : start + step]
        table = pa.table(
            {
                KEY: pa.array(np.char.mod("%016x", ids), pa.string()),
                VERSION: pa.array(chance.integers(0, 1 << 40, len(ids)), pa.int64()),
                TOMBSTONE: pa.array(chance.random(len(ids)) < 0.02, pa.bool_()),
                **like.payload(chance, len(ids)),
            }
        )
        writer = writer or pq.ParquetWriter(
            folder / name, table.schema, compression="zstd", compression_level=1
        )
        writer.write_table(table, row_group_size=group_rows)
    assert writer is not None
    writer.close()
    return name


def _spread(chance: np.random.Generator, rows: int) -> np.ndarray:
    return chance.integers(0, 1 << 40, rows)


def _one_key(chance: np.random.Generator, rows: int) -> np.ndarray:
    return np.where(chance.random(rows) < 0.01, _spread(chance, rows), 1 << 39)


def _skewed(chance: np.random.Generator, rows: int) -> np.ndarray:
    narrow = (1 << 39) + chance.integers(0, 1 << 30, rows)
    return np.where(chance.random(rows) < 0.1, _spread(chance, rows), narrow)


def _few(chance: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    return {
        "text": pa.array(np.char.mod("%024x", chance.integers(0, 1 << 60, rows)), pa.string()),
        "amount": pa.array(chance.random(rows), pa.float64()),
        "code": pa.array(chance.integers(0, 500, rows), pa.int32()),
    }


def _many(chance: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    columns = {f"f{n:02}": pa.array(chance.random(rows), pa.float64()) for n in range(30)}
    whole = {f"i{n:02}": pa.array(chance.integers(0, 1 << 40, rows)) for n in range(14)}
    texts = {
        f"s{n}": pa.array(np.char.mod("%06d", chance.integers(0, 10**6, rows)), pa.string())
        for n in range(3)
    }
    return {**columns, **whole, **texts}


def _huge(chance: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    lengths = (1 << 12) * 2 ** chance.integers(0, 7, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    letters = np.frombuffer(b"0123456789abcdef", np.uint8)
    run = letters[np.frombuffer(chance.bytes(int(offsets[-1])), np.uint8) & 15]
    text = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(run.tobytes()))
    return {"text": text}


def _repeated(chance: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    values = pa.array([f"{n:02}" * 1024 for n in range(50)], pa.string())
    return {"text": values.take(pa.array(chance.integers(0, 50, rows)))}


_FEW = _Rows(85, _few, _spread)


def _wide(folder: Path, size_bytes: int) -> Iterator[str]:
    yield from _runs(folder, size_bytes, runs=24, like=_Rows(420, _many, _spread))


def _deep(folder: Path, size_bytes: int) -> Iterator[str]:
    yield from _runs(folder, size_bytes, runs=200, like=_FEW)


def _texts(folder: Path, size_bytes: int) -> Iterator[str]:
    yield from _runs(folder, size_bytes, runs=8, like=_Rows(75_000, _huge, _spread))


def _dictionaries(folder: Path, size_bytes: int) -> Iterator[str]:
    like = _Rows(2100, _repeated, _spread)
    for run in range(8):
        yield _write(folder, run, max(1, size_bytes // 8 // 2100), like, 1 << 16)


def _one_group(folder: Path, size_bytes: int) -> Iterator[str]:
    rows = size_bytes // 2 // 85
    yield _write(folder, 0, rows, _FEW, rows)
    for run in range(1, 5):
        yield _write(folder, run, rows // 4, _FEW, GROUP_BYTES // 85)


def _versions(folder: Path, size_bytes: int) -> Iterator[str]:
    yield from _runs(folder, size_bytes, runs=8, like=_Rows(85, _few, _one_key))


def _skew(folder: Path, size_bytes: int) -> Iterator[str]:
    yield from _runs(folder, size_bytes, runs=16, like=_Rows(85, _few, _skewed))


def _tiny(folder: Path, size_bytes: int) -> Iterator[str]:
    yield from _runs(folder, size_bytes, runs=max(2, size_bytes // (85 * 1900)), like=_FEW)


SHAPES: dict[str, Callable[[Path, int], Iterator[str]]] = {
    "wide": _wide,
    "deep": _deep,
    "texts": _texts,
    "repeated": _dictionaries,
    "one-group": _one_group,
    "versions": _versions,
    "skew": _skew,
    "tiny": _tiny,
}
