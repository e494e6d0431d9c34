"""Data sets of the rewrite benchmarks: tables as runs of Parquet files, made from a seed.

A data set is a folder of files and a `dataset.json` that says how to merge them. It is
made once per scale and kept. Files are written by pyarrow with zstd 1. No two rows of a set have
the same key and version, so that there is one right result.

    lsm          16 sorted runs over one key range, 16-byte string keys, 5 % tombstones
    lsm-int      the same with an int64 key
    lsm-checked  the same as lsm with a checksum in every page, as in Névé's own outputs
    lineitem     TPC-H lineitem in 8 runs, a quarter of the rows twice, key of two integers
    uuid         16 runs with 36-byte keys whose prefixes are random
    wide         8 runs of 50 columns
    tiny         2,000 files of about 100 KB, each over the whole key range
    overlap      16 files in order of their keys, and one over a fifth of the keys
    bag          TPC-H lineitem in 16 files, append-only, with large row groups
    bag-orders   TPC-H orders in 16 files, likewise
    dead-0, dead-10, dead-50   16 runs of which 0, 10 and 50 % of the rows are tombstones
    where, set, like           a job over the files of dead-10 that also changes rows: deletes by
                               a comparison, sets a column, deletes by what only Spark evaluates
    lsm-1gb, lsm-4gb, lsm-10gb   lsm with 1, 4 and 10 GB of stored inputs

Sizes are those of scale 1; rows grow with the scale.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.rewrite.tpch import tpch_table

GROUP_ROWS = 65_536
VERSION, TOMBSTONE = "version", "dead"
DESCRIPTION = "dataset.json"
FORMAT = 2
"""Number of the generator: data sets of another one are made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a job does to rows besides the merge. SQL that all engines read alike."""

    delete_where: str = ""
    column: str = ""
    """The column that gets a new value."""
    value: str = ""


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
    change: Change | None = None
    large: bool = False
    """Whether every contender runs once only, without a warm-up."""

    @property
    def paths(self) -> list[str]:
        """The files, in order, with their folder."""
        return [f"{self.folder}/{name}" for name in self.files]


Run = tuple[str, Iterable[pa.Table]]
"""Name of a file, and its rows in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """How a data set is made."""

    make: Callable[[float], Iterator[Run]]
    key: tuple[str, ...] = ("key",)
    clean: bool = False
    checksums: bool = False
    factor: float = 1.0
    large: bool = False


def dataset(name: str, root: Path, scale: float) -> Dataset:
    """Return a data set, made if it does not exist yet.

    Args:
        name: One of `SETS`.
        root: Folder of all data sets.
        scale: Factor on the rows.

    Raises:
        KeyError: There is no such data set.
    """
    if name in CHANGES:
        files, change = CHANGES[name]
        return replace(dataset(files, root, scale), name=name, change=change)
    source = SOURCES[name]
    folder = root / f"{name}-{scale:g}-v{FORMAT}"
    description = folder / DESCRIPTION
    if not description.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        runs = source.make(scale * source.factor)
        files_made = tuple(_write(folder, run, parts, source.checksums) for run, parts in runs)
        data = Dataset(
            name=name,
            folder=str(folder),
            files=files_made,
            key=source.key,
            clean=source.clean,
            rows=sum(pq.read_metadata(folder / file).num_rows for file in files_made),
            size_bytes=sum((folder / file).stat().st_size for file in files_made),
            large=source.large,
        )
        description.write_text(json.dumps(asdict(data), indent=1))
    stored = json.loads(description.read_text())
    return Dataset(**{**stored, "files": tuple(stored["files"]), "key": tuple(stored["key"])})


def _write(folder: Path, name: str, parts: Iterable[pa.Table], checksums: bool) -> str:
    file = f"{name}.parquet"
    writer: pq.ParquetWriter | None = None
    for rows in parts:
        writer = writer or pq.ParquetWriter(
            folder / file,
            rows.schema,
            compression="zstd",
            compression_level=1,
            write_page_checksum=checksums,
            # With an index there are no statistics in the pages; Spark and Névé write it, too.
            write_page_index=checksums,
        )
        writer.write_table(rows, row_group_size=GROUP_ROWS)
    assert writer is not None, "every run has rows"
    writer.close()
    return file


