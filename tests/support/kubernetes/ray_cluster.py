"""Read a RayCluster, and derive from it what the KubeRay operator derives.

The rules are those of `ray-operator/controllers/ray/common/pod.go` of KubeRay 1.7: which
parameters `ray start` gets, which variables a Ray container has, how pods are labelled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ray.autoscaler._private.kuberay.utils import parse_quantity

from tests.support.kubernetes.resource_store import Resource

API_VERSION = "ray.io/v1"
HEAD_GROUP = "headgroup"
GCS_PORT = 6379
"""Ray's own service, at KubeRay's port; it lies inside the machine's private network."""
TRUE_OR_FALSE = ("true", "false")
OPTIONS_WITH_BOOLEAN_VALUES = ("log-color", "include-dashboard", "include-log-monitor")
STANDARD_RESOURCES = {"CPU": "num-cpus", "GPU": "num-gpus", "memory": "memory"}
GCS_RECONNECT_MAX_S = 600
"""How long a worker waits for a lost head, where the head can come back."""
GRACE_S = 30
"""Kubernetes' own `terminationGracePeriodSeconds`."""


class ManifestError(ValueError):
    """The file holds no RayCluster that the stand-in can run."""


def load_ray_cluster(
    path: Path, *, idle_timeout_s: float | None = None, gcs_redis: str | None = None
) -> Resource:
    """Return the one RayCluster among the documents of a YAML file.

    Args:
        path: A manifest, or a whole rendered overlay.
        idle_timeout_s: Replaces the idle timeouts of the cluster and of its groups.
        gcs_redis: Address of the Redis that keeps what the head knows, `host:port`. It replaces
            the manifest's, which lies in a cluster; None is without fault tolerance.

    Raises:
        ManifestError: There is none, or more than one, or it has no autoscaler of version 2.
    """
    documents = [found for found in yaml.safe_load_all(path.read_text()) if found]
    clusters = [found for found in documents if found.get("kind") == "RayCluster"]
    if len(clusters) != 1 or clusters[0].get("apiVersion") != API_VERSION:
        raise ManifestError(f"{path} must hold one RayCluster of {API_VERSION}")
    cluster: Resource = clusters[0]
    spec = cluster["spec"]
    if not spec.get("enableInTreeAutoscaling"):
        raise ManifestError(f"{path}: spec.enableInTreeAutoscaling is not true")
    options = spec.setdefault("autoscalerOptions", {})
    if options.get("version") != "v2":
        raise ManifestError(f"{path}: spec.autoscalerOptions.version is not v2")
    for group in spec["workerGroupSpecs"]:
        # The API server fills in what the schema of the resource has as defaults. The
        # autoscaler replaces `scaleStrategy`, which JSON patch allows only where it exists.
        group.setdefault("replicas", 0)
        group.setdefault("numOfHosts", 1)
        group.setdefault("scaleStrategy", {})
    spec.pop("gcsFaultToleranceOptions", None)
    if gcs_redis is not None:
        spec["gcsFaultToleranceOptions"] = {"redisAddress": gcs_redis}
    if idle_timeout_s is not None:
        for holder in (options, *spec["workerGroupSpecs"]):
            holder["idleTimeoutSeconds"] = idle_timeout_s
    return cluster


def desired_replicas(group: Mapping[str, Any]) -> int:
    """Return how many pods a worker group should have: `replicas` within its bounds."""
    if group.get("suspend"):
        return 0
    within = min(max(group["replicas"], group["minReplicas"]), group["maxReplicas"])
    return int(within * max(1, group.get("numOfHosts", 1)))


