"""Backup and restore over a real Redis and real files."""

from __future__ import annotations

import io
import shutil

import pytest

from common.errors import RefusedError, RequestError
from common.metadata.changes import DropTable
from common.metadata.keys import TabletKeys
from common.metadata.keyspace import hset, set_string
from common.model.location_identity import GENERATION_PATH
from common.model.table import Table, TableState
from neve.recovery.archive import TabletDump, read_archive
from neve.recovery.backup import (
    BackupOptions,
    RestoreOptions,
    backup,
    restore,
)
from neve.recovery.gc import collect_orphans
from neve.recovery.repair import RepairOptions, check_and_repair
from neve.recovery.scope import RecoveryPorts
from tests.support.recovery import Ground
from tests.support.store_harness import applied

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


async def archive_of(ground: Ground, *tables: Table, **options: object) -> bytes:
    scopes = [ground.scope(table) for table in tables]
    chosen = BackupOptions(**options)  # type: ignore[arg-type]  # by name
    return b"".join([line async for line in backup(scopes, ground.ids, ground.door, chosen)])


def restorer(ground: Ground) -> RecoveryPorts:
    return RecoveryPorts(
        store=ground.store,
        threads=ground.threads,
        ids=ground.ids,
        admission=ground.door,
        on_progress=lambda _text: None,
    )


async def bring_back(ground: Ground, archive: bytes, **options: object) -> list[Table]:
    chosen = RestoreOptions(**options)  # type: ignore[arg-type]  # by name
    done = await restore(restorer(ground), io.BytesIO(archive), chosen)
    return [each.table for each in done]


async def forget_everything(ground: Ground) -> None:
    """Lose Redis, and begin with an empty one of another store id."""
    await ground.harness.read(("FLUSHALL",))
    ground.harness.store = ground.harness.another()


async def events(ground: Ground) -> Table:
    table = await ground.table()
    first = await ground.add(table, "a.parquet", 1, 2)
    await ground.add(table, "b.parquet", 2, 50, v=2)
    await ground.compact(table, first, "a.parquet", "b.parquet")
    await ground.add(table, "c.parquet", 150)
    keys = TabletKeys.of(first)
    await ground.harness.write(set_string(keys.purge, b"\x01p"), hset(keys.record, {"p": 1}))
    return table


async def shape(ground: Ground, table: Table) -> list[tuple[object, ...]]:
    tablets = await ground.store.read_range(table.id)
    return [(tablet.bounds, tablet.files, tablet.purge) for tablet in tablets]


async def test_a_table_is_the_same_in_another_store(ground: Ground) -> None:
    table = await events(ground)
    wanted = await shape(ground, table)
    before = await ground.dump()
    archive = await archive_of(ground, table)
    after = await ground.dump()
    assert after == before, "the pin is gone, and nothing else was written"

    await forget_everything(ground)
    (restored,) = await bring_back(ground, archive, adopt=True)

    assert restored.id != table.id
    assert restored.state is TableState.LIVE
    assert (restored.schema, restored.settings) == (table.schema, table.settings)
    assert await shape(ground, restored) == wanted
    report = await check_and_repair(ground.scope(restored), RepairOptions())
    assert [finding.code.value for finding in report.checked.findings] == ["unknown", "unknown"]
    (tablet, _) = await ground.store.read_range(restored.id)
    compacted = await ground.compact(restored, tablet.id, *tablet.files)
    assert len(compacted) == 1, "and work goes on"


async def test_another_store_s_location_is_refused(ground: Ground) -> None:
    archive = await archive_of(ground, await events(ground))
    await forget_everything(ground)
    await ground.store.store_id()
    before, files = await ground.dump(), ground.files()

    with pytest.raises(RefusedError, match="belongs to the store"):
        await bring_back(ground, archive)
    await bring_back(ground, archive, adopt=True, dry_run=True)

    assert await ground.dump() == before
    assert ground.files() == files


async def test_copies_are_restored_beside_the_original(ground: Ground) -> None:
    table = await events(ground)
    rows = ground.rows_of(table, await ground.paths(table))
    archive = await archive_of(ground, table, copy_to=(ground.folder / "copies").as_uri())

    (copied,) = await bring_back(
        ground,
        archive,
        names={"events": "copied"},
        locations={"events": (ground.folder / "copies/events").as_uri()},
    )

    paths = await ground.paths(copied)
    shutil.rmtree(ground.folder / "events")
    shutil.move(ground.folder / "copies/events", ground.folder / "events")
    assert ground.rows_of(table, paths) == rows


