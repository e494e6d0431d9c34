"""`neve serve`: start the service, watch it, then leave it running or stop it.

Every round checks each actor once. A missing actor is started, and an actor that is silent for long
is restarted. If the cluster cannot be reached for long, the process exits: its supervisor starts it
again with a fresh connection.
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import ray
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import (
    gcs_service_pb2,
    gcs_service_pb2_grpc,
    ray_client_pb2,
    ray_client_pb2_grpc,
)

import neve.gateway.actor
from common.compactor_needs import Offers
from common.coordinator_proxy import start_coordinator
from common.errors import ConfigError, UnavailableError, first_line
from common.primitives import digest
from common.runtime import Clock, SystemClock
from common.settings import Settings
from common.telemetry import Log, event_log
from common.wire import COORDINATOR_NAME, GATEWAY_NAME, NAMESPACE, PIN_AMOUNT, CoordinatorStatus
from coordinator.ray_compactors import shut_down_all
from neve import __version__
from neve.serve.preflight import (
    CLIENT_SCHEME,
    CONNECT_WAIT_S,
    NotYetError,
    checked_address,
    joining_problem,
    missing_resources,
)
from neve.serve.watch import News, PartWatch, Remedy, ServeStep, Sight

# ------------------------------------------------------------------------------------------- Probes
# `/live` and `/ready`: the Kubernetes probes of the `neve serve` process.
#
# Plain HTTP of the standard library, in its own threads, so that probes are answered while the
# watchdog waits.


IDLE_MAX_S = 5.0
"""A client that sends nothing for this time is disconnected."""


@dataclass(frozen=True, slots=True)
class Health:
    """Answer to a probe."""

    well: bool
    facts: Mapping[str, Any]


class Probes:
    """HTTP server for the probes, until it is closed."""

    def __init__(
        self, host: str, port: int, *, live: Callable[[], Health], ready: Callable[[], Health]
    ) -> None:
        """Start listening.

        Args:
            host: Address to listen on.
            port: Port to listen on; 0: any free port.
            live: Returns whether the process makes progress.
            ready: Returns whether the watched actors answer.

        Raises:
            ConfigError: The address cannot be used.
        """
        pages = {"/live": live, "/ready": ready}
        handler = type("ProbeHandler", (_Handler,), {"pages": pages})
        try:
            self._server = ThreadingHTTPServer((host, port), handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port} for probes: {error.strerror}; choose another"
                " --health-port"
            ) from error
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, daemon=True, name="probes"
        )
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers 200 if healthy, else 503; the JSON body holds the reasons."""

    pages: Mapping[str, Callable[[], Health]] = {}
    timeout = IDLE_MAX_S
    server_version = "neve"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a probe."""
        page = self.pages.get(self.path)
        if page is None:
            self._answer(
                404, {"error": f"path {self.path[:64]!r} does not exist, expected /live or /ready"}
            )
            return
        health = page()
        self._answer(200 if health.well else 503, health.facts)

    def _answer(self, status: int, facts: Mapping[str, Any]) -> None:
        body = json.dumps(facts).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log nothing, because probes arrive every few seconds."""


# ----------------------------------------------------------------------------------- Service actors
# Coordinator and gateway on a Ray cluster: find, start, replace and end them.
#
# Ray must be initialised, as a driver of the cluster or through Ray Client.


ANSWER_WAIT_S = 5.0
NAME_GONE_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class _Part:
    """One actor of the service, and the method that checks whether it works."""

    name: str
    actor: str
    start: Callable[..., Any]
    question: str


PARTS = {
    part.name: part
    for part in (
        _Part("coordinator", COORDINATOR_NAME, start_coordinator, "ping"),
        _Part("gateway", GATEWAY_NAME, neve.gateway.actor.start, "address"),
    )
}
"""In start order."""


def edition_of(settings: Settings) -> str:
    """Return a digest that identifies a service's settings and release."""
    values = asdict(replace(settings, sources={}))
    return digest([__version__, json.dumps(values, sort_keys=True, default=str)])


