"""Many examples of one property: the first few in every run, the others where there is time.

`make check` leaves out what is slow. `make test` runs all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def first_fast(count: int, every: Sequence[object]) -> list[object]:
    """Return examples for `parametrize`: the first `count` as they are, the others as slow ones."""
    slow = (pytest.param(each, marks=pytest.mark.slow) for each in every[count:])
    return [*every[:count], *slow]
