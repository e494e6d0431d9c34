"""`explain` of a tablet that nobody in this process has planned: it rests in its record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.model.table import TableSettings
from common.model.tablet import PLUS_INFINITY, Analysis, TabletId
from tests.support.request_shell import TABLE, Cluster, run, until

pytestmark = pytest.mark.unit

LAST = TabletId(TABLE.id, PLUS_INFINITY)


def test_whoever_asks_twice_hears_what_planners_say_of_each_file() -> None:
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
