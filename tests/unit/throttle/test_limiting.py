"""Limits between the store, operators and the core; and what metrics tell of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from common.errors import MetadataError, RequestError, UnavailableError
from common.model.group import LimitScope
from common.runtime import SystemClock
from common.telemetry import METRICS
from coordinator import store_watch
from coordinator.context import ShellContext
from coordinator.core import events as on
from coordinator.store_watch import RateLimits
from coordinator.wiring import scope_figures
from neve import api
from tests.support.memory_store import MemoryStore
from tests.support.predictable import CountedIds

pytestmark = pytest.mark.unit

GROUP = LimitScope.parse("group:default")


class SilentStore(MemoryStore):
    """A store that does not answer the first reads of limits."""

    silent = 2

    async def limits(self) -> Mapping[LimitScope, int]:
        if self.silent:
            self.silent -= 1
            raise UnavailableError("the store does not answer")
        return await super().limits()


def limits_over(store: MemoryStore) -> tuple[RateLimits, list[on.Event]]:
    heard: list[on.Event] = []
    context = ShellContext(
        store=store,
        clock=SystemClock(),
        ids=CountedIds(),
        log=lambda *_, **__: None,
        coordinator="c",
    )
    return RateLimits(context, heard.append), heard


def test_a_limit_is_written_and_heard_of() -> None:
    async def story() -> None:
        store = MemoryStore(SystemClock())
        made, heard = limits_over(store)
        await made.set("group:default", 1 << 20)
        await made.set("volume:fast", 0)
        await made.set("volume:fast", None)
        assert await store.limits() == {GROUP: 1 << 20}
        assert heard[-1] == on.LimitsSeen(limits={GROUP: 1 << 20})
        with pytest.raises(RequestError, match="limit of group:default is 5 bytes/s"):
            await made.set("group:default", 5)
        with pytest.raises(RequestError, match="'shelf:a' is not a scope"):
            await made.set("shelf:a", 0)

    asyncio.run(story())


def test_no_job_is_handed_out_before_the_limits_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_watch, "LIMITS_RETRY_S", 0.001)

    async def story() -> None:
        made, heard = limits_over(SilentStore(SystemClock()))
        with pytest.raises(UnavailableError):
            await made.refresh()
        await made.load()
        assert heard == [on.LimitsSeen(limits={})]

    asyncio.run(story())


class SlowStore(MemoryStore):
    """A store whose first answer with limits arrives late."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.asked, self.arrives = asyncio.Event(), asyncio.Event()

    async def limits(self) -> Mapping[LimitScope, int]:
        limits = await super().limits()
        if not self.asked.is_set():
            self.asked.set()
            await self.arrives.wait()
        return limits


def test_a_read_that_began_before_a_limit_was_set_does_not_undo_it() -> None:
    async def story() -> None:
        store = SlowStore()
        made, heard = limits_over(store)
        regular = asyncio.create_task(made.refresh())
        await store.asked.wait()
        setting = asyncio.create_task(made.set("group:default", 1 << 20))
        while not await MemoryStore.limits(store):
            await asyncio.sleep(0)
        for _ in range(100):  # Without an order of reads, `set` ends here.
            await asyncio.sleep(0)
        store.arrives.set()
        await asyncio.gather(regular, setting)
        assert heard[-1] == on.LimitsSeen(limits={GROUP: 1 << 20})

    asyncio.run(story())


def test_a_store_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.metadata.changes.upkeep.LIMITS_MAX", 0)

    async def story() -> None:
        made, heard = limits_over(MemoryStore(SystemClock()))
        with pytest.raises(MetadataError, match="limit of group:default is not written: 0 limits"):
            await made.set("group:default", 1 << 20)
        assert heard == []

    asyncio.run(story())


def test_figures_are_metrics_with_their_labels() -> None:
    status = api.Limit(
        kind="volume",
        name="fast",
        limit_bytes_s=100,
        is_default=False,
        rate_bytes_s=80,
        granted_bytes_s=70.0,
        attempts=2,
        throttled=1,
        moved_bytes=5,
        waited_s=0.5,
    )
    known = {metric.name: metric for metric in METRICS}
    told = {figure.metric: figure.value for figure in scope_figures([status])}
    assert list(told.values()) == [80, 70.0, 1, 5, 0.5]
    assert told.keys() == {name for name in known if name.startswith("neve_throttle_")}
    for figure in scope_figures([status]):
        assert len(figure.labels) == len(known[figure.metric].labels)
