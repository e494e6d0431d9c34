"""A split or merge that is given up: at any step, by anybody, and nothing is lost by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import DropTable
from common.model.tablet import PLUS_INFINITY, OperationStep, TabletId
from tests.contract.test_operations import abandon, end, layout, merge, note, split, step
from tests.contract.test_request_races import between
from tests.support.requests import select, submitted, tablet_of, wait
from tests.support.store_harness import MIDDLE, Harness, applied, commit, file, refused, reserve

pytestmark = pytest.mark.anyio

CUT, DRAIN, CLOSE = OperationStep


@pytest.mark.parametrize("steps", [(), (DRAIN,), (DRAIN, CLOSE)])
async def test_a_split_is_given_up_at_any_step(
    harness: Harness, steps: tuple[OperationStep, ...]
) -> None:
    tablet = await harness.tablet_with()
    files = (file("l", b"a", b"c"), file("r", b"d", b"e"))
    applied(await harness.add(tablet, *files))
    applied(await harness.apply(replace(split(tablet), reason="x" * 1000)))
    begun = (await tablet_of(harness, tablet)).operation
    assert begun is not None
    assert begun.since_s > 0
    assert begun.reason == "x" * 200
    for to in steps:
        applied(await harness.apply(step(to, tablet)))
    for _ in range(2):
        applied(await harness.apply(abandon(tablet)))
    found = await tablet_of(harness, tablet)
    assert found.operation is None
    assert found.record.abandoned_s >= begun.since_s > 0
    assert found.record.analysis_version != found.record.version
    assert await layout(harness, tablet.table) == [
        (None, MIDDLE, ["l", "r"]),
        (MIDDLE, PLUS_INFINITY, []),
    ]
    # Everything that the operation had barred may go on, and another one may begin.
    applied(await harness.add(tablet, file("x", b"a", b"e")))
    applied(await harness.apply(reserve(tablet, "s1", "l", "r")))
    await submitted(harness, tablet.table)
    applied(await harness.apply(wait(tablet)))
    applied(await harness.apply(commit(tablet, "s1")))
    applied(await harness.apply(select(tablet, "x")))
    refused(await harness.apply(split(tablet, b"c", "op2")), "selected")
    refused(await harness.apply(step(DRAIN, tablet)), "operation")


async def test_a_job_that_cuts_commits_though_its_split_was_given_up(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    applied(await harness.add(tablet, file("x", b"a", b"e")))
    applied(await harness.apply(split(tablet)))
    applied(await harness.apply(replace(reserve(tablet, "s1", "x"), cuts_at=b"c")))
    applied(await harness.apply(abandon(tablet)))
    outputs = (file("out/s1-0.parquet", b"a", b"c"), file("out/s1-1.parquet", b"d", b"e"))
    applied(await harness.apply(replace(commit(tablet, "s1"), outputs=outputs)))
    applied(await harness.apply(split(tablet, name="op2")))
    for to in (DRAIN, CLOSE):
        applied(await harness.apply(step(to, tablet, name="op2")))
    applied(await harness.apply(end(tablet, name="op2")))
    assert [files for _, _, files in await layout(harness, tablet.table)] == [
        ["out/s1-0.parquet"],
        ["out/s1-1.parquet"],
        [],
    ]


@pytest.mark.parametrize("steps", [(), (CLOSE,)])
async def test_a_merge_is_given_up_in_both_tablets(
    harness: Harness, steps: tuple[OperationStep, ...]
) -> None:
    table = await harness.table()
    left, right = TabletId(table.id, MIDDLE), TabletId(table.id, PLUS_INFINITY)
    applied(await harness.add(left, file("l", b"a", b"m")))
    applied(await harness.apply(merge(left, right)))
    for to in steps:
        applied(await harness.apply(step(to, left, right)))
    applied(await harness.apply(abandon(left, right)))
    for tablet in (left, right):
        found = await tablet_of(harness, tablet)
        assert found.operation is None
        assert found.record.abandoned_s > 0
    assert await layout(harness, table.id) == [
        (None, MIDDLE, ["l"]),
        (MIDDLE, PLUS_INFINITY, []),
    ]
    applied(await harness.apply(merge(left, right, "op2")))


async def test_only_the_operation_that_is_meant_is_given_up(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    applied(await harness.apply(abandon(tablet)))
    applied(await harness.apply(split(tablet)))
    applied(await harness.apply(abandon(tablet, name="op2")))
    found = await tablet_of(harness, tablet)
    assert found.operation is not None
    assert found.record.abandoned_s == 0
    applied(await harness.apply(abandon(TabletId(tablet.table, b"q"), name="op1")))
    applied(await harness.apply(DropTable(table=tablet.table)))
    refused(await harness.apply(abandon(tablet)), "table")
    assert await harness.keys(tablet.table) == []


async def test_giving_up_meets_steps_and_the_end(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    applied(await harness.add(tablet, file("l", b"a", b"c"), file("r", b"d", b"e")))
    applied(await harness.apply(split(tablet)))
    refused(await between(harness, step(DRAIN, tablet), abandon(tablet)), "operation")
    applied(await harness.apply(split(tablet, name="op2")))
    applied(await between(harness, abandon(tablet, name="op2"), step(DRAIN, tablet, name="op2")))
    assert (await tablet_of(harness, tablet)).operation is None
    applied(await harness.apply(split(tablet, name="op3")))
    for to in (DRAIN, CLOSE):
        applied(await harness.apply(step(to, tablet, name="op3")))
    # The end loses against whoever gives up first, and the other way round.
    applied(await between(harness, end(tablet, name="op3"), abandon(tablet, name="op3")))
    assert len(await layout(harness, tablet.table)) == 2
    applied(await harness.apply(split(tablet, name="op4")))
    for to in (DRAIN, CLOSE):
        applied(await harness.apply(step(to, tablet, name="op4")))
    applied(await between(harness, abandon(tablet, name="op4"), end(tablet, name="op4")))
    assert len(await layout(harness, tablet.table)) == 3
    applied(await harness.apply(note(tablet)))
