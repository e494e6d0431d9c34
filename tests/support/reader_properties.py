"""Which reader reads what of the files that Névé writes: the table of `docs/reference/files.md`.

Each property is a file that has it; each reader reads the file, and looks for some rows by
filters. What comes of it is a cell.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from py4j.protocol import Py4JError

from common.parquet.location import open_location
from common.rows.schema import normal_type
from compactor.rewrite.outputs import RowGroupWriter
from compactor.rewrite.parquet_bytes.relocation import StitchPiece
from compactor.rewrite.parquet_bytes.stitch import stitch
from compactor.rewrite.plan.inputs import OutputSettings
from tests.support.layouts import layout_of_file
from tests.support.readers import RULE_SPLITS_BYTES, SPLITS_BYTES, spark_count
from tests.support.sample_tables import random_texts, three_texts
from tests.support.spark_session import local_session
from tests.support.split_rules import RULES, rows_by_rule

REFUSALS = (duckdb.Error, pa.ArrowException, pl.exceptions.PolarsError, Py4JError)
MIB = 1024**2
ROWS = 20_000
FEW, LONE_ROWS = 20, 5
YES, REFUSES, UNTRIED = "yes", "refuses the file", "not tried"
Probe = tuple[str, Any, Any]
"""A column, and the least and the greatest value that are looked for."""


# ---------------------------------------------------------------- readers


@dataclass(frozen=True)
class Reader:
    """One reader: how it reads a file, and how it counts rows by a filter."""

    read: Callable[[str], pa.Table]
    count: Callable[[str, Probe], int]


def _pyarrow_count(path: str, probe: Probe) -> int:
    name, low, high = probe
    return pq.read_table(path, filters=[(name, ">=", low), (name, "<=", high)]).num_rows


def _polars_count(path: str, probe: Probe) -> int:
    name, low, high = probe
    return (
        pl.scan_parquet(path)
        .filter(pl.col(name).is_between(pl.lit(low), pl.lit(high)))
        .collect()
        .height
    )


def _duckdb_read(path: str) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.read_parquet(path).to_arrow_table()


def _duckdb_count(path: str, probe: Probe) -> int:
    name, low, high = probe
    query = f"SELECT count(*) FROM read_parquet(?) WHERE {name} BETWEEN ? AND ?"
    with duckdb.connect() as connection:
        ((count,),) = connection.execute(query, [path, low, high]).fetchall()
    return int(count)


def _spark_read(path: str) -> pa.Table:
    from pyspark.sql.pandas.types import to_arrow_schema

    frame = local_session().newSession().read.parquet(path)
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    return pa.Table.from_pylist(rows, to_arrow_schema(frame.schema))


def _spark_count(path: str, probe: Probe) -> int:
    from pyspark.sql import functions

    name, low, high = probe
    frame = local_session().newSession().read.parquet(path)
    return int(frame.filter(functions.col(name).between(low, high)).count())


READERS = {
    "pyarrow": Reader(pq.read_table, _pyarrow_count),
    "Polars": Reader(lambda path: pl.read_parquet(path).to_arrow(), _polars_count),
    "DuckDB": Reader(_duckdb_read, _duckdb_count),
    "Spark": Reader(_spark_read, _spark_count),
}
BY_RULE = "Trino, Hive, Impala"
"""Not at hand: the rules by which they find row groups are held against the footer."""


# ------------------------------------------------------------- properties


@dataclass(frozen=True)
class Property:
    """A file with a property."""

    write: Callable[[Path], pa.Table]
    """Writes the file; returns what it must hold."""
    cells: Mapping[str, str]
    """What comes of it, by reader, where that is not `YES`."""
    probes: tuple[Probe, ...] = ()
    is_there: Callable[[Path], bool] = lambda _: True
    """Whether the file has the property, as its footer says."""


def neve_file(
    path: Path, rows: pa.Table, *, group_bytes: int = MIB, bloom: tuple[str, ...] = ()
) -> pa.Table:
    """Write a file as outputs of a rewrite are written; return its rows."""
    with path.open("xb") as sink:
        groups = RowGroupWriter(
            sink, rows.schema, OutputSettings("zstd", 1, group_bytes, bloom), rows.column_names[:1]
        )
        groups.write(rows)
        groups.close({})
    return rows


def column(values: pa.Array) -> Callable[[Path], pa.Table]:
    """Return what writes a file with a key and this column."""
    rows = pa.table({"k": pa.array(range(len(values)), pa.int64()), "x": values})
    return lambda path: neve_file(path, rows)


def columns(**values: pa.Array) -> Callable[[Path], pa.Table]:
    """Return what writes a file with a key and these columns."""
    rows = pa.table({"k": pa.array(range(FEW), pa.int64()), **values})
    return lambda path: neve_file(path, rows)


def _beside(path: Path) -> pa.Table:
    """Several row groups, whose columns threads have encoded beside each other."""
    return neve_file(path, three_texts(range(3 * ROWS)), group_bytes=5 * MIB)


def _blooms(path: Path) -> pa.Table:
    return neve_file(path, three_texts(range(ROWS)), bloom=("id", "a"))


def _dictionaries(path: Path) -> pa.Table:
    words = ["red", "green", "blue", None]
    few = pa.array([words[at % 4] for at in range(ROWS)])
    return neve_file(path, pa.table({"k": range(ROWS), "few": few}))


def _lone_rows(path: Path) -> pa.Table:
    """Rows of so many bytes that no two of them go into a row group."""
    texts = random_texts(_chance(), LONE_ROWS, 3 * MIB)
    return neve_file(path, pa.table({"k": range(LONE_ROWS), "text": texts}), group_bytes=1)


def _truncated(path: Path) -> pa.Table:
    """Row groups of Spark, whose statistics hold eight bytes of each text, copied as they are."""
    rows = three_texts(range(ROWS)).select(["id", "a"])
    pq.write_table(rows, path.with_suffix(".plain"))
    frame = local_session().read.parquet(str(path.with_suffix(".plain")))
    folder = path.with_suffix(".spark")
    options = {"parquet.statistics.truncate.length": 8, "parquet.columnindex.truncate.length": 8}
    options |= {"parquet.block.size": MIB, "parquet.enable.dictionary": False}
    frame.coalesce(1).write.options(**options).parquet(str(folder))
    (part,) = folder.glob("*.parquet")
    location = open_location(path.parent.as_uri())
    stitch(location, [StitchPiece(f"{folder.name}/{part.name}")], path.name)
    return rows


def _chance() -> Any:
    import numpy as np

    return np.random.default_rng(1)


def _chunks(path: Path) -> list[pq.ColumnChunkMetaData]:
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    return [group.column(at) for group in groups for at in range(group.num_columns)]


def _has_truncated(path: Path) -> bool:
    texts = [chunk.statistics for chunk in _chunks(path) if chunk.path_in_schema == "a"]
    return len(texts) > 1 and all(len(text.max) == 8 for text in texts)


def _is_encrypted(path: Path) -> bool:
    content = path.read_bytes()
    layout = layout_of_file(path)  # It refuses columns that are.
    return content[:4] != b"PAR1" or content[-4:] != b"PAR1" or not layout.groups


NESTED = pa.list_(pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.list_(pa.string()))]))
MOMENT_NS = 1_700_000_000_123_456_789
TIMES = [dt.time(1, 2, 3, at) for at in range(FEW)]
PROPERTIES: dict[str, Property] = {
    "columns of several row groups, in the order of the schema": Property(
        write=_beside,
        cells={BY_RULE: YES},
        is_there=lambda path: len(layout_of_file(path).groups) > 1,
    ),
    "row groups of one row": Property(
        write=_lone_rows,
        cells={BY_RULE: YES},
        probes=(("k", 3, 4),),
        is_there=lambda path: pq.read_metadata(path).num_row_groups == LONE_ROWS,
    ),
    "files without rows": Property(
        write=lambda path: neve_file(path, three_texts(range(1)).slice(0, 0)),
        cells={BY_RULE: YES},
        probes=(("id", 0, 9),),
    ),
    "page indexes": Property(
        write=lambda path: neve_file(path, three_texts(range(3 * ROWS)), group_bytes=50 * MIB),
        cells={},
        probes=(("id", 5, 5), ("id", 11_990, 40_010), ("a", "m", "mz"), ("id", -3, -1)),
        is_there=lambda path: all(
            chunk.has_offset_index and chunk.has_column_index for chunk in _chunks(path)
        ),
    ),
    "Bloom filters": Property(
        write=_blooms,
        cells={},
        probes=(("id", 17, 17), ("id", 1 << 40, 1 << 40), ("a", "none", "none")),
        is_there=lambda path: any(chunk.bloom_filter_offset for chunk in _chunks(path)),
    ),
    "dictionaries": Property(
        write=_dictionaries,
        cells={},
        probes=(("few", "red", "red"), ("few", "c", "d"), ("k", 3, 4)),
        is_there=lambda path: any(chunk.has_dictionary_page for chunk in _chunks(path)),
    ),
    "statistics that hold the beginning of long texts": Property(
        write=_truncated,
        cells={},
        probes=(("a", "m", "mz"), ("a", "zz", "zzzz"), ("a", "", "aab")),
        is_there=_has_truncated,
    ),
    "nested columns": Property(
        write=columns(
            list=pa.array([[1, None, at] for at in range(FEW)], pa.list_(pa.int64())),
            row=pa.array([{"a": at, "b": None if at % 2 else "x"} for at in range(FEW)]),
            map=pa.array([[("k", at)] for at in range(FEW)], pa.map_(pa.string(), pa.int64())),
            deep=pa.array([[{"a": at, "b": ["x"] * (at % 3)}] for at in range(FEW)], NESTED),
        ),
        cells={},
    ),
    "unsigned whole numbers": Property(
        write=columns(
            a=pa.array(range(236, 256), pa.uint8()),
            b=pa.array(range(65_516, 65_536), pa.uint16()),
            c=pa.array(range((1 << 32) - FEW, 1 << 32), pa.uint32()),
            d=pa.array(range((1 << 64) - FEW, 1 << 64), pa.uint64()),
        ),
        cells={"Spark": "as int16, int32, int64, decimal128(20, 0)"},
        probes=(("b", 65_520, 65_530), ("c", (1 << 32) - 5, (1 << 32) - 1)),
    ),
    "moments in nanoseconds": Property(
        write=column(pa.array([MOMENT_NS + at for at in range(FEW)], pa.timestamp("ns"))),
        cells={"Spark": REFUSES},
    ),
    "moments in nanoseconds, in UTC": Property(
        write=column(pa.array([MOMENT_NS + at for at in range(FEW)], pa.timestamp("ns", "UTC"))),
        cells={"Spark": REFUSES},
    ),
    "times of day": Property(
        write=column(pa.array(TIMES, pa.time64("us"))),
        cells={"Polars": "as time64[ns]", "Spark": REFUSES},
    ),
    "durations": Property(
        write=column(pa.array(range(FEW), pa.duration("us"))),
        cells={"DuckDB": "as int64", "Spark": "as int64"},
    ),
    "decimals of more than 38 digits": Property(
        write=column(
            pa.array([Decimal(10**50 + at).scaleb(-2) for at in range(FEW)], pa.decimal256(60, 2))
        ),
        cells={"Polars": REFUSES, "DuckDB": "rounded, as double", "Spark": REFUSES},
    ),
    "floats of half precision": Property(
        write=column(pc.cast(pa.array([at / 4 for at in range(FEW)], pa.float32()), pa.float16())),
        cells={"DuckDB": "as float", "Spark": REFUSES},
    ),
    "no encryption": Property(
        write=lambda path: neve_file(path, three_texts(range(FEW))),
        cells={},
        is_there=lambda path: not _is_encrypted(path),
    ),
}


def cell(name: str, reader: str) -> str:
    """Return what the table says."""
    silent = UNTRIED if reader == BY_RULE else YES
    return PROPERTIES[name].cells.get(reader, silent)


def table_text() -> str:
    """Return the table as the page has it."""
    names = [*READERS, BY_RULE]
    heads = [*(f"{name} {_release(name)}" for name in READERS), BY_RULE]
    lines = [f"| property | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    lines += [
        f"| {name} | {' | '.join(cell(name, reader) for reader in names)} |" for name in PROPERTIES
    ]
    return "\n".join(lines) + "\n"


def _release(reader: str) -> str:
    """Return the release of a reader that tests are pinned to, without its last number."""
    package = {"Spark": "pyspark"}.get(reader, reader.lower())
    return version(package).rpartition(".")[0]


# ----------------------------------------------------------------- trying


def found_by(reader: Reader, path: Path, wanted: pa.Table) -> str:
    """Return what comes of reading a file: a cell."""
    try:
        found = reader.read(str(path))
    except REFUSALS:
        return REFUSES
    assert found.num_rows == wanted.num_rows
    found = found.sort_by(found.column_names[0]) if found.num_rows else found
    others = [
        _type_of(found, name) for name in wanted.column_names if _differs(found, wanted, name)
    ]
    same = all(_same(found, wanted, name) for name in wanted.column_names)
    if not others:
        assert same, "other values of the same types"
        return YES
    return f"{'' if same else 'rounded, '}as {', '.join(others)}"


def counted_by_rules(path: Path) -> set[int]:
    """Return how many rows there are by each rule, in splits of each size."""
    return {rows_by_rule(path, rule, size) for rule in RULES.values() for size in RULE_SPLITS_BYTES}


def counted_in_splits(path: Path) -> set[int]:
    """Return how many rows Spark counts, in splits of each size."""
    return {spark_count([str(path)], size) for size in SPLITS_BYTES}


def _type_of(table: pa.Table, name: str) -> str:
    return str(normal_type(table.schema.field(name).type))


def _differs(found: pa.Table, wanted: pa.Table, name: str) -> bool:
    return normal_type(found.schema.field(name).type) != normal_type(wanted.schema.field(name).type)


def _same(found: pa.Table, wanted: pa.Table, name: str) -> bool:
    """Return whether values are the same ones, whatever type they have."""
    target = wanted.schema.field(name).type
    try:
        values = found[name].cast(target)
    except pa.ArrowInvalid:
        return False
    return bool(values.combine_chunks().equals(wanted[name].combine_chunks()))
