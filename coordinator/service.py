"""The shell round the pure core: events in, actions performed, answers back as events.

One turn at a time, in one thread of one event loop; only a turn touches the state,
so there are no locks. Actions that wait for the store run concurrently; what they
answer arrives as an event like any other.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, assert_never

from common.clock import Clock
from common.errors import MetadataError, UnavailableError
from common.ids import IdSource
from common.metadata.changes import (
    Applied,
    Outcome,
    Refused,
    Release,
    Reserve,
    Unknown,
    WriteAnalysis,
)
from common.metadata.ports import TabletStore
from common.model.outcome import AttemptEnd
from common.model.tablet import TabletId
from common.wire import Assignment, Beat, BeatReply, Report, TakeRequest
from coordinator.assignments import compose, output_prefix
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.state import CoordinatorState
from coordinator.ports import Log
from coordinator.scanner import Scanner

RELEASE_TRIES_MAX = 5
"""Then the next full scan finds the reservation again."""
RETRY_PAUSE_S = 0.5
ANSWER_GRACE_S = 10.0
"""How long a take whose time is up waits for a reservation that is in flight."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the service is made of."""

    state: CoordinatorState
    store: TabletStore
    clock: Clock
    ids: IdSource
    log: Log
    coordinator: str
    """The random id that this coordinator wrote when it was started."""


