"""Drops of which a fail-over forgets a step while they go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from common.metadata.changes import CreateTable, DropTable, Outcome
from common.metadata.keys import TableKeys
from common.metadata.keyspace import hdel, hset
from common.model.table import TableState
from common.model.tablet import TabletId
from tests.support.flaky import Fault, Point
from tests.support.store_harness import MIDDLE, Harness, applied, file, refused

pytestmark = pytest.mark.anyio


async def dropped(
    harness: Harness, change: DropTable, forget: Callable[[], Awaitable[bool]]
) -> None:
    """Drop a table; before each of its writes `forget` may take something back, once."""
    store, keyspace = harness.flaky()
    await store.store_id()
    forgotten = False

    async def script(point: Point) -> Fault:
        nonlocal forgotten
        if point is Point.EXEC and not forgotten:
            forgotten = await forget()
        return Fault.NONE

    keyspace.script = script
    applied(await store.apply(change))  # type: ignore[arg-type]  # a type variable
    assert forgotten


async def test_a_table_that_goes_no_longer_is_set_going_again(harness: Harness) -> None:
    table = await harness.table()
    applied(await harness.add(TabletId(table.id, MIDDLE), file("a")))
    keys = TableKeys(table.id)

    async def forget() -> bool:
        found = await harness.store.table(table.id)
        if found is None or found.state is not TableState.GOING:
            return False
        await harness.write(hset(keys.table, {"state": "live"}), hdel(keys.table, "deletes"))
        return True

    await dropped(harness, DropTable(table=table.id, delete_files=True), forget)
    found = await harness.store.table(table.id)
    assert found is not None
    assert found.state is TableState.GOING
    assert "a" in {entry.path for entry in await harness.store.garbage(table.id)}


async def test_nobody_makes_a_table_whose_name_is_about_to_be_freed(harness: Harness) -> None:
    table = await harness.table()
    again = CreateTable(table=table)
    made: list[Outcome] = []

    async def create() -> bool:
        if await harness.store.table(table.id) is not None:
            return False
        # Its creator has had no answer, and repeats its call: the name would be freed under it.
        made.append(await harness.apply(again))
        return True

    await dropped(harness, DropTable(table=table.id), create)
    refused(made[0], "exists")
    assert await harness.store.names() == {}
    assert await harness.keys(table.id) == []
    refused(await harness.apply(again), "exists")


async def test_a_name_without_a_table_is_freed_under_nobody(harness: Harness) -> None:
    table = await harness.table()
    await harness.write(*(("DEL", key) for key in await harness.keys(table.id)))
    again, made = CreateTable(table=table), list[Outcome]()
    store, keyspace = harness.flaky()
    await store.store_id()
    execs = 0

    async def script(point: Point) -> Fault:
        nonlocal execs
        execs += point is Point.EXEC
        if point is Point.EXEC and execs == 2:  # It is about to free the name.
            made.append(await harness.apply(again))
        return Fault.NONE

    keyspace.script = script
    applied(await store.apply(DropTable(table=table.id, unfinished=True)))
    refused(made[0], "exists")
    assert await harness.store.names() == {}
    assert await harness.keys(table.id) == []


async def test_a_creation_that_comes_first_is_not_barred(harness: Harness) -> None:
    table = harness.new_table()
    store, keyspace = harness.flaky()
    await store.store_id()
    created = False

    async def script(point: Point) -> Fault:
        nonlocal created
        if point is Point.EXEC and not created:  # It is about to bar the id.
            created = True
            applied(await harness.apply(CreateTable(table=table)))
        return Fault.NONE

    keyspace.script = script
    outcome = applied(await store.apply(DropTable(table=table.id, unfinished=True)))
    assert not outcome.complete
    assert await harness.store.tables() == [table]


async def test_nobody_resumes_the_drop_of_a_table_that_stays(harness: Harness) -> None:
    table = await harness.table()
    applied(await harness.apply(DropTable(table=table.id, resumed=True)))
    found = await harness.store.table(table.id)
    assert found is not None
    assert found.state is TableState.LIVE
    assert await harness.store.tablet_ids(table.id)


async def test_a_creation_sees_that_its_id_is_barred_while_it_looks(harness: Harness) -> None:
    table = harness.new_table()
    store, keyspace = harness.flaky()
    await store.store_id()
    barred = False

    async def script(point: Point) -> Fault:
        nonlocal barred
        if point is Point.EXEC and not barred:  # It has found nothing, and is about to write.
            barred = True
            applied(await harness.apply(DropTable(table=table.id)))
        return Fault.NONE

    keyspace.script = script
    refused(await store.apply(CreateTable(table=table)), "exists")
    assert await harness.keys(table.id) == []
    assert await harness.store.names() == {}
