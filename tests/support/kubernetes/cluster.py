"""A Ray cluster under KubeRay's own autoscaler, for tests.

    with KubeRayCluster.start(manifest, folder=tmp_path) as cluster:
        cluster.run([sys.executable, "program.py"])    # in the head's pod, with RAY_ADDRESS
        cluster.wait_for(lambda: len(cluster.pods("small")) == 3)
        cluster.kill_pod(cluster.pods("small")[0].name)

The cluster lives in network, mount and PID namespaces of its own. Its ports cannot be reached
from the test's process, only by programs that `run` or `popen` starts; files can be shared.
Namespaces need root, or a kernel that lets users make namespaces of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.support.installed import ROOT, installation, session_folder
from tests.support.kubernetes.confinement import Confinement, Folders
from tests.support.kubernetes.machine import GIVEN_VARIABLE, HEAD_ADDRESS, Given, state_of
from tests.support.kubernetes.namespaces import (
    check_namespaces,
    enter_namespaces,
    make_namespaces,
)
from tests.support.kubernetes.ray_cluster import GCS_PORT
from tests.support.patience import SERVICE_S, vain_wait, wait_until

PAUSE_S = 0.2
TAIL_BYTES = 4000


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod at one moment."""

    name: str
    group: str
    state: str
    """As `kubectl get pods` shows it: Running, Terminating, ImagePullBackOff, …"""
    message: str
    """Why a container waits; empty otherwise."""
    address: str


@dataclass(frozen=True, slots=True)
class PodChange:
    """A pod got another state; `Gone` is the last one."""

    at_s: float
    """By the monotonic clock, which all processes of a machine share."""
    pod: str
    state: str


