"""A pin that protects files while they are read: renewed through trouble, or known to be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from common.errors import ConflictError, RefusedError, UnavailableError
from common.metadata.changes import Change, CreateTable, Outcome, PinFiles, Unknown
from common.metadata.file_pin import LEASE_S, FilePin
from common.metadata.keys import TableKeys
from common.metadata.keyspace import delete
from common.model.table import Column, Table
from tests.support.memory_store import MemoryStore
from tests.support.sim_loop import EPOCH_S, SimLoop, World

pytestmark = pytest.mark.unit
TABLE = Table(id="t1", name="events", location="file:///data/e", schema=(Column("x", "int64"),))


class Troubled(MemoryStore):
    """Does not answer, or nobody knows whether it did, for a while."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.world = world
        self.silent_s = (0.0, 0.0)
        self.unknown_s = (0.0, 0.0)

    def _within(self, span: tuple[float, float]) -> bool:
        return span[0] <= self.world.now_s() - EPOCH_S < span[1]

    async def apply(self, change: Change) -> Outcome:
        if isinstance(change, PinFiles) and self._within(self.silent_s):
            raise UnavailableError("simulated: the store does not answer")
        if isinstance(change, PinFiles) and self._within(self.unknown_s):
            return Unknown(reason="simulated: the store went silent")
        return await super().apply(change)


def story(tell: Callable[[Troubled, SimLoop], Coroutine[Any, Any, None]], until_s: float) -> None:
    """Run a story in simulated time."""
    world = World(1)
    store, process = Troubled(world), world.process("reader")

    async def run() -> None:
        await store.apply(CreateTable(table=TABLE))
        await tell(store, process)
        told.append(True)

    told: list[bool] = []
    process.start(run())
    world.run_until(EPOCH_S + until_s)
    world.end()
    assert told, "the story did not come to its end"


def test_one_error_does_not_end_the_renewal() -> None:
    async def tell(store: Troubled, _process: SimLoop) -> None:
        store.silent_s, store.unknown_s = (25.0, 115.0), (200.0, 290.0)
        async with FilePin(store, "t1", "p1") as pin:
            for _ in range(40):
                await asyncio.sleep(10.0)
                pin.check()
            (held,) = await store.pins("t1")
            assert held.until_s > store.world.now_s()
        assert await store.pins("t1") == []

    story(tell, 500.0)


def test_a_pin_that_was_not_renewed_for_a_lease_is_lost() -> None:
    async def tell(store: Troubled, _process: SimLoop) -> None:
        store.silent_s = (25.0, 1000.0)
        async with FilePin(store, "t1", "p1") as pin:
            await asyncio.sleep(LEASE_S - 1)
            pin.check()
            await asyncio.sleep(2)
            with pytest.raises(ConflictError, match=r"no longer protected .* renewed for 120 s"):
                pin.check()

    story(tell, 500.0)


def test_a_reader_that_stood_still_knows_it_when_it_goes_on() -> None:
    """Before the first renewal has even been tried."""

    async def tell(store: Troubled, process: SimLoop) -> None:
        async with FilePin(store, "t1", "p1") as pin:
            process.frozen_until_s = store.world.now_s() + LEASE_S + 1
            await asyncio.sleep(0)
            with pytest.raises(ConflictError):
                pin.check()

    story(tell, 500.0)


def test_a_pin_that_the_store_has_forgotten_is_lost() -> None:
    async def tell(store: Troubled, _process: SimLoop) -> None:
        async with FilePin(store, "t1", "p1") as pin:
            store.keyspace.run([delete(TableKeys("t1").pins)])
            pin.check()
            with pytest.raises(ConflictError, match="does not exist any more"):
                await pin.confirm()
        async with FilePin(store, "t1", "p2") as pin:
            store.keyspace.run([delete(TableKeys("t1").pins)])
            await asyncio.sleep(31.0)
            with pytest.raises(ConflictError, match="does not exist any more"):
                pin.check()

    story(tell, 500.0)


def test_a_pin_does_not_start_if_the_store_refuses_it() -> None:
    async def tell(store: Troubled, _process: SimLoop) -> None:
        with pytest.raises(RefusedError, match="table none does not exist"):
            await FilePin(store, "none", "p1").__aenter__()
        store.unknown_s = (0.0, 1.0)
        with pytest.raises(UnavailableError, match="went silent"):
            await FilePin(store, "t1", "p1").__aenter__()

    story(tell, 5.0)


def test_a_pin_is_kept_for_copies_unless_the_work_failed() -> None:
    async def tell(store: Troubled, _process: SimLoop) -> None:
        async with FilePin(store, "t1", "kept", keep_s=500.0):
            pass
        with pytest.raises(ZeroDivisionError):
            async with FilePin(store, "t1", "failed", keep_s=500.0):
                raise ZeroDivisionError
        (kept,) = await store.pins("t1")
        assert (kept.pin, kept.until_s) == ("kept", store.world.now_s() + 500.0)

    story(tell, 5.0)


def test_a_reader_who_left_is_not_waited_for() -> None:
    async def tell(store: Troubled, _process: SimLoop) -> None:
        ends: list[Coroutine[Any, Any, object]] = []
        async with FilePin(store, "t1", "p1", later=ends.append):
            pass
        assert len(await store.pins("t1")) == 1
        for end in ends:
            await end
        assert await store.pins("t1") == []

    story(tell, 5.0)
