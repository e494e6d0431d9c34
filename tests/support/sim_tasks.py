"""Simulated time and processes: coroutines on one heap, in an order that a seed decides.

No asyncio: a coroutine awaits `Tasks.sleep` or a `Promise`, and nothing else. A process
may be killed (nothing of it runs again) or frozen (it runs on later, unaware).
"""

from __future__ import annotations

import hashlib
import heapq
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from random import Random
from typing import Any

EPOCH_S = 1_700_000_000.0
STORY_LINES_MAX = 60


@dataclass(eq=False)
class Process:
    """Something that dies or freezes as a whole."""

    name: str
    alive: bool = True
    frozen_until_s: float = 0.0


@dataclass(eq=False)
class Task:
    coroutine: Coroutine[Any, Any, None]
    process: Process


@dataclass(eq=False)
class Promise:
    """A value that somebody will give; the first one counts."""

    tasks: Tasks
    given: bool = False
    value: Any = None
    waiting: list[Task] = field(default_factory=list)

    def give(self, value: Any) -> None:
        if self.given:
            return
        self.given, self.value = True, value
        for task in self.waiting:
            self.tasks.resume_at(self.tasks.now_s(), task)

    @types.coroutine
    def wait(self) -> Generator[Any, None, Any]:
        if not self.given:
            yield self
        return self.value


class Tasks:
    """The scheduler; also the clock, the dice and the story of one run."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.steps = 0
        self.story: deque[str] = deque(maxlen=STORY_LINES_MAX)
        self._digest = hashlib.sha256()
        self._now_s = EPOCH_S
        self._heap: list[tuple[float, int, Process, Callable[[], None]]] = []
        self._count = 0

    def now_s(self) -> float:
        return self._now_s

    @property
    def digest(self) -> str:
        """What happened, in 16 digits."""
        return self._digest.hexdigest()[:16]

    def tell(self, line: str) -> None:
        """Add a line to the story."""
        text = f"{self._now_s - EPOCH_S:9.3f} {line}"
        self.story.append(text)
        self._digest.update(text.encode())

    def chance(self, probability: float) -> bool:
        return self.dice.random() < probability

    def spawn(self, process: Process, coroutine: Coroutine[Any, Any, None]) -> None:
        self.resume_at(self._now_s, Task(coroutine, process))

    def resume_at(self, time_s: float, task: Task) -> None:
        self.call_at(time_s, task.process, lambda: self._step(task))

    def call_at(self, time_s: float, process: Process, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time_s, self._count, process, call))

    @types.coroutine
    def _suspend(self, seconds: float) -> Generator[float, None, None]:
        yield seconds

    async def sleep(self, seconds: float) -> None:
        await self._suspend(seconds)

    async def wait(self, promise: Promise, process: Process, longest_s: float) -> Any:
        """Return what a promise is given; None if it is given nothing in time."""
        self.call_at(self._now_s + longest_s, process, lambda: promise.give(None))
        return await promise.wait()

    def promise(self) -> Promise:
        return Promise(self)

    def run_until(self, time_s: float) -> None:
        while self._heap and self._heap[0][0] <= time_s:
            due_s, _, process, call = heapq.heappop(self._heap)
            self._now_s = max(self._now_s, due_s)
            if not process.alive:
                continue
            if process.frozen_until_s > self._now_s:
                self.call_at(process.frozen_until_s, process, call)
                continue
            self.steps += 1
            call()
        self._now_s = max(self._now_s, time_s)

    def _step(self, task: Task) -> None:
        try:
            wanted = task.coroutine.send(None)
        except StopIteration:
            return
        if isinstance(wanted, Promise):
            wanted.waiting.append(task)
        else:
            self.resume_at(self._now_s + wanted, task)


def run_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the coroutine waits")
