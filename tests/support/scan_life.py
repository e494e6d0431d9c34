"""Full scans of a table on real Ray and Redis, as the coordinator makes them.

`python -m tests.support.scan_life`, with `SCAN_REDIS`, `SCAN_RAY` and `SCAN_MARK` in its
environment: a process of its own because Ray reads its environment once per process.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import suppress

import psutil
import ray

from common.metadata.changes import AddFiles, Applied
from common.metadata.redis import connect
from common.metadata.redis.keyspace import RedisKeyspace
from common.metadata.store import TabletStore
from common.model.file import DataFile
from common.model.tablet import Analysis, TabletId
from common.runtime import call_id
from common.settings import Settings, StoreSettings
from common.wire import NAMESPACE
from coordinator.ray_compactors import RayRangeScans
from coordinator.registry import planner_for
from coordinator.scan import full_scan
from coordinator.scan.full_scan import FullScan, LocalRangeScans
from coordinator.scan.scanner import Scanner
from neve.local.processes import processes_of_stack
from tests.support.many_tablets import Many, key_of, many_tablets
from tests.support.patience import PATIENCE_S

TABLETS = 12_000
BUSY = (1, 5_000, 11_999)
TASK = "neve full scan"


class NothingQueued:
    """A queue with nothing in it."""

    def queued_ends(self, table: str) -> list[bytes]:
        return []

    def queued_ids(self, tablet: TabletId) -> tuple[str, ...]:
        return ()

    def is_deferred(self, tablet: TabletId) -> bool:
        return False


class Life:
    """A full scan over real parts."""

    def __init__(self, settings: Settings, store: TabletStore) -> None:
        self.logged: list[str] = []
        plan = planner_for(settings)
        self.scanner = Scanner(store, plan, self.log)
        here = LocalRangeScans(store, plan)
        self.full = FullScan(store, self.scanner, NothingQueued(), here, self.log)
        self.full.use(RayRangeScans(settings), 2)

    def log(self, event: str, **fields: object) -> None:
        self.logged.append(f"{event} {fields.get('cause', '')}")

    def take_found(self) -> list[int]:
        found: list[int] = []
        while batch := self.scanner._next_batch(self.scanner._own):
            found += [int.from_bytes(tablet.end, "big") for tablet in batch]
        return sorted(found)


def kill_a_task() -> None:
    """Kill a process that scans a piece, as soon as there is one."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        for process in processes_of_stack(os.environ["SCAN_MARK"]):
            with suppress(psutil.Error):
                if " ".join(process.cmdline()).startswith(f"ray::{TASK}"):
                    process.kill()
                    return
        time.sleep(0.001)
    raise AssertionError("no task was seen")


async def make_busy(store: TabletStore, many: Many) -> None:
    """Add files that want a job to some tablets."""
    for number in BUSY:
        end = key_of(number)
        files = tuple(
            DataFile(path=f"b{number}-{n}", size_bytes=10, rows=1, key_min=end, key_max=end)
            for n in range(20)
        )
        change = AddFiles(table=many.table.id, call=call_id(), files={end: files})
        assert isinstance(await store.apply(change), Applied)


async def story(url: str) -> dict[str, object]:
    settings = Settings(store=StoreSettings(url=url))
    keyspace, store = RedisKeyspace(StoreSettings(url=url, timeout_s=60.0)), connect(settings.store)
    full_scan.RANGE_TABLETS = 2_500
    many = await many_tablets(store, keyspace, TABLETS)
    await make_busy(store, many)
    life = Life(settings, store)
    await life.full.scan_table(many.table)
    first, counts = life.take_found(), life.full.counts
    assert counts.ranges_failed == 0, life.logged
    assert (counts.tablets, counts.planned) == (TABLETS + 1, TABLETS + 1)
    records = await store.records(many.ids())
    stable = sum(record.analysis is Analysis.STABLE for record in records if record)
    await life.full.scan_table(many.table)
    second = life.take_found()
    planned = counts.planned - TABLETS - 1

    killing = asyncio.to_thread(kill_a_task)
    scanning = life.full.scan_table(many.table, every=True)
    await asyncio.gather(killing, scanning)
    third = life.take_found()
    killed_ranges = counts.ranges_failed

    nowhere = Life(Settings(store=StoreSettings(url="redis://127.0.0.1:1/0")), store)
    full_scan.RETRY_PAUSE_S = 0.0
    await nowhere.full.scan_table(many.table)
    await store.close()
    await keyspace.close()
    return {
        "busy": BUSY,
        "tablets": TABLETS,
        "first": first,
        "second": second,
        "third": third,
        "planned again": planned,
        "stable": stable,
        "killed": killed_ranges,
        "nowhere failed": nowhere.full.counts.ranges_failed,
        "nowhere found": nowhere.take_found(),
        "logged": [*life.logged, *nowhere.logged[:1]],
    }


def main() -> None:
    ray.init(address=os.environ["SCAN_RAY"], namespace=NAMESPACE, log_to_driver=False)
    print(json.dumps(asyncio.run(story(os.environ["SCAN_REDIS"]))))


if __name__ == "__main__":
    main()
