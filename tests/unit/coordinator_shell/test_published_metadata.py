"""A table that publishes Iceberg metadata: what other engines read, and what they may not do."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog
from pyiceberg.table import StaticTable, Table
from pyiceberg.types import IntegerType

from common.lake import source
from common.lake.iceberg import publication
from common.lake.storage import LakeStorage
from common.model.table import Column
from common.parquet.foreign_formats import (
    LOG_FOLDER,
    foreign_mark,
    foreign_mark_below,
    own_log,
    read_note,
)
from coordinator.storage import manifests
from neve.import_survey import list_directory
from tests.support.iceberg_tables import sqlite_catalog
from tests.support.independent_reader import independent_reader
from tests.support.manifest_site import GRACE_S
from tests.support.published_site import (
    BEGIN,
    COLUMNS,
    PublishedSite,
    published_site,
    read_as_iceberg,
    row_file,
)

pytestmark = pytest.mark.unit


def story(
    folder: Path, tell: Callable[[PublishedSite], Awaitable[None]], key: tuple[str, ...] = ()
) -> None:
    async def run() -> None:
        path = folder / "events"
        path.mkdir()
        await tell(await published_site(path.as_uri(), publish="iceberg", key=key))

    asyncio.run(run())


def root(site: PublishedSite) -> Path:
    return Path(site.location.root)


def check_rows(site: PublishedSite) -> None:
    """Compare what readers get by the hint, and by the file that the service shows."""
    assert site.log.format == "iceberg"
    hint = (root(site) / "metadata/version-hint.text").read_text()
    assert Path(site.log.path).name == f"{hint}.metadata.json"
    assert read_as_iceberg(str(root(site))) == site.model
    assert read_as_iceberg(site.log.path) == site.model


def metadata_names(site: PublishedSite, part: str = "") -> list[str]:
    return sorted(name for name in os.listdir(root(site) / "metadata") if part in name)


def static_table(site: PublishedSite) -> StaticTable:
    return StaticTable.from_metadata(site.log.path)


def test_other_engines_follow_appends_and_compactions(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        assert await site.publish()
        check_rows(site)
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
        summary = static_table(site).current_snapshot().summary  # type: ignore[union-attr]
        assert (summary["total-data-files"], summary["total-records"]) == ("2", "4")

    story(tmp_path, tell)


def test_unchanged_manifests_are_used_again(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        first = {item.manifest_path for item in manifests_of(site)}
        await site.add("day=8/b.parquet", 2)
        assert await site.publish()
        assert {item.manifest_path for item in manifests_of(site)} > first
        await site.compact(8, "day=8/b.parquet")
        assert await site.publish()
        assert first < {item.manifest_path for item in manifests_of(site)}
        for number in range(publication.SMALL_MANIFESTS_MAX + 2):
            await site.add(f"day=9/{number}.parquet", 10 + number)
            assert await site.publish()
        assert len(manifests_of(site)) <= publication.SMALL_MANIFESTS_MAX
        check_rows(site)
        await site.add("day=9/last.parquet", 99)
        assert await site.publish(site.coordinator("b")), "it reads the manifests"
        check_rows(site)

    story(tmp_path, tell)


def manifests_of(site: PublishedSite) -> list[Any]:
    table = static_table(site)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.manifests(table.io)


def test_readers_skip_files_by_partition_and_metrics(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1, 1999)
        await site.add("day=8/b.parquet", 2_000_000)
        assert await site.publish()
        (root(site) / "day=8/b.parquet").unlink()
        early = BEGIN + timedelta(microseconds=1999)
        table = static_table(site)
        for wanted in ("day == 7", "id < 2000", f"at <= '{early.isoformat()}'"):
            assert sorted(table.scan(row_filter=wanted).to_arrow()["id"].to_pylist()) == [1, 1999]
        (duckdb,) = independent_reader().ask(
            "select list_sort(list(id)) from iceberg_scan(?) where id < 2000", [site.log.path]
        )
        assert duckdb == [[1, 1999]]

    story(tmp_path, tell)


def test_a_published_file_stays_for_the_grace(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        reader = static_table(site)
        await site.compact(7, "day=7/a.parquet")
        await site.here.collector.collect(site.table)
        site.clock.advance(10 * GRACE_S)
        await site.here.collector.collect(site.table)
        check_rows(site)
        assert await site.here.manifests.look(site.table)
        site.clock.advance(GRACE_S - 1)
        await site.here.collector.collect(site.table)
        assert reader.scan().to_arrow().num_rows == 1, "it has read the version before"
        site.clock.advance(1)
        assert (await site.here.collector.collect(site.table)).deleted == 1
        assert not (root(site) / "day=7/a.parquet").exists()
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
            assert not await site.publish()
            site.clock.advance(GRACE_S)
            assert (await site.here.collector.collect(site.table)).deleted == 0
        pointer = json.loads((root(site) / "_neve/manifest/latest.json").read_text())
        assert pointer["totals"]["files"] == 2, "readers of the manifest see the new files"
        assert read_as_iceberg(str(root(site))) == [(1, 7)], "as of the last version"
        (problem,) = site.here.logs.problems.values()
        assert problem in site.here.faults.notices[0]
        assert read_note(site.location).problem == problem
        assert await site.publish()
        check_rows(site)
        assert (site.here.logs.problems, site.here.faults.notices) == ({}, ())

    story(tmp_path, tell)


class DeathError(BaseException):
    """The process ends."""


@pytest.mark.parametrize("step", ["manifest", "list", "metadata", "hint"])
def test_a_dead_coordinator_is_followed_by_another(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies before or after what it writes at a step; the next one goes on."""
    parts = {"manifest": "-m0.avro", "list": "-list.avro", "metadata": ".json", "hint": "hint.text"}
    part = parts[step]

    def dying(own: Callable[..., Any], *, late: bool) -> Callable[..., Any]:
        def write(storage: LakeStorage, path: str, data: bytes) -> Any:
            if not path.endswith(part):
                return own(storage, path, data)
            if late:
                own(storage, path, data)
            raise DeathError

        return write

    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        for late in (False, True):
            output = await site.compact(7, *site.rows)
            before, version = site.model, site.log.version
            await site.add(f"day=7/{late}.parquet", 2 + late)
            with monkeypatch.context() as patch:
                for name in ("create", "replace"):
                    patch.setattr(LakeStorage, name, dying(getattr(LakeStorage, name), late=late))
                with pytest.raises(DeathError):
                    await site.publish()
            has_version = step == "hint" or (step, late) == ("metadata", True)
            assert site.log.version == version + has_version
            is_hinted = (step, late) == ("hint", True)
            assert read_as_iceberg(str(root(site))) == (site.model if is_hinted else before)
            site.here = site.coordinator(f"next{late}")
            await site.here.collector.collect(site.table)
            assert (root(site) / output).exists()
            assert await site.publish()
            assert site.log.version == version + has_version + 1
            check_rows(site)

    story(tmp_path, tell)


