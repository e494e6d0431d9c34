"""What the server makes of heads, trailers, upgrades and requests in advance; and of no HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, cast

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from neve.gateway.server import HEAD_BYTES_MAX, PIPELINED_MAX, ServerConnections
from tests.support.gateway import TOKEN, serving
from tests.support.patience import PATIENCE_S

HEALTH = "GET /healthz HTTP/1.1\r\nHost: x\r\n"
CREATE = f"POST /v1/tables HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with serving() as gateway:
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        yield host, int(port)


@contextmanager
def connected(address: tuple[str, int]) -> Iterator[socket.socket]:
    with closing(socket.create_connection(address, timeout=PATIENCE_S)) as connection:
        yield connection


def answers(address: tuple[str, int], *parts: str | bytes) -> bytes:
    """Send parts, and return everything until the server closes the connection."""
    with connected(address) as connection:
        for part in parts:
            connection.sendall(part.encode("latin-1") if isinstance(part, str) else part)
        return until_closed(connection)


def until_closed(connection: socket.socket) -> bytes:
    whole = b""
    while part := connection.recv(65536):
        whole += part
    return whole


def statuses(whole: bytes) -> list[int]:
    return [int(part[:3]) for part in whole.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize(
    "head",
    [
        "GET /healthz\r\n\r\n",
        "GET /healthz HTTP/0.9\r\nHost: x\r\n\r\n",
        "GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n",
        "GET /healthz HTTP/1.1\r\n\r\n",
        f"{HEALTH}Host: y\r\n\r\n",
        f"{HEALTH}X : 1\r\n\r\n",
        f"{HEALTH}X: 1\r\n 2\r\n\r\n",
        f"{HEALTH}X: \x01\r\n\r\n",
        "GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        "CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET http://x?y HTTP/1.1\r\nHost: x\r\n\r\n",
        "JUMP /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        f"{CREATE}Content-Length: 2\r\nContent-Length: 2\r\n\r\n{{}}",
        f"{CREATE}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{{}}",
        f"{CREATE}Content-Length: 2, 2\r\n\r\n{{}}",
        f"{CREATE}Transfer-Encoding: gzip\r\n\r\n",
        f"{CREATE}Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        f"{CREATE}Upgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 2\r\n\r\n{{}}",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_is_no_request_is_refused(address: tuple[str, int], head: str) -> None:
    whole = answers(address, head)
    assert statuses(whole) == [400]
    assert b"Invalid HTTP request received." in whole


@pytest.mark.parametrize("start", ["GET /", f"{HEALTH}X-", f"{HEALTH}X: ", HEALTH + "X: 1\r\n" * 9])
def test_a_head_is_bounded(address: tuple[str, int], start: str) -> None:
    with connected(address) as connection:
        connection.sendall(start.encode())
        for _ in range(HEAD_BYTES_MAX // 1024):
            connection.sendall(b"a" * 1024)
        assert statuses(until_closed(connection)) == [400]


def test_a_head_within_the_bound_may_come_in_pieces(address: tuple[str, int]) -> None:
    size = HEAD_BYTES_MAX - len(HEALTH) - 100
    parts = [HEALTH, "X: ", *["a" * 1000] * (size // 1000), "\r\nConnection: close\r\n", "\r\n"]
    assert statuses(answers(address, *parts)) == [200]


@pytest.mark.parametrize(
    "endless", [b"0\r\nX: ", b"0\r\nX: 1\r\n", b"2;x="], ids=["trailer", "trailers", "extension"]
)
def test_what_surrounds_the_chunks_of_a_body_is_bounded(
    address: tuple[str, int], endless: bytes
) -> None:
    more = b"Xy: z\r\n" * 200 if endless.endswith(b"\n") else b"a" * 1024
    with connected(address) as connection:
        connection.sendall(f"{CREATE}Transfer-Encoding: chunked\r\n\r\n2\r\n".encode())
        connection.sendall(b"{}\r\n" + endless)
        with pytest.raises(ConnectionError):
            connection.sendall(more * 20_000)


def test_chunks_of_any_number_are_taken(address: tuple[str, int]) -> None:
    chunk = b"1;extension=of-some-length\r\n \r\n"
    body = chunk * (3 * HEAD_BYTES_MAX // len(chunk)) + b"0\r\n\r\n"
    head = f"{CREATE}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode()
    whole = answers(address, head, *(body[at : at + 1000] for at in range(0, len(body), 1000)))
    assert statuses(whole) == [422]
    assert b"BodyError" in whole


def test_requests_in_advance_are_answered_in_their_order(address: tuple[str, int]) -> None:
    lost = "GET /nothing HTTP/1.1\r\nHost: x\r\n"
    end = f"{HEALTH}Connection: close\r\n\r\n"
    assert statuses(answers(address, f"{HEALTH}\r\n{lost}\r\n{end}")) == [200, 401, 200]


def test_requests_in_advance_are_bounded(address: tuple[str, int]) -> None:
    whole = answers(address, f"{HEALTH}\r\n" * (PIPELINED_MAX + 100))
    assert statuses(whole) == [200] * (PIPELINED_MAX + 1)


def test_what_follows_a_request_and_is_none_ends_the_connection(address: tuple[str, int]) -> None:
    whole = answers(address, f"{HEALTH}\r\nnonsense\r\n\r\n")
    assert statuses(whole) == [200]
    assert b"connection: close" in whole
    whole = answers(address, f"{HEALTH}\r\n{CREATE}Transfer-Encoding: chunked\r\n\r\nzz\r\n")
    assert b"400" not in whole[:15]


def test_an_upgrade_is_not_done(address: tuple[str, int]) -> None:
    whole = answers(address, f"{HEALTH}Upgrade: websocket\r\nConnection: upgrade\r\n\r\n\x81\x05")
    assert statuses(whole) == [200]
    assert b"connection: close" in whole


def test_an_old_version_is_answered(address: tuple[str, int]) -> None:
    assert statuses(answers(address, "GET /healthz HTTP/1.0\r\n\r\n")) == [200]


async def served(app: ASGIApp, data: bytes) -> bytes:
    """Return what an application answers to some data."""
    connections = ServerConnections(9, 1.0, 1.0, lambda *_, **__: None)
    kind = cast("Any", connections.protocol(None))
    config = uvicorn.Config(cast("Any", app), log_config=None)
    connection = kind(config=config, server_state=uvicorn.server.ServerState(), app_state={})
    transport = _Transport()
    connection.connection_made(transport)
    connection.data_received(data)
    for _ in range(9):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return transport.written


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def test_trailers_do_not_change_the_head() -> None:
    head = b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"1\r\na\r\n0\r\nAuthorization: Bearer x\r\n\r\n"
    scopes: list[Scope] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        scopes.append(scope)

    asyncio.run(served(app, head + body))
    (scope,) = scopes
    assert (scope["path"], scope["query_string"]) == ("/a", b"b=c")
    assert scope["headers"] == [(b"host", b"x"), (b"transfer-encoding", b"chunked")]


@pytest.mark.parametrize(
    ("version", "answer"),
    [("1.1", b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"), ("1.0", b"abc")],
)
def test_an_old_version_gets_no_chunks(version: str, answer: bytes) -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"ab", b"c"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    whole = asyncio.run(served(app, f"GET / HTTP/{version}\r\nHost: x\r\n\r\n".encode()))
    head, _, body = whole.partition(b"\r\n\r\n")
    assert body == answer
    assert (b"connection: close" in head) is (version == "1.0")
