"""Rates of scans and written rows: they reach the truth in about a minute, and decay."""

from __future__ import annotations

import pytest

from common.model.tablet import PLUS_INFINITY, TabletId
from common.spi.planner import COLD
from coordinator.core.scans import WINDOW_S, TabletHeat

pytestmark = pytest.mark.unit

TABLET, OTHER = TabletId("t1", PLUS_INFINITY), TabletId("t1", b"a")


def test_a_steady_rate_is_found_and_fades_when_nothing_comes() -> None:
    heat = TabletHeat(10)
    for second in range(300):
        heat.note_scans(TABLET, 2, 1000.0 + second)
        heat.note_adds(TABLET, ((5000.0 + second, 100),), 1000.0 + second)
    found = heat.of(TABLET, 1300.0)
    assert found.scans_s == pytest.approx(2.0, rel=0.03)
    assert found.rows_s == pytest.approx(100.0, rel=0.03)
    later = heat.of(TABLET, 1300.0 + WINDOW_S)
    assert later.rows_s == pytest.approx(found.rows_s / 2.718281828, rel=1e-6)
    assert heat.of(OTHER, 1300.0) == COLD


def test_an_add_that_is_read_again_counts_once() -> None:
    heat = TabletHeat(10)
    for _ in range(3):
        heat.note_adds(TABLET, ((10.0, 600), (11.0, 600)), 50.0)
    assert heat.of(TABLET, 50.0).rows_s == pytest.approx(1200 / WINDOW_S)
    heat.note_adds(TABLET, ((11.0, 600), (12.0, 600)), 50.0)
    assert heat.of(TABLET, 50.0).rows_s == pytest.approx(1800 / WINDOW_S)


def test_tablets_that_nobody_touches_make_room() -> None:
    heat = TabletHeat(2)
    third = TabletId("t1", b"b")
    for number, tablet in enumerate((TABLET, OTHER, TABLET, third)):
        heat.note_scans(tablet, 60, float(number))
    assert heat.of(OTHER, 3.0) == COLD
    assert heat.of(TABLET, 3.0).scans_s > heat.of(third, 3.0).scans_s > 0
    heat.forget(TABLET)
    assert heat.of(TABLET, 3.0) == COLD
