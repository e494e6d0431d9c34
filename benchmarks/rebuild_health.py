"""Does the gateway answer while it rebuilds a large table, and how slow is its slowest answer?

    python -m benchmarks.rebuild_health [--tablets N]

A real gateway on a real Redis, in a process of its own. The table has ten files a tablet: the
output of a job and nine files of users, which are hard links of one small Parquet file. From the
call to its answer, `/healthz` is asked ten times a second. Exit code 1: an answer took more than a
second.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from common.model.table import Table, TableSettings
from common.model.tablet import TabletId
from common.parquet.location import open_location
from common.parquet.service_files import write_description
from common.rows.schema import columns_of
from neve.local.processes import exit_on_sigterm
from tests.fuzz.stage import Stage
from tests.support.recovery import key

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
LINKS, STEP = 9, 16
ASK_S, ANSWER_MAX_S, PATIENCE_S = 0.1, 1.0, 3600.0
MIB = 1024**2


@dataclass(slots=True)
class Health:
    """Asks `/healthz` in a thread, until it is closed."""

    url: str
    pid: int
    waits: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since the beginning, and how long the answer took."""
    memory_bytes: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        gateway, began_s = psutil.Process(self.pid), time.monotonic()
        with httpx.Client(base_url=self.url, timeout=PATIENCE_S) as client:
            while not self._over.wait(ASK_S):
                asked_s = time.monotonic()
                client.get("/healthz").raise_for_status()
                self.waits.append((asked_s - began_s, time.monotonic() - asked_s))
                self.memory_bytes = max(self.memory_bytes, gateway.memory_info().rss)

    def close(self) -> None:
        self._over.set()


def write_table(folder: Path, tablets: int) -> None:
    """Write a description, and ten files for each tablet."""
    table = Table(
        id="t-large",
        name="large",
        location=folder.as_uri(),
        schema=columns_of(SCHEMA),
        key=("id",),
        version_column="v",
        settings=TableSettings(ratio=5.0),
    )
    folder.mkdir(parents=True)
    write_description(open_location(table.location), table)
    for number in range(tablets):
        _write_tablet(folder, number)


def _write_tablet(folder: Path, number: int) -> None:
    first = STEP * number
    tablet = TabletId("", key(first + STEP - 1)).text
    ours = folder / "_neve" / tablet
    ours.mkdir(parents=True)
    path = f"_neve/{tablet}/job-j{number:08x}-att-{number:08x}-0.parquet"
    metadata = {
        "format": "1",
        "table": "t-large",
        "tablet": tablet,
        "job": f"j{number:08x}",
        "attempt": f"att-{number:08x}",
        "inputs": json.dumps([f"in/{number:08x}-{part}.parquet" for part in range(4)]),
        "outputs": json.dumps([path]),
        "purge": number.to_bytes(9, "big").hex(),
    }
    rows = pa.table({"id": [first, first + STEP - 1], "v": [1, 1]}, SCHEMA)
    marked = rows.replace_schema_metadata({f"neve.{name}": text for name, text in metadata.items()})
    pq.write_table(marked, folder / path)
    theirs = folder / f"added-{number // 100:06d}"
    theirs.mkdir(exist_ok=True)
    plain = theirs / f"{number:08x}-0.parquet"
    pq.write_table(rows, plain)
    for link in range(1, LINKS):
        os.link(plain, theirs / f"{number:08x}-{link}.parquet")


def measure(tablets: int) -> int:
    """Rebuild a table of so many tablets; return 1 if an answer was too slow."""
    with tempfile.TemporaryDirectory(prefix="neve-rebuild-") as scratch:
        stage = Stage(Path(scratch).resolve(), roles=("coordinator", "gateway"))
        with stage.open():
            place = stage.folder / "tables" / "large"
            began_s = time.monotonic()
            write_table(place, tablets)
            print(
                f"{10 * tablets:,} files written in {time.monotonic() - began_s:.0f} s", flush=True
            )
            health = Health(stage.url, stage.pids()["gateway"])
            asking = threading.Thread(target=health.ask)
            asking.start()
            began_s = time.monotonic()
            try:
                with stage.client() as client:
                    hear = partial(_show, began_s)
                    done = client.rebuild(str(place), "large", progress=hear)
            finally:
                health.close()
                asking.join()
            took_s = time.monotonic() - began_s
            print(f"rebuilt in {took_s:.0f} s: {done.files:,} files in {done.tablets:,} tablets")
    return report(health)


def _show(began_s: float, line: str) -> None:
    print(f"{time.monotonic() - began_s:6.1f} s  {line}", flush=True)


def report(health: Health) -> int:
    """Print the slowest answers; return 1 if one was too slow."""
    slowest = sorted(health.waits, key=lambda each: each[1], reverse=True)[:5]
    print(f"{len(health.waits):,} answers of /healthz; the slowest:")
    for at_s, wait_s in slowest:
        print(f"    {1000 * wait_s:.0f} ms, asked {at_s:.0f} s after the call")
    print(f"memory of the gateway at its highest: {health.memory_bytes / MIB:,.0f} MiB")
    return 1 if slowest[0][1] > ANSWER_MAX_S else 0


if __name__ == "__main__":
    exit_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tablets", type=int, default=10_000)
    sys.exit(measure(parser.parse_args().tablets))
