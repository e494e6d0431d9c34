"""Performs the actions of one attempt and returns the results as events, until it is reported."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import assert_never

from common.backoff import Backoff
from common.clock import Clock
from common.errors import (
    AttemptCancelledError,
    AttemptStalledError,
    CompactionError,
    ConflictError,
    EngineRestartedError,
    InputError,
    MetadataError,
    UnavailableError,
    UnknownOutcomeError,
)
from common.metadata.changes import (
    Applied,
    CommitAttempt,
    Refused,
    RetagFiles,
    Unknown,
)
from common.metadata.store import TabletStore
from common.model.file import DataFile
from common.model.outcome import AttemptEnd, Refusal, RefusalCode
from common.model.table import Table
from common.telemetry import Log
from common.tracing import Spans
from common.wire import AttemptReport, CompactorCalls
from compactor.core import actions as do
from compactor.core import events as on
from compactor.core.attempt import AttemptStateMachine
from compactor.core.progress import AttemptPhase, RewriteProgress, Stall
from compactor.ports import CompactorMetrics, Engine, OwnFiles

REPORT_BACKOFF = Backoff()
_ENDS: dict[type[CompactionError], AttemptEnd] = {
    AttemptCancelledError: AttemptEnd.CANCELLED,
    EngineRestartedError: AttemptEnd.LOST,
}
"""Outcome of an attempt by the class of its error; any other error is a failure."""
_SPAN_NAMES = {
    AttemptPhase.PREPARING: "prepare",
    AttemptPhase.REWRITING: "rewrite",
    AttemptPhase.VERIFYING: "verify",
    AttemptPhase.COMMITTING: "commit",
}


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
    ) -> None:
        self._coordinator = coordinator
        self._engine = engine
        self._store = store
        self._files = files
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._spans = spans
        self._hurry = asyncio.Event()
        self._rewrites: dict[str, asyncio.Task[on.Event]] = {}
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
            actions = self._handle(attempt, on.AttemptStarted())
            while not attempt.over:
                (action,) = actions
                actions = self._handle(attempt, await self._perform(attempt, action))
        finally:
            del self._phases[attempt.id]

    def _handle(self, attempt: AttemptStateMachine, event: on.Event) -> list[do.Action]:
        """Handle an event of an attempt; record the start of its phases."""
        now_s = self._clock.now_s()
        actions = attempt.handle(event, now_s)
        self._phases[attempt.id].setdefault(attempt.progress.state, now_s)
        return actions

    async def cancel(self, attempt: AttemptStateMachine, asked: on.CancelRequested) -> None:
        """Cancel an attempt and its rewrite."""
        for action in attempt.handle(asked, self._clock.now_s()):
            assert isinstance(action, do.CancelRewrite), action
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
        for action in attempt.handle(on.GrantReceived(bytes_s), self._clock.now_s()):
            assert isinstance(action, do.ApplyGrant), action
            await self._engine.grant(attempt.id, action.bytes_s)

    async def _perform(self, attempt: AttemptStateMachine, action: do.Action) -> on.Event:
        match action:
            case do.Rewrite():
                return await self._rewrite(attempt)
            case do.SendCommit(commit, delay_s):
                await asyncio.sleep(delay_s)
                return await self._commit(attempt.assignment.table, commit)
            case do.ReadOutcome(delay_s):
                await asyncio.sleep(delay_s)
                return await self._read_outcome(attempt)
            case do.DeleteOutputs(paths):
                await self._files.delete(attempt.assignment.table, paths)
                return on.OutputsDeleted()
            case do.SendReport(report):
                self._count(attempt, report)
                return await self._report(report)
            case do.CancelRewrite() | do.ApplyGrant():
                raise AssertionError(action)  # Performed by the caller; it has no answer.
            case _:
                assert_never(action)

    async def _rewrite(self, attempt: AttemptStateMachine) -> on.Event:
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

    async def _rewritten(self, attempt: AttemptStateMachine) -> on.Event:
        def on_progress(progress: RewriteProgress) -> None:
            if attempt.end is None:
                self._handle(attempt, on.RewriteProgressed(progress))

        try:
            await self._files.check_location(attempt.assignment.table)
            if attempt.cancel_asked:
                return on.RewriteFailed(
                    error_class="AttemptCancelledError", cause="not begun", end=AttemptEnd.CANCELLED
                )
            # The grant may have changed while the location was checked.
            granted = attempt.progress.granted_bytes_s
            assignment = replace(attempt.assignment, grant_bytes_s=granted)
            return on.RewriteDone(await self._engine.run(assignment, on_progress))
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
    ) -> on.RewriteFailed:
        """Return the failure of a rewrite; one that was given up counts as stalled."""
        if error is None or attempt.id in self._stalled:
            error = AttemptStalledError(self._stalled[attempt.id])
        name, end = type(error).__name__, _ENDS.get(type(error), AttemptEnd.FAILED)
        self._log("rewrite failed", attempt=attempt.id, error_class=name, cause=str(error))
        return on.RewriteFailed(error_class=name, cause=str(error), end=end)

    async def _commit(self, table: Table, commit: CommitAttempt | RetagFiles) -> on.Event:
        outputs = commit.outputs if isinstance(commit, CommitAttempt) else ()
        try:
            confirm = partial(self._refused_without_outputs, table, outputs)
            outcome = await self._store.apply(commit, confirm=confirm)
        except ConflictError as error:
            return on.CommitConflicted(str(error))
        except (UnknownOutcomeError, UnavailableError) as error:
            return on.CommitUnknown(str(error))
        except MetadataError as error:
            # It is unknown how far the commit came, so the files are left to the collector.
            return on.CommitRefused(code=RefusalCode.METADATA, reason=str(error), sent=True)
        match outcome:
            case Applied():
                return on.CommitApplied()
            case Refused():
                return on.CommitRefused(code=outcome.code, reason=outcome.reason, sent=outcome.sent)
            case Unknown():
                return on.CommitUnknown(outcome.reason)
            case _:
                assert_never(outcome)

    async def _refused_without_outputs(
        self, table: Table, outputs: tuple[DataFile, ...]
    ) -> Refusal | None:
        """Return why an attempt must not commit because its outputs are gone, or None.

        Such an attempt had stalled and was given up, and its outputs were deleted. Only a store
        that has lost changes still has its reservation, and would replace the inputs by nothing.
        """
        gone = await self._files.missing(table, tuple(file.path for file in outputs))
        if not gone:
            return None
        reason = f"output {gone[0]} was deleted, as if the attempt had been given up"
        return Refusal(RefusalCode.LOST, reason)

    async def _read_outcome(self, attempt: AttemptStateMachine) -> on.Event:
        try:
            mark = await self._store.outcome(attempt.assignment.table.id, attempt.id)
        except (MetadataError, UnavailableError) as error:
            return on.OutcomeReadFailed(str(error))
        if mark is None:
            return on.OutcomeRead(end=None)
        return on.OutcomeRead(end=mark.end, cause=mark.cause)

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

    async def _report(self, report: AttemptReport) -> on.Event:
        failures = 0
        while True:
            try:
                await self._coordinator.report(report)
            except UnavailableError as error:
                self._log("report not heard", attempt=report.attempt, cause=str(error))
                if self._hurry.is_set():
                    return on.ReportDelivered()
                failures += 1
                await asyncio.sleep(REPORT_BACKOFF.wait_s(failures))
            else:
                return on.ReportDelivered()
