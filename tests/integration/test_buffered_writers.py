"""Many writers, a gateway that is killed again and again, a real Redis: each row counts once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from neve.client import Client
from neve.client.errors import NeveError
from tests.support.gateway import TOKEN
from tests.support.redis_server import RedisServer, free_port, running
from tests.tidy.tree import ROOT

WRITERS, ROWS, DEATHS = 6, 100, 2
SCHEMA = pa.schema([("writer", pa.int64()), ("n", pa.int64()), ("text", pa.string())])


@contextmanager
def gateway(url: str, port: int) -> Iterator[subprocess.Popen[str]]:
    """Run a gateway process until the block ends, and kill it then."""
    command = [sys.executable, "-m", "tests.support.gateway_process", url, str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("http")
            yield process
        finally:
            process.kill()


class Writers:
    """Threads that write rows, and one that flushes, until all rows are acknowledged."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.written = threading.Semaphore(0)
        self.acknowledged: list[int] = []
        self._done = threading.Event()
        self._writers = [threading.Thread(target=self._write, args=(n,)) for n in range(WRITERS)]
        self._flusher = threading.Thread(target=self._flush)

    def start(self) -> None:
        for thread in (*self._writers, self._flusher):
            thread.start()

    def join(self) -> None:
        for thread in self._writers:
            thread.join()
        self._done.set()
        self._flusher.join()

    def _write(self, number: int) -> None:
        with self._client.writer("buffered", rows_max=7, wait_s=0.05) as writer:
            for n in range(ROWS):
                writer.write({"writer": number, "n": n, "text": "x" * 100})
                self.written.release()
            self.acknowledged.append(writer.sync())

    def _flush(self) -> None:
        while not self._done.wait(0.1):
            with suppress(NeveError):
                self._client.flush("buffered")


def check_rows(rows: pa.Table, acknowledged: int) -> None:
    """Check that each row is there once."""
    counts = Counter((row["writer"], row["n"]) for row in rows.to_pylist())
    assert not [row for row, count in counts.items() if count > 1]
    assert len(counts) == acknowledged == WRITERS * ROWS


def check_all(client: Client, writers: Writers) -> None:
    """Check that every acknowledged row is there once, before and after a flush."""
    check_rows(client.scan("buffered"), sum(writers.acknowledged))
    client.flush("buffered")
    check_rows(client.scan("buffered"), sum(writers.acknowledged))
    assert sum(file.rows for file in client.files("buffered")) == WRITERS * ROWS


@pytest.mark.slow
def test_no_acknowledged_row_is_lost_or_doubled_though_gateways_are_killed(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    port = free_port()
    client = Client(f"http://127.0.0.1:{port}", token=TOKEN, timeout_s=20, retry_s=60)
    writers = Writers(client)
    with gateway(redis_server.url, port):
        client.create_table("buffered", str(tmp_path / "buffered"), schema=SCHEMA)
        client.flush("buffered")  # From now on the client waits for a gateway that restarts.
    writers.start()
    for _ in range(DEATHS):
        with gateway(redis_server.url, port):
            for _ in range(WRITERS * ROWS // (DEATHS + 1)):
                writers.written.acquire()
    with gateway(redis_server.url, port):
        writers.join()
        check_all(client, writers)


@pytest.mark.slow
def test_no_acknowledged_row_is_lost_or_doubled_though_redis_is_killed(tmp_path: Path) -> None:
    port = free_port()
    client = Client(f"http://127.0.0.1:{port}", token=TOKEN, timeout_s=20, retry_s=60)
    writers = Writers(client)
    with running(fsync="always") as redis, gateway(redis.url, port):
        client.create_table("buffered", str(tmp_path / "buffered"), schema=SCHEMA)
        client.flush("buffered")
        writers.start()
        for _ in range(DEATHS):
            for _ in range(WRITERS * ROWS // (DEATHS + 1)):
                writers.written.acquire()
            redis.kill()
            redis.start()
        writers.join()
        check_all(client, writers)


@pytest.mark.slow
def test_an_acknowledgement_names_the_durability_of_the_store(tmp_path: Path) -> None:
    port = free_port()
    with running(fsync="always") as server, gateway(server.url, port):
        client = Client(f"http://127.0.0.1:{port}", token=TOKEN, timeout_s=20)
        client.create_table("buffered", str(tmp_path / "buffered"), schema=SCHEMA)
        row = {"writer": 1, "n": 1, "text": "x"}
        assert (
            "before the answer (appendfsync always)"
            in client.buffer_rows("buffered", [row]).durability
        )
