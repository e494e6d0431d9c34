"""Who leads: the claim is in the store, and on its replicas, before anything is decided."""

from __future__ import annotations

import asyncio

from common.clock import ManualClock
from common.metadata.commands import delete
from common.metadata.executor import Patience
from common.metadata.keys import COORDINATOR
from common.metadata.memory import MemoryStore
from common.metadata.mutation import transaction_for
from common.metadata.mutation.transaction import Seen, Write
from common.metadata.store import KeyspaceStore
from common.metadata.upkeep_changes import ClaimCoordination
from common.settings import Settings
from coordinator import recovery
from coordinator.registry import planner_for
from coordinator.scanner import Scanner
from tests.support.flaky import Fault, FlakyKeyspace, Point
from tests.support.patience import PATIENCE_S

CLAIM = ClaimCoordination(coordinator="c1")


def silent(_event: str, **_fields: object) -> None:
    return


def test_replicas_have_the_claim_before_it_counts_also_when_it_is_repeated() -> None:
    """A fail-over that forgot it would show another's id, and end the one that leads."""
    for leader in (None, b"other", b"c1"):
        decided = transaction_for(CLAIM).decide(Seen({"leader": leader}, 0.0))
        assert isinstance(decided, Write)
        assert decided.durable


def test_a_claim_whose_fate_is_unknown_is_made_again() -> None:
    async def story() -> None:
        keyspace = FlakyKeyspace(MemoryStore(ManualClock()).keyspace)
        store = KeyspaceStore(
            keyspace,
            patience=Patience(tries_max=1),
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
        await asyncio.wait_for(recovery.recover(store, scanner, "c1", silent), PATIENCE_S)
        assert not left
        assert await store.coordinator() == "c1"

    asyncio.run(story())


def test_a_lead_that_the_store_has_forgotten_is_claimed_again() -> None:
    async def story() -> None:
        store = MemoryStore(ManualClock())
        await store.apply(CLAIM)
        watch = asyncio.create_task(recovery.until_replaced(store, "c1", silent))
        store.keyspace.run([delete(COORDINATOR)])
        async with asyncio.timeout(PATIENCE_S):
            while await store.coordinator() is None:
                await asyncio.sleep(0.01)
            assert await store.coordinator() == "c1"
            await store.apply(ClaimCoordination(coordinator="c2"))
            assert await watch == "c2"

    asyncio.run(story())
