"""Daily sums of finished attempts, in every store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.errors import MetadataError
from common.metadata import store
from common.metadata.changes import DailySums, StoreDays
from common.metadata.changes.days import DAYS_MAX, day_of
from common.metadata.keys import TableKeys
from common.metadata.keyspace import set_string
from common.metadata.store_values import HistoryEntry
from common.model.outcome import AttemptEnd
from common.model.tablet import TabletId
from coordinator.context import ShellContext
from coordinator.store_watch import DailySumsKeeper
from neve.api import TableDay
from tests.support.store_harness import Harness, applied, commit, refused, release, reserve

DAY_S = 86_400.0
ENTRY = HistoryEntry(
    position="1-0",
    attempt="a1",
    job="j1",
    tablet=TabletId("t", b"m"),
    kind="SYSTEM",
    end=AttemptEnd.COMMITTED,
    group="default",
    compactor="c1",
    inputs=("a", "b", "c"),
    outputs=("d",),
    bytes_in=300,
    bytes_out=200,
    rows_in=30,
    rows_out=20,
    started_s=100.0,
    ended_s=110.0,
    superseded=4,
    tombstones_dropped=3,
    expired_dropped=2,
    transform_dropped=1,
    expected_files=1,
    gain=2,
)


def test_attempts_are_added_to_their_days_whatever_their_order() -> None:
    failed = replace(ENTRY, position="2-0", end=AttemptEnd.FAILED, ended_s=DAY_S + 50)
    lost = replace(failed, position="2-1", end=AttemptEnd.LOST)
    moved = replace(ENTRY, position="10-0", ended_s=DAY_S + 60, expected_files=0, started_s=DAY_S)

    sums = DailySums().with_entries([moved, lost, failed, ENTRY])

    first, second = sums.days
    assert (sums.position, sums.since_s) == ("10-0", 110.0)
    assert first == TableDay(
        day="1970-01-01",
        jobs=1,
        files_in=3,
        files_out=1,
        bytes_in=300,
        bytes_out=200,
        compactor_s=10.0,
        rows_in=30,
        rows_dropped=10,
        measured_jobs=1,
        files_saved=2,
    )
    assert (second.jobs, second.failed, second.released, second.measured_jobs) == (1, 1, 1, 0)
    assert second.wasted_s == 2 * (DAY_S + 50 - 100.0)
    assert second.compactor_s == 60.0
    assert sums.with_entries([ENTRY, failed, moved]) == sums, "every entry counts once"


def test_four_hundred_days_are_kept_in_a_small_value() -> None:
    entries = [
        replace(
            ENTRY,
            position=f"{1 + day}-0",
            started_s=day * DAY_S,
            ended_s=day * DAY_S + 3600.5,
            bytes_in=10**15,
        )
        for day in range(DAYS_MAX + 30)
    ]
    sums = DailySums().with_entries(entries)
    assert [len(sums.days), sums.days[0].day] == [DAYS_MAX, day_of(30 * DAY_S)]
    assert len(sums.packed()) < 32_000
    assert DailySums.unpacked("k", sums.packed()) == sums


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\x93",
        b"\x01\xc0",
        b"\x01\x93\xa1x\x00\x90",
        b"\x01\x93\xa30-0\x00\x91\x91\x05",
    ],
)
def test_a_malformed_value_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataError, match="days"):
        DailySums.unpacked("neve:{t}:days", data)


async def test_sums_are_stored_once_and_by_one_writer(harness: Harness) -> None:
    table = (await harness.table()).id
    sums = DailySums().with_entries([ENTRY])
    later = sums.with_entries([replace(ENTRY, position="2-0")])
    change = StoreDays(table=table, before="0-0", sums=sums)
    applied(await harness.apply(change))
    applied(await harness.apply(change))
    assert await harness.store.days(table) == sums

    refused(await harness.apply(StoreDays(table=table, before="0-0", sums=later)), "version")
    applied(await harness.apply(StoreDays(table=table, before="1-0", sums=later)))
    assert await harness.store.days(table) == later
    refused(await harness.apply(StoreDays(table="gone", before="0-0", sums=sums)), "table")


async def test_a_broken_value_is_reported(harness: Harness) -> None:
    table = (await harness.table()).id
    await harness.write(set_string(TableKeys(table).days, b"what"))
    with pytest.raises(MetadataError, match="days"):
        await harness.store.days(table)


async def test_commits_and_failures_reach_the_sums_of_today(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b", "c")
    context = ShellContext(
        store=harness.store,
        clock=harness.clock,
        ids=harness.ids,
        log=lambda event, **fields: None,
        coordinator="c",
    )
    keeper = DailySumsKeeper(context)
    applied(await harness.apply(reserve(tablet, "at1", "a", "b")))
    applied(await harness.apply(release(tablet, "at1")))
    applied(await harness.apply(reserve(tablet, "at2", "a", "b")))
    applied(await harness.apply(commit(tablet, "at2")))

    keeper.count_soon(tablet.table)
    await keeper.count_all()
    applied(await harness.apply(reserve(tablet, "at3", "c", "out/at2-0.parquet")))
    applied(await harness.apply(commit(tablet, "at3")))

    stored = await harness.store.days(tablet.table)
    (day,) = stored.days
    assert (day.jobs, day.failed, day.files_in, day.files_out) == (1, 1, 2, 1)
    assert day.day == day_of(await harness.store.now_s())
    newest = await harness.store.newest_days(tablet.table, stored)
    assert newest.days[-1].jobs == 2, "what the coordinator has not counted so far"

    await keeper.count_all()
    assert await harness.store.days(tablet.table) == stored, "the table is not due again"
    keeper.count_soon(tablet.table)
    await keeper.count_all()
    await keeper.count(tablet.table)
    assert await harness.store.days(tablet.table) == newest


async def test_a_long_history_is_read_until_a_counted_attempt(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "HISTORY_READS", (1, 2, 100))
    tablet = await harness.tablet_with(*"abcdef")
    counted = DailySums()
    for number, path in enumerate("abcdef"):
        applied(await harness.apply(reserve(tablet, f"at{number}", path)))
        applied(await harness.apply(commit(tablet, f"at{number}")))
        if number == 1:
            counted = await harness.store.newest_days(tablet.table, counted)
    assert [day.jobs for day in counted.days] == [2]
    newest = await harness.store.newest_days(tablet.table, counted)
    assert [day.jobs for day in newest.days] == [6]
