"""Peak memory of a compactor's processes while they rewrite inputs that are hard on it.

    python -m benchmarks.rewrite_memory [--gb 10] [--shapes wide deep …] [--row-group 32MB]

A real Spark driver with two cores merges each shape of `benchmarks.memory_shapes` as one job.
The largest resident memory of each process comes from the kernel (VmHWM), read again and
again while it lives. Data are made in --folder and removed.
"""

import argparse
import asyncio
import os
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow.parquet as pq

from benchmarks.memory_shapes import KEY, SHAPES, TOMBSTONE, VERSION, make
from common.model.file import DataFile
from common.model.table import Table, TableSettings
from common.parquet.file_inspection import inspect_file
from common.parquet.location import open_location
from common.rows.rules import RowRules
from common.rows.schema import columns_of
from common.runtime import RandomIds
from common.units import format_bytes, parse_size_bytes
from compactor.spark.driver_protocol import DriverSettings, EngineKind
from compactor.spark.engine import SparkEngine
from neve.local.machine import find_java
from tests.support.assignments import an_assignment

LOOK_INTERVAL_S = 0.1
GOAL_BYTES = 768 * 1024**2


@dataclass(slots=True)
class Peaks:
    """Most memory that processes had; by what they are."""

    tasks: dict[int, int] = field(default_factory=dict)
    driver_bytes: int = 0
    jvm_bytes: int = 0

    def see(self, process: psutil.Process, driver: int | None) -> None:
        """Note what a process had at most."""
        peak_bytes = _peak_bytes(process.pid)
        if process.pid == driver:
            self.driver_bytes = max(self.driver_bytes, peak_bytes)
        elif process.name() == "java":
            self.jvm_bytes = max(self.jvm_bytes, peak_bytes)
        else:
            self.tasks[process.pid] = max(self.tasks.get(process.pid, 0), peak_bytes)


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def watched(peaks: Peaks, engine: SparkEngine, done: threading.Event) -> None:
    """Look at all processes below this one until told to stop."""
    while not done.wait(LOOK_INTERVAL_S):
        for process in psutil.Process().children(recursive=True):
            try:
                peaks.see(process, engine.pid)
            except (psutil.Error, OSError):
                continue


async def measure(shape: str, folder: Path, size_bytes: int, row_group_bytes: int) -> str:
    """Return a row of the table: what a shape took."""
    paths = make(shape, folder, size_bytes)
    table = Table(
        id="bench",
        name="bench",
        location=folder.as_uri(),
        schema=columns_of(pq.read_schema(folder / paths[0])),
        key=(KEY,),
        version_column=VERSION,
        tombstone_column=TOMBSTONE,
        settings=TableSettings(codec="zstd", codec_level=1, row_group_bytes=row_group_bytes),
    )
    location, rules = open_location(table.location), RowRules.of(table)
    inputs: tuple[DataFile, ...] = tuple(
        inspect_file(location, path, rules).data_file(added_at_s=0.0) for path in paths
    )
    versions = [file.version_max for file in inputs if file.version_max is not None]
    assignment = an_assignment(
        inputs, attempt=RandomIds().next("att"), table=table, settled=max(versions)
    )
    engine = SparkEngine(
        DriverSettings(name="bench", engine=EngineKind.LOCAL, start_timeout_s=600.0)
    )
    await engine.start()
    peaks, done = Peaks(), threading.Event()
    watcher = threading.Thread(target=watched, args=(peaks, engine, done), daemon=True)
    watcher.start()
    begun_s = time.perf_counter()
    try:
        result = await engine.run(assignment, lambda _: None)
        how = f"{result.kernel}, {time.perf_counter() - begun_s:.0f} s"
    finally:
        done.set()
        watcher.join()
        await engine.stop()
    stored_bytes = sum(file.size_bytes for file in inputs)
    cells = [
        shape,
        f"{len(inputs)}",
        format_bytes(stored_bytes),
        f"{sum(file.rows for file in inputs):,}",
        how,
        format_bytes(max(peaks.tasks.values(), default=0)),
        format_bytes(peaks.driver_bytes),
        format_bytes(peaks.jvm_bytes),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure the shapes that were asked for."""
    parser = argparse.ArgumentParser(prog="benchmarks.rewrite_memory")
    parser.add_argument("--gb", type=float, default=10.0, help="decoded bytes of each shape")
    parser.add_argument("--shapes", nargs="+", default=sorted(SHAPES), choices=sorted(SHAPES))
    parser.add_argument("--row-group", default="32MB", help="of the output, decoded")
    parser.add_argument("--folder", type=Path, help="for the data; a new one otherwise")
    asked = parser.parse_args()
    os.environ.setdefault("JAVA_HOME", str(find_java(os.environ).home))
    print("| shape | files | stored | rows | how | task | driver | JVM |")
    print("|---|---|---|---|---|---|---|---|")
    for shape in asked.shapes:
        folder = Path(tempfile.mkdtemp(prefix="neve-memory-", dir=asked.folder))
        try:
            row_group_bytes = parse_size_bytes(asked.row_group)
            run = measure(shape, folder / shape, int(asked.gb * 1024**3), row_group_bytes)
            print(asyncio.run(run), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"\nGoal: a task below {format_bytes(GOAL_BYTES)}.")


if __name__ == "__main__":
    main()
