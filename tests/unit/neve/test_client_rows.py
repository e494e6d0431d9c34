"""What the client takes and is: rows of many kinds, plug-ins as texts, partitions, its release."""

from __future__ import annotations

import importlib.resources
import inspect
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import neve
from common.rows.schema import type_from_text
from neve.api import Plugin
from neve.client import Client
from neve.client.arrow import table_of, type_of
from neve.client.errors import CallerError
from tests.support.gateway import Gateway, serving
from tests.support.shell import Shell
from tests.unit.rows.test_types import TEXTS

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
    with pytest.raises(
        CallerError,
        match=r"row 1: the value 'soon' of column 'year' does not fit, expected int32: ",
    ):
        client.append("sales", [{"year": "soon"}])
    with pytest.raises(CallerError, match="contains column 'jahr'"):
        client.append("sales", [{"jahr": 2025, "month": 1}])


TYPES: list[tuple[str, Any]] = [
    ("bool", True),
    *((f"{sign}int{bits}", 7) for sign in ("", "u") for bits in (8, 16, 32, 64)),
    ("float16", 1.5),
    ("float", 1.5),
    ("double", 0.1),
    ("decimal(10, 2)", Decimal("1.50")),
    ("decimal(50, 3)", Decimal("-1.500")),
    ("string", "é"),
    ("binary", b"\0x"),
    ("binary[4]", b"abcd"),
    ("date", date(2025, 1, 2)),
    ("time[ms]", time(1, 2, 3, 4000)),
    ("time[us]", time(1, 2, 3, 4)),
    ("timestamp[us, UTC]", datetime(2025, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
    ("timestamp[ms, +05:30]", datetime(2025, 1, 2, tzinfo=UTC)),
    ("duration[ms]", timedelta(milliseconds=5)),
    ("list<string>", ["a", None]),
    ("list<list<int8 not null>>", [[1], []]),
    ("map<string, list<int8>>", [("a", [1]), ("b", None)]),
    ("map<int32, double not null>", [(1, 2.0)]),
    ("struct<a: int64 not null, b: string>", {"a": 1, "b": None}),
    (
        "struct<x: list<struct<y: date>>, z: bool not null>",
        {"x": [{"y": date(2025, 1, 2)}, {"y": None}], "z": False},
    ),
    ("list<map<string, struct<a: decimal(9, 2)>>>", [[("k", {"a": Decimal("0.50")})]]),
]


def test_dictionaries_are_taken_in_every_type(client: Client, tmp_path: Path) -> None:
    schema = pa.schema([(f"c{at}", type_from_text(text)) for at, (text, _) in enumerate(TYPES)])
    full = {f"c{at}": value for at, (_, value) in enumerate(TYPES)}
    client.create_table("kinds", str(tmp_path / "kinds"), schema=schema)

    client.append("kinds", [full, {"c0": None}, {}])

    found = client.scan("kinds")
    assert list(map(str, found.schema.types)) == list(map(str, schema.types))
    assert [row["c0"] for row in found.to_pylist()] == [True, None, None]
    assert found.to_pylist()[0] == full
    assert set(found.to_pylist()[1].values()) == {None}
    entries = [(f"c{at}", value) for at, (text, value) in enumerate(TYPES) if "map" in text[:4]]
    client.append("kinds", [{name: dict(value) for name, value in entries}])
    assert client.scan("kinds").to_pylist()[-1] | full == full | dict(entries)
    client.drop("kinds")


@pytest.mark.parametrize("text", [*(text for text, _ in TYPES), *TEXTS])
def test_the_client_reads_types_as_the_service_writes_them(text: str) -> None:
    assert type_of(text) == type_from_text(text)


def test_a_type_of_a_later_service_is_left_to_it() -> None:
    for text in ("list<", "geometry", "list<geometry>", "int64]", "map<int64>", "", "struct<a>"):
        assert type_of(text) is None, text


@pytest.mark.parametrize(
    ("text", "value", "cause"),
    [
        ("int64", "soon", "Could not convert 'soon'"),
        ("int64", 1.5, "1.5 is no whole number"),
        ("int64", Decimal("1.5"), "1.5 is no whole number"),
        ("int8", 300, "too large"),
        ("int64", 1 << 70, "too large"),
        ("string", "\ud800", "surrogates not allowed"),
        ("binary[4]", b"abc", "expected to be length 4"),
        ("decimal(9, 2)", Decimal("1.555"), "would cause data loss"),
        ("timestamp[s]", datetime(2025, 1, 1, 0, 0, 0, 5, tzinfo=UTC), "is finer than that"),
        ("date", datetime(2025, 1, 1, 1, tzinfo=UTC), "is finer than that"),
        ("time[ms]", time(0, 0, 0, 5), "is finer than that"),
        ("duration[s]", timedelta(milliseconds=5), "is finer than that"),
        ("list<int64>", 5, "was not a sequence"),
        ("list<int64>", [1, 1.5], "1.5 is no whole number"),
        ("struct<a: int64>", {"a": 1, "b": 2}, "it has no field 'b'"),
        ("list<struct<a: int64>>", [{"b": 2}], "it has no field 'b'"),
        ("map<string, int8>", {"a": 0.5}, "0.5 is no whole number"),
        ("struct<a: map<string, date>>", {"a": [("k", "x")]}, "cannot be converted to int"),
        ("null", 1, "Invalid null value"),
    ],
)
def test_a_value_that_does_not_fit_is_named(text: str, value: object, cause: str) -> None:
    with pytest.raises(CallerError) as refused:
        table_of([{}, {"a": 1, "c": None}, {"c": value}], {"a": "int64", "c": text})
    said = str(refused.value)
    assert said.startswith(f"row 3: the value {value!r} of column 'c' does not fit,")
    assert f"expected {text}: " in said
    assert cause in said


def test_rows_that_are_no_dictionaries_are_refused() -> None:
    for row in ([1], None, {1: 2}):
        with pytest.raises(CallerError, match=r"row 2 is .*, expected a dictionary"):
            table_of([{}, row], {})
    with pytest.raises(CallerError, match="column 'x' have no common type"):
        table_of([{"x": 1}, {"x": "a"}], {})


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
            parameter.kind is parameter.VAR_KEYWORD
            for parameter in inspect.signature(method).parameters.values()
        )
    ]
    assert open_ended == []


def test_the_package_tells_its_release(tmp_path: Path) -> None:
    assert neve.__version__ == version("neve")
    Shell(tmp_path).run("--version", says=f"neve {neve.__version__}")
    assert importlib.resources.files("neve").joinpath("py.typed").is_file()
