"""Redis is lost, and a manifest was published: it says what the table was, to the tablet."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from common.metadata.changes import AddFiles, BeginOperation, EndOperation, StepOperation
from common.metadata.keys import TabletKeys
from common.metadata.keyspace import hset, set_string
from common.model.location_identity import DESCRIPTION_PATH, MANIFEST_FOLDER
from common.model.table import Table, TableSettings, TableState
from common.model.tablet import OperationKind, OperationStep, TabletId
from common.parquet.manifest import POINTER_PATH, manifest_folders
from common.runtime import call_id
from coordinator.storage.manifests import ManifestPublisher
from neve.recovery.rebuild.table_rebuild import (
    RebuildOptions,
    RebuildResult,
    rebuild,
)
from neve.recovery.scope import RecoveryPorts
from neve.recovery.stored_files import COMMIT_DELAY_MAX_S
from tests.support.recovery import Ground, key, plant, rows
from tests.support.store_harness import applied, refused

pytestmark = [pytest.mark.anyio, pytest.mark.integration]
SETTINGS = TableSettings(ratio=5.0, manifest_interval_s=1.0)


async def publish(ground: Ground, table: Table) -> None:
    manifests = ManifestPublisher(ground.store, ground.ids, 900.0, lambda _event, **_fields: None)
    assert await manifests.look(table)


async def lost_and_rebuilt(ground: Ground, table: Table, **options: object) -> RebuildResult:
    await ground.harness.read(("FLUSHALL",))
    ground.harness.store = ground.harness.another()
    await ground.store.store_id()
    rebuilder = RecoveryPorts(
        store=ground.store, threads=ground.threads, ids=ground.ids, admission=ground.door
    )
    plain: dict[str, object] = {"name": table.name, "adopt": True}
    chosen = RebuildOptions(**plain | options)  # type: ignore[arg-type]  # by name
    return await rebuild(rebuilder, table.location, chosen)


def age(ground: Ground, table: Table, *paths: str) -> None:
    """Let files look as if they had been there long before anything else."""
    for path in paths:
        place = ground.place(table, path)
        then_s = place.stat().st_mtime - COMMIT_DELAY_MAX_S - 60
        os.utime(place, (then_s, then_s))


async def test_tablets_and_files_are_as_they_were_and_what_came_since_is_there(
    ground: Ground,
) -> None:
    table = await ground.table(splits=(100, 200, 300), settings=SETTINGS)
    first = await ground.add(table, "a.parquet", 1, 2)
    await ground.add(table, "b.parquet", 3)
    await ground.add(table, "c.parquet", 150)
    await ground.add(table, "d.parquet", 250, 260)
    last = await ground.add(table, "e.parquet", 301)
    (made,) = await ground.compact(table, first, "a.parquet", "b.parquet")
    await publish(ground, table)
    await ground.add(table, "_neve/append/f.parquet", 4)
    await ground.compact(table, first, made, "_neve/append/f.parquet")
    await ground.add(table, "_neve/append/g.parquet", 151)
    await ground.add(table, "h.parquet", 302)
    await ground.compact(table, last, "e.parquet", "h.parquet")
    before = await ground.store.read_range(table.id)

    done = await lost_and_rebuilt(ground, table)

    assert (done.report.manifest, done.report.lost, done.table.state) == (1, {}, TableState.LIVE)
    after = await ground.store.read_range(done.table.id)
    assert [each.bounds for each in after] == [each.bounds for each in before]
    assert [sorted(each.files) for each in after] == [sorted(each.files) for each in before]
    assert {"a.parquet", "e.parquet", "h.parquet", made} <= done.report.left.keys()


async def test_both_parts_of_a_split_tablet_keep_out_rows_below_its_watermark(
    ground: Ground,
) -> None:
    """The part without a job since the split has dropped tombstones, too."""
    table = await ground.table(splits=(200,), settings=SETTINGS)
    tablet = await ground.add(table, "a.parquet", 1, v=9)
    for path in ("b.parquet", "c.parquet"):
        await ground.add(table, path, 150, v=9)
    old = ground.write(table, "old.parquet", rows(3, v=5))
    keys = TabletKeys.of(tablet)
    await plant(ground, set_string(keys.purge, old.version_max or b""), hset(keys.record, {"p": 1}))
    await ground.compact(table, tablet, "b.parquet", "c.parquet")
    where: dict[str, Any] = {"tablets": (tablet,), "operation": "op1"}
    cut = BeginOperation(kind=OperationKind.SPLIT, at=key(100), **where)
    drain, close = (
        StepOperation(step=step, **where) for step in (OperationStep.DRAIN, OperationStep.CLOSE)
    )
    for change in (cut, drain, close, EndOperation(**where)):
        applied(await ground.store.apply(change))
    await publish(ground, table)

    done = await lost_and_rebuilt(ground, table, user_files=False)

    tablets = await ground.store.read_range(done.table.id)
    assert [each.purge for each in tablets] == [old.version_max, old.version_max, None]
    again = AddFiles(table=done.table.id, call=call_id(), files={key(100): (old,)})
    refused(await ground.store.apply(again), "purged")


async def test_rows_that_were_replaced_long_ago_do_not_come_back(ground: Ground) -> None:
    """Their files could not be deleted; what replaced them has been replaced, and is deleted."""
    table = await ground.table(key=(), version_column=None, splits=(), settings=SETTINGS)
    tablet = await ground.add(table, "a.parquet", 1, 1)
    await ground.add(table, "b.parquet", 2)
    await ground.add(table, "c.parquet", 3)
    (made,) = await ground.compact(table, tablet, "a.parquet", "b.parquet")
    await ground.compact(table, tablet, made, "c.parquet")
    ground.place(table, made).unlink()
    age(ground, table, "a.parquet", "b.parquet")
    held = ground.rows_of(table, await ground.paths(table))
    await publish(ground, table)

    done = await lost_and_rebuilt(ground, table)

    assert ground.rows_of(done.table, await ground.paths(done.table)) == held
    assert done.report.left["a.parquet"] == "manifest 1 does not name it, and is younger"
    assert done.report.left["c.parquet"] == "it was replaced before manifest 1"


async def test_files_of_users_count_if_the_manifest_says_so_or_they_came_since(
    ground: Ground,
) -> None:
    table = await ground.table(settings=SETTINGS)
    await ground.add(table, "in.parquet", 1)
    await publish(ground, table)
    for path in ("never.parquet", "since.parquet"):
        ground.write(table, path, rows(5))
    age(ground, table, "in.parquet", "never.parquet")

    done = await lost_and_rebuilt(ground, table, dry_run=True)
    alone = await lost_and_rebuilt(ground, table, user_files=False)

    assert [file.path for file in done.files] == ["in.parquet", "since.parquet"]
    assert done.report.left.keys() == {"never.parquet"}
    assert any("since manifest 1" in line for line in done.report.not_recovered)
    assert await ground.paths(alone.table) == ["in.parquet"]


async def test_a_file_that_is_not_there_any_more_is_lost(ground: Ground) -> None:
    table = await ground.table(settings=SETTINGS)
    await ground.add(table, "a.parquet", 1)
    await ground.add(table, "b.parquet", 2)
    await publish(ground, table)
    ground.place(table, "b.parquet").unlink()

    done = await lost_and_rebuilt(ground, table)

    assert done.report.lost == {
        "b.parquet": "it was in the table by manifest 1, and is not in storage"
    }
    assert done.table.state is TableState.PAUSED


@pytest.mark.parametrize("damage", ["pointer", "part", "another table", "another version"])
async def test_a_manifest_that_cannot_be_used_is_said(ground: Ground, damage: str) -> None:
    table = await ground.table(settings=SETTINGS)
    await ground.add(table, "a.parquet", 1)
    await publish(ground, table)
    pointer = ground.place(table, POINTER_PATH)
    (folder,) = manifest_folders(ground.location(table))
    said = {
        "pointer": "makes no sense",
        "part": "cannot be read",
        "another table": "manifest 1 is of another table, t-other",
        "another version": "this release reads neve-manifest version 1",
    }[damage]
    match damage:
        case "pointer":
            pointer.write_text("{")
        case "part":
            next(ground.place(table, folder).iterdir()).write_bytes(b"PAR1")
        case "another table":
            pointer.write_text(pointer.read_text().replace(table.id, "t-other"))
        case _:
            pointer.write_text(pointer.read_text().replace('"version": 1', '"version": 9'))

    done = await lost_and_rebuilt(ground, table)

    assert done.report.manifest is None
    assert any(said in line for line in done.report.not_recovered), done.report.not_recovered
    assert await ground.paths(done.table) == ["a.parquet"]


async def test_a_table_that_was_rebuilt_is_rebuilt_again(ground: Ground) -> None:
    """Its files say two ids; the manifest says which of them the table has."""
    table = await ground.table(settings=SETTINGS)
    tablet = await ground.add(table, "a.parquet", 1)
    await ground.add(table, "b.parquet", 2)
    await ground.compact(table, tablet, "a.parquet", "b.parquet")
    await publish(ground, table)
    once = (await lost_and_rebuilt(ground, table)).table
    end = await ground.add(once, "c.parquet", 150)
    await ground.add(once, "d.parquet", 160)
    await ground.compact(once, end, "c.parquet", "d.parquet")
    await publish(ground, once)
    held = await ground.paths(once)

    twice = await lost_and_rebuilt(ground, once)

    assert twice.report.manifest == 1
    assert await ground.paths(twice.table) == held
    first = await ground.store.tablet(TabletId(twice.table.id, key(100)))
    assert [len(each) for each in (first.files, held)] == [1, 2]


async def test_a_rebuild_without_a_manifest_starts_from_the_files(ground: Ground) -> None:
    off = replace(SETTINGS, manifest_interval_s=None)
    table = await ground.table(settings=off)
    await ground.add(table, "a.parquet", 1)
    assert not ground.place(table, MANIFEST_FOLDER).exists()
    assert (await lost_and_rebuilt(ground, table)).report.manifest is None


async def rebuilt_once(ground: Ground) -> tuple[Table, list[str]]:
    """Return a table of two ids without a manifest: jobs wrote files under each of them."""
    table = await ground.table(
        key=(), version_column=None, splits=(), settings=replace(SETTINGS, manifest_interval_s=None)
    )
    tablet = await ground.add(table, "a.parquet", 1)
    await ground.add(table, "b.parquet", 2)
    first = await ground.compact(table, tablet, "a.parquet", "b.parquet")
    for path in ("a.parquet", "b.parquet"):
        ground.place(table, path).unlink()
    once = (await lost_and_rebuilt(ground, table)).table
    end = await ground.add(once, "c.parquet", 3)
    await ground.add(once, "d.parquet", 4)
    return once, [*first, *await ground.compact(once, end, "c.parquet", "d.parquet")]


async def test_a_second_rebuild_keeps_what_jobs_wrote_before_the_first(ground: Ground) -> None:
    once, held = await rebuilt_once(ground)
    assert await ground.paths(once) == sorted(held)

    twice = await lost_and_rebuilt(ground, once)

    assert await ground.paths(twice.table) == sorted(held)
    assert twice.report.lost == {}
    assert {*twice.table.former_ids} == {once.id, *once.former_ids}


async def test_an_input_of_the_newer_id_was_not_replaced_under_the_former_one(
    ground: Ground,
) -> None:
    """A compactor of the lost table left an output; it was refused, and nobody deleted it."""
    table = await ground.table(key=(), version_column=None, splits=())
    tablet = await ground.add(table, "a.parquet", 1)
    await ground.add(table, "b.parquet", 2)
    late = ground.rewrite(await ground.reserve(table, tablet, "a.parquet", "b.parquet"))
    output = ground.place(table, late.outputs[0].path)
    content = output.read_bytes()
    output.unlink()
    once = (await lost_and_rebuilt(ground, table)).table
    output.write_bytes(content)
    end = await ground.add(once, "c.parquet", 3)
    await ground.compact(once, end, "a.parquet", "c.parquet")
    for path in ("a.parquet", "c.parquet"):
        ground.place(once, path).unlink()
    held = await ground.paths(once)

    twice = await lost_and_rebuilt(ground, once)

    assert (await ground.paths(twice.table), twice.report.lost) == (held, {})
    assert once.id in twice.report.left[late.outputs[0].path]


async def test_the_manifest_of_a_former_id_still_says_what_was_in_the_table(
    ground: Ground,
) -> None:
    table = await ground.table(splits=(), settings=SETTINGS)
    tablet = await ground.add(table, "a.parquet", 1)
    await ground.add(table, "b.parquet", 2)
    await ground.compact(table, tablet, "a.parquet", "b.parquet")
    await publish(ground, table)
    ground.write(table, "never.parquet", rows(9))
    age(ground, table, "never.parquet")
    once = (await lost_and_rebuilt(ground, table)).table
    end = await ground.add(once, "c.parquet", 3)
    await ground.add(once, "d.parquet", 4)
    await ground.compact(once, end, "c.parquet", "d.parquet")
    held = await ground.paths(once)

    twice = await lost_and_rebuilt(ground, once)

    assert (twice.report.manifest, twice.report.lost) == (1, {})
    assert await ground.paths(twice.table) == held


async def test_a_loss_that_was_accepted_lets_files_of_former_ids_count(ground: Ground) -> None:
    """A manifest after a restore may lack what jobs wrote after the backup was made."""
    once, held = await rebuilt_once(ground)
    await publish(ground, replace(once, settings=SETTINGS))
    pointer = ground.place(once, POINTER_PATH)
    body = json.loads(pointer.read_text())
    (end,) = await ground.store.read_range(once.id)
    gone = dict(end.files)
    assert {*gone} == {*held}
    part = ground.place(once, body["parts"][0]["path"])
    names = pq.read_table(part)
    pq.write_table(names.filter(pc.field("path") != held[0]), part)
    body["totals"]["files"] = 1
    body["loss"] = {"since_s": 0.0, "until_s": body["begun_s"]}
    pointer.write_text(json.dumps(body))

    twice = await lost_and_rebuilt(ground, once)

    assert (twice.report.manifest, twice.report.lost) == (1, {})
    assert await ground.paths(twice.table) == sorted(held)


async def test_rows_of_an_unknown_id_that_came_after_the_table_may_be_lost(
    ground: Ground,
) -> None:
    once, held = await rebuilt_once(ground)
    description = ground.place(once, DESCRIPTION_PATH)
    body = json.loads(description.read_text())
    assert body["table"].pop("former_ids")
    description.write_text(json.dumps(body))

    unknown = await lost_and_rebuilt(ground, once, dry_run=True)
    body["table"]["created_at_s"] = time.time() + 2 * COMMIT_DELAY_MAX_S
    description.write_text(json.dumps(body))
    another = await lost_and_rebuilt(ground, once, dry_run=True)

    (former,) = once.former_ids
    assert former in unknown.report.lost[held[0]]
    assert another.report.lost == {}
    assert former in another.report.left[held[0]]
    assert [file.path for file in another.files] == [held[1]]
