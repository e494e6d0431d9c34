"""KubeRay's own autoscaler adds and removes pods for what actors ask of Ray.

`ray kuberay-autoscaler` runs as Ray ships it, against a stand-in for Kubernetes whose pods are
raylets on this machine. Run with `-s` to see how long each step took; docs/benchmarks.md has
figures.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.kubernetes.cluster import KubeRayCluster
from tests.support.kubernetes.plain_actors import PlainActors

pytestmark = [pytest.mark.slow, pytest.mark.long]

MANIFEST = Path(__file__).parents[1] / "data" / "kuberay" / "raycluster.yaml"
IDLE_TIMEOUT_S = 10
DRAIN_VARIABLE = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
SMALL, LARGE = "neve_group_small", "neve_group_large"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeRayCluster]:
    began = time.monotonic()
    folder = tmp_path_factory.mktemp("cluster")
    manifest = folder / "raycluster.yaml"
    manifest.write_text(with_last_words(MANIFEST.read_text()))
    with KubeRayCluster.start(manifest, folder=folder, idle_timeout_s=IDLE_TIMEOUT_S) as cluster:
        show("start → the head listens", began, time.monotonic())
        yield cluster


def with_last_words(text: str) -> str:
    """Let pods of one group say something before they end, and those of another take too long."""
    manifest = yaml.safe_load(text)
    groups = {group["groupName"]: group for group in manifest["spec"]["workerGroupSpecs"]}
    for name, command in {"small": "echo last words", "large": "sleep 300; echo slept"}.items():
        hook = {"preStop": {"exec": {"command": ["sh", "-c", command]}}}
        pod = groups[name]["template"]["spec"]
        pod["containers"][0]["lifecycle"] = hook
        pod["terminationGracePeriodSeconds"] = {"small": 30, "large": 1}[name]
        # Ray waits as long as Kubernetes' whole grace for a node's actors to go, by itself.
        pod["containers"][0]["env"] = [{"name": DRAIN_VARIABLE, "value": "5"}]
    return str(yaml.safe_dump(manifest))


@pytest.fixture(scope="module")
def actors(cluster: KubeRayCluster) -> Iterator[PlainActors]:
    with PlainActors.run_in(cluster) as actors:
        yield actors


def test_pods_come_for_pending_actors_and_go_when_idle(
    cluster: KubeRayCluster, actors: PlainActors
) -> None:
    names = ["one", "two", "three"]
    assert cluster.pods("small") == []

    actors.start(SMALL, names)
    asked_s = time.monotonic()
    placed = actors.ask(names)
    answered_s = time.monotonic()
    pods = {pod.name for pod in cluster.pods("small")}
    assert set(placed.values()) == pods
    assert len(pods) == 3
    assert cluster.replicas("small") == 3

    killed_s = time.monotonic()
    actors.kill(names)
    wait_for_none(cluster, "small")
    assert cluster.replicas("small") == 0
    # A group is never smaller than its minimum, however idle it is.
    assert [pod.state for pod in cluster.pods("service")] == ["Running"]
    for pod in pods:
        assert states(cluster, pod) == ["Running", "Terminating", "Gone"]
        assert "last words" in cluster.pod_log(pod)
    assert cluster.autoscaler_starts() == 1

    show("3 actors pending → first pod runs", asked_s, first(cluster, pods, "Running"))
    show("3 actors pending → all answer", asked_s, answered_s)
    show("actors killed → first pod told to end", killed_s, first(cluster, pods, "Terminating"))
    show("actors killed → last pod gone", killed_s, last(cluster, pods, "Gone"))


def test_an_actor_of_a_lost_pod_answers_from_another(
    cluster: KubeRayCluster, actors: PlainActors
) -> None:
    actors.start(SMALL, ["restartable"])
    before = actors.ask(["restartable"])["restartable"]

    killed_s = time.monotonic()
    cluster.kill_pod(before)
    cluster.wait_for(lambda: before not in {pod.name for pod in cluster.pods()}, "its end")
    after = actors.ask(["restartable"])["restartable"]
    answered_s = time.monotonic()

    assert after != before
    # Nobody asked this pod to end.
    assert states(cluster, before) == ["Running", "Failed", "Gone"]
    assert "last words" not in cluster.pod_log(before)
    # There may be one more: a replacement that was idle until Ray saw the death.
    assert after in {pod.name for pod in cluster.pods("small")}

    deleted_s = time.monotonic()
    cluster.delete_pod(after)
    cluster.wait_for(lambda: after not in {pod.name for pod in cluster.pods()}, "its end")
    assert "last words" in cluster.pod_log(after)
    assert actors.ask(["restartable"])["restartable"] not in {before, after}
    moved_s = time.monotonic()

    show("pod killed → another pod runs", killed_s, first(cluster, {after}, "Running"))
    show("pod killed → its actor answers", killed_s, answered_s)
    show("pod deleted → gone", deleted_s, first(cluster, {after}, "Gone"))
    show("pod deleted → its actor answers", deleted_s, moved_s)
    actors.kill(["restartable"])
    wait_for_none(cluster, "small")


def test_a_group_that_cannot_start_is_visible_and_stops_no_other(
    cluster: KubeRayCluster, actors: PlainActors
) -> None:
    cluster.break_group("large", "image neve:0.1.0 not found")
    cluster.slow_group("small", 5)
    actors.start(LARGE, ["in-large"])
    actors.start(SMALL, ["in-small"])

    small = actors.ask(["in-small"])["in-small"]
    assert states(cluster, small) == ["ContainerCreating", "Running"]
    cluster.wait_for(lambda: bool(cluster.pods("large")), "a pod of the broken group")
    (broken,) = cluster.pods("large")
    assert (broken.state, broken.message) == ("ImagePullBackOff", "image neve:0.1.0 not found")

    cluster.mend_group("large")
    assert actors.ask(["in-large"]) == {"in-large": broken.name}
    actors.kill(["in-large", "in-small"])
    wait_for_none(cluster, "large")
    wait_for_none(cluster, "small")
    # It was killed when its grace was over.
    assert states(cluster, broken.name)[-2:] == ["Terminating", "Gone"]
    assert "slept" not in cluster.pod_log(broken.name)


def wait_for_none(cluster: KubeRayCluster, group: str) -> None:
    cluster.wait_for(lambda: not cluster.pods(group), f"no pod of {group}")


def states(cluster: KubeRayCluster, pod: str) -> list[str]:
    """Return the states that a pod had, in order."""
    return [change.state for change in cluster.changes() if change.pod == pod]


def first(cluster: KubeRayCluster, pods: set[str], state: str) -> float:
    return min(moments(cluster, pods, state))


def last(cluster: KubeRayCluster, pods: set[str], state: str) -> float:
    return max(moments(cluster, pods, state))


def moments(cluster: KubeRayCluster, pods: set[str], state: str) -> list[float]:
    changes = [change for change in cluster.changes() if change.pod in pods]
    return [change.at_s for change in changes if change.state == state]


def show(what: str, began_s: float, ended_s: float) -> None:
    print(f"{what}: {ended_s - began_s:.1f} s")
