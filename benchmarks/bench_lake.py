"""Lake tables: the commit of a job of ten files, and the rewrite beside that of other engines.

    python -m benchmarks.bench_lake [FOLDER]

The commit is measured from the finished rewrite to the recorded end of the attempt: the head is
loaded, validated, marked and sent, and the attempt is looked for in the log. The store is in
memory. The rewrite is measured in CPU seconds of this process, verification included, without
Spark; `deltalake.optimize.compact` rewrites a copy of the same Delta table, and PyIceberg's
`overwrite` of all rows by themselves the same Iceberg table, both without verification.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow as pa
from pyiceberg.io.pyarrow import _dataframe_to_data_files

from common.lake.mirror import difference, tablets_of
from common.metadata.changes import CommitAttempt, MirrorFiles
from common.model.tablet import PLUS_INFINITY, TabletId
from compactor.core import CommitApplied
from compactor.lake_commit import LakePublisher
from compactor.service import TableStorage
from tests.support.delta_tables import DeltaTable
from tests.support.iceberg_tables import IcebergTable, sqlite_catalog
from tests.support.lake_attempts import (
    access_of,
    assignment_of,
    format_of,
    rewrite,
    service_table,
    snapshot_of,
)
from tests.support.memory_store import MemoryKeyspace
from tests.support.predictable import ManualClock
from tests.support.store_harness import Harness, applied, reserve

FILES, INPUTS, JOBS = 1_000, 10, 30
ANSWER_MAX_S = 180.0
"""Deadline of a log: other work on the machine may make it slow."""
SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.float64()), ("text", pa.string())])


def rows(first: int, count: int) -> pa.Table:
    """Return rows of some 30 bytes each."""
    ids = range(first, first + count)
    texts = [f"customer {row * 7919 % 100_003}" for row in ids]
    return pa.table({"id": pa.array(ids), "amount": [row * 0.37 for row in ids], "text": texts})


def delta_table(folder: Path) -> DeltaTable:
    """Return a Delta table of many files."""
    delta = DeltaTable.create(folder / "commits", SCHEMA)
    adds = [{"add": delta.write(rows(number * 10, 10))} for number in range(FILES)]
    delta.change(lambda _: adds)
    return delta


def iceberg_table(folder: Path) -> IcebergTable:
    """Return an Iceberg table of many files, which one snapshot has added."""
    lake = IcebergTable.create(sqlite_catalog(folder / "iceberg"), "commits", SCHEMA)
    table = lake.table
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as adding:
        for number in range(FILES):
            (file,) = _dataframe_to_data_files(table.metadata, rows(number * 10, 10), table.io)
            adding.append_data_file(file)
    return lake


async def commits(
    folder: Path, lake: DeltaTable | IcebergTable, paths: Sequence[str] = ()
) -> tuple[list[float], list[float]]:
    """Return how long the commit of each of some jobs took, and its processor time, in seconds.

    Args:
        folder: Gets the files of the attempts before they are published.
        lake: The table.
        paths: Inputs of the jobs, one job after the other; empty: the first files of the table.
    """
    folder /= type(lake).__name__
    clock = ManualClock()
    harness = Harness("memory", MemoryKeyspace(clock), clock)
    made = service_table(lake)
    table = await harness.table(
        splits=(),
        key=(),
        version_column=None,
        lake=made.lake,
        location=made.location,
        schema=made.schema,
    )
    tablet = TabletId(table.id, PLUS_INFINITY)
    head, token = snapshot_of(lake), ""
    steps = difference({}, tablets_of(made, head.files.values())).steps
    for number, step in enumerate(steps):
        version = head.version if step is steps[-1] else -1
        mirror = MirrorFiles(
            table=table.id, after=token, token=f"t{number}", version=version, files=step
        )
        applied(await harness.apply(mirror))
        token = mirror.token
    publisher = LakePublisher(
        store=harness.store,
        files=TableStorage(harness.store.store_id, clock),
        clock=clock,
        log=lambda *_, **__: None,
        catalog=replace(access_of(lake), answer_max_s=ANSWER_MAX_S),
    )
    paths, work = paths or sorted(head.files), []
    for number in range(min(JOBS, len(paths) // INPUTS)):
        attempt, inputs = f"att-{number}", paths[number * INPUTS : (number + 1) * INPUTS]
        applied(await harness.apply(reserve(tablet, attempt, *inputs)))
        assignment = assignment_of(lake, inputs, attempt=attempt, table=table, head=head)
        result = rewrite(assignment, folder / attempt, access=access_of(lake))
        commit = CommitAttempt(
            tablet=tablet, attempt=attempt, outputs=result.files, counts=result.counts
        )
        work.append((assignment, commit, result.packed))
    took, cpu = [], []
    for assignment, commit, packed in work:
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        answer = await publisher.publish(assignment, commit, packed)
        took.append(time.perf_counter() - begun_s)
        cpu.append(time.process_time() - begun_cpu_s)
        assert isinstance(answer, CommitApplied), answer
    return took, cpu


def cpu_s(work: Callable[[], object]) -> float:
    """Return the CPU seconds that this process spends on a call."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rewrites(folder: Path, name: str, files: int, count: int, deleted: int) -> tuple[float, float]:
    """Return the CPU seconds of the rewrite of a table, by Névé and by deltalake."""
    delta = DeltaTable.create(folder / name, SCHEMA)
    for number in range(files):
        delta.append(rows(number * count, count), row_group_size=1 << 20)
    if deleted:
        delta.delete(range(0, files * count, deleted))
    copy = folder / f"{name}-copy"
    shutil.copytree(delta.folder, copy)
    paths = list(delta.live())
    own = cpu_s(lambda: rewrite(assignment_of(delta, paths), folder / f"{name}-attempt"))
    other = deltalake.DeltaTable(str(copy))
    theirs = cpu_s(other.optimize.compact)
    return own, theirs


def iceberg_rewrites(
    folder: Path, name: str, files: int, count: int, deleted: int
) -> tuple[float, float]:
    """Return the CPU seconds of the rewrite of a table, by Névé and by PyIceberg."""
    lake = IcebergTable.create(sqlite_catalog(folder / name), "t", SCHEMA)
    for number in range(files):
        lake.append(rows(number * count, count))
    if deleted:
        lake.delete(range(0, files * count, deleted))
    paths = list(snapshot_of(lake).files)
    assignment, access = assignment_of(lake, paths), access_of(lake)
    own = cpu_s(lambda: rewrite(assignment, folder / f"{name}-attempt", access=access))
    table = lake.table
    theirs = cpu_s(lambda: table.overwrite(table.scan().to_arrow()))
    return own, theirs


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        folder = Path(name)
        for lake in (delta_table(folder), iceberg_table(folder)):
            took, _ = asyncio.run(commits(folder, lake))
            print(
                f"commit of a job of {INPUTS} files in a table of {FILES} files, "
                f"{format_of(lake)}: p50 {1000 * statistics.median(took):.0f} ms, "
                f"most {1000 * max(took):.0f} ms"
            )
        for other, measure in (("deltalake", rewrites), ("PyIceberg", iceberg_rewrites)):
            for name, files, count, deleted in (
                ("copied row groups", 8, 1 << 20, 0),
                ("1 MB files with deletes", 60, 50_000, 20),
            ):
                plain = f"{other}-{name.replace(' ', '-')}"
                own, theirs = measure(folder, plain, files, count, deleted)
                print(
                    f"rewrite, {name}: {own:.2f} CPU-s, {other} {theirs:.2f} CPU-s, "
                    f"{theirs / own:.2f} times as fast"
                )


if __name__ == "__main__":
    main()
