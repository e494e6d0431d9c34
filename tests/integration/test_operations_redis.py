"""Splits and merges through the coordinator's shell over a real Redis, while rows arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from common.metadata.changes import Applied
from common.metadata.redis import connect
from common.model.tablet import PLUS_INFINITY
from common.runtime import SystemClock
from common.settings import CoordinatorSettings, Settings, StoreSettings
from tests.support.operation_shell import Land, finish, key
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer, running
from tests.support.request_shell import Shell

pytestmark = pytest.mark.integration

LAST = PLUS_INFINITY
LIFE_S = 0.1
"""Of the first coordinator of an operation."""
HURRIED = Settings(coordinator=CoordinatorSettings(lost_answer_beats=1))
"""What a coordinator has reserved when it dies, the next one gives up within a second."""


@dataclass
class RealLand(Land):
    """A land whose store is a Redis."""

    url: str = ""
    clock: SystemClock = field(default_factory=SystemClock)  # type: ignore[assignment]  # only read

    def __post_init__(self) -> None:
        self.store = connect(StoreSettings(url=self.url))  # type: ignore[assignment]  # another
        self.logged = []


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with running() as server:
        yield server


@pytest.mark.parametrize("seed", range(2))
def test_tablets_are_split_and_merged_while_rows_arrive_and_coordinators_die(
    redis: RedisServer, seed: int
) -> None:
    async def told() -> None:
        land = RealLand(url=redis.url, settings=HURRIED)
        try:
            await story(land, seed)
        finally:
            await land.store.close()

    asyncio.run(asyncio.wait_for(told(), 4 * PATIENCE_S))


async def story(land: RealLand, seed: int) -> None:
    await land.found(ratio=3.0)
    for low in range(1, 9):
        assert await land.append(low, low + 40 + seed)
    over, counted = asyncio.Event(), asyncio.Lock()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(appends(land, over, counted))
        for number, wish in enumerate((20, 40, 10, None, None, 15)):
            ends = await land.ends()
            if wish is None:
                begun = await land.begin_merge(ends[0], ends[1], f"op{number}")
            else:
                end = next(each for each in ends if each >= key(wish))
                begun = await land.begin_split(wish, end, f"op{number}")
            assert isinstance(begun, Applied), begun
            await lives(land)
            async with counted:
                await land.check()
        over.set()
    assert await land.ends() == [key(15), key(40), LAST]
    await land.check()


async def appends(land: Land, over: asyncio.Event, counted: asyncio.Lock) -> None:
    while not over.is_set():
        async with counted:
            await land.append(1, 12, 25, 38, 51)
        await asyncio.sleep(0.02)


async def lives(land: Land) -> None:
    """Let coordinators live and die until no operation is under way.

    Each lives twice as long as the one before, and its compactor waits as long for a job:
    however slow the machine, one hears the heartbeats that tell it what others have
    reserved and handed to nobody, and one hands a job out before its taker has left.
    """
    lasts_s = LIFE_S
    async with asyncio.timeout(PATIENCE_S):
        while await land.operating():
            async with land.coordinator() as it:
                await live(land, it, lasts_s)
            lasts_s *= 2


async def live(land: Land, it: Shell, lasts_s: float) -> None:
    """Take and commit jobs for a while."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + lasts_s
    while loop.time() < until_s and await land.operating():
        taken = await it.take(wait_max_s=lasts_s / 2)
        if taken is not None:
            await finish(land, it, taken)
