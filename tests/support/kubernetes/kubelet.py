"""Run the pods of a store as containers on this machine, and write their status.

Of a pod's template, the stand-in uses resources, labels, variables with literal values, the
`preStop` command and the grace. Images and volumes are ignored: a container sees the machine's
files, and runs as its `securityContext` asks. A test can say that a group's image cannot be
pulled, or is pulled slowly.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.kubernetes.confinement import Confinement, Folders
from tests.support.kubernetes.pod_process import PodProcess
from tests.support.kubernetes.ray_cluster import literals
from tests.support.kubernetes.resource_store import PODS, Resource, ResourceStore, timestamp

IMAGE_PULL_ERROR = "ImagePullBackOff"
CREATING = "ContainerCreating"
INITIALIZING = "PodInitializing"


@dataclass(frozen=True, slots=True)
class SlowStart:
    """The containers of a group start this long after their pods were created."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class ImagePullError:
    """The containers of a group never start, for a reason that their status says."""

    message: str


StartFault = SlowStart | ImagePullError


@dataclass(frozen=True, slots=True)
class Node:
    """What a pod finds on the machine."""

    folder: Path
    """Each pod has a folder here: its log, and what Ray writes."""
    environ: Mapping[str, str]
    """What every container has."""
    overrides: Mapping[str, str]
    """Variables that win over those of the manifest."""
    worker_options: str
    """Flags of `ray start` that keep raylets small and their ports apart."""
    head_options: str
    assign_address: Callable[[str], str]
    """Give a pod an address on the machine's network."""
    head_listens: Callable[[], bool]
    folders: Folders
    """What a container with a read-only root sees besides its own."""


@dataclass(slots=True)
class _Container:
    created_s: float
    address: str
    process: PodProcess | None = None
    killed_at_s: float | None = None
    """When the grace of a pod that is being deleted is over."""
    hook: subprocess.Popen[bytes] | None = None
    """The `preStop` command while it runs."""


class Kubelet:
    """Owns the processes of all pods; `sync` brings store and processes together."""

    def __init__(self, store: ResourceStore, node: Node) -> None:
        self._store = store
        self._node = node
        self._containers: dict[str, _Container] = {}
        self._faults: dict[str, StartFault] = {}

    def set_fault(self, group: str, fault: StartFault | None) -> None:
        """Say how pods of a group start from now on; None is without a fault."""
        if fault is None:
            self._faults.pop(group, None)
        else:
            self._faults[group] = fault

    def process_of(self, pod_name: str) -> PodProcess | None:
        """Return a pod's process, if it has started."""
        container = self._containers.get(pod_name)
        return container.process if container else None

    def sync(self) -> None:
        """Take one step for every pod; never waits."""
        for pod in self._store.list(PODS):
            name = pod["metadata"]["name"]
            if name not in self._containers:
                address = self._node.assign_address(name)
                self._containers[name] = _Container(time.monotonic(), address)
            if "deletionTimestamp" in pod["metadata"]:
                self._end(pod, self._containers[name])
            elif pod["status"]["phase"] == "Pending":
                self._start(pod, self._containers[name])
            elif pod["status"]["phase"] == "Running":
                self._watch(pod, self._containers[name])

    def _start(self, pod: Resource, container: _Container) -> None:
        if (obstacle := self._obstacle(pod, container)) is not None:
            self._write_state(pod, obstacle)
            return
        node, is_head = self._node, pod["metadata"]["labels"]["ray.io/node-type"] == "head"
        folder = node.folder / pod["metadata"]["name"]
        (folder / "ray").mkdir(parents=True, exist_ok=True)
        main = pod["spec"]["containers"][0]
        words = [*main["command"], *main["args"]]
        options = node.head_options if is_head else node.worker_options
        words[-1] += f" --node-ip-address={container.address} {options}"
        container.process = PodProcess(
            words,
            environ={**node.environ, **literals(main["env"]), **node.overrides},
            ray_folder=folder / "ray",
            log=folder / "log",
            confinement=Confinement.of(pod["spec"], main),
            folders=node.folders,
        )
        self._write_state(pod, {"running": {"startedAt": timestamp()}}, phase="Running")

    def _obstacle(self, pod: Resource, container: _Container) -> Mapping[str, Any] | None:
        """Return the state of a container that cannot start yet, or None."""
        labels = pod["metadata"]["labels"]
        match self._faults.get(labels["ray.io/group"]):
            case ImagePullError(message):
                return waiting(IMAGE_PULL_ERROR, message)
            case SlowStart(delay_s) if time.monotonic() < container.created_s + delay_s:
                return waiting(CREATING)
        # KubeRay gives a worker a first container that waits for the head.
        if labels["ray.io/node-type"] == "worker" and not self._node.head_listens():
            return waiting(INITIALIZING)
        return None

    def _watch(self, pod: Resource, container: _Container) -> None:
        code = container.process.exit_code() if container.process else None
        if code is not None:
            reason = "Completed" if code == 0 else "Error"
            ended = {"exitCode": code, "reason": reason, "finishedAt": timestamp()}
            phase = "Succeeded" if code == 0 else "Failed"
            self._write_state(pod, {"terminated": ended}, phase=phase)

    def _end(self, pod: Resource, container: _Container) -> None:
        name = pod["metadata"]["name"]
        process = container.process
        if process is None or process.exit_code() is not None:
            self._store.remove(PODS, name)
            del self._containers[name]
        elif container.killed_at_s is None:
            grace_s = pod["spec"]["terminationGracePeriodSeconds"]
            container.killed_at_s = time.monotonic() + grace_s
            if hook := pre_stop_command(pod):
                container.hook = process.run_inside(hook)
            else:
                process.terminate()
        elif container.hook is not None and container.hook.poll() is not None:
            container.hook = None
            process.terminate()
        elif time.monotonic() > container.killed_at_s:
            process.kill()

    def _write_state(
        self, pod: Resource, state: Mapping[str, Any], *, phase: str = "Pending"
    ) -> None:
        name = pod["metadata"]["name"]
        running = phase == "Running"
        container = {
            "name": pod["spec"]["containers"][0]["name"],
            "image": pod["spec"]["containers"][0].get("image", ""),
            "ready": running,
            "started": running,
            "restartCount": 0,
            "state": dict(state),
        }

        def write(stored: Resource) -> None:
            stored["status"] |= {
                "phase": phase,
                "podIP": self._containers[name].address,
                "containerStatuses": [container],
                "conditions": [{"type": "Ready", "status": str(running)}],
            }

        self._store.update(PODS, name, write)


def pre_stop_command(pod: Resource) -> Sequence[str]:
    """Return what a container runs before it is asked to end; often nothing."""
    hooks = pod["spec"]["containers"][0].get("lifecycle", {})
    command: Sequence[str] = hooks.get("preStop", {}).get("exec", {}).get("command", ())
    return command


def waiting(reason: str, message: str = "") -> Mapping[str, Any]:
    """Return the state of a container that has not started."""
    return {"waiting": {"reason": reason, "message": message}}
