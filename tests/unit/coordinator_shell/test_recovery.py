"""Who leads: the claim is in the store, and on its replicas, before anything is decided."""

from __future__ import annotations

import asyncio

import pytest

from common.metadata.changes import ClaimCoordination, transaction_for
from common.metadata.changes.protocol import Seen, Write
from common.metadata.codec.table import CLAIM as CLAIMS
from common.metadata.executor import RetryLimits
from common.metadata.keys import COORDINATOR
from common.metadata.keyspace import delete, set_string
from common.metadata.store import TabletStore
from common.metadata.store_values import CoordinatorClaim, StoreHealth
from common.settings import Settings
from coordinator import store_watch
from coordinator.registry import planner_for
from coordinator.scan.scanner import Scanner
from coordinator.store_watch import StoreHealthWatch
from tests.support.flaky import Fault, FlakyKeyspace, Point
from tests.support.memory_store import MemoryStore
from tests.support.patience import PATIENCE_S
from tests.support.predictable import ManualClock

CLAIM = ClaimCoordination(coordinator="c1")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_watch, "CLAIM_PAUSE_S", 0.02)
    monkeypatch.setattr(store_watch, "LEAD_CHECK_S", 0.02)


def leader(claim: CoordinatorClaim | None) -> str | None:
    return None if claim is None else claim.coordinator


def silent(_event: str, **_fields: object) -> None:
    return


def test_replicas_have_the_claim_before_it_counts_also_when_it_is_repeated() -> None:
    """A fail-over that forgot it would show another's id, and end the one that leads."""
    for other in (None, CLAIMS.pack(CoordinatorClaim(coordinator="c0", since_s=9.0))):
        decided = transaction_for(CLAIM).decide(Seen({"coordinator": other}, 0.0))
        assert isinstance(decided, Write)
        assert decided.durable


def test_a_claim_whose_fate_is_unknown_is_made_again() -> None:
    async def story() -> None:
        keyspace = FlakyKeyspace(MemoryStore(ManualClock()).keyspace)
        store = TabletStore(
            keyspace,
            patience=RetryLimits(tries_max=1),
            sleep=asyncio.sleep,
            chance=lambda: 0.0,
            new_store_id=lambda: "store",
        )
        await store.store_id()
        left = [Fault.LOST, Fault.LOST]

        async def script(point: Point) -> Fault:
            return left.pop() if point is Point.EXEC and left else Fault.NONE

        keyspace.script = script
        scanner = Scanner(store, planner_for(Settings()), silent)
        await asyncio.wait_for(store_watch.take_lead(store, scanner, "c1", silent), PATIENCE_S)
        assert not left
        assert leader(await store.claim()) == "c1"

    asyncio.run(story())


def test_a_lead_that_the_store_has_forgotten_is_claimed_again() -> None:
    async def story() -> None:
        store = MemoryStore(ManualClock())
        await store.apply(CLAIM)
        watch = asyncio.create_task(store_watch.until_replaced(store, "c1", silent))
        store.keyspace.run([delete(COORDINATOR)])
        async with asyncio.timeout(PATIENCE_S):
            while await store.claim() is None:
                await asyncio.sleep(0.01)
            assert leader(await store.claim()) == "c1"
            await store.apply(ClaimCoordination(coordinator="c2"))
            assert await watch == "c2"

    asyncio.run(story())


def test_a_lead_that_the_store_has_gone_back_behind_is_claimed_again() -> None:
    """The store shows the claim of a coordinator that left long ago: nobody else leads."""

    async def story() -> None:
        clock = ManualClock()
        store = MemoryStore(clock)
        await store.apply(ClaimCoordination(coordinator="c0"))
        old = await store.claim()
        assert old is not None
        clock.advance(5.0)
        scanner = Scanner(store, planner_for(Settings()), silent)
        claimed_s = await store_watch.take_lead(store, scanner, "c1", silent)
        watch = asyncio.create_task(store_watch.until_replaced(store, "c1", silent, claimed_s))
        store.keyspace.run([set_string(COORDINATOR, CLAIMS.pack(old))])
        async with asyncio.timeout(PATIENCE_S):
            while leader(await store.claim()) != "c1":
                assert not watch.done(), "it left although nobody else leads"
                await asyncio.sleep(0.01)
            await store.apply(ClaimCoordination(coordinator="c2"))
            assert await watch == "c2"

    asyncio.run(story())


def test_of_two_that_live_when_the_store_goes_back_the_younger_leads() -> None:
    async def story() -> None:
        clock = ManualClock()
        store = MemoryStore(clock)
        watches = {}
        for name in ("c0", "c1"):
            clock.advance(5.0)
            await store.apply(ClaimCoordination(coordinator=name))
            claim = await store.claim()
            assert claim is not None
            if name == "c0":
                old = claim
            watches[name] = store_watch.until_replaced(store, name, silent, claim.since_s)
        # The older one has not yet seen that it was replaced, and now its claim is back.
        store.keyspace.run([set_string(COORDINATOR, CLAIMS.pack(old))])
        tasks = {name: asyncio.create_task(watch) for name, watch in watches.items()}
        assert await asyncio.wait_for(tasks["c0"], PATIENCE_S) == "c1"
        assert leader(await store.claim()) == "c1"
        tasks["c1"].cancel()

    asyncio.run(story())


class EvictingStore(MemoryStore):
    """Throws keys away, until an operator sets another policy."""

    policy = "allkeys-lru"

    async def health(self) -> StoreHealth:
        return StoreHealth(policy=self.policy)


def test_nobody_leads_on_a_store_that_throws_keys_away() -> None:
    async def story() -> None:
        store = EvictingStore(ManualClock())
        scanner = Scanner(store, planner_for(Settings()), silent)
        heard: asyncio.Queue[object] = asyncio.Queue()

        def log(_event: str, **fields: object) -> None:
            heard.put_nowait(fields.get("cause"))

        start = asyncio.create_task(store_watch.take_lead(store, scanner, "c1", log))
        assert "allkeys-lru" in str(await asyncio.wait_for(heard.get(), PATIENCE_S))
        assert await store.claim() is None
        store.policy = "noeviction"
        await asyncio.wait_for(start, PATIENCE_S)
        assert leader(await store.claim()) == "c1"

    asyncio.run(story())


def test_the_coordinator_keeps_the_reserve_and_remembers_what_is_wrong() -> None:
    async def story() -> None:
        store = EvictingStore(ManualClock())
        told: list[str] = []
        care = StoreHealthWatch(store, lambda event, **_: told.append(event))
        assert not care.health.warnings
        await care.look()
        await care.look()
        assert "evict" in care.health.warnings[0]
        assert told == ["store needs care"]

    asyncio.run(story())
