"""A real redis-server for tests and benchmarks: on a free port, with AOF, in a temporary folder."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from common.errors import ConfigError
from common.metadata.keyspace import RedisUser, acl_rules
from common.metadata.redis.keyspace import RedisKeyspace
from common.settings import StoreSettings
from neve.local.machine import find_redis_server
from tests.support.patience import PATIENCE_S


def executable() -> str | None:
    """Return the server that a stack would start."""
    try:
        return str(find_redis_server(os.environ).program)
    except ConfigError:
        return None


PORTS = range(20_000, 32_000)
"""Below those that the system gives to outgoing connections: it would give one away before a
server that is being started has it."""
_chance = random.SystemRandom()
_given = set[int]()
USER, PASSWORD = "neve", "0123456789abcdef" * 4
"""A user of every server, with what Névé needs and nothing beyond."""
LOGIN = f"{USER}:{PASSWORD}@"
"""In a URL: before the host."""


def free_port() -> int:
    """Return a port that nobody listens on, another one each time."""
    while True:
        port = _chance.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


class RedisServer:
    """One server process; ends with `stop`, dies with `kill`, comes back with `start`."""

    def __init__(
        self,
        folder: Path,
        *,
        fsync: str = "everysec",
        append_only: bool = True,
        options: Sequence[str] = (),
    ) -> None:
        self.port = free_port()
        self.folder = folder
        self._options = ["--appendonly", "yes" if append_only else "no", "--appendfsync", fsync]
        self._options += options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens. There it lets everybody do everything."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def user_url(self) -> str:
        """The same for a user who has Névé's rights only, as in an installation."""
        return f"redis://{LOGIN}127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Id of the process that runs."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    def start(self, *options: str, answer: bytes = b"+PONG") -> None:
        """Start it and wait until it answers.

        Args:
            *options: For this start only.
            answer: What it says then to `PING`.
        """
        program = executable()
        assert program is not None, "no redis-server on this machine"
        words = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        words += ["--dir", str(self.folder), "--loglevel", "warning", "--daemonize", "no"]
        words += ["--user", USER, "on", f">{PASSWORD}", *acl_rules(RedisUser.STORE).split()]
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*words, *self._options, *options], stdout=log, stderr=subprocess.STDOUT
            )
        until_s = time.monotonic() + PATIENCE_S
        while not self._answers(answer):
            assert time.monotonic() < until_s, (self.folder / "redis.log").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """End it in good order."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
            self._process = None

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Have it live and do nothing for the length of a block."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def say(self, *words: str) -> Any:
        """Return the answer to one command."""
        with redis.Redis(port=self.port) as link:
            return link.execute_command(*words)

    def _answers(self, answer: bytes) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 1) as link,
        ):
            link.sendall(b"PING\r\n")
            return link.recv(len(answer)) == answer
        return False


@contextlib.contextmanager
def running(
    *, fsync: str = "everysec", append_only: bool = True, options: Sequence[str] = ()
) -> Iterator[RedisServer]:
    """Run a server for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="neve-redis-", ignore_cleanup_errors=True) as folder:
        server = RedisServer(Path(folder), fsync=fsync, append_only=append_only, options=options)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server for all tests of a session; each test makes tables of its own."""
    if executable() is None:
        pytest.skip("no redis-server on this machine")
    with running() as server:
        yield server


async def empty(redis: RedisServer) -> None:
    """Remove all that a server holds."""
    keyspace = RedisKeyspace(StoreSettings(url=redis.url, timeout_s=5.0))
    await keyspace.fetch([[("FLUSHALL",)]])
    await keyspace.close()
