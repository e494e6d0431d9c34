"""`scan --start 2025,4` of a table by year and month reads that partition on, keyed or not."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.model.table import Column, Table
from neve.gateway.rows.scan import scan_options
from tests.support.gateway import TOKEN, Gateway, serving
from tests.support.shell import Shell

MONTHS = [(2024, 4), (2024, 12), (2025, 3), (2025, 4), (2025, 10), (2026, 1)]
KEYS = {"none": "", "first": "year,month,id", "last": "id,year,month", "turned": "month,year,id"}
ROWS = pa.Table.from_pylist(
    [{"year": y, "month": m, "id": n, "v": 1} for y, m in MONTHS for n in (1, 2)]
)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture(scope="module", params=KEYS.values(), ids=KEYS)
def neve(
    request: pytest.FixtureRequest, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shell]:
    """A shell beside a table that is only read, so that one of each key serves all tests."""
    tmp_path = tmp_path_factory.mktemp("sales")
    shell = Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    keyed = ["--key", request.param, "--version", "v"] if request.param else []
    schema = "year:int64,month:int64,id:int64,v:int64"
    words = ["--location", str(tmp_path / "sales"), "--partition-by", "year,month", *keyed]
    shell.run("table", "create", "sales", "--schema", schema, *words)
    shell.run("append", "sales", str(tmp_path / "rows.parquet"))
    yield shell
    shell.run("table", "drop", "sales", "--yes")


@pytest.mark.parametrize(
    ("span", "seen"),
    [
        ([], MONTHS),
        (["--start", "2025,4"], MONTHS[3:]),
        (["--start", "2025,4", "--end", "2025,4"], MONTHS[3:4]),
        (["--end", "2025,3"], MONTHS[:3]),
        (["--start", "2025", "--end", "2025"], MONTHS[2:5]),
        (["--start", "2025,5", "--end", "+inf"], MONTHS[4:]),
        (["--start", "2027"], []),
    ],
)
def test_a_range_of_partitions_is_scanned_and_counted(
    neve: Shell, span: list[str], seen: list[tuple[int, int]]
) -> None:
    rows = neve.json("scan", "sales", "--limit", "0", *span)

    assert sorted((row["year"], row["month"]) for row in rows) == sorted(2 * seen)
    assert neve.json("scan", "sales", "--count", *span) == {"rows": 2 * len(seen)}


def test_more_of_a_key_may_follow_if_it_begins_with_the_partition(neve: Shell) -> None:
    keyed_first = neve.json("table", "describe", "sales")["key"][:2] == ["year", "month"]
    span = ["--start", "2025,4,2", "--end", "2025,10,1"]

    if keyed_first:
        rows = neve.json("scan", "sales", *span)
        assert [(row["month"], row["id"]) for row in rows] == [(4, 2), (10, 1)]
    else:
        neve.run("scan", "sales", *span, code=2, says="has 3 values, but only 2 columns")


def test_other_partitions_are_not_looked_at() -> None:
    columns = tuple(Column(name, "int64") for name in ("year", "month", "id", "v"))
    table = Table(
        id="t",
        name="sales",
        location="file:///sales",
        schema=columns,
        key=("year", "month", "id"),
        version_column="v",
        partition_by=("year", "month"),
    )
    by_partition = scan_options(table, None, "2025,4", "2025,4").partitions
    assert by_partition is not None
    assert scan_options(table, None, "2025,4,2", "2025,4,9").partitions == by_partition
