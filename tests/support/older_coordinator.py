"""Start the coordinator of an older release on a cluster of this one: a program of its own.

It runs with the older release first in `PYTHONPATH`, and so does the coordinator. It uses nothing
else of the tests. What it prints says which `common.wire` a process of the cluster with this
environment has imported.
"""

from __future__ import annotations

import os
import sys

import ray

from common import wire
from common.settings import CoordinatorSettings, Settings, StoreSettings

VARIABLES = ("OLDER_RAY", "OLDER_REDIS", "OLDER_LOGS")
"""The environment, not arguments, which everybody on the machine can read."""


def wire_module() -> str:
    """Return where the messages come from."""
    return str(sys.modules[wire.__name__].__file__)


def main() -> None:
    """Start the coordinator and return when it is ready."""
    from coordinator.actor import start  # of the older release

    address, store, logs = (os.environ[name] for name in VARIABLES)
    # The older release has its own link to Redis, which fails on a loop that it does not bring.
    variables = {"PYTHONPATH": os.environ["PYTHONPATH"], "RAY_USE_UVLOOP": "0"}
    environment = {"env_vars": variables}
    ray.init(address=address, namespace=wire.NAMESPACE, log_to_driver=False, logging_level="ERROR")
    # Of the older release: it has fewer settings.
    rules = CoordinatorSettings(tick_s=0.2, full_scan_interval_s=5.0, garbage_grace_s=1.0)
    settings = Settings(store=StoreSettings(url=store), coordinator=rules)
    actor = start(settings, log_folder=logs, runtime_env=environment)
    ray.get(actor.ping.remote())
    where = ray.remote(wire_module).options(num_cpus=0, runtime_env=environment)
    print(ray.get(where.remote()))


if __name__ == "__main__":
    main()
