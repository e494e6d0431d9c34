"""The simulated cluster: compactors with slots, shared volumes, and scaling.

A job first takes the overhead of its cluster and then moves its input bytes. All jobs of a group on
a volume have the same speed: the limit of a slot, or an equal share of the volume's limit. Each
group therefore has one clock per volume, which counts the bytes that a job would have moved since
the beginning. A job ends when the clock reaches the job's goal. This implements exact processor
sharing with only a heap.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf

from common.metadata.changes import CompleteHere, MarkWaiting, SelectFiles
from common.model.file import DataFile
from common.model.group import Group, Service
from common.model.job import Job, Kind, TabletPlan
from common.model.request import Request
from common.model.table import Column, Table
from common.model.tablet import Bounds, Reservation, Selection, Tablet
from common.plugins import DEFAULT_PLANNER, load_planner
from common.settings import AutoscalerSettings
from common.spi.planner import Chosen, Planner
from coordinator.core.autoscaling import (
    CompactorLoad,
    Decision,
    GroupLoad,
    Memory,
    RewriteRate,
    StartingCompactor,
    decide,
)
from coordinator.core.planning import plan_tablet
from coordinator.core.requests import (
    NO_ANSWERS,
    AskPlanner,
    AskSelector,
    FailRequest,
    PluginAnswers,
    RequestStep,
    facts_of,
    next_step,
)
from neve.simulate.figures import Outcome
from neve.simulate.sections import RequestRule
from neve.simulate.specification import GroupRule
from neve.simulate.tablet import SimulatedTable, SimulatedTablet

DONE_BYTES = 0.5
"""A job with fewer bytes left has ended, because clocks are floating-point numbers."""


# ------------------------------------------------------------------------------------- Moving bytes


@dataclass(slots=True, eq=False)
class SimulatedAttempt:
    """A running job on a slot."""

    job: Job
    tablet: SimulatedTablet
    compactor: "SimulatedCompactor"
    begun_s: float
    lane: "Lane | None" = None
    """Where it moves bytes; None before it starts to."""
    goal: float = 0.0
    """The clock of its lane at the job's end: all bytes are moved, or the attempt dies."""
    dies_after: float = 1.0
    """Fraction of its bytes after which it dies; 1: it does not die."""
    gone: bool = False
    """Whether it died early; its scheduled events are then void."""

    def moved_share(self, now_s: float) -> float:
        """Return the fraction of bytes that it has moved, 0 to 1."""
        if self.lane is None or not self.job.input_bytes:
            return 0.0
        left = self.goal - self.lane.clock_at(now_s)
        return min(1.0, max(0.0, self.dies_after - left / self.job.input_bytes))


@dataclass(slots=True, eq=False)
class Lane:
    """Jobs of one group on one volume, ordered by their end."""

    slot_bytes_s: float
    volume: "Volume"
    clock: float = 0.0
    """Bytes that a job would have moved since the beginning."""
    seen_s: float = 0.0
    rate: float = 0.0
    turn: int = 0
    """Incremented when the rate changes or a job enters; earlier scheduled ends are then void."""
    _ends: list[tuple[float, int, SimulatedAttempt]] = field(default_factory=list)
    _entered: int = 0

    def clock_at(self, now_s: float) -> float:
        """Return the clock at a given time."""
        return self.clock + self.rate * (now_s - self.seen_s)

    def advance(self, now_s: float) -> None:
        """Advance the clock at the current rate."""
        self.clock = self.clock_at(now_s)
        self.seen_s = now_s

    def enter(self, attempt: SimulatedAttempt, now_s: float) -> None:
        """Add a job, which starts to move its bytes."""
        self.advance(now_s)
        self._entered += 1
        attempt.lane = self
        attempt.goal = self.clock + attempt.job.input_bytes * attempt.dies_after
        heappush(self._ends, (attempt.goal, self._entered, attempt))

    def leave(self, attempt: SimulatedAttempt) -> None:
        """Remove a dead job."""
        self._ends = [end for end in self._ends if end[2] is not attempt]
        heapify(self._ends)

    def pop_ended(self, now_s: float) -> list[SimulatedAttempt]:
        """Remove and return the jobs that have moved all their bytes."""
        self.advance(now_s)
        ended: list[SimulatedAttempt] = []
        # For a large clock, the floating-point resolution may exceed half a byte.
        reached = self.clock + max(DONE_BYTES, self.clock * 1e-12)
        while self._ends and self._ends[0][0] <= reached:
            ended.append(heappop(self._ends)[2])
        return ended

    def next_end_s(self) -> float | None:
        """Return when the next job ends at the current rate; None if there is no job."""
        if not self._ends:
            return None
        return self.seen_s + max(0.0, self._ends[0][0] - self.clock) / self.rate


