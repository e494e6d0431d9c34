"""The shell around the pure core: it receives events, performs actions, and submits the answers.

Turns run one at a time in one thread of one event loop. Only a turn accesses the state, so there
are no locks. Actions that wait for the store run concurrently; their answers arrive as events.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, assert_never

from common.metadata.changes import WriteAnalysis
from common.wire import (
    Assignment,
    AttemptReport,
    Heartbeat,
    HeartbeatReply,
    TakeRequest,
)
from coordinator.context import ShellContext
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.state import CoordinatorState
from coordinator.job_traces import JobTraces
from coordinator.scan.scanner import Scanner
from coordinator.store_actions import AnalysisWriter, StoreActions

ANSWER_GRACE_S = 10.0
"""How long a take that has timed out waits for a pending reservation."""


class CoordinatorService:
    """Runs the turns. Every method is called from the one event loop."""

    def __init__(self, state: CoordinatorState, context: ShellContext, scanner: Scanner) -> None:
        """Create a service around a state; nothing runs before `submit` is called."""
        self._state = state
        self._context = context
        self._scanner = scanner
        self._store_actions = StoreActions(context, self.submit)
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
