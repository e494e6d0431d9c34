"""Settled versions: what tombstones may be dropped, and how few marks tell it."""

from __future__ import annotations

from random import Random

import pytest

from coordinator.core.scans import (
    WATERMARKS_MAX,
    Watermarks,
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
