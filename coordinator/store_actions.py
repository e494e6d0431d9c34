"""The actions of the core that the store performs: reserve, release, and write an analysis.

Reserve and release run concurrently and make no decisions: the answer of the store becomes an
event, and an unclear answer becomes an unknown outcome. An analysis only saves a later read, so it
may be late or be lost with the coordinator. Analyses are written in batches, and a newer analysis
of a tablet replaces one that still waits.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from common.errors import ConflictError, MetadataError, UnavailableError
from common.metadata.changes import (
    Applied,
    DropHold,
    Outcome,
    Refused,
    ReleaseAttempt,
    ReserveFiles,
    Unknown,
    WriteAnalyses,
    WriteAnalysis,
)
from common.metadata.store import TabletStore
from common.model.job import JobAction, Kind
from common.model.outcome import AttemptEnd, RefusalCode
from common.model.tablet import TabletId
from common.telemetry import Log
from common.wire import Assignment
from coordinator.context import ShellContext
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.assignment import compose_assignment, output_prefix
from coordinator.core.scans import ANALYSES_AT_ONCE
from coordinator.ports import Submit
from coordinator.table_faults import TableFaults

# ------------------------------------------------------------------------------ Reserve and release


RELEASE_TRIES_MAX = 5
"""Tries of one release; after that, the core requests the release again."""
RETRY_PAUSE_S = 0.5


class StoreActions:
    """Performs actions on the store. Its only state is a count of conflicts."""

    def __init__(self, context: ShellContext, submit: Submit) -> None:
        """Create an instance that submits answers through `submit`."""
        self._context = context
        self._submit = submit
        self.conflicts = 0

    async def perform(self, action: do.Reserve | do.Release) -> None:
        """Perform one action, and submit its answer before returning."""
        match action:
            case do.Reserve():
                await self._reserve(action)
            case do.Release():
                await self._release(action)

    async def _reserve(self, action: do.Reserve) -> None:
        """Reserve under a new attempt id; submit JobReserved, JobRefused or JobReserveUnknown."""
        job, take = action.job, action.take
        change, outcome = await self._try_reserve(action)
        answer = await self._compose(action, outcome) if isinstance(outcome, Applied) else outcome
        match answer:
            case Assignment():
                self._submit(on.JobReserved(take=take, assignment=answer))
            case Refused(code=code, reason=reason):
                self._submit(on.JobRefused(take=take, job=job, code=code, reason=reason))
            case Unknown():
                self._submit(on.JobReserveUnknown(take=take, job=job, attempt=change.attempt))

    async def _try_reserve(self, action: do.Reserve) -> tuple[ReserveFiles, Outcome]:
        """Reserve; if a SYSTEM job wants files of an expired hold, drop the hold first."""
        change = self._reserve_change(action)
        outcome = await self._apply(change)
        held = isinstance(outcome, Refused) and outcome.code == RefusalCode.SELECTED
        if held and action.job.kind is Kind.SYSTEM:
            outcome = await self._apply(DropHold(tablet=action.job.tablet))
            if isinstance(outcome, Applied):
                change = self._reserve_change(action)
                outcome = await self._apply(change)
        return change, outcome

    def _reserve_change(self, action: do.Reserve) -> ReserveFiles:
        job = action.job
        attempt = self._context.ids.next("att")
        return ReserveFiles(
            tablet=job.tablet,
            attempt=attempt,
            job=job.id,
            kind=job.kind,
            inputs=job.inputs,
            output_prefix=output_prefix(job, attempt),
            outputs_max=0
            if job.action == JobAction.ANALYZE
            else max(job.outputs_expected, len(job.cuts) + 1),
            group=job.group,
            compactor=action.compactor,
            request=job.request,
            cuts_at=job.cuts[0] if len(job.cuts) == 1 else None,
        )

    async def _compose(self, action: do.Reserve, applied: Applied) -> Assignment | Unknown:
        """Return the assignment of a reserved job; without its table the job cannot run."""
        assert applied.reservation is not None
        assert applied.tablet is not None
        job, request = action.job, None
        try:
            table = await self._context.store.table(job.tablet.table)
            if job.request is not None:
                request = await self._context.store.request(job.tablet.table, job.request)
        except (MetadataError, UnavailableError) as error:
            return Unknown(reason=str(error))
        if table is None or (job.request is not None and request is None):
            return Unknown(reason="its table or request was removed after the reservation")
        try:
            return compose_assignment(
                job, applied.reservation, table, applied.tablet, applied.now_s, request=request
            )
        except Exception as error:  # A failure on one table must not stop the others.
            return Unknown(reason=self._context.faults.note("handing out", table.id, error))

    async def _release(self, action: do.Release) -> None:
        """Release a reservation; submit AttemptSettled, or nothing if the store does not answer."""
        for _ in range(RELEASE_TRIES_MAX):
            end = await self._released(action)
            if end is not None:
                settled = on.AttemptSettled(tablet=action.tablet, attempt=action.attempt, end=end)
                self._submit(settled)
                return
            await asyncio.sleep(RETRY_PAUSE_S)
        self._context.log("release not answered", attempt=action.attempt, tablet=str(action.tablet))

    async def _released(self, action: do.Release) -> AttemptEnd | None:
        change = ReleaseAttempt(
            tablet=action.tablet,
            attempt=action.attempt,
            end=action.end,
            cause=action.cause,
            coordinator=self._context.coordinator if action.for_silence else None,
            halvings=action.halvings,
        )
        match await self._apply(change):
            case Applied():
                return action.end
            case Refused(code=code, reason=reason):
                self._context.log("release refused", code=code, cause=reason)
                return await self._settled_end(action)
            case Unknown():
                return None

    async def _settled_end(self, action: do.Release) -> AttemptEnd | None:
        """Return how an attempt ended; None if it is still held or the end is unknown."""
        try:
            mark = await self._context.store.outcome(action.tablet.table, action.attempt)
            tablet = await self._context.store.tablet(action.tablet)
        except (MetadataError, UnavailableError):
            return None
        if tablet is not None and action.attempt in tablet.running:
            return None
        return mark.end if mark is not None else AttemptEnd.LOST

    async def _apply(self, change: ReserveFiles | DropHold | ReleaseAttempt) -> Outcome:
        """Apply a change; if the store gives no clear answer, the outcome is `Unknown`."""
        try:
            outcome = await self._context.apply(change)
        except ConflictError as error:
            # Nothing was written, so the outcome is known.
            return Refused(code=RefusalCode.CONFLICT, reason=str(error))
        except (MetadataError, UnavailableError) as error:
            return Unknown(reason=str(error))
        if isinstance(outcome, Applied):
            self.conflicts += outcome.conflicts
        return outcome


# ----------------------------------------------------------------------------------------- Analyses


WAITING_ANALYSES_MAX = 20_000
"""Maximum number of waiting analyses; the oldest are dropped while the store does not answer."""


class AnalysisWriter:
    """Writes waiting analyses in the background."""

    def __init__(
        self,
        store: TabletStore,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        log: Log,
        faults: TableFaults | None = None,
    ) -> None:
        """Create a writer whose tasks `spawn` starts."""
        self._faults = faults or TableFaults(log)
        self._store = store
        self._spawn = spawn
        self._log = log
        self._waiting: dict[TabletId, WriteAnalysis] = {}
        self._writing = False
        self.conflicts = 0

    def put(self, analysis: WriteAnalysis) -> None:
        """Schedule the write of an analysis."""
        self._waiting.pop(analysis.tablet, None)
        self._waiting[analysis.tablet] = analysis
        if len(self._waiting) > WAITING_ANALYSES_MAX:
            del self._waiting[next(iter(self._waiting))]
        if not self._writing:
            self._writing = True
            self._spawn(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                analyses = self._next_batch()
                work = partial(self._write, analyses)
                await self._faults.run("noting analyses", analyses[0].tablet.table, work)
        finally:
            self._writing = False

    def _next_batch(self) -> list[WriteAnalysis]:
        """Remove and return the oldest analysis, with others of the same table."""
        table = next(iter(self._waiting)).table
        tablets: list[TabletId] = []
        for tablet in self._waiting:
            if tablet.table == table:
                tablets.append(tablet)
            if len(tablets) == ANALYSES_AT_ONCE:
                break
        return [self._waiting.pop(tablet) for tablet in tablets]

    async def _write(self, analyses: list[WriteAnalysis]) -> None:
        table = analyses[0].tablet.table
        change = WriteAnalyses(table=table, notes=tuple(analyses))
        try:
            outcome = await self._store.apply(change)
        except (MetadataError, UnavailableError) as error:
            self._log("analyses not written", table=table, tablets=len(analyses), cause=str(error))
            return
        if isinstance(outcome, Applied):
            self.conflicts += outcome.conflicts
