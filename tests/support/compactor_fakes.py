"""Fakes round a compactor's service: coordinator, engine, store and files that obey tests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from common.errors import (
    AttemptCancelledError,
    EngineDiedError,
    EngineRestartedError,
    UnavailableError,
)
from common.metadata.changes import (
    Applied,
    Change,
    CommitAttempt,
    Confirm,
    Outcome,
    Refused,
)
from common.metadata.store_values import AttemptOutcome
from common.model.file import DataFile
from common.model.outcome import AttemptEnd, RowCounts
from common.model.table import Table
from common.wire import (
    Assignment,
    AttemptReport,
    Heartbeat,
    HeartbeatReply,
    MetricValue,
    TakeRequest,
)
from compactor.core import (
    EngineHealth,
    RewriteProgress,
    RewriteResult,
)


class FakeCoordinator:
    """Hands out what is put into `jobs`; silent while `away`."""

    def __init__(self) -> None:
        self.jobs: deque[Assignment] = deque()
        self.away = False
        self.takes: list[TakeRequest] = []
        self.waiting: dict[str, asyncio.Event] = {}
        self.withdrawn: list[str] = []
        self.on_its_way: deque[Assignment] = deque()
        """Answers of takes that were withdrawn."""
        self.beats: list[Heartbeat] = []
        self.reports: list[AttemptReport] = []
        self.left: list[tuple[str, str]] = []
        self.reply = HeartbeatReply(coordinator="coordinator-1")

    async def _answering(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise UnavailableError("coordinator does not answer")

    async def take(self, request: TakeRequest) -> Assignment | None:
        self.takes.append(request)
        await self._answering()
        if self.jobs:
            return self.jobs.popleft()
        waiting = self.waiting[request.take] = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(request.wait_max_s):
                await waiting.wait()
        return self.on_its_way.popleft() if self.on_its_way else None

    async def withdraw(self, take: str) -> None:
        await self._answering()
        self.withdrawn.append(take)
        self.waiting[take].set()

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        await self._answering()
        self.beats.append(beat)
        return self.reply

    async def report(self, report: AttemptReport) -> None:
        await self._answering()
        self.reports.append(report)

    async def leave(self, compactor: str, incarnation: str, cause: str) -> None:
        await self._answering()
        self.left.append((compactor, cause))


class FakeEngine:
    """Rewrites nothing: answers at once, or when the test says so."""

    def __init__(self) -> None:
        self.starts = 0
        self.dies_at_start = 0
        self.stopped = False
        self.deaf = False
        """Whether it does not hear of cancellations."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.running: dict[str, asyncio.Event] = {}
        self.most_at_once = 0
        self.cancelled: list[str] = []
        self.assigned: list[Assignment] = []
        self.granted: list[tuple[str, float | None]] = []
        self.restarts: list[str] = []
        self.signs = 0
        self.silent = False
        self.lively: set[str] = set()
        """Attempts that make progress as long as they run."""
        self.down = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return 4711

    async def start(self) -> None:
        self.starts += 1
        self.down.clear()
        if self.dies_at_start:
            self.dies_at_start -= 1
            raise EngineDiedError("Spark driver died")

    async def wait_down(self) -> None:
        await self.down.wait()

    async def run(
        self, assignment: Assignment, on_progress: Callable[[RewriteProgress], None]
    ) -> RewriteResult:
        attempt = assignment.reservation.attempt
        self.assigned.append(assignment)
        self.running[attempt] = asyncio.Event()
        self.most_at_once = max(self.most_at_once, len(self.running))
        lively = asyncio.ensure_future(self._be_lively(attempt, on_progress))
        try:
            on_progress(RewriteProgress(fraction=0.5, bytes_done=10))
            await self._until_let_go(attempt)
        finally:
            lively.cancel()
            del self.running[attempt]
        on_progress(RewriteProgress(fraction=1.0, state="verifying", moved_bytes=70, waited_s=1.5))
        rows = sum(file.rows for file in assignment.inputs)
        output = DataFile(path=assignment.reservation.output_path(0), size_bytes=1, rows=rows)
        return RewriteResult(outputs=(output,), counts=RowCounts(rows_in=rows, rows_out=rows))

    async def _be_lively(
        self, attempt: str, on_progress: Callable[[RewriteProgress], None]
    ) -> None:
        while attempt in self.lively:
            await asyncio.sleep(0.005)
            self.signs += not self.silent
            on_progress(RewriteProgress(fraction=0.5, steps=self.signs))

    async def _until_let_go(self, attempt: str) -> None:
        if self.error is not None:
            raise self.error
        restarts = len(self.restarts)
        waits = [
            asyncio.ensure_future(event.wait()) for event in (self.gate, self.running[attempt])
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if len(self.restarts) > restarts:
            raise EngineRestartedError(self.restarts[-1])
        if self.running[attempt].is_set():
            raise AttemptCancelledError(f"attempt {attempt} was cancelled")

    async def cancel(self, attempt: str) -> None:
        self.cancelled.append(attempt)
        if attempt in self.running and not self.deaf:
            self.running[attempt].set()

    async def grant(self, attempt: str, bytes_s: float | None) -> None:
        self.granted.append((attempt, bytes_s))

    def health(self) -> EngineHealth:
        self.signs += not self.silent
        return EngineHealth(up=True, signs=self.signs, busy=frozenset(self.running))

    async def restart(self, cause: str) -> None:
        self.restarts.append(cause)
        for event in self.running.values():
            event.set()
        self.silent = False

    async def stop(self) -> None:
        self.stopped = True
        for event in self.running.values():
            event.set()


class FakeStore:
    """Answers commits from a script, `Applied` when it is empty. Only what a compactor asks."""

    def __init__(self) -> None:
        self.answers: deque[Outcome | Exception] = deque()
        self.marks: dict[str, AttemptOutcome | Exception] = {}
        self.commits: list[CommitAttempt] = []

    async def apply(self, change: Change, *, confirm: Confirm) -> Outcome:
        assert isinstance(change, CommitAttempt)
        await asyncio.sleep(0)
        if (refusal := await confirm()) is not None:
            return Refused(code=refusal.code, reason=refusal.reason)
        self.commits.append(change)
        answer: Any = self.answers.popleft() if self.answers else Applied()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def outcome(self, table: str, attempt: str) -> AttemptOutcome | None:
        mark = self.marks.get(attempt)
        if isinstance(mark, Exception):
            raise mark
        return mark


class FakeFiles:
    """Remembers what was deleted; refuses the location if told to."""

    def __init__(self) -> None:
        self.deleted: list[tuple[str, ...]] = []
        self.gone: set[str] = set()
        self.silent = 0
        self.error: Exception | None = None
        self.error_again: Exception | None = None
        """Of a second look only."""
        self.gate = asyncio.Event()
        self.gate.set()

    async def check_location(self, table: Table, *, again: bool = False) -> None:
        await self.gate.wait()
        error = self.error_again if again else self.error
        if error is not None:
            raise error

    async def missing(self, table: Table, paths: tuple[str, ...]) -> tuple[str, ...]:
        if self.silent:
            self.silent -= 1
            raise UnavailableError("the storage is silent")
        return tuple(path for path in paths if path in self.gone)

    async def delete(self, table: Table, paths: tuple[str, ...]) -> None:
        self.deleted.append(paths)


class FakeMetrics:
    """Remembers what was counted."""

    def __init__(self) -> None:
        self.rewrites_s: list[float] = []
        self.ended: list[tuple[AttemptEnd, int, int, float]] = []
        """End, bytes of inputs, bytes of outputs and seconds waited of each attempt."""
        self.dropped: list[RowCounts] = []
        """Of each attempt; empty unless it committed."""

    def rewrite_ended(self, elapsed_s: float) -> None:
        self.rewrites_s.append(elapsed_s)

    def attempt_ended(
        self, end: AttemptEnd, *, read_bytes: int, written_bytes: int, waited_s: float
    ) -> None:
        self.ended.append((end, read_bytes, written_bytes, waited_s))

    def rows_dropped(self, counts: RowCounts) -> None:
        self.dropped.append(counts)

    def values(self, slots: int, busy: int) -> tuple[MetricValue, ...]:
        return (MetricValue("neve_compactor_slots", slots),)


class FakeSpans:
    """Keeps every span; each attempt is traced under its own id."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, tuple[float, float], dict[str, str | int]]] = []
        """Context, name, begin and end, and attributes of each span."""

    def begin(self, attempt: str) -> str:
        return f"trace-{attempt}"

    def emit(
        self,
        context: str,
        name: str,
        times_s: tuple[float, float],
        attributes: Mapping[str, str | int] | None = None,
    ) -> None:
        self.sent.append((context, name, times_s, dict(attributes or {})))
