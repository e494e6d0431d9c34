"""Tables that publish a Delta log or Iceberg metadata, as users of the service see them."""

from __future__ import annotations

import asyncio
import json
import math
import warnings
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable
from rich.console import Console

from common.parquet.foreign_formats import LOG_FOLDER, foreign_mark
from common.parquet.location import open_location
from common.runtime import RandomIds
from coordinator.context import TableFaults
from coordinator.storage.manifests import ManifestPublisher, PublishedLogs
from neve.cli.render import render_table
from neve.client.errors import CallerError
from tests.support.gateway import Gateway, serving
from tests.support.independent_reader import independent_reader
from tests.support.manifest_site import silent

pytestmark = pytest.mark.unit
ROWS = pa.table({"id": pa.array([1, 2, 3]), "name": ["a", "b", "c"]})


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


def publish(gateway: Gateway, name: str) -> None:
    """Let a coordinator that knows nothing publish a table."""
    store = gateway.store

    async def work() -> None:
        table = await store.table_named(name)
        assert table is not None
        logs = PublishedLogs(lambda _uri: {}, RandomIds(), 0.0, TableFaults(silent))
        manifests = ManifestPublisher(store, RandomIds(), 0.0, silent, logs=logs)
        while not await manifests.look(table):
            await asyncio.sleep(0.1)  # The next manifest is not due so far.

    gateway.ask(work())


def test_a_table_is_published_shown_dropped_and_made_again(
    gateway: Gateway, tmp_path: Path
) -> None:
    root = tmp_path / "events"
    with gateway.client() as client:
        client.create_table("events", str(root), schema=ROWS.schema)
        assert client.describe("events").published is None
        client.append("events", ROWS)
        client.set("events", {"publish": "delta"})
        shown = client.describe("events").published
        assert shown is not None
        assert (shown.text, shown.problem) == ("delta, no version so far", "")
        publish(gateway, "events")
        shown = client.describe("events").published
        assert shown is not None
        assert (shown.text, shown.files, shown.rows) == ("delta, version 0", 1, 3)
        console = Console(width=200)
        with console.capture() as text:
            console.print(render_table(client.describe("events")))
        assert "delta, version 0, as of 20" in text.get()
        assert sorted(pl.read_delta(str(root)).rows()) == [(1, "a"), (2, "b"), (3, "c")]

        client.drop("events")
        assert not (root / LOG_FOLDER).exists()
        assert foreign_mark(open_location(root.as_uri())) is None
        client.create_table("again", str(root), schema=ROWS.schema, settings={"publish": "delta"})
        client.append("again", ROWS.slice(0, 1))
        publish(gateway, "again")
        assert pl.read_delta(str(root)).rows() == [(1, "a")]
        assert client.drop("again", delete_files=True).files_left > 0
        assert not (root / LOG_FOLDER).exists()


def test_iceberg_metadata_is_published_shown_dropped_and_made_again(
    gateway: Gateway, tmp_path: Path
) -> None:
    root = tmp_path / "ice"
    with gateway.client() as client:
        client.create_table("ice", str(root), schema=ROWS.schema, settings={"publish": "iceberg"})
        client.append("ice", ROWS)
        shown = client.describe("ice").published
        assert shown is not None
        assert (shown.text, shown.metadata) == ("iceberg, no version so far", "")
        publish(gateway, "ice")
        shown = client.describe("ice").published
        assert shown is not None
        assert (shown.text, shown.files, shown.rows) == ("iceberg, version 0", 1, 3)
        assert iceberg_rows(shown.metadata) == [(1, "a"), (2, "b"), (3, "c")]
        console = Console(width=200)
        with console.capture() as text:
            console.print(render_table(client.describe("ice")))
        assert shown.metadata in text.get()

        client.drop("ice")
        assert not (root / "metadata").exists()
        assert foreign_mark(open_location(root.as_uri())) is None
        client.create_table("ice2", str(root), schema=ROWS.schema, settings={"publish": "iceberg"})
        client.append("ice2", ROWS.slice(0, 1))
        publish(gateway, "ice2")
        assert iceberg_rows(str(root)) == [(1, "a")]
        assert client.drop("ice2", delete_files=True).files_left > 0
        assert not (root / "metadata").exists()


def iceberg_rows(uri: str) -> list[tuple[object, ...]]:
    rows = independent_reader().iceberg_rows(uri, *ROWS.schema.names)
    assert StaticTable.from_metadata(uri).scan().to_arrow().num_rows == rows.total()
    return sorted(rows.elements())


