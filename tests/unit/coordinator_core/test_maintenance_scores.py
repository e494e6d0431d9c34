"""Kudu's scores, and which operation its scheduler runs next."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.model.job import (
    CLASS_WIDTH,
    PriorityClass,
    adjusted_priority,
    adjusted_score,
    class_of,
)
from common.spi.deltas import major_delta_score, minor_delta_score
from coordinator.core.maintenance import (
    BestOperation,
    OperationStatistics,
    SchedulerRules,
    find_best_operation,
    flush_probability,
    flush_score,
    ranked_operations,
)
from coordinator.core.scans import workload_score

pytestmark = pytest.mark.unit

CASES = json.loads((Path(__file__).parents[2] / "data" / "kudu_scores.json").read_text("utf-8"))
MIB = 1024**2


def near(number: float) -> Any:
    return pytest.approx(number, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("case", CASES["kudu_flush_score"], ids=str)
def test_a_flush_is_worth_what_kudu_says(case: dict[str, float]) -> None:
    score = flush_score(case["anchored_mb"], case["age_ms"], case["threshold_mb"])
    assert score == near(case["score"])


def test_a_flush_is_worth_more_with_age_and_size_alone() -> None:
    ages = [flush_score(10, minutes * 60_000, 64) for minutes in range(61)]
    assert ages == sorted(ages)
    assert (ages[2], ages[3], ages[60]) == (0.0, near(10 / 64), 1.0)
    assert flush_score(63, 180_000, 64) == near(0.984375)
    sizes = [flush_score(size, 0, 64) for size in range(64, 3000, 100)]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 1000, "there is no upper bound"


@pytest.mark.parametrize("case", CASES["kudu_delta"]["minor"], ids=str)
def test_a_minor_delta_compaction_is_worth_what_kudu_says(case: dict[str, Any]) -> None:
    assert minor_delta_score(case["stores"]) == near(case["score"])


@pytest.mark.parametrize("case", CASES["kudu_delta"]["major"], ids=str)
def test_a_major_delta_compaction_is_worth_what_kudu_says(case: dict[str, Any]) -> None:
    assert major_delta_score(case["redo"], case["base"]) == near(case["score"])


@pytest.mark.parametrize("case", CASES["kudu_workload"], ids=str)
def test_a_workload_adds_what_kudu_says(case: dict[str, float]) -> None:
    found = workload_score(case["scans_per_s"], case["rows_written_per_s"], case["upper_bound"])
    assert (found.flush, found.compact) == (near(case["flush"]), near(case["compact"]))


def test_a_workload_adds_at_most_its_bound() -> None:
    full = workload_score(100.0, 1e9, 7.0)
    assert (full.flush, full.compact) == (7.0, 7.0)
    half = workload_score(0.25, 250.0, 8.0)
    assert (half.flush, half.compact) == (2.0, 4.0)
    assert workload_score(9.0, 9e9, 0.0).compact == 0.0


@pytest.mark.parametrize("case", CASES["kudu_adjusted"], ids=str)
def test_scores_are_adjusted_as_kudus_are(case: dict[str, Any]) -> None:
    assert adjusted_score(case["perf"], case["workload"], case["priority"]) == near(case["score"])


def test_nothing_worth_stays_nothing_worth() -> None:
    assert adjusted_score(0.0, 9.0, 5) == 0.0


@pytest.mark.parametrize("case", CASES["kudu_flush_probability"], ids=str)
def test_memory_makes_a_flush_run_as_often_as_in_kudu(case: dict[str, float]) -> None:
    used, prob = case["used_pct"], case["run_non_memory_prob"]
    assert flush_probability(used, prob) == near(case["probability"])


def operation(name: str, **given: Any) -> OperationStatistics:
    return OperationStatistics(name=name, **given)


def chosen(*operations: OperationStatistics, **given: Any) -> tuple[str, str] | None:
    best = find_best_operation(operations, **given)
    return None if best is None else (best.operation.name, best.step)


LOG_GC = operation("log-gc", low_io=True, logs_retained_bytes=5)
MORE_LOG_GC = operation("more-log-gc", low_io=True, logs_retained_bytes=6)
FLUSH = operation("flush", ram_anchored_bytes=100 * MIB, logs_retained_bytes=10 * MIB, perf=0.1)
LARGE_FLUSH = operation("large-flush", ram_anchored_bytes=200 * MIB, logs_retained_bytes=10 * MIB)
SPACE = operation("space", data_retained_bytes=1)
MERGE = operation("merge", perf=1.0)


def test_cheap_operations_that_free_log_go_before_everything() -> None:
    rest = (FLUSH, SPACE, replace(MERGE, perf=1e9))
    assert chosen(LOG_GC, *rest, MORE_LOG_GC, used_pct=99.0) == ("more-log-gc", "low-io")
    without = (replace(LOG_GC, logs_retained_bytes=0), replace(MORE_LOG_GC, runnable=False))
    assert chosen(*without, MERGE) == ("merge", "score")


def test_under_memory_pressure_log_decides_before_memory() -> None:
    assert chosen(FLUSH, LARGE_FLUSH, MERGE, used_pct=60.0) == ("large-flush", "memory")
    more_log = replace(FLUSH, logs_retained_bytes=11 * MIB)
    assert chosen(more_log, LARGE_FLUSH, MERGE, used_pct=60.0) == ("flush", "memory")
    assert chosen(FLUSH, LARGE_FLUSH, MERGE, used_pct=59.9) == ("merge", "score")
    assert chosen(MERGE, used_pct=99.0) == ("merge", "score"), "nothing frees memory"


def test_others_go_on_under_low_pressure_as_often_as_chance_says() -> None:
    rules = SchedulerRules(other_probability=0.5)
    for used_pct in (60.0, 65.0, 70.0, 79.0, 80.0, 95.0):
        flushes = sum(
            chosen(FLUSH, MERGE, used_pct=used_pct, memory_draw=n / 1000, rules=rules)
            == ("flush", "memory")
            for n in range(1000)
        )
        assert flushes == near(1000 * flush_probability(used_pct, 0.5)), used_pct
    none = SchedulerRules(pressure_pct=80.0, soft_pct=60.0, other_probability=1.0)
    assert chosen(FLUSH, MERGE, used_pct=80.0, rules=none) == ("flush", "memory")


def test_too_much_log_is_flushed_whatever_others_are_worth() -> None:
    target = SchedulerRules().log_target_bytes
    behind = replace(FLUSH, logs_retained_bytes=target)
    assert chosen(replace(MERGE, perf=1e9), behind, LARGE_FLUSH) == ("flush", "log")
    less = replace(behind, logs_retained_bytes=target - 1)
    assert chosen(replace(MERGE, perf=1e9), less, LARGE_FLUSH) == ("merge", "score")
    large = replace(LARGE_FLUSH, logs_retained_bytes=target)
    assert chosen(behind, large, MERGE) == ("large-flush", "log"), "equal logs: memory decides"


def test_space_is_freed_by_chance_or_if_nothing_is_worth_anything() -> None:
    assert chosen(MERGE, SPACE, data_draw=0.5) == ("space", "space")
    assert chosen(MERGE, SPACE, data_draw=0.51) == ("merge", "score")
    assert chosen(replace(MERGE, perf=0.0), SPACE, data_draw=1.0) == ("space", "space")
    assert chosen(replace(MERGE, perf=-1.0), SPACE, data_draw=1.0) == ("space", "space")
    assert chosen(SPACE, rules=SchedulerRules(data_min_bytes=1)) is None


def test_the_best_adjusted_score_wins_and_nothing_below_zero_runs() -> None:
    dear = operation("dear", perf=1.0, priority=1)
    busy = operation("busy", perf=1.0, workload=0.2)
    assert chosen(MERGE, dear, busy) == ("busy", "score")
    assert chosen(MERGE, dear) == ("dear", "score")
    assert chosen(MERGE, operation("twin", perf=1.0)) == ("merge", "score"), "the first of equals"
    assert chosen(operation("a", perf=-2.0, priority=5), operation("b")) is None
    assert chosen(replace(dear, runnable=False), replace(busy, runnable=False)) is None
    assert chosen() is None


def test_all_that_would_run_is_ranked() -> None:
    ranked = ranked_operations([MERGE, SPACE, operation("idle"), operation("better", perf=2.0)])
    assert [(each.name, step) for each, step in ranked] == [
        ("space", "space"), ("better", "score"), ("merge", "score"),
    ]  # fmt: skip
    assert find_best_operation([MERGE]) == BestOperation(MERGE, "score")


def test_a_priority_changes_inside_its_class_alone() -> None:
    system, over, user = 12, 2 * CLASS_WIDTH + 12, CLASS_WIDTH + 12
    assert adjusted_priority(system, 0.0, 0) == system
    assert adjusted_priority(system, 0.0, 5) == round(12 * 1.1**5)
    assert adjusted_priority(system, 8.0, 0) == 20
    assert adjusted_priority(system, 8.0, -5) == round(20 * 1.1**-5)
    assert adjusted_priority(system, 0.0, 99) == adjusted_priority(system, 0.0, 5)
    assert adjusted_priority(CLASS_WIDTH - 1, 9999.0, 5) == CLASS_WIDTH - 1
    assert adjusted_priority(over, 8.0, 0) == 2 * CLASS_WIDTH + 20
    assert class_of(adjusted_priority(user, 9999.0, 5)) is PriorityClass.USER
    urgent = 3 * CLASS_WIDTH + 12
    assert adjusted_priority(urgent, 8.0, 5) == urgent
