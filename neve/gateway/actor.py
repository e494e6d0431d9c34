"""The gateway as a Ray actor: uvicorn in the actor's own loop.

It holds no state: when its process ends, Ray starts it again at the same port. The
failure of the server ends the process; an actor that lives without answering is worse
than none. Ray's errors do not leave this module.
"""

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, cast

import ray

from common.clock import SystemClock
from common.coordinator_proxy import CoordinatorProxy
from common.errors import ConfigError, actor_error, first_line
from common.garbage_collection import ignore_what_is_loaded
from common.ids import RandomIds
from common.log_files import LogFiles
from common.memory_limit import SERVICE_ENVIRON, limit_memory
from common.metadata.redis import connect
from common.metadata.store_watch import StoreWatch
from common.readers.pool import open_readers
from common.setting_rules import SettingError
from common.settings import Settings
from common.storage_threads import StorageThreads
from common.telemetry import event_log
from common.wire import (
    GATEWAY_NAME,
    NAMESPACE,
)
from coordinator.registry import planner_for, unread_of_table
from neve.gateway.access.oidc import OidcRules
from neve.gateway.server import server_of
from neve.gateway.services import Services
from neve.gateway.table_locations import locations_of
from neve.gateway.tls import require_safe_listener

if TYPE_CHECKING:  # The gateway calls the actor, and does not load it.
    from coordinator.actor import CoordinatorActor

OPERATOR_WAIT_MAX_S = 5.0
"""The coordinator answers in milliseconds, or it is being started again."""
START_WAIT_MAX_S = 60.0
NAME_GONE_TRIES_MAX, NAME_GONE_PAUSE_S = 100, 0.1
CALLS_AT_ONCE = 100
ANSWER_PAUSE_S = 0.5
"""Time for answers to leave the process before it ends."""
LOG_PART = "gateway"
FILE_SETTINGS = {
    "store": ("url_file",),
    "gateway": ("token_file", "tls_certificate", "tls_key", "tls_client_authorities"),
    "access": ("tokens_file", "audit_file", "oidc_authorities"),
}
"""Settings that name a file which the gateway reads, by section."""


def operator_calls() -> "CoordinatorActor":
    """Return the coordinator: what it raises reaches the user."""
    return cast("CoordinatorActor", CoordinatorProxy(OPERATOR_WAIT_MAX_S))


class GatewayActor:
    """Serves HTTP until its process ends."""

    def __init__(self, settings: Settings, log_folder: str = "", edition: str = "") -> None:
        """Wire the parts and start to serve."""
        self._edition = edition
        self._tls = bool(settings.gateway.tls_certificate)
        self._log_files = LogFiles.of(log_folder, settings.log)
        self._log_files.take_output(LOG_PART)
        self._log = event_log("gateway", settings.log.level)
        gateway = settings.gateway
        limit_memory(gateway.memory_max)
        locations_of(gateway)  # What nobody can use shall end the start.
        self._store = connect(settings.store)
        clock = SystemClock()
        readers = open_readers(settings.readers, self._log)
        services = Services(
            store=self._store,
            store_watch=StoreWatch(self._store, clock, self._log),
            coordinator=operator_calls(),
            plan=planner_for(settings),
            unread_settings=unread_of_table(settings),
            settings=settings,
            clock=clock,
            ids=RandomIds(),
            log=self._log,
            footers=StorageThreads(gateway.footers_at_once),
        )
        self._server = server_of(services)
        ignore_what_is_loaded()
        self._log("gateway begins")
        loop = asyncio.get_running_loop()
        services.later(asyncio.to_thread(readers.warm))
        self._failure = ""
        self._serving = loop.create_task(self._serve())
        self._rotating = loop.create_task(self._log_files.rotate_forever([LOG_PART]))

    async def _serve(self) -> None:
        """Serve; whatever ends it ends the process, so that Ray starts it again."""
        try:
            # Off the main thread, as in an actor, uvicorn leaves the signals to Ray.
            await self._server.serve()
            self._failure = "the server ended"
        except BaseException as error:
            # uvicorn exits when it cannot listen; why is what it was about to handle.
            origin = error.__context__ if isinstance(error, SystemExit) else None
            self._failure = first_line(origin or error)
        self._log("gateway fails", cause=self._failure)
        await asyncio.sleep(ANSWER_PAUSE_S)
        os._exit(1)

    async def address(self) -> str:
        """Return the address when it is served.

        Raises:
            ConfigError: It will not be: the process is about to end.
        """
        while not self._server.started:
            if self._failure:
                raise ConfigError(self._failure)
            await asyncio.sleep(0.02)
        host, port = self._server.servers[0].sockets[0].getsockname()[:2]
        scheme = "https" if self._tls else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def reached_at(self) -> str:
        """Return the address for callers elsewhere: that of its node, if it listens everywhere."""
        address = await self.address()
        for everywhere in ("0.0.0.0", "[::]"):
            address = address.replace(f"//{everywhere}:", f"//{ray.util.get_node_ip_address()}:")
        return address

    async def edition(self) -> str:
        """Return what it was started with, as whoever started it has named that."""
        return self._edition


