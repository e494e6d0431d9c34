"""What operators are notified of: quarantines, full queues and large backlogs, with counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.model.job import TabletBacklog, TabletPlan
from common.model.outcome import AttemptEnd
from common.model.tablet import Record, TabletId
from common.wire import AttemptReport, Condition
from coordinator.core import events as on
from coordinator.core.retry import Failure
from coordinator.wiring import conditions
from tests.support.task_manager import TABLE, TaskManager

pytestmark = pytest.mark.unit


def condition_of(manager: TaskManager, backlog_bytes: int = 0) -> list[tuple[str, str, int]]:
    there = manager.state.look(conditions, backlog_bytes)
    return [(one.kind, one.subject, one.count) for one in there]


def quarantine(manager: TaskManager, table: str, number: int) -> None:
    """A job fails so often that its tablet is quarantined."""
    failure = Failure(
        compactor="c1",
        tablet=TabletId(table, b"%04d" % number),
        inputs=("a", "b"),
        error_class="RewriteError",
        cause="no such column",
    )
    for _ in range(5):
        manager.state._cluster.retry.note_failure(failure, manager.now_s)


def test_quarantined_tablets_are_counted_by_table() -> None:
    manager = TaskManager()
    manager.table("rides", "default")
    for number in range(300):
        quarantine(manager, "t", number)
    quarantine(manager, "rides", 1)
    assert condition_of(manager) == [("quarantined", "trips", 300), ("quarantined", "rides", 1)]
    (first, _) = manager.state.look(conditions, 0)
    assert "no such column" in first.text
    manager.state.handle(on.QuarantineLifted(table="rides"), manager.now_s)
    assert condition_of(manager) == [("quarantined", "trips", 300)]


def test_a_group_whose_queue_was_full_is_named_until_it_is_half_empty() -> None:
    manager = TaskManager(queue_count_max=4)
    for number in range(6):
        manager.offer(f"j{number}", 9 - number)
    assert condition_of(manager) == [("shed", "g", 2)]
    assert manager.ask(2) == ["j0", "j1"]
    for name in ("j0", "j1"):
        manager.finish(name)
    manager.tick()
    manager.ask(4)
    for name in list(manager.running):
        manager.finish(name)
    manager.tick()
    assert condition_of(manager) == []


def test_tables_with_a_backlog_above_the_setting_are_named() -> None:
    manager = TaskManager()
    manager._tell(on.TableSeen(table=replace(TABLE, id="r", name="rides")))
    for table, size_bytes in (("t", 700), ("r", 300)):
        event = on.TabletPlanned(
            tablet=TabletId(table, b"a"),
            plan=TabletPlan(backlog=TabletBacklog(strategy="ratio", size_bytes=size_bytes)),
            record=Record(version=1, files=2),
            settings_version=1,
        )
        manager.state.handle(event, 0.0)
    assert condition_of(manager, 0) == []
    assert condition_of(manager, 299) == [("backlog", "trips", 700), ("backlog", "rides", 300)]
    assert condition_of(manager, 300) == [("backlog", "trips", 700)]
    assert Condition(kind="backlog", subject="trips", count=700) in manager.state.look(
        conditions, 300
    )


def test_a_job_that_failed_once_is_no_condition() -> None:
    manager = TaskManager()
    manager.offer("a", 1)
    manager.ask(1)
    take = manager._attempts["a"]
    report = AttemptReport(
        compactor=f"c-{take}",
        attempt=f"a-{take}",
        end=AttemptEnd.FAILED,
        error_class="RewriteError",
        cause="no such column",
    )
    manager.state.handle(on.AttemptReported(report=report), manager.now_s)
    assert condition_of(manager) == []
