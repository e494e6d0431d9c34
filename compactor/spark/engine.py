"""The engine that the compactor's service uses: Spark in a driver process.

The engine starts the driver process, sends it attempts, and starts another driver process
when it dies. `RunningAttempts` knows who waits for each attempt.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from common import errors
from common.backoff import Backoff
from common.errors import (
    AttemptCancelledError,
    ConfigError,
    EngineDiedError,
    EngineRestartedError,
    RewriteError,
)
from common.wire import Assignment
from compactor.core.progress import EngineHealth, OnProgress, RewriteResult
from compactor.spark import driver_protocol
from compactor.spark.driver_process import DriverProcess
from compactor.spark.driver_protocol import DriverSettings


@dataclass(frozen=True, slots=True)
class _Waiter:
    """Who waits for an attempt, and who hears of its progress."""

    result: asyncio.Future[Any]
    on_progress: OnProgress


class RunningAttempts:
    """Every open attempt has one future, settled at most once."""

    def __init__(self) -> None:
        """Start with none."""
        self._open: dict[str, _Waiter] = {}

    def open(self, attempt: str, on_progress: OnProgress) -> asyncio.Future[Any]:
        """Return the future of a new attempt.

        Args:
            attempt: An id that is not open.
            on_progress: Hears of its progress.
        """
        assert attempt not in self._open, f"attempt {attempt} runs already"
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[attempt] = _Waiter(result, on_progress)
        return result

    def is_open(self, attempt: str) -> bool:
        """Return whether somebody waits for an attempt."""
        return attempt in self._open

    def close(self, attempt: str) -> None:
        """Forget an attempt; what is heard of it later is a straggler's."""
        self._open.pop(attempt, None)

    def hear(self, notice: driver_protocol.Notice) -> None:
        """Pass on what the driver says of an attempt; stragglers are left alone."""
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
        """Raise an error where an attempt is waited for."""
        waiter = self._open.get(attempt)
        if waiter is not None and not waiter.result.done():
            waiter.result.set_exception(error)
            # Whoever waited may have left already; then nobody has to look at it.
            waiter.result.exception()

    def ids(self) -> tuple[str, ...]:
        """Return the open attempts."""
        return tuple(self._open)

    def fail_each(
        self, attempts: Iterable[str], cause: str, error: type[RewriteError] = EngineDiedError
    ) -> None:
        """Fail attempts because their driver is gone; those that are over are left alone."""
        for attempt in attempts:
            self.fail(attempt, error(cause))


# --------------------------------------------------------------------------------------- The engine


RESTART_BACKOFF = Backoff(base_s=1.0, max_s=30.0)
"""Pause after each start in a row that did not come up."""
AGAIN_WAIT_MAX_S = 5.0
"""How long `start` waits for a driver that is being started again before it says so."""


