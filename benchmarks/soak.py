"""Does a process of the stack grow without a bound while it writes and compacts for an hour?

    make soak                  # SOAK_MINUTES=60 SOAK_FOLDER=build/soak

Writers append as long as few jobs wait; a user scans, asks for deletions, looks at every view, and
creates and drops tables. Twice a minute the memory of each kind of process and of Redis is
sampled. After WARM_UP_MINUTES a line is fitted to each series. A series that grows by more than
GROWTH_MAX_MB a minute, still does in the second half, and is above the bound that BOUNDS names for
it, fails the run.
"""

import json
import math
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import redis

from common.settings import Settings
from neve.client import Client
from neve.client.errors import NeveError
from neve.local import LocalStack, StackOptions
from neve.local.processes import exit_on_sigterm, processes_of_stack

COMPACTORS, SLOTS, WRITERS = 1, 2, 2
EXECUTOR_TASKS = 2
EXECUTOR_HEAP_MB = DRIVER_HEAP_MB = 512
JVM_MB = 400
"""Of a JVM besides its heap: code, classes, stacks, buffers."""
SAMPLE_S, WARM_UP_MINUTES, GROWTH_MAX_MB = 30.0, 10.0, 0.25
WAITING_MAX = 20
"""Jobs that run or wait while writers go on."""
KEYS, ROWS, BAG_ROWS_MAX = 20_000, 2_000, 1_000_000
MB = 1024**2
TABLE_SETTINGS = {"ratio": 2, "max_files": 6}


@dataclass(frozen=True, slots=True)
class Bound:
    """What a kind of process cannot exceed, and why."""

    mb: float
    reason: str


BOUNDS = {
    "CoordinatorActor": Bound(
        300, "up to 64 threads for storage, 1 MB each, start as they are needed and stay"
    ),
    "Spark driver": Bound(
        DRIVER_HEAP_MB + JVM_MB, "its JVM's heap (-Xmx) is filled before it is collected"
    ),
    "executor JVM": Bound(
        EXECUTOR_HEAP_MB + JVM_MB, "its heap (-Xmx) is filled before it is collected"
    ),
    "Spark tasks": Bound(
        EXECUTOR_TASKS * 1536, "a task above `compactor.task_memory_max` (1536 MB) is ended"
    ),
    "Redis": Bound(1024, "marks of calls and names of deleted files are kept for a day"),
    "Redis: used_memory": Bound(1024, "marks of calls and names of deleted files, for a day"),
    "Ray GCS": Bound(150, "it remembers TASK_EVENTS_MAX calls of actors"),
}

KINDS = (
    # The command lines of JVMs have the settings of their application.
    ("spark.api.python.PythonGatewayServer", "driver JVM"),
    ("compactor.spark.child", "Spark driver"),
    ("compactor.spark.task_daemon", "Spark tasks"),
    (f"-Xmx{EXECUTOR_HEAP_MB}M ", "executor JVM"),
    ("neve.local.supervisor", "supervisor"),
    ("common.readers.fork_server", "readers"),
    ("dashboard/dashboard.py", "Ray dashboard head"),
)
"""What a command line holds → kind of process; the first one counts."""
PROGRAMS = {"valkey-server": "Redis", "redis-server": "Redis", "gcs_server": "Ray GCS"}
"""Other programs → kind of process."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How one series grew after the warm-up."""

    name: str
    first_mb: float
    last_mb: float
    a_minute_mb: float
    late_a_minute_mb: float
    """In the second half."""
    processes: float
    """Most at a time."""

    def fault(self) -> str:
        """Return what is wrong with it, or nothing."""
        if min(self.a_minute_mb, self.late_a_minute_mb) <= GROWTH_MAX_MB:
            return ""
        bound = BOUNDS.get(self.name)
        if bound is not None and self.last_mb <= bound.mb:
            return ""
        limit = "it has no known bound" if bound is None else f"its bound is {bound.mb:.0f} MB"
        return f"{self.name} grows by {self.a_minute_mb:.2f} MB a minute; {limit}"


