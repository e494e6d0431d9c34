"""Triggers as values: when `periodic` is due, which files a gate lets through, who may ask."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import WriteAnalysis
from common.model.file import DataFile
from common.model.job import TabletPlan
from common.model.table import Column, Table, TableSettings, TableState
from common.model.tablet import PLUS_INFINITY, Analysis, Record, TabletId
from common.settings import CoordinatorSettings
from coordinator.core import events as on
from coordinator.core.state import CoordinatorState
from coordinator.core.triggers import (
    ADMIN,
    ANALYSIS,
    CHANGE,
    PERIODIC,
    PeriodicTriggers,
    TriggerDecision,
    TriggerDecisions,
    is_gated,
    is_included,
    open_trigger_s,
    phase_s,
    refusal_reason,
    triggers_due,
    unmeasured_share,
    wants_analysis,
    why_not_triggered,
)
from neve import api

pytestmark = pytest.mark.unit

WEEK_S = 7 * 86_400.0
TABLE = Table(id="t1", name="events", location="file:///e", schema=(Column("x", "int64"),))
TABLET = TabletId("t1", PLUS_INFINITY)


def settings(*triggers: str, **given: float) -> TableSettings:
    return TableSettings(triggers=triggers, **given)  # type: ignore[arg-type]  # by name


def table(number: int, *triggers: str, **given: float) -> Table:
    return replace(TABLE, id=f"t{number}", name=f"e{number}", settings=settings(*triggers, **given))


def test_periodic_is_due_at_the_start_and_after_each_interval() -> None:
    own = settings(PERIODIC, trigger_spread_s=0.0)
    assert own.trigger_interval_s == WEEK_S
    counts = [
        triggers_due(100.0, 100.0 + at_s, "t1", own)
        for at_s in (0.0, WEEK_S - 1, WEEK_S, 5 * WEEK_S)
    ]
    assert counts == [1, 1, 2, 6]


def test_tables_begin_apart_and_each_always_at_its_own_time() -> None:
    own = settings(PERIODIC, trigger_interval_s=3600.0, trigger_spread_s=300.0)
    phases = [phase_s(f"t{number}", own) for number in range(300)]
    assert all(0 <= phase < 300 for phase in phases)
    assert phases == [phase_s(f"t{number}", own) for number in range(300)]
    in_minutes = [sum(60 * n <= phase < 60 * (n + 1) for phase in phases) for n in range(5)]
    assert all(40 <= count <= 80 for count in in_minutes), in_minutes
    late_s = phases[7]
    assert triggers_due(0.0, late_s - 0.01, "t7", own) == 0
    assert triggers_due(0.0, late_s + 0.01, "t7", own) == 1
    assert triggers_due(0.0, late_s + 3599.0, "t7", own) == 1
    assert triggers_due(0.0, late_s + 3600.01, "t7", own) == 2
    short = replace(own, trigger_interval_s=10.0)
    assert all(phase_s(f"t{number}", short) < 10 for number in range(300))


def test_each_table_is_asked_about_once_per_interval() -> None:
    quick = table(1, PERIODIC, trigger_interval_s=10.0, trigger_spread_s=0.0)
    slow = table(2, PERIODIC, ADMIN, trigger_interval_s=25.0, trigger_spread_s=0.0)
    never = table(3, ADMIN, trigger_interval_s=1.0, trigger_spread_s=0.0)
    periodic, asked = PeriodicTriggers(), list[tuple[float, str]]()
    for second in range(51):
        now_s = 1000.0 + second
        for each in periodic.due([quick, slow, never], now_s):
            asked.append((second, each.id))
            periodic.done(each, now_s)
    assert [at_s for at_s, each in asked if each == "t1"] == [0, 10, 20, 30, 40, 50]
    assert [at_s for at_s, each in asked if each == "t2"] == [0, 25, 50]
    assert {each for _, each in asked} == {"t1", "t2"}


def test_a_pause_and_a_failure_make_a_trigger_late_and_never_two() -> None:
    own = table(1, PERIODIC, trigger_interval_s=10.0, trigger_spread_s=0.0)
    paused = replace(own, state=TableState.PAUSED)
    periodic = PeriodicTriggers()
    assert periodic.due([paused], 0.0) == []
    assert periodic.due([paused], 35.0) == []
    assert periodic.due([own], 36.0) == [own]
    assert periodic.due([own], 37.0) == [own], "it could not be noted, so it stays due"
    periodic.done(own, 37.0)
    assert periodic.due([own], 39.9) == []
    assert periodic.due([own], 40.0) == [own]


def test_another_interval_begins_anew_and_a_table_that_is_gone_is_forgotten() -> None:
    own = table(1, PERIODIC, trigger_interval_s=100.0, trigger_spread_s=0.0)
    periodic = PeriodicTriggers()
    assert periodic.due([own], 0.0) == [own]
    periodic.done(own, 0.0)
    shorter = replace(own, settings=replace(own.settings, trigger_interval_s=50.0))
    assert periodic.due([shorter], 10.0) == [shorter]
    periodic.done(shorter, 10.0)
    assert periodic.due([shorter], 59.0) == []
    assert periodic.due([], 60.0) == []
    assert periodic.due([shorter], 61.0) == [shorter]


@pytest.mark.parametrize(
    ("triggers", "gated"),
    [((), False), (("change",), False), (("change", "admin"), False), (("admin",), True),
     (("periodic",), True), (("periodic", "admin"), True)],
)  # fmt: skip
def test_a_table_is_gated_that_names_triggers_without_changes(
    triggers: tuple[str, ...], gated: bool
) -> None:
    assert is_gated(settings(*triggers)) is gated


def test_a_trigger_is_open_until_the_tablet_has_come_to_rest_for_it() -> None:
    asked = replace(TABLE, triggered_at_s=50.0)
    assert open_trigger_s(TABLE, Record()) == 0
    assert open_trigger_s(asked, Record()) == 50.0
    assert open_trigger_s(asked, Record(answered_s=50.0)) == 0
    assert open_trigger_s(replace(asked, triggered_at_s=51.0), Record(answered_s=50.0)) == 51.0


def test_files_that_came_since_wait_for_the_next_trigger_and_outputs_of_jobs_do_not() -> None:
    old, new = (DataFile(path=f"{at}", size_bytes=1, rows=1, added_at_s=at) for at in (49.0, 51.0))
    made = replace(new, job="job-1")
    assert [is_included(each, 50.0) for each in (old, new, made)] == [True, False, True]
    assert [is_included(each, 0.0) for each in (old, new, made)] == [False] * 3


def test_who_may_ask_about_which_table() -> None:
    admin, periodic = table(1, ADMIN), table(2, PERIODIC)
    assert why_not_triggered(TABLE, ADMIN) is None
    assert why_not_triggered(admin, ADMIN) is None
    assert why_not_triggered(periodic, ADMIN) == (
        "table e2 does not have the trigger admin: its setting triggers is periodic; add the"
        " trigger there, or force a run with `neve compact e2`"
    )
    assert why_not_triggered(replace(admin, state=TableState.PAUSED), ADMIN) == (
        "table e1 is paused: its planner runs only while it is live (`neve resume e1`)"
    )


def test_a_refusal_names_the_most_frequent_reasons_first() -> None:
    left = {"a": "too small", "b": "too large", "c": "too large", "d": "x", "e": "y"}
    assert refusal_reason(left) == (
        "2 files: too large; 1 file: too small; 1 file: x; 1 other reasons"
    )
    assert refusal_reason({}) == "the tablet has no files"


def decision(
    verdict: api.TriggerVerdict, reason: str, triggered_at_s: float = 5.0
) -> TriggerDecision:
    return TriggerDecision(
        table_name="events",
        trigger=ADMIN,
        triggered_at_s=triggered_at_s,
        decided_s=6.0,
        verdict=verdict,
        reason=reason,
    )


def test_the_first_final_answer_is_kept_and_a_later_trigger_has_its_own() -> None:
    known = TriggerDecisions(10)
    known.put(TABLET, decision(api.TriggerVerdict.HELD, "a job runs"))
    known.put(TABLET, decision(api.TriggerVerdict.ACCEPTED, "four of a size"))
    known.put(TABLET, decision(api.TriggerVerdict.REFUSED, "nothing is left to do"))
    found = known.of(TABLET)
    assert found is not None
    assert (found.verdict, found.reason) == (api.TriggerVerdict.ACCEPTED, "four of a size")
    (tally,) = known.of_tables(5)
    assert (tally.accepted, tally.held, tally.refused, tally.refusal) == (1, 0, 0, "a job runs")
    known.put(TABLET, decision(api.TriggerVerdict.REFUSED, "too few", 7.0))
    (tally,) = known.of_tables(5)
    assert (tally.triggered_at_s, tally.accepted, tally.refused) == (7.0, 0, 1)
    assert tally.refusal == "too few"
    assert known.counts == {
        (ADMIN, "held"): 1, (ADMIN, "accepted"): 1, (ADMIN, "refused"): 1
    }  # fmt: skip
    known.forget([TABLET], "t1")
    assert (known.of(TABLET), known.of_tables(5)) == (None, ())


def test_a_late_answer_to_an_earlier_trigger_does_not_hide_the_later_one() -> None:
    decisions = TriggerDecisions(10)
    other = TabletId("t1", b"m")
    decisions.put(TABLET, decision(api.TriggerVerdict.ACCEPTED, "four of a size", 7.0))
    decisions.put(other, decision(api.TriggerVerdict.REFUSED, "too few", 5.0))
    (tally,) = decisions.of_tables(5)
    assert (tally.triggered_at_s, tally.accepted, tally.refused) == (7.0, 1, 0)
    late = decisions.of(other)
    assert late is not None
    assert late.reason == "too few", "the tablet itself shows it"


def answered(**given: object) -> float | None:
    """Return the trigger that a plan without jobs is written to have answered."""
    state = CoordinatorState(CoordinatorSettings())
    record = Record(version=3, files=2, **given)  # type: ignore[arg-type]  # by name
    planned = on.TabletPlanned(
        tablet=TABLET, plan=TabletPlan(triggered_at_s=5.0), record=record, settings_version=1
    )
    notes = [each for each in state.handle(planned, 9.0) if isinstance(each, WriteAnalysis)]
    return notes[0].answered_s if notes else None


def test_a_tablet_has_answered_when_nothing_is_wanted_and_nothing_runs() -> None:
    assert answered() == 5.0
    known = {"analysis": Analysis.STABLE, "analysis_version": 3, "analysis_settings": 1}
    assert answered(**known) == 5.0, "also where the analysis is there already"
    assert answered(running=1) is None, "its outputs may be wanted next"
    assert answered(waiting=1) is None
    assert answered(operation=True) is None


def test_a_count_of_live_bytes_that_somebody_asked_for_is_no_answer_of_the_planner() -> None:
    state = CoordinatorState(CoordinatorSettings())
    weighted = replace(TABLE, settings=settings(ADMIN, maintenance_priority=5, workload_points=100))
    state.handle(on.TableSeen(table=weighted), 1.0)
    state.handle(on.ReadsReported(scans={TABLET: 1000}), 2.0)
    plan = TabletPlan(left={"a": "too few"}, triggered_at_s=5.0)
    record = Record(version=3, files=1, analysis_group="default")
    state.handle(on.TabletPlanned(tablet=TABLET, plan=plan, record=record, settings_version=1), 9.0)

    (queued,) = state.queued("default", 9, 9.0)
    assert (queued.job.action, queued.job.priority) == ("analyze", 0), "it comes after all others"
    found = state.trigger_decision(TABLET)
    assert found is not None
    assert (found.verdict, found.jobs, found.reason) == (
        api.TriggerVerdict.REFUSED,
        0,
        "1 file: too few",
    )


def files_of(*measured: tuple[int, int | None]) -> list[DataFile]:
    return [
        DataFile(path=f"f{at}", size_bytes=size, rows=1, measured_version=version)
        for at, (size, version) in enumerate(measured)
    ]


def test_an_analysis_is_asked_for_when_enough_bytes_are_new_since_the_last_one() -> None:
    files = files_of((70, 3), (30, None))
    assert unmeasured_share(files) == 0.3
    assert wants_analysis(files, settings(ANALYSIS, analysis_share=0.3))
    assert not wants_analysis(files, settings(ANALYSIS, analysis_share=0.31))
    assert not wants_analysis(files, settings(CHANGE, analysis_share=0.1)), "off unless named"
    assert not wants_analysis([], settings(ANALYSIS))
    assert not wants_analysis(files_of((0, None)), settings(ANALYSIS))


def test_the_trigger_analysis_closes_no_gate_and_answers_no_operator() -> None:
    assert not is_gated(settings(ANALYSIS))
    assert is_gated(settings(ANALYSIS, ADMIN))
    assert not is_gated(settings(ANALYSIS, CHANGE))
    asked = replace(TABLE, settings=settings(ANALYSIS))
    assert why_not_triggered(asked, ADMIN) is None
    assert why_not_triggered(replace(TABLE, settings=settings(ANALYSIS, CHANGE)), ADMIN)


def test_a_plan_of_a_tablet_that_has_changed_much_queues_one_analysis() -> None:
    state = CoordinatorState(CoordinatorSettings())
    state.handle(on.TableSeen(table=replace(TABLE, settings=settings(ANALYSIS))), 1.0)
    record = Record(version=3, files=1)
    planned = on.TabletPlanned(
        tablet=TABLET, plan=TabletPlan(analysis_group="default"), record=record, settings_version=1
    )
    notes = state.handle(planned, 9.0)
    (queued,) = state.queued("default", 9, 9.0)
    assert queued.job.action == "analyze"
    assert not any(
        isinstance(note, WriteAnalysis) and note.analysis is Analysis.STABLE for note in notes
    ), "a scan must look again if the wish is forgotten"
    state.handle(planned, 10.0)
    assert len(state.queued("default", 9, 9.0)) == 1
