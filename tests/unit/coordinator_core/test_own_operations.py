"""The one scheduler of deletions, manifests and full scans, on a clock of its own."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from coordinator.core.maintenance import (
    KindRules,
    OperationStatistics,
    OwnDecision,
    OwnOperations,
)

pytestmark = pytest.mark.unit

KINDS = {"garbage": 30.0, "manifest": 30.0, "analysis": 60.0}
GARBAGE = OperationStatistics(
    name="t1", why="9 replaced files can be deleted", data_retained_bytes=9, ram_anchored_bytes=900
)
NEW = OperationStatistics(name="t1", why="the table is new", perf=1.0)


def schedule(*tables: str, slots: int = 10, at_once: int = 4) -> OwnOperations:
    made = OwnOperations(slots)
    for kind, wait_s in KINDS.items():
        made.add_kind(kind, KindRules(tables_max=at_once, wait_max_s=wait_s))
        made.set_tables(kind, tables, 0.0)
    return made


def started(own: OwnOperations, now_s: float, used_pct: float = 0.0) -> list[tuple[str, str, str]]:
    """Start all that may run now; return kind, table and step of each."""
    return [
        (each.kind, each.table, each.step) for each in iter(lambda: own.next(now_s, used_pct), None)
    ]


def test_nothing_runs_before_it_has_known_work_or_its_longest_wait_is_over() -> None:
    own = schedule("t1")
    assert started(own, 29.9) == []
    assert own.next_due_s(29.9) == 30.0
    assert started(own, 30.0) == [("garbage", "t1", "wait"), ("manifest", "t1", "wait")]
    (decision, _) = own.of_table("t1")
    assert decision.why == "its longest wait of 30.0 s is over"
    assert started(own, 61.0) == [("analysis", "t1", "wait")], "one operation of a kind on a table"


def test_known_work_runs_at_once_in_the_order_of_kudu() -> None:
    own = schedule("t1", "t2")
    own.ask("analysis", NEW, 1.0)
    own.ask("analysis", replace(NEW, name="t2", priority=3), 1.0)
    own.ask("garbage", GARBAGE, 1.0)
    assert started(own, 1.0) == [
        ("garbage", "t1", "space"), ("analysis", "t2", "score"), ("analysis", "t1", "score"),
    ]  # fmt: skip
    assert {each.why for each in own.of_table("t1")} == {GARBAGE.why, NEW.why}
    assert started(own, 30.9) == [
        ("manifest", "t1", "wait"), ("garbage", "t2", "wait"), ("manifest", "t2", "wait"),
    ]  # fmt: skip


def test_whatever_has_waited_longest_precedes_known_work() -> None:
    own = schedule("t1", "t2", slots=2)
    own.ask("analysis", NEW, 31.0)
    assert started(own, 31.0) == [("garbage", "t1", "wait")]


def test_under_pressure_what_frees_memory_is_first_and_may_use_the_last_slot() -> None:
    own = schedule("t1", "t2", slots=2)
    own.ask("garbage", GARBAGE, 1.0)
    own.ask("garbage", replace(GARBAGE, name="t2", ram_anchored_bytes=901), 1.0)
    assert started(own, 40.0, used_pct=60.0) == [
        ("garbage", "t2", "memory"), ("garbage", "t1", "memory"),
    ]  # fmt: skip
    assert started(own, 40.0, used_pct=60.0) == []


def test_one_slot_is_free_whatever_waits() -> None:
    own = schedule(*(f"t{number}" for number in range(9)), slots=5)
    first = started(own, 1000.0)
    assert len(first) == 4
    assert started(own, 5000.0) == []
    own.ask("garbage", GARBAGE, 5000.0)
    assert started(own, 5000.0) == []
    own.ended(own.of_table(first[0][1])[0], 5000.0)
    assert len(started(own, 5000.0)) == 1
    only = schedule("t1", slots=1)
    assert len(started(only, 1000.0)) == 1, "a single slot serves everything"


def test_a_kind_that_hangs_leaves_slots_for_the_others() -> None:
    own = schedule(*(f"t{number}" for number in range(9)))
    counts = Counter(kind for kind, _, _ in started(own, 1000.0))
    assert sum(counts.values()) == 9
    assert max(counts.values()) <= 4


def test_tables_come_and_go() -> None:
    own = schedule("t1")
    own.ask("garbage", GARBAGE, 1.0)
    (decision,) = [own.next(1.0)]
    assert decision is not None
    own.ask("garbage", GARBAGE, 2.0)
    for kind in KINDS:
        own.set_tables(kind, ("t2",), 10.0)
    assert own.due_s("garbage", "t1") is None
    assert own.due_s("merging", "t1") is None
    own.ended(decision, 11.0)
    assert started(own, 39.9) == []
    assert started(own, 40.0)[0] == ("garbage", "t2", "wait")
    (ended,) = own.of_table("t1")
    assert (ended.begun_s, ended.ended_s) == (1.0, 11.0)


@pytest.mark.parametrize("seed", range(5))
def test_a_long_life_starves_nothing_and_keeps_every_bound(seed: int) -> None:
    """Known work comes all the time; each operation still starts within its longest wait."""
    chance, now_s = random.Random(seed), 0.0
    tables = [f"t{number}" for number in range(20)]
    own = schedule(*tables, slots=6, at_once=3)
    last = {(kind, table): 0.0 for kind in KINDS for table in tables}
    running: list[tuple[float, OwnDecision]] = []
    latest = dict.fromkeys(KINDS, 0.0)
    for _ in range(4000):
        for _ in range(3):
            asked = replace(NEW, name=chance.choice(tables), perf=9.0)
            own.ask(chance.choice([*KINDS]), asked, now_s)
        while (decision := own.next(now_s)) is not None:
            key = (decision.kind, decision.table)
            latest[decision.kind] = max(latest[decision.kind], now_s - last[key])
            last[key] = now_s
            running.append((now_s + chance.random(), decision))
            assert sum(key == (other.kind, other.table) for _, other in running) == 1
        assert len(running) <= 5
        assert max(Counter(each.kind for _, each in running).values(), default=0) <= 3
        now_s += 0.25
        for end_s, decision in [each for each in running if each[0] <= now_s]:
            running.remove((end_s, decision))
            own.ended(decision, now_s)
    # A slot is free within a second, and at most five operations wait for the same one.
    assert all(latest[kind] <= wait_s + 10.0 for kind, wait_s in KINDS.items()), latest
