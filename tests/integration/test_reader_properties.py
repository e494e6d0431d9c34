"""Each cell of the table of readers in `docs/reference/files.md` is tried."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.support.reader_properties import (
    BY_RULE,
    PROPERTIES,
    READERS,
    YES,
    cell,
    counted_by_rules,
    counted_in_splits,
    found_by,
)
from tests.support.spark_session import local_session

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", PROPERTIES)
def test_each_reader_treats_each_property_as_the_table_says(
    tmp_path: Path, name: str, reader: str
) -> None:
    path = tmp_path / "f.parquet"
    tried = PROPERTIES[name]
    wanted = tried.write(path)
    assert tried.is_there(path)

    assert found_by(READERS[reader], path, wanted) == cell(name, reader)

    for probe in tried.probes:
        column, low, high = probe
        kept = pc.and_(pc.greater_equal(wanted[column], low), pc.less_equal(wanted[column], high))
        assert READERS[reader].count(str(path), probe) == (pc.sum(kept).as_py() or 0), probe


@pytest.mark.parametrize("name", [name for name in PROPERTIES if BY_RULE in PROPERTIES[name].cells])
def test_readers_that_split_files_find_every_row(tmp_path: Path, name: str) -> None:
    path = tmp_path / "f.parquet"
    wanted = PROPERTIES[name].write(path)
    assert cell(name, BY_RULE) == YES
    assert counted_by_rules(path) == counted_in_splits(path) == {wanted.num_rows}


@pytest.mark.parametrize("name", [name for name in PROPERTIES if "nanoseconds" in name])
def test_spark_reads_nanoseconds_as_numbers_if_it_is_told_to(tmp_path: Path, name: str) -> None:
    path = tmp_path / "f.parquet"
    wanted = PROPERTIES[name].write(path)
    spark = local_session().newSession()
    spark.conf.set("spark.sql.legacy.parquet.nanosAsLong", "true")

    found = [row["x"] for row in spark.read.parquet(str(path)).orderBy("k").collect()]

    assert found == wanted["x"].cast("int64").to_pylist()


def test_spark_reads_other_columns_of_a_file_that_it_refuses(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    wanted = PROPERTIES["times of day"].write(path)
    frame = local_session().newSession().read.schema("k bigint").parquet(str(path))
    assert sorted(row["k"] for row in frame.collect()) == wanted["k"].to_pylist()