def test_values_of_every_type_are_read(gateway: Gateway, tmp_path: Path) -> None:
    root, moment = tmp_path / "typed", datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
    point = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.int32()))])
    columns: dict[str, tuple[pa.DataType, list[Any]]] = {
        "flag": (pa.bool_(), [True, None]),
        "tiny": (pa.int8(), [-128, 127]),
        "small": (pa.int16(), [-1, None]),
        "number": (pa.int32(), [2**31 - 1, 0]),
        "long": (pa.int64(), [2**63 - 1, None]),
        "half": (pa.float32(), [0.5, float("inf")]),
        "double": (pa.float64(), [math.nan, 1e300]),
        "money": (pa.decimal128(20, 3), [Decimal("-1.250"), Decimal("12345678901234567.123")]),
        "text ä.b": (pa.string(), ["x" * 5000, "é"]),
        "bytes": (pa.binary(), [b"\xff" * 20, b""]),
        "day": (pa.date32(), [date(1969, 12, 31), None]),
        "at": (pa.timestamp("us", "UTC"), [moment, None]),
        "plain": (pa.timestamp("ms"), [moment.replace(microsecond=789000, tzinfo=None), None]),
        "tags": (pa.list_(pa.string()), [["a", None], []]),
        "point": (point, [{"x": 1, "y": [2]}, None]),
        "pairs": (pa.map_(pa.string(), pa.int64()), [[("k", 1)], []]),
    }
    rows = pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})
    with gateway.client() as client:
        client.create_table("typed", str(root), schema=rows.schema, settings={"publish": "iceberg"})
        client.append("typed", rows)
        publish(gateway, "typed")
    read = StaticTable.from_metadata(str(root)).scan().to_arrow()
    assert str(read.to_pylist()) == str(rows.to_pylist())
    (file,) = map(str, (root / "_neve/append").rglob("*.parquet"))
    both = ("iceberg_scan($table)", "read_parquet($file)")
    for one, other in (both, both[::-1]):
        query = f"select count(*) from (from {one} except all from {other})"
        assert independent_reader().ask(query, {"table": str(root), "file": file}) == [[0]]
    with warnings.catch_warnings():  # Polars asks for a package for faster plans.
        warnings.simplefilter("ignore", pl.exceptions.PerformanceWarning)
        frame = pl.scan_iceberg(str(root)).collect()
    assert str(frame.to_dicts()) == str(pl.read_parquet(file).to_dicts())


def test_a_table_with_a_key_is_published_at_rest(gateway: Gateway, tmp_path: Path) -> None:
    root = tmp_path / "people"
    rows = ROWS.append_column("changed", pa.array([1, 1, 1]))
    with gateway.client() as client:
        client.create_table(
            "people",
            str(root),
            schema=rows.schema,
            key=["id"],
            version_column="changed",
            settings={"publish": "delta", "manifest_interval_s": 1},
        )
        client.append("people", rows)
        publish(gateway, "people")
        before = sorted(pl.read_delta(str(root)).rows())
        assert before == [(1, "a", 1), (2, "b", 1), (3, "c", 1)]
        client.append("people", rows.slice(0, 2))
        publish(gateway, "people")
        assert sorted(pl.read_delta(str(root)).rows()) == before
        shown = client.describe("people").published
        assert shown is not None
        assert (shown.text, shown.rows) == ("delta, version 1", 3)
        assert "1 of 1 tablet not at rest, such as last" in shown.lag
        console = Console(width=200)
        with console.capture() as text:
            console.print(render_table(client.describe("people")))
        assert "files share keys or have deleted rows; `neve compact people`" in text.get()


def test_a_problem_is_shown(gateway: Gateway, tmp_path: Path) -> None:
    root = tmp_path / "t"
    with gateway.client() as client:
        client.create_table("shown", str(root), schema=ROWS.schema, settings={"publish": "delta"})
        publish(gateway, "shown")
        note = {"tables": [client.describe("shown").id], "problem": "the storage is full"}
        (root / "_neve/published").write_text(json.dumps(note))
        shown = client.describe("shown").published
        assert shown is not None
        assert (shown.version, shown.problem) == (0, "the storage is full")


@pytest.mark.parametrize("format_name", ["delta", "iceberg"])
def test_what_a_log_cannot_state_is_refused(
    format_name: str, gateway: Gateway, tmp_path: Path
) -> None:
    with gateway.client() as client:
        for number, (schema, key, partitions, reason) in enumerate(
            [
                (pa.schema([("n", pa.uint32())]), [], [], "n is uint32"),
                (pa.schema([("t", pa.timestamp("ns"))]), [], [], r"timestamp\[ns\]"),
                (pa.schema([("Id", pa.int64()), ("id", pa.int64())]), [], [], "only in case"),
                (
                    pa.schema([("x", pa.float64()), ("a", pa.int64())]),
                    [],
                    ["x"],
                    "partitioned by x",
                ),
            ]
        ):
            with pytest.raises(CallerError, match=reason):
                client.create_table(
                    f"refused-{format_name}-{number}",
                    str(tmp_path / str(number)),
                    schema=schema,
                    key=key,
                    partition_by=partitions,
                    settings={"publish": format_name},
                )
        plain = f"plain-{format_name}"
        client.create_table(plain, str(tmp_path / "p"), schema=ROWS.schema)
        with pytest.raises(CallerError, match="publish"):
            client.set(plain, {"publish": "hudi"})
        client.set(plain, {"publish": format_name})
        with pytest.raises(CallerError, match="manifest_interval_s"):
            client.set(plain, {"manifest_interval_s": None})
        with pytest.raises(CallerError, match="u is uint8"):
            client.set(plain, add_columns={"u": "uint8"})
        client.set(plain, {"publish": "off", "manifest_interval_s": None})