class ServiceActors:
    """The two actors that exist once per service."""

    def __init__(self, settings: Settings) -> None:
        """Keep the settings; start nothing."""
        self._settings = settings
        self._edition = edition_of(settings)

    def look(self, part: str) -> Sight:
        """Return the condition of an actor; wait at most `ANSWER_WAIT_S` for its answer."""
        actor = self._actor(part)
        if actor is None:
            return Sight.GONE
        if self._ask(actor, PARTS[part].question) is not None:
            return Sight.ANSWERS
        return Sight.SILENT if self.is_placeable() else Sight.WAITS

    def is_placeable(self) -> bool:
        """Return whether a node has the resource that the settings require for the service."""
        resource = self._settings.cluster.service_resource
        return not resource or bool(ray.cluster_resources().get(resource))

    def start(self, part: str) -> None:
        """Start an actor, or find the running one.

        Raises:
            ConfigError: The gateway does not start.
        """
        resource = self._settings.cluster.service_resource
        pin = {"resources": {resource: PIN_AMOUNT}} if resource else {}
        PARTS[part].start(self._settings, edition=self._edition, **pin)

    def is_other(self, part: str) -> bool:
        """Return whether an actor answers and has other settings or another release.

        An actor that does not answer does not count as other; the watchdog handles its silence.
        """
        actor = self._actor(part)
        edition = None if actor is None else self._ask(actor, "edition")
        return edition is not None and edition != self._edition

    def restart(self, part: str) -> None:
        """End the process of an actor; Ray restarts it with its previous settings."""
        actor = self._actor(part)
        if actor is not None:
            ray.kill(actor, no_restart=False)

    def end(self, part: str, wait: Callable[[float], object]) -> None:
        """End an actor permanently; wait until its name is free.

        Args:
            part: The actor to end.
            wait: Waits for a number of seconds.

        Raises:
            ConfigError: The name does not become free.
        """
        for _ in range(int(NAME_GONE_WAIT_S / 0.1)):
            actor = self._actor(part)
            if actor is None:
                return
            ray.kill(actor, no_restart=True)
            wait(0.1)
        raise ConfigError(f"{part} does not end: Ray still knows it after {NAME_GONE_WAIT_S:.0f} s")

    def gateway_address(self) -> str:
        """Return the gateway's address, or an empty text if it does not answer."""
        actor = self._actor("gateway")
        reached_at = None if actor is None else self._ask(actor, "reached_at")
        return "" if reached_at is None else str(reached_at)

    def problems(self) -> tuple[str, ...] | None:
        """Return the coordinator's problems, one sentence each; None if it does not answer."""
        actor = self._actor("coordinator")
        status = None if actor is None else self._ask(actor, "status")
        if not isinstance(status, CoordinatorStatus):
            return None
        scalings = [(group.group, group.scaling) for group in status.groups if group.scaling]
        return (
            *status.warnings,
            *status.store_warnings,
            *(
                f"group {group}: {scaling.blocked}"
                for group, scaling in scalings
                if scaling.blocked
            ),
            *(
                f"group {group}: {scaling.missing}"
                for group, scaling in scalings
                if scaling.missing
            ),
        )

    def drain_compactors(self) -> int:
        """Let every compactor end its jobs, then end it permanently; return their number."""
        compactors = shut_down_all()
        for compactor in compactors:  # One that did not answer has no job or is frozen.
            ray.kill(compactor, no_restart=True)
        return len(compactors)

    def _actor(self, part: str) -> Any:
        try:
            return ray.get_actor(PARTS[part].actor, namespace=NAMESPACE)
        except ValueError:
            return None

    def _ask(self, actor: Any, question: str) -> Any:
        """Return an actor's answer; None if it did not answer in time."""
        try:
            return ray.get(getattr(actor, question).remote(), timeout=ANSWER_WAIT_S)
        except (ray.exceptions.RayError, TimeoutError):
            return None


# ----------------------------------------------------------------------------------------- Watchdog


ROUND_INTERVAL_S = 5.0
LIVE_MAX_S = 90.0
"""A watchdog whose last round ended longer ago than this counts as hanging."""
LOST_MAX_S = 120.0
"""The watchdog gives up if it cannot reach the cluster for this time."""
FIRST_ROUND_S = 0.5
JOIN_PAUSE_S = 1.0
"""Pause between two tries to join a cluster."""
PROBLEMS_INTERVAL_S = 15.0
"""Interval between requests for the coordinator's problems."""

