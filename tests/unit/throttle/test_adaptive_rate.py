"""The rate of a volume by its latency: Ambry's curve, and how it is followed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from common.model.group import LimitScope, LimitScopeKind
from coordinator.core.limits import Limits
from coordinator.core.throttle import (
    LATENCY_INTERVAL_S,
    MIB,
    RISE_STEPS,
    AdaptiveRate,
    ScopeLimits,
    desired_rate,
)

pytestmark = pytest.mark.unit

CASES = json.loads((Path(__file__).parents[2] / "data/ambry_rate.json").read_text("utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['latency_ms']} ms, k={case['k']}")
def test_the_adaptive_rate_follows_the_curve_of_ambry(case: dict[str, float]) -> None:
    found = desired_rate(
        case["latency_ms"], int(case["min"]), int(case["max"]), case["threshold"], case["k"]
    )
    assert found == case["rate"]


def test_the_rate_falls_at_once_and_rises_in_steps() -> None:
    rate = AdaptiveRate.begin(least=100, greatest=1100, threshold=20.0)
    assert rate.rate == 1100
    slow = rate.after_look(80.0)
    assert slow.rate == 350
    assert [slow.after_look(5.0).rate, slow.after_look(5.0).after_look(None).rate] == [450, 550]
    # Less slow, but not well: it rises no further than the latency allows.
    assert slow.after_look(60.0).rate == 433
    for _ in range(RISE_STEPS):
        slow = slow.after_look(1.0)
    assert slow.rate == 1100


def test_the_greatest_rate_may_change_meanwhile() -> None:
    rate = AdaptiveRate.begin(least=100, greatest=1000, threshold=20.0)
    assert rate.bounded(2000).rate == 2000
    assert rate.after_look(40.0).bounded(2000).rate == 550
    assert rate.after_look(40.0).bounded(300).rate == 300
    assert rate.after_look(40.0).bounded(50).rate == 50


@pytest.mark.parametrize("seed", range(20))
def test_the_rate_stays_within_its_bounds(seed: int) -> None:
    chance = random.Random(seed)
    least, greatest = chance.randrange(1, 10**6), chance.randrange(10**6, 10**9)
    rate = AdaptiveRate.begin(least, greatest, chance.uniform(0.001, 0.1))
    for _ in range(500):
        before = rate.rate
        latency = chance.choice([None, chance.uniform(0, 1), chance.uniform(0, 0.05)])
        rate = rate.after_look(latency)
        assert least <= rate.rate <= greatest
        assert rate.rate - before <= (greatest - least) // RISE_STEPS
        if latency is not None:
            assert rate.rate <= desired_rate(latency, least, greatest, rate.threshold)


@pytest.mark.parametrize("seed", range(10))
def test_the_rate_settles_where_the_storage_keeps_up(seed: int) -> None:
    """A storage that is slower the more it is asked: the rate comes to rest, and stays."""
    chance = random.Random(seed)
    room = chance.uniform(2e6, 5e7)  # Bytes/s at which it takes the threshold for a MiB.
    rate = AdaptiveRate.begin(10**6, 10**8, 0.02)
    rates = []
    for _ in range(400):
        rate = rate.after_look(0.02 * rate.rate / room)
        rates.append(rate.rate)
    settled = rates[200:]
    assert max(settled) - min(settled) <= (10**8 - 10**6) // RISE_STEPS + 1
    # Where curve and storage meet: rate = least + (greatest - least) · room / rate.
    meeting = (10**6 + (10**12 + 4 * (10**8 - 10**6) * room) ** 0.5) / 2
    assert min(settled) <= meeting <= max(settled) + (10**8 - 10**6) // RISE_STEPS


def test_a_rate_is_kept_while_storage_is_slow_and_there_is_a_limit() -> None:
    limits = Limits(volume_limit_bytes_s=8 * MIB, volume_least_bytes_s=MIB, volume_latency_s=0.01)
    scopes, volume = ScopeLimits(limits), LimitScope(LimitScopeKind.VOLUME, "disk")
    scopes.synced(volume, MIB, 5.0)
    scopes.look(2 * LATENCY_INTERVAL_S)
    slow = scopes.rate(volume)
    assert slow is not None
    assert slow < 8 * MIB
    # Nothing is measured any more: it rises to the limit and is forgotten.
    looks = 3
    while scopes.rate(volume) != 8 * MIB:
        scopes.look(looks * LATENCY_INTERVAL_S)
        looks += 1
    scopes.look(looks * LATENCY_INTERVAL_S)
    assert scopes._rates == {}
    scopes.synced(volume, MIB, 5.0)
    scopes.set_explicit({volume: 0})
    scopes.look(2 * looks * LATENCY_INTERVAL_S)
    assert (scopes.rate(volume), scopes._rates) == (None, {})