class SparkEngine:
    """Runs attempts in a driver process; several at a time, as many as are asked for."""

    def __init__(self, settings: DriverSettings) -> None:
        """Start nothing yet."""
        self._settings = settings
        self._driver: DriverProcess | None = None
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._down.set()
        self._attempts = RunningAttempts()
        self._granted: dict[str, float | None] = {}
        """Of open attempts, what they were told since they were assigned."""
        self._keeper: asyncio.Task[None] | None = None
        self._signs, self._busy = 0, frozenset[str]()
        self.starts = 0
        """How many drivers came up so far."""
        self.start_took_s = 0.0
        """How long the last one needed for it."""

    @property
    def pid(self) -> int | None:
        """The process id of the driver, or None."""
        return self._driver.pid if self._driver is not None else None

    async def start(self) -> None:
        """Be ready to run; returns when it is. A running engine stays as it is.

        Raises:
            ConfigError: Spark cannot start on this machine.
            EngineDiedError: The driver died while it started, or is being started again.
        """
        if self._keeper is not None:
            try:
                async with asyncio.timeout(AGAIN_WAIT_MAX_S):
                    await self._up.wait()
            except TimeoutError:
                raise EngineDiedError("the Spark driver is being started again") from None
            return
        driver = await self._bring_up()
        self._keeper = asyncio.create_task(self._keep(driver), name="spark-driver")
        self._keeper.add_done_callback(self._kept)

    async def wait_down(self) -> None:
        """Return when no driver is up."""
        await self._down.wait()

    async def run(self, assignment: Assignment, on_progress: OnProgress) -> RewriteResult:
        """Rewrite, verify, and return the outputs; nothing is committed here.

        Args:
            assignment: The work.
            on_progress: Hears how far it is; called on the event loop.

        Raises:
            RewriteError: The job failed; its class says whether it is worth another try.
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
            on_progress: Hears how far it is.

        Raises:
            RewriteError: As the work raised it.
        """
        result = self._attempts.open(attempt, on_progress)
        try:
            driver = await self._living(result)
            await driver.order(driver_protocol.Run(attempt, payload))
            if attempt in self._granted:  # It was told while no driver was up.
                await driver.order(driver_protocol.Grant(attempt, self._granted[attempt]))
            return await result
        except asyncio.CancelledError:
            await self._order(driver_protocol.Cancel(attempt))
            raise
        finally:
            self._attempts.close(attempt)
            self._granted.pop(attempt, None)

    async def grant(self, attempt: str, bytes_s: float | None) -> None:
        """Let an attempt move so many bytes/s from now on; None: no limit.

        Args:
            attempt: One that may be over already, or not begun.
            bytes_s: Reads and writes together.
        """
        if self._attempts.is_open(attempt):
            self._granted[attempt] = bytes_s
            await self._order(driver_protocol.Grant(attempt, bytes_s))

    async def cancel(self, attempt: str) -> None:
        """End an attempt soon; its `run` raises AttemptCancelledError.

        Args:
            attempt: One that may be over already.
        """
        if self._up.is_set():
            await self._order(driver_protocol.Cancel(attempt))
        else:
            self._attempts.fail(attempt, AttemptCancelledError(f"attempt {attempt} was cancelled"))

    def health(self) -> EngineHealth:
        """Return what the driver shows of its life."""
        return EngineHealth(up=self._up.is_set(), signs=self._signs, busy=self._busy)

    async def restart(self, cause: str) -> None:
        """End the driver, frozen or not; the keeper starts another one.

        Args:
            cause: Why; every attempt under way fails with it.
        """
        if self._driver is not None and self._up.is_set():
            self._is_up(False)
            self._attempts.fail_each(self._attempts.ids(), cause, EngineRestartedError)
            await self._driver.kill()

    async def stop(self) -> None:
        """End everything and leave no process behind."""
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
        """Return a driver that is up; wait for one while it is started again."""
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
            raise EngineDiedError(f"no Spark driver came up within {patience_s:.0f} s")
        return self._driver

    async def _order(self, order: driver_protocol.Order) -> None:
        """Tell the driver, if there is one; a dead one has cancelled everything."""
        if self._driver is not None:
            with suppress(EngineDiedError):
                await self._driver.order(order)

    async def _bring_up(self) -> DriverProcess:
        """Start a driver and wait until Spark is up in it."""
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
        """Listen to the driver; whenever it dies, start another one. Never ends by itself."""
        while True:
            await self._listen(driver)
            self._is_up(False)
            lost = self._attempts.ids()  # Those that come from now on wait for the next driver.
            code = await driver.end(politely=False)
            self._attempts.fail_each(lost, f"Spark driver {driver.pid} died (code {code})")
            driver = await self._again()

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        """Let nobody wait for a keeper that failed; `start` may be called again."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self._keeper = None
            self._is_up(False)
            cause = f"the Spark engine failed: {type(error).__name__}: {error}"
            self._attempts.fail_each(self._attempts.ids(), cause)

    async def _again(self) -> DriverProcess:
        """Bring up another driver, trying until it works."""
        tries = 0
        while True:
            await asyncio.sleep(RESTART_BACKOFF.wait_s(tries))
            try:
                return await self._bring_up()
            except (EngineDiedError, ConfigError):
                tries += 1

    def _is_up(self, up: bool) -> None:
        """Let those go on who wait for a driver, or for its end."""
        for event, so in ((self._up, up), (self._down, not up)):
            if so:
                event.set()
            else:
                event.clear()

    async def _listen(self, driver: DriverProcess) -> None:
        """Pass notices on until the driver is gone."""
        while True:
            try:
                notice = await driver.receive()
            except EOFError:
                return
            if isinstance(notice, driver_protocol.LifeSign):
                self._signs, self._busy = self._signs + 1, notice.busy
            else:
                self._attempts.hear(notice)
