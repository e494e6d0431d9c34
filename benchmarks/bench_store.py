"""How fast the metadata store is: reads per second per core, pairs of reserve and commit.

    python -m benchmarks.bench_store [--tablets N] [--committers N] [--seconds S] [--fsync WORD]

Starts a redis-server of its own. Numbers of DESIGN §9 are printed beside their goals.
"""

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from common.metadata.changes import (
    AddFiles,
    Applied,
    CommitAttempt,
    CreateTable,
    ReserveFiles,
)
from common.metadata.redis import connect
from common.metadata.redis.keyspace import RedisKeyspace
from common.metadata.store import TabletStore
from common.model.file import DataFile
from common.model.job import Kind
from common.model.outcome import RowCounts
from common.model.table import Column, Table
from common.model.tablet import TabletId
from common.runtime import RandomIds, SystemClock, call_id, ignore_what_is_loaded
from common.settings import StoreSettings
from neve.local.processes import exit_on_sigterm
from tests.support.redis_server import running

FILES = 10
PAGE_TABLETS = 1000
"""Tablets that a scan reads at a time."""
ADD_TABLETS = 200
"""Tablets filled by one add."""


def file_of(tablet: int, number: int) -> DataFile:
    """Return a file with the statistics that files of a keyed table have."""
    key = tablet.to_bytes(8, "big")
    version = (1_700_000_000_000_000 + number).to_bytes(8, "big")
    return DataFile(
        path=f"in/{tablet:08x}-{number:04x}-5f2b8c.parquet",
        size_bytes=1_000_000 + number,
        rows=10_000,
        key_min=key + b"\0",
        key_max=key + b"\1",
        version_min=version,
        version_max=version,
        clean=True,
    )


def end_of(tablet: int) -> bytes:
    """Return the end of a tablet."""
    return tablet.to_bytes(8, "big") + b"\xf0"


async def fill(store: TabletStore, tablets: int) -> str:
    """Make a table of many tablets with ten files each; return its id."""
    table = RandomIds().next("tbl")
    made = Table(
        id=table,
        name=table,
        location=f"file:///tmp/{table}",
        schema=(Column("k", "int64"), Column("v", "int64")),
        key=("k",),
        version_column="v",
    )
    await store.apply(CreateTable(table=made, splits=tuple(map(end_of, range(tablets)))))
    for first in range(0, tablets, ADD_TABLETS):
        some = range(first, min(first + ADD_TABLETS, tablets))
        files = {end_of(n): tuple(file_of(n, index) for index in range(FILES)) for n in some}
        added = await store.apply(AddFiles(table=table, call=call_id(), files=files))
        assert isinstance(added, Applied), added
    return table


async def rate(
    name: str, goal: int, ids: list[TabletId], read: Callable[[list[TabletId]], Awaitable[object]]
) -> None:
    """Read all tablets page by page, three times; print the best rate, by wall and by core."""
    best_s, best_cpu_s = float("inf"), float("inf")
    for _ in range(3):
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        for first in range(0, len(ids), PAGE_TABLETS):
            await read(ids[first : first + PAGE_TABLETS])
        best_s = min(best_s, time.perf_counter() - begun_s)
        best_cpu_s = min(best_cpu_s, time.process_time() - begun_cpu_s)
    each, cpu = len(ids) / best_s, len(ids) / best_cpu_s
    print(f"{name:34} {each:10,.0f}/s  {cpu:10,.0f}/s of CPU  goal {goal:,}")


async def reads(url: str, tablets: int) -> None:
    """Measure what a scan does."""
    store = connect(StoreSettings(url=url))
    table = await fill(store, tablets)
    ids = [TabletId(table, end_of(number)) for number in range(tablets)]
    ignore_what_is_loaded()  # As each process of the service does.
    await rate("tablets(), all keys", 15_000, ids, store.tablets)
    await rate("files() only", 15_000, ids, store.files)
    await rate("records() only", 100_000, ids, store.records)
    await store.close()


def committer(url: str, table: str, number: int, seconds: float, done: Any) -> None:
    """Reserve and commit on one tablet after the other until the time is over."""
    done.put(asyncio.run(_pairs(url, table, number, seconds)))


