"""How many small jobs does one compactor run per second, compared with a loop in Polars?

    python -m benchmarks.bench_small_jobs [--jobs N] [--rounds N] [--slots N]

A job merges ten files of 200 KB: a text key, versions, tombstones, the columns of the rewrite
benchmarks. The table has one tablet per job and is paused while its files are added. After
`resume`, jobs follow each other without a break; seconds are from the first start to the last
commit in the table's history, so that planning before the first start is not included.

Polars does the same work in a process of its own with two threads: it reads the ten files of a
tablet, sorts, keeps the last row of each key, writes one file (zstd 1) and makes file and folder
durable. It has no metadata, no check of the output and no limit on memory. Both are warm, and
take turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import neve
from benchmarks.rewrite.datasets import TOMBSTONE, VERSION
from benchmarks.soak import kind_of
from neve.local import LocalStack, StackOptions
from neve.local.processes import exit_on_sigterm, processes_of_stack

FILES, ROWS, KEYS = 10, 7_000, 52_500
WARM_JOBS = 20
PATIENCE_S = 600.0
POLL_S = 1.0
"""Interval of questions for the number of files, which make the gateway read all tablets."""
SETTLED_S = 5.0
"""The coordinator knows the files of a new table by then, and plans them when it is resumed."""
SHOWN_MS = 0.5
GOAL, STRETCH = 0.5, 1.0
THREADS = 2


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one contender."""

    jobs_s: float
    cpu_ms: float
    """Processor time per job of all its processes."""
    by_process_ms: dict[str, float] = field(default_factory=dict)
    """The same by kind of process, without those that take less than `SHOWN_MS`."""


