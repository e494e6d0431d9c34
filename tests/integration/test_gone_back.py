"""Redis goes back in time by minutes, and files were deleted since: no tool deletes the rest.

The store forgets commits whose inputs a collector has deleted, and appends that were
acknowledged. Their files are the only copies. They survive everything that an operator may
do, and a rebuild brings every row back.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from common.metadata.changes import (
    Applied,
    DropTable,
    Refused,
    ReleaseAttempt,
)
from common.model.outcome import AttemptEnd
from common.model.table import Table
from common.runtime import RandomIds, SystemClock
from coordinator.context import ArrowStorage, Generations, ShellContext
from coordinator.core.scans import GarbageRules
from coordinator.storage.garbage_collector import GarbageCollector
from coordinator.storage.manifests import ManifestPublisher
from neve.recovery.gc import collect_orphans
from neve.recovery.rebuild.table_rebuild import (
    RebuildOptions,
    rebuild,
)
from neve.recovery.repair import (
    RepairOptions,
    RepairReport,
    check_and_repair,
)
from neve.recovery.scope import FindingCode, RecoveryPorts
from neve.recovery.stored_files import COMMIT_DELAY_MAX_S
from tests.support.recovery import Ground, Moment, go_back, moment, rows
from tests.support.store_harness import applied

pytestmark = [pytest.mark.anyio, pytest.mark.integration]
RULES = GarbageRules(grace_s=0.05, clock_skew_max_s=0.0)
WANTED = [(1, 1), (2, 1), (3, 1)]


class Site:
    """One coordinator's shell round a table, without the coordinator."""

    def __init__(self, ground: Ground, table: Table, *, publishes: bool = False) -> None:
        """Let the collector wait for manifests if it `publishes`."""
        self.ground = ground
        self.table = table
        self.said: list[str] = []
        self.clock = SystemClock()
        self.generations = Generations(ground.store, self.say)
        self.context = ShellContext(
            store=ground.store,
            clock=self.clock,
            ids=RandomIds(),
            log=self.say,
            coordinator="coord-1",
            generations=self.generations,
        )
        known = self.generations.known
        self.manifests = ManifestPublisher(
            ground.store, RandomIds(), RULES.grace_s, self.say, known_generation=known
        )
        self.collector = GarbageCollector(
            ground.store,
            ArrowStorage(self.clock),
            RULES,
            self.say,
            self.manifests if publishes else None,
            clock=self.clock,
            known_generation=known,
        )

    def say(self, event: str, **_fields: Any) -> None:
        self.said.append(event)

    async def collect(self) -> None:
        """Let the collector work until nothing is left that may go."""
        for _ in range(3):
            found = await self.ground.store.table(self.table.id)
            if found is not None:
                await self.collector.collect(found)
            await asyncio.sleep(2 * RULES.grace_s)

    async def fsck(self, **options: bool) -> RepairReport:
        return await check_and_repair(self.ground.scope(self.table), RepairOptions(**options))

    def age(self) -> None:
        """Let all files look as if they had been there long before the manifest."""
        for path in self.ground.place(self.table, "").rglob("*.parquet"):
            then_s = path.stat().st_mtime - 2 * COMMIT_DELAY_MAX_S
            os.utime(path, (then_s, then_s))

    def rows(self) -> list[tuple[int, int]]:
        """Return the rows of all outputs and appended files that lie in the location."""
        folder = self.ground.place(self.table, "_neve")
        files = [
            str(path.relative_to(self.ground.place(self.table, "")))
            for path in folder.rglob("*.parquet")
            if "manifest" not in path.parts
        ]
        return sorted({*self.ground.rows_of(self.table, files)})


async def compacted_and_forgotten(ground: Ground, *, reserved: bool) -> tuple[Site, str]:
    """Commit a job, delete its inputs, and go back to before its commit.

    Args:
        ground: The store and the folders.
        reserved: Whether the reservation is remembered.
    """
    table = await ground.table()
    site = Site(ground, table)
    tablet = await ground.add(table, "_neve/append/a.parquet", 1)
    await ground.add(table, "b.parquet", 2)
    await site.generations.count_up(table)
    before = await moment(ground)
    assignment = await ground.reserve(table, tablet, "_neve/append/a.parquet", "b.parquet")
    if reserved:
        before = await moment(ground)
    change = ground.rewrite(assignment)
    applied(await ground.store.apply(change))
    await ground.add(table, "_neve/append/c.parquet", 3)
    await site.generations.count_up(table)
    assert await site.manifests.look(table)
    await site.collect()
    assert not ground.place(table, "b.parquet").exists()
    await go_back(ground, before)
    return site, change.outputs[0].path


async def is_rebuilt(site: Site) -> None:
    """Drop the table, keep its files, make it anew from them: every row is there."""
    ground = site.ground
    applied(await ground.store.apply(DropTable(table=site.table.id)))
    await site.collect()
    assert await ground.store.names() == {}
    rebuilder = RecoveryPorts(
        store=ground.store, threads=ground.threads, ids=RandomIds(), admission=ground.door
    )
    done = await rebuild(rebuilder, site.table.location, RebuildOptions(name="events"))
    assert done.report.lost == {}
    assert ground.rows_of(site.table, [file.path for file in done.files]) == WANTED


