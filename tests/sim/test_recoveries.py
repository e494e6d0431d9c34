"""Tables that are dropped, lost, rebuilt, restored and made again, by verbs that break off."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.sim_recovery import live_by
from tests.support.sim_recovery_site import End
from tests.support.sim_run import run_some

# A killed process's coroutines are thrown away wherever they are; some would still say goodbye.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]

FEW, MORE = range(10), (*range(10, 28), 42, 54)
"""Together the latter meet all of `MET`."""
MANY, PART = 10_000, 500
MET = (
    "calls answered",
    "jobs committed",
    "rebuilds",
    "restores",
    "stores lost",
    "tables dropped, with files",
    "tables dropped, without files",
    "collectors that stood still before a deletion",
    *(f"verbs broken off: {end.value}" for end in End),
)
REGRESSIONS = {
    392: "a rebuild took in a file under a name that a collector was about to delete",
    950: "a check of ours that deleted a file whose add had an unknown outcome",
    1756: "a late deletion for a dropped table took the description of the next one",
    8101: "a check of ours that forgot rows of an archive when the table was made anew before",
}
"""Seed → what it found, in the code of its day, or finds without its mend."""


def lived(seeds: Sequence[int]) -> dict[str, int]:
    """Run seeds; return what happened."""
    seen, failed = run_some(seeds, 3, live_by)  # type: ignore[arg-type]  # a story has what is asked
    assert not failed, "\n\n".join(failed)
    return seen


def test_no_row_is_lost_doubled_or_back_when_recoveries_break_off() -> None:
    lived(FEW)


@pytest.mark.slow
def test_no_row_is_lost_in_more_recoveries() -> None:
    seen = lived(MORE)

    assert not [what for what in MET if not seen.get(what)], seen


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("first", range(28, MANY, PART))
def test_no_row_is_lost_in_many_more_recoveries(first: int) -> None:
    lived(range(first, min(first + PART, MANY)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", REGRESSIONS)
def test_recorded_seeds_of_recoveries_hold(seed: int) -> None:
    live_by(seed)
