"""Adds and jobs: another writer between their WATCH and their EXEC."""

from __future__ import annotations

import pytest

from common.ids import call_id
from common.metadata.changes import AddFiles, DropTable
from common.model.tablet import TabletId
from tests.contract.test_request_races import between
from tests.support.store_harness import Harness, file, refused, reserve

pytestmark = pytest.mark.anyio


def adding(harness: Harness, tablet: TabletId, *names: str) -> AddFiles:
    files = {tablet.end: tuple(file(name) for name in names)}
    return AddFiles(table=tablet.table, call=call_id(harness.clock), files=files)


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
