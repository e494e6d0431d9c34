"""Clusters whose store goes back in time: the last copy of an acknowledged row is never deleted."""

from __future__ import annotations

import pytest

from tests.support.sim_rollback import go_back
from tests.support.sim_run import LONG, lived

# A killed process's coroutines are thrown away wherever they are; some would still say goodbye.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

FEW, MORE, MANY = range(8), range(8, 18), range(18, 500 if LONG else 150)
REGRESSIONS = {
    27: "who looked before the store went back counted it up to the number of its location",
    51: "a store that went back was counted up, and its location told the lower number",
}
"""Seed → what it found, in the code of its day."""
STOOD_STILL = {
    50: "outputs were deleted while a compactor stood still, and it committed them",
    128: "so it was when it stood still between a look for them and the end of its commit",
}
"""Seed → what it found, in stories that wait for names."""
MET = ("stores that went back", "tables found behind", "tables accepted", "attempts committed")


def test_no_last_copy_is_deleted_when_the_store_goes_back() -> None:
    lived(FEW, go_back)


@pytest.mark.slow
def test_no_last_copy_is_deleted_in_more() -> None:
    seen = lived(MORE, go_back)

    assert not [what for what in MET if seen[what] < len(MORE) / 2], seen


@pytest.mark.slow
@pytest.mark.long
def test_no_last_copy_is_deleted_in_many_more() -> None:
    lived(MANY, go_back)


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_recorded_seeds_of_rollbacks_hold(seed: int) -> None:
    go_back(seed)


@pytest.mark.parametrize("seed", STOOD_STILL)
def test_outputs_that_were_deleted_are_not_committed(seed: int) -> None:
    go_back(seed, waits_for_names=True)
