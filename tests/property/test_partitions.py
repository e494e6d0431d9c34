"""Partitions as text, path and key: what is written is read back, whatever the values are."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import RequestError
from common.model.key_values import EPOCH, plain_value
from common.model.table import Column, Table
from common.rows.key_encoding import (
    fill_of_path,
    filled,
    folders_of,
    partition_folder,
    partition_of,
    partition_of_path,
    partition_types,
    partition_values,
)
from common.rows.schema import arrow_schema

pytestmark = pytest.mark.property
COLUMNS = {
    "b": ("bool", st.booleans()),
    "i": ("int64", st.integers(-(2**63), 2**63 - 1)),
    "f": ("double", st.floats(allow_nan=False)),
    "m": ("decimal(38, 9)", st.decimals(-(10**20), 10**20, places=9)),
    "s": ("string", st.text(st.characters(exclude_categories=["Cs"]), max_size=20)),
    "d": ("date", st.dates()),
    "t": (
        "timestamp[us, UTC]",
        st.integers(-(10**15), 10**15).map(lambda us: EPOCH + timedelta(microseconds=us)),
    ),
}


def table_of(*names: str) -> Table:
    columns = (*(Column(name, COLUMNS[name][0]) for name in names), Column("x", "int64"))
    return Table(id="t", name="t", location="file:///t", schema=columns, partition_by=names)


@st.composite
def partitioned(draw: st.DrawFn) -> tuple[Table, list[object]]:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4, unique=True))
    return table_of(*names), [draw(st.none() | COLUMNS[name][1]) for name in names]


@settings(deadline=None)
@given(partitioned())
def test_a_partition_is_read_back_from_its_text_and_its_path(
    given_: tuple[Table, list[object]],
) -> None:
    table, values = given_
    types = partition_types(table)
    plain = [plain_value(value, kind) for value, kind in zip(values, types, strict=True)]
    written = partition_of(table, values)

    assert partition_of_path(table, f"{written.text}/a.parquet") == written
    assert partition_of_path(table, f"deep/er/{written.text}/more/a.parquet") == written
    assert list(partition_values(table, written.text).values()) == plain
    assert "//" not in written.text
    assert len(written.text.split("/")) == len(table.partition_by)
    assert all(0x20 <= ord(letter) < 0x7F for letter in written.text)


@settings(deadline=None)
@given(partitioned(), st.integers(0, 3))
def test_rows_get_what_their_folder_says(given_: tuple[Table, list[object]], count: int) -> None:
    table, values = given_
    schema = arrow_schema(table.schema)
    path = f"{partition_of(table, values).text}/a.parquet"
    fill = fill_of_path(table.partition_by, schema, path)
    bare = pa.table({"x": pa.array(range(count), pa.int64())})

    whole = filled(bare, fill)
    assert whole.num_rows == count
    for name, value in zip(table.partition_by, values, strict=True):
        assert whole.schema.field(name).type == schema.field(name).type
        found = whole.column(name).to_pylist()
        assert found == [value] * count
    nulls = {name: pa.nulls(count, schema.field(name).type) for name in table.partition_by}
    assert filled(pa.table({"x": bare["x"], **nulls}), fill).equals(whole)
    if count:  # Without rows the type of nulls stays, until rows are conformed.
        known = [
            n for n, value in zip(table.partition_by, values, strict=True) if value is not None
        ]
        untyped = filled(pa.table({"x": bare["x"], **dict.fromkeys(nulls, pa.nulls(count))}), fill)
        assert untyped.select(known).equals(whole.select(known))


def test_only_nulls_are_filled() -> None:
    table = table_of("i")
    fill = fill_of_path(("i",), arrow_schema(table.schema), "i=7/a.parquet")
    rows = pa.table({"i": pa.array([1, None, 3], pa.int32()).dictionary_encode()})
    assert filled(rows, fill)["i"].to_pylist() == [1, 7, 3]
    assert filled(rows, {}) is rows
    other = fill_of_path(("i",), arrow_schema(table.schema), "_neve/last/job-1.parquet")
    assert other == {}


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_path_is_read_or_refused(path: str) -> None:
    table = table_of("i", "d")
    try:
        found = partition_of_path(table, path)
    except RequestError:
        return
    assert partition_of_path(table, f"{found.text}/x") == found


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("i=1/i=2/a", "two folders of i"),
        ("i=1_000/a", "cannot be read as int"),
        ("i= 1/a", "cannot be read as int"),
        ("i=/a", "cannot be read as int"),
        ("i=99999999999999999999/a", "not of type int"),
    ],
)
def test_odd_folders_are_refused(path: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        partition_of_path(table_of("i"), path)


def test_a_value_that_its_column_cannot_hold_is_refused() -> None:
    schema = pa.schema([("i", pa.int8()), ("t", pa.timestamp("s")), ("m", pa.decimal128(5, 2))])
    for path in ("i=300/a", "t=2024-01-01T00:00:00.5/a", "m=1.234/a"):
        with pytest.raises(RequestError, match=r"folder value|higher precision than"):
            fill_of_path(tuple(schema.names), schema, path)
    fine = fill_of_path(("t", "m"), schema, "t=2024-01-01T00:00:05/m=1.5/a")
    found = [fine[name].as_py() for name in ("t", "m")]
    assert found == [
        datetime(2024, 1, 1, 0, 0, 5, tzinfo=UTC).replace(tzinfo=None),
        Decimal("1.50"),
    ]


def test_folders_say_what_hive_means() -> None:
    assert folders_of("a=x%2Fy/plain/b=__HIVE_DEFAULT_PARTITION__/=z/c=/f=1.parquet") == {
        "a": "x/y",
        "b": None,
        "c": "",
    }
    assert partition_folder("day=2024-01-31/land=a") == "day=2024-01-31/land=a/"
    assert partition_folder(None) == ""
    assert partition_folder("s=" + "x" * 254) == ""
    assert partition_of(table_of("d"), [date(2024, 1, 31)]).folder == "d=2024-01-31/"
