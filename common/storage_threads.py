"""Threads for work on storage that may never come back: a file server that is gone, a dead mount.

    run → waits for a place → in a thread → answered
                                  │ slow_s
                                  ▼
                     its place goes to other work → answered
                                  │ deadline_s
                                  ▼
          UnavailableError; the location is silent: no more work until this has come back

A location has at most as many threads as there are places, so what stands still takes that many
threads at most, and places of others only until it is slow. No exit of the process waits for a
thread. A long piece of work is cut into steps (one batch of a scan, one file): the deadline is
for one of them.
"""

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, Self, TypeVar

from common.errors import UnavailableError
from common.redaction import redacted

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 64
DEADLINE_S = 300.0
"""Longer than any step on a storage that answers; clients of object stores give up sooner."""
SLOW_S = 10.0
"""Work that takes longer leaves its place to others: it may stand still."""
IDLE_MAX = 64
"""Threads that are kept for the next work."""


class StorageThreads:
    """Does work on locations in threads. For one event loop."""

    def __init__(
        self,
        threads: int = THREADS,
        deadline_s: float = DEADLINE_S,
        slow_s: float = SLOW_S,
        *,
        lane: "_Lane | None" = None,
    ) -> None:
        """Start no thread yet.

        Args:
            threads: Pieces of work at a time, those that are slow aside; more wait.
            deadline_s: How long a piece of work is waited for.
            slow_s: How long a piece of work keeps others waiting.
            lane: Places that are shared; None: places of its own.
        """
        self._lane = lane or _Lane(threads, slow_s, _SilentLocations(), DaemonThreads("storage"))
        self._deadline_s = deadline_s

    def beside(self, threads: int) -> Self:
        """Return threads for other work; a location that is silent for one is so for both.

        Args:
            threads: Pieces of that work at a time.
        """
        lane = _Lane(threads, self._lane.slow_s, self._lane.silent, self._lane.pool)
        return type(self)(deadline_s=self._deadline_s, lane=lane)

    def within(self, deadline_s: float) -> Self:
        """Return these threads for work that is waited for shorter or longer."""
        return type(self)(deadline_s=deadline_s, lane=self._lane)

    async def run(
        self, location: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what `work` returns. If the caller leaves, its work goes on.

        Args:
            location: URI that it works on.
            work: Blocks.
            args: For it.
            kwargs: For it.

        Raises:
            UnavailableError: The storage has not answered in time, now or before.
        """
        self._lane.silent.refuse(location)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        step = _Step(location, partial(work, *args, **kwargs), self._deadline_s, answer)
        self._lane.put(step)
        return await answer

    def close(self) -> None:
        """Take no more work; what stands still is left alone."""
        self._lane.pool.shutdown(wait=False)


@dataclass(eq=False, slots=True)
class _Step:
    """One piece of work on a location."""

    location: str
    work: Callable[[], object]
    deadline_s: float
    answer: asyncio.Future[Any]
    timer: asyncio.TimerHandle | None = None
    slow: bool = False
    late: bool = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.answer.get_loop()

    def call_later(self, delay_s: float, what: "Callable[[_Step], None]") -> None:
        """Have something done unless the step has come further by then."""
        self.stop_timer()
        self.timer = self.loop.call_later(delay_s, what, self)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def fail(self, error: BaseException) -> None:
        """Tell the caller, unless it has left or was told."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def take_from(self, future: "asyncio.Future[object]") -> None:
        """Tell the caller what came of its work, unless it has left or was told."""
        if future.cancelled():
            self.answer.cancel()
        elif (error := future.exception()) is not None:
            self.fail(error)
        elif not self.answer.done():
            self.answer.set_result(future.result())


@dataclass(eq=False, slots=True)
class _Location:
    """What is under way for one location."""

    moved_s: float
    """When a step of it has begun or ended last."""
    running: int = 0
    waiting: deque[_Step] = field(default_factory=deque)


class _SilentLocations:
    """Locations of which a step has not come back in time."""

    def __init__(self) -> None:
        self.lanes: list[_Lane] = []
        self._late: dict[str, list[_Step]] = {}

    def refuse(self, location: str) -> None:
        """Refuse work on a location that is silent.

        Raises:
            UnavailableError: It is.
        """
        if late := self._late.get(location):
            raise UnavailableError(
                f"the storage of {redacted(location)} has not answered yet to what it was asked "
                f"more than {late[0].deadline_s:g} s ago; is it mounted, and does its server run?"
            )

    def add(self, step: _Step) -> None:
        """Note a step that has not come back; whoever waits for the same location is told."""
        self._late.setdefault(step.location, []).append(step)
        error = (
            f"the storage of {redacted(step.location)} has not answered for {step.deadline_s:g} s;"
            " is it mounted, and does its server run? It is asked again when it has answered"
        )
        step.fail(UnavailableError(error))
        for lane in self.lanes:
            lane.refuse_waiting(step.location, error)

    def remove(self, step: _Step) -> None:
        """Note that a step has come back after all."""
        late = self._late[step.location]
        late.remove(step)
        if not late:
            del self._late[step.location]


class _Lane:
    """Some places for steps; locations take turns."""

    def __init__(
        self, places: int, slow_s: float, silent: _SilentLocations, pool: "DaemonThreads"
    ) -> None:
        self.slow_s, self.silent, self.pool = slow_s, silent, pool
        self._places = places
        self._taken = 0
        self._locations: OrderedDict[str, _Location] = OrderedDict()
        """The one whose turn is next comes first."""
        silent.lanes.append(self)

    def put(self, step: _Step) -> None:
        """Begin a step, now or when there is a place."""
        if step.location not in self._locations:
            self._locations[step.location] = _Location(step.loop.time())
        self._locations[step.location].waiting.append(step)
        step.call_later(step.deadline_s, self._has_waited)
        self._begin_some()

    def refuse_waiting(self, location: str, error: str) -> None:
        """Tell whoever waits with work on a location that it is silent."""
        if (known := self._locations.get(location)) is not None:
            for step in known.waiting:
                step.stop_timer()
                step.fail(UnavailableError(error))
            known.waiting.clear()
            self._forget_if_idle(location)

    def _begin_some(self) -> None:
        while self._taken < self._places and (step := self._next()) is not None:
            if not step.answer.done():
                self._begin(step)
            self._forget_if_idle(step.location)

    def _next(self) -> _Step | None:
        for location, known in self._locations.items():
            if known.waiting and known.running < self._places:
                self._locations.move_to_end(location)
                step = known.waiting.popleft()
                step.stop_timer()
                return step
        return None

    def _begin(self, step: _Step) -> None:
        try:
            future = step.loop.run_in_executor(self.pool, step.work)
        except RuntimeError as error:
            step.fail(UnavailableError(f"no thread can be started: {error}"))
            return
        known = self._locations[step.location]
        known.running += 1
        known.moved_s = step.loop.time()
        self._taken += 1
        step.call_later(min(self.slow_s, step.deadline_s), self._has_become_slow)
        future.add_done_callback(partial(self._has_come_back, step))

    def _has_waited(self, step: _Step) -> None:
        """Give a step up if its location does not move: long steps hold all of its threads."""
        known = self._locations[step.location]
        still_s = step.loop.time() - known.moved_s
        if still_s < step.deadline_s and not step.answer.done():
            step.call_later(step.deadline_s - still_s, self._has_waited)
            return
        known.waiting.remove(step)
        self._forget_if_idle(step.location)
        step.fail(
            UnavailableError(
                f"the storage of {redacted(step.location)} has answered nothing for {still_s:g} s, "
                f"and {known.running} steps on it are under way: try again later"
            )
        )

    def _has_become_slow(self, step: _Step) -> None:
        step.slow = True
        self._taken -= 1
        if self.slow_s < step.deadline_s:
            step.call_later(step.deadline_s - self.slow_s, self._has_become_late)
        else:
            self._has_become_late(step)
        self._begin_some()

    def _has_become_late(self, step: _Step) -> None:
        step.late = True
        self.silent.add(step)

    def _has_come_back(self, step: _Step, future: "asyncio.Future[object]") -> None:
        step.stop_timer()
        known = self._locations[step.location]
        known.running -= 1
        known.moved_s = step.loop.time()
        if not step.slow:
            self._taken -= 1
        if step.late:
            self.silent.remove(step)
        step.take_from(future)
        self._forget_if_idle(step.location)
        self._begin_some()

    def _forget_if_idle(self, location: str) -> None:
        known = self._locations[location]
        if not known.running and not known.waiting:
            del self._locations[location]


class DaemonThreads(Executor):
    """Threads without a bound of their own, whose end no exit of the process waits for."""

    def __init__(self, name: str) -> None:
        """Start no thread yet; all get names that begin with this one."""
        self._name = name
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin something at once.

        Raises:
            RuntimeError: The machine gives no more threads, or they were shut down.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the service ends")
            if self._idle:
                self._idle -= 1
            else:
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
            self._queue.put(partial(self._do, future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; nobody is waited for, whatever the arguments say."""
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._queue.put(None)
            self._idle = 0

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work
            with self._lock:
                if self._idle > IDLE_MAX:
                    self._idle -= 1
                    return

    def _do(self, future: Future[T], work: Callable[[], T]) -> None:
        """Do it; the thread counts as idle before anybody hears of the result."""
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001, RUF100 - whoever awaits it gets it
            self._count_idle()
            future.set_exception(error)
        else:
            self._count_idle()
            future.set_result(result)

    def _count_idle(self) -> None:
        with self._lock:
            if self._closed:
                self._queue.put(None)
            else:
                self._idle += 1
