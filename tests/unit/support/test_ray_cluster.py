"""What the stand-in derives from a RayCluster, beside what Ray's autoscaler derives from it."""

from __future__ import annotations

import json
import shlex
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)

from tests.support.kubernetes.ray_cluster import (
    HEAD_GROUP,
    ManifestError,
    build_pod,
    desired_replicas,
    load_ray_cluster,
    ray_start_command,
)

MANIFEST = Path(__file__).parents[2] / "data" / "kuberay" / "raycluster.yaml"


@pytest.fixture
def cluster() -> dict[str, Any]:
    return load_ray_cluster(MANIFEST)


def flags(group: dict[str, Any]) -> dict[str, str]:
    """Return the flags of a group's command, as a shell hands them to Ray."""
    words = shlex.split(ray_start_command(group))
    assert words[:2] == ["ray", "start"]
    pairs = (word.removeprefix("--").partition("=") for word in words[2:])
    return {key: value for key, _, value in pairs}


def resources(group: dict[str, Any]) -> dict[str, float]:
    """Return the resources that a group's raylet will offer."""
    given = flags(group)
    offered = {"CPU": float(given["num-cpus"]), **json.loads(given.get("resources", "{}"))}
    if "memory" in given:
        offered["memory"] = float(given["memory"])
    return offered


FORMS = {
    "parameters": {
        "rayStartParams": {
            "num-cpus": "3",
            "memory": "1000000",
            "resources": r'"{\"neve_group_small\": 2, \"other\": 1}"',
        }
    },
    "limits": {"limits": {"cpu": "1500m", "memory": "2Gi"}},
    "requests": {"requests": {"cpu": "2"}},
    "group": {"resources": {"CPU": "2", "memory": "1Gi", "neve_group_small": "1"}},
}


@pytest.mark.parametrize("form", FORMS)
def test_raylets_offer_what_the_autoscaler_expects(cluster: dict[str, Any], form: str) -> None:
    parts = deepcopy(FORMS[form])
    group = cluster["spec"]["workerGroupSpecs"][1]
    group["rayStartParams"] = {}
    container = group["template"]["spec"]["containers"][0]
    container["resources"] = {key: parts.pop(key) for key in ("limits", "requests") if key in parts}
    group |= parts

    expected = _derive_autoscaling_config_from_ray_cr(
        cluster | {"metadata": {"name": "neve", "namespace": "neve"}}
    )
    assert resources(group) == expected["available_node_types"]["small"]["resources"]


def test_raylets_of_the_manifest_offer_what_the_autoscaler_expects(cluster: dict[str, Any]) -> None:
    expected = _derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]
    groups = cluster["spec"]["workerGroupSpecs"]

    assert resources(cluster["spec"]["headGroupSpec"]) == expected[HEAD_GROUP]["resources"]
    assert {group["groupName"] for group in groups} == {"service", "small", "large"}
    for group in groups:
        assert resources(group) == expected[group["groupName"]]["resources"]


def test_flags_without_a_value_and_labels(cluster: dict[str, Any]) -> None:
    group = cluster["spec"]["workerGroupSpecs"][0]
    group["labels"] = {"tier": "one", "disk": "fast"}
    group["rayStartParams"] |= {"verbose": "true", "no-redirect-output": "false"}
    group["rayStartParams"] |= {"log-color": "false"}
    given = flags(group)

    assert given["labels"] == "disk=fast,tier=one"
    assert given["verbose"] == given["block"] == ""
    assert "no-redirect-output" not in given
    assert given["log-color"] == "false"
    assert given["address"] == "$RAY_ADDRESS"


def test_the_head_runs_without_a_monitor_of_its_own(cluster: dict[str, Any]) -> None:
    given = flags(cluster["spec"]["headGroupSpec"])

    assert given["num-cpus"] == "0"
    assert {"head", "no-monitor", "block"} <= given.keys()
    assert "address" not in given


