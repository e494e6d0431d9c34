"""Start the parts of a stack in order, writing down each one before the next.

The order is: fit and find, Redis, Ray, actors. Nothing here cleans up; `stack` does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from common.clock import Clock
from common.settings import Settings
from neve.local.actors import ActorsPlan, start_actors
from neve.local.checks import check_memory, object_folder
from neve.local.find import Java, find_java, find_redis_server
from neve.local.options import StackOptions
from neve.local.ports import LOOPBACK, claim
from neve.local.ray_head import NODE_RESOURCE, RayHead, environment
from neve.local.redis_server import RedisServer
from neve.local.state import StackFolder, StackState

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found on the machine before anything was started."""

    java: Java
    redis_server: Path
    object_folder: Path | None


def look_round(options: StackOptions, environ: Mapping[str, str], folder: Path) -> Machine:
    """Return what the machine has; raise if a stack does not fit on it.

    Args:
        options: The size of the stack.
        environ: Where programs are looked up.
        folder: Where Ray's files will go.
    """
    check_memory(options.compactors if options.actors else 0, options.compactor_bytes)
    return Machine(
        java=find_java(environ),
        redis_server=find_redis_server(environ),
        object_folder=object_folder(options.object_store_bytes, folder),
    )


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts one stack; each method returns the state with its part in it, saved."""

    folder: StackFolder
    options: StackOptions
    machine: Machine
    environ: Mapping[str, str]
    on_progress: Progress
    clock: Clock

    def start_redis(self, state: StackState) -> StackState:
        """Start Redis on the data that the stack's folder holds."""
        self.on_progress("starting Redis")
        port = claim(self.options.redis_port, None, "Redis")
        secret = self.folder.secret(self.folder.redis / "password")
        server = RedisServer(
            program=self.machine.redis_server,
            folder=self.folder.redis,
            log=self.folder.logs / "redis.log",
            port=port,
            password=secret,
            append_sync=self.options.redis_appendfsync,
        )
        process = server.start(self._environment(state), self.clock)
        return self._saved(replace(state.with_processes(process), redis_url=server.url))

    def start_ray(self, state: StackState) -> StackState:
        """Start the Ray head."""
        self.on_progress("starting Ray")
        self.folder.secret(self.folder.ray_token_file)
        head = RayHead(
            folder=Path(state.ray_folder),
            log=self.folder.logs / "ray.log",
            port=claim(self.options.ray_port, None, "Ray"),
            logical_cpus=self.options.logical_cpus,
            logical_bytes=self.options.logical_bytes,
            object_store_bytes=self.options.object_store_bytes,
            object_folder=self.machine.object_folder,
            dashboard_port=self.options.dashboard_port,
        )
        processes = head.start(self._environment(state), state.mark)
        return self._saved(replace(state.with_processes(*processes), ray_address=head.address))

    def start_actors(self, state: StackState) -> StackState:
        """Start coordinator, compactors and gateway."""
        plan = ActorsPlan(
            ray_address=state.ray_address,
            settings=self._settings(state),
            compactors=self.options.compactors,
            node_resource=NODE_RESOURCE,
            logs=str(self.folder.logs),
            gateway_port_insisted=self.options.gateway_port is not None,
        )
        url = start_actors(plan, self.folder.path, self._environment(state), self.on_progress)
        return self._saved(replace(state, gateway_url=url))

    def _settings(self, state: StackState) -> Settings:
        """Return the service's settings with addresses and token of this stack."""
        given = self.options.settings
        port = claim(self.options.gateway_port, given.gateway.port or None, "the gateway")
        token = self.folder.secret(self.folder.token_file)
        return replace(
            given,
            store=replace(given.store, url=state.redis_url),
            gateway=replace(given.gateway, host=LOOPBACK, port=port, token=token),
        )

    def _environment(self, state: StackState) -> dict[str, str]:
        """Return the environment of the stack's processes."""
        return environment(
            self.environ,
            mark=state.mark,
            java=self.machine.java,
            token_file=self.folder.ray_token_file,
            temporary=state.temporary,
        )

    def _saved(self, state: StackState) -> StackState:
        """Write the state down and return it."""
        self.folder.save(state)
        return state
