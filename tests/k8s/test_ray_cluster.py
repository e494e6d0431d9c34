"""The RayCluster offers what the settings make coordinator, gateway and compactors ask of Ray.

Ray's own code reads the groups, as its autoscaler does in the head's pod.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields, replace
from typing import Any

import pytest
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _generate_available_node_types_from_ray_cr_spec as node_types_of,
)

from common.compactor_needs import COMPACTOR_BYTES, node_task_memory
from common.settings import AUTO, CompactorSettings, GroupSettings
from common.units import parse_duration_s, parse_size_bytes
from compactor.actor import HAND_BACK_S, NODE_CHECK_INTERVAL_S
from compactor.spark.application import executor_bytes
from compactor.spark.driver_protocol import DriverSettings, driver_settings
from tests.support.manifests import (
    OVERLAYS,
    Resource,
    group_of,
    of_kind,
    one,
    pod_of_group,
    ray_pods,
    rendered,
)

GROUPS = ("small", "large")
CASES = [(overlay, group) for overlay in OVERLAYS for group in GROUPS]
RAY_NODE_BYTES = 512 * 1024**2
"""A raylet with its agents."""
COORDINATOR_BYTES = 1024**3
"""The coordinator with queues that are full."""
BESIDE_GATEWAY_BYTES = 1024**3
"""What a gateway at its limit needs in its container besides: docs/operations.md."""


def toml(overlay: str) -> dict[str, Any]:
    """Return the settings file of an overlay as it says them."""
    settings = one(rendered(overlay), "ConfigMap", "neve-settings")
    return tomllib.loads(settings["data"]["neve.toml"])


def compactor_of(overlay: str, group: str) -> DriverSettings:
    """Return what a group's compactors are started with on a node of their group."""
    known = {entry.name for entry in fields(GroupSettings)} - {"compactors"}
    said = {name: value for name, value in toml(overlay)["groups"][group].items() if name in known}
    settings = GroupSettings(**said).applied_to(CompactorSettings())
    if settings.task_memory == AUTO:
        node = node_of(overlay, group)["resources"]
        memory = node_task_memory(settings, node, limit_bytes(overlay, group), alone=True)
        settings = replace(settings, task_memory=memory.size)
    return driver_settings(settings, name="any")


def cluster(overlay: str) -> Resource:
    (found,) = of_kind(rendered(overlay), "RayCluster")
    return found


def node_of(overlay: str, group: str) -> dict[str, Any]:
    """Return what a node of a group has, as Ray's autoscaler reads it."""
    return node_types_of(cluster(overlay)["spec"])[group]


def limit_bytes(overlay: str, group: str) -> int:
    pod = pod_of_group(rendered(overlay), group)
    limit: str = pod.main["resources"]["limits"]["memory"]
    return parse_size_bytes(limit.removesuffix("i"), "limit")


def store_bytes(overlay: str, group: str) -> int:
    """Return the size of a node's object store: shared memory, which the container pays for."""
    return int(group_of(rendered(overlay), group)["rayStartParams"]["object-store-memory"])


# ---------------------------------------------------------------------------------- One compactor


@pytest.mark.parametrize(("overlay", "group"), CASES)
def test_a_node_has_the_cpus_that_executors_ask_for(overlay: str, group: str) -> None:
    asked = compactor_of(overlay, group)

    assert node_of(overlay, group)["resources"]["CPU"] == asked.executors * asked.executor_cores


@pytest.mark.parametrize(("overlay", "group"), CASES)
def test_a_node_has_the_memory_that_executors_ask_for(overlay: str, group: str) -> None:
    asked = compactor_of(overlay, group)

    assert node_of(overlay, group)["resources"]["memory"] == limit_bytes(overlay, group)
    assert limit_bytes(overlay, group) >= asked.executors * executor_bytes(asked)


@pytest.mark.parametrize(("overlay", "group"), CASES)
def test_a_container_has_the_memory_of_all_its_processes(overlay: str, group: str) -> None:
    asked = compactor_of(overlay, group)
    driver = parse_size_bytes(asked.driver_memory, "driver_memory")
    wanted = (
        asked.executors * executor_bytes(asked)
        + (driver + COMPACTOR_BYTES)
        + (RAY_NODE_BYTES + store_bytes(overlay, group))
    )

    assert limit_bytes(overlay, group) >= wanted
    # A pod that is much larger than its compactor costs money for nothing.
    assert limit_bytes(overlay, group) <= 1.25 * wanted


@pytest.mark.parametrize(("overlay", "group"), CASES)
def test_a_pod_has_place_for_one_compactor(overlay: str, group: str) -> None:
    own = f"neve_group_{group}"
    custom = node_of(overlay, group)["resources"].keys() - {"CPU", "memory"}

    assert custom == {own}
    assert node_of(overlay, group)["resources"][own] == 1
    assert toml(overlay)["groups"][group]["resource"] == own


