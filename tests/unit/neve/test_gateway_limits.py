"""Callers who send nothing, too little, too slowly or too much: the others are served."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pytest

from common.errors import RequestError
from common.wire import CoordinatorStatus
from neve.api import ARCHIVE, ARROW_STREAM
from neve.gateway.authentication import JSON_BYTES_MAX, LIST_BYTES_MAX
from neve.gateway.bodies import (
    ENTRIES_MAX,
    IN_MEMORY_BYTES_MAX,
    INLINE_BYTES_MAX,
    VALUES_MAX,
    JsonRequest,
)
from neve.gateway.problems import BodyError
from neve.gateway.rows.add import checked_paths
from neve.gateway.rows.ingestion import APPENDS_AT_ONCE
from neve.gateway.server import LEAST, connections_max
from tests.support.gateway import TOKEN, FakeCoordinator, Gateway, serving
from tests.support.patience import PATIENCE_S

TRUSTED = {"Authorization": f"Bearer {TOKEN}"}
SCHEMA = pa.schema([("x", pa.int64()), ("text", pa.string())])
HEAD = f"POST /v1/tables/t/append HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"


@contextmanager
def connected(gateway: Gateway, sent: str) -> Iterator[socket.socket]:
    """Connect, and send something."""
    at = urlsplit(gateway.url)
    with closing(socket.create_connection((at.hostname, at.port), timeout=PATIENCE_S)) as made:
        made.sendall(sent.encode())
        yield made


def answer_of(connection: socket.socket) -> bytes:
    """Return what comes until the end."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def is_over(connection: socket.socket) -> bool:
    """Return whether a connection was closed, within the common patience."""
    try:
        return answer_of(connection) == b""
    except ConnectionResetError:
        return True


def test_half_open_connections_push_out_each_other_only() -> None:
    with serving(connections_max=LEAST) as gateway, ExitStack() as stack:
        served = stack.enter_context(httpx.Client(base_url=gateway.url))
        half = [
            stack.enter_context(connected(gateway, "GET /healthz HTTP/1.1\r\nX: "))
            for _ in range(20 * LEAST)
        ]
        for _ in range(3):
            assert served.get("/healthz").status_code == 200
        assert is_over(half[0])
        assert len(gateway.log) < LEAST
        assert ("too many connections", {"most": LEAST}) in gateway.log


@pytest.mark.parametrize(
    "sent",
    ["", "GET /healthz HTTP/1.1\r\n"],
    ids=["nothing", "half a head"],
)
def test_a_head_that_does_not_come_is_not_waited_for(sent: str) -> None:
    with serving(head_wait_s=0.2) as gateway, connected(gateway, sent) as connection:
        assert is_over(connection)


def test_a_second_head_that_does_not_come_is_not_waited_for() -> None:
    head = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with serving(head_wait_s=0.2) as gateway, connected(gateway, head) as connection:
        told = b""
        while not told.endswith(b"}"):
            part = connection.recv(65536)
            assert part, told
            told += part
        connection.sendall(b"GET /hea")  # Now it is no idle connection.
        assert is_over(connection)


def test_a_caller_who_sends_a_head_in_time_is_served() -> None:
    with serving(head_wait_s=0.4) as gateway, httpx.Client(base_url=gateway.url) as caller:
        for _ in range(4):
            assert caller.get("/healthz").status_code == 200
            time.sleep(0.15)


def test_a_body_that_does_not_come_is_answered() -> None:
    with serving(body_wait_s=0.3) as gateway, gateway.client() as client:
        client.create_table("t", "file:///tmp/neve-none-limits", schema=SCHEMA)
        for kind in (ARROW_STREAM, "application/json"):
            head = f"{HEAD}Content-Type: {kind}\r\nContent-Length: 100\r\n\r\n"
            with connected(gateway, head) as connection:
                told = b""
                while b"urn:neve" not in told:
                    part = connection.recv(65536)
                    assert part, told
                    told += part
            if kind == ARROW_STREAM:
                assert b"408" in told
                assert b"SlowBodyError" in told


