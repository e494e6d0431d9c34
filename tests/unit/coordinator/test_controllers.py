"""The built-in controllers: ScyllaDB's and Pebble's numbers, options, and what they say."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.control_settings import ControlSettings
from common.errors import ConfigError, SettingError
from common.plugins import CONTROLLERS, load_controller_plugin
from common.spi.controller import (
    DEFAULT_SHARES,
    Controller,
    ControlReadings,
    ForegroundLatency,
    ShareClass,
)
from coordinator.core.control import GuardRules, guarded, require_sound
from coordinator.core.queue import admits_fan_in, admits_weight, job_weight
from coordinator.plugins.controllers import GIB, ControlPoints, debt_slots, parse_points
from coordinator.registry import control_loop, load_controller
from neve.service_settings import load_service_settings

pytestmark = pytest.mark.unit

CASES: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data/control.json").read_text("utf-8")
)
POINTS = CASES["controller"]
LINE = ControlPoints(tuple((x, y) for x, y in POINTS["points"]))


plugin = cache(load_controller_plugin)
"""Loading reads a file of every installed package."""


def controller(name: str, **options: object) -> Controller:
    return plugin(name).controller(options)


def readings(backlog_bytes: float = 0.0, **given: Any) -> ControlReadings:
    facts: dict[str, Any] = {"time_s": 100.0, "period_s": 1.0, "slots": 20, "slots_max": 20}
    return ControlReadings(backlog_bytes=backlog_bytes, **(facts | given))


def system(found: Any) -> float:
    return float(found.shares[ShareClass.SYSTEM])


# ------------------------------------------------------------------------------- Control points


@pytest.mark.parametrize("case", POINTS["forward"], ids=str)
def test_shares_lie_on_scylla_s_line(case: dict[str, Any]) -> None:
    assert LINE.shares(float(case["normalized"])) == pytest.approx(case["shares"], rel=1e-12)


@pytest.mark.parametrize("case", POINTS["inverse"], ids=str)
def test_the_inverse_is_the_backlog_that_has_the_shares(case: dict[str, Any]) -> None:
    found = LINE.backlog(case["shares"])
    assert found == pytest.approx(case["normalized"], rel=1e-11, abs=1e-9)


@pytest.mark.parametrize("case", POINTS["capped_300"], ids=str)
def test_a_maximum_flattens_the_last_stretch(case: dict[str, Any]) -> None:
    assert LINE.capped(300).shares(case["normalized"]) == pytest.approx(case["shares"], rel=1e-12)


@pytest.mark.parametrize("case", POINTS["end_to_end"], ids=str)
def test_the_controller_divides_the_backlog_by_the_memory(case: dict[str, Any]) -> None:
    text = " ".join(f"{x}:{y}" for x, y in POINTS["points"])
    found = controller("control-points", points=text).decide(
        readings(case["backlog_bytes"], memory_bytes=case["memory_bytes"])
    )
    assert system(found) == pytest.approx(case["shares"], rel=1e-12)
    assert found.slots == max(1, round(20 * case["shares"] / 1000))


@pytest.mark.parametrize("unknown", [math.inf, math.nan])
def test_a_backlog_that_is_not_known_gets_the_shares_of_the_last_point(unknown: float) -> None:
    assert LINE.shares(unknown) == 1000.0
    found = controller("control-points").decide(readings(unknown))
    assert system(found) == 1000.0
    assert "not known" in found.reasons[0]


def test_a_maximum_never_falls_below_the_last_point_but_one() -> None:
    assert LINE.capped(20).shares(30.0) == 100.0


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_more_backlog_never_means_fewer_shares(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert LINE.shares(low) <= LINE.shares(high)


@given(st.floats(50, 1000))
def test_the_inverse_and_the_line_undo_each_other(shares: float) -> None:
    assert LINE.shares(LINE.backlog(shares)) == pytest.approx(shares, rel=1e-9)


def test_static_shares_hold_while_the_backlog_is_still_told() -> None:
    fixed = controller("control-points", static_shares=200)
    little, much = fixed.decide(readings(1)), fixed.decide(readings(10**13))
    assert system(little) == system(much) == 200.0
    assert little.reasons[1] != much.reasons[1], "the backlog is told all the same"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0:50", "there are 1, expected 2 to 32"),
        ("0:50 1", "expected backlog:shares of each point"),
        ("0:50 1:x", "expected backlog:shares of each point"),
        ("1:50 2:60", "backlogs must rise from 0"),
        ("0:50 2:60 2:70", "backlogs must rise from 0"),
        ("0:50 2:40", "must not fall"),
        ("0:0 2:40", "shares must be above 0"),
        ("0:50 inf:60", "expected finite ones"),
        (" ".join(f"{n}:50" for n in range(33)), "there are 33"),
    ],
)
def test_points_that_are_no_line_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_points(text, "controller control-points")


# ---------------------------------------------------------------------------- Drain time and debt


def test_drain_time_asks_for_what_drains_the_backlog_within_the_goal() -> None:
    # 20 slots of 5 MB/s rewrite 100 MB/s; 30 GB within 600 s are 50 MB/s: half of the slots.
    wanted = controller("drain-time", goal="10m").decide(readings(30e9, slot_bytes_s=5e6))
    assert (system(wanted), wanted.slots) == (500.0, 10)
    beside = controller("drain-time", goal="10m").decide(
        readings(30e9, slot_bytes_s=5e6, arrival_bytes_s=20e6)
    )
    assert system(beside) == 700.0
    assert controller("drain-time", goal="5m").decide(readings(30e9, slot_bytes_s=5e6)).shares == {
        **DEFAULT_SHARES,
        ShareClass.SYSTEM: 1000.0,
    }


def test_drain_time_goes_by_jobs_while_no_rate_is_known_and_takes_few_without_backlog() -> None:
    made = controller("drain-time", min_shares=70)
    slots = [made.decide(readings(1e9, queued_jobs=n)).slots for n in (0, 20, 39, 40, 999)]
    assert slots == [1, 5, 10, 10, 20]
    assert system(made.decide(readings(math.inf))) == 1000.0, "nor is the backlog known"
    assert system(made.decide(readings(0.0))) == 70.0
    assert system(made.decide(readings(1.0, slot_bytes_s=5e6))) == 70.0


@pytest.mark.parametrize("case", CASES["pebble_concurrency"], ids=str)
def test_concurrency_grows_with_debt_as_in_pebble(case: dict[str, Any]) -> None:
    found = debt_slots(
        case["lower"],
        case["upper"],
        debt_bytes=case["debt_gib"] * GIB,
        deepest_files=case["l0_depth"],
        garbage_fraction=case["garbage"],
    )
    assert found == case["n"]


def test_debt_begins_beyond_what_is_allowed_and_ends_at_all_slots() -> None:
    made = controller("debt", allowed="10GB", step="2GB", min_slots=2)
    slots = [made.decide(readings(n * GIB)).slots for n in (0, 10, 12, 20, 900, math.inf)]
    assert slots == [2, 2, 3, 7, 20, 20]
    assert system(made.decide(readings(20 * GIB))) == 350.0
    with pytest.raises(ConfigError, match="max_slots is 1, expected 0 or at least min_slots, 2"):
        controller("debt", min_slots=2, max_slots=1)


def test_static_gives_what_the_settings_say() -> None:
    shares = {**DEFAULT_SHARES, ShareClass.USER: 7.0}
    found = controller("static", slots=3).decide(
        readings(1e12, base_shares=shares, bytes_s_max=5e6)
    )
    assert (found.shares, found.slots, found.bytes_s) == (shares, 3, 5e6)
    assert controller("static").decide(readings(1e12)).slots is None


def test_the_default_raises_shares_with_the_backlog_and_sets_nothing_else() -> None:
    loop = control_loop(load_service_settings(environ={}))
    assert loop.name == "shares"
    made = controller("shares")
    rested = made.decide(readings())
    assert rested.shares == DEFAULT_SHARES, "without a backlog, as the settings say"
    backlogs = [0.0, 1e9, 6e9, 12e9, 30e9, 60e9, 1e15]  # 100 MB/s in all, and a goal of 600 s
    found = [made.decide(readings(size, slot_bytes_s=5e6)) for size in backlogs]
    assert [round(system(decision)) for decision in found] == [100, 100, 100, 200, 500, 1000, 1000]
    assert {(decision.slots, decision.bytes_s) for decision in found} == {(None, None)}
    own = {**DEFAULT_SHARES, ShareClass.SYSTEM: 1.0}
    found = [made.decide(readings(size, base_shares=own, slot_bytes_s=5e6)) for size in backlogs]
    assert {decision.shares[ShareClass.USER] for decision in found} == {1000.0}
    assert max(map(system, found)) == 10.0, "relative to the settings"


# --------------------------------------------------------------------------- What holds for all


@pytest.mark.parametrize("name", CONTROLLERS.names())
@given(
    backlog=st.floats(0, 1e18) | st.sampled_from([math.inf, math.nan]),
    slots=st.integers(0, 10_000),
    rate=st.none() | st.just(0.0) | st.floats(1e-3, 1e12),
    arrives=st.none() | st.floats(0, 1e12),
    most=st.none() | st.floats(65536, 1e12),
)
def test_every_controller_decides_something_sound(
    name: str, backlog: float, slots: int, rate: float | None, arrives: float | None, most: Any
) -> None:
    given_readings = readings(
        backlog, slots_max=slots, slot_bytes_s=rate, arrival_bytes_s=arrives, bytes_s_max=most
    )
    found = controller(name).decide(given_readings)
    require_sound(found)
    assert found.reasons
    assert found == controller(name).decide(given_readings), "the same readings, the same decision"
    assert found.slots is None or found.slots <= max(1, slots)
    held = guarded(found, given_readings, GuardRules()).bytes_s
    assert held == most is None or (held is not None and held <= most)
    assert system(controller(name).decide(replace(given_readings, backlog_bytes=0.0))) <= max(
        system(found), DEFAULT_SHARES[ShareClass.SYSTEM]
    )


def test_a_service_with_an_unknown_controller_or_option_does_not_start() -> None:
    def refused(*flags: str) -> str:
        with pytest.raises(ConfigError) as caught:
            load_service_settings(environ={}, flags=flags)
        return str(caught.value)

    assert "neve.controllers: 'pid' is not installed" in refused("control.controller=pid")
    problem = refused("control.options=slots=3")
    assert "controller shares: option 'slots' is unknown; known: goal_s" in problem
    assert "control.options is from flag --set control.options" in problem
    assert "expected name=value, each once" in refused("control.options=slots")
    assert "expected name=value, each once" in refused("control.options=slots=1, slots=2")
    assert "expected 0 (none) or at least control.bytes_s_min" in refused(
        "control.bytes_s_max=100KB"
    )
    assert "expected 1 to 1000000" in refused("control.user_shares=0")


def test_a_loop_has_what_the_settings_say() -> None:
    flags = [
        *("control.controller=drain-time", "control.options=goal=2m", "control.user_shares=300"),
        *("groups.default.compactors={min = 1, max = 3}", "control.foreground_limit_s=200ms"),
        "control.system_shares=250",
    ]
    loop = control_loop(load_service_settings(environ={}, flags=flags))
    assert loop.name == "drain-time"
    assert loop.rules.base_shares[ShareClass.USER] == 300.0
    assert loop.rules.base_shares[ShareClass.SYSTEM] == 250.0
    assert loop.rules.group_slots == {"default": 6}
    assert loop.rules.memory_bytes == 3 * 1024**3
    assert loop.rules.foreground_limit_s == 0.2
    with pytest.raises(SettingError, match="option goal_s"):
        load_controller(ControlSettings(controller="drain-time", options=("goal=soon",)))


def test_the_controller_of_the_page_on_plug_ins_works_as_it_stands() -> None:
    page = (Path(__file__).parents[3] / "docs/plugins.md").read_text("utf-8")
    code = page.split("## A controller")[1].split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(code, "docs/plugins.md", "exec"), names)
    made = names["NightControllers"]().controller({"day_shares": "80"})
    by_night = made.decide(readings(1e9))
    by_day = made.decide(readings(1e9, foreground=ForegroundLatency(latency_s=0.1, limit_s=1.0)))
    for found in (by_night, by_day):
        require_sound(found)
    assert (system(by_night), by_night.slots) == (1000.0, 20)
    assert (system(by_day), by_day.slots) == (80.0, 2)
    with pytest.raises(ConfigError, match="option 'hours' is unknown"):
        names["NightControllers"]().controller({"hours": 3})


# ----------------------------------------------------------------------------------- Weights


@pytest.mark.parametrize("case", CASES["weights"], ids=str)
def test_a_job_weighs_as_in_scylla(case: dict[str, int]) -> None:
    assert job_weight(case["total_bytes"]) == case["weight"]


@given(st.integers(0, 2**60))
def test_a_weight_is_the_logarithm_of_base_4(size_bytes: int) -> None:
    weight = job_weight(size_bytes)
    assert 4**weight <= size_bytes + 1024**2 < 4 ** (weight + 1)


def test_one_job_of_a_weight_runs_and_what_only_drops_files_always_may() -> None:
    assert admits_weight(12, [10, 11, 13])
    assert not admits_weight(12, [10, 12])
    assert admits_weight(12, [12], most=2)
    assert job_weight(10**12, drops_only=True) == 0
    assert admits_weight(0, [0, 0, 0])


def test_a_job_of_fewer_inputs_than_one_that_runs_waits() -> None:
    assert admits_fan_in(4, [])
    assert not admits_fan_in(4, [3, 8])
    assert admits_fan_in(8, [3, 8])
    assert admits_fan_in(32, [100])
