"""Operations of lake tables in the one scheduler: what is due, the grace, operators, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from common.errors import RefusedError, UnavailableError
from common.lake.source import MaintenanceRules
from common.metadata.changes import ChangeTable
from common.model.outcome import AttemptEnd
from common.model.table import TableState
from common.primitives import PUBLISH_LIFE_S
from coordinator.core.maintenance import OperationStatistics
from coordinator.lake import QUIET_S
from coordinator.maintenance import (
    LAKE_BATCH,
    LAKE_LOOK_S,
    LAKE_RETRY_S,
    LakeMaintenance,
    OwnMaintenance,
)
from neve import api
from tests.support.lake_log import lake_file
from tests.support.store_harness import applied
from tests.unit.coordinator_shell.test_lake import GRACE_S, Life

pytestmark = pytest.mark.unit


class Kept(Life):
    """A followed table whose maintenance is run step by step, or by the scheduler."""

    is_listed = is_readable = True
    """Whether the coordinator has read the table, and would if it read all tables again."""

    async def start(self) -> Kept:
        await super().start()
        self.maintenance = LakeMaintenance(
            self.context,
            self.follower,
            GRACE_S,
            lambda: [self.table] if self.is_listed else [],
            self.read_tables,
        )
        self.own = OwnMaintenance(self.context, 4, lambda: 0.0)
        self.maintenance.add_to(self.own)
        return self

    async def read_tables(self) -> None:
        self.is_listed = self.is_readable

    async def set(self, *operations: str, **settings: Any) -> None:
        """Turn operations on."""
        change = ChangeTable(
            table="t1",
            settings_version=self.table.settings_version,
            settings=replace(self.table.settings, lake_maintenance=operations, **settings),
        )
        applied(await self.store.apply(change))
        stored = await self.store.table("t1")
        assert stored is not None
        self.table = stored

    async def run(self, name: str, later_s: float = 0.0) -> OperationStatistics | None:
        self.clock.advance(later_s)
        return await self.maintenance.run(name, self.table)

    def row(self, name: str) -> api.MaintenanceOperation:
        return self.maintenance._row(self.table, name)

    def figures(self) -> dict[tuple[str, ...], float]:
        prefix = "neve_lake_maintenance_"
        return {
            (figure.metric.removeprefix(prefix), *figure.labels): figure.value
            for figure in self.maintenance.figures()
        }

    async def ask(self, operation: str, **order: Any) -> api.LakeRun:
        """Ask as an operator while the scheduler runs."""
        loop = asyncio.get_running_loop().create_task(self.own.run_forever())
        try:
            return await self.maintenance.ask("t1", api.LakeOrder(operation=operation, **order))
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)


def story(tell: Callable[[Kept], Awaitable[None]]) -> None:
    async def run() -> None:
        await tell(await Kept().start())

    asyncio.run(run())


def test_an_operation_runs_only_on_tables_that_ask_for_it() -> None:
    async def tell(life: Kept) -> None:
        assert [life.maintenance.tables(name) for name in ("checkpoint", "vacuum")] == [[], []]
        row = life.row("vacuum")
        assert (row.state, row.freed_bytes) == ("idle", 0)
        assert row.why == "off: `neve table set sales lake_maintenance=vacuum` turns it on"
        await life.set("checkpoint")
        assert life.maintenance.tables("checkpoint") == [life.table]
        assert life.maintenance.tables("vacuum") == []
        why = life.row("vacuum").why
        assert why.startswith("off: `neve table set sales lake_maintenance=checkpoint,vacuum`")
        life.table = replace(life.table, state=TableState.PAUSED)
        assert life.maintenance.tables("checkpoint") == []
        life.table = replace(life.table, state=TableState.LIVE, lake=None)
        assert life.maintenance.tables("checkpoint") == []
        assert life.row("vacuum").state == "not-applicable"

    story(tell)


def test_a_checkpoint_is_written_at_once_and_looked_for_again_soon() -> None:
    async def tell(life: Kept) -> None:
        await life.set("checkpoint")
        assert life.row("checkpoint").state == "waiting"
        await life.run("checkpoint")
        assert life.row("checkpoint").why == "the last run wrote the checkpoint of version 0"
        loads = life.log.loads
        await life.run("checkpoint", LAKE_LOOK_S / 2)
        assert life.log.loads == loads
        await life.run("checkpoint", LAKE_LOOK_S / 2)
        assert life.log.loads > loads
        assert life.figures() == {("runs_total", "checkpoint", "done"): 2} | {
            (name, "checkpoint"): 0 for name in ("files_total", "bytes_total")
        }

    story(tell)


def test_files_wait_for_the_grace_and_versions_do_not() -> None:
    async def tell(life: Kept) -> None:
        await life.set("vacuum", "log-cleanup", lake_maintenance_interval_s=3600.0)
        life.log.waste = {"vacuum": ["x", "y"], "log-cleanup": []}
        await life.run("vacuum")
        row = life.row("vacuum")
        assert (row.state, row.files, row.freed_bytes) == ("waiting", 2, 200)
        assert row.why == "files are deleted after 10m, unless a version names them by then"
        await life.run("vacuum", GRACE_S - 1)
        assert not life.log.deleted
        await life.run("vacuum", 1)
        assert life.log.deleted == ["x", "y"]
        assert life.row("vacuum").why == "the last run deleted 2 files of 200 bytes"
        life.log.waste["vacuum"] = ["z"]
        await life.run("vacuum", 3599)
        assert life.row("vacuum").state == "idle"
        await life.run("vacuum", 1)
        assert life.row("vacuum").state == "waiting"
        assert life.figures()["files_total", "vacuum"] == 2
        assert life.figures()["bytes_total", "vacuum"] == 200

    story(tell)


def test_a_run_is_bounded_and_the_next_one_follows_at_once() -> None:
    async def tell(life: Kept) -> None:
        await life.set("vacuum", lake_maintenance_files=LAKE_BATCH + 1)
        life.log.waste = {"vacuum": [f"x{number:04}" for number in range(LAKE_BATCH + 3)]}
        await life.run("vacuum")
        left = await life.run("vacuum", GRACE_S)
        assert left is not None
        assert (left.why, left.data_retained_bytes) == ("2 more files can be deleted", 2)
        assert len(life.log.deleted) == LAKE_BATCH + 1
        assert len(life.log.rules) == 2, "one batch after the other"
        await life.run("vacuum")
        assert life.row("vacuum").files == 2

    story(tell)


def test_what_attempts_need_stays_and_no_clock_ahead_counts() -> None:
    async def tell(life: Kept) -> None:
        output = await life.begin()
        await life.mark((output, "marked"))
        life.log.waste = {"vacuum": ["a", output, "marked", "x"]}
        await life.set("vacuum")
        await life.run("vacuum")
        assert life.row("vacuum").files == 1
        await life.end(AttemptEnd.LOST)
        await life.run("vacuum", GRACE_S)
        assert life.log.deleted == ["x"]
        (rules,) = life.log.rules
        store_s = await life.store.now_s()
        assert rules == MaintenanceRules(
            now_s=min(life.clock.now_s(), store_s),
            keep_s=PUBLISH_LIFE_S + GRACE_S,
            files_max=10_000,
            since=1,
            kept=frozenset([output, "marked"]),
            own_name="neve-",
        )

    story(tell)


def test_a_failure_is_shown_and_tried_again() -> None:
    async def tell(life: Kept) -> None:
        await life.set("vacuum")
        life.log.silence = "no route to host"
        await life.run("vacuum")
        row = life.row("vacuum")
        assert (row.state, row.why) == ("waiting", "no route to host")
        assert life.maintenance.sentences("t1") == (
            "vacuum of the lake table is not done: no route to host",
        )
        assert life.figures() == {("runs_total", "vacuum", "failed"): 1}
        life.log.silence = ""
        await life.run("vacuum", LAKE_RETRY_S)
        assert life.row("vacuum").why == "there is nothing to delete"
        assert life.maintenance.sentences("t1") == ()

    story(tell)


def test_a_table_that_was_created_anew_is_not_maintained() -> None:
    async def tell(life: Kept) -> None:
        await life.set("vacuum")
        life.log.waste = {"vacuum": ["x"]}
        await life.run("vacuum")
        life.log.write(table_id="uid-2")
        await life.run("vacuum", GRACE_S)
        assert not life.log.deleted
        assert "so it was created anew" in life.row("vacuum").why

    story(tell)


def test_a_dry_run_changes_nothing() -> None:
    async def tell(life: Kept) -> None:
        life.log.waste = {"vacuum": ["x", "y", "z"]}
        run = await life.ask("vacuum", dry_run=True, files=2)
        assert (run.state, run.files, run.more, run.paths) == ("dry-run", 2, 1, ("x", "y"))
        assert (run.size_bytes, run.table) == (200, "sales")
        run = await life.ask("checkpoint", dry_run=True)
        assert (run.created, run.text) == (
            "checkpoint of version 0", "the last run wrote the checkpoint of version 0",
        )  # fmt: skip
        assert not life.log.rules
        assert life.row("vacuum").files == 0

    story(tell)


def test_versions_are_removed_at_once_and_their_files_wait_for_the_grace() -> None:
    async def tell(life: Kept) -> None:
        await life.set("expire-snapshots")
        life.log.expiring, life.log.waste = (11, 12), {"expire-snapshots": ["x"]}
        shown = await life.ask("expire-snapshots", dry_run=True)
        assert (shown.created, shown.files) == ("metadata without 2 snapshots", 1)
        assert life.log.expiring == (11, 12)
        await life.run("expire-snapshots")
        assert (life.log.expiring, life.log.deleted) == ((), [])
        assert life.row("expire-snapshots").state == "waiting"
        run = await life.ask("expire-snapshots")
        assert (run.state, run.created) == ("waiting", "metadata without 2 snapshots")
        await life.run("expire-snapshots", GRACE_S)
        assert life.log.deleted == ["x"]
        assert life.row("expire-snapshots").why == (
            "the last run wrote the metadata without 2 snapshots and deleted 1 file of 100 bytes"
        )
        assert life.figures()["runs_total", "expire-snapshots", "done"] == 1

    story(tell)


def test_a_listing_goes_on_at_once_where_the_last_one_ended() -> None:
    async def tell(life: Kept) -> None:
        await life.set("orphan-files", lake_orphan_age_s=200_000.0)
        life.log.listings, life.log.waste = {"": "m", "m": "t"}, {"orphan-files": []}
        left = await life.run("orphan-files")
        assert left is not None
        assert left.why == "the listing goes on after m"
        life.log.waste = {"orphan-files": ["n"]}
        assert (await life.ask("orphan-files", dry_run=True)).paths == ("n",)
        await life.run("orphan-files")
        assert life.row("orphan-files").state == "waiting"
        left = await life.run("orphan-files", GRACE_S)
        assert left is not None
        assert left.why == "the listing goes on after t"
        assert life.log.deleted == ["n"]
        assert await life.run("orphan-files") is None
        loads = life.log.loads
        await life.run("orphan-files")
        assert life.log.loads == loads, "the next listing begins after the interval"
        (rules,) = life.log.rules
        assert (rules.after, rules.orphan_age_s) == ("m", 200_000.0)

    story(tell)


def test_manifests_are_merged_without_a_grace_if_enough_go() -> None:
    async def tell(life: Kept) -> None:
        await life.set("manifests", lake_manifests_min=3, lake_maintenance_interval_s=3600.0)
        await life.run("manifests")
        assert life.row("manifests").why == "the last run wrote the version with 1 manifest"
        (rules,) = life.log.rules
        assert (rules.manifests_min, rules.is_asked) == (3, False)
        assert not life.log.deleted
        await life.run("manifests", 3599)
        assert len(life.log.rules) == 1
        await life.ask("manifests")
        assert life.log.rules[-1].is_asked

    story(tell)


def test_a_listing_knows_the_other_tables_of_the_service() -> None:
    async def tell(life: Kept) -> None:
        other = replace(life.table, id="t2", name="other", location="file:///data/other")
        life.maintenance._tables = lambda: [life.table, other]
        life.log.waste = {name: ["x"] for name in ("orphan-files", "vacuum")}
        await life.set("orphan-files", "vacuum")
        for name in ("orphan-files", "vacuum"):
            await life.run(name)
            await life.run(name, GRACE_S)
        assert [rules.others for rules in life.log.rules] == [
            (("other", "file:///data/other"),), (),
        ]  # fmt: skip

    story(tell)


def test_the_rows_of_a_table_are_those_of_its_format() -> None:
    async def tell(life: Kept) -> None:
        kinds = [row.kind for row in life.maintenance.rows(life.table)]
        assert kinds == ["checkpoint", "log-cleanup", "vacuum"]
        assert life.table.lake is not None
        life.table = replace(life.table, lake=replace(life.table.lake, format="iceberg"))
        kinds = [row.kind for row in life.maintenance.rows(life.table)]
        assert kinds == ["expire-snapshots", "orphan-files", "manifests"]

    story(tell)


def test_an_operator_runs_an_operation_that_is_off() -> None:
    async def tell(life: Kept) -> None:
        run = await life.ask("checkpoint")
        assert (run.state, run.created) == ("done", "checkpoint of version 0")
        assert life.maintenance.tables("checkpoint") == []
        life.log.waste = {"vacuum": ["x", "y"]}
        run = await life.ask("vacuum", files=1)
        assert (run.state, run.files, run.more) == ("waiting", 1, 1)
        assert await life.ask("vacuum") == run
        assert life.maintenance.tables("vacuum") == [life.table]
        await life.run("vacuum", GRACE_S)
        assert life.log.deleted == ["x"]
        assert life.maintenance.tables("vacuum") == []
        run = await life.ask("log-cleanup")
        assert (run.state, run.text) == ("nothing", "there is nothing to delete")

    story(tell)


def test_an_order_has_a_new_table_read() -> None:
    async def tell(kept: Kept) -> None:
        kept.is_listed = kept.is_readable = False
        with pytest.raises(UnavailableError, match="has not read 'sales' yet"):
            await kept.ask("vacuum", wait_max_s=0.05)
        kept.is_readable = True
        assert (await kept.ask("vacuum")).state == api.LakeRunState.NOTHING

    story(tell)


def test_an_operator_hears_why_a_run_fails() -> None:
    async def tell(life: Kept) -> None:
        life.log.silence = "no route to host"
        with pytest.raises(RefusedError, match="vacuum of table 'sales' failed: no route to host"):
            await life.ask("vacuum")
        with pytest.raises(UnavailableError, match="no route to host"):
            await life.ask("vacuum", dry_run=True)
        run = api.LakeOrder(operation="vacuum", wait_max_s=0.0)
        assert (await life.maintenance.ask("t1", run)).state == "running"

    story(tell)


# ------------------------------------------------------------------------------------ Quiet tables


async def _wait_with_a_mark(life: Kept) -> str:
    """Let the outputs of an attempt wait whose end is unknown; return the output."""
    output = await life.begin()
    await life.mark((output,))
    await life.end(AttemptEnd.LOST)
    await life.poll()  # Stamps the garbage.
    life.clock.advance(GRACE_S)
    await life.poll()
    return output


def test_a_table_without_other_writers_gets_one_version_after_a_day() -> None:
    async def tell(life: Kept) -> None:
        output = await _wait_with_a_mark(life)
        life.clock.advance(QUIET_S - 60)
        await life.poll()
        assert not life.log.sent
        life.clock.advance(120)
        await life.poll()
        (commit,) = life.log.sent
        assert (commit.attempt, commit.outputs, commit.removed) == ("", (), ())
        assert life.log.head.version == commit.base.version + 1
        assert not life.log.deleted
        await life.poll()
        assert life.log.deleted == [output]
        life.clock.advance(2 * QUIET_S)
        await life.poll()
        assert len(life.log.sent) == 1

    story(tell)


def test_a_table_with_other_writers_gets_none() -> None:
    async def tell(life: Kept) -> None:
        output = await _wait_with_a_mark(life)
        life.clock.advance(QUIET_S - 60)
        life.log.write(lake_file("c"))
        life.clock.advance(120)
        await life.poll()
        assert life.log.deleted == [output]
        assert not life.log.sent

    story(tell)


def test_a_silent_log_is_a_condition_that_operators_are_notified_of() -> None:
    async def tell(life: Kept) -> None:
        assert life.follower.silent() == {}
        life.log.silence = "no route to host"
        await life.poll()
        assert life.follower.silent() == {"t1": "its log does not answer: no route to host"}
        life.log.silence = ""
        await life.poll()
        assert life.follower.silent() == {}

    story(tell)