Say = Callable[[ServeStep, str], None]


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Join a Ray cluster, as a driver or through Ray Client; leave it at the end.

    Raises:
        ConfigError: The cluster cannot be joined; the message names the cause and a remedy.
        NotYetError: The cluster cannot be joined now; a retry may help.
    """
    try:
        _show_token(address)
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        ray.shutdown()  # Leftovers of this try would prevent a retry.
        # Boundary to Ray, whose layers raise many kinds of errors.
        raise joining_problem(address, error) from error
    try:
        yield
    finally:
        ray.shutdown()


def _show_token(address: str) -> None:
    """Send Ray a minimal request, which fails at once if Ray rejects the token.

    With a rejected token, a driver only reports that it cannot connect, and Ray Client retries for
    half a minute.
    """
    scheme, _, host = address.rpartition("://")
    channel = init_grpc_channel(host)
    try:
        if scheme == CLIENT_SCHEME:
            ping = ray_client_pb2.ClusterInfoRequest(type=ray_client_pb2.ClusterInfoType.PING)
            stub = ray_client_pb2_grpc.RayletDriverStub(channel)
            stub.ClusterInfo(ping, timeout=CONNECT_WAIT_S)
        else:
            stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
            stub.GetClusterId(gcs_service_pb2.GetClusterIdRequest(), timeout=CONNECT_WAIT_S)
    except Exception as error:
        # An error of gRPC, which only Ray uses here. For all other errors, joining gives a better
        # message.
        if "UNAUTHENTICATED" in str(error):
            raise
    finally:
        channel.close()


@contextmanager
def joined_in_time(address: str | None, wait_s: float, clock: Clock, say: Say) -> Iterator[str]:
    """Join a Ray cluster whose head may still be starting; yield its address.

    Args:
        address: As for `checked_address`.
        wait_s: How long to retry.
        clock: Measures the wait.
        say: Called once with each reason that prevents joining.

    Raises:
        ConfigError: The cluster cannot be joined.
    """
    end_s, news = clock.now_s() + wait_s, News()
    while True:
        with ExitStack() as inside:
            try:
                checked = checked_address(address, os.environ)
                inside.enter_context(joined(checked))
            except NotYetError as error:
                if clock.now_s() >= end_s:
                    raise
                for sentence in news.of([str(error)]):
                    say(ServeStep.WAITS, sentence)
            else:
                say(ServeStep.JOINED, f"the Ray cluster at {checked}")
                yield checked
                return
        threading.Event().wait(JOIN_PAUSE_S)


def nodes_of_cluster() -> Offers:
    """Return the Ray resources of each live node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


class Watchdog:
    """Watches the actors of one service."""

    def __init__(self, settings: Settings, clock: Clock, log: Log, stop: threading.Event) -> None:
        """Prepare the watch; start nothing.

        Args:
            settings: Settings of the service.
            clock: Measures the silence of actors.
            log: Called with each action.
            stop: Event that ends the watch.
        """
        self._settings = settings
        self._actors = ServiceActors(settings)
        self._clock, self._log, self._stop = clock, log, stop
        self._watches = {part: PartWatch(part=part) for part in PARTS}
        self._round_s = self._asked_s = clock.now_s()
        self._problems: dict[str, str] = {}
        self._started: list[str] = []
        """Parts that the last round started."""
        self._news, self._news_s = News(), -PROBLEMS_INTERVAL_S

    def bring_up(self, say: Say) -> str:
        """Find or start every actor, wait for all answers, and return the gateway's address.

        Actors with other settings or of another release are replaced. This happens only at the
        start, so the newest `neve serve` wins.

        Args:
            say: Called with each step.

        Returns:
            The address; empty if `stop` was set first.
        """
        for sentence in missing_resources(self._settings, nodes_of_cluster()):
            say(ServeStep.NOTE, sentence)
        for part in PARTS:
            if self._actors.is_other(part):
                say(ServeStep.REPLACES, f"{part} runs with other settings or another release")
                self._log("part is replaced", down=part)
                self._actors.end(part, self._stop.wait)
        reported = ""
        while not self._stop.is_set() and not self.ready().well:
            self.round()
            for part in self._started:
                say(ServeStep.STARTED, part)
            waiting = "; ".join(f"{part}: {why}" for part, why in self._reasons().items())
            if waiting and waiting != reported:
                say(ServeStep.WAITS, reported := waiting)
            self._stop.wait(FIRST_ROUND_S)
        return "" if self._stop.is_set() else self._actors.gateway_address()

    def watch(self, say: Say) -> None:
        """Check every actor repeatedly, until `stop` is set.

        Args:
            say: Called with the problems of the service, once per problem while it lasts.

        Raises:
            UnavailableError: The cluster could not be reached for `LOST_MAX_S`.
        """
        while True:
            self.report_problems(say)
            if self._stop.wait(ROUND_INTERVAL_S):
                return
            self.round()
            for part in self._started:
                say(ServeStep.STARTED, part)

    def report_problems(self, say: Say) -> None:
        """Report the coordinator's new problems, at most once per `PROBLEMS_INTERVAL_S`."""
        now_s = self._clock.now_s()
        if now_s - self._news_s < PROBLEMS_INTERVAL_S:
            return
        self._news_s = now_s
        try:
            problems = self._actors.problems()
        except (ConnectionError, RuntimeError, ray.exceptions.RayError):
            return  # The next round records that the cluster cannot be reached.
        if problems is not None:
            for sentence in self._news.of(problems):
                say(ServeStep.NOTE, sentence)

    def round(self) -> None:
        """Check every actor once and apply the remedies.

        Raises:
            UnavailableError: As for `watch`.
        """
        self._started = []
        for part in PARTS:
            try:
                sight = self._actors.look(part)
                self._asked_s = self._clock.now_s()
            except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
                self._note_lost(part, error)
            else:
                self._follow(part, sight)
        self._round_s = self._clock.now_s()

    def _note_lost(self, part: str, error: Exception) -> None:
        """Record that the cluster cannot be reached; raise after `LOST_MAX_S`."""
        self._watches[part], _ = self._watches[part].seen(Sight.WAITS, self._clock.now_s())
        self._problems[part] = f"the cluster cannot be asked: {first_line(error)}"
        if self._clock.now_s() - self._asked_s > LOST_MAX_S:
            raise UnavailableError(
                f"the Ray cluster did not answer for {LOST_MAX_S:.0f} s: {first_line(error)};"
                " start `neve serve` again when it is back"
            ) from error

    def _follow(self, part: str, sight: Sight) -> None:
        now_s = self._clock.now_s()
        self._watches[part], step = self._watches[part].seen(sight, now_s)
        if sight is not Sight.GONE:
            self._problems.pop(part, None)
        if step is Remedy.START:
            self._start(part)
        elif step is Remedy.RESTART:
            self._log("part is silent", down=part)
            self._actors.restart(part)

    def _start(self, part: str) -> None:
        if not self._actors.is_placeable():
            self._problems[part] = "it waits for a node: " + next(
                missing_resources(self._settings, nodes_of_cluster()), "none has room"
            )
            return
        try:
            self._actors.start(part)
        except (ConfigError, ray.exceptions.RayError, TimeoutError) as error:
            self._problems[part] = first_line(error)
            self._log("part does not start", down=part, cause=first_line(error))
        else:
            self._started.append(part)
            self._log("part is started", up=part)

    def live(self) -> Health:
        """Return whether rounds are making progress."""
        ago_s = self._clock.now_s() - self._round_s
        return Health(ago_s < LIVE_MAX_S, {"last_round_s": round(ago_s, 1)})

    def ready(self) -> Health:
        """Return whether every actor answered at its last check."""
        waiting = self._reasons()
        return Health(not waiting, {"waiting": waiting})

    def _reasons(self) -> dict[str, str]:
        """Return why parts do not answer, keyed by part name."""
        now_s = self._clock.now_s()
        return {
            part: self._problems.get(part)
            or ("it starts" if not watch.silent_s(now_s) else "it has not answered so far")
            for part, watch in self._watches.items()
            if not watch.answers
        }

    def take_down(self, say: Say) -> None:
        """End the whole service: first the compactors, after their jobs, then the other actors."""
        say(ServeStep.DRAINS, "waiting for running jobs; a second signal ends this at once")
        count = self._actors.drain_compactors()
        self._log("compactors drained", count=count)
        for part in reversed(PARTS):
            self._actors.end(part, threading.Event().wait)
        say(ServeStep.ENDED, "the service; its tables are unchanged")


