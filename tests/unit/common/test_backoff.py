"""Waits double and are bounded."""

from common.primitives import Backoff


def test_waits_double_up_to_the_bound() -> None:
    backoff = Backoff(base_s=1.0, max_s=5.0)
    assert [backoff.wait_s(failures) for failures in range(5)] == [0.0, 1.0, 2.0, 4.0, 5.0]


def test_very_many_failures_do_not_overflow() -> None:
    assert Backoff().wait_s(100_000) == Backoff().max_s
