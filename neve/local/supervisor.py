"""Keeps a stack running: a separate process that restarts dead parts.

    Redis        dead, or silent for long → restarted on its own data
    Ray's head   dead, and all actors with it → restarted; then coordinator and gateway
    coordinator  silent for long → its process is ended and a new actor is started
    gateway      the same, at the same address

`repairs` decides when to start which part. Each start runs in its own thread, so a part waits only
for the parts that it needs. If only an actor dies, Ray restarts it. The coordinator starts the
compactors; a compactor that fails to start delays no other part.

The supervisor belongs to one start of a stack. When the state file is missing or belongs to another
start, the stack has ended; the supervisor ends and abandons the starts in progress. `neve down`
ends the supervisor first.
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
"""Interval between requests to gateway and coordinator."""
END_WAIT_MAX_S = 10.0
ACTORS = (COORDINATOR, GATEWAY)


class StackOverError(Exception):
    """The stack was ended, or another process started it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOrders:
    """Input of a supervisor, passed through standard input because it holds secrets."""

    mark: str
    folder: StackFolder
    options: StackOptions
    machine: Machine
    environ: Mapping[str, str]


@dataclass
class Supervisor:
    """Checks a stack at intervals and restarts dead parts."""

    orders: SupervisorOrders
    clock: Clock
    log: Log
    repairs: Repairs = field(default_factory=Repairs)
    _threads: list[Thread] = field(default_factory=list)
    _ends: list[tuple[str, float, str]] = field(default_factory=list)
    """Finished starts: part, time, and the error if the start failed."""
    _owed: set[str] = field(default_factory=set)
    """Actors that are missing since the Ray head was restarted."""
    _asked_s: float | None = None
    """When gateway and coordinator were last asked."""
    _asker: Thread | None = None
    _answers: dict[str, PartSight] = field(default_factory=dict)
    """The latest result of asking them."""
    _over: bool = False
    _saving: Lock = field(default_factory=Lock)
    _processes: Lock = field(default_factory=Lock)
    """Held while Redis is started and while Ray's remaining processes are ended, so that the
    cleanup never sees a half-started Redis.
    """

    def run(self, stopped: Event | None = None) -> None:
        """Check the stack repeatedly until it ends; survive all other errors, such as a full disk.

        Args:
            stopped: Event that ends the loop; None: only the end of the stack does.
        """
        stopped = stopped or Event()
        while not stopped.wait(LOOK_INTERVAL_S):
            try:
                self.look()
            except StackOverError:
                break
            except Exception as error:  # process boundary: the supervisor must survive every fault
                self.log("look at the stack failed", cause=first_line(error))
        self.wait()
        self.log("supervisor ends")

    def look(self) -> None:
        """Check the stack once, and begin the starts that are due.

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
        """Wait until no start is in progress."""
        for thread in tuple(self._threads):
            thread.join()

    def _try(self, part: str, start: Callable[[], None]) -> None:
        begun_s, cause = self.clock.now_s(), ""
        try:
            start()
        except StackOverError:
            self._over = True
            return
        except Exception as error:  # boundary of a start: a failure must not affect other parts
            cause = first_line(error)
            self.log("part does not start", down=part, cause=cause)
        else:
            took_s = round(self.clock.now_s() - begun_s, 1)
            self.log("part is up again", up=part, took_s=took_s)
        self._ends.append((part, self.clock.now_s(), cause))

    # --------------------------------------------------------------------- Observation of the parts

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
        """Return the condition of the actors; a thread asks them, because they may be slow."""
        may_ask = self._asker is None or not self._asker.is_alive()
        if may_ask and (self._asked_s is None or now_s - self._asked_s >= ASK_INTERVAL_S):
            self._asked_s = now_s
            self._asker = Thread(target=self._ask, args=(state.gateway_url,), daemon=True)
            self._asker.start()
        owed = {part: PartSight(ended="the head of Ray was replaced") for part in tuple(self._owed)}
        return {**{part: PartSight(answers=None) for part in ACTORS}, **self._answers, **owed}

    def _ask(self, url: str) -> None:
        self._answers = ask_actors(url)

    # --------------------------------------------------------------------------------------- Starts

    def _start_redis(self) -> None:
        with self._processes:
            state = self._state()
            # Includes a Redis that an earlier supervisor started but did not save.
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
        """Return a dead part during the start of an actor; see `start_actors`."""
        return ended_part(self._state())

    def _options_now(self, state: StackState) -> StackOptions:
        """Return the options with the ports that callers already know."""
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

    # --------------------------------------------------------------------------- The stack's folder

    def _state(self) -> StackState:
        state = self.orders.folder.load()
        if state is None or state.mark != self.orders.mark:
            raise StackOverError
        return state

    def _save_ray(self, started: StackState) -> None:
        """Save the processes of Ray; keep the current processes of other parts."""
        found = [process for process in started.processes if process.role in RAY_ROLES]

        def change(now: StackState) -> StackState:
            other = now.without(*RAY_ROLES).with_processes(*found)
            return replace(other, ray_address=started.ray_address)

        self._save(change, *found)

    def _save(self, change: Callable[[StackState], StackState], *started: ProcessRef) -> None:
        """Save the changed state; if that fails, end the processes that were just started.

        Raises:
            StackOverError: The stack has ended.
            OSError: The file cannot be written, for example on a full disk. An unsaved process must
                not run, because it would be started a second time.
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
        """Save the list of parts that are down, for the command line; ignore write errors."""
        notes = self.repairs.pauses.notes(now_s)
        file = self.orders.folder.repairs_file
        with contextlib.suppress(OSError):
            if notes:
                write_secret(file, json.dumps(notes))
            else:
                file.unlink(missing_ok=True)


def ask_actors(url: str) -> dict[str, PartSight]:
    """Ask the gateway for its own health and the coordinator's."""
    gateway = ask_http(f"{url}/healthz")
    if not gateway.heard:
        return {GATEWAY: PartSight(answers=False), COORDINATOR: PartSight(answers=None)}
    ready = ask_http(f"{url}/readyz")
    if ready.code == 503:
        # If the store is down, the answer mentions the store only.
        answers = False if "coordinator does not answer" in ready.text else None
    else:
        answers = True if ready.code == 200 else None
    return {GATEWAY: PartSight(), COORDINATOR: PartSight(answers=answers)}


def _kill(reference: ProcessRef) -> None:
    """Kill a process; wait a limited time for its end."""
    process = reference.process()
    if process is not None:
        with contextlib.suppress(psutil.Error):
            process.kill()
            process.wait(END_WAIT_MAX_S)


def start_supervisor(orders: SupervisorOrders, environ: Mapping[str, str]) -> ProcessRef:
    """Start the supervisor of a running stack.

    Args:
        orders: Input of the supervisor, passed through a pipe.
        environ: Environment of the process, with the mark.
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
    process.returncode = 0  # It outlives this process; this avoids Python's warning.
    return ProcessRef.of(SUPERVISOR, psutil.Process(process.pid))


def end_supervisor(state: StackState) -> None:
    """End the supervisor of a stack before anything else is ended."""
    for process in state.processes:
        if process.role == SUPERVISOR:
            _kill(process)


def main() -> None:
    """Run the supervisor on the orders from standard input."""
    orders = pickle.load(sys.stdin.buffer)
    assert isinstance(orders, SupervisorOrders), type(orders)
    # The processes that it starts must not share its standard input.
    os.close(sys.stdin.fileno())
    os.open(os.devnull, os.O_RDONLY)
    least = orders.options.settings.log.level
    Supervisor(orders, SystemClock(), event_log(SUPERVISOR, least)).run()
