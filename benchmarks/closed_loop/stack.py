"""A stack of two compactors of two slots under a controller, with a writer and a reader.

The rewrites of all compactors may move `THROTTLE_BYTES_S` together, which a fraction of one core
does: so storage is the limit, and not the machine. How busy the machine was is told with each
sample.
"""

import csv
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

import neve
from benchmarks.closed_loop.schedule import Phase, name_at, part_at
from common.control_settings import ControlSettings
from common.settings import Settings
from neve.client import Client
from neve.local import LocalStack, StackOptions

COMPACTORS, SLOTS = 2, 2
TABLES = ("t0", "t1")
VALUES = 1024
FILE_ROWS = 100_000
FILE_BYTES = FILE_ROWS * 10 // 8
"""Of a file, but for a few hundred bytes: numbers below `VALUES` take ten bits, in small files and
in large ones alike. Numbers that are all different would take a quarter more in small files."""
THROTTLE_BYTES_S = 2 * 1024**2
"""What rewrites may read and write per second, all together."""
READ_TABLE, READ_BYTES = "read", 8 * 1024**2
READ_EVERY_S = 0.5
STEP_S = 1.0
PLANNER = {
    "planner": "bin-pack",
    "planner_options": "min_input_files=10,max_wait=1h",
}
# A job takes 10 to 12 files, and what it writes is one file: no rest is rewritten again.
SETTINGS = {"target_bytes": "1600KB", "max_files": 12, "file_limit": 0, "codec": "none"}
CONTROL = ControlSettings(
    period_s=1.0,
    bytes_s_max=THROTTLE_BYTES_S,
    bytes_s_min=256 * 1024,
    foreground_limit_s=0.5,
    memory_bytes=512 * 1024,
)
OPTIONS = {"drain-time": ("goal=15s",)}
"""Of controllers that have any here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A moment."""

    at_s: float
    phase: str
    arrived_bytes: int
    backlog_bytes: float
    system_shares: float
    slots: int
    busy_slots: int
    bytes_s: float
    """What rewrites may move; 0: no limit."""
    moved_bytes: int
    """By rewrites since the start."""
    scans: int
    """Since the start."""
    scan_s: float
    """Seconds of all scans since the start."""
    machine: float
    """Part of all cores that was busy since the last sample, with whatever else ran there."""


