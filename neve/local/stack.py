"""Start and stop a whole stack, and find a running one.

A start that fails, is interrupted or is killed leaves a state file with the stack's mark. The
failed start itself, the next start or a stop uses this file to clean up.
"""

import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from common.errors import ConfigError, RefusedError
from common.runtime import SystemClock
from neve.local.actors import PartError
from neve.local.logs import START, SUPERVISOR, StackLogs
from neve.local.machine import find_java, machine_bytes
from neve.local.options import StackOptions, with_locations
from neve.local.processes import end_processes
from neve.local.servers import ROLES as RAY_ROLES
from neve.local.servers import is_redis, stack_environment
from neve.local.stack_folder import (
    StackFolder,
    StackState,
    base_folder,
    new_folder,
    remove_folder,
)
from neve.local.starter import (
    Progress,
    Starter,
    find_machine,
    inspect_machine,
)
from neve.local.supervisor import (
    SupervisorOrders,
    end_supervisor,
    start_supervisor,
)
from neve.service_settings import (
    check_service,
    setting_differences,
    settings_from_document,
    settings_to_document,
    shown_settings,
)

DEFAULT_NAME = "default"


def _silent(_: str) -> None:
    """Ignore a progress message."""


class LocalStack:
    """A running stack; `stop` or leaving the context ends it."""

    def __init__(
        self, folder: StackFolder, state: StackState, locations: Sequence[str] = ()
    ) -> None:
        """Create a handle of a running stack; call `start` or `attach` instead."""
        self.locations = locations
        """Allowed table locations, if this process started the stack."""
        self._folder = folder
        self._state = state

    @classmethod
    def start(
        cls,
        *,
        home: Path | None = None,
        name: str = DEFAULT_NAME,
        options: StackOptions | None = None,
        compactors: int | None = None,
        slots: int | None = None,
        on_progress: Progress = _silent,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Start a stack and wait until all its parts answer.

        If a stack runs without its supervisor, only a new supervisor is started.

        Args:
            home: Folder of all stacks; NEVE_HOME or `~/.neve` if omitted.
            name: The stack's name.
            options: Size, ports and settings.
            compactors: Number of compactors; overrides `options`.
            slots: Concurrent jobs per compactor; overrides `options`.
            on_progress: Called with one sentence per step.
            environ: Environment that the processes inherit; this process's if omitted.

        Raises:
            RefusedError: The stack is already running, or a required port is in use.
            ConfigError: The machine or a setting does not allow a start.
        """
        chosen = (options or StackOptions()).with_slots(slots)
        if compactors is not None:
            chosen = replace(chosen, compactors=compactors)
        if chosen.actors:
            check_service(chosen.service)
        base = os.environ if environ is None else environ
        folder = StackFolder.of(home, name, base)
        with folder.locked():
            running = _make_room(folder, chosen, on_progress)
            folder.make()
            # The requested settings: the next start compares its own with them.
            folder.save_settings(settings_to_document(shown_settings(chosen.service)))
            private = new_folder(base_folder())
            if running is not None:
                private = Path(running.private_folder)
            gateway = with_locations(chosen.settings.gateway, folder, private, chosen.allow, base)
            chosen = replace(chosen, settings=replace(chosen.settings, gateway=gateway))
            chosen = chosen.with_task_memory(machine_bytes())
            if running is None:
                state = _start(folder, private, chosen, on_progress, base)
            else:
                state = _take_over(folder, running, chosen, on_progress, base)
            return cls(folder, state, gateway.locations)

    @classmethod
    def attach(
        cls,
        *,
        home: Path | None = None,
        name: str = DEFAULT_NAME,
        environ: Mapping[str, str] | None = None,
    ) -> Self | None:
        """Return the running stack of this name, or None.

        Args:
            home: Folder of all stacks.
            name: The stack's name.
            environ: Environment with NEVE_HOME.
        """
        folder = StackFolder.of(home, name, os.environ if environ is None else environ)
        state = folder.load()
        return cls(folder, state) if state is not None and state.running() else None

    @property
    def name(self) -> str:
        """The stack's name."""
        return self._state.name

    @property
    def redis_url(self) -> str:
        """Address of Redis, with its password."""
        return self._state.redis_url

    @property
    def ray_address(self) -> str:
        """The address at which Ray drivers join, with the environment of `driver_environ`."""
        return self._state.ray_address

    @property
    def gateway_url(self) -> str:
        """Address of the gateway; empty if the stack has no actors."""
        return self._state.gateway_url

    @property
    def token(self) -> str:
        """Bearer token of the gateway."""
        return self._folder.secret(self._folder.token_file)

    @property
    def state(self) -> StackState:
        """The saved state of the stack."""
        return self._state

    @property
    def folder(self) -> StackFolder:
        """The stack's folder."""
        return self._folder

    def driver_environ(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment in which a process can join the Ray cluster.

        Set it before the process imports Ray. A process that is started with it belongs to the
        stack and is ended with the stack.

        Args:
            base: Environment to extend; this process's if omitted.
        """
        inherited = os.environ if base is None else base
        java = find_java({**inherited, "JAVA_HOME": self._state.java_home})
        return stack_environment(
            inherited,
            mark=self._state.mark,
            java=java,
            token_file=self._folder.ray_token_file,
            temporary=self._state.temporary,
        )

    def stop(self, *, delete_data: bool = False) -> None:
        """End every process of the stack; keep its data unless `delete_data` is set.

        Args:
            delete_data: Also remove the stack's folder: metadata, logs, token, and the files of
                tables in that folder.
        """
        stop_stack(self._folder, delete_data=delete_data)

    def __enter__(self) -> Self:
        """Return the running stack."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the stack."""
        self.stop()


def stop_stack(folder: StackFolder, *, delete_data: bool = False) -> bool:
    """End all remaining processes of a stack, including those of an interrupted start.

    Args:
        folder: The stack's folder.
        delete_data: Also remove the folder.

    Returns:
        Whether the stack had a state file.
    """
    with folder.locked():
        state = folder.load()
        if state is not None:
            _end(folder, state)
        if delete_data:
            shutil.rmtree(folder.path, ignore_errors=True)
    return state is not None


def shut_down(folder: StackFolder) -> None:
    """Shut down the compactors of a running stack, so that its jobs end or are handed back.

    The stack continues without compactors until `stop` ends it.

    Args:
        folder: The stack's folder.
    """
    state = folder.load()
    if state is not None and state.gateway_url and all(map(state.role_alive, RAY_ROLES)):
        stack = LocalStack(folder, state)
        shut_down_compactors(
            state.ray_address, stack.driver_environ(), StackLogs(folder.logs).path(START)
        )


def _make_room(
    folder: StackFolder, options: StackOptions, on_progress: Progress
) -> StackState | None:
    """Clean up after a crash; return the state of a stack that only lacks its supervisor.

    Raises:
        RefusedError: The stack is running. The message names the settings that are not applied.
    """
    state = folder.load()
    if state is None:
        return None
    lacks_supervisor = state.lacks_supervisor()
    if not state.running() and not lacks_supervisor:
        on_progress("cleaning up after an earlier start")
        _end(folder, state)
        return None
    where = f" at {state.gateway_url}" if state.gateway_url else ""
    own, wanted = (
        settings_from_document(folder.load_settings()),
        shown_settings(options.service),
    )
    unlike = setting_differences(own, wanted) if own else []
    if lacks_supervisor and not unlike:
        return state
    advice = "use it, or stop it with `neve down` first"
    if lacks_supervisor:
        advice = (
            "its supervisor has ended: repeat `neve up` with the same settings to start"
            " another one, or stop the stack with `neve down` first"
        )
    ignored = f"; not applied: {'; '.join(unlike)}" if unlike else ""
    raise RefusedError(f"stack {state.name!r} is already running{where}: {advice}{ignored}")


def _take_over(
    folder: StackFolder,
    state: StackState,
    options: StackOptions,
    on_progress: Progress,
    environ: Mapping[str, str],
) -> StackState:
    """Start a supervisor for a stack that lost its own; the supervisor restarts dead parts."""
    on_progress("the supervisor has ended: starting another one; living processes continue")
    usual = {**environ, "JAVA_HOME": state.java_home}
    machine = find_machine(options, usual, Path(state.private_folder).parent)
    starter = Starter(folder, options, machine, environ, on_progress, SystemClock(), folder.save)
    return _supervised(starter, state.without(SUPERVISOR))


def _supervised(starter: Starter, state: StackState) -> StackState:
    """Start the supervisor of a stack whose other parts are running."""
    orders = SupervisorOrders(
        mark=state.mark,
        folder=starter.folder,
        options=starter.options,
        machine=starter.machine,
        environ=dict(starter.environ),
    )
    supervisor = start_supervisor(orders, starter.environment_of(state))
    state = state.with_processes(supervisor)
    starter.folder.save(state)
    return state


def _start(
    folder: StackFolder,
    private: Path,
    options: StackOptions,
    on_progress: Progress,
    environ: Mapping[str, str],
) -> StackState:
    """Start all parts; on any failure or interrupt, end those that were started."""
    machine = inspect_machine(options, environ, private.parent)
    clock = SystemClock()
    state = StackState(
        name=folder.path.name,
        mark=secrets.token_hex(16),
        started_s=clock.now_s(),
        private_folder=str(private),
        java_home=str(machine.java.home),
    )
    folder.save(state)
    starter = Starter(folder, options, machine, environ, on_progress, clock, folder.save)
    try:
        private.mkdir(mode=0o700)
        state.temporary.mkdir()
        state = starter.start_ray(starter.start_redis(state))
        if options.actors:
            state = starter.start_actors(state)
        state = replace(state, ready=True)
        folder.save(state)
        if options.supervised:
            state = _supervised(starter, state)
    except BaseException as error:
        # The saved state may be newer than `state`: a step saves each part before it returns.
        _end(folder, folder.load() or state)
        if isinstance(error, PartError):
            raise ConfigError(f"{error} (see {starter.logs(state).path(error.part)})") from error
        raise
    return state


def _end(folder: StackFolder, state: StackState) -> None:
    """End the supervisor, then the other processes, Redis last; remove the stack's state."""
    end_supervisor(state)
    end_processes(state.mark, state.processes, spare=is_redis)
    if stubborn := end_processes(state.mark, state.processes):
        raise ConfigError(
            f"processes {', '.join(map(str, stubborn))} of stack {state.name!r} do not end:"
            " kill them and try again"
        )
    StackLogs(folder.logs, state.ray_folder).keep_ray()
    remove_folder(Path(state.private_folder))
    folder.repairs_file.unlink(missing_ok=True)
    folder.state_file.unlink(missing_ok=True)


# ----------------------------------------------------------------------------------------- Shutdown


SHUTDOWN_PROGRAM = "from neve.local.stack import shut_down_in_this_process as main; main()"
CONNECT_MAX_S = 30.0


def shut_down_compactors(ray_address: str, environ: Mapping[str, str], log: Path) -> None:
    """Wait until the running jobs of a cluster have ended or are handed back.

    A short-lived process joins the cluster to do so, because Ray reads its environment only once.
    It does not wait for compactors that do not answer; they are ended with the stack.

    Args:
        ray_address: Address of the cluster.
        environ: The stack's environment.
        log: Output of the process is appended to this file.
    """
    with log.open("ab") as output:
        subprocess.run(
            [sys.executable, "-c", SHUTDOWN_PROGRAM, ray_address],
            env=dict(environ),
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )


def shut_down_in_this_process() -> None:
    """Shut down the compactors of the cluster at the address in the first argument."""
    import ray  # only this short-lived process may load it

    from common.wire import NAMESPACE
    from coordinator.ray_compactors import shut_down_all

    # Without this limit, a frozen cluster would block the process forever.
    limit = threading.Timer(CONNECT_MAX_S, os._exit, (1,))
    limit.start()
    address, quiet = sys.argv[1], "ERROR"
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=quiet)
    limit.cancel()
    try:
        shut_down_all()
    finally:
        ray.shutdown()
