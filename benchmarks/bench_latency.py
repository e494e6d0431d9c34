"""How soon are ten small files one? From the call of `add` to running, and to committed.

    python -m benchmarks.bench_latency [--rounds N] [--append-only]

Starts a whole stack: Redis, Ray, RayDP, gateway, coordinator, one compactor, warmed by a
few rounds. Every round has a table of its own, so that each adds ten files of about
64 KiB to an empty tablet and sees exactly one job. Clocks: this process's and Redis's, on
one machine.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import neve
from neve.local import LocalStack, StackOptions
from neve.local.processes import exit_on_sigterm

FILES, ROWS = 10, 2_600
WARM_ROUNDS = 3
PATIENCE_S = 120.0
SETTLED_S = 3.0
"""New tables are known to the coordinator by then; the first change of one waits for it."""
ADDED_MS_GOAL, COMMITTED_MS_GOAL = 150, 1_000


def main() -> None:
    """Measure and print."""
    exit_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--append-only", action="store_true")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="neve-latency-") as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        with LocalStack.start(home=home, options=StackOptions(), compactors=1) as stack:
            client = neve.Client(stack.gateway_url, token=stack.token)
            count = WARM_ROUNDS + wanted.rounds
            made = [_table(client, Path(scratch), n, not wanted.append_only) for n in range(count)]
            time.sleep(SETTLED_S)
            waits = [_round(client, name, paths) for name, paths in made]
    kept = waits[WARM_ROUNDS:]
    _show("added to running", [running for running, _ in kept], ADDED_MS_GOAL)
    _show("added to committed", [committed for _, committed in kept], COMMITTED_MS_GOAL)


def _table(client: neve.Client, scratch: Path, number: int, keyed: bool) -> tuple[str, list[str]]:
    """Make a table and the files that will be added to it; return its name and their paths."""
    name = f"latency-{number}"
    folder = scratch / name
    folder.mkdir()
    paths = [_write(folder, number, at) for at in range(FILES)]
    columns: dict[str, Any] = {"key": ["key"], "version_column": "version"} if keyed else {}
    client.create_table(name, folder.as_uri(), example=str(folder / paths[0]), **columns)
    return name, paths


def _round(client: neve.Client, name: str, paths: list[str]) -> tuple[float, float]:
    """Return seconds from the call of `add` to running and to committed."""
    begun_s = time.time()
    client.add_files(name, paths)
    deadline_s = begun_s + PATIENCE_S
    while not (history := client.history(name)):
        if time.time() > deadline_s:
            raise TimeoutError(f"nothing was committed in {PATIENCE_S:.0f} s")
        time.sleep(0.02)
    (job,) = history
    if job.end != "committed" or len(job.inputs) != FILES:
        raise RuntimeError(f"expected one commit of {FILES} files, found {job}")
    return job.started_s - begun_s, job.ended_s - begun_s


def _write(folder: Path, number: int, at: int) -> str:
    chance = np.random.default_rng((number, at))
    rows = pa.table(
        {
            "key": np.sort(chance.choice(1_000_000, ROWS, replace=False)),
            "version": np.full(ROWS, at),
            "amount": chance.random(ROWS),
            "text": [chance.bytes(8).hex() for _ in range(ROWS)],
        }
    )
    path = f"{at}.parquet"
    pq.write_table(rows, folder / path, compression="zstd")
    return path


def _show(what: str, seconds: list[float], goal_ms: int) -> None:
    ordered = sorted(seconds)
    p50, p95 = statistics.median(ordered), ordered[int(0.95 * (len(ordered) - 1))]
    print(
        f"{what:20} p50 {p50 * 1e3:5.0f} ms (goal {goal_ms})   p95 {p95 * 1e3:5.0f} ms   "
        f"min {ordered[0] * 1e3:5.0f} ms   n = {len(ordered)}"
    )


if __name__ == "__main__":
    main()
