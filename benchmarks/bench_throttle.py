"""Do rewrites keep to a limit? Bytes per second over a minute, with 1, 2 and 4 jobs at a time.

    python -m benchmarks.bench_throttle [--jobs 1 2 4] [--limit 8MB] [--seconds 60] [--keyed]
        [--engine local]

Starts a whole stack with one compactor of four slots. Each round has as many tables as
jobs, all resumed at once; what the service says has moved is read at heartbeats, from the
moment at which every job is under way. Append-only tables are stitched; with `--keyed`
rows are merged. Also told: bytes of files in and out of all commits of the round, against
the limit times the time from the first job's beginning to the last one's end.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import neve
from common.settings import Settings
from common.units import format_bytes, parse_size_bytes
from neve.local import LocalStack, StackOptions
from neve.local.processes import exit_on_sigterm

FILES, SLOTS = 10, 4
ROW_BYTES, GROUP_ROWS = 64, 32_768
RAMP_S = 10.0
"""Until grants have settled after the jobs have begun."""
PATIENCE_S = 600.0
POLL_S = 0.05
GROUP = "default"


def main() -> None:
    """Measure and print."""
    exit_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--limit", default="8MB")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--keyed", action="store_true")
    parser.add_argument("--engine", default="raydp", choices=["raydp", "local"])
    wanted = parser.parse_args()
    limit = parse_size_bytes(wanted.limit)
    settings = Settings()
    # A task that waits keeps its core, so that each job wants one.
    compactor = replace(
        settings.compactor,
        slots=SLOTS,
        executor_cores=SLOTS,
        engine=wanted.engine,
        start_timeout_s=PATIENCE_S,
    )
    settings = replace(settings, compactor=compactor)
    with tempfile.TemporaryDirectory(prefix="neve-throttle-") as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        options = StackOptions(settings=settings)
        with LocalStack.start(home=home, options=options, compactors=1) as stack:
            client = neve.Client(stack.gateway_url, token=stack.token)
            client.limit_group(GROUP, limit)
            for jobs in wanted.jobs:
                names = _tables(client, Path(scratch), jobs, wanted, limit)
                _round(client, names, wanted.seconds, limit)


def _tables(
    client: neve.Client, scratch: Path, jobs: int, wanted: argparse.Namespace, limit: int
) -> list[str]:
    """Make as many paused tables as jobs, with enough to do for all of the time."""
    size_bytes = int(limit * (wanted.seconds + 2.5 * RAMP_S) / 2 / jobs / FILES)
    return [_table(client, scratch, f"t{jobs}-{n}", size_bytes, wanted.keyed) for n in range(jobs)]


def _table(client: neve.Client, scratch: Path, name: str, size_bytes: int, keyed: bool) -> str:
    folder = scratch / name
    folder.mkdir()
    paths = [_write(folder, number, size_bytes) for number in range(FILES)]
    columns: dict[str, Any] = {"key": ["key"], "version_column": "version"} if keyed else {}
    client.create_table(
        name,
        folder.as_uri(),
        example=str(folder / paths[0]),
        settings={"row_group_bytes": "4MB", "target_bytes": "8GB"},
        paused=True,
        **columns,
    )
    client.add_files(name, paths)
    return name


def _write(folder: Path, number: int, size_bytes: int) -> str:
    """Write rows that no codec makes smaller; keys of all files overlap."""
    chance = np.random.default_rng(number)
    rows = max(1000, size_bytes // (ROW_BYTES + 16))
    noise = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(ROW_BYTES), rows, [None, pa.py_buffer(chance.bytes(rows * ROW_BYTES))]
    )
    table = pa.table(
        {
            "key": np.sort(chance.choice(50 * rows, rows, replace=False)),
            "version": np.full(rows, number),
            "noise": noise.cast(pa.binary()),
        }
    )
    path = f"{number}.parquet"
    pq.write_table(table, folder / path, compression="zstd", row_group_size=GROUP_ROWS)
    return path


def _round(client: neve.Client, names: Sequence[str], seconds: float, limit: int) -> None:
    """Let the jobs run, and print how fast they were together."""
    for name in names:
        client.resume(name)
    _until(lambda: len(_busy(client)) == len(names), "all jobs to be under way")
    time.sleep(RAMP_S)
    first_s, first = _at_heartbeat(client)
    last_s, last = first_s, first
    while last_s - first_s < seconds:
        last_s, last = _at_heartbeat(client)
    busy = _busy(client)
    granted = " + ".join(format_bytes(each.granted_bytes_s or 0) for each in busy)
    _until(lambda: all(client.history(name) for name in names), "all jobs to be committed")
    done = [client.history(name)[0] for name in names]
    stored = sum(each.bytes_in + each.bytes_out for each in done)
    took_s = max(each.ended_s for each in done) - min(each.started_s for each in done)
    ratio = (last - first) / (last_s - first_s) / limit
    print(
        f"{len(names)} jobs  limit {format_bytes(limit)}/s  moved/limit {ratio:.3f} over "
        f"{last_s - first_s:.1f} s   granted {granted}/s   still running {len(busy)}\n"
        f"        files in and out {format_bytes(stored)} in {took_s:.1f} s: "
        f"{stored / took_s / limit:.3f} of the limit, beginning and end included",
        flush=True,
    )


def _busy(client: neve.Client) -> list[Any]:
    return [job for job in client.jobs() if job.state == "rewriting"]


def _at_heartbeat(client: neve.Client) -> tuple[float, int]:
    """Return the time at which news of moved bytes came, and how many there were."""
    before = _moved(client)
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := _moved(client)) == before:
        if time.monotonic() > deadline_s:
            raise TimeoutError("nothing moves any more")
        time.sleep(POLL_S)
    return time.monotonic(), found


def _moved(client: neve.Client) -> int:
    return sum(
        limit.moved_bytes
        for limit in client.limits()
        if (limit.kind, limit.name) == ("group", GROUP)
    )


def _until(true: Any, what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
