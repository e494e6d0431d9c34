"""Adds, jobs and markers: another writer between their WATCH and their EXEC."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import (
    AddFiles,
    DropHold,
    DropTable,
    ReserveFiles,
)
from common.model.job import Kind
from common.model.request import RequestState
from common.model.table import TableSettings
from common.model.tablet import TabletId
from common.runtime import call_id
from tests.contract.test_attempts import dropping
from tests.contract.test_request_races import between
from tests.support.requests import cancel, move, select, submitted, tablet_of, wait
from tests.support.store_harness import Harness, applied, file, refused, reserve

pytestmark = pytest.mark.anyio


def adding(harness: Harness, tablet: TabletId, *names: str) -> AddFiles:
    files = {tablet.end: tuple(file(name) for name in names)}
    return AddFiles(table=tablet.table, call=call_id(harness.clock), files=files)


async def test_an_add_that_makes_a_tablet_meets_a_drop(harness: Harness) -> None:
    """There are no bounds yet that could have changed: the table alone tells."""
    table = await harness.table(partition_by=("day",), splits=())
    tablet = TabletId(table.id, b"day1")
    add = replace(adding(harness, tablet, "a"), partitions={b"day1": "day=1"})
    refused(await between(harness, add, DropTable(table=table.id)), "table")
    assert await harness.store.tablet(tablet) is None


async def test_an_add_and_a_job_meet_a_drop(harness: Harness) -> None:
    """Nothing that the drop removes is watched by them, but the table is."""
    tablet = await harness.tablet_with(splits=())
    drop = DropTable(table=tablet.table)
    refused(await between(harness, adding(harness, tablet, "b"), drop), "table")
    other = await harness.tablet_with("a", splits=())
    drop = DropTable(table=other.table)
    refused(await between(harness, reserve(other, "s1", "a"), drop), "tablet")
    for each in (tablet, other):
        assert await harness.store.tablet(each) is None
        assert await harness.store.files([each]) == [{}]


async def test_a_marker_meets_a_selection_where_nobody_waits(harness: Harness) -> None:
    """No marker is cleared, so the selection alone tells."""
    tablet = await harness.tablet_with("a")
    for name in ("r1", "r2"):
        await submitted(harness, tablet.table, name)
    refused(await between(harness, wait(tablet, "r2"), select(tablet, "a")), "selected")
    assert (await tablet_of(harness, tablet)).waiting == {}


async def test_an_expired_hold_meets_its_own_job_and_another_request(harness: Harness) -> None:
    """Dropping it would take files from under a job, or from another's fresh selection."""
    at_once = TableSettings(hold_expiry_s=0.0)
    tablet = await harness.tablet_with("a", settings=at_once)
    for name in ("r1", "r2"):
        await submitted(harness, tablet.table, name)
    applied(await harness.apply(select(tablet, "a")))
    other = (move(tablet.table, RequestState.CANCELLING), cancel(tablet))
    other_holds = select(tablet, "a", request="r2")
    refused(
        await between(harness, DropHold(tablet=tablet), *other, other_holds, job(tablet)), "hold"
    )
    found = await tablet_of(harness, tablet)
    assert found.selection is not None
    assert (found.selection.request, [*found.running]) == ("r2", ["u1"])
    third = await harness.tablet_with("a", settings=at_once)
    await submitted(harness, third.table, "r2")
    applied(await harness.apply(select(third, "a", request="r2")))
    refused(await between(harness, DropHold(tablet=third), job(third)), "hold")


async def test_a_cancel_meets_a_job_of_its_request(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    await submitted(harness, tablet.table, "r2")
    applied(await harness.apply(select(tablet, "a", request="r2")))
    applied(await harness.apply(move(tablet.table, RequestState.CANCELLING, "r2")))
    applied(await between(harness, cancel(tablet, "r2"), job(tablet)))
    found = await tablet_of(harness, tablet)
    assert (found.selection, found.running) == (None, {})


def job(tablet: TabletId) -> ReserveFiles:
    return replace(reserve(tablet, "u1", "a", request="r2"), kind=Kind.USER)


async def test_a_commit_that_dropped_rows_meets_an_older_file(harness: Harness) -> None:
    """The older row of a key whose tombstone was just dropped would rise again."""
    tablet = await harness.tablet_with("a")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    older = adding(harness, tablet, "late")
    refused(await between(harness, dropping(tablet, "t1"), older), "resurface")
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert (found.files.keys(), found.purge) == ({"a", "late"}, None)
    newer = await harness.tablet_with("a")
    applied(await harness.apply(reserve(newer, "t2", "a")))
    older = adding(harness, newer, "late")
    refused(await between(harness, older, dropping(newer, "t2")), "purged")
