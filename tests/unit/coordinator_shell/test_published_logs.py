"""A table that publishes a Delta log: what other engines read, and what they may not do."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import deltalake
import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake

from common.lake import source
from common.lake.delta import publication
from common.lake.storage import LakeStorage
from common.model.table import Column
from common.parquet.foreign_formats import (
    LOG_FOLDER,
    foreign_mark,
    foreign_mark_below,
    read_note,
)
from common.runtime import SystemClock
from common.settings import CoordinatorSettings, Settings
from coordinator.context import ShellContext
from coordinator.storage import manifests
from coordinator.store_watch import take_lead
from coordinator.wiring import CoordinatorParts, assemble, storage_loops
from tests.support.manifest_site import GRACE_S, silent
from tests.support.patience import PATIENCE_S
from tests.support.predictable import CountedIds
from tests.support.published_site import (
    BEGIN,
    COLUMNS,
    PublishedSite,
    published_site,
    read_by_deltalake,
    read_by_polars,
    row_file,
)

pytestmark = pytest.mark.unit


def story(folder: Path, tell: Callable[[PublishedSite], Awaitable[None]]) -> None:
    async def run() -> None:
        path = folder / "events"
        path.mkdir()
        await tell(await published_site(path.as_uri()))

    asyncio.run(run())


def root(site: PublishedSite) -> str:
    return site.location.root


def check_rows(site: PublishedSite) -> None:
    assert read_by_deltalake(root(site)) == site.model
    assert read_by_polars(root(site)) == site.model


def log_names(site: PublishedSite) -> list[str]:
    return sorted(os.listdir(f"{root(site)}/{LOG_FOLDER}"))


def test_other_engines_follow_appends_and_compactions(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        assert await site.publish()
        assert (site.log.version, site.log.files) == (0, 0)
        await site.add("day=7/a b%.parquet", 1, 2)
        await site.add("day=8/b.parquet", 3)
        assert await site.publish()
        check_rows(site)
        output = await site.compact(7, "day=7/a b%.parquet")
        await site.add("day=7/c.parquet", 4)
        await site.compact(7, output, "day=7/c.parquet")
        assert await site.publish()
        check_rows(site)
        assert (site.log.version, site.log.files, site.log.rows) == (2, 2, 4)
        assert site.log.as_of_s == site.clock.now_s()

    story(tmp_path, tell)


def test_readers_skip_files_by_partition_and_time(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1, 1999)
        await site.add("day=8/b.parquet", 2_000_000)
        assert await site.publish()
        (Path(root(site)) / "day=8/b.parquet").unlink()
        frame = pl.scan_delta(root(site))
        early = BEGIN + timedelta(microseconds=1999)
        for wanted in (pl.col("day") == 7, pl.col("at") <= early):
            assert sorted(frame.filter(wanted).select("id").collect()["id"]) == [1, 1999]
        line = (Path(root(site)) / LOG_FOLDER / f"{0:020}.json").read_text().splitlines()[-1]
        stats = json.loads(json.loads(line)["add"]["stats"])
        assert stats["minValues"]["at"] < stats["maxValues"]["at"]

    story(tmp_path, tell)


def test_other_engines_do_not_write(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1, 2)
        assert await site.publish()
        await site.compact(7, "day=7/a.parquet")
        await site.add("day=8/late.parquet", 3)
        before = log_names(site)
        table = DeltaTable(root(site))
        rows = row_file([9]).append_column("day", [[7]])
        attempts: list[Callable[[], object]] = [
            lambda: write_deltalake(root(site), rows, mode="append"),
            lambda: write_deltalake(root(site), rows, mode="overwrite"),
            lambda: table.delete("id = 1"),
            lambda: table.update(updates={"id": "5"}),
            lambda: table.optimize.compact(),
            lambda: table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True),
        ]
        for attempt in attempts:
            with pytest.raises(deltalake.exceptions.DeltaError, match="neveManaged"):
                attempt()
        assert log_names(site) == before
        assert await site.publish()
        check_rows(site)

    story(tmp_path, tell)


def test_a_published_file_stays_for_the_grace(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        await site.compact(7, "day=7/a.parquet")
        file = Path(root(site)) / "day=7/a.parquet"
        await site.here.collector.collect(site.table)
        site.clock.advance(10 * GRACE_S)
        await site.here.collector.collect(site.table)
        assert file.exists(), "the newest version names it"
        assert read_by_polars(root(site)) == [(1, 7)]
        assert await site.here.manifests.look(site.table)
        site.clock.advance(GRACE_S - 1)
        await site.here.collector.collect(site.table)
        assert file.exists(), "readers may have read the version before"
        site.clock.advance(1)
        assert (await site.here.collector.collect(site.table)).deleted == 1
        assert not file.exists()
        check_rows(site)

    story(tmp_path, tell)


def test_a_failure_delays_no_manifest_and_deletes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        await site.compact(7, "day=7/a.parquet")
        await site.here.collector.collect(site.table)
        await site.add("day=7/late.parquet", 2)
        with monkeypatch.context() as patch:
            patch.setattr(source, "FILES_MAX", 1)
            for _ in range(3):
                assert not await site.publish()
                site.clock.advance(GRACE_S)
                assert (await site.here.collector.collect(site.table)).deleted == 0
        pointer = json.loads((Path(root(site)) / "_neve/manifest/latest.json").read_text())
        assert pointer["totals"]["files"] == 2, "readers of the manifest see the new files"
        assert read_by_polars(root(site)) == [(1, 7)], "as of the last version"
        (problem,) = site.here.logs.problems.values()
        assert problem in site.here.faults.notices[0]
        assert read_note(site.location).problem == problem
        figures = {one.metric: one.value for one in site.here.logs.figures([site.table])}
        assert figures["neve_published_logs_failing"] == 1
        assert figures["neve_published_failures_total"] == 3
        assert await site.publish()
        check_rows(site)
        assert (site.here.logs.problems, site.here.faults.notices) == ({}, ())
        assert read_note(site.location).problem == ""

    story(tmp_path, tell)


def test_the_log_is_bounded(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=8/rest.parquet", 100)
        path = "day=7/first.parquet"
        await site.add(path, 1)
        for _ in range(2 * publication.CHECKPOINT_VERSIONS + 5):
            path = await site.compact(7, path)
            assert await site.publish()
        check_rows(site)
        names = log_names(site)
        assert sum(name.endswith(".checkpoint.parquet") for name in names) == 2
        assert f"{0:020}.json" in names, "young versions stay"
        for name in names:  # as if a day had passed
            os.utime(f"{root(site)}/{LOG_FOLDER}/{name}", (0, 0))
        for _ in range(publication.CHECKPOINT_VERSIONS):
            path = await site.compact(7, path)
            assert await site.publish()
        last = 3 * publication.CHECKPOINT_VERSIONS
        assert site.log.version == last + 4
        kept = [name for name in log_names(site) if name[:1].isdigit()]
        assert min(kept)[:20] == f"{2 * publication.CHECKPOINT_VERSIONS:020}"
        check_rows(site)
        other = site.coordinator("b")
        path = await site.compact(7, path)
        assert await site.publish(other), "a coordinator that knows nothing reads the log"
        check_rows(site)
        assert site.log.files == 2

    story(tmp_path, tell)


def test_of_two_coordinators_the_later_one_wins(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        other = site.coordinator("b")
        await site.add("day=7/b.parquet", 2)
        late = await site.here.logs.begin(site.table)
        assert late is not None
        async for page in manifests.walk_tiles(site.store, site.table):
            for tablet in page:
                late.add(tablet)
        await site.compact(7, "day=7/a.parquet", "day=7/b.parquet")
        assert await site.publish(other)
        version = site.log.version
        assert not await late.publish(site.clock.now_s()), "its files are older"
        assert site.here.logs.problems == {}, "another publisher is no problem"
        assert site.log.version == version
        check_rows(site)
        await site.add("day=8/c.parquet", 3)
        assert await site.publish(), "it reads the log again"
        check_rows(site)

    story(tmp_path, tell)


def test_a_version_on_its_way_cannot_follow_a_later_publication(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        late = await site.here.logs.begin(site.table)
        assert late is not None
        await site.change(ratio=4.0)
        assert await site.publish(site.coordinator("b")), "no file has changed"
        assert site.log.version == 1
        assert not await late.publish(site.clock.now_s())
        check_rows(site)

    story(tmp_path, tell)


def test_switched_off_the_log_goes(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        await site.change(publish="off")
        assert await site.publish()
        assert not (Path(root(site)) / LOG_FOLDER).exists()
        assert foreign_mark(site.location) is None
        await site.change(publish="delta", manifest_interval_s=60.0)
        assert await site.publish()
        assert site.log.version == 0
        check_rows(site)
        await site.change(publish="off", manifest_interval_s=None)
        assert not await site.here.manifests.look(site.table)
        assert not (Path(root(site)) / LOG_FOLDER).exists()

    story(tmp_path, tell)


def test_only_its_own_log_is_taken_for_its_own(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        assert foreign_mark(site.location, ["day=7/a.parquet"]) is None
        assert foreign_mark_below(site.location) is None
        folder = Path(root(site)) / LOG_FOLDER
        version = folder / f"{1:020}.json"
        entry = {"commitInfo": {"engineInfo": "another", "operation": "WRITE"}}
        version.write_text(json.dumps(entry) + "\n")
        mark = foreign_mark(site.location)
        assert mark is not None
        assert mark.format == "Delta Lake"
        await site.compact(7, "day=7/a.parquet")
        await site.here.collector.collect(site.table)
        assert not await site.publish(), "nothing is added"
        site.clock.advance(10 * GRACE_S)
        assert (await site.here.collector.collect(site.table)).deleted == 0
        (problem,) = site.here.logs.problems.values()
        assert "'another'" in problem
        await site.change(publish="off")
        assert not await site.publish(), "nothing of it is removed"
        assert version.exists()
        version.unlink()
        assert await site.publish()
        assert not folder.exists()

    story(tmp_path, tell)


def test_the_log_of_an_earlier_table_goes(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        site.here.logs._heads.pop("t1")
        folder = Path(root(site)) / LOG_FOLDER
        text = (folder / f"{0:020}.json").read_text().replace('"t1"', '"t0"')
        (folder / f"{0:020}.json").write_text(text)
        note = Path(root(site)) / "_neve/published"
        note.write_text(json.dumps({"tables": ["t0"]}))
        assert foreign_mark(site.location) is None, "it is one of the service"
        await site.add("day=7/b.parquet", 2)
        assert await site.publish()
        assert (site.log.table, site.log.version) == ("t1", 0)
        assert read_note(site.location).tables == ("t1", "t0")
        check_rows(site)

    story(tmp_path, tell)


def test_a_recovered_table_continues_its_log(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        recovered = await published_site(site.table.location, "t2", former_ids=("t1",))
        assert foreign_mark(site.location) is None
        await recovered.add("day=7/b.parquet", 2)
        assert await recovered.publish()
        assert (recovered.log.table, recovered.log.version) == ("t2", 1)
        assert read_note(site.location).tables == ("t2", "t1")
        assert DeltaTable(root(site)).metadata().id == "t1"
        check_rows(recovered)

    story(tmp_path, tell)


def test_new_and_wider_columns_are_published(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        await site.widen(*COLUMNS, Column("note", "string", since=1))
        await site.add("day=8/b.parquet", 2)
        assert await site.publish()
        frame = pl.read_delta(root(site)).sort("id")
        assert frame["note"].to_list() == [None, None]
        table = DeltaTable(root(site))
        assert [field.name for field in table.schema().fields] == ["id", "at", "day", "note"]
        assert table.metadata().id == "t1"

    story(tmp_path, tell)


def test_a_storage_that_overwrites_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overwrite(storage: LakeStorage, path: str, data: bytes) -> publication.Answer:
        storage.replace(path, data)
        return publication.Answer.COMMITTED

    async def tell(site: PublishedSite) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(LakeStorage, "create", overwrite)
            assert not await site.publish()
        (problem,) = site.here.logs.problems.values()
        assert "If-None-Match" in problem
        assert await site.publish()

    story(tmp_path, tell)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.05)


async def watch(site: PublishedSite, parts: CoordinatorParts) -> None:
    def figure(name: str) -> float:
        return next(one.value for one in parts.status().figures if one.metric == name)

    await until(lambda: figure("neve_published_versions_total") == 1)
    assert figure("neve_published_logs") == 1
    assert parts.notices(0).conditions == ()
    version = Path(root(site)) / LOG_FOLDER / f"{site.log.version + 1:020}.json"
    version.write_text(json.dumps({"commitInfo": {"engineInfo": "another"}}) + "\n")
    await site.add("day=7/a.parquet", 1)
    site.clock.advance(120)
    await until(lambda: bool(parts.notices(0).conditions))
    (condition,) = parts.notices(0).conditions
    assert (condition.kind, condition.subject) == ("unpublished", "events")
    assert any("'another'" in warning for warning in parts.status().store_warnings)
    assert figure("neve_published_logs_failing") == 1


def test_a_coordinator_publishes_shows_and_notifies(tmp_path: Path) -> None:
    """All parts of a coordinator, as its process runs them."""
    settings = Settings(coordinator=CoordinatorSettings(collect_interval_s=0.1, tick_s=0.1))

    async def tell(site: PublishedSite) -> None:
        context = ShellContext(site.store, SystemClock(), CountedIds("a"), silent, "coord-1")
        parts = assemble(settings, context)
        await take_lead(site.store, parts.scanner, "coord-1", silent)
        stored = storage_loops(settings, parts, parts.scanner.tables.values)
        tasks = [asyncio.ensure_future(loop) for loop in (*parts.loops(settings), *stored)]
        try:
            await watch(site, parts)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    story(tmp_path, tell)
