"""Many examples of one property: the first few in every run, the others where there is time.

`make check` leaves out what is slow, `make test` what is long.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def first_fast(count: int, every: Sequence[object], slow: int | None = None) -> list[object]:
    """Return examples for `parametrize`: the first `count` as they are, the others as slow ones.

    Those after the first `slow` are for `make long`.
    """
    marks = [pytest.mark.slow], [pytest.mark.slow, pytest.mark.long]
    return [
        value if at < count else pytest.param(value, marks=marks[slow is not None and at >= slow])
        for at, value in enumerate(every)
    ]
