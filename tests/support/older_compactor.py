"""Start a compactor of an older release on a cluster of this one: a program of its own.

It runs with the older release first in `PYTHONPATH`, and so does the compactor with everything
that it starts. It uses nothing else of the tests. What it prints says which `common.wire` a
process of the cluster with this environment has imported.
"""

from __future__ import annotations

import os
import sys

import ray

from common import wire
from common.settings import CompactorSettings, Settings, StoreSettings

COMPACTOR = "older-1"
VARIABLES = ("OLDER_RAY", "OLDER_REDIS", "OLDER_LOGS", "OLDER_NODE_RESOURCE")
"""The environment, not arguments, which everybody on the machine can read."""


def wire_module() -> str:
    """Return where the messages come from."""
    return str(sys.modules[wire.__name__].__file__)


def main() -> None:
    """Start the compactor and return when its Spark is up."""
    from compactor.actor import start  # of the older release

    address, store, logs, node_resource = (os.environ[name] for name in VARIABLES)
    # The older release has its own link to Redis, which fails on a loop that it does not bring.
    variables = {"PYTHONPATH": os.environ["PYTHONPATH"], "RAY_USE_UVLOOP": "0"}
    environment = {"env_vars": variables}
    ray.init(address=address, namespace=wire.NAMESPACE, log_to_driver=False, logging_level="ERROR")
    settings = Settings(
        store=StoreSettings(url=store),
        compactor=CompactorSettings(
            slots=1,
            beat_interval_s=0.5,
            take_wait_max_s=5.0,
            executor_memory="512m",
            driver_memory="512m",
        ),
    )
    actor = start(
        settings,
        name=COMPACTOR,
        node_resource=node_resource,
        log_folder=logs,
        runtime_env=environment,
    )
    ray.get(actor.ping.remote())
    where = ray.remote(wire_module).options(num_cpus=0, runtime_env=environment)
    print(ray.get(where.remote()))


if __name__ == "__main__":
    main()
