"""A rebuild or restore is broken off anywhere: no row is lost, whatever is done next."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from common.errors import RefusedError, UnavailableError
from common.metadata.changes import Change, DropTable, FinishFilling, ForgetGarbage, RestoreFiles
from common.model.table import Table, TableSettings, TableState
from common.model.tablet import TabletId
from common.parquet.manifest import POINTER_PATH
from common.parquet.service_files import read_description, read_owner
from common.storage_threads import StorageThreads
from coordinator.storage.manifests import ManifestPublisher
from neve.recovery.backup import RestoreOptions, restore
from neve.recovery.gc import collect_orphans
from neve.recovery.rebuild.live_files import SERVICE_ROWS
from neve.recovery.rebuild.table_rebuild import (
    RebuildOptions,
    RebuildResult,
    rebuild,
)
from neve.recovery.scope import RecoveryPorts
from neve.recovery.stored_files import FileOrigin, list_location
from tests.integration.test_rebuild_manifest import age
from tests.integration.test_recovery_backup import archive_of
from tests.support.recovery import Ground, rows
from tests.support.store_harness import applied

pytestmark = [pytest.mark.anyio, pytest.mark.integration]
SETTINGS = TableSettings(ratio=5.0, manifest_interval_s=1.0)
FILES = 8
IDS = [(number * 10, 1) for number in range(FILES)]


class StoreThatStops:
    """A store that does something else instead of one change."""

    def __init__(self, store: Any, kind: type[Change], count: int, instead: Callable[[], Any]):
        self._store, self._kind, self._count, self._instead = store, kind, count, instead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(self, change: Change) -> Any:
        if isinstance(change, self._kind):
            self._count -= 1
            if self._count == 0:
                await self._instead()
        return await self._store.apply(change)


async def silence() -> None:
    raise UnavailableError("the store does not answer")


class KilledError(BaseException):
    """Nothing handles it, as nothing handles a kill."""


async def death() -> None:
    raise KilledError


async def leave() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


async def published_table(ground: Ground, **fields: Any) -> Table:
    """Return a table with old files in many tablets, whose manifest is published."""
    splits = tuple(number * 10 + 5 for number in range(FILES - 1))
    table = await ground.table(splits=splits, settings=SETTINGS, **fields)
    paths = [f"_neve/append/{number}.parquet" for number in range(FILES)]
    for number, path in enumerate(paths):
        await ground.add(table, path, number * 10)
    age(ground, table, *paths)
    await publish(ground)
    return table


async def publish(ground: Ground) -> None:
    """Publish what a coordinator may publish now."""
    manifests = ManifestPublisher(ground.store, ground.ids, 900.0, lambda _event, **_fields: None)
    for table in await ground.store.tables():
        if table.state is not TableState.FILLING:  # Its scanner leaves it out.
            await manifests.look(table)


async def drop(ground: Ground, name: str) -> None:
    table = await ground.store.table_named(name)
    if table is None:
        return
    await ground.store.apply(DropTable(table=table.id))
    # The collector leaves what was replaced as evidence.
    paths = tuple(each.path for each in await ground.store.garbage(table.id))
    if paths:
        await ground.store.apply(ForgetGarbage(table=table.id, paths=paths))
    assert applied(await ground.store.apply(DropTable(table=table.id))).complete


async def rebuilt(
    ground: Ground, table: Table, store: Any = None, threads: Any = None, **options: Any
) -> RebuildResult:
    ports = RecoveryPorts(
        store=store or ground.store,
        threads=threads or ground.threads,
        ids=ground.ids,
        admission=ground.door,
    )
    return await rebuild(ports, table.location, RebuildOptions(name=table.name, **options))


async def require_all(ground: Ground, done: RebuildResult) -> None:
    assert (done.report.lost, done.table.state) == ({}, TableState.LIVE)
    assert ground.rows_of(done.table, await ground.paths(done.table)) == IDS


@pytest.mark.parametrize("drops", [True, False])
@pytest.mark.parametrize(
    ("kind", "count"), [(RestoreFiles, 1), (RestoreFiles, 3), (FinishFilling, 1)]
)
@pytest.mark.parametrize("instead", [silence, death, leave])
async def test_a_rebuild_that_was_broken_off_loses_nothing(
    ground: Ground, kind: type[Change], count: int, instead: Callable[[], Any], drops: bool
) -> None:
    table = await published_table(ground)
    await drop(ground, table.name)
    broken = StoreThatStops(ground.store, kind, count, instead)
    task = asyncio.ensure_future(rebuilt(ground, table, broken))
    with pytest.raises((UnavailableError, KilledError, asyncio.CancelledError)):
        await task
    await publish(ground)
    half = await ground.store.table_named(table.name)
    assert (half is None) == (instead is silence)
    if half is not None:
        assert (half.filling is not None and half.filling.done < FILES) or kind is FinishFilling
    if drops:
        await drop(ground, table.name)
    done = await rebuilt(ground, table)
    assert done.report.manifest == 1
    await require_all(ground, done)
    # The next manifest is its own, and is trusted by the next rebuild.
    await publish(ground)
    await drop(ground, table.name)
    again = await rebuilt(ground, table)
    await require_all(ground, again)


async def test_an_old_run_that_wakes_up_is_refused(ground: Ground) -> None:
    table = await published_table(ground)
    await drop(ground, table.name)
    for kind, count in [(RestoreFiles, 3), (FinishFilling, 1)]:
        asleep, awake = asyncio.Event(), asyncio.Event()

        async def sleep(asleep: asyncio.Event = asleep, awake: asyncio.Event = awake) -> None:
            asleep.set()
            await awake.wait()

        ghost = asyncio.ensure_future(
            rebuilt(ground, table, StoreThatStops(ground.store, kind, count, sleep))
        )
        await asleep.wait()
        done = await rebuilt(ground, table)
        awake.set()
        with pytest.raises(RefusedError, match=r"does not exist|is live"):
            await ghost
        await require_all(ground, done)
        location = ground.location(table)
        owner, described = read_owner(location), read_description(location)
        assert owner is not None
        assert owner.table == done.table.id
        assert described is not None
        assert described.id == done.table.id
        await drop(ground, table.name)


class ThreadsThatSleep:
    """Threads for storage that sleep before one kind of work, once."""

    def __init__(self, threads: StorageThreads, before: str) -> None:
        self._threads, self._before = threads, before
        self.asleep, self.awake = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._threads, name)

    async def run(self, location: str, work: Callable[..., Any], *args: Any) -> Any:
        if work.__name__ == self._before and not self.asleep.is_set():
            self.asleep.set()
            await self.awake.wait()
        return await self._threads.run(location, work, *args)


@pytest.mark.parametrize("before", ["_claim", "write_owner", "write_description"])
async def test_an_old_run_gives_the_mark_of_a_newer_table_back(ground: Ground, before: str) -> None:
    table = await published_table(ground)
    await drop(ground, table.name)
    threads = ThreadsThatSleep(ground.threads, before)
    ghost = asyncio.ensure_future(rebuilt(ground, table, threads=threads))
    await threads.asleep.wait()
    done = await rebuilt(ground, table)
    threads.awake.set()

    with pytest.raises(RefusedError):
        await ghost

    location = ground.location(table)
    owner, described = read_owner(location), read_description(location)
    assert owner is not None
    assert owner.table == done.table.id
    assert described is not None
    assert described.id == done.table.id
    await require_all(ground, done)


async def test_a_file_that_comes_late_is_there_after_drop_and_rebuild(ground: Ground) -> None:
    table = await published_table(ground)
    await drop(ground, table.name)
    late = "_neve/append/late.parquet"

    async def come() -> None:
        ground.write(table, late, rows(1000))

    done = await rebuilt(ground, table, StoreThatStops(ground.store, RestoreFiles, 2, come))
    assert done.report.lost.keys() == {late}
    found = await ground.store.table(done.table.id)
    assert found is not None
    assert (found.state, found.incomplete) == (TableState.PAUSED, True)
    await publish(ground)
    assert await ground.store.manifest(found.id) is None
    await drop(ground, table.name)
    again = await rebuilt(ground, table)
    assert (again.report.lost, again.table.state) == ({}, TableState.LIVE)
    assert ground.rows_of(again.table, await ground.paths(again.table)) == [*IDS, (1000, 1)]


async def test_a_half_manifest_of_an_earlier_release_is_no_proof(ground: Ground) -> None:
    table = await published_table(ground)
    pointer = ground.place(table, POINTER_PATH)
    body = json.loads(pointer.read_text())
    assert body.pop("complete") is True
    few = await ground.table("few", splits=(), settings=SETTINGS)
    await ground.add(few, "_neve/append/0.parquet", 0)
    await publish(ground)
    half = json.loads(ground.place(few, POINTER_PATH).read_text())
    (part,) = half["parts"]
    place = ground.place(table, part["path"])
    place.parent.mkdir(parents=True)
    place.write_bytes(ground.place(few, part["path"]).read_bytes())
    pointer.write_text(json.dumps(body | {"parts": [part], "totals": half["totals"]}))
    await drop(ground, table.name)

    done = await rebuilt(ground, table)

    assert (len(done.files), done.table.state) == (1, TableState.PAUSED)
    assert len(done.report.lost) == FILES - 1
    assert "does not say that it is complete" in done.report.lost["_neve/append/3.parquet"]


async def test_each_file_that_was_found_is_used_or_has_a_reason(ground: Ground) -> None:
    table = await published_table(ground)
    first = TabletId(table.id, (await ground.store.tablet_ids(table.id))[0].end)
    await ground.compact(table, first, "_neve/append/0.parquet")
    ground.write(table, "user.parquet", rows(77))
    ground.write(table, "_neve/append/odd", rows(78))
    await drop(ground, table.name)
    done = await rebuilt(ground, table, user_files=False, dry_run=True)
    assert done.report.left["user.parquet"] == "it is a file of users, which the call leaves out"
    assert done.report.lost["_neve/append/odd"] == "it is unknown whether its rows are in the table"
    assert "2 files that were found and not used, each for its reason" in done.report.not_recovered
    used = {each.path for each in done.files}
    assert used | done.report.left.keys() | done.report.lost.keys() == {
        path
        for path, file in list_location(ground.location(table)).items()
        if file.whose in {FileOrigin.USER, *SERVICE_ROWS}
    }


async def test_a_second_rebuild_without_a_manifest_knows_what_jobs_wrote_before_the_first(
    ground: Ground,
) -> None:
    table = await ground.table(key=(), version_column=None, splits=())
    tablet = await ground.add(table, "_neve/append/a.parquet", 1)
    await ground.add(table, "_neve/append/b.parquet", 2)
    await ground.compact(table, tablet, "_neve/append/a.parquet", "_neve/append/b.parquet")
    for path in ("_neve/append/a.parquet", "_neve/append/b.parquet"):
        ground.place(table, path).unlink()
    await drop(ground, table.name)
    first = await rebuilt(ground, table)
    tablet = await ground.add(first.table, "_neve/append/c.parquet", 3)
    await ground.compact(first.table, tablet, "_neve/append/c.parquet")
    ground.place(table, "_neve/append/c.parquet").unlink()
    await drop(ground, table.name)
    again = await rebuilt(ground, table)
    assert (again.report.lost, again.table.state) == ({}, TableState.LIVE)
    held = ground.rows_of(again.table, await ground.paths(again.table))
    assert held == [(1, 1), (2, 1), (3, 1)]


async def test_a_sweep_deletes_nothing_of_a_recovered_table_before_its_manifest(
    ground: Ground,
) -> None:
    table = await published_table(ground)
    spare = "_neve/append/spare.parquet"
    ground.write(table, spare, rows(5))
    age(ground, table, spare)
    await drop(ground, table.name)
    done = await rebuilt(ground, table)
    swept = await collect_orphans(ground.scope(done.table), delete=True)
    assert (swept.given, swept.evidence) == (0, 1)
    await publish(ground)
    swept = await collect_orphans(ground.scope(done.table), delete=True)
    assert swept.evidence == 0


@pytest.mark.parametrize("instead", [silence, death, leave])
async def test_a_restore_that_was_broken_off_is_repeated(
    ground: Ground, instead: Callable[[], Any]
) -> None:
    table = await published_table(ground)
    archive = await archive_of(ground, table)
    await ground.add(table, "_neve/append/after.parquet", 500)
    await drop(ground, table.name)

    async def restored(store: Any) -> Any:
        ports = RecoveryPorts(
            store=store,
            threads=ground.threads,
            ids=ground.ids,
            admission=ground.door,
            on_progress=lambda _text: None,
        )
        return await restore(ports, io.BytesIO(archive), RestoreOptions())

    broken = StoreThatStops(ground.store, RestoreFiles, 3, instead)
    task = asyncio.ensure_future(restored(broken))
    with pytest.raises((UnavailableError, KilledError, asyncio.CancelledError)):
        await task
    (done,) = await restored(ground.store)
    assert (done.table.state, done.unused) == (TableState.LIVE, ("_neve/append/after.parquet",))
    assert ground.rows_of(done.table, await ground.paths(done.table)) == IDS


async def test_another_verb_or_location_does_not_end_a_filling(ground: Ground) -> None:
    table = await published_table(ground)
    await drop(ground, table.name)
    broken = StoreThatStops(ground.store, RestoreFiles, 3, leave)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(rebuilt(ground, table, broken))
    elsewhere = replace(table, location=f"{table.location}2")
    for other, dry_run in ((table, True), (elsewhere, False)):
        with pytest.raises(RefusedError, match=r"is being filled \(rebuild, 2 of 8 files\)"):
            await rebuilt(ground, other, dry_run=dry_run)
