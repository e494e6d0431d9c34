"""Creations that were interrupted, names that were lost, and who repairs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from common.metadata.changes import CreateTable, DropTable, RestoreName
from common.metadata.keys import TABLES, TableKeys
from common.metadata.keyspace import hdel, hset
from common.model.location_identity import LocationIdentity
from common.model.table import Table, TableState
from coordinator.context import TableFaults
from coordinator.storage.garbage_collector import UnfinishedTables
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


@pytest.mark.parametrize("state", ["live", "paused"])
async def test_a_table_that_has_lost_its_name_gets_it_back_after_the_grace(
    harness: Harness, state: str
) -> None:
    table = await harness.table()
    await harness.write(hset(TableKeys(table.id).table, {"state": state}))
    await harness.write(hdel(TABLES, table.name))
    logged: list[str] = []
    unfinished = remover(harness, logged)
    assert await unfinished.look() == 0, "the two were perhaps read at different moments"
    assert await unfinished.look() == 0
    outcome = applied(await harness.apply(DropTable(table=table.id, unfinished=True)))
    assert not outcome.complete, "it holds rows"
    assert await harness.store.names() == {}
    await harness.pass_time(GRACE_S)
    assert await unfinished.look() == 1
    assert await harness.store.tables() == [replace(table, state=TableState(state))]
    assert await unfinished.look() == 0
    assert logged == ["table has no name", "name given back to a table"]


@pytest.mark.parametrize("taken", ["name", "location"])
async def test_operators_hear_of_a_table_whose_name_cannot_be_given_back(
    harness: Harness, taken: str
) -> None:
    table = await harness.table()
    await harness.write(hdel(TABLES, table.name))
    other = await harness.table(**{taken: getattr(table, taken)})
    faults = TableFaults(lambda _event, **_fields: None)
    unfinished = UnfinishedTables(harness.store, GRACE_S, lambda _event, **_fields: None, faults)
    await unfinished.look()
    await harness.pass_time(GRACE_S)
    assert await unfinished.look() == 0
    assert await harness.store.tables() == [other]
    (sentence,) = faults.notices
    assert f"has lost its name {table.name!r}" in sentence
    assert ("exists already" if taken == "name" else "overlaps") in sentence
    await harness.write(hdel(TABLES, other.name))
    await harness.write(*(("DEL", key) for key in await harness.keys(other.id)))
    assert await unfinished.look() == 1
    assert await unfinished.look() == 0
    assert faults.notices == ()


async def test_a_name_is_not_given_back_in_the_place_of_a_neighbour_with_another_identity(
    harness: Harness,
) -> None:
    table = await harness.table()
    await harness.write(hdel(TABLES, table.name))
    other = await harness.table()
    same = LocationIdentity(("inode 1:1",))

    async def identities(locations: Mapping[str, str]) -> Mapping[str, LocationIdentity]:
        assert locations == {each.id: each.location for each in (table, other)}
        return dict.fromkeys(locations, same)

    faults = TableFaults(lambda _event, **_fields: None)
    log = faults._log
    unfinished = UnfinishedTables(harness.store, GRACE_S, log, faults, identities)
    await unfinished.look()
    await harness.pass_time(GRACE_S)
    assert await unfinished.look() == 0
    assert faults.notices


async def test_a_name_given_back_goes_again_with_a_table_that_was_dropped_meanwhile(
    harness: Harness,
) -> None:
    table = await harness.table()
    await harness.write(hdel(TABLES, table.name))
    store, keyspace = harness.flaky()
    await store.store_id()
    dropped = False

    async def script(point: Point) -> Fault:
        nonlocal dropped
        if point is Point.EXEC and not dropped:  # It is about to write the name.
            dropped = True
            applied(await harness.apply(DropTable(table=table.id)))
        return Fault.NONE

    keyspace.script = script
    refused(await store.apply(RestoreName(table=table.id)), "table")
    assert await harness.store.names() == {}
    assert await harness.keys(table.id) == []


async def test_a_name_is_given_back_once(harness: Harness) -> None:
    table = await harness.table()
    applied(await harness.apply(RestoreName(table=table.id)))
    assert await harness.store.names() == {table.name: table.id}
    refused(await harness.apply(RestoreName(table="gone")), "table")
    assert await harness.store.names() == {table.name: table.id}


async def test_a_table_that_goes_and_has_no_name_is_gone_on_with(harness: Harness) -> None:
    table = await harness.table()
    await harness.write(hset(TableKeys(table.id).table, {"state": "going", "deletes": 0}))
    await harness.write(hdel(TABLES, table.name))
    unfinished = remover(harness)
    await unfinished.look()
    await harness.pass_time(GRACE_S)
    assert await unfinished.look() == 1
    assert await harness.keys(table.id) == []


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
