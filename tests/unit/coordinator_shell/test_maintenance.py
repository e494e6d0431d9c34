"""The maintenance operations of a whole coordinator: what it lists is what it does next."""

from __future__ import annotations

import pytest

from common.errors import UnknownTableError
from common.model.outcome import AttemptEnd
from common.model.table import LAKE_OPERATIONS
from common.model.tablet import PLUS_INFINITY, TabletId
from coordinator.core import events as on
from neve import api
from tests.support.request_shell import ENDS, TABLE, Cluster, Shell, run, until

pytestmark = pytest.mark.unit

LAST = TabletId(TABLE.id, PLUS_INFINITY)


async def row(it: Shell, kind: str, tablet: TabletId = LAST) -> api.MaintenanceOperation:
    found = await it.parts.maintenance.operations(TABLE.id, tablet)
    (one,) = [operation for operation in found.operations if operation.kind == kind]
    return one


def test_the_merge_that_is_listed_is_the_job_that_is_handed_out() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(splits=())
        await cluster.add(PLUS_INFINITY, *(f"f{number}" for number in range(4)))
        async with cluster.coordinator() as it:
            merging = await row(it, "merging")
            assert (merging.state, merging.rank, merging.files) == ("runnable", 1, 4)
            taken = await it.take()
            assert taken is not None
            assert (taken.job.priority, taken.job.reason) == (merging.priority, merging.why)
            assert taken.job.cost_bytes == merging.cost_bytes
            compactor = cluster.settings.compactor_of("default")
            tasks = compactor.executors * compactor.executor_cores
            assert merging.memory_bytes == tasks * 768 * 1024**2
            running = await row(it, "merging")
            assert (running.state, running.running, running.rank) == ("running", 1, None)
            it.report(taken, AttemptEnd.FAILED, "a.parquet has 9 rows, expected 8")

            async def released() -> bool:
                return not (await cluster.tablet()).running

            await until(released)
            paused = await row(it, "merging")
            assert paused.state == "waiting", "the grace after a failure"
            assert "a.parquet has 9 rows, expected 8" in paused.why
            cluster.clock.advance(60.0)
            assert (await row(it, "merging")).state == "runnable"

    run(story())


def test_garbage_that_must_stay_is_listed() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(splits=())
        await cluster.add(PLUS_INFINITY, *(f"f{number}" for number in range(4)))
        async with cluster.coordinator() as it:
            assert (await row(it, "garbage")).state == "idle"
            taken = await it.take()
            assert taken is not None
            await it.commit(taken)
            waiting = await row(it, "garbage")
            assert (waiting.state, waiting.files, waiting.gain) == ("waiting", 4, 0.0)

    run(story())


def test_tablets_are_listed_with_their_rates_and_how_many_more_there_are() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create()
        async with cluster.coordinator() as it:
            for end in ENDS:
                await cluster.add(end, f"{end.hex()}-a")

            async def planned() -> bool:
                return it.parts.scanner.planned >= 3

            await until(planned)
            first = TabletId(TABLE.id, ENDS[0])
            it.parts.service.submit(on.ReadsReported(scans={first: 6}))
            found = await it.parts.maintenance.operations(TABLE.id, None)
            assert [rate.tablet for rate in found.rates] == ["40", "80", "last"]
            assert [rate.scans_s for rate in found.rates] == pytest.approx([0.1, 0.0, 0.0])
            assert [rate.rows_s for rate in found.rates] == pytest.approx([10 / 60] * 3)
            kinds = [operation.kind for operation in found.operations]
            of_table = {"manifest", "flush", *LAKE_OPERATIONS}
            assert len(kinds) == 3 * len({*kinds} - of_table) + len(of_table)
            assert not found.more
            with pytest.raises(UnknownTableError, match="table t9 is gone"):
                await it.parts.maintenance.operations("t9", None)

    run(story())
