"""A full scan over Redis, and how soon a change is planned, with very many tablets stored.

    python -m benchmarks.bench_scan [--tablets N] [--changed N] [--rate N] [--seconds S]

Starts a redis-server of its own and fills it (about 1.6 KB per tablet of ten files). The
coordinator runs in this process, with all its loops; ranges of full scans go to another
process, as they go to Ray tasks; adds come from a third, ten tablets at a time, each to a
tablet that had none before. A change is planned when the core has been told: the time
from sending the add is measured, with a full scan under way now and then. What the operating
system kept this process waiting for a core is told beside it: on a machine with other work,
a slow change says nothing unless that is small.

A restart is measured with a compactor that waits for a job, and with a thousand tablets
anywhere in the table that got files while nobody looked.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any

from common.metadata.changes import AddFiles, Applied
from common.metadata.redis import connect
from common.metadata.redis.keyspace import RedisKeyspace
from common.metadata.store import TabletStore
from common.model.file import DataFile
from common.runtime import (
    RandomIds,
    SystemClock,
    call_id,
    collect_oldest_forever,
    ignore_what_is_loaded,
)
from common.settings import DEFAULT_GROUP, CoordinatorSettings, Settings, StoreSettings
from common.wire import Heartbeat, TakeRequest
from coordinator.context import ShellContext
from coordinator.core import events as on
from coordinator.core.scans import TabletSpan
from coordinator.ray_compactors import scan_range
from coordinator.registry import planner_for
from coordinator.scan.full_scan import (
    LocalRangeScans,
    RangeFindings,
    ScanRange,
)
from coordinator.service import CoordinatorService
from coordinator.store_watch import take_lead
from coordinator.wiring import CoordinatorParts, assemble
from neve.local.processes import exit_on_sigterm
from tests.support.many_tablets import Many, key_of, many_tablets
from tests.support.redis_server import running

TABLETS_PER_ADD = 10
CHANGED_MIN, UNCHANGED_MIN, LATENCY_MAX_MS, MEMORY_MAX_MB = 15_000, 100_000, 100.0, 1024.0
ROUNDS = 3
SCAN_INTERVAL_S = 10.0
CATALOG_MAX_S = 180.0
"""Deadline of a log: other work on the machine may make it slow."""


def rss_mb() -> float:
    """Return the resident memory of this process, in MB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    return pages * resource.getpagesize() / 1024**2


def waited_s() -> float:
    """Return how long this process's main thread was ready to run, and no core was free."""
    with open("/proc/self/schedstat", encoding="ascii") as file:
        return int(file.read().split()[1]) / 1e9


def verdict(value: float, goal: float, *, more: bool) -> str:
    reached = value >= goal if more else value <= goal
    return f"{'reached' if reached else 'MISSED'} {goal:,.0f}"


async def scan_rate(store: TabletStore, many: Many, span: TabletSpan, *, every: bool) -> float:
    """Return tablets per second of processor time, of the best round."""
    scans = LocalRangeScans(store, planner_for(Settings()))
    ignore_what_is_loaded()  # As each process of the service does.
    best = 0.0
    for _ in range(ROUNDS):
        begun_s = time.process_time()
        rest: TabletSpan | None = span
        tablets = 0
        while rest is not None:
            done = await scans.scan(ScanRange(table=many.table, span=rest, every=every))
            tablets, rest = tablets + done.tablets, done.rest
        best = max(best, tablets / (time.process_time() - begun_s))
    return best


def add_for_a_while(
    url: str, table: str, numbers: Sequence[int], rate: int, to: Connection
) -> None:
    """Add a file to each of these tablets, so many a second; send when each was sent."""

    async def adds() -> None:
        store = connect(StoreSettings(url=url))
        sent_s: dict[int, float] = {}
        gate, begun_s = asyncio.Semaphore(16), time.monotonic()

        async def add(some: Sequence[int]) -> None:
            files = {key_of(number): (small_file(number),) for number in some}
            async with gate:
                sent_s.update(dict.fromkeys(some, time.monotonic()))
                outcome = await store.apply(AddFiles(table=table, call=call_id(), files=files))
            assert isinstance(outcome, Applied), outcome

        async with asyncio.TaskGroup() as tasks:
            for first in range(0, len(numbers), TABLETS_PER_ADD):
                due_s = begun_s + first / rate
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                tasks.create_task(add(numbers[first : first + TABLETS_PER_ADD]))
        to.send((sent_s, time.monotonic() - begun_s))
        await store.close()

    asyncio.run(adds())


