"""Which changes replicas must have before they count: a fail-over may forget all others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from common.metadata.changes import (
    AddFiles,
    BumpGeneration,
    CancelRange,
    Change,
    ChangeTable,
    ClaimCoordination,
    CreateTable,
    DropTable,
    ForgetGarbage,
    MoveRequest,
    PinFiles,
    RestoreName,
    SetLimit,
    SetScale,
    SubmitRequest,
)
from common.metadata.keyspace import Command
from common.metadata.store_values import StoreHealth
from common.model.group import LimitScope
from common.model.request import KeyRange, Request, RequestState
from common.model.table import TableState
from common.model.tablet import PLUS_INFINITY, TabletId
from common.runtime import call_id
from tests.support.memory_store import MemorySession
from tests.support.store_harness import Harness, applied, commit, file, reserve
from tests.unit.metadata.test_mutation import memory

REQUEST = Request(id="r1", table="")


def promised(table: str, harness: Harness) -> list[Change]:
    """Return changes on whose answer somebody builds."""
    added = AddFiles(table=table, call=call_id(harness.clock), files={PLUS_INFINITY: (file("n"),)})
    cancelling = RequestState.CANCELLING
    return [
        added,
        SubmitRequest(request=replace(REQUEST, table=table)),
        CancelRange(table=table, request="r1", range=KeyRange()),
        MoveRequest(table=table, request="r1", state=cancelling),
        PinFiles(table=table, pin="p1", lease_s=60.0),
        ClaimCoordination(coordinator="c1"),
        BumpGeneration(table=table),
        SetLimit(scope=LimitScope.parse("group:g"), bytes_s=1 << 20),
        SetLimit(scope=LimitScope.parse("group:g"), bytes_s=None),
        SetScale(group="g", count=2),
        SetScale(group="g", count=None),
        RestoreName(table=table),
        *[ChangeTable(table=table, settings_version=1, state=TableState.PAUSED)] * 2,
        ChangeTable(table=table, settings_version=1, state=TableState.LIVE),
    ]


def noted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that grows with every write: whether it waits for replicas."""
    flags: list[bool] = []

    async def execute(
        self: MemorySession, effects: Sequence[Command], *, durable: bool = False
    ) -> bool:
        flags.append(durable)
        return self.execute_now(effects)

    monkeypatch.setattr(MemorySession, "execute", execute)
    return flags


def test_the_name_of_a_new_table_waits_for_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        harness = memory()
        await harness.store.store_id()
        flags = noted(monkeypatch)
        # The table, its name, live. The name has a slot of its own.
        created = CreateTable(table=harness.new_table())
        applied(await harness.apply(created))
        assert flags == [False, True, True]
        # It is repeated, and replicas may not have what the first try wrote.
        flags.clear()
        applied(await harness.apply(created))
        assert flags == [True]

    asyncio.run(story())


def test_accepted_calls_wait_for_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        harness = memory()
        tablet: TabletId = await harness.tablet_with("a", splits=())
        applied(await harness.apply(PinFiles(table=tablet.table, pin="p0", lease_s=60.0)))
        flags = noted(monkeypatch)
        for change in promised(tablet.table, harness):
            flags.clear()
            applied(await harness.apply(change))
            assert flags == [True], change
        # Reservations and commits need no replica: they are seen again, or made again.
        flags.clear()
        applied(await harness.apply(reserve(tablet, "t1", "a")))
        applied(await harness.apply(commit(tablet, "t1")))
        assert flags == [False, False]
        # A drop: the table goes, its tablet, its request, its keys, its name.
        flags.clear()
        await harness.apply(DropTable(table=tablet.table))
        assert flags[0]
        for entry in await harness.store.garbage(tablet.table):
            await harness.apply(ForgetGarbage(table=tablet.table, paths=(entry.path,)))
        flags.clear()
        assert applied(await harness.apply(DropTable(table=tablet.table))).complete
        assert flags[-2:] == [True, True]
        # So does one that finds nothing any more.
        flags.clear()
        assert applied(await harness.apply(DropTable(table=tablet.table))).complete
        assert flags == [True, True]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([StoreHealth(append_sync="always")] * 2, "before the answer"),
        ([StoreHealth(append_sync="always"), StoreHealth(append_sync="everysec")], "last second"),
        ([StoreHealth(append_sync="everysec"), StoreHealth(append_sync="no")], "half minute"),
        ([StoreHealth(append_sync="always"), StoreHealth()], "may not read"),
        ([StoreHealth(append_sync="always"), StoreHealth(append_only=False)], "loses them"),
        ([StoreHealth(append_sync="no"), StoreHealth(silence="gone")], "half minute"),
    ],
)
def test_a_cluster_is_as_durable_as_its_weakest_node(nodes: list[StoreHealth], words: str) -> None:
    health = StoreHealth.of_nodes({str(at): node for at, node in enumerate(nodes)}, 0.0)
    assert words in health.durability
