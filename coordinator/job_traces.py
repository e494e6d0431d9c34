"""The coordinator's spans of an attempt: the attempt itself, and the phases before its compactor.

    plan      from the request to plan a tablet until its plan
    queue     from the plan with the job until its reservation was requested
    reserve   from then until the job was assigned to a compactor

The shell passes events and actions as they happen. This module makes no decisions; an evicted time
only shortens a span.
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
"""Maximum number of tablets, jobs, takes and attempts, each, whose times are kept."""


@dataclass(frozen=True, slots=True)
class _Handed:
    """An attempt that was assigned to a compactor."""

    assignment: Assignment
    began_s: float
    """When planning of its tablet was requested, or else the first known time."""


class JobTraces:
    """Records times, and sends the spans of an attempt when it has ended."""

    def __init__(self, spans: Spans, now_s: Callable[[], float]) -> None:
        """Create an instance without recorded times.

        Args:
            spans: Receiver of spans.
            now_s: Returns the current time.
        """
        self._spans, self._now_s = spans, now_s
        self._off = isinstance(spans, NoSpans)
        """Whether tracing is disabled, so that no times are recorded."""
        self._asked: BoundedMap[TabletId, float] = BoundedMap(NOTES_MAX)
        self._planned: BoundedMap[str, tuple[float, float]] = BoundedMap(NOTES_MAX)
        """Job → times of the request to plan its tablet and of the plan."""
        self._reserving: BoundedMap[str, float] = BoundedMap(NOTES_MAX)
        """Take → when its reservation was requested."""
        self._handed: BoundedMap[str, _Handed] = BoundedMap(NOTES_MAX)
        self._over: BoundedMap[str, None] = BoundedMap(NOTES_MAX)

    def asked(self, tablet: TabletId) -> None:
        """Record that planning of a tablet was requested."""
        if not self._off and tablet not in self._asked:
            self._asked.put(tablet, self._now_s())

    def see(self, event: on.Event) -> None:
        """Record the times of an event."""
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
        """Record that the reservation of a job is requested."""
        if not self._off and isinstance(action, do.Reserve):
            self._reserving.put(action.take, self._now_s())

    def assigned(self, action: do.Assign) -> Assignment:
        """Return an assignment with the context of its trace.

        A repeated answer keeps the times of the first one.
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
            if job.id not in self._planned:  # A replanned job keeps its first times.
                self._planned.put(job.id, (now_s if asked_s is None else asked_s, now_s))

    def _before_compactor(self, take: str, assignment: Assignment) -> _Handed:
        """Send the spans before the assignment; return the values for the attempt's own span."""
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
        # A restarted coordinator knows only the report of the compactor.
        began_s = handed.began_s if handed else now_s - (report.elapsed_s if report else 0.0)
        known: dict[str, str | int] = {"neve.attempt": attempt, "neve.end": end.value}
        if report is not None:
            known |= {"neve.compactor": report.compactor, "neve.moved_bytes": report.moved_bytes}
        if handed is not None:
            known |= _attributes(handed.assignment)
        self._spans.emit(context, ATTEMPT, (began_s, now_s), known)


def _attributes(assignment: Assignment) -> dict[str, str | int]:
    """Return the attributes that identify a job; of its data, only the size is included."""
    job = assignment.job
    return {
        "neve.table": job.table_name,
        "neve.tablet": str(job.tablet),
        "neve.group": job.group,
        "neve.job": job.id,
        "neve.compactor": assignment.reservation.compactor,
        "neve.input_bytes": job.input_bytes,
    }
