"""One compactor: takes jobs while it has free slots, sends heartbeats, drains, leaves."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol, assert_never

from common.control_settings import CatalogSettings
from common.errors import (
    AttemptCancelledError,
    AttemptStalledError,
    CompactionError,
    ConfigError,
    ConflictError,
    EngineDiedError,
    EngineRestartedError,
    InputError,
    MetadataError,
    RefusedError,
    UnavailableError,
    UnknownOutcomeError,
)
from common.metadata.changes import Applied, CommitAttempt, Refused, RetagFiles, Unknown
from common.metadata.store import TabletStore
from common.model.file import DataFile
from common.model.job import KEEPS_DELETED, KNOWS_BUFFERS, KNOWS_LAKE, JobAction
from common.model.outcome import AttemptEnd, Refusal, RefusalCode, RowCounts
from common.model.table import Table
from common.parquet.location import Location, existing_files
from common.parquet.service_files import LocationOwner, read_owner, refuse_other_owner
from common.primitives import Backoff, BoundedMap
from common.runtime import Clock, IdSource
from common.settings import DEFAULT_GROUP, CompactorSettings
from common.storage_threads import StorageThreads
from common.telemetry import Log
from common.tracing import Spans
from common.wire import (
    Assignment,
    AttemptReport,
    CompactorCalls,
    Heartbeat,
    HeartbeatReply,
    MetricValue,
    TakeRequest,
)
from compactor import core
from compactor.core import (
    AttemptPhase,
    AttemptStateMachine,
    Engine,
    OwnFiles,
    RewriteProgress,
    Stall,
    StallWatch,
)
from compactor.lake_commit import LakePublisher
from compactor.rewrite.file_io import delete_file, table_location

# ----------------------------------------------------------------------------------- Attempt runner
# Performs the actions of one attempt and returns the results as events, until it is reported.


REPORT_BACKOFF = Backoff()
_ENDS: dict[type[CompactionError], AttemptEnd] = {
    AttemptCancelledError: AttemptEnd.CANCELLED,
    ConflictError: AttemptEnd.CONFLICTED,
    EngineRestartedError: AttemptEnd.LOST,
}
"""Outcome of an attempt by the class of its error; any other error is a failure."""
ACTIONS = (JobAction.ANALYZE.value, KEEPS_DELETED, KNOWS_BUFFERS, KNOWS_LAKE)
"""What a compactor of this release supports in addition to rewrites and drops."""
_SPAN_NAMES = {
    AttemptPhase.PREPARING: "prepare",
    AttemptPhase.REWRITING: "rewrite",
    AttemptPhase.VERIFYING: "verify",
    AttemptPhase.COMMITTING: "commit",
}


class CompactorMetrics(Protocol):
    """Counts the results of attempts. No method blocks or fails."""

    def rewrite_ended(self, elapsed_s: float) -> None:
        """Count a rewrite, whatever its outcome."""

    def attempt_ended(
        self, end: AttemptEnd, *, read_bytes: int, written_bytes: int, waited_s: float
    ) -> None:
        """Count an attempt.

        Args:
            end: Its outcome.
            read_bytes: Size of its inputs; 0 unless it committed.
            written_bytes: Size of its outputs; 0 unless it committed.
            waited_s: Total time that its tasks have waited for the grant.
        """

    def rows_dropped(self, counts: RowCounts) -> None:
        """Count the rows that a committed attempt dropped, by reason."""

    def values(self, slots: int, busy: int) -> tuple[MetricValue, ...]:
        """Return the current value of each metric.

        Args:
            slots: Number of concurrent attempts at most.
            busy: Attempts that the compactor holds.
        """


class AttemptRunner:
    """Runs attempts, several concurrently. It stores only the running rewrites.

    Commits go directly to the store, so the coordinator may be down meanwhile. The runner waits
    for it only at the end, to deliver the report.
    """

    def __init__(
        self,
        *,
        coordinator: CompactorCalls,
        engine: Engine,
        store: TabletStore,
        files: OwnFiles,
        metrics: CompactorMetrics,
        clock: Clock,
        log: Log,
        spans: Spans,
        catalog: CatalogSettings,
    ) -> None:
        self._coordinator = coordinator
        self._engine = engine
        self._store = store
        self._files = files
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._spans = spans
        self._publisher = LakePublisher(
            store=store, files=files, clock=clock, log=log, catalog=catalog
        )
        self._hurry = asyncio.Event()
        self._rewrites: dict[str, asyncio.Task[core.Event]] = {}
        self._stalled: dict[str, str] = {}
        """Running attempts that have stalled → why they are given up."""
        self._phases: dict[str, dict[AttemptPhase, float]] = {}
        """Attempt → start of each of its phases."""

    def hurry(self) -> None:
        """Stop waiting for a coordinator that does not answer, because the process ends soon."""
        self._hurry.set()

    async def run(self, attempt: AttemptStateMachine) -> None:
        """Run an attempt until its outcome is reported."""
        self._phases[attempt.id] = {}
        try:
            actions = self._handle(attempt, core.AttemptStarted())
            while not attempt.over:
                (action,) = actions
                actions = self._handle(attempt, await self._perform(attempt, action))
        finally:
            del self._phases[attempt.id]

    def _handle(self, attempt: AttemptStateMachine, event: core.Event) -> list[core.Action]:
        """Handle an event of an attempt; record the start of its phases."""
        now_s = self._clock.now_s()
        actions = attempt.handle(event, now_s)
        self._phases[attempt.id].setdefault(attempt.progress.state, now_s)
        return actions

    async def cancel(
        self, attempt: AttemptStateMachine, cancellation: core.CancelRequested
    ) -> None:
        """Cancel an attempt and its rewrite."""
        for action in attempt.handle(cancellation, self._clock.now_s()):
            assert isinstance(action, core.CancelRewrite), action
            await self._engine.cancel(attempt.id)

    async def give_up(self, stall: Stall) -> None:
        """Restart the engine because attempts have stalled, and end these attempts.

        The engine is ended first, so that an attempt can delete its outputs safely.
        """
        self._stalled.update(dict.fromkeys(stall.attempts, stall.cause))
        await self._engine.restart(stall.cause)
        for attempt in stall.attempts:
            # An attempt may be stalled outside the engine.
            if (rewrite := self._rewrites.get(attempt)) is not None:
                rewrite.cancel()

    async def grant(self, attempt: AttemptStateMachine, bytes_s: float | None) -> None:
        """Apply a new limit to an attempt and its rewrite."""
        for action in attempt.handle(core.GrantReceived(bytes_s), self._clock.now_s()):
            assert isinstance(action, core.ApplyGrant), action
            await self._engine.grant(attempt.id, action.bytes_s)

    async def _perform(self, attempt: AttemptStateMachine, action: core.Action) -> core.Event:
        match action:
            case core.Rewrite():
                return await self._rewrite(attempt)
            case core.SendCommit(commit, delay_s, lake):
                await asyncio.sleep(delay_s)
                if lake and isinstance(commit, CommitAttempt):
                    return await self._publisher.publish(attempt.assignment, commit, lake)
                return await self._commit(attempt.assignment.table, commit)
            case core.ReadOutcome(delay_s):
                await asyncio.sleep(delay_s)
                return await self._read_outcome(attempt)
            case core.DeleteOutputs(paths):
                await self._files.delete(attempt.assignment.table, paths)
                return core.OutputsDeleted()
            case core.SendReport(report):
                self._count(attempt, report)
                return await self._report(report)
            case core.CancelRewrite() | core.ApplyGrant():
                raise AssertionError(action)  # Performed by the caller; it has no answer.
            case _:
                assert_never(action)

    async def _rewrite(self, attempt: AttemptStateMachine) -> core.Event:
        """Let the engine rewrite; return early if the attempt is given up."""
        began_s = self._clock.now_s()
        rewrite = self._rewrites[attempt.id] = asyncio.create_task(self._rewritten(attempt))
        try:
            await asyncio.wait({rewrite})
            return self._failed(attempt) if rewrite.cancelled() else rewrite.result()
        finally:
            self._metrics.rewrite_ended(self._clock.now_s() - began_s)
            rewrite.cancel()
            del self._rewrites[attempt.id]
            self._stalled.pop(attempt.id, None)

    async def _rewritten(self, attempt: AttemptStateMachine) -> core.Event:
        def on_progress(progress: RewriteProgress) -> None:
            if attempt.end is None:
                self._handle(attempt, core.RewriteProgressed(progress))

        try:
            await self._files.check_location(attempt.assignment.table)
            if attempt.cancel_asked:
                return core.RewriteFailed(
                    error_class="AttemptCancelledError", cause="not begun", end=AttemptEnd.CANCELLED
                )
            # The grant may have changed while the location was checked.
            granted = attempt.progress.granted_bytes_s
            assignment = replace(attempt.assignment, grant_bytes_s=granted)
            return core.RewriteDone(await self._engine.run(assignment, on_progress))
        except InputError as error:
            return self._failed(attempt, await self._away(attempt.assignment.table) or error)
        except CompactionError as error:
            return self._failed(attempt, error)

    async def _away(self, table: Table) -> UnavailableError | None:
        """Return why no file of a table can be blamed: its whole location is unavailable."""
        try:
            await self._files.check_location(table, again=True)
        except UnavailableError as error:
            return error
        except CompactionError:
            return None  # The location has another owner: the error of the file stands.
        return None

    def _failed(
        self, attempt: AttemptStateMachine, error: CompactionError | None = None
    ) -> core.RewriteFailed:
        """Return the failure of a rewrite; one that was given up counts as stalled."""
        if error is None or attempt.id in self._stalled:
            error = AttemptStalledError(self._stalled[attempt.id])
        name, end = type(error).__name__, _ENDS.get(type(error), AttemptEnd.FAILED)
        self._log("rewrite failed", attempt=attempt.id, error_class=name, cause=str(error))
        return core.RewriteFailed(error_class=name, cause=str(error), end=end)

    async def _commit(self, table: Table, commit: CommitAttempt | RetagFiles) -> core.Event:
        outputs = commit.outputs if isinstance(commit, CommitAttempt) else ()
        try:
            confirm = partial(self._refused_without_outputs, table, outputs)
            outcome = await self._store.apply(commit, confirm=confirm)
        except ConflictError as error:
            return core.CommitConflicted(str(error))
        except (UnknownOutcomeError, UnavailableError) as error:
            return core.CommitUnknown(str(error))
        except MetadataError as error:
            # It is unknown how far the commit came, so the files are left to the collector.
            return core.CommitRefused(code=RefusalCode.METADATA, reason=str(error), sent=True)
        match outcome:
            case Applied():
                return core.CommitApplied()
            case Refused():
                return core.CommitRefused(
                    code=outcome.code, reason=outcome.reason, sent=outcome.sent
                )
            case Unknown():
                return core.CommitUnknown(outcome.reason)
            case _:
                assert_never(outcome)

    async def _refused_without_outputs(
        self, table: Table, outputs: tuple[DataFile, ...]
    ) -> Refusal | None:
        """Return why an attempt must not commit because its outputs are gone, or None.

        Such an attempt had stalled and was given up, and its outputs were deleted. Only a store
        that has lost changes still has its reservation, and would replace the inputs by nothing.
        """
        missing = await self._files.missing(table, tuple(file.path for file in outputs))
        if not missing:
            return None
        reason = f"output {missing[0]} was deleted, as if the attempt had been given up"
        return Refusal(RefusalCode.LOST, reason)

    async def _read_outcome(self, attempt: AttemptStateMachine) -> core.Event:
        try:
            mark = await self._store.outcome(attempt.assignment.table.id, attempt.id)
        except (MetadataError, UnavailableError) as error:
            return core.OutcomeReadFailed(str(error))
        if mark is None:
            return core.OutcomeRead(end=None)
        return core.OutcomeRead(end=mark.end, cause=mark.cause)

    def _count(self, attempt: AttemptStateMachine, report: AttemptReport) -> None:
        """Count an attempt before its report, which may wait long for the coordinator."""
        read_bytes, written_bytes = attempt.committed_bytes
        self._metrics.attempt_ended(
            report.end,
            read_bytes=read_bytes,
            written_bytes=written_bytes,
            waited_s=report.waited_s,
        )
        self._metrics.rows_dropped(attempt.committed_counts)
        self._trace(attempt, read_bytes, written_bytes)

    def _trace(self, attempt: AttemptStateMachine, read_bytes: int, written_bytes: int) -> None:
        """Send a span for each phase up to the last; a phase that was not observed is empty."""
        begun, until_s = self._phases[attempt.id], self._clock.now_s()
        phases = list(AttemptPhase)
        last = max(map(phases.index, begun))
        for phase in reversed(phases[: last + 1]):
            since_s = begun.get(phase, until_s)
            attributes: dict[str, str | int] = {"neve.attempt": attempt.id}
            if phase is AttemptPhase.COMMITTING:
                attributes |= {"neve.input_bytes": read_bytes, "neve.output_bytes": written_bytes}
            self._spans.emit(
                attempt.assignment.trace, _SPAN_NAMES[phase], (since_s, until_s), attributes
            )
            until_s = since_s

    async def _report(self, report: AttemptReport) -> core.Event:
        failures = 0
        while True:
            try:
                await self._coordinator.report(report)
            except UnavailableError as error:
                self._log("report not heard", attempt=report.attempt, cause=str(error))
                if self._hurry.is_set():
                    return core.ReportDelivered()
                failures += 1
                await asyncio.sleep(REPORT_BACKOFF.wait_s(failures))
            else:
                return core.ReportDelivered()


# ---------------------------------------------------------------------------------------- Compactor


LOOK_INTERVAL_S = 1.0
"""Interval between checks of attempts; shorter if they are given up sooner."""
TAKE_BACKOFF = Backoff()
ENGINE_PAUSE_MAX_S = 2.0
"""Longest pause before a dead engine is started again; the start itself also waits."""
CANCEL_MAX_S = 10.0
"""Longest wait at a stop for cancelled attempts; then the engine is ended."""
STOP_MAX_S = 20.0
"""Longest wait for work without an engine: deletion of outputs, reports, the last message."""
_HAND_BACK = core.CancelRequested(cause="the compactor shuts down", end=AttemptEnd.DRAINED)


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
        task_memory: str = "",
        spans: Spans | None = None,
        catalog: CatalogSettings | None = None,
    ) -> None:
        self._compactor = compactor
        self._settings = settings
        self._group = group
        self._edition, self._task_memory = edition, task_memory
        self._node, self._metrics = node, metrics
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
            spans=spans or Spans(),
            catalog=catalog or CatalogSettings(),
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
                attempt.progress.message(self._stalls.quiet_s(attempt.id))
                for attempt in self._attempts.values()
            ),
            draining=self._draining.is_set(),
            engine_pid=self._engine.pid,
            ready=self._ready.is_set(),
            start_problem=self._failed_starts[1],
            edition=self._edition,
            task_memory=self._task_memory,
            metrics=self._metrics.values(self._settings.slots, len(self._attempts)),
            actions=ACTIONS,
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
            progress = [
                attempt.progress for attempt in self._attempts.values() if attempt.rewriting
            ]
            stall = self._stalls.look(progress, self._engine.health(), self._clock.now_s())
            if stall is not None:
                self._log("engine restarted", cause=stall.cause, stalled=list(stall.attempts))
                await self._runner.give_up(stall)

    async def _obey(self, reply: HeartbeatReply) -> None:
        if reply.drain:
            self.drain()
        for name in reply.cancel:
            attempt = self._attempts.get(name)
            if attempt is not None:
                cancellation = core.CancelRequested(cause="the coordinator took the job back")
                await self._runner.cancel(attempt, cancellation)
        for grant in reply.grants:
            attempt = self._attempts.get(grant.attempt)
            if attempt is not None:
                await self._runner.grant(attempt, grant.bytes_s)

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
        taking = asyncio.ensure_future(self._coordinator.take(self._take_request(take)))
        down = asyncio.ensure_future(self._engine.wait_down())
        try:
            await asyncio.wait({taking, down}, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                self._log("take withdrawn", take=take, cause="the engine died")
                await self._coordinator.withdraw(take)
            return await taking
        finally:
            taking.cancel()
            down.cancel()

    def _take_request(self, take: str) -> TakeRequest:
        return TakeRequest(
            take=take,
            compactor=self._compactor,
            incarnation=self.incarnation,
            group=self._group,
            node=self._node,
            wait_max_s=self._settings.take_wait_max_s,
            actions=ACTIONS,
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


# ------------------------------------------------------------------------------------ Table storage
# The compactor's own access to storage: owners of locations, deletion of failed outputs.
#
# Storage may be slow, so every call runs in a thread.


STORE_BACKOFF = Backoff()
"""Pauses between two calls to a store that does not answer."""
STORE_TRIES_MAX = 7
"""Some 13 s in all, so that no job fails because a store restarts."""
TRUSTED_S = 60.0
"""Time for which a successful check of a location stays valid."""
TABLES_MAX = 10_000


class TableStorage:
    """Checks and deletes through `common.parquet`, in threads, because storage may be slow."""

    def __init__(self, store_id: Callable[[], Awaitable[str]], clock: Clock) -> None:
        """Create an unused instance.

        Args:
            store_id: Returns the id of this service's store.
            clock: Measures the age of checks.
        """
        self._store_id = store_id
        self._clock = clock
        self._threads = StorageThreads()
        self._trusted_until_s: BoundedMap[str, float] = BoundedMap(TABLES_MAX)

    async def check_location(self, table: Table, *, again: bool = False) -> None:
        """Check that the table's location belongs to this store, and to no other table.

        The gateway claims a location before a table exists. So a location without an owner was
        emptied, or its file system is not mounted at the moment; jobs wait until it is back.

        Args:
            table: The table.
            again: Check even if a recent check was successful.

        Raises:
            InputError: It belongs to another store or table.
            UnavailableError: The storage or the store does not answer, or the location has lost
                its owner.
        """
        if table.lake is not None:
            return  # Its log is read first, and shows which table it is.
        now_s = self._clock.now_s()
        if not again and (self._trusted_until_s.get(table.id) or 0.0) > now_s:
            return
        store_id = await self._ours()
        owner = await self._threads.run(table.location, _owner, table.location)
        try:
            refuse_other_owner(table.location, owner, store_id, table.id)
        except RefusedError as error:
            if owner is None:
                raise UnavailableError(f"{error}; is it mounted?") from error
            raise InputError(str(error)) from error
        self._trusted_until_s.put(table.id, now_s + TRUSTED_S)

    async def _ours(self) -> str:
        failures = 0
        while True:
            try:
                return await self._store_id()
            except (UnavailableError, ConflictError):
                failures += 1
                if failures >= STORE_TRIES_MAX:
                    raise
            await asyncio.sleep(STORE_BACKOFF.wait_s(failures))

    async def missing(self, table: Table, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Return the files that do not exist; see `OwnFiles`."""
        if not paths:
            return ()
        return await self._threads.run(table.location, _missing, table.location, paths)

    async def delete(self, table: Table, paths: tuple[str, ...]) -> None:
        """Delete outputs; files that cannot be deleted are left to the collector.

        Nothing is deleted if the location belongs to another table, which may have been rebuilt
        from these outputs.
        """
        if paths:
            with suppress(UnavailableError):
                await self._threads.run(table.location, _delete, table, paths)


def _owner(uri: str) -> LocationOwner | None:
    return read_owner(table_location(uri))


def _missing(uri: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    try:
        existing = existing_files(table_location(uri), paths)
    except CompactionError as error:
        # The outputs were written moments ago, so the failure may be temporary.
        raise UnavailableError(f"outputs cannot be checked: {error}") from error
    return tuple(path for path in paths if path not in existing)


def _delete(table: Table, paths: tuple[str, ...]) -> None:
    try:
        location: Location = table_location(table.location)
        owner = read_owner(location)
    except CompactionError:
        return
    if owner is not None and owner.is_another(table.id):
        return
    for path in paths:
        delete_file(location, path)
