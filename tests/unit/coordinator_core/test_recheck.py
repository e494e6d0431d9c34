"""When a quiet tablet is looked at again, and what a scan makes of what it reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.model.file import DataFile
from common.model.job import TabletPlan
from common.model.table import Column, Table, TableSettings, TableState
from common.model.tablet import (
    PLUS_INFINITY,
    Analysis,
    Bounds,
    Record,
    Selection,
    Tablet,
    TabletId,
)
from common.primitives import earliest_s
from coordinator.core.scans import (
    ScanVerdict,
    TabletSpan,
    is_recheck_due,
    must_ask,
    needs_look,
    recheck_at_s,
    scan_verdict,
    spans_between,
    wanted_watermarks,
)

pytestmark = pytest.mark.unit
RETENTION_S = 600.0
TABLE = Table(
    id="t1",
    name="events",
    location="file:///data/events",
    schema=(Column("k", "int64"), Column("v", "int64")),
    key=("k",),
    version_column="v",
    settings=TableSettings(tombstone_retention_s=RETENTION_S),
)
QUIET = Record(
    version=7, files=1, analysis=Analysis.STABLE, analysis_version=7, analysis_settings=1
)


def tablet(*, tombstones: int = 0, version: bytes = b"5", **given: object) -> Tablet:
    file = DataFile(
        path="a", size_bytes=10, rows=10, version_max=version, tombstones=tombstones, clean=False
    )
    return Tablet(
        id=TabletId("t1", PLUS_INFINITY),
        bounds=Bounds(None, PLUS_INFINITY),
        files={"a": file},
        **given,  # type: ignore[arg-type]  # facts by name
    )


def test_marks_are_made_where_rows_may_be_dead() -> None:
    assert wanted_watermarks(tablet(), TABLE, 100.0) is None
    assert wanted_watermarks(tablet(tombstones=1), TABLE, 100.0) == ((100.0, b"5"),)
    unversioned = replace(TABLE, version_column=None)
    assert wanted_watermarks(tablet(tombstones=1), unversioned, 100.0) is None
    expiring = replace(TABLE, time_column="v", settings=TableSettings(ttl_s=60.0))
    assert wanted_watermarks(tablet(), expiring, 100.0) == ((100.0, b"5"),)
    empty = replace(tablet(tombstones=1), files={})
    assert wanted_watermarks(empty, expiring, 100.0) is None


def test_a_tablet_that_goes_quiet_after_a_mark_is_marked_once_more() -> None:
    marked = tablet(tombstones=1, version=b"6", record=Record(settled=((100.0, b"5"),)))
    assert wanted_watermarks(marked, TABLE, 150.0) is None
    due_s = recheck_at_s(marked, TABLE, TabletPlan())
    assert due_s == 200.0
    marks = wanted_watermarks(marked, TABLE, due_s)
    assert marks == ((100.0, b"5"), (200.0, b"6"))
    assert marks is not None
    settled = replace(marked, record=Record(settled=marks))
    assert recheck_at_s(settled, TABLE, TabletPlan()) is None
    unmarked = replace(marked, record=Record())
    assert recheck_at_s(unmarked, TABLE, TabletPlan()) is None, "its first mark is written now"


def test_the_recheck_time_is_the_earliest_of_planner_and_rules() -> None:
    marked = tablet(tombstones=1, version=b"6", record=Record(settled=((100.0, b"5"),)))
    assert recheck_at_s(tablet(), TABLE, TabletPlan()) is None
    assert recheck_at_s(tablet(), TABLE, TabletPlan(due_at_s=900.0)) == 900.0
    assert recheck_at_s(marked, TABLE, TabletPlan(due_at_s=900.0)) == 200.0
    assert earliest_s(None, 3.0, None, 2.0) == 2.0
    assert earliest_s() is None


@pytest.mark.parametrize(
    ("record", "looks"),
    [
        (None, True),
        (QUIET, False),
        (replace(QUIET, version=8), True),
        (replace(QUIET, analysis_settings=2), True),
        (replace(QUIET, analysis=Analysis.EMPTY), False),
        (replace(QUIET, analysis=Analysis.UNSTABLE), True),
        (replace(QUIET, analysis=Analysis.UNKNOWN), True),
        (replace(QUIET, running=1), True),
        (replace(QUIET, waiting=1), True),
        (replace(QUIET, operation=True), True),
        (replace(QUIET, due_at_s=100.0), True),
        (replace(QUIET, due_at_s=100.1), False),
        (replace(QUIET, selector_due_s=99.0), True),
        (replace(QUIET, selector_due_s=101.0, due_at_s=102.0), False),
    ],
)
def test_a_record_tells_whether_to_look_further(record: Record | None, looks: bool) -> None:
    assert needs_look(record, TABLE, 100.0) is looks


def test_deferred_tablets_are_looked_at_by_a_coordinator_that_is_new() -> None:
    deferred = replace(QUIET, analysis=Analysis.DEFERRED)
    assert not needs_look(deferred, TABLE, 100.0)
    assert needs_look(deferred, TABLE, 100.0, fresh=True)
    assert not needs_look(QUIET, TABLE, 100.0, fresh=True)
    assert not is_recheck_due(deferred, 100.0)


def test_only_tablets_without_work_under_way_rest() -> None:
    plan = TabletPlan()
    assert scan_verdict(tablet(), TABLE, plan) is ScanVerdict.RESTS
    held = tablet(selection=Selection(request="r1", files=("a",)))
    assert scan_verdict(held, TABLE, plan) is ScanVerdict.BUSY
    paused = replace(TABLE, state=TableState.PAUSED)
    assert scan_verdict(tablet(), paused, plan) is ScanVerdict.BUSY
    assert must_ask(tablet(waiting={"r1": 1.0}), TABLE, 0.0)
    asked = replace(TABLE, settings=TableSettings(selector="all"))
    assert must_ask(tablet(), asked, 0.0)
    assert not must_ask(held, asked, 0.0)
    assert not must_ask(tablet(), TABLE, 0.0)


def test_spans_cover_everything_once() -> None:
    assert spans_between([]) == [TabletSpan()]
    spans = spans_between([b"c", b"m"])
    for end in (b"\x00", b"c", b"c\x00", b"m", b"z", PLUS_INFINITY):
        assert sum(span.holds(end) for span in spans) == 1
