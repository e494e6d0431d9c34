"""Limits are divided max-min fairly, and never add up to more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from coordinator.core.throttle import (
    UNLIMITED,
    RateClaim,
    max_min_shares,
)

pytestmark = pytest.mark.unit

G, H, V = "g", "h", "v"


def parts(limits: dict[str, float], **claims: RateClaim[str]) -> dict[str, float]:
    return {name: round(part, 6) for name, part in max_min_shares(limits, claims).items()}


def test_unbounded_claims_get_equal_shares() -> None:
    assert parts({G: 90}, a=RateClaim((G,)), b=RateClaim((G,)), c=RateClaim((G,))) == {
        "a": 30,
        "b": 30,
        "c": 30,
    }


def test_the_rest_of_a_small_claim_goes_to_the_others() -> None:
    claims = {
        "a": RateClaim((G,), 10.0),
        "b": RateClaim((G,)),
        "c": RateClaim((G,), 35.0),
        "d": RateClaim((G,)),
    }
    assert parts({G: 100}, **claims) == {"a": 10, "b": 30, "c": 30, "d": 30}


def test_wants_below_the_limit_are_met() -> None:
    assert parts({G: 100}, a=RateClaim((G,), 10.0), b=RateClaim((G,), 20.0)) == {"a": 10, "b": 20}


def test_the_tighter_of_two_limits_counts_and_leaves_the_rest_of_the_other() -> None:
    claims = {"a": RateClaim((G, V)), "b": RateClaim((G, V)), "c": RateClaim((H, V))}
    assert parts({G: 20, V: 100}, **claims) == {"a": 10, "b": 10, "c": 80}


def test_nothing_limits_whoever_is_under_no_limit() -> None:
    assert parts({G: 20}, a=RateClaim((G,)), b=RateClaim((H, V))) == {"a": 20, "b": UNLIMITED}
    assert parts({}, a=RateClaim((G,), 5.0)) == {"a": UNLIMITED}


rates = some.floats(0, 1e9) | some.just(UNLIMITED)
scopes = some.sampled_from([(G,), (H,), (V,), (G, V), (H, V), ()])


@given(
    some.dictionaries(some.sampled_from([G, H, V]), some.floats(0, 1e9)),
    some.lists(some.builds(RateClaim, scopes, rates), max_size=12),
)
def test_shares_exceed_no_limit_and_waste_nothing(
    limits: dict[str, float], found: list[RateClaim[str]]
) -> None:
    claims = {str(number): claim for number, claim in enumerate(found)}
    given_parts = max_min_shares(limits, claims)

    assert list(given_parts) == list(claims)
    used = {
        scope: sum(given_parts[name] for name, claim in claims.items() if scope in claim.scopes)
        for scope in limits
    }
    for scope, limit in limits.items():
        assert used[scope] <= limit * (1 + 1e-9) + 1e-6
    for name, claim in claims.items():
        part = given_parts[name]
        assert part >= 0
        under = [scope for scope in claim.scopes if scope in limits]
        if not under:
            assert part == UNLIMITED
        elif part < claim.wanted_bytes_s * (1 - 1e-9):
            # Some limit of it is used up, and nobody under that one has more than it has.
            assert any(
                used[scope] >= limits[scope] * (1 - 1e-6) - 1e-3
                and all(
                    given_parts[other] <= part * (1 + 1e-6) + 1e-3
                    for other, each in claims.items()
                    if scope in each.scopes
                )
                for scope in under
            ), (name, given_parts)
