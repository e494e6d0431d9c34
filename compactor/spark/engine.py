"""The engine that the compactor's service uses: Spark in a driver process.

The engine starts the driver process, sends it attempts, and replaces it when it dies.
`RunningAttempts` holds the caller of each attempt.
"""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from common import errors
from common.errors import (
    AttemptCancelledError,
    ConfigError,
    EngineDiedError,
    EngineRestartedError,
    RewriteError,
)
from common.primitives import Backoff
from common.wire import Assignment
from compactor.core import EngineHealth, OnProgress, RewriteResult
from compactor.spark import driver_protocol
from compactor.spark.driver_protocol import (
    DriverSettings,
    Order,
    Stop,
    frame,
    read,
)

# ----------------------------------------------------------------------------------- Driver process
# One driver process, from its parent's side: start, messages, end.


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
        own_end, other_end = socket.socketpair()
        with other_end:
            process = await _spawn(settings, other_end.fileno())
        reader, writer = await asyncio.open_connection(sock=own_end)
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
    variables = {name: value for name, value in inherited.items() if name not in ACTOR_VARIABLES}
    path = {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    return variables | path | driver_protocol.LIGHT_DISTUTILS


# ------------------------------------------------------------------------------------------- Engine


@dataclass(frozen=True, slots=True)
class _Waiter:
    """The caller of an attempt: its future, and its progress callback."""

    result: asyncio.Future[Any]
    on_progress: OnProgress


class RunningAttempts:
    """Every open attempt has one future, settled at most once."""

    def __init__(self) -> None:
        """Create an empty set."""
        self._open: dict[str, _Waiter] = {}

    def open(self, attempt: str, on_progress: OnProgress) -> asyncio.Future[Any]:
        """Return the future of a new attempt.

        Args:
            attempt: An id that is not open.
            on_progress: Called with its progress.
        """
        assert attempt not in self._open, f"attempt {attempt} runs already"
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[attempt] = _Waiter(result, on_progress)
        return result

    def is_open(self, attempt: str) -> bool:
        """Return whether an attempt has a waiting caller."""
        return attempt in self._open

    def close(self, attempt: str) -> None:
        """Remove an attempt; later notices of it are ignored."""
        self._open.pop(attempt, None)

    def hear(self, notice: driver_protocol.Notice) -> None:
        """Pass on a notice of an attempt; notices of closed attempts are ignored."""
        match notice:
            case driver_protocol.Progressed(attempt, progress):
                if (waiter := self._open.get(attempt)) is not None:
                    waiter.on_progress(progress)
            case driver_protocol.Done(attempt, result):
                waiter = self._open.get(attempt)
                if waiter is not None and not waiter.result.done():
                    waiter.result.set_result(result)
            case driver_protocol.Failed(attempt, error_class, cause):
                self.fail(attempt, errors.error_by_name(error_class, cause))
            case (
                driver_protocol.Started()
                | driver_protocol.NotStarted()
                | driver_protocol.LifeSign()
            ):
                raise AssertionError(f"{notice} is not about an attempt")

    def fail(self, attempt: str, error: Exception) -> None:
        """Raise an error in the caller of an attempt."""
        waiter = self._open.get(attempt)
        if waiter is not None and not waiter.result.done():
            waiter.result.set_exception(error)
            # The caller may be gone already; this prevents a warning about an unread error.
            waiter.result.exception()

    def ids(self) -> tuple[str, ...]:
        """Return the open attempts."""
        return tuple(self._open)

    def fail_each(
        self, attempts: Iterable[str], cause: str, error: type[RewriteError] = EngineDiedError
    ) -> None:
        """Fail attempts because their driver is gone; those that are over are ignored."""
        for attempt in attempts:
            self.fail(attempt, error(cause))


# --------------------------------------------------------------------------------------- The engine


RESTART_BACKOFF = Backoff(base_s=1.0, max_s=30.0)
"""Pause after each consecutive failed start."""
AGAIN_WAIT_MAX_S = 5.0
"""How long `start` waits for a restarting driver before it raises an error."""


class SparkEngine:
    """Runs attempts in a driver process, all of them concurrently."""

    def __init__(self, settings: DriverSettings) -> None:
        """Create an engine without starting it."""
        self._settings = settings
        self._driver: DriverProcess | None = None
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._down.set()
        self._attempts = RunningAttempts()
        self._granted: dict[str, float | None] = {}
        """Open attempt → its last grant since it was assigned."""
        self._keeper: asyncio.Task[None] | None = None
        self._signs, self._busy = 0, frozenset[str]()
        self.starts = 0
        """Number of drivers that have started."""
        self.start_took_s = 0.0
        """Duration of the last start."""

    @property
    def pid(self) -> int | None:
        """The process id of the driver, or None."""
        return self._driver.pid if self._driver is not None else None

    async def start(self) -> None:
        """Start the engine and wait until it is ready. A running engine is left as it is.

        Raises:
            ConfigError: Spark cannot start on this machine.
            EngineDiedError: The driver died while it started, or is restarting.
        """
        if self._keeper is not None:
            try:
                async with asyncio.timeout(AGAIN_WAIT_MAX_S):
                    await self._up.wait()
            except TimeoutError:
                raise EngineDiedError("the Spark driver is restarting") from None
            return
        driver = await self._bring_up()
        self._keeper = asyncio.create_task(self._keep(driver), name="spark-driver")
        self._keeper.add_done_callback(self._kept)

    async def wait_down(self) -> None:
        """Wait until no driver is up."""
        await self._down.wait()

    async def run(self, assignment: Assignment, on_progress: OnProgress) -> RewriteResult:
        """Rewrite, verify, and return the outputs; nothing is committed here.

        Args:
            assignment: The work.
            on_progress: Called with the progress, on the event loop.

        Raises:
            RewriteError: The job failed; the class shows whether a retry may succeed.
        """
        attempt = assignment.reservation.attempt
        result = await self.run_payload(attempt, assignment, on_progress)
        assert isinstance(result, RewriteResult), type(result)
        return result

    async def run_payload(self, attempt: str, payload: Any, on_progress: OnProgress) -> Any:
        """Run the work on any payload that can be pickled.

        Args:
            attempt: Its id; names the Spark jobs.
            payload: Passed to the work.
            on_progress: Called with the progress.

        Raises:
            RewriteError: As the work raised it.
        """
        result = self._attempts.open(attempt, on_progress)
        try:
            driver = await self._living(result)
            await driver.order(driver_protocol.Run(attempt, payload))
            if attempt in self._granted:  # The grant changed while no driver was up.
                await driver.order(driver_protocol.Grant(attempt, self._granted[attempt]))
            return await result
        except asyncio.CancelledError:
            await self._order(driver_protocol.Cancel(attempt))
            raise
        finally:
            self._attempts.close(attempt)
            self._granted.pop(attempt, None)

    async def grant(self, attempt: str, bytes_s: float | None) -> None:
        """Set an attempt's limit in bytes/s; None: no limit.

        Args:
            attempt: An attempt, which may be over or not begun.
            bytes_s: Limit on reads and writes together.
        """
        if self._attempts.is_open(attempt):
            self._granted[attempt] = bytes_s
            await self._order(driver_protocol.Grant(attempt, bytes_s))

    async def cancel(self, attempt: str) -> None:
        """End an attempt soon; its `run` raises AttemptCancelledError.

        Args:
            attempt: An attempt, which may be over.
        """
        if self._up.is_set():
            await self._order(driver_protocol.Cancel(attempt))
        else:
            self._attempts.fail(attempt, AttemptCancelledError(f"attempt {attempt} was cancelled"))

    def health(self) -> EngineHealth:
        """Return the driver's signs of life."""
        return EngineHealth(up=self._up.is_set(), signs=self._signs, busy=self._busy)

    async def restart(self, cause: str) -> None:
        """End the driver, frozen or not; the keeper starts another one.

        Args:
            cause: Error text for every running attempt, which fails.
        """
        if self._driver is not None and self._up.is_set():
            self._is_up(False)
            self._attempts.fail_each(self._attempts.ids(), cause, EngineRestartedError)
            await self._driver.kill()

    async def stop(self) -> None:
        """End everything; no process is left."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        self._attempts.fail_each(self._attempts.ids(), "the engine was stopped")
        driver, self._driver = self._driver, None
        self._is_up(False)
        if driver is not None:
            await driver.end(politely=True)

    async def _living(self, result: asyncio.Future[Any]) -> DriverProcess:
        """Return a running driver; wait for one during a restart."""
        if self._keeper is None:
            raise EngineDiedError("the Spark engine is not started")
        up = asyncio.ensure_future(self._up.wait())
        try:
            patience_s = self._settings.start_timeout_s
            await asyncio.wait(
                {up, result}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            up.cancel()
        if result.done():
            result.result()
        if self._driver is None or not self._up.is_set():
            raise EngineDiedError(f"no Spark driver has started within {patience_s:.0f} s")
        return self._driver

    async def _order(self, order: driver_protocol.Order) -> None:
        """Send an order to the driver, if there is one; a dead one has cancelled everything."""
        if self._driver is not None:
            with suppress(EngineDiedError):
                await self._driver.order(order)

    async def _bring_up(self) -> DriverProcess:
        """Start a driver and wait until its Spark is up."""
        driver = await DriverProcess.start(self._settings)
        self._driver = driver
        timeout_s = self._settings.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                notice = await driver.receive()
        except (EOFError, TimeoutError, asyncio.CancelledError) as error:
            await driver.end(politely=False)
            if isinstance(error, asyncio.CancelledError):
                raise
            what = "died" if isinstance(error, EOFError) else f"was not up in {timeout_s:.0f} s"
            raise EngineDiedError(f"Spark driver {what}: see {self._settings.log_file}") from None
        if not isinstance(notice, driver_protocol.Started):
            await driver.end(politely=False)
            cause = getattr(notice, "cause", notice)
            raise ConfigError(f"Spark does not start: {cause} (see {self._settings.log_file})")
        driver.started(notice.jvm_pid)
        self._busy = frozenset()
        self.starts += 1
        self.start_took_s = notice.took_s
        self._is_up(True)
        return driver

    async def _keep(self, driver: DriverProcess) -> None:
        """Listen to the driver and replace it whenever it dies. Never ends by itself."""
        while True:
            await self._listen(driver)
            self._is_up(False)
            lost = self._attempts.ids()  # Later attempts wait for the next driver.
            code = await driver.end(politely=False)
            self._attempts.fail_each(lost, f"Spark driver {driver.pid} died (code {code})")
            driver = await self._again()

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        """Release the callers that wait for a failed keeper; `start` may be called again."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self._keeper = None
            self._is_up(False)
            cause = f"the Spark engine failed: {type(error).__name__}: {error}"
            self._attempts.fail_each(self._attempts.ids(), cause)

    async def _again(self) -> DriverProcess:
        """Start another driver, retrying until it works."""
        tries = 0
        while True:
            await asyncio.sleep(RESTART_BACKOFF.wait_s(tries))
            try:
                return await self._bring_up()
            except (EngineDiedError, ConfigError):
                tries += 1

    def _is_up(self, up: bool) -> None:
        """Wake the callers that wait for a driver, or for its end."""
        for event, is_set in ((self._up, up), (self._down, not up)):
            if is_set:
                event.set()
            else:
                event.clear()

    async def _listen(self, driver: DriverProcess) -> None:
        """Pass on notices until the driver is gone."""
        while True:
            try:
                notice = await driver.receive()
            except EOFError:
                return
            if isinstance(notice, driver_protocol.LifeSign):
                self._signs, self._busy = self._signs + 1, notice.busy
            else:
                self._attempts.hear(notice)
