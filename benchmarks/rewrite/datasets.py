"""Data sets of the rewrite benchmarks: tables as runs of Parquet files, made from a seed.

A data set is a folder of files and a `dataset.json` that says how to merge them. It is
made once per scale and kept. Files are written by pyarrow with zstd 1.

    lsm         16 sorted runs over one key range, 16-byte string keys, 5 % tombstones
    lsm-int     the same with an int64 key
    lsm-crc     lsm with a checksum in every page, as Spark and Névé write them
    lineitem    TPC-H lineitem in 8 runs, a quarter of the rows twice, key of two integers
    uuid        16 runs with 36-byte keys whose prefixes tell nothing
    wide        8 runs of 50 columns
    tiny        2,000 files of about 100 KB, each over the whole key range
    overlap     16 files behind each other, and one over a fifth of their keys
    bag         TPC-H lineitem in 16 files, append-only, row groups worth copying
    bag-orders  TPC-H orders in 16 files, likewise

Sizes are those of scale 1; rows grow with the scale.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.rewrite.tpch import tpch_table

GROUP_ROWS = 65_536
VERSION, TOMBSTONE = "version", "dead"
DESCRIPTION = "dataset.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Files and how they are merged. Without a key they are a bag of rows."""

    name: str
    folder: str
    files: tuple[str, ...]
    key: tuple[str, ...]
    clean: bool
    """Whether keys are unique inside each file, and nothing is dead."""
    rows: int
    size_bytes: int

    @property
    def paths(self) -> list[str]:
        """The files, in order, with their folder."""
        return [f"{self.folder}/{name}" for name in self.files]


Run = tuple[str, pa.Table]


def dataset(name: str, root: Path, scale: float) -> Dataset:
    """Return a data set, made if it is not there yet.

    Args:
        name: One of `MAKERS`.
        root: Folder of all data sets.
        scale: Factor on the rows.

    Raises:
        KeyError: There is no such data set.
    """
    make = MAKERS[name]
    folder = root / f"{name}-{scale:g}"
    described = folder / DESCRIPTION
    if not described.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        files = tuple(_write(folder, run, rows, name in CHECKED) for run, rows in make(scale))
        found = Dataset(
            name=name,
            folder=str(folder),
            files=files,
            key=KEYS.get(name, ("key",)),
            clean=name in CLEAN,
            rows=sum(pq.read_metadata(folder / file).num_rows for file in files),
            size_bytes=sum((folder / file).stat().st_size for file in files),
        )
        described.write_text(json.dumps(asdict(found), indent=1))
    stored = json.loads(described.read_text())
    return Dataset(**{**stored, "files": tuple(stored["files"]), "key": tuple(stored["key"])})


def _write(folder: Path, name: str, rows: pa.Table, checksums: bool) -> str:
    file = f"{name}.parquet"
    pq.write_table(
        rows,
        folder / file,
        compression="zstd",
        compression_level=1,
        row_group_size=GROUP_ROWS,
        write_page_checksum=checksums,
        # With an index there are no statistics in the pages; Spark and Névé write it, too.
        write_page_index=checksums,
    )
    return file


def _lsm(scale: float, key: Callable[[np.ndarray], pa.Array] | None = None) -> Iterator[Run]:
    """Yield 16 runs of 400,000 rows out of 3,000,000 keys."""
    chance = np.random.default_rng(7)
    rows, universe = int(400_000 * scale), int(3_000_000 * scale)
    for run in range(16):
        ids = np.sort(chance.choice(universe, rows, replace=False))
        columns = {"key": (key or _hex_key)(ids), **_marks(chance, rows, run)}
        yield f"run-{run:02}", pa.table({**columns, **_payload(chance, rows)})


def _lsm_int(scale: float) -> Iterator[Run]:
    yield from _lsm(scale, lambda ids: pa.array(ids * 7 - 10_000_000, pa.int64()))


def _uuid(scale: float) -> Iterator[Run]:
    chance = np.random.default_rng(11)
    rows, universe = int(100_000 * scale), int(750_000 * scale)
    digits = np.frombuffer(chance.bytes(16 * universe), np.uint8).reshape(universe, 16)
    names = np.sort(np.array([_dashed(row.tobytes().hex()) for row in digits]))
    for run in range(16):
        ids = np.sort(chance.choice(universe, rows, replace=False))
        columns = {"key": pa.array(names[ids], pa.string()), **_marks(chance, rows, run)}
        yield f"run-{run:02}", pa.table({**columns, **_payload(chance, rows)})


def _wide(scale: float) -> Iterator[Run]:
    chance = np.random.default_rng(13)
    rows, universe = int(100_000 * scale), int(400_000 * scale)
    for run in range(8):
        ids = np.sort(chance.choice(universe, rows, replace=False))
        columns = {"key": _hex_key(ids), **_marks(chance, rows, run)}
        for number in range(47):
            columns[f"c{number:02}"] = _WIDE[number % len(_WIDE)](chance, rows)
        yield f"run-{run:02}", pa.table(columns)


