"""The manifests of `k8s/` as Kubernetes would get them: rendered, and asked for their pods.

A resource is a mapping, as YAML says it. Pods are those that controllers make of templates,
with the labels that KubeRay adds to those of a RayCluster.
"""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = ("laptop", "production", "production-sentinel")
RENDER_MAX_S = 60
MISSING = (
    "kubectl is missing: it renders the manifests of k8s/. Install it with"
    " `apt-get install kubernetes-client` (Debian, Ubuntu), `brew install kubernetes-cli` (macOS),"
    " or from kubernetes.io/docs/tasks/tools; no cluster is needed"
)
CLAIM = "persistentVolumeClaim"

Resource = dict[str, Any]
Selector = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that some resource makes."""

    owner: str
    """Kind and name of the resource; of a RayCluster, its group as well."""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Resource
    is_ray: bool = False
    """Whether KubeRay makes it."""

    @property
    def containers(self) -> list[Resource]:
        """Its containers, those before the start included."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def main(self) -> Resource:
        """The container that Ray runs in, or the only one."""
        main: Resource = self.spec["containers"][0]
        return main

    def ports(self) -> dict[str, int]:
        """Return the ports of all containers by their names."""
        return {
            port["name"]: port["containerPort"]
            for container in self.containers
            for port in container.get("ports", [])
        }

    def environment(self) -> dict[str, Resource]:
        """Return the variables of the main container by their names."""
        return {entry["name"]: entry for entry in self.main.get("env", [])}


@cache
def rendered_text(overlay: str) -> str:
    """Return what `kubectl kustomize` makes of an overlay; without kubectl the test fails."""
    return _kustomized(ROOT / "k8s" / "overlays" / overlay)


def rendered_together(*folders: str) -> list[Resource]:
    """Return the resources of an overlay that takes some folders of `k8s/` and adds nothing."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text).resolve()
        bases = [os.path.relpath(ROOT / "k8s" / each, folder) for each in folders]
        (folder / "kustomization.yaml").write_text(yaml.safe_dump({"bases": bases}), "utf-8")
        return list(yaml.safe_load_all(_kustomized(folder)))


def _kustomized(folder: Path) -> str:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.fail(MISSING, pytrace=False)
    ran = subprocess.run(
        [kubectl, "kustomize", str(folder)],
        capture_output=True,
        text=True,
        timeout=RENDER_MAX_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def rendered(overlay: str) -> list[Resource]:
    """Return the resources of an overlay, new ones for each caller: counter-tests change them."""
    # Parsing takes a second, copying some milliseconds.
    return copy.deepcopy(_parsed(overlay))


@cache
def _parsed(overlay: str) -> list[Resource]:
    return list(yaml.safe_load_all(rendered_text(overlay)))


def name_of(resource: Resource) -> str:
    """Return kind and name, for messages."""
    return f"{resource['kind']} {resource['metadata']['name']}"


def of_kind(resources: Sequence[Resource], *kinds: str) -> Iterator[Resource]:
    """Yield the resources of some kinds."""
    return (resource for resource in resources if resource["kind"] in kinds)


def one(resources: Sequence[Resource], kind: str, name: str) -> Resource:
    """Return the only resource of a kind and name; of a ConfigMap with a hash, by its beginning."""
    (found,) = (
        each
        for each in of_kind(resources, kind)
        if each["metadata"]["name"] == name
        or (kind == "ConfigMap" and each["metadata"]["name"].startswith(f"{name}-"))
    )
    return found


def pods_of(resources: Sequence[Resource]) -> Iterator[Pod]:
    """Yield the pods that the resources make, one of each template."""
    for resource in resources:
        if resource["kind"] == "RayCluster":
            yield from ray_pods(resource)
        elif "template" in resource.get("spec", {}):
            yield _pod(name_of(resource), resource["spec"]["template"])


def ray_pods(cluster: Resource) -> Iterator[Pod]:
    """Yield the pods of a RayCluster: the head, then one of each group."""
    spec = cluster["spec"]
    heads = [("headgroup", "head", spec["headGroupSpec"])]
    workers = [(each["groupName"], "worker", each) for each in spec["workerGroupSpecs"]]
    for group, kind, each in [*heads, *workers]:
        added = {
            "ray.io/cluster": cluster["metadata"]["name"],
            "ray.io/group": group,
            "ray.io/node-type": kind,
        }
        owner = f"{name_of(cluster)}, group {group}"
        yield _pod(owner, each["template"], added, is_ray=True)


def group_of(resources: Sequence[Resource], group: str) -> Resource:
    """Return a worker group of the RayCluster."""
    (cluster,) = of_kind(resources, "RayCluster")
    (found,) = (g for g in cluster["spec"]["workerGroupSpecs"] if g["groupName"] == group)
    return found


def pod_of_group(resources: Sequence[Resource], group: str) -> Pod:
    """Return the pod of a group of the RayCluster; the head's group is `headgroup`."""
    (found,) = (p for p in pods_of(resources) if p.labels.get("ray.io/group") == group)
    return found


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector selects; an empty one selects everything."""
    wanted = selector.get("matchLabels", {}).items()
    return wanted <= labels.items() and all(
        _holds(each, labels) for each in selector.get("matchExpressions", [])
    )


def _holds(expression: Selector, labels: Mapping[str, str]) -> bool:
    value = labels.get(expression["key"])
    match expression["operator"]:
        case "In":
            return value in expression["values"]
        case "NotIn":
            return value not in expression["values"]
        case operator:
            raise AssertionError(f"operator {operator} is not understood here")


def _pod(
    owner: str, template: Resource, labels: Mapping[str, str] | None = None, *, is_ray: bool = False
) -> Pod:
    metadata = template.get("metadata", {})
    return Pod(
        owner=owner,
        labels={**metadata.get("labels", {}), **(labels or {})},
        annotations=metadata.get("annotations", {}),
        spec=template["spec"],
        is_ray=is_ray,
    )
