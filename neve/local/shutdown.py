"""Shuts the compactors of a stack down: running jobs end or are handed back.

A short-lived process joins the cluster for it, because Ray reads its environment only once.
A compactor that does not answer is not waited for; it is ended with the stack.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.wire import NAMESPACE, compactor_actor_name

PROGRAM = "from neve.local.shutdown import main; main()"
CONNECT_MAX_S = 30.0
ANSWER_MAX_S = 10.0
_PREFIX = compactor_actor_name("")


def shut_down_compactors(ray_address: str, environ: Mapping[str, str], log: Path) -> None:
    """Return when no compactor of a cluster runs a job, or none of those that do answers.

    Args:
        ray_address: Of the cluster.
        environ: The stack's environment.
        log: Gets what the process says.
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
    """Shut down the compactors of the cluster that the first argument names."""
    import ray  # only this short-lived process may load it

    # A cluster that is frozen would be waited for without end.
    limit = threading.Timer(CONNECT_MAX_S, os._exit, (1,))
    limit.start()
    address, quiet = sys.argv[1], "ERROR"
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=quiet)
    limit.cancel()
    try:
        names = ray.util.list_named_actors()
        compactors = [ray.get_actor(each) for each in names if each.startswith(_PREFIX)]
        _shut_down(compactors)
    finally:
        ray.shutdown()


def _shut_down(compactors: list[Any]) -> None:
    """Shut compactors down side by side, and wait for those that answer."""
    import ray  # only this short-lived process may load it

    calls = [each.shut_down.remote() for each in compactors]
    asked = [each.shut_down_max_s.remote() for each in compactors]
    answered = ray.wait(asked, num_returns=len(asked), timeout=ANSWER_MAX_S)[0] if asked else []
    waits_s = [_longest_s(each) for each in answered]
    waited = [call for call, question in zip(calls, asked, strict=True) if question in answered]
    if waited:
        ray.wait(waited, num_returns=len(waited), timeout=max(waits_s))


def _longest_s(question: Any) -> float:
    """Return the longest time that a compactor needs; 0: it has died."""
    import ray  # only this short-lived process may load it

    try:
        return float(ray.get(question))
    except ray.exceptions.RayError:
        return 0.0
