"""One compactor: takes jobs while it has free slots, sends heartbeats, drains, leaves."""

import asyncio
from contextlib import suppress

from common.backoff import Backoff
from common.clock import Clock
from common.errors import ConfigError, EngineDiedError, UnavailableError
from common.ids import IdSource
from common.metadata.store import TabletStore
from common.model.job import JobAction
from common.model.outcome import AttemptEnd
from common.settings import DEFAULT_GROUP, CompactorSettings
from common.telemetry import Log
from common.tracing import NoSpans, Spans
from common.wire import (
    Assignment,
    CompactorCalls,
    Heartbeat,
    HeartbeatReply,
    TakeRequest,
)
from compactor.core import events as on
from compactor.core.attempt import AttemptStateMachine
from compactor.core.progress import StallWatch
from compactor.ports import CompactorMetrics, Engine, OwnFiles
from compactor.service.attempt_runner import AttemptRunner

LOOK_INTERVAL_S = 1.0
"""Interval between checks of attempts; shorter if they are given up sooner."""
TAKE_BACKOFF = Backoff()
ENGINE_PAUSE_MAX_S = 2.0
"""Longest pause before a dead engine is started again; the start itself also waits."""
CANCEL_MAX_S = 10.0
"""Longest wait at a stop for cancelled attempts; then the engine is ended."""
STOP_MAX_S = 20.0
"""Longest wait for work without an engine: deletion of outputs, reports, the last message."""
_HAND_BACK = on.CancelRequested(cause="the compactor shuts down", end=AttemptEnd.DRAINED)


