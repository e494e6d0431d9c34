"""The gateway as a Ray actor: uvicorn in the actor's own loop.

The actor holds no state: when its process ends, Ray restarts it at the same port. A failure of
the server ends the process, because an actor that lives without serving would never be restarted.
The same holds for a process whose calls through Ray fail. Ray's errors do not leave this module.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import ray

from common.coordinator_proxy import CoordinatorProxy, detached
from common.errors import ConfigError, SettingError, actor_error, first_line
from common.log_files import LogFiles
from common.runtime import (
    RandomIds,
    SystemClock,
    ignore_what_is_loaded,
    limit_memory,
    share_freed_memory,
    shorten_thread_switches,
)
from common.settings import Settings
from common.telemetry import event_log
from common.wire import GATEWAY_NAME, NAMESPACE
from neve.gateway.tls import require_safe_listener

if TYPE_CHECKING:  # The gateway calls the coordinator's actor, but does not import it.
    from coordinator.actor import CoordinatorActor

OPERATOR_WAIT_MAX_S = 5.0
"""Longest wait for the coordinator: it answers in milliseconds unless it is restarting."""
START_WAIT_MAX_S = 60.0
NAME_GONE_TRIES_MAX, NAME_GONE_PAUSE_S = 100, 0.1
CALLS_AT_ONCE = 100
ANSWER_PAUSE_S = 0.5
"""Time for answers to leave the process before it ends."""
RAY_CHECK_INTERVAL_S, RAY_WAIT_MAX_S, RAY_FAILURES_MAX = 10.0, 30.0, 2
"""How often the actor calls itself through Ray, how long it waits, and how many failures end it.

Together less than `SILENCE_MAX_S` of a stack's supervisor, which takes the coordinator for silent
when the gateway cannot reach it.
"""
READERS_DELAY_S = 10.0
"""Time after which a reader is started for the first file; until then other parts may start."""
LOG_PART = "gateway"
FILE_SETTINGS = {
    "store": ("url_file",),
    "gateway": ("token_file", "tls_certificate", "tls_key", "tls_client_authorities"),
    "access": ("tokens_file", "audit_file", "oidc_authorities", "oidc_client_secret_file"),
    "notify": (
        *("webhook_url_file", "webhook_key_file", "webhook_authorities"),
        *("smtp_password_file", "smtp_authorities", "state_file"),
    ),
}
"""Settings that name files which the gateway reads, by section."""


def operator_calls() -> "CoordinatorActor":
    """Return a proxy of the coordinator; its errors reach the user."""
    return cast("CoordinatorActor", CoordinatorProxy(OPERATOR_WAIT_MAX_S))


class GatewayActor:
    """Serves HTTP until its process ends."""

    def __init__(self, settings: Settings, log_folder: str = "", edition: str = "") -> None:
        """Connect the parts and start serving."""
        # Imported here: a process that starts the actor does not load the server.
        from common.metadata.redis import connect
        from common.readers.pool import open_readers
        from common.storage_threads import StorageThreads
        from coordinator.registry import planner_for, unread_of_table
        from neve.gateway.server import server_of
        from neve.gateway.services import Services
        from neve.gateway.store_watch import StoreWatch
        from neve.gateway.table_locations import locations_of

        share_freed_memory()
        shorten_thread_switches()
        self._edition = edition
        self._tls = bool(settings.gateway.tls_certificate)
        self._log_files = LogFiles.of(log_folder, settings.log)
        self._log_files.take_output(LOG_PART)
        self._log = event_log("gateway", settings.log.level)
        gateway = settings.gateway
        limit_memory(gateway.memory_max)
        locations_of(gateway)  # Fail at the start if the settings of locations are unusable.
        self._store = connect(settings.store)
        readers = open_readers(settings.readers, self._log)
        services = Services(
            store=self._store,
            store_watch=StoreWatch(self._store, SystemClock(), self._log),
            coordinator=operator_calls(),
            plan=planner_for(settings),
            unread_settings=unread_of_table(settings),
            settings=settings,
            clock=SystemClock(),
            ids=RandomIds(),
            log=self._log,
            footers=StorageThreads(gateway.footers_at_once),
        )
        self._server = server_of(services)
        ignore_what_is_loaded()
        self._log("gateway begins")
        loop = asyncio.get_running_loop()
        loop.call_later(READERS_DELAY_S, lambda: services.later(asyncio.to_thread(readers.warm)))
        self._failure = ""
        rotating = self._log_files.rotate_forever([LOG_PART])
        self._work = [
            loop.create_task(part) for part in (self._serve(), rotating, self._check_ray())
        ]

    async def _serve(self) -> None:
        """Serve; when the server ends, end the process so that Ray restarts it."""
        try:
            # An actor is not on the main thread, so uvicorn leaves the signals to Ray.
            await self._server.serve()
            self._failure = "the server ended"
        except BaseException as error:
            # uvicorn exits if it cannot listen; the cause is the context of its SystemExit.
            origin = error.__context__ if isinstance(error, SystemExit) else None
            self._failure = first_line(origin or error)
        self._log("gateway fails", cause=self._failure)
        await asyncio.sleep(ANSWER_PAUSE_S)
        os._exit(1)

    async def _check_ray(self) -> None:
        """End the process when its calls through Ray fail, so that Ray restarts it."""
        if not ray.is_initialized():  # The fuzzer serves without Ray.
            return
        await until_calls_fail(ray.get_runtime_context().current_actor.edition.remote)
        try:
            self._log("gateway fails", cause="its calls through Ray are not answered")
        finally:  # Logging may fail in a process that has no memory left.
            os._exit(1)

    async def address(self) -> str:
        """Wait until the server listens, and return its address.

        Raises:
            ConfigError: The server failed, and the process is about to end.
        """
        while not self._server.started:
            if self._failure:
                raise ConfigError(self._failure)
            await asyncio.sleep(0.02)
        host, port = self._server.servers[0].sockets[0].getsockname()[:2]
        scheme = "https" if self._tls else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def reached_at(self) -> str:
        """Return the address for remote callers: the node's, if the server listens on all."""
        address = await self.address()
        for everywhere in ("0.0.0.0", "[::]"):
            address = address.replace(f"//{everywhere}:", f"//{ray.util.get_node_ip_address()}:")
        return address

    async def edition(self) -> str:
        """Return the edition that `start` has given to this actor."""
        return self._edition


