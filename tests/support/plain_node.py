"""A node of a Ray cluster on this machine with nothing on it, as a worker group's pod is.

`python -m tests.support.plain_node` is that node; what it offers, and what its processes find in
their environment, says who starts it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from neve.local import LocalStack
from neve.local.machine import LOOPBACK
from tests.support.patience import PATIENCE_S

VARIABLES = ("PLAIN_NODE_RAY", "PLAIN_NODE_FOLDER", "PLAIN_NODE_OFFERS", "PLAIN_NODE_RELEASE")


@contextmanager
def plain_node(
    stack: LocalStack,
    resources: Mapping[str, float],
    *,
    cpus: int,
    memory_bytes: int,
    java: bool,
    release: Path | None = None,
) -> Iterator[None]:
    """Join a node for the length of a block.

    Args:
        stack: Whose cluster it joins.
        resources: Its custom resources.
        cpus: That it says it has.
        memory_bytes: Likewise.
        java: Whether its processes find a Java, as in an image that has one.
        release: Folder of another release, which its processes import, as in an older image.
    """
    state = stack.folder.load()
    assert state is not None
    offers = json.dumps([dict(resources), cpus, memory_bytes])
    environ = stack.driver_environ()
    if not java:
        del environ["JAVA_HOME"]
        environ["PATH"] = os.path.dirname(sys.executable)
    values = (state.ray_address, str(state.ray_folder), offers, str(release or ""))
    with (
        (stack.folder.logs / "plain-node.log").open("ab") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.plain_node"],
            env=environ | dict(zip(VARIABLES, values, strict=True)),
            cwd=stack.folder.logs,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as node,
    ):
        assert node.stdout is not None
        try:
            assert node.stdout.readline() == "up\n", stack.folder.logs
            yield
            node.communicate(timeout=PATIENCE_S)
        finally:
            node.kill()


def main() -> None:
    """Be the node until the input ends."""
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    address, folder, offers, release = (os.environ[name] for name in VARIABLES)
    if release:
        # Not before: this program's own modules are of this release.
        path = [release, *os.environ["PYTHONPATH"].split(os.pathsep)]
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
    resources, cpus, memory_bytes = json.loads(offers)
    parameters = RayParams(
        gcs_address=address,
        node_ip_address=LOOPBACK,
        num_cpus=cpus,
        memory=memory_bytes,
        resources=resources,
        object_store_memory=100_000_000,
        include_log_monitor=False,
        temp_dir=folder,
        **dict.fromkeys(("node_manager_port", "object_manager_port", "metrics_export_port"), 0),
        **dict.fromkeys(("min_worker_port", "max_worker_port", "dashboard_agent_listen_port"), 0),
    )
    node = Node(parameters, head=False, shutdown_at_exit=True, spawn_reaper=False)
    print("up", flush=True)
    sys.stdin.read()
    node.kill_all_processes(check_alive=False, allow_graceful=True)


if __name__ == "__main__":
    main()
