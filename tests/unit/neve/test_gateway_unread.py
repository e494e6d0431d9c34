"""Scans whose readers take nothing, little or too many at a time: memory stays bounded."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from neve.client import Client
from tests.support.gateway import TOKEN, Gateway, serving
from tests.support.patience import PATIENCE_S

HEAD = (
    "GET /v1/tables/t/scan HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    f"Authorization: Bearer {TOKEN}\r\n\r\n"
)
LAST_CHUNK = b"\r\n0\r\n\r\n"
TRUSTED = {"Authorization": f"Bearer {TOKEN}"}
FILES, FILE_ROWS = 10, 50_000
FILE_BYTES = 4 * 8 * FILE_ROWS
"""Of rows: a scan is longer than what a system keeps for a connection."""


def large_table(client: Client, folder: Path) -> int:
    """Create a table whose scan has a piece per file; return its number of rows."""
    rows = pa.table({name: pa.array(range(FILE_ROWS), pa.int64()) for name in "abcd"})
    client.create_table("t", folder.as_uri(), schema=rows.schema)
    for number in range(FILES):
        pq.write_table(rows, folder / f"{number}.parquet")
    client.add_files("t", [f"{number}.parquet" for number in range(FILES)])
    return FILES * FILE_ROWS


@contextmanager
def unread_scan(gateway: Gateway) -> Iterator[socket.socket]:
    """Begin a scan, and take its first bytes only."""
    at = urlsplit(gateway.url)
    with closing(socket.socket()) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.settimeout(PATIENCE_S)
        made.connect((at.hostname, at.port))
        made.sendall(HEAD.encode())
        assert made.recv(12) == b"HTTP/1.1 200"
        yield made


def rest_of(connection: socket.socket) -> bytes:
    """Return the last bytes that come."""
    last = b""
    while part := connection.recv(65_536):
        last = (last + part)[-len(LAST_CHUNK) :]
    return last


def figure(gateway: Gateway, name: str) -> float:
    """Return what the metrics say."""
    text = httpx.get(gateway.url + "/metrics", headers=TRUSTED).text
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(name + " ")))


def until(true: Callable[[], bool]) -> None:
    """Wait until something is so."""
    latest_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < latest_s
        time.sleep(0.05)


def test_scans_that_nobody_reads_hold_little_and_are_cut(tmp_path: Path) -> None:
    unread = 8
    settings: dict[str, Any] = {"scan_bytes_max": FILE_BYTES // 2, "answer_wait_s": 1.0}
    with serving(**settings) as gateway, gateway.client() as client, ExitStack() as stack:
        rows = large_table(client, tmp_path)
        begun = [stack.enter_context(unread_scan(gateway)) for _ in range(unread)]
        until(lambda: figure(gateway, "neve_scan_held_bytes") > 0)
        # Each of four threads may have been at work on a piece.
        assert figure(gateway, "neve_scan_held_bytes") <= FILE_BYTES * 4.5
        assert client.scan("t").num_rows == rows
        until(lambda: figure(gateway, "neve_scans") == 0)
        assert figure(gateway, "neve_scan_held_bytes") == 0
        assert ("an answer is not taken", {"waited_s": 1.0}) in gateway.log
        assert not rest_of(begun[0]).endswith(LAST_CHUNK)


def test_a_slow_reader_is_not_cut_off(tmp_path: Path) -> None:
    with serving(answer_wait_s=3.0) as gateway, gateway.client() as client:
        large_table(client, tmp_path)
        with unread_scan(gateway) as connection:
            for _ in range(14):
                time.sleep(0.25)
                taken = 0
                while taken < 250_000:
                    taken += len(connection.recv(65_536))
            assert rest_of(connection).endswith(LAST_CHUNK)
        assert ("an answer is not taken", {"waited_s": 3.0}) not in gateway.log


def test_scans_beyond_the_bound_are_asked_to_come_again(tmp_path: Path) -> None:
    with serving(scans_max=2) as gateway, gateway.client() as client:
        rows = large_table(client, tmp_path)
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(unread_scan(gateway))
            answer = httpx.get(gateway.url + "/v1/tables/t/scan", headers=TRUSTED)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "2 scans are being read" in answer.json()["detail"]
            assert client.count("t") == rows
        until(lambda: figure(gateway, "neve_scans") == 0)
        assert client.scan("t").num_rows == rows