async def until_calls_fail(
    call: Callable[[], Awaitable[object]],
    *,
    interval_s: float = RAY_CHECK_INTERVAL_S,
    wait_max_s: float = RAY_WAIT_MAX_S,
) -> None:
    """Return when calls of a process to its own actor through Ray have failed repeatedly.

    A process that is short of memory may serve HTTP while no call through Ray returns. Such a
    gateway reports a silent coordinator until it ends. A call to itself needs no other process.

    Args:
        call: Calls the actor.
        interval_s: Pause before each call.
        wait_max_s: Longest time for an answer.
    """
    failures = 0
    while failures < RAY_FAILURES_MAX:
        try:
            await asyncio.sleep(interval_s)
            async with asyncio.timeout(wait_max_s):
                await call()
        except (TimeoutError, MemoryError, RuntimeError, ray.exceptions.RayError):
            failures += 1
        else:
            failures = 0


def require_token(settings: Settings) -> None:
    """Check that callers can authenticate, and that no network traffic is unencrypted.

    Raises:
        SettingError: Neither a token nor another kind of caller is configured, or the gateway
            would listen beyond this machine without TLS.
        ConfigError: The settings of an issuer contradict each other.
    """
    access, gateway = settings.access, settings.gateway
    callers = (gateway.token, gateway.token_file, access.tokens_file, access.oidc_issuer)
    if not any(callers):
        raise SettingError(
            "setting gateway.token is empty: set one, for example NEVE_GATEWAY_TOKEN, or"
            " gateway.token_file, access.tokens_file, or access.oidc_issuer"
        )
    if access.oidc_issuer:
        from neve.gateway.access.oidc import OidcRules  # loads cryptography

        OidcRules.of(access)
    _require_absolute(settings)
    require_safe_listener(settings.gateway)


def _require_absolute(settings: Settings) -> None:
    """Reject relative file names, whose meaning depends on the working directory.

    Raises:
        SettingError: A file name is relative.
    """
    for section, names in FILE_SETTINGS.items():
        for name in names:
            path = getattr(getattr(settings, section), name)
            if path and not os.path.isabs(path):
                raise SettingError(
                    f"setting {section}.{name} is {path!r}, expected an absolute path"
                )


def start(settings: Settings, *, log_folder: str = "", edition: str = "", **options: Any) -> Any:
    """Start the gateway as a detached actor, or find the running one; return it when it answers.

    Args:
        settings: All settings of the service; a caller must be configured.
        log_folder: Folder of the log file; empty: Ray's log folder.
        edition: Identifies settings and release, to distinguish this gateway from others.
        options: Further Ray actor options, such as `resources`.

    Raises:
        ConfigError: No caller is configured, or the gateway does not start. The message contains
            the cause.
    """
    require_token(settings)
    actor = detached(GatewayActor, GATEWAY_NAME, CALLS_AT_ONCE, **options)
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
    """End an actor permanently; otherwise Ray would restart it repeatedly.

    Returns when the actor's name is free, so that the next start does not find the ended actor.
    """
    ray.kill(handle)
    for _ in range(NAME_GONE_TRIES_MAX):
        try:
            ray.get_actor(GATEWAY_NAME, namespace=NAMESPACE)
        except ValueError:
            return
        threading.Event().wait(NAME_GONE_PAUSE_S)
