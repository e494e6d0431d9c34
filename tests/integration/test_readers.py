"""What a compaction writes is read alike by Spark, DuckDB, Polars and pyarrow."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.model.table import Table
from compactor.rewrite import outputs, parallel_column_writer
from compactor.rewrite.attempt import rewrite
from compactor.rewrite.outputs import RowGroupWriter
from compactor.rewrite.plan.inputs import OutputSettings
from tests.support.readers import check_counts
from tests.support.spark_session import local_session
from tests.support.tables_on_disk import assignment_over, bag_table, keyed_table, write_file

ROWS = 4_000
FILES = 4
UTC = dt.UTC
READ = Callable[[str], list[dict[str, Any]]]

SCHEMA = pa.schema(
    [
        pa.field("k", pa.string()),
        pa.field("n", pa.int32()),
        pa.field("v", pa.int64()),
        pa.field("flag", pa.bool_()),
        pa.field("i8", pa.int8()),
        pa.field("i64", pa.int64()),
        pa.field("f32", pa.float32()),
        pa.field("f64", pa.float64()),
        pa.field("money", pa.decimal128(12, 2)),
        pa.field("wide", pa.decimal128(38, 6)),
        pa.field("day", pa.date32()),
        pa.field("us", pa.timestamp("us")),
        pa.field("zoned", pa.timestamp("us", "UTC")),
        pa.field("text", pa.string()),
        pa.field("few", pa.dictionary(pa.int32(), pa.string())),
        pa.field("raw", pa.binary()),
        pa.field("list", pa.list_(pa.int64())),
        pa.field("row", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])),
    ]
)


def drawn(chance: random.Random, at: int) -> dict[str, Any]:
    """Return a row; one value in ten is null."""
    moment = dt.datetime(1960, 1, 1, tzinfo=UTC) + dt.timedelta(
        microseconds=chance.randrange(1 << 51)
    )
    row = {
        "flag": chance.random() < 0.5,
        "i8": chance.randrange(-128, 128),
        "i64": chance.randrange(-(1 << 63), 1 << 63),
        "f32": float(chance.randrange(1 << 20)),
        "f64": chance.random(),
        "money": Decimal(chance.randrange(-(10**12) + 1, 10**12)).scaleb(-2),
        "wide": Decimal(chance.randrange(10**38)).scaleb(-6),
        "day": dt.date(1970, 1, 1) + dt.timedelta(days=chance.randrange(-9000, 30000)),
        "us": moment.replace(tzinfo=None),
        "zoned": moment,
        "text": "é" * chance.randrange(40),
        "few": chance.choice(["red", "green", "blue"]),
        "raw": chance.randbytes(chance.randrange(12)),
        "list": [chance.choice([None, at]) for _ in range(chance.randrange(4))],
        "row": {"a": chance.choice([None, at]), "b": "x" * chance.randrange(3)},
    }
    return {name: None if chance.random() < 0.1 else value for name, value in row.items()}


def made(folder: Path, table: Callable[[Path, pa.Schema], Table]) -> tuple[Table, str, pa.Table]:
    """Compact random rows; return the table, the output's path and what it must hold."""
    chance = random.Random(3)
    paths, everything = [], []
    for number in range(FILES):
        rows = [
            {"k": f"key-{at:05}", "n": at % 7, "v": number, **drawn(chance, at)}
            for at in range(number, ROWS, FILES)
        ]
        paths.append(f"{number}.parquet")
        written = pa.Table.from_pylist(rows, SCHEMA)
        write_file(folder, paths[-1], written, row_group_size=300)
        everything += rows
    described = table(folder, SCHEMA)
    result = rewrite(
        local_session(), assignment_over(described, paths), lambda _: None, lambda: False
    )
    (output,) = result.outputs
    plain = pa.schema([f if f.name != "few" else pa.field("few", pa.string()) for f in SCHEMA])
    wanted = pa.Table.from_pylist(sorted(everything, key=lambda row: row["k"]), plain)
    return described, str(folder / output.path), wanted


