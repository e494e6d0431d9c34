"""No example is lost between fast and slow tests."""

from __future__ import annotations

import pytest

from tests.support.fast_and_slow import first_fast


@pytest.mark.parametrize("count", [0, 1, 3, 9])
def test_every_example_is_there_once_and_the_first_are_fast(count: int) -> None:
    every = list("abc")
    found = first_fast(count, every)
    fast = [each for each in found if isinstance(each, str)]
    slow = [each for each in found if not isinstance(each, str)]

    assert fast == every[:count]
    assert [each.values[0] for each in slow] == every[count:]  # type: ignore[attr-defined]  # of pytest
    assert all(mark.name == "slow" for each in slow for mark in each.marks)  # type: ignore[attr-defined]  # of pytest
