"""Slots that a group keeps for urgent jobs, and priorities that tables and workloads change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.model.job import CLASS_WIDTH, Kind, TabletPlan, job_priority
from common.model.table import TableSettings
from coordinator.core import events as on
from tests.support.task_manager import TABLE, TaskManager

pytestmark = pytest.mark.unit

OVER_LIMIT = 2 * CLASS_WIDTH + 5


def test_long_jobs_fill_all_slots_but_one_and_an_urgent_job_starts_at_once() -> None:
    manager = TaskManager(urgent_slots={"g": 1})  # type: ignore[arg-type]  # by group
    for number in range(5):
        manager.offer(f"j{number}", 9 - number)
    assert manager.ask(3) == ["j0", "j1"]
    assert manager.explain("j2") == "the free slots of the group are reserved for urgent jobs"
    manager.tick(60.0)
    assert manager.running == ["j0", "j1"], "time alone gives the slot to nobody else"
    manager.offer("urgent", OVER_LIMIT)
    assert manager.running == ["j0", "j1", "urgent"]
    assert manager.ask(1) == ["j2"], "the urgent job has the slot that was kept"


def test_one_slot_is_left_for_others_however_many_are_kept() -> None:
    manager = TaskManager(urgent_slots={"g": 9})  # type: ignore[arg-type]  # by group
    manager.offer("j0", 1)
    manager.offer("j1", 1)
    assert manager.ask(2) == ["j0"]
    manager.offer("urgent", OVER_LIMIT)
    assert manager.running == ["j0", "urgent"]


def test_no_slot_is_kept_unless_somebody_says_so() -> None:
    manager = TaskManager(urgent_slots={"other": 1})  # type: ignore[arg-type]  # by group
    for number in range(3):
        manager.offer(f"j{number}", 1)
    assert len(manager.ask(3)) == 3


def offered(manager: TaskManager, name: str, table: str, settings: TableSettings) -> int:
    """Offer a job with 10 points in a table with these settings; return its priority."""
    seen = on.TableSeen(table=replace(TABLE, id=table, name=table, settings=settings))
    manager.state.handle(seen, manager.now_s)
    manager.offer(name, 10, table=table)
    (found,) = [each for each in manager.state.queued("g", 99, 0.0) if each.job.id == name]
    return found.job.priority


def test_the_priority_of_a_table_orders_its_jobs_among_those_of_others() -> None:
    manager = TaskManager()
    for priority, points in ((-5, 6), (0, 10), (3, 13), (5, 16)):
        settings = TableSettings(maintenance_priority=priority)
        assert offered(manager, f"j{points}", f"t{points}", settings) == points


def files_points(files: int) -> int:
    """Return the priority that planners give to a job over all files of a tablet."""
    return job_priority(
        Kind.SYSTEM, files_in_tablet=files, files_in_job=files, file_limit=TABLE.settings.file_limit
    )


ALTERNATING = "pa1 pb1 pa2 pb2"


@pytest.mark.parametrize(
    ("limits", "more", "points", "order"),
    [
        ({}, {"maintenance_priority": 2}, (20, 20), "pb1 pb2 pa1 pa2"),
        ({}, {"maintenance_priority": -5}, (20, 20), "pa1 pa2 pb1 pb2"),
        ({}, {}, (files_points(3), files_points(9)), "pb1 pb2 pa1 pa2"),
        ({}, {}, (10, 4000), "pb1 pb2 pa1 pa2"),
        ({}, {}, (20, 20), ALTERNATING),
        ({}, {}, (20, 19), ALTERNATING),
        ({}, {}, (20, 18), "pa1 pa2 pb1 pb2"),
        ({"fair_bands": {"g": 2}}, {}, (20, 18), ALTERNATING),
        ({"fair_bands": {"g": None}}, {}, (4000, 10), ALTERNATING),
        ({"fair_bands": {"other": None}}, {}, (4000, 10), "pa1 pa2 pb1 pb2"),
    ],
)
def test_jobs_of_two_tables_start_in_the_order_that_is_listed(
    limits: dict[str, Any], more: dict[str, int], points: tuple[int, int], order: str
) -> None:
    manager = TaskManager(**limits)
    for table, own, priority in (("pa", {}, points[0]), ("pb", more, points[1])):
        settings = TableSettings(**own)  # type: ignore[arg-type]  # by name
        seen = on.TableSeen(table=replace(TABLE, id=table, name=table, settings=settings))
        manager.state.handle(seen, 0.0)
        for number in (1, 2):
            manager.offer(f"{table}{number}", priority, table=table)
    assert manager.queue == order.split()
    assert manager.ask(4) == order.split()


def test_jobs_of_a_busy_table_start_before_better_jobs_of_an_idle_one() -> None:
    manager = TaskManager()
    for table, own in (("idle", 0), ("busy", 20)):
        settings = TableSettings(workload_points=own)
        seen = on.TableSeen(table=replace(TABLE, id=table, name=table, settings=settings))
        manager.state.handle(seen, 0.0)
        manager.offer(f"{table}1", 12 if table == "idle" else 10, table=table)
    assert manager.queue == ["idle1", "busy1"]
    manager.state.handle(on.ReadsReported(scans={manager.tablets["busy1"]: 30}), 0.0)
    for _ in range(2):
        manager.plan("busy1")
    assert manager.queue == ["busy1", "idle1"]
    assert manager.ask(2) == ["busy1", "idle1"]


def test_of_equal_jobs_the_one_of_the_busy_tablet_goes_first() -> None:
    manager = TaskManager()
    busy = TableSettings(workload_points=20)
    assert offered(manager, "idle", "t1", busy) == 10
    offered(manager, "busy", "t2", busy)
    tablet = manager.tablets["busy"]
    manager.state.handle(on.ReadsReported(scans={tablet: 30}), 0.0)
    planned = on.TabletPlanned(
        tablet=tablet,
        plan=TabletPlan(jobs=(manager.jobs["busy"],)),
        record=manager.records["busy"],
        settings_version=1,
        adds=((1.0, 15_000), (2.0, 3_000)),
    )
    for _ in range(2):
        manager.state.handle(planned, 0.0)
    heat = manager.state.heat(tablet, 0.0)
    assert (heat.scans_s, heat.rows_s) == (0.5, 300.0)
    (first, second) = manager.state.queued("g", 9, 0.0)
    assert (first.job.id, first.job.priority) == ("busy", 10 + 10 + 6)
    assert (second.job.id, second.job.priority) == ("idle", 10)