class CompactorService:
    """Runs up to `slots` attempts at a time. Each is held until its outcome is reported.

    All methods belong to one event loop. `run` ends when every held attempt is reported after
    `drain`. An error from `run` is a broken invariant or a machine that cannot work, and should
    end the process.
    """

    def __init__(
        self,
        compactor: str,
        settings: CompactorSettings,
        *,
        node: str,
        coordinator: CompactorCalls,
        engine: Engine,
        store: TabletStore,
        files: OwnFiles,
        metrics: CompactorMetrics,
        ids: IdSource,
        clock: Clock,
        log: Log,
        group: str = DEFAULT_GROUP,
        edition: str = "",
        spans: Spans | None = None,
    ) -> None:
        self._compactor = compactor
        self._settings = settings
        self._group = group
        self._edition = edition
        self._node = node
        self._coordinator = coordinator
        self._engine = engine
        self._ids = ids
        self._clock = clock
        self._log = log
        self._runner = AttemptRunner(
            coordinator=coordinator,
            engine=engine,
            store=store,
            files=files,
            metrics=metrics,
            clock=clock,
            log=log,
            spans=spans or NoSpans(),
        )
        self.incarnation = ids.next("compactor")
        """Random id of this process: a restarted compactor holds nothing."""
        self._attempts: dict[str, AttemptStateMachine] = {}
        self._stalls = StallWatch(settings.attempt_stall_s)
        self._draining = asyncio.Event()
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._handing_back: asyncio.Task[None] | None = None
        self.stopping = False
        """Whether `stop` was called, whose caller then ends the process."""
        self._engine_lock = asyncio.Lock()
        self._failed_starts = (0, "")

    async def run(self) -> None:
        """Work until drained, then leave and stop the engine."""
        try:
            async with asyncio.TaskGroup() as group:
                forever = [self._beat_forever(), self._watch_forever()]
                endless = [group.create_task(coroutine) for coroutine in forever]
                slots = [group.create_task(self._slot()) for _ in range(self._settings.slots)]
                await asyncio.gather(*slots)
                for task in endless:
                    task.cancel()
            await self._leave("drained")
        finally:
            await self._engine.stop()
            self._ended.set()

    async def wait_ended(self) -> None:
        """Wait until `run` has ended."""
        await self._ended.wait()

    async def wait_ready(self) -> None:
        """Wait until the engine has started for the first time."""
        await self._ready.wait()

    def failed_starts(self) -> tuple[int, str]:
        """Return the number of consecutive failed starts of the engine, and the last cause."""
        return self._failed_starts

    def drain(self) -> None:
        """Take no more jobs; finish those that are held."""
        if not self._draining.is_set():
            self._log("draining", held=len(self._attempts))
        self._draining.set()

    @property
    def stop_max_s(self) -> float:
        """The longest duration of `stop`."""
        return self._settings.drain_timeout_s + CANCEL_MAX_S + STOP_MAX_S

    async def stop(self, wait_max_s: float | None = None) -> None:
        """Drain; hand back the jobs that still run after a wait. No outputs stay in storage.

        Several calls may wait at the same time; the shortest wait applies.

        Args:
            wait_max_s: Longest wait for running jobs; None: the limit of the settings.
        """
        self.stopping = True
        self.drain()
        if await self._has_ended(
            self._settings.drain_timeout_s if wait_max_s is None else wait_max_s
        ):
            return
        if self._handing_back is None:
            self._handing_back = asyncio.create_task(self._hand_back())
        await asyncio.shield(self._handing_back)

    async def _hand_back(self) -> None:
        """Cancel every attempt, so that the coordinator can give the jobs to other compactors."""
        self._log("jobs handed back", attempts=list(self._attempts))
        self._runner.hurry()
        for attempt in list(self._attempts.values()):
            if not attempt.over:
                await self._runner.cancel(attempt, _HAND_BACK)
        if await self._has_ended(CANCEL_MAX_S):
            return
        # An engine that hangs does not react to a cancellation.
        await self._engine.stop()
        if not await self._has_ended(STOP_MAX_S):
            self._log("stopped with attempts held", attempts=list(self._attempts))

    async def _has_ended(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def status(self) -> Heartbeat:
        """Return the current heartbeat."""
        return Heartbeat(
            compactor=self._compactor,
            incarnation=self.incarnation,
            group=self._group,
            node=self._node,
            slots=self._settings.slots,
            attempts=tuple(
                held.progress.message(self._stalls.quiet_s(held.id))
                for held in self._attempts.values()
            ),
            draining=self._draining.is_set(),
            engine_pid=self._engine.pid,
            ready=self._ready.is_set(),
            start_problem=self._failed_starts[1],
            edition=self._edition,
        )

    async def _beat_forever(self) -> None:
        while True:
            try:
                await self._obey(await self._coordinator.beat(self.status()))
            except UnavailableError as error:
                self._log("heartbeat not heard", cause=str(error))
            await asyncio.sleep(self._settings.beat_interval_s)

    async def _watch_forever(self) -> None:
        """Give up stalled attempts, which would otherwise keep their slots for ever."""
        stall_s = self._settings.attempt_stall_s
        interval_s = min(LOOK_INTERVAL_S, stall_s / 5) if stall_s else LOOK_INTERVAL_S
        while True:
            await asyncio.sleep(interval_s)
            held = [attempt.progress for attempt in self._attempts.values() if attempt.rewriting]
            stall = self._stalls.look(held, self._engine.health(), self._clock.now_s())
            if stall is not None:
                self._log("engine restarted", cause=stall.cause, stalled=list(stall.attempts))
                await self._runner.give_up(stall)

    async def _obey(self, reply: HeartbeatReply) -> None:
        if reply.drain:
            self.drain()
        for name in reply.cancel:
            held = self._attempts.get(name)
            if held is not None:
                asked = on.CancelRequested(cause="the coordinator took the job back")
                await self._runner.cancel(held, asked)
        for grant in reply.grants:
            held = self._attempts.get(grant.attempt)
            if held is not None:
                await self._runner.grant(held, grant.bytes_s)

    async def _slot(self) -> None:
        """Take a job, run it, take the next; repeat a call that was not answered."""
        failures = 0
        take = self._ids.next("take")
        while not self._draining.is_set():
            try:
                await self._start_engine()
                if self._draining.is_set():
                    return
                assignment = await self._taken(take)
            except (UnavailableError, EngineDiedError, ConfigError) as error:
                failures += 1
                self._log("no job can be taken", cause=str(error))
                died = isinstance(error, EngineDiedError)
                wait_s = TAKE_BACKOFF.wait_s(failures)
                await self._pause(min(wait_s, ENGINE_PAUSE_MAX_S) if died else wait_s)
                continue
            failures = 0
            take = self._ids.next("take")
            if assignment is not None:
                await self._run_attempt(assignment)

    async def _taken(self, take: str) -> Assignment | None:
        """Wait for a job; if the engine dies meanwhile, withdraw the call.

        A job that was already on its way is still returned, and waits for the next driver.
        """
        asked = asyncio.ensure_future(self._coordinator.take(self._take_request(take)))
        down = asyncio.ensure_future(self._engine.wait_down())
        try:
            await asyncio.wait({asked, down}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                self._log("take withdrawn", take=take, cause="the engine died")
                await self._coordinator.withdraw(take)
            return await asked
        finally:
            asked.cancel()
            down.cancel()

    def _take_request(self, take: str) -> TakeRequest:
        return TakeRequest(
            take=take,
            compactor=self._compactor,
            incarnation=self.incarnation,
            group=self._group,
            node=self._node,
            wait_max_s=self._settings.take_wait_max_s,
            actions=(JobAction.ANALYZE.value,),
        )

    async def _start_engine(self) -> None:
        """Check that the engine is running before a job is taken for it."""
        async with self._engine_lock:
            try:
                await self._engine.start()
            except (EngineDiedError, ConfigError) as error:
                # A process that ends could not report the cause, so this one stays and retries.
                self._failed_starts = (self._failed_starts[0] + 1, str(error))
                raise
            self._failed_starts = (0, "")
            self._ready.set()

    async def _pause(self, seconds: float) -> None:
        """Wait for some time, or until a drain."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._draining.wait()

    async def _run_attempt(self, assignment: Assignment) -> None:
        attempt = AttemptStateMachine(assignment, self._clock.now_s())
        if attempt.id in self._attempts:
            return  # The same answer to a repeated call.
        self._attempts[attempt.id] = attempt
        self._log("attempt begins", attempt=attempt.id, job=assignment.job.id)
        try:
            if self._handing_back is not None:  # The job was already on its way.
                await self._runner.cancel(attempt, _HAND_BACK)
            await self._runner.run(attempt)
        finally:
            del self._attempts[attempt.id]
        self._log("attempt ended", attempt=attempt.id, job=assignment.job.id, end=attempt.end)

    async def _leave(self, cause: str) -> None:
        try:
            await self._coordinator.leave(self._compactor, self.incarnation, cause)
        except UnavailableError as error:
            self._log("left without goodbye", cause=str(error))
