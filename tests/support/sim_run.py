"""Run one seed from the beginning to rest; a failure tells the seed, the options and the story."""

from __future__ import annotations

import sys

from tests.support.sim_chaos import Chaos
from tests.support.sim_cluster import Cluster
from tests.support.sim_options import Options, draw_options


def simulate(seed: int, options: Options | None = None) -> Cluster:
    """Return a cluster that has lived, suffered and come to rest.

    Raises:
        AssertionError: An invariant broke, or it did not come to rest; with the last
            lines of the story.
    """
    cluster = Cluster(seed, options or draw_options(seed))
    chaos = Chaos(cluster)
    try:
        cluster.live()
        chaos.start()
        cluster.tasks.run_until(cluster.tasks.now_s() + cluster.options.busy_s)
        chaos.stop()
        cluster.come_to_rest()
        _check_counts(cluster)
    except AssertionError as error:
        story = "\n".join(cluster.tasks.story)
        message = f"seed {seed} ({cluster.options}): {error}\n{story}"
        raise AssertionError(message) from error
    return cluster


def _check_counts(cluster: Cluster) -> None:
    """Assert what a healing scan would hide: nothing is orphaned where nobody crashed."""
    orphaned = sum(each.state._books.counters.orphaned for each in cluster.coordinators)
    assert not (cluster.options.crash_free and orphaned), f"{orphaned} reservations orphaned"
    lost = sum(each.released_for_silence for each in cluster.coordinators)
    assert not (cluster.options.calm and lost), f"{lost} attempts lost in a calm run"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(simulate(int(argument)).tasks.digest)
