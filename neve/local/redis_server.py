"""The Redis server of a stack: a private socket, a password, an append-only file.

The server has no port, so other users of the machine cannot connect.
"""

import hashlib
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from common.errors import ConfigError, error_line
from common.metadata.redis.acl import RedisUser, rules
from common.runtime import Clock
from neve.local.processes import ProcessRef, spawn
from neve.local.stack_folder import write_secret

START_WAIT_MAX_S = 60.0
"""A large append-only file takes long to load."""
POLL_S = 0.05
OUTPUT_LIMIT = "client-output-buffer-limit normal 1gb 512mb 60"
"""A client that does not read its answers is disconnected before they fill the memory."""


class AppendSync(StrEnum):
    """When Redis flushes its append-only file to disk."""

    ALWAYS = "always"
    EVERYSEC = "everysec"


@dataclass(frozen=True, slots=True)
class RedisServer:
    """Everything that is needed to start a server and to connect to it."""

    program: Path
    folder: Path
    socket: Path
    """The socket it listens on, in a private folder; the server has no port."""
    log: Path
    password: str
    append_sync: AppendSync = AppendSync.EVERYSEC

    @property
    def url(self) -> str:
        """The address, including the password."""
        return f"unix://:{self.password}@{self.socket}?db=0"

    def start(self, environ: Mapping[str, str], clock: Clock) -> ProcessRef:
        """Start the server on the data in its folder and wait until it answers.

        Args:
            environ: The environment of the process, with the mark.
            clock: Bounds the wait.
        """
        settings = self.folder / "redis.conf"
        write_secret(settings, self._settings())
        earlier_bytes = self.log.stat().st_size if self.log.exists() else 0
        process = spawn([str(self.program), str(settings)], environ, self.log)
        reference = ProcessRef.of("redis", psutil.Process(process.pid))
        try:
            self._wait(process, clock, earlier_bytes)
        finally:
            # The server outlives this process. A return code avoids Python's warning about that.
            process.returncode = 0
        return reference

    def answers(self) -> bool:
        """Return whether the server accepts commands; it does not while it loads its data."""
        return self._answer().endswith(b"+PONG\r\n")

    def heard(self) -> bool:
        """Return whether the server answers at all, even if it is still loading its data."""
        return bool(self._answer())

    def _answer(self) -> bytes:
        """Return the server's answer to AUTH and PING; empty if there is none."""
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(2.0)
                link.connect(str(self.socket))
                link.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\n") < 2 and (part := link.recv(4096)):
                    answer += part
        except OSError:
            return b""
        return answer

    def _settings(self) -> str:
        """Return the content of the settings file."""
        digest = hashlib.sha256(self.password.encode()).hexdigest()
        return "\n".join(
            (
                "port 0",
                f'unixsocket "{self.socket}"',
                "unixsocketperm 700",
                # The only user. Commands are not renamed: the append-only file must stay readable.
                f"user default on #{digest} {rules(RedisUser.STORE)}",
                OUTPUT_LIMIT,
                f'dir "{self.folder}"',
                "daemonize no",
                # A process title would overwrite the environment and the mark in it.
                "set-proc-title no",
                "appendonly yes",
                f"appendfsync {self.append_sync}",
                # Commands only: any later Redis or Valkey server can read them.
                "aof-use-rdb-preamble no",
                'save ""',
                "maxmemory-policy noeviction",
                "",
            )
        )

    def _wait(self, process: subprocess.Popen[bytes], clock: Clock, earlier_bytes: int) -> None:
        """Wait until the server answers; raise if it exits or takes too long."""
        until_s = clock.now_s() + START_WAIT_MAX_S
        while not self.answers():
            try:
                code = process.wait(timeout=POLL_S)
            except subprocess.TimeoutExpired:
                if clock.now_s() < until_s:
                    continue
                raise ConfigError(
                    f"Redis did not answer within {START_WAIT_MAX_S:.0f} s: see {self.log}"
                ) from None
            raise ConfigError(
                f"Redis exited at once (code {code}): {self._complaint(earlier_bytes)}"
            )

    def _complaint(self, earlier_bytes: int) -> str:
        """Return the server's error; log output before `earlier_bytes` is of an earlier run."""
        output = self.log.read_bytes()[earlier_bytes:].decode(errors="replace")
        if "handle RDB format version" in output:
            return (
                f"{self.program} cannot read the data in {self.folder}: another server wrote"
                " it; put that server first in PATH"
            )
        return f"{error_line(output)} (see {self.log})"


def is_redis(process: psutil.Process) -> bool:
    """Return whether a process of a stack is its Redis."""
    try:
        return any(word.endswith("/redis.conf") for word in process.cmdline())
    except psutil.Error:
        return False