async def _pairs(url: str, table: str, number: int, seconds: float) -> tuple[int, int, float]:
    store = connect(StoreSettings(url=url))
    pairs = 0
    tablet = TabletId(table, end_of(number))
    before = await store.tablet(tablet)
    assert before is not None
    inputs = sorted(before.files)[:2]
    until_s, begun_cpu_s = time.monotonic() + seconds, time.process_time()
    for attempt in _attempts():
        if time.monotonic() >= until_s:
            break
        prefix = f"_neve/{tablet.text}/{attempt}"
        reserved = await store.apply(_reserve(tablet, attempt, inputs, prefix))
        assert isinstance(reserved, Applied), reserved
        outputs = tuple(file_of_output(f"{prefix}-{n}.parquet", number) for n in range(len(inputs)))
        committed = await store.apply(
            CommitAttempt(
                tablet=tablet,
                attempt=attempt,
                outputs=outputs,
                counts=RowCounts(),
                inputs=tuple(inputs),
            )
        )
        assert isinstance(committed, Applied), committed
        inputs = [file.path for file in outputs]
        pairs += 1
    await store.close()
    return pairs, store.counts.conflicts, time.process_time() - begun_cpu_s


async def redis_cpu_s(url: str) -> float:
    """Return the time that Redis has spent on its core."""
    keyspace = RedisKeyspace(StoreSettings(url=url))
    text: bytes = (await keyspace.fetch([[("INFO", "cpu")]]))[0][0]
    await keyspace.close()
    used = dict(line.split(b":") for line in text.split() if b":" in line)
    return float(used[b"used_cpu_user"]) + float(used[b"used_cpu_sys"])


def file_of_output(path: str, tablet: int) -> DataFile:
    """Return a file that a job made."""
    key = tablet.to_bytes(8, "big")
    return DataFile(path=path, size_bytes=2_000_000, rows=20_000, key_min=key, key_max=key + b"\1")


def _attempts() -> Iterator[str]:
    ids = RandomIds()
    while True:
        yield ids.next("att")


def _reserve(tablet: TabletId, attempt: str, inputs: list[str], prefix: str) -> ReserveFiles:
    return ReserveFiles(
        tablet=tablet,
        attempt=attempt,
        job="job-0123456789abcdef",
        kind=Kind.SYSTEM,
        inputs=tuple(inputs),
        output_prefix=prefix,
        outputs_max=2,
        group="default",
        compactor="compactor-1",
    )


def appender(url: str, table: str, tablets: int, stop: Any) -> None:
    """Append to the tablets of all committers as fast as it goes."""
    asyncio.run(_append(url, table, tablets, stop))


async def _append(url: str, table: str, tablets: int, stop: Any) -> None:
    store = connect(StoreSettings(url=url))
    clock, count = SystemClock(), FILES
    while not stop.is_set():
        count += 1
        number = count % tablets
        files = {end_of(number): (file_of(number, count),)}
        await store.apply(AddFiles(table=table, call=call_id(clock), files=files))
    print(f"appender: {count - FILES} adds, {store.counts.conflicts} conflicts")
    await store.close()


async def pairs(url: str, committers: int, seconds: float, *, hot: bool) -> None:
    """Measure reserve + commit from many processes, perhaps beside a hot appender."""
    store = connect(StoreSettings(url=url))
    table = await fill(store, committers)
    await store.close()
    context = multiprocessing.get_context("spawn")
    results, stop = context.Queue(), context.Event()
    workers = [
        context.Process(target=committer, args=(url, table, number, seconds, results))
        for number in range(committers)
    ]
    if hot:
        workers.append(context.Process(target=appender, args=(url, table, committers, stop)))
    before_s = await redis_cpu_s(url)
    for worker in workers:
        worker.start()
    counts = [results.get() for _ in range(committers)]
    stop.set()
    for worker in workers:
        worker.join()
    server_s = await redis_cpu_s(url) - before_s
    total, conflicts, client_s = (sum(column) for column in zip(*counts, strict=True))
    beside = " beside a hot appender" if hot else ""
    print(
        f"{committers} committers{beside}: {total / seconds:,.0f} pairs/s, "
        f"{conflicts} conflicts in {2 * total} changes  goal 3,000 everysec, 1,500 always; "
        f"per pair {client_s / total * 1e6:.0f} us of a client's core, "
        f"{server_s / total * 1e6:.0f} us of Redis's"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tablets", type=int, default=20_000)
    parser.add_argument("--committers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--fsync", default="everysec", choices=["everysec", "always", "no"])
    chosen = parser.parse_args()
    with running(fsync=chosen.fsync) as server:
        asyncio.run(reads(server.url, chosen.tablets))
        for hot in (False, True):
            asyncio.run(pairs(server.url, chosen.committers, chosen.seconds, hot=hot))


if __name__ == "__main__":
    exit_on_sigterm()
    main()
