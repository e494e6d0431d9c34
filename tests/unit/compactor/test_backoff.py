"""Waits double, are bounded, and spread."""

from __future__ import annotations

from compactor.core.backoff import Backoff


def test_waits_double_up_to_the_bound() -> None:
    backoff = Backoff(first_s=1.0, longest_s=5.0)
    waits = []
    for _ in range(5):
        waits.append(backoff.wait_s())
        backoff = backoff.failed()
    assert waits == [0.0, 1.0, 2.0, 4.0, 5.0]


def test_a_success_starts_over() -> None:
    fresh = Backoff()
    assert fresh.succeeded() is fresh
    assert fresh.failed().failed().succeeded() == fresh


def test_chance_spreads_over_half_the_wait() -> None:
    backoff = Backoff(first_s=8.0).failed()
    assert (backoff.wait_s(0.0), backoff.wait_s(1.0)) == (4.0, 8.0)


def test_very_many_failures_do_not_overflow() -> None:
    assert Backoff(failures=100_000).wait_s() == Backoff().longest_s
