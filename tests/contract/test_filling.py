"""Tables that a recovery fills: nothing else reads or changes them, and runs never mix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.errors import MetadataError
from common.metadata.changes import (
    AcceptGeneration,
    AddFiles,
    BumpGeneration,
    Change,
    ChangeTable,
    CreateTable,
    DropTable,
    FinishFilling,
    PinFiles,
    PublishManifest,
    RestoreFiles,
    RestoreName,
    ResumeFilling,
    SubmitRequest,
    TriggerTable,
)
from common.metadata.keys import TABLES, TableKeys
from common.metadata.keyspace import hdel, hset
from common.model.request import Request
from common.model.table import Table, TableState
from common.model.tablet import TabletId
from common.runtime import call_id
from coordinator.context import TableFaults
from coordinator.storage.garbage_collector import UnfinishedTables
from tests.support.flaky import Fault, Point
from tests.support.store_harness import MIDDLE, Harness, applied, file, refused, reserve

pytestmark = pytest.mark.anyio
GRACE_S = 0.05


def put(table: Table, *paths: str, run: str = "r1") -> RestoreFiles:
    files = tuple(file(path) for path in paths)
    return RestoreFiles(tablet=TabletId(table.id, MIDDLE), files=files, run=run)


def finish(table: Table, files: int, run: str = "r1", **fields: object) -> FinishFilling:
    state = TableState.PAUSED if fields else TableState.LIVE
    return FinishFilling(table=table.id, run=run, files=files, state=state, **fields)  # type: ignore[arg-type]  # any field


def other_changes(harness: Harness, table: str) -> list[Change]:
    """Return changes that other parts of the service, and users, make of a table."""
    tablet = TabletId(table, MIDDLE)
    return [
        AddFiles(table=table, call=call_id(harness.clock), files={MIDDLE: (file("n"),)}),
        ChangeTable(table=table, settings_version=1, state=TableState.LIVE),
        ChangeTable(table=table, settings_version=1, state=TableState.PAUSED),
        TriggerTable(table=table, trigger="admin"),
        SubmitRequest(request=Request(id="r", table=table)),
        PinFiles(table=table, pin="p", lease_s=1.0),
        BumpGeneration(table=table),
        PublishManifest(table=table, number=1, path="p", begun_s=0.0),
        AcceptGeneration(table=table, generation=9),
        RestoreName(table=table),
        reserve(tablet, "t1", "a"),
    ]


async def test_a_table_is_filled_and_becomes_live_in_one_transaction(harness: Harness) -> None:
    table = await harness.filling_table()
    found = await harness.store.table(table.id)
    assert found == table
    applied(await harness.apply(put(table, "a")))
    applied(await harness.apply(put(table, "a")))
    found = await harness.store.table(table.id)
    assert found is not None
    assert found.filling is not None
    assert found.filling.text == "rebuild, 1 of 2 files"
    refused(await harness.apply(finish(table, 2)), "state")
    applied(await harness.apply(put(table, "b")))
    applied(await harness.apply(finish(table, 2)))
    applied(await harness.apply(finish(table, 2)))
    found = await harness.store.table(table.id)
    assert found == replace(table, state=TableState.LIVE, filling=None)
    refused(await harness.apply(finish(table, 2, run="r0")), "state")
    refused(await harness.apply(put(table, "c")), "state")


async def test_nothing_else_changes_a_filling_table(harness: Harness) -> None:
    table = await harness.filling_table()
    applied(await harness.apply(put(table, "a")))
    for change in other_changes(harness, table.id):
        refused(await harness.apply(change), "table")
    refused(await harness.apply(DropTable(table=table.id, delete_files=True)), "state")
    assert await harness.store.table(table.id) is not None
    assert await harness.store.garbage(table.id) == []


async def test_a_run_that_was_replaced_puts_nothing_in(harness: Harness) -> None:
    table = await harness.filling_table()
    applied(await harness.apply(put(table, "a")))
    resume = ResumeFilling(table=table.id, run="r2", verb="import", files=3)
    applied(await harness.apply(resume))
    applied(await harness.apply(resume))
    call = AddFiles(
        table=table.id, call=call_id(harness.clock), files={MIDDLE: (file("b"),)}, run="r1"
    )
    ghost = [put(table, "b"), finish(table, 1), call]
    ghost.append(AcceptGeneration(table=table.id, generation=9, run="r1"))
    for change in ghost:
        refused(await harness.apply(change), "state")
    applied(await harness.apply(replace(call, run="r2")))
    found = await harness.store.table(table.id)
    assert found is not None
    assert found.filling is not None
    assert found.filling.text == "import, 2 of 3 files"
    applied(await harness.apply(finish(table, 2, run="r2")))
    refused(await harness.apply(resume), "state")


async def test_a_run_whose_table_was_dropped_is_refused(harness: Harness) -> None:
    table = await harness.filling_table()
    assert applied(await harness.apply(DropTable(table=table.id, unfinished=True))).complete
    assert await harness.keys(table.id) == []
    refused(await harness.apply(put(table, "a")), "table")
    refused(await harness.apply(finish(table, 0)), "table")
    refused(
        await harness.apply(ResumeFilling(table=table.id, run="r2", verb="import", files=0)),
        "table",
    )


async def test_an_unfinished_drop_leaves_a_table_that_is_live_by_now(harness: Harness) -> None:
    table = await harness.filling_table()
    applied(await harness.apply(finish(table, 0)))
    assert not applied(await harness.apply(DropTable(table=table.id, unfinished=True))).complete
    found = await harness.store.table(table.id)
    assert found is not None
    assert found.state is TableState.LIVE


async def test_who_resumes_an_incomplete_table_accepts_what_is_missing(harness: Harness) -> None:
    table = await harness.filling_table()
    applied(await harness.apply(finish(table, 0, incomplete=True)))
    found = await harness.store.table(table.id)
    assert found is not None
    assert (found.state, found.incomplete) == (TableState.PAUSED, True)
    applied(
        await harness.apply(ChangeTable(table=table.id, settings_version=1, state=TableState.LIVE))
    )
    found = await harness.store.table(table.id)
    assert found is not None
    assert (found.state, found.incomplete) == (TableState.LIVE, False)


@pytest.mark.parametrize("fault", [Fault.APPLIED, Fault.LOST])
@pytest.mark.parametrize("name", ["create", "put", "finish"])
async def test_a_step_whose_answer_is_lost_is_repeated(
    harness: Harness, name: str, fault: Fault
) -> None:
    table = harness.new_table()
    made = await harness.filling_table(id=table.id, name=table.name) if name != "create" else table
    steps = {
        "create": CreateTable(table=made, splits=(MIDDLE,)),
        "put": put(made, "a"),
        "finish": finish(made, 0),
    }
    store, keyspace = harness.flaky()
    faults = [fault]

    async def script(point: Point) -> Fault:
        return faults.pop() if point is Point.EXEC and faults else Fault.NONE

    keyspace.script = script
    applied(await store.apply(steps[name]))
    applied(await harness.apply(steps[name]))


async def test_a_state_of_a_later_release_is_trusted_by_nothing(harness: Harness) -> None:
    """So a release before this one meets a filling table."""
    strange, other = await harness.filling_table(), await harness.table()
    await harness.write(hset(TableKeys(strange.id).table, {"state": "later"}))
    listed = await harness.store.listed_tables()
    assert (listed.tables, [*listed.broken]) == ((other,), [strange.name])
    changes = [put(strange, "a"), finish(strange, 0), *other_changes(harness, strange.id)]
    for change in [*changes, DropTable(table=strange.id, unfinished=True)]:
        with pytest.raises(MetadataError, match="is no state of a table"):
            await harness.apply(change)


async def test_a_filling_table_without_a_name_is_removed_after_the_grace(harness: Harness) -> None:
    nameless, named = await harness.filling_table(), await harness.filling_table()
    await harness.write(hdel(TABLES, nameless.name))
    unfinished = UnfinishedTables(
        harness.store, GRACE_S, lambda *_, **__: None, TableFaults(lambda *_, **__: None)
    )
    await unfinished.look()
    await harness.pass_time(GRACE_S)
    assert await unfinished.look() == 1
    assert await harness.store.table(nameless.id) is None
    assert await harness.store.table(named.id) == named
