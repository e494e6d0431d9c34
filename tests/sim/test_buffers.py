"""Buffered rows in whole lives of a table: none lost, none doubled, none left by a request."""

from __future__ import annotations

import pytest

from tests.support.sim_buffers import lived
from tests.support.sim_run import LONG

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]

FEW, MORE, MANY = range(12), (*range(12, 60), 65), range(60, 1000 if LONG else 150)
"""The second together meet all of `MET`."""
MET = (
    "flushes",
    "deaths",
    "drops",
    "late rows",
    "repeated calls",
    "reads begun again",
    "split",
    "merge",
    "commit refused: resurface",
    "requests done",
    "requests given up",
    "pauses",
    "drops of the table",
    "stores that went back",
    "older states accepted",
)


def test_every_acknowledged_row_is_read_once() -> None:
    lived(FEW)


@pytest.mark.slow
def test_every_acknowledged_row_is_read_once_in_more_lives() -> None:
    seen = lived(MORE)

    assert not [what for what in MET if not seen[what]], seen


@pytest.mark.slow
@pytest.mark.long
def test_every_acknowledged_row_is_read_once_in_many_more_lives() -> None:
    lived(MANY)