def require_token(settings: Settings) -> None:
    """Refuse to serve if nobody could call, or if others could listen.

    Raises:
        SettingError: No token is set and no other caller known, or the gateway would listen beyond
            this machine without TLS.
        ConfigError: The settings of an issuer contradict each other.
    """
    access, gateway = settings.access, settings.gateway
    callers = (gateway.token, gateway.token_file, access.tokens_file, access.oidc_issuer)
    if not any(callers):
        raise SettingError(
            "setting gateway.token is empty: set one, for example NEVE_GATEWAY_TOKEN, or"
            " gateway.token_file, access.tokens_file, or access.oidc_issuer"
        )
    OidcRules.of(access)
    _require_absolute(settings)
    require_safe_listener(settings.gateway)


def _require_absolute(settings: Settings) -> None:
    """Refuse names of files that mean another file in another working directory.

    Raises:
        SettingError: One is relative.
    """
    for section, names in FILE_SETTINGS.items():
        for name in names:
            path = getattr(getattr(settings, section), name)
            if path and not os.path.isabs(path):
                raise SettingError(
                    f"setting {section}.{name} is {path!r}, expected an absolute path"
                )


def start(settings: Settings, *, log_folder: str = "", edition: str = "", **options: Any) -> Any:
    """Start the gateway as a detached actor, or return the one that runs, once it answers.

    Args:
        settings: All settings of the service; the token must be set.
        log_folder: Where it keeps its log file; empty: where Ray keeps its output.
        edition: Names settings and release, to tell this gateway from others.
        options: Further Ray actor options, such as `resources`.

    Raises:
        ConfigError: No token is set, or it does not come up. The message has its error.
    """
    require_token(settings)
    actor = ray.remote(GatewayActor).options(
        name=GATEWAY_NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_concurrency=CALLS_AT_ONCE,
        num_cpus=0,
        runtime_env={"env_vars": SERVICE_ENVIRON},
        **options,
    )
    handle = actor.remote(settings, log_folder, edition)
    try:
        ray.get(handle.address.remote(), timeout=START_WAIT_MAX_S)
    except (ray.exceptions.RayError, TimeoutError) as error:
        _end(handle)
        silent = isinstance(error, TimeoutError)
        cause = f"no answer for {START_WAIT_MAX_S:.0f} s" if silent else actor_error(error)
        raise ConfigError(
            f"the gateway does not come up at {settings.gateway.host}:{settings.gateway.port}:"
            f" {cause}"
        ) from error
    return handle


def _end(handle: Any) -> None:
    """End an actor for good: else Ray would start it again and again.

    Returns when its name is free, for who tries once more must not get this one.
    """
    ray.kill(handle)
    for _ in range(NAME_GONE_TRIES_MAX):
        try:
            ray.get_actor(GATEWAY_NAME, namespace=NAMESPACE)
        except ValueError:
            return
        threading.Event().wait(NAME_GONE_PAUSE_S)
