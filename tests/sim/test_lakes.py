"""Tables over files that are there, from one seed each: written, read, swept, lost and rebuilt."""

from __future__ import annotations

import pytest

from tests.support.fast_and_slow import first_fast
from tests.support.sim_lake import End, live_by
from tests.support.sim_run import LONG, lived
from tests.support.sim_storage import NO_FAULTS

# A killed process's coroutines are thrown away wherever they are; some would still say goodbye.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]

FEW, MORE = range(3), (7, 16, 19, 21, 23, 24)
"""Together the latter meet all of `MET`, and each end of a verb."""
MANY = sorted({*range(3, 160 if LONG else 60)} - {*MORE})
MET = (
    "storage: failed, and was done",
    "storage: files not listed yet",
    "scans",
    "manifests read",
    "sweeps",
    "checks",
    "orphans given",
    "rebuilds",
    "attempts lost",
)
REGRESSIONS = {
    186: "an append that was given up twice came back with a rebuild",
    361: "a rebuild counted an output that its compactor was about to delete",
    389: "an append that was given up came back with a rebuild",
    422: "a check told of what a fail-over had undone while it looked",
}
"""Seed → what it found, in the code of its day, where storage does nothing wrong."""
OF_STORAGE = {
    1: "a storage that failed made files look damaged",
    13: "an append whose file could not be renamed was an error of ours",
    22: "a rebuild took a file for lost that was not listed yet",
    29: "a rebuild missed rows of files that were not listed yet",
    65: "files were quarantined for a storage that was silent",
}
"""The same where storage fails, lags, or lists late."""


def test_every_reader_sees_what_it_should_at_any_time() -> None:
    lived(FEW, live_by)


@pytest.mark.slow
def test_every_reader_sees_what_it_should_in_more_lakes() -> None:
    seen = lived(MORE, live_by)

    assert not [what for what in (*MET, *(end.value for end in End)) if not seen[what]], seen


@pytest.mark.slow
@pytest.mark.long
def test_every_promise_holds_in_many_more_lakes() -> None:
    lived(MANY, live_by)


@pytest.mark.parametrize("seed", first_fast(1, list(REGRESSIONS), slow=2))
def test_recorded_seeds_of_lakes_hold(seed: int) -> None:
    live_by(seed, NO_FAULTS)


@pytest.mark.parametrize("seed", first_fast(1, list(OF_STORAGE), slow=2))
def test_recorded_seeds_of_storage_faults_hold(seed: int) -> None:
    live_by(seed)