def build_pod(cluster: Resource, group: Mapping[str, Any], name: str) -> Resource:
    """Return a pod of a group; the head's group has no name."""
    group_name = group.get("groupName", HEAD_GROUP)
    template = group["template"]
    containers = [dict(container) for container in template["spec"]["containers"]]
    command = ray_start_command(group)
    variables = {
        **literals(containers[0].get("env", ())),
        "RAY_CLUSTER_NAME": cluster["metadata"]["name"],
        "RAY_CLUSTER_NAMESPACE": cluster["metadata"]["namespace"],
        # Autoscaler v2 knows a node by these two.
        "RAY_CLOUD_INSTANCE_ID": name,
        "RAY_NODE_TYPE_NAME": group_name,
        "KUBERAY_GEN_RAY_START_CMD": command,
        "RAY_PORT": str(GCS_PORT),
        "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
    }
    if group_name == HEAD_GROUP:
        variables["RAY_enable_autoscaler_v2"] = "1"
    variables |= _fault_tolerance(cluster, is_head=group_name == HEAD_GROUP)
    containers[0] |= {
        "command": ["/bin/bash", "-c", "--"],
        # The shell gives way to Ray, so that a signal to the pod reaches Ray.
        "args": [f"exec {command}"],
        "env": [{"name": key, "value": value} for key, value in variables.items()],
    }
    kind = "head" if group_name == HEAD_GROUP else "worker"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                **template.get("metadata", {}).get("labels", {}),
                "ray.io/is-ray-node": "yes",
                "ray.io/cluster": cluster["metadata"]["name"],
                "ray.io/node-type": kind,
                "ray.io/group": group_name,
                "ray.io/identifier": f"{cluster['metadata']['name']}-{kind}",
                "app.kubernetes.io/created-by": "kuberay-operator",
            },
        },
        "spec": {
            "terminationGracePeriodSeconds": GRACE_S,
            **template["spec"],
            "containers": containers,
            # Autoscaler v2 wants a dead node to come back as another pod.
            "restartPolicy": "Never",
        },
        "status": {"phase": "Pending"},
    }


def literals(variables: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the variables with values; the stand-in has no secrets to read others from."""
    return {entry["name"]: entry["value"] for entry in variables if "value" in entry}


def ray_start_command(group: Mapping[str, Any]) -> str:
    """Return a group's `ray start`, for a shell; `$RAY_ADDRESS` names the head."""
    is_head = "groupName" not in group
    parameters = ray_start_parameters(group)
    flags = " ".join(_flag(key, value) for key, value in sorted(parameters.items()) if value)
    return f"ray start {'--head ' if is_head else ''}{flags}"


def ray_start_parameters(group: Mapping[str, Any]) -> dict[str, str]:
    """Return `rayStartParams` with what KubeRay adds from resources, labels and limits."""
    parameters = {key: str(value) for key, value in group.get("rayStartParams", {}).items()}
    resources = group.get("resources", {})
    for standard, option in STANDARD_RESOURCES.items():
        if standard in resources:
            parameters[option] = _whole(resources[standard])
    own = {key: value for key, value in resources.items() if key not in STANDARD_RESOURCES}
    if own:
        amounts = {key: float(parse_quantity(value)) for key, value in own.items()}
        parameters["resources"] = f"'{json.dumps(amounts)}'"
    if group.get("labels"):
        parameters["labels"] = ",".join(f"{k}={v}" for k, v in sorted(group["labels"].items()))
    container = group["template"]["spec"]["containers"][0].get("resources", {})
    limits, requests = container.get("limits", {}), container.get("requests", {})
    if "cpu" in {**requests, **limits}:
        parameters.setdefault("num-cpus", _whole({**requests, **limits}["cpu"]))
    if "memory" in limits:
        parameters.setdefault("memory", _whole(limits["memory"]))
    parameters["block"] = "true"
    if "groupName" in group:
        parameters.setdefault("address", "$RAY_ADDRESS")
    else:
        parameters |= {"no-monitor": "true", "port": str(GCS_PORT)}
    return parameters


def _fault_tolerance(cluster: Resource, *, is_head: bool) -> dict[str, str]:
    """Return the variables with which a cluster survives the loss of its head."""
    options = cluster["spec"].get("gcsFaultToleranceOptions")
    if not options:
        return {}
    if not is_head:
        return {"RAY_gcs_rpc_server_reconnect_timeout_s": str(GCS_RECONNECT_MAX_S)}
    return {
        "RAY_REDIS_ADDRESS": options["redisAddress"],
        "RAY_external_storage_namespace": cluster["metadata"]["uid"],
    }


def _flag(option: str, value: str) -> str:
    if value.lower() in TRUE_OR_FALSE and option not in OPTIONS_WITH_BOOLEAN_VALUES:
        return f"--{option}" if value.lower() == "true" else ""
    return f"--{option}={value}"


def _whole(quantity: str | float) -> str:
    """Return a quantity such as `500m` or `2Gi`, rounded up."""
    exact = parse_quantity(quantity)
    return str(int(exact) + (exact != int(exact)))
