"""What a turn may cost, and what must not depend on the order of things."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.model.job import KEEPS_DELETED, KNOWS_BUFFERS, Job, Kind, TabletPlan
from common.model.outcome import AttemptEnd
from common.model.table import Table
from common.model.tablet import Record, TabletId
from common.settings import CoordinatorSettings
from common.wire import AttemptProgress, AttemptReport, Heartbeat, TakeRequest
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.assignment import HELD_JOBS_MAX
from coordinator.core.limits import Limits
from coordinator.core.state import CoordinatorState
from tests.support.reservations import assignment_of, reservation_of

TABLE = Table(id="t", name="trips", location="file:///t", schema=())


def planned(number: int) -> on.TabletPlanned:
    tablet = TabletId("t", b"%04d" % number)
    job = Job(
        id=f"job-{number}",
        tablet=tablet,
        table_name="trips",
        kind=Kind.SYSTEM,
        inputs=(f"f{number}", f"g{number}"),
        input_bytes=10,
        group="small",
        priority=1,
        reason="because",
    )
    record = Record(version=1, files=2)
    plan = TabletPlan(jobs=(job,))
    return on.TabletPlanned(tablet=tablet, plan=plan, record=record, settings_version=1)


def take(number: int) -> on.TakeAsked:
    return on.TakeAsked(
        request=TakeRequest(
            take=f"k{number}", compactor=f"c{number}", incarnation="1", group="small"
        )
    )


def reserved(by: int, event: on.TabletPlanned, attempt: str) -> on.JobReserved:
    (job,) = event.plan.jobs
    given = assignment_of(job, attempt, f"c{by}")
    return on.JobReserved(take=f"k{by}", assignment=given)


def test_a_turn_passes_over_so_many_jobs_and_no_more() -> None:
    state = CoordinatorState(CoordinatorSettings(), limits=Limits(class_failures=1))
    state.handle(on.TableSeen(table=TABLE), 0.0)
    state.handle(take(0), 0.0)
    for number in range(HELD_JOBS_MAX + 10):
        state.handle(planned(number), 0.0)
    state.handle(reserved(0, planned(0), "a0"), 0.0)
    failed = on.AttemptReported(
        report=AttemptReport(
            compactor="c0", attempt="a0", end=AttemptEnd.FAILED, error_class="Error", cause="boom"
        )
    )
    state.handle(failed, 0.0)

    assert state.handle(take(1), 0.1) == []
    assert len(state.queued(None, 1000, 0.1)) == 9
    replanned = state.handle(on.Ticked(), 2.1)
    assert len(replanned) == HELD_JOBS_MAX + 1
    assert all(isinstance(action, do.Replan | do.Reserve) for action in replanned)


def test_replans_per_turn_are_bounded() -> None:
    limits = Limits(queue_count_max=10, replans_per_turn_max=3, deferral_max_s=5.0)
    state = CoordinatorState(CoordinatorSettings(), limits=limits)
    state.handle(on.TableSeen(table=TABLE), 0.0)
    for number in range(30):
        state.handle(planned(number), 0.0)

    turns = [state.handle(on.Ticked(), 4.0 + number) for number in range(10)]

    assert [len(turn) for turn in turns] == [0, 3, 3, 3, 3, 3, 3, 2, 0, 0]


def test_a_conflict_at_commit_is_tried_again_at_once_and_held_against_nobody() -> None:
    state = CoordinatorState(CoordinatorSettings())
    state.handle(on.TableSeen(table=TABLE), 0.0)
    for number in range(9):
        state.handle(take(number), 0.0)
        assert [type(each) for each in state.handle(planned(1), 0.0)] == [do.Reserve]
        attempt = f"a{number}"
        state.handle(reserved(number, planned(1), attempt), 0.0)
        report = on.AttemptReported(
            report=AttemptReport(
                compactor=f"c{number}",
                attempt=attempt,
                end=AttemptEnd.CONFLICTED,
                error_class="ConflictError",
                cause="f7 came later",
            )
        )
        (release,) = state.handle(report, 0.0)
        assert isinstance(release, do.Release)
        assert release.end is AttemptEnd.CONFLICTED
        event = planned(1)
        settled = on.AttemptSettled(tablet=event.tablet, attempt=attempt, end=AttemptEnd.CONFLICTED)
        assert [type(each) for each in state.handle(settled, 0.0)] == [do.Replan]
        assert state.why_given_up(event.plan.jobs[0]) is None


def test_one_attempt_is_released_once_however_often_its_end_is_told() -> None:
    state = CoordinatorState(CoordinatorSettings())
    state.handle(take(1), 0.0)
    state.handle(planned(1), 0.0)
    state.handle(reserved(1, planned(1), "a1"), 0.0)
    failed = on.AttemptReported(
        report=AttemptReport(
            compactor="c1", attempt="a1", end=AttemptEnd.FAILED, error_class="Error", cause="boom"
        )
    )
    gone = on.CompactorGone(compactor="c1", cause="it died")

    releases = [
        action
        for event in (failed, failed, gone, gone, failed)
        for action in state.handle(event, 1.0)
        if isinstance(action, do.Release)
    ]

    assert len(releases) == 1


def test_a_job_that_may_drop_rows_waits_for_a_compactor_that_knows_buffers() -> None:
    state = CoordinatorState(CoordinatorSettings())
    table = replace(TABLE, version_column="v", tombstone_column="gone")
    state.handle(on.TableSeen(table=table), 0.0)
    state.handle(take(0), 0.0)
    assert state.handle(planned(1), 0.0) == [], "a compactor of an earlier release would drop them"
    older = "compactor c{} of group small is of an older release: no jobs of"
    assert older.format(0) in " ".join(state.status(0.0).warnings)

    asked = take(1)
    able = replace(asked, request=replace(asked.request, actions=(KNOWS_BUFFERS,)))
    state.handle(able, 0.0)
    (reserve,) = state.handle(planned(1), 0.0)
    assert isinstance(reserve, do.Reserve)
    assert older.format(1) not in " ".join(state.status(0.0).warnings)


@pytest.mark.parametrize("tombstones", ["gone", None])
def test_no_rows_are_buffered_while_an_older_compactor_ends_a_job_that_may_drop_rows(
    tombstones: str | None,
) -> None:
    state = CoordinatorState(CoordinatorSettings())
    table = replace(TABLE, version_column="v", tombstone_column=tombstones)
    state.handle(on.TableSeen(table=table), 0.0)
    assert state.status(0.0).buffers_refused == ()
    (job,) = planned(1).plan.jobs
    entry = reservation_of(job, "a1", "c1")
    state.handle(on.ReservationsFound(tablet=job.tablet, reservations=(entry,)), 0.0)

    def refused(*actions: str) -> bool:
        listed = (AttemptProgress(attempt="a1", state="rewriting"),)
        beat = Heartbeat(
            compactor="c1",
            incarnation="1",
            group="small",
            node="n",
            slots=1,
            attempts=listed,
            actions=actions,
        )
        state.handle(on.CompactorHeard(beat=beat), 1.0)
        reasons = dict(state.status(1.0).buffers_refused)
        return "a1 of compactor c1" in reasons.get("t", "")

    drops = tombstones is not None
    assert bool(state.status(0.0).buffers_refused) is drops
    assert refused() is drops
    assert not refused(KNOWS_BUFFERS)
    assert refused() is drops
    report = AttemptReport(compactor="c1", attempt="a1", end=AttemptEnd.COMMITTED)
    state.handle(on.AttemptReported(report=report), 2.0)
    assert state.status(2.0).buffers_refused == ()


def test_a_job_of_a_table_that_keeps_deleted_rows_waits_for_a_compactor_that_can() -> None:
    state = CoordinatorState(CoordinatorSettings())
    keeping = replace(TABLE.settings, keep_deleted_rows=True)
    table = replace(TABLE, settings=keeping, tombstone_column="gone")
    state.handle(on.TableSeen(table=table), 0.0)
    state.handle(take(0), 0.0)
    assert state.handle(planned(1), 0.0) == [], "a compactor of an earlier release drops the rows"

    asked = take(1)
    able = replace(asked, request=replace(asked.request, actions=(KEEPS_DELETED,)))
    state.handle(able, 0.0)
    (reserve,) = state.handle(planned(1), 0.0)
    assert isinstance(reserve, do.Reserve)
    assert reserve.compactor == "c1"
