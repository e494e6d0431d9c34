"""The actors of a stack, started by a short-lived driver process.

The driver joins the cluster, starts coordinator, compactors and gateway as detached actors, and
reports its progress on standard output, one JSON object per line. The driver is a separate process
because Ray reads its environment only once. Neither the command line nor a test has to import Ray,
and one process can start two stacks.
"""

import json
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from common.errors import CompactionError, ConfigError, actor_error, first_line
from common.settings import Settings
from common.units import format_count
from neve.local.logs import COORDINATOR, GATEWAY, RAY, REDIS, START, SUPERVISOR, StackLogs
from neve.local.machine import start_on_free_port
from neve.local.stack_folder import StackState

Died = Callable[[], tuple[str, str] | None]
DRIVER = "from neve.local.actors import main; main()"
END_WAIT_MAX_S = 30.0
READY_WAIT_MAX_S = 400.0
"""Limit for one actor; Spark may start slowly on a small machine."""
LOOK_S = 1.0
RESTARTS_MAX = 2
"""An actor that restarts more often during its start counts as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorsPlan:
    """Everything the driver needs. It holds secrets, so only the owner may read its file."""

    ray_address: str
    settings: Settings
    node_resource: str
    logs: str
    gateway_port_insisted: bool = False
    """Whether the operator requires exactly this port."""
    only: str = ""
    """The only actor to restart, by the name of its log; empty: start all actors."""


class PartError(CompactionError):
    """A part of the stack did not start; `part` names its log file."""

    def __init__(self, part: str, cause: str) -> None:
        super().__init__(cause)
        self.part = part


def ended_part(state: StackState) -> tuple[str, str] | None:
    """Return the log name of a part with a dead process, and that process's role; or None."""
    main = (each for each in state.processes if each.role != SUPERVISOR)
    ended = [process.role for process in main if not process.alive()]
    if not ended:
        return None
    return (REDIS if ended[0] == REDIS else RAY), ended[0]


def start_actors(
    plan: ActorsPlan,
    folder: Path,
    environ: Mapping[str, str],
    on_progress: Callable[[str], None],
    died: Died,
) -> str:
    """Run the driver and return the address of the gateway.

    Args:
        plan: What to start.
        folder: The stack's folder, which holds the plan file for the driver.
        environ: The stack's environment.
        on_progress: Called with one sentence per step.
        died: Returns a part of the stack that has ended since and the role of its dead process;
            None if all processes are alive.
    """
    plan_file = folder / f"actors{plan.only}.plan"
    log = StackLogs(Path(plan.logs)).path(START)
    descriptor = os.open(plan_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as output:
        pickle.dump(plan, output)
    try:
        with log.open("ab") as errors:
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
            try:
                return _follow(driver, StackLogs(Path(plan.logs)), on_progress, died)
            except BaseException:
                driver.kill()
                raise
    finally:
        plan_file.unlink(missing_ok=True)


def _follow(
    driver: "subprocess.Popen[str]",
    logs: StackLogs,
    on_progress: Callable[[str], None],
    died: Died,
) -> str:
    """Forward the driver's steps until it reports the gateway's address.

    Raises:
        PartError: A part died, or did not start.
    """
    message: dict[str, str] = {}
    for line in _lines(driver):
        if line is None:
            if (ended := died()) is not None:
                last = logs.last_words(ended[0])
                raise PartError(ended[0], f"process {ended[1]} ended during the start: {last}")
            continue
        if news := _parse_message(line):
            message = news
            if "step" in message:
                on_progress(message["step"])
    driver.wait(timeout=END_WAIT_MAX_S)
    if "gateway_url" in message:
        return message["gateway_url"]
    part = message.get("part", START)
    raise PartError(part, message.get("error") or f"the start ended: {logs.last_words(START)}")


def _lines(driver: "subprocess.Popen[str]") -> Iterator[str | None]:
    """Yield the output lines of a process, and None after each interval without output."""
    output = driver.stdout
    assert output is not None
    heard: queue.Queue[str | None] = queue.Queue()

    def listen() -> None:
        for line in output:
            heard.put(line)
        heard.put(None)

    listener = threading.Thread(target=listen, daemon=True, name="start-output")
    listener.start()
    while True:
        try:
            line = heard.get(timeout=LOOK_S)
        except queue.Empty:
            yield None
            continue
        if line is None:
            return
        yield line


def _parse_message(line: str) -> dict[str, str]:
    """Return the message in a line of the driver; libraries may print other lines."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _send_message(**words: str) -> None:
    """Send one message to the parent process."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def drive(plan: ActorsPlan) -> str:
    """Join the cluster, start all actors and return the gateway's address.

    Args:
        plan: What to start.
    """
    import ray  # only the driver process may load it

    from common.wire import NAMESPACE

    address, quiet = plan.ray_address, "ERROR"
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=quiet)
    try:
        port = _start_again(plan) if plan.only else _start_all(plan)
    finally:
        ray.shutdown()
    gateway = plan.settings.gateway
    scheme = "https" if gateway.tls_certificate else "http"
    return f"{scheme}://{reached_at(gateway.host)}:{port}"


def reached_at(host: str) -> str:
    """Return the host by which this machine reaches a server that listens on `host`."""
    own = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
    return own.get(host, f"[{host}]" if ":" in host else host)