@dataclass(slots=True, eq=False)
class Volume:
    """Storage that tables share, with a byte rate limit."""

    limit_bytes_s: float = inf
    moving: int = 0
    """Number of jobs that are moving bytes."""
    lanes: list[Lane] = field(default_factory=list)

    def set_rates(self, now_s: float, most: float = inf) -> list[Lane]:
        """Assign each job its share of the limit; return the lanes whose rate has changed.

        Args:
            now_s: The time now.
            most: Maximum bytes per second of a job, regardless of the volume's limit.
        """
        part = min(most, self.limit_bytes_s / self.moving if self.moving else inf)
        changed: list[Lane] = []
        for lane in self.lanes:
            rate = min(lane.slot_bytes_s, part)
            if rate != lane.rate:
                lane.advance(now_s)
                lane.rate = rate
                changed.append(lane)
        return changed


# --------------------------------------------------------------------------------------- Compactors


@dataclass(slots=True, eq=False)
class SimulatedCompactor:
    """A running compactor."""

    name: str
    slots: int
    busy: int = 0
    draining: bool = False


class SimulatedGroup:
    """The compactors of a group. Invariant: no compactor runs more jobs than it has slots."""

    def __init__(self, rule: GroupRule, rules: AutoscalerSettings) -> None:
        """Start with the minimum number of compactors, which are ready immediately."""
        self.rule, self.name = rule, rule.group.name
        self.lanes: dict[str, Lane] = {}
        """Keyed by the name of the volume."""
        self.compactors: dict[str, SimulatedCompactor] = {}
        self.starting: dict[str, float] = {}
        """Compactor → time of its start."""
        self.committed_bytes = 0
        self.running: dict[SimulatedAttempt, None] = {}
        self.compactor_s = 0.0
        """Compactor-seconds so far, including starting compactors."""
        self.busy_s = 0.0
        """Slot-seconds with a job so far."""
        self._free: deque[SimulatedCompactor] = deque()
        self._rules = rules
        self._memory, self._rate = Memory(), RewriteRate()
        self._names = 0
        self._seen_s = 0.0
        for _ in range(rule.count_min):
            self._appear(self._new_name())

    @property
    def scales(self) -> bool:
        """Whether the number of compactors may change."""
        return self.rule.count_min < self.rule.count_max

    @property
    def count(self) -> int:
        """Number of running and starting compactors."""
        return len(self.compactors) + len(self.starting)

    def note_time(self, now_s: float) -> None:
        """Add the elapsed time to the totals; called before compactors or slots change."""
        passed_s = now_s - self._seen_s
        if passed_s > 0:
            self.compactor_s += self.count * passed_s
            self.busy_s += len(self.running) * passed_s
            self._seen_s = now_s

    def free_slot(self) -> SimulatedCompactor | None:
        """Return the compactor of the longest free slot; None if all are busy."""
        while self._free:
            compactor = self._free[0]
            if not compactor.draining and compactor.name in self.compactors:
                return compactor
            self._free.popleft()
        return None

    def begin(self, attempt: SimulatedAttempt, now_s: float) -> None:
        """Start a job on the compactor that `free_slot` returned."""
        self.note_time(now_s)
        compactor = self._free.popleft()
        assert compactor is attempt.compactor
        compactor.busy += 1
        assert compactor.busy <= compactor.slots, compactor
        self.running[attempt] = None

    def end(self, attempt: SimulatedAttempt, now_s: float) -> None:
        """Commit a job and free its slot."""
        self.committed_bytes += attempt.job.input_bytes
        self.give_back(attempt, now_s)

    def give_back(self, attempt: SimulatedAttempt, now_s: float) -> None:
        """Free the slot of a job; remove a draining compactor after its last job."""
        self.note_time(now_s)
        del self.running[attempt]
        compactor = attempt.compactor
        compactor.busy -= 1
        if not compactor.draining:
            self._free.append(compactor)
        elif not compactor.busy:
            del self.compactors[compactor.name]

    def lose(self, number: int, now_s: float) -> tuple[list[SimulatedAttempt], str]:
        """Lose a compactor; return the attempts that it ran, and the name of its successor.

        Args:
            number: Index of the compactor among the running ones.
            now_s: The time now.
        """
        self.note_time(now_s)
        lost = list(self.compactors.values())[number]
        dying = [attempt for attempt in self.running if attempt.compactor is lost]
        lost.draining = True
        for attempt in dying:
            self.give_back(attempt, now_s)
        self.compactors.pop(lost.name, None)
        successor = self._new_name()
        self.starting[successor] = now_s
        return dying, successor

    def ready(self, name: str, now_s: float) -> None:
        """Make a starting compactor available, unless its start was cancelled."""
        self.note_time(now_s)
        if self.starting.pop(name, None) is not None:
            self._appear(name)

    def scale(self, waiting: GroupLoad, now_s: float) -> list[str]:
        """Apply the autoscaler's policy; return the names of compactors that start now.

        Args:
            waiting: The group's load without its compactors, which are added here.
            now_s: The time now.
        """
        self.note_time(now_s)
        self._rate = self._rate.seen(self.committed_bytes, len(self.running), now_s)
        load = replace(
            waiting,
            running_jobs=len(self.running),
            running_bytes=sum(
                round(attempt.job.input_bytes * (1.0 - attempt.moved_share(now_s)))
                for attempt in self.running
            ),
            rate_bytes_s=self._rate.bytes_s(self.rule.slots),
            running=tuple(
                CompactorLoad(
                    name=compactor.name,
                    slots=compactor.slots,
                    busy=compactor.busy,
                    draining=compactor.draining,
                )
                for compactor in self.compactors.values()
            ),
            starting=tuple(
                StartingCompactor(name=name, since_s=since_s)
                for name, since_s in self.starting.items()
            ),
        )
        decision, self._memory = decide(load, self._memory, self._rules, now_s)
        return self._apply(decision, now_s)

    def _apply(self, decision: Decision, now_s: float) -> list[str]:
        for name in (*decision.give_up, *decision.drain):
            self.starting.pop(name, None)
            if (compactor := self.compactors.get(name)) is not None:
                compactor.draining = True
                if not compactor.busy:
                    del self.compactors[name]
        started = [self._new_name() for _ in range(decision.start)]
        self.starting.update(dict.fromkeys(started, now_s))
        return started

    def _new_name(self) -> str:
        self._names += 1
        return f"{self.name}-{self._names}"

    def _appear(self, name: str) -> None:
        compactor = SimulatedCompactor(name, self.rule.slots)
        self.compactors[name] = compactor
        self._free.extend([compactor] * self.rule.slots)


