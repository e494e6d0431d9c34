"""`explain` of a tablet that nobody in this process has planned: it rests in its record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.model.request import RequestState, SelectorSpec
from common.model.table import TableSettings
from common.model.tablet import PLUS_INFINITY, Analysis, TabletId
from tests.support.request_shell import TABLE, Cluster, ended, run, until

pytestmark = pytest.mark.unit

LAST = TabletId(TABLE.id, PLUS_INFINITY)


def test_explain_gives_the_planner_s_reason_for_each_file() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(replace(TABLE, settings=TableSettings(ratio=50)), splits=())
        await cluster.add(PLUS_INFINITY, "a", "b")

        async def rests() -> bool:
            return (await cluster.tablet()).record.analysis is Analysis.STABLE

        async with cluster.coordinator():
            await until(rests)
        async with cluster.coordinator() as it:

            async def told() -> bool:
                return set(it.parts.explain(LAST, cluster.clock.now_s()).left) == {
                    "a.parquet",
                    "b.parquet",
                }

            await until(told)

    run(story())


def test_a_planner_decides_alone_after_any_wake_up() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(replace(TABLE, settings=TableSettings(ratio=50)), splits=())
        await cluster.add(PLUS_INFINITY, "a", "b")
        async with cluster.coordinator() as it:

            async def feed() -> None:
                await cluster.add(PLUS_INFINITY, "c")

            async def full_scan() -> None:
                it.parts.full_scan.look(TABLE.id, every=True)

            async def request() -> None:
                older = SelectorSpec(name="age", options={"older_than": "1d"})
                await cluster.submit("r1", selector=older)
                assert await ended(cluster, "r1") is RequestState.DONE

            async def nothing() -> None:
                """It was looked at when the coordinator was started."""

            for trigger in (nothing, feed, full_scan, request):
                await trigger()
                count = len((await cluster.tablet()).files)
                it.parts.scanner.ask(LAST)

                async def told(count: int = count) -> bool:
                    return len(it.parts.explain(LAST, cluster.clock.now_s()).left) == count

                await until(told)
                left = it.parts.explain(LAST, cluster.clock.now_s()).left
                assert all(why.startswith("no set of at most 10 files") for why in left.values())
                assert await it.take(wait_max_s=0.02) is None
            assert await cluster.store.history(TABLE.id) == []

    run(story())