def end_on_signals(stop: threading.Event) -> None:
    """Make SIGTERM and SIGINT end the watch; a second signal has its default effect."""

    def asked(number: int, _frame: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, asked)


# ------------------------------------------------------------------------------------- `neve serve`


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Options of `neve serve` other than the settings."""

    address: str | None = None
    """Address of the Ray cluster; None: use `RAY_ADDRESS`."""
    wait_s: float = 0.0
    """How long to wait for a cluster that cannot be joined at first."""
    once: bool = False
    """Return as soon as the service answers."""
    with_service: bool = False
    """Stop the service when a signal ends the watch."""
    health_host: str = "127.0.0.1"
    health_port: int | None = None
    """Port of the probes; None: no probes."""


def serve_until_stopped(
    settings: Settings, orders: Orders, say: Say, answers: Callable[[Mapping[str, Any]], None]
) -> None:
    """Start a service on a cluster and watch it until a signal arrives.

    Args:
        settings: Settings of the service.
        orders: Options other than the settings.
        say: Called with each step.
        answers: Called with the service's addresses once it answers.

    Raises:
        ConfigError: The service cannot start here.
        UnavailableError: The cluster can no longer be reached.
    """
    stop, clock = threading.Event(), SystemClock()
    with (
        joined_in_time(orders.address, orders.wait_s, clock, say) as address,
        ExitStack() as open_things,
    ):
        end_on_signals(stop)  # After joining, because Ray installs its own handlers.
        watchdog = Watchdog(settings, clock, event_log("serve", settings.log.level), stop)
        port = None
        if orders.health_port is not None:
            probes = Probes(
                orders.health_host, orders.health_port, live=watchdog.live, ready=watchdog.ready
            )
            open_things.callback(probes.close)
            port = probes.port
        if url := watchdog.bring_up(say):
            answers({"ray": address, "url": url, "health_port": port})
        if orders.once:
            watchdog.report_problems(say)
        else:
            watchdog.watch(say)
        if orders.with_service and stop.is_set():
            watchdog.take_down(say)
