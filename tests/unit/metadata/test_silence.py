"""A store that does not answer is noticed, with the time of its silence and the cause."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from common.errors import MetadataError, UnavailableError
from neve.gateway.store_watch import StoreWatch
from tests.support.memory_store import MemoryStore
from tests.support.predictable import ManualClock


class MutedStore(MemoryStore):
    """Answers, refuses or is silent, as it is told."""

    error: Exception | None = None
    hangs = False

    async def now_s(self) -> float:
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.error is not None:
            raise self.error
        return await super().now_s()


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MutedStore(self.clock)
        self.told: list[str] = []
        self.watch = StoreWatch(
            self.store, self.clock, lambda event, **_: self.told.append(event), patience_s=0.01
        )


def play(script: Callable[[World], Awaitable[None]]) -> World:
    async def main() -> World:
        world = World()
        await script(world)
        return world

    return asyncio.run(main())


def test_a_store_that_answers_is_not_spoken_of() -> None:
    async def script(world: World) -> None:
        await world.watch.look()
        await world.watch.until_looked()

    world = play(script)
    assert (world.watch.silent_s, world.watch.warning, world.told) == (0.0, "", [])


def test_its_silence_is_counted_from_the_first_question_without_an_answer() -> None:
    async def script(world: World) -> None:
        await world.watch.look()
        world.store.error = UnavailableError("connection refused")
        for _ in range(3):
            world.clock.advance(5)
            await world.watch.look()
        world.clock.advance(2)

    world = play(script)
    assert world.watch.silent_s == 12.0
    assert world.watch.warning.startswith(
        "the store (Redis) has not answered for 12.0 s (connection refused): reads and changes"
    )
    assert world.told == ["store does not answer"]


def test_a_frozen_store_is_not_waited_for() -> None:
    async def script(world: World) -> None:
        world.store.hangs = True
        await world.watch.look()

    world = play(script)
    assert world.watch.silent_s > 0
    assert "no answer within 0.01 s" in world.watch.warning


def test_a_store_that_refuses_is_no_better() -> None:
    async def script(world: World) -> None:
        world.store.error = MetadataError("NOAUTH")
        await world.watch.look()

    assert "(NOAUTH)" in play(script).watch.warning


def test_a_store_that_answers_again_is_no_longer_silent() -> None:
    async def script(world: World) -> None:
        world.store.error = UnavailableError("connection refused")
        await world.watch.look()
        world.store.error = None
        await world.watch.look()

    world = play(script)
    assert (world.watch.silent_s, world.watch.warning) == (0.0, "")
    assert world.told == ["store does not answer", "store answers again"]


def test_nothing_is_said_before_the_first_look() -> None:
    async def script(world: World) -> None:
        waiting = asyncio.ensure_future(world.watch.until_looked())
        await asyncio.sleep(0)
        assert not waiting.done()
        running = asyncio.ensure_future(world.watch.run_forever())
        await waiting
        running.cancel()

    play(script)
