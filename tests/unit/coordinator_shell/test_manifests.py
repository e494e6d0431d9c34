"""Manifests: published when due, read by other engines, believed only if their pointer is out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from common.errors import ConflictError
from common.metadata.changes import (
    BumpGeneration,
    DropTable,
    PublishManifest,
)
from common.metadata.file_pin import LEASE_S
from common.model.table import TableState
from common.parquet.location import open_location
from common.parquet.service_files import write_description, write_generation
from coordinator.context import ArrowStorage
from coordinator.core.scans import GarbageRules
from coordinator.storage.garbage_collector import GarbageCollector
from coordinator.storage.manifests import (
    NEVER_S,
    WRITING_MAX_S,
    ManifestPublisher,
)
from tests.support.manifest_site import GRACE_S, SCHEMA, Site, replaced, silent, story
from tests.support.predictable import CountedIds

pytestmark = pytest.mark.unit


def test_other_engines_read_a_table_by_its_manifest(tmp_path: Path) -> None:
    async def tell(site: Site) -> None:
        await site.add("day=07/a.parquet", 1, 2)
        await site.add("day=8/b.parquet", 3)
        await site.add("day=08/c.parquet", 4, whole=True)
        assert await site.manifests.look(site.table)
        pointer = site.pointer
        assert (pointer["format"], pointer["version"], pointer["number"]) == ("neve-manifest", 1, 1)
        totals = pointer["totals"]
        assert (totals["files"], totals["rows"], totals["merge"]) == (3, 4, False)
        assert pointer["partition_by"] == ["day"]
        wanted = [(1, 7), (2, 7), (3, 8), (4, 8)]

        files = pl.read_parquet(site.part_files())["file"].to_list()
        read = pl.scan_parquet(files, hive_partitioning=True, missing_columns="insert").collect()
        assert sorted(read.select("id", "day").rows()) == wanted
        with duckdb.connect() as duck:
            names = duck.read_parquet(site.part_files()).select("file").fetchall()
            relation = duck.read_parquet([n for (n,) in names], hive_partitioning=True)
            assert sorted(relation.select("id, day::int").fetchall()) == wanted
        arrow = ds.dataset(
            pq.read_table(site.part_files()[0])["file"].to_pylist(),
            schema=SCHEMA,
            partitioning=ds.partitioning(pa.schema([SCHEMA.field("day")]), flavor="hive"),
        ).to_table()
        assert sorted(zip(*arrow.to_pydict().values(), strict=True)) == wanted

    story(tmp_path, tell)


def test_a_table_without_files_has_a_manifest_that_can_be_read(tmp_path: Path) -> None:
    async def tell(site: Site) -> None:
        assert await site.manifests.look(site.table)
        assert pl.read_parquet(site.part_files())["file"].to_list() == []

    story(tmp_path, tell)


def test_a_changed_table_is_published_and_old_manifests_are_deleted(tmp_path: Path) -> None:
    async def tell(site: Site) -> None:
        await site.add("day=07/a.parquet", 1)
        assert await site.manifests.look(site.table)
        site.clock.advance(1000)
        assert not await site.manifests.look(site.table), "nothing has changed"
        await site.add("day=07/b.parquet", 2)
        assert await site.manifests.look(site.table)
        site.clock.advance(59)
        await site.add("day=07/c.parquet", 3)
        assert not await site.manifests.look(site.table), "too soon"
        site.clock.advance(1)
        assert await site.manifests.look(site.table)
        assert [name[:10] for name in site.folders] == ["0000000001", "0000000002", "0000000003"]
        site.clock.advance(GRACE_S)
        await site.changed(ratio=4.0)
        assert await site.manifests.look(site.table)
        assert [name[:10] for name in site.folders] == ["0000000003", "0000000004"]
        last = await site.store.manifest("t1")
        assert last is not None
        assert [each[0] for each in last.earlier] == [3]
        stranger = site.folder / f"_neve/manifest/0000000009-{1_000_000}-x"
        stranger.mkdir()
        site.clock.advance(2 * WRITING_MAX_S + 2 * GRACE_S)
        await site.changed(ratio=5.0)
        assert await site.manifests.look(site.table)
        assert not stranger.exists(), "what a publisher that died has left"

    story(tmp_path, tell)


def test_deletions_wait_until_a_manifest_without_the_file_is_out(tmp_path: Path) -> None:
    async def tell(site: Site) -> None:
        await site.add("day=07/a.parquet", 1)
        collector = GarbageCollector(
            site.store,
            ArrowStorage(site.clock),
            GarbageRules(grace_s=GRACE_S, clock_skew_max_s=1.0),
            silent,
            site.manifests,
            clock=site.clock,
        )
        assert await site.manifests.look(site.table)
        await replaced(site, "day=07/a.parquet")
        await collector.collect(site.table)
        site.clock.advance(GRACE_S)
        assert (await collector.collect(site.table)).waiting == 1, "the manifest still has it"
        assert await site.manifests.look(site.table)
        site.clock.advance(GRACE_S - 1)
        assert (await collector.collect(site.table)).waiting == 1, "readers may have the old one"
        site.clock.advance(1)
        pointer = site.folder / "_neve/manifest/latest.json"
        content = pointer.read_text("utf-8")
        pointer.write_text(content.replace("0000000002-", "0000000009-"), "utf-8")
        assert (await collector.collect(site.table)).waiting == 1, "another pointer is out"
        assert await site.manifests.look(site.table), "so it is published again"
        site.clock.advance(GRACE_S)
        assert (await collector.collect(site.table)).deleted == 1
        assert not (site.folder / "day=07/a.parquet").exists()
        assert not await site.manifests.look(site.table), "nothing waits any more"

    story(tmp_path, tell)


def test_a_table_that_publishes_none_waits_for_none(tmp_path: Path) -> None:
    async def tell(site: Site) -> None:
        assert await site.manifests.covered_s(site.table) == 0.0
        assert await site.manifests.look(site.table)
        off = await site.changed(manifest_interval_s=None)
        assert await site.manifests.covered_s(off) == NEVER_S
        assert not await site.manifests.look(off)
        assert not (site.folder / "_neve/manifest").exists(), "an old one would tell wrong things"
        on = await site.changed(manifest_interval_s=60.0)
        site.clock.advance(60)
        assert await site.manifests.look(on)
        assert site.pointer["number"] == 2

    story(tmp_path, tell)


def test_nothing_is_written_into_a_location_of_another_store(tmp_path: Path) -> None:
    async def tell(site: Site) -> None:
        (site.folder / "_neve/store").write_text("another\n")
        assert not await site.manifests.look(site.table)
        assert [event for event, _ in site.said] == ["location belongs to another store"]
        assert not (site.folder / "_neve/manifest").exists()

    story(tmp_path, tell)


def test_of_two_publishers_the_store_notes_one(tmp_path: Path) -> None:
    async def tell(site: Site) -> None:
        await site.manifests.look(site.table)
        site.clock.advance(GRACE_S)
        other = PublishManifest(table="t1", number=2, path="_neve/manifest/other", begun_s=5.0)
        walking = site.store.tablet_ids

        async def meanwhile(*given: Any, **named: Any) -> Any:
            await site.store.apply(other)
            return await walking(*given, **named)

        site.store.tablet_ids = meanwhile  # type: ignore[method-assign]  # somebody is faster
        await site.changed(ratio=4.0)
        assert not await site.manifests.look(site.table)
        assert ("manifest not noted", "manifest 2 is published already") in [
            (event, fields.get("cause")) for event, fields in site.said
        ]
        site.clock.advance(GRACE_S)
        assert await site.manifests.covered_s(site.table) == 0.0, "the pointer is not the noted one"
        assert await site.manifests.look(site.table)
        site.clock.advance(GRACE_S)
        assert await site.manifests.covered_s(site.table) > 0.0

    story(tmp_path, tell)


def test_a_manifest_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    async def tell(site: Site) -> None:
        walking = site.store.tablet_ids

        async def slow(*given: Any, **named: Any) -> Any:
            site.clock.advance(WRITING_MAX_S)
            return await walking(*given, **named)

        await site.add("day=07/a.parquet", 1)
        site.store.tablet_ids = slow  # type: ignore[method-assign]  # time passes
        assert not await site.manifests.look(site.table)
        assert [event for event, _ in site.said] == ["manifest took too long to write"]
        assert not (site.folder / "_neve/manifest/latest.json").exists()
        assert await site.store.pins("t1") == []

    story(tmp_path, tell)


@pytest.mark.parametrize("renewed", [True, False])
def test_files_are_held_by_a_short_lease_that_is_renewed(tmp_path: Path, renewed: bool) -> None:
    async def tell(site: Site) -> None:
        walking = site.store.tablet_ids
        renew_s = 0.0 if renewed else 1e6
        manifests = ManifestPublisher(site.store, CountedIds(), GRACE_S, silent, renew_s=renew_s)

        async def slow(*given: Any, **named: Any) -> Any:
            for _ in range(3):
                (pin,) = await site.store.pins("t1")
                assert pin.until_s <= site.clock.now_s() + LEASE_S
                site.clock.advance(LEASE_S / 2)
                for _ in range(10):
                    await asyncio.sleep(0)
            return await walking(*given, **named)

        await site.add("day=07/a.parquet", 1)
        site.store.tablet_ids = slow  # type: ignore[method-assign]  # time passes
        if renewed:
            assert await manifests.look(site.table)
        else:
            with pytest.raises(ConflictError, match="pin that protects them has expired"):
                await manifests.look(site.table)
        assert (site.folder / "_neve/manifest/latest.json").exists() is renewed
        assert await site.store.pins("t1") == []

    story(tmp_path, tell)


def test_a_table_that_is_dropped_meanwhile_keeps_its_last_manifest(tmp_path: Path) -> None:
    async def tell(site: Site) -> None:
        await site.add("day=07/a.parquet", 1)
        assert await site.manifests.look(site.table)
        site.clock.advance(GRACE_S)
        walking = site.store.tablet_ids

        async def meanwhile(*given: Any, **named: Any) -> Any:
            await site.store.apply(DropTable(table="t1"))
            return await walking(*given, **named)

        await site.changed(ratio=4.0)
        site.store.tablet_ids = meanwhile  # type: ignore[method-assign]  # somebody drops it
        assert not await site.manifests.look(site.table)
        assert (site.pointer["number"], site.pointer["totals"]["files"]) == (1, 1)

    story(tmp_path, tell)


def test_a_failure_is_logged_and_a_table_that_is_dropped_is_left(tmp_path: Path) -> None:
    async def tell(site: Site) -> None:
        broken = replace(site.table, id="t2", name="broken", location="file:///nowhere/at/all")
        await site.manifests.run(broken)
        await site.manifests.run(replace(site.table, state=TableState.GOING))
        assert not (site.folder / "_neve/manifest/latest.json").exists()
        assert await site.manifests.is_due(site.table)
        await site.manifests.run(site.table)
        assert site.pointer["number"] == 1
        assert not await site.manifests.is_due(site.table)

    story(tmp_path, tell)


async def drop(site: Site, *, delete_files: bool = False) -> None:
    """Drop the table and collect what it leaves, until the store has nothing of it."""
    await site.store.apply(DropTable(table="t1", delete_files=delete_files))
    collector = GarbageCollector(
        site.store,
        ArrowStorage(site.clock),
        GarbageRules(grace_s=GRACE_S, clock_skew_max_s=1.0),
        silent,
        site.manifests,
        clock=site.clock,
    )
    for _ in range(3):
        going = await site.store.table("t1")
        if going is not None:
            await collector.collect(going)
        site.clock.advance(GRACE_S)
    assert await site.store.names() == {}


@pytest.mark.parametrize("delete_files", [True, False])
def test_a_drop_that_deletes_files_deletes_the_notes_too(
    tmp_path: Path, delete_files: bool
) -> None:
    async def tell(site: Site) -> None:
        await site.add("day=07/a.parquet", 1)
        await site.manifests.look(site.table)
        location = open_location(site.table.location)
        write_description(location, site.table)
        write_generation(location, 3)
        await drop(site, delete_files=delete_files)
        left = {p.name for p in site.folder.rglob("*") if p.is_file()}
        assert ("table.json" in left, "generation" in left, "latest.json" in left) == (
            not delete_files,
        ) * 3
        assert ("a.parquet" in left, "store" in left) == (not delete_files, True)

    story(tmp_path, tell)


def test_a_table_that_is_gone_is_no_store_that_has_gone_back(tmp_path: Path) -> None:
    async def tell(site: Site) -> None:
        events: list[str] = []
        manifests = ManifestPublisher(
            site.store,
            CountedIds(),
            GRACE_S,
            lambda event, **_: events.append(event),
            known_generation=lambda _: 1,
        )
        assert not await manifests.look(site.table)
        assert events == ["store has gone back in time"]
        await drop(site)
        assert not await manifests.look(site.table)
        assert len(events) == 1

    story(tmp_path, tell)


def test_a_store_that_has_gone_back_does_not_publish(tmp_path: Path) -> None:
    """Its manifest would take the place of the newest one, from which a rebuild begins."""

    async def tell(site: Site) -> None:
        known = {"t1": 2}
        manifests = ManifestPublisher(
            site.store, CountedIds(), GRACE_S, silent, known_generation=lambda t: known[t]
        )
        for _ in range(2):
            await site.store.apply(BumpGeneration(table="t1"))
        await site.add("day=07/a.parquet", 1)
        assert await manifests.look(site.table)
        site.clock.advance(2 * GRACE_S)
        known["t1"] = 3
        off = await site.changed(manifest_interval_s=None)
        assert not await manifests.look(off)
        assert site.pointer["number"] == 1, "nothing is withdrawn, either"
        walking = site.store.tablet_ids

        async def meanwhile(*given: Any, **named: Any) -> Any:
            known["t1"] = 3
            return await walking(*given, **named)

        on = await site.changed(manifest_interval_s=60.0)
        for known["t1"], site.store.tablet_ids in ((3, walking), (2, meanwhile)):  # type: ignore[method-assign]  # it goes back in the middle
            assert not await manifests.look(on)
            assert site.pointer["number"] == 1
        known["t1"], site.store.tablet_ids = 2, walking  # type: ignore[method-assign]  # as before
        assert await manifests.look(on)
        assert site.pointer["number"] == 2

    story(tmp_path, tell)
