"""Which spans the coordinator sends of an attempt, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.model.job import TabletPlan
from common.model.outcome import AttemptEnd
from common.model.tablet import Record
from common.tracing import Spans
from common.wire import Assignment, AttemptReport
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.service import JobTraces
from tests.support.assignments import an_assignment
from tests.support.compactor_fakes import FakeSpans

TAKE = "take-1"


class Story:
    """Time passes by hand."""

    def __init__(self, spans: Spans) -> None:
        self.now_s = 0.0
        self.traces = JobTraces(spans, lambda: self.now_s)
        self.given = an_assignment(attempt="a")

    def handed_out(self) -> Assignment:
        """Ask about a tablet at 10 s, plan it at 12, reserve at 15, hand the job out at 16."""
        job = self.given.job
        self.now_s = 10.0
        self.traces.asked(job.tablet)
        self.now_s = 11.0
        self.traces.asked(job.tablet)
        self.planned_at(12.0)
        self.planned_at(14.0)
        self.now_s = 15.0
        self.traces.reserving(do.Reserve(take=TAKE, job=job, compactor="c-1"))
        return self.assigned_at(16.0)

    def planned_at(self, now_s: float) -> None:
        self.now_s = now_s
        plan = TabletPlan(jobs=(self.given.job,))
        tablet = self.given.job.tablet
        self.traces.see(
            on.TabletPlanned(tablet=tablet, plan=plan, record=Record(), settings_version=1)
        )

    def assigned_at(self, now_s: float) -> Assignment:
        self.now_s = now_s
        return self.traces.assigned(do.Assign(take=TAKE, attempt="a", assignment=self.given))

    def reported_at(self, now_s: float, end: AttemptEnd = AttemptEnd.COMMITTED) -> None:
        self.now_s = now_s
        report = AttemptReport(
            compactor="c-1", attempt="a", end=end, elapsed_s=4.0, moved_bytes=9, trace="trace-a"
        )
        self.traces.see(on.AttemptReported(report=report))


def test_times_before_the_compactor_are_those_of_plan_queue_and_reservation() -> None:
    spans = FakeSpans()
    story = Story(spans)

    assert story.handed_out().trace == "trace-a"
    assert [(name, times) for _, name, times, _ in spans.sent] == [
        ("plan", (10.0, 12.0)),
        ("queue", (12.0, 15.0)),
        ("reserve", (15.0, 16.0)),
    ]
    story.reported_at(20.0)
    context, name, times, said = spans.sent[-1]
    assert (context, name, times) == ("trace-a", "attempt", (10.0, 20.0))
    assert said["neve.table"] == story.given.job.table_name
    assert (said["neve.end"], said["neve.moved_bytes"]) == ("committed", 9)


def test_repeated_answers_and_reports_send_nothing_again() -> None:
    spans = FakeSpans()
    story = Story(spans)
    story.handed_out()

    assert story.assigned_at(17.0).trace == "trace-a"
    story.reported_at(20.0)
    sent = list(spans.sent)
    story.reported_at(21.0)
    settled = on.AttemptSettled(
        tablet=story.given.job.tablet, attempt="a", end=AttemptEnd.COMMITTED
    )
    story.traces.see(settled)

    assert spans.sent == sent
    assert len(sent) == 4


def test_an_attempt_that_was_released_ends_without_a_report() -> None:
    spans = FakeSpans()
    story = Story(spans)
    story.handed_out()

    story.now_s = 30.0
    settled = on.AttemptSettled(tablet=story.given.job.tablet, attempt="a", end=AttemptEnd.LOST)
    story.traces.see(settled)

    _, name, times, said = spans.sent[-1]
    assert (name, times, said["neve.end"]) == ("attempt", (10.0, 30.0), "lost")


def test_a_coordinator_that_was_started_again_ends_the_span_from_the_report() -> None:
    spans = FakeSpans()
    story = Story(spans)

    story.reported_at(20.0)

    ((context, name, times, said),) = spans.sent
    assert (context, name, times) == ("trace-a", "attempt", (16.0, 20.0))
    assert "neve.table" not in said


@pytest.mark.parametrize("traced", [True, False])
def test_nothing_is_kept_when_it_is_off(traced: bool) -> None:
    story = Story(FakeSpans() if traced else Spans())
    trace = replace(story.given, trace="trace-a" if traced else "")

    assert story.handed_out() == trace
    kept = (story.traces._planned, story.traces._handed, story.traces._asked)
    assert any(len(each) for each in kept) == traced
