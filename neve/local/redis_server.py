"""The Redis server of a stack: loopback, password, append-only file."""

import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from common.clock import Clock
from common.errors import ConfigError
from neve.local.ports import LOOPBACK
from neve.local.processes import ProcessRef, spawn
from neve.local.state import write_secret

START_WAIT_MAX_S = 60.0
"""A large append-only file takes its time to load."""
POLL_S = 0.05
LOG_TAIL_BYTES = 2000


class AppendSync(StrEnum):
    """When Redis forces its append-only file to disk."""

    ALWAYS = "always"
    EVERYSEC = "everysec"


@dataclass(frozen=True, slots=True)
class RedisServer:
    """What is needed to start a server and to reach it."""

    program: Path
    folder: Path
    log: Path
    port: int
    password: str
    append_sync: AppendSync = AppendSync.EVERYSEC

    @property
    def url(self) -> str:
        """The address, with the password."""
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/0"

    def start(self, environ: Mapping[str, str], clock: Clock) -> ProcessRef:
        """Start the server and wait until it answers; data in the folder is loaded.

        Args:
            environ: The environment of the process, with the mark.
            clock: Bounds the wait.
        """
        # The password stands in a file of ours: arguments are visible to everybody.
        settings = self.folder / "redis.conf"
        write_secret(settings, self._settings())
        self.log.write_bytes(b"")
        process = spawn([str(self.program), str(settings)], environ, self.log)
        reference = ProcessRef.of("redis", psutil.Process(process.pid))
        try:
            self._wait(process, clock)
        finally:
            # The server outlives this process, which must not mind when it forgets it.
            process.returncode = 0
        return reference

    def answers(self) -> bool:
        """Return whether the server takes commands; not while it loads its data."""
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=2.0) as link:
                link.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\n") < 2 and (part := link.recv(4096)):
                    answer += part
        except OSError:
            return False
        return answer.endswith(b"+PONG\r\n")

    def _settings(self) -> str:
        """Return the settings file."""
        return "\n".join(
            (
                f"bind {LOOPBACK}",
                f"port {self.port}",
                f"requirepass {self.password}",
                f'dir "{self.folder}"',
                "daemonize no",
                # A title would overwrite the environment, and the mark in it.
                "set-proc-title no",
                "appendonly yes",
                f"appendfsync {self.append_sync}",
                'save ""',
                "maxmemory-policy noeviction",
                "",
            )
        )

    def _wait(self, process: subprocess.Popen[bytes], clock: Clock) -> None:
        """Return when the server answers; raise if it ended or took too long."""
        until_s = clock.now_s() + START_WAIT_MAX_S
        while not self.answers():
            try:
                code = process.wait(timeout=POLL_S)
            except subprocess.TimeoutExpired:
                if clock.now_s() < until_s:
                    continue
                raise ConfigError(
                    f"Redis on port {self.port} did not answer within {START_WAIT_MAX_S:.0f} s: "
                    f"see {self.log}"
                ) from None
            raise ConfigError(f"Redis ended at once (code {code}): {self._complaint()}")

    def _complaint(self) -> str:
        """Return what the server last said."""
        tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        if "ddress already in use" in tail:
            return f"port {self.port} is in use on {LOOPBACK}; choose another one"
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        return f"{lines[-1] if lines else 'it said nothing'} (see {self.log})"
