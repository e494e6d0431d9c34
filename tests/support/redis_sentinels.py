"""Real Redis servers that fail over: a primary, two replicas, and three Sentinels."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import redis

from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer, executable, free_port

SERVICE = "neve-store"
DOWN_AFTER_MS = 1000
"""Silence after which a Sentinel takes a server for down. The default of Redis is 30 s."""
QUORUM = 2


class SentinelServer:
    """One Sentinel that watches the primary at a port."""

    def __init__(self, folder: Path, primary_port: int, *lines: str) -> None:
        """Start it; `lines` are added to its settings."""
        self.port = free_port()
        self._log = folder / f"sentinel-{self.port}.log"
        config = folder / f"sentinel-{self.port}.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary_port} {QUORUM}\n"
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {SERVICE} 10000\n" + "".join(f"{line}\n" for line in lines)
        )
        program = executable()
        assert program is not None, "no redis-server on this machine"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [program, str(config), "--sentinel"], stdout=log, stderr=subprocess.STDOUT
            )
        try:
            until(f"Sentinel that listens, see {self._log}", self._listens)
        except BaseException:
            self.stop()
            raise

    def _listens(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0),
        ):
            return True
        return False

    def knows(self, replicas: int, sentinels: int) -> bool:
        """Return whether it has found all servers and its colleagues."""
        with contextlib.suppress(redis.ConnectionError):
            state = self.ask("SENTINEL", "MASTER", SERVICE)
            found = int(state["num-slaves"]), int(state["num-other-sentinels"]), state["flags"]
            return bool(found == (replicas, sentinels - 1, "master"))
        return False

    def names(self, port: int) -> bool:
        """Return whether it takes the server at a port for the primary."""
        with contextlib.suppress(redis.ConnectionError):
            place = self.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
            return bool(int(place[1]) == port)
        return False

    def ask(self, *words: str) -> Any:
        """Return the answer to a command."""
        with redis.Redis(port=self.port, decode_responses=True) as link:
            return link.execute_command(*words)

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(10)


class RedisGroup:
    """The servers under one name, and their Sentinels. The first server begins as primary."""

    def __init__(self, folder: Path, *, replicas: int = 2, sentinels: int = 3) -> None:
        # Each answer of a replica counts at once: `store.wait_replicas` needs no second then.
        quick = ("--repl-diskless-sync-delay", "0")
        self.servers: list[RedisServer] = []
        for number in range(1 + replicas):
            own = folder / f"server-{number}"
            own.mkdir()
            follow = ("--replicaof", f"127.0.0.1 {self.servers[0].port}") if number else ()
            self.servers.append(RedisServer(own, options=(*quick, *follow)))
        self.sentinels: list[SentinelServer] = []
        self._folder = folder
        self._sentinel_count = sentinels

    @property
    def url(self) -> str:
        """The URL that names the Sentinels."""
        return sentinel_url(sentinel.port for sentinel in self.sentinels)

    def start(self) -> None:
        """Start all, and return when the Sentinels know each other and the replicas follow."""
        for server in self.servers:
            server.start()
        port = self.servers[0].port
        self.sentinels = [SentinelServer(self._folder, port) for _ in range(self._sentinel_count)]
        replicas = len(self.servers) - 1
        until(
            "Sentinels know all",
            lambda: all(
                sentinel.knows(replicas, len(self.sentinels)) for sentinel in self.sentinels
            ),
        )
        until("replicas follow", lambda: self.following(self.servers[0]) == replicas)

    def stop(self) -> None:
        """End all that still run."""
        for sentinel in self.sentinels:
            sentinel.stop()
        for server in self.servers:
            server.stop()

    def primary(self) -> RedisServer:
        """Return the server that the first Sentinel names."""
        _, port = self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(server for server in self.servers if server.port == int(port))

    def following(self, server: RedisServer) -> int:
        """Return how many replicas of a server have all that it has."""
        found = replication(server)
        return sum(
            found[key]["state"] == "online" for key in found if key.removeprefix("slave").isdigit()
        )

    def until_failed_over(self, lost: RedisServer) -> RedisServer:
        """Return the new primary once every Sentinel names another one than that was lost."""

        def moved() -> bool:
            places = (
                sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
                for sentinel in self.sentinels
            )
            ports = {int(port) for _, port in places}
            return len(ports) == 1 and ports != {lost.port}

        until("fail-over", moved)
        return self.primary()

    def until_demoted(self, server: RedisServer) -> None:
        """Return when a server that is back follows another one."""
        until("demotion", lambda: replication(server)["role"] == "slave")


def replication(server: RedisServer) -> dict[str, Any]:
    """Return what a server says of its role and its replicas."""
    with redis.Redis(port=server.port) as link:
        found: dict[str, Any] = link.info("replication")
        return found


def sentinel_url(ports: Iterator[int] | Sequence[int], service: str = SERVICE) -> str:
    """Return the URL of Sentinels at some ports."""
    return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/{service}/0"


@contextlib.contextmanager
def group_running(*, replicas: int = 2, sentinels: int = 3) -> Iterator[RedisGroup]:
    """Run servers and Sentinels for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="neve-group-", ignore_cleanup_errors=True) as folder:
        group = RedisGroup(Path(folder), replicas=replicas, sentinels=sentinels)
        try:
            group.start()
            yield group
        finally:
            group.stop()


def until(what: str, true: Callable[[], bool]) -> None:
    """Return when something is true."""
    until_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until_s, f"no {what}"
        time.sleep(0.05)
