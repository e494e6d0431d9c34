"""Statistics of Delta files: bounds that contain every value."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.lake.delta.actions import file_statistics

LAST = "\U0010ffff"


def statistics(
    columns: Mapping[str, pa.Array | list[Any]],
    properties: Mapping[str, str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    file = io.BytesIO()
    pq.write_table(pa.table(dict(columns)), file, **{"row_group_size": 2, **options})
    read: dict[str, Any] = json.loads(file_statistics(pq.read_metadata(file), properties or {}))
    return read


def bounds(values: pa.Array | list[Any], **options: Any) -> tuple[Any, Any, Any]:
    made = statistics({"c": values}, **options)
    return made["minValues"].get("c"), made["maxValues"].get("c"), made["nullCount"].get("c")


def moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3, None, -5, 7], (-5, 7, 1)),
        (pa.array([1, 2], pa.int8()), (1, 2, 0)),
        (["b", None, "a"], ("a", "b", 1)),
        ([datetime.date(2024, 2, 29), datetime.date(1999, 1, 1)], ("1999-01-01", "2024-02-29", 0)),
        (pa.array([Decimal("1.20"), Decimal("-9.99")], pa.decimal128(5, 2)), (-9.99, 1.2, 0)),
        ([True, False, None], (None, None, 1)),
        ([b"a", b"b"], (None, None, 0)),
        (pa.array([None, None, None], pa.int64()), (None, None, 3)),
    ],
)
def test_bounds_are_those_of_all_row_groups(values: list[Any], expected: tuple[Any, ...]) -> None:
    assert bounds(values) == expected


def test_moments_are_rounded_outwards() -> None:
    instants = [moment("2024-01-01T00:00:00.123456"), moment("2024-01-02T23:59:59.999001")]
    zoned = pa.array(instants, pa.timestamp("us", "UTC"))
    assert bounds(zoned) == ("2024-01-01T00:00:00.123Z", "2024-01-03T00:00:00.000Z", 0)
    local = pa.array(instants, pa.timestamp("us"))
    assert bounds(local) == ("2024-01-01T00:00:00.123", "2024-01-03T00:00:00.000", 0)
    early = pa.array([moment("1969-12-31T23:59:59.999500")], pa.timestamp("us"))
    assert bounds(early) == ("1969-12-31T23:59:59.999", "1970-01-01T00:00:00.000", 0)


def test_a_year_of_five_digits_has_no_bound() -> None:
    assert bounds(pa.array([2**62], pa.timestamp("us"))) == (None, None, 0)


def test_long_texts_are_cut_outwards() -> None:
    low, high, _ = bounds(["a" * 40, "b" * 40])
    assert (low, high) == ("a" * 32, "b" * 32 + LAST)
    above = "b" * 32 + LAST * 3 + "c"
    assert bounds([above])[1] == "b" * 32 + LAST * 3 + LAST > above
    assert bounds(["x" * 32]) == ("x" * 32, "x" * 32, 0)


def test_numbers_that_no_double_holds_have_no_bound() -> None:
    exact, long = Decimal("12345678901234.5"), Decimal("1234567890123456789.1234")
    assert bounds(pa.array([exact], pa.decimal128(38, 4)))[0] == float(exact)
    assert bounds(pa.array([long], pa.decimal128(38, 4)))[:2] == (None, None)


def test_a_float_has_no_upper_bound_because_it_may_be_no_number() -> None:
    assert bounds([1.5, float("nan"), 2.0]) == (1.5, None, 0)
    assert bounds([float("-inf"), 2.0])[:2] == (None, None)


def test_a_column_without_statistics_in_a_row_group_has_none() -> None:
    assert bounds([1, 2, 3], write_statistics=False) == (None, None, None)


def test_nested_columns() -> None:
    rows = [{"x": 1, "y": [1, 2]}, None, {"x": 3, "y": []}]
    made = statistics({"s": rows, "list": [[1], [2], None], "after": [5, 6, 7]})
    assert made["minValues"] == {"s": {"x": 1}, "after": 5}
    assert made["maxValues"] == {"s": {"x": 3}, "after": 7}
    assert made["nullCount"] == {"s": {"x": 1}, "after": 0}


@pytest.mark.parametrize(
    ("properties", "names"),
    [
        ({}, [f"c{number}" for number in range(32)]),
        ({"delta.dataSkippingNumIndexedCols": "2"}, ["c0", "c1"]),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, [f"c{number}" for number in range(40)]),
        ({"delta.dataSkippingNumIndexedCols": "0"}, []),
        ({"delta.dataSkippingStatsColumns": "c3, `c39`"}, ["c3", "c39"]),
    ],
)
def test_properties_choose_the_columns(properties: dict[str, str], names: list[str]) -> None:
    made = statistics({f"c{number}": [number] for number in range(40)}, properties)
    assert made["numRecords"] == 1
    assert list(made["minValues"]) == list(made["nullCount"]) == names
