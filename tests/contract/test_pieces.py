"""A piece of a full scan over real stores: what it reads, what it finds, what it notes."""

from __future__ import annotations

from typing import Any

import pytest

from common.metadata.changes import MarkWaiting, SubmitRequest, WriteAnalysis
from common.model.job import TabletPlan
from common.model.request import Request
from common.model.table import Table, TableSettings
from common.model.tablet import PLUS_INFINITY, Analysis, Tablet, TabletId
from common.settings import Settings
from coordinator.core.scans import (
    TabletSpan,
    jobs_digest,
    spans_between,
)
from coordinator.registry import planner_for
from coordinator.scan import full_scan
from coordinator.scan.full_scan import (
    LocalRangeScans,
    RangeFindings,
    ScanRange,
)
from tests.support.store_harness import Harness, applied, commit, file, reserve

pytestmark = pytest.mark.anyio
PLAN = planner_for(Settings())
ENDS = tuple(number.to_bytes(1, "big") for number in range(1, 40))


async def filled(harness: Harness, **files: int) -> Table:
    """Return a table of 40 tablets; so many files in those named by their number."""
    table = await harness.table(splits=ENDS)
    for name, count in files.items():
        end = bytes([int(name[1:])])
        added = [file(f"{name}-{index}", end, end) for index in range(count)]
        applied(await harness.add(TabletId(table.id, end), *added))
    return table


async def scan(harness: Harness, table: Table, **given: object) -> RangeFindings:
    plain: dict[str, object] = {"table": table, "span": TabletSpan()}
    piece = ScanRange(**(plain | given))  # type: ignore[arg-type]  # any field
    return await LocalRangeScans(harness.store, PLAN).scan(piece)


async def test_tablets_that_rest_are_noted_and_cost_one_read_from_then_on(
    harness: Harness,
) -> None:
    table = await filled(harness, t3=1, t7=5)
    first = await scan(harness, table)
    assert (first.tablets, first.planned, first.ask) == (40, 40, ())
    ((end, digest),) = first.wanted
    tablet = await harness.store.tablet(TabletId(table.id, end))
    assert tablet is not None
    assert tablet.record.analysis is Analysis.UNKNOWN
    jobs = PLAN(tablet, table, 0.0, {}).jobs
    assert (end, digest) == (b"\x07", jobs_digest(tuple(job.id for job in jobs)))
    second = await scan(harness, table)
    assert (second.tablets, second.planned, second.wanted) == (40, 1, first.wanted)
    records = await harness.store.records(
        [TabletId(table.id, b"\x03"), TabletId(table.id, b"\x04")]
    )
    assert [record.analysis for record in records if record] == [Analysis.STABLE, Analysis.EMPTY]
    assert (await scan(harness, table, every=True)).planned == 40
    later = Table(**{**_fields(table), "settings_version": 2})
    assert (await scan(harness, later)).planned == 40


async def test_a_scan_range_returns_tablets_that_the_coordinator_must_judge(
    harness: Harness,
) -> None:
    table = await filled(harness, t3=2, t5=2)
    ids = [TabletId(table.id, bytes([number])) for number in (3, 5)]
    applied(await harness.apply(reserve(ids[0], "att", "t3-0", "t3-1")))
    request = Request(id="r1", table=table.id)
    applied(await harness.apply(SubmitRequest(request=request)))
    applied(await harness.apply(MarkWaiting(tablet=ids[1], request="r1")))
    assert (await scan(harness, table)).ask == (b"\x03", b"\x05")
    assert (await scan(harness, table)).ask == (b"\x03", b"\x05")


async def test_a_selector_that_has_not_been_asked_asks(harness: Harness) -> None:
    table = await filled(harness, t3=1)
    chooses = Table(**{**_fields(table), "settings": TableSettings(selector="all")})
    assert len((await scan(harness, chooses)).ask) == 40


async def test_pieces_cover_every_tablet_once(harness: Harness) -> None:
    table = await filled(harness, t1=5, t20=5, t39=5)
    for count in (1, 7, 10, 13, 39, 40, 100):
        cuts = list(await harness.store.every(table.id, count))
        assert cuts == [*ENDS, PLUS_INFINITY][count - 1 : 39 : count]
        found = [await scan(harness, table, span=span) for span in spans_between(cuts)]
        assert sum(each.tablets for each in found) == 40
        assert [end for each in found for end, _ in each.wanted] == [b"\x01", b"\x14", b"\x27"]
    assert await harness.store.every("tbl-none", 10) == []


async def test_an_answer_is_bounded_and_the_rest_goes_on(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = await filled(harness, t1=5, t20=5, t39=5)
    monkeypatch.setattr(full_scan, "RESULT_BYTES_MAX", 1)
    monkeypatch.setattr(full_scan, "PAGE_TABLETS", 10)
    answers: list[list[bytes]] = []
    rest: TabletSpan | None = TabletSpan()
    while rest is not None:
        found = await scan(harness, table, span=rest)
        answers.append([end for end, _ in found.wanted])
        rest = found.rest
    assert answers == [[b"\x01"], [b"\x14"], [b"\x27"], []]


def _fields(table: Table) -> dict[str, object]:
    return {name: getattr(table, name) for name in table.__slots__}


@pytest.mark.parametrize("said", [Analysis.EMPTY, Analysis.STABLE, Analysis.DEFERRED])
async def test_planners_are_not_asked_about_what_rests(harness: Harness, said: Analysis) -> None:
    table = await filled(harness, t7=5)
    tablet = TabletId(table.id, b"\x07")
    (record,) = await harness.store.records([tablet])
    assert record is not None
    note = WriteAnalysis(tablet=tablet, analysis=said, version=record.version, settings_version=1)
    applied(await harness.apply(note))
    asked: list[TabletId] = []

    def plan(tablet: Tablet, *given: Any, **named: Any) -> TabletPlan:
        asked.append(tablet.id)
        return PLAN(tablet, *given, **named)

    scans = LocalRangeScans(harness.store, plan)
    assert (await scans.scan(ScanRange(table=table, span=TabletSpan()))).tablets == 40
    assert tablet not in asked
    await scans.scan(ScanRange(table=table, span=TabletSpan(), every=True))
    assert tablet in asked


async def test_late_and_replaced_files_make_a_tablet_at_rest_wanted_again(
    harness: Harness,
) -> None:
    table = await filled(harness, t3=1, t5=1)
    tablet = TabletId(table.id, b"\x03")
    await scan(harness, table)
    assert (await scan(harness, table)).planned == 0

    late = [file(f"late-{number}", tablet.end, tablet.end) for number in range(4)]
    applied(await harness.add(tablet, *late))
    found = await scan(harness, table)
    assert (found.planned, [end for end, _ in found.wanted]) == (1, [tablet.end])

    replaced = TabletId(table.id, b"\x05")
    applied(await harness.apply(reserve(replaced, "att", "t5-0")))
    applied(await harness.apply(commit(replaced, "att")))
    (record,) = await harness.store.records([replaced])
    assert record is not None
    assert (record.files, record.analysis) == (1, Analysis.STABLE)
    assert (await scan(harness, table)).planned == 2
