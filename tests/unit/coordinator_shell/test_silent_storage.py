"""A storage that stands still holds up its own tables only, in the coordinator."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import RewriteError, UnavailableError
from common.metadata.changes import CreateTable
from common.model.table import Column, Table
from common.storage_threads import StorageThreads
from coordinator import context as generation
from coordinator.context import ArrowStorage, Generations
from tests.support.memory_store import MemoryStore
from tests.support.patience import PATIENCE_S
from tests.support.predictable import ManualClock

DEADLINE_S = 2.0
"""Ends calls that hang. A machine under load must finish the others in this time."""


def hung(release: threading.Event) -> Callable[[], str]:
    def work() -> str:
        assert release.wait(PATIENCE_S)
        return "late"

    return work


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
        threads = StorageThreads(threads=2, deadline_s=DEADLINE_S)
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
    storage = ArrowStorage(clock, StorageThreads(threads=1, deadline_s=DEADLINE_S))
    monkeypatch.setattr(storage, "_delete", lambda *_values: hung(release)())

    async def story() -> None:
        with pytest.raises(RewriteError, match="has not answered for"):
            await storage.delete(tmp_path.as_uri(), "a.parquet", clock.now_s() + 10)
        release.set()

    asyncio.run(story())
