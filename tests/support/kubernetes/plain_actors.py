"""A driver whose actors need a resource each: `python -m tests.support.kubernetes.plain_actors`.

Once it has joined the cluster it prints a line. Then it reads one JSON list a line and answers each
with a line; `PlainActors` is the other end.

    ["start", "neve_group_small", ["a", "b"]]  → null, at once: actors may be pending
    ["ask", ["a", "b"]]                        → {"a": "neve-small-worker-…", "b": …}
    ["kill", ["a", "b"]]                       → null

Actors are detached and start again wherever there is room, as often as it takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from tests.support.kubernetes.cluster import PAUSE_S, KubeRayCluster
from tests.support.patience import SERVICE_S, vain_wait

WAITED = "waited in vain"
"""Name of the only entry of an answer that did not come in time: its message."""


class PlainActors:
    """The driver, run inside a cluster."""

    def __init__(self, driver: subprocess.Popen[str]) -> None:
        self._driver = driver

    @classmethod
    @contextmanager
    def run_in(cls, cluster: KubeRayCluster) -> Iterator[Self]:
        """Run the driver for the length of a block, once one has joined the cluster.

        Ray gives up on a head that is slow to start its parts, sometimes by ending the process.
        """
        end_s = time.monotonic() + SERVICE_S
        while True:
            cluster.wait_for(cluster.head_listens, "a head for the driver")
            with cluster.popen(
                [sys.executable, "-m", "tests.support.kubernetes.plain_actors"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            ) as driver:
                try:
                    if driver.stdout and driver.stdout.readline():
                        yield cls(driver)
                        driver.communicate(timeout=SERVICE_S)
                        return
                finally:
                    driver.kill()
            if time.monotonic() >= end_s:
                waited = vain_wait("a driver that joins the cluster", SERVICE_S)
                raise TimeoutError(f"{waited}\n{cluster.describe()}")
            time.sleep(PAUSE_S)

    def start(self, resource: str, names: Sequence[str]) -> None:
        """Create actors that need one of a resource each; does not wait for them."""
        self._call("start", resource, list(names))

    def ask(self, names: Sequence[str]) -> dict[str, str]:
        """Wait until actors answer, and return the pod of each."""
        answered: dict[str, str] = self._call("ask", list(names))
        return answered

    def kill(self, names: Sequence[str]) -> None:
        """End actors for good."""
        self._call("kill", list(names))

    def _call(self, *words: Any) -> Any:
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        print(json.dumps(words), file=self._driver.stdin, flush=True)
        line = self._driver.stdout.readline()
        assert line, "the driver has ended; its errors stand above"
        answer = json.loads(line)
        if isinstance(answer, dict) and WAITED in answer:
            raise TimeoutError(answer[WAITED])
        return answer


def main() -> None:
    """Serve calls until the input ends."""
    # Ray prints what it has to say about nodes; it must not stand among the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    import ray

    class Plain:
        def pod(self) -> str:
            return os.environ["RAY_CLOUD_INSTANCE_ID"]

    remote: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, lifetime="detached")(
        Plain
    )

    def start(resource: str, names: list[str]) -> None:
        for name in names:
            remote.options(name=name, resources={resource: 1}).remote()

    def ask(names: list[str]) -> dict[str, str]:
        asked = [ray.get_actor(name).pod.remote() for name in names]
        _, pending = ray.wait(asked, num_returns=len(asked), timeout=SERVICE_S)
        waited = vain_wait(f"answers of the actors {', '.join(names)}", SERVICE_S)
        return {WAITED: waited} if pending else dict(zip(names, ray.get(asked), strict=True))

    def kill(names: list[str]) -> None:
        for name in names:
            ray.kill(ray.get_actor(name))

    ray.init(address="auto", namespace="plain", log_to_driver=False, logging_level="ERROR")
    print(json.dumps("joined"), file=answers, flush=True)
    calls: dict[str, Callable[..., Any]] = {"start": start, "ask": ask, "kill": kill}
    for line in sys.stdin:
        call, *arguments = json.loads(line)
        print(json.dumps(calls[call](*arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main()
