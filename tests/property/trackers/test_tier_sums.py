"""What holds of the seed's sums for every tablet."""

from __future__ import annotations

from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.plugins.trackers import TierSums

SIZES = st.integers(1, 10**13)


@given(
    sizes=st.lists(SIZES, max_size=40),
    read=st.lists(st.floats(0, 1.5), max_size=40),
    written=st.lists(st.integers(0, 10**12), max_size=5),
)
@settings(max_examples=100, deadline=None, print_blob=True)
def test_the_sums_are_the_formula(sizes: list[int], read: list[float], written: list[int]) -> None:
    """The terms one by one: E log4(T / S), and W log4(T / W), never below 0 together."""
    sums = TierSums(4.0)
    for number, size in enumerate(sizes):
        sums.add(f"f{number}", size)
    done = {
        f"f{number}": int(share * sizes[number]) for number, share in enumerate(read[: len(sizes)])
    }
    total = sum(sizes)
    left = [size - min(size, done.get(f"f{number}", 0)) for number, size in enumerate(sizes)]
    terms = [each * log(total / size, 4) for each, size in zip(left, sizes, strict=True)]
    terms += [size * log(total / size, 4) for size in written if size and total]
    expected = max(0.0, sum(terms)) if sum(left) + sum(written) > 0 and total else 0.0
    most = max([total, *written, 1])
    assert sums.backlog_bytes(done, written) == pytest.approx(expected, rel=1e-9, abs=1e-12 * most)


@given(
    steps=st.lists(st.tuples(st.integers(0, 200), st.one_of(st.none(), SIZES)), max_size=3000),
)
@settings(max_examples=40, deadline=None, print_blob=True)
def test_files_that_come_and_go_leave_no_trace(steps: list[tuple[int, int | None]]) -> None:
    sums, held = TierSums(4.0), dict[str, int]()
    for number, size in steps:
        path = f"f{number}"
        if size is None:
            held.pop(path, None)
            sums.remove(path)
        else:
            held[path] = size
            sums.add(path, size)
    fresh = TierSums(4.0)
    for path, size in held.items():
        fresh.add(path, size)
    assert sums.total_bytes == fresh.total_bytes == sum(held.values())
    assert sums.backlog_bytes({}, ()) == pytest.approx(fresh.backlog_bytes({}, ()), rel=1e-9)
