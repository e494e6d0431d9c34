"""The shell around the pure core: it receives events, performs actions, and submits the answers.

Turns run one at a time in one thread of one event loop. Only a turn accesses the state, so there
are no locks. Actions that wait for the store run concurrently; their answers arrive as events.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, assert_never

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
from common.model.table import Table
from common.model.tablet import TabletId
from common.primitives import BoundedMap
from common.telemetry import Log
from common.tracing import ATTEMPT, Spans
from common.wire import Assignment, AttemptReport, Heartbeat, HeartbeatReply, TakeRequest
from coordinator.context import ShellContext, TableFaults
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.assignment import compose_assignment, output_prefix
from coordinator.core.scans import ANALYSES_AT_ONCE
from coordinator.core.state import CoordinatorState
from coordinator.ports import Submit
from coordinator.scan.scanner import Scanner

# ------------------------------------------------------------------------------------ Store actions
# The actions of the core that the store performs: reserve, release, and write an analysis.
#
# Reserve and release run concurrently and make no decisions: the answer of the store becomes an
# event, and an unclear answer becomes an unknown outcome. An analysis only saves a later read, so
# it may be late or be lost with the coordinator. Analyses are written in batches, and a newer
# analysis of a tablet replaces one that still waits.


# ------------------------------------------------------------------------------ Reserve and release


RELEASE_TRIES_MAX = 5
"""Tries of one release; after that, the core requests the release again."""
RETRY_PAUSE_S = 0.5


FinishPublished = Callable[[Table, TabletId, str], Awaitable[bool]]


class StoreActions:
    """Performs actions on the store. Its only state is a count of conflicts."""

    def __init__(self, context: ShellContext, submit: Submit, tables: Mapping[str, Table]) -> None:
        """Create an instance that submits answers through `submit`.

        Args:
            context: Shared dependencies of the shell.
            submit: Receives the answers.
            tables: The known tables, by id.
        """
        self._context = context
        self._submit = submit
        self._tables = tables
        self.conflicts = 0
        self.finish_published: FinishPublished | None = None
        """Ends an attempt at a lake table that is in its log; returns whether it did."""

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
            output_prefix=output_prefix(job, attempt, self._tables.get(job.tablet.table)),
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
        reservation, tablet = applied.reservation, applied.tablet
        assert reservation is not None
        assert tablet is not None
        job, request = action.job, None
        try:
            table = await self._context.store.table(job.tablet.table)
            if job.request is not None:
                request = await self._context.store.request(job.tablet.table, job.request)
        except (MetadataError, UnavailableError) as error:
            return Unknown(reason=str(error))
        if table is None or (job.request is not None and request is None):
            return Unknown(reason="its table or request was removed after the reservation")
        if table.lake is not None and not tablet.files.keys() >= {*reservation.inputs}:
            # The first answer was lost, and the tablet was read again after its mirror had moved.
            return Unknown(reason="an input has left the table after the reservation")
        try:
            return compose_assignment(
                job, reservation, table, tablet, applied.now_s, request=request
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
        finish, table = self.finish_published, self._tables.get(action.tablet.table)
        if (
            finish is not None
            and table is not None
            and table.lake is not None
            and await finish(table, action.tablet, action.attempt)
        ):
            return AttemptEnd.COMMITTED
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
GATHER_S = 0.25
"""Time in which analyses gather for a change. Each small job has one, and a change costs as much as
a plan."""


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
        before = self._waiting.pop(analysis.tablet, None)
        if before is not None and analysis.chunks is None:
            analysis = replace(analysis, chunks=before.chunks)
        self._waiting[analysis.tablet] = analysis
        if len(self._waiting) > WAITING_ANALYSES_MAX:
            del self._waiting[next(iter(self._waiting))]
        if not self._writing:
            self._writing = True
            self._spawn(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                if len(self._waiting) < ANALYSES_AT_ONCE:
                    await asyncio.sleep(GATHER_S)
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


# --------------------------------------------------------------------------------------- Job traces
# The coordinator's spans of an attempt: the attempt itself, and the phases before its compactor.
#
#     plan      from the request to plan a tablet until its plan
#     queue     from the plan with the job until its reservation was requested
#     reserve   from then until the job was assigned to a compactor
#
# The shell passes events and actions as they happen. This module makes no decisions; an evicted
# time only shortens a span.


NOTES_MAX = 100_000
"""Maximum number of tablets, jobs, takes and attempts, each, whose times are kept."""


@dataclass(frozen=True, slots=True)
class _Handed:
    """An attempt that was assigned to a compactor."""

    assignment: Assignment
    began_s: float
    """When planning of its tablet was requested, or else the first known time."""


class JobTraces:
    """Records times, and sends the spans of an attempt when it has ended."""

    def __init__(self, spans: Spans, now_s: Callable[[], float]) -> None:
        """Create an instance without recorded times.

        Args:
            spans: Receiver of spans.
            now_s: Returns the current time.
        """
        self._spans, self._now_s = spans, now_s
        self._off = type(spans) is Spans
        """Whether tracing is disabled, so that no times are recorded."""
        self._asked: BoundedMap[TabletId, float] = BoundedMap(NOTES_MAX)
        self._planned: BoundedMap[str, tuple[float, float]] = BoundedMap(NOTES_MAX)
        """Job → times of the request to plan its tablet and of the plan."""
        self._reserving: BoundedMap[str, float] = BoundedMap(NOTES_MAX)
        """Take → when its reservation was requested."""
        self._handed: BoundedMap[str, _Handed] = BoundedMap(NOTES_MAX)
        self._over: BoundedMap[str, None] = BoundedMap(NOTES_MAX)

    def asked(self, tablet: TabletId) -> None:
        """Record that planning of a tablet was requested."""
        if not self._off and tablet not in self._asked:
            self._asked.put(tablet, self._now_s())

    def see(self, event: on.Event) -> None:
        """Record the times of an event."""
        if self._off:
            return
        match event:
            case on.TabletPlanned():
                self._note_plan(event)
            case on.AttemptReported(report=report):
                self._end(report.attempt, report.end, report)
            case on.AttemptSettled(attempt=attempt, end=end):
                self._end(attempt, end, None)
            case _:
                pass

    def reserving(self, action: do.Reserve | do.Release) -> None:
        """Record that the reservation of a job is requested."""
        if not self._off and isinstance(action, do.Reserve):
            self._reserving.put(action.take, self._now_s())

    def assigned(self, action: do.Assign) -> Assignment:
        """Return an assignment with the context of its trace.

        A repeated answer keeps the times of the first one.
        """
        attempt = action.attempt
        context = self._spans.begin(attempt)
        if not context:
            return action.assignment
        assignment = replace(action.assignment, trace=context)
        if attempt not in self._handed:
            self._handed.put(attempt, self._before_compactor(action.take, assignment))
        return assignment

    def _note_plan(self, event: on.TabletPlanned) -> None:
        now_s = self._now_s()
        asked_s = self._asked.pop(event.tablet)
        for job in event.plan.jobs:
            if job.id not in self._planned:  # A replanned job keeps its first times.
                self._planned.put(job.id, (now_s if asked_s is None else asked_s, now_s))

    def _before_compactor(self, take: str, assignment: Assignment) -> _Handed:
        """Send the spans before the assignment; return the values for the attempt's own span."""
        now_s, context = self._now_s(), assignment.trace
        reserving_s = self._reserving.pop(take) or now_s
        asked_s, planned_s = self._planned.pop(assignment.job.id) or (reserving_s, reserving_s)
        self._spans.emit(context, "plan", (asked_s, planned_s))
        self._spans.emit(context, "queue", (planned_s, reserving_s))
        self._spans.emit(context, "reserve", (reserving_s, now_s))
        return _Handed(assignment, asked_s)

    def _end(self, attempt: str, end: AttemptEnd, report: AttemptReport | None) -> None:
        """Send the span of an attempt, once."""
        handed = self._handed.pop(attempt)
        context = report.trace if report is not None else ""
        if handed is not None:
            context = handed.assignment.trace
        if not context or attempt in self._over:
            return
        self._over.put(attempt, None)
        now_s = self._now_s()
        # A restarted coordinator knows only the report of the compactor.
        began_s = handed.began_s if handed else now_s - (report.elapsed_s if report else 0.0)
        attributes: dict[str, str | int] = {"neve.attempt": attempt, "neve.end": end.value}
        if report is not None:
            attributes |= {
                "neve.compactor": report.compactor,
                "neve.moved_bytes": report.moved_bytes,
            }
        if handed is not None:
            attributes |= _attributes(handed.assignment)
        self._spans.emit(context, ATTEMPT, (began_s, now_s), attributes)


