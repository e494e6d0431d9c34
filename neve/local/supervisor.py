"""Keeps a stack up: a process next to it that starts again what has died, part by part.

    Redis        dead, or silent for long → started again on its own data
    Ray's head   dead, and all actors with it → started again; then coordinator and gateway
    coordinator  silent for long → its process is ended, and an actor started
    gateway      likewise, at the same address

`repairs` decides what is started when. Each start runs in a thread of its own, so no part waits
for another that it does not need. Ray itself starts an actor again that dies alone, and the
coordinator starts the compactors: one that does not come up delays no other part.

The supervisor belongs to one start of a stack: when the state file is gone, or is another start's,
both are over, and so is every start that has just begun. `neve down` ends the supervisor first.
"""

import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event, Lock, Thread
from urllib.parse import urlsplit

import psutil

from common.clock import Clock, SystemClock
from common.errors import ConfigError, RefusedError, first_line
from common.telemetry import Log, event_log
from neve.local.actors import ended_part
from neve.local.logs import COORDINATOR, GATEWAY, RAY, REDIS, SUPERVISOR
from neve.local.machine import ask_http
from neve.local.options import StackOptions
from neve.local.processes import ProcessRef, end_processes, processes_of_stack
from neve.local.ray_head import ROLES as RAY_ROLES
from neve.local.redis_server import RedisServer, is_redis
from neve.local.repairs import PartSight, Repairs
from neve.local.stack_folder import (
    StackFolder,
    StackState,
    write_secret,
)
from neve.local.starter import Machine, Starter

PROGRAM = "from neve.local.supervisor import main; main()"
LOOK_INTERVAL_S = 1.0
ASK_INTERVAL_S = 5.0
"""Between two questions to gateway and coordinator."""
END_WAIT_MAX_S = 10.0
ACTORS = (COORDINATOR, GATEWAY)


