"""Settled versions: what tombstones may be dropped, and how few marks tell it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from random import Random

import pytest

from common.model.key_values import KeyType
from common.model.keys import encode_value
from common.model.table import Column, Table, TableSettings
from common.model.tablet import Record
from coordinator.core.scans import (
    WATERMARKS_MAX,
    Watermarks,
    droppable_version,
    next_watermarks,
    settled_version,
)

RETENTION_S = 600.0


def test_the_first_sight_is_a_mark() -> None:
    assert next_watermarks((), 10.0, b"5", RETENTION_S) == ((10.0, b"5"),)


@pytest.mark.parametrize(
    ("now_s", "highest"),
    [(500.0, b"5"), (500.0, b"4"), (50.0, b"7"), (5.0, b"7"), (-700.0, b"7")],
    ids=["nothing new", "lower", "too soon", "not later", "gone back"],
)
def test_most_versions_seen_leave_the_watermarks_as_they_are(now_s: float, highest: bytes) -> None:
    marks = ((10.0, b"5"),)

    assert next_watermarks(marks, now_s, highest, RETENTION_S) is marks


def test_a_retention_of_zero_still_needs_time_to_pass() -> None:
    marks = ((10.0, b"5"),)

    assert next_watermarks(marks, 10.0, b"6", 0.0) is marks
    assert settled_version(marks, 10.0, 0.0) == b"5"


def test_nothing_is_settled_before_one_retention_has_passed() -> None:
    marks = ((10.0, b"5"), (400.0, b"7"))

    assert settled_version((), 10.0, RETENTION_S) is None
    assert settled_version(marks, 609.0, RETENTION_S) is None
    assert settled_version(marks, 610.0, RETENTION_S) == b"5"
    assert settled_version(marks, 1000.0, RETENTION_S) == b"7"


def test_marks_that_later_ones_have_overtaken_go() -> None:
    marks = ((10.0, b"5"), (120.0, b"6"), (400.0, b"7"))

    assert next_watermarks(marks, 730.0, b"9", RETENTION_S) == (
        (120.0, b"6"),
        (400.0, b"7"),
        (730.0, b"9"),
    )


DAY_S = 86_400.0
NOW_S = 20_000 * DAY_S


def table(version_type: str) -> Table:
    return Table(
        id="t1",
        name="events",
        location="file:///t1",
        schema=(Column("k", "int64"), Column("v", version_type)),
        key=("k",),
        version_column="v",
        settings=TableSettings(tombstone_retention_s=DAY_S),
    )


def version(value: object, kind: KeyType) -> bytes:
    return encode_value(value, kind)


@pytest.mark.parametrize(
    ("name", "kind", "at", "limit"),
    [
        (
            *("timestamp", KeyType.TIMESTAMP),
            lambda days: datetime(2024, 10, 4, tzinfo=UTC) + timedelta(days=days),
            -1,
        ),
        ("date", KeyType.DATE, lambda days: date(2024, 10, 4) + timedelta(days=days), -1),
        ("int64", KeyType.INT, lambda days: 20_000 + days, 300),
    ],
)
def test_dead_rows_are_dropped_up_to_one_retention_ago_where_versions_are_times(
    name: str, kind: KeyType, at: Callable[[int], object], limit: int
) -> None:
    """A row from a clock that is wrong by 300 days would raise the watermark above later rows."""
    record = Record(settled=((NOW_S - 2 * DAY_S, version(at(300), kind)),))
    assert droppable_version(table(name), record, NOW_S) == version(at(limit), kind)
    calm = Record(settled=((NOW_S - 2 * DAY_S, version(at(-9), kind)),))
    assert droppable_version(table(name), calm, NOW_S) == version(at(-9), kind)
    young = Record(settled=((NOW_S - DAY_S / 2, version(at(-9), kind)),))
    assert droppable_version(table(name), young, NOW_S) is None


@pytest.mark.parametrize("seed", range(20))
def test_few_marks_never_settle_too_much_and_lag_little(seed: int) -> None:
    """Against a full history: never above the truth, and behind it by a sixth at most."""
    dice = Random(seed)
    marks: Watermarks = ()
    history: list[tuple[float, bytes]] = []
    now_s, version = 1000.0, 0
    for _ in range(400):
        now_s += dice.random() * 30.0
        version += dice.choice((0, 0, 1, 5))
        history.append((now_s, version.to_bytes(4, "big")))
        marks = next_watermarks(marks, now_s, history[-1][1], RETENTION_S)
        settled = settled_version(marks, now_s, RETENTION_S)
        assert len(marks) <= WATERMARKS_MAX
        assert (settled or b"") <= held(history, now_s - RETENTION_S)
        assert (settled or b"") >= held(history, now_s - RETENTION_S * 7 / 6 - 30.0)


def held(history: list[tuple[float, bytes]], at_s: float) -> bytes:
    """Return the highest version that had been seen by then."""
    return max((version for time_s, version in history if time_s <= at_s), default=b"")
