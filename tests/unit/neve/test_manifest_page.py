"""What the page on manifests tells other engines to do, done: the page's own code is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.runtime import RandomIds
from coordinator.storage.manifests import ManifestPublisher
from tests.support.gateway import Gateway, serving

PAGE = (Path(__file__).parents[3] / "docs/reference/manifest.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SQL = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


def publish(gateway: Gateway, name: str) -> None:
    manifests = ManifestPublisher(gateway.store, RandomIds(), 900.0, lambda *_, **__: None)
    assert gateway.ask(manifests.look(gateway.ask(gateway.store.table_named(name)))) is True


def run(folder: Path, engine: str) -> dict[str, Any]:
    """Run the block that reads the pointer, and the one of an engine; return their names."""
    names: dict[str, Any] = {}
    block = next(each for each in BLOCKS if f"import {engine}" in each)
    for text in (BLOCKS[0], block):
        exec(text.replace("/data/events", str(folder)), names)  # noqa: S102, RUF100 - our own page
    return names


def test_the_pages_code_reads_a_partitioned_table(gateway: Gateway, tmp_path: Path) -> None:
    for day, ids in ((31, [1, 2]), (30, [3])):
        (tmp_path / f"day=2024-01-{day}").mkdir()
        rows = pa.table({"id": pa.array(ids, pa.int64())})
        pq.write_table(rows, tmp_path / f"day=2024-01-{day}/a.parquet")
    with gateway.client() as client:
        client.import_table(str(tmp_path), "events")
        more = pa.table({"id": [4], "day": [date(2024, 1, 30)]})
        client.append("events", more)
    publish(gateway, "events")
    wanted = [(1, date(2024, 1, 31)), (2, date(2024, 1, 31)), (3, date(2024, 1, 30))]
    wanted.append((4, date(2024, 1, 30)))

    polars = run(tmp_path, "polars")["frame"].select("id", "day").collect()
    assert sorted(polars.rows()) == wanted
    duck = run(tmp_path, "duckdb")["frame"].select("id, day").fetchall()
    assert sorted(duck) == wanted
    arrow = run(tmp_path, "pyarrow as pa")["table"].select(["id", "day"]).to_pylist()
    assert sorted((row["id"], row["day"]) for row in arrow) == wanted


def test_the_pages_query_merges_a_keyed_table(gateway: Gateway, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("changed", pa.int64()), ("deleted", pa.bool_())])
    with gateway.client() as client:
        client.create_table(
            "events", str(tmp_path), schema=schema, key=["id"], version_column="changed",
            tombstone_column="deleted",
        )  # fmt: skip
        for changed, ids, gone in ((1, [1, 2, 3], None), (2, [2, 3], False), (3, [3], True)):
            columns = {"id": ids, "changed": [changed] * len(ids), "deleted": [gone] * len(ids)}
            client.append("events", pa.table(columns, schema=schema))
        visible = client.scan("events").to_pylist()
        assert client.manifest("events")["totals"]["merge"] is True
    publish(gateway, "events")
    rows = run(tmp_path, "duckdb")["frame"].arrow()
    with duckdb.connect() as duck:
        duck.register("rows", rows)
        found = duck.execute(SQL[0]).fetchall()
    assert sorted(found) == sorted(tuple(row.values()) for row in visible)
    assert len(found) == 2