def by_pyarrow(path: str) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


def by_polars(path: str) -> list[dict[str, Any]]:
    return pl.read_parquet(path).to_dicts()


def by_duckdb(path: str) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.read_parquet(path).to_arrow_table().to_pylist()


def by_spark(path: str) -> list[dict[str, Any]]:
    spark = local_session().newSession()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return [row.asDict(recursive=True) for row in spark.read.parquet(path).collect()]


def alike(value: Any) -> Any:
    """Return a value as every reader can give it: moments in UTC without a zone."""
    match value:
        case dt.datetime(tzinfo=dt.tzinfo()):
            return value.astimezone(UTC).replace(tzinfo=None)
        case bytearray():
            return bytes(value)
        case dict():
            return {name: alike(each) for name, each in value.items()}
        case _:
            return value


def same(found: Sequence[dict[str, Any]], wanted: Sequence[dict[str, Any]]) -> None:
    rows = sorted(({n: alike(x) for n, x in row.items()} for row in found), key=lambda r: r["k"])
    assert len(rows) == len(wanted)
    for one, other in zip(rows, wanted, strict=True):
        assert one == {name: alike(value) for name, value in other.items()}


@pytest.fixture(scope="module", params=["keyed", "append-only"])
def output(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[str, pa.Table]:
    folder = tmp_path_factory.mktemp(request.param)
    columns: dict[str, Any] = {"tombstone_column": None, "time_column": None}

    def keyed(place: Path, schema: pa.Schema) -> Table:
        return keyed_table(place, schema, key=("k", "n"), **columns)

    def bag(place: Path, schema: pa.Schema) -> Table:
        return bag_table(place, schema, **columns)

    _, path, wanted = made(folder, keyed if request.param == "keyed" else bag)
    return path, wanted


@pytest.mark.parametrize("read", [by_pyarrow, by_polars, by_duckdb])
def test_engines_read_the_same_rows(output: tuple[str, pa.Table], read: READ) -> None:
    path, wanted = output
    same(read(path), wanted.to_pylist())


def test_spark_reads_the_same_rows(
    output: tuple[str, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, wanted = output
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "UTC")  # PySpark gives moments in the machine's zone.
        time.tzset()
        same(by_spark(path), wanted.to_pylist())
    time.tzset()


def test_readers_that_split_files_count_the_same_rows(output: tuple[str, pa.Table]) -> None:
    path, wanted = output
    check_counts([Path(path)], wanted.num_rows)


def test_statistics_and_page_index_are_there_and_right(output: tuple[str, pa.Table]) -> None:
    path, wanted = output
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(at) for at in range(file.num_row_groups)]
        keys = [group.column(0) for group in groups]
        assert all(chunk.has_offset_index and chunk.has_column_index for chunk in keys)
        assert min(chunk.statistics.min for chunk in keys) == wanted["k"][0].as_py()
        assert max(chunk.statistics.max for chunk in keys) == wanted["k"][-1].as_py()
    found = pl.scan_parquet(path).filter(pl.col("k") == "key-00017").collect()
    assert found.height == 1


@pytest.mark.parametrize("read", [by_pyarrow, by_polars, by_duckdb, by_spark])
def test_columns_that_several_threads_encoded_are_read_alike(
    output: tuple[str, pa.Table], read: READ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, wanted = output
    path = tmp_path / "beside.parquet"
    with monkeypatch.context() as patched:
        patched.setattr(outputs, "PARALLEL_BYTES_MIN", 0)
        patched.setattr(parallel_column_writer, "UNIT_BYTES", 1)
        patched.setenv("TZ", "UTC")
        time.tzset()
        with path.open("xb") as sink:
            groups = RowGroupWriter(sink, wanted.schema, OutputSettings("zstd", 1, 100_000), ("k",))
            groups.write(wanted)
            groups.close({})
        assert pq.read_metadata(path).created_by.startswith("neve ")
        same(read(str(path)), wanted.to_pylist())
    time.tzset()
