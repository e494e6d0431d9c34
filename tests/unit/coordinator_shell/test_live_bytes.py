"""An analysis from the wish to a compactor's hand: no file is held, none can be replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.errors import RewriteError
from common.metadata.changes import Applied, CommitAttempt
from common.model.job import JobAction
from common.model.outcome import AttemptEnd, RowCounts, Statistics
from common.model.tablet import PLUS_INFINITY, TabletId
from common.wire import Assignment, TakeRequest
from compactor.rewrite.plan.rewrite_plan import make_plan
from coordinator.core.scans import needs_look
from tests.support.patience import PATIENCE_S
from tests.support.request_shell import TABLE, Cluster, Shell, run, until

pytestmark = pytest.mark.unit

BAG = replace(TABLE, key=())
LAST = TabletId(TABLE.id, PLUS_INFINITY)


async def two_files() -> Cluster:
    """Return a cluster whose one tablet has two files, which the planner leaves alone."""
    cluster = Cluster()
    await cluster.create(BAG, splits=())
    await cluster.add(PLUS_INFINITY, "f0", "f1")
    return cluster


async def ask(it: Shell) -> None:
    """Ask for an analysis, as `neve analyze` does."""
    await it.parts.triggers.ask_analyses(TABLE.id, [LAST], "default")


async def take(
    it: Shell, take: str = "take-1", wait_max_s: float = PATIENCE_S
) -> Assignment | None:
    """Take a job as a compactor that can analyse."""
    await it.beat(*(held.reservation.attempt for held in it.held))
    request = TakeRequest(
        take=take,
        compactor="c1",
        incarnation="i1",
        group="default",
        wait_max_s=wait_max_s,
        actions=(JobAction.ANALYZE.value,),
    )
    taken = await it.parts.service.take(request)
    it.held += [] if taken is None else [taken]
    return taken


async def commit(it: Shell, taken: Assignment) -> None:
    """Commit an analysis that has found no live row."""
    change = CommitAttempt(
        tablet=LAST,
        attempt=taken.reservation.attempt,
        outputs=(),
        counts=RowCounts(),
        statistics=Statistics(files=(), tablet_version=1, rows=20, read_bytes=9, elapsed_s=0.1),
    )
    outcome = await it.cluster.store.apply(change)
    assert isinstance(outcome, Applied), outcome
    it.report(taken, AttemptEnd.COMMITTED)


def test_an_analysis_is_given_the_files_and_holds_none() -> None:
    async def story() -> None:
        cluster = await two_files()
        async with cluster.coordinator() as it:
            await ask(it)
            taken = await take(it)
            assert taken is not None
            assert taken.job.action == JobAction.ANALYZE
            assert [file.path for file in taken.analyzed] == ["f0.parquet", "f1.parquet"]
            assert (taken.inputs, taken.outside) == ((), ())
            assert (taken.reservation.inputs, taken.reservation.outputs_max) == ((), 0)
            tablet = await cluster.tablet()
            assert not tablet.reserved_files
            assert 0 < taken.tablet_version < tablet.record.version
            # A release that does not know it would take it for a rewrite, of nothing.
            with pytest.raises(RewriteError, match="cuts 1 outputs, but 0 are reserved"):
                make_plan(taken)

    run(story())


def test_an_analysis_that_was_asked_for_outlives_coordinators_and_is_done_once() -> None:
    async def story() -> None:
        cluster = await two_files()
        async with cluster.coordinator() as first:
            await ask(first)
        async with cluster.coordinator() as second:
            taken = await take(second)
            assert taken is not None
            assert taken.job.action == JobAction.ANALYZE
        # That one dies, too: its compactor goes on, and commits while nobody coordinates.
        await commit(second, taken)
        record = (await cluster.tablet()).record
        assert (record.analysis_group, record.compactions) == ("", 0)
        async with cluster.coordinator() as third:

            async def rests() -> bool:
                seen = (await cluster.tablet()).record
                return not needs_look(seen, BAG, cluster.clock.now_s())

            await until(rests)
            assert await take(third, "take-2", wait_max_s=0.05) is None

    run(story())


def test_a_scan_looks_at_a_tablet_whose_analysis_is_still_to_be_done() -> None:
    """The coordinator that finds it knows nothing but the record."""

    async def story() -> None:
        cluster = await two_files()
        async with cluster.coordinator() as it:

            async def rests() -> bool:
                seen = (await cluster.tablet()).record
                return not needs_look(seen, BAG, cluster.clock.now_s())

            await until(rests)
            await ask(it)
            record = (await cluster.tablet()).record
            assert record.analysis_group == "default"
            assert needs_look(record, BAG, cluster.clock.now_s())

    run(story())
