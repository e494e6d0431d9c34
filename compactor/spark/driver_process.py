"""One driver process, from its parent's side: start, messages, end."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

import psutil

from common.errors import EngineDiedError
from compactor.spark.driver_protocol import (
    DriverSettings,
    Order,
    Stop,
    frame,
    read,
)

STOP_WAIT_MAX_S = 15.0
DEATH_WAIT_MAX_S = 0.5
"""A process with a closed pipe is about to be reaped; killing it now would interfere."""
ORPHAN_JVM_WAIT_MAX_S = 5.0
"""How long a JVM without a driver may take to clean up and end by itself."""
JVM_POLL_S = 0.05
ACTOR_VARIABLES = ("RAY_JOB_ID", "RAY_ADDRESS", "RAY_RAYLET_PID", "RAY_CLIENT_MODE")
"""Environment variables of a Ray worker that a driver must not inherit."""


class DriverProcess:
    """A living or dead child with its pipe; never started again."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Take over what `start` has opened."""
        self._process = process
        self._reader = reader
        self._writer = writer
        self._jvm: psutil.Process | None = None

    @classmethod
    async def start(cls, settings: DriverSettings) -> "DriverProcess":
        """Start the process and send its settings; it opens Spark by itself.

        Must be called on the event loop's own thread, because the kernel ends the child with the
        *thread* that started it.
        the *thread* that started it.

        Args:
            settings: The application.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = await _spawn(settings, theirs.fileno())
        reader, writer = await asyncio.open_connection(sock=ours)
        driver = cls(process, reader, writer)
        await driver._send(settings)
        return driver

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def started(self, jvm_pid: int) -> None:
        """Record the process of the driver's JVM, so that `end` leaves none running.

        Args:
            jvm_pid: Process id reported by the driver.
        """
        with contextlib.suppress(psutil.NoSuchProcess):
            self._jvm = psutil.Process(jvm_pid)

    async def receive(self) -> Any:
        """Return the next notice.

        Raises:
            EOFError: The process is gone.
        """
        return await read(self._reader)

    async def order(self, order: Order) -> None:
        """Send an order to the process.

        Raises:
            EngineDiedError: It is gone.
        """
        await self._send(order)

    async def kill(self) -> None:
        """End the process at once, frozen or not; `end` must still be called."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def end(self, *, politely: bool) -> int:
        """End the process and its JVM, and return the exit code.

        Args:
            politely: Let it close Spark first.
        """
        patience_s = STOP_WAIT_MAX_S if politely else DEATH_WAIT_MAX_S
        with contextlib.suppress(EngineDiedError, TimeoutError):
            if politely:
                await self._send(Stop())
            async with asyncio.timeout(patience_s):
                await self._process.wait()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._writer.close()
        code = await self._process.wait()
        await self._end_jvm()
        return code

    async def _end_jvm(self) -> None:
        """Wait for the JVM to end; a frozen or stuck one is killed.

        psutil compares start times, so another process with the same number is safe.
        """
        jvm = self._jvm
        with contextlib.suppress(psutil.NoSuchProcess, TimeoutError):
            async with asyncio.timeout(ORPHAN_JVM_WAIT_MAX_S):
                while jvm is not None and _is_running(jvm):
                    await asyncio.sleep(JVM_POLL_S)
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            if jvm is not None:
                jvm.kill()

    async def _send(self, message: object) -> None:
        """Write one frame; the writer's buffer keeps frames whole and in order."""
        try:
            self._writer.write(frame(message))
            await self._writer.drain()
        except ConnectionError as error:
            raise EngineDiedError(f"Spark driver {self.pid} is gone") from error


def _is_running(process: psutil.Process) -> bool:
    """Return whether a process may continue by itself.

    Raises:
        TimeoutError: It is frozen, so waiting is useless.
    """
    if not process.is_running():
        return False
    status = process.status()
    if status == psutil.STATUS_STOPPED:
        raise TimeoutError
    return bool(status != psutil.STATUS_ZOMBIE)


async def _spawn(settings: DriverSettings, descriptor: int) -> asyncio.subprocess.Process:
    """Start the child with one end of the pipe; its output goes to the log."""
    with open(settings.log_file, "ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "compactor.spark.child",
            str(descriptor),
            str(os.getpid()),
            pass_fds=(descriptor,),
            env=_environment(os.environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the child's environment: inherited, with module path, without the actor's own."""
    kept = {k: v for k, v in inherited.items() if k not in ACTOR_VARIABLES}
    return kept | {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