RESTART_TABLETS, FILES_PER_RESTART = 1_000, 10
RESTART_PATIENCE_S, RESTART_MAX_S = 300.0, 10.0


def small_file(number: int, of: int = 0) -> DataFile:
    key = key_of(number)
    version = (1_800_000_000_000_000).to_bytes(8, "big")
    return DataFile(
        path=f"new/{number:08x}-{of}.parquet",
        size_bytes=1_000,
        rows=10,
        key_min=key,
        key_max=key,
        version_min=version,
        version_max=version,
    )


class OtherProcess:
    """Scans ranges in one other process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    async def scan(self, requested: ScanRange) -> RangeFindings:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, scan_range, self._settings, requested)


@contextlib.asynccontextmanager
async def coordinator(
    url: str,
    notify: Callable[[on.Event], None],
    catalogs: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> Any:
    """Run a coordinator's loops in this process; `notify` gets each event of its core."""
    settings = Settings(
        store=StoreSettings(url=url),
        coordinator=CoordinatorSettings(full_scan_interval_s=SCAN_INTERVAL_S),
        catalogs=catalogs,
        gateway=replace(Settings().gateway, locations=("/",)),
        catalog=replace(Settings().catalog, answer_max_s=CATALOG_MAX_S),
    )
    store = connect(settings.store)
    ids = RandomIds()
    context = ShellContext(store, SystemClock(), ids, lambda *_, **__: None, ids.next("coord"))
    elsewhere = OtherProcess(settings)
    parts: CoordinatorParts = assemble(settings, context, elsewhere)
    submit = parts.service.submit

    def heard(event: on.Event) -> None:
        submit(event)
        notify(event)

    parts.scanner.attach(heard)
    await take_lead(store, parts.scanner, context.coordinator, context.log)
    loops = [asyncio.create_task(loop) for loop in parts.loops(settings)]
    loops.append(asyncio.create_task(collect_oldest_forever()))
    try:
        yield parts
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await parts.service.stop()
        await store.close()
        elsewhere.pool.shutdown()


