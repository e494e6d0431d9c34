"""Buffered rows through one gateway: rows per second, latency, processor time per call.

    python -m benchmarks.bench_buffered --seconds 60
    python -m benchmarks.bench_buffered --shapes full half --seconds 20 --key
    python -m benchmarks.bench_buffered --shapes many --writers 500 --seconds 300

    full     writers that send batches of rows one after the other, as fast as they can
    half     the same batches at a fixed rate, half of the goal; latency from when a batch is due
    many     `client.writer`s of one row per second each
    append   the batches of `full` as appends, for comparison
    others   appends to another table, one after the other, with empty and with full buffers

Redis (`appendfsync everysec`), a gateway and the writers share this machine. The writers are
threads of a few processes (`--processes`), like those of a service. There is no coordinator: a
thread flushes the buffer. Afterwards every acknowledged row is counted. On a machine with other
work look at the processor time: it decides what two idle cores do.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from neve.client import Client
from neve.client.errors import NeveError, UnavailableError
from neve.local.processes import exit_on_sigterm
from tests.support.gateway import TOKEN
from tests.support.redis_server import RedisServer, free_port

SCHEMA = pa.schema(
    [("writer", pa.int64()), ("n", pa.int64()), ("v", pa.int64()), ("text", pa.string())]
)
TEXT = "x" * 76
"""With three numbers, a row has 100 bytes."""
CORES = 2
GOAL_ROWS_S, GOAL_P99_MS, GOAL_CPU_MS = 20_000, 50.0, 2.0
"""Processor time per call: with batches of 20 rows, 1,000 calls per second on two cores."""
PACERS = 8
"""Threads that write into the writers of `many`."""


@dataclass
class Stack:
    """Redis and a gateway."""

    url: str
    processes: dict[str, psutil.Process]

    def cpu_s(self) -> dict[str, float]:
        """Return the processor time of each process."""
        times = {name: process.cpu_times() for name, process in self.processes.items()}
        return {name: time_.user + time_.system for name, time_ in times.items()}

    def client(self) -> Client:
        return Client(self.url, token=TOKEN)


@contextmanager
def stack() -> Iterator[tuple[Stack, Path]]:
    """Start Redis and a gateway; yield them and a folder for tables."""
    port = free_port()
    with ExitStack() as ended:
        folder = Path(ended.enter_context(tempfile.TemporaryDirectory()))
        redis = RedisServer(folder)
        redis.start()
        ended.callback(redis.stop)
        command = [sys.executable, "-m", "tests.support.gateway_process", redis.url, str(port)]
        gateway = ended.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        ended.callback(gateway.kill)
        assert gateway.stdout is not None
        processes = {
            "gateway": psutil.Process(gateway.pid),
            "redis": psutil.Process(redis.pid),
        }
        yield Stack(gateway.stdout.readline().strip(), processes), folder


@dataclass
class Tally:
    """What the writers of one shape have seen. Lists and sums are safe to change by threads."""

    latencies_s: list[float] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


Shape = Callable[[Stack, argparse.Namespace, Tally, int], None]
"""The work of one thread: stack, options, tally and its number."""


def batches(stack: Stack, options: argparse.Namespace, tally: Tally, number: int) -> None:
    """Send batches as fast as possible."""
    _send_batches(stack, options, tally, number, pause_s=0.0)


def paced(stack: Stack, options: argparse.Namespace, tally: Tally, number: int) -> None:
    """Send batches at half of the goal, all writers together."""
    pause_s = options.writers * options.rows / (GOAL_ROWS_S / 2)
    _send_batches(stack, options, tally, number, pause_s=pause_s)


def appends(stack: Stack, options: argparse.Namespace, tally: Tally, number: int) -> None:
    """Send the same batches as appends."""
    _send_batches(stack, options, tally, number, pause_s=0.0, by_append=True)


def _send_batches(
    stack: Stack,
    options: argparse.Namespace,
    tally: Tally,
    number: int,
    *,
    pause_s: float,
    by_append: bool = False,
) -> None:
    client = stack.client()
    send = client.append if by_append else client.buffer_rows
    same = pa.table(
        [[number] * options.rows, [0] * options.rows, [1] * options.rows, [TEXT] * options.rows],
        schema=SCHEMA,
    )
    numbers = np.arange(options.rows)
    due_s = time.monotonic() + pause_s * number / options.writers
    count = 0
    while not tally.over.wait(max(0.0, due_s - time.monotonic()) if pause_s else 0.0):
        rows = same.set_column(1, SCHEMA.field("n"), pa.array(count * options.rows + numbers))
        begun_s = due_s if pause_s else time.monotonic()
        count, due_s = count + 1, due_s + pause_s
        try:
            send("events", rows)
        except NeveError as error:
            tally.failures.append(str(error))
            continue
        tally.latencies_s.append(time.monotonic() - begun_s)
        tally.acknowledged.append(options.rows)


def single_rows(stack: Stack, options: argparse.Namespace, tally: Tally, number: int) -> None:
    """Write a row per second into each writer of this thread's part."""
    client = stack.client()
    count = len(range(number, options.many, PACERS))
    with ExitStack() as writers:
        opened = [writers.enter_context(client.writer("events")) for _ in range(count)]
        begun_s = time.monotonic()
        for n in range(int(options.seconds)):
            for at, writer in enumerate(opened):
                time.sleep(max(0.0, begun_s + n + at / count - time.monotonic()))
                try:
                    writer.write({"writer": PACERS * at + number, "n": n, "v": 1, "text": TEXT})
                except NeveError as error:
                    tally.failures.append(str(error))
        for writer in opened:
            with suppress(NeveError):
                writer.sync()
    tally.acknowledged += [writer.acknowledged for writer in opened]


