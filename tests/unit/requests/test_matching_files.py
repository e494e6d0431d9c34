"""Which files a deletion may concern: by partition, time and key, where the bounds are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.model.file import DataFile
from common.model.request import Request, TransformKind, TransformSpec
from common.model.table import Column, Table
from common.model.tablet import PLUS_INFINITY, Bounds, Record, Tablet, TabletId
from coordinator.core.requests import matching_files

pytestmark = pytest.mark.unit

TIMES = Table(
    id="t1",
    name="events",
    location="file:///e",
    schema=(Column("at", "timestamp[us]"), Column("day", "int32"), Column("x", "int64")),
    time_column="at",
    partition_by=("day",),
)
EARLY = DataFile(path="early", size_bytes=1, rows=1, time_min_s=0.0, time_max_s=86_399.0)
LATE = DataFile(path="late", size_bytes=1, rows=1, time_min_s=90_000.0, time_max_s=99_000.0)


def matching(table: Table, text: str, partition: str | None, *files: DataFile) -> list[str]:
    """Return the files of a tablet that a deletion may concern."""
    request = Request(
        id="r1",
        table=table.id,
        transform=TransformSpec(kind=TransformKind.DELETE_WHERE, text=text),
    )
    tablet = Tablet(
        id=TabletId(table.id, PLUS_INFINITY),
        bounds=Bounds(None, PLUS_INFINITY, partition=partition),
        files={file.path: file for file in files},
        record=Record(),
    )
    return [file.path for file in matching_files(request, table, tablet, files)]


@pytest.mark.parametrize(("text", "found"), [("day = 3", ["early"]), ("day = 4", [])])
def test_a_partition_has_one_value(text: str, found: list[str]) -> None:
    assert matching(TIMES, text, "day=3", EARLY) == found


def test_a_partition_that_cannot_be_read_excludes_nothing() -> None:
    assert matching(TIMES, "day = 4", "day=x", EARLY) == ["early"]


def test_a_file_without_rows_of_a_time_is_excluded() -> None:
    after = "at >= timestamp '1970-01-02 00:00:00'"
    assert matching(TIMES, after, "day=3", EARLY, LATE) == ["late"]


@pytest.mark.parametrize(
    "file",
    [
        replace(EARLY, time_min_s=None, time_max_s=None),
        replace(EARLY, time_max_s=1e12),
    ],
)
def test_a_file_whose_times_are_unknown_or_out_of_range_is_not_excluded(file: DataFile) -> None:
    assert matching(TIMES, "at < timestamp '1960-01-02 00:00:00'", "day=3", file) == ["early"]


def test_a_time_column_of_numbers_excludes_nothing() -> None:
    numbers = replace(TIMES, schema=(Column("at", "int64"), *TIMES.schema[1:]))
    assert matching(numbers, "at > 100000000", "day=3", EARLY) == ["early"]
