"""A lake table of very many files: attached, mirrored, planned and committed to.

    python -m benchmarks.bench_lake_scale [--files 100000] [--format delta] [--json FILE]

The log names mostly files that do not exist: neither attach nor plan nor commit reads those that
are no inputs. An Iceberg table has a manifest for each 1,000 files, a Delta table a checkpoint of
nine tenths of its versions.

*attach*: A gateway in another process attaches the table, and the coordinator, which runs in this
process with all its loops and a Redis of its own, fills the mirror and plans. A third process
meanwhile changes a native table of 20,000 tablets, 100 of them a second. *poll*: the head is asked
for, without news. *commit*: 10 jobs of 10 files that lie in 10 manifests, in a process of its own,
with the code of a compactor and a store in memory; the first one reads the whole log.

Processor time is stated next to the time of the clock, which other work on the machine makes
longer. Memory is the most that was resident.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from benchmarks.bench_lake import commits
from benchmarks.bench_scan import CATALOG_MAX_S, add_for_a_while, coordinator
from common.metadata.redis import connect
from common.metadata.redis.keyspace import RedisKeyspace
from common.runtime import ignore_what_is_loaded, share_freed_memory, shorten_thread_switches
from common.settings import Settings, StoreSettings
from coordinator.core import events as on
from coordinator.registry import planner_for
from neve.client import Client
from neve.local.processes import exit_on_sigterm
from tests.support.delta_tables import DeltaTable
from tests.support.gateway import TOKEN, serving
from tests.support.iceberg_tables import NAMESPACE, IcebergTable, sqlite_catalog, sqlite_properties
from tests.support.many_tablets import key_of, many_tablets
from tests.support.redis_server import running

FORMATS = ("delta", "iceberg")
COLUMNS = [f"column_{number}" for number in range(12)]
SCHEMA = pa.schema([pa.field(name, pa.int64()) for name in COLUMNS])
FILES_PER_VERSION, CHECKPOINT_SHARE = 1_000, 0.9
JOBS, INPUTS, FEW_FILES = 10, 10, 1_000
NATIVE_TABLETS, NATIVE_RATE, BEFORE_S, PATIENCE_S, POLLS = 20_000, 100, 5.0, 180.0, 20
CATALOG, TABLE = "prod", "t"
SPAWN = multiprocessing.get_context("spawn")

ATTACH_MAX_S, MEMORY_MAX_MB, CHANGE_MAX_MS, POLL_MAX_MS = 30.0, 1024.0, 100.0, 50.0
COMMIT_MAX_MS = {"few": 500.0, "many": 3_000.0}


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure and its limit."""

    name: str
    value: float
    limit: float
    unit: str

    @property
    def line(self) -> str:
        """The bar as a line of a table."""
        verdict = "reached" if self.value <= self.limit else "MISSED"
        text = f"{self.value:,.1f} {self.unit}"
        return f"{self.name:<64} {text:>14}  {verdict} {self.limit:,.0f} {self.unit}"


# ------------------------------------------------------------------------------------- The tables


def _rows(number: int) -> pa.Table:
    return pa.table({name: pa.array([number * 10 + at for at in range(10)]) for name in COLUMNS})


def _stats(number: int) -> str:
    bounds = {name: number * 1_000 + at for at, name in enumerate(COLUMNS)}
    ends = {"minValues": bounds, "maxValues": bounds, "nullCount": dict.fromkeys(COLUMNS, 0)}
    return json.dumps({"numRecords": 1_000, **ends})


def _delta_add(number: int) -> dict[str, Any]:
    return {
        "path": f"part-{number:06}-{uuid.uuid4()}.parquet",
        "partitionValues": {},
        "size": 1_000_000 + number,
        "modificationTime": 1_700_000_000_000,
        "dataChange": True,
        "stats": _stats(number),
    }


