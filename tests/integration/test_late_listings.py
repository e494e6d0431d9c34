"""A storage whose listings are late, over a real Redis and real files: nothing goes for that.

It lists files that are gone, and misses files that are there; whoever asks for a file by its
name is told the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from common.model.outcome import RowCounts
from common.model.table import Table, TableState
from common.parquet.location import Location
from neve.recovery import table_creation
from neve.recovery.gc import collect_orphans, find_orphans
from neve.recovery.rebuild.table_rebuild import (
    RebuildOptions,
    RebuildResult,
    rebuild,
)
from neve.recovery.repair import RepairOptions, check_and_repair
from neve.recovery.scope import FindingCode, RecoveryPorts
from neve.recovery.stored_files import list_location
from tests.integration.test_rebuild_manifest import SETTINGS, publish
from tests.integration.test_recovery_gc import emptied
from tests.support.recovery import Ground, go_back, moment, rows
from tests.support.store_harness import applied
from tests.support.unreliable_disk import Faults, unreliable

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


@pytest.fixture
def disk() -> Iterator[Faults]:
    with unreliable() as faults:
        yield faults


async def rebuilt(ground: Ground, table: Table, *, delay_s: float = 0.0) -> RebuildResult:
    """Lose Redis, and make a table anew."""
    await ground.harness.read(("FLUSHALL",))
    ground.harness.store = ground.harness.another()
    await ground.store.store_id()
    rebuilder = RecoveryPorts(
        store=ground.store,
        threads=ground.threads,
        ids=ground.ids,
        admission=ground.door,
        listing_delay_s=delay_s,
    )
    return await rebuild(rebuilder, table.location, RebuildOptions(name=table.name, adopt=True))


# The sweep.


async def test_a_deleted_file_that_is_still_listed_is_no_orphan(
    ground: Ground, disk: Faults
) -> None:
    table = await ground.table()
    ground.write(table, "_neve/append/lost.parquet", rows(1))
    disk.delete(ground.place(table, "_neve/append/lost.parquet"))

    assert (await find_orphans(ground.scope(table))).findings == ()


async def test_an_output_stays_whose_input_is_listed_and_gone(ground: Ground, disk: Faults) -> None:
    """The store has forgotten its commit, and the collector has deleted the input since."""
    table = await ground.table()
    tablet = await ground.add(table, "a.parquet", 1)
    before = await moment(ground)
    (output,) = await ground.compact(table, tablet, "a.parquet")
    disk.delete(ground.place(table, "a.parquet"))
    await go_back(ground, before)

    done = await collect_orphans(ground.scope(table), delete=True)

    assert (done.orphans, done.evidence) == (0, 1)
    assert ground.place(table, output).exists()


async def test_a_mark_stays_whose_input_is_not_listed(ground: Ground, disk: Faults) -> None:
    """Without it a rebuild would take its input in, whose rows were all dropped."""
    table = await ground.table()
    tablet = await ground.add(table, "a.parquet", 1)
    assignment = await ground.reserve(table, tablet, "a.parquet")
    commit = ground.rewrite(assignment)
    emptied(ground.place(table, assignment.reservation.output_path(0)))
    counts = RowCounts(rows_in=1, rows_out=0)
    applied(await ground.store.apply(replace(commit, outputs=(), counts=counts)))
    disk.missed.add("a.parquet")

    found = await find_orphans(ground.scope(table))

    assert (found.marks, found.findings) == (1, ())


# A check.


async def test_a_file_that_is_listed_and_gone_is_missing(ground: Ground, disk: Faults) -> None:
    table = await ground.table()
    await ground.add(table, "a.parquet", 1)
    disk.delete(ground.place(table, "a.parquet"))

    report = await check_and_repair(ground.scope(table), RepairOptions())

    assert [finding.code for finding in report.checked.findings] == [FindingCode.MISSING]


async def test_a_file_that_is_not_listed_is_not_forgotten(ground: Ground, disk: Faults) -> None:
    table = await ground.table()
    await ground.add(table, "a.parquet", 1)
    disk.missed.add("a.parquet")

    await check_and_repair(ground.scope(table), RepairOptions(repair=True, forget_missing=True))

    assert await ground.paths(table) == ["a.parquet"]


# A rebuild.


async def test_a_rebuild_finds_files_of_the_manifest_that_are_not_listed(
    ground: Ground, disk: Faults
) -> None:
    table = await ground.table(settings=SETTINGS)
    await ground.add(table, "a.parquet", 1)
    await publish(ground, table)
    disk.missed.add("a.parquet")

    done = await rebuilt(ground, table)

    assert (done.report.lost, done.table.state) == ({}, TableState.LIVE)
    assert await ground.paths(done.table) == ["a.parquet"]


async def test_a_rebuild_reports_files_listed_late_and_leaves_the_table_paused(
    ground: Ground, disk: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = await ground.table()
    await ground.add(table, "a.parquet", 1)
    await ground.add(table, "_neve/append/b.parquet", 2)
    disk.missed.add("b.parquet")

    def listed(location: Location) -> object:
        disk.missed.clear()
        return list_location(location)

    monkeypatch.setattr(table_creation, "list_location", listed)
    done = await rebuilt(ground, table)

    assert done.report.lost == {
        "_neve/append/b.parquet": "it came while the table was rebuilt: drop it and try again"
    }
    assert done.table.state is TableState.PAUSED


async def test_a_rebuild_waits_as_long_as_listings_are_late(ground: Ground, disk: Faults) -> None:
    table = await ground.table()
    await ground.add(table, "a.parquet", 1)
    await ground.add(table, "_neve/append/b.parquet", 2)
    disk.missed.add("b.parquet")
    asyncio.get_running_loop().call_later(0.2, disk.missed.clear)

    done = await rebuilt(ground, table, delay_s=0.5)

    assert done.report.lost == {}
    assert await ground.paths(done.table) == ["_neve/append/b.parquet", "a.parquet"]


async def test_a_file_that_went_is_missed_though_it_is_listed(
    ground: Ground, disk: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compactor tidied up after the rebuild had looked."""
    table = await ground.table()
    await ground.add(table, "a.parquet", 1)

    def listed(location: Location) -> object:
        disk.delete(ground.place(table, "a.parquet"))
        return list_location(location)

    monkeypatch.setattr(table_creation, "list_location", listed)
    done = await rebuilt(ground, table)

    assert done.report.lost.keys() == {"a.parquet"}
    assert done.table.state is TableState.PAUSED
