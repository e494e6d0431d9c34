"""The actors of a stack, started by a short-lived driver process.

The driver joins the cluster, starts coordinator, compactors and gateway as detached
actors, and says on its output, one JSON object per line, what it did. It is a process
of its own because Ray reads its environment only once: so neither the command line nor
a test has to import Ray, and two stacks can be started by one process. Each actor module
offers `start`; this is the only place that calls it.
"""

import importlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from common.errors import ConfigError
from common.settings import Settings
from common.wire import NAMESPACE
from neve.local.ports import bound

DRIVER = "from neve.local.actors import main; main()"
END_WAIT_MAX_S = 30.0
READY_WAIT_MAX_S = 400.0
"""For one actor; Spark may start slowly on a small machine."""
LOG_TAIL_BYTES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorsPlan:
    """Everything the driver needs; holds secrets, so its file is for the owner only."""

    ray_address: str
    settings: Settings
    compactors: int
    node_resource: str
    logs: str
    gateway_port_insisted: bool = False
    """Whether the operator wants this port and no other."""


def start_actors(
    plan: ActorsPlan,
    folder: Path,
    environ: Mapping[str, str],
    on_progress: Callable[[str], None],
) -> str:
    """Run the driver and return the address of the gateway.

    Args:
        plan: What to start.
        folder: The stack's, where the plan is handed over and the driver's log is kept.
        environ: The stack's environment.
        on_progress: Hears one sentence per step.
    """
    plan_file = folder / "actors.plan"
    log = folder / "logs" / "actors.log"
    descriptor = os.open(plan_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as output:
        pickle.dump(plan, output)
    try:
        with log.open("wb") as errors:
            driver = subprocess.Popen(
                [sys.executable, "-c", DRIVER, str(plan_file)],
                env=dict(environ),
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        with driver:
            return _follow(driver, log, on_progress)
    finally:
        plan_file.unlink(missing_ok=True)


def _follow(driver: subprocess.Popen[str], log: Path, on_progress: Callable[[str], None]) -> str:
    """Pass the driver's steps on until it names the gateway's address."""
    assert driver.stdout is not None
    said: dict[str, str] = {}
    try:
        for line in driver.stdout:
            said = _said(line) or said
            if "step" in said:
                on_progress(said["step"])
            else:
                driver.wait(timeout=END_WAIT_MAX_S)
    except BaseException:
        driver.kill()
        raise
    if "gateway_url" in said:
        return said["gateway_url"]
    raise ConfigError(f"starting the actors failed: {said.get('error') or _tail(log)} (see {log})")


def _tail(log: Path) -> str:
    """Return the last line of a log."""
    lines = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "the driver said nothing"


def _said(line: str) -> dict[str, str]:
    """Return what a line of the driver says; libraries may print lines of their own."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _say(**words: str) -> None:
    """Tell the parent one thing."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def drive(plan: ActorsPlan) -> str:
    """Join the cluster, start all actors and return the gateway's address.

    Args:
        plan: What to start.
    """
    import ray  # only the driver process may load it

    address, quiet = plan.ray_address, "ERROR"
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=quiet)
    try:
        port = _start_all(plan)
    finally:
        ray.shutdown()
    return f"http://{plan.settings.gateway.host}:{port}"


def _start_all(plan: ActorsPlan) -> int:
    """Start the actors and wait until all answer; return the gateway's port.

    Compactors open Spark side by side.
    """
    _say(step="starting the coordinator")
    _wait(_start("coordinator.actor", plan.settings))
    names = [f"local-{number}" for number in range(1, plan.compactors + 1)]
    more = {"node_resource": plan.node_resource, "log_folder": plan.logs}
    if names:
        _say(step=f"starting {len(names)} compactors with Spark on RayDP")
    compactors = [_start("compactor.actor", plan.settings, name=name, **more) for name in names]
    _say(step="starting the gateway")
    port = bound(
        partial(_start_gateway, plan.settings),
        plan.settings.gateway.port,
        insisted=plan.gateway_port_insisted,
    )
    for name, compactor in zip(names, compactors, strict=True):
        _say(step=f"waiting for compactor {name}")
        _wait(compactor)
    return port


def _start_gateway(settings: Settings, port: int) -> None:
    gateway = replace(settings.gateway, port=port)
    _start("neve.gateway.actor", replace(settings, gateway=gateway))


def _start(module: str, settings: Settings, **more: Any) -> Any:
    """Call the `start` of an actor module and return the actor's handle."""
    return importlib.import_module(module).start(settings, **more)


def _wait(actor: Any) -> None:
    """Return when an actor answers that it is ready."""
    import ray  # only the driver process may load it

    ray.get(actor.ping.remote(), timeout=READY_WAIT_MAX_S)


def main() -> None:
    """Run the driver on the plan named by the first argument."""
    plan = pickle.loads(Path(sys.argv[1]).read_bytes())
    assert isinstance(plan, ActorsPlan), type(plan)
    try:
        url = drive(plan)
    except Exception as error:
        # The boundary of the process: the parent raises this as its own error.
        _say(error=f"{type(error).__name__}: {error}".strip().splitlines()[0])
        raise
    _say(gateway_url=url)
