"""A second node for a stack, on the same machine, with a compactor on it or its executors alone.

`python -m tests.support.second_node` is that node and starts the compactor; it is a
process of its own because Ray reads its environment once per process. It says where the
parts run as one line of JSON, and ends with its input.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from common.settings import CompactorSettings, StoreSettings
from common.wire import NAMESPACE
from neve.local.machine import LOOPBACK
from neve.local.servers import NODE_RESOURCE, NODE_RESOURCE_AMOUNT
from tests.support.patience import PATIENCE_S, SERVICE_S
from tests.support.stack import SETTINGS, Service

COMPACTOR = "second-1"
RESOURCE = "neve_node_second"
SPREAD = "SECOND_NODE_SPREAD"
"""Folder of scratch and secret: then the compactor runs on the first node, its executors here."""
EXECUTOR_RESOURCE, EXECUTORS = "neve_executors", 1
VARIABLES = ("SECOND_NODE_RAY", "SECOND_NODE_FOLDER", "SECOND_NODE_LOGS", "SECOND_NODE_REDIS")
"""The environment, not arguments, which everybody on the machine can read."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Ids of nodes."""

    second_node: str
    compactor: str
    executors: tuple[str, ...]
    """Of the Spark executors that the second compactor's start has added."""


@contextmanager
def second_node(service: Service, spread: Path | None = None) -> Iterator[Placement]:
    """Join a node with a compactor for the length of a block.

    Args:
        service: Whose cluster it joins.
        spread: A folder for scratch and secret. Then the compactor runs on the first node, and
            the new one has its executors.
    """
    stack = service.stack
    more = {} if spread is None else {SPREAD: str(spread)}
    logs = stack.folder.logs
    told = (stack.ray_address, str(stack.state.ray_folder), str(logs), stack.redis_url)
    with (
        (logs / "second-node.log").open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.second_node"],
            env=stack.driver_environ() | dict(zip(VARIABLES, told, strict=True)) | more,
            cwd=logs,  # workers look for modules where their driver was started
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as node,
    ):
        assert node.stdout is not None
        try:
            # Its own waits are bounded; whatever ends it closes its output.
            said = next((line for line in node.stdout if line.startswith("{")), "")
            assert said, service.describe()
            where = json.loads(said)
            yield Placement(where["second_node"], where["compactor"], tuple(where["executors"]))
            node.communicate(timeout=PATIENCE_S)
        finally:
            node.kill()


def executors() -> dict[str, str]:
    """Return the nodes of all Spark executors, by actor."""
    from ray._private.state import actors

    return {
        name: actor["Address"]["NodeID"]
        for name, actor in actors().items()
        if "RayDPExecutor" in actor["ActorClassName"]
    }


def spread_settings(folder: Path) -> CompactorSettings:
    """Return settings of a compactor whose executors are on other nodes than itself."""
    secret = folder / "jvm.options"
    secret.write_text(f"-Dspark.authenticate.secret={secrets.token_hex(32)}\n")
    return replace(
        SETTINGS.compactor,
        executors=EXECUTORS,
        executor_resource=EXECUTOR_RESOURCE,
        scratch=str(folder / "scratch"),
        spark_secret_file=str(secret),
    )


def main() -> None:
    """Be the node until the input ends."""
    import ray
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    from common.coordinator_proxy import start_compactor

    address, folder, logs, store = (os.environ[name] for name in VARIABLES)
    # `ray start` would look for a network address, which this cluster does not have.
    parameters = RayParams(
        gcs_address=address,
        node_ip_address=LOOPBACK,
        num_cpus=4,
        resources={RESOURCE: NODE_RESOURCE_AMOUNT, EXECUTOR_RESOURCE: EXECUTORS},
        object_store_memory=100_000_000,
        include_log_monitor=False,
        temp_dir=folder,
        **dict.fromkeys(("node_manager_port", "object_manager_port", "metrics_export_port"), 0),
        **dict.fromkeys(("min_worker_port", "max_worker_port", "dashboard_agent_listen_port"), 0),
    )
    node = Node(parameters, head=False, shutdown_at_exit=True, spawn_reaper=False)
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    before = executors()
    settings, where = replace(SETTINGS, store=StoreSettings(url=store)), RESOURCE
    if spread := os.environ.get(SPREAD, ""):
        settings, where = replace(settings, compactor=spread_settings(Path(spread))), NODE_RESOURCE
    actor = start_compactor(settings, name=COMPACTOR, node_resource=where, log_folder=logs)
    ray.get(actor.ping.remote(), timeout=SERVICE_S)
    added = tuple(where for name, where in executors().items() if name not in before)
    placement = Placement(node.node_id, ray.get(actor.status.remote()).node, added)
    print(json.dumps(asdict(placement)), flush=True)
    sys.stdin.read()
    ray.kill(actor)


if __name__ == "__main__":
    main()