SHAPES: dict[str, Shape] = {
    "full": batches,
    "half": paced,
    "many": single_rows,
    "append": appends,
}


def flushes(stack: Stack, every_s: float, over: threading.Event) -> None:
    """Flush the buffer at intervals, as a coordinator does."""
    client = stack.client()
    while not over.wait(every_s):
        with suppress(NeveError):
            client.flush("events")


def warm_up(stack: Stack) -> None:
    """Make the first calls, which check the location of the table."""
    client = stack.client()
    for number in range(3):
        begun_s = time.monotonic()
        client.buffer_rows("events", pa.table([[-1], [number], [1], [TEXT]], schema=SCHEMA))
        if not number:
            print(f"first call: {1000 * (time.monotonic() - begun_s):.0f} ms")
    client.flush("events")


def write_apart(
    parent: Connection, url: str, name: str, options: argparse.Namespace, numbers: list[int]
) -> None:
    """Run the writers of these numbers in this process until the parent says stop.

    Sends `None` when it is ready, and the tally without its event and the processor seconds at the
    end.
    """
    exit_on_sigterm()
    pa.array([0])  # As in `main`.
    parts, tally = Stack(url, {}), Tally()
    threads = [
        threading.Thread(target=SHAPES[name], args=(parts, options, tally, number))
        for number in numbers
    ]
    parent.send(None)
    parent.recv()
    before_s = time.process_time()
    for thread in threads:
        thread.start()
    if name != "many":  # Which ends by itself.
        parent.recv()
        tally.over.set()
    for thread in threads:
        thread.join()
    cpu_s = time.process_time() - before_s
    parent.send((tally.latencies_s, tally.acknowledged, tally.failures, cpu_s))


@contextmanager
def writers(url: str, name: str, options: argparse.Namespace) -> Iterator[list[Connection]]:
    """Start the processes of the writers; yield a connection to each that is ready."""
    count = PACERS if name == "many" else options.writers
    start = multiprocessing.get_context("spawn")
    processes, connections = [], []
    for first in range(min(count, options.processes)):
        mine, theirs = start.Pipe()
        numbers = list(range(first, count, options.processes))
        process = start.Process(target=write_apart, args=(theirs, url, name, options, numbers))
        process.start()
        processes.append(process)
        connections.append(mine)
    try:
        for connection in connections:
            connection.recv()
        yield connections
    finally:
        for process in processes:
            process.terminate()
            process.join()


def measure(name: str, options: argparse.Namespace) -> None:
    """Start Redis and a gateway, and print what one shape has reached."""
    with stack() as (parts, folder):
        client, tally = parts.client(), Tally()
        keyed = {"key": ["writer", "n"], "version_column": "v"} if options.key else {}
        client.create_table("events", f"{folder}/events", schema=SCHEMA, **keyed)
        warm_up(parts)
        flusher = threading.Thread(target=flushes, args=(parts, options.flush_s, tally.over))
        with writers(parts.url, name, options) as connections:
            before, begun_s = parts.cpu_s(), time.monotonic()
            flusher.start()
            for connection in connections:
                connection.send("start")
            if name != "many":
                time.sleep(options.seconds)
                for connection in connections:
                    connection.send("stop")
            parts_of_tally = [connection.recv() for connection in connections]
            took_s = time.monotonic() - begun_s
            used = {part: cpu_s - before[part] for part, cpu_s in parts.cpu_s().items()}
        tally.over.set()
        flusher.join()
        used["writers"] = 0.0
        for latencies_s, acknowledged, failures, cpu_s in parts_of_tally:
            tally.latencies_s += latencies_s
            tally.acknowledged += acknowledged
            tally.failures += failures
            used["writers"] += cpu_s
        client.flush("events")
        counted, files = client.count("events") - 3, len(client.files("events")) - 1
    report(name, options, tally, took_s, used)
    print(f"    counted {counted:,} of {sum(tally.acknowledged):,}, {files} files")


