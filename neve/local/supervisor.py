"""Keeps a stack up: a process beside it that starts again what has died.

    Redis        dead, or silent for a minute → started again on its own data
    Ray's head   dead, and all actors with it → started again, and the actors at the same address

Ray itself starts an actor again that dies alone. The supervisor belongs to one start of a
stack: when the state file is gone, or is another start's, both are over, and so is whatever it
has just begun. `neve down` ends it first of all, so that nothing rises behind its back.
"""

import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import Event
from urllib.parse import urlsplit

import psutil

from common.clock import Clock, SystemClock
from common.errors import CompactionError, ConfigError
from common.telemetry import Log, event_log
from neve.local.options import StackOptions
from neve.local.processes import ProcessRef, end_processes
from neve.local.ray_head import ROLES as RAY_ROLES
from neve.local.redis_server import RedisServer
from neve.local.stack_folder import (
    StackFolder,
    StackState,
    write_secret,
)
from neve.local.starter import Machine, Starter

SUPERVISOR, REDIS = "supervisor", "redis"
PROGRAM = "from neve.local.supervisor import main; main()"
LOOK_INTERVAL_S = 1.0
HANG_MAX_S = 60.0
"""A Redis that lives and says nothing for so long is ended and started again."""
PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Pause before the n-th start in a row; the last one repeats."""
WELL_S = 120.0
"""What has been well for so long begins anew with the shortest pause."""
END_WAIT_MAX_S = 10.0


@dataclass(slots=True)
class _PartFailures:
    """A part that was not well lately."""

    since_s: float
    tries: int = 0
    next_s: float = 0.0
    well_s: float | None = None
    """Since when it is well again; None: it is not."""
    error: str = ""


class RestartPauses:
    """When to try to start a part again: at once, then less and less often."""

    def __init__(self) -> None:
        self._troubles: dict[str, _PartFailures] = {}

    def may_try(self, part: str, now_s: float) -> bool:
        """Return whether it is time to start a part that is not well."""
        trouble = self._troubles.setdefault(part, _PartFailures(since_s=now_s, next_s=now_s))
        if trouble.well_s is not None:
            trouble.since_s, trouble.well_s = now_s, None
        return now_s >= trouble.next_s

    def tried(self, part: str, now_s: float, error: str = "") -> None:
        """Note a try that is over; the next one waits longer.

        Args:
            part: Which.
            now_s: The time now.
            error: Why it has failed; empty: the part is up.
        """
        trouble = self._troubles[part]
        trouble.tries += 1
        trouble.error = error
        trouble.next_s = now_s + PAUSES_S[min(trouble.tries, len(PAUSES_S) - 1)]

    def well(self, part: str, now_s: float) -> None:
        """Note that a part is well; after a while its troubles are forgotten."""
        trouble = self._troubles.get(part)
        if trouble is None:
            return
        if trouble.well_s is None:
            trouble.well_s = now_s
        elif now_s - trouble.well_s >= WELL_S:
            del self._troubles[part]

    def told(self, now_s: float) -> dict[str, str]:
        """Return what is to be said of each part that is not well."""
        return {
            part: f"down for {now_s - each.since_s:.0f} s, started {each.tries} times"
            + (f": {each.error}" if each.error else "")
            for part, each in self._troubles.items()
            if each.well_s is None
        }


class StackOverError(Exception):
    """The stack was ended, or started anew by somebody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOrders:
    """What a supervisor is told, through its standard input: it holds secrets."""

    mark: str
    folder: StackFolder
    options: StackOptions
    machine: Machine
    environ: Mapping[str, str]


