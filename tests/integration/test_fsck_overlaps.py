"""fsck where tablets overlap: told first, mended where no row can come back, else refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.metadata.changes import RecountRecord
from common.metadata.codec.tablet import BOUNDS, FILE, OPERATION
from common.metadata.keys import TabletKeys
from common.metadata.keyspace import hset, set_string
from common.model.table import Table
from common.model.tablet import (
    PLUS_INFINITY,
    Bounds,
    Operation,
    OperationKind,
    OperationStep,
    TabletId,
)
from neve.recovery.repair import (
    RepairOptions,
    RepairReport,
    check_and_repair,
)
from neve.recovery.scope import FindingCode
from tests.support.recovery import Ground, ground_on, key, rows
from tests.support.redis_server import RedisServer
from tests.support.store_harness import applied

pytestmark = [pytest.mark.anyio, pytest.mark.integration]
SPLITS = (100, 200)


@dataclass(frozen=True)
class Site:
    """A table of three tablets, with a file each: `a`, `b` and `c`."""

    ground: Ground
    table: Table
    ends: tuple[bytes, ...] = (*map(key, SPLITS), PLUS_INFINITY)

    def tablet(self, number: int) -> TabletId:
        return TabletId(self.table.id, self.ends[number])

    async def start(self, number: int, start: int | None) -> None:
        """Let a tablet start elsewhere, past every rule."""
        bounds = Bounds(None if start is None else key(start), self.ends[number])
        where = TabletKeys.of(self.tablet(number)).bounds
        await self.ground.harness.write(set_string(where, BOUNDS.pack(bounds)))

    async def put(self, number: int, path: str, *ids: int) -> None:
        """Write a file and its entry, past every rule."""
        entry = FILE.pack(self.ground.write(self.table, path, rows(*ids)))
        keys = TabletKeys.of(self.tablet(number))
        await self.ground.harness.write(hset(keys.files, {path: entry}))
        applied(await self.ground.store.apply(RecountRecord(tablet=self.tablet(number))))

    async def check(self) -> RepairReport:
        before = await self.ground.dump()
        report = await check_and_repair(self.ground.scope(self.table), RepairOptions())
        assert await self.ground.dump() == before
        return report

    async def repair(self) -> RepairReport:
        return await check_and_repair(self.ground.scope(self.table), RepairOptions(repair=True))

    async def held(self) -> list[tuple[bytes | None, bytes, list[str]]]:
        tablets = await self.ground.store.read_range(self.table.id)
        return [
            (tablet.bounds.start, tablet.bounds.end, sorted(tablet.files)) for tablet in tablets
        ]


@pytest.fixture
async def site(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Site]:
    async with ground_on(redis_server, tmp_path) as ground:
        table = await ground.table(splits=SPLITS)
        for path, number in (("a", 50), ("b", 150), ("c", 250)):
            await ground.add(table, f"{path}.parquet", number)
        yield Site(ground, table)


SOUND = [
    (None, key(100), ["a.parquet"]),
    (key(100), key(200), ["b.parquet"]),
    (key(200), PLUS_INFINITY, ["c.parquet"]),
]


def sentence(report: RepairReport, code: FindingCode = FindingCode.OVERLAP) -> str:
    (found,) = (finding for finding in report.checked.findings if finding.code is code)
    return f"{found.sentence} | {found.repair}"


@pytest.mark.parametrize(("number", "start"), [(1, None), (1, 60), (2, 150), (2, 50), (2, None)])
async def test_a_tablet_that_reaches_too_far_is_trimmed(
    site: Site, number: int, start: int | None
) -> None:
    await site.start(number, start)
    assert "let it start there; 0 of its files" in sentence(await site.check())
    report = await site.repair()
    assert [each.done for each in report.settled] == [True]
    assert await site.held() == SOUND
    assert (await site.check()).checked.findings == []


async def test_files_go_to_the_tablets_that_hold_them_and_doubles_go(site: Site) -> None:
    await site.start(2, None)
    await site.put(2, "low.parquet", 10, 20)
    await site.put(2, "middle.parquet", 120)
    await site.put(2, "a.parquet", 50)
    found = await site.check()
    assert "3 of its files" in sentence(found)
    assert "their bounds overlap" in sentence(found, FindingCode.DOUBLE)
    assert all(each.done for each in (await site.repair()).settled)
    assert await site.held() == [
        (None, key(100), ["a.parquet", "low.parquet"]),
        (key(100), key(200), ["b.parquet", "middle.parquet"]),
        (key(200), PLUS_INFINITY, ["c.parquet"]),
    ]
    assert (await site.check()).checked.findings == []


async def test_two_become_one_where_a_file_lies_on_both_sides(site: Site) -> None:
    await site.start(2, 120)
    await site.put(2, "over.parquet", 180, 220)
    assert "on both sides: over.parquet | make one tablet" in sentence(await site.check())
    assert all(each.done for each in (await site.repair()).settled)
    assert await site.held() == [
        (None, key(100), ["a.parquet"]),
        (key(100), PLUS_INFINITY, ["b.parquet", "c.parquet", "over.parquet"]),
    ]
    assert (await site.check()).checked.findings == []


async def test_a_file_over_several_tablets_joins_them_all(site: Site) -> None:
    await site.start(2, None)
    await site.put(2, "over.parquet", 50, 220)
    assert all(each.done for each in (await site.repair()).settled)
    everything = ["a.parquet", "b.parquet", "c.parquet", "over.parquet"]
    assert await site.held() == [(None, PLUS_INFINITY, everything)]
    assert (await site.check()).checked.findings == []


async def test_an_overlap_repair_that_could_revive_rows_is_refused(site: Site) -> None:
    await site.start(2, 120)
    await site.put(2, "over.parquet", 180, 220)
    purge = TabletKeys.of(site.tablet(1)).purge
    await site.ground.harness.write(set_string(purge, b"\x01"))
    applied(await site.ground.store.apply(RecountRecord(tablet=site.tablet(1))))
    before = await site.ground.dump()
    report = await site.repair()
    assert "dead rows were dropped" in sentence(report)
    assert "restore the table from a backup" in sentence(report)
    assert report.settled == ()
    assert await site.ground.dump() == before


async def test_nothing_is_mended_where_somebody_works(site: Site) -> None:
    await site.start(2, 120)
    await site.put(2, "over.parquet", 180, 220)
    await site.ground.reserve(site.table, site.tablet(1), "b.parquet")
    assert "attempts are running" in sentence(await site.check())
    assert (await site.repair()).settled == ()
    split = Operation(OperationKind.SPLIT, "op", OperationStep.CUT, key(230), 1.0)
    where = TabletKeys.of(site.tablet(2)).operation
    await site.ground.harness.write(set_string(where, OPERATION.pack(split)))
    applied(await site.ground.store.apply(RecountRecord(tablet=site.tablet(2))))
    assert "a split is under way: abandon it first" in sentence(await site.repair())


async def test_a_double_stays_where_its_keys_are(site: Site) -> None:
    await site.put(2, "a.parquet", 50)
    assert "leave it in tablet" in sentence(await site.check(), FindingCode.DOUBLE)
    assert (await site.repair()).settled[0].done
    assert await site.held() == SOUND
    assert (await site.check()).checked.findings == []


async def test_a_double_that_no_tablet_holds_is_told(site: Site) -> None:
    for number in (0, 1):
        await site.put(number, "over.parquet", 50, 150)
    assert "none of them holds all its keys" in sentence(await site.repair(), FindingCode.DOUBLE)
