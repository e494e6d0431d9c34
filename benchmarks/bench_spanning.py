"""One large job: an executor on one node, beside two executors on two nodes.

    python -m benchmarks.bench_spanning [--megabytes 512] [--rounds 3] [--cores 2]

Starts a whole stack and two more Ray nodes on this machine, each of which offers one executor. The
same files are merged into one by a compactor with one executor beside it, and by one whose two
executors are on the two nodes, in turn. Told of each job: how long its attempt took, bytes and
rows. All nodes share the cores and the disk of this machine, and its network is its memory.
"""

import argparse
import secrets
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import neve
from common.config import load_settings
from common.units import format_bytes
from neve.api import Finished
from neve.local import LocalStack, StackOptions
from neve.local.processes import exit_on_sigterm
from tests.support.plain_node import plain_node

FILES, ROW_BYTES = 8, 64
EXECUTOR_RESOURCE = "neve_executors"
WAYS = {"one": "one executor, one node", "two": "two executors, two nodes"}
PATIENCE_S = 900.0
SETTINGS = """
[compactor]
slots = 1
start_timeout_s = 600
scratch = "{scratch}"
spark_secret_file = "{secret}"
[groups.one]
compactors = 1
cores = {cores}
memory = "1g"
[groups.two]
compactors = {{ min = 0, max = 1 }}
cores = {cores}
memory = "1g"
executors = 2
executor_resource = "{resource}"
[services.one]
planner = "ratio"
groups = [{{ group = "one" }}]
[services.two]
planner = "ratio"
groups = [{{ group = "two" }}]
"""


def main() -> None:
    """Measure and print."""
    exit_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2, help="of each executor")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="neve-spanning-") as text, ExitStack() as nodes:
        folder = Path(text)
        paths = _inputs(folder / "inputs", (wanted.megabytes << 20) // FILES)
        options = replace(_options(folder, wanted.cores), allow=(str(folder),))
        (folder / "home").mkdir()
        with LocalStack.start(home=folder / "home", options=options) as stack:
            for _ in range(2):
                offers = {EXECUTOR_RESOURCE: 1.0}
                room = {"cpus": wanted.cores, "memory_bytes": 8 << 30}
                nodes.enter_context(plain_node(stack, offers, java=True, **room))
            client = neve.Client(stack.gateway_url, token=stack.token)
            for way in WAYS:  # What is slow once: Spark's start, and its first job.
                _job(client, folder / f"warm-{way}", paths[:2], way)
            jobs: dict[str, list[Finished]] = {way: [] for way in WAYS}
            for number in range(wanted.rounds):
                for way, done in jobs.items():
                    done.append(_job(client, folder / f"{way}-{number}", paths, way))
                    _tell(way, done[-1])
            nodes.close()
    medians = {way: statistics.median(map(_took_s, done)) for way, done in jobs.items()}
    print(f"one/two: {medians['one'] / medians['two']:.2f} (medians of {wanted.rounds})")


def _options(folder: Path, cores: int) -> StackOptions:
    secret = folder / "jvm.options"
    secret.write_text(f"-Dspark.authenticate.secret={secrets.token_hex(32)}\n")
    file = folder / "neve.toml"
    file.write_text(
        SETTINGS.format(
            scratch=folder / "scratch", secret=secret, cores=cores, resource=EXECUTOR_RESOURCE
        )
    )
    return StackOptions(settings=load_settings(file, environ={}))


def _inputs(folder: Path, size_bytes: int) -> list[Path]:
    """Write files whose keys overlap, with rows that no codec makes smaller."""
    folder.mkdir()
    rows = size_bytes // (ROW_BYTES + 12)
    paths = []
    for number in range(FILES):
        chance = np.random.default_rng(number)
        noise = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(ROW_BYTES), rows, [None, pa.py_buffer(chance.bytes(rows * ROW_BYTES))]
        )
        table = pa.table(
            {
                "key": np.sort(chance.choice(4 * rows, rows, replace=False)),
                "version": np.full(rows, number),
                "noise": noise.cast(pa.binary()),
            }
        )
        paths.append(folder / f"{number}.parquet")
        pq.write_table(table, paths[-1], compression="zstd", row_group_size=1 << 17)
    return paths


def _job(client: neve.Client, folder: Path, paths: Sequence[Path], way: str) -> Finished:
    """Have copies of the files merged in one job; return what became of it."""
    folder.mkdir()
    for path in paths:
        shutil.copy(path, folder)
    client.create_table(
        folder.name,
        folder.as_uri(),
        example=str(folder / paths[0].name),
        key=["key"],
        version_column="version",
        settings={"service": way, "target_bytes": "8GB"},
        paused=True,
    )
    client.add_files(folder.name, [path.name for path in paths])
    # The request has its files before the planner may take some of them.
    request = client.compact(folder.name)
    client.resume(folder.name)
    request.wait(timeout_s=PATIENCE_S)
    job = max(client.history(folder.name), key=lambda each: each.bytes_in)
    assert len(job.inputs) == len(paths), f"{len(job.inputs)} of {len(paths)} files in one job"
    client.drop(folder.name, delete_files=True)
    return job


def _took_s(job: Finished) -> float:
    return job.ended_s - job.started_s


def _tell(way: str, job: Finished) -> None:
    took_s = _took_s(job)
    print(
        f"{WAYS[way]:26} {took_s:6.1f} s  {format_bytes(job.bytes_in)} → "
        f"{format_bytes(job.bytes_out)}  {job.rows_in:,} → {job.rows_out:,} rows  "
        f"{job.rows_in / took_s:,.0f} rows/s  {format_bytes(int(job.bytes_in / took_s))}/s",
        flush=True,
    )


if __name__ == "__main__":
    main()
