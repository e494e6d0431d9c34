"""Start the parts of a stack in order, and save each part before the next one starts.

The order is: inspect the machine, start Redis, Ray, and the actors. `stack` cleans up after
failures.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from common.access_settings import AccessSettings
from common.config import secret_of
from common.control_settings import NotifySettings
from common.errors import ConfigError
from common.runtime import Clock
from common.settings import Settings, StoreSettings
from neve.gateway.tls import require_safe_listener
from neve.local.actors import ActorsPlan, Died, ended_part, start_actors
from neve.local.logs import RAY, REDIS, StackLogs
from neve.local.machine import (
    Java,
    RedisProgram,
    claim_port,
    find_java,
    find_redis_server,
    load_note,
    object_folder,
    require_memory,
)
from neve.local.options import StackOptions
from neve.local.processes import end_processes
from neve.local.servers import (
    NODE_RESOURCE,
    RayHead,
    RedisServer,
    SlowStartError,
    is_redis,
    stack_environment,
)
from neve.local.stack_folder import (
    StackFolder,
    StackState,
    write_secret,
)

RAY_TRIES_MAX = 5
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Machine:
    """The programs that were found on the machine before the start."""

    java: Java
    redis: RedisProgram | None
    """None: the stack uses an existing Redis."""
    objects_on_disk: bool


def inspect_machine(options: StackOptions, environ: Mapping[str, str], folder: Path) -> Machine:
    """Inspect the machine; raise if a stack does not fit on it.

    Args:
        options: The size of the stack.
        environ: Environment in which programs are looked up.
        folder: Folder for Ray's files.
    """
    require_safe_listener(options.settings.gateway)
    if _has_given_store(options.settings):
        # Imported here: other stacks, and their supervisors, need no client of Redis.
        from neve.serve.preflight import require_store

        require_store(options.settings.store)
    require_memory(options.heap_bytes)
    return find_machine(options, environ, folder)


def find_machine(options: StackOptions, environ: Mapping[str, str], folder: Path) -> Machine:
    """Inspect the machine for a stack that is known to fit on it.

    Args:
        options: As for `inspect_machine`.
        environ: As for `inspect_machine`.
        folder: As for `inspect_machine`.
    """
    own_redis = not _has_given_store(options.settings)
    return Machine(
        java=find_java(environ),
        redis=find_redis_server(environ) if own_redis else None,
        objects_on_disk=object_folder(options.object_store_bytes, folder) is not None,
    )


def _has_given_store(settings: Settings) -> bool:
    """Return whether the stack uses an existing Redis."""
    return settings.is_given("store.url") or settings.is_given("store.url_file")


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts one stack; each start method saves and returns the state with the new part."""

    folder: StackFolder
    options: StackOptions
    machine: Machine
    environ: Mapping[str, str]
    on_progress: Progress
    clock: Clock
    save: Callable[[StackState], None]
    """Saves a state."""

    def redis_server(self, state: StackState) -> RedisServer:
        """Return the stack's own Redis."""
        assert self.machine.redis is not None, "the stack uses an existing Redis"
        return RedisServer(
            program=self.machine.redis.program,
            folder=self.folder.redis,
            socket=state.redis_socket,
            log=self.logs(state).path(REDIS),
            password=self.folder.secret(self.folder.redis / "password"),
            append_sync=self.options.redis_appendfsync,
        )

    def start_redis(self, state: StackState) -> StackState:
        """Start Redis on the stack's data, unless the settings name an existing Redis."""
        if self.machine.redis is None:
            self.on_progress("using the Redis of setting store.url")
            store = self.options.settings.store
            url = secret_of("store.url", store.url, store.url_file)
            return self._saved(replace(state, redis_url=url))
        self.on_progress("starting Redis")
        server = self.redis_server(state)
        process = server.start(self.environment_of(state), self.clock)
        return self._saved(replace(state.with_processes(process), redis_url=server.url))

    def start_ray(self, state: StackState) -> StackState:
        """Start the Ray head; retry a limited number of times on a busy machine."""
        self.on_progress("starting Ray")
        self.folder.secret(self.folder.ray_token_file)
        for tries in range(1, RAY_TRIES_MAX + 1):
            head = self._ray_head(state)
            try:
                processes = head.start(self.environment_of(state), state.mark)
            except SlowStartError as error:
                end_processes(state.mark, spare=is_redis)
                if tries == RAY_TRIES_MAX:
                    raise ConfigError(f"{error}; tried {tries} times, {load_note()}") from error
                self.on_progress(f"Ray did not start in time, {load_note()}: trying again")
            else:
                state = replace(state.with_processes(*processes), ray_address=head.address)
                return self._saved(state)
        raise AssertionError("a bounded loop ends in its last try")

    def _ray_head(self, state: StackState) -> RayHead:
        return RayHead(
            folder=state.ray_folder,
            log=self.logs(state).path(RAY),
            log_bytes_max=self.options.settings.log.file_bytes_max,
            port=claim_port(self.options.ray_port, None, "Ray"),
            logical_cpus=self.options.logical_cpus,
            logical_bytes=self.options.logical_bytes,
            object_store_bytes=self.options.object_store_bytes,
            object_folder=state.temporary if self.machine.objects_on_disk else None,
            dashboard_port=self.options.dashboard_port,
        )

    def start_actors(self, state: StackState) -> StackState:
        """Start coordinator, compactors and gateway."""
        port = claim_port(
            self._wanted_port(), self.options.service.gateway.port or None, "the gateway"
        )
        url = self._run_driver(state, port, "", lambda: ended_part(state))
        return self._saved(replace(state, gateway_url=url))

    def start_actor(self, state: StackState, part: str, died: Died) -> None:
        """Restart the coordinator or gateway on the port that its callers know.

        Args:
            state: The running parts.
            part: The actor to restart, by the name of its log.
            died: As for `start_actors`.
        """
        self._run_driver(state, urlsplit(state.gateway_url).port or 0, part, died)

    def _run_driver(self, state: StackState, port: int, only: str, died: Died) -> str:
        plan = ActorsPlan(
            ray_address=state.ray_address,
            settings=self._settings(state, port),
            node_resource=NODE_RESOURCE,
            logs=str(self.folder.logs),
            gateway_port_insisted=self._wanted_port() is not None,
            only=only,
        )
        environ = self.environment_of(state)
        return start_actors(plan, self.folder.path, environ, self.on_progress, died)

    def logs(self, state: StackState) -> StackLogs:
        """Return the stack's log files."""
        return StackLogs(self.folder.logs, state.ray_folder)

    def _wanted_port(self) -> int | None:
        """Return the gateway port that the operator requires, or None."""
        settings = self.options.settings
        return (settings.gateway.port or None) if settings.is_given("gateway.port") else None

    def _settings(self, state: StackState, port: int) -> Settings:
        """Return the service's settings with the addresses of this stack.

        Secrets are passed as files, because Ray's head keeps the arguments of actors.
        """
        given = self.options.service
        if token := secret_of("gateway.token", given.gateway.token, given.gateway.token_file):
            write_secret(self.folder.token_file, token)
        self.folder.secret(self.folder.token_file)
        token_file, url_file = str(self.folder.token_file), self.folder.store_url_file
        write_secret(url_file, state.redis_url)
        own = dict.fromkeys(("store.url_file", "gateway.port", "gateway.token_file"), "this stack")
        url, sync = StoreSettings().url, given.store.append_fsync
        if self.machine.redis is not None:  # Its user may not read the settings of Redis.
            sync = self.options.redis_appendfsync.value
            own["store.append_fsync"] = "this stack"
        return replace(
            given,
            store=replace(given.store, url=url, url_file=str(url_file), append_fsync=sync),
            gateway=replace(given.gateway, port=port, token="", token_file=token_file),
            access=self._access(given.access),
            notify=self._notify(given.notify),
            sources={**own, **given.sources},
        )

    def _access(self, given: AccessSettings) -> AccessSettings:
        """Return the access settings; the stack's own files are the defaults."""
        folder = self.folder
        return replace(
            given,
            tokens_file=given.tokens_file or str(folder.tokens_file),
            audit_file=given.audit_file or str(folder.audit_file),
        )

    def _notify(self, given: NotifySettings) -> NotifySettings:
        """Return the settings of notifications; the stack's own file is the default."""
        state_file = given.state_file or str(self.folder.notified_file)
        return replace(given, state_file=state_file)

    def environment_of(self, state: StackState) -> dict[str, str]:
        """Return the environment of the stack's processes."""
        return stack_environment(
            self.environ,
            mark=state.mark,
            java=self.machine.java,
            token_file=self.folder.ray_token_file,
            temporary=state.temporary,
        )

    def _saved(self, state: StackState) -> StackState:
        """Save the state and return it."""
        self.save(state)
        return state