async def test_a_table_without_its_files_stays_paused(ground: Ground) -> None:
    table = await events(ground)
    archive = await archive_of(ground, table)
    applied(await ground.store.apply(DropTable(table=table.id)))
    for name in ("a.parquet", "b.parquet"):  # They were garbage; the collector takes them.
        await ground.harness.write(("HDEL", f"neve:{{{table.id}}}:garbage", name))
    applied(await ground.store.apply(DropTable(table=table.id)))
    ground.place(table, "c.parquet").unlink()
    ground.place(table, GENERATION_PATH).write_text("7\n")

    (founded,) = await restore(restorer(ground), io.BytesIO(archive), RestoreOptions())

    assert founded.missing == ("c.parquet",)
    assert founded.table.state is TableState.PAUSED
    assert await ground.store.generation(founded.table.id) == 9, "above 8, with the loss noted"
    with pytest.raises(RefusedError, match="another name"):
        await bring_back(ground, archive)


async def test_files_that_came_after_the_archive_stay(ground: Ground) -> None:
    """They may be rows of users: the archive does not know, and nobody deletes them."""
    table = await events(ground)
    archive = await archive_of(ground, table)
    await ground.add(table, "_neve/append/later.parquet", 160)
    await forget_everything(ground)
    (restored,) = await bring_back(ground, archive, adopt=True)

    done = await collect_orphans(ground.scope(restored), delete=True)

    assert (done.given, done.orphans, done.evidence) == (0, 0, 1)
    assert [each.path for each in done.found] == ["_neve/append/later.parquet"]


async def test_a_pin_stays_for_who_copies_the_files(ground: Ground) -> None:
    table = await events(ground)

    await archive_of(ground, table, hold_s=500.0)

    (pin,) = await ground.store.pins(table.id)
    assert pin.until_s - await ground.store.now_s() > 400


async def test_all_tables_go_into_one_archive(ground: Ground) -> None:
    table = await events(ground)
    bag = await ground.table("bag", key=(), version_column=None, splits=())
    await ground.add(bag, "x.parquet", 1, 1)
    parted = await ground.table("parted", splits=(), partition_by=("name",), key=("id", "name"))
    archive = await archive_of(ground, table, bag, parted)
    names = [each.name for each in read_archive(io.BytesIO(archive)) if isinstance(each, Table)]
    assert names == ["events", "bag", "parted"]
    await forget_everything(ground)

    (only,) = await bring_back(ground, archive, adopt=True, only=["bag"])

    assert (only.name, await ground.paths(only)) == ("bag", ["x.parquet"])
    with pytest.raises(RequestError, match="no table 'bog'"):
        await bring_back(ground, archive, only=["bog"])
    with pytest.raises(RequestError, match="DNS label"):
        await bring_back(ground, archive, names={"bag": "Bag!"})


def changed(archive: bytes, old: bytes, new: bytes) -> bytes:
    assert old in archive
    return archive.replace(old, new, 1)


async def test_an_archive_that_is_not_whole_is_refused(ground: Ground) -> None:
    archive = await archive_of(ground, await events(ground))
    lines = archive.splitlines(keepends=True)
    broken = {
        "broken off": b"".join(lines[:-3]),
        "cut off": archive[:-5],
        "digest": changed(archive, b'"rows":1', b'"rows":9'),
        "kind": b"".join(lines[1:]),
        "version 1": changed(archive, b'"version":1', b'"version":2'),
        "no JSON": changed(archive, b'{"kind":"tablet"', b'{{"kind":"tablet"'),
        "object": b"[]\n" + archive,
        "is no file": changed(archive, b'"size_bytes":', b'"size":'),
        "counts": changed(archive, b'"tablets":2', b'"tablets":9'),
        "a key that is none": changed(archive, b'"end":"', b'"end":"zz'),
        "no end": changed(archive, b'"end":', b'"and":'),
        "files": changed(archive, b'"files":1', b'"files":-1'),
        "no table": changed(archive, b'"table":{', b'"tabel":{'),
    }
    before = await ground.dump()
    for match, content in broken.items():
        with pytest.raises(RequestError, match=match):
            await bring_back(ground, content, adopt=True, names={}, only=[])
    assert await ground.dump() == before


async def test_files_come_back_from_an_archive_as_they_were(ground: Ground) -> None:
    table = await events(ground)
    archive = await archive_of(ground, table)

    tablets = [each for each in read_archive(io.BytesIO(archive)) if isinstance(each, TabletDump)]

    stored = await ground.store.read_range(table.id)
    assert [{file.path: file for file in tablet.files} for tablet in tablets] == [
        each.files for each in stored
    ]