def test_a_pod_names_its_cluster_and_group(cluster: dict[str, Any]) -> None:
    group = cluster["spec"]["workerGroupSpecs"][1]
    container = group["template"]["spec"]["containers"][0]
    secret = {"valueFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}}
    container["env"] = [{"name": "OWN", "value": "1"}, {"name": "SECRET", **secret}]
    pod = build_pod(cluster, group, "neve-small-worker-1")

    labels = pod["metadata"]["labels"]
    assert labels["ray.io/cluster"] == "neve"
    assert labels["ray.io/group"] == "small"
    assert labels["ray.io/node-type"] == "worker"
    variables = {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}
    assert variables["RAY_CLOUD_INSTANCE_ID"] == "neve-small-worker-1"
    assert variables["RAY_NODE_TYPE_NAME"] == "small"
    assert variables["OWN"] == "1"
    assert "SECRET" not in variables
    # The group itself is as it was: its next pod starts from it.
    assert container["env"][0] == {"name": "OWN", "value": "1"}
    assert "command" not in container


@pytest.mark.parametrize(
    ("changes", "pods"),
    [
        ({"replicas": 0}, 1),
        ({"replicas": 2}, 2),
        ({"replicas": 9}, 3),
        ({"replicas": 2, "numOfHosts": 2}, 4),
        ({"replicas": 2, "suspend": True}, 0),
    ],
)
def test_replicas_stay_within_their_bounds(changes: dict[str, Any], pods: int) -> None:
    assert desired_replicas({"minReplicas": 1, "maxReplicas": 3, **changes}) == pods


def test_idle_timeouts_can_be_replaced() -> None:
    cluster = load_ray_cluster(MANIFEST, idle_timeout_s=7)
    derived = _derive_autoscaling_config_from_ray_cr(cluster)

    assert derived["idle_timeout_minutes"] == pytest.approx(7 / 60)
    assert derived["available_node_types"]["small"]["idle_timeout_s"] == 7


def test_a_cluster_with_a_redis_survives_its_head(tmp_path: Path) -> None:
    document = yaml.safe_load(MANIFEST.read_text())
    document["spec"]["gcsFaultToleranceOptions"] = {"redisAddress": "redis.lake:6379"}
    path = tmp_path / "rendered.yaml"
    path.write_text(yaml.safe_dump(document))

    # The manifest's Redis is not on this machine.
    assert not any("redis" in name.lower() for name in variables_of(load_ray_cluster(path), "head"))

    cluster = load_ray_cluster(path, gcs_redis="127.0.0.1:7000")
    head, worker = variables_of(cluster, "head"), variables_of(cluster, "worker")
    assert head["RAY_REDIS_ADDRESS"] == "127.0.0.1:7000"
    assert head["RAY_external_storage_namespace"] == "one"
    assert worker["RAY_gcs_rpc_server_reconnect_timeout_s"] == "600"
    assert "RAY_REDIS_ADDRESS" not in worker


def variables_of(cluster: dict[str, Any], kind: str) -> dict[str, str]:
    """Return the variables of a pod."""
    cluster["metadata"]["uid"] = "one"
    spec = cluster["spec"]
    group = spec["headGroupSpec"] if kind == "head" else spec["workerGroupSpecs"][0]
    (container,) = build_pod(cluster, group, "pod")["spec"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


def spoil(document: dict[str, Any], what: str) -> list[dict[str, Any]]:
    match what:
        case "absent":
            return []
        case "two":
            return [document, document]
        case "old version":
            document["apiVersion"] = "ray.io/v1alpha1"
        case "no autoscaling":
            document["spec"]["enableInTreeAutoscaling"] = False
        case "autoscaler v1":
            document["spec"]["autoscalerOptions"]["version"] = "v1"
    return [document]


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ("absent", "one RayCluster"),
        ("two", "one RayCluster"),
        ("old version", "one RayCluster of ray.io/v1"),
        ("no autoscaling", "enableInTreeAutoscaling"),
        ("autoscaler v1", "not v2"),
    ],
)
def test_other_manifests_are_refused(tmp_path: Path, what: str, complaint: str) -> None:
    others = [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "redis"}}]
    documents = spoil(yaml.safe_load(MANIFEST.read_text()), what)
    path = tmp_path / "rendered.yaml"
    path.write_text(yaml.safe_dump_all([*others, *documents]))

    with pytest.raises(ManifestError, match=complaint):
        load_ray_cluster(path)
