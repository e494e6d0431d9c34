"""Triggers in the store: what asks, what has been answered, also across a split and a merge."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import (
    BeginOperation,
    ChangeTable,
    CreateTable,
    DropTable,
    EndOperation,
    StepOperation,
    TriggerTable,
    WriteAnalyses,
    WriteAnalysis,
)
from common.metadata.keys import TabletKeys
from common.metadata.keyspace import hset
from common.model.table import TableState
from common.model.tablet import (
    PLUS_INFINITY,
    Analysis,
    OperationKind,
    OperationStep,
    TabletId,
)
from tests.support.store_harness import Harness, applied, file, refused

pytestmark = pytest.mark.anyio


async def test_a_trigger_is_noted_with_the_store_s_time_each_later_than_the_last(
    harness: Harness,
) -> None:
    table = await harness.table()
    asked = TriggerTable(table=table.id, trigger="admin")
    before_s = await harness.store.now_s()
    applied(await harness.apply(asked))
    first = await harness.store.table(table.id)
    assert first is not None
    assert first.triggered_by == "admin"
    assert first.triggered_at_s >= before_s
    assert first.settings_version == table.settings_version, "analyses stay as they are"
    applied(await harness.apply(replace(asked, trigger="periodic")))
    second = await harness.store.table(table.id)
    assert second is not None
    assert (second.triggered_by, second.triggered_at_s > first.triggered_at_s) == ("periodic", True)
    applied(await harness.apply(CreateTable(table=table)))
    assert await harness.store.table(table.id) == second, "a repeated creation changes nothing"


async def test_the_planner_of_a_table_that_is_not_live_is_not_asked(harness: Harness) -> None:
    table = await harness.table()
    version = table.settings_version
    paused = ChangeTable(table=table.id, settings_version=version, state=TableState.PAUSED)
    applied(await harness.apply(paused))
    asked = TriggerTable(table=table.id, trigger="admin")
    refused(await harness.apply(asked), "paused")
    found = await harness.store.table(table.id)
    assert found is not None
    assert found.triggered_at_s == 0
    applied(await harness.apply(DropTable(table=table.id)))
    refused(await harness.apply(asked), "table")


async def test_an_answer_is_noted_with_the_analysis_it_belongs_to(harness: Harness) -> None:
    table = await harness.table()
    tablet = TabletId(table.id, PLUS_INFINITY)
    note = WriteAnalysis(
        tablet=tablet, analysis=Analysis.STABLE, version=0, settings_version=1, answered_s=17.25
    )
    refused(await harness.apply(replace(note, version=3)), "version")
    (record,) = await harness.store.records([tablet])
    assert record is None or record.answered_s == 0
    applied(await harness.apply(note))
    applied(await harness.apply(replace(note, answered_s=None)))
    (record,) = await harness.store.records([tablet])
    assert record is not None
    assert record.answered_s == 17.25


async def answered(harness: Harness, *tablets: TabletId) -> list[float]:
    records = await harness.store.records(tablets)
    return [0.0 if record is None else record.answered_s for record in records]


async def carried_out(
    harness: Harness, kind: OperationKind, *tablets: TabletId, at: bytes | None = None
) -> None:
    name = kind.value
    applied(await harness.apply(BeginOperation(kind=kind, tablets=tablets, operation=name, at=at)))
    for step in (OperationStep.DRAIN, OperationStep.CLOSE):
        await harness.apply(StepOperation(tablets=tablets, operation=name, step=step))
    applied(await harness.apply(EndOperation(tablets=tablets, operation=name)))


async def test_both_sides_of_a_split_have_answered_and_a_merged_tablet_as_far_as_both(
    harness: Harness,
) -> None:
    last = await harness.tablet_with()
    applied(await harness.add(last, file("l", b"a", b"c"), file("r", b"d", b"d")))
    left = TabletId(last.table, b"c")
    await harness.write(hset(TabletKeys.of(last).record, {"g": "5.5"}))
    await carried_out(harness, OperationKind.SPLIT, last, at=b"c")
    assert await answered(harness, left, last) == [5.5, 5.5]
    await harness.write(hset(TabletKeys.of(last).record, {"g": "7.0"}))
    await carried_out(harness, OperationKind.MERGE, left, last)
    assert await answered(harness, last) == [5.5]


async def triggered(harness: Harness, *tablets: TabletId) -> list[float]:
    records = await harness.store.records(tablets)
    return [0.0 if record is None else record.triggered_s for record in records]


async def test_a_trigger_of_one_tablet_is_later_than_all_that_the_tablet_has_answered(
    harness: Harness,
) -> None:
    last = await harness.tablet_with()
    asked = WriteAnalysis(
        tablet=last, analysis=Analysis.UNKNOWN, version=-1, settings_version=-1, triggers=True
    )
    before_s = await harness.store.now_s()
    applied(await harness.apply(asked))
    (first_s,) = await triggered(harness, last)
    assert first_s >= before_s
    table = await harness.store.table(last.table)
    assert table is not None
    assert table.triggered_at_s == 0, "other tablets are not asked"
    late_s = first_s + 1000.0
    await harness.write(hset(TabletKeys.of(last).record, {"g": repr(late_s)}))
    applied(await harness.apply(WriteAnalyses(table=last.table, notes=(asked,))))
    (second_s,) = await triggered(harness, last)
    assert second_s > late_s, "the clock of a store may go back"
    refused(await harness.apply(replace(asked, tablet=TabletId(last.table, b"none"))), "tablet")


async def test_a_trigger_of_one_tablet_is_open_in_both_sides_of_a_split_and_after_a_merge(
    harness: Harness,
) -> None:
    last = await harness.tablet_with()
    applied(await harness.add(last, file("l", b"a", b"c"), file("r", b"d", b"d")))
    left = TabletId(last.table, b"c")
    await harness.write(hset(TabletKeys.of(last).record, {"i": "6.5"}))
    await carried_out(harness, OperationKind.SPLIT, last, at=b"c")
    assert await triggered(harness, left, last) == [6.5, 6.5]
    await harness.write(hset(TabletKeys.of(left).record, {"i": "8.0"}))
    await carried_out(harness, OperationKind.MERGE, left, last)
    assert await triggered(harness, last) == [8.0]