def _lsm(
    scale: float,
    key: Callable[[np.ndarray], pa.Array] | None = None,
    rows_per_run: int = 400_000,
    dead: float = 0.05,
) -> Iterator[Run]:
    """Yield 16 runs of 400,000 rows out of 3,000,000 keys."""
    chance = np.random.default_rng(7)
    rows = int(rows_per_run * scale)
    universe = rows * 15 // 2
    for run in range(16):
        ids = np.sort(chance.choice(universe, rows, replace=False))
        columns = {"key": (key or _hex_key)(ids), **_marks(chance, rows, run, 16, dead)}
        yield f"run-{run:02}", [pa.table({**columns, **_payload(chance, rows)})]


def _lsm_large(scale: float) -> Iterator[Run]:
    """Yield 16 runs like those of `lsm`, made in blocks of the key range, to bound memory."""
    chance = np.random.default_rng(29)
    rows, universe = int(400_000 * min(1.0, scale)), int(3_000_000 * min(1.0, scale))
    blocks = max(1, round(scale))

    def parts(run: int) -> Iterator[pa.Table]:
        for block in range(blocks):
            ids = block * universe + np.sort(chance.choice(universe, rows, replace=False))
            columns = {"key": _hex_key(ids), **_marks(chance, rows, run, 16)}
            yield pa.table({**columns, **_payload(chance, rows)})

    for run in range(16):
        yield f"run-{run:02}", parts(run)


def _dead(share: float) -> Callable[[float], Iterator[Run]]:
    """Return what makes runs with a share of tombstones, with fewer rows than `lsm`."""
    return lambda scale: _lsm(scale, rows_per_run=150_000, dead=share)


def _lsm_int(scale: float) -> Iterator[Run]:
    yield from _lsm(scale, lambda ids: pa.array(ids * 7 - 10_000_000, pa.int64()))


def _uuid(scale: float) -> Iterator[Run]:
    chance = np.random.default_rng(11)
    rows, universe = int(100_000 * scale), int(750_000 * scale)
    digits = np.frombuffer(chance.bytes(16 * universe), np.uint8).reshape(universe, 16)
    names = np.sort(np.array([_dashed(row.tobytes().hex()) for row in digits]))
    for run in range(16):
        ids = np.sort(chance.choice(universe, rows, replace=False))
        columns = {"key": pa.array(names[ids], pa.string()), **_marks(chance, rows, run, 16)}
        yield f"run-{run:02}", [pa.table({**columns, **_payload(chance, rows)})]


def _wide(scale: float) -> Iterator[Run]:
    chance = np.random.default_rng(13)
    rows, universe = int(100_000 * scale), int(400_000 * scale)
    for run in range(8):
        ids = np.sort(chance.choice(universe, rows, replace=False))
        columns = {"key": _hex_key(ids), **_marks(chance, rows, run, 8)}
        for number in range(47):
            columns[f"c{number:02}"] = _WIDE[number % len(_WIDE)](chance, rows)
        yield f"run-{run:02}", [pa.table(columns)]


def _tiny(scale: float) -> Iterator[Run]:
    chance = np.random.default_rng(17)
    rows, universe = 3_500, int(3_000_000 * scale)
    runs = int(2_000 * scale)
    for run in range(runs):
        ids = np.sort(chance.choice(universe, rows, replace=False))
        columns = {"key": _hex_key(ids), **_marks(chance, rows, run, runs)}
        yield f"run-{run:04}", [pa.table({**columns, **_payload(chance, rows)})]


