"""Simulated time for asyncio: each process has an event loop of its own, all run from one heap.

The production shells run on it unchanged: their tasks, futures, timeouts and locks are
asyncio's own. A process may be killed (nothing of it runs again) or frozen (it runs on
later, unaware). What happens when is decided by one seed.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from random import Random
from typing import Any

EPOCH_S = 1_700_000_000.0
STORY_LINES_MAX = 80
STEPS_AT_ONE_MOMENT_MAX = 100_000
CANCELS_MAX = 3
"""What is cancelled at the end may wait once more, to tidy up."""
THREAD_MAX_S = 0.05
"""Longest work in a thread, in simulated time."""


class World:
    """The scheduler; also the clock, the dice and the story of one run."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.random = self.dice.random
        self.steps = 0
        self.over = False
        self.failure: BaseException | None = None
        self.ready: deque[asyncio.Handle] = deque()
        self.after_work: Callable[[], None] = lambda: None
        """Called when something was done that a thread would do."""
        self.way_s: Callable[[], float] = lambda: 0.0
        """Returns how long a thread waits, before and after what it does."""
        self._story: deque[tuple[float, str, str, dict[str, Any]]] = deque(maxlen=STORY_LINES_MAX)
        self._digest = hashlib.sha256()
        self._now_s = EPOCH_S
        self._heap: list[tuple[float, int, asyncio.Handle]] = []
        self._count = 0
        self._processes: list[SimLoop] = []
        self._running: SimLoop | None = None

    def now_s(self) -> float:
        return self._now_s

    def chance(self, probability: float) -> bool:
        return probability > 0.0 and self.random() < probability

    def process(self, name: str) -> SimLoop:
        """Return a new process."""
        process = SimLoop(self, name)
        self._processes.append(process)
        return process

    def fail(self, error: BaseException) -> None:
        """End the run with an error; the first one counts."""
        if self.failure is None and not self.over:
            self.failure = error

    # The story.

    def tell(self, who: str, what: str, **fields: Any) -> None:
        """Add a line to the story."""
        self._story.append((self._now_s, who, what, fields))
        self._digest.update(f"{self._now_s:.6f}{who}{what}".encode())

    @property
    def digest(self) -> str:
        """What happened, in 16 digits."""
        return self._digest.hexdigest()[:16]

    def story(self) -> str:
        """Return the last lines."""
        lines = []
        for at_s, who, what, fields in self._story:
            told = " ".join(f"{name}={value}" for name, value in fields.items())
            lines.append(f"{at_s - EPOCH_S:9.3f} {who}: {what} {told}")
        return "\n".join(lines)

    # Time.

    def push(self, when_s: float, handle: asyncio.Handle) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when_s, self._count, handle))

    def run_until(self, until_s: float) -> None:
        """Let time pass.

        Raises:
            BaseException: What somebody has failed with.
        """
        heap, moment = self._heap, 0
        self._running = None
        try:
            while True:
                if self.ready:
                    self._run(self.ready.popleft())
                    moment += 1
                    assert moment < STEPS_AT_ONE_MOMENT_MAX, f"{self._running} turns for ever"
                elif heap and heap[0][0] <= until_s:
                    when_s, _, handle = heapq.heappop(heap)
                    if when_s > self._now_s:
                        self._now_s, moment = when_s, 0
                    self._run(handle)
                else:
                    break
                if self.failure is not None:
                    raise self.failure
        finally:
            asyncio._set_running_loop(None)
        self._now_s = max(self._now_s, until_s)

    def _run(self, handle: asyncio.Handle) -> None:
        """Let a process do what it has scheduled, unless it is dead or frozen."""
        loop: SimLoop = handle._loop  # type: ignore[attr-defined]  # every handle has one
        if handle._cancelled or not loop.alive:
            return
        if loop.frozen_until_s > self._now_s:
            self.push(loop.frozen_until_s, handle)
            return
        self.steps += 1
        if loop is not self._running:
            asyncio._set_running_loop(loop)
            self._running = loop
        handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]  # so does asyncio

    def end(self) -> None:
        """Cancel everything that is left, so that nothing is collected while it waits."""
        self.over = True
        for _ in range(CANCELS_MAX):
            left = [task for process in self._processes for task in asyncio.all_tasks(process)]
            for process in self._processes:
                process.alive, process.frozen_until_s = True, 0.0
            for task in left:
                task.cancel()
            self.failure = None
            self._heap.clear()
            self.run_until(self._now_s)


class SimLoop(asyncio.AbstractEventLoop):
    """One process: an event loop whose time is the world's."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.frozen_until_s = 0.0

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something that may end, but not fail."""
        task = self.create_task(coroutine)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.fail(error)

    # What asyncio asks of an event loop.

    def time(self) -> float:
        return self.world.now_s()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.world.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.world.now_s() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.world.push(when, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it in the heap: it is passed over when its time comes."""

    def run_in_executor(  # type: ignore[override]  # asyncio declares a coroutine, returns a future
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Do at once what a thread would do, a moment later; tell it at once, or later."""
        future = self.create_future()

        def work() -> None:
            if future.done():
                return
            try:
                answer = partial(future.set_result, func(*args))
            except Exception as error:
                answer = partial(future.set_exception, error)
            self.world.after_work()
            if way_s := self.world.way_s():
                self.call_later(way_s, tell, answer)
            else:
                answer()

        def tell(answer: Callable[[], None]) -> None:
            if not future.done():
                answer()

        self.call_later(self.world.random() * THREAD_MAX_S + self.world.way_s(), work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.alive:
            self.world.fail(context.get("exception") or AssertionError(context["message"]))
