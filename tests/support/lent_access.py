"""An object store that takes lent credentials only: the tests' S3 server, and a door before it.

The door knows which access keys are lent at the moment. A request with another key, such as those
of the service's own environment, is refused as by the real store.
"""

from __future__ import annotations

import http.client
import itertools
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from tests.support.patience import PATIENCE_S
from tests.support.s3_server import REGION, S3Server

_KEY = re.compile(r"Credential=([^/]+)/")
_HOP = {"connection", "keep-alive", "transfer-encoding", "server", "date", "content-length"}
_REFUSAL = b"<Error><Code>%s</Code><Message>the access key is not lent</Message></Error>"


@dataclass
class LendingDoor:
    """The keys that are lent, and what was done with them."""

    server: S3Server
    port: int = 0
    life_s: float = 3600.0
    """Life of a key, as the catalog states it; the door lets it in until `end_all`."""
    live: set[str] = field(default_factory=set)
    used: Counter[str] = field(default_factory=Counter)
    """Data that went through the door: key and method → requests."""
    refused: Counter[str] = field(default_factory=Counter)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def lend(self, now_s: float) -> dict[str, str]:
        """Return the properties of a new key, as the catalog lends it."""
        key = f"lent-{next(self._numbers)}"
        self.live.add(key)
        return {
            **self.access(key),
            "s3.session-token": f"token of {key}",
            "s3.session-token-expires-at-ms": str(int(1000 * (now_s + self.life_s))),
        }

    def access(self, key: str) -> dict[str, str]:
        """Return the properties of a client with a key."""
        return {
            "s3.endpoint": f"http://127.0.0.1:{self.port}",
            "s3.region": REGION,
            "s3.access-key-id": key,
            "s3.secret-access-key": f"secret of {key}",
        }

    def end_all(self) -> None:
        """Let every key that was lent so far end."""
        self.live.clear()


class _Handler(BaseHTTPRequestHandler):
    """Hands requests on whose key is lent."""

    door: ClassVar[LendingDoor]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_args: object) -> None:
        """Stay silent."""

    def _handle(self) -> None:
        body = self._body()
        found = _KEY.search(self.headers.get("Authorization", ""))
        key = found[1] if found else "no key"
        if key not in self.door.live:
            self.door.refused[key] += 1
            code = b"ExpiredToken" if key.startswith("lent-") else b"InvalidAccessKeyId"
            self._answer(403, {"Content-Type": "application/xml"}, _REFUSAL % code)
            return
        self.door.used[key] += 1
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.door.server.port, timeout=PATIENCE_S
        )
        try:
            gone = {"expect", "transfer-encoding", "content-length"}
            headers = {
                name: text for name, text in self.headers.items() if name.lower() not in gone
            }
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            self._answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def _body(self) -> bytes:
        """Return the body of a request, which may come in chunks."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size_bytes := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size_bytes))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response(status)
        own = {name: value for name, value in headers.items() if name.lower() not in _HOP}
        length = headers.get("Content-Length") if self.command == "HEAD" else None
        for name, value in {**own, "Content-Length": length or str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()


@contextmanager
def lending_door(server: S3Server) -> Iterator[LendingDoor]:
    """Run a door before an object store."""
    door = LendingDoor(server)
    handler: Any = type("Handler", (_Handler,), {"door": door})
    door_server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    door_server.daemon_threads = True
    door.port = door_server.server_port
    thread = threading.Thread(target=door_server.serve_forever, name="lending door", daemon=True)
    thread.start()
    try:
        yield door
    finally:
        door_server.shutdown()
        door_server.server_close()
        thread.join()