@pytest.mark.parametrize("reserved", [True, False])
@pytest.mark.parametrize("accepts", ["", "accepted", "published"])
async def test_a_rebuild_brings_everything_back(
    ground: Ground, reserved: bool, accepts: str
) -> None:
    site, _ = await compacted_and_forgotten(ground, reserved=reserved)
    if accepts:
        await site.fsck(accept=True, repair=True, forget_missing=True)
        await collect_orphans(ground.scope(site.table), delete=True)
        await site.collect()
    if accepts == "published":  # The newest manifest is of the older state, and long ago.
        await site.generations.look(site.table)
        assert await site.manifests.look(site.table)
        site.age()
    assert site.rows() == WANTED
    await is_rebuilt(site)


async def test_while_nobody_has_accepted_nothing_is_released_or_published(ground: Ground) -> None:
    site, output = await compacted_and_forgotten(ground, reserved=True)
    (tablet,) = [each.id for each in await ground.store.read_range(site.table.id) if each.running]
    (attempt,) = (await ground.store.tablet(tablet)).running
    release = ReleaseAttempt(tablet=tablet, attempt=attempt, end=AttemptEnd.LOST, cause="silence")

    newer = ground.place(site.table, "_neve/manifest/latest.json").read_bytes()

    refused = await site.context.apply(release)
    assert isinstance(refused, Refused)
    assert refused.code == "generation"
    assert not await site.manifests.look(site.table)
    assert ground.place(site.table, "_neve/manifest/latest.json").read_bytes() == newer
    assert not Generations(ground.store, site.say).may_change(site.table.id), "it looks first"
    assert "store has gone back in time" in site.said
    assert ground.place(site.table, output).exists()


async def test_a_release_after_the_acceptance_keeps_the_output(ground: Ground) -> None:
    site, output = await compacted_and_forgotten(ground, reserved=True)
    report = await site.fsck()
    codes = {(finding.code, finding.path) for finding in report.checked.findings}
    assert (FindingCode.EVIDENCE, output) in codes
    assert (FindingCode.MISSING, "b.parquet") in codes
    await site.fsck(accept=True)
    (tablet,) = [each.id for each in await ground.store.read_range(site.table.id) if each.running]
    (attempt,) = (await ground.store.tablet(tablet)).running
    await site.generations.look(site.table)
    release = ReleaseAttempt(tablet=tablet, attempt=attempt, end=AttemptEnd.LOST, cause="silence")
    assert isinstance(await site.context.apply(release), Applied)

    await site.collect()

    assert ground.place(site.table, output).exists()
    assert "output may be the only copy" in site.said
    report = await site.fsck(repair=True)
    assert (FindingCode.EVIDENCE, output) in {(e.code, e.path) for e in report.checked.findings}
    await is_rebuilt(site)


async def test_no_sweep_takes_what_the_store_has_forgotten(ground: Ground) -> None:
    site, output = await compacted_and_forgotten(ground, reserved=False)
    await site.fsck(accept=True)

    done = await collect_orphans(ground.scope(site.table), delete=True)

    assert (done.given, done.orphans, done.evidence) == (0, 0, 2)
    told = {each.path: each.sentence for each in done.found}
    assert "b.parquet" in told[output] or "a.parquet" in told[output]
    assert "accepted that changes were lost" in told["_neve/append/c.parquet"]
    await site.collect()
    assert site.rows() == WANTED


async def test_a_sweep_that_was_under_way_when_the_store_went_back_gives_nothing(
    ground: Ground,
) -> None:
    """It has found its orphans before, and gives them afterwards."""
    table = await ground.table()
    site = Site(ground, table)
    await site.generations.count_up(table)
    before: Moment = await moment(ground)
    await site.generations.count_up(table)
    file = ground.write(table, "_neve/append/waste.parquet", rows(1))
    scope = ground.scope(table)

    async def meanwhile(_table: str) -> None:
        await go_back(ground, before)

    scope.store.loss = meanwhile  # type: ignore[method-assign]  # it goes back in the middle
    done = await collect_orphans(scope, delete=True)
    assert (done.orphans, done.given) == (1, 0)
    assert await ground.store.garbage(table.id) == []
    assert ground.place(table, file.path).exists()


