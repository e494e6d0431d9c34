"""Shuts down the compactors of a stack: running jobs end or are handed back.

A short-lived process joins the cluster to do so, because Ray reads its environment only once. It
does not wait for compactors that do not answer; they are ended with the stack.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from common.wire import NAMESPACE

PROGRAM = "from neve.local.shutdown import main; main()"
CONNECT_MAX_S = 30.0


def shut_down_compactors(ray_address: str, environ: Mapping[str, str], log: Path) -> None:
    """Wait until every compactor of a cluster is idle or does not answer.

    Args:
        ray_address: Address of the cluster.
        environ: The stack's environment.
        log: Output of the process is appended to this file.
    """
    with log.open("ab") as output:
        subprocess.run(
            [sys.executable, "-c", PROGRAM, ray_address],
            env=dict(environ),
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )


def main() -> None:
    """Shut down the compactors of the cluster at the address in the first argument."""
    import ray  # only this short-lived process may load it

    from coordinator.ray_compactors import shut_down_all

    # Without this limit, a frozen cluster would block the process forever.
    limit = threading.Timer(CONNECT_MAX_S, os._exit, (1,))
    limit.start()
    address, quiet = sys.argv[1], "ERROR"
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=quiet)
    limit.cancel()
    try:
        shut_down_all()
    finally:
        ray.shutdown()
