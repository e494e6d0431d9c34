"""An expired hold, while its time is simulated: another's fresh selection is not dropped for it."""

from __future__ import annotations

import asyncio

from common.metadata.changes import DropHold
from common.model.request import RequestState
from common.model.table import TableSettings
from tests.contract.test_request_races import between
from tests.support.requests import cancel, move, select, submitted, tablet_of
from tests.support.store_harness import applied, refused
from tests.unit.metadata.test_mutation import memory

EXPIRY_S = 60.0


def test_a_hold_that_has_expired_meets_the_selection_of_another() -> None:
    async def story() -> None:
        harness = memory()
        settings = TableSettings(hold_expiry_s=EXPIRY_S)
        tablet = await harness.tablet_with("a", settings=settings)
        for name in ("r1", "r2"):
            await submitted(harness, tablet.table, name)
        applied(await harness.apply(select(tablet, "a")))
        await harness.pass_time(EXPIRY_S + 1.0)
        away = (move(tablet.table, RequestState.CANCELLING), cancel(tablet))
        fresh = select(tablet, "a", request="r2")
        refused(await between(harness, DropHold(tablet=tablet), *away, fresh), "hold")
        found = await tablet_of(harness, tablet)
        assert found.selection is not None
        assert found.selection.request == "r2"

    asyncio.run(story())
