"""Memory of a gateway that flushes many buffered rows, against their number.

    python -m benchmarks.bench_flush --rows 250000 1000000 2000000

Redis and a gateway without a coordinator run on this machine, each in its own process. For each
number, a keyed table of four tablets gets so many rows of 100 bytes, all of which are buffered, and
one call flushes them. The memory of the gateway (proportional set size) is read 50 times a second.
Rows have random keys and texts, so a flush cuts, sorts and encodes them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from common.control_settings import IngestSettings
from common.metadata.redis import connect
from common.settings import StoreSettings
from neve.client import Client
from neve.local.processes import exit_on_sigterm
from tests.support.gateway import TOKEN, serving
from tests.support.redis_server import RedisServer, free_port

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("text", pa.string())])
TEXT_BYTES = 80
"""With two numbers and an offset, a row has 100 bytes."""
CALL_ROWS = 20_000
KEY_MAX = 1 << 40
MIB = 1024**2
INGEST = {"table_bytes_max": 1 << 40, "bytes_max": 1 << 40}
"""All rows of a measurement are buffered at once."""
LOOK_S = 0.02
CALL_MAX_S = 3600.0


def serve(url: str, port: int) -> None:
    """Serve a gateway until this process ends."""
    store = connect(StoreSettings(url=url))
    with serving(store, port=port, ingest=INGEST) as gateway:
        print(gateway.url, flush=True)
        threading.Event().wait()


def rows_of(number: int) -> pa.Table:
    """Return the rows of a call."""
    dice = np.random.default_rng(number)
    letters = dice.integers(97, 123, CALL_ROWS * TEXT_BYTES, dtype=np.uint8)
    offsets = np.arange(0, (CALL_ROWS + 1) * TEXT_BYTES, TEXT_BYTES, dtype=np.int32)
    texts = pa.StringArray.from_buffers(CALL_ROWS, pa.py_buffer(offsets), pa.py_buffer(letters))
    keys = dice.integers(0, KEY_MAX, CALL_ROWS)
    versions = np.full(CALL_ROWS, number + 1)
    return pa.table([pa.array(keys), pa.array(versions), texts], schema=SCHEMA)


class Peak:
    """Largest memory of a process while a block runs."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.bytes = 0

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            self.bytes = max(self.bytes, held_bytes(self._process))


def held_bytes(process: psutil.Process) -> int:
    """Return the proportional set size of a process."""
    size_bytes: int = process.memory_full_info().pss
    return size_bytes


def cpu_s(process: psutil.Process) -> float:
    """Return the processor time that a process has used."""
    times = process.cpu_times()
    used_s: float = times.user + times.system
    return used_s


def measure(rows: int) -> None:
    """Buffer rows, flush them, and print what the gateway took."""
    with ExitStack() as ended:
        folder = ended.enter_context(tempfile.TemporaryDirectory())
        redis = RedisServer(Path(folder))
        redis.start()
        ended.callback(redis.stop)
        command = [sys.executable, "-m", "benchmarks.bench_flush", "--serve"]
        command += [redis.url, str(free_port())]
        server = ended.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        ended.callback(server.kill)
        assert server.stdout is not None
        client = Client(server.stdout.readline().strip(), token=TOKEN, timeout_s=CALL_MAX_S)
        splits = [str(KEY_MAX * part // 4) for part in (1, 2, 3)]
        client.create_table(
            "rows",
            f"{folder}/rows",
            schema=SCHEMA,
            key=["id"],
            version_column="v",
            splits=splits,
        )
        process = psutil.Process(server.pid)
        calls = -(-rows // CALL_ROWS)
        with Peak(server.pid) as writing:
            for number in range(calls):
                client.buffer_rows("rows", rows_of(number))
        before_bytes, used_s, begun_s = held_bytes(process), cpu_s(process), time.monotonic()
        with Peak(server.pid) as flushing:
            flushed = client.flush("rows")
        took_s, used_s = time.monotonic() - begun_s, cpu_s(process) - used_s
        assert flushed.rows == calls * CALL_ROWS, flushed
    print(
        f"{flushed.rows:>10,} rows, {flushed.rows // 10_000:,} MB: before the flush "
        f"{before_bytes / MIB:,.0f} MiB (largest while rows arrived {writing.bytes / MIB:,.0f}), "
        f"largest while it ran {flushing.bytes / MIB:,.0f} MiB; {flushed.files} files, "
        f"{took_s:.0f} s, {used_s:.0f} CPU-s",
        flush=True,
    )


def main() -> None:
    """Measure flushes of some numbers of rows."""
    exit_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[250_000, 1_000_000, 2_000_000])
    parser.add_argument("--serve", nargs=2, metavar=("URL", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], int(options.serve[1]))
    segment = IngestSettings().flush_bytes / MIB
    print(f"segments of {segment:.0f} MiB, calls of {CALL_ROWS:,} rows")
    for rows in options.rows:
        measure(rows)


if __name__ == "__main__":
    main()