async def latencies(url: str, many: Many, rate: int, seconds: float) -> dict[str, float]:
    """Return how long changes take to be planned, in milliseconds, and what it took."""
    planned_s: dict[bytes, float] = {}

    def note(event: on.Event) -> None:
        if isinstance(event, on.TabletPlanned):
            planned_s.setdefault(event.tablet.end, time.monotonic())

    numbers = random.Random(1).sample(range(1, many.tablets + 1), int(rate * seconds))
    ours, theirs = multiprocessing.Pipe(duplex=False)
    spawn = multiprocessing.get_context("spawn")
    async with coordinator(url, note) as parts:
        while parts.full_scan.counts.scans < 1:
            await asyncio.sleep(0.1)
        writer = spawn.Process(
            target=add_for_a_while, args=(url, many.table.id, numbers, rate, theirs)
        )
        begun_s, waited_before_s = time.process_time(), waited_s()
        writer.start()
        sent_s, lasted_s = await asyncio.to_thread(ours.recv)
        until_s = time.monotonic() + 30
        wanted = {key_of(number) for number in numbers}
        while wanted - planned_s.keys() and time.monotonic() < until_s:
            await asyncio.sleep(0.05)
        writer.join()
        cpu_s = time.process_time() - begun_s
        missing = len(wanted - planned_s.keys())
        waits = sorted(
            1000 * (planned_s[key_of(number)] - at_s)
            for number, at_s in sent_s.items()
            if key_of(number) in planned_s
        )
        return {
            "p50": waits[len(waits) // 2],
            "p99": waits[int(len(waits) * 0.99)],
            "most": waits[-1],
            "missing": missing,
            "rate": len(numbers) / lasted_s,
            "cpu": cpu_s / lasted_s,
            "waited for a core": (waited_s() - waited_before_s) / lasted_s,
            "scans": parts.full_scan.counts.scans,
            "rss": rss_mb(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Seconds from a coordinator's start until something was so."""

    handed_out_s: float
    """A compactor that waited had its first job: its inputs were reserved."""
    planned_s: float
    """All tablets that had work were planned."""


async def restart(url: str, many: Many) -> Restart:
    """Return how long a coordinator takes to be at work again.

    Some tablets anywhere have got ten files each that nobody has planned.
    """
    store, planned = connect(StoreSettings(url=url)), set[bytes]()
    numbers = random.Random(2).sample(range(1, many.tablets + 1), RESTART_TABLETS)
    for number in numbers:
        files = tuple(small_file(number, of) for of in range(1, FILES_PER_RESTART + 1))
        added = AddFiles(table=many.table.id, call=call_id(), files={key_of(number): files})
        assert isinstance(await store.apply(added), Applied)
    await store.close()

    def note(event: on.Event) -> None:
        if isinstance(event, on.TabletPlanned) and event.plan.jobs:
            planned.add(event.tablet.end)

    begun_s = time.monotonic()
    async with coordinator(url, note) as parts:
        taking = asyncio.create_task(first_job(parts.service))
        while len(planned) < RESTART_TABLETS:
            await asyncio.sleep(0.01)
            assert time.monotonic() - begun_s < RESTART_PATIENCE_S, len(planned)
        planned_s = time.monotonic() - begun_s
        return Restart(handed_out_s=await taking - begun_s, planned_s=planned_s)


async def first_job(service: CoordinatorService) -> float:
    """Return when a compactor with one free slot got a job."""
    name, group = "compactor-1", DEFAULT_GROUP
    beat = Heartbeat(compactor=name, incarnation="1", group=group, node="n", slots=1)
    await service.beat(beat)
    take = TakeRequest(
        take="take-1", compactor=name, incarnation="1", group=group, wait_max_s=RESTART_PATIENCE_S
    )
    assignment = await service.take(take)
    assert assignment is not None
    return time.monotonic()


async def measure(url: str, given: argparse.Namespace) -> None:
    keyspace = RedisKeyspace(StoreSettings(url=url, timeout_s=60.0))
    store = connect(StoreSettings(url=url))
    begun_s = time.monotonic()
    many = await many_tablets(store, keyspace, given.tablets, analysis="stable")
    print(f"{given.tablets:,} tablets stored in {time.monotonic() - begun_s:.0f} s", end="; ")
    print(f"load {os.getloadavg()[0]:.1f}", flush=True)
    part = TabletSpan(None, key_of(min(given.changed, given.tablets)))
    changed = await scan_rate(store, many, part, every=True)
    print(f"changed    {changed:>10,.0f} tablets/s  {verdict(changed, CHANGED_MIN, more=True)}")
    quiet = await scan_rate(store, many, part, every=False)
    print(f"unchanged  {quiet:>10,.0f} tablets/s  {verdict(quiet, UNCHANGED_MIN, more=True)}")
    await keyspace.close()
    await store.close()
    again = await restart(url, many)
    print(f"restart    {again.handed_out_s:>10,.1f} s to the first job handed out  ", end="")
    print(f"{verdict(again.handed_out_s, RESTART_MAX_S, more=False)} s; ", end="")
    print(f"{again.planned_s:,.1f} s until all {RESTART_TABLETS:,} tablets with work were planned")
    figures = await latencies(url, many, given.rate, given.seconds)
    print(f"change → plan at {figures['rate']:,.0f}/s: p50 {figures['p50']:.1f} ms, p99 ", end="")
    print(f"{figures['p99']:.1f} ms  {verdict(figures['p99'], LATENCY_MAX_MS, more=False)} ms")
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))
    memory = verdict(figures["rss"], MEMORY_MAX_MB, more=False)
    print(f"memory     {figures['rss']:>10,.0f} MB  {memory}")


def main() -> None:
    options = argparse.ArgumentParser(description="measure full scans and change to plan")
    options.add_argument("--tablets", type=int, default=1_000_000)
    options.add_argument("--changed", type=int, default=50_000)
    options.add_argument("--rate", type=int, default=1_000)
    options.add_argument("--seconds", type=float, default=20.0)
    given = options.parse_args()
    with running(append_only=False) as server:
        asyncio.run(measure(server.url, given))


if __name__ == "__main__":
    exit_on_sigterm()
    main()
