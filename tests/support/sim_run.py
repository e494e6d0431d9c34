"""Run seeds from the beginning to rest; a failure tells the seed, the options and the story.

python -m tests.support.sim_run [--digest] 17 0-9999
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from types import ModuleType

from rich.console import Console
from rich.progress import Progress

from common.metadata import bulk_reads, file_pin
from coordinator import store_watch
from coordinator.storage import garbage_collector
from tests.support.sim_chaos import Chaos
from tests.support.sim_cluster import Cluster
from tests.support.sim_options import Options, draw_options

LONG = "SIM_LONG" in os.environ
"""Whether there is time for many more seeds than a run of all tests has."""
FAILURES_MAX = 10
SEEDS_AT_ONCE = 20
"""Seeds that a worker runs before it tells."""

Setting = tuple[ModuleType | type, str, object]
"""A constant of the production code: module or class, name, and the value in a simulation."""
Live = Callable[[int], Cluster]
"""Runs a seed, and returns the cluster that has lived; fails with an `AssertionError`."""


def simulate(seed: int, options: Options | None = None) -> Cluster:
    """Return a cluster that has lived, suffered and come to rest.

    Raises:
        AssertionError: An invariant broke, or it did not come to rest; with the last
            lines of the story.
    """
    with as_simulated(options or draw_options(seed)) as drawn:
        cluster = Cluster(seed, drawn)
        with told_from(cluster, seed):
            chaos = Chaos(cluster)
            cluster.live()
            chaos.start()
            cluster.world.run_until(cluster.world.now_s() + cluster.options.busy_s)
            chaos.stop()
            cluster.come_to_rest()
            _check_counts(cluster)
    return cluster


@contextlib.contextmanager
def told_from(cluster: Cluster, seed: int) -> Iterator[None]:
    """Live a cluster's life; a failure tells seed, options and story, and the world ends.

    Raises:
        AssertionError: Whatever went wrong in it.
    """
    try:
        yield
    except Exception as error:
        cause = _first_cause(error)
        message = f"seed {seed} ({cluster.drawn}): {type(cause).__name__}: {cause}"
        raise AssertionError(f"{message}\n{cluster.world.story()}") from cause
    finally:
        cluster.world.end()


@contextlib.contextmanager
def as_simulated(options: Options) -> Iterator[Options]:
    """Set constants of the production code that a simulation wants otherwise."""
    wanted: list[Setting] = [
        (store_watch, "LEAD_CHECK_S", options.lead_s),
        (garbage_collector, "LOOK_LASTS_S", options.look_lasts_s),
        (file_pin, "LEASE_S", 20.0),
        (file_pin, "RENEW_S", 3.0),
        (bulk_reads, "TABLETS_PER_MULTI", 1),
    ]
    collects = gc.isenabled()
    with set_to(wanted):
        try:
            gc.disable()
            yield options
        finally:
            if collects:
                gc.enable()


@contextlib.contextmanager
def set_to(wanted: Sequence[Setting]) -> Iterator[None]:
    """Give constants of the production code other values for a while."""
    before = [(module, name, getattr(module, name)) for module, name, _ in wanted]
    try:
        for module, name, value in wanted:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _first_cause(error: BaseException) -> BaseException:
    """Return what a group of errors began with."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _check_counts(cluster: Cluster) -> None:
    """Assert what a healing scan would hide: nothing is orphaned where nobody crashed."""
    states = [
        coordinator.cluster_state
        for coordinator in cluster.coordinators
        if coordinator.parts is not None
    ]
    orphaned = sum(state.counters.orphaned for state in states)
    assert not (cluster.options.crash_free and orphaned), f"{orphaned} reservations orphaned"
    lost = cluster.truth.seen["attempts lost"]
    assert not (cluster.options.calm and lost), f"{lost} attempts lost in a calm run"


# Many seeds.


def seeds(text: str) -> list[int]:
    """Return the seeds of a text such as `3,7,100-120`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def lived(some: Iterable[int], live: Live = simulate) -> Counter[str]:
    """Run seeds one after the other; return what happened.

    Raises:
        AssertionError: One failed.
    """
    seen: Counter[str] = Counter()
    for seed in some:
        seen += live(seed).seen()
    return seen


def run_some(
    some: Sequence[int], failures_max: int, live: Live = simulate
) -> tuple[Counter[str], list[str]]:
    """Run seeds one after the other; return what happened, and what failed."""
    seen: Counter[str] = Counter()
    failed: list[str] = []
    for seed in some:
        try:
            seen.update(live(seed).seen())
        except AssertionError as error:
            failed.append(str(error))
        seen["seeds"] += 1
        gc.collect()
        if len(failed) >= failures_max:
            break
    return seen, failed


def run_all(
    every: Sequence[int],
    failures_max: int = 1,
    told: Callable[[int], None] = lambda _: None,
    live: Live = simulate,
) -> tuple[Counter[str], list[str]]:
    """Run seeds on all cores; stop early when enough have failed.

    Args:
        every: The seeds.
        failures_max: How many failures are enough.
        told: Hears, now and then, how many more seeds are done.
        live: Runs one.
    """
    cores = len(os.sched_getaffinity(0))
    size = min(SEEDS_AT_ONCE, max(1, len(every) // (4 * cores)))
    parts = [every[first : first + size] for first in range(0, len(every), size)]
    seen: Counter[str] = Counter()
    failed: list[str] = []
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(run_some, part, failures_max, live) for part in parts]
        for part in as_completed(running):
            done, wrong = part.result()
            seen.update(done)
            failed += wrong
            told(done["seeds"])
            if len(failed) >= failures_max:
                pool.shutdown(wait=True, cancel_futures=True)
                break
    return seen, sorted(failed)


def main(arguments: Sequence[str], live: Live = simulate) -> int:
    """Run seeds and print what happened; return 1 if one failed."""
    every = [seed for text in arguments if text != "--digest" for seed in seeds(text)]
    if "--digest" in arguments:
        for seed in every:
            print(live(seed).world.digest)
        return 0
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("seeds", total=len(every))
        told = partial(bar.advance, task)
        seen, failed = run_all(every, FAILURES_MAX, told, live)
    for name, count in sorted(seen.items()):
        print(f"{count:10d} {name}")
    for text in failed:
        print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
