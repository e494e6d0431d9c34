"""Tables that publish a Delta log, as users of the service see them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from rich.console import Console

from common.parquet.foreign_formats import LOG_FOLDER, foreign_mark
from common.parquet.location import open_location
from common.runtime import RandomIds
from coordinator.context import TableFaults
from coordinator.storage.manifests import ManifestPublisher, PublishedLogs
from neve.cli.render import render_table
from neve.client.errors import CallerError
from tests.support.gateway import Gateway, serving
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


def test_what_a_log_cannot_state_is_refused(gateway: Gateway, tmp_path: Path) -> None:
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
                    f"refused{number}",
                    str(tmp_path / str(number)),
                    schema=schema,
                    key=key,
                    partition_by=partitions,
                    settings={"publish": "delta"},
                )
        client.create_table("plain", str(tmp_path / "p"), schema=ROWS.schema)
        with pytest.raises(CallerError, match="publish"):
            client.set("plain", {"publish": "hudi"})
        client.set("plain", {"publish": "delta"})
        with pytest.raises(CallerError, match="manifest_interval_s"):
            client.set("plain", {"manifest_interval_s": None})
        with pytest.raises(CallerError, match="u is uint8"):
            client.set("plain", add_columns={"u": "uint8"})
        client.set("plain", {"publish": "off", "manifest_interval_s": None})