# ----------------------------------------------------------------------------------------- Requests
# User requests for whole tablets in a simulation, decided by the service's own code.
#
# `next_step` and `plan_tablet` get a tablet with a request in the form in which the store holds it.
# This module implements only the store's part: markers, selections, and the end of a request in its
# tablet. If a tablet has several requests, the oldest proceeds and the others wait.


@dataclass(slots=True)
class OpenRequest:
    """A request in its tablet."""

    request: Request
    marked: bool = False
    """Whether it waits for running jobs; no system job starts in the meantime."""
    selection: Selection | None = None
    started: bool = False
    """Whether a job of the request has started."""


@dataclass(slots=True)
class Requests:
    """All requests of one run."""

    outcome: Outcome
    groups: tuple[Group, ...]
    given_up: Callable[[Job], str | None]
    """Returns why a job is no longer tried; None if it may be tried."""
    _open: dict[SimulatedTablet, deque[OpenRequest]] = field(default_factory=dict)
    _tables: dict[str, tuple[Table, Service]] = field(default_factory=dict)
    _fallback: Planner = field(default_factory=lambda: load_planner(DEFAULT_PLANNER))
    _made: int = 0

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def __contains__(self, tablet: SimulatedTablet) -> bool:
        return tablet in self._open

    def submit(self, tablet: SimulatedTablet, rule: RequestRule, now_s: float) -> None:
        """Add a user request for all files of a tablet."""
        self._made += 1
        request = Request(
            id=f"request-{self._made:07}",
            table=tablet.table.id,
            boost=rule.boost,
            submitted_at_s=now_s,
        )
        self._open.setdefault(tablet, deque()).append(OpenRequest(request))

    def wanted(self, tablet: SimulatedTablet, now_s: float, begin_s: float) -> TabletPlan:
        """Take all possible steps in a tablet now; return the resulting plan.

        Args:
            tablet: A tablet with a request.
            now_s: The time now, in seconds since the start of the run.
            begin_s: Start of the run, in seconds since the epoch.

        Raises:
            PluginError: The planner fails or returns an invalid plan.
        """
        while (first := self._first(tablet)) is not None:
            plan = self._plan(tablet, first, begin_s + now_s)
            step = self._step(tablet, first, plan)
            if not self._take(tablet, first, step, now_s, begin_s):
                return plan
        return self._plan(tablet, None, begin_s + now_s)

    def note_start(self, tablet: SimulatedTablet, job: Job, now_s: float) -> None:
        """Record the start of a job; the wait of a request ends with its first job.

        A system job may take files of a request whose hold has expired. The request then selects
        again.
        """
        first = self._first(tablet)
        if first is None:
            return
        if job.kind is not Kind.USER:
            if first.selection is not None and not set(job.inputs).isdisjoint(
                first.selection.files
            ):
                first.selection = None
        elif not first.started:
            first.started = True
            self.outcome.request_waits.note(now_s - first.request.submitted_at_s)

    def stored(self, tablet: SimulatedTablet) -> Tablet:
        """Return a tablet as the store would hold it."""
        return _as_stored(tablet, self._first(tablet))

    def is_stale(self, tablet: SimulatedTablet, job: Job) -> bool:
        """Return whether a user's job belongs to a selection that no longer exists."""
        if job.kind is not Kind.USER:
            return False
        first = self._first(tablet)
        selection = None if first is None else first.selection
        return selection is None or not set(job.inputs) <= set(selection.files)

    def note_commit(self, tablet: SimulatedTablet, job: Job, outputs: Sequence[str]) -> None:
        """Replace a job's inputs by its outputs in the selection, as the store does."""
        first = self._first(tablet)
        if first is None or first.selection is None or job.kind is not Kind.USER:
            return
        inputs, before = set(job.inputs), first.selection
        first.selection = replace(
            before,
            files=(*(path for path in before.files if path not in inputs), *outputs),
            results=(*(path for path in before.results if path not in inputs), *outputs),
            completed_jobs=before.completed_jobs + 1,
        )

    def _first(self, tablet: SimulatedTablet) -> OpenRequest | None:
        return self._open[tablet][0] if tablet in self._open else None

    def _step(self, tablet: SimulatedTablet, first: OpenRequest, plan: TabletPlan) -> RequestStep:
        """Return the next step, with the answers of plug-ins that it needs."""
        view = _as_stored(tablet, first)
        step = next_step(first.request, view, NO_ANSWERS)
        if isinstance(step, AskSelector):
            chosen = Chosen(files=tuple(view.files), reason="all files")
            return next_step(first.request, view, PluginAnswers(chosen=chosen))
        if isinstance(step, AskPlanner):
            left = next((why for path, why in plan.left.items()), "")
            jobs = [job for job in plan.jobs if job.kind is Kind.USER]
            given_up = next(filter(None, map(self.given_up, jobs)), "")
            answers = PluginAnswers(jobs=len(jobs), left=left, given_up=given_up)
            return next_step(first.request, view, answers)
        return step

    def _take(
        self,
        tablet: SimulatedTablet,
        first: OpenRequest,
        step: RequestStep,
        now_s: float,
        begin_s: float,
    ) -> bool:
        """Apply a step; return whether another step may follow now."""
        if isinstance(step, MarkWaiting):
            first.marked = True
            return True
        if isinstance(step, SelectFiles) and step.chosen:
            first.marked = False
            first.selection = Selection(
                request=first.request.id, files=tuple(step.chosen), since_s=begin_s + now_s
            )
            return True
        if isinstance(step, SelectFiles | CompleteHere):
            self.outcome.requests_done += 1
            self.outcome.request_times.note(now_s - first.request.submitted_at_s)
        elif isinstance(step, FailRequest):
            self.outcome.requests_failed += 1
        else:
            return False
        self._open[tablet].popleft()
        if not self._open[tablet]:
            del self._open[tablet]
        return True

    def _plan(self, tablet: SimulatedTablet, first: OpenRequest | None, now_s: float) -> TabletPlan:
        table, service = self._of_table(tablet.table)
        requests = {} if first is None else {first.request.id: facts_of(first.request)}
        return plan_tablet(
            _as_stored(tablet, first),
            table,
            {service.name: service},
            {service.planner: tablet.rule.planner},
            now_s,
            fallback=self._fallback,
            requests=requests,
        )

    def _of_table(self, table: SimulatedTable) -> tuple[Table, Service]:
        if table.id not in self._tables:
            self._tables[table.id] = as_stored_table(table, self.groups)
        return self._tables[table.id]


