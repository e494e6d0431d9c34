"""What another user may reach is found: a check that finds nothing would be a decoration."""

from __future__ import annotations

import os
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.neighbour import kind_that_refuses, reachable


@contextmanager
def server_that_says(words: bytes) -> Iterator[int]:
    class Door(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            self.request.sendall(words)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Door) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_open_folders_are_found() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        (folder / "below").mkdir()
        (folder / "below" / "file").touch()
        assert reachable([folder]) == []

        folder.chmod(0o711)
        (folder / "below").chmod(0o777)
        found = reachable([folder])
        if os.geteuid() != 0:
            assert found == [f"{folder} is open"]
        else:
            deeds = ("listed", "filled")
            assert {f"{folder}/below can be {deed}" for deed in deeds} <= set(found)
            assert f"{folder}/below/file can be renamed" in found
            assert f"{folder} can be listed" not in found


@pytest.mark.parametrize(
    ("words", "finding"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", "/ answers"),
        (b"!yro2\n", "obeys Py4J's orders"),
        (b"welcome", "what listens there"),
    ],
)
def test_a_server_that_lets_everybody_in_is_found(words: bytes, finding: str) -> None:
    with server_that_says(words) as port, pytest.raises(AssertionError, match=finding):
        kind_that_refuses(port)


def test_a_server_that_refuses_is_known() -> None:
    with server_that_says(b"HTTP/1.1 401 Unauthorized\r\n\r\n") as port:
        assert kind_that_refuses(port) == "HTTP"
