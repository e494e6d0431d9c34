"""Threads for storage operations that may never return: a lost file server, a dead mount.

    run → waits for a slot → runs in a thread → returns
                 │ after slow_s
                 ▼
           its slot is given to other work → returns
                 │ after deadline_s
                 ▼
    UnavailableError; the location is silent and gets no more work until this returns

A location has at most as many threads as there are slots. So stalled work occupies at most that
many threads, and it occupies slots only until it counts as slow. The exit of the process waits for
no thread. Long work is divided into steps (one batch of a scan, one file), and the deadline
applies to each step.
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

from common.errors import UnavailableError, redacted

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 64
DEADLINE_S = 300.0
"""Longer than any step on a storage that answers; clients of object stores time out sooner."""
SLOW_S = 10.0
"""Work that takes longer gives up its slot, because it may have stalled."""
IDLE_MAX = 64
"""Idle threads that are kept."""


class StorageThreads:
    """Runs storage operations in threads, for one event loop."""

    def __init__(
        self,
        threads: int = THREADS,
        deadline_s: float = DEADLINE_S,
        slow_s: float = SLOW_S,
        *,
        lane: "_Lane | None" = None,
    ) -> None:
        """Create the slots; threads start on demand.

        Args:
            threads: Concurrent operations, without slow ones; further ones wait.
            deadline_s: Longest wait for one operation.
            slow_s: Time after which an operation gives up its slot.
            lane: Shared slots; None: slots of its own.
        """
        self._lane = lane or _Lane(threads, slow_s, _SilentLocations(), DaemonThreads("storage"))
        self._deadline_s = deadline_s

    def with_threads(self, threads: int) -> Self:
        """Return threads for other work that shares the record of silent locations.

        Args:
            threads: Concurrent operations of that work.
        """
        lane = _Lane(threads, self._lane.slow_s, self._lane.silent, self._lane.pool)
        return type(self)(deadline_s=self._deadline_s, lane=lane)

    def within(self, deadline_s: float) -> Self:
        """Return these threads with another deadline."""
        return type(self)(deadline_s=deadline_s, lane=self._lane)

    async def run(
        self, location: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of `work`. If the caller is cancelled, its work continues.

        Args:
            location: URI that it works on.
            work: A blocking function.
            args: Arguments of `work`.
            kwargs: Keyword arguments of `work`.

        Raises:
            UnavailableError: The storage did not answer in time, now or in an earlier call.
        """
        self._lane.silent.refuse(location)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        step = _Step(location, partial(work, *args, **kwargs), self._deadline_s, answer)
        self._lane.put(step)
        return await answer

    def close(self) -> None:
        """Refuse further work; stalled threads are abandoned."""
        self._lane.pool.shutdown(wait=False)


