"""Whole clusters with faults, one seed each. Replay one: `SIM_SEEDS=17 make sim`.

`SIM_SEEDS` takes seeds and ranges: `17`, `3,7,90`, `0-9999`. A seed that ever found a
fault is kept in `REGRESSIONS`, beside the unit test that was written for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.fast_and_slow import first_fast
from tests.support.sim_cluster import Cluster
from tests.support.sim_options import Options, draw_options
from tests.support.sim_run import LONG, run_all, run_some, seeds, simulate

# A killed process's coroutines are thrown away wherever they are; some would still say goodbye.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ROOT = Path(__file__).parents[2]
FEW, MORE = "0-11", "12-24,42,49,54,58"
"""Together the latter meet all of `USES`."""
MANY = f"25-41,43-48,50-53,55-57,59-{999 if LONG else 299}"
REGRESSIONS = {
    4: "after a fail-over the reservation of a commit that was forgotten stood for ever",
    51: "a fail-over forgot that a tablet was planned again: nothing planned it any more",
    113: "a part of a request was cancelled under a split: its done marker was lost",
    263: "a fail-over forgot who leads, and nothing could be released for silence",
    1912: "a refused commit of an attempt that was cancelled counted as a failure of its job",
    2046: "a fail-over forgot a pin: its reader lost a file",
    2168: "a check of ours that allowed a late release too little",
    3822: "a fail-over forgot that a table goes, and its drop took tablets of a live table",
    4849: "a fail-over forgot that a table was no longer paused",
    9478: "a fail-over forgot the end of a drop, which freed the name of a table that was there",
}
"""Seed → what it found, in the code of its day."""
STORM = Options(
    tablets=3,
    compactors=4,
    appenders=3,
    users=2,
    cancels=True,
    bounds=True,
    queue_count_max=2,
    rewrite_max_s=4.0,
    feed_s=3.0,
    lead_s=10.0,
    latency_max_s=0.3,
    lose=0.05,
    double=0.1,
    store_lost=0.03,
    store_late=0.03,
    store_tries=2,
    fails=0.2,
    compactor_dies=True,
    compactor_freezes=True,
    coordinator_dies=True,
    ghost=True,
    fail_over=True,
    operators=True,
)
GHOSTS = Options(
    compactors=4,
    slots=2,
    appenders=3,
    users=1,
    rewrite_max_s=4.0,
    feed_s=3.0,
    lead_s=10.0,
    ghost=True,
)
"""Two coordinators that want the same files again and again."""
BAD_LINKS = Options(
    compactors=4,
    slots=2,
    appenders=3,
    users=1,
    cancels=True,
    bounds=True,
    rewrite_max_s=1.0,
    lose=0.05,
    double=0.1,
    store_lost=0.2,
    store_tries=1,
    fails=0.1,
)
"""Nobody dies, but hardly anything gets through at once."""
SPREAD = Options(
    compactors=1,
    appenders=1,
    readers=0,
    spread=True,
    creators=5,
    busy_s=40.0,
    latency_max_s=0.5,
    store_lost=0.05,
    store_late=0.1,
    store_tries=2,
    coordinator_dies=True,
    ghost=True,
    fail_over=True,
)
"""A Redis Cluster whose nodes fail over one by one while tables come and go."""
USES = (
    "adds",
    "scans",
    "requests done",
    "requests cancelled",
    "requests failed",
    "selections done",
    "rows transformed",
    "reservations SYSTEM",
    "reservations USER",
    "splits",
    "merges",
    "drops",
    "EXEC late",
    "EXEC lost",
    "chaos: fail-over that forgot 1",
    "chaos: fail-over that forgot 2",
    "fail-overs of names",
    "fail-overs of one slot",
    "tables created",
    "tables dropped",
    "chaos: creator killed",
    "chaos: compactor killed",
    "chaos: compactor frozen",
    "chaos: coordinator killed",
    "chaos: second coordinator",
    "calls answered: add",
    "calls answered: append",
    "calls asked again",
    "calls refused: call-too-old",
    "names used again",
    "scans through gateways",
    "attempts that dropped dead rows",
    "attempts conflicted",
    "refused: LOADING",
    "refused: NOREPLICAS",
    "refused: OOM",
    "chaos: gateway killed",
    "chaos: gateway frozen",
)
"""What the seeds must have met, or they prove little."""


def promises_kept(every: Sequence[int]) -> Counter[str]:
    """Run seeds on all cores; fail with the story of the first that fails.

    Other tests use the cores where tests run in several workers: there no process is started.
    """
    in_worker = "PYTEST_XDIST_WORKER" in os.environ
    seen, failed = run_some(every, 1) if in_worker else run_all(every)
    assert not failed, f"{len(failed)} failed; replay one: SIM_SEEDS=… make sim\n{failed[0]}"
    assert seen["seeds"] == len(every)
    return seen


def test_clusters_keep_their_promises() -> None:
    promises_kept(seeds(os.environ.get("SIM_SEEDS", FEW)))


@pytest.mark.slow
@pytest.mark.skipif("SIM_SEEDS" in os.environ, reason="SIM_SEEDS names other seeds")
def test_more_clusters_meet_every_trouble() -> None:
    seen = promises_kept(seeds(MORE))

    assert not [what for what in USES if not seen[what]], seen


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif("SIM_SEEDS" in os.environ, reason="SIM_SEEDS names other seeds")
def test_many_more_clusters_keep_their_promises() -> None:
    promises_kept(seeds(MANY))


@pytest.mark.parametrize("seed", first_fast(4, list(REGRESSIONS), slow=4))
def test_recorded_seeds_of_clusters_hold(seed: int) -> None:
    # They were found before a store could be spread; those of spread ones are below.
    simulate(seed, replace(draw_options(seed), spread=False, creators=0))


@pytest.mark.parametrize(
    "seeds_of_levels",
    [
        range(7, 10),
        pytest.param(range(10, 40), marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_clusters_whose_files_move_keep_their_promises(seeds_of_levels: Sequence[int]) -> None:
    """Their planner is `leveled`: tags change at ends of attempts alone, and nothing is lost."""
    seen: Counter[str] = Counter()
    for seed in seeds_of_levels:
        # A selector that asks for larger files than the planner makes would never come to rest.
        seen += simulate(seed, replace(draw_options(seed), levels=True, selector="")).seen()

    assert seen["files moved"] > 10, seen


@pytest.mark.parametrize("seed", first_fast(2, range(4), slow=2))
def test_scans_find_nothing_where_nobody_died(seed: int) -> None:
    """A scan that heals hides leaks; `simulate` asserts that it had nothing to heal."""
    cluster = simulate(seed, BAD_LINKS)

    assert cluster.options.crash_free


@pytest.mark.parametrize("seed", first_fast(4, range(12), slow=4))
def test_names_and_tables_belong_together_though_their_nodes_fail_over_apart(seed: int) -> None:
    """`come_to_rest` asserts it: no table without a name, no name without a table."""
    seen = simulate(seed, SPREAD).seen()

    assert seen["tables created"] > 3, seen
    assert seen["tables dropped"], seen


def test_storms_reach_every_corner_of_the_core() -> None:
    """A simulation that never gets into trouble proves nothing."""
    seen: Counter[str] = Counter()
    for seed in range(5):
        seen.update(trouble(simulate(seed, STORM)))
    for seed in range(3):
        seen.update(trouble(simulate(seed, GHOSTS)))

    assert not [name for name in sorted(seen) if not seen[name]], seen


def trouble(cluster: Cluster) -> Counter[str]:
    """Return how often what went wrong in a run."""
    seen: Counter[str] = Counter()
    for coordinator in cluster.coordinators:
        if coordinator.parts is None:
            continue
        state = coordinator.cluster_state
        seen["orphaned"] += state.counters.orphaned
        seen["refused"] += state.counters.refused
        seen["cancelled"] += state.counters.cancelled
        seen["failed"] += state.counters.failed
        seen["evicted"] += sum(queue.counts.evicted for _, queue in state.queues)
    return seen


def test_every_fifth_seed_is_calm_and_the_others_are_not_all_alike() -> None:
    drawn = [draw_options(seed) for seed in range(100)]

    assert all(options.calm for options in drawn[::5] if not options.operators)
    assert len({str(options) for options in drawn}) > 90


def test_a_seed_tells_one_story_whatever_the_order_of_sets() -> None:
    """In two processes, because one process has one order."""
    stories = [story("1"), story("2")]

    assert stories[0] == stories[1]
    assert len(set(stories[0])) == 2


def story(hash_seed: str) -> list[str]:
    command = [sys.executable, "-m", "tests.support.sim_run", "--digest", "3", "18"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()
