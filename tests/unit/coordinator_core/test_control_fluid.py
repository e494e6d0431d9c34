"""Controllers over a day: work as a fluid, the loop and its guard as they are. Virtual time."""

from __future__ import annotations

import random
import statistics

import pytest

from common.plugins import load_controller_plugin
from common.spi.controller import Controller
from tests.support.control_fluid import GIB, MIB, Fluid
from tests.support.fast_and_slow import first_fast

pytestmark = pytest.mark.unit

DAY_S = 86_400.0
OPTIONS: dict[str, dict[str, object]] = {
    "control-points": {},
    "drain-time": {"goal": "10m"},
    "debt": {},
    "static": {},
}
FEEDBACK = [name for name in OPTIONS if name != "static"]


def made(name: str) -> Controller:
    return load_controller_plugin(name).controller(OPTIONS[name])


@pytest.mark.parametrize("part", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("name", FEEDBACK)
def test_shares_settle_where_the_work_is_done_as_it_comes(name: str, part: float) -> None:
    fluid = Fluid(controller=made(name), period_s=10.0)
    fluid.run(DAY_S, lambda _: part * fluid.capacity_bytes_s)
    settled = fluid.shares[len(fluid.shares) // 2 :]
    assert statistics.pstdev(settled) < 0.1 * statistics.mean(settled)
    assert statistics.mean(settled) == pytest.approx(1000 * part, rel=0.15)
    half = len(fluid.backlogs) // 2
    assert max(fluid.backlogs[half:]) <= 1.01 * max(fluid.backlogs[:half])


@pytest.mark.parametrize("seed", first_fast(1, range(3), slow=1))
@pytest.mark.parametrize("name", list(OPTIONS))
def test_the_backlog_stays_bounded_over_a_day_of_bursts(name: str, seed: int) -> None:
    chance = random.Random(seed)
    hours = [chance.uniform(0.0, 1.3) for _ in range(24)]
    scale = 0.7 / statistics.mean(hours)
    fluid = Fluid(controller=made(name), period_s=10.0, bytes_s_max=400 * MIB)

    def arriving(now_s: float) -> float:
        return scale * hours[int(now_s // 3600) % 24] * fluid.capacity_bytes_s

    fluid.run(DAY_S, arriving)
    ends = fluid.backlogs[-1]
    fluid.run(DAY_S, arriving)
    assert fluid.backlogs[-1] <= 1.02 * ends + GIB, "the second day leaves no more than the first"
    assert max(fluid.backlogs) < 6 * 3600 * fluid.capacity_bytes_s


@pytest.mark.parametrize("name", list(OPTIONS))
def test_readers_get_room_as_long_as_the_backlog_allows_it(name: str) -> None:
    def latency(moved_bytes_s: float) -> float:
        return 0.01 + 0.1 * moved_bytes_s / (320 * MIB)

    free = Fluid(controller=made(name), period_s=10.0, backlog=200 * GIB)
    heard = Fluid(
        controller=made(name),
        period_s=10.0,
        backlog=200 * GIB,
        latency_limit_s=0.05,
        latency=latency,
    )
    for fluid in (free, heard):
        fluid.run(1200, lambda _: 0.1 * 160 * MIB)
    assert statistics.mean(heard.rates[30:]) < 0.75 * statistics.mean(free.rates[30:])
    assert statistics.mean(map(latency, heard.rates[60:])) == pytest.approx(0.05, rel=0.35)


@pytest.mark.parametrize("name", list(OPTIONS))
def test_readers_that_are_never_content_do_not_make_the_backlog_pile_up(name: str) -> None:
    fluid = Fluid(controller=made(name), period_s=10.0, latency_limit_s=0.05, latency=lambda _: 5.0)
    fluid.run(DAY_S, lambda _: 0.5 * fluid.capacity_bytes_s)
    half = len(fluid.backlogs) // 2
    assert max(fluid.backlogs[half:]) <= 1.01 * max(fluid.backlogs[:half])


@pytest.mark.parametrize("name", FEEDBACK)
def test_a_peak_becomes_a_plateau_of_the_same_work(name: str) -> None:
    uncontrolled = Fluid(controller=made("static"))
    controlled = Fluid(controller=made(name))
    for fluid in (uncontrolled, controlled):
        fluid.run(30, lambda _: 0.0)
        fluid.backlog = 40 * 256 * MIB  # 40 jobs at once.
        fluid.run(3600, lambda _: 0.0)
    assert max(uncontrolled.running) == 40
    assert max(controlled.running) <= 0.6 * max(uncontrolled.running)
    assert controlled.done == uncontrolled.done == 40 * 256 * MIB


@pytest.mark.parametrize("name", FEEDBACK)
def test_a_backlog_that_doubles_moves_the_shares_within_one_period(name: str) -> None:
    fluid = Fluid(controller=made(name), backlog=40 * GIB)
    fluid.run(600, lambda _: 0.3 * fluid.capacity_bytes_s)
    before = fluid.shares[-1]
    fluid.backlog *= 2
    fluid.step(0.3 * fluid.capacity_bytes_s)
    assert fluid.shares[-1] > before
