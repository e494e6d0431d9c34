"""Névé as the overlay `laptop` of `k8s/` has it, on a cluster under KubeRay's own autoscaler.

    with LaptopService.start(folder) as service:
        service.client.create_table("t", str(service.tables / "t"), ...)
        service.neve("group", "show", "small")

RayCluster, ConfigMap and the Deployment of `neve serve` are the rendered ones. The stand-in has
neither images nor volumes nor secrets: programs, tables and tokens are the test's. What else
differs stands in `CHANGES`; each change names what it replaces, and fails if that is not there.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from neve.client import Client
from neve.local.machine import find_redis_server
from tests.support.installed import installation
from tests.support.kubernetes.cluster import KubeRayCluster
from tests.support.kubernetes.confinement import Confinement
from tests.support.kubernetes.port_forward import forwarded
from tests.support.manifests import one, rendered, rendered_text
from tests.support.patience import SERVICE_S, vain_wait

STORE_PORT, RAY_REDIS_PORT = 7000, 7001
"""In the cluster's private network; there, 6379 is Ray's."""
HEAD_SERVICE = "neve-head-svc"
GATEWAY_TOKEN = "gateway-" + "0123456789abcdef" * 2
RAY_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 2}
IDLE_TIMEOUT_S = 10
"""Of pods without actors; the manifest's minute would be waited for again and again."""
RESTART_PAUSE_S = 3.0
"""Kubernetes waits longer. At once, Ray Client would be asked before it can start a server."""
LARGE_JOB_BYTES = 1_500_000
"""A job of more goes to the group `large`."""
TABLES = "TABLES"
CHANGES = {
    'locations = ["/data"]': f'locations = ["{TABLES}"]',
    'max_size = "64MB"': f"max_size = {LARGE_JOB_BYTES}",
    'memory = "1g"\n': 'memory = "512m"\n',
}
MORE_SETTINGS = """
[coordinator]
tick_s = 0.2

[autoscaler]
grow_after_s = 2
grow_interval_s = 5
shrink_after_s = 8
shrink_interval_s = 2
start_timeout_s = 150
"""


@dataclass(frozen=True, slots=True)
class LaptopService:
    """A running service, from outside its cluster."""

    cluster: KubeRayCluster
    client: Client
    url: str
    """Of the gateway, on this side."""
    tables: Path
    """A folder for tables, which all pods share."""

    @classmethod
    @contextmanager
    def start(cls, folder: Path, image: Mapping[str, str] | None = None) -> Iterator[Self]:
        """Start cluster, stores and service; end all of it with the block.

        Args:
            folder: For everything.
            image: The environment of what containers run; the installed wheel's if left out.
        """
        manifest, settings, tables = folder / "laptop.yaml", folder / "neve.toml", folder / "tables"
        tables.mkdir()
        manifest.write_text(rendered_text("laptop"))
        settings.write_text(changed_settings(tables))
        with (
            KubeRayCluster.start(
                manifest,
                folder=folder,
                idle_timeout_s=IDLE_TIMEOUT_S,
                gcs_redis=f"127.0.0.1:{RAY_REDIS_PORT}",
                services=[redis_command(folder, port) for port in (STORE_PORT, RAY_REDIS_PORT)],
                environ=RAY_TOKEN,
                image=image,
                written=[tables],
            ) as cluster,
            _serving(cluster, settings, folder / "serve.log") as inner,
            forwarded(cluster, inner) as url,
        ):
            yield cls(cluster, Client(url, token=GATEWAY_TOKEN), url, tables)

    def neve(self, *words: str) -> str:
        """Return what a verb of the command line prints about this service."""
        done = subprocess.run(
            [installation().neve, *words],
            env=installation().environ()
            | {"NEVE_URL": self.url, "NEVE_TOKEN": GATEWAY_TOKEN, "COLUMNS": "300"},
            capture_output=True,
            text=True,
            timeout=SERVICE_S,
            check=False,
        )
        assert not done.returncode, done.stdout + done.stderr
        return done.stdout

    def pod_of(self, compactor: str) -> str:
        """Return the pod in which a compactor runs."""
        (node,) = (e.node for e in self.client.compactors() if e.compactor == compactor)
        (found,) = (
            pod.name
            for pod in self.cluster.pods()
            for log in (self.cluster.folder / "pods" / pod.name).glob(
                "ray/session_2*/logs/raylet.out"
            )
            if f"Setting node ID node_id={node}" in log.read_text(errors="replace")
        )
        return found