@pytest.mark.parametrize(("overlay", "group"), CASES)
def test_a_group_of_pods_is_as_large_as_its_compaction_group(overlay: str, group: str) -> None:
    node, compactors = node_of(overlay, group), toml(overlay)["groups"][group]["compactors"]

    assert (node["min_workers"], node["max_workers"]) == (compactors["min"], compactors["max"])


@pytest.mark.parametrize(("overlay", "group"), CASES)
def test_a_drain_is_longer_than_a_compactor_waits_for_its_jobs(overlay: str, group: str) -> None:
    pod = pod_of_group(rendered(overlay), group)
    drain_s = float(pod.environment()["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]["value"])
    wait_s = parse_duration_s(toml(overlay)["compactor"]["drain_timeout_s"], "drain_timeout_s")

    assert drain_s >= NODE_CHECK_INTERVAL_S + wait_s + HAND_BACK_S
    assert pod.spec["terminationGracePeriodSeconds"] > drain_s


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_compaction_group_has_pods_and_every_group_of_pods_compactors(overlay: str) -> None:
    workers = {group["groupName"] for group in cluster(overlay)["spec"]["workerGroupSpecs"]}

    assert workers == {"service", *toml(overlay)["groups"]} == {"service", *GROUPS}
    named = {entry["group"] for entry in toml(overlay)["services"]["default"]["groups"]}
    assert named == set(GROUPS)


# ----------------------------------------------------------------------- Head, coordinator, gateway


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_one_node_has_place_for_coordinator_and_gateway(overlay: str) -> None:
    resource = toml(overlay)["cluster"]["service_resource"]
    with_it = {
        name: node
        for name, node in node_types_of(cluster(overlay)["spec"]).items()
        if resource in node["resources"]
    }

    assert with_it.keys() == {"service"}
    assert (with_it["service"]["min_workers"], with_it["service"]["max_workers"]) == (1, 1)
    assert with_it["service"]["resources"][resource] == 1


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_service_pod_holds_a_gateway_and_readers_at_their_limits(overlay: str) -> None:
    settings = toml(overlay)
    gateway = parse_size_bytes(settings["gateway"]["memory_max"], "memory_max")
    reader = parse_size_bytes(settings["readers"]["memory_bytes"], "memory_bytes")
    in_both = 2 * settings["readers"]["count"] * reader

    assert limit_bytes(overlay, "service") >= gateway + in_both + COORDINATOR_BYTES
    assert limit_bytes(overlay, "service") >= gateway + BESIDE_GATEWAY_BYTES


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_that_asks_for_a_cpu_runs_beside_the_head(overlay: str) -> None:
    head = node_types_of(cluster(overlay)["spec"])["headgroup"]

    assert head["resources"]["CPU"] == 0


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_lets_ray_start_a_pod_only_once(overlay: str) -> None:
    """Autoscaler v2 replaces a pod that has died; KubeRay refuses any other restart policy."""
    for pod in ray_pods(cluster(overlay)):
        assert pod.spec.get("restartPolicy", "Never") == "Never"
        assert not {"RAY_enable_autoscaler_v2", "RAY_REDIS_ADDRESS"} & pod.environment().keys()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ray_asks_for_a_token_and_serve_has_the_same(overlay: str) -> None:
    spec, serve = cluster(overlay)["spec"], one(rendered(overlay), "Deployment", "neve-serve")
    (container,) = serve["spec"]["template"]["spec"]["containers"]
    token = next(entry for entry in container["env"] if entry["name"] == "RAY_AUTH_TOKEN")

    assert spec["authOptions"] == {"mode": "token", "secretName": "neve-ray"}
    # KubeRay reads the token under this key.
    secret = {"name": "neve-ray", "key": "auth_token"}
    assert token["valueFrom"]["secretKeyRef"] == secret


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_serve_finds_the_head_that_kuberay_makes(overlay: str) -> None:
    serve = one(rendered(overlay), "Deployment", "neve-serve")
    (container,) = serve["spec"]["template"]["spec"]["containers"]
    address = next(entry["value"] for entry in container["env"] if entry["name"] == "RAY_ADDRESS")
    head = pod_of_group(rendered(overlay), "headgroup")

    name = cluster(overlay)["metadata"]["name"]
    assert address == f"ray://{name}-head-svc:{head.ports()['client']}"
    # KubeRay calls the service after the cluster only if nobody named it otherwise.
    assert "headService" not in cluster(overlay)["spec"]["headGroupSpec"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_rays_redis_is_not_the_store_of_the_tables(overlay: str) -> None:
    options = cluster(overlay)["spec"]["gcsFaultToleranceOptions"]
    service = one(rendered(overlay), "Service", "ray-redis")

    address = f"redis://ray-redis:{service['spec']['ports'][0]['port']}"
    assert options["redisAddress"] == address
    assert re.fullmatch(r"ray-redis", options["redisPassword"]["valueFrom"]["secretKeyRef"]["name"])
