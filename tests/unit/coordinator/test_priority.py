"""The scale of priorities and the order of a queue."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from common.model.job import (
    BOOST_MAX,
    CLASS_WIDTH,
    Kind,
    PriorityClass,
    class_of,
    job_priority,
)
from coordinator.core.queue import JobQueue
from coordinator.core.queue_index import rank_of
from tests.support.planning import job

CASES = json.loads((Path(__file__).parents[2] / "data" / "accumulo_plan.json").read_text("utf-8"))


def priority(kind: Kind, total: int, compacting: int, limit: int = 15) -> int:
    return job_priority(kind, files_in_tablet=total, files_in_job=compacting, file_limit=limit)


def test_classes_are_over_the_limit_then_user_then_system() -> None:
    over = priority(Kind.SYSTEM, 16, 2)
    asked_for = priority(Kind.USER, 100_000, 100_000)
    ordinary = priority(Kind.SYSTEM, 100_000, 100_000, limit=0)
    assert over > asked_for > ordinary
    urgent = priority(Kind.USER, 2, 2) + BOOST_MAX
    everything = (urgent, over, asked_for, ordinary)
    assert [class_of(each) for each in everything] == [*PriorityClass][::-1]


def test_a_tablet_at_its_limit_is_not_over_it_and_a_user_job_never_is() -> None:
    assert class_of(priority(Kind.SYSTEM, 15, 5)) is PriorityClass.SYSTEM
    assert class_of(priority(Kind.USER, 500, 5)) is PriorityClass.USER


def test_more_files_come_first_within_a_class() -> None:
    assert priority(Kind.SYSTEM, 11, 5) > priority(Kind.SYSTEM, 10, 5)
    assert priority(Kind.USER, 10, 6) > priority(Kind.USER, 10, 5)
    assert priority(Kind.SYSTEM, 30, 10) > priority(Kind.SYSTEM, 20, 10)


@pytest.mark.parametrize("value", [-5, CLASS_WIDTH * 50])
def test_every_priority_has_a_class(value: int) -> None:
    assert class_of(value) in {PriorityClass.SYSTEM, PriorityClass.URGENT}


def test_the_order_that_accumulo_implies_for_user_tables() -> None:
    cases = [case for case in CASES["priority"] if case["namespace"] == "default"]
    # A limit of 0 means there: the limit of open files; here: no limit known.
    known = [case for case in cases if case["file_limit"]]
    ours = [
        priority(
            Kind(case["kind"]), case["total_files"], case["compacting_files"], case["file_limit"]
        )
        for case in known
    ]
    for first, second in product(range(len(known)), repeat=2):
        if known[first]["expect"] > known[second]["expect"]:
            assert ours[first] >= ours[second], (known[first], known[second])


def test_the_order_of_a_queue_is_accumulos() -> None:
    case = CASES["job_order"]
    queue = JobQueue(10**9, 100)
    for each in case["jobs"]:
        kind = Kind(each["kind"])
        value = priority(kind, each["total"], each["files"], limit=2 * each["total"])
        queue.offer(job(each["id"], value, files=each["files"], kind=kind), now_s=0)
    assert [each.id for each in queue] == case["expect"]


def test_ranks_compare_priority_then_files_then_arrival() -> None:
    parts = [(-3, 9, 1), (-2, 1, 9), (-2, 2, 9), (-2, 2, 8), (0, 1, 5), (7, 1, 4)]
    ranks = [rank_of(effective, files, arrival) for effective, files, arrival in parts]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)
