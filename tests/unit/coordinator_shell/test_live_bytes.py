"""An analysis from the wish to a compactor's hand: no file is held, none can be replaced."""

from __future__ import annotations

import asyncio

import pytest

from common.errors import RewriteError
from common.model.job import JobAction
from common.wire import Assignment, TakeRequest
from compactor.rewrite.plan.rewrite_plan import make_plan
from coordinator.core import events as on
from tests.support.memory_store import MemoryStore
from tests.support.patience import PATIENCE_S
from tests.support.predictable import ManualClock
from tests.unit.coordinator_shell.test_shell import TABLET, shell, with_files

pytestmark = pytest.mark.unit


async def handed_out(store: MemoryStore) -> Assignment:
    """Return the analysis of a tablet with two files, which the planner leaves alone."""
    await with_files(store, 2)
    async with shell(store) as it:
        await it.beat()
        it.service.submit(on.AnalysisAsked(tablet=TABLET, group="default"))
        request = TakeRequest(
            take="take-1",
            compactor="c1",
            incarnation="i1",
            group="default",
            wait_max_s=PATIENCE_S,
            actions=(JobAction.ANALYZE.value,),
        )
        assignment = await it.service.take(request)
        assert assignment is not None
        return assignment


def test_an_analysis_is_given_the_files_and_holds_none() -> None:
    store = MemoryStore(ManualClock())
    assignment = asyncio.run(handed_out(store))
    assert assignment.job.action == JobAction.ANALYZE
    assert [file.path for file in assignment.analyzed] == ["f0.parquet", "f1.parquet"]
    assert (assignment.inputs, assignment.outside) == ((), ())
    assert (assignment.reservation.inputs, assignment.reservation.outputs_max) == ((), 0)
    tablet = asyncio.run(store.tablet(TABLET))
    assert tablet is not None
    assert not tablet.reserved_files
    assert 0 < assignment.tablet_version < tablet.record.version


def test_a_release_that_does_not_know_it_could_only_fail() -> None:
    """It would take the job for a rewrite, of nothing: there is no place for an output."""
    assignment = asyncio.run(handed_out(MemoryStore(ManualClock())))
    with pytest.raises(RewriteError, match="cuts 1 outputs, but 0 are reserved"):
        make_plan(assignment)
