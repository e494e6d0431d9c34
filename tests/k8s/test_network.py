"""Who may speak to whom: the network policies of an overlay, worked out for each pair of pods."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from tests.support.manifests import (
    OVERLAYS,
    Pod,
    Resource,
    matches,
    of_kind,
    pods_of,
    rendered,
    rendered_together,
)

ALL = "all"
RAY = ("headgroup", "service", "small", "large")
EVERYTHING_OF_RAY = {(sender, receiver): ALL for sender in RAY for receiver in RAY}
"""Ray's processes, and those of Spark inside it, choose their ports."""
CLIENTS_OF_STORE = (*RAY, "neve-serve")
FLOWS = {
    "production": EVERYTHING_OF_RAY
    | {("neve-serve", "headgroup"): "10001", ("headgroup", "ray-redis"): "6379"},
    "laptop": EVERYTHING_OF_RAY
    | {("neve-serve", "headgroup"): "10001", ("headgroup", "ray-redis"): "6379"}
    | {(sender, "neve-redis"): "6379" for sender in CLIENTS_OF_STORE},
}
FLOWS["production-sentinel"] = (
    FLOWS["production"]
    | {(each, "neve-redis"): "6379" for each in (*CLIENTS_OF_STORE, "neve-redis", "neve-sentinel")}
    | {(each, "neve-sentinel"): "26379" for each in (*CLIENTS_OF_STORE, "neve-sentinel")}
)
PRIVATE = {
    *("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8"),
    *("169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"),
}
OUTSIDE = {
    "production": {
        "headgroup": {"443", "6443", "6379", "6380"},
        "service": {"443", "6379", "6380"},
        "small": {"443", "6379", "6380"},
        "large": {"443", "6379", "6380"},
        "neve-serve": {"6379", "6380"},
        "ray-redis": set(),
    },
    "laptop": {
        "headgroup": {"443", "6443"},
        "service": {"443"},
        "small": {"443"},
        "large": {"443"},
        "neve-serve": set(),
        "ray-redis": set(),
        "neve-redis": set(),
    },
}
OUTSIDE["production-sentinel"] = {**OUTSIDE["laptop"], "neve-sentinel": set()}
"""Ports of addresses outside the namespace, DNS left out."""


def short(pod: Pod) -> str:
    return pod.labels.get("ray.io/group") or pod.owner.rpartition(" ")[2]


def rules(policies: list[Resource], pod: Pod, side: str) -> list[Resource]:
    """Return the rules that hold for a pod; a pod without any policy would be open to all."""
    kind = side.capitalize()
    own = [
        policy["spec"]
        for policy in policies
        if matches(policy["spec"]["podSelector"], pod.labels)
        and kind in policy["spec"]["policyTypes"]
    ]
    assert own, f"{pod.owner} has no policy for {side}"
    return [rule for spec in own for rule in spec.get(side, [])]


def ports_to(policies: list[Resource], pod: Pod, other: Pod, side: str) -> set[str]:
    """Return the ports that one side's rules allow between two pods."""
    allowed = set()
    for rule in rules(policies, pod, side):
        peers = rule.get("from" if side == "ingress" else "to", [])
        if any(admits(peer, other) for peer in peers):
            ports = [str(port["port"]) for port in rule.get("ports", [])]
            allowed |= set(ports) or {ALL}
    return allowed


def admits(peer: Resource, pod: Pod) -> bool:
    """Return whether a peer of a rule is such a pod; a block of addresses may hold any."""
    if "ipBlock" in peer:
        return True
    return "namespaceSelector" not in peer and matches(peer["podSelector"], pod.labels)


def common(some: set[str], others: set[str]) -> set[str]:
    """Return the ports in both sets, of which one may hold all."""
    if ALL in some:
        return others
    return some if ALL in others else some & others


def flows(resources: list[Resource]) -> dict[tuple[str, str], str]:
    """Return the ports on which one pod may reach another, if there are any."""
    policies, pods = list(of_kind(resources, "NetworkPolicy")), list(pods_of(resources))
    found = {}
    for sender in pods:
        for receiver in pods:
            sent = ports_to(policies, sender, receiver, "egress")
            ports = common(sent, ports_to(policies, receiver, sender, "ingress"))
            if ports:
                found[short(sender), short(receiver)] = ALL if ALL in ports else " ".join(ports)
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_reach_those_that_they_need_and_nobody_else(overlay: str) -> None:
    assert flows(rendered(overlay)) == FLOWS[overlay]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_reach_few_ports_outside(overlay: str) -> None:
    resources = rendered(overlay)
    policies = list(of_kind(resources, "NetworkPolicy"))
    outside = {
        short(pod): {
            str(port["port"])
            for rule in rules(policies, pod, "egress")
            if any("ipBlock" in peer for peer in rule["to"])
            for port in rule["ports"]
        }
        for pod in pods_of(resources)
    }

    assert outside == OUTSIDE[overlay]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_rule_opens_the_whole_internet_and_none_but_that_of_buckets_most_of_it(
    overlay: str,
) -> None:
    blocks = [
        (policy["metadata"]["name"], peer["ipBlock"])
        for policy in of_kind(rendered(overlay), "NetworkPolicy")
        for rule in policy["spec"].get("egress", [])
        for peer in rule.get("to", [])
        if "ipBlock" in peer
    ]
    wide = [
        (name, set(block.get("except", [])))
        for name, block in blocks
        if not ip_network(block["cidr"]).is_private
    ]

    assert wide == [("buckets", PRIVATE)]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_gateway_and_metrics_are_reached_from_other_namespaces(overlay: str) -> None:
    resources = rendered(overlay)
    entries = {
        (short(pod), str(port["port"]))
        for pod in pods_of(resources)
        for rule in rules(list(of_kind(resources, "NetworkPolicy")), pod, "ingress")
        if any("namespaceSelector" in peer or "ipBlock" in peer for peer in rule["from"])
        for port in rule["ports"]
    }

    metrics = {(group, "8080") for group in RAY}
    assert entries == ({("service", "8642"), *metrics} if overlay != "laptop" else set())


COLLECTOR = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "opentelemetry-collector"}},
}


def to_collector(resources: list[Resource]) -> dict[str, list[int]]:
    """Return who may send to a collector, and to which ports."""
    policies = list(of_kind(resources, "NetworkPolicy"))
    found = {
        short(pod): [
            port["port"]
            for rule in rules(policies, pod, "egress")
            if COLLECTOR in rule["to"]
            for port in rule["ports"]
        ]
        for pod in pods_of(resources)
    }
    return {pod: ports for pod, ports in found.items() if ports}


def test_traces_reach_a_collector_where_the_overlay_takes_the_way_to_it() -> None:
    # `trace.endpoint` of the settings is read by the coordinator and by compactors.
    workers = [each for each in RAY if each != "headgroup"]
    with_tracing = rendered_together("overlays/production", "tracing")
    assert to_collector(with_tracing) == {worker: [4318] for worker in workers}
    assert to_collector(rendered("production")) == {}
    assert flows(with_tracing) == FLOWS["production"]
