"""Column types as text and back; what Parquet stores alike has one text."""

import pyarrow as pa
import pytest

from common.errors import RequestError
from common.rows.schema import type_from_text, type_to_text

TEXTS = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float",
    "double",
    "decimal(10, 2)",
    "decimal(38, 38)",
    "decimal(50, 3)",
    "string",
    "binary",
    "binary[16]",
    "date",
    "time[ms]",
    "time[us]",
    "time[ns]",
    "timestamp[ns]",
    "timestamp[us, UTC]",
    "timestamp[ms, Europe/Berlin]",
    "timestamp[us, +05:30]",
    "duration[us]",
    "null",
    "list<int64>",
    "list<list<string not null>>",
    "map<string, list<int8>>",
    "map<int32, double not null>",
    "struct<>",
    'struct<a: int64 not null, "b c, d": list<struct<x: date>>, "q\\"": bool, é: string>',
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_type_s_text_is_read_back(text: str) -> None:
    assert type_to_text(type_from_text(text)) == text


@pytest.mark.parametrize(
    ("arrow", "text"),
    [
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.binary_view(), "binary"),
        (pa.date64(), "date"),
        (pa.dictionary(pa.int8(), pa.large_string()), "string"),
        (pa.run_end_encoded(pa.int32(), pa.int8()), "int8"),
        (pa.decimal32(5, 2), "decimal(5, 2)"),
        (pa.decimal256(5, 2), "decimal(5, 2)"),
        (pa.large_list(pa.string_view()), "list<string>"),
        (pa.list_(pa.int8(), 3), "list<int8>"),
        (pa.list_view(pa.int8()), "list<int8>"),
        (pa.uuid(), "binary[16]"),
        (pa.time32("s"), "time[ms]"),
        (pa.list_(pa.timestamp("s", "UTC")), "list<timestamp[ms, UTC]>"),
        (pa.json_(), "string"),
        (pa.struct([("a", pa.large_binary())]), "struct<a: binary>"),
        (pa.map_(pa.large_string(), pa.int8()), "map<string, int8>"),
    ],
)
def test_types_stored_alike_have_one_text(arrow: pa.DataType, text: str) -> None:
    assert type_to_text(arrow) == text


@pytest.mark.parametrize("text", [*TEXTS[:30], "struct<a: int64 not null>"])
def test_arrow_s_own_spelling_is_read(text: str) -> None:
    arrow = type_from_text(text)
    assert type_from_text(str(arrow)) == arrow


@pytest.mark.parametrize(
    "text",
    [
        "",
        "integer8",
        "decimal",
        "decimal(x)",
        "decimal(99, 1)",
        "timestamp",
        "timestamp[m]",
        "list",
        "list<int64",
        "list<int64>>",
        "int64]",
        "map<string>",
        "struct<a>",
        "struct<a int64>",
        "binary[x]",
        "int64 not",
        "@",
        "int64@",
        "_element",
        "time[us, UTC]",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="is unknown"):
        type_from_text(text)


def test_types_that_parquet_lacks_are_refused() -> None:
    with pytest.raises(RequestError, match="cannot be stored in Parquet"):
        type_to_text(pa.month_day_nano_interval())
