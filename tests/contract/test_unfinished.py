"""Creations that were interrupted, and who removes what they have left."""

from __future__ import annotations

import pytest

from common.metadata.changes import CreateTable, DropTable
from common.metadata.commands import hdel, hset
from common.metadata.keys import TABLES, TableKeys
from common.model.table import Table, TableState
from coordinator.storage.unfinished_tables import UnfinishedTables
from coordinator.table_faults import TableFaults
from tests.support.flaky import Fault, Point
from tests.support.store_harness import Harness, applied, refused

pytestmark = pytest.mark.anyio
GRACE_S = 0.05


def remover(harness: Harness, logged: list[str] | None = None) -> UnfinishedTables:
    def log(event: str, **_fields: object) -> None:
        if logged is not None:
            logged.append(event)

    return UnfinishedTables(harness.store, GRACE_S, log, TableFaults(log))


async def interrupted(harness: Harness, transactions: int) -> Table:
    """Create a table and die after so many of the three transactions."""
    table = await harness.table()
    await harness.write(hset(TableKeys(table.id).table, {"state": "new"}))
    if transactions < 2:
        await harness.write(hdel(TABLES, table.name))
    return table


@pytest.mark.parametrize("transactions", [1, 2])
async def test_an_interrupted_creation_is_removed_after_the_grace(
    harness: Harness, transactions: int
) -> None:
    table, living = await interrupted(harness, transactions), await harness.table()
    unfinished = remover(harness)
    assert await unfinished.look() == 0, "a creation may be under way"
    await harness.pass_time(GRACE_S)
    assert await unfinished.look() == 1
    assert await harness.keys(table.id) == []
    assert await harness.store.names() == {living.name: living.id}
    assert await harness.store.table(living.id) == living
    assert await unfinished.look() == 0


async def test_a_creation_that_is_finished_in_time_stays(harness: Harness) -> None:
    table = await interrupted(harness, 2)
    unfinished = remover(harness)
    await unfinished.look()
    await harness.write(hset(TableKeys(table.id).table, {"state": "live"}))
    await harness.pass_time(GRACE_S)
    assert await unfinished.look() == 0
    assert await harness.store.tables() == [table]


async def test_a_name_without_a_table_is_free_again(harness: Harness) -> None:
    table = await harness.table()
    names = {table.name: table.id}
    keys = await harness.keys(table.id)
    await harness.write(*(("DEL", key) for key in keys))
    assert await harness.store.names() == names
    unfinished = remover(harness)
    await unfinished.look()
    await harness.pass_time(GRACE_S)
    assert await unfinished.look() == 1
    assert await harness.store.names() == {}


async def test_a_live_table_without_a_name_is_left_alone(harness: Harness) -> None:
    table = await harness.table()
    await harness.write(hdel(TABLES, table.name))
    logged: list[str] = []
    unfinished = remover(harness, logged)
    await unfinished.look()
    await harness.pass_time(GRACE_S)
    assert await unfinished.look() == 0
    assert logged == ["table has no name"], "once"
    outcome = applied(await harness.apply(DropTable(table=table.id, unfinished=True)))
    assert not outcome.complete
    found = await harness.store.table(table.id)
    assert found is not None
    assert found.state is TableState.LIVE


@pytest.mark.parametrize("writes", [1, 2])
async def test_a_creator_that_wakes_up_after_the_removal_is_refused(
    harness: Harness, writes: int
) -> None:
    store, keyspace = harness.flaky()
    await store.store_id()
    table = harness.new_table()
    unfinished, seen = remover(harness), 0

    async def script(point: Point) -> Fault:
        nonlocal seen
        seen += point is Point.EXEC
        if point is Point.EXEC and seen == writes + 1:
            await unfinished.look()
            await harness.pass_time(GRACE_S)
            assert await unfinished.look() == 1
        return Fault.NONE

    keyspace.script = script
    refused(await store.apply(CreateTable(table=table)), "table")
    assert await harness.keys(table.id) == []
    assert await harness.store.names() == {}
