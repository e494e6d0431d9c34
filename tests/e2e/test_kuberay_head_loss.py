"""A cluster under KubeRay's autoscaler loses its head, and goes on with another."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from neve.local.machine import find_redis_server
from tests.support.kubernetes.cluster import KubeRayCluster
from tests.support.kubernetes.plain_actors import PlainActors

pytestmark = [pytest.mark.slow, pytest.mark.long]

MANIFEST = Path(__file__).parents[1] / "data" / "kuberay" / "raycluster.yaml"
REDIS_PORT = 7000
"""In the cluster's private network."""
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 2}


def test_a_new_head_knows_the_actors_and_the_autoscaler_goes_on(tmp_path: Path) -> None:
    redis = [str(find_redis_server(os.environ).program), "--port", str(REDIS_PORT)]
    with KubeRayCluster.start(
        MANIFEST,
        folder=tmp_path,
        gcs_redis=f"127.0.0.1:{REDIS_PORT}",
        services=[[*redis, "--dir", str(tmp_path)]],
        environ=TOKEN,
    ) as cluster:
        with PlainActors.run_in(cluster) as actors:
            actors.start("neve_group_small", ["old"])
            before = actors.ask(["old"])

        (lost,) = cluster.pods("headgroup")
        killed_s = time.monotonic()
        cluster.kill_pod(lost.name)
        cluster.wait_for(lambda: names(cluster).isdisjoint({lost.name}), "its end")
        cluster.wait_for(cluster.head_listens, "another head")
        listened_s = time.monotonic()

        with PlainActors.run_in(cluster) as actors:
            # The actor never stopped: its pod waited for the new head.
            assert actors.ask(["old"]) == before
            answered_s = time.monotonic()
            actors.start("neve_group_small", ["new"])
            assert actors.ask(["new"])["new"] != before["old"]
        # It ends with its head, and under load once more before the new head answers it. The
        # actor above got its pod from the one that stayed.
        assert cluster.autoscaler_starts() >= 2
        print(f"head killed → another listens: {listened_s - killed_s:.1f} s")
        print(f"head killed → a new driver has its answer: {answered_s - killed_s:.1f} s")


def names(cluster: KubeRayCluster) -> set[str]:
    return {pod.name for pod in cluster.pods("headgroup")}
