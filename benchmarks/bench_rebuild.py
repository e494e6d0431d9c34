"""How long does a rebuild work on values, and does it keep the gateway's event loop waiting?

    python -m benchmarks.bench_rebuild [--tablets N]

Ten files a tablet, as they are when footers and facts have been read: eight outputs of attempts
over four files each, which are collected, and two appended files. Measured: finding which files
count, then the tablets. Meanwhile an event loop looks at the clock every ten milliseconds. In the
end the same work is broken off.
"""

import argparse
import asyncio
import resource
import time
from contextlib import suppress
from functools import partial

from common.model.file import DataFile
from common.model.table import Table
from common.model.tablet import TabletId
from common.runtime import growth_ignored
from neve.recovery.rebuild import table_rebuild as rebuilding
from neve.recovery.rebuild.table_rebuild import Evidence
from neve.recovery.scope import Steps, in_thread
from neve.recovery.stored_files import OutputFooter, StoredFile

OUTPUTS, APPENDED, INPUTS = 8, 2, 4
TABLE = Table(
    id="t1", name="events", location="file:///events", schema=(), key=("id",), former_ids=("t0",)
)
TICK_S = 0.01


def evidence_of(tablets: int) -> Evidence:
    """Return what lies in the location of a table."""
    found = Evidence(stored={}, described=TABLE)
    for number in range(tablets):
        tablet = TabletId("", key_of(number, OUTPUTS + APPENDED)).text
        for ordinal in range(OUTPUTS):
            footer = output_of(number, ordinal, tablet)
            found.footers[footer.path] = footer
            found.stored[footer.path] = StoredFile(footer.path, 1_000_000, 1e9)
        for ordinal in range(APPENDED):
            path = f"_neve/append/{number:08x}-{ordinal}.parquet"
            found.added.append(path)
            found.stored[path] = StoredFile(path, 1_000_000, 1e9)
    return found


def output_of(number: int, ordinal: int, tablet: str) -> OutputFooter:
    name = f"{number:08x}{ordinal:02x}"
    path = f"_neve/{number:08x}/job-{name}-att-{name}-0.parquet"
    return OutputFooter(
        path=path,
        table="t1" if ordinal % 2 else "t0",
        tablet=tablet,
        job=f"job-{name}",
        attempt=f"att-{name}",
        inputs=tuple(f"in/{name}-{part}.parquet" for part in range(INPUTS)),
        request=None,
        purge=number.to_bytes(9, "big"),
        outputs=(path,),
        rows=1000,
    )


def key_of(number: int, ordinal: int) -> bytes:
    return b"\x01" + (16 * number + ordinal).to_bytes(8, "big")


def facts_of(evidence: Evidence) -> list[DataFile]:
    """Return the entries of all files, in the order of their names."""
    counts: dict[int, int] = {}
    files = []
    for path in sorted(evidence.stored):
        number = int(path.split("/")[1 if "job-" in path else 2][:8], 16)
        ordinal = counts[number] = counts.get(number, -1) + 1
        key = key_of(number, ordinal)
        files.append(DataFile(path=path, size_bytes=1, rows=1, key_min=key, key_max=key))
    return files


async def longest_wait(waits: list[float]) -> None:
    """Note how much processor time passes until an event loop comes to look at the clock.

    On a machine with other work the time on the wall says more of that.
    """
    while True:
        begun_s = time.process_time()
        await asyncio.sleep(TICK_S)
        waits.append(time.process_time() - begun_s)


async def measure(tablets: int) -> None:
    evidence = evidence_of(tablets)
    files = facts_of(evidence)
    print(f"{len(files):,} files in {tablets:,} tablets; {memory_mib():,.0f} MiB before")
    waits = [0.0]
    watch = asyncio.create_task(longest_wait(waits))
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    lineage, rows = await in_thread(partial(rebuilding.counting_files, evidence))
    found_s = time.process_time() - cpu_s
    state = rebuilding.LocationState(evidence=evidence, table=TABLE, lineage=lineage, files=files)
    made, result = await in_thread(partial(rebuilding.planned_table, state, ()))
    assert (len(rows), len(made), result.lost) == (len(files), tablets + 1, {})
    print(f"which files count: {found_s:.1f} s cpu; with tablets and report:")
    print(f"    {time.process_time() - cpu_s:.1f} s cpu, {time.perf_counter() - begun_s:.1f} s")
    print(f"longest wait of the event loop: {1000 * max(waits):.0f} ms cpu")
    print(f"memory at its highest: {memory_mib():,.0f} MiB")
    print(f"broken off: ended after {1000 * await broken_off(evidence):.0f} ms cpu")
    watch.cancel()


async def broken_off(evidence: Evidence) -> float:
    """Return how long the thread goes on when its caller has left, at most of some moments."""
    longest_s = 0.0
    for moment_s in (0.5, 1.5, 3.0, 5.0, 8.0):
        ended: list[float] = []

        def work(steps: Steps, ended: list[float] = ended) -> None:
            try:
                rebuilding.counting_files(evidence, steps)
            finally:
                ended.append(time.process_time())

        with suppress(TimeoutError):
            async with asyncio.timeout(moment_s):
                await in_thread(work)
        left_s = time.process_time()
        while not ended:
            await asyncio.sleep(TICK_S)
        longest_s = max(longest_s, ended[0] - left_s)
    return longest_s


def memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tablets", type=int, default=100_000)
    with growth_ignored():
        asyncio.run(measure(parser.parse_args().tablets))