def _tiny(scale: float) -> Iterator[Run]:
    chance = np.random.default_rng(17)
    rows, universe = 3_500, int(3_000_000 * scale)
    for run in range(int(2_000 * scale)):
        ids = np.sort(chance.choice(universe, rows, replace=False))
        columns = {"key": _hex_key(ids), **_marks(chance, rows, run)}
        yield f"run-{run:04}", pa.table({**columns, **_payload(chance, rows)})


def _overlap(scale: float) -> Iterator[Run]:
    """Yield 16 runs behind each other, then one over a fifth of their keys."""
    chance = np.random.default_rng(19)
    rows = int(400_000 * scale)
    universe = 16 * rows
    for run in range(16):
        ids = np.arange(run * rows, (run + 1) * rows)
        columns = {"key": _hex_key(ids), **_marks(chance, rows, run, dead=0.0)}
        yield f"run-{run:02}", pa.table({**columns, **_payload(chance, rows)})
    low = int(0.4 * universe)
    ids = low + np.sort(chance.choice(universe // 5, rows, replace=False))
    columns = {"key": _hex_key(ids), **_marks(chance, rows, 16, dead=0.0)}
    yield "run-16", pa.table({**columns, **_payload(chance, rows)})


def _lineitem(scale: float) -> Iterator[Run]:
    chance = np.random.default_rng(23)
    whole = tpch_table("lineitem", 0.5 * scale)
    rows = whole.num_rows
    owner = chance.integers(0, 8, rows)
    again = np.where(chance.random(rows) < 0.25, (owner + 1 + chance.integers(0, 7, rows)) % 8, -1)
    for run in range(8):
        mine = whole.take(pa.array(np.flatnonzero((owner == run) | (again == run))))
        mine = mine.sort_by([("l_orderkey", "ascending"), ("l_linenumber", "ascending")])
        for name, values in _marks(chance, mine.num_rows, run).items():
            mine = mine.append_column(name, values)
        yield f"run-{run:02}", mine


def _bag(scale: float) -> Iterator[Run]:
    yield from _parts(tpch_table("lineitem", scale))


def _bag_orders(scale: float) -> Iterator[Run]:
    yield from _parts(tpch_table("orders", 2 * scale))


def _parts(whole: pa.Table) -> Iterator[Run]:
    share = -(-whole.num_rows // 16)
    for part in range(16):
        yield f"part-{part:02}", whole.slice(part * share, share)


def _marks(
    chance: np.random.Generator, rows: int, run: int, dead: float = 0.05
) -> dict[str, pa.Array]:
    """Return version and tombstone columns; a later run mostly has later versions."""
    versions = run * 1_000_000 + chance.integers(0, 4_000_000, rows)
    return {
        VERSION: pa.array(versions, pa.int64()),
        TOMBSTONE: pa.array(chance.random(rows) < dead, pa.bool_()),
    }


def _payload(chance: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    return {
        "text": _hex_text(chance, rows),
        "amount": pa.array(chance.random(rows).round(4), pa.float64()),
        "code": pa.array(chance.integers(0, 500, rows), pa.int32()),
    }


def _hex_key(ids: np.ndarray) -> pa.Array:
    """Return keys of 16 bytes in the order of the ids."""
    return pa.array(np.char.mod("%016x", ids * 0x10001), pa.string())


def _hex_text(chance: np.random.Generator, rows: int) -> pa.Array:
    """Return texts of 24 hex digits."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    values = digits[chance.integers(0, 16, 24 * rows, dtype=np.uint8)].tobytes()
    offsets = np.arange(0, 24 * (rows + 1), 24, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(values))


def _dashed(digits: str) -> str:
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(parts)


_WIDE: tuple[Callable[[np.random.Generator, int], pa.Array], ...] = (
    lambda chance, rows: pa.array(chance.random(rows), pa.float64()),
    lambda chance, rows: pa.array(chance.integers(0, 1 << 40, rows), pa.int64()),
    lambda chance, rows: pa.array(chance.integers(0, 1_000, rows), pa.int32()),
    lambda chance, rows: pa.array(chance.integers(0, 50, rows).astype(str), pa.string()),
    lambda chance, rows: pa.array(chance.integers(0, 2_000_000_000, rows), pa.timestamp("s")),
)

MAKERS: dict[str, Callable[[float], Iterator[Run]]] = {
    "lsm": _lsm,
    "lsm-int": _lsm_int,
    "lsm-crc": _lsm,
    "lineitem": _lineitem,
    "uuid": _uuid,
    "wide": _wide,
    "tiny": _tiny,
    "overlap": _overlap,
    "bag": _bag,
    "bag-orders": _bag_orders,
}
KEYS = {"lineitem": ("l_orderkey", "l_linenumber"), "bag": (), "bag-orders": ()}
CLEAN = frozenset({"overlap"})
CHECKED = frozenset({"lsm-crc"})
"""Sets whose pages have checksums."""
