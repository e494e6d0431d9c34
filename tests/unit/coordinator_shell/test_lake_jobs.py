"""A whole coordinator over a Delta table: mirrored, planned, handed to compactors that know it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from common.control_settings import CatalogSettings
from common.metadata.changes import CreateTable, EndLakeAttempt, MarkPublishing
from common.model.job import KNOWS_LAKE
from common.model.outcome import AttemptEnd
from common.model.table import Column, LakeTable, Table, TableSettings
from common.runtime import RandomIds, SystemClock
from common.settings import Settings
from common.wire import Assignment, Heartbeat, TakeRequest
from coordinator.context import Generations, ShellContext
from coordinator.store_watch import take_lead
from coordinator.wiring import assemble, storage_loops
from tests.support.memory_store import MemoryStore
from tests.support.patience import PATIENCE_S
from tests.support.store_harness import applied

pytestmark = pytest.mark.unit

SETTINGS = Settings(catalog=CatalogSettings(poll_s=0.2))
ROWS = pa.table({"day": ["a", "b", "a"], "amount": [1, 2, 3]})


class Life:
    """A coordinator with all its loops, and a Delta table of six files in each partition."""

    def __init__(self, folder: Path) -> None:
        for _ in range(6):
            write_deltalake(folder, ROWS, mode="append", partition_by="day")
        self.folder, self.store = folder, MemoryStore(SystemClock())
        self.logged: list[str] = []
        self.generations = Generations(self.store, self.log)
        self.context = ShellContext(
            self.store, SystemClock(), RandomIds(), self.log, "coord-1", self.generations
        )
        self.parts = assemble(SETTINGS, self.context)

    def log(self, event: str, **fields: object) -> None:
        self.logged.append(f"{event} {fields}")

    async def start(self) -> None:
        metadata = DeltaTable(self.folder).metadata()
        table = Table(
            id="t1",
            name="sales",
            location=self.folder.as_uri(),
            schema=(Column("day", "string"), Column("amount", "int64")),
            partition_by=("day",),
            settings=TableSettings(
                planner="bin-pack", manifest_interval_s=None, directory_guard=False
            ),
            lake=LakeTable(format="delta", uri=self.folder.as_uri(), table_id=str(metadata.id)),
        )
        applied(await self.store.apply(CreateTable(table=table)))
        everyone = self.parts.scanner.tables.values
        await take_lead(self.store, self.parts.scanner, "coord-1", self.log)
        every = (
            *self.parts.loops(SETTINGS),
            *storage_loops(SETTINGS, self.parts, lambda: [*everyone()]),
            self.generations.run_forever(everyone),
        )
        self.loops = [asyncio.create_task(loop) for loop in every]

    async def take(self, name: str, *actions: str, wait_max_s: float) -> Assignment | None:
        """Ask for a job as a compactor does."""
        beat = Heartbeat(
            compactor=name, incarnation="i", group="default", node="n", slots=4, actions=actions
        )
        await self.parts.service.beat(beat)
        request = TakeRequest(
            take=RandomIds().next("take"),
            compactor=name,
            incarnation="i",
            group="default",
            wait_max_s=wait_max_s,
            actions=actions,
        )
        return await self.parts.service.take(request)

    async def stop(self) -> None:
        assert not [loop for loop in self.loops if loop.done()], self.logged
        for loop in self.loops:
            loop.cancel()


def test_jobs_of_a_lake_table_go_to_compactors_that_know_it(tmp_path: Path) -> None:
    async def story() -> None:
        life = Life(tmp_path / "sales")
        await life.start()
        assignment = await life.take("new", KNOWS_LAKE, wait_max_s=PATIENCE_S)
        assert assignment is not None
        assert len(assignment.inputs) == 6
        assert assignment.table.lake is not None
        partition = assignment.bounds.partition
        assert partition in {"day=a", "day=b"}
        for path in assignment.reservation.output_paths:
            assert path.startswith(f"{partition}/neve-")
            assert assignment.reservation.attempt in path
        # The other partition has a job, too, but an older compactor does not get it.
        assert await life.take("old", wait_max_s=0.5) is None
        other = await life.take("new", KNOWS_LAKE, wait_max_s=PATIENCE_S)
        assert other is not None
        assert other.bounds.partition != partition
        await life.stop()
        assert {path.name for path in (tmp_path / "sales").iterdir()} == {
            "_delta_log",
            "day=a",
            "day=b",
        }

    asyncio.run(story())


def test_the_mirror_follows_a_commit_and_nothing_is_planned_twice(tmp_path: Path) -> None:
    async def story() -> None:
        life = Life(tmp_path / "sales")
        await life.start()
        assignment = await life.take("new", KNOWS_LAKE, wait_max_s=PATIENCE_S)
        assert assignment is not None
        tablet, attempt = assignment.job.tablet, assignment.reservation.attempt
        mark = MarkPublishing(tablet=tablet, attempt=attempt, planned=5, base=5, outputs=())
        applied(await life.store.apply(mark))
        DeltaTable(life.folder).optimize.compact()  # The compactor's commit, by other means.
        end = EndLakeAttempt(
            tablet=tablet, attempt=attempt, end=AttemptEnd.COMMITTED, version=6, inputs=()
        )
        applied(await life.store.apply(end))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                (mirror,) = await life.store.mirrors(["t1"])
                if not mirror.is_behind:
                    break
                await asyncio.sleep(0.05)
        found = await life.store.tablet(tablet)
        assert found is not None
        assert (len(found.files), len(found.running)) == (1, 0)
        assert await life.take("new", KNOWS_LAKE, wait_max_s=1.0) is None
        await life.stop()

    asyncio.run(story())
