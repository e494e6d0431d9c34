"""Every reader sees every row of a table's files: those written now, and those of earlier releases.

Files here have several row groups, whose columns threads encode beside each other. What other
tables of this package hold is looked at by `LedgerTable.check_rows`.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.parquet.location import open_location
from tests.support.ledger import LedgerTable
from tests.support.misordered import write_misordered
from tests.support.patience import SERVICE_S
from tests.support.readers import check_counts, check_table, spark_count
from tests.support.sample_tables import lineitem, three_texts
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

ROWS = 100_000
MIB = 1024**2
SOON = {"manifest_interval_s": "1s", "row_group_bytes": "8MB"}


def make(service: Service, stem: str, schema: pa.Schema, key: list[str] | None) -> tuple[str, Path]:
    """Create a table; return its name and folder."""
    name = f"{stem}-{secrets.token_hex(3)}"
    folder = service.folder / name
    folder.mkdir()
    more = {"key": key, "version_column": "v"} if key else {}
    service.client.create_table(name, folder.as_uri(), schema=schema, settings=SOON, **more)
    return name, folder


def files(service: Service, name: str, folder: Path) -> list[Path]:
    return [folder / file.path for file in service.client.files(name)]


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(["id"], id="keyed", marks=pytest.mark.long),
        pytest.param(None, id="append-only"),
    ],
)
def test_two_appends_of_interleaved_rows(service: Service, key: list[str] | None) -> None:
    client = service.client
    name, folder = make(service, "texts", three_texts(range(1)).schema, key)
    for first in range(2):
        client.append(name, three_texts(range(first, 2 * ROWS, 2)))
    check_table(client, name, open_location(folder.as_uri()))

    assert client.compact(name).wait(timeout_s=SERVICE_S).state == "done"

    (output,) = files(service, name, folder)
    assert client.count(name) == 2 * ROWS
    assert pq.read_metadata(output).num_row_groups > 1
    check_counts([output], 2 * ROWS)


@pytest.mark.long
def test_interleaved_appends_of_lineitem_are_merged_in_row_groups(service: Service) -> None:
    client = service.client
    key = ["l_orderkey", "l_linenumber"]
    name, folder = make(service, "lineitem", lineitem(range(1)).schema, key)
    for first in (0, 30_000, 15_000):
        client.append(name, lineitem(range(first, first + 30_000)))

    assert client.compact(name).wait(timeout_s=SERVICE_S).state == "done"

    (output,) = files(service, name, folder)
    assert client.count(name) == 4 * 60_000
    assert pq.read_metadata(output).num_row_groups > 1
    check_counts([output], 4 * 60_000)


def test_a_file_of_an_earlier_release_is_found_and_rewritten(service: Service) -> None:
    """What an operator does: fsck, then a compaction of what fsck has tagged."""
    client = service.client
    name, folder = make(service, "old", three_texts(range(1)).schema, ["id"])
    client.pause(name)
    write_misordered(folder / "old.parquet", three_texts(range(ROWS)), row_group_size=ROWS // 4)
    client.append(name, three_texts(range(ROWS, 2 * ROWS)))
    client.add_files(name, ["old.parquet"])
    names = [str(path) for path in files(service, name, folder)]
    assert spark_count(names, 128 * MIB) < client.count(name) == 2 * ROWS

    found = client.fsck(name, deep=True)
    assert [(finding.code, finding.path) for finding in found.findings] == [
        ("layout", "old.parquet")
    ]
    assert not found.sound
    assert client.fsck(name, repair=True).sound is False
    client.resume(name)
    request = client.compact(name, selector="layout").wait(timeout_s=SERVICE_S)
    assert request.state == "done"

    left = files(service, name, folder)
    assert folder / "old.parquet" not in left
    assert client.fsck(name, deep=True).sound
    check_counts(left, 2 * ROWS)


@pytest.mark.long
def test_a_table_may_have_such_files_rewritten_by_itself(service: Service) -> None:
    client = service.client
    name, folder = make(service, "auto", three_texts(range(1)).schema, None)
    client.set(name, {"selector": "layout"})
    write_misordered(folder / "old.parquet", three_texts(range(ROWS)), row_group_size=ROWS // 4)
    client.add_files(name, ["old.parquet"])

    service.wait("rewrite", lambda: folder / "old.parquet" not in files(service, name, folder))

    check_counts(files(service, name, folder), ROWS)
    assert client.fsck(name, deep=True).sound


def test_ledgers_of_tables_are_held_against_every_reader(service: Service) -> None:
    """The check that other tests rely on notices what it is there for."""
    table = LedgerTable(service.client, service.folder, keyed=False, paused=True, stem="seen")
    rows = table_rows()
    write_misordered(table.location / "old.parquet", rows, row_group_size=ROWS // 4)
    service.client.add_files(table.name, ["old.parquet"])
    table.note(rows)

    with pytest.raises(AssertionError, match=rf"{ROWS} rows, but .*Spark"):
        table.check_rows()


def table_rows() -> pa.Table:
    texts = three_texts(range(ROWS))["a"]
    return pa.table({"n": pa.array(range(ROWS), pa.int64()), "text": texts})
