"""The watermark: what recent adds keep it below, and how an operator lowers it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import CommitAttempt, LowerWatermark, WriteAnalysis
from common.model.outcome import DroppedRows
from common.model.table import TableSettings
from common.model.tablet import Analysis, TabletId
from tests.support.store_harness import MIDDLE, Harness, applied, commit, file, refused, reserve

pytestmark = pytest.mark.anyio

FAR = b"\xff"


async def tablet_of(harness: Harness, *, deletes: bool = True) -> TabletId:
    column = {"tombstone_column": "v"} if deletes else {}
    table = await harness.table(settings=TableSettings(tombstone_retention_s=600.0), **column)
    return TabletId(table.id, MIDDLE)


def dropping(tablet: TabletId, attempt: str, version: bytes) -> CommitAttempt:
    dropped = DroppedRows(spans=((b"a", b"b"),), version_max=version)
    return replace(commit(tablet, attempt, outputs=0), dropped=dropped)


async def test_a_commit_does_not_raise_it_above_what_somebody_has_just_added(
    harness: Harness,
) -> None:
    tablet = await tablet_of(harness)
    applied(await harness.add(tablet, file("far", version_max=FAR)))
    applied(await harness.apply(reserve(tablet, "t1", "far")))
    applied(await harness.add(tablet, file("near", b"c", b"d", version_min=b"7", version_max=b"7")))
    refused(await harness.apply(dropping(tablet, "t1", FAR)), "resurface")
    applied(await harness.apply(dropping(tablet, "t1", b"6")))
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert found.purge == b"6"
    assert [version for _, version in found.record.recent_adds] == [b"7"]
    applied(await harness.add(tablet, file("next", version_min=b"8", version_max=b"8")))


async def test_a_table_without_deletes_notes_nothing(harness: Harness) -> None:
    tablet = await tablet_of(harness, deletes=False)
    applied(await harness.add(tablet, file("a")))
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert found.record.recent_adds == ()


async def test_an_operator_lowers_it(harness: Harness) -> None:
    tablet = await tablet_of(harness)
    applied(await harness.add(tablet, file("far", version_max=FAR)))
    applied(await harness.apply(reserve(tablet, "t1", "far")))
    applied(await harness.apply(dropping(tablet, "t1", FAR)))
    note = WriteAnalysis(
        tablet=tablet,
        analysis=Analysis.UNKNOWN,
        version=-1,
        settings_version=-1,
        settled=((1.0, FAR),),
    )
    applied(await harness.apply(note))
    late = file("late", version_min=b"5", version_max=b"6")
    refused(await harness.add(tablet, late), "purged")
    refused(await harness.apply(LowerWatermark(tablet=tablet, to=FAR + FAR)), "watermark")
    for _ in range(2):
        applied(await harness.apply(LowerWatermark(tablet=tablet, to=b"4")))
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert (found.purge, found.record.settled) == (b"4", ())
    applied(await harness.add(tablet, late))
    applied(await harness.apply(LowerWatermark(tablet=tablet, to=None)))
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert found.purge is None
    gone = LowerWatermark(tablet=TabletId(tablet.table, b"zz"), to=None)
    refused(await harness.apply(gone), "tablet")
    gone = LowerWatermark(tablet=TabletId("no-table", MIDDLE), to=None)
    refused(await harness.apply(gone), "table")
