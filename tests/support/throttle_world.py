"""Compactors that move bytes under the grants of a real core, in simulated time.

Attempts move what they can and may; heartbeats come every two seconds, each compactor at
its own moment, and may be lost on the way back. What is truly applied is known here only.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from common.model.group import LimitScope
from common.model.job import Job, Kind, TabletPlan
from common.model.outcome import AttemptEnd
from common.model.table import Table, TableSettings
from common.model.tablet import Record, TabletId
from common.settings import CoordinatorSettings
from common.wire import AttemptProgress, AttemptReport, Heartbeat, TakeRequest, VolumeUse
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.control import ControlLoop, ControlRules
from coordinator.core.state import CoordinatorState
from tests.support.reservations import assignment_of, reservation_of

STEP_S, BEAT_S, TICK_S, FOREGROUND_BEAT_S = 0.1, 2.0, 0.5, 0.5
UNLIMITED = float("inf")


@dataclass
class Running:
    """An attempt on its compactor: what it applies, and how fast it could be."""

    attempt: str
    tablet: TabletId
    volume: str
    applied: float
    able: float
    left: float
    moved: float = 0.0
    waited_s: float = 0.0
    synced: float = 0.0
    sync_s: float = 0.0
    reported: AttemptProgress | None = None
    """What its driver has reported last."""
    reported_s: float = -1e9

    def move(self, passed_s: float) -> float:
        size = min(self.able * passed_s, self.applied * passed_s, self.left)
        if self.applied < self.able and self.left > 0:
            self.waited_s += passed_s * (1 - self.applied / self.able)
        self.moved += size
        self.left -= size
        return size

    def progress(self) -> AttemptProgress:
        return AttemptProgress(
            attempt=self.attempt,
            state="rewriting",
            volume=self.volume,
            granted_bytes_s=None if self.applied == UNLIMITED else self.applied,
            moved_bytes=int(self.moved),
            waited_s=self.waited_s,
            synced_bytes=int(self.synced),
            sync_s=self.sync_s,
        )


@dataclass
class Compactor:
    """One process with slots."""

    name: str
    group: str
    slots: int
    incarnation: int = 1
    next_beat_s: float = 0.0
    held: dict[str, Running] = field(default_factory=dict)
    alive: bool = True
    cut_off: bool = False


@dataclass
class Gateway:
    """A gateway whose callers read as fast as they may."""

    name: str
    volume: str
    able: float
    applied: float = UNLIMITED
    moved: float = 0.0
    waited_s: float = 0.0
    next_beat_s: float = 0.0
    alive: bool = True

    def move(self, passed_s: float) -> float:
        size = min(self.able, self.applied) * passed_s
        if self.applied < self.able:
            self.waited_s += passed_s * (1 - self.applied / self.able)
        self.moved += size
        return size

    def use(self) -> VolumeUse:
        return VolumeUse(
            volume=self.volume,
            moved_bytes=int(self.moved),
            waited_s=self.waited_s,
            granted_bytes_s=None if self.applied == UNLIMITED else self.applied,
        )


class World:
    """A coordinator's core, its compactors and endless work."""

    def __init__(
        self,
        seed: int = 0,
        settings: CoordinatorSettings | None = None,
        rules: ControlRules | None = None,
    ) -> None:
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.settings = settings or CoordinatorSettings()
        self.rules = rules or ControlRules()
        self.state = self._coordinator("me")
        self.gateways: list[Gateway] = []
        self.compactors: dict[str, Compactor] = {}
        self.limits: dict[LimitScope, int] = {}
        self.lowered_s = -1e9
        """When a limit was lowered last."""
        self.moved: dict[LimitScope, float] = {}
        self.lost_replies = 0.0
        self.latency_s = 0.0
        self.beat_s = BEAT_S
        self.news_s = 0.0
        """How often a driver reports its progress to its compactor."""
        """How long every volume takes to make a MiB durable."""
        self.able = 1e9
        self.job_bytes = 1e15
        self.assigned: dict[str, tuple[Compactor, float]] = {}
        self._numbers = 0
        self._next_tick_s = 0.0
        self.tell(on.Ticked())
        self.now_s = 10.0  # Whoever holds something would have said so by now.

    def _coordinator(self, name: str) -> CoordinatorState:
        return CoordinatorState(self.settings, name, control=ControlLoop(None, self.rules))

    def tell(self, event: on.Event) -> list[do.Action]:
        actions = self.state.handle(event, self.now_s)
        self.state.check()
        return actions

    def limit(self, scope: str, bytes_s: int) -> None:
        """Let an operator set a limit; 0: none."""
        found = LimitScope.parse(scope)
        before, after = self.limits.get(found) or UNLIMITED, bytes_s or UNLIMITED
        self.lowered_s = self.now_s if after < before else self.lowered_s
        self.limits[found] = bytes_s
        self.tell(on.LimitsSeen(limits=dict(self.limits)))

    def table(self, name: str, volume: str) -> None:
        settings = TableSettings(volume=volume)
        table = Table(id=name, name=name, location=f"file:///{name}", schema=(), settings=settings)
        self.tell(on.TableSeen(table=table))

    def compactor(self, name: str, group: str = "default", slots: int = 2) -> Compactor:
        made = Compactor(name, group, slots, next_beat_s=self.now_s + self.chance.uniform(0, 2))
        self.compactors[name] = made
        return made

    def start(self, compactor: Compactor, table: str, volume: str = "default") -> Running:
        """Hand a compactor a job of a table; returns the attempt as it begins."""
        self._numbers += 1
        number = self._numbers
        tablet, job_id = TabletId(table, f"{number}".encode()), f"j{number}"
        job = Job(
            id=job_id,
            tablet=tablet,
            table_name=table,
            kind=Kind.SYSTEM,
            inputs=(f"f{number}",),
            input_bytes=1,
            group=compactor.group,
            priority=1,
            reason="because",
        )
        plan = TabletPlan(jobs=(job,))
        self.tell(
            on.TabletPlanned(
                tablet=tablet, plan=plan, record=Record(version=1, files=1), settings_version=1
            )
        )
        take = f"t{number}"
        actions = self.tell(
            on.TakeAsked(
                request=TakeRequest(
                    take=take,
                    compactor=compactor.name,
                    incarnation=f"{compactor.name}.{compactor.incarnation}",
                    group=compactor.group,
                )
            )
        )
        (reserve,) = [action for action in actions if isinstance(action, do.Reserve)]
        given = assignment_of(reserve.job, f"a{number}", compactor.name, self.now_s)
        actions = self.tell(on.JobReserved(take=take, assignment=given))
        (assign,) = [action for action in actions if isinstance(action, do.Assign)]
        granted = assign.assignment.grant_bytes_s
        applied = UNLIMITED if granted is None else granted
        running = Running(assign.attempt, tablet, volume, applied, self.able, self.job_bytes)
        compactor.held[assign.attempt] = running
        return running

    def pass_time(self, seconds: float) -> None:
        """Let attempts move bytes, heartbeats come and the coordinator tick."""
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            for compactor in self.compactors.values():
                self._step(compactor)
            for gateway in self.gateways:
                self._serve(gateway)
            if self.now_s >= self._next_tick_s:
                self._next_tick_s = self.now_s + TICK_S
                self.settle(self.tell(on.Ticked()))
            self.check()

    def _step(self, compactor: Compactor) -> None:
        for running in list(compactor.held.values()):
            size = running.move(STEP_S)
            running.synced += size / 2
            running.sync_s += size / 2 / 1024**2 * self.latency_s
            for scope in self.scopes(compactor, running):
                self.moved[scope] = self.moved.get(scope, 0.0) + size
            if running.left <= 0 and not compactor.cut_off:
                self.finish(compactor, running)
        if compactor.alive and not compactor.cut_off and self.now_s >= compactor.next_beat_s:
            compactor.next_beat_s = self.now_s + self.beat_s
            self.beat(compactor)

    def _serve(self, gateway: Gateway) -> None:
        if not gateway.alive:
            return
        scope = LimitScope.parse(f"volume:{gateway.volume}")
        self.moved[scope] = self.moved.get(scope, 0.0) + gateway.move(STEP_S)
        if self.now_s >= gateway.next_beat_s:
            gateway.next_beat_s = self.now_s + FOREGROUND_BEAT_S
            self.tell_foreground(gateway, (gateway.use(),))
            rate = self.state.foreground_rates(gateway.name).get(gateway.volume)
            gateway.applied = UNLIMITED if rate is None else rate

    def tell_foreground(self, gateway: Gateway, uses: tuple[VolumeUse, ...]) -> None:
        """Let a gateway report."""
        self.tell(on.ForegroundReported(gateway=gateway.name, uses=uses))

    def finish(self, compactor: Compactor, running: Running) -> None:
        del compactor.held[running.attempt]
        report = on.AttemptReported(
            report=AttemptReport(
                compactor=compactor.name,
                attempt=running.attempt,
                end=AttemptEnd.COMMITTED,
                error_class="",
                cause="",
                moved_bytes=int(running.moved),
                waited_s=running.waited_s,
            )
        )
        self.settle(self.tell(report))

    def beat(self, compactor: Compactor) -> None:
        heard = on.CompactorHeard(
            beat=Heartbeat(
                compactor=compactor.name,
                incarnation=f"{compactor.name}.{compactor.incarnation}",
                group=compactor.group,
                node="n1",
                slots=compactor.slots,
                attempts=tuple(self._news(attempt) for attempt in compactor.held.values()),
                draining=False,
            )
        )
        actions = self.tell(heard)
        (answer,) = [action for action in actions if isinstance(action, do.AnswerBeat)]
        self.settle(actions)
        if self.chance.random() < self.lost_replies:
            return
        for grant in answer.grants:
            applied = UNLIMITED if grant.bytes_s is None else grant.bytes_s
            compactor.held[grant.attempt].applied = applied
        for attempt in answer.cancel:
            compactor.held.pop(attempt, None)

    def _news(self, running: Running) -> AttemptProgress:
        now = running.progress()
        if running.reported is None or self.now_s - running.reported_s >= self.news_s:
            running.reported, running.reported_s = now, self.now_s
        return replace(running.reported, granted_bytes_s=now.granted_bytes_s)

    def settle(self, actions: list[do.Action]) -> None:
        """Let the store release what the core wants released."""
        for action in actions:
            if isinstance(action, do.Release):
                ended = on.AttemptSettled(
                    tablet=action.tablet, attempt=action.attempt, end=action.end
                )
                self.tell(ended)

    def die(self, compactor: Compactor) -> None:
        """Kill a compactor's process; the coordinator hears of it, and another one comes."""
        incarnation = f"{compactor.name}.{compactor.incarnation}"
        compactor.held.clear()
        compactor.incarnation += 1
        gone = on.CompactorGone(compactor=compactor.name, cause="died", incarnation=incarnation)
        self.settle(self.tell(gone))

    def begin_anew(self) -> None:
        """Let another coordinator take over that has read the limits, and no tablet yet."""
        self.state = self._coordinator("another")
        self.lowered_s = self.now_s  # By a little it may exceed them until it knows.
        self.tell(on.LimitsSeen(limits=dict(self.limits)))

    def restart_coordinator(self) -> None:
        """Let another coordinator take over: it knows the limits, and what the store holds."""
        self.begin_anew()
        for compactor in self.compactors.values():
            for each in compactor.held.values():
                job = Job(
                    id=f"j{each.attempt[1:]}",
                    tablet=each.tablet,
                    table_name=each.tablet.table,
                    kind=Kind.SYSTEM,
                    inputs=(f"f{each.attempt[1:]}",),
                    input_bytes=1,
                    group=compactor.group,
                    priority=1,
                    reason="",
                )
                entry = reservation_of(job, each.attempt, compactor.name, self.now_s)
                found = on.ReservationsFound(tablet=each.tablet, reservations=(entry,))
                self.settle(self.tell(found))

    def scopes(self, compactor: Compactor, running: Running) -> tuple[LimitScope, LimitScope]:
        group, volume = f"group:{compactor.group}", f"volume:{running.volume}"
        return LimitScope.parse(group), LimitScope.parse(volume)

    def applied(self, scope: LimitScope) -> float:
        """Return what the attempts of a scope truly apply, zombies left out."""
        return sum(
            running.applied
            for compactor in self.compactors.values()
            if not compactor.cut_off
            for running in compactor.held.values()
            if scope in self.scopes(compactor, running)
        )

    def check(self) -> None:
        """Assert that no limit is exceeded, but by what was granted before it was lowered."""
        if self.now_s - self.lowered_s < 3 * BEAT_S:
            return
        for scope, limit in self.limits.items():
            if limit:
                applied = self.applied(scope)
                assert applied <= limit * (1 + 1e-9), (self.now_s, scope, applied, limit)