@contextmanager
def running(controller: str, engine: str) -> Iterator[Client]:
    """Run a stack with its tables for a while."""
    settings = Settings()
    compactor = replace(settings.compactor, slots=SLOTS, executor_memory="512m", engine=engine)
    control = replace(CONTROL, controller=controller, options=OPTIONS.get(controller, ()))
    settings = replace(settings, compactor=compactor, control=control)
    with tempfile.TemporaryDirectory(prefix="neve-closed-loop-") as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        options = StackOptions(settings=settings)
        with LocalStack.start(home=home, options=options, compactors=COMPACTORS) as stack:
            client = neve.Client(stack.gateway_url, token=stack.token)
            for name in (*TABLES, READ_TABLE):
                _create(client, Path(scratch) / name)
            client.append(READ_TABLE, pa.table({"n": np.arange(READ_BYTES // 8)}))
            yield client


def _create(client: Client, folder: Path) -> None:
    folder.mkdir()
    schema = pa.schema([("n", pa.int64())])
    paused = folder.name == READ_TABLE
    settings = {**SETTINGS, **PLANNER}
    client.create_table(
        folder.name, folder.as_uri(), schema=schema, settings=settings, paused=paused
    )


class Repeated:
    """Something that is done again and again in a thread of its own, until this is closed."""

    def __init__(self, act: Callable[[], object], every_s: float) -> None:
        """Begin at once; `every_s` lies between the beginnings of two acts at least."""
        self._act, self._every_s = act, every_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after the present act."""
        self._ends.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while not self._ends.is_set():
            begun_s = time.monotonic()
            self._act()
            self._ends.wait(max(0.0, begun_s + self._every_s - time.monotonic()))


class Reader:
    """Scans a table that is never compacted, and reports how long that took."""

    def __init__(self, client: Client) -> None:
        """Have read nothing yet."""
        self.scans, self.scan_s = 0, 0.0
        self._client = client

    def read(self) -> None:
        """Scan once."""
        begun_s = time.monotonic()
        rows = self._client.scan(READ_TABLE).num_rows
        lasted_s = time.monotonic() - begun_s
        assert rows == READ_BYTES // 8, rows
        self._client.report_latency(READ_TABLE, lasted_s)
        self.scans, self.scan_s = self.scans + 1, self.scan_s + lasted_s


class Writer:
    """Appends files to tables in turn."""

    def __init__(self, client: Client) -> None:
        """Have written nothing yet."""
        self.files = self.arrived_bytes = 0
        """As they are stored."""
        self._client = client
        self._chance = np.random.default_rng(1)

    def write(self, files: int) -> None:
        """Append so many files."""
        for _ in range(files):
            numbers = self._chance.integers(0, VALUES, FILE_ROWS)
            name = TABLES[self.files % len(TABLES)]
            self.arrived_bytes += self._client.append(name, pa.table({"n": numbers})).size_bytes
            self.files += 1


class Arrivals:
    """Lets a writer follow the phases. `since_s` is when the first one began."""

    def __init__(self, writer: Writer, plan: list[Phase], files_s: float) -> None:
        """Owe nothing yet; `files_s` arrive at the whole capacity."""
        self.since_s = time.monotonic()
        self._writer, self._plan, self._files_s = writer, plan, files_s
        self._owed, self._seen_s = 0.0, 0.0

    def go_on(self) -> None:
        """Write what has become due, in whole files."""
        now_s = time.monotonic() - self.since_s
        passed_s, self._seen_s = now_s - self._seen_s, now_s
        self._owed += part_at(self._plan, now_s) * self._files_s * passed_s
        files = int(self._owed)
        self._owed -= files
        self._writer.write(files)


def samples(client: Client, plan: list[Phase], files_s: float) -> Iterator[Sample]:
    """Yield a sample a second over all phases.

    Args:
        client: Of the stack.
        plan: The phases.
        files_s: That arrive at the whole capacity, per second.
    """
    writer, reader = Writer(client), Reader(client)
    arrivals = Arrivals(writer, plan, files_s)
    reads = Repeated(reader.read, READ_EVERY_S)
    writes = Repeated(arrivals.go_on, 0.1)
    try:
        psutil.cpu_percent()
        while (at_s := time.monotonic() - arrivals.since_s) < plan[-1].end_s:
            yield _sample(client, at_s, name_at(plan, at_s), writer, reader)
            time.sleep(max(0.0, at_s + STEP_S - (time.monotonic() - arrivals.since_s)))
    finally:
        writes.close()
        reads.close()


def _sample(client: Client, at_s: float, phase: str, writer: Writer, reader: Reader) -> Sample:
    found = client.control()
    shares = {class_.name: class_.shares for class_ in found.classes}
    return Sample(
        at_s=round(at_s, 2),
        phase=phase,
        arrived_bytes=writer.arrived_bytes,
        backlog_bytes=found.backlog_bytes,
        system_shares=round(shares["system"], 1),
        slots=found.slots or 0,
        busy_slots=found.busy_slots,
        bytes_s=round(found.bytes_s or 0.0),
        moved_bytes=moved_bytes(client),
        scans=reader.scans,
        scan_s=round(reader.scan_s, 3),
        machine=psutil.cpu_percent() / 100,
    )


def moved_bytes(client: Client) -> int:
    """Return what rewrites have read and written since the start."""
    return sum(limit.moved_bytes for limit in client.limits() if limit.kind == "control")


def write_samples(path: Path, found: Sequence[Sample]) -> None:
    """Write samples as CSV."""
    with path.open("w", newline="") as file:
        lines = csv.DictWriter(file, [field.name for field in fields(Sample)], lineterminator="\n")
        lines.writeheader()
        lines.writerows(asdict(each) for each in found)


def read_samples(path: Path) -> list[Sample]:
    """Return samples of a file that `write_samples` has written."""
    kinds = {field.name: field.type for field in fields(Sample)}
    with path.open(newline="") as file:
        return [
            Sample(**{name: kinds[name](text) for name, text in line.items()})
            for line in csv.DictReader(file)
        ]
