"""The queue under load, as the first-principles notes on Druid's compaction want it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.model.job import Job, TabletPlan
from coordinator.core import events as on
from coordinator.core.queue import PASSED_MAX, PROBES_MAX
from coordinator.core.views import following_jobs, table_activity, waiting_jobs
from tests.support.task_manager import TABLE, TaskManager

pytestmark = pytest.mark.unit

CASES: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data/druid_notes.json").read_text("utf-8")
)


def test_the_best_run_up_to_the_limit_and_the_worst_are_shed() -> None:
    case = CASES["task_manager"]
    manager = TaskManager(
        running_max=case["max_tasks"],
        running_bytes_max=case["max_aggregate_cost"],
        queue_count_max=case["max_queue"],
    )
    for step in case["log"]:
        if "offer" in step:
            name, priority, cost = step["offer"]
            manager.offer(name, round(100 * priority), cost)
            assert manager.shed == [record for record in manager.records if record in step["shed"]]
        elif "finish" in step:
            assert manager.finish(step["finish"]) == step["launch"]
        else:
            assert manager.ask(5) == step["launch"]
        assert manager.queue == step["queue"]
        assert manager.running == step.get("running", [])


def test_a_job_that_fits_passes_one_that_does_not() -> None:
    case = CASES["task_manager_cost"]
    manager = TaskManager(
        running_max=case["max_tasks"], running_bytes_max=case["max_aggregate_cost"]
    )
    for name, priority, cost in case["offered"]:
        manager.offer(name, round(100 * priority), cost)
    begin, *later, alone = case["log"]
    assert manager.ask(case["max_tasks"]) == begin["launch"]
    assert manager.queue == begin["queue"]
    for step in later:
        assert manager.finish(step["finish"]) == step["launch"]
        assert manager.queue == step["queue"]
        assert sum(manager.jobs[name].input_bytes for name in manager.running) == 80

    (huge,) = alone["launch"]
    manager.offer(huge, 99, case["max_aggregate_cost"] + 1)
    manager.offer("small", 1, 1)
    assert manager.ask(5) == []
    assert manager.running == ["d", "b", "small"]
    assert [manager.finish(name) for name in ("d", "b", "small")] == [[], [], [huge]]
    manager.offer("late", 1, 1)
    assert manager.running == [huge]


def test_a_job_is_passed_so_often_and_then_goes_before_all_that_do_not_outrank_it() -> None:
    manager = TaskManager(running_bytes_max=100)
    manager.offer("base", 9, 50)
    manager.offer("large", 5, 60)
    for number in range(20):
        manager.offer(f"j{number}", 5, 1)
    passing = [f"j{number}" for number in range(PASSED_MAX)]
    assert manager.ask(30) == ["base", *passing]
    assert manager.explain("j19") == "a larger job that others have overtaken goes first"
    assert manager.explain("large") == (
        "its 60 B exceed the limit together with the 58 B that the group is rewriting"
    )
    manager.offer("urgent", 6, 1)
    assert manager.running[-1] == "urgent"

    assert manager.finish("base")[:2] == ["large", f"j{PASSED_MAX}"]


def test_waiting_for_a_job_that_many_outrank_stops_nothing() -> None:
    manager = TaskManager(running_bytes_max=100)
    manager.offer("base", 9, 50)
    manager.offer("large", 5, 60)
    for number in range(PASSED_MAX):
        manager.offer(f"j{number}", 5, 1)
    manager.ask(200)
    for number in range(PROBES_MAX):
        manager.offer(f"k{number}", 5, 1, files=3)
    assert manager.running == ["base", *(f"j{number}" for number in range(PASSED_MAX))]

    while manager.running:
        manager.finish(manager.running[0])
    assert not manager.jobs, "a tablet still wants a job"


def test_no_more_jobs_run_than_the_bound() -> None:
    manager = TaskManager(running_max=3)
    for number in range(10):
        manager.offer(f"j{number}", number)

    assert manager.ask(10) == ["j9", "j8", "j7"]
    assert len(manager.running) == 3
    assert manager.finish("j8") == ["j6"]


def test_how_long_the_longest_job_has_run_is_told() -> None:
    def longest_s(manager: TaskManager) -> float:
        (group,) = manager.state.status(manager.now_s).groups
        return group.longest_s

    manager = TaskManager()
    manager.offer("first", 1)
    assert longest_s(manager) == 0.0
    manager.ask(1)
    manager.tick(5.0)
    manager.offer("second", 1)
    manager.ask(1)
    manager.tick(2.0)
    assert longest_s(manager) == 7.0
    manager.finish("first")
    assert longest_s(manager) == 2.0


@pytest.mark.parametrize("case", CASES["stability"], ids=lambda case: case["arrivals_per_tick"])
def test_a_queue_under_a_steady_load(case: dict[str, int]) -> None:
    manager = TaskManager(queue_count_max=case["max_queue"], deferral_max_s=float("inf"))
    peak = 0
    for tick in range(case["ticks"]):
        for number in range(case["arrivals_per_tick"]):
            manager.offer(f"j{tick}-{number}", 1)
        peak = max(peak, len(manager.queue))
        for name in manager.ask(case["dispatch_per_tick"]):
            manager.finish(name)
        manager.go()
        manager.tick()
    told = (peak, len(manager.queue), len(manager.shed))
    assert told == (case["peak_queue"], case["final_queue"], case["shed"])


def test_a_queue_that_stays_full_is_overload_and_a_peak_is_not() -> None:
    def told(manager: TaskManager) -> tuple[float, bool, tuple[str, ...]]:
        status = manager.state.status(manager.now_s)
        (group,) = status.groups
        about = tuple(warning for warning in status.warnings if "overloaded" in warning)
        return group.full_s, group.overloaded, about

    manager = TaskManager(queue_count_max=4, overload_after_s=10.0, deferral_max_s=float("inf"))
    for number in range(4):
        manager.offer(f"j{number}", 1)
    assert told(manager) == (0.0, False, ())
    manager.offer("j4", 1)
    for _ in range(9):
        manager.tick()
        for name in manager.ask(1):
            manager.finish(name)
        manager.offer(f"k{manager.now_s:g}", 1)
    assert told(manager) == (9.0, False, ())

    manager.tick()
    full_s, overloaded, (sentence,) = told(manager)
    assert (full_s, overloaded) == (10.0, True)
    assert sentence.startswith(
        "group g is overloaded: its queue (4 jobs) has been full for 10.0 s, and more tablets"
        " wait for room (1)"
    )

    while manager.queue or manager.shed:
        for name in manager.ask(1):
            manager.finish(name)
        manager.tick()
    assert told(manager) == (0.0, False, ())


@pytest.mark.parametrize("queue_max", [1000, 40])
def test_the_queue_is_empty_in_the_morning(queue_max: int) -> None:
    """Five jobs come and three go, by day; the queue is empty in the morning, nothing is lost."""
    manager = TaskManager(queue_count_max=queue_max, deferral_max_s=float("inf"))
    lengths: list[int] = []
    for day in range(2):
        for hour in range(60):
            for number in range(5 if hour < 30 else 0):
                manager.offer(f"j{day}-{hour}-{number}", 1)
            lengths.append(len(manager.queue))
            for name in manager.ask(3):
                manager.finish(name)
            manager.go()
            manager.tick()
        assert manager.queue == []
        assert not manager.jobs, "a tablet still wants a job"
    assert max(lengths) == min(queue_max, 2 * 29 + 5)
    assert lengths[:30] == sorted(lengths[:30])
    assert queue_max == 1000 or len(manager.begun) == 300


def test_what_was_deferred_is_taken_up_when_the_queue_has_run_empty() -> None:
    manager = TaskManager(queue_count_max=4, deferral_max_s=float("inf"))
    for number in range(9):
        manager.offer(f"j{number}", number)
    deferred = [f"j{number}" for number in range(5)]
    assert (manager.shed, len(manager.queue)) == (deferred, 4)
    planned = manager.planned
    for count in (0, 1):
        manager.scan()
        manager.ask(count)
        manager.tick()
    assert (manager.shed, manager.planned) == (deferred, planned), "the queue has jobs"

    manager.ask(3)
    assert (manager.queue, len(manager.running)) == ([], 4)
    manager.tick()
    taken_up = {*deferred} - {*manager.shed}
    assert taken_up == {*manager.queue}
    assert manager.planned == planned + len(taken_up) > planned
    while manager.shed or manager.queue:
        assert manager.ask(len(manager.queue)), "deferred work waits for ever"
        manager.go()
        manager.tick()
    assert sorted(manager.begun) == sorted(f"j{number}" for number in range(9))


@pytest.mark.parametrize("seed", range(20))
def test_a_full_queue_keeps_the_best_of_all_that_came(seed: int) -> None:
    chance = random.Random(seed)
    most = chance.randint(1, 50)
    manager = TaskManager(queue_count_max=most)
    offered = {f"j{number}": number for number in chance.sample(range(1000), 200)}
    for name, priority in offered.items():
        manager.offer(name, priority)

    best = sorted(offered, key=lambda name: -offered[name])
    assert manager.queue == best[:most]
    assert set(manager.shed) == set(best[most:])


@pytest.mark.parametrize(
    "case",
    [case for case in CASES["shedding_cost"] if case["state_store"]],
    ids=lambda case: f"{case['chunks']} tablets",
)
def test_evicted_jobs_are_not_analysed_at_every_scan(case: dict[str, Any]) -> None:
    manager = TaskManager(queue_count_max=case["max_queue"], deferral_max_s=float("inf"))
    for number in range(case["chunks"]):
        manager.offer(str(number), number)
    ticks = 0
    while manager.jobs:
        manager.scan()
        (best,) = manager.ask(1)
        manager.finish(best)
        manager.tick()
        ticks += 1
    assert ticks == case["ticks"]
    assert manager.begun[:5] == [str(number) for number in case["order_head"]]
    assert manager.planned <= case["analyses"]


def test_a_tablet_that_is_planned_again_has_one_job() -> None:
    manager = TaskManager()
    manager.offer("a", 1)
    manager.plan("a")
    assert manager.queue == ["a"]

    assert manager.ask(1) == ["a"]
    manager.plan("a")
    assert manager.queue == []
    assert manager.running == ["a"]


def test_activity_sums_up_the_jobs_of_each_table() -> None:
    manager = TaskManager()
    manager.table("orders", "default")
    manager.offer("a", 1, cost_bytes=30)
    manager.offer("b", 1, cost_bytes=20)
    manager.offer("c", 9, cost_bytes=10, table="orders")
    manager.ask(1)
    manager.tick(5.0)

    busy, quiet = manager.state.look(table_activity, manager.now_s)
    assert (busy.table, busy.queued, busy.queued_bytes, busy.oldest_s) == ("trips", 2, 50, 5.0)
    assert (busy.running, busy.running_bytes, busy.compactors) == (0, 0, 0)
    assert (quiet.table, quiet.queued, quiet.running, quiet.compactors) == ("orders", 0, 1, 1)
    assert manager.state.status(manager.now_s).queued_tables == 1


def test_a_queued_job_that_is_cancelled_waits_for_the_back_off_or_for_other_files() -> None:
    manager = TaskManager(cancel_pause_s=6.0)
    manager.offer("a", 9)
    manager.offer("b", 5)
    assert [job.id for job in manager.state.look(waiting_jobs, "a")] == ["a"]
    manager.cancel_queued("a")
    assert manager.queue == ["b"]
    assert manager.explain("a") == "by the operator (for 6 s more)"
    manager.scan()
    manager.tick(5.0)
    assert manager.queue == ["b"], "not planned again before the back-off ends"
    manager.tick(2.0)
    assert manager.queue == ["a", "b"]

    manager.cancel_queued("a")
    assert manager.queue == ["b"]
    manager.offer("a", 9, files=3)
    assert manager.queue == ["a", "b"], "other files: another decision"
    manager.cancel_queued("no such job")
    assert manager.queue == ["a", "b"]


def test_a_paused_job_is_listed_without_a_place_and_starts_after_it_is_resumed() -> None:
    manager = TaskManager()
    for name, priority in (("a", 9), ("b", 5), ("c", 3)):
        manager.offer(name, priority)
    manager.pause_job("a")
    listed = manager.state.queued("g", 9, 0.0)
    assert [(entry.job.id, entry.place, entry.paused) for entry in listed] == [
        *(("b", 1, False), ("c", 2, False), ("a", 0, True)),
    ]
    (sentence, *_) = manager.state.explain(manager.tablets["a"], 0.0).sentences
    assert sentence == "a job is paused by the operator (`neve job resume`)"
    assert manager.ask(3) == ["b", "c"]
    manager.scan()
    manager.tick(10_000.0)
    assert manager.ask(1) == [], "time does not end a pause"
    manager.resume_job("a")
    assert manager.running == ["b", "c", "a"]
    manager.pause_job("a")
    assert manager.running == ["b", "c", "a"], "a job that runs is in no queue"
    assert [entry.paused for entry in manager.state.queued("g", 9, 0.0)] == []


def test_a_pause_ends_with_a_file_of_the_job_or_with_its_tablet() -> None:
    manager = TaskManager()
    manager.offer("a", 9, files=3)
    manager.pause_job("a")
    manager.offer("a", 9, files=2)
    assert manager.state.queued("g", 9, 0.0)[0].place == 1
    assert len(manager.queue) == 1
    manager.pause_job("a")
    manager.cancel_queued("a")
    assert manager.queue == [], "a paused job can be cancelled"
    manager.offer("b", 9)
    manager.pause_job("b")
    manager.state.handle(on.TabletGone(tablet=manager.tablets["b"]), 0.0)
    assert manager.queue == []


def test_jobs_that_wait_for_others_are_listed_with_these() -> None:
    manager = TaskManager()
    manager.offer("first", 1)
    first = manager.jobs["first"]
    second = replace(first, id="second", inputs=("b-1", "b-2"), depends_on=("first",))
    third = replace(first, id="third", inputs=("c-1", "c-2"), depends_on=("first", "second"))

    def planned(*jobs: Job) -> list[tuple[str, tuple[str, ...]]]:
        """Return the jobs that wait after a new plan, and the ids of those that they wait for."""
        record = manager.records["first"]
        manager.records["first"] = record = replace(record, version=record.version + 1)
        manager._tell(
            on.TabletPlanned(
                tablet=first.tablet,
                plan=TabletPlan(jobs=jobs),
                record=record,
                settings_version=TABLE.settings_version,
            )
        )
        listed = manager.state.look(following_jobs, None, 10)
        assert manager.state.look(following_jobs, "g", 1) == listed[:1]
        assert manager.state.look(following_jobs, "other", 10) == []
        return [(entry.job.id, entry.after) for entry in listed]

    both = [("second", ("first",)), ("third", ("first", "second"))]
    assert planned(first, second, third) == both
    assert manager.queue == ["first"]
    assert planned(first, second) == both[:1]
    assert planned(first) == []
    assert planned(first, second) == both[:1]
    manager._tell(on.TabletGone(tablet=first.tablet))
    assert manager.state.look(following_jobs, None, 10) == []
