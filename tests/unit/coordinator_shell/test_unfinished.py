"""A coordinator that runs removes what an interrupted creation has left."""

import asyncio

import pytest

from common.metadata.changes import CreateTable
from common.metadata.keys import TableKeys
from common.metadata.keyspace import hset
from common.model.table import Column, Table
from common.settings import CoordinatorSettings, Settings
from coordinator.context import ShellContext
from coordinator.wiring import assemble, storage_loops
from tests.support.memory_store import MemoryStore
from tests.support.patience import PATIENCE_S
from tests.support.predictable import CountedIds, ManualClock

pytestmark = pytest.mark.unit


def test_the_interval_and_the_grace_are_those_of_the_settings() -> None:
    async def story() -> None:
        clock, logged = ManualClock(), list[str]()
        store = MemoryStore(clock)
        table = Table(
            id="t1", name="events", location="file:///data/t1", schema=(Column("x", "int64"),)
        )
        await store.apply(CreateTable(table=table))
        async with store.keyspace.session() as session:
            await session.execute([hset(TableKeys("t1").table, {"state": "new"})])
        own = CoordinatorSettings(unfinished_interval_s=0.1, garbage_grace_s=65.0)

        def log(event: str, **_fields: object) -> None:
            logged.append(event)

        settings = Settings(coordinator=own)
        context = ShellContext(store, clock, CountedIds("a"), log, "coord-1")
        loops = [
            asyncio.create_task(loop)
            for loop in storage_loops(settings, assemble(settings, context), list)
        ]
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.sleep(0.3)
            assert await store.table("t1"), "it has not been unfinished for long"
            clock.advance(65)
            while await store.names():
                await asyncio.sleep(0.01)
        assert await store.table("t1") is None
        assert logged == ["unfinished table removed"]
        for each in loops:
            each.cancel()

    asyncio.run(story())
