"""User requests for whole tablets in a simulation, decided by the service's own code.

`next_step` and `plan_tablet` get a tablet with a request in the form in which the store holds it.
This module implements only the store's part: markers, selections, and the end of a request in its
tablet. If a tablet has several requests, the oldest proceeds and the others wait.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from common.metadata.changes import CompleteHere, MarkWaiting, SelectFiles
from common.model.file import DataFile
from common.model.group import Group, Service
from common.model.job import Job, Kind, TabletPlan
from common.model.request import Request
from common.model.table import Column, Table
from common.model.tablet import Bounds, Reservation, Selection, Tablet
from common.plugins import DEFAULT_PLANNER, load_planner
from common.spi.planner import Planner
from common.spi.selector import Chosen
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
from neve.simulate.disturbances import RequestRule
from neve.simulate.figures import Outcome
from neve.simulate.tablet import SimulatedTable, SimulatedTablet


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
        held = None if first is None else first.selection
        return held is None or not set(job.inputs) <= set(held.files)

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
        shown = _as_stored(tablet, first)
        step = next_step(first.request, shown, NO_ANSWERS)
        if isinstance(step, AskSelector):
            chosen = Chosen(files=tuple(shown.files), reason="all files")
            return next_step(first.request, shown, PluginAnswers(chosen=chosen))
        if isinstance(step, AskPlanner):
            left = next((why for path, why in plan.left.items()), "")
            jobs = [job for job in plan.jobs if job.kind is Kind.USER]
            given_up = next(filter(None, map(self.given_up, jobs)), "")
            answers = PluginAnswers(jobs=len(jobs), left=left, given_up=given_up)
            return next_step(first.request, shown, answers)
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