def _attributes(assignment: Assignment) -> dict[str, str | int]:
    """Return the attributes that identify a job; of its data, only the size is included."""
    job = assignment.job
    return {
        "neve.table": job.table_name,
        "neve.tablet": str(job.tablet),
        "neve.group": job.group,
        "neve.job": job.id,
        "neve.compactor": assignment.reservation.compactor,
        "neve.input_bytes": job.input_bytes,
    }


# ------------------------------------------------------------------------------------------ Service


ANSWER_GRACE_S = 10.0
"""How long a take that has timed out waits for a pending reservation."""


class CoordinatorService:
    """Runs the turns. Every method is called from the one event loop."""

    def __init__(self, state: CoordinatorState, context: ShellContext, scanner: Scanner) -> None:
        """Create a service around a state; nothing runs before `submit` is called."""
        self._state = state
        self._context = context
        self._scanner = scanner
        self._store_actions = StoreActions(context, self.submit, scanner.tables)
        self._analyses = AnalysisWriter(context.store, self._spawn, context.log, context.faults)
        self._traces = JobTraces(context.spans, context.clock.now_s)
        scanner.on_asked.append(self._traces.asked)
        self._inbox: deque[on.Event] = deque()
        self._turning = False
        self._takes: dict[str, asyncio.Future[Assignment | None]] = {}
        self._beats: dict[str, deque[asyncio.Future[HeartbeatReply]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set to the exception that ended the shell; the actor waits for it."""
        self.turns = 0

    def finish_published_by(self, finish: FinishPublished) -> None:
        """Look for an attempt at a lake table in its log before each release."""
        self._store_actions.finish_published = finish

    @property
    def conflicts(self) -> int:
        """Number of changes that were retried after a conflict."""
        return self._store_actions.conflicts + self._analyses.conflicts

    def submit(self, event: on.Event) -> None:
        """Handle an event, and perform the resulting actions.

        An event that an action submits at once waits until the turn has ended.
        """
        self._inbox.append(event)
        if self._turning:
            return
        self._turning = True
        try:
            while self._inbox:
                self._turn(self._inbox.popleft())
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._turning = False

    async def take(self, request: TakeRequest) -> Assignment | None:
        """Wait for a job for a compactor; return None after a timeout."""
        future = self._takes.get(request.take)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            self._takes[request.take] = future
            self.submit(on.TakeAsked(request=request))
        try:
            return await self._answer(request, future)
        finally:
            self._takes.pop(request.take, None)

    def withdraw(self, take: str) -> None:
        """End the wait of a take because its compactor cannot work now."""
        self.submit(on.TakeLeft(take=take))

    async def _answer(
        self, request: TakeRequest, future: "asyncio.Future[Assignment | None]"
    ) -> Assignment | None:
        done, _ = await asyncio.wait([future], timeout=request.wait_max_s)
        if not done:
            self.submit(on.TakeLate(take=request.take))
            done, _ = await asyncio.wait([future], timeout=ANSWER_GRACE_S)
        if not done:
            self.submit(on.TakeLeft(take=request.take))
        return future.result() if future.done() else None

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        """Handle a heartbeat; return the reply for the compactor."""
        future: asyncio.Future[HeartbeatReply] = asyncio.get_running_loop().create_future()
        self._beats.setdefault(beat.compactor, deque()).append(future)
        self.submit(on.CompactorHeard(beat=beat))
        return await future

    def report(self, report: AttemptReport) -> None:
        """Handle the report of how an attempt ended."""
        self.submit(on.AttemptReported(report=report))

    async def stop(self) -> None:
        """Cancel all pending work; waiting takes are answered with no job."""
        for take in list(self._takes):
            self._resolve(take, None)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _turn(self, event: on.Event) -> None:
        self.turns += 1
        self._traces.see(event)
        for action in self._state.handle(event, self._context.clock.now_s()):
            self._perform(action)

    def _perform(self, action: do.Action) -> None:
        match action:
            case do.Reserve() | do.Release():
                self._traces.reserving(action)
                self._spawn(self._store_actions.perform(action))
            case WriteAnalysis():
                self._analyses.put(action)
            case do.Assign():
                self._resolve(action.take, self._traces.assigned(action))
            case do.AnswerNothing():
                self._resolve(action.take, None)
            case do.AnswerBeat():
                self._answer_beat(action)
            case do.Replan():
                self._scanner.ask(action.tablet)
            case do.WriteLog():
                self._context.log(action.event, **dict(action.fields))
            case _:
                assert_never(action)

    def _resolve(self, take: str, assignment: Assignment | None) -> None:
        future = self._takes.get(take)
        if future is not None and not future.done():
            future.set_result(assignment)

    def _answer_beat(self, action: do.AnswerBeat) -> None:
        waiting = self._beats.get(action.compactor)
        if not waiting:
            return
        waiting.popleft().set_result(
            HeartbeatReply(
                coordinator=self._context.coordinator,
                cancel=action.cancel,
                drain=action.drain,
                grants=action.grants,
            )
        )
        if not waiting:
            del self._beats[action.compactor]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)
