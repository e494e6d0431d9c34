"""Rows that are deleted or have expired give their space back, from the add to the collector."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pyarrow as pa

from common.metadata.changes import (
    AddFiles,
    Applied,
    Change,
    CommitAttempt,
    CreateTable,
    ReserveFiles,
)
from common.model.job import Kind
from common.model.table import Table
from common.model.tablet import PLUS_INFINITY, TabletId
from common.runtime import SystemClock, call_id
from common.wire import Assignment
from compactor.rewrite.general_merge import rewrite_bag
from compactor.rewrite.merge.tasks import merge_small_job
from compactor.rewrite.outputs import TaskResult
from compactor.rewrite.plan.rewrite_plan import make_plan
from compactor.rewrite.verify import verify
from coordinator.context import ArrowStorage
from coordinator.core.assignment import compose_assignment
from coordinator.core.scans import GarbageRules
from coordinator.scan.scanner import with_watermarks
from coordinator.storage.garbage_collector import GarbageCollector
from tests.support.memory_store import MemoryStore
from tests.support.planning import job
from tests.support.predictable import ManualClock
from tests.support.tables_on_disk import (
    bag_table,
    inspected,
    keyed_table,
    read_output,
    settings,
    write_file,
)

NOW_S = 1_000_000.0
RETENTION_S = 60.0
RULES = GarbageRules(grace_s=60.0, clock_skew_max_s=5.0)
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("v", pa.int64()),
        pa.field("dead", pa.bool_()),
        pa.field("at", pa.int64()),
        pa.field("s", pa.string()),
    ]
)


def rows(keys: range, version: int = 1, *, dead: bool = False, at: int = int(NOW_S)) -> pa.Table:
    """Return rows whose text does not compress."""
    chance = random.Random(version)
    texts = ["" if dead else chance.randbytes(32).hex() for _ in keys]
    facts = {"v": version, "dead": dead, "at": at}
    return pa.Table.from_pylist(
        [{"k": key, "s": text, **facts} for key, text in zip(keys, texts, strict=True)], SCHEMA
    )


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("**/*.parquet"))


def merged(given: Assignment) -> CommitAttempt:
    """Do what a compactor does with an assignment, without Spark; return its commit."""
    table, plan = given.table, make_plan(given)
    result: TaskResult = merge_small_job(plan) if table.key else rewrite_bag(plan)
    verify(plan, result, lambda: False)
    return CommitAttempt(
        tablet=given.job.tablet,
        attempt=given.reservation.attempt,
        outputs=inspected(table, [file.path for file in result.files]),
        counts=result.counts,
        dropped=result.dropped,
    )


async def compact(folder: Path, table: Table, *paths: str) -> tuple[int, pa.Table]:
    """Add files, merge them when dead rows may go, collect; return bytes before, rows after."""
    clock = ManualClock(NOW_S)
    store, tablet_id = MemoryStore(clock), TabletId(table.id, PLUS_INFINITY)

    async def applied(change: Change) -> Applied:
        outcome = await store.apply(change)
        assert isinstance(outcome, Applied), outcome
        return outcome

    await applied(CreateTable(table=table))
    files = inspected(table, paths)
    await applied(AddFiles(table=table.id, call=call_id(clock), files={PLUS_INFINITY: files}))
    before = stored_bytes(folder)
    tablet = await store.tablet(tablet_id)
    assert tablet is not None
    await with_watermarks(store, tablet, table, clock.now_s())
    clock.advance(RETENTION_S + 1)

    reserve = ReserveFiles(
        tablet=tablet_id,
        attempt="att-1",
        job="job-1",
        kind=Kind.SYSTEM,
        inputs=tuple(sorted(paths)),
        output_prefix="_neve/last/job-1-att-1",
        outputs_max=1,
        group="default",
        compactor="c1",
    )
    held = await applied(reserve)
    assert held.reservation is not None
    assert held.tablet is not None
    wanted = job("job-1", tablet=tablet_id, inputs=reserve.inputs)
    given = compose_assignment(wanted, held.reservation, table, held.tablet, clock.now_s())
    commit = merged(given)
    await applied(commit)

    collector = GarbageCollector(
        store, ArrowStorage(SystemClock()), RULES, lambda _event, **_fields: None
    )
    await collector.collect(table)
    assert stored_bytes(folder) > before, "what is replaced is kept for a grace"
    clock.advance(RULES.grace_s)
    await collector.collect(table)
    assert not [path for path in paths if (folder / path).exists()]
    return before, pa.concat_tables([read_output(table, file.path) for file in commit.outputs])


def test_deleted_rows_give_their_space_back(tmp_path: Path) -> None:
    table = keyed_table(
        tmp_path,
        SCHEMA,
        key=("k",),
        time_column=None,
        settings=settings(tombstone_retention_s=RETENTION_S),
    )
    write_file(tmp_path, "a.parquet", rows(range(10_000)))
    write_file(tmp_path, "b.parquet", rows(range(5_000), 2, dead=True))
    before, left = asyncio.run(compact(tmp_path, table, "a.parquet", "b.parquet"))
    assert left.equals(rows(range(10_000)).slice(5_000).cast(left.schema))
    assert stored_bytes(tmp_path) < 0.52 * before


def test_expired_rows_give_their_space_back(tmp_path: Path) -> None:
    table = bag_table(tmp_path, SCHEMA, settings=settings(ttl_s=3600.0))
    write_file(tmp_path, "a.parquet", rows(range(5_000), at=int(NOW_S) - 7200))
    write_file(tmp_path, "b.parquet", rows(range(5_000), 2))
    before, left = asyncio.run(compact(tmp_path, table, "a.parquet", "b.parquet"))
    assert left.equals(rows(range(5_000), 2).cast(left.schema))
    assert stored_bytes(tmp_path) < 0.52 * before