@pytest.mark.parametrize("behind", [False, True])
async def test_a_drop_without_files_leaves_what_a_rebuild_needs(
    ground: Ground, behind: bool
) -> None:
    """Two jobs in a row since the manifest: without the first one's output who knows the second?"""
    table = await ground.table()
    site = Site(ground, table, publishes=True)
    tablet = await ground.add(table, "_neve/append/a.parquet", 1)
    await ground.add(table, "b.parquet", 2)
    await site.generations.count_up(table)
    assert await site.manifests.look(table)
    before = await moment(ground)
    made = await ground.compact(table, tablet, "_neve/append/a.parquet", "b.parquet")
    await ground.add(table, "_neve/append/c.parquet", 3)
    if behind:
        before = await moment(ground)
        await site.generations.count_up(table)
    await ground.compact(table, tablet, *made, "_neve/append/c.parquet")
    if behind:
        await go_back(ground, before)

    await is_rebuilt(site)

    assert site.rows() == WANTED


async def test_a_drop_deletes_files_replaced_before_the_last_manifest(ground: Ground) -> None:
    table = await ground.table()
    site = Site(ground, table, publishes=True)
    tablet = await ground.add(table, "_neve/append/a.parquet", 1)
    await ground.add(table, "b.parquet", 2)
    await ground.compact(table, tablet, "_neve/append/a.parquet", "b.parquet")
    await site.generations.count_up(table)
    await site.collector.collect(table)  # They are stamped.
    await asyncio.sleep(2 * RULES.grace_s)
    assert await site.manifests.look(table)

    applied(await ground.store.apply(DropTable(table=table.id)))
    await site.collect()

    assert await ground.store.names() == {}
    assert not ground.place(table, "b.parquet").exists()


async def test_outputs_of_an_abandoned_attempt_are_orphans_though_its_inputs_are_gone(
    ground: Ground,
) -> None:
    """No roll-back: an attempt wrote its output late, others have replaced its inputs."""
    table = await ground.table()
    site = Site(ground, table)
    tablet = await ground.add(table, "a.parquet", 1)
    late = await ground.reserve(table, tablet, "a.parquet")
    written = ground.rewrite(late).outputs[0].path
    kept = ground.place(table, written).read_bytes()
    release = ReleaseAttempt(
        tablet=tablet, attempt=late.reservation.attempt, end=AttemptEnd.LOST, cause="silence"
    )
    applied(await ground.store.apply(release))
    await site.collect()
    first = await ground.compact(table, tablet, "a.parquet")
    await site.collect()
    assert not ground.place(table, written).exists()
    ground.place(table, written).write_bytes(kept)

    for history in (True, False):
        if not history:
            await ground.harness.write(("DEL", f"neve:{{{table.id}}}:history"))
        done = await collect_orphans(ground.scope(table), delete=False)
        assert [each.path for each in done.found] == [written]
        assert (done.orphans, done.evidence) == (1, 0), history
    done = await collect_orphans(ground.scope(table), delete=True)
    await site.collect()
    assert not ground.place(table, written).exists()
    assert ground.place(table, first[0]).exists()


async def forgotten_chain(ground: Ground) -> tuple[Site, str, str, str]:
    """Forget a commit, an add without an answer, and a commit of a job that used both.

    Returns:
        The site, the output of the first job, the appended file, and the output of the last job.
    """
    table = await ground.table()
    tablet = await ground.add(table, "a.parquet", 1)
    first = await ground.reserve(table, tablet, "a.parquet")
    before = await moment(ground)
    commit = ground.rewrite(first)
    applied(await ground.store.apply(commit))
    output, appended = commit.outputs[0].path, "_neve/append/lost.parquet"
    await ground.add(table, appended, 2)
    (last,) = await ground.compact(table, tablet, output, appended)
    await go_back(ground, before)
    release = ReleaseAttempt(
        tablet=tablet, attempt=first.reservation.attempt, end=AttemptEnd.LOST, cause="silence"
    )
    applied(await ground.store.apply(release))
    return Site(ground, table), output, appended, last


async def test_commits_that_a_fail_over_forgot_leave_nothing(ground: Ground) -> None:
    site, output, appended, last = await forgotten_chain(ground)

    done = await collect_orphans(ground.scope(site.table), delete=False)
    assert {finding.path for finding in done.found} == {appended, last}
    assert (done.orphans, done.evidence) == (2, 0), "the first output waits for deletion"
    await site.collect()
    assert not ground.place(site.table, output).exists()
    done = await collect_orphans(ground.scope(site.table), delete=True)
    assert (done.given, done.evidence) == (2, 0), "the first output is deleted"
    await site.collect()
    left = {path.name for path in ground.place(site.table, "").rglob("*.parquet")}
    assert left == {"a.parquet"}


async def test_an_output_that_is_there_is_not_deleted_because_its_attempt_was_lost(
    ground: Ground,
) -> None:
    site, output, appended, last = await forgotten_chain(ground)
    ground.place(site.table, "a.parquet").unlink()
    await ground.harness.write(("DEL", f"neve:{{{site.table.id}}}:garbage"))

    done = await collect_orphans(ground.scope(site.table), delete=True)

    evidence = [finding.path for finding in done.found if finding.code is FindingCode.EVIDENCE]
    orphans = [finding.path for finding in done.found if finding.path not in evidence]
    assert {*evidence} == {output, last}
    assert orphans == [appended]
