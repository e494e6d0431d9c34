"""Pressure of tablets in a whole simulated cluster: there while work waits, exact at rest."""

from __future__ import annotations

import pytest

from coordinator.core.control import garbage_bytes
from tests.support.sim_cluster import Cluster
from tests.support.sim_options import Options
from tests.support.sim_run import as_simulated, told_from

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

OPTIONS = Options(tablets=3, compactors=1, slots=1, readers=0, busy_s=60.0, coordinator_dies=True)


@pytest.mark.parametrize("seed", [1, 2])
def test_files_overlap_until_a_cluster_is_at_rest(seed: int) -> None:
    with as_simulated(OPTIONS) as options:
        cluster = Cluster(seed, options)
        with told_from(cluster, seed):
            cluster.live()
            seen = [deepest_files(cluster) for _ in range(240)]
            cluster.come_to_rest()
            pressures = cluster.coordinator.cluster_state.pressures
            pressures.check()
            views = [
                view
                for table in cluster.tables
                for view in cluster.truth.tablets(table.id).values()
            ]
            files = [file for view in views for file in view.files.values()]

    assert max(seen) > 2, "as many as a ratio of 3 merges"
    assert pressures.deepest_files == 0
    stored = sum(file.size_bytes for file in files)
    assert pressures.garbage_fraction == sum(map(garbage_bytes, files)) / stored


def deepest_files(cluster: Cluster) -> int:
    """Let a quarter of a second pass, and return what the coordinator tells then."""
    cluster.world.run_until(cluster.world.now_s() + 0.25)
    leader = cluster.coordinator
    return leader.cluster_state.pressures.deepest_files if leader.parts else 0
