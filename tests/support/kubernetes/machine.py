"""The process that holds a whole cluster: `python -m tests.support.kubernetes.machine`.

It is the first process of private network, mount and PID namespaces, so everything it starts
ends with it and no port meets one of the machine outside. It reads calls from its input, one
JSON object a line, and answers each with one line; it ends with its input.

    {"call": "pods"}                         → {"answer": [...]}
    {"call": "kill_pod", "name": "no-such"}  → {"error": "..."}
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from tests.support.kubernetes.api_server import ApiServer
from tests.support.kubernetes.certificates import create_certificates
from tests.support.kubernetes.confinement import Confinement, Folders
from tests.support.kubernetes.kubelet import ImagePullError, Kubelet, Node, SlowStart
from tests.support.kubernetes.kuberay_operator import KubeRayOperator
from tests.support.kubernetes.pod_process import PodProcess
from tests.support.kubernetes.ray_cluster import GCS_PORT, HEAD_GROUP, literals, load_ray_cluster
from tests.support.kubernetes.resource_store import (
    PODS,
    RAY_CLUSTERS,
    ApiError,
    NotFoundError,
    Resource,
    ResourceStore,
)

API_ADDRESS = "10.96.0.1"
API_PORT = 443
POD_NETWORK = "10.244.0."
HEAD_ADDRESS = POD_NETWORK + "1"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Ray looks for its token; it cannot be told otherwise."""
GIVEN_VARIABLE = "STAND_IN_GIVEN"
"""Not an argument, which everybody on the machine can read: there may be a token among them."""
OBJECT_STORE_BYTES = 80_000_000
TURN_S = 0.2
"""How often pods are looked at when nothing is written."""
ZERO_PORTS = (
    *("node-manager-port", "object-manager-port", "runtime-env-agent-port"),
    *("dashboard-agent-listen-port", "dashboard-agent-grpc-port", "metrics-export-port"),
    *("min-worker-port", "max-worker-port"),
)
"""Pods share one network here, so that the ports which KubeRay fixes would meet."""
RAY_OPTIONS = " ".join(
    (
        *(f"--{name}=0" for name in ZERO_PORTS),
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--include-log-monitor=false --disable-usage-stats --log-color=false",
    )
)
HEAD_OPTIONS = f"{RAY_OPTIONS} --include-dashboard=false"


