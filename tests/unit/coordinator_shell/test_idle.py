"""A coordinator with nothing to do, on simulated time."""

from __future__ import annotations

import asyncio

import pytest

from common.metadata.changes import CreateTable
from common.settings import CoordinatorSettings, Settings
from coordinator.context import ShellContext
from coordinator.store_watch import LIMITS_INTERVAL_S, take_lead
from coordinator.wiring import CoordinatorParts, assemble
from tests.support.memory_store import MemoryStore
from tests.support.predictable import CountedIds
from tests.support.request_shell import SPLITS, TABLE
from tests.support.sim_loop import EPOCH_S, World

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("settings", "turns"),
    [(CoordinatorSettings(), 40), (CoordinatorSettings(tick_s=2.0), 5)],
    ids=["four times a second", "as it is set"],
)
def test_an_idle_coordinator_turns_only_for_its_timers(
    settings: CoordinatorSettings, turns: int
) -> None:
    world, made = World(1), list[CoordinatorParts]()
    store = MemoryStore(world)

    def log(_event: str, **_fields: object) -> None:
        pass

    async def life() -> None:
        await store.apply(CreateTable(table=TABLE, splits=SPLITS))
        every = Settings(coordinator=settings)
        parts = assemble(every, ShellContext(store, world, CountedIds("a"), log, "coord-1"))
        made.append(parts)
        await take_lead(store, parts.scanner, "coord-1", log)
        async with asyncio.TaskGroup() as tasks:
            for loop in parts.loops(every):
                tasks.create_task(loop)

    world.process("coordinator").start(life())
    try:
        world.run_until(EPOCH_S + 11.0)
        (parts,) = made
        before = parts.service.turns
        world.run_until(EPOCH_S + 21.0)
        looked_at_limits = 10.0 / LIMITS_INTERVAL_S
        assert parts.service.turns - before == turns + looked_at_limits
    finally:
        world.end()