def as_stored_table(table: SimulatedTable, groups: tuple[Group, ...]) -> tuple[Table, Service]:
    """Return a table as the store holds it, and the service that plans it."""
    rule = table.rule
    settings = replace(rule.settings, planner="", planner_options={})
    schema = (Column("key", "int64"), Column("at", "timestamp[us]"))
    stored = Table(
        id=table.id,
        name=rule.name,
        location="file:///simulated",
        schema=schema,
        key=("key",) if rule.keyed else (),
        time_column=None if rule.keyed else "at",
        settings=settings,
    )
    service = Service(
        name=settings.service, planner=rule.planner_name, groups=groups, options=rule.options
    )
    return stored, service


def _as_stored(tablet: SimulatedTablet, first: OpenRequest | None) -> Tablet:
    """Return a tablet as the store would hold it."""
    selection = None if first is None else first.selection
    waits = {} if first is None or not first.marked else {first.request.id: 0.0}
    running: Mapping[str, Reservation] = {
        job: Reservation(
            attempt=job,
            job=job,
            kind=entry.kind,
            inputs=tuple(file.path for file in entry.files),
            output_prefix=job,
            outputs_max=1,
            group="",
            compactor="",
            since_s=0.0,
            now_s=0.0,
            request=selection.request if selection and entry.kind is Kind.USER else None,
        )
        for job, entry in tablet.running.items()
    }
    files: Mapping[str, DataFile] = tablet.files
    return Tablet(
        id=tablet.id,
        bounds=Bounds(start=None, end=tablet.id.end),
        files=files,
        running=running,
        selection=selection,
        waiting=waits,
    )