def _present(files: int) -> dict[int, list[int]]:
    """Return which files exist, by version: adjacent ones lie in different versions."""
    versions = max(1, files // FILES_PER_VERSION)
    numbers = dict[int, list[int]]()
    for number in range(JOBS * INPUTS):
        numbers.setdefault(number % versions, []).append(number)
    return numbers


def write_delta(folder: str, files: int) -> list[str]:
    """Write a log of many versions; return the paths of files that exist."""
    delta, present = DeltaTable.create(folder, SCHEMA), dict[int, str]()
    checkpoint = max(1, round(CHECKPOINT_SHARE * files / FILES_PER_VERSION))
    for version in range(1, files // FILES_PER_VERSION + 1):
        numbers = _present(files).get(version - 1, [])
        adds = [delta.write(_rows(number)) for number in numbers]
        present.update((number, add["path"]) for number, add in zip(numbers, adds, strict=True))
        first = version * FILES_PER_VERSION
        adds += map(_delta_add, range(first, first + FILES_PER_VERSION - len(adds)))
        delta.commit(*({"add": add} for add in adds), version=version)
        if version == checkpoint:
            deltalake.DeltaTable(folder).create_checkpoint()
    return [path for _, path in sorted(present.items())]


def _iceberg_file(location: str, number: int) -> DataFile:
    ids = range(1, len(COLUMNS) + 1)
    bounds = {field: (number * 1_000 + field).to_bytes(8, "little") for field in ids}
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{location}/data/part-{number:06}-{uuid.uuid4()}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1_000,
        file_size_in_bytes=1_000_000 + number,
        column_sizes=dict.fromkeys(ids, 8_000),
        value_counts=dict.fromkeys(ids, 1_000),
        null_value_counts=dict.fromkeys(ids, 0),
        nan_value_counts={},
        lower_bounds=bounds,
        upper_bounds=bounds,
        key_metadata=None,
        split_offsets=[4],
        equality_ids=None,
        sort_order_id=None,
    )
    file.spec_id = 0
    return file


def write_iceberg(folder: str, files: int) -> list[str]:
    """Write snapshots of one manifest each; return the paths of files that exist."""
    properties = {"commit.manifest-merge.enabled": "false"}
    catalog = sqlite_catalog(Path(folder), CATALOG)
    lake, present = IcebergTable.create(catalog, TABLE, SCHEMA, properties=properties), {}
    for version in range(files // FILES_PER_VERSION):
        table, numbers = lake.table, _present(files).get(version, [])
        adds = [
            file
            for number in numbers
            for file in _dataframe_to_data_files(table.metadata, _rows(number), table.io)
        ]
        present.update((number, add.file_path) for number, add in zip(numbers, adds, strict=True))
        first = version * FILES_PER_VERSION
        more = range(first, first + FILES_PER_VERSION - len(adds))
        adds += [_iceberg_file(table.location(), number) for number in more]
        with table.transaction() as change, change.update_snapshot().fast_append() as adding:
            for add in adds:
                adding.append_data_file(add)
    root = f"{lake.table.location()}/"
    return [path.removeprefix(root) for _, path in sorted(present.items())]


def _lake(kind: str, folder: Path) -> DeltaTable | IcebergTable:
    if kind == "delta":
        return DeltaTable(str(folder))
    return IcebergTable(sqlite_catalog(folder, CATALOG), f"{NAMESPACE}.{TABLE}")


# -------------------------------------------------------------------------------------- Processes


def _peak_mb(pid: int | str = "self") -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def _cpu_s(pid: int | str = "self") -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _elsewhere(work: Callable[..., object], *values: object) -> Any:
    """Return what a function returns in a process of its own."""
    ours, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_sent, args=(theirs, work, values), daemon=True)
    process.start()
    theirs.close()
    try:
        return await asyncio.to_thread(ours.recv)
    finally:
        await asyncio.to_thread(process.join)


def _sent(to: Any, work: Callable[..., object], values: Sequence[object]) -> None:
    to.send(work(*values))


def serve_gateway(url: str, catalogs: dict[str, dict[str, str]], to: Any) -> None:
    """Run a gateway over a Redis, with the planner of the service, until a message comes."""
    share_freed_memory()
    shorten_thread_switches()
    store = connect(StoreSettings(url=url))
    plan, slow = planner_for(Settings()), {"answer_max_s": CATALOG_MAX_S}
    with serving(store, plan=plan, catalog=slow, catalogs=catalogs) as gateway:
        ignore_what_is_loaded()
        to.send((gateway.url, os.getpid()))
        to.recv()


# ----------------------------------------------------------------------------------------- Commits


def commit_jobs(kind: str, folder: str, paths: Sequence[str]) -> dict[str, float]:
    """Return how long commits took, and what they cost, in milliseconds."""
    own = Path(folder)
    took, cpu = asyncio.run(commits(own.with_name(f"{own.name}-attempts"), _lake(kind, own), paths))
    return {
        "first": 1000 * took[0],
        "p50": 1000 * statistics.median(took),
        "most": 1000 * max(took[1:]),
        "cpu_first": 1000 * cpu[0],
        "cpu_p50": 1000 * statistics.median(cpu),
        "peak_mb": _peak_mb(),
    }


# ------------------------------------------------------------------------------ Attach, plan, poll


def _waits(
    planned_s: dict[bytes, float], sent_s: dict[int, float], begun_s: float, ended_s: float
) -> dict[str, float]:
    """Return how long changes sent in a time took to be planned, in milliseconds."""
    waits = sorted(
        1000 * (planned_s.get(key_of(number), float("inf")) - at_s)
        for number, at_s in sent_s.items()
        if begun_s <= at_s < ended_s
    )
    if not waits:
        return {"changes": 0}
    at_p99 = min(len(waits) - 1, int(len(waits) * 0.99))
    return {
        "p50": waits[len(waits) // 2],
        "p99": waits[at_p99],
        "most": waits[-1],
        "changes": len(waits),
    }


def _command(url: str, *words: str) -> dict[str, float]:
    """Run `neve` once; return its time, and the size of its answer."""
    environ = {**os.environ, "NEVE_URL": url, "NEVE_TOKEN": TOKEN}
    command = [sys.executable, "-c", "from neve.cli import main; main()", *words]
    begun_s = time.monotonic()
    done = subprocess.run(command, env=environ, capture_output=True, check=False)
    if done.returncode:
        print(done.stderr.decode()[-1000:], done.stdout.decode()[-500:])
    return {
        "s": time.monotonic() - begun_s,
        "bytes": len(done.stdout),
        "code": done.returncode,
    }


class Planned:
    """When tablets of the native table were planned first, and how many files of the lake table."""

    def __init__(self, native: str) -> None:
        self._native = native
        self.native_s: dict[bytes, float] = {}
        self.lake_files = 0

    def hear(self, event: on.Event) -> None:
        """Note a plan."""
        if not isinstance(event, on.TabletPlanned):
            return
        if event.tablet.table == self._native:
            self.native_s.setdefault(event.tablet.end, time.monotonic())
        else:
            count = sum(len(job.inputs) for job in event.plan.jobs) + len(event.plan.left)
            self.lake_files = max(self.lake_files, count)


@dataclass(slots=True)
class Stage:
    """Everything that runs while a table is attached."""

    parts: Any
    """The coordinator."""
    client: Client
    gateway: int
    """Process id."""
    planned: Planned
    changes: Any
    """Receives when each change of the native table was sent."""
    figures: dict[str, Any]


async def _attach(stage: Stage, files: int, attach: Callable[[], object]) -> tuple[float, float]:
    """Attach the table and wait for its plan; return when that began and ended."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Forgets the peak.
    figures, gateway = stage.figures, stage.gateway
    cpu_s, gateway_cpu_s, begun_s = _cpu_s(), _cpu_s(gateway), time.monotonic()
    await asyncio.to_thread(attach)
    figures["attach_s"] = time.monotonic() - begun_s
    while stage.planned.lake_files < files:
        assert time.monotonic() < begun_s + PATIENCE_S, stage.planned.lake_files
        await asyncio.sleep(0.05)
    ended_s = time.monotonic()
    figures["attach_to_plan_s"] = ended_s - begun_s
    figures["coordinator_cpu_s"] = _cpu_s() - cpu_s
    figures["gateway_cpu_s"] = _cpu_s(gateway) - gateway_cpu_s
    return begun_s, ended_s


async def _polls(stage: Stage) -> None:
    """Measure polls without news."""
    (table,) = [table for table in stage.parts.scanner.tables.values() if table.lake is not None]
    polls = []
    for _ in range(POLLS):
        begun_s, cpu_s = time.monotonic(), time.process_time()
        await stage.parts.lake.poll(table)
        polls.append((time.monotonic() - begun_s, time.process_time() - cpu_s))
    stage.figures["poll_ms"], stage.figures["poll_cpu_ms"] = (
        1000 * statistics.median(values) for values in zip(*polls, strict=True)
    )


async def _measure_stage(
    stage: Stage, given: argparse.Namespace, url: str, target: dict[str, str]
) -> None:
    figures, planned = stage.figures, stage.planned
    while not planned.native_s:
        await asyncio.sleep(0.05)
    await asyncio.sleep(BEFORE_S)
    attach = partial(stage.client.attach, "lake", **target)
    begun_s, ended_s = await _attach(stage, given.files, attach)
    sent_s, _ = await asyncio.to_thread(stage.changes.recv)
    await asyncio.sleep(2.0)
    figures["coordinator_peak_mb"] = _peak_mb()
    figures["gateway_peak_mb"] = _peak_mb(stage.gateway)
    waits = partial(_waits, planned.native_s, sent_s)
    figures["change_to_plan_before_ms"] = waits(0.0, begun_s)
    figures["change_to_plan_ms"] = waits(begun_s, ended_s)
    figures["change_to_plan_after_ms"] = waits(ended_s, float("inf"))
    await _polls(stage)
    for words in (("plan", "lake"), ("explain", "lake"), ("table", "describe", "lake")):
        answer = await asyncio.to_thread(_command, url, *words)
        figures["neve " + " ".join(words[:-1])] = answer
    figures["gateway_peak_mb_after_all"] = _peak_mb(stage.gateway)


async def attach_and_plan(
    url: str, folder: Path, kind: str, given: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures of a table that is attached next to a busy native one."""
    catalogs = {CATALOG: {"type": "sql", **sqlite_properties(folder)}}
    ours, theirs = SPAWN.Pipe()
    SPAWN.Process(target=serve_gateway, args=(url, catalogs, theirs), daemon=True).start()
    gateway_url, gateway = await asyncio.to_thread(ours.recv)
    keyspace = RedisKeyspace(StoreSettings(url=url, timeout_s=60.0))
    store = connect(StoreSettings(url=url))
    many = await many_tablets(store, keyspace, NATIVE_TABLETS, analysis="stable")
    await keyspace.close()
    await store.close()
    planned, figures = Planned(many.table.id), dict[str, Any]()
    numbers = list(range(1, int(NATIVE_RATE * given.seconds) + 1))
    target = {kind: folder.as_uri() if kind == "delta" else f"{CATALOG}:{NAMESPACE}.{TABLE}"}
    client = Client(gateway_url, token=TOKEN, timeout_s=PATIENCE_S)
    async with coordinator(url, planned.hear, catalogs) as parts:
        while parts.full_scan.counts.scans < 1:
            await asyncio.sleep(0.1)
        begun_s = time.monotonic()
        dry = await asyncio.to_thread(partial(client.attach, "lake", **target, dry_run=True))
        figures["dry_run_s"], figures["dry_run_jobs"] = time.monotonic() - begun_s, dry.jobs
        changes, sender = SPAWN.Pipe(duplex=False)
        changing = (url, many.table.id, numbers, NATIVE_RATE, sender)
        SPAWN.Process(target=add_for_a_while, args=changing, daemon=True).start()
        stage = Stage(parts, client, gateway, planned, changes, figures)
        await _measure_stage(stage, given, gateway_url, target)
    ours.send("end")
    return figures


# -------------------------------------------------------------------------------------------- All


async def measure(folder: Path, kind: str, given: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    """Return the figures of one format, and its bars."""
    write = write_delta if kind == "delta" else write_iceberg
    sizes = {"few": FEW_FILES, "many": given.files}
    tables = {
        name: (str(folder / name), await _elsewhere(write, str(folder / name), files))
        for name, files in sizes.items()
    }
    figures: dict[str, Any] = {"load": os.getloadavg()[0], "files": given.files}
    bars = list[Bar]()
    if "attach" in given.parts:
        with running(append_only=False) as server:
            figures |= await attach_and_plan(server.url, folder / "many", kind, given)
        subject = f"{kind}, {given.files:,} files"
        bars += [
            Bar(
                f"{subject}: attach until the first plan",
                figures["attach_to_plan_s"],
                ATTACH_MAX_S,
                "s",
            ),
            Bar(
                f"{subject}: memory of the coordinator",
                figures["coordinator_peak_mb"],
                MEMORY_MAX_MB,
                "MB",
            ),
            Bar(
                f"{subject}: memory of the gateway", figures["gateway_peak_mb"], MEMORY_MAX_MB, "MB"
            ),
            Bar(
                f"{subject}: native change → plan meanwhile, p99",
                figures["change_to_plan_ms"]["p99"],
                CHANGE_MAX_MS,
                "ms",
            ),
            Bar(f"{subject}: a poll without news, p50", figures["poll_ms"], POLL_MAX_MS, "ms"),
        ]
    if "commit" in given.parts:
        for name, (path, present) in tables.items():
            commit = await _elsewhere(commit_jobs, kind, path, present)
            figures[f"commit_{name}_ms"] = commit
            title = f"{kind}, {sizes[name]:,} files: commit of a job of {INPUTS} files, p50"
            bars.append(Bar(title, commit["p50"], COMMIT_MAX_MS[name], "ms"))
    return figures, bars


def main() -> None:
    """Measure, and print the bars and all figures."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--files", type=int, default=100_000)
    options.add_argument("--format", choices=FORMATS, help="default: both")
    options.add_argument("--parts", default="attach,commit")
    options.add_argument("--seconds", type=float, default=60.0, help="of changes of a native table")
    options.add_argument("--json", type=Path, help="file that gets the figures, too")
    given = options.parse_args()
    shorten_thread_switches()
    figures, bars = dict[str, Any](), list[Bar]()
    for kind in [given.format] if given.format else FORMATS:
        with tempfile.TemporaryDirectory() as name:
            figures[kind], own = asyncio.run(measure(Path(name), kind, given))
        bars += own
    for bar in bars:
        print(bar.line)
    document = {"figures": figures, "bars": [asdict(bar) for bar in bars]}
    print(json.dumps(figures, indent=1, default=float))
    if given.json:
        given.json.write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    exit_on_sigterm()
    main()