def commit_latencies(client: Client, seconds: float) -> list[float]:
    """Append to `other` one batch after the other; return the latency of each, in seconds."""
    rows = pa.table([[1] * 1000, list(range(1000)), [1] * 1000, [TEXT] * 1000], schema=SCHEMA)
    over_s, latencies_s = time.monotonic() + seconds, []
    while (begun_s := time.monotonic()) < over_s:
        client.append("other", rows)
        latencies_s.append(time.monotonic() - begun_s)
    return latencies_s


def fill(client: Client) -> int:
    """Buffer rows in `events` until they are refused; return their number."""
    count = 20_000
    random = np.random.default_rng(0)
    text = pa.array([random.bytes(38).hex() for _ in range(count)])
    rows = pa.table([[1] * count, list(range(count)), [1] * count, text], schema=SCHEMA)
    buffered = 0
    with suppress(UnavailableError):
        while True:
            buffered += client.buffer_rows("events", rows).rows
    return buffered


def measure_others(options: argparse.Namespace) -> None:
    """Print the latency of commits to another table, with empty buffers and with full ones."""
    latencies: dict[str, list[float]] = {"empty": [], "full": []}
    for _ in range(options.rounds):
        for state, seen_s in latencies.items():
            with stack() as (parts, folder):
                client = parts.client()
                for name in ("events", "other"):
                    client.create_table(name, f"{folder}/{name}", schema=SCHEMA)
                commit_latencies(client, 2.0)
                buffered = fill(client) if state == "full" else 0
                seen_s += commit_latencies(client, options.seconds)
                print(f"{state}: {buffered:,} rows buffered")
    for state, seen_s in latencies.items():
        ordered = sorted(seen_s)
        p50, p99 = (1000 * ordered[int(len(ordered) * part)] for part in (0.5, 0.99))
        print(f"{state} buffers: {len(ordered)} commits, p50 {p50:.2f}, p99 {p99:.2f} ms")


def report(
    name: str,
    options: argparse.Namespace,
    tally: Tally,
    took_s: float,
    used: dict[str, float],
) -> None:
    """Print the figures of one shape."""
    rows = sum(tally.acknowledged)
    calls = rows if name == "many" else len(tally.latencies_s)
    print(
        f"{name}: {rows / took_s:,.0f} rows/s, {calls / took_s:,.0f} calls/s, "
        f"{len(tally.failures)} failed"
    )
    if latencies := sorted(tally.latencies_s):
        p50, p99 = (1000 * latencies[int(len(latencies) * part)] for part in (0.5, 0.99))
        print(f"    p50 {p50:.1f} ms, p99 {p99:.1f} ms (goal at half the rate: {GOAL_P99_MS:g} ms)")
    split = ", ".join(f"{part} {1000 * cpu_s / max(1, calls):.2f}" for part, cpu_s in used.items())
    total_ms = 1000 * sum(used.values()) / max(1, calls)
    goal = GOAL_CPU_MS if name != "many" else 1000 * CORES / options.many
    print(f"    CPU {total_ms:.2f} ms per call (goal {goal:g}): {split}")
    for failure in sorted(set(tally.failures))[:3]:
        print(f"    failed: {failure}")


def main() -> None:
    """Measure the chosen shapes, one after the other."""
    exit_on_sigterm()
    pa.array([0])  # Arrow loads pandas at the first value, which takes seconds on a busy machine.
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--shapes", nargs="+", choices=[*SHAPES, "others"], default=["full", "half", "many"]
    )
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--processes", type=int, default=4, help="Processes of the writers.")
    parser.add_argument("--many", type=int, default=500, help="Writers of one row per second.")
    parser.add_argument("--rows", type=int, default=20, help="Rows of a batch.")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--flush-s", type=float, default=10.0, help="Pause between two flushes.")
    parser.add_argument("--rounds", type=int, default=3, help="Rounds of `others`.")
    parser.add_argument("--key", action="store_true", help="Rows have a key: writer and number.")
    options = parser.parse_args()
    for name in options.shapes:
        if name == "others":
            measure_others(options)
        else:
            measure(name, options)


if __name__ == "__main__":
    main()