def test_bodies_that_come_slowly_hold_up_nobody(tmp_path: Path) -> None:
    with serving(body_wait_s=1e4) as gateway, gateway.client() as client, ExitStack() as stack:
        client.create_table("t", (tmp_path / "t").as_uri(), schema=SCHEMA)
        head = f"{HEAD}Content-Type: {ARROW_STREAM}\r\nContent-Length: 100\r\n\r\nARROW"
        for _ in range(3 * APPENDS_AT_ONCE):
            stack.enter_context(connected(gateway, head))
        client.append("t", pa.table({"x": [1], "text": ["a"]}))
        assert client.count("t") == 1


def test_a_large_body_arrives_whole(tmp_path: Path) -> None:
    rows = pa.table({"x": range(40), "text": [f"{n:05}" * 20_000 for n in range(40)]})
    assert rows.nbytes > 3 * IN_MEMORY_BYTES_MAX
    with serving() as gateway, gateway.client() as client:
        client.create_table("t", (tmp_path / "t").as_uri(), schema=SCHEMA)
        client.append("t", rows)
        assert client.scan("t").sort_by("x") == rows


@pytest.mark.parametrize("kind", [ARROW_STREAM, ARCHIVE, f"{ARROW_STREAM}; x=y"])
def test_no_content_type_makes_other_bodies_larger(kind: str) -> None:
    with serving() as gateway:
        for path in ("/v1/tables", "/v1/restore-not", "/v1/tables/t/files"):
            answer = httpx.post(
                gateway.url + path,
                content=b" " * (LIST_BYTES_MAX + 1),
                headers=TRUSTED | {"Content-Type": kind},
            )
            assert (answer.status_code, answer.json()["error"]) == (413, "TooLargeError")


def test_readiness_probes_do_not_call_the_coordinator_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, ask = [0], FakeCoordinator.status

    async def status(self: FakeCoordinator) -> CoordinatorStatus:
        asked[0] += 1
        return await ask(self)

    monkeypatch.setattr(FakeCoordinator, "status", status)
    with serving() as gateway, httpx.Client(base_url=gateway.url) as caller:
        begun_s = time.monotonic()
        for _ in range(200):
            assert caller.get("/readyz").status_code == 200
        assert 1 <= asked[0] <= 1 + (time.monotonic() - begun_s)


def test_connections_leave_room_for_other_descriptors() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connections_max(20) == 20
    assert connections_max(10**9) < max(soft, 65_536)


# -------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("/v1/tables/t/files", LIST_BYTES_MAX),
        ("/v1/tables/t/compactions", JSON_BYTES_MAX),
        ("/v1/reads", LIST_BYTES_MAX),
        ("/v1/import", JSON_BYTES_MAX),
    ],
)
def test_json_has_a_bound_by_route(path: str, most: int) -> None:
    with serving() as gateway:
        for size, refused in ((most, False), (most + 1, True)):
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            length = f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
            with connected(gateway, head + length) as connection:
                if not refused:
                    connection.sendall(b" " * size)
                assert (b" 413 " in connection.recv(4096)) is refused


async def read_json(body: bytes) -> tuple[object, list[str]]:
    """Return the tree, and what else the event loop did meanwhile."""
    done: list[str] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def other() -> None:
        done.append("a turn of another task")

    request = JsonRequest({"type": "http", "method": "POST", "headers": []}, receive)
    await request.body()
    task = asyncio.get_running_loop().create_task(other())
    tree = await request.json()
    seen = [*done]
    await task
    return tree, seen


def test_large_json_is_read_while_the_event_loop_goes_on() -> None:
    small, large = b"[1]", json.dumps(["x"] * INLINE_BYTES_MAX).encode()
    assert asyncio.run(read_json(small)) == ([1], [])
    tree, meanwhile = asyncio.run(read_json(large))
    assert tree == ["x"] * INLINE_BYTES_MAX
    assert meanwhile


def test_json_of_too_many_values_is_refused_before_it_is_read() -> None:
    with pytest.raises(BodyError, match="commas, colons and brackets"):
        asyncio.run(read_json(b"[" + b"0," * VALUES_MAX + b"0]"))
    with pytest.raises(BodyError, match="objects with"):
        asyncio.run(read_json(b"[" + b'{"a":0},' * ENTRIES_MAX + b'{"a":0}]'))


def test_a_file_that_is_named_twice_among_ten_thousand_is_found() -> None:
    paths = [f"{number}.parquet" for number in range(9_999)]
    with pytest.raises(RequestError, match=r"file 9998\.parquet is given twice"):
        checked_paths([*paths, paths[-1]], 10_000)
