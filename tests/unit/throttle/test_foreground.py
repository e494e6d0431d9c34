"""Reads and appends share the limit of a volume with compaction, by shares."""

from __future__ import annotations

import pytest

from coordinator.core.control import ControlRules
from coordinator.core.throttle import FOREGROUND_SILENCE_S
from tests.support.throttle_world import UNLIMITED, Gateway, World

pytestmark = pytest.mark.unit

MB = 10**6
LIMIT = 100 * MB


def world(*, jobs: int = 4, shares: float = 300.0, able: float = 1e9, gateways: int = 1) -> World:
    """Return a world with a limited volume: jobs of 100 shares, and gateways."""
    made = World(rules=ControlRules(foreground_shares=shares))
    made.table("t", "default")
    made.limit("volume:default", LIMIT)
    for number in range(jobs):
        made.start(made.compactor(f"c{number}"), "t")
    made.gateways = [Gateway(f"g{number}", "default", able) for number in range(gateways)]
    return made


def moved(made: World, seconds: float) -> tuple[float, float]:
    """Return the bytes per second of reads and appends, and of compactions."""

    def totals() -> tuple[float, float]:
        held = [
            attempt for compactor in made.compactors.values() for attempt in compactor.held.values()
        ]
        return sum(mover.moved for mover in made.gateways), sum(mover.moved for mover in held)

    before = totals()
    made.pass_time(seconds)
    first, second = (
        (after - begun) / seconds for after, begun in zip(totals(), before, strict=True)
    )
    return first, second


@pytest.mark.parametrize("gateways", [1, 3])
@pytest.mark.parametrize("jobs", [1, 7])
def test_a_saturated_volume_is_divided_by_shares(jobs: int, gateways: int) -> None:
    made = world(jobs=jobs, gateways=gateways)
    made.pass_time(20)
    foreground, compaction = moved(made, 60)
    assert foreground / (foreground + compaction) == pytest.approx(0.75, rel=0.05)
    assert 0.95 * LIMIT <= foreground + compaction <= LIMIT


def test_what_one_class_does_not_use_goes_to_the_other() -> None:
    light = world(able=10.0 * MB)
    light.pass_time(20)
    foreground, compaction = moved(light, 60)
    assert foreground == pytest.approx(10 * MB), "readers that want little get all of it"
    assert compaction >= 0.8 * LIMIT

    made = world(jobs=2)
    for compactor in made.compactors.values():
        for running in compactor.held.values():
            running.able = 2.0 * MB
    made.pass_time(20)
    foreground, compaction = moved(made, 60)
    assert compaction == pytest.approx(4 * MB)
    assert foreground >= 0.85 * LIMIT


def test_more_shares_are_more_bytes() -> None:
    parts = []
    for shares in (50.0, 100.0, 300.0, 1000.0):
        made = world(shares=shares)
        made.pass_time(20)
        foreground, compaction = moved(made, 30)
        parts.append(foreground / (foreground + compaction))
    assert parts == pytest.approx([1 / 3, 1 / 2, 3 / 4, 10 / 11], rel=0.05)


def test_without_a_limit_nobody_waits() -> None:
    made = world()
    made.limit("volume:default", 0)
    made.pass_time(10)
    assert made.gateways[0].applied == UNLIMITED
    assert made.gateways[0].waited_s == 0.0


@pytest.mark.parametrize("ends", ["stops reading", "dies"])
def test_the_part_of_readers_is_free_once_they_are_gone(ends: str) -> None:
    made = world()
    made.pass_time(20)
    (gateway,) = made.gateways
    if ends == "stops reading":
        made.tell_foreground(gateway, ())
    gateway.alive = False
    made.pass_time(FOREGROUND_SILENCE_S + 10)
    _, compaction = moved(made, 30)
    assert compaction >= 0.95 * LIMIT
    assert made.state._cluster.grants._foreground == {}, "nothing is kept of it"


def test_reads_are_listed_apart_from_jobs() -> None:
    made = world(jobs=2)
    made.pass_time(20)
    (volume,) = [scope for scope in made.state.status(made.now_s).scopes if scope.kind == "volume"]
    assert volume.attempts == 2
    assert volume.foreground_bytes == pytest.approx(0.75 * volume.moved_bytes, rel=0.1)


def test_a_new_coordinator_learns_the_rates_from_the_gateway() -> None:
    made = world()
    made.pass_time(20)
    made.restart_coordinator()
    made.pass_time(20)
    foreground, compaction = moved(made, 30)
    assert foreground + compaction <= LIMIT * 1.001


def test_heartbeats_that_come_faster_than_news_of_a_job_take_nothing_from_it() -> None:
    """Every other heartbeat repeats the numbers of the one before."""
    made = world(jobs=2)
    made.news_s = 1.0
    made.beat_s = 0.5
    made.pass_time(20)
    foreground, compaction = moved(made, 60)
    assert foreground / (foreground + compaction) == pytest.approx(0.75, rel=0.05)
