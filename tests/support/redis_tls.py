"""Real Redis servers and Sentinels that speak TLS alone, with an authority made for the test.

The server in the wheel is built without TLS. `REDIS_TLS_SERVER` names one that has it; Debian's and
Ubuntu's `redis-server` do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import redis

from tests.support.kubernetes.certificates import Certificates, create_certificates
from tests.support.redis_sentinels import DOWN_AFTER_MS, QUORUM, SERVICE, until
from tests.support.redis_server import free_port

VARIABLE = "REDIS_TLS_SERVER"
HOST = "localhost"
"""What certificates name; no address."""


def program_with_tls() -> str:
    """Return a server that is built with TLS."""
    found = os.environ.get(VARIABLE) or shutil.which("redis-server") or ""
    assert found, (
        f"no redis-server with TLS: `apt install redis-server`, or name one with {VARIABLE}"
    )
    return found


@dataclass
class TlsProcess:
    """A server or a Sentinel; only TLS reaches it."""

    folder: Path
    certificates: Certificates
    lines: Sequence[str]
    sentinel: bool = False
    port: int = field(default_factory=free_port)

    def start(self) -> None:
        """Start it and wait until it answers."""
        name = f"{'sentinel' if self.sentinel else 'server'}-{self.port}"
        own = self.folder / name
        own.mkdir()
        server, authority = self.certificates.server, self.certificates.authority
        settings = [
            *(
                "port 0",
                f"tls-port {self.port}",
                "bind 127.0.0.1",
                f"dir {own}",
                "tls-replication yes",
            ),
            *(f"tls-cert-file {server}", f"tls-key-file {server}"),
            f"tls-ca-cert-file {authority}",
            *self.lines,
        ]
        config = own / "redis.conf"
        config.write_text("".join(f"{line}\n" for line in settings))
        command = [program_with_tls(), str(config), *(["--sentinel"] if self.sentinel else [])]
        self._log = own / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            until(f"answer, see {self._log}", self._answers)
        except BaseException:
            self.kill()
            raise

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        with contextlib.suppress(redis.ConnectionError):
            return bool(self.ask("PING"))
        return False

    def ask(self, *words: str) -> Any:
        """Return the answer to a command, over TLS."""
        with redis.Redis(
            host=HOST,
            port=self.port,
            ssl=True,
            ssl_ca_certs=str(self.certificates.authority),
            ssl_certfile=str(self.certificates.server),
            ssl_keyfile=str(self.certificates.server),
            decode_responses=True,
        ) as link:
            return link.execute_command(*words)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait(10)


@dataclass
class TlsGroup:
    """A primary, a replica, three Sentinels. The first server begins as primary."""

    servers: list[TlsProcess]
    sentinels: list[TlsProcess]
    certificates: Certificates

    def url(self, *, scheme: str = "rediss+sentinel", **query: str) -> str:
        """Return the URL that names the Sentinels, and the group's authority if no other."""
        places = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        given = {"ssl_ca_certs": str(self.certificates.authority), **query}
        return f"{scheme}://{places}/{SERVICE}/0?{urlencode(given)}"

    def primary_port(self) -> set[int]:
        """Return where the Sentinels say that the primary is."""
        asked = (
            sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
            for sentinel in self.sentinels
        )
        return {int(port) for _, port in asked}


@contextlib.contextmanager
def tls_group(*, clients_prove: bool = False, announced: str = HOST) -> Iterator[TlsGroup]:
    """Run servers and Sentinels for the length of a block.

    Args:
        clients_prove: Whether a client must have a certificate, too.
        announced: What Sentinels answer: the name in the certificates, or an address.
    """
    running: list[TlsProcess] = []

    def started(lines: Sequence[str], *, sentinel: bool = False) -> TlsProcess:
        process = TlsProcess(folder, certificates, lines, sentinel=sentinel)
        process.start()
        running.append(process)
        return process

    with tempfile.TemporaryDirectory(prefix="neve-tls-", ignore_cleanup_errors=True) as text:
        folder = Path(text)
        certificates = create_certificates(folder, [HOST])
        prove = f"tls-auth-clients {'yes' if clients_prove else 'no'}"
        own = [
            prove,
            f"replica-announce-ip {announced}",
            "appendonly yes",
            "repl-diskless-sync-delay 0",
        ]
        try:
            first = started(own)
            second = started([*own, f"replicaof {announced} {first.port}"])
            watch = [
                prove,
                "sentinel resolve-hostnames yes",
                f"sentinel announce-hostnames {'yes' if announced == HOST else 'no'}",
                f"sentinel monitor {SERVICE} {announced} {first.port} {QUORUM}",
                f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
                f"sentinel failover-timeout {SERVICE} 10000",
            ]
            sentinels = [started(watch, sentinel=True) for _ in range(3)]
            group = TlsGroup([first, second], sentinels, certificates)
            until("Sentinels know all", lambda: all(map(_knows_all, sentinels)))
            yield group
        finally:
            for each in running:
                each.kill()


def _knows_all(sentinel: TlsProcess) -> bool:
    state = sentinel.ask("SENTINEL", "MASTER", SERVICE)
    return (int(state["num-slaves"]), int(state["num-other-sentinels"])) == (1, 2)