@dataclass(frozen=True, slots=True)
class Given:
    """What the test gives all containers."""

    environ: Mapping[str, str]
    """As the image's: the release that they run is found by it."""
    overrides: Mapping[str, str]
    """Variables that win over those of the manifest."""
    folders: Folders

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` has written."""
        told = json.loads(text)
        folders = {name: [Path(each) for each in told[name]] for name in ("seen", "written")}
        return cls(told["environ"], told["overrides"], Folders(**folders))

    def to_json(self) -> str:
        """Return it as text, for a variable."""
        folders = {name: list(map(str, each)) for name, each in asdict(self.folders).items()}
        return json.dumps({"environ": self.environ, "overrides": self.overrides, **folders})


class Machine:
    """API server, operator, kubelet and autoscaler; one thread takes all turns."""

    def __init__(self, folder: Path, cluster: Resource, given: Given) -> None:
        self._folder = folder
        self._name = cluster["metadata"]["name"]
        namespace = cluster["metadata"].setdefault("namespace", "default")
        self.store = ResourceStore(namespace)
        self.store.create(RAY_CLUSTERS, cluster)
        self._addresses = 1
        environ = {
            **given.environ,
            "RAY_ADDRESS": f"{HEAD_ADDRESS}:{GCS_PORT}",
            "KUBERNETES_SERVICE_HOST": API_ADDRESS,
            "KUBERNETES_SERVICE_PORT_HTTPS": str(API_PORT),
        }
        self._environ = environ
        self._overrides = given.overrides
        self._folders = given.folders
        node = Node(
            folder=folder / "pods",
            environ=environ,
            overrides=given.overrides,
            worker_options=RAY_OPTIONS,
            head_options=HEAD_OPTIONS,
            assign_address=self._assign_address,
            head_listens=head_listens,
            folders=given.folders,
        )
        self._kubelet = Kubelet(self.store, node)
        self._operator = KubeRayOperator(self.store, self._name, lambda: secrets.token_hex(3))
        self._autoscaler: PodProcess | None = None
        self._autoscaler_starts = 0
        self._journal: list[Mapping[str, Any]] = []
        self._seen: dict[str, str] = {}
        self._lock = threading.RLock()

    # ------------------------------------------------------------------ turns

    def run(self) -> None:
        """Take turns for ever."""
        while True:
            version = self.store.version
            with self._lock:
                self._operator.reconcile()
                self._kubelet.sync()
                self._keep_autoscaler()
                self._record()
            # What the turn itself wrote is a change too: the next turn follows at once.
            self.store.wait_for_change(version, TURN_S)

    def _keep_autoscaler(self) -> None:
        """Let the autoscaler live as long as the head's pod, whose second container it is."""
        head = self._head()
        process = self._kubelet.process_of(head) if head else None
        lives = process is not None and process.exit_code() is None
        if self._autoscaler and self._autoscaler.exit_code() is None:
            if not lives:
                self._autoscaler.kill()
        elif head and lives:
            # It may also have ended by itself: Kubernetes would start it again.
            self._autoscaler = self._start_autoscaler(head)
            self._autoscaler_starts += 1

    def _start_autoscaler(self, head: str) -> PodProcess:
        identity = ["--cluster-name", self._name, "--cluster-namespace", self.store.namespace]
        spec = self.store.get(RAY_CLUSTERS, self._name)["spec"]
        options = spec["autoscalerOptions"]
        return PodProcess(
            ["ray", "kuberay-autoscaler", *identity],
            environ={
                **self._environ,
                "RAY_CLUSTER_NAME": self._name,
                "RAY_CLUSTER_NAMESPACE": self.store.namespace,
                "RAY_HEAD_POD_NAME": head,
                "KUBERAY_CRD_VER": "v1",
                **literals(options.get("env", ())),
                **self._overrides,
            },
            # Both containers of the head's pod see one folder of Ray.
            ray_folder=self._folder / "pods" / head / "ray",
            log=self._folder / "autoscaler.log",
            confinement=Confinement.of(spec["headGroupSpec"]["template"]["spec"], options),
            folders=self._folders,
        )

    def _record(self) -> None:
        """Note every change of a pod's state, with the time since the machine's start."""
        now = {pod["metadata"]["name"]: state_of(pod) for pod in self.store.list(PODS)}
        for name in sorted(now.keys() | self._seen.keys()):
            state = now.get(name, "Gone")
            if state != self._seen.get(name):
                self._journal.append({"at_s": time.monotonic(), "pod": name, "state": state})
        self._seen = now

    def _assign_address(self, pod_name: str) -> str:
        if pod_name.startswith(f"{self._name}-head-"):
            # In a cluster, this is the address of the head's service, which stays.
            return HEAD_ADDRESS
        self._addresses += 1
        address = f"{POD_NETWORK}{self._addresses}"
        add_address(address)
        return address

    def _head(self) -> str | None:
        found = self.store.list(PODS, f"ray.io/group={HEAD_GROUP}")
        return found[0]["metadata"]["name"] if found else None

    # ------------------------------------------------------------------ calls

    def call_pods(self) -> list[Resource]:
        return self.store.list(PODS)

    def call_ray_cluster(self) -> Resource:
        return self.store.get(RAY_CLUSTERS, self._name)

    def call_journal(self) -> list[Mapping[str, Any]]:
        return self._journal

    def call_autoscaler_starts(self) -> int:
        return self._autoscaler_starts

    def call_head_pid(self) -> int | None:
        """Return the first process of the head's pod once its GCS listens, else None."""
        head = self._head()
        process = self._kubelet.process_of(head) if head else None
        return process.first_pid if process and head_listens() else None

    def call_kill_pod(self, name: str) -> None:
        """End a pod's processes at once, as when a node is lost or memory runs out."""
        process = self._kubelet.process_of(name)
        if process is None:
            raise NotFoundError(f"pod {name} does not run")
        process.kill()

    def call_delete_pod(self, name: str) -> None:
        """Delete a pod as `kubectl delete` does, with its grace."""
        self.store.delete(PODS, name)

    def call_break_group(self, group: str, message: str) -> None:
        self._kubelet.set_fault(group, ImagePullError(message))

    def call_slow_group(self, group: str, delay_s: float) -> None:
        self._kubelet.set_fault(group, SlowStart(delay_s))

    def call_mend_group(self, group: str) -> None:
        self._kubelet.set_fault(group, None)

    def answer(self, line: str) -> Mapping[str, Any]:
        """Return what a call returns, or why it could not be made."""
        arguments = json.loads(line)
        method = getattr(self, f"call_{arguments.pop('call')}")
        try:
            with self._lock:
                return {"answer": method(**arguments)}
        except ApiError as error:
            return {"error": str(error)}


def state_of(pod: Resource) -> str:
    """Return one word for a pod, as `kubectl get pods` has it."""
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    for container in pod["status"].get("containerStatuses", ()):
        if "waiting" in container["state"]:
            return str(container["state"]["waiting"]["reason"])
    return str(pod["status"]["phase"])


def head_listens() -> bool:
    """Return whether a GCS takes connections."""
    with socket.socket() as probe:
        return probe.connect_ex((HEAD_ADDRESS, GCS_PORT)) == 0


def add_address(address: str) -> None:
    """Add an address to the private network."""
    subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)


def prepare_network(folder: Path) -> None:
    """Bring the private network up; it ends at this machine."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in (API_ADDRESS, HEAD_ADDRESS):
        add_address(address)
    # Ray finds a node's own address by asking which way leads to the internet.
    route = ["ip", "route", "add", "default", "dev", "lo", "src", HEAD_ADDRESS]
    subprocess.run(route, check=True)
    # Without a server of names in reach, a look-up would wait for one; now it fails at once.
    resolver = Path("/etc/resolv.conf")
    if resolver.exists():
        (folder / "resolv.conf").touch()
        bind = ["mount", "--bind", str(folder / "resolv.conf"), str(resolver)]
        subprocess.run(bind, check=True)


def start_services(commands: Sequence[Sequence[str]], folder: Path) -> None:
    """Start programs that the cluster needs; they live as long as the machine."""
    for number, command in enumerate(commands):
        with (folder / f"service-{number}.log").open("wb") as log:
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )


def prepare_service_account(authority: Path, token: str, namespace: str) -> None:
    """Put the credentials where a container finds them."""
    run = os.path.realpath("/var/run")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", run], check=True)
    SERVICE_ACCOUNT.mkdir(parents=True)
    (SERVICE_ACCOUNT / "ca.crt").write_bytes(authority.read_bytes())
    (SERVICE_ACCOUNT / "token").write_text(token)
    (SERVICE_ACCOUNT / "namespace").write_text(namespace)


def main() -> None:
    """Be the machine until the input ends."""
    folder, manifest = Path(sys.argv[1]), Path(sys.argv[2])
    given = Given.from_json(os.environ.pop(GIVEN_VARIABLE))
    options = json.loads(sys.argv[3])
    services = options.pop("services")
    cluster = load_ray_cluster(manifest, **options)
    prepare_network(folder)
    start_services(services, folder)
    certificates = create_certificates(folder, ["kubernetes.default", API_ADDRESS])
    token = secrets.token_urlsafe(32)
    machine = Machine(folder, cluster, given)
    prepare_service_account(certificates.authority, token, machine.store.namespace)
    address = (API_ADDRESS, API_PORT)
    with ApiServer(address, machine.store, token, certificates.server).serving():
        turns = threading.Thread(target=_turns, args=(machine,), daemon=True)
        turns.start()
        for line in sys.stdin:
            print(json.dumps(machine.answer(line)), flush=True)


def _turns(machine: Machine) -> None:
    try:
        machine.run()
    finally:
        # A machine whose turns have ended would answer and do nothing.
        os._exit(1)


if __name__ == "__main__":
    main()
