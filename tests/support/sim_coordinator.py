"""A coordinator in a simulation: the real core and planner, a shell of a few lines.

The shell does what the production shell does (perform actions, answers come back as
events, one turn at a time) on simulated tasks instead of asyncio.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, assert_never

from common.errors import ConflictError, MetadataError, PluginError, UnavailableError
from common.metadata import changes, upkeep_changes
from common.metadata.changes import Applied, Outcome, Refused, Unknown
from common.metadata.store import KeyspaceStore
from common.model.outcome import AttemptEnd
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.settings import CoordinatorSettings
from common.wire import Assignment, BeatReply
from coordinator.assignments import compose, output_prefix
from coordinator.collector import Collector
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.limits import Limits
from coordinator.core.state import CoordinatorState
from coordinator.full_scan import needs_look
from tests.support.sim_tasks import Process, Promise, Tasks

_ENDS = {"commit": AttemptEnd.COMMITTED, "release": AttemptEnd.LOST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a coordinator does what. Seconds."""

    tick_s: float = 0.5
    feed_s: float = 0.3
    scan_s: float = 15.0
    lead_s: float = 2.0
    collect_s: float = 5.0


class SimCoordinator:
    """One incarnation of the coordinator; it dies with its process."""

    def __init__(
        self, name: str, tasks: Tasks, store: KeyspaceStore, plan: Any, limits: Limits, pace: Pace
    ) -> None:
        self.name = name
        self.tasks = tasks
        self.store = store
        self.process = Process(name)
        self.state = CoordinatorState(CoordinatorSettings(), name, limits=limits)
        self.led = False
        self.released_for_silence = 0
        self._plan = plan
        self._pace = pace
        self._tables: dict[str, Table] = {}
        self._positions: dict[str, str] = {}
        self._asked: dict[TabletId, None] = {}
        self._takes: dict[str, Promise] = {}
        self._assignments: dict[str, Assignment] = {}
        self._beats: dict[str, Promise] = {}
        self._attempts = 0
        self._turns = 0

    def start(self, collector: Collector | None) -> None:
        self.spawn(self._lead(collector))

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.tasks.spawn(self.process, coroutine)

    # What compactors and operators call.

    def take(self, event: on.TakeAsked, answer: Promise) -> None:
        self._takes[event.take] = answer
        self.submit(event)

    def beat(self, event: on.CompactorHeard, answer: Promise) -> None:
        self._beats[event.compactor] = answer
        self.submit(event)

    def report(self, event: on.AttemptReported, answer: Promise) -> None:
        self.submit(event)
        answer.give(True)

    def leave(self, event: on.CompactorGone, answer: Promise) -> None:
        self.submit(event)
        answer.give(True)

    def submit(self, event: on.Event) -> None:
        """One turn."""
        self._turns += 1
        actions = self.state.handle(event, self.tasks.now_s())
        if self._turns % 4 == 0:
            self.state.check()
        for action in actions:
            self._perform(action)

    def at_rest(self) -> bool:
        """Return whether nothing is queued, in flight, running or to be looked at."""
        books = self.state._books
        return not (len(books.queues) or len(books.attempts) or books.takes.reserving())

    def _perform(self, action: do.Action) -> None:
        if not isinstance(action, do.AnswerBeat):
            self.tasks.tell(f"{self.name} {_short(action)}")
        match action:
            case do.Reserve() | do.Release() | do.NoteAnalysis():
                self.spawn(self._errand(action))
            case do.Assign(take=take, attempt=attempt):
                self._answer(take, self._assignments.get(attempt))
            case do.AnswerNothing(take=take):
                self._answer(take, None)
            case do.AnswerBeat(compactor=compactor, cancel=cancel, drain=drain):
                reply = BeatReply(coordinator=self.name, cancel=cancel, drain=drain)
                self._beats.pop(compactor).give(reply)
            case do.Replan(tablet=tablet):
                self._asked[tablet] = None
            case do.Tell():
                pass
            case _:
                assert_never(action)

    async def _errand(self, action: do.Reserve | do.Release | do.NoteAnalysis) -> None:
        match action:
            case do.Reserve():
                await self._reserve(action)
            case do.Release():
                await self._release(action)
            case do.NoteAnalysis():
                await self._note(action)

    def _answer(self, take: str, assignment: Assignment | None) -> None:
        promise = self._takes.pop(take, None)
        if promise is not None:
            promise.give(("taken", assignment))

    # The shell's errands.

    async def _apply(self, change: changes.Change) -> Outcome:
        try:
            return await self.store.apply(change)
        except (MetadataError, UnavailableError) as error:
            return Unknown(reason=str(error))

    async def _reserve(self, action: do.Reserve) -> None:
        job = action.job
        self._attempts += 1
        attempt = f"{self.name}-a{self._attempts}"
        change = changes.Reserve(
            tablet=job.tablet,
            attempt=attempt,
            job=job.id,
            kind=job.kind,
            inputs=job.inputs,
            output_prefix=output_prefix(job, attempt),
            outputs_max=len(job.cuts) + 1,
            group=job.group,
            compactor=action.compactor,
        )
        match await self._apply_reserve(change):
            case Applied(reservation=entry, tablet=tablet):
                assert entry is not None
                assert tablet is not None
                table = self._tables[job.tablet.table]
                now_s = self.tasks.now_s()
                self._assignments[attempt] = compose(job, entry, table, tablet, now_s)
                self.submit(on.JobReserved(take=action.take, job=job, reservation=entry))
            case Refused(code=code, reason=why):
                self.submit(on.JobRefused(take=action.take, job=job, code=code, reason=why))
            case Unknown():
                self.submit(on.JobReserveUnknown(take=action.take, job=job, attempt=attempt))

    async def _apply_reserve(self, change: changes.Reserve) -> Outcome:
        """Apply; a race that was lost on every try has written nothing."""
        try:
            return await self.store.apply(change)
        except ConflictError as error:
            return Refused(code="conflict", reason=str(error))
        except (MetadataError, UnavailableError) as error:
            return Unknown(reason=str(error))

    async def _release(self, action: do.Release) -> None:
        self.released_for_silence += action.for_silence
        change = changes.Release(
            tablet=action.tablet,
            attempt=action.attempt,
            end=action.end,
            cause=action.cause,
            coordinator=self.name if action.for_silence else None,
        )
        outcome = await self._apply(change)
        end = action.end if isinstance(outcome, Applied) else None
        if isinstance(outcome, Refused) and outcome.code != "coordinator":
            try:
                mark = await self.store.outcome(action.tablet.table, action.attempt)
            except (MetadataError, UnavailableError):
                return
            end = AttemptEnd.LOST if mark is None else mark.end
        if end is not None:
            settled = on.AttemptSettled(tablet=action.tablet, attempt=action.attempt, end=end)
            self.submit(settled)

    async def _note(self, action: do.NoteAnalysis) -> None:
        await self._apply(
            upkeep_changes.WriteAnalysis(
                tablet=action.tablet,
                analysis=action.analysis,
                version=action.version,
                settings_version=action.settings_version,
            )
        )

    # Loops.

    async def _lead(self, collector: Collector | None) -> None:
        claim = upkeep_changes.ClaimCoordination(coordinator=self.name)
        while not isinstance(await self._apply(claim), Applied):
            await self.tasks.sleep(0.5)
        while not await self._tried(self._refresh()):
            await self.tasks.sleep(0.5)
        self.led = True
        self.spawn(self._every(self._pace.tick_s, self._tick))
        self.spawn(self._every(self._pace.feed_s, self._follow))
        self.spawn(self._every(self._pace.scan_s, self._scan))
        self.spawn(self._every(self._pace.lead_s, self._check_lead))
        if collector is not None:
            self.spawn(self._every(self._pace.collect_s, lambda: self._collect(collector)))
        self.spawn(self._every(0.05, self._plan_asked))

    async def _every(self, interval_s: float, errand: Any) -> None:
        while True:
            await self.tasks.sleep(interval_s * (0.8 + 0.4 * self.tasks.dice.random()))
            await self._tried(errand())

    async def _tried(self, errand: Coroutine[Any, Any, None]) -> bool:
        try:
            await errand
        except (MetadataError, UnavailableError):
            return False
        return True

    async def _tick(self) -> None:
        self.submit(on.Ticked())

    async def _refresh(self) -> None:
        for table in await self.store.tables():
            self._positions[table.id] = await self.store.tail(table.id)
            self._tables[table.id] = table
            self.submit(on.TableSeen(table=table))
            for tablet in await self.store.tablet_ids(table.id):
                self._asked[tablet] = None

    async def _follow(self) -> None:
        for change in await self.store.changes(dict(self._positions), block_s=0.0):
            self._positions[change.tablet.table] = change.position
            if change.attempt is not None and change.what in _ENDS:
                end = _ENDS[change.what]
                settled = on.AttemptSettled(tablet=change.tablet, attempt=change.attempt, end=end)
                self.submit(settled)
            self._asked[change.tablet] = None

    async def _scan(self) -> None:
        for table in self._tables.values():
            ids = await self.store.tablet_ids(table.id)
            for tablet, record in zip(ids, await self.store.records(ids), strict=True):
                if needs_look(record, table):
                    self._asked[tablet] = None

    async def _check_lead(self) -> None:
        leader = await self.store.coordinator()
        if leader is not None and leader != self.name:
            self.tasks.tell(f"{self.name} leaves: {leader} leads")
            self.process.alive = False

    async def _collect(self, collector: Collector) -> None:
        for table in self._tables.values():
            await collector.collect(table)

    async def _plan_asked(self) -> None:
        batch, self._asked = list(self._asked), {}
        if not batch:
            return
        try:
            tablets = await self.store.tablets(batch)
            now_s = await self.store.now_s()
        except (MetadataError, UnavailableError):
            self._asked.update(dict.fromkeys(batch))
            raise
        for tablet_id, tablet in zip(batch, tablets, strict=True):
            if tablet is None:
                self.submit(on.TabletGone(tablet=tablet_id))
            else:
                self._plan_one(tablet, self._tables[tablet_id.table], now_s)

    def _plan_one(self, tablet: Tablet, table: Table, now_s: float) -> None:
        entries = tuple(entry for _, entry in sorted(tablet.running.items()))
        self.submit(on.ReservationsFound(tablet=tablet.id, reservations=entries))
        try:
            plan = self._plan(tablet, table, now_s)
        except PluginError as error:
            self.submit(on.PlanningFailed(tablet=tablet.id, cause=str(error)))
            return
        self.submit(
            on.TabletPlanned(
                tablet=tablet.id,
                plan=plan,
                record=tablet.record,
                settings_version=table.settings_version,
            )
        )


def _short(action: do.Action) -> str:
    match action:
        case do.Reserve(take=take, job=job):
            return f"Reserve {take} {job.id} {len(job.inputs)} files"
        case do.Release(attempt=attempt, end=end, cause=cause):
            return f"Release {attempt} {end.value}: {cause}"
        case _:
            return str(action)
