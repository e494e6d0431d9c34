"""A compaction group that the settings name is there from the first moment, and said to be idle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.model.job import KNOWS_BUFFERS, TabletPressure
from common.model.tablet import TabletId
from common.settings import CoordinatorSettings
from common.wire import Heartbeat, MetricValue
from coordinator.core import events as on
from coordinator.core.attempt_events import METRICS_MAX
from coordinator.core.limits import Limits
from coordinator.core.state import CoordinatorState
from coordinator.core.views import compactor_figures, table_figures
from tests.unit.coordinator_core.test_turns import TABLE, planned

pytestmark = pytest.mark.unit

HINT = "start one with groups.small.compactors in the settings and a restart of the service"


def state_with(*groups: str) -> CoordinatorState:
    state = CoordinatorState(CoordinatorSettings(), limits=Limits(), groups=groups)
    state.handle(on.TableSeen(table=TABLE), 0.0)
    return state


def heard(group: str) -> on.CompactorHeard:
    return on.CompactorHeard(
        beat=Heartbeat(
            compactor="c1",
            incarnation="1",
            group=group,
            node="n",
            slots=1,
            attempts=(),
            draining=False,
            actions=(KNOWS_BUFFERS,),
        )
    )


def test_a_group_is_shown_before_it_has_had_a_job_or_compactor() -> None:
    status = state_with("small", "large").status(0.0)
    assert [(group.group, group.compactors) for group in status.groups] == [
        ("large", 0),
        ("small", 0),
    ]
    assert status.warnings == (
        "group large has no compactor: no job is waiting for it now; start one with"
        " groups.large.compactors in the settings and a restart of the service",
        f"group small has no compactor: no job is waiting for it now; {HINT}",
    )


def test_jobs_that_wait_for_a_compactor_are_counted_and_explained() -> None:
    state = state_with("small")
    for number in range(3):
        state.handle(planned(number), 0.1)
    waits = f"group small has no compactor: its 3 jobs wait; {HINT}"
    assert state.status(0.2).warnings == (waits,)
    (sentence, *_) = state.explain(TabletId("t", b"0001"), 0.2).sentences
    assert sentence.startswith(f"a job on 2 files is queued in group small: {waits}")


def test_a_group_with_a_compactor_is_nothing_to_speak_of() -> None:
    state = state_with("small")
    state.handle(heard("small"), 0.1)
    assert state.status(0.2).warnings == ()


def test_the_metrics_of_a_heartbeat_get_the_labels_of_its_compactor() -> None:
    state = state_with("small")
    event = heard("small")
    many = tuple(MetricValue("neve_compactor_slots", number) for number in range(200))
    ended = MetricValue("neve_compactor_attempts_total", 3.0, ("failed",))
    state.handle(replace(event, beat=replace(event.beat, metrics=(ended, *many))), 0.1)

    figures = state.look(compactor_figures)

    assert figures[0] == replace(ended, labels=("small", "c1", "failed"))
    assert len(figures) == METRICS_MAX
    state.handle(on.CompactorGone(compactor="c1", incarnation="1", cause="killed"), 0.2)
    assert state.look(compactor_figures) == []


def test_the_worst_tables_are_named_in_metrics() -> None:
    state = state_with("small")
    pressure = TabletPressure(small_files=3, files=5)
    for number, at_s in ((1, 5.0), (2, 20.0)):
        event = planned(number)
        state.handle(replace(event, plan=replace(event.plan, pressure=pressure)), at_s)
    fatal = on.FileFatal(tablet=TabletId("t", b"0001"), path="a", cause="it crashes readers")
    state.handle(fatal, 21.0)

    figures = {value.metric: value for value in state.look(table_figures, 25.0)}

    oldest = figures["neve_table_queue_oldest_seconds"]
    assert (oldest.value, oldest.labels) == (20.0, (TABLE.name,))
    quarantined = figures["neve_table_quarantined_tablets"]
    assert (quarantined.value, quarantined.labels) == (1, (TABLE.name,))
    small, files = figures["neve_table_small_files"], figures["neve_table_files"]
    assert (small.value, files.value, small.labels) == (6, 10, (TABLE.name,))
