"""Ids and clocks: fresh, derived, and carrying their time."""

import pytest

from common.primitives import call_time_s, digest
from common.runtime import RandomIds, SystemClock, call_id
from tests.support.predictable import CountedIds, ManualClock

pytestmark = pytest.mark.unit


def test_random_ids_differ_and_carry_their_prefix() -> None:
    ids = RandomIds()
    drawn = {ids.next("att") for _ in range(1000)}
    assert len(drawn) == 1000
    assert all(each.startswith("att-") for each in drawn)


def test_counted_ids_of_two_scopes_never_meet() -> None:
    one, two = CountedIds("a"), CountedIds("b")
    assert one.next("x") != two.next("x") != one.next("x")


def test_a_call_id_carries_its_time() -> None:
    clock = ManualClock(1_700_000_000.25)
    assert call_time_s(call_id(clock)) == pytest.approx(1_700_000_000.25)


@pytest.mark.parametrize("text", ["", "abc", "0" * 32, "g" * 12 + "7" + "0" * 19])
def test_a_text_that_is_no_call_id_has_no_time(text: str) -> None:
    assert call_time_s(text) is None


def test_digests_tell_sequences_apart_that_join_to_the_same_text() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"]) != digest(["abc"])
    assert digest(["ab", b"c"]) == digest(["ab", "c"])


def test_a_manual_clock_moves_when_told() -> None:
    clock = ManualClock(5.0)
    clock.advance(2.5)
    assert clock.now_s() == 7.5


def test_the_system_clock_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.now_s() for _ in range(100)]
    assert readings == sorted(readings)
