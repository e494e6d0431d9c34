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

from common.errors import ConfigError, RefusedError, first_line
from common.runtime import Clock, SystemClock
from common.telemetry import Log, event_log
from neve.local.actors import ended_part
from neve.local.logs import COORDINATOR, GATEWAY, RAY, REDIS, SUPERVISOR
from neve.local.machine import ask_http
from neve.local.options import StackOptions
from neve.local.processes import ProcessRef, end_processes, processes_of_stack
from neve.local.servers import ROLES as RAY_ROLES
from neve.local.servers import RedisServer, is_redis
from neve.local.stack_folder import (
    StackFolder,
    StackState,
    write_secret,
)
from neve.local.starter import Machine, Starter

# ------------------------------------------------------------------------------------------ Repairs
# Which parts of a stack to restart, and when. Pure: observations and times are arguments.


NEEDS: Mapping[str, tuple[str, ...]] = {
    REDIS: (),
    RAY: (),
    GATEWAY: (RAY,),
    COORDINATOR: (RAY, REDIS),
}
"""Part → the parts that must be healthy before it can start. Earlier parts are started first."""
SILENCE_MAX_S: Mapping[str, float] = {REDIS: 60.0, COORDINATOR: 120.0, GATEWAY: 120.0}
"""A part that is alive but does not answer for this long is ended and restarted."""
PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Pause before the n-th start in a row; the last one repeats."""
WELL_S = 120.0
"""A part that has been healthy for this long starts over with the shortest pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSight:
    """Observed condition of a part."""

    ended: str = ""
    """Why the part has to be started; empty if its process is alive."""
    answers: bool | None = True
    """None: the part cannot be asked now."""


@dataclass(slots=True)
class _PartFailures:
    """Recent failures of a part."""

    since_s: float
    tries: int = 0
    next_s: float = 0.0
    well_s: float | None = None
    """When the part became healthy again; None if it is down."""
    error: str = ""


class RestartPauses:
    """When to retry the start of a part: at once, then with growing pauses."""

    def __init__(self) -> None:
        self._failures: dict[str, _PartFailures] = {}

    def may_try(self, part: str, now_s: float) -> bool:
        """Record that a part is down, and return whether it is time to start it."""
        failures = self._failures.setdefault(part, _PartFailures(since_s=now_s, next_s=now_s))
        if failures.well_s is not None:
            failures.since_s, failures.well_s = now_s, None
        return now_s >= failures.next_s

    def tried(self, part: str, now_s: float, error: str = "") -> None:
        """Record a finished try; the next try waits longer.

        Args:
            part: The part that was started.
            now_s: The time now.
            error: Why the start failed; empty if the part is up.
        """
        failures = self._failures[part]
        failures.tries += 1
        failures.error = error
        failures.next_s = now_s + PAUSES_S[min(failures.tries, len(PAUSES_S) - 1)]

    def well(self, part: str, now_s: float) -> None:
        """Record that a part is healthy; forget its failures after `WELL_S`."""
        failures = self._failures.get(part)
        if failures is None:
            return
        if failures.well_s is None:
            failures.well_s = now_s
        elif now_s - failures.well_s >= WELL_S:
            del self._failures[part]

    def notes(self, now_s: float) -> dict[str, str]:
        """Return a sentence for each part that is down."""
        return {
            part: f"down for {now_s - failure.since_s:.0f} s, started {failure.tries} times"
            + (f": {failure.error}" if failure.error else "")
            for part, failure in self._failures.items()
            if failure.well_s is None
        }


@dataclass(slots=True)
class Repairs:
    """Repairs in progress, and which repair is next. Each part has its own pauses."""

    silence_max_s: Mapping[str, float] = field(default_factory=lambda: SILENCE_MAX_S)
    pauses: RestartPauses = field(default_factory=RestartPauses)
    starting: set[str] = field(default_factory=set)
    """Parts that are being started."""
    _heard_s: dict[str, float] = field(default_factory=dict)
    """When each part last answered, or last could not be asked."""

    def due(self, sights: Mapping[str, PartSight], now_s: float) -> dict[str, str]:
        """Return the parts to start now, with reasons; they count as being started from now on.

        Args:
            sights: Observed condition of each part of the stack.
            now_s: The time now.
        """
        down = {part: why for part in sights if (why := self._why_down(part, sights[part], now_s))}
        unwell, due = down.keys() | self.starting, {}
        for part in [part for part in NEEDS if part in sights and part not in self.starting]:
            if unwell.intersection(NEEDS[part]):
                # It cannot be started, and another part may be the cause of its silence.
                self._heard_s[part] = now_s
            elif part not in down:
                if sights[part].answers:
                    self.pauses.well(part, now_s)
            elif self.pauses.may_try(part, now_s):
                due[part] = down[part]
        self.starting |= due.keys()
        return due

    def ended(self, part: str, now_s: float, error: str = "") -> None:
        """Record the end of a start.

        Args:
            part: The part that was started.
            now_s: The time now.
            error: Why the start failed; empty if the part is up.
        """
        self.starting.discard(part)
        self._heard_s[part] = now_s
        self.pauses.tried(part, now_s, error)

    def _why_down(self, part: str, sight: PartSight, now_s: float) -> str:
        """Return why a part has to be started; empty if it is healthy or may be."""
        if sight.ended:
            return sight.ended
        if sight.answers is not False or part in self.starting:
            self._heard_s[part] = now_s
            return ""
        silent_s = now_s - self._heard_s.setdefault(part, now_s)
        return f"no answer for {silent_s:.0f} s" if silent_s >= self.silence_max_s[part] else ""


# --------------------------------------------------------------------------------------- Supervisor


PROGRAM = "from neve.local.supervisor import main; main()"
LOOK_INTERVAL_S = 1.0
ASK_INTERVAL_S = 5.0
"""Interval between requests to Redis, gateway and coordinator."""
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
    _redis_asked_s: float | None = None
    """When Redis was last asked; None since it has ended."""
    _redis_answers: bool = True
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
        self._threads = [thread for thread in self._threads if thread.is_alive()]
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
            sights[REDIS] = self._redis_sight(state, now_s)
        if roles.intersection(RAY_ROLES):
            dead = [role for role in RAY_ROLES if not state.role_alive(role)]
            sights[RAY] = PartSight(ended=f"{', '.join(dead)} has ended" if dead else "")
        if self.orders.options.actors:
            sights |= self._actor_sights(state, now_s)
        return sights

    def _redis_sight(self, state: StackState, now_s: float) -> PartSight:
        if not state.role_alive(REDIS):
            self._redis_asked_s = None
            return PartSight(ended="its process has ended")
        if self._redis_asked_s is None or now_s - self._redis_asked_s >= ASK_INTERVAL_S:
            self._redis_asked_s, self._redis_answers = now_s, self._server(state).heard()
        return PartSight(answers=self._redis_answers)

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
            for server in filter(is_redis, processes_of_stack(state.mark, state.processes)):
                _kill(ProcessRef.of(REDIS, server))
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
        ray_processes = [process for process in started.processes if process.role in RAY_ROLES]

        def change(now: StackState) -> StackState:
            other = now.without(*RAY_ROLES).with_processes(*ray_processes)
            return replace(other, ray_address=started.ray_address)

        self._save(change, *ray_processes)

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