def _start_all(plan: ActorsPlan) -> int:
    """Start the actors and wait until all of them answer; return the gateway's port.

    Coordinator and compactors start concurrently, since a compactor first opens Spark.
    """
    from common.coordinator_proxy import start_compactor, start_coordinator  # imports Ray

    _send_message(step="starting the coordinator")
    logs, begun_s = StackLogs(Path(plan.logs)), time.monotonic()
    with _part(COORDINATOR):
        coordinator = start_coordinator(plan.settings, **_place(plan))
    chosen = list(plan.settings.compactor_names())
    if chosen:
        _send_message(step=f"starting {format_count(len(chosen), 'compactor')} with Spark on RayDP")
    compactors = [
        (name, start_compactor(plan.settings, name=name, group=group, **_place(plan)))
        for group, name in chosen
    ]
    with _part(COORDINATOR):
        _wait(coordinator, partial(logs.last_words, COORDINATOR))
    _send_answers("the coordinator", begun_s)
    _send_message(step="starting the gateway")
    with _part(GATEWAY):
        port = start_on_free_port(
            partial(_start_gateway, plan),
            plan.settings.gateway.port,
            insisted=plan.gateway_port_insisted,
        )
    _send_answers("the gateway", begun_s)
    for name, compactor in compactors:
        _send_message(step=f"waiting for compactor {name}")
        with _part(part := f"compactor-{name}"):
            _wait(compactor, partial(logs.last_words, part), engine=True)
        _send_answers(f"compactor {name}", begun_s)
    return port


def _send_answers(part: str, begun_s: float) -> None:
    _send_message(step=f"{part} answers after {time.monotonic() - begun_s:.1f} s")


def _start_again(plan: ActorsPlan) -> int:
    """Restart one actor and return the gateway's port.

    An actor that still exists does not answer: its process is killed and Ray restarts it.
    """
    import ray  # only the driver process may load it

    from common.coordinator_proxy import start_coordinator
    from common.wire import COORDINATOR_NAME, GATEWAY_NAME, NAMESPACE

    name = {COORDINATOR: COORDINATOR_NAME, GATEWAY: GATEWAY_NAME}[plan.only]
    with suppress(ValueError):
        ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=False)
    with _part(plan.only):
        if plan.only == COORDINATOR:
            words = partial(StackLogs(Path(plan.logs)).last_words, COORDINATOR)
            _wait(start_coordinator(plan.settings, **_place(plan)), words)
        else:
            _start_gateway(plan, plan.settings.gateway.port)
    return plan.settings.gateway.port


@contextmanager
def _part(part: str) -> Iterator[None]:
    """Raise any failure as a `PartError` that names the part."""
    try:
        yield
    except Exception as error:
        cause = first_line(error) if isinstance(error, CompactionError) else actor_error(error)
        raise PartError(part, f"{part} did not start: {cause}") from error


def _start_gateway(plan: ActorsPlan, port: int) -> None:
    gateway = replace(plan.settings.gateway, port=port)
    from neve.gateway.actor import start  # only the driver process may load it

    start(replace(plan.settings, gateway=gateway), log_folder=plan.logs)


def _place(plan: ActorsPlan) -> dict[str, str]:
    return {"log_folder": plan.logs, "node_resource": plan.node_resource}


def _wait(actor: Any, last_words: Callable[[], str], *, engine: bool = False) -> None:
    """Wait until an actor answers that it is ready.

    Args:
        actor: The coordinator, or a compactor.
        last_words: Returns the actor's last log message.
        engine: Whether the actor has an engine, which may fail to start while the actor is alive.

    Raises:
        ConfigError: The actor or its engine dies repeatedly, or the actor takes too long.
    """
    import ray  # only the driver process may load it

    answer, before = actor.ping.remote(), _restarts(actor)
    for _ in range(int(READY_WAIT_MAX_S / LOOK_S)):
        if ray.wait([answer], timeout=LOOK_S)[0]:
            try:
                ray.get(answer)
            except ray.exceptions.ActorUnavailableError:
                answer = actor.ping.remote()
            else:
                return
        if (restarts := _restarts(actor) - before) > RESTARTS_MAX:
            raise ConfigError(f"its process has ended {restarts} times: {last_words()}")
        failures, cause = _failed_starts(actor) if engine else (0, "")
        if failures > RESTARTS_MAX:
            raise ConfigError(f"{cause} (tried {failures} times)")
    raise ConfigError(f"it did not answer within {READY_WAIT_MAX_S:.0f} s")


def _failed_starts(actor: Any) -> tuple[int, str]:
    """Return how often the engine of a compactor has failed to start, and why."""
    import ray  # only the driver process may load it

    try:
        failed: tuple[int, str] = ray.get(actor.failed_starts.remote(), timeout=LOOK_S)
    except (ray.exceptions.RayError, TimeoutError):
        return 0, ""  # The actor itself is still starting.
    return failed


def _restarts(actor: Any) -> int:
    """Return how often Ray has restarted an actor."""
    from ray._private.state import actors  # the only source without a dashboard

    return int(actors(actor._actor_id.hex()).get("NumRestarts", 0))  # noqa: SLF001 - as above


def main() -> None:
    """Run the driver on the plan file in the first argument."""
    plan = pickle.loads(Path(sys.argv[1]).read_bytes())
    assert isinstance(plan, ActorsPlan), type(plan)
    try:
        url = drive(plan)
    except Exception as error:
        # Process boundary: the parent raises this as its own error.
        _send_message(error=first_line(error), part=getattr(error, "part", START))
        raise
    _send_message(gateway_url=url)
