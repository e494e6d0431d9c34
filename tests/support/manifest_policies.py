"""What a manifest of `k8s/` must keep: each policy yields what is wrong, in sentences.

Policies look at rendered resources alone. `tests/k8s/test_policies.py` holds them against the
overlays, and each against a manifest with the fault that it is there for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence

from common.units import format_count
from tests.support.manifests import (
    CLAIM,
    Pod,
    Resource,
    matches,
    name_of,
    of_kind,
    one,
    pods_of,
)

Policy = Callable[[Sequence[Resource]], Iterator[str]]

NAMESPACE = "neve"
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
SECRET_NAME = re.compile(r"^(?!.*_FILE$).*(TOKEN|PASSWORD|SECRET|CREDENTIAL|_KEY$|STORE_URL)")
"""A name that ends in `_FILE` is that of a path."""
SECRET_TEXT = re.compile(r"://[^\s/@:]*:[^\s/@]+@|\brequirepass +[^\s%]|\bBearer +\w")
"""A URL with a password, a password of Redis, a token."""
HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC")
SERVERS, SENTINELS = "neve-redis", "neve-sentinel"
WAIT_VARIABLE = "NEVE_STORE_WAIT_REPLICAS"
WITH_A_TOKEN = "headgroup"
"""The only group whose pod may ask the API of Kubernetes: Ray's autoscaler is in the head's."""


# ------------------------------------------------------------------------------------------- Pods


def runs_as_somebody(resources: Sequence[Resource]) -> Iterator[str]:
    """No process is root."""
    for pod in pods_of(resources):
        for of, security in _securities(pod):
            if security.get("runAsUser") == 0 or security.get("runAsNonRoot") is False:
                yield f"{of} runs as root"
        pod_security = pod.spec.get("securityContext", {})
        if pod_security.get("runAsNonRoot") is not True or not pod_security.get("runAsUser"):
            yield f"{pod.owner} does not say that it is not root, and who it is"


def has_no_privileges(resources: Sequence[Resource]) -> Iterator[str]:
    """No container has or gets a right that it was not born with."""
    for pod in pods_of(resources):
        for container in pod.containers:
            yield from _privileges(f"{pod.owner}: {container['name']}", container)
        if pod.spec.get("securityContext", {}).get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{pod.owner} has no seccomp profile"
        if any(pod.spec.get(field) for field in HOST_FIELDS):
            yield f"{pod.owner} shares a namespace with its node"
        if any("hostPath" in volume for volume in pod.spec.get("volumes", [])):
            yield f"{pod.owner} mounts a folder of its node"
    for cluster in of_kind(resources, "RayCluster"):
        sidecar = cluster["spec"].get("autoscalerOptions", {})
        yield from _privileges(f"{name_of(cluster)}: autoscaler", sidecar)


def _securities(pod: Pod) -> Iterator[tuple[str, Resource]]:
    yield pod.owner, pod.spec.get("securityContext", {})
    for container in pod.containers:
        yield f"{pod.owner}: {container['name']}", container.get("securityContext", {})


def _privileges(of: str, container: Resource) -> Iterator[str]:
    security = container.get("securityContext", {})
    capabilities = security.get("capabilities", {})
    if security.get("allowPrivilegeEscalation") is not False:
        yield f"{of} may gain privileges"
    if security.get("privileged"):
        yield f"{of} is privileged"
    if capabilities.get("drop") != ["ALL"] or capabilities.get("add"):
        yield f"{of} keeps capabilities"
    if any("hostPort" in port for port in container.get("ports", [])):
        yield f"{of} takes a port of its node"


def writes_to_volumes_alone(resources: Sequence[Resource]) -> Iterator[str]:
    """The image stays as it is."""
    for pod in pods_of(resources):
        for container in pod.containers:
            if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
                yield f"{pod.owner}: {container['name']} may write into its image"


def has_limits(resources: Sequence[Resource]) -> Iterator[str]:
    """CPU and memory are bounded; what Ray counts, and memory of everybody, is really there."""
    for pod in pods_of(resources):
        for container in pod.containers:
            of, given = f"{pod.owner}: {container['name']}", container.get("resources", {})
            limits, requests = given.get("limits", {}), given.get("requests", {})
            if missing := {"cpu", "memory"} - limits.keys() & requests.keys():
                yield f"{of} has no request and limit of {', '.join(sorted(missing))}"
            elif (requests != limits) if pod.is_ray else requests["memory"] != limits["memory"]:
                yield f"{of} asks for {requests}, and its limit is {limits}"


def has_a_pinned_image(resources: Sequence[Resource]) -> Iterator[str]:
    """An image is the same tomorrow."""
    for pod in pods_of(resources):
        for container in pod.containers:
            image = container["image"]
            tag = image.rpartition("/")[2].partition(":")[2]
            if "@sha256:" not in image and (not tag or tag.startswith("latest")):
                yield f"{pod.owner}: image {image} has no version"


def has_probes(resources: Sequence[Resource]) -> Iterator[str]:
    """Kubernetes is told when a container has started, can be used, and has to be replaced."""
    for pod in pods_of(resources):
        for container in pod.spec["containers"]:
            for probe in PROBES:
                if probe not in container:
                    yield f"{pod.owner}: {container['name']} has no {probe}"


def asks_nothing_of_kubernetes(resources: Sequence[Resource]) -> Iterator[str]:
    """No pod gets a token, no account a role, and no variable is invented."""
    for pod in pods_of(resources):
        needs_token = pod.labels.get("ray.io/group") == WITH_A_TOKEN
        if not needs_token and pod.spec.get("automountServiceAccountToken") is not False:
            yield f"{pod.owner} gets a token for the API of Kubernetes"
        if pod.spec.get("enableServiceLinks") is not False:
            yield f"{pod.owner} gets variables of services, which settings are taken for"
    for role in of_kind(resources, "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"):
        yield f"{name_of(role)}: nothing of Névé needs a role"


def leaves_in_order(resources: Sequence[Resource]) -> Iterator[str]:
    """A Ray node has the time to drain before Kubernetes kills it, and nothing ends it before."""
    for pod in pods_of(resources):
        if "ray stop" in json.dumps(pod.main.get("lifecycle", {})):
            yield f"{pod.owner}: `ray stop` kills the jobs that a drain would let end"
        if pod.is_ray:
            variable = pod.environment().get("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", {})
            grace_s = pod.spec.get("terminationGracePeriodSeconds", 30)
            if not 0 < float(variable.get("value", "0")) < grace_s:
                yield f"{pod.owner} is killed after {grace_s} s, in the middle of its drain"


# ---------------------------------------------------------------------------------------- Secrets


def keeps_secrets(resources: Sequence[Resource]) -> Iterator[str]:
    """A secret is referred to, never written down."""
    for secret in of_kind(resources, "Secret"):
        yield f"{name_of(secret)} is in the manifests, and with it what it hides"
    for of, entry in _variables(resources):
        if SECRET_NAME.search(entry["name"]) and "value" in entry:
            yield f"{of}: variable {entry['name']} has its value in the manifest"
    for cluster in of_kind(resources, "RayCluster"):
        if "value" in cluster["spec"].get("gcsFaultToleranceOptions", {}).get("redisPassword", {}):
            yield f"{name_of(cluster)} says the password of Ray's Redis"
    for of, text in ((resource, text) for resource in resources for text in _texts(resource)):
        if found := SECRET_TEXT.search(text):
            yield f"{name_of(of)} says {found.group()!r}"


def _variables(resources: Sequence[Resource]) -> Iterator[tuple[str, Resource]]:
    for pod in pods_of(resources):
        for container in pod.containers:
            yield from ((pod.owner, entry) for entry in container.get("env", []))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


# --------------------------------------------------------------------------- References, selectors


def refers_to_what_exists(resources: Sequence[Resource]) -> Iterator[str]:
    """Accounts, settings, volumes and services that a resource names are there."""
    there = {(resource["kind"], resource["metadata"]["name"]) for resource in resources}
    for pod in pods_of(resources):
        for kind, name in _references(pod):
            if (kind, name) not in there:
                yield f"{pod.owner} wants {kind} {name}, which is not there"
    for resource in resources:
        if resource["kind"] != "Namespace" and resource["metadata"].get("namespace") != NAMESPACE:
            yield f"{name_of(resource)} is not in the namespace {NAMESPACE}"


def _references(pod: Pod) -> Iterator[tuple[str, str]]:
    yield "ServiceAccount", pod.spec.get("serviceAccountName", "default")
    for volume in pod.spec.get("volumes", []):
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"]
        if CLAIM in volume:
            yield "PersistentVolumeClaim", volume[CLAIM]["claimName"]


def selects_pods(resources: Sequence[Resource]) -> Iterator[str]:
    """Whatever selects pods finds some."""
    pods = list(pods_of(resources))
    for resource, selector in _selectors(resources):
        if not any(matches(selector, pod.labels) for pod in pods):
            yield f"{name_of(resource)} selects no pod: {json.dumps(selector)}"
    for each in of_kind(resources, "Deployment", "StatefulSet"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        if not matches(each["spec"]["selector"], labels):
            yield f"{name_of(each)} does not select its own pods"


def _selectors(resources: Sequence[Resource]) -> Iterator[tuple[Resource, Resource]]:
    """Yield what selects pods of this namespace."""
    for resource in resources:
        spec = resource.get("spec", {})
        match resource["kind"]:
            case "Service":
                yield resource, {"matchLabels": spec["selector"]}
            case "PodDisruptionBudget" | "PodMonitor":
                yield resource, spec["selector"]
            case "NetworkPolicy":
                yield resource, spec["podSelector"]
                for peers, _, _ in _rules(spec):
                    yield from ((resource, selector) for selector in peers)


def _rules(policy: Resource) -> Iterator[tuple[list[Resource], list[int], bool]]:
    """Yield peers of this namespace, ports, and whether it is them who receive."""
    for side, ends in (("ingress", "from"), ("egress", "to")):
        for rule in policy.get(side, []):
            local = [
                peer["podSelector"]
                for peer in rule.get(ends, [])
                if "podSelector" in peer and "namespaceSelector" not in peer
            ]
            yield local, [port["port"] for port in rule.get("ports", [])], side == "egress"


def names_ports_that_exist(resources: Sequence[Resource]) -> Iterator[str]:
    """Every port that somebody is led to is one that a container listens on."""
    pods = list(pods_of(resources))
    for resource, selector, port in _destinations(resources):
        for pod in pods:
            if matches(selector, pod.labels) and port not in _both(pod.ports()):
                yield f"{name_of(resource)} leads to port {port}, {pod.owner} has none"
    for pod in pods:
        for probe in PROBES:
            asked = pod.main.get(probe, {})
            port = {**asked.get("httpGet", {}), **asked.get("tcpSocket", {})}.get("port")
            if port is not None and port not in _both(pod.ports()):
                yield f"{pod.owner}: {probe} asks port {port}, which is not there"
    yield from _wrong_backends(resources)


def _both(ports: dict[str, int]) -> set[str | int]:
    return {*ports, *ports.values()}


def _destinations(resources: Sequence[Resource]) -> Iterator[tuple[Resource, Resource, str | int]]:
    """Yield who names a port, the pods that are meant, and the port."""
    for each in of_kind(resources, "Service"):
        for port in each["spec"]["ports"]:
            selector = {"matchLabels": each["spec"]["selector"]}
            yield each, selector, port.get("targetPort", port["port"])
    for each in of_kind(resources, "PodMonitor"):
        for endpoint in each["spec"]["podMetricsEndpoints"]:
            yield each, each["spec"]["selector"], endpoint["port"]
    for each in of_kind(resources, "NetworkPolicy"):
        for peers, ports, peers_receive in _rules(each["spec"]):
            for selector in peers if peers_receive else [each["spec"]["podSelector"]]:
                yield from ((each, selector, port) for port in ports)


def _wrong_backends(resources: Sequence[Resource]) -> Iterator[str]:
    services = {
        (service["metadata"]["name"], port["name"])
        for service in of_kind(resources, "Service")
        for port in service["spec"]["ports"]
    }
    for ingress in of_kind(resources, "Ingress"):
        for rule in ingress["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                backend = path["backend"]["service"]
                if (backend["name"], backend["port"]["name"]) not in services:
                    yield f"{name_of(ingress)} leads to {backend}, which is not there"


def is_guarded(resources: Sequence[Resource]) -> Iterator[str]:
    """What no rule allows is denied; who comes from outside speaks TLS."""
    denies = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    if denies not in [each["spec"] for each in of_kind(resources, "NetworkPolicy")]:
        yield "no NetworkPolicy denies what is not allowed"
    for each in of_kind(resources, "Ingress"):
        hosts = {host for entry in each["spec"].get("tls", []) for host in entry["hosts"]}
        if not {rule.get("host") for rule in each["spec"]["rules"]} <= hosts:
            yield f"{name_of(each)} has a host without TLS"
    for each in of_kind(resources, "Service"):
        if each["spec"].get("type", "ClusterIP") != "ClusterIP":
            yield f"{name_of(each)} is open to the outside, past the Ingress and its TLS"


def survives_drains_of_nodes(resources: Sequence[Resource]) -> Iterator[str]:
    """What does not scale has a budget, of the kind that Kubernetes can count."""
    budgets = list(of_kind(resources, "PodDisruptionBudget"))
    for pod in pods_of(resources):
        own = [budget for budget in budgets if matches(budget["spec"]["selector"], pod.labels)]
        is_scaled = pod.labels.get("ray.io/group", "") not in ("", "headgroup", "service")
        if len(own) != (0 if is_scaled else 1):
            yield f"{pod.owner} has {len(own)} budgets"
        for each in own:
            # KubeRay's resources have no scale, from which Kubernetes would take the whole.
            if pod.is_ray and not isinstance(each["spec"].get("minAvailable"), int):
                yield f"{name_of(each)} needs `minAvailable`, an integer"


def fails_over(resources: Sequence[Resource]) -> Iterator[str]:
    """A store that names Sentinels outlives a node, and forgets nothing that was acknowledged."""
    sets = {each["metadata"]["name"]: each for each in of_kind(resources, "StatefulSet")}
    if SENTINELS not in sets:
        return
    yield from _faults_of_numbers(resources, sets)
    for name in (SERVERS, SENTINELS):
        yield from _faults_of_a_set(sets[name])
        if one(resources, "Service", name)["spec"].get("publishNotReadyAddresses") is not True:
            yield f"Service {name} hides pods that are not ready, and they find no one to follow"
    for pod in pods_of(resources):
        if pod.owner.endswith("neve-serve") and WAIT_VARIABLE not in pod.environment():
            yield f"{pod.owner} does not wait for a replica: set {WAIT_VARIABLE}"


def _faults_of_numbers(resources: Sequence[Resource], sets: dict[str, Resource]) -> Iterator[str]:
    sentinels, servers = sets[SENTINELS]["spec"]["replicas"], sets[SERVERS]["spec"]["replicas"]
    if sentinels < 3 or sentinels % 2 == 0:
        yield f"StatefulSet {SENTINELS} has {sentinels} pods, expected an odd number of 3 or more"
    if servers < 3:
        pods = format_count(servers, "pod")
        yield f"StatefulSet {SERVERS} has {pods}, expected a primary and 2 replicas"
    settings = "\n".join(one(resources, "ConfigMap", "redis-sentinel-settings")["data"].values())
    quorum = int(re.findall(r"sentinel monitor .* (\d+)$", settings, re.MULTILINE)[0])
    if 2 * quorum <= sentinels:
        yield f"{quorum} of {sentinels} Sentinels would decide, expected more than half"
    if not re.search(r"^min-replicas-to-write [1-9]", settings, re.MULTILINE):
        yield "a primary without replicas takes changes, which its demotion forgets"


def _faults_of_a_set(resource: Resource) -> Iterator[str]:
    of, spec = name_of(resource), resource["spec"]
    labels = spec["template"]["metadata"]["labels"]
    apart = [
        each
        for each in spec["template"]["spec"].get("topologySpreadConstraints", [])
        if each["topologyKey"] == "kubernetes.io/hostname"
        and each["whenUnsatisfiable"] == "DoNotSchedule"
        and matches(each["labelSelector"], labels)
    ]
    if not apart:
        yield f"{of}: two of its pods may be on one node"
    if not spec.get("volumeClaimTemplates"):
        yield f"{of} forgets what it has learnt when its pod is started anew"


POLICIES: tuple[Policy, ...] = (
    runs_as_somebody,
    has_no_privileges,
    writes_to_volumes_alone,
    has_limits,
    has_a_pinned_image,
    has_probes,
    asks_nothing_of_kubernetes,
    leaves_in_order,
    keeps_secrets,
    refers_to_what_exists,
    selects_pods,
    names_ports_that_exist,
    is_guarded,
    survives_drains_of_nodes,
    fails_over,
)
