"""What the client takes and is: rows of many kinds, plug-ins as texts, partitions, its release."""

from __future__ import annotations

import importlib.resources
import inspect
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import neve
from neve.api.requests import Plugin
from neve.client import Client
from neve.client.errors import CallerError
from tests.support.gateway import Gateway, serving
from tests.support.shell import Shell

SCHEMA = pa.schema(
    [
        ("year", pa.int32()),
        ("month", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(9, 2)),
        ("tags", pa.list_(pa.string())),
    ]
)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture
def client(gateway: Gateway, tmp_path: Path) -> Iterator[Client]:
    with gateway.client() as made:
        place = str(tmp_path / "sales")
        made.create_table("sales", place, schema=SCHEMA, partition_by=["year", "month"])
        yield made
        made.drop("sales")


def row(month: int, price: str = "1.50") -> dict[str, Any]:
    moment = datetime(2025, month, 1, tzinfo=UTC)
    return {"year": 2025, "month": month, "at": moment, "price": Decimal(price), "tags": ["a"]}


class OneBatch:
    """Has nothing but the interface for one batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._batch.__arrow_c_array__(requested_schema)


def test_rows_of_every_kind_are_taken(client: Client) -> None:
    table = pa.Table.from_pylist([row(1)], SCHEMA)
    kinds = [
        table,
        table.to_batches()[0],
        table.to_batches(),
        table.to_reader(),
        OneBatch(table.to_batches()[0]),
        pl.from_arrow(table.select(["year", "month", "at"])),
        [row(1), {"year": 2025, "month": 1}],
        [{"year": 2025, "month": 1, "price": None}],
    ]
    for kind in kinds:
        assert client.append("sales", kind).rows >= 1, type(kind)
    assert client.count("sales") == len(kinds) + 1
    assert client.scan("sales").column("tags").to_pylist().count(["a"]) == 6
    with pytest.raises(CallerError, match=r"the rows do not fit the table: .*soon"):
        client.append("sales", [{"year": "soon"}])
    with pytest.raises(CallerError, match="contains column 'jahr'"):
        client.append("sales", [{"jahr": 2025, "month": 1}])


def test_partitions_are_scanned_by_their_values(client: Client) -> None:
    client.append("sales", [row(month) for month in (3, 4, 5)])

    def months(**span: str) -> list[int]:
        return sorted(client.scan("sales", ["month"], **span).column("month").to_pylist())

    assert months(start="2025,4") == [4, 5]
    assert months(start="2025,4", end="2025,4") == [4]
    assert months(end="2025,3") == [3]
    assert months(start="2025") == [3, 4, 5]
    assert client.count("sales", start="2025,4") == 2
    with pytest.raises(CallerError, match="cannot be read as int"):
        months(start="soon")


def test_a_plug_in_may_be_written_as_on_the_command_line(client: Client) -> None:
    client.append("sales", [row(1)])
    for written in ("size:smaller_than=1GB", ("size", {"smaller_than": "1GB"})):
        asked = client.compact("sales", selector=written).status()
        assert asked.selector == Plugin(name="size", options={"smaller_than": "1GB"})
    with pytest.raises(CallerError, match="option of selector size 'x' is not of the form name="):
        client.compact("sales", selector="size:x")
    with pytest.raises(CallerError, match="has no name, expected NAME"):
        client.dry_run("sales", selector=":x=1")


def test_an_id_may_be_made_before_the_call(client: Client) -> None:
    call = neve.new_call_id()
    assert not client.append("sales", [row(1)], call=call).repeated
    assert client.append("sales", [row(1)], call=call).repeated
    assert client.count("sales") == 1


def test_no_method_hides_its_arguments() -> None:
    methods = inspect.getmembers(Client, inspect.isfunction)
    open_ended = [
        name
        for name, method in methods
        if not name.startswith("_")
        and any(
            each.kind is each.VAR_KEYWORD for each in inspect.signature(method).parameters.values()
        )
    ]
    assert open_ended == []


def test_the_package_tells_its_release(tmp_path: Path) -> None:
    assert neve.__version__ == version("neve")
    Shell(tmp_path).run("--version", says=f"neve {neve.__version__}")
    assert importlib.resources.files("neve").joinpath("py.typed").is_file()
