"""Start a compactor and a gateway of this release beside a coordinator of another one.

A program of its own, since Ray reads its environment once per process. It prints where the
gateway is, and ends.
"""

from __future__ import annotations

import os
from dataclasses import replace

import ray

from common.control_settings import ControlSettings
from common.coordinator_proxy import start_compactor
from common.settings import StoreSettings
from common.wire import NAMESPACE
from neve.gateway.actor import start as start_gateway
from tests.support.stack import SETTINGS

COMPACTOR = "default-1"
VARIABLES = ("PARTS_RAY", "PARTS_REDIS", "PARTS_LOGS", "PARTS_NODE_RESOURCE", "PARTS_TOKEN")
"""The environment, not arguments, which everybody on the machine can read."""


def main() -> None:
    """Start both and return when they answer."""
    address, store, logs, node_resource, token = (os.environ[name] for name in VARIABLES)
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    gateway = replace(SETTINGS.gateway, token=token, locations=("/",))
    # The older coordinator has no call for what reads and appends move.
    settings = replace(
        SETTINGS,
        store=StoreSettings(url=store),
        compactor=replace(SETTINGS.compactor, engine="local"),
        gateway=gateway,
        control=ControlSettings(),
    )
    door = start_gateway(settings, log_folder=logs)
    compactor = start_compactor(
        settings, name=COMPACTOR, node_resource=node_resource, log_folder=logs
    )
    ray.get(compactor.ping.remote())
    print(ray.get(door.address.remote()))


if __name__ == "__main__":
    main()