class Load:
    """Everything that is done to the stack, in threads, until `close`."""

    def __init__(self, connect: Callable[[], Client], folder: Path) -> None:
        self.counts: dict[str, int] = defaultdict(int)
        self._connect, self._folder, self._over = connect, folder, threading.Event()
        client = connect()
        for name in ("keyed", "bag"):
            self._create(client, name)
        acts: list[tuple[Callable[[Client, int], None], float]] = [
            *[(self._write, 0.0)] * WRITERS,
            (self._read, 5.0),
            (self._delete, 30.0),
            (self._make_and_drop, 60.0),
        ]
        self._threads = [
            threading.Thread(target=self._repeat, args=act, daemon=True) for act in acts
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End after what is under way."""
        self._over.set()
        for thread in self._threads:
            thread.join(timeout=120)

    def _repeat(self, act: Callable[[Client, int], None], pause_s: float) -> None:
        client, number = self._connect(), 0
        while not self._over.is_set():
            number += 1
            try:
                act(client, number)
            except NeveError as error:
                self.counts[f"error: {type(error).__name__}"] += 1
                print(f"soak: {error}", flush=True)
                self._over.wait(1.0)
            self._over.wait(pause_s)

    def _create(self, client: Client, name: str) -> None:
        (self._folder / name).mkdir()
        keyed = {} if name == "bag" else {"key": ["k"], "version_column": "v"}
        schema = rows(1, 0).schema
        place = (self._folder / name).as_uri()
        client.create_table(name, place, schema=schema, settings=TABLE_SETTINGS, **keyed)

    def _write(self, client: Client, number: int) -> None:
        if number % 10 == 0:
            while not self._over.wait(0.1) and is_behind(client):
                self.counts["waits of writers"] += 1
        client.append("keyed" if number % 2 else "bag", rows(ROWS, number))
        self.counts["appends"] += 1

    def _read(self, client: Client, number: int) -> None:
        table = "keyed" if number % 2 else "bag"
        self.counts["rows read"] += client.scan(table).num_rows
        client.status(), client.queue(), client.backlog(), client.explain(table)
        client.history(table), client.plan(table), client.manifest(table)
        self.counts["reads"] += 1

    def _delete(self, client: Client, number: int) -> None:
        """Keep the bag small: what is rewritten for ever would only slow the jobs down."""
        client.compact("bag", delete_where=f"v < {self.counts['appends'] // WRITERS - 100}")
        self.counts["requests"] += 1

    def _make_and_drop(self, client: Client, number: int) -> None:
        name = f"side-{number}"
        self._create(client, name)
        for step in range(4):
            client.append(name, rows(100, step))
        client.drop(name, delete_files=True)
        self.counts["tables dropped"] += 1


def rows(count: int, version: int) -> pa.Table:
    """Return random rows of a version."""
    chance = np.random.default_rng(version)
    keys = chance.choice(KEYS, count, replace=False)
    text = [f"{number:032x}" for number in chance.integers(0, 2**62, count)]
    return pa.table({"k": keys, "v": np.full(count, version), "text": text})


def is_behind(client: Client) -> bool:
    """Return whether jobs or deletions wait: the tables must not grow with the time."""
    jobs = sum(group.queued + group.running for group in client.groups())
    return jobs > WAITING_MAX or (client.describe("bag").rows or 0) > BAG_ROWS_MAX


def sample(stack: LocalStack) -> tuple[dict[str, float], dict[str, int]]:
    """Return resident MB and number of processes by kind, and Redis's own figure."""
    memory: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for process in processes_of_stack(stack.state.mark, stack.state.processes):
        with suppress(psutil.Error):
            kind = kind_of(process)
            memory[kind] += process.memory_info().rss / MB
            count[kind] += 1
    with redis.Redis.from_url(stack.redis_url) as store:
        memory["Redis: used_memory"] = store.info("memory")["used_memory"] / MB
        count["Redis: used_memory"] = 1
    return memory, count


def kind_of(process: psutil.Process) -> str:
    """Return the kind of a process by its command line."""
    words = process.cmdline() or [process.name()]
    if words[0].startswith("ray::"):
        return words[0].split(".")[0].split("(")[0].removeprefix("ray::").strip()
    line = " ".join(words)
    name = Path(words[0]).name
    return next((kind for part, kind in KINDS if part in line), PROGRAMS.get(name, name))


def growth(samples: list[dict[str, float]], counts: list[dict[str, int]]) -> Iterator[Growth]:
    """Yield how each series grew; `minute` is when a sample was taken."""
    late = samples[len(samples) // 2 :]
    for name in sorted({name for sample in samples for name in sample} - {"minute"}):
        values = [sample.get(name, 0.0) for sample in samples]
        tenth = max(1, len(values) // 10)
        yield Growth(
            name=name,
            first_mb=float(np.median(values[:tenth])),
            last_mb=float(np.median(values[-tenth:])),
            a_minute_mb=slope(samples, name),
            late_a_minute_mb=slope(late, name),
            processes=max(count.get(name, 0) for count in counts),
        )


def slope(samples: list[dict[str, float]], name: str) -> float:
    """Return MB a minute of the line that fits best."""
    minutes = np.array([sample["minute"] for sample in samples])
    values = np.array([sample.get(name, 0.0) for sample in samples])
    return float(np.polyfit(minutes, values, 1)[0]) if len(samples) > 2 else 0.0


def warm_up_minutes(minutes: float) -> float:
    """Return how much of a run is not counted: less of a short one."""
    return min(WARM_UP_MINUTES, minutes / 4)


def report(found: list[Growth], done: dict[str, int], minutes: float) -> Iterator[str]:
    """Yield the lines of the report, as a table of Markdown."""
    yield f"{minutes:.0f} minutes, the first {warm_up_minutes(minutes):g} of them not counted:"
    yield ", ".join(f"{count:,} {what}" for what, count in sorted(done.items()))
    yield ""
    yield "| process | count | MB then | MB in the end | MB a minute | in the second half |"
    yield "|---|---|---|---|---|---|"
    for series in found:
        yield (
            f"| {series.name} | {series.processes} | {series.first_mb:.0f} | {series.last_mb:.0f} |"
            f" {series.a_minute_mb:+.2f} | {series.late_a_minute_mb:+.2f} |"
        )
    for name, bound in BOUNDS.items():
        yield f"Bound of {name}: {bound.mb:.0f} MB, {bound.reason}."


def options() -> StackOptions:
    """Return a small stack whose heaps are known."""
    usual = Settings()
    compactor = replace(
        usual.compactor,
        slots=SLOTS,
        executor_memory=f"{EXECUTOR_HEAP_MB}m",
        driver_memory=f"{DRIVER_HEAP_MB}m",
    )
    coordinator = replace(usual.coordinator, garbage_grace_s=120.0)
    # Another stack of this machine may have the usual port.
    gateway = replace(usual.gateway, port=0)
    settings = replace(usual, compactor=compactor, coordinator=coordinator, gateway=gateway)
    return StackOptions(settings=settings, compactors=COMPACTORS)


def soak(minutes: float, folder: Path) -> int:
    """Run a stack so long; return 1 if something grows."""
    samples: list[dict[str, float]] = []
    counts: list[dict[str, int]] = []
    log = folder / "samples.jsonl"
    log.write_text("", "utf-8")
    with tempfile.TemporaryDirectory(prefix="neve-soak-") as scratch:
        home, tables = Path(scratch) / "home", Path(scratch) / "tables"
        home.mkdir(), tables.mkdir()
        with LocalStack.start(home=home, options=options()) as stack:
            load = Load(lambda: Client(stack.gateway_url, token=stack.token), tables)
            began_s = time.monotonic()
            while (minute := (time.monotonic() - began_s) / 60) < minutes:
                memory, count = sample(stack)
                samples.append({"minute": minute, **memory})
                counts.append(count)
                with log.open("a") as file:
                    line = {"minute": round(minute, 2), "mb": memory, "count": count}
                    file.write(json.dumps({**line, "done": load.counts}) + "\n")
                time.sleep(SAMPLE_S)
            load.close()
            client = Client(stack.gateway_url, token=stack.token)
            load.counts["jobs done"] = client.status().committed
    begin = sum(sample["minute"] < warm_up_minutes(minutes) for sample in samples)
    found = list(growth(samples[begin:], counts[begin:]))
    return conclude(found, report(found, load.counts, minutes), folder)


def conclude(found: list[Growth], lines: Iterator[str], folder: Path) -> int:
    """Print and keep the report; return 1 if something grows."""
    faults = [fault for series in found if (fault := series.fault())]
    text = "\n".join([*lines, *faults])
    (folder / "report.md").write_text(text + "\n", "utf-8")
    print(text)
    return 1 if faults else 0


def main() -> int:
    """Read the environment and run."""
    exit_on_sigterm()
    text = os.environ.get("SOAK_MINUTES") or "60"
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 < minutes < math.inf:
        sys.exit(f"SOAK_MINUTES is {text!r}, expected a positive number of minutes")
    folder = Path(os.environ.get("SOAK_FOLDER") or "build/soak").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return soak(minutes, folder)


if __name__ == "__main__":
    sys.exit(main())
