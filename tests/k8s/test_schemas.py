"""Every resource of every overlay is one that Kubernetes and its operators would take."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from jsonschema import Draft202012Validator

from tests.support.manifests import (
    OVERLAYS,
    ROOT,
    Resource,
    name_of,
    of_kind,
    one,
    rendered,
    rendered_text,
)

KUBERNETES = ("1.30", "1.37")
"""The oldest and the newest release that the manifests are for."""
DATA = ROOT / "tests" / "data" / "kuberay"


# Of Prometheus' operator, what the manifests use of its schema, and nothing else: a field that is
# written wrongly is one that is not listed.
def closed(required: str = "", **properties: Any) -> dict[str, Any]:
    """Return the schema of an object without further properties."""
    return {
        "type": "object",
        "required": required.split(),
        "additionalProperties": False,
        "properties": properties,
    }


TEXT, TEXTS = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
MAP = {"type": "object", "additionalProperties": TEXT}
SPAN = {"type": "string", "pattern": r"^\d+(ms|s|m|h|d)$"}
AUTHORIZATION = closed(
    "credentials", type=TEXT, credentials=closed("name key", name=TEXT, key=TEXT)
)
TLS = closed(
    "ca serverName",
    ca=closed("secret", secret=closed("name key", name=TEXT, key=TEXT)),
    serverName=TEXT,
)
ENDPOINT = closed(
    "port",
    port=TEXT,
    path=TEXT,
    interval=SPAN,
    authorization=AUTHORIZATION,
    scheme={"enum": ["http", "https"]},
    tlsConfig=TLS,
)
ALERT = {"alert": TEXT, "expr": TEXT, "for": SPAN, "labels": MAP, "annotations": MAP}
RULES = closed("name rules", name=TEXT, rules={"type": "array", "items": closed("expr", **ALERT)})
OPERATORS = {
    "PodMonitor": closed(
        "selector podMetricsEndpoints",
        selector=closed("matchLabels", matchLabels=MAP),
        podTargetLabels=TEXTS,
        podMetricsEndpoints={"type": "array", "items": ENDPOINT},
    ),
    "PrometheusRule": closed("groups", groups={"type": "array", "items": RULES}),
}


@cache
def ray_cluster_validator() -> Draft202012Validator:
    """Return KubeRay's schema, closed: the API would drop unknown fields without a word."""
    schema: dict[str, Any] = json.loads((DATA / "rayclusters.v1.schema.json").read_text("utf-8"))
    close(schema["properties"]["spec"])
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def close(schema: dict[str, Any]) -> None:
    """Refuse unknown properties, in place; texts for numbers are what Kubernetes says they are."""
    if schema.pop("x-kubernetes-int-or-string", False):
        schema["type"] = ["integer", "string"]
        schema.pop("anyOf", None)
    keeps = schema.get("x-kubernetes-preserve-unknown-fields", False)
    if "properties" in schema and "additionalProperties" not in schema and not keeps:
        schema["additionalProperties"] = False
    inside = [*schema.get("properties", {}).values(), schema.get("items")]
    for each in [*inside, schema.get("additionalProperties")]:
        if isinstance(each, dict):
            close(each)


def check(resource: Resource, release: str) -> None:
    """Raise what a resource's own schema has against it."""
    match resource["kind"]:
        case "RayCluster":
            assert resource["apiVersion"] == "ray.io/v1"
            ray_cluster_validator().validate(resource)
        case "PodMonitor" | "PrometheusRule" as kind:
            assert resource["apiVersion"] == "monitoring.coreos.com/v1"
            jsonschema.validate(resource["spec"], OPERATORS[kind])
        case _:
            kubernetes_validate.validate(resource, release, strict=True)


@pytest.mark.parametrize("release", KUBERNETES)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_resource_is_valid(overlay: str, release: str) -> None:
    resources = rendered(overlay)

    assert len(resources) > 15
    for resource in resources:
        check(resource, release)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_resource_is_there_twice(overlay: str) -> None:
    names = [name_of(each) for each in rendered(overlay)]

    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_templates_of_ray_are_pods_of_kubernetes(overlay: str) -> None:
    """KubeRay's schema lags behind; its templates must be pods for the API, too."""
    (cluster,) = of_kind(rendered(overlay), "RayCluster")
    spec = cluster["spec"]

    for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}}
        kubernetes_validate.validate(pod | {"spec": group["template"]["spec"]}, "1.37", strict=True)


@pytest.mark.parametrize(
    ("kind", "name", "path", "value"),
    [
        ("Deployment", "neve-serve", ("spec", "replica"), 2),
        ("Deployment", "neve-serve", ("spec", "replicas"), "two"),
        ("NetworkPolicy", "default-deny", ("spec", "policyType"), ["Ingress"]),
        ("RayCluster", "neve", ("spec", "enableInTreeAutoScaling"), True),
        ("RayCluster", "neve", ("spec", "autoscalerOptions", "version"), "v3"),
        ("RayCluster", "neve", ("spec", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
        ("RayCluster", "neve", ("spec", "headGroupSpec", "template", "spec", "container"), []),
        ("PodMonitor", "neve-ray", ("spec", "podMetricsEndpoint"), []),
        ("PrometheusRule", "neve", ("spec", "groups"), [{"name": "a", "rules": [{"alert": "A"}]}]),
    ],
)
def test_a_field_that_is_wrong_is_refused(
    kind: str, name: str, path: tuple[str, ...], value: object
) -> None:
    resource = copy.deepcopy(one(rendered("production"), kind, name))
    inside = resource
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value

    refusals = (kubernetes_validate.ValidationError, jsonschema.ValidationError)
    with pytest.raises(refusals):
        check(resource, KUBERNETES[-1])


def test_without_kubectl_a_test_fails_and_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(pytest.fail.Exception, match=r"kubectl is missing.* kubernetes-client"):
        rendered_text.__wrapped__("laptop")
