"""The overlays keep every policy, and every policy notices the fault that it is there for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import manifest_policies as policies
from tests.support.manifest_policies import POLICIES, Policy
from tests.support.manifests import OVERLAYS, Resource, group_of, name_of, one, rendered

Fault = Callable[[list[Resource]], object]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_keeps_a_policy(overlay: str, policy: Policy) -> None:
    assert list(policy(rendered(overlay))) == []


# ---------------------------------------------------------------------------------- Planted faults


def serve(resources: list[Resource]) -> Resource:
    """Return the pod of `neve serve`."""
    pod: Resource = one(resources, "Deployment", "neve-serve")["spec"]["template"]["spec"]
    return pod


def serve_container(resources: list[Resource]) -> Resource:
    container: Resource = serve(resources)["containers"][0]
    return container


def ray(resources: list[Resource], group: str = "small") -> Resource:
    """Return the pod of a group of the RayCluster."""
    pod: Resource = group_of(resources, group)["template"]["spec"]
    return pod


def ray_container(resources: list[Resource], group: str = "small") -> Resource:
    container: Resource = ray(resources, group)["containers"][0]
    return container


def spec(resources: list[Resource], kind: str, name: str) -> Resource:
    found: Resource = one(resources, kind, name)["spec"]
    return found


def without(resources: list[Resource], kind: str, name: str) -> None:
    resources.remove(one(resources, kind, name))


def constraint(resources: list[Resource], name: str) -> Resource:
    pod = spec(resources, "StatefulSet", name)["template"]["spec"]
    found: Resource = pod["topologySpreadConstraints"][0]
    return found


def in_settings(resources: list[Resource], old: str, new: str) -> None:
    data = one(resources, "ConfigMap", "redis-sentinel-settings")["data"]
    assert any(old in text for text in data.values())
    data.update({name: text.replace(old, new) for name, text in data.items()})


def added(resources: list[Resource], kind: str, name: str, **fields: object) -> None:
    metadata = {"name": name, "namespace": "neve"}
    resources.append({"kind": kind, "metadata": metadata, **fields})


TLS_GONE = {"hosts": ["other.example.com"], "secretName": "neve-tls"}
FAULTS: list[tuple[Policy, str, Fault]] = [
    (
        policies.runs_as_somebody,
        "Deployment neve-serve does not say that it is not root",
        lambda r: serve(r)["securityContext"].pop("runAsNonRoot"),
    ),
    (
        policies.runs_as_somebody,
        "group small: ray-worker runs as root",
        lambda r: ray_container(r)["securityContext"].update(runAsUser=0),
    ),
    (
        policies.has_no_privileges,
        "ray-worker may gain privileges",
        lambda r: ray_container(r)["securityContext"].pop("allowPrivilegeEscalation"),
    ),
    (
        policies.has_no_privileges,
        "serve is privileged",
        lambda r: serve_container(r)["securityContext"].update(privileged=True),
    ),
    (
        policies.has_no_privileges,
        "serve keeps capabilities",
        lambda r: serve_container(r)["securityContext"].update(capabilities={"add": ["NET_RAW"]}),
    ),
    (
        policies.has_no_privileges,
        "neve-serve has no seccomp profile",
        lambda r: serve(r)["securityContext"].pop("seccompProfile"),
    ),
    (
        policies.has_no_privileges,
        "shares a namespace with its node",
        lambda r: ray(r).update(hostNetwork=True),
    ),
    (
        policies.has_no_privileges,
        "mounts a folder of its node",
        lambda r: ray(r)["volumes"].append({"name": "node", "hostPath": {"path": "/"}}),
    ),
    (
        policies.has_no_privileges,
        "takes a port of its node",
        lambda r: serve_container(r)["ports"][0].update(hostPort=8643),
    ),
    (
        policies.has_no_privileges,
        "autoscaler may gain privileges",
        lambda r: spec(r, "RayCluster", "neve")["autoscalerOptions"].pop("securityContext"),
    ),
    (
        policies.writes_to_volumes_alone,
        "redis may write into its image",
        lambda r: spec(r, "StatefulSet", "ray-redis")["template"]["spec"]["containers"][0][
            "securityContext"
        ].pop("readOnlyRootFilesystem"),
    ),
    (
        policies.has_limits,
        "serve has no request and limit of memory",
        lambda r: serve_container(r)["resources"]["limits"].pop("memory"),
    ),
    (
        policies.has_limits,
        "ray-worker asks for",
        lambda r: ray_container(r)["resources"]["requests"].update(cpu="500m"),
    ),
    (
        policies.has_a_pinned_image,
        "image neve:latest has no version",
        lambda r: serve_container(r).update(image="neve:latest"),
    ),
    (
        policies.has_a_pinned_image,
        "image registry.example.com:5000/neve has no version",
        lambda r: ray_container(r).update(image="registry.example.com:5000/neve"),
    ),
    (
        policies.has_probes,
        "ray-worker has no livenessProbe",
        lambda r: ray_container(r).pop("livenessProbe"),
    ),
    (
        policies.asks_nothing_of_kubernetes,
        "gets a token for the API",
        lambda r: ray(r).pop("automountServiceAccountToken"),
    ),
    (
        policies.asks_nothing_of_kubernetes,
        "gets variables of services",
        lambda r: serve(r).pop("enableServiceLinks"),
    ),
    (
        policies.asks_nothing_of_kubernetes,
        "ClusterRole all: nothing of Névé needs a role",
        lambda r: added(r, "ClusterRole", "all"),
    ),
    (
        policies.leaves_in_order,
        "`ray stop` kills the jobs",
        lambda r: ray_container(r).update(
            lifecycle={"preStop": {"exec": {"command": ["/bin/sh", "-c", "ray stop"]}}}
        ),
    ),
    (
        policies.leaves_in_order,
        "is killed after 30 s, in the middle of its drain",
        lambda r: ray(r).pop("terminationGracePeriodSeconds"),
    ),
    (
        policies.leaves_in_order,
        "is killed after 660 s, in the middle of its drain",
        lambda r: ray_container(r).update(env=[]),
    ),
    (
        policies.keeps_secrets,
        "Secret neve-gateway is in the manifests",
        lambda r: added(r, "Secret", "neve-gateway", stringData={"token": "abc"}),
    ),
    (
        policies.keeps_secrets,
        "variable NEVE_GATEWAY_TOKEN has its value in the manifest",
        lambda r: serve_container(r)["env"].append({"name": "NEVE_GATEWAY_TOKEN", "value": "abc"}),
    ),
    (
        policies.keeps_secrets,
        "says '://:abc@'",
        lambda r: one(r, "ConfigMap", "neve-settings")["data"].update(
            {"neve.toml": '[store]\nurl = "redis://:abc@store:6379/0"\n'}
        ),
    ),
    (
        policies.keeps_secrets,
        "ConfigMap redis-settings says 'requirepass a'",
        lambda r: one(r, "ConfigMap", "redis-settings")["data"].update(
            {"redis.conf": "requirepass abc\n"}
        ),
    ),
    (
        policies.keeps_secrets,
        "says the password of Ray's Redis",
        lambda r: spec(r, "RayCluster", "neve")["gcsFaultToleranceOptions"].update(
            redisPassword={"value": "abc"}
        ),
    ),
    (
        policies.refers_to_what_exists,
        "wants ConfigMap redis-settings, which is not there",
        lambda r: without(r, "ConfigMap", "redis-settings"),
    ),
    (
        policies.refers_to_what_exists,
        "wants ServiceAccount neve-workers, which is not there",
        lambda r: without(r, "ServiceAccount", "neve-workers"),
    ),
    (
        policies.refers_to_what_exists,
        "Service neve-gateway is not in the namespace neve",
        lambda r: one(r, "Service", "neve-gateway")["metadata"].pop("namespace"),
    ),
    (
        policies.selects_pods,
        "Service neve-gateway selects no pod",
        lambda r: spec(r, "Service", "neve-gateway")["selector"].update({"ray.io/group": "svc"}),
    ),
    (
        policies.selects_pods,
        "PodDisruptionBudget neve-head selects no pod",
        lambda r: spec(r, "PodDisruptionBudget", "neve-head")["selector"]["matchLabels"].update(
            {"ray.io/cluster": "other"}
        ),
    ),
    (
        policies.selects_pods,
        "NetworkPolicy ray-client selects no pod",
        lambda r: spec(r, "NetworkPolicy", "ray-client")["ingress"][0]["from"][0].update(
            podSelector={"matchLabels": {"app.kubernetes.io/name": "serve"}}
        ),
    ),
    (
        policies.selects_pods,
        "Deployment neve-serve does not select its own pods",
        lambda r: spec(r, "Deployment", "neve-serve")["selector"]["matchLabels"].update(app="neve"),
    ),
    (
        policies.names_ports_that_exist,
        "Service neve-gateway leads to port http",
        lambda r: spec(r, "Service", "neve-gateway")["ports"][0].update(targetPort="http"),
    ),
    (
        policies.names_ports_that_exist,
        "NetworkPolicy ray-client leads to port 10002",
        lambda r: spec(r, "NetworkPolicy", "ray-client")["ingress"][0]["ports"][0].update(
            port=10002
        ),
    ),
    (
        policies.names_ports_that_exist,
        "NetworkPolicy serve leads to port 10002",
        lambda r: spec(r, "NetworkPolicy", "serve")["egress"][0]["ports"][0].update(port=10002),
    ),
    (
        policies.names_ports_that_exist,
        "PodMonitor neve-ray leads to port ray",
        lambda r: spec(r, "PodMonitor", "neve-ray")["podMetricsEndpoints"][0].update(port="ray"),
    ),
    (
        policies.names_ports_that_exist,
        "readinessProbe asks port ready",
        lambda r: serve_container(r)["readinessProbe"]["httpGet"].update(port="ready"),
    ),
    (
        policies.names_ports_that_exist,
        "Ingress neve-gateway leads to",
        lambda r: spec(r, "Service", "neve-gateway")["ports"][0].update(name="web"),
    ),
    (
        policies.is_guarded,
        "no NetworkPolicy denies",
        lambda r: without(r, "NetworkPolicy", "default-deny"),
    ),
    (
        policies.is_guarded,
        "Ingress neve-gateway has a host without TLS",
        lambda r: spec(r, "Ingress", "neve-gateway").update(tls=[TLS_GONE]),
    ),
    (
        policies.is_guarded,
        "Service neve-gateway is open to the outside",
        lambda r: spec(r, "Service", "neve-gateway").update(type="LoadBalancer"),
    ),
    (
        policies.survives_drains_of_nodes,
        "group headgroup has 0 budgets",
        lambda r: without(r, "PodDisruptionBudget", "neve-head"),
    ),
    (
        policies.survives_drains_of_nodes,
        "PodDisruptionBudget neve-service needs `minAvailable`",
        lambda r: spec(r, "PodDisruptionBudget", "neve-service").update(minAvailable="50%"),
    ),
    (
        policies.survives_drains_of_nodes,
        "StatefulSet neve-sentinel has 0 budgets",
        lambda r: without(r, "PodDisruptionBudget", "neve-sentinel"),
    ),
    (
        policies.fails_over,
        "StatefulSet neve-sentinel has 2 pods, expected an odd number of 3 or more",
        lambda r: spec(r, "StatefulSet", "neve-sentinel").update(replicas=2),
    ),
    (
        policies.fails_over,
        "StatefulSet neve-redis has 1 pod, expected a primary and 2 replicas",
        lambda r: spec(r, "StatefulSet", "neve-redis").update(replicas=1),
    ),
    (
        policies.fails_over,
        "1 of 3 Sentinels would decide, expected more than half",
        lambda r: in_settings(r, "monitor neve-store $FIRST_PRIMARY 2", "monitor neve-store a 1"),
    ),
    (
        policies.fails_over,
        "a primary without replicas takes changes",
        lambda r: in_settings(r, "min-replicas-to-write 1", "min-replicas-to-write 0"),
    ),
    (
        policies.fails_over,
        "StatefulSet neve-redis: two of its pods may be on one node",
        lambda r: constraint(r, "neve-redis").update(whenUnsatisfiable="ScheduleAnyway"),
    ),
    (
        policies.fails_over,
        "StatefulSet neve-sentinel forgets what it has learnt",
        lambda r: spec(r, "StatefulSet", "neve-sentinel").pop("volumeClaimTemplates"),
    ),
    (
        policies.fails_over,
        "Service neve-redis hides pods that are not ready",
        lambda r: spec(r, "Service", "neve-redis").pop("publishNotReadyAddresses"),
    ),
    (
        policies.fails_over,
        "neve-serve does not wait for a replica",
        lambda r: serve_container(r)["env"].pop(),
    ),
]


@pytest.mark.parametrize(("policy", "said", "fault"), FAULTS, ids=[said for _, said, _ in FAULTS])
def test_a_planted_fault_is_refused(policy: Policy, said: str, fault: Fault) -> None:
    resources = rendered("production-sentinel")
    fault(resources)

    assert any(said in found for found in policy(resources)), list(policy(resources))


def test_every_policy_has_a_fault_that_it_refuses() -> None:
    assert {policy for policy, _, _ in FAULTS} == set(POLICIES)


def test_the_laptop_has_a_store_and_production_has_none() -> None:
    stores = {
        overlay: [name_of(r) for r in rendered(overlay) if name_of(r).endswith("neve-redis")]
        for overlay in OVERLAYS
    }

    assert "StatefulSet neve-redis" in stores["laptop"]
    assert stores["production"] == ["ServiceAccount neve-redis"]
    assert "StatefulSet neve-redis" in stores["production-sentinel"]