class KubeRayCluster:
    """A running cluster; ends with its block, with every process in it."""

    address = f"{HEAD_ADDRESS}:{GCS_PORT}"
    """Where drivers inside join; programs that are run here have it in RAY_ADDRESS."""

    def __init__(self, machine: subprocess.Popen[str], folder: Path, given: Given) -> None:
        self._machine = machine
        self.folder = folder
        self._given = given

    @classmethod
    @contextmanager
    def start(
        cls,
        manifest: Path,
        *,
        folder: Path,
        idle_timeout_s: float | None = None,
        gcs_redis: str | None = None,
        services: Sequence[Sequence[str]] = (),
        environ: Mapping[str, str] | None = None,
        image: Mapping[str, str] | None = None,
        written: Sequence[Path] = (),
    ) -> Iterator[Self]:
        """Start the RayCluster of a manifest, and wait until its head answers.

        Args:
            manifest: YAML with one RayCluster in it.
            folder: Takes logs, and what Ray writes.
            idle_timeout_s: Replaces the manifest's idle timeouts.
            gcs_redis: Address of a Redis from which a new head learns what a lost one knew; the
                manifest's own is left out.
            services: Commands that start before the head and outlive it, such as that Redis.
            environ: Variables of all pods, of the autoscaler and of the programs run here; they
                win over those of the manifest. A cluster with token authentication needs
                RAY_AUTH_MODE and RAY_AUTH_TOKEN here, since the stand-in has no secrets.
            image: The environment in which containers find the release that they run; that of the
                installed wheel if left out.
            written: Folders that containers may write to, whatever else is read-only.

        Raises:
            NamespaceError: The machine does not allow what the cluster needs.
        """
        check_namespaces()
        given = Given(
            environ=installation().environ(_environment()) if image is None else image,
            overrides=dict(environ or {}),
            folders=Folders((session_folder(), folder), written),
        )
        options = {
            "idle_timeout_s": idle_timeout_s,
            "gcs_redis": gcs_redis,
            "services": [list(command) for command in services],
        }
        words = [str(folder), str(manifest.resolve()), json.dumps(options)]
        with _machine(words, given, folder / "machine.log") as machine:
            try:
                cluster = cls(machine, folder, given)
                cluster.wait_for(cluster.head_listens, "the head")
                yield cluster
            finally:
                # The kernel ends every process inside with the first one.
                machine.kill()

    # ------------------------------------------------------------------ look

    def pods(self, group: str | None = None) -> list[PodView]:
        """Return the pods of a group, or all, also those that are going."""
        views = [_view(pod) for pod in self._call("pods")]
        return [view for view in views if group in (None, view.group)]

    def head_listens(self) -> bool:
        """Return whether the head takes drivers."""
        return self._call("head_pid") is not None

    def pod_log(self, name: str) -> str:
        """Return what a pod printed, also after its end."""
        return (self.folder / "pods" / name / "log").read_text(errors="replace")

    def ray_cluster(self) -> dict[str, Any]:
        """Return the RayCluster with what the autoscaler and the operator wrote to it."""
        found: dict[str, Any] = self._call("ray_cluster")
        return found

    def replicas(self, group: str) -> int:
        """Return how many replicas the autoscaler wants of a group."""
        groups = self.ray_cluster()["spec"]["workerGroupSpecs"]
        return next(int(found["replicas"]) for found in groups if found["groupName"] == group)

    def changes(self) -> list[PodChange]:
        """Return every change of a pod's state so far."""
        return [PodChange(**change) for change in self._call("journal")]

    def autoscaler_starts(self) -> int:
        """Return how often the autoscaler was started; more than once means that it ended."""
        return int(self._call("autoscaler_starts"))

    def describe(self) -> str:
        """Return pods and the ends of the logs, for the message of a failed test."""
        logs = [self.folder / "machine.log", self.folder / "autoscaler.log"]
        tails = [f"--- {log.name}\n{_tail(log)}" for log in logs if log.exists()]
        return "\n".join([*map(str, self.pods()), *tails])

    def wait_for(
        self, holds: Callable[[], bool], what: str = "it", *, wait_max_s: float = SERVICE_S
    ) -> float:
        """Wait until something holds, and return the seconds that took.

        Raises:
            TimeoutError: It did not hold in time; the message describes cluster and machine.
        """
        return wait_until(
            holds, what, wait_max_s=wait_max_s, pause_s=PAUSE_S, describe=self.describe
        )

    # ------------------------------------------------------------------ hurt

    def kill_pod(self, name: str) -> None:
        """End a pod's processes at once, as when its node is lost."""
        self._call("kill_pod", name=name)

    def delete_pod(self, name: str) -> None:
        """Delete a pod with its grace, as `kubectl delete pod` does."""
        self._call("delete_pod", name=name)

    def break_group(self, group: str, message: str = "image not found") -> None:
        """Let no new pod of a group start: its image cannot be pulled."""
        self._call("break_group", group=group, message=message)

    def slow_group(self, group: str, delay_s: float) -> None:
        """Let each new pod of a group start only after a delay."""
        self._call("slow_group", group=group, delay_s=delay_s)

    def mend_group(self, group: str) -> None:
        """Let pods of a group start again, also those that wait."""
        self._call("mend_group", group=group)

    # ------------------------------------------------------------------ use

    def popen(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        in_head: bool = True,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start a program in the head's pod; it ends with the pod at the latest.

        Args:
            command: Program and arguments; it runs in the project's folder.
            in_head: Whether it is a driver. Other programs may run beside the pods, on the same
                network: then they outlive the head.
            environ: More variables.
            options: For `subprocess.Popen`, such as pipes.
        """
        address = {"RAY_ADDRESS": self.address}
        own = installation().environ(_environment(), with_tests=True)
        variables = {**own, **address, **self._given.overrides, **(environ or {})}
        return subprocess.Popen(
            [*self._enter(in_head=in_head), *command], env=variables, cwd=ROOT, text=True, **options
        )

    def start_container(
        self,
        command: Sequence[str],
        confinement: Confinement,
        *,
        environ: Mapping[str, str],
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start a container beside the pods, on the same network; it ends with the cluster.

        Args:
            command: Program and arguments.
            confinement: What it may do.
            environ: Variables besides those of the image.
            options: For `subprocess.Popen`, such as pipes.
        """
        private = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return subprocess.Popen(
            [
                *self._enter(in_head=False),
                *private,
                *confinement.enter(command, folders=self._given.folders),
            ],
            env={**self._given.environ, **self._given.overrides, **environ},
            text=True,
            **options,
        )

    def run(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        wait_max_s: float = SERVICE_S,
    ) -> str:
        """Run a program in the head's pod, and return what it printed.

        Raises:
            AssertionError: It failed; the message has its errors.
            TimeoutError: It did not end in time; the message describes cluster and machine.
        """
        with self.popen(
            command,
            environ=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as program:
            try:
                printed, errors = program.communicate(timeout=wait_max_s)
            except subprocess.TimeoutExpired as error:
                waited = vain_wait(f"the end of {command[:3]}", wait_max_s)
                raise TimeoutError(f"{waited}\n{self.describe()}") from error
            finally:
                program.kill()
        assert program.returncode == 0, f"{command}: {errors}\n{self.describe()}"
        return printed

    def _enter(self, *, in_head: bool) -> list[str]:
        """Return the words that run a command inside; its way to the head has two steps.

        The machine knows its own processes by other numbers than this process does.
        """
        words = enter_namespaces(self._machine.pid)
        if in_head:
            head = self._call("head_pid")
            assert head is not None, f"no head\n{self.describe()}"
            words += ["nsenter", f"--target={head}", "--mount", "--pid", "--"]
        # Another mount namespace begins in its root.
        return [*words, "env", f"--chdir={ROOT}"]

    def _call(self, call: str, **arguments: Any) -> Any:
        assert self._machine.stdin is not None
        assert self._machine.stdout is not None
        try:
            print(json.dumps({"call": call, **arguments}), file=self._machine.stdin, flush=True)
            line = self._machine.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"the machine has ended:\n{_tail(self.folder / 'machine.log')}")
        answer = json.loads(line)
        if "error" in answer:
            raise LookupError(answer["error"])
        return answer["answer"]


@contextmanager
def _machine(words: Sequence[str], given: Given, log: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the first process of a cluster's namespaces for the length of a block."""
    program = [sys.executable, "-m", "tests.support.kubernetes.machine", *words]
    own = installation().environ(_environment(), with_tests=True)
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*make_namespaces(), *program],
            env=own | {GIVEN_VARIABLE: given.to_json()},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as machine,
    ):
        yield machine


def _environment() -> dict[str, str]:
    """Return the variables of all processes inside, without those of another Ray."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return {
        **kept,
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _view(pod: Mapping[str, Any]) -> PodView:
    states = [found["state"] for found in pod["status"].get("containerStatuses", ())]
    return PodView(
        name=pod["metadata"]["name"],
        group=pod["metadata"]["labels"]["ray.io/group"],
        state=state_of(dict(pod)),
        message="".join(state.get("waiting", {}).get("message", "") for state in states),
        address=pod["status"].get("podIP", ""),
    )


def _tail(log: Path) -> str:
    return log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
