"""Drops of which a fail-over forgets a step while they go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from common.metadata.changes import DropTable
from common.metadata.commands import hdel, hset
from common.metadata.keys import TableKeys
from common.model.table import TableState
from common.model.tablet import TabletId
from tests.support.flaky import Fault, Point
from tests.support.store_harness import MIDDLE, Harness, applied, file

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


async def test_a_name_is_not_freed_while_its_table_is_there(harness: Harness) -> None:
    table = await harness.table()
    keys = TableKeys(table.id)

    async def forget() -> bool:
        if await harness.store.table(table.id) is not None:
            return False
        await harness.write(hset(keys.table, {"state": "going", "deletes": 0}))
        return True

    await dropped(harness, DropTable(table=table.id), forget)
    assert await harness.keys(table.id) == []
    assert await harness.store.names() == {}


async def test_nobody_resumes_the_drop_of_a_table_that_stays(harness: Harness) -> None:
    table = await harness.table()
    applied(await harness.apply(DropTable(table=table.id, resumed=True)))
    found = await harness.store.table(table.id)
    assert found is not None
    assert found.state is TableState.LIVE
    assert await harness.store.tablet_ids(table.id)
