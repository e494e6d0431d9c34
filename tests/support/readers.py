"""Every reader at hand counts the rows of files: Spark with its own, DuckDB, Polars, pyarrow.

Spark splits files, in sizes from smaller than a row group to larger than a file. Of readers that
are not at hand (Trino, Hive, Impala) it is their rule that counts (`split_rules`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import polars as pl
import pyarrow.parquet as pq

from common.parquet.location import Location
from neve.client import Client
from tests.support.layouts import layout_of_file
from tests.support.spark_session import local_session
from tests.support.split_rules import RULES, rows_by_rule

MIB = 1024**2
SPLITS_BYTES = (MIB, 8 * MIB, 128 * MIB)
RULE_SPLITS_BYTES = (1 << 12, 1 << 16, *SPLITS_BYTES)
"""Rules cost little: of smaller splits, too, than a Spark job for each would be worth."""
LOOKS_MAX = 10
"""At a table whose files are being compacted."""


def counts_of(paths: Sequence[Path]) -> dict[str, int]:
    """Return how many rows each reader sees in files, by the reader's name."""
    names = [str(path) for path in paths]
    found = {
        "pyarrow": sum(pq.read_table(name).num_rows for name in names),
        "Polars": sum(pl.read_parquet(name).height for name in names),
        "DuckDB": duckdb_count(names),
    }
    found |= {f"Spark, splits of {size} bytes": spark_count(names, size) for size in SPLITS_BYTES}
    return found | {
        f"{reader}'s rule, splits of {size} bytes": sum(
            rows_by_rule(path, rule, size) for path in paths
        )
        for reader, rule in RULES.items()
        for size in RULE_SPLITS_BYTES
    }


def check_counts(paths: Sequence[Path], rows: int) -> None:
    """Assert that every reader sees all rows of files, and that nothing misleads another one."""
    assert paths, "no files"
    wrong = {reader: count for reader, count in counts_of(paths).items() if count != rows}
    assert not wrong, f"{rows} rows, but {wrong}"
    faults = {str(path): fault for path in paths if (fault := layout_of_file(path).fault)}
    assert not faults, faults


def check_table(client: Client, name: str, location: Location) -> None:
    """Assert that every reader sees all rows of a table's files, if one has several row groups.

    Files may come and go meanwhile: what is looked at are those of one moment.
    """
    for _ in range(LOOKS_MAX):
        listed = client.files(name)
        try:
            with at_hand(location, [file.path for file in listed]) as paths:
                if any(len(layout_of_file(path).groups) > 1 for path in paths):
                    check_counts(paths, sum(file.rows for file in listed))
        except Exception:
            if {file.path for file in client.files(name)} == {file.path for file in listed}:
                raise
        else:
            return
    raise AssertionError(f"files of {name} came and went at each of {LOOKS_MAX} looks")


@contextmanager
def at_hand(location: Location, names: Sequence[str]) -> Iterator[list[Path]]:
    """Yield files on this machine's disk: Spark has no way into a bucket here."""
    if location.is_local:
        yield [Path(location.full(name)) for name in names]
        return
    with TemporaryDirectory(prefix="neve-readers-") as folder:
        for number, name in enumerate(names):
            with location.filesystem.open_input_file(location.full(name)) as source:
                Path(folder, f"{number}.parquet").write_bytes(source.read())
        yield [Path(folder, f"{number}.parquet") for number in range(len(names))]


def duckdb_count(names: Sequence[str]) -> int:
    """Return DuckDB's count of rows; it reads a column, not the footer alone."""
    with duckdb.connect() as connection:
        (found,) = connection.execute(
            "SELECT count(*) FROM (SELECT * FROM read_parquet(?))", [list(names)]
        ).fetchall()
    return int(found[0])


def spark_count(names: Sequence[str], split_bytes: int) -> int:
    """Return the count of Spark's own reader, with splits of about a size."""
    spark = local_session().newSession()
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(split_bytes))
    # Else Spark makes splits of 4 MB where smaller ones are asked for.
    spark.conf.set("spark.sql.files.openCostInBytes", "0")
    spark.conf.set("spark.sql.files.minPartitionNum", "1")
    return int(spark.read.parquet(*names).count())
