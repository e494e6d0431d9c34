"""Create and delete pods until they match the RayCluster, as the KubeRay operator does.

The rules are those of `reconcilePods` in `ray-operator/controllers/ray/raycluster_controller.go`
of KubeRay 1.7. With an autoscaler, the operator never chooses which pod has to go: it deletes
the pods of `workersToDelete` and those that have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.support.kubernetes.ray_cluster import HEAD_GROUP, build_pod, desired_replicas
from tests.support.kubernetes.resource_store import (
    PODS,
    RAY_CLUSTERS,
    NotFoundError,
    Resource,
    ResourceStore,
)

ENDED = ("Failed", "Succeeded")


class KubeRayOperator:
    """Reconciles one RayCluster."""

    def __init__(self, store: ResourceStore, name: str, suffix: Callable[[], str]) -> None:
        self._store = store
        self._name = name
        self._suffix = suffix
        """Makes the end of a new pod's name."""

    def reconcile(self) -> None:
        """Take one step towards what the RayCluster says, and write its status."""
        cluster = self._store.get(RAY_CLUSTERS, self._name)
        self._reconcile_head(cluster)
        for group in cluster["spec"]["workerGroupSpecs"]:
            self._reconcile_group(cluster, group)
        self._store.update(RAY_CLUSTERS, self._name, self._write_status)

    def _reconcile_head(self, cluster: Resource) -> None:
        pods = self._pods_of(HEAD_GROUP)
        if not pods:
            name = f"{self._name}-head-{self._suffix()}"
            self._store.create(PODS, build_pod(cluster, cluster["spec"]["headGroupSpec"], name))
        self._delete_ended(pods)

    def _reconcile_group(self, cluster: Resource, group: Mapping[str, Any]) -> None:
        name = group["groupName"]
        pods = self._pods_of(name)
        self._delete_ended(pods)
        leaving = set(group["scaleStrategy"].get("workersToDelete") or ())
        for pod_name in sorted(leaving):
            self._delete_if_there(pod_name)
        # A pod that has ended counts until it is gone, so that its replacement comes after it.
        staying = [pod for pod in pods if pod["metadata"]["name"] not in leaving]
        for _ in range(desired_replicas(group) - len(staying)):
            pod_name = f"{self._name}-{name}-worker-{self._suffix()}"
            self._store.create(PODS, build_pod(cluster, group, pod_name))

    def _delete_ended(self, pods: list[Resource]) -> None:
        for pod in pods:
            if pod["status"]["phase"] in ENDED:
                self._delete_if_there(pod["metadata"]["name"])

    def _delete_if_there(self, pod_name: str) -> None:
        try:
            self._store.delete(PODS, pod_name)
        except NotFoundError:
            # The list of workers to delete stays until the autoscaler clears it.
            return

    def _pods_of(self, group: str) -> list[Resource]:
        return self._store.list(PODS, f"ray.io/cluster={self._name},ray.io/group={group}")

    def _write_status(self, cluster: Resource) -> None:
        groups = cluster["spec"]["workerGroupSpecs"]
        workers = self._store.list(PODS, f"ray.io/cluster={self._name},ray.io/group!={HEAD_GROUP}")
        phases = [pod["status"]["phase"] for pod in workers]
        cluster["status"] = {
            "desiredWorkerReplicas": sum(map(desired_replicas, groups)),
            "availableWorkerReplicas": phases.count("Running"),
            "readyWorkerReplicas": phases.count("Running"),
            "minWorkerReplicas": sum(group["minReplicas"] for group in groups),
            "maxWorkerReplicas": sum(group["maxReplicas"] for group in groups),
        }
