"""Types as text and back, schemas united by name, rows brought into the table's schema."""

import datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from common.errors import RequestError
from common.model.table import Column
from common.rows.conform import conform, refuse_nulls, widen_as_logged
from common.rows.schema import (
    arrow_schema,
    columns_of,
    require_readable,
    type_from_text,
    type_to_text,
    unite_schemas,
)


def test_a_schema_is_described_by_columns_and_made_of_them() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.large_string())])
    columns = columns_of(schema)
    assert columns == (Column("a", "int64", nullable=False), Column("b", "string"))
    assert columns_of(arrow_schema(columns)) == columns
    assert columns_of(arrow_schema([Column("a", "date")])) == (Column("a", "date"),)


@pytest.mark.parametrize(
    ("first", "second", "united"),
    [
        ("int8", "int64", "int64"),
        ("uint8", "uint64", "uint64"),
        ("uint8", "int8", "int16"),
        ("uint32", "int64", "int64"),
        ("float16", "double", "double"),
        ("decimal(10, 2)", "decimal(8, 4)", "decimal(12, 4)"),
        ("decimal(40, 2)", "decimal(8, 4)", "decimal(42, 4)"),
        ("time[s]", "time[ns]", "time[ns]"),
        ("timestamp[ms]", "timestamp[us]", "timestamp[us]"),
        ("timestamp[us, UTC]", "timestamp[s, Europe/Berlin]", "timestamp[us, UTC]"),
        (
            "timestamp[us, Europe/Berlin]",
            "timestamp[s, Europe/Berlin]",
            "timestamp[us, Europe/Berlin]",
        ),
        ("duration[s]", "duration[us]", "duration[us]"),
        ("binary[3]", "binary[4]", "binary"),
        ("null", "list<int8>", "list<int8>"),
        ("list<int8 not null>", "list<int16>", "list<int16>"),
        ("map<string, int8>", "map<string, int64>", "map<string, int64>"),
        (
            "struct<a: int8 not null, b: bool>",
            "struct<c: date, a: int16 not null>",
            "struct<a: int16 not null, b: bool, c: date>",
        ),
    ],
)
def test_schemas_unite_to_the_wider_type(first: str, second: str, united: str) -> None:
    for one, other in ((first, second), (second, first)):
        schemas = [
            ("a", arrow_schema([Column("x", one)])),
            ("b", arrow_schema([Column("x", other)])),
        ]
        found = unite_schemas(schemas).field("x").type
        assert (
            type_to_text(found) == united
            or found.num_fields == type_from_text(united).num_fields == 3
        )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("int32", "double"),
        ("uint64", "int64"),
        ("uint64", "int8"),
        ("string", "binary"),
        ("date", "timestamp[us]"),
        ("timestamp[us]", "timestamp[us, UTC]"),
        ("decimal(38, 0)", "decimal(38, 2)"),
        ("int64", "decimal(20, 0)"),
        ("bool", "int8"),
        ("list<int8>", "list<string>"),
        ("map<string, int8>", "map<date, int8>"),
        ("struct<a: int8>", "struct<a: string>"),
        ("list<int8>", "int8"),
    ],
)
def test_other_types_are_refused_with_both_files_and_types(first: str, second: str) -> None:
    schemas = [
        ("file a", arrow_schema([Column("x", first)])),
        ("file b", arrow_schema([Column("x", second)])),
    ]
    with pytest.raises(RequestError) as refused:
        unite_schemas(schemas)
    message = str(refused.value)
    assert all(word in message for word in ("column x", "file a", "file b", first, second))
    with pytest.raises(RequestError, match="file a"):
        require_readable("file a", schemas[0][1], schemas[1][1])


def test_narrowing_is_refused() -> None:
    wide, narrow = arrow_schema([Column("x", "int64")]), arrow_schema([Column("x", "int32")])
    require_readable("file a", narrow, wide)
    with pytest.raises(RequestError, match="column x is int64 in file a, but int32"):
        require_readable("file a", wide, narrow)


def test_columns_meet_by_name_and_missing_ones_are_null() -> None:
    first = arrow_schema(
        [Column("a", "int8", nullable=False), Column("b", "string", nullable=False)]
    )
    second = arrow_schema(
        [Column("c", "date", nullable=False), Column("a", "int16", nullable=False)]
    )
    third = arrow_schema(
        [Column("a", "int8", nullable=False), Column("b", "string", nullable=False)]
    )
    assert columns_of(unite_schemas([("1", first), ("2", second), ("3", third)])) == (
        Column("a", "int16", nullable=False),
        Column("b", "string"),
        Column("c", "date"),
    )


def test_a_name_that_comes_twice_is_refused() -> None:
    twice = pa.schema([("a", pa.int8()), ("a", pa.int8())])
    with pytest.raises(RequestError, match="file b has the columns a more than once"):
        unite_schemas([("file b", twice)])


TABLE_SCHEMA = arrow_schema(
    [
        Column("d", "decimal(12, 4)"),
        Column("s", "struct<a: int64, b: string>"),
        Column("l", "list<double>"),
        Column("i", "int64", nullable=False),
        Column("t", "timestamp[ns]"),
    ]
)


