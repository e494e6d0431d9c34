"""Many writers of small batches through one gateway: acknowledged rows per second, and latency.

    python -m benchmarks.bench_buffered --writers 16 --rows 20 --seconds 30

Redis, a gateway without a coordinator, and the writers share this machine. The buffer is flushed
once per second. Afterwards every acknowledged row is counted.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow as pa

from neve.client import Client
from neve.client.errors import NeveError
from neve.local.processes import exit_on_sigterm
from tests.support.gateway import TOKEN
from tests.support.redis_server import RedisServer, free_port

SCHEMA = pa.schema([("writer", pa.int64()), ("n", pa.int64()), ("text", pa.string())])
TEXT = "x" * 84
"""With two numbers, a row has 100 bytes."""


class Load:
    """Writers that send batches until the time is over."""

    def __init__(self, url: str, rows: int, *, by_append: bool) -> None:
        self._url, self._rows, self._by_append = url, rows, by_append
        self._over = threading.Event()
        self.latencies_s: list[float] = []
        self.acknowledged = 0
        self.failed = 0

    def run(self, writers: int, seconds: float) -> float:
        """Return how long the load lasted."""
        threads = [threading.Thread(target=self._write, args=(n,)) for n in range(writers)]
        if not self._by_append:
            threads.append(threading.Thread(target=self._flush))
        begun_s = time.monotonic()
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self._over.set()
        for thread in threads:
            thread.join()
        return time.monotonic() - begun_s

    def _write(self, number: int) -> None:
        client = Client(self._url, token=TOKEN)
        send = client.append if self._by_append else client.buffer_rows
        columns = {"writer": [number] * self._rows, "text": [TEXT] * self._rows}
        while not self._over.is_set():
            numbers = list(range(self._rows))
            rows = pa.table({**columns, "n": numbers}).select(SCHEMA.names)
            begun_s = time.monotonic()
            try:
                send("events", rows)
            except NeveError:
                self.failed += 1
                continue
            self.latencies_s.append(time.monotonic() - begun_s)
            self.acknowledged += self._rows

    def _flush(self) -> None:
        client = Client(self._url, token=TOKEN)
        while not self._over.wait(1.0):
            with suppress(NeveError):
                client.flush("events")


def measure(writers: int, rows: int, seconds: float, *, by_append: bool) -> None:
    """Start Redis and a gateway, and print what a load has reached."""
    port = free_port()
    with ExitStack() as ended:
        folder = ended.enter_context(tempfile.TemporaryDirectory())
        redis = RedisServer(Path(folder))
        redis.start()
        ended.callback(redis.stop)
        command = [sys.executable, "-m", "tests.support.gateway_process", redis.url, str(port)]
        gateway = ended.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        ended.callback(gateway.kill)
        assert gateway.stdout is not None
        client = Client(url := gateway.stdout.readline().strip(), token=TOKEN)
        client.create_table("events", f"{folder}/events", schema=SCHEMA)
        load = Load(url, rows, by_append=by_append)
        took_s = load.run(writers, seconds)
        client.flush("events")
        counted, files = client.count("events"), len(client.files("events"))
    latencies = sorted(load.latencies_s)
    p50, p99 = (1000 * latencies[int(len(latencies) * part)] for part in (0.5, 0.99))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{'append' if by_append else 'buffer'}: {load.acknowledged / took_s:,.0f} rows/s, "
        f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, {load.failed} failed, counted {counted:,} of "
        f"{load.acknowledged:,}, {files} files ({1000 * files / load.acknowledged:.2f} per 1,000 "
        f"rows), {used.ru_utime + used.ru_stime:.0f} CPU-s of Redis and gateway so far"
    )


def main() -> None:
    """Measure buffered rows, and the same batches as appends."""
    exit_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    for by_append in (False, True):
        measure(options.writers, options.rows, options.seconds, by_append=by_append)


if __name__ == "__main__":
    main()