def main() -> None:
    """Measure and print; or run the loop of Polars, for the process that measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=None, help="jobs of the compactor at a time")
    parser.add_argument("--data", default=str(Path(tempfile.gettempdir()) / "neve-bench-data"))
    parser.add_argument("--polars", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.polars:
        print(json.dumps(_polars_loop(Path(wanted.polars))))
        return
    exit_on_sigterm()
    data = _data(Path(wanted.data), wanted.jobs)
    with tempfile.TemporaryDirectory(prefix="neve-small-jobs-") as scratch:
        _show(*_measured(data, Path(scratch), wanted))


def _measured(
    data: Path, scratch: Path, wanted: argparse.Namespace
) -> tuple[list[Round], list[Round]]:
    """Return the rounds of Névé and of Polars."""
    own, others = list[Round](), list[Round]()
    home = scratch / "home"
    home.mkdir()
    options = StackOptions()
    if wanted.slots is not None:
        settings = options.settings
        compactor = replace(settings.compactor, slots=wanted.slots)
        options = replace(options, settings=replace(settings, compactor=compactor))
    with LocalStack.start(home=home, options=options, compactors=1) as stack:
        client = neve.Client(stack.gateway_url, token=stack.token)
        _neve_round(stack, client, _links(data, scratch / "warm", WARM_JOBS))
        for number in range(wanted.rounds):
            folder = _links(data, scratch / f"neve-{number}", wanted.jobs)
            own.append(_neve_round(stack, client, folder))
            print(f"round {number}: neve {own[-1]}", flush=True)
            others.append(_polars_round(_links(data, scratch / f"polars-{number}", wanted.jobs)))
            print(f"round {number}: polars {others[-1]}", flush=True)
    return own, others


def _data(root: Path, jobs: int) -> Path:
    """Return the folder with the files of all jobs, made if they do not exist yet."""
    folder = root / f"small-jobs-{jobs}"
    if (folder / "complete").exists():
        return folder
    contents = [_rows(file) for file in range(FILES)]
    for job in range(jobs):
        (folder / f"{job:04}").mkdir(parents=True, exist_ok=True)
        for file, rows in enumerate(contents):
            keys = pc.binary_join_element_wise(f"{job:04}", rows["key"], "")
            path = folder / f"{job:04}" / f"{file}.parquet"
            rows = rows.set_column(0, "key", keys)
            pq.write_table(rows, path, compression="zstd", compression_level=1)
    (folder / "complete").touch()
    return folder


def _rows(file: int) -> pa.Table:
    """Return the rows of one file of each job; keys of a job begin with its number."""
    chance = np.random.default_rng(file)
    ids = np.sort(chance.choice(KEYS, ROWS, replace=False))
    return pa.table(
        {
            "key": [f"{number:012x}" for number in (ids * 0x10001).tolist()],
            VERSION: file * 1_000_000 + chance.integers(0, 4_000_000, ROWS),
            TOMBSTONE: chance.random(ROWS) < 0.05,
            "text": [chance.bytes(12).hex() for _ in range(ROWS)],
            "amount": chance.random(ROWS).round(4),
            "code": pa.array(chance.integers(0, 500, ROWS), pa.int32()),
        }
    )


def _links(data: Path, folder: Path, jobs: int) -> Path:
    """Return a new folder with links to the files of some jobs."""
    for job in range(jobs):
        (folder / f"{job:04}").mkdir(parents=True)
        for file in range(FILES):
            name = f"{job:04}/{file}.parquet"
            os.link(data / name, folder / name)
    return folder


def _neve_round(stack: LocalStack, client: neve.Client, folder: Path) -> Round:
    """Compact one table, and return jobs per second."""
    tablets, name = sorted(path.name for path in folder.iterdir()), folder.name
    client.create_table(
        name,
        folder.as_uri(),
        example=str(folder / tablets[0] / "0.parquet"),
        key=["key"],
        version_column=VERSION,
        tombstone_column=TOMBSTONE,
        splits=[f"{tablet}~" for tablet in tablets[:-1]],
        settings={"codec_level": 1, "tombstone_retention_s": "1s", "manifest_interval_s": "1h"},
        paused=True,
    )
    paths = [f"{tablet}/{file}.parquet" for tablet in tablets for file in range(FILES)]
    client.add_files(name, paths)
    time.sleep(SETTLED_S)
    before_s, deadline_s = _cpu_s(stack), time.time() + PATIENCE_S
    client.resume(name)
    while (client.describe(name).files or 0) > len(tablets):
        if time.time() > deadline_s:
            raise TimeoutError(f"{name} is not compacted after {PATIENCE_S:.0f} s")
        time.sleep(POLL_S)
    used_s = {kind: cpu_s - before_s[kind] for kind, cpu_s in _cpu_s(stack).items()}
    history = client.history(name, len(tablets) + 1)
    if [job.end for job in history] != ["committed"] * len(tablets):
        raise RuntimeError(f"expected {len(tablets)} commits, found {len(history)} attempts")
    took_s = max(job.ended_s for job in history) - min(job.started_s for job in history)
    by_process_ms = {
        kind: round(cpu_s / len(tablets) * 1e3, 1)
        for kind, cpu_s in sorted(used_s.items(), key=lambda used: -used[1])
        if cpu_s / len(tablets) * 1e3 >= SHOWN_MS
    }
    cpu_ms = sum(used_s.values()) / len(tablets) * 1e3
    return Round(len(tablets) / took_s, cpu_ms, by_process_ms)


def _cpu_s(stack: LocalStack) -> defaultdict[str, float]:
    """Return the processor time of all processes of a stack so far, in seconds by kind."""
    used_s = defaultdict[str, float](float)
    for process in processes_of_stack(stack.state.mark, stack.state.processes):
        with suppress(psutil.Error):
            times = process.cpu_times()
            used_s[kind_of(process)] += times.user + times.system
    return used_s


def _polars_round(folder: Path) -> Round:
    command = [sys.executable, "-m", "benchmarks.bench_small_jobs", "--polars", str(folder)]
    environment = {**os.environ, "POLARS_MAX_THREADS": str(THREADS)}
    finished = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return Round(*json.loads(finished.stdout))


def _polars_loop(folder: Path) -> tuple[float, float]:
    """Merge the files of each tablet; return jobs per second and milliseconds of CPU per job."""
    tablets = sorted(path for path in folder.iterdir())
    for tablet in tablets[:WARM_JOBS]:
        _polars_job(tablet)
    begun_s, cpu_s = time.monotonic(), time.process_time()
    for tablet in tablets:
        _polars_job(tablet)
    took_s = time.monotonic() - begun_s
    cpu_ms = (time.process_time() - cpu_s) / len(tablets) * 1e3
    return len(tablets) / took_s, cpu_ms


def _polars_job(tablet: Path) -> None:
    import polars as pl

    paths = [tablet / f"{file}.parquet" for file in range(FILES)]
    ordered = pl.scan_parquet(paths).sort("key", VERSION, TOMBSTONE)
    winners = ordered.unique(subset="key", keep="last", maintain_order=True)
    output = tablet / "output.parquet"
    frame = winners.filter(~pl.col(TOMBSTONE)).collect()
    frame.write_parquet(output, compression="zstd", compression_level=1)
    for path in (output, tablet):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _show(own: list[Round], others: list[Round]) -> None:
    shown = Table(title="small jobs: medians of rounds, with the lowest and the highest")
    for name in ("contender", "jobs/s", "CPU per job"):
        shown.add_column(name)
    for contender, rounds in (("neve", own), ("polars + fsync", others)):
        jobs_s = sorted(measured.jobs_s for measured in rounds)
        cpu_ms = statistics.median(measured.cpu_ms for measured in rounds)
        median = f"{statistics.median(jobs_s):.1f} ({jobs_s[0]:.1f} to {jobs_s[-1]:.1f})"
        shown.add_row(contender, median, f"{cpu_ms:.0f} ms")
    ratio = statistics.median(
        mine.jobs_s / other.jobs_s for mine, other in zip(own, others, strict=True)
    )
    state = "below" if ratio < GOAL else "reached" if ratio < STRETCH else "stretch"
    console = Console(width=100)
    console.print(shown)
    kinds = {kind: None for measured in own for kind in measured.by_process_ms}
    for kind in kinds:
        median_ms = statistics.median(measured.by_process_ms.get(kind, 0.0) for measured in own)
        console.print(f"  {kind}: {median_ms:.1f} ms per job")
    console.print(f"neve / polars: {ratio:.2f} (goal {GOAL:g}, stretch {STRETCH:g}): {state}")


if __name__ == "__main__":
    main()
