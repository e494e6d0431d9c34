"""What the core answers about rare states of a tablet: triggers, pauses, statistics, storage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.model.job import TabletPlan
from common.model.outcome import TabletStatistics
from common.model.table import Column, Table, TableSettings
from common.model.tablet import Record
from common.settings import CoordinatorSettings
from coordinator.core import events as on
from coordinator.core import views
from coordinator.core.assignment import admission
from coordinator.core.queue import lane_class
from coordinator.core.retry import Failure
from coordinator.core.state import CoordinatorState
from coordinator.core.story import Stories
from neve import api
from tests.support.planning import TABLET, job

pytestmark = pytest.mark.unit

TABLE = Table(
    id="t1",
    name="events",
    location="file:///e",
    schema=(Column("x", "int64"),),
    settings=TableSettings(triggers=("admin",)),
    triggered_by="admin",
    triggered_at_s=5.0,
)


def triggered(settings: CoordinatorSettings | None = None) -> CoordinatorState:
    """Return a core whose table has just been triggered."""
    state = CoordinatorState(settings or CoordinatorSettings())
    state.handle(on.TableSeen(table=replace(TABLE, triggered_at_s=0.0)), 1.0)
    state.handle(on.TableSeen(table=TABLE), 6.0)
    return state


def planned(plan: TabletPlan, **record: object) -> on.TabletPlanned:
    known = Record(version=3, files=2, **record)  # type: ignore[arg-type]  # by name
    return on.TabletPlanned(tablet=TABLET, plan=plan, record=known, settings_version=1)


def verdict(state: CoordinatorState, event: on.Event) -> tuple[str, str]:
    """Return the verdict on the trigger after an event, and the sentence about it."""
    state.handle(event, 9.0)
    decision = state.trigger_decision(TABLET)
    assert decision is not None
    told = state.explain(TABLET, 10.0).sentences
    (sentence,) = [sentence for sentence in told if sentence.startswith("trigger admin asked")]
    return decision.verdict, sentence.partition(": its planner ")[2]


def test_a_trigger_whose_planner_fails_is_explained() -> None:
    state = triggered()
    event = on.PlanningFailed(tablet=TABLET, cause="no such option")
    assert verdict(state, event) == (api.TriggerVerdict.FAILED, "failed: no such option")


def test_a_planner_that_fails_without_a_recent_trigger_is_no_answer_to_one() -> None:
    state = CoordinatorState(CoordinatorSettings())
    state.handle(on.PlanningFailed(tablet=TABLET, cause="no such option"), 9.0)
    assert state.trigger_decision(TABLET) is None


def test_a_trigger_has_to_wait_while_a_job_runs() -> None:
    plan = TabletPlan(triggered_at_s=5.0)
    busy = "has to wait: a job or a request is active in the tablet"
    assert verdict(triggered(), planned(plan, running=1)) == (api.TriggerVerdict.HELD, busy)


def test_a_trigger_has_to_wait_while_the_queue_is_full() -> None:
    state = triggered(CoordinatorSettings(queue_count_max=1))
    other = replace(TABLET, end=b"a")
    urgent = job("urgent", priority=9, tablet=other)
    first = replace(planned(TabletPlan(jobs=(urgent,))), tablet=other)
    state.handle(first, 7.0)
    full = "has to wait: the queue of its group is full"
    event = planned(TabletPlan(jobs=(job("j"),), triggered_at_s=5.0))
    assert verdict(state, event) == (api.TriggerVerdict.HELD, full)
    assert state.is_deferred(TABLET)
    assert state.queued_ids(other) == ("urgent",)


@pytest.mark.parametrize(
    ("shares", "compared", "changes"),
    [
        ((), 0, ""),
        ((("x", 0.25), ("y", 1.0)), 8, "; of 8 updates, so many change x 25%, y 100%"),
    ],
)
def test_the_statistics_of_an_analysis_are_explained(
    shares: tuple[tuple[str, float], ...], compared: int, changes: str
) -> None:
    found = TabletStatistics(
        tablet_version=2,
        measured_at_s=1.0,
        rows=40,
        updated_rows=10,
        compared_rows=compared,
        changed_shares=shares,
    )
    state = CoordinatorState(CoordinatorSettings())
    state.handle(on.TableSeen(table=TABLE), 1.0)
    state.handle(planned(TabletPlan(), statistics=found), 2.0)
    sentence = f"at version 2 newer rows hid 25.0% of its 40 rows{changes}"
    assert sentence in state.explain(TABLET, 3.0).sentences


def test_a_job_of_a_paused_group_is_held_by_the_pause() -> None:
    state = CoordinatorState(CoordinatorSettings())
    state.handle(on.TableSeen(table=TABLE), 1.0)
    assert state.why_held(job("j"), 2.0) is None
    state.handle(on.GroupPaused(group="default"), 3.0)
    assert state.why_held(job("j"), 4.0) == "group default is paused"


def test_only_some_tables_that_wait_for_their_storage_are_named() -> None:
    state = CoordinatorState(CoordinatorSettings())
    for number in range(views.WAITING_SHOWN_MAX + 2):
        tablet = replace(TABLET, table=f"t{number}")
        failure = Failure(
            compactor="c1",
            tablet=tablet,
            inputs=("f",),
            error_class="UnavailableError",
            cause="silent",
        )
        state._cluster.retry.note_failure(failure, 1.0)
    warnings = [line for line in state.status(2.0).warnings if "storage" in line]
    assert len(warnings) == views.WAITING_SHOWN_MAX + 1
    assert warnings[-1] == "jobs of 2 more tables wait for their storage"


def test_an_unknown_outcome_of_a_reservation_is_noted_once() -> None:
    state = CoordinatorState(CoordinatorSettings())
    event = on.JobReserveUnknown(take="k1", job=job("j"), attempt="a1")
    state.handle(event, 1.0)
    (attempt,) = state._cluster.attempts
    state.handle(event, 2.0)
    assert list(state._cluster.attempts) == [attempt]
    assert state.tablet_of("a1") == TABLET


def test_an_attempt_that_is_not_known_has_no_tablet_and_nothing_is_owed() -> None:
    state = CoordinatorState(CoordinatorSettings())
    assert state.tablet_of("att-x") is None
    assert state.owed_tablets("t1") == ({}, {})
    assert not state.wants_analysis(TABLET)
    assert not state.is_deferred(TABLET)


def test_a_class_that_may_not_start_admits_none_of_its_jobs() -> None:
    state, wanted = CoordinatorState(CoordinatorSettings()), job("j")
    admits = admission(state._cluster, frozenset({lane_class(wanted)}))
    assert admits is not None
    assert not admits(wanted)
    assert admission(state._cluster, frozenset()) is None


def test_a_commit_of_a_forgotten_story_is_left_out() -> None:
    stories = Stories(8, 8, 10_000)
    stories.complete(TABLET, "a1", ["f"])
    assert stories.size_bytes == 0
