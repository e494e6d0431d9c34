"""A compactor in a simulation: the real state machine of attempts, a shell of a few lines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, assert_never

from common.errors import ConflictError, InputError, MetadataError, UnavailableError
from common.metadata.changes import Applied, Commit, Refused
from common.metadata.store import KeyspaceStore
from common.model.file import DataFile
from common.model.outcome import RowCounts
from common.wire import Assignment, BeatReply
from compactor.core import actions as act
from compactor.core import events as told
from compactor.core.attempt import Attempt
from compactor.core.result import RewriteResult
from coordinator.core import events as on
from tests.support.sim_tasks import Process, Tasks
from tests.support.sim_truth import ROW_BYTES, Truth

TAKE_WAIT_MAX_S = 8.0


@dataclass
class CompactorTraits:
    """How a compactor behaves. Probabilities per job."""

    group: str = "small"
    slots: int = 1
    beat_s: float = 1.0
    rewrite_max_s: float = 2.0
    fails: float = 0.0


Call = Callable[[Process, str, Any], Any]
"""`await call(process, method, event)`: a call of the coordinator over the network."""


class SimCompactor:
    """One process of a compactor; a restart is another object with the same name."""

    def __init__(
        self,
        name: str,
        number: int,
        tasks: Tasks,
        store: KeyspaceStore,
        truth: Truth,
        traits: CompactorTraits,
        call: Call,
    ) -> None:
        self.name = name
        self.incarnation = f"{name}.{number}"
        self.tasks = tasks
        self.process = Process(self.incarnation)
        self.traits = traits
        self.draining = False
        self.said_goodbye = False
        self.left: Callable[[], None] = lambda: None
        """Called when it has drained and said goodbye."""
        self._slots = traits.slots
        self._store = store
        self._truth = truth
        self._call = call
        self._held: dict[str, Attempt] = {}
        self._takes = 0

    def start(self) -> None:
        self.tasks.spawn(self.process, self._beat_forever())
        for slot in range(self.traits.slots):
            self.tasks.spawn(self.process, self._slot(slot))

    async def _beat_forever(self) -> None:
        while True:
            beat = on.CompactorHeard(
                compactor=self.name,
                incarnation=self.incarnation,
                group=self.traits.group,
                node="node",
                slots=self.traits.slots,
                attempts=tuple(held.progress.message() for held in self._held.values()),
                draining=self.draining,
            )
            with suppress(UnavailableError):
                self._obey(await self._call(self.process, "beat", beat))
            await self.tasks.sleep(self.traits.beat_s)

    def _obey(self, reply: BeatReply) -> None:
        self.draining |= reply.drain
        for name in reply.cancel:
            if name in self._held:
                self._held[name].handle(told.CancelAsked(cause="taken back"), self.tasks.now_s())

    async def _slot(self, slot: int) -> None:
        take = self._next_take(slot)
        while not self.draining:
            asked = on.TakeAsked(
                take=take,
                compactor=self.name,
                incarnation=self.incarnation,
                group=self.traits.group,
            )
            try:
                assignment = await self._call(self.process, "take", asked)
            except UnavailableError:
                await self.tasks.sleep(0.2 + self.tasks.dice.random())
                if self.tasks.chance(0.3):
                    take = self._next_take(slot)
                continue
            take = self._next_take(slot)
            if assignment is not None and assignment.reservation.attempt not in self._held:
                await self._run(assignment)
        self._slots -= 1
        if not self._slots:
            await self._leave()

    async def _leave(self) -> None:
        gone = on.CompactorGone(compactor=self.name, cause="drained", incarnation=self.incarnation)
        with suppress(UnavailableError):
            await self._call(self.process, "leave", gone)
        self.process.alive = False
        self.said_goodbye = True
        self.left()

    def _next_take(self, slot: int) -> str:
        self._takes += 1
        return f"{self.incarnation}-{slot}-t{self._takes}"

    async def _run(self, assignment: Assignment) -> None:
        attempt = Attempt(assignment, self.tasks.now_s())
        self._truth.assigned(attempt.id, self.incarnation)
        self._held[attempt.id] = attempt
        actions = attempt.handle(told.AttemptStarted(), self.tasks.now_s())
        while not attempt.over:
            (action,) = actions
            answer = await self._perform(attempt, action)
            self.tasks.tell(f"{self.incarnation} {attempt.id} {type(answer).__name__}")
            actions = attempt.handle(answer, self.tasks.now_s())
        del self._held[attempt.id]

    async def _perform(self, attempt: Attempt, action: act.Action) -> told.Event:
        match action:
            case act.Rewrite():
                return await self._rewrite(attempt)
            case act.SendCommit(commit, delay_s):
                await self.tasks.sleep(delay_s)
                return await self._commit(commit)
            case act.ReadOutcome(delay_s):
                await self.tasks.sleep(delay_s)
                return await self._read_outcome(attempt)
            case act.DeleteOutputs(paths):
                for path in paths:
                    self._truth.disk.delete(path)
                return told.OutputsDeleted()
            case act.SendReport(report):
                return await self._report(report)
            case act.CancelRewrite():
                raise AssertionError(action)
            case _:
                assert_never(action)

    async def _rewrite(self, attempt: Attempt) -> told.Event:
        assignment, dice = attempt.assignment, self.tasks.dice
        await self.tasks.sleep(dice.random() * self.traits.rewrite_max_s)
        if self.tasks.chance(self.traits.fails):
            return told.RewriteFailed(error_class="EngineDiedError", cause="simulated")
        try:
            rows = [self._truth.disk.read(file.path) for file in assignment.inputs]
        except InputError as error:
            return told.RewriteFailed(error_class="InputError", cause=str(error))
        merged = frozenset[int]().union(*rows)
        output = DataFile(
            path=assignment.reservation.output_path(0),
            size_bytes=ROW_BYTES * len(merged),
            rows=len(merged),
            clean=True,
            key_min=min(file.key_min or b"" for file in assignment.inputs),
            key_max=max(file.key_max or b"" for file in assignment.inputs),
        )
        self._truth.disk.write(output.path, merged)
        counts = RowCounts(rows_in=sum(map(len, rows)), rows_out=len(merged))
        return told.RewriteDone(RewriteResult(outputs=(output,), counts=counts))

    async def _commit(self, commit: Commit) -> told.Event:
        try:
            outcome = await self._store.apply(commit)
        except ConflictError as error:
            return told.CommitConflicted(str(error))
        except (MetadataError, UnavailableError) as error:
            return told.CommitUnknown(str(error))
        match outcome:
            case Applied():
                return told.CommitApplied()
            case Refused(code=code, reason=reason, sent=sent):
                return told.CommitRefused(code=code, reason=reason, sent=sent)
            case _:
                return told.CommitUnknown(outcome.reason)

    async def _read_outcome(self, attempt: Attempt) -> told.Event:
        try:
            mark = await self._store.outcome(attempt.assignment.table.id, attempt.id)
        except (MetadataError, UnavailableError) as error:
            return told.OutcomeUnread(str(error))
        return told.OutcomeRead(end=mark.end if mark else None, cause=mark.cause if mark else "")

    async def _report(self, report: Any) -> told.Event:
        event = on.AttemptReported(
            compactor=report.compactor,
            attempt=report.attempt,
            end=report.end,
            error_class=report.error_class,
            cause=report.cause,
        )
        while True:
            try:
                await self._call(self.process, "report", event)
            except UnavailableError:
                await self.tasks.sleep(0.5 + self.tasks.dice.random())
            else:
                return told.ReportDelivered()