def test_a_hint_that_was_written_late_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        own, other = LakeStorage.replace, site.coordinator("b")
        is_open = asyncio.Event()
        loop = asyncio.get_running_loop()

        def replaced(storage: LakeStorage, path: str, data: bytes) -> None:
            if path == publication.HINT and not is_open.is_set():
                is_open.set()
                asyncio.run_coroutine_threadsafe(later(), loop).result()
            own(storage, path, data)

        async def later() -> None:
            await site.add("day=8/c.parquet", 3)
            assert await site.publish(other)

        monkeypatch.setattr(LakeStorage, "replace", replaced)
        await site.add("day=7/b.parquet", 2)
        await site.publish()
        assert site.log.version == 2
        check_rows(site)

    story(tmp_path, tell)


def test_the_metadata_is_bounded(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        (root(site) / "metadata").mkdir()
        notes = root(site) / "metadata/notes.avro"
        notes.write_bytes(b"a file of users")
        await site.add("day=8/rest.parquet", 100)
        path = "day=7/first.parquet"
        await site.add(path, 1)
        for _ in range(publication.CLEAN_VERSIONS + 1):
            path = await site.compact(7, path)
            assert await site.publish()
        assert len(metadata_names(site, ".json")) == publication.CLEAN_VERSIONS + 1, "all are young"
        for name in metadata_names(site):  # as if a day had passed
            os.utime(root(site) / "metadata" / name, (0, 0))
        for _ in range(publication.CLEAN_VERSIONS):
            path = await site.compact(7, path)
            assert await site.publish()
        last = 2 * publication.CLEAN_VERSIONS
        kept = [int(name[:5]) for name in metadata_names(site, ".json")]
        assert kept == list(range(publication.CLEAN_VERSIONS, last + 1)), "the newest old one stays"
        assert len(metadata_names(site, "-list.avro")) == len(kept)
        assert len(metadata_names(site, "-m")) <= 2 * len(kept)
        for name in metadata_names(site, ".json"):
            table = StaticTable.from_metadata(str(root(site) / "metadata" / name))
            snapshot = table.current_snapshot()
            assert snapshot is not None
            assert [item.fetch_manifest_entry(table.io) for item in snapshot.manifests(table.io)]
        assert notes.exists()
        check_rows(site)

    story(tmp_path, tell)


def test_of_two_coordinators_the_later_one_wins(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        other = site.coordinator("b")
        late = await site.here.logs.begin(site.table)
        assert late is not None
        async for page in manifests.walk_tiles(site.store, site.table):
            for tablet in page:
                late.add(tablet)
        await site.compact(7, "day=7/a.parquet")
        assert await site.publish(other), "both begin with version 0"
        names = metadata_names(site)
        assert not await late.publish(site.clock.now_s()), "its files are older"
        assert site.here.logs.problems == {}, "another publisher is no problem"
        assert metadata_names(site) == names, "it leaves nothing"
        check_rows(site)
        await site.add("day=8/c.parquet", 3)
        assert await site.publish(), "it reads the metadata again"
        check_rows(site)

    story(tmp_path, tell)


def test_the_setting_decides_which_format_is_there(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.change(publish="delta")
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        assert (site.log.format, site.log.version) == ("delta", 0)
        for _ in range(2):
            await site.change(publish="iceberg")
            assert await site.publish()
            assert (site.log.format, site.log.version) == ("iceberg", 0)
            assert not (root(site) / LOG_FOLDER).exists()
            assert foreign_mark(site.location) is None
            check_rows(site)
            await site.change(publish="delta")
            assert await site.publish(site.coordinator("b")), "it remembers nothing"
            assert not (root(site) / "metadata").exists()
            assert DeltaTable(root(site)).to_pyarrow_table().num_rows == 1
        await site.change(publish="iceberg")
        assert await site.publish()
        await site.change(publish="off")
        assert await site.publish()
        assert own_log(site.location) is None
        assert not (root(site) / "metadata").exists()
        assert foreign_mark(site.location) is None

    story(tmp_path, tell)


def test_only_its_own_metadata_is_taken_for_its_own(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        assert foreign_mark(site.location, ["day=7/a.parquet"]) is None
        assert foreign_mark_below(site.location) is None
        listing = list_directory(site.location)
        assert [file.path for file in listing.files] == ["day=7/a.parquet"]
        assert listing.misfits == {}
        other = root(site) / "metadata/v1.metadata.json"
        other.write_text(Path(site.log.path).read_text())
        mark = foreign_mark(site.location)
        assert mark is not None
        assert mark.format == "Apache Iceberg"
        await site.compact(7, "day=7/a.parquet")
        await site.here.collector.collect(site.table)
        assert not await site.publish(), "nothing is added"
        site.clock.advance(10 * GRACE_S)
        assert (await site.here.collector.collect(site.table)).deleted == 0
        (problem,) = site.here.logs.problems.values()
        assert "v1.metadata.json" in problem
        await site.change(publish="off")
        assert not await site.publish(), "nothing of it is removed"
        assert len(metadata_names(site)) > 2
        other.unlink()
        assert await site.publish()
        assert not (root(site) / "metadata").exists()

    story(tmp_path, tell)


def test_the_metadata_of_an_earlier_table_goes(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        first = metadata_names(site, ".json")
        again = await published_site(site.table.location, "t2", publish="iceberg")
        assert foreign_mark(site.location) is None, "it is one of the service"
        await again.add("day=7/b.parquet", 2)
        assert await again.publish()
        assert (again.log.table, again.log.version) == ("t2", 0)
        assert metadata_names(site, ".json") != first
        assert read_note(site.location).tables == ("t2", "t1")
        check_rows(again)

    story(tmp_path, tell)


def test_a_recovered_table_continues_its_metadata(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        before = static_table(site).metadata.table_uuid
        location = site.table.location
        recovered = await published_site(location, "t2", ("t1",), publish="iceberg")
        assert foreign_mark(site.location) is None
        await recovered.add("day=7/b.parquet", 2)
        assert await recovered.publish()
        assert (recovered.log.table, recovered.log.version) == ("t2", 1)
        assert static_table(recovered).metadata.table_uuid == before
        check_rows(recovered)

    story(tmp_path, tell)


def test_columns_keep_their_ids(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        assert await site.publish()
        note = Column("note", "list<item: string>", since=1)
        await site.widen(COLUMNS[0], note, *COLUMNS[1:])
        await site.add("day=8/b.parquet", 2)
        assert await site.publish()
        fields = static_table(site).schema().fields
        names = [(field.name, field.field_id) for field in fields]
        assert names == [("id", 1), ("note", 4), ("at", 2), ("day", 3)]
        assert static_table(site).metadata.last_column_id == 5
        assert static_table(site).scan().to_arrow()["note"].to_pylist() == [None, None]
        check_rows(site)

    story(tmp_path, tell)


def test_files_with_other_field_ids_are_refused(tmp_path: Path) -> None:
    """Readers would go by the ids, and show a column under the name of another one."""

    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        for numbers, wanted in (((2, 1), False), ((1, None), False), ((1, 2), True)):
            rows = row_file([1])
            metadata = [{"PARQUET:field_id": str(n)} if n else None for n in numbers]
            fields = [
                field.with_metadata(m) for field, m in zip(rows.schema, metadata, strict=True)
            ]
            schema = pa.schema(fields)
            pq.write_table(rows.cast(schema), root(site) / "day=7/a.parquet", store_schema=False)
            assert await site.publish() is wanted
            if not wanted:
                (problem,) = site.here.logs.problems.values()
                assert "field id" in problem
                assert own_log(site.location) is None
        check_rows(site)

    story(tmp_path, tell)


def test_a_table_with_a_key_is_published_at_rest(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 2, 1)
        assert await site.publish(), "the manifest does not wait"
        assert own_log(site.location) is None
        assert "not at rest" in read_note(site.location).problem
        first = await site.compact(7, "day=7/a.parquet")
        assert await site.publish()
        as_of_s, before = site.log.as_of_s, site.model
        check_rows(site)
        await site.add("day=7/b.parquet", 2, 3)
        assert await site.publish()
        assert (site.log.version, site.log.as_of_s, site.log.rows) == (1, as_of_s, 2)
        assert "not at rest" in site.log.lag
        second = await site.compact(7, first, "day=7/b.parquet")
        await site.add("day=7/c.parquet", 3, 4)
        for number in range(4):
            await site.change(ratio=4.0 + number)
            assert await site.publish(), "manifests are recorded"
            await site.here.collector.collect(site.table)
            site.clock.advance(GRACE_S)
        assert not (root(site) / "day=7/b.parquet").exists(), "no version has named it"
        assert read_as_iceberg(str(root(site))) == before
        other = site.coordinator("b")
        assert (await other.collector.collect(site.table)).deleted == 0, "it reads the metadata"
        await site.compact(7, second, "day=7/c.parquet")
        assert await site.publish(other)
        check_rows(site)
        assert site.log.lag == ""

    story(tmp_path, tell, key=("id",))


# ------------------------------------------------------------------------------ Other engines write


def registered(folder: Path, site: PublishedSite) -> tuple[Catalog, Table]:
    catalog = sqlite_catalog(folder)
    return catalog, catalog.register_table("db.events", site.log.path)


def stored(site: PublishedSite) -> dict[str, bytes]:
    paths = [path for path in root(site).rglob("*") if path.is_file()]
    return {str(path.relative_to(root(site))): path.read_bytes() for path in paths}


def test_no_engine_writes_that_does_not_change_the_folders(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1, 2)
        assert await site.publish()
        before = stored(site)
        catalog, table = registered(tmp_path, site)
        assert table.scan().to_arrow().num_rows == 2
        rows = table.scan().to_arrow()
        attempts: list[Callable[[], object]] = [
            lambda: table.append(rows),
            lambda: table.overwrite(rows),
            lambda: table.delete("id = 1"),
            lambda: table.delete("day = 7"),
            lambda: table.update_schema().add_column("x", IntegerType()).commit(),
            lambda: table.maintenance.expire_snapshots().older_than(BEGIN).commit(),
        ]
        for attempt in attempts:
            with pytest.raises((ValueError, UserWarning), match="neve-read-only"):
                attempt()
        catalog.drop_table("db.events")
        assert stored(site) == before
        await site.compact(7, "day=7/a.parquet")
        assert await site.publish()
        check_rows(site)

    story(tmp_path, tell)


def test_a_table_of_another_catalog_that_has_own_folders_is_another_table(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1, 2)
        await site.add("day=8/b.parquet", 3)
        assert await site.publish()
        before = stored(site)
        _, table = registered(tmp_path, site)
        rows = table.scan().to_arrow()
        folders = {
            f"write.{name}.path": (tmp_path / name).as_uri() for name in ("data", "metadata")
        }
        with table.transaction() as changes:
            changes.set_properties(folders)
        table.append(rows)
        table.delete("id = 1")
        first = table.snapshots()[0].snapshot_id
        table.maintenance.expire_snapshots().by_id(first).commit()
        assert table.scan().to_arrow().num_rows == 4
        assert stored(site) == before
        await site.compact(7, "day=7/a.parquet")
        assert await site.publish()
        check_rows(site)

        with table.transaction() as changes:
            changes.remove_properties(*folders)
        names = set(stored(site))
        (added,) = (name for name in metadata_names(site, ".json") if "b75a" not in name)
        await site.compact(8, "day=8/b.parquet")
        assert not await site.publish()
        assert added in next(iter(site.here.logs.problems.values()))
        site.clock.advance(10 * GRACE_S)
        assert (await site.here.collector.collect(site.table)).deleted == 0
        assert names < set(stored(site))

    story(tmp_path, tell)