@dataclass
class Supervisor:
    """Looks at a stack from time to time."""

    orders: SupervisorOrders
    clock: Clock
    log: Log
    hang_max_s: float = HANG_MAX_S
    pauses: RestartPauses = field(default_factory=RestartPauses)
    _heard_s: float | None = None
    """When Redis was heard last, by the clock."""
    _actors_wait: bool = False
    """Whether Ray was started again, and its actors were not."""

    def run(self, stopped: Event | None = None) -> None:
        """Look again and again until the stack is over.

        Args:
            stopped: Set to end it; None: only the stack's end does.
        """
        stopped = stopped or Event()
        with contextlib.suppress(StackOverError):
            while not stopped.wait(LOOK_INTERVAL_S):
                self.look()
        self.log("supervisor ends")

    def look(self) -> None:
        """Look once, and start what is down if it is time for it.

        Raises:
            StackOverError: There is nothing to look after any more.
        """
        state = self._state()
        down = {
            REDIS: (self._why_redis_is_down(state), self._start_redis),
            "ray": (self._why_ray_is_down(state), self._start_ray),
        }
        for part, (why, start) in down.items():
            if not why:
                self.pauses.well(part, self.clock.now_s())
            elif self.pauses.may_try(part, self.clock.now_s()):
                self._try(part, why, start)
                break  # What was read of the stack is old by now.
        self._note()

    def _try(self, part: str, why: str, start: Callable[[], None]) -> None:
        self.log("part is down", down=part, cause=why)
        begun_s = self.clock.now_s()
        try:
            start()
        except (CompactionError, OSError, psutil.Error) as error:
            self.pauses.tried(part, self.clock.now_s(), str(error))
            self.log("part does not start", down=part, cause=str(error))
        else:
            took_s = round(self.clock.now_s() - begun_s, 1)
            self.pauses.tried(part, self.clock.now_s())
            self.log("part is up again", up=part, took_s=took_s)

    def _why_redis_is_down(self, state: StackState) -> str:
        if not any(each.role == REDIS for each in state.processes):
            return ""
        if not state.role_alive(REDIS):
            return "its process has ended"
        now_s = self.clock.now_s()
        if self._heard_s is None or self._server(state).heard():
            self._heard_s = now_s
        silent_s = now_s - self._heard_s
        return f"it has said nothing for {silent_s:.0f} s" if silent_s >= self.hang_max_s else ""

    def _start_redis(self) -> None:
        state = self._state()
        for each in state.processes:
            if each.role == REDIS:
                _kill(each)
        starter = self._starter(self.orders.options)
        server = self._server(state)
        self._heard_s = None
        process = server.start(starter.environment_of(state), self.clock)
        self._save(lambda now: now.without(REDIS).with_processes(process), process)

    def _server(self, state: StackState) -> RedisServer:
        return self._starter(self.orders.options).redis_server(state)

    def _why_ray_is_down(self, state: StackState) -> str:
        roles = {each.role for each in state.processes}
        dead = [role for role in RAY_ROLES if role in roles and not state.role_alive(role)]
        if dead:
            return f"{', '.join(dead)} has ended"
        return "its actors are not started" if self._actors_wait else ""

    def _start_ray(self) -> None:
        state = self._state()
        self._actors_wait = self.orders.options.actors
        redis = [each.pid for each in state.processes if each.role == REDIS]
        if stubborn := end_processes(state.mark, state.processes, spare=redis):
            raise ConfigError(f"processes {', '.join(map(str, stubborn))} do not end")
        options = self._options_now(state)
        starter = self._starter(options)
        state = starter.start_ray(state.without(*RAY_ROLES))
        if options.actors:
            starter.start_actors(state)
        self._actors_wait = False

    def _options_now(self, state: StackState) -> StackOptions:
        """Return the options with the ports that others know by now."""
        settings = self.orders.options.settings
        if known_port := urlsplit(state.gateway_url).port:
            settings = replace(
                settings,
                gateway=replace(settings.gateway, port=known_port),
                sources={**settings.sources, "gateway.port": "this stack"},
            )
        ray_port = int(state.ray_address.rpartition(":")[2])
        return replace(self.orders.options, ray_port=ray_port, settings=settings)

    def _starter(self, options: StackOptions) -> Starter:
        return Starter(
            folder=self.orders.folder,
            options=options,
            machine=self.orders.machine,
            environ=self.orders.environ,
            on_progress=lambda step: self.log("step", step=step),
            clock=self.clock,
            save=lambda state: self._save(lambda _: state),
        )

    def _state(self) -> StackState:
        state = self.orders.folder.load()
        if state is None or state.mark != self.orders.mark:
            raise StackOverError
        return state

    def _save(self, change: Callable[[StackState], StackState], *started: ProcessRef) -> None:
        """Write the state down, unless the stack was ended meanwhile; then end what was started."""
        try:
            with self.orders.folder.locked():
                self.orders.folder.save(change(self._state()))
        except (ConfigError, StackOverError) as error:
            for each in started:
                _kill(each)
            raise StackOverError from error

    def _note(self) -> None:
        """Leave word of what is down, for `neve doctor`."""
        told = self.pauses.told(self.clock.now_s())
        file = self.orders.folder.repairs_file
        if told:
            write_secret(file, json.dumps(told))
        else:
            file.unlink(missing_ok=True)


def _kill(reference: ProcessRef) -> None:
    """End a process whatever it does; return when it is gone, or will not go."""
    process = reference.process()
    if process is not None:
        with contextlib.suppress(psutil.Error):
            process.kill()
            process.wait(END_WAIT_MAX_S)


def start_supervisor(orders: SupervisorOrders, environ: Mapping[str, str]) -> ProcessRef:
    """Start the supervisor of a stack that is up.

    Args:
        orders: Handed over through a pipe.
        environ: Of the process, with the mark.
    """
    log = orders.folder.logs / f"{SUPERVISOR}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=dict(environ),
            cwd=log.parent,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    assert process.stdin is not None
    with process.stdin as pipe:
        pickle.dump(orders, pipe)
    process.returncode = 0  # It outlives this process, which must not mind when it forgets it.
    return ProcessRef.of(SUPERVISOR, psutil.Process(process.pid))


def end_supervisor(state: StackState) -> None:
    """End the supervisor of a stack before anything else is ended."""
    for each in state.processes:
        if each.role == SUPERVISOR:
            _kill(each)


def main() -> None:
    """Run the supervisor on the orders that come through standard input."""
    orders = pickle.load(sys.stdin.buffer)
    assert isinstance(orders, SupervisorOrders), type(orders)
    # Nothing that it starts may wait for what it reads.
    os.close(sys.stdin.fileno())
    os.open(os.devnull, os.O_RDONLY)
    least = orders.options.settings.log.level
    Supervisor(orders, SystemClock(), event_log(SUPERVISOR, least)).run()