class CoordinatorService:
    """Runs the turns. Every public method is called from the one event loop."""

    def __init__(self, context: Context, scanner: Scanner) -> None:
        """Wrap the state; nothing runs before `submit` is called."""
        self._context = context
        self._state = context.state
        self._scanner = scanner
        self._inbox: deque[on.Event] = deque()
        self._turning = False
        self._takes: dict[str, asyncio.Future[Assignment | None]] = {}
        self._beats: dict[str, deque[asyncio.Future[BeatReply]]] = {}
        self._assignments: dict[str, Assignment] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set to the exception that ended the shell; the actor waits for it."""
        self.turns = 0
        self.conflicts = 0

    def submit(self, event: on.Event) -> None:
        """Let the state handle an event, and perform what it wants."""
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
        """Wait for a job for a compactor; None if there was none in time."""
        future = self._takes.get(request.take)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            self._takes[request.take] = future
            self.submit(
                on.TakeAsked(
                    take=request.take,
                    compactor=request.compactor,
                    incarnation=request.incarnation,
                    group=request.group,
                )
            )
        try:
            return await self._answer(request, future)
        finally:
            self._takes.pop(request.take, None)

    async def _answer(
        self, request: TakeRequest, future: "asyncio.Future[Assignment | None]"
    ) -> Assignment | None:
        done, _ = await asyncio.wait([future], timeout=request.wait_max_s)
        if not done:
            self.submit(on.TakeLeft(take=request.take))
            done, _ = await asyncio.wait([future], timeout=ANSWER_GRACE_S)
        return future.result() if done else None

    async def beat(self, beat: Beat) -> BeatReply:
        """Hear that a compactor lives; answer what is wanted of it."""
        future: asyncio.Future[BeatReply] = asyncio.get_running_loop().create_future()
        self._beats.setdefault(beat.compactor, deque()).append(future)
        self.submit(
            on.CompactorHeard(
                compactor=beat.compactor,
                incarnation=beat.incarnation,
                group=beat.group,
                node=beat.node,
                slots=beat.slots,
                attempts=beat.attempts,
                draining=beat.draining,
            )
        )
        assert future.done(), "the state answers every heartbeat in its turn"
        return future.result()

    def report(self, report: Report) -> None:
        """Hear how an attempt ended."""
        self.submit(
            on.AttemptReported(
                compactor=report.compactor,
                attempt=report.attempt,
                end=report.end,
                error_class=report.error_class,
                cause=report.cause,
            )
        )

    async def stop(self) -> None:
        """End what is under way; takes are answered with nothing."""
        for future in self._takes.values():
            if not future.done():
                future.set_result(None)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _turn(self, event: on.Event) -> None:
        self.turns += 1
        for action in self._state.handle(event, self._context.clock.now_s()):
            self._perform(action)

    def _perform(self, action: do.Action) -> None:
        match action:
            case do.Reserve():
                self._spawn(self._reserve(action))
            case do.Release():
                self._spawn(self._release(action))
            case do.NoteAnalysis():
                self._spawn(self._note(action))
            case do.Assign():
                self._resolve(action.take, self._assignments.pop(action.attempt, None))
            case do.AnswerNothing():
                self._resolve(action.take, None)
            case do.AnswerBeat():
                self._answer_beat(action)
            case do.Replan():
                self._scanner.ask(action.tablet)
            case do.Tell():
                self._context.log(action.event, **dict(action.fields))
            case _:
                assert_never(action)

    def _resolve(self, take: str, assignment: Assignment | None) -> None:
        future = self._takes.get(take)
        if future is not None and not future.done():
            future.set_result(assignment)

    def _answer_beat(self, action: do.AnswerBeat) -> None:
        waiting = self._beats.get(action.compactor)
        if waiting:
            reply = BeatReply(
                coordinator=self._context.coordinator, cancel=action.cancel, drain=action.drain
            )
            waiting.popleft().set_result(reply)
            if not waiting:
                del self._beats[action.compactor]

    async def _reserve(self, action: do.Reserve) -> None:
        """Reserve under a fresh attempt id; the answer becomes an event."""
        job = action.job
        attempt = self._context.ids.next("att")
        change = Reserve(
            tablet=job.tablet,
            attempt=attempt,
            job=job.id,
            kind=job.kind,
            inputs=job.inputs,
            output_prefix=output_prefix(job, attempt),
            outputs_max=len(job.cuts) + 1,
            group=job.group,
            compactor=action.compactor,
            request=job.request,
            cuts_at=job.cuts[0] if len(job.cuts) == 1 else None,
        )
        outcome = await self._apply(change)
        table = await self._table(job.tablet) if isinstance(outcome, Applied) else None
        if isinstance(outcome, Applied) and table is None:
            outcome = Unknown(reason="the table could not be read after the reservation")
        match outcome:
            case Applied(reservation=reservation, tablet=tablet):
                assert reservation is not None and tablet is not None and table is not None
                now_s = self._context.clock.now_s()
                self._assignments[attempt] = compose(job, reservation, table, tablet, now_s)
                self.submit(on.JobReserved(take=action.take, job=job, reservation=reservation))
                self._assignments.pop(attempt, None)
            case Refused(code=code, reason=reason):
                self.submit(on.JobRefused(take=action.take, job=job, code=code, reason=reason))
            case Unknown():
                self.submit(on.JobReserveUnknown(take=action.take, job=job, attempt=attempt))

    async def _table(self, tablet: TabletId) -> Any:
        try:
            return await self._context.store.table(tablet.table)
        except (MetadataError, UnavailableError):
            return None

    async def _apply(self, change: Reserve | Release) -> Outcome:
        """Apply a change; whatever the store cannot say for sure is `Unknown`."""
        try:
            outcome = await self._context.store.apply(change)
        except (MetadataError, UnavailableError) as error:
            return Unknown(reason=str(error))
        if isinstance(outcome, Applied):
            self.conflicts += outcome.conflicts
        return outcome

    async def _release(self, action: do.Release) -> None:
        change = Release(
            tablet=action.tablet,
            attempt=action.attempt,
            end=action.end,
            cause=action.cause,
            coordinator=self._context.coordinator if action.for_silence else None,
        )
        end: AttemptEnd | None = None
        for _ in range(RELEASE_TRIES_MAX):
            outcome = await self._apply(change)
            if isinstance(outcome, Applied):
                end = action.end
            elif isinstance(outcome, Refused):
                end = await self._settled_end(action)
            if end is not None:
                self.submit(
                    on.AttemptSettled(tablet=action.tablet, attempt=action.attempt, end=end)
                )
                return
            await asyncio.sleep(RETRY_PAUSE_S)
        self._context.log("release not answered", attempt=action.attempt, tablet=str(action.tablet))

    async def _settled_end(self, action: do.Release) -> AttemptEnd | None:
        """Return how an attempt that is held no more had ended."""
        try:
            mark = await self._context.store.outcome(action.tablet.table, action.attempt)
        except (MetadataError, UnavailableError):
            return None
        return mark.end if mark is not None else AttemptEnd.LOST

    async def _note(self, action: do.NoteAnalysis) -> None:
        change = WriteAnalysis(
            tablet=action.tablet,
            analysis=action.analysis,
            version=action.version,
            settings_version=action.settings_version,
        )
        try:
            await self._context.store.apply(change)
        except (MetadataError, UnavailableError) as error:
            # Only a note: without it the next scan looks at the tablet once more.
            self._context.log("analysis not written", tablet=str(action.tablet), cause=str(error))

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