class StackOverError(Exception):
    """The stack was ended, or started anew by another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOrders:
    """What a supervisor gets through its standard input: it holds secrets."""

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
    repairs: Repairs = field(default_factory=Repairs)
    _threads: list[Thread] = field(default_factory=list)
    _ends: list[tuple[str, float, str]] = field(default_factory=list)
    """Starts that have ended: part, when, and the error if it has failed."""
    _owed: set[str] = field(default_factory=set)
    """Actors that the head of Ray does not have since it was started again."""
    _asked_s: float | None = None
    """When gateway and coordinator were asked last."""
    _asker: Thread | None = None
    _answers: dict[str, PartSight] = field(default_factory=dict)
    """What asking them has shown last."""
    _over: bool = False
    _saving: Lock = field(default_factory=Lock)
    _processes: Lock = field(default_factory=Lock)
    """Held while Redis is started, and while what is left of Ray is ended: Redis is spared."""

    def run(self, stopped: Event | None = None) -> None:
        """Look again and again until the stack is over. Nothing else ends it, not a full disk.

        Args:
            stopped: Set to end it; None: only the stack's end does.
        """
        stopped = stopped or Event()
        while not stopped.wait(LOOK_INTERVAL_S):
            try:
                self.look()
            except StackOverError:
                break
            except Exception as error:  # the boundary of the process: it must outlive every fault
                self.log("look at the stack failed", cause=first_line(error))
        self.wait()
        self.log("supervisor ends")

    def look(self) -> None:
        """Look once, and begin to start what is down if it is time for it.

        Raises:
            StackOverError: The stack has ended.
        """
        if self._over:
            raise StackOverError
        state, now_s = self._state(), self.clock.now_s()
        while self._ends:
            self.repairs.ended(*self._ends.pop(0))
        starts: dict[str, Callable[[], None]] = {
            REDIS: self._start_redis,
            RAY: self._start_ray,
            **{part: partial(self._start_actor, part) for part in ACTORS},
        }
        for part, why in self.repairs.due(self._sights(state, now_s), now_s).items():
            self.log("part is down", down=part, cause=why)
            thread = Thread(target=self._try, args=(part, starts[part]), name=part, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._threads = [each for each in self._threads if each.is_alive()]
        self._note(now_s)

    def wait(self) -> None:
        """Return when no start is under way."""
        for thread in tuple(self._threads):
            thread.join()

    def _try(self, part: str, start: Callable[[], None]) -> None:
        begun_s, cause = self.clock.now_s(), ""
        try:
            start()
        except StackOverError:
            self._over = True
            return
        except Exception as error:  # the boundary of a start: other parts must not suffer from it
            cause = first_line(error)
            self.log("part does not start", down=part, cause=cause)
        else:
            took_s = round(self.clock.now_s() - begun_s, 1)
            self.log("part is up again", up=part, took_s=took_s)
        self._ends.append((part, self.clock.now_s(), cause))

    # --------------------------------------------------------------------------- What a look shows

    def _sights(self, state: StackState, now_s: float) -> dict[str, PartSight]:
        sights, roles = {}, {process.role for process in state.processes}
        if REDIS in roles:
            sights[REDIS] = self._redis_sight(state)
        if roles.intersection(RAY_ROLES):
            dead = [role for role in RAY_ROLES if not state.role_alive(role)]
            sights[RAY] = PartSight(ended=f"{', '.join(dead)} has ended" if dead else "")
        if self.orders.options.actors:
            sights |= self._actor_sights(state, now_s)
        return sights

    def _redis_sight(self, state: StackState) -> PartSight:
        if not state.role_alive(REDIS):
            return PartSight(ended="its process has ended")
        return PartSight(answers=self._server(state).heard())

    def _actor_sights(self, state: StackState, now_s: float) -> dict[str, PartSight]:
        """Return how the actors are; a gateway that is asked may be silent for a while."""
        may_ask = self._asker is None or not self._asker.is_alive()
        if may_ask and (self._asked_s is None or now_s - self._asked_s >= ASK_INTERVAL_S):
            self._asked_s = now_s
            self._asker = Thread(target=self._ask, args=(state.gateway_url,), daemon=True)
            self._asker.start()
        owed = {part: PartSight(ended="the head of Ray was replaced") for part in tuple(self._owed)}
        return {**{part: PartSight(answers=None) for part in ACTORS}, **self._answers, **owed}

    def _ask(self, url: str) -> None:
        self._answers = ask_actors(url)

    # ------------------------------------------------------------------------------------- Starts

    def _start_redis(self) -> None:
        with self._processes:
            state = self._state()
            # Also one that an earlier supervisor has started and not written down.
            for each in filter(is_redis, processes_of_stack(state.mark, state.processes)):
                _kill(ProcessRef.of(REDIS, each))
            starter = self._starter(self.orders.options)
            process = self._server(state).start(starter.environment_of(state), self.clock)
            self._save(lambda now: now.without(REDIS).with_processes(process), process)

    def _server(self, state: StackState) -> RedisServer:
        return self._starter(self.orders.options).redis_server(state)

    def _start_ray(self) -> None:
        with self._processes:
            state = self._state()
            if stubborn := end_processes(state.mark, state.processes, spare=is_redis):
                raise ConfigError(f"processes {', '.join(map(str, stubborn))} do not end")
        self._starter(self._options_now(state)).start_ray(state.without(*RAY_ROLES))
        self._owed |= set(ACTORS)

    def _start_actor(self, part: str) -> None:
        state = self._state()
        starter = self._starter(self._options_now(state))
        starter.start_actor(state, part, self._ended_part)
        self._owed.discard(part)

    def _ended_part(self) -> tuple[str, str] | None:
        """Return what has ended while an actor is started, as `start_actors` wants it."""
        return ended_part(self._state())

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
            save=self._save_ray,
        )

    # -------------------------------------------------------------------------- The stack's folder

    def _state(self) -> StackState:
        state = self.orders.folder.load()
        if state is None or state.mark != self.orders.mark:
            raise StackOverError
        return state

    def _save_ray(self, started: StackState) -> None:
        """Write the processes of Ray down; those of other parts may be others by now."""
        found = [process for process in started.processes if process.role in RAY_ROLES]

        def change(now: StackState) -> StackState:
            other = now.without(*RAY_ROLES).with_processes(*found)
            return replace(other, ray_address=started.ray_address)

        self._save(change, *found)

    def _save(self, change: Callable[[StackState], StackState], *started: ProcessRef) -> None:
        """Write the state down, unless the stack has ended; else end what was started.

        Raises:
            StackOverError: It has ended.
            OSError: The file cannot be written, as on a full disk. What is not written down must
                not run: it would be started a second time.
        """
        try:
            with self._saving, self.orders.folder.locked():
                self.orders.folder.save(change(self._state()))
        except (ConfigError, RefusedError, StackOverError, OSError) as error:
            for process in started:
                _kill(process)
            if isinstance(error, OSError):
                raise
            raise StackOverError from error

    def _note(self, now_s: float) -> None:
        """Write down what is down, for the command line; without it the work goes on."""
        notes = self.repairs.pauses.notes(now_s)
        file = self.orders.folder.repairs_file
        with contextlib.suppress(OSError):
            if notes:
                write_secret(file, json.dumps(notes))
            else:
                file.unlink(missing_ok=True)


def ask_actors(url: str) -> dict[str, PartSight]:
    """Ask the gateway how it is, and how the coordinator is."""
    gateway = ask_http(f"{url}/healthz")
    if not gateway.heard:
        return {GATEWAY: PartSight(answers=False), COORDINATOR: PartSight(answers=None)}
    ready = ask_http(f"{url}/readyz")
    if ready.code == 503:
        # Without the store it says so, of the store alone.
        answers = False if "coordinator does not answer" in ready.text else None
    else:
        answers = True if ready.code == 200 else None
    return {GATEWAY: PartSight(), COORDINATOR: PartSight(answers=answers)}


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
    for process in state.processes:
        if process.role == SUPERVISOR:
            _kill(process)


def main() -> None:
    """Run the supervisor on the orders that come through standard input."""
    orders = pickle.load(sys.stdin.buffer)
    assert isinstance(orders, SupervisorOrders), type(orders)
    # Nothing that it starts may wait for what it reads.
    os.close(sys.stdin.fileno())
    os.open(os.devnull, os.O_RDONLY)
    least = orders.options.settings.log.level
    Supervisor(orders, SystemClock(), event_log(SUPERVISOR, least)).run()
