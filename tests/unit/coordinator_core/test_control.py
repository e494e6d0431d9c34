"""The loop of control: guard, measured rates, readers, history, and a controller that fails."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.spi.controller import (
    DEFAULT_SHARES,
    ControlDecision,
    ControlReadings,
    ForegroundLatency,
    ShareClass,
)
from coordinator.core.control import (
    DECAY_S,
    FLOOR_MARGIN,
    LATENCY_MAX_S,
    MOVED_PER_INPUT,
    TABLES_MAX,
    ClassUsage,
    ClusterFacts,
    ControlLoop,
    ControlRules,
    GuardRules,
    ReaderLatencies,
    floor_bytes_s,
    guarded,
)

pytestmark = pytest.mark.unit

MB = 10.0**6
RULES = GuardRules(slew_shares_s=100.0, hysteresis=0.05, bytes_s_min=1 * MB)


def decision(system: float, **given: Any) -> ControlDecision:
    return ControlDecision(shares={**DEFAULT_SHARES, ShareClass.SYSTEM: system}, **given)


def readings(**given: Any) -> ControlReadings:
    facts: dict[str, Any] = {"time_s": 50.0, "period_s": 1.0, "backlog_bytes": 0.0}
    return ControlReadings(**(facts | given))


def waits(latency_s: float, limit_s: float = 0.1) -> ForegroundLatency:
    return ForegroundLatency(latency_s=latency_s, limit_s=limit_s)


def system(found: ControlDecision) -> float:
    return found.shares[ShareClass.SYSTEM]


# ------------------------------------------------------------------------ Slew and hysteresis


def test_the_first_decision_holds_as_it_is() -> None:
    assert guarded(decision(900.0, slots=9), readings(), RULES) == decision(900.0, slots=9)


@pytest.mark.parametrize(
    ("before", "wanted", "held"),
    [(100.0, 900.0, 200.0), (900.0, 100.0, 800.0), (100.0, 150.0, 150.0)],
)
def test_shares_move_at_most_so_fast(before: float, wanted: float, held: float) -> None:
    found = guarded(decision(wanted), readings(previous=decision(before)), RULES)
    assert system(found) == held
    long_ago = readings(previous=decision(before), period_s=60.0)
    assert system(guarded(decision(wanted), long_ago, RULES)) == wanted
    unbound = replace(RULES, slew_shares_s=0.0)
    assert system(guarded(decision(wanted), readings(previous=decision(before)), unbound)) == wanted


def test_slots_and_rate_move_with_the_shares() -> None:
    found = guarded(
        decision(800.0, slots=40, bytes_s=80 * MB),
        readings(previous=decision(100.0), bytes_s_max=100 * MB),
        RULES,
    )
    assert (system(found), found.slots, found.bytes_s) == (200.0, 10, 20 * MB)
    assert found.reasons[-1] == "shares of system change by at most 100 per second: 200 now"


def test_small_changes_are_left_out_but_all_can_be_reached() -> None:
    before = readings(previous=decision(980.0))
    assert system(guarded(decision(1020.0), before, RULES)) == 980.0
    assert system(guarded(decision(940.0), before, RULES)) == 980.0
    assert system(guarded(decision(1000.0), before, RULES)) == 1000.0
    assert system(guarded(decision(900.0), before, RULES)) == 900.0


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=30), st.floats(0.1, 5))
def test_no_sequence_of_wishes_moves_shares_faster(wishes: list[float], period_s: float) -> None:
    held = decision(500.0)
    for wish in wishes:
        now = guarded(decision(wish), readings(previous=held, period_s=period_s), RULES)
        assert abs(system(now) - system(held)) <= 100.0 * period_s + 1e-6
        held = now


# ------------------------------------------------------------------------------- For readers


def test_readers_that_wait_too_long_lower_the_rate_again_and_again() -> None:
    held, rates = decision(100.0, bytes_s=100 * MB), []
    for _ in range(30):
        now = readings(previous=held, foreground=waits(0.2), bytes_s_max=100 * MB)
        held = guarded(decision(100.0, bytes_s=100 * MB), now, RULES)
        rates.append(held.bytes_s or 0.0)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(1 * MB + 99 * MB * 0.5 ** (1 / 5))
    assert rates[-1] < 4 * MB
    assert "readers wait 200 ms, longer than 100 ms" in held.reasons[-1]


def test_a_rate_without_a_limit_falls_from_what_is_measured() -> None:
    now = readings(foreground=waits(0.2), rewrite_bytes_s=50 * MB)
    found = guarded(decision(100.0), now, RULES)
    assert found.bytes_s is not None
    assert 1 * MB < found.bytes_s < MOVED_PER_INPUT * 50 * MB
    idle = readings(foreground=waits(0.2))
    assert guarded(decision(100.0), idle, RULES).bytes_s is None, "nothing runs that could hurt"


@given(
    latency_s=st.floats(0, 1e6),
    arrives=st.floats(0, 1e9),
    before=st.none() | st.floats(1, 1e10),
    wanted=st.none() | st.floats(65536, 1e10),
)
def test_no_latency_lowers_the_rate_below_what_arrives(
    latency_s: float, arrives: float, before: float | None, wanted: float | None
) -> None:
    now = readings(
        foreground=waits(latency_s),
        arrival_bytes_s=arrives,
        rewrite_bytes_s=1e6,
        previous=None if before is None else decision(100.0, bytes_s=before, for_readers=True),
    )
    found = guarded(decision(100.0, bytes_s=wanted), now, RULES)
    floor = max(1 * MB, MOVED_PER_INPUT * FLOOR_MARGIN * arrives)
    assert floor_bytes_s(now, RULES) == floor
    most = math.inf if wanted is None else max(wanted, RULES.bytes_s_min)
    assert found.bytes_s is None or found.bytes_s >= min(floor, most) * 0.999


def test_a_rate_that_the_controller_raises_rises_at_once() -> None:
    before = readings(previous=decision(100.0, bytes_s=10 * MB))
    found = guarded(decision(100.0, bytes_s=100 * MB), before, RULES)
    assert (found.bytes_s, found.for_readers) == (100 * MB, False)


def test_the_rate_comes_back_in_steps_and_in_the_end_as_a_whole() -> None:
    held, steps = decision(100.0, bytes_s=10 * MB, for_readers=True), 0
    while held.bytes_s != 100 * MB:
        before = held.bytes_s or 0.0
        held = guarded(decision(100.0, bytes_s=100 * MB), readings(previous=held), RULES)
        assert before < (held.bytes_s or 0.0) <= 1.04 * before
        steps += 1
        assert steps < 200
    assert steps > 50


def test_a_rate_without_a_limit_has_none_again_once_it_hinders_nobody() -> None:
    held = decision(100.0, bytes_s=10 * MB, for_readers=True)
    busy = readings(previous=held, rewrite_bytes_s=5 * MB)
    assert guarded(decision(100.0), busy, RULES).bytes_s == pytest.approx(10.3 * MB)
    slow = readings(previous=held, rewrite_bytes_s=2 * MB)
    assert guarded(decision(100.0), slow, RULES).bytes_s is None


# --------------------------------------------------------------------------- What readers tell


def test_the_latency_of_a_table_is_a_mean_that_forgets() -> None:
    heard = ReaderLatencies()
    for second in range(5):
        heard.note("t", 0.1, 10, float(second))
    assert heard.signal(5.0) == ("t", pytest.approx(0.1))
    for second in range(5, 60):
        heard.note("t", 0.4, 10, float(second))
    assert heard.signal(60.0) == ("t", pytest.approx(0.4, rel=0.01))
    assert heard.signal(60.0 + 10 * DECAY_S) is None, "nobody has been heard for long"


def test_the_table_whose_readers_wait_longest_counts_and_few_reads_do_not() -> None:
    heard = ReaderLatencies()
    heard.note("quick", 0.01, 100, 0.0)
    heard.note("slow", 0.9, 5, 0.0)
    heard.note("once", 30.0, 1, 0.0)
    assert heard.signal(0.0) == ("slow", pytest.approx(0.9))
    heard.forget("slow")
    assert heard.signal(0.0) == ("quick", pytest.approx(0.01))


@pytest.mark.parametrize("rubbish", [math.nan, math.inf, -1.0])
def test_what_is_no_latency_is_ignored(rubbish: float) -> None:
    heard = ReaderLatencies()
    heard.note("t", rubbish, 100, 0.0)
    heard.note("t", 0.1, 0, 0.0)
    assert heard.signal(0.0) is None


def test_one_report_weighs_no_more_than_a_thousand_reads_of_a_minute() -> None:
    heard = ReaderLatencies()
    for _ in range(9):
        heard.note("t", 0.0, 1000, 0.0)
    heard.note("t", 1e300, 10**9, 0.0)
    assert heard.signal(0.0) == ("t", pytest.approx(LATENCY_MAX_S / 10))


def test_a_flood_of_tables_is_bounded() -> None:
    heard = ReaderLatencies()
    for number in range(3 * TABLES_MAX):
        heard.note(f"t{number}", 0.1, 10, float(number) / 1000)
    assert len(heard.by_table(3.0)) == TABLES_MAX


# ------------------------------------------------------------------------------------ Usage


def test_a_minute_of_usage_forgets_the_minute_before() -> None:
    used = ClassUsage()
    for second in range(120):
        used.note(ShareClass.USER if second < 60 else ShareClass.SYSTEM, 10, float(second))
    assert used.last_minute(119.0) == {
        ShareClass.SYSTEM: 600,
        ShareClass.USER: 0,
        ShareClass.URGENT: 0,
        ShareClass.STATISTICS: 0,
    }
    assert sum(used.last_minute(300.0).values()) == 0
    assert (used.total_bytes[ShareClass.USER], used.total_bytes[ShareClass.SYSTEM]) == (600, 600)


# ------------------------------------------------------------------------------------- The loop


class Scripted:
    """A controller that says what it is told to, or fails."""

    name = "scripted"

    def __init__(self) -> None:
        self.answer: ControlDecision | Exception = decision(300.0)
        self.heard: list[ControlReadings] = []

    def decide(self, readings: ControlReadings) -> ControlDecision:
        self.heard.append(readings)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def facts(backlog: float = 0.0, done: float = 0.0, busy: int = 0, **given: Any) -> ClusterFacts:
    return ClusterFacts(backlog_bytes=backlog, done_bytes=done, busy_slots=busy, **given)


def test_a_look_comes_once_a_period() -> None:
    loop = ControlLoop(Scripted(), ControlRules(period_s=2.0))
    assert loop.is_due(0.0)
    loop.look(facts(), 0.0)
    assert not loop.is_due(1.9)
    assert loop.is_due(2.0)


def test_rates_are_what_was_done_and_what_came() -> None:
    script = Scripted()
    loop = ControlLoop(script, ControlRules())
    for second in range(601):
        # 4 slots rewrite 20 MB/s, 50 MB/s arrive.
        backlog, done = 30 * MB * second, 20 * MB * second
        loop.look(facts(backlog, done, busy=4), float(second))
    last = script.heard[-1]
    assert last.slot_bytes_s == pytest.approx(5 * MB, rel=0.02)
    assert last.rewrite_bytes_s == pytest.approx(20 * MB, rel=0.02)
    assert last.arrival_bytes_s == pytest.approx(50 * MB, rel=0.02)
    assert script.heard[0].slot_bytes_s is None
    assert script.heard[0].previous is None
    assert last.previous == loop.decision


def test_a_lost_attempt_and_an_unknown_backlog_count_nothing() -> None:
    script = Scripted()
    loop = ControlLoop(script, ControlRules())
    loop.look(facts(100 * MB, 50 * MB, busy=1), 0.0)
    loop.look(facts(100 * MB, 10 * MB, busy=1), 10.0)
    loop.look(facts(math.inf, 10 * MB, busy=1), 20.0)
    loop.look(facts(100 * MB, 10 * MB, busy=1), 30.0)
    assert script.heard[-1].arrival_bytes_s == 0.0
    assert script.heard[-1].slot_bytes_s is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (KeyError("x"), "KeyError"),
        (ControlDecision(shares={ShareClass.SYSTEM: 1.0}), "shares of user are 0.0"),
        (decision(math.nan), "shares of system are nan"),
        (decision(math.inf), "shares of system are inf"),
        (decision(100.0, bytes_s=0.0), "bytes_s is 0.0, expected a rate above 0"),
        (decision(100.0, bytes_s=math.inf), "bytes_s is inf"),
        (decision(100.0, slots=0), "slots are 0, expected at least 1"),
        (decision(100.0, table_weights={"t": 0.0}), "weight of table 't' is 0.0"),
    ],
)
def test_a_controller_that_fails_changes_nothing_and_is_named(answer: Any, why: str) -> None:
    script = Scripted()
    loop = ControlLoop(script, ControlRules())
    before = loop.look(facts(), 0.0)
    script.answer = answer
    now = loop.look(facts(), 1.0)
    assert replace(now, reasons=()) == replace(before, reasons=())
    assert why in loop.failure
    assert "controller scripted failed, the last decision stays" in now.reasons[0]
    assert loop.failures == 1
    script.answer = decision(300.0)
    assert loop.look(facts(), 2.0) == decision(300.0)
    assert (loop.failure, loop.failures) == ("", 1)


def test_slots_are_divided_between_groups_as_the_settings_divide_them() -> None:
    script = Scripted()
    loop = ControlLoop(script, ControlRules(group_slots={"small": 10, "large": 30}))
    assert loop.slots_of("small") is None
    script.answer = decision(300.0, slots=20)
    loop.look(facts(group_slots={"small": 10, "other": 40}), 0.0)
    assert [loop.slots_of(each) for each in ("small", "large", "other", "none")] == [2, 8, 10, 1]
    assert script.heard[-1].slots_max == 80
    assert script.heard[-1].slots == 50


def test_readers_are_heard_only_if_there_is_a_limit() -> None:
    for limit_s, heard in ((None, None), (0.2, ForegroundLatency(latency_s=0.5, limit_s=0.2))):
        script = Scripted()
        loop = ControlLoop(script, ControlRules(foreground_limit_s=limit_s))
        loop.latencies.note("t", 0.5, 10, 0.0)
        loop.look(facts(), 0.0)
        assert script.heard[-1].foreground == heard