def test_rows_are_widened_into_the_table_s_schema() -> None:
    rows = pa.table(
        {
            "i": pa.array([1, 2], pa.int8()),
            "d": pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
            "s": pa.array([{"b": "x"}, None], pa.struct([("b", pa.string_view())])),
            "l": pa.array([[1.5], None], pa.list_view(pa.float32())),
        }
    )
    found = conform(rows, TABLE_SCHEMA)
    assert found.schema.equals(TABLE_SCHEMA)
    assert found.to_pylist() == [
        {"d": Decimal("1.5000"), "s": {"a": None, "b": "x"}, "l": [1.5], "i": 1, "t": None},
        {"d": None, "s": None, "l": None, "i": 2, "t": None},
    ]
    assert conform(found, TABLE_SCHEMA) is found


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (pa.table({"d": pa.nulls(1)}), ["f", "lacks", "i"]),
        (pa.table({"i": [1], "x": [1], "y": [2]}), ["f", "x, y", "does not have"]),
        (
            pa.table({"i": [1], "t": pa.array([2**62], pa.timestamp("s"))}),
            ["t", "f", "timestamp[ns]"],
        ),
        (pa.table({"i": ["1"]}), ["i", "f", "string", "int64"]),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: pa.Table, words: list[str]) -> None:
    with pytest.raises(RequestError) as refused:
        conform(rows, TABLE_SCHEMA, "f")
    assert not [word for word in words if word not in str(refused.value)]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"x" * 16], pa.uuid()),
        pa.array([b"x" * 16]).dictionary_encode(),
        pc.run_end_encode(pa.array([b"x" * 16])),
        pa.array([b"x" * 16], pa.binary_view()),
    ],
)
def test_extension_types_are_read_as_their_storage(column: pa.Array) -> None:
    rows = pa.table({"u": column})
    assert conform(rows, arrow_schema([Column("u", "binary")])).to_pylist() == [{"u": b"x" * 16}]


STRICT = pa.field("x", pa.int64(), nullable=False)
MANY = pa.array([[("a", 1)], [("a", None)]], pa.map_(pa.string(), pa.int64()))


def lying(arrow: pa.DataType, values: pa.Array, child: pa.Array) -> pa.Array:
    """Return values of a type that says that they hold no null."""
    buffers = values.buffers()[: 1 if pa.types.is_struct(arrow) else 2]
    return pa.Array.from_buffers(arrow, len(values), buffers, children=[child])


INSIDE = pa.array([{"x": 1}, {"x": None}, None], pa.struct([("x", pa.int64())]))
LISTS = pa.array([[1], None, [None]], pa.list_(pa.int64()))
ITEM = pa.field("value", pa.int64(), nullable=False)
NULLS = {
    "c": (pa.array([1, None]), STRICT.with_name("c")),
    "c.x": (
        lying(pa.struct([STRICT]), INSIDE, INSIDE.field(0)),
        pa.field("c", pa.struct([STRICT])),
    ),
    "c.element": (
        lying(pa.list_(STRICT.with_name("element")), LISTS, LISTS.values),
        pa.field("c", pa.list_(STRICT.with_name("element"))),
    ),
    "c.value": (
        lying(
            pa.map_(pa.string(), ITEM),
            MANY,
            pa.StructArray.from_arrays(
                [MANY.keys, MANY.items], fields=[pa.field("key", pa.string(), nullable=False), ITEM]
            ),
        ),
        pa.field("c", pa.map_(pa.string(), ITEM)),
    ),
}


@pytest.mark.parametrize("place", [*NULLS])
def test_nulls_are_refused_where_the_schema_allows_none(place: str) -> None:
    values, field = NULLS[place]
    rows = pa.table([values], schema=pa.schema([field]))
    with pytest.raises(RequestError, match=f"column {place} of file f holds nulls"):
        refuse_nulls(rows, "file f")
    refuse_nulls(rows.slice(0, 1), "file f")
    free = pa.table([pa.array([1, None])], names=["c"])
    refuse_nulls(free, "file f")


def test_a_table_in_seconds_of_an_earlier_release_is_read() -> None:
    """Creation kept the type, but Parquet has no seconds."""
    table = arrow_schema([Column("at", "timestamp[s]"), Column("time", "time[s]")])
    found = pa.table(
        [pa.array([1000], pa.timestamp("ms")), pa.array([2000], pa.time32("ms"))],
        names=["at", "time"],
    )

    assert conform(found, table).schema == table


# ------------------------------------------------------------------------------ Widened by the log


def test_a_log_may_widen_values_in_a_map_to_another_kind_but_a_native_table_may_not() -> None:
    narrow = pa.map_(pa.int8(), pa.struct([("x", pa.date32()), ("y", pa.string())]))
    inner = pa.struct([("x", pa.timestamp("us")), ("y", pa.string()), ("z", pa.int64())])
    schema = pa.schema([("m", pa.map_(pa.decimal128(5, 1), inner)), ("n", pa.int64())])
    day = datetime.date(2026, 1, 2)
    table = pa.table({"m": pa.array([[(1, {"x": day, "y": "a"})], None], narrow), "other": [1, 2]})

    with pytest.raises(RequestError, match="neither can be widened"):
        conform(table.select(["m"]), schema)
    wide = widen_as_logged(table, schema, "file a")
    assert wide["other"] == table["other"]
    value = {"x": datetime.datetime.fromisoformat("2026-01-02"), "y": "a", "z": None}
    rows = conform(wide.select(["m"]), schema).to_pydict()
    assert rows == {"m": [[(Decimal("1.0"), value)], None], "n": [None, None]}
