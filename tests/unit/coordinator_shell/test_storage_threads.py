"""A storage that stands still takes one thread, and holds up its own tables only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from common.clock import ManualClock
from common.errors import RewriteError, UnavailableError
from common.metadata.changes import CreateTable
from common.metadata.memory import MemoryStore
from common.model.table import Column, Table
from coordinator import generation
from coordinator.generation import Generations
from coordinator.storage import ArrowStorage
from coordinator.storage_threads import StorageThreads
from tests.support.patience import PATIENCE_S

HELD, OTHER = "file:///mnt/gone", "file:///data"


def hung(release: threading.Event) -> Callable[[], str]:
    def work() -> str:
        assert release.wait(PATIENCE_S)
        return "late"

    return work


def test_a_location_that_stands_still_gets_no_more_work_until_it_answers() -> None:
    release = threading.Event()

    async def story() -> None:
        threads = StorageThreads(threads=2, deadline_s=0.05)
        with pytest.raises(UnavailableError, match=r"mnt/gone has not answered for 0\.05 s; is it"):
            await threads.run(HELD, hung(release))
        for _ in range(5):
            with pytest.raises(UnavailableError, match="has not answered yet"):
                await threads.run(HELD, hung(release))
            assert await threads.run(OTHER, lambda: "at once") == "at once"
        release.set()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    assert await threads.run(HELD, lambda: "again") == "again"
                except UnavailableError:
                    await asyncio.sleep(0.01)
                else:
                    return

    asyncio.run(story())


def test_errors_come_as_they_are() -> None:
    def work() -> None:
        raise TimeoutError("a client of an object store gave up")

    async def story() -> None:
        threads = StorageThreads(deadline_s=PATIENCE_S)
        for _ in range(2):
            with pytest.raises(TimeoutError, match="gave up"):
                await threads.run(HELD, work)

    asyncio.run(story())


def test_generations_of_other_tables_are_counted_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, read = threading.Event(), generation.written_generation

    def written(location: object) -> int:
        if "held" in str(location):
            hung(release)()
        return read(location)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(generation, "written_generation", written)

    async def story() -> None:
        store = MemoryStore(ManualClock())
        for name in ("held", "quick"):
            table = Table(
                id=name,
                name=name,
                location=(tmp_path / name).as_uri(),
                schema=(Column("k", "int64"),),
            )
            await store.apply(CreateTable(table=table))
        threads = StorageThreads(threads=2, deadline_s=0.05)
        generations = Generations(store, lambda *_args, **_fields: None, threads=threads)
        tables = {each.id: each for each in await store.tables()}
        for _ in range(3):
            with pytest.raises(UnavailableError):
                await generations.count_up(tables["held"])
            await generations.count_up(tables["quick"])
        assert generations.may_change("quick")
        assert not generations.may_change("held")
        release.set()

    asyncio.run(story())


def test_a_deletion_that_does_not_end_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    clock = ManualClock()
    storage = ArrowStorage(clock, StorageThreads(threads=1, deadline_s=0.05))
    monkeypatch.setattr(storage, "_delete", lambda *_values: hung(release)())

    async def story() -> None:
        with pytest.raises(RewriteError, match="has not answered for"):
            await storage.delete(tmp_path.as_uri(), "a.parquet", clock.now_s() + 10)
        release.set()

    asyncio.run(story())
