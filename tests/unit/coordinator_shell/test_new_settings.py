"""New settings of a table: what they make due is begun at once, and waits for no full scan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import AddFiles, Applied, ChangeTable
from common.model.file import DataFile
from common.model.job import JobAction
from common.model.table import Column, TableSettings
from common.model.tablet import PLUS_INFINITY, Analysis
from common.runtime import call_id
from common.settings import CoordinatorSettings, Settings
from tests.support.request_shell import TABLE, Cluster, run, until

pytestmark = pytest.mark.unit

NO_SCAN = Settings(coordinator=CoordinatorSettings(full_scan_interval_s=86_400.0))
SERIES = replace(
    TABLE,
    schema=(Column("n", "int64"),),
    key=(),
    time_column="n",
    settings=TableSettings(planner="time-window", planner_options={"window": "100s"}),
)


async def series_at_rest() -> tuple[Cluster, DataFile]:
    """Return a cluster whose table keeps one file for ever, and that file."""
    cluster = Cluster(settings=NO_SCAN)
    await cluster.create(SERIES, splits=())
    last_s = cluster.clock.now_s() - 1000.0
    file = DataFile(
        path="old.parquet", size_bytes=100, rows=10, time_min_s=last_s - 50, time_max_s=last_s
    )
    add = AddFiles(table="t1", call=call_id(cluster.clock), files={PLUS_INFINITY: (file,)})
    assert isinstance(await cluster.store.apply(add), Applied)
    return cluster, file


def test_a_new_ttl_drops_what_has_expired_at_once() -> None:
    async def story() -> None:
        cluster, file = await series_at_rest()
        async with cluster.coordinator() as it:

            async def rests() -> bool:
                return (await cluster.tablet()).record.analysis is Analysis.STABLE

            await until(rests)
            assert (await cluster.tablet()).record.due_at_s is None
            assert await it.take(wait_max_s=0.05) is None
            ttl = replace(SERIES.settings, ttl_s=60.0)
            await cluster.store.apply(ChangeTable(table="t1", settings_version=1, settings=ttl))
            taken = await it.take()
            assert taken is not None
            assert (taken.job.action, taken.job.inputs) == (JobAction.DROP, (file.path,))

    run(story())


def test_a_new_ttl_says_when_what_is_left_will_expire() -> None:
    """The record has the time: the first full scan after it looks at the tablet again."""

    async def story() -> None:
        cluster, file = await series_at_rest()
        async with cluster.coordinator() as it:
            ttl = replace(SERIES.settings, ttl_s=5000.0)
            await cluster.store.apply(ChangeTable(table="t1", settings_version=1, settings=ttl))

            async def is_known() -> bool:
                return (await cluster.tablet()).record.due_at_s is not None

            await until(is_known)
            due_at_s = (await cluster.tablet()).record.due_at_s or 0.0
            expires_s = (file.time_max_s or 0.0) + 5000.0
            assert expires_s < due_at_s <= expires_s + 601.0
            assert await it.take(wait_max_s=0.05) is None

    run(story())
