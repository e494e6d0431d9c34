"""The operator's part of the stand-in: pods follow replicas, and only named pods are deleted."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubernetes.kuberay_operator import KubeRayOperator
from tests.support.kubernetes.ray_cluster import load_ray_cluster
from tests.support.kubernetes.resource_store import PODS, RAY_CLUSTERS, ResourceStore

MANIFEST = Path(__file__).parents[2] / "data" / "kuberay" / "raycluster.yaml"
SMALL = 1
"""The group's index in the manifest."""


class World:
    """A store, and an operator whose pods are numbered."""

    def __init__(self) -> None:
        self.store = ResourceStore("neve")
        self.store.create(RAY_CLUSTERS, load_ray_cluster(MANIFEST))
        numbers = count()
        self.operator = KubeRayOperator(self.store, "neve", lambda: str(next(numbers)))
        self.operator.reconcile()

    def set_small(self, *, replicas: int, leaving: tuple[str, ...] = ()) -> None:
        """Write what the autoscaler writes, and let the operator see it."""
        path = f"/spec/workerGroupSpecs/{SMALL}"
        strategy = {"workersToDelete": list(leaving)}
        operations = [
            {"op": "replace", "path": f"{path}/replicas", "value": replicas},
            {"op": "replace", "path": f"{path}/scaleStrategy", "value": strategy},
        ]
        self.store.patch(RAY_CLUSTERS, "neve", operations)
        self.operator.reconcile()

    def set_phase(self, pod: str, phase: str) -> None:
        self.store.update(PODS, pod, lambda found: found["status"].update(phase=phase))

    def small(self) -> list[str]:
        """Return the group's pods; those that are going have a minus."""
        pods = self.store.list(PODS, "ray.io/group=small")
        return [
            "-" * ("deletionTimestamp" in pod["metadata"]) + pod["metadata"]["name"] for pod in pods
        ]

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.store.get(RAY_CLUSTERS, "neve")["status"]
        return found


@pytest.fixture
def world() -> World:
    return World()


def names(*numbers: int) -> list[str]:
    return [f"neve-small-worker-{number}" for number in numbers]


def test_a_new_cluster_has_its_head_and_the_least_workers(world: World) -> None:
    pods = [pod["metadata"]["name"] for pod in world.store.list(PODS)]
    assert pods == ["neve-head-0", "neve-service-worker-1"]

    version = world.store.version
    world.operator.reconcile()
    assert world.store.version == version


def test_more_replicas_are_more_pods_up_to_the_most(world: World) -> None:
    world.set_small(replicas=2)
    assert world.small() == names(2, 3)

    world.set_small(replicas=9)
    assert world.small() == names(2, 3, 4, 5)
    assert world.status()["desiredWorkerReplicas"] == 5


def test_fewer_replicas_alone_delete_nothing(world: World) -> None:
    world.set_small(replicas=2)
    world.set_small(replicas=0)

    assert world.small() == names(2, 3)


def test_named_workers_are_deleted_and_not_replaced(world: World) -> None:
    world.set_small(replicas=2)
    world.set_small(replicas=1, leaving=("neve-small-worker-2", "neve-small-worker-gone"))
    assert world.small() == ["-neve-small-worker-2", "neve-small-worker-3"]

    world.store.remove(PODS, "neve-small-worker-2")
    world.operator.reconcile()
    assert world.small() == names(3)


def test_a_named_worker_makes_room_at_once(world: World) -> None:
    world.set_small(replicas=2)
    world.set_small(replicas=2, leaving=("neve-small-worker-2",))

    assert world.small() == ["-neve-small-worker-2", *names(3, 4)]


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_an_ended_pod_is_replaced_when_it_is_gone(world: World, phase: str) -> None:
    world.set_small(replicas=1)
    world.set_phase("neve-small-worker-2", phase)
    world.operator.reconcile()
    world.operator.reconcile()
    assert world.small() == ["-neve-small-worker-2"]

    world.store.remove(PODS, "neve-small-worker-2")
    world.operator.reconcile()
    assert world.small() == names(3)


def test_an_ended_head_is_replaced(world: World) -> None:
    world.set_phase("neve-head-0", "Failed")
    world.operator.reconcile()
    assert "deletionTimestamp" in world.store.get(PODS, "neve-head-0")["metadata"]

    world.store.remove(PODS, "neve-head-0")
    world.operator.reconcile()

    (head,) = world.store.list(PODS, "ray.io/node-type=head")
    assert head["metadata"]["name"] == "neve-head-2"


def test_the_status_counts_running_workers(world: World) -> None:
    assert world.status()["availableWorkerReplicas"] == 0
    world.set_phase("neve-service-worker-1", "Running")
    world.set_phase("neve-head-0", "Running")
    world.operator.reconcile()

    status = world.status()
    assert status["availableWorkerReplicas"] == 1
    assert (status["minWorkerReplicas"], status["maxWorkerReplicas"]) == (1, 7)