def _overlap(scale: float) -> Iterator[Run]:
    """Yield 16 runs in order of their keys, then one over a fifth of the keys."""
    chance = np.random.default_rng(19)
    rows = int(400_000 * scale)
    universe = 16 * rows
    for run in range(16):
        ids = np.arange(run * rows, (run + 1) * rows)
        columns = {"key": _hex_key(ids), **_marks(chance, rows, run, 17, 0.0)}
        yield f"run-{run:02}", [pa.table({**columns, **_payload(chance, rows)})]
    low = int(0.4 * universe)
    ids = low + np.sort(chance.choice(universe // 5, rows, replace=False))
    columns = {"key": _hex_key(ids), **_marks(chance, rows, 16, 17, 0.0)}
    yield "run-16", [pa.table({**columns, **_payload(chance, rows)})]


def _lineitem(scale: float) -> Iterator[Run]:
    chance = np.random.default_rng(23)
    whole = tpch_table("lineitem", 0.5 * scale)
    rows = whole.num_rows
    owner = chance.integers(0, 8, rows)
    again = np.where(chance.random(rows) < 0.25, (owner + 1 + chance.integers(0, 7, rows)) % 8, -1)
    for run in range(8):
        mine = whole.take(pa.array(np.flatnonzero((owner == run) | (again == run))))
        mine = mine.sort_by([("l_orderkey", "ascending"), ("l_linenumber", "ascending")])
        for name, values in _marks(chance, mine.num_rows, run, 8).items():
            mine = mine.append_column(name, values)
        yield f"run-{run:02}", [mine]


def _bag(scale: float) -> Iterator[Run]:
    yield from _parts(tpch_table("lineitem", scale))


def _bag_orders(scale: float) -> Iterator[Run]:
    yield from _parts(tpch_table("orders", 2 * scale))


def _parts(whole: pa.Table) -> Iterator[Run]:
    share = -(-whole.num_rows // 16)
    for part in range(16):
        yield f"part-{part:02}", [whole.slice(part * share, share)]


def _marks(
    chance: np.random.Generator, rows: int, run: int, runs: int, dead: float = 0.05
) -> dict[str, pa.Array]:
    """Return version and tombstone columns; a later run mostly has later versions.

    The remainder of a version by the number of runs is its run, so that versions of a key differ.
    """
    versions = run * 1_000_000 + chance.integers(0, 4_000_000, rows)
    return {
        VERSION: pa.array(versions // runs * runs + run, pa.int64()),
        TOMBSTONE: pa.array(chance.random(rows) < dead, pa.bool_()),
    }


def _payload(chance: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    return {
        "text": _hex_text(chance, rows),
        "amount": pa.array(chance.random(rows).round(4), pa.float64()),
        "code": pa.array(chance.integers(0, 500, rows), pa.int32()),
    }


_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


def _hex_key(ids: np.ndarray) -> pa.Array:
    """Return keys of 16 bytes in the order of the ids."""
    octets = (ids * 0x10001).astype(">u8").view(np.uint8)
    return _texts(_HEX[np.stack([octets >> 4, octets & 15], axis=1)].tobytes(), 16)


def _hex_text(chance: np.random.Generator, rows: int) -> pa.Array:
    """Return texts of 24 hex digits."""
    return _texts(_HEX[chance.integers(0, 16, 24 * rows, dtype=np.uint8)].tobytes(), 24)


def _texts(values: bytes, length: int) -> pa.Array:
    """Return texts of one length that follow each other in `values`."""
    rows = len(values) // length
    offsets = np.arange(0, length * (rows + 1), length, dtype=np.int32)
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

SOURCES: dict[str, Source] = {
    "lsm": Source(make=_lsm),
    "lsm-int": Source(make=_lsm_int),
    "lsm-checked": Source(make=_lsm, checksums=True),
    "lineitem": Source(make=_lineitem, key=("l_orderkey", "l_linenumber")),
    "uuid": Source(make=_uuid),
    "wide": Source(make=_wide),
    "tiny": Source(make=_tiny),
    "overlap": Source(make=_overlap, clean=True),
    "bag": Source(make=_bag, key=()),
    "bag-orders": Source(make=_bag_orders, key=()),
    "dead-0": Source(make=_dead(0.0)),
    "dead-10": Source(make=_dead(0.1)),
    "dead-50": Source(make=_dead(0.5)),
    "lsm-1gb": Source(make=_lsm_large, factor=5.4, large=True),
    "lsm-4gb": Source(make=_lsm_large, factor=21.4, large=True),
    "lsm-10gb": Source(make=_lsm_large, factor=53.5, large=True),
}
CHANGES: dict[str, tuple[str, Change]] = {
    "where": ("dead-10", Change(delete_where="amount > 0.9")),
    "set": ("dead-10", Change(column="amount", value="amount * 2")),
    "like": ("dead-10", Change(delete_where="text LIKE 'a%'")),
}
SETS = (*SOURCES, *CHANGES)
LARGE = tuple(name for name, source in SOURCES.items() if source.large)
DEFAULT_SETS = tuple(name for name in SETS if name not in LARGE)
