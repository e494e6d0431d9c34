"""Jobs of one volume at a time: tables of other volumes go on."""

from __future__ import annotations

import pytest

from coordinator.core.queue import PASSED_MAX, PROBES_MAX
from tests.support.task_manager import TaskManager

pytestmark = pytest.mark.unit


def names(count: int) -> list[str]:
    return [f"j{number}" for number in range(count)]


def test_ten_tables_on_ten_volumes_are_compacted_at_the_same_time() -> None:
    manager = TaskManager(volume_running_max=1)
    for number, name in enumerate(names(10)):
        manager.table(f"t{number}", volume=f"disk{number}")
        manager.offer(name, 1, table=f"t{number}")
    assert sorted(manager.ask(10)) == names(10)


def test_ten_tables_on_one_volume_are_compacted_one_after_the_other() -> None:
    manager = TaskManager(volume_running_max=1)
    for number, name in enumerate(names(10)):
        manager.table(f"t{number}", volume="disk")
        manager.offer(name, 1, table=f"t{number}")
    assert manager.ask(10) == ["j0"]
    assert manager.explain("j1") == "volume disk runs 1 job, its limit"
    for number in range(9):
        assert manager.finish(f"j{number}") == [f"j{number + 1}"]
    assert manager.finish("j9") == []


def test_no_limit_is_set_unless_somebody_sets_one() -> None:
    manager = TaskManager()
    for number in range(10):
        manager.offer(f"j{number}", 1)
    assert len(manager.ask(10)) == 10


def test_many_better_jobs_of_a_full_volume_keep_no_other_waiting() -> None:
    manager = TaskManager(volume_running_max=2)
    for table, volume in (("t1", "slow"), ("t2", "slow"), ("t3", "fast"), ("t4", "fast")):
        manager.table(table, volume=volume)
    for number in range(2 * PROBES_MAX):
        manager.offer(f"slow{number}", 500 - number, table=f"t{1 + number % 2}")
    for number in range(4):
        manager.offer(f"fast{number}", 4 - number, table=f"t{3 + number % 2}")
    begun = manager.ask(10)
    assert [name for name in begun if name.startswith("slow")] == ["slow0", "slow1"]
    assert [name for name in begun if name.startswith("fast")] == ["fast0", "fast1"]
    assert manager.finish("fast1") == ["fast2"]
    assert manager.finish("slow0") == ["slow2"]


def test_a_job_that_nobody_may_pass_holds_nobody_up_while_its_volume_is_full() -> None:
    manager = TaskManager(volume_running_max=2, running_input_bytes_max=100)
    manager.table("t1", volume="slow")
    manager.table("t2", volume="fast")
    manager.offer("base", 9, 50, table="t1")
    manager.offer("large", 5, 60, table="t1")
    assert manager.ask(1) == ["base"]
    for number in range(3 * PASSED_MAX):  # The two tables take turns.
        manager.offer(f"j{number}", 1, table="t2")
        if not manager.ask(1):
            break
        manager.finish(f"j{number}")
    assert manager.queue == ["large", f"j{number}"]

    manager.offer("urgent", 9, table="t1")
    assert manager.running == ["base", "urgent"]
    assert manager.ask(1) == [f"j{number}"]


def test_a_volume_is_full_whichever_group_its_jobs_are_of() -> None:
    manager = TaskManager(volume_running_max=1)
    manager.offer("small", 1)
    manager.offer("large", 1, group="h")
    assert manager.ask(1) == ["small"]
    assert manager.ask(1, group="h") == []
    assert manager.finish("small") == ["large"]
