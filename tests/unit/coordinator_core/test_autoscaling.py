"""How many compactors a group should have, and when they are started and drained."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from coordinator.core.autoscaling import (
    AutoscalerRules,
    CompactorLoad,
    Decision,
    FailedStart,
    GroupLoad,
    Memory,
    StartingCompactor,
    decide,
    demand,
)

pytestmark = pytest.mark.unit

MIB = 1024**2
GIB = 1024**3
RULES = AutoscalerRules()
SLOTS = 4
RATE = 64.0 * MIB


def load(
    busy: tuple[int, ...] = (), *, starting: int = 0, since_s: float = 0.0, **of: Any
) -> GroupLoad:
    """Return a snapshot: busy slots of each compactor, and how many are starting since when."""
    of = {"count_min": 0, "count_max": 20, "rate_bytes_s": RATE, "running_jobs": sum(busy)} | of
    return GroupLoad(
        group="g",
        slots=SLOTS,
        running=tuple(
            CompactorLoad(name=f"c{number}", slots=SLOTS, busy=each)
            for number, each in enumerate(busy)
        ),
        starting=tuple(
            StartingCompactor(name=f"s{number}", since_s=since_s) for number in range(starting)
        ),
        **of,
    )


def queued(jobs: int, size_bytes: int = GIB) -> dict[str, int]:
    return {"queued_jobs": jobs, "queued_bytes": jobs * size_bytes}


def after(
    seconds: float,
    snapshot: GroupLoad,
    memory: Memory | None = None,
    *,
    begin_s: float = 0.0,
    rules: AutoscalerRules = RULES,
) -> tuple[Decision, Memory]:
    """Return the last decision after so many seconds of the same snapshot, one each second.

    What was decided before the last is not carried out.
    """
    memory = memory or Memory()
    decision, memory = decide(snapshot, memory, rules, begin_s)
    for second in range(1, int(seconds) + 1):
        decision, memory = decide(snapshot, memory, rules, begin_s + second)
    return decision, memory


def first_start(snapshot: GroupLoad, *, until_s: int = 400) -> tuple[int, int] | None:
    """Return the second of the first start under a constant snapshot, and how many."""
    memory = Memory()
    for second in range(until_s):
        decision, memory = decide(snapshot, memory, RULES, second)
        if decision.start:
            return second, decision.start
    return None


def first_drain(snapshot: GroupLoad, *, until_s: int = 400) -> tuple[int, str] | None:
    memory = Memory()
    for second in range(until_s):
        decision, memory = decide(snapshot, memory, RULES, second)
        if decision.drain:
            return second, decision.drain[0]
    return None


# ------------------------------------------------------------------------- What the work asks for


@pytest.mark.parametrize(
    ("snapshot", "wanted", "reason"),
    [
        (load(), 0, "no work"),
        (load(**queued(1)), 1, "1 job of 1.0 GiB would take 16 s with the first compactor"),
        (
            load((4, 4), queued_jobs=112, queued_bytes=300 * GIB, running_bytes=0),
            16,
            "120 jobs of 300.0 GiB would take 2,400 s with 2 compactors, target 300 s",
        ),
        (
            load(**queued(9, 300 * GIB)),
            3,
            "9 jobs of 2.6 TiB would take 43,200 s with the first compactor, target 300 s; "
            "jobs cannot be divided, 3 compactors can run all of them at once",
        ),
        (
            load(**queued(33), rate_bytes_s=None),
            3,
            "33 jobs at an unknown rate, 4 for each of 4 slots of a compactor",
        ),
        (load(**queued(33), rate_bytes_s=0.0), 3, "33 jobs at an unknown rate"),
        (load(unplanned_tablets=70_000), 1, "70,000 changed tablets to plan"),
        (load(deferred_tablets=8), 1, "8 jobs of 0 B would take 0 s"),
        # Deferred tablets cost what queued jobs cost.
        (load(**queued(10), deferred_tablets=590), 32, "600 jobs of 600.0 GiB would take 9,600 s"),
        (load((4,), running_bytes=600 * GIB), 1, "jobs cannot be divided, 1 compactor can run"),
        (load(**queued(500), paused=True), 0, "500 jobs held by the pause"),
        (load((2,), **queued(500), paused=True, running_bytes=GIB), 1, "2 jobs of 1.0 GiB"),
        (load(unplanned_tablets=5, paused=True), 0, "no work"),
    ],
)
def test_work_asks_for_compactors(snapshot: GroupLoad, wanted: int, reason: str) -> None:
    found = demand(snapshot, RULES, len(snapshot.running))

    assert found.wanted == wanted
    assert found.reason.startswith(reason) or reason in found.reason


def test_jobs_of_a_draining_compactor_need_nobody_else() -> None:
    there = load((4, 1), running_bytes=600 * GIB)
    draining = replace(there.running[0], draining=True)

    found = demand(replace(there, running=(draining, there.running[1])), RULES, 1)

    assert found.wanted == found.divisible == 1


@pytest.mark.parametrize("rate", [1.0, 1e-300, 1e300])
def test_any_rate_gives_a_count(rate: float) -> None:
    found = demand(load(**queued(40, 2**62), rate_bytes_s=rate), RULES, 0)

    assert 1 <= found.wanted <= 10


# ------------------------------------------------------------------------------------------ Growth


@pytest.mark.parametrize(
    ("snapshot", "second", "count"),
    [
        (load(**queued(1)), 5, 1),
        (load(unplanned_tablets=1), 5, 1),
        (load(deferred_tablets=1), 5, 1),
        (load(**queued(1000)), 5, 4),
        (load((4,) * 6, **queued(1000)), 5, 6),
        (load((4,) * 15, **queued(1000)), 5, 5),
        (load((3,), **queued(1000)), 5, 2),  # something may hold the jobs back: two more show it
        (load((4,) * 8 + (3,), **queued(1000)), 5, 5),
        (load(count_min=7), 0, 7),
        (load((4, 4), count_min=3), 0, 1),
        (load((4, 4), **queued(1000), count_min=3), 0, 1),
    ],
)
def test_growth_waits_for_demand_to_persist_and_comes_in_steps(
    snapshot: GroupLoad, second: int, count: int
) -> None:
    assert first_start(snapshot) == (second, count)


@pytest.mark.parametrize(
    "snapshot",
    [
        load(),
        load((4, 4), **queued(30)),  # done within the target
        load((4,), starting=3, **queued(70)),  # what is starting counts
        load((4,), running_bytes=600 * GIB),  # one huge job per slot
        load((4,) * 20, **queued(10_000)),  # at the maximum
        load((4,), **queued(1000), paused=True),
        load((), count_min=3, paused=True),
        load((3,), starting=2, **queued(1000)),  # and those two are on the way
        load((0, 0, 4), **queued(1000)),  # something else holds the jobs back
        load((1,) * 3, **queued(1000)),  # two compactors' worth of slots, wherever they are free
    ],
)
def test_no_growth(snapshot: GroupLoad) -> None:
    assert first_start(snapshot) is None


def test_one_compactor_that_takes_nothing_does_not_hinder_growth() -> None:
    assert first_start(load((0,), **queued(1000))) == (5, 1)
    assert first_start(load((0, 4, 4, 4, 4), **queued(1000))) == (5, 1)


def test_a_demand_that_comes_and_goes_starts_nothing() -> None:
    memory = Memory()
    for second in range(200):
        of = queued(1000) if second % 5 else {}
        decision, memory = decide(load((4,), **of), memory, RULES, second)

        assert not decision.start


def test_steps_keep_their_interval() -> None:
    memory, capacity, starts = Memory(), 1, []
    for second in range(100):
        there = load((4,), starting=capacity - 1, **queued(1000))
        decision, memory = decide(there, memory, RULES, second)
        capacity += decision.start
        starts += [(second, decision.start)] if decision.start else []

    assert starts == [(5, 4), (15, 5), (25, 10)]


def test_slow_starts_bring_no_more_compactors() -> None:
    memory, capacity = Memory(), 0
    for second in range(590):
        there = load(starting=capacity, since_s=5.0, **queued(100), oldest_age_s=second)
        decision, memory = decide(there, memory, RULES, second)
        capacity += decision.start

    assert capacity == 6
    assert decision.reason.endswith("6 starting, for up to 584 s")


def test_a_job_far_too_old_brings_one_more_and_then_time_for_it() -> None:
    memory, busy, starts = Memory(), 2, []
    for second in range(700):
        there = load((4,) * busy, **queued(30), oldest_age_s=601.0)
        decision, memory = decide(there, memory, RULES, second)
        busy += decision.start
        starts += [(second, decision.start)] if decision.start else []

    assert starts == [(5, 1), (305, 1), (605, 1)]
    assert decision.reason.startswith("the oldest job has waited 601 s, target 300 s")


@pytest.mark.parametrize(
    "snapshot",
    [
        load((4, 4), **queued(30), oldest_age_s=600.0),
        load((4, 4), starting=1, **queued(30), oldest_age_s=900.0),
        load((4, 0), **queued(30), oldest_age_s=900.0),
        load((4, 4), **queued(30), oldest_age_s=900.0, paused=True),
        load((1, 1), **queued(1), oldest_age_s=900.0),
    ],
)
def test_an_old_job_brings_nobody_who_would_be_of_no_use(snapshot: GroupLoad) -> None:
    assert first_start(snapshot) is None


def test_compactors_that_died_are_replaced_while_their_jobs_wait() -> None:
    six = load((4,) * 6, **queued(40))
    _, memory = after(30, six)

    decision, _ = after(5, load((4, 4), **queued(40)), memory, begin_s=31)
    assert (decision.start, decision.desired) == (4, 6)

    decision, _ = after(5, load((2, 2)), memory, begin_s=31)
    assert decision.start == 0


# ---------------------------------------------------------------------------------------- Shrinking


@pytest.mark.parametrize(
    ("snapshot", "second", "name"),
    [
        (load((0,)), 120, "c0"),
        (load((1, 0, 1)), 120, "c1"),
        (load((2, 1, 1)), 120, "c1"),  # none is idle: the least busy, the others have room
        (load((0, 0, 4), starting=2), 120, "c0"),
        (load((4, 0, 0, 0), **queued(1000)), 120, "c1"),  # held back: they are of no use
        (load((0, 0), **queued(5), paused=True), 120, "c0"),
        (load((4, 4, 3), count_max=2), 0, "c2"),
    ],
)
def test_the_least_busy_compactor_is_drained(snapshot: GroupLoad, second: int, name: str) -> None:
    assert first_drain(snapshot) == (second, name)


@pytest.mark.parametrize(
    "snapshot",
    [
        load((0, 0), count_min=2),
        load((4, 4)),
        load((4, 0)),  # one full, and somebody for the next job
        load((0,), unplanned_tablets=1),
        load((0,), deferred_tablets=1),
        load((1, 1), starting=4),  # the idle ones are still to come
        load((4, 4, 0), **queued(30)),
        load((4,) * 3, **queued(30), oldest_age_s=700.0, count_max=3),
    ],
)
def test_no_drain(snapshot: GroupLoad) -> None:
    assert first_drain(snapshot) is None


def test_nobody_is_drained_while_another_drains() -> None:
    there = load((0, 0, 0))
    draining = replace(there.running[1], draining=True, busy=2)
    three = replace(there, running=(there.running[0], draining, there.running[2]))

    assert first_drain(three) is None
    assert first_drain(replace(three, count_max=1)) is None


def test_drains_keep_their_interval() -> None:
    memory, left, drains = Memory(), 4, []
    for second in range(200):
        decision, memory = decide(load((0,) * left), memory, RULES, second)
        left -= len(decision.drain)
        drains += [second] * len(decision.drain)

    assert drains == [120, 125, 130, 135]


def test_a_little_work_now_and_then_does_not_keep_many() -> None:
    memory, left = Memory(), 5
    for second in range(900):
        busy = (1,) * left if second % 60 < 10 else (0,) * left
        of = queued(50, MIB) if second % 60 < 10 else {}
        decision, memory = decide(load(busy, **of), memory, RULES, second)
        left -= len(decision.drain)

    assert left == 1


def test_the_last_one_stays_while_there_is_work_every_minute() -> None:
    memory = Memory()
    for second in range(3600):
        decision, memory = decide(load((int(second % 60 < 1),)), memory, RULES, second)

        assert not decision.drain


# ------------------------------------------------------------------------------------ Failed starts


def failing(
    now_s: float, memory: Memory, names: tuple[str, ...] = ("s0",)
) -> tuple[Decision, Memory]:
    failed = tuple(FailedStart(name=name, cause="no node has 4 CPU") for name in names)
    return decide(load((4,), **queued(1000), failed=failed), memory, RULES, now_s)


def test_failed_starts_back_off_and_are_explained() -> None:
    now_s, pauses = 500.0, []
    # That there is one which has long been up says nothing of starts.
    _, memory = after(499, load((4,), **queued(1000)))
    for number in range(1, 8):
        decision, memory = failing(now_s, memory)
        assert decision.start == 0
        assert decision.blocked.startswith(f"{number} start")
        assert decision.blocked.endswith("no node has 4 CPU")
        began_s = now_s
        while not decision.start:
            now_s += 1
            decision, memory = decide(load((4,), **queued(1000)), memory, RULES, now_s)
        assert decision.start == 1, "one shows whether starts succeed again"
        pauses.append(now_s - began_s)
        now_s += 1

    assert pauses == [10, 20, 40, 80, 120, 120, 120]


def test_failures_of_one_step_count_as_one() -> None:
    _, memory = failing(0.0, Memory(), ("a", "b"))
    _, memory = failing(1.0, memory, ("c",))

    assert (memory.failed_starts, memory.failed_rounds, memory.retry_s) == (3, 1, 10.0)


def test_while_one_is_tried_nobody_else_is_started() -> None:
    _, memory = failing(0.0, Memory())

    decision, _ = after(300, load(starting=1, **queued(1000)), memory, begin_s=1)

    assert decision.start == 0
    assert decision.blocked == "1 start failed, another one is starting: no node has 4 CPU"


def test_a_start_that_succeeds_ends_the_pause() -> None:
    _, memory = failing(0.0, Memory())
    decision, memory = after(4, load((4, 4), **queued(1000)), memory, begin_s=1)

    assert decision.start == 4
    assert memory.failed_starts == 0
    assert not decision.blocked


@pytest.mark.parametrize(("lives_s", "pauses"), [(8, [10, 20, 40, 80, 120]), (130, [10] * 5)])
def test_compactors_that_die_soon_are_replaced_ever_more_slowly(
    lives_s: int, pauses: list[int]
) -> None:
    memory, now_s, found = Memory(), 0.0, []
    for number in range(5):
        there = replace(load((4,), **queued(1000)), running=(_compactor(f"c{number}"),))
        _, memory = after(lives_s, there, memory, begin_s=now_s)
        now_s += lives_s + 1
        decision, memory = failing(now_s, memory, (f"c{number}",))
        found.append(memory.retry_s - now_s)

        assert decision.blocked.endswith("no node has 4 CPU")
        now_s = memory.retry_s + 1

    assert found == pauses


def test_a_compactor_that_lasts_ends_the_row_of_those_that_died() -> None:
    _, memory = after(9, load((4,), **queued(1000)))
    _, memory = failing(10.0, memory, ("c0",))
    _, memory = failing(30.0, memory, ("c0",))
    two = load((4, 4), **queued(1000))
    decision, memory = after(119, two, memory, begin_s=60)
    assert "2 starts failed" in decision.blocked

    _, memory = decide(replace(two, starting=()), memory, RULES, 180.0)
    assert (memory.failed_starts, memory.failed_rounds, memory.crashing) == (0, 0, False)


def _compactor(name: str) -> CompactorLoad:
    return CompactorLoad(name=name, slots=SLOTS, busy=4)


def test_a_start_that_takes_too_long_is_given_up_once_and_counts_as_failed() -> None:
    waiting = load(starting=1, since_s=100.0, **queued(1))
    before, memory = decide(waiting, Memory(), RULES, 699.0)
    gone, memory = decide(waiting, memory, RULES, 700.0)
    again, memory = decide(waiting, memory, RULES, 701.0)
    killed = FailedStart(name="s0", cause="killed")
    last, memory = decide(replace(waiting, failed=(killed,)), memory, RULES, 702.0)

    assert (before.give_up, before.current) == ((), 1)
    assert (gone.give_up, gone.current) == (("s0",), 0)
    assert (again.give_up, again.current, last.give_up) == ((), 0, ())
    assert memory.failed_starts == 1
    assert "1 start failed" in last.blocked
    assert last.blocked.endswith("no heartbeat within 600 s")


def test_a_minimum_is_kept_with_pauses_when_starts_fail() -> None:
    failed = (FailedStart(name="a", cause="out of memory"),)
    decision, memory = decide(load(count_min=2, failed=failed), Memory(), RULES, 0.0)
    assert (decision.start, decision.desired) == (0, 2)

    decision, _ = after(10, load(count_min=2), memory)
    assert decision.start == 1


# ----------------------------------------------------------------------------------- What is said


@pytest.mark.parametrize(
    ("snapshot", "blocked"),
    [
        (
            load((4,) * 20, **queued(10_000)),
            "at the maximum of 20 compactors, the work needs 534",
        ),
        (load((4,), **queued(9), paused=True), "the group is paused"),
        (
            load((4, 0, 0), **queued(1000)),
            "8 slots free while 1,000 jobs wait: limits or pauses block the jobs",
        ),
        (load((4, 4, 0, 0), **queued(30), oldest_age_s=900.0), ""),  # an idle one will take it
        (
            load((1, 1, 1), **queued(30), oldest_age_s=900.0),
            "9 slots free while 30 jobs wait: limits or pauses block the jobs",
        ),
        (load((4,), **queued(1000)), ""),
        (load(), ""),
    ],
)
def test_what_hinders_growth_is_said(snapshot: GroupLoad, blocked: str) -> None:
    decision, _ = after(5, snapshot)

    assert decision.blocked == blocked


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (load(count_min=1), "no work; the minimum is 1 compactor"),
        (
            load((0, 1, 0)),
            "1 job of 0 B would take 0 s with 3 compactors, target 300 s; 2 of 3 comp",
        ),
        (
            load((4,) * 20, **queued(10_000)),
            "10,080 jobs of 9.8 TiB would take 8,000 s with 20 comp",
        ),
    ],
)
def test_the_reason_has_the_figures(snapshot: GroupLoad, reason: str) -> None:
    decision, _ = decide(snapshot, Memory(), RULES, 0.0)

    assert decision.reason.startswith(reason)


# --------------------------------------------------------------------------- Time and restarts


def test_a_clock_that_goes_back_delays_nothing_for_long() -> None:
    _, memory = after(20, load((4,), **queued(1000)), begin_s=1e6)
    decision, _ = after(10, load((4,), **queued(1000)), memory, begin_s=5.0)
    assert decision.start == 4

    _, memory = after(130, load((0, 0)), begin_s=1e6)
    decision, _ = after(10, load((0, 0)), memory, begin_s=5.0)
    assert decision.drain == ("c0",)

    _, memory = failing(1e6, Memory())
    decision, _ = after(120, load(**queued(1000)), memory, begin_s=5.0)
    assert decision.start == 1


def test_a_gap_between_snapshots_is_no_idleness() -> None:
    _, memory = decide(load((0, 0)), Memory(), RULES, 0.0)
    decision, _ = decide(load((0, 0)), memory, RULES, 10_000.0)

    assert not decision.drain


# -------------------------------------------------------------------------------------- Always true


@some.composite
def loads(draw: some.DrawFn) -> GroupLoad:
    count_min = draw(some.integers(0, 5))
    slots = draw(some.integers(1, 4))
    running = tuple(
        CompactorLoad(
            name=f"c{number}",
            slots=slots,
            busy=draw(some.integers(0, slots)),
            draining=draw(some.sampled_from([False, False, False, True])),
        )
        for number in range(draw(some.integers(0, 8)))
    )
    starting = tuple(
        StartingCompactor(name=f"s{number}", since_s=draw(some.floats(-1e3, 1e3)))
        for number in range(draw(some.integers(0, 4)))
    )
    failed = draw(some.lists(some.sampled_from("stuv"), max_size=2))
    return GroupLoad(
        group="g",
        count_min=count_min,
        count_max=draw(some.integers(count_min, 10)),
        slots=slots,
        queued_jobs=draw(some.sampled_from([0, 0, 1, 5, 300])),
        queued_bytes=draw(some.sampled_from([0, GIB, 900 * GIB])),
        running_jobs=sum(each.busy for each in running),
        running_bytes=draw(some.sampled_from([0, GIB, 900 * GIB])),
        deferred_tablets=draw(some.sampled_from([0, 0, 7])),
        unplanned_tablets=draw(some.sampled_from([0, 0, 7])),
        oldest_age_s=draw(some.floats(0, 2000)),
        rate_bytes_s=draw(some.none() | some.floats(0, 1e12)),
        running=running,
        starting=starting,
        failed=tuple(FailedStart(name=name, cause="full") for name in failed),
        paused=draw(some.booleans()),
    )


@settings(deadline=None)
@given(some.lists(some.tuples(loads(), some.floats(-100, 300)), max_size=8))
def test_whatever_comes_the_bounds_hold(turns: list[tuple[GroupLoad, float]]) -> None:
    memory, now_s = Memory(), 0.0
    for there, passed_s in turns:
        now_s += passed_s
        before = memory
        decision, memory = decide(there, before, RULES, now_s)

        assert decide(there, before, RULES, now_s) == (decision, memory)
        assert decision.reason
        _check_bounds(there, decision)
        _check_drain(there, decision)


def _check_bounds(there: GroupLoad, decision: Decision) -> None:
    assert there.count_min <= decision.desired <= there.count_max
    assert 0 <= decision.start <= max(0, decision.desired - decision.current)
    divisible = ceil(there.open_jobs / there.slots)
    assert decision.desired <= max(there.count_min, divisible, int(there.is_unplanned))
    assert not (there.paused and decision.start)
    assert set(decision.give_up) <= {each.name for each in there.starting}
    if decision.start < decision.desired - decision.current and there.paused:
        assert decision.blocked


def _check_drain(there: GroupLoad, decision: Decision) -> None:
    assert len(decision.drain) <= 1
    assert not (decision.drain and decision.start)
    for name in decision.drain:
        drained = next(each for each in there.serving if each.name == name)
        assert not drained.busy or not there.idle
        assert not any(each.draining for each in there.running)
        assert decision.current > max(there.count_min, decision.desired)


@settings(deadline=None)
@given(loads(), some.floats(-1e6, 1e6))
def test_the_first_decision_after_a_restart_only_keeps_the_minimum(
    there: GroupLoad, now_s: float
) -> None:
    decision, _ = decide(there, Memory(), RULES, now_s)

    assert decision.start <= max(0, there.count_min - decision.current)
    assert not decision.drain or decision.current > there.count_max


@settings(deadline=None, max_examples=50)
@given(loads())
def test_a_constant_load_ends_in_a_constant_count(there: GroupLoad) -> None:
    """Compactors come up at once, and take what is there: no two changes follow each other."""
    there = replace(there, running=(), starting=(), failed=(), running_jobs=0, oldest_age_s=0.0)
    memory, count, changes = Memory(), 0, [0]
    for second in range(0, 1200, 2):
        busy = 0 if there.paused else min(there.open_jobs, count * there.slots)
        running = tuple(
            CompactorLoad(
                name=f"c{number}",
                slots=there.slots,
                busy=min(there.slots, max(0, busy - number * there.slots)),
            )
            for number in range(count)
        )
        decision, memory = decide(replace(there, running=running), memory, RULES, second)
        count += decision.start - len(decision.drain)
        changes += [count] if count != changes[-1] else []

    assert all(before < now for before, now in pairwise(changes)), changes
