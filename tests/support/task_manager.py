"""The coordinator's core as a task manager: tablets that want a job each, and a store that agrees.

Everything that the shell would do is done at once: a reservation is granted, a tablet that
is to be planned again is planned, what is said of a tablet is kept in its record.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from common.metadata.changes import WriteAnalysis
from common.model.job import Job, Kind, TabletPlan
from common.model.outcome import AttemptEnd
from common.model.table import Table, TableSettings
from common.model.tablet import Analysis, Record, TabletId
from common.settings import CoordinatorSettings
from common.wire import AttemptReport, TakeRequest
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.control import ControlLoop
from coordinator.core.limits import Limits
from coordinator.core.scans import needs_look
from coordinator.core.state import CoordinatorState
from tests.support.reservations import assignment_of

TABLE = Table(id="t", name="trips", location="file:///t", schema=())
"""Where a tablet is, unless it is said to be elsewhere."""


class TaskManager:
    """Jobs of a group, each named like the tablet that wants it."""

    def __init__(self, control: ControlLoop | None = None, **limits: float) -> None:
        # Its compactors never beat.
        own = Limits(silence_max_s=1e9, **limits)  # type: ignore[arg-type]  # names are checked by the class
        self.state = CoordinatorState(CoordinatorSettings(), limits=own, control=control)
        self.now_s = 0.0
        self.tablets: dict[str, TabletId] = {}
        self.jobs: dict[str, Job] = {}
        """Of tablets that want one."""
        self.records: dict[str, Record] = {}
        self.running: list[str] = []
        """Names of jobs under way, first begun first."""
        self.begun: list[str] = []
        self.planned = 0
        """How often planners were asked about a tablet that wants a job and has none queued."""
        self._takes = 0
        self._waiting: dict[str, None] = {}
        self._attempts: dict[str, str] = {}
        self._tell(on.TableSeen(table=TABLE))

    @property
    def queue(self) -> list[str]:
        """Names of the queued jobs, best first."""
        return [each.job.id for each in self.state.queued("g", 10_000, self.now_s)]

    @property
    def shed(self) -> list[str]:
        """Names of tablets whose record says that their job was shed."""
        return [name for name, each in self.records.items() if each.analysis is Analysis.DEFERRED]

    def explain(self, name: str) -> str:
        """Return why the job of a tablet waits."""
        told = self.state.explain(self.tablets[name], self.now_s).sentences[0]
        return told.split(": ", 1)[1].removesuffix(" (because)")

    def table(self, name: str, volume: str) -> None:
        """There is another table, on a volume."""
        table = replace(TABLE, id=name, name=name, settings=TableSettings(volume=volume))
        self._tell(on.TableSeen(table=table))

    def offer(self, name: str, priority: int, cost_bytes: int = 1, **given: Any) -> None:
        """A tablet wants a job from now on, and is planned.

        Args:
            name: Of job and tablet.
            priority: Of the job.
            cost_bytes: Of its inputs.
            given: Its `table`, `group`, `kind` and number of `files`.
        """
        files = given.get("files", 2)
        tablet = self.tablets[name] = TabletId(given.get("table", TABLE.id), name.encode())
        self.jobs[name] = Job(
            id=name,
            tablet=tablet,
            table_name="trips",
            kind=given.get("kind", Kind.SYSTEM),
            inputs=tuple(f"{name}-{number}" for number in range(files)),
            input_bytes=cost_bytes,
            group=given.get("group", "g"),
            priority=priority,
            reason="because",
        )
        before = self.records.get(name, Record(files=files))
        self.records[name] = replace(before, version=before.version + 1)
        self.plan(name)

    def scan(self) -> None:
        """Plan every tablet of which its record does not say that it may be passed by."""
        for name in list(self.records):
            if needs_look(self.records[name], TABLE, self.now_s):
                self.plan(name)

    def plan(self, name: str) -> None:
        """Plan a tablet: the job that it wants, or none."""
        job = self.jobs.get(name)
        if job is not None and not self.state.queued_ids(job.tablet):
            self.planned += 1
        event = on.TabletPlanned(
            tablet=self.tablets[name],
            plan=TabletPlan(jobs=(job,) if job else ()),
            record=self.records[name],
            settings_version=TABLE.settings_version,
        )
        self._tell(event)

    def ask(self, count: int, group: str = "g") -> list[str]:
        """So many compactors wait for a job each; return the names of those that begin."""
        before = len(self.begun)
        for _ in range(count):
            self._takes += 1
            take = f"k{self._takes}"
            self._waiting[take] = None
            event = on.TakeAsked(
                request=TakeRequest(take=take, compactor=f"c-{take}", incarnation="1", group=group)
            )
            self._tell(event)
        return self.begun[before:]

    def go(self) -> None:
        """Nobody waits for a job any more."""
        for take in list(self._waiting):
            self._tell(on.TakeLeft(take=take))

    def finish(self, name: str) -> list[str]:
        """A job commits, and its tablet wants none; return the names of those that begin."""
        before = len(self.begun)
        self.running.remove(name)
        del self.jobs[name]
        record = self.records[name]
        self.records[name] = replace(record, version=record.version + 1, files=1)
        take = self._attempts.pop(name)
        report = on.AttemptReported(
            report=AttemptReport(
                compactor=f"c-{take}",
                attempt=f"{name}-{take}",
                end=AttemptEnd.COMMITTED,
                error_class="",
                cause="",
            )
        )
        self._tell(report)
        return self.begun[before:]

    def cancel_queued(self, name: str) -> None:
        """The operator cancels a queued or paused job."""
        self._tell(on.QueuedJobCancelled(job=name, cause="by the operator"))

    def pause_job(self, name: str) -> None:
        """The operator pauses a queued job."""
        self._tell(on.QueuedJobPaused(job=name))

    def resume_job(self, name: str) -> None:
        """The operator resumes a paused job."""
        self._tell(on.QueuedJobResumed(job=name))

    def tick(self, seconds: float = 1.0) -> None:
        """Time passes."""
        self.now_s += seconds
        self._tell(on.Ticked())
        self.state.check()

    def _tell(self, event: on.Event) -> None:
        for action in self.state.handle(event, self.now_s):
            self._perform(action)

    def _perform(self, action: do.Action) -> None:
        match action:
            case do.Reserve(take=take, job=job, compactor=compactor):
                given = assignment_of(job, f"{job.id}-{take}", compactor, self.now_s)
                self._tell(on.JobReserved(take=take, assignment=given))
            case do.Assign(take=take, attempt=attempt):
                name = attempt.removesuffix(f"-{take}")
                del self._waiting[take]
                self._attempts[name] = take
                self.running.append(name)
                self.begun.append(name)
            case do.AnswerNothing(take=take):
                self._waiting.pop(take, None)
            case do.Replan(tablet=tablet):
                self.plan(tablet.end.decode())
            case WriteAnalysis(tablet=tablet, analysis=analysis, version=version):
                name = tablet.end.decode()
                self.records[name] = replace(
                    self.records[name],
                    analysis=analysis,
                    analysis_version=version,
                    analysis_settings=action.settings_version,
                )
            case _:
                raise AssertionError(action)
