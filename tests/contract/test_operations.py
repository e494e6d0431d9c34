"""Split and merge: steps, what they wait for, and that every file stays in one tablet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import (
    AbandonOperation,
    BeginOperation,
    ChangeTable,
    DropTable,
    EndOperation,
    StepOperation,
    WriteAnalysis,
)
from common.metadata.changes.split_merge import operation_tablets
from common.metadata.codec.tablet import STATISTICS, pack_statistics
from common.metadata.keys import TabletKeys
from common.metadata.keyspace import Word, hset, set_string
from common.model.outcome import TabletStatistics
from common.model.table import TableSettings, TableState
from common.model.tablet import PLUS_INFINITY, Analysis, OperationKind, OperationStep, TabletId
from tests.support.requests import select, submitted, tablet_of, wait
from tests.support.store_harness import MIDDLE, Harness, applied, commit, file, refused, reserve

pytestmark = pytest.mark.anyio

CUT, DRAIN, CLOSE = OperationStep


def split(tablet: TabletId, at: bytes = b"c", name: str = "op1") -> BeginOperation:
    return BeginOperation(kind=OperationKind.SPLIT, tablets=(tablet,), operation=name, at=at)


def merge(left: TabletId, right: TabletId, name: str = "op1") -> BeginOperation:
    return BeginOperation(kind=OperationKind.MERGE, tablets=(left, right), operation=name)


def step(to: OperationStep, *tablets: TabletId, name: str = "op1") -> StepOperation:
    return StepOperation(tablets=tablets, operation=name, step=to)


def end(*tablets: TabletId, name: str = "op1") -> EndOperation:
    return EndOperation(tablets=tablets, operation=name)


def abandon(*tablets: TabletId, name: str = "op1") -> AbandonOperation:
    return AbandonOperation(tablets=tablets, operation=name)


def note(tablet: TabletId, **fields: object) -> WriteAnalysis:
    plain = {"tablet": tablet, "analysis": Analysis.UNKNOWN, "version": -1, "settings_version": -1}
    return WriteAnalysis(**(plain | fields))  # type: ignore[arg-type] - any field


async def layout(harness: Harness, table: str) -> list[tuple[bytes | None, bytes, list[str]]]:
    """Return start, end and files of every tablet; every record must be true."""
    tiles = await harness.store.read_range(table)
    assert [tile.id for tile in tiles] == [*await harness.store.tablet_ids(table)]
    for tile in tiles:
        assert await tablet_of(harness, tile.id) == tile
    return [(tile.bounds.start, tile.bounds.end, sorted(tile.files)) for tile in tiles]


async def test_a_split_moves_files_and_watermarks_to_both_sides(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    left = TabletId(tablet.table, b"c")
    files = (file("l", b"a", b"c"), file("r", b"ca", b"d"), file("x", b"b", b"d"))
    applied(await harness.add(tablet, *files))
    applied(await harness.apply(note(tablet, settled=((1.0, b"4"),))))
    keys = TabletKeys.of(tablet)
    await harness.write(set_string(keys.purge, b"3"), hset(keys.record, {"p": 1}))
    for _ in range(2):
        applied(await harness.apply(split(tablet)))
    found = await tablet_of(harness, tablet)
    assert found.operation is not None
    assert (found.operation.step, found.operation.at, operation_tablets(found)) == (
        CUT,
        b"c",
        (tablet,),
    )

    refused(await harness.apply(step(CLOSE, tablet)), "operation")
    assert "x" in refused(await harness.apply(step(DRAIN, tablet)), "crosses").reason
    refused(await harness.apply(reserve(tablet, "s1", "l")), "operation")
    cut = replace(reserve(tablet, "s1", "x"), cuts_at=b"c")
    applied(await harness.apply(cut))
    outputs = (file("out/s1-0.parquet", b"b", b"c"), file("out/s1-1.parquet", b"cb", b"d"))
    applied(await harness.apply(replace(commit(tablet, "s1"), outputs=outputs)))
    for _ in range(2):
        applied(await harness.apply(step(DRAIN, tablet)))
    applied(await harness.add(tablet, file("late", b"b", b"c")))
    refused(await harness.apply(replace(cut, attempt="s2", inputs=("l",))), "operation")
    refused(await harness.apply(end(tablet)), "operation")
    applied(await harness.apply(step(CLOSE, tablet)))
    applied(await harness.apply(step(DRAIN, tablet)))
    for _ in range(2):
        applied(await harness.apply(end(tablet)))

    assert await layout(harness, tablet.table) == [
        (None, b"c", ["l", "late", "out/s1-0.parquet"]),
        (b"c", MIDDLE, ["out/s1-1.parquet", "r"]),
        (MIDDLE, PLUS_INFINITY, []),
    ]
    for half in (left, tablet):
        found = await tablet_of(harness, half)
        assert (found.purge, found.record.settled, found.operation) == (b"3", ((1.0, b"4"),), None)
        assert found.record.analysis_version != found.record.version
    assert await harness.store.locate(tablet.table, b"b") == left


async def test_a_split_forgets_what_was_found_about_the_rows_of_the_whole_range(
    harness: Harness,
) -> None:
    tablet = await harness.tablet_with()
    applied(await harness.add(tablet, file("l", b"a", b"b"), file("r", b"ca", b"d")))
    known = TabletStatistics(tablet_version=1, measured_at_s=1.0, rows=3, updated_rows=1)
    record: dict[str, Word] = {STATISTICS: pack_statistics(known)}
    await harness.write(hset(TabletKeys.of(tablet).record, record))
    assert (await tablet_of(harness, tablet)).record.statistics == known
    applied(await harness.apply(split(tablet)))
    for each in (DRAIN, CLOSE):
        applied(await harness.apply(step(each, tablet)))
    applied(await harness.apply(end(tablet)))
    for half in (TabletId(tablet.table, b"c"), tablet):
        assert (await tablet_of(harness, half)).record.statistics is None


async def test_a_merge_joins_files_and_watermarks_of_two_tablets(harness: Harness) -> None:
    table = await harness.table()
    left, right = TabletId(table.id, MIDDLE), TabletId(table.id, PLUS_INFINITY)
    applied(await harness.add(left, file("l", b"a", b"m")))
    applied(await harness.add(right, file("r", b"n", b"z")))
    applied(await harness.apply(note(left, settled=((1.0, b"4"), (5.0, b"8")))))
    applied(await harness.apply(note(right, settled=((3.0, b"6"),))))
    refused(await harness.apply(merge(right, left)), "bounds")
    applied(await harness.apply(reserve(left, "s1", "l")))
    for _ in range(2):
        applied(await harness.apply(merge(left, right)))
    found = await tablet_of(harness, right)
    assert operation_tablets(found) == (left, right)
    refused(await harness.apply(step(CLOSE, left, right)), "running")
    applied(await harness.add(right, file("r2", b"n", b"z")))
    await harness.write(
        set_string(TabletKeys.of(left).purge, b"3"), set_string(TabletKeys.of(right).purge, b"2")
    )
    applied(await harness.apply(commit(left, "s1")))
    for _ in range(2):
        applied(await harness.apply(step(CLOSE, left, right)))
    for _ in range(2):
        applied(await harness.apply(end(left, right)))
    assert await layout(harness, table.id) == [
        (None, PLUS_INFINITY, ["out/s1-0.parquet", "r", "r2"])
    ]
    found = await tablet_of(harness, right)
    assert (found.purge, found.record.settled) == (b"3", ((3.0, b"4"), (5.0, b"6")))
    assert operation_tablets(found) is None
    assert not [key for key in await harness.keys(table.id) if ":tablet:6d:" in key]
    refused(await harness.add(left, file("l2", b"a", b"b")), "tablet")
    refused(await harness.apply(merge(left, right, "op2")), "tablet")
    refused(await harness.apply(step(CLOSE, left, right)), "tablet")
    applied(await harness.apply(split(right, MIDDLE, "op3")))
    refused(await harness.apply(end(left, right)), "tablet")
    for to in (DRAIN, CLOSE):
        applied(await harness.apply(step(to, right, name="op3")))
    applied(await harness.apply(end(right, name="op3")))
    assert [files for _, _, files in await layout(harness, table.id)] == [
        ["out/s1-0.parquet"],
        ["r", "r2"],
    ]


async def test_each_condition_to_begin_an_operation_is_enforced(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    right = TabletId(tablet.table, PLUS_INFINITY)
    refused(await harness.apply(split(TabletId("tbl-none", b"q"))), "table")
    refused(await harness.apply(split(TabletId(tablet.table, b"q"))), "tablet")
    for at in (MIDDLE, b"z"):
        refused(await harness.apply(split(tablet, at)), "bounds")
    refused(await harness.apply(split(right, MIDDLE)), "bounds")
    await submitted(harness, tablet.table)
    applied(await harness.apply(wait(tablet)))
    refused(await harness.apply(split(tablet)), "waiting")
    applied(await harness.apply(select(tablet, "a")))
    refused(await harness.apply(split(tablet)), "selected")
    refused(await harness.apply(merge(tablet, right)), "selected")
    applied(await harness.apply(reserve(tablet, "u1", "a", request="r1")))
    applied(await harness.apply(commit(tablet, "u1")))
    refused(await harness.apply(split(tablet)), "done")
    applied(await harness.apply(split(right, b"p")))
    refused(await harness.apply(split(right, b"p", "op2")), "operation")
    refused(await harness.apply(wait(right)), "operation")
    refused(await harness.apply(select(right)), "operation")


@pytest.mark.parametrize("number", [0, 1])
async def test_only_ranges_of_keys_are_split(harness: Harness, number: int) -> None:
    fields = ({"key": (), "version_column": None}, {"partition_by": ("k",)})[number]
    table = await harness.table(splits=(), **fields)
    tablet = TabletId(table.id, PLUS_INFINITY)
    if number:
        tablet = TabletId(table.id, b"day1")
        change = await harness.add(tablet, file("a"))
        refused(change, "tablet")
        return
    refused(await harness.apply(split(tablet)), "bounds")


async def test_a_job_that_joins_both_sides_is_waited_for_before_the_drain(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    applied(await harness.add(tablet, file("l", b"a", b"c"), file("r", b"d", b"e")))
    applied(await harness.add(tablet, file("l2", b"a", b"b")))
    applied(await harness.apply(reserve(tablet, "s1", "l", "r")))
    applied(await harness.apply(reserve(tablet, "s2", "l2")))
    applied(await harness.apply(split(tablet)))
    refused(await harness.apply(step(DRAIN, tablet)), "running")
    joined = (file("out/s1-0.parquet", b"a", b"e"),)
    applied(await harness.apply(replace(commit(tablet, "s1"), outputs=joined)))
    refused(await harness.apply(step(DRAIN, tablet)), "crosses")
    applied(await harness.apply(replace(reserve(tablet, "s3", joined[0].path), cuts_at=b"c")))
    refused(await harness.apply(step(DRAIN, tablet)), "crosses")
    outputs = (file("out/s3-0.parquet", b"a", b"c"), file("out/s3-1.parquet", b"d", b"e"))
    applied(await harness.apply(replace(commit(tablet, "s3"), outputs=outputs)))
    applied(await harness.apply(step(DRAIN, tablet)))
    refused(await harness.apply(step(CLOSE, tablet)), "running")
    applied(await harness.apply(commit(tablet, "s2")))
    applied(await harness.apply(step(CLOSE, tablet)))
    applied(await harness.apply(end(tablet)))


async def test_steps_of_another_operation_and_of_no_table(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    refused(await harness.apply(step(DRAIN, tablet)), "operation")
    applied(await harness.apply(end(tablet)))
    applied(await harness.apply(split(tablet)))
    refused(await harness.apply(step(DRAIN, tablet, name="op2")), "operation")
    refused(await harness.apply(end(tablet, name="op2")), "operation")
    lost = TabletId(tablet.table, b"q")
    refused(await harness.apply(end(lost)), "tablet")
    pause = ChangeTable(table=tablet.table, settings_version=1, state=TableState.PAUSED)
    applied(await harness.apply(pause))
    applied(await harness.apply(step(DRAIN, tablet)))
    applied(await harness.apply(DropTable(table=tablet.table)))
    for change in (step(CLOSE, tablet), end(tablet), split(tablet)):
        refused(await harness.apply(change), "table")
    assert await harness.keys(tablet.table) == []


async def test_both_sides_of_a_split_and_a_merge_keep_count_and_wished_analysis(
    harness: Harness,
) -> None:
    tablet = await harness.tablet_with("a", "b")
    left = TabletId(tablet.table, b"c")
    applied(await harness.apply(reserve(tablet, "s1", "a", "b")))
    applied(await harness.apply(commit(tablet, "s1")))
    applied(await harness.apply(note(tablet, analysis_group="night")))

    async def facts(*tablets: TabletId) -> list[tuple[str, int]]:
        records = await harness.store.records(tablets)
        return [
            (record.analysis_group, record.compactions) for record in records if record is not None
        ]

    applied(await harness.apply(split(tablet)))
    for to in (DRAIN, CLOSE):
        applied(await harness.apply(step(to, tablet)))
    applied(await harness.apply(end(tablet)))
    assert await facts(left, tablet) == [("night", 1)] * 2

    applied(await harness.apply(note(tablet, analysis_group="")))
    applied(await harness.add(left, file("l", b"a", b"b")))
    applied(await harness.apply(reserve(left, "s2", "l")))
    applied(await harness.apply(commit(left, "s2")))
    applied(await harness.apply(merge(left, tablet, "op2")))
    applied(await harness.apply(step(CLOSE, left, tablet, name="op2")))
    applied(await harness.apply(end(left, tablet, name="op2")))
    assert await facts(tablet) == [("night", 2)]


async def test_both_sides_of_a_split_know_what_was_added_lately(harness: Harness) -> None:
    settings = TableSettings(tombstone_retention_s=600.0)
    table = await harness.table(settings=settings, tombstone_column="v")
    tablet, left = TabletId(table.id, MIDDLE), TabletId(table.id, b"c")
    applied(await harness.add(tablet, file("a", version_min=b"7", version_max=b"7")))
    applied(await harness.apply(split(tablet)))
    for to in (DRAIN, CLOSE):
        applied(await harness.apply(step(to, tablet)))
    applied(await harness.apply(end(tablet)))
    for side in (left, tablet):
        found = await tablet_of(harness, side)
        assert [version for _, version in found.record.recent_adds] == [b"7"]