def changed_settings(tables: Path) -> str:
    """Return the ConfigMap's `neve.toml` with what a test and a small machine need."""
    text: str = one(rendered("laptop"), "ConfigMap", "neve-settings")["data"]["neve.toml"]
    for old, new in CHANGES.items():
        assert text.count(old) == 1, f"{old!r} is not once in neve.toml:\n{text}"
        text = text.replace(old, new.replace(TABLES, str(tables)))
    return text + MORE_SETTINGS


def redis_command(folder: Path, port: int) -> list[str]:
    """Return the words that start a store which keeps what it hears."""
    data = folder / f"redis-{port}"
    data.mkdir()
    program = str(find_redis_server(os.environ).program)
    words = ["--port", str(port), "--dir", str(data), "--appendonly", "yes", "--save", ""]
    return [program, *words]


@contextmanager
def _serving(cluster: KubeRayCluster, settings: Path, log: Path) -> Iterator[str]:
    """Run the Deployment's container beside the pods; yield the gateway's URL once it answers."""
    template = one(rendered("laptop"), "Deployment", "neve-serve")["spec"]["template"]
    (container,) = template["spec"]["containers"]
    confinement = Confinement.of(template["spec"], container)
    variables = serve_variables(container, cluster, settings)

    def started() -> tuple[subprocess.Popen[str], str]:
        with log.open("ab") as errors:
            process = cluster.start_container(
                [*container["command"], "--json"],
                confinement,
                environ=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        return process, _answer(process)

    end_s = time.monotonic() + SERVICE_S
    process, said = started()
    while not said:
        # Kubernetes starts a container again that ends: it may have come before the head.
        if time.monotonic() >= end_s:
            waited = vain_wait("`neve serve`, which must answer", SERVICE_S)
            raise TimeoutError(f"{waited}\n{log.read_text()}\n{cluster.describe()}")
        process.communicate()
        time.sleep(RESTART_PAUSE_S)
        process, said = started()
    try:
        yield str(json.loads(said)["url"])
    finally:
        # This is the way in; the program itself ends with the cluster.
        process.kill()
        assert process.stdout is not None
        process.stdout.close()
        process.wait()


def _answer(process: subprocess.Popen[str]) -> str:
    """Return the line of JSON that says where the service is; empty if the process ends before."""
    assert process.stdout is not None
    return next((line for line in process.stdout if json.loads(line)["step"] == "answers"), "")


def serve_variables(
    container: dict[str, Any], cluster: KubeRayCluster, settings: Path
) -> dict[str, str]:
    """Return a container's variables: literal ones, secrets of the test, its file of settings."""
    literal = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    head = cluster.address.partition(":")[0]
    referred = {each["name"] for each in container["env"] if "valueFrom" in each}
    assert referred == {"RAY_AUTH_TOKEN"}
    files = {
        "NEVE_STORE_URL_FILE": f"redis://127.0.0.1:{STORE_PORT}/0",
        "NEVE_GATEWAY_TOKEN_FILE": GATEWAY_TOKEN,
    }
    for name, secret in files.items():
        path = settings.parent / f"secret-{name}"
        path.write_text(secret)
        literal[name] = str(path)
    return {
        **literal,
        "RAY_AUTH_TOKEN": RAY_TOKEN["RAY_AUTH_TOKEN"],
        "NEVE_CONFIG": str(settings),
        # There is no server of names in the network of the test.
        "RAY_ADDRESS": literal["RAY_ADDRESS"].replace(HEAD_SERVICE, head),
    }