@dataclass(eq=False, slots=True)
class _Step:
    """One operation on a location."""

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
        """Schedule a callback that a later state of the step cancels."""
        self.stop_timer()
        self.timer = self.loop.call_later(delay_s, what, self)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def fail(self, error: BaseException) -> None:
        """Report an error to the caller, unless the caller is gone or already has an answer."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def take_from(self, future: "asyncio.Future[object]") -> None:
        """Report the outcome to the caller, unless the caller is gone or already has an answer."""
        if future.cancelled():
            self.answer.cancel()
        elif (error := future.exception()) is not None:
            self.fail(error)
        elif not self.answer.done():
            self.answer.set_result(future.result())


@dataclass(eq=False, slots=True)
class _Location:
    """The running steps of one location."""

    moved_s: float
    """Time at which a step last began or ended."""
    running: int = 0
    waiting: deque[_Step] = field(default_factory=deque)


class _SilentLocations:
    """Locations with a step that exceeded its deadline and has not returned."""

    def __init__(self) -> None:
        self.lanes: list[_Lane] = []
        self._late: dict[str, list[_Step]] = {}

    def refuse(self, location: str) -> None:
        """Refuse work on a silent location.

        Raises:
            UnavailableError: The location is silent.
        """
        if late := self._late.get(location):
            raise UnavailableError(
                f"the storage of {redacted(location)} has not answered an operation that started "
                f"more than {late[0].deadline_s:g} s ago; is it mounted, and is its server running?"
            )

    def add(self, step: _Step) -> None:
        """Record a step that has not returned, and fail the steps that wait for its location."""
        self._late.setdefault(step.location, []).append(step)
        error = (
            f"the storage of {redacted(step.location)} has not answered for {step.deadline_s:g} s;"
            " is it mounted, and is its server running? Operations resume after it answers"
        )
        step.fail(UnavailableError(error))
        for lane in self.lanes:
            lane.refuse_waiting(step.location, error)

    def remove(self, step: _Step) -> None:
        """Record that a late step has returned."""
        late = self._late[step.location]
        late.remove(step)
        if not late:
            del self._late[step.location]


class _Lane:
    """Slots for steps; locations take turns."""

    def __init__(
        self, slots: int, slow_s: float, silent: _SilentLocations, pool: "DaemonThreads"
    ) -> None:
        self.slow_s, self.silent, self.pool = slow_s, silent, pool
        self._slots = slots
        self._taken = 0
        self._locations: OrderedDict[str, _Location] = OrderedDict()
        """Locations in turn order, the next one first."""
        silent.lanes.append(self)

    def put(self, step: _Step) -> None:
        """Start a step, now or when a slot is free."""
        if step.location not in self._locations:
            self._locations[step.location] = _Location(step.loop.time())
        self._locations[step.location].waiting.append(step)
        step.call_later(step.deadline_s, self._has_waited)
        self._begin_some()

    def refuse_waiting(self, location: str, error: str) -> None:
        """Fail the steps that wait for a location, because it is silent."""
        if (state := self._locations.get(location)) is not None:
            for step in state.waiting:
                step.stop_timer()
                step.fail(UnavailableError(error))
            state.waiting.clear()
            self._forget_if_idle(location)

    def _begin_some(self) -> None:
        while self._taken < self._slots and (step := self._next()) is not None:
            if not step.answer.done():
                self._begin(step)
            self._forget_if_idle(step.location)

    def _next(self) -> _Step | None:
        for location, state in self._locations.items():
            if state.waiting and state.running < self._slots:
                self._locations.move_to_end(location)
                step = state.waiting.popleft()
                step.stop_timer()
                return step
        return None

    def _begin(self, step: _Step) -> None:
        try:
            future = step.loop.run_in_executor(self.pool, step.work)
        except RuntimeError as error:
            step.fail(UnavailableError(f"no thread can be started: {error}"))
            return
        state = self._locations[step.location]
        state.running += 1
        state.moved_s = step.loop.time()
        self._taken += 1
        step.call_later(min(self.slow_s, step.deadline_s), self._has_become_slow)
        future.add_done_callback(partial(self._has_come_back, step))

    def _has_waited(self, step: _Step) -> None:
        """Fail a step whose location makes no progress: long steps occupy all its threads."""
        state = self._locations[step.location]
        still_s = step.loop.time() - state.moved_s
        if still_s < step.deadline_s and not step.answer.done():
            step.call_later(step.deadline_s - still_s, self._has_waited)
            return
        state.waiting.remove(step)
        self._forget_if_idle(step.location)
        step.fail(
            UnavailableError(
                f"the storage of {redacted(step.location)} has not answered for {still_s:g} s, "
                f"and {state.running} operations on it are running: try again later"
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
        state = self._locations[step.location]
        state.running -= 1
        state.moved_s = step.loop.time()
        if not step.slow:
            self._taken -= 1
        if step.late:
            self.silent.remove(step)
        step.take_from(future)
        self._forget_if_idle(step.location)
        self._begin_some()

    def _forget_if_idle(self, location: str) -> None:
        state = self._locations[location]
        if not state.running and not state.waiting:
            del self._locations[location]


class DaemonThreads(Executor):
    """Unbounded threads that the exit of the process does not wait for."""

    def __init__(self, name: str) -> None:
        """Create the executor; threads start on demand, and their names begin with `name`."""
        self._name = name
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start work at once.

        Raises:
            RuntimeError: The machine has no more threads, or the executor was shut down.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the service is shutting down")
            if self._idle:
                self._idle -= 1
            else:
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
            self._queue.put(partial(self._do, future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further work without waiting, whatever the arguments."""
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
        """Run the work; the thread counts as idle before the result is visible."""
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001, RUF100 - the caller that awaits it gets it
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
