"""What a whole coordinator tells planners besides metadata: heat, progress, and free space."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from common.model.job import AttemptWork
from common.model.table import Column, Table, TableSettings
from common.model.tablet import PLUS_INFINITY, Bounds, Tablet, TabletId
from common.storage_threads import StorageThreads
from common.wire import AttemptProgress
from coordinator.context import FRESH_S, FreeSpace, measured_free_bytes
from coordinator.core.attempts import AttemptState, attempt_of_job, attempt_work
from tests.support.patience import PATIENCE_S
from tests.support.planning import job
from tests.support.predictable import ManualClock

pytestmark = pytest.mark.unit

RUNNING = attempt_of_job(job("j"), "a", "c1", AttemptState.RUNNING, 0.0)
TABLET = Tablet(id=TabletId("t1", PLUS_INFINITY), bounds=Bounds(None, PLUS_INFINITY))


def table_at(location: str, kept: int = 1) -> Table:
    settings = TableSettings(keep_free_bytes=kept)
    schema = (Column("x", "int64"),)
    return Table(id="t1", name="e", location=location, schema=schema, settings=settings)


def test_progress_of_an_attempt_is_what_it_has_read_and_written() -> None:
    progress = AttemptProgress(
        attempt="a", state="rewriting", bytes_done=300, bytes_total=1200, written_bytes=150
    )

    def work(**changes: int) -> AttemptWork:
        return attempt_work(replace(RUNNING, progress=replace(progress, **changes)))

    assert attempt_work(RUNNING) == AttemptWork()
    assert work() == AttemptWork(read_share=0.25, written_bytes=150)
    assert work(bytes_total=0, written_bytes=0) == AttemptWork()
    assert work(bytes_done=9999).read_share == 1.0


def test_free_space_is_that_of_the_locations_disk_and_has_no_end_in_object_stores(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "with a space"
    folder.mkdir()
    found = measured_free_bytes(folder.as_uri())
    assert found is not None
    assert 0 < found <= shutil.disk_usage(folder).total
    assert measured_free_bytes("s3://bucket/folder") is None


def test_free_space_is_measured_for_tables_that_keep_some_and_again_when_it_is_old(
    tmp_path: Path,
) -> None:
    asked, clock = list[TabletId](), ManualClock()
    threads = StorageThreads()

    async def story() -> None:
        space = FreeSpace(clock, threads, asked.append)
        table = table_at(tmp_path.as_uri())
        other = replace(table, settings=TableSettings())
        space.tablet_read(TABLET, other)
        space.tablet_read(TABLET, table)
        assert space.of(table) is None, "a plan does not wait for it"
        async with asyncio.timeout(PATIENCE_S):
            while not asked:
                await asyncio.sleep(0.001)
        assert asked == [TABLET.id], "it is planned again with the figure"
        first = space.of(table)
        assert first is not None
        assert space.of(other) is None, "that table keeps nothing free"
        space.tablet_read(TABLET, table)
        clock.advance(FRESH_S)
        gone = table_at((tmp_path / "gone").as_uri())
        space.tablet_read(TABLET, gone)
        space.tablet_read(TABLET, table)
        await asyncio.sleep(0.05)
        assert space.of(gone) is None
        assert asked == [TABLET.id], "a later figure is used when the tablet is planned anyway"

    try:
        asyncio.run(story())
    finally:
        threads.close()
