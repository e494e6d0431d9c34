"""The coordinator's spans of an attempt: the attempt itself, and what came before its compactor.

    plan      from the question about a tablet until its plan
    queue     from the plan with the job until its reservation was asked for
    reserve   from then until the job was handed to a compactor

The shell shows events and actions as they pass, and when. Nothing here decides, and what was
forgotten only makes spans shorter.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from common.bounded_map import BoundedMap
from common.model.outcome import AttemptEnd
from common.model.tablet import TabletId
from common.tracing import ATTEMPT, NoSpans, Spans
from common.wire import Assignment, AttemptReport
from coordinator.core import actions as do
from coordinator.core import events as on

NOTES_MAX = 100_000
"""Tablets, jobs, takes and attempts of which times are kept, each."""


@dataclass(frozen=True, slots=True)
class _Handed:
    """An attempt that a compactor was given."""

    assignment: Assignment
    began_s: float
    """When its tablet was asked about; if nobody knows, the first time that is known."""


class JobTraces:
    """Notes times, and sends the spans of an attempt when it is over."""

    def __init__(self, spans: Spans, now_s: Callable[[], float]) -> None:
        """Know nothing yet.

        Args:
            spans: Where spans go.
            now_s: Returns the time now.
        """
        self._spans, self._now_s = spans, now_s
        self._off = isinstance(spans, NoSpans)
        """Then nothing is noted."""
        self._asked: BoundedMap[TabletId, float] = BoundedMap(NOTES_MAX)
        self._planned: BoundedMap[str, tuple[float, float]] = BoundedMap(NOTES_MAX)
        """Job → when its tablet was asked about, and when the plan with the job was there."""
        self._reserving: BoundedMap[str, float] = BoundedMap(NOTES_MAX)
        """Take → since when a reservation for it is asked for."""
        self._handed: BoundedMap[str, _Handed] = BoundedMap(NOTES_MAX)
        self._over: BoundedMap[str, None] = BoundedMap(NOTES_MAX)

    def asked(self, tablet: TabletId) -> None:
        """Note that a tablet is to be planned."""
        if not self._off and tablet not in self._asked:
            self._asked.put(tablet, self._now_s())

    def see(self, event: on.Event) -> None:
        """Note what an event tells."""
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
        """Note that the reservation of a job is asked for."""
        if not self._off and isinstance(action, do.Reserve):
            self._reserving.put(action.take, self._now_s())

    def assigned(self, action: do.Assign) -> Assignment:
        """Return an assignment with the context of its trace.

        An answer that is repeated keeps the times of the first one.
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
            if job.id not in self._planned:  # A job that is planned again keeps its place.
                self._planned.put(job.id, (now_s if asked_s is None else asked_s, now_s))

    def _before_compactor(self, take: str, assignment: Assignment) -> _Handed:
        """Send the spans before the compactor's; return what is needed for the attempt's own."""
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
        # A coordinator that was started again knows of the attempt what its compactor reports.
        began_s = handed.began_s if handed else now_s - (report.elapsed_s if report else 0.0)
        known: dict[str, str | int] = {"neve.attempt": attempt, "neve.end": end.value}
        if report is not None:
            known |= {"neve.compactor": report.compactor, "neve.moved_bytes": report.moved_bytes}
        if handed is not None:
            known |= _attributes(handed.assignment)
        self._spans.emit(context, ATTEMPT, (began_s, now_s), known)


def _attributes(assignment: Assignment) -> dict[str, str | int]:
    """Return what names a job; of its rows and files nothing but a size."""
    job = assignment.job
    return {
        "neve.table": job.table_name,
        "neve.tablet": str(job.tablet),
        "neve.group": job.group,
        "neve.job": job.id,
        "neve.compactor": assignment.reservation.compactor,
        "neve.input_bytes": job.input_bytes,
    }
